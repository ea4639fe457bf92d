"""One window of torch's own profiler: prepared a step ahead, started, cut into steps, stopped, written.

There is one profiler in a process. When the job uses it as well, the job's use wins: a window does not begin while
another one is open, and ends when one begins."""
import gc
import statistics
import time

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity, record_function

from . import comm_marks, report
from .job import Busy, Window as JobWindow

# For threads that are in a call of the execution trace's observer when it is stopped: what they hold is freed with it, and a
# job has died of that (seen once, on a busy machine: "mutex->__data.__owner == 0").
LEAVE_S = 0.05


def missing():
    """Which part of the profiler this torch lacks, None when it is all there."""
    if not torch.autograd.kineto_available():
        return "Kineto (this torch was built without it)"
    try:
        from torch.profiler.profiler import _KinetoProfile  # noqa: F401
    except ImportError:
        return "torch.profiler (this torch is too old: 2.0 or later is needed)"
    return None


def enabled():
    return torch._C._autograd._profiler_enabled()


def _others_open():
    """Whether the job holds a profiler between its start and its stop, warming up or waiting included."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.profiler.profile) and getattr(thing, "step_rec_fn", None) is not None:
            return True
    return False


def in_use():
    """Whether the job uses the profiler, or is about to."""
    return enabled() or _others_open()


def _activities():
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_initialized():
        activities.append(ProfilerActivity.CUDA)
    xpu = getattr(torch, "xpu", None)
    if xpu is not None and hasattr(ProfilerActivity, "XPU") and xpu.is_initialized():
        activities.append(ProfilerActivity.XPU)
    return activities


def _keep_inputs_values(on):
    """Whether the profiler keeps the values of an op's scalar inputs beside their shapes: only MFU of convolutions needs them, and on a
    CPU they are the blocks that come to lie between the job's tensors (a heap that grew by 80 MB a step grew by 12)."""
    switch = getattr(torch._C._profiler, "_set_record_concrete_inputs_enabled_val", None)
    if switch is not None:
        switch(on)


def _all_threads():
    """Settings by which the profiler watches threads, too, that the job's own did not start; None where this torch can't."""
    try:
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return None


class Window(JobWindow):
    """on_job_profiles() is called when the job begins to use the profiler; the window is stopped then. `profile` and
    `graph` are names of files in `folder`; with a graph, the execution trace and memory are recorded, too. `all_threads`: also
    what a communication hook does when its first collective is over, in the process group's threads."""

    def __init__(self, on_job_profiles, profile, graph, folder, has_shapes=True, all_threads=False):
        if in_use():
            raise Busy
        from torch.profiler.profiler import _KinetoProfile
        super().__init__()
        self._files = profile, graph
        self._observer = None
        self._running = False
        self._step = None
        self._restore = []
        self._comm_marks = comm_marks.CommMarks(lambda problem: report.say(
            "comm-marks", "what process groups are asked for is not marked: %s: %s" % (type(problem).__name__, problem), folder.rank))
        self._collection = None  # the mark around one that goes on
        self.memory = None  # what is recorded besides in the structure window: held_memory.Watch
        self.when_stopped = None
        self._profile = _KinetoProfile(activities=_activities(), record_shapes=has_shapes, profile_memory=graph is not None,
                                        experimental_config=_all_threads() if all_threads else None)
        if graph:
            observer = torch.profiler.ExecutionTraceObserver()
            observer.register_callback(folder.temporary(graph))
            self._observer = observer if observer._registered else None
        self._profile.prepare_trace()
        self._watch(on_job_profiles)

    @property
    def has_execution_trace(self):
        return self._observer is not None

    def _watch(self, on_job_profiles):
        """The profiler is entered through two functions of torch.autograd.profiler: looked at while the window is open."""
        self._ours = False

        def watched(enter):
            def entered(*args, **kwargs):
                if not self._ours:
                    on_job_profiles()
                return enter(*args, **kwargs)
            return entered

        for name in ("_prepare_profiler", "_enable_profiler"):
            enter = getattr(autograd_profiler, name, None)
            if enter is not None:
                self._restore.append((name, enter))
                setattr(autograd_profiler, name, watched(enter))

    def _unwatch(self):
        for name, enter in self._restore:
            setattr(autograd_profiler, name, enter)
        self._restore = []

    def start(self):
        if self.memory:
            self.memory.begin()
        self._ours = True
        try:
            if self._observer:
                self._observer.start()
            _keep_inputs_values(False)
            self._profile.start_trace()
        finally:
            self._ours = False
        self._running = True
        self._comm_marks.begin()
        if not self._observer:  # its trace is of the model alone
            gc.callbacks.append(self._collecting)

    def _collecting(self, phase, info):
        """Collections of garbage but the youngest's, which are short, are ops of the thread that they pause."""
        if phase == "start" and info["generation"] > 0 and self._running:
            self._collection = comm_marks.mark_named("Python GC")
            self._collection.__enter__()
        elif self._collection:
            mark, self._collection = self._collection, None
            mark.__exit__(None, None, None)

    def begin_step(self, number):
        if self.memory:
            self.memory.begin_step()
        self._step = record_function("ProfilerStep#%d" % number)
        self._step.__enter__()

    def end_step(self):
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
            super().end_step()

    def stop(self):
        self._comm_marks.end()
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)
        self._unwatch()
        if self.when_stopped:
            self.when_stopped()
        if self.memory:
            self.memory.end()
        if self._running:
            self._running = False
            if self._observer:
                self._observer.stop()
            self._profile.stop_trace()
            _keep_inputs_values(True)
            if self._observer:
                time.sleep(LEAVE_S)
                self._observer.unregister_callback()
            return True
        if self._observer:
            self._observer.unregister_callback()
        self._ours = True
        self._profile.start_trace()  # what was prepared can only be ended by starting it
        self._profile.stop_trace()
        return False

    def write(self, folder, unfinished):
        profile, graph = self._files
        self._profile.export_chrome_trace(folder.temporary(profile))
        self._profile = None
        folder.finish_json(profile, unfinished)
        if self._observer is None:
            return [profile]
        folder.finish_json(graph)
        return [profile, graph]

    def drop(self, folder):
        for file in filter(None, self._files):
            folder.drop(file)
        if self.memory:
            self.memory.drop()


