"""torch.compile for as long as a probe needs it, and no longer than there is time: compiling.py's modules are forgotten afterwards.
What was compiled stays in torch's own cache on disk, so that a job with a plan finds it there."""
import contextlib
import ctypes
import logging
import threading
import time

import torch

from . import compiled_apart, compiling, probe_survey, report

COMPILE, BF16, RECOMPUTE = "compile", "bf16", "recompute"
NODE_SECONDS, LEAST_NODES = 0.1, 30  # of compiling, before anything was; nodes below which it takes no less
LOGS = ("torch._dynamo", "torch._inductor", "torch._functorch")
AGAIN_SECONDS = 1.0


class NoTime(report.Told):
    """There is not enough time left to compile this."""


class TimeIsUp(BaseException):
    """In the midst of compiling."""


class Deadline:
    """Around what must end in time: TimeIsUp is raised in it. What waits outside of Python ends first."""

    def __init__(self, seconds):
        self._thread, self._over = ctypes.c_ulong(threading.get_ident()), threading.Event()
        self._lock, self._seconds = threading.RLock(), min(max(seconds, 0), threading.TIMEOUT_MAX)
        self._watch = threading.Thread(target=self._wait, daemon=True)

    def _raise(self, what):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, what)

    def _wait(self):
        seconds = self._seconds
        while not self._over.wait(seconds):
            with self._lock:
                if not self._over.is_set():
                    self._raise(ctypes.py_object(TimeIsUp))
            seconds = AGAIN_SECONDS  # something in between may have caught it

    def __enter__(self):
        self._watch.start()

    def __exit__(self, *failure):
        self.end()

    def end(self):
        while not self._over.is_set():
            try:
                with self._lock:
                    self._over.set()
                    self._raise(None)
            except TimeIsUp:  # it came just now
                pass


class Mode:
    """What torch computes under in this thread, for when leaving it was interrupted."""

    def __init__(self, device_type):
        self._device_type, self._autocast = device_type, probe_survey.autocast_of(device_type)
        self._cache = torch.is_autocast_cache_enabled()
        self._grad, self._depth = torch.is_grad_enabled(), self._nesting()

    @staticmethod
    def _nesting():
        torch.autocast_increment_nesting()
        return torch.autocast_decrement_nesting()

    def restore(self):
        torch.set_grad_enabled(self._grad)
        while self._nesting() > self._depth:
            torch.autocast_decrement_nesting()
        if hasattr(torch, "set_autocast_dtype"):  # since 2.4
            torch.set_autocast_enabled(self._device_type, self._autocast[0])
            torch.set_autocast_dtype(self._device_type, self._autocast[1])
        torch.set_autocast_cache_enabled(self._cache)
        torch._C._dynamo.eval_frame.set_eval_frame(None)


class Compiler:
    """seconds_left(): how long compiling may take."""

    def __init__(self, device, seconds_left):
        self._device = device
        self._seconds_left, self._node_seconds = seconds_left, NODE_SECONDS
        self._apart = compiled_apart.Apart(device.type, seconds_left)
        self.missing = None   # why nothing can be compiled
        self.is_late = False  # the last module was too much for the time that was left

    def compiled(self, own):
        return compiling.Compiled(own, self._in_time, strict=True)

    def first(self, compiled, run):
        """Calls run(), for which it is compiled; returns why it is not, and how long that took, in ns."""
        self.is_late, begin = False, time.perf_counter_ns()
        mode, deadline = Mode(self._device.type), Deadline(self._seconds_left())
        try:
            with deadline:
                problem = compiled.tried(run)
        except TimeIsUp:
            deadline.end()
            mode.restore()
            self.is_late, problem = True, None
        except Exception as failure:
            problem = report.why(failure)
        return problem, time.perf_counter_ns() - begin

    def _start(self):
        """What takes long only once; and whether it works: it may lack a C or C++ compiler, Triton or Python's headers."""
        compiled = self.compiled(lambda module, x: x.exp() + x)
        problem, _ = self.first(compiled, lambda: compiled(None, torch.zeros(64, device=self._device)))
        self.missing = None if self.is_late else problem
        self._node_seconds = NODE_SECONDS
        self.forget()

    @contextlib.contextmanager
    def _in_time(self, graph, inputs):
        """Refused where less time is left than it takes by what was seen so far, or it fails in a process of its own."""
        n_nodes = len(graph.graph.nodes)
        if n_nodes * self._node_seconds > self._seconds_left():
            self.is_late = True
            raise NoTime("the time that is left is too short to compile its %d ops" % n_nodes)
        begin = time.perf_counter()
        problem = self._apart.problem(graph, inputs)
        if self._seconds_left() <= 0:
            self.is_late = True
            raise NoTime("the time that was left was too short to compile it")
        if problem:
            raise report.Told(problem)
        yield
        self._node_seconds = max(self._node_seconds / 2, (time.perf_counter() - begin) / max(n_nodes, LEAST_NODES))

    @contextlib.contextmanager
    def ready(self):
        """The state of the compiler's log and of its helpers."""
        with contextlib.suppress(OSError):  # told when it is tried again
            self._apart.start()  # while dynamo is imported here
        import torch._dynamo
        levels = [(logger, logger.level) for logger in map(logging.getLogger, LOGS)]
        try:
            for logger, _ in levels:
                logger.setLevel(logging.CRITICAL)
            self._start()
            yield
        finally:
            self._apart.end()
            self.forget()
            _end_helpers()
            for logger, level in levels:
                logger.setLevel(level)

    @staticmethod
    def forget():
        """What one module was compiled to."""
        from torch._dynamo import utils
        torch._dynamo.reset()
        utils.counters.clear()  # by which others tell whether the job is compiled


def _end_helpers():
    """Threads that ran the C++ compiler, processes that ran Triton; and what torch keeps in memory of what it compiled."""
    from torch._inductor import async_compile, utils
    threads = async_compile.AsyncCompile.pool
    if threads.cache_info().currsize:
        threads().shutdown()
        threads.cache_clear()
    getattr(async_compile, "shutdown_compile_workers", bool)()
    (getattr(utils, "clear_caches", None) or utils.clear_inductor_caches)()
