"""Recording one process: steps come in, windows open and close, files are written.

Everything the job calls goes through guarded(): a failure of ours ends the recording with one line on stderr, and the
job goes on. Nothing here communicates, draws random numbers or waits for a device inside a measured step."""
import functools
import os
import resource
import socket
import sys
import threading
import time

from . import __version__, files, memory, report
from .report import say
from .steps import Cycle
from .tracer import Tracer
from .windows import Schedule

WINDOW_FILES = {"timing": {"profile": "kineto.json"}, "structure": {"profile": "kineto_et.json", "graph": "et.json"}}
RESTARTS = 3  # of the windows, when another optimizer turns out to end the steps


def guarded(method):
    @functools.wraps(method)
    def safely(self, *args, **kwargs):
        if self.off:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as problem:
            if report.is_the_jobs(problem):
                raise
            self.fail(problem)
            return None
    return safely


def _integer(*names, default):
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return default


def _text(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _used():
    """CPU time of this process so far, in ns, and how many pages the kernel had to give it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return round(1e9 * (usage.ru_utime + usage.ru_stime)), usage.ru_minflt


def _inode(path):
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _when_returned(frame, then):
    """Calls then() when this frame has returned, its `with` blocks left."""
    if sys.getprofile() is not None:  # somebody's own: a span cut short is the lesser harm
        then()
        return

    def watch(returning, event, _):
        if returning is frame and event == "return":
            sys.setprofile(None)
            then()

    sys.setprofile(watch)


class Session:
    _hook = _wrapped_in = None

    def __init__(self, settings):
        self.settings = settings
        self.off = False          # nothing more is recorded
        self._given = []          # models, by Recorders
        self._models = []         # those, or what was found; let go of at the end
        self._thread = None       # that trains; events of others are not steps
        self._cycle = Cycle()
        self._by_recorder = False
        self._n_events = 0
        self._n_skipped = 0
        self._n_restarts = 0
        self._schedule = Schedule(settings.warmup, settings.iterations)
        self._step = 0
        self._phase = None        # the window that step times go to
        self._last_ns = None
        self._last_used = None
        self._times = {name: [] for name in ("before", "timing", "structure", "after")}
        self._windows = []
        self._window = None       # open profiler window
        self._room = None         # in the heap, for what it keeps
        self._most_resident = 0   # bytes; beyond them it ends
        self._resident = 0        # before the job built anything
        self._window_name = None
        self._pending = None      # what waits for the optimizer's step to return
        self._folder = self._tracer = self._info = None
        self._batch_size = None
        self._complete = False
        self._compressor = None
        self._pid = os.getpid()

    # What the job calls

    def optimizer_stepped(self, optimizer, args, kwargs):
        """The post hook of every optimizer."""
        if not self.off and not self._by_recorder:
            self._optimizer_stepped(optimizer)

    @guarded
    def _optimizer_stepped(self, optimizer):
        frame = sys._getframe(1)  # on to the wrapper that torch put around step
        while frame.f_code.co_filename != self._wrapped_in:
            frame = frame.f_back
        code, outer = frame.f_code, frame.f_back
        while outer is not None:  # an optimizer's step inside another one's is a part of it
            if outer.f_code is code:
                return
            outer = outer.f_back
        self._event(optimizer, frame)

    def wrap_step(self, function):
        """`function`, whose calls are training steps."""
        if not self._by_recorder:
            self._by_recorder = True
            self._cycle = Cycle()

        @functools.wraps(function)
        def train_step(*args, **kwargs):
            result = function(*args, **kwargs)
            self._step_returned(train_step)
            return result
        return train_step

    @guarded
    def _step_returned(self, function):
        self._event(function, None)

    def attach(self, optimizers):
        """To the module torch.optim.optimizer."""
        self._resident = memory.resident()
        self._wrapped_in = optimizers.Optimizer.__init__.__code__.co_filename
        register = getattr(optimizers, "register_optimizer_step_post_hook", None)
        if register is None:
            say("hooks", "this torch has no hooks around an optimizer's step (2.0 or later has): steps are only found "
                         "with dpro.Recorder")
        else:
            self._hook = register(self.optimizer_stepped)

    def keep_out_of(self, dynamo):
        """Before anything is compiled: what we do is not to be compiled with it."""
        self._step_returned = dynamo.disable(self._step_returned)
        self._run_pending = dynamo.disable(self._run_pending)
        if self._hook is not None:
            self._hook.hooks_dict_ref()[self._hook.id] = dynamo.disable(self.optimizer_stepped)

    def configure(self, settings):
        """Before the first step: a Recorder's arguments in place of the environment's."""
        if self._n_events:
            say("recorder", "a Recorder made after the first step can't change what is recorded any more")
            return
        self.settings = settings
        self._schedule = Schedule(settings.warmup, settings.iterations)

    def use_model(self, model):
        if model is not None:
            self._given.append(model)

    @guarded
    def job_profiles(self):
        """The job begins to use torch.profiler: ours makes way."""
        if self._window is not None:
            say("busy", "the job begins to use torch.profiler itself; the %s window ends" % self._window_name,
                self._folder.rank)
            self._close_window(unfinished=self._step + 1)
            self._finish("the job's own profiler began at step %d" % (self._step + 1))

    def after_fork(self):
        """In a forked child: steps that it makes are its own; data loaders make none."""
        window, self._window = self._window, None
        if window is not None:
            from . import profiler
            profiler.mute_child()
        if self._n_events:
            self.off = True
            return
        report.forget()
        self.__init__(self.settings)
        if "multiprocessing.util" in sys.modules:  # such children leave without atexit
            sys.modules["multiprocessing.util"].Finalize(None, self.at_exit, exitpriority=100)

    # Steps

    def _event(self, source, frame):
        thread = threading.get_ident()
        if self._n_events == 0:
            self._thread = thread
            self._watch_scaler()
        if thread != self._thread:
            return
        self._n_events += 1
        if self._pending:
            self._run_pending()
        step, changed = self._cycle.stepped(source)
        if step:
            if changed:
                self._restart(step)
            self._step_ended(step, time.time_ns(), frame)

    def _watch_scaler(self):
        """A gradient scaler that found an overflow leaves the optimizer's step out: a step of the job all the same."""
        for module in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
            scaler = getattr(sys.modules.get(module), "GradScaler", None)
            step = getattr(scaler, "_maybe_opt_step", None)
            if step is None or hasattr(step, "_dpro"):
                continue

            @functools.wraps(step)
            def maybe_step(scaler, optimizer, *args, _step=step, **kwargs):
                n = self._n_events
                result = _step(scaler, optimizer, *args, **kwargs)
                if self._n_events == n and not self._by_recorder:
                    self._step_skipped(optimizer)
                return result

            maybe_step._dpro = True
            scaler._maybe_opt_step = maybe_step
            return

    @guarded
    def _step_skipped(self, optimizer):
        if threading.get_ident() == self._thread:
            self._n_skipped += 1
            self._event(optimizer, None)

    def _restart(self, step):
        """Another optimizer ends the steps than it seemed: what was measured has the wrong ends."""
        self._give_up_window()
        self._phase = None
        self._n_restarts += 1
        if self._n_restarts > RESTARTS and self._windows:
            self._finish("it is not clear which optimizer ends a step")
            return
        for times in self._times.values():
            del times[:]
        self._windows = []
        self._schedule = Schedule(max(self.settings.warmup, step + 1), self.settings.iterations)

    def _step_ended(self, step, now_ns, frame):
        if self.off:
            return
        self._step = step
        phase = self._phase
        if phase and self._last_ns is not None:
            used = _used()
            self._times[phase].append({"step": step, "start_ns": self._last_ns, "end_ns": now_ns,
                                       "cpu_ns": used[0] - self._last_used[0],
                                       "page_faults": used[1] - self._last_used[1]})
            self._last_used = used
        self._last_ns = now_ns
        window = self._window
        if window is not None and phase == self._window_name:
            window.end_step()
        action = self._schedule.actions.get(step)
        if action is None and window is not None and phase == self._window_name:
            if memory.resident() <= self._most_resident:
                window.begin_step(step + 1)
                return
            say("memory", "the %s window ends after %d steps: with the profiler the job takes ever more memory"
                % (self._window_name, window.n_steps), self._folder.rank)
            action = "stop " + self._window_name
        if action is None:
            return
        self._pending = functools.partial(self._act, action, step)
        if action.startswith("stop ") and frame is not None:
            self._phase = None
            _when_returned(frame, self._run_pending)
        else:
            self._run_pending()

    @guarded
    def _run_pending(self):
        pending, self._pending = self._pending, None
        if pending:
            pending()

    def _act(self, action, step):
        verb, _, name = action.partition(" ")
        if verb == "open":
            self._open_folder()
        elif verb in ("before", "after"):
            self._phase = verb
        elif verb == "prepare":
            self._phase = None
            if self._folder.rank == 0 or self._batch_size is None:
                self._watch_batch()
            self._prepare(name)
        elif verb == "start":
            if self._window is not None:
                self._window.start()
                self._phase = name
                self._window.begin_step(step + 1)
        elif verb == "stop":
            self._phase = None
            self._close_window()
        elif verb == "done":
            self._finish(None)
            return
        self._last_used = _used()
        self._last_ns = time.time_ns()

    # Windows

    def _open_folder(self):
        from . import model
        if self._folder is None:
            self._claim_folder()
        self._models = self._given or model.find(self._optimizers())
        self._describe()
        self._write_rank()
        if self._room is None and self._info["device"] == "cpu":
            self._room = memory.Room(memory.resident() - self._resident, self._n_local())

    @staticmethod
    def _n_local():
        """Processes of the job on this machine."""
        return _integer("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", default=1)

    def _claim_folder(self):
        from . import model
        import torch
        world = _integer("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", default=1)
        rank = _integer("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", default=0)
        if model.distributed():
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        host_name = socket.gethostname()
        host = files.host_number(host_name)
        self._folder = files.Folder(self.settings.out, host, rank)
        self._folder.rank = rank
        self._tracer = Tracer(self.settings.net, world > 1)
        self._info = {"schema": "dpro.rank/1", "dpro": __version__, "rank": rank, "world_size": world,
                      "local_rank": _integer("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", default=0),
                      "attempt": self._folder.attempt, "host": host, "host_name": host_name,
                      "boot_id": _text("/proc/sys/kernel/random/boot_id"), "net_ns": _inode("/proc/self/ns/net"),
                      "time_ns": _inode("/proc/self/ns/time"), "pid": os.getpid(), "framework": "pytorch",
                      "versions": model.versions(), "command": list(sys.argv), "iterations": self.settings.iterations}

    def _optimizers(self):
        """Those that stepped; a decorated function is none."""
        return [source for source in self._cycle.sources if hasattr(source, "param_groups")]

    def _describe(self):
        from . import model, planned
        import torch
        described = []
        for module in self._models:
            try:
                described.append(model.describe(module))
            except Exception as problem:
                say("model", "the model %s can't be described: %s: %s"
                    % (type(module).__name__, type(problem).__name__, problem))
        kind = model.device(self._models)
        self._info.update({
            "device": kind, "device_name": model.device_name(kind),
            "backend": torch.distributed.get_backend() if model.distributed() else None,
            "process_groups": model.process_groups(), "models": described, "plan": planned.state(),
            "optimizers": [{"class": type(o).__name__, "n_parameters": sum(len(g["params"]) for g in o.param_groups)}
                           for o in self._optimizers()],
            "memory": model.memory(self._models, self._optimizers())})

    def _watch_batch(self):
        """The batch size is the first dimension of the first tensor that goes into a module. Not where anything is
        compiled: compiled code notices a hook."""
        from torch.nn.modules import module as modules
        import torch
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
        if self._batch_size is not None or (counters and counters["frames"]["total"]):
            return

        def look(module, args):
            if threading.get_ident() != self._thread:
                return
            for arg in args:
                if issubclass(type(arg), torch.Tensor) and arg.dim() > 0:
                    self._batch_size = int(arg.shape[0])
                    handle.remove()
                    return

        handle = modules.register_module_forward_pre_hook(look)
        self._batch_hook = handle

    _batch_hook = None

    def _prepare(self, name):
        from . import profiler
        lacking = profiler.missing()
        if lacking:
            say("profiler", "%s is missing: only step times are recorded" % lacking, self._folder.rank)
            return
        graph = WINDOW_FILES[name].get("graph")
        self._most_resident = memory.resident() + memory.available() // (memory.GROWTH * self._n_local())
        try:
            self._window = profiler.Window(self.job_profiles, graph and self._folder.temporary(graph),
                                           memory=name == "structure")
        except profiler.Busy:
            say("busy", "the job uses torch.profiler itself; the %s window is left out" % name, self._folder.rank)
            return
        self._window_name = name
        if graph and not self._window.has_execution_trace:
            say("et", "the execution trace can't be recorded: the job records one itself, or this torch can't",
                self._folder.rank)
        self._tracer.start(self._folder.path, self._folder.rank, name)

    def _close_window(self, unfinished=None):
        """Writes what the open window recorded; `unfinished`: number of the step that was cut short."""
        if self._batch_hook is not None:
            self._batch_hook.remove()
            self._batch_hook = None
        window, name, self._window = self._window, self._window_name, None
        if window is None:
            self._describe()
            self._write_rank()
            return
        self._tracer.stop(name)
        has_profile = window.stop()
        written = []
        times = self._times[name]
        if has_profile and times:
            profile, graph = WINDOW_FILES[name]["profile"], WINDOW_FILES[name].get("graph")
            window.write(self._folder.temporary(profile))
            self._folder.finish_json(profile, unfinished)
            written.append(profile)
            if graph and window.has_execution_trace:
                self._folder.finish_json(graph)
                written.append(graph)
            self._windows.append({"name": name, "files": written, "first_step": times[0]["step"], "n_steps": len(times),
                                  "start_ns": times[0]["start_ns"], "end_ns": times[-1]["end_ns"]})
        if name == "timing":
            self._leave_room()
            if self._info.get("profiler") is None and not unfinished:
                from . import profiler
                self._info["profiler"] = profiler.cost()
        self._describe()
        self._write_rank()
        if self._folder.rank == 0:
            self._folder.write_job(__version__)

    def _leave_room(self):
        room, self._room = self._room, None
        if room is not None:
            room.leave()

    def _give_up_window(self):
        window, self._window = self._window, None
        self._leave_room()
        if window is not None:
            self._tracer.stop(self._window_name)
            window.stop()
            for file in WINDOW_FILES[self._window_name].values():
                self._folder.drop(file)
            del self._times[self._window_name][:]
        self._phase = None

    # The end

    def _write_rank(self):
        self._info.update({
            "complete": self._complete, "batch_size": self._batch_size,
            "steps": dict(self._times, boundary="recorder" if self._by_recorder else "optimizer",
                          warmup=self.settings.warmup, skipped=self._n_skipped),
            "windows": self._windows, "logs": self._tracer.stats, "warnings": report.warnings})
        self._folder.write_rank(self._info)

    def _finish(self, reason, at_exit=False):
        """The last thing that is recorded; `reason`: why not everything was."""
        self._complete = reason is None
        self._info["ended_early"] = reason
        self._describe()
        self._write_rank()
        if self._info["world_size"] <= files.JOB_JSON_BY_ALL or self._folder.rank == 0:
            self._folder.write_job(__version__)
        if self._folder.rank == 0 and self.settings.summary:
            self._tell(reason)
        names = [name for window in self._windows for name in window["files"]]
        self._let_go()
        self._compressor = files.Compressor(self._folder, names, self._compressed)
        if not at_exit:
            self._compressor.start()

    def _compressed(self, done):
        for window in self._windows:
            window["files"] = [name + ".gz" if name == done else name for name in window["files"]]
        self._write_rank()

    def _let_go(self):
        """Nothing of the job's is kept alive by us."""
        self.off = True
        self._leave_room()
        self._given, self._models, self._cycle = [], [], Cycle()

    def _tell(self, reason):
        timing = [window for window in self._windows if window["name"] == "timing"]
        out = self._folder.root
        if timing:
            first, n_steps = timing[0]["first_step"], timing[0]["n_steps"]
            world = self._info["world_size"]
            report.tell("recorded step%s of %d rank%s in %s%s; next: dpro replay %s" % (
                "s %d to %d" % (first, first + n_steps - 1) if n_steps > 1 else " %d" % first, world,
                "s" if world > 1 else "", out, " (%s)" % reason if reason else "", out))
        else:
            report.tell("no step was recorded in %s: %s" % (out, reason or "see the lines above"))

    @guarded
    def at_exit(self):
        """The job ends before the last window did, or while files are being compressed."""
        if os.getpid() != self._pid:
            return
        if self._folder is None:
            if self.settings.summary:
                self._tell_nothing()
            self.off = True
            return
        self._run_pending()
        if self.off:
            return
        if self._window is not None:
            if self._thread == threading.get_ident():
                self._phase = None
                self._close_window(unfinished=self._step + 1)
            else:
                say("thread", "the window open at the end is lost: the thread that trained is gone")
        self._phase = None
        self._finish("the job ended after step %d" % self._step, at_exit=True)

    def _tell_nothing(self):
        """Why there is no trace; said by processes that could have been meant to train."""
        if _integer("RANK", "OMPI_COMM_WORLD_RANK", default=0) != 0:
            return
        if self._n_events:
            report.tell("nothing recorded: the job ended after %d steps, while the first %d warm up "
                        "(--warmup, DPRO_WARMUP)" % (self._step, self.settings.warmup))
            return
        parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", lambda: None)()
        if parent is None and "torch.distributed.run" not in sys.modules and not os.path.isdir(self.settings.out):
            report.tell("nothing recorded: no optimizer of torch.optim made a step; dpro.Recorder tells of other steps")

    def finish_files(self):
        """At exit, whatever was recorded."""
        if self._compressor and os.getpid() == self._pid:
            self._compressor.finish()

    def fail(self, problem):
        """Ends the recording; the job goes on."""
        self.off = True
        where = getattr(problem, "filename", None)
        if isinstance(problem, OSError):
            what = "%s: %s" % (where or self.settings.out, problem.strerror or problem)
        else:
            what = "%s: %s" % (type(problem).__name__, str(problem).split("\n")[0])
        say("fail", "recording ends, the job goes on: %s" % what)
        for stop in (self._tracer and (lambda: self._tracer.stop("failed")), self._window and self._window.stop,
                     self._batch_hook and self._batch_hook.remove):
            try:
                if stop:
                    stop()
            except Exception:
                pass
        self._window = None
        self._let_go()