COST_BLOCKS, COST_CALLS, COST_CACHE_BYTES = 12, 5, 8 << 20


def _gpu_calls():
    """Calls of the GPU's runtime that no op is around, by what their cost is called: one that launches a kernel, which ends
    at once and takes no memory, and one that launches nothing."""
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return {}
    return {"launch_ns": lambda: torch.cuda._sleep(0), "call_ns": torch.cuda.current_stream().query}


def cost(has_shapes):
    """What recording costs the thread that does it, {"op_ns": ..., "n_ops": ...}, None where it can't be told: a small layer,
    called in blocks with the profiler listening (as in the timing window) and not, caches emptied before each call as a
    job's own tensors do. On a GPU also of a call of its runtime, against the time without a profiler. Some 100 ms; the
    job's random numbers and gradients are left alone, nothing is allocated on its device."""
    from torch.profiler.profiler import _KinetoProfile
    if enabled():
        return None
    cache, zeros = bytearray(COST_CACHE_BYTES), bytes(COST_CACHE_BYTES)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        x, weight, bias = (torch.ones(size, dtype=torch.float32, device="cpu") for size in ((4, 4), (4, 4), (4,)))

        def call_ns(listening, call=lambda: torch.nn.functional.linear(x, weight, bias)):
            torch._C._autograd._enable_record_function(listening)
            times = []
            for _ in range(COST_CALLS):
                cache[:] = zeros
                begin = time.perf_counter_ns()
                call()
                times.append(time.perf_counter_ns() - begin)
            return statistics.median(times)

        def gpu_ns():
            return {name: statistics.median(call_ns(False, call) for _ in range(COST_BLOCKS)) for name, call in gpu_calls.items()}

        gpu_calls = _gpu_calls()
        try:
            without = gpu_ns()
        finally:
            torch._C._autograd._enable_record_function(True)
        profile = _KinetoProfile(activities=_activities(), record_shapes=has_shapes)
        profile.prepare_trace()
        _keep_inputs_values(False)
        profile.start_trace()
        try:
            differences = [call_ns(True) - call_ns(False) for _ in range(COST_BLOCKS)]
            gpu = {name: max(round(ns - without[name]), 0) for name, ns in gpu_ns().items()}
        finally:
            torch._C._autograd._enable_record_function(True)
            profile.stop_trace()
            _keep_inputs_values(True)
    n_ops = sum(event.name().startswith("aten::") for event in profile.profiler.kineto_results.events())
    n_calls = COST_BLOCKS * COST_CALLS
    if n_ops < n_calls:
        return None
    return {"op_ns": max(round(statistics.median(differences) * n_calls / n_ops), 0), "n_ops": n_ops, **gpu}


def mute_child():
    """In a forked child of a process that is being profiled: its operators would go on filling the parent's buffers'
    copies, for as long as it lives."""
    torch._C._autograd._enable_record_function(False)
