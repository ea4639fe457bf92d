"""Recording one process: steps come in, windows open and close, files are written.

Everything the job calls goes through guarded(): a failure of ours ends the recording with one line on stderr, and the
job goes on. Nothing here communicates, draws random numbers or waits for a device inside a measured step."""
import functools
import os
import resource
import socket
import statistics
import sys
import threading
import time

from . import __version__, files, memory, non_training, report, status
from .horovod_timeline import Timeline
from .job import Busy, Job, cpu_flags, environment_number, n_local, place
from .report import guarded, say
from .steps import Cycle
from .tracer import Tracer
from .windows import STRUCTURE_STEPS, Parts, Schedule

RESTARTS = 3  # of the windows, when another optimizer turns out to end the steps


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


class _ThreadEnd:
    """Kept among a thread's own data, calls then() in that thread when it ends."""

    def __init__(self, then):
        self._own = threading.local()
        self._own.end = self._End(then)

    class _End:
        def __init__(self, then):
            self.then = then

        def __del__(self):
            self.then()


class Session:
    records = True  # else steps are only timed
    compresses = True  # files, as soon as all are there

    def __init__(self, settings):
        self.settings = settings
        self.off = False          # nothing more is recorded
        self.jobs = []            # frameworks that are loaded
        self.job = None           # the one that trains
        self._given = []          # models, by Recorders
        self._models = []         # those, or what was found; let go of at the end
        self._thread = None       # that trains; events of others are not steps
        self._thread_end = None   # where it is not the main one
        self._cycle = Cycle()
        self._by_recorder = False
        self._n_events = 0
        self._n_skipped = 0
        self._n_restarts = 0
        self._schedule = self._new_schedule(settings.warmup)
        self._step = 0
        self._phase = None        # the window that step times go to
        self._last_ns = None
        self._last_used = None
        self._times = {name: [] for name in ("before", "timing", "structure", "after")}
        self._windows = []
        self._window = None       # open profiler window
        self._timeline = None     # Horovod's, during it
        self._room = None         # in the heap, for what it keeps
        self._most_resident = 0   # bytes; beyond them it ends
        self._resident = 0        # before the job built anything
        self._window_name = None
        self._unwritten = None    # what writes the window that is over
        self._parts = {}          # windows of a name, by name
        self._n_nodes = []        # of each step before the first window
        self._pending = None      # what waits for the optimizer's step to return
        self._folder = self._tracer = self._info = None
        self._complete = False
        self._compressor = self._probe = None
        self._pid = os.getpid()

    # What the job calls

    @guarded
    def stepped(self, job, source, frame=None):
        """`source` of a framework made a step; `frame`: of its call, where that has not returned yet."""
        if not self._by_recorder and self.job in (None, job):
            self.job = job
            self._event(source, frame)

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

    def add(self, job):
        """A framework that this process has loaded; the first of them that makes a step is the job's."""
        self._resident = self._resident or memory.resident()
        self.jobs.append(job)
        status.came_to(status.LOADED, place=place()[:2])

    def serve(self, name, server=None):
        """This process serves and makes no steps: see non_training.serve."""
        non_training.serve(self.settings, name, server)

    def keep_out_of(self, disable):
        """Before anything is compiled: disable(function) gives one that is not compiled with the rest."""
        self._step_returned = disable(self._step_returned)
        self._run_pending = disable(self._run_pending)

    def configure(self, settings):
        """Before the first step: a Recorder's arguments in place of the environment's."""
        if self._n_events:
            say("recorder", "a Recorder made after the first step can't change what is recorded any more")
            return
        self.settings = settings
        self._schedule = self._new_schedule(settings.warmup)

    def use_model(self, model):
        if model is not None:
            self._given.append(model)

    def trains_here(self):
        """Whether this is the thread whose events are steps."""
        return threading.get_ident() == self._thread

    def announce(self, window):
        """Lets this job's servers know, by rank.json, which window is about to be recorded."""
        self._info["window"] = window
        self._write_rank()

    def _retract(self):
        """That window is over."""
        if self._info and self._info.pop("window", None):
            self._write_rank()

    @guarded
    def job_profiles(self):
        """The job begins to use the framework's profiler: ours makes way."""
        if self._window is not None:
            say("busy", "the job begins to use %s itself; the %s window ends" % (self.job.profiler, self._window_name), self._folder.rank)
            self._close_window(unfinished=self._step + 1)
            self._finish("the job's own profiler began at step %d" % (self._step + 1))

    def after_fork(self):
        """In a forked child: steps that it makes are its own; data loaders make none."""
        window, self._window = self._window, None
        status.forget()
        if window is not None:
            self.job.mute_child()
        if self._n_events:
            self.off = True
            return
        report.forget()
        jobs, resident = self.jobs, self._resident
        self.__init__(self.settings)
        self.jobs, self._resident = jobs, resident
        if "multiprocessing.util" in sys.modules:  # such children leave without atexit
            sys.modules["multiprocessing.util"].Finalize(None, self.at_exit, exitpriority=100)

    # Steps

    def _event(self, source, frame):
        thread = threading.get_ident()
        if self._n_events == 0:
            self._thread = thread
            if threading.current_thread() is not threading.main_thread():
                self._thread_end = _ThreadEnd(self.thread_ended)
            self._choose_job()
            self.job.first_step()
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

    def _choose_job(self):
        """Of a Recorder's steps: the framework of its model, else the one that came last."""
        if self.job is None:
            of_model = [job for job in self.jobs if any(job.knows(model) for model in self._given)]
            candidates = of_model or self.jobs
            if not candidates:
                raise RuntimeError("no framework that dpro knows is loaded (PyTorch, TensorFlow, MXNet)")
            self.job = candidates[-1]
        self._schedule = self._new_schedule(self.settings.warmup)

    def _new_schedule(self, warmup):
        return Schedule(warmup, self.settings.iterations, self.job.windows if self.job else ("timing",),
                        bool(self.settings.probe and self.job and self.job.has_probes))

    @guarded
    def skipped(self, job, source):
        """A step of the job that its framework left out."""
        if not self._by_recorder and self.job in (None, job) and threading.get_ident() == self._thread:
            self._n_skipped += 1
            self._event(source, None)

    @property
    def n_events(self):
        return self._n_events

    @property
    def sources(self):
        """Optimizers and their kin that stepped, a Recorder's functions."""
        return self._cycle.sources

    @property
    def models(self):
        """What is trained, from the first window on."""
        return self._models

    @property
    def part(self):
        """How many windows of its name were before the one that is prepared."""
        return self._parts[self._window_name].number

    @property
    def has_shapes(self):
        """Whether the window that is prepared records shapes of tensors."""
        return self._parts[self._window_name].has_shapes

    @property
    def folder(self):
        """None until the first window comes near."""
        return self._folder

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
        self._windows, self._parts, self._n_nodes = [], {}, []
        self._schedule = self._new_schedule(max(self.settings.warmup, step + 1))

    def _step_ended(self, step, now_ns, frame):
        if self.off:
            return
        self._step = step
        status.came_to(status.STEPPED, step)
        phase = self._phase
        if phase and self._last_ns is not None:
            used = _used()
            self._times[phase].append({"step": step, "start_ns": self._last_ns, "end_ns": now_ns,
                                       "cpu_ns": used[0] - self._last_used[0],
                                       "page_faults": used[1] - self._last_used[1]})
            self._last_used = used
        if phase == "before":
            self._n_nodes.append(self.job.n_nodes())
        self._last_ns = now_ns
        window = self._window
        if window is not None and phase == self._window_name:
            window.end_step()
        action = self._schedule.actions.get(step)
        if action is None and window is not None and phase == self._window_name:
            parts = self._parts[self._window_name]
            if window.n_steps >= parts.most:
                following = parts.following(step)
                if following is not None:
                    self._schedule.actions.update({following: "prepare " + phase, following + 1: "start " + phase})
                action = "stop " + phase
            elif memory.resident() <= self._most_resident:
                window.begin_step(step + 1)
                return
        if action is None and window is not None and phase == self._window_name:
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
            self._n_nodes.append(self.job.n_nodes() if verb == "before" else None)
        elif verb == "prepare":
            self._phase = None
            self._prepare(name)
        elif verb == "start":
            if self._window is not None:
                self._window.start()
                self._parts[name].begin(step)
                self._phase = name
                self._window.begin_step(step + 1)
                status.came_to(status.WINDOW)
        elif verb == "stop":
            self._phase = None
            self._close_window()
        elif verb == "write":
            self._write_window()
        elif verb in ("survey", "copy", "probe"):
            self._phase = None
            self._probe_modules(verb)
        elif verb == "done":
            self._finish(None)
            return
        self._last_used = _used()
        self._last_ns = time.time_ns()

    # Windows

    def _open_folder(self):
        if self._folder is None:
            self._claim_folder()
        self._models = self._given or self.job.find_models(self._cycle.sources)
        self._describe()
        self._write_rank()
        if self._room is None and self.job.wants_room(self._info):
            self._make_room()

    def _make_room(self):
        self._room = memory.Room(memory.resident() - self._resident, n_local())
        if self._room.problem:
            say("room", "the heap of this process could not be enlarged for the profiler: %s. Profiled steps may take "
                "longer than others" % self._room.problem, self._folder.rank)

    def _claim_folder(self):
        rank, world, local_rank = self.job.place()
        status.came_to(place=(rank, world))
        host_name = socket.gethostname()
        host = files.host_number(host_name)
        self._folder = files.Folder(self.settings.out, host, "rank%d" % rank)
        self._folder.rank = rank
        self._tracer = Tracer(self.settings.net, world > 1)
        self._info = {"schema": "dpro.rank/1", "dpro": __version__, "rank": rank, "world_size": world,
                      "local_rank": local_rank,
                      "attempt": self._folder.attempt, "host": host, "host_name": host_name,
                      "boot_id": _text("/proc/sys/kernel/random/boot_id"), "net_ns": _inode("/proc/self/ns/net"),
                      "time_ns": _inode("/proc/self/ns/time"), "cpu_flags": cpu_flags(),
                      "pid": os.getpid(), "framework": self.job.framework,
                      "versions": self.job.versions(), "command": list(sys.argv), "iterations": self.settings.iterations}

    def _describe(self):
        self._info.update(self.job.describe(self._models, self._cycle.sources))

    def _prepare(self, name):
        lacking = self.job.missing()
        if lacking:
            say("profiler", "%s is missing: only step times are recorded" % lacking, self._folder.rank)
            return
        self._write_rank()  # the steps before, whatever becomes of the window
        if name not in self._parts:
            self._parts[name] = self._parts_of(name)
        self._window_name = name
        if name == "structure" and self._parts[name].most < STRUCTURE_STEPS:
            return
        self._most_resident = memory.resident() + memory.available() // (memory.GROWTH * n_local())
        try:
            self._window = self.job.prepare(name)
        except Busy:
            say("busy", "the job uses %s itself; the %s window is left out" % (self.job.profiler, name), self._folder.rank)
            return
        self._timeline = Timeline(self._folder)
        if name == "timing" and self.part == 0:  # the structure window's steps are not those that are replayed
            self._timeline.start()
        self._tracer.start(self._folder.path, self._folder.rank, name)

    def _parts_of(self, name):
        """A step has about 14 events of the profiler for each op that autograd numbers (a Linear and a tanh): the op, what it
        calls, and more in the backward pass."""
        n_steps = STRUCTURE_STEPS if name == "structure" else self.settings.iterations
        nodes = [b - a for a, b in zip(self._n_nodes, self._n_nodes[1:]) if a is not None and b is not None]
        events = 14 * statistics.median(nodes) if nodes else 0
        parts = Parts(n_steps, events, self.job.knows_sizes(self._info))
        if parts.is_apart:
            text = "its memory and its execution trace are left out, so that the job does not wait longer for them" \
                if name == "structure" else \
                "steps are recorded in windows of %d, not %d in a row%s, at whose end the job waits for them, %s at most" % (
                    parts.most, n_steps, "" if parts.has_shapes else ", without shapes of tensors",
                    "a second" if parts.waits_s < 1.5 else "%.0f seconds" % parts.waits_s)
            say("parts " + name, "a step makes about %d events of the profiler: %s" % (events, text), self._folder.rank)
        return parts

    def _close_window(self, unfinished=None):
        """Ends the open window, and writes what it recorded: what took long to end, when another step has ended. `unfinished`:
        number of the step that was cut short, as the job or the recording ends."""
        window, name, self._window = self._window, self._window_name, None
        self._info.pop("window", None)
        if window is None:
            self._describe()
            self._write_rank()
            return
        window.settle()
        begun = time.perf_counter()
        self._tracer.stop(name)
        timeline = self._timeline.stop()
        has_profile = window.stop()
        self._unwritten = functools.partial(self._write_profile, window, name, has_profile, timeline, unfinished)
        if unfinished is None and self._parts[name].is_long:
            self._schedule.actions[self._step + 1] = "write " + name
        else:
            self._write_window()
        self._parts[name].took(window.n_steps, time.perf_counter() - begun)

    def _write_window(self):
        write, self._unwritten = self._unwritten, None
        if write:
            write()

    def _write_profile(self, window, name, has_profile, timeline, unfinished):
        times = self._times[name][-window.n_steps:] if window.n_steps else []
        if has_profile and times:
            written = window.write(self._folder, unfinished) + timeline
            self._windows.append({"name": name, "files": written, "first_step": times[0]["step"], "n_steps": len(times),
                                  "start_ns": times[0]["start_ns"], "end_ns": times[-1]["end_ns"]})
            status.came_to(status.WRITTEN)
        if name == "timing":
            self._leave_room()
            if self._info.get("profiler") is None and not unfinished:
                self._info["profiler"] = self.job.cost()
        self._describe()
        self._write_rank()
        if self._folder.rank == 0:
            self._folder.write_job(__version__)

    def _probe_modules(self, verb):
        from . import probe_result
        if verb == "survey":
            other = probe_result.measured_by(self._folder, self._info)
            own_host = os.path.dirname(os.path.dirname(self._folder.file(probe_result.FILE)))
            if other is None or os.path.realpath(os.path.dirname(other)) == os.path.realpath(own_host):
                self._probe = self.job.probe(self.settings, self._folder, self._info, n_local(), other is None)
        told = self._probe.act(verb) if self._probe else None
        if told:
            self._info["probes"] = told

    def _leave_room(self):
        room, self._room = self._room, None
        if room is not None:
            room.leave()

    def _give_up_window(self):
        window, self._window, self._unwritten = self._window, None, None
        self._leave_room()
        self._retract()
        if window is not None:
            self._tracer.stop(self._window_name)
            self._timeline.stop()
            self._timeline.drop()
            window.stop()
            window.drop(self._folder)
            del self._times[self._window_name][:]
        self._phase = None

    # The end

    def _write_rank(self):
        self._info.update({
            "complete": self._complete, "batch_size": self.job.batch_size,
            "steps": dict(self._times, boundary="recorder" if self._by_recorder else "optimizer",
                          warmup=self.settings.warmup, skipped=self._n_skipped),
            "windows": self._windows, "logs": self._tracer.stats, "warnings": report.warnings})
        self._folder.write_rank(self._info)

    def _finish(self, reason, at_exit=False):
        """The last thing that is recorded; `reason`: why not everything was."""
        self._write_window()
        self._complete = reason is None
        self._info["ended_early"] = reason
        status.came_to(status.FINISHED, text=reason or (report.warnings[-1] if report.warnings else None))
        self._describe()
        self._write_rank()
        if self._info["world_size"] <= files.JOB_JSON_BY_ALL or self._folder.rank == 0:
            self._folder.write_job(__version__)
        if self._folder.rank == 0 and self.settings.summary:
            self._tell(reason)
        names = [name for window in self._windows for name in window["files"]]
        self._let_go()
        self._compressor = files.Compressor(self._folder, names, self._compressed)
        if self.compresses and not at_exit:
            self._compressor.start()

    def _compressed(self, done):
        for window in self._windows:
            window["files"] = [name + ".gz" if name == done else name for name in window["files"]]
        self._write_rank()

    def _let_go(self):
        """Nothing of the job's is kept alive by us."""
        self.off = True
        self._leave_room()
        probe, self._probe = self._probe, None
        if probe:
            probe.end()
        self._given, self._models, self._cycle = [], [], Cycle()
        for job in self.jobs:
            job.let_go()

    def _tell(self, reason):
        timing = [window for window in self._windows if window["name"] == "timing"]
        out = self._folder.root
        if timing:
            first, n_steps = timing[0]["first_step"], timing[-1]["first_step"] + timing[-1]["n_steps"] - timing[0]["first_step"]
            world = self._info["world_size"]
            report.tell("recorded step%s of %d rank%s in %s%s; next: dpro replay %s" % (
                "s %d to %d%s" % (first, first + n_steps - 1, " in %d windows" % len(timing) if len(timing) > 1 else "")
                if n_steps > 1 else " %d" % first, world,
                "s" if world > 1 else "", out, " (%s)" % reason if reason else "", out))
        else:
            report.tell("no step was recorded in %s: %s" % (out, reason or "see the lines above"))

    def at_exit(self):
        if os.getpid() == self._pid:
            self._at_exit()
            status.came_to(status.ENDED)

    @guarded
    def _at_exit(self):
        """The job ends before the last window did, or while files are being compressed."""
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

    @guarded
    def thread_ended(self):
        """The thread that trains, in it: no other one can stop the profiler, and torch crashes at the end of a process in which
        nobody did."""
        if os.getpid() != self._pid or self._folder is None:
            return
        self._run_pending()
        if self._window is not None and not self.off:
            self._phase = None
            self._close_window(unfinished=self._step + 1)
        if not self.off:
            self._finish("the thread that trains ended after step %d" % self._step, at_exit=True)

    def _tell_nothing(self):
        """Why there is no trace; said by processes that could have been meant to train."""
        if environment_number("RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", default=0) != 0:
            return
        if self._n_events:
            report.tell("nothing recorded: the job ended after %d steps, while the first %d warm up "
                        "(--warmup, DPRO_WARMUP)" % (self._step, self.settings.warmup))
            return
        parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", lambda: None)()
        if parent is None and "torch.distributed.run" not in sys.modules and not os.path.isdir(self.settings.out):
            report.tell("nothing recorded: %s; dpro.Recorder tells of other steps" % (self.jobs[-1] if self.jobs else Job).no_step)

    def finish_files(self):
        """At exit, whatever was recorded."""
        if self._compressor and os.getpid() == self._pid:
            large = self._compressor.finish()
            if large:
                say("uncompressed", "the job ended before %s could be compressed: they stay as they are, and dpro reads them"
                    % ", ".join(large), self._folder.rank)

    def fail(self, problem):
        """Ends the recording; the job goes on."""
        self.off = True
        where = getattr(problem, "filename", None)
        if isinstance(problem, OSError):
            what = "%s: %s" % (where or self.settings.out, problem.strerror or problem)
        else:
            what = report.first_line(problem)
        say("fail", "recording ends, the job goes on: %s" % what)
        status.came_to(status.FAILED, text=what)
        for stop in (self._retract, self._tracer and (lambda: self._tracer.stop("failed")), self._window and self._window.stop,
                     self._timeline and self._timeline.stop):
            try:
                if stop:
                    stop()
            except Exception:
                pass
        self._window = self._unwritten = None
        self._let_go()
