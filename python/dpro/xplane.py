"""Getting the XPlane out of TensorFlow's profiler without risk for the job, nor harm to its pace.

The preloaded tracer takes the events in TensorFlow's place, as they are recorded: in TensorFlow's own queues their names
are small blocks among the job's tensors, which then go to new memory in each step (tracer/traceme.h).

Where it can't (a GPU, whose events come otherwise; no tracer; a TensorFlow whose events look otherwise), there is a trap.
Where an operation begins on one thread and ends on another, as collectives do, TensorFlow's recorder of host events
(TraceMeRecorder::Consume, seen in 2.21) may write through pointers into memory that it has moved and freed: a job that is
profiled dies of it now and then, or those operations are missing, as the order of its table of threads has it. So a forked
child writes the file, of which the job sees no more than how it ended; another try has a few threads more, which changes
that order."""
import ctypes
import glob
import os
import shutil
import signal
import sys
import threading
import time
import warnings

from .report import say

THREADS = 0, 5, 19, 70  # more than there were, of each try
WAIT_S = 10
START_S = 0.3
POLL_S = 0.005
_LEVEL = "_ZN3tsl8profiler8internal13g_trace_levelE"  # events above it are not recorded; -1: none is
_SET_COLLECTOR = "_ZN3tsl7tracing17SetEventCollectorENS0_13EventCategoryEPKNS0_14EventCollectorE"
_CLOSURES = 0, 1  # categories: given to a pool of threads, run by one of them


def _loaded(*names):
    """Path of a shared library that this process has loaded, None if there is none of these."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return next((line.split(None, 5)[5].strip() for line in maps if any(name in line for name in names)), None)
    except OSError:
        return None


class Session:
    """A profiler session of TensorFlow's: start, export, done. `logs`: a folder of its own."""

    def __init__(self, logs):
        from tensorflow.python.profiler import profiler_v2
        self.busy = profiler_v2._profiler is not None
        self._logs = logs
        self._profiler = None if self.busy else profiler_v2._pywrap_profiler.ProfilerSession()
        self._kept = None
        self._enabled = None  # as it was in profiler.trace

    def start(self, options):
        """A run of which TensorFlow is asked to tell (FULL_TRACE) has a profiler of its own while it lasts."""
        end = time.monotonic() + START_S
        while True:
            try:
                self._profiler.start(self._logs, options)
                break
            except sys.modules["tensorflow"].errors.AlreadyExistsError:
                if time.monotonic() > end:
                    raise
                time.sleep(POLL_S)
        self._leave_python_out()
        recorder = _Recorder.find()
        if recorder is not None:
            recorder.leave_closures_out()
            self._kept = None if self._has_gpus() else _Kept.begin()

    @staticmethod
    def mark(name, **more):
        """An event of the caller's, from here to its Stop()."""
        from tensorflow.python.profiler.internal import _pywrap_traceme
        return _pywrap_traceme.TraceMe(name, **more)

    def _leave_python_out(self):
        """Ranges that TensorFlow's Python draws around its functions, each an object, none of which is an operation's."""
        from tensorflow.python.profiler import trace
        self._enabled = trace.enabled  # a function, or what it would say
        trace.enabled = (lambda: False) if callable(trace.enabled) else False

    def _let_python_in(self):
        if self._enabled is not None:
            sys.modules["tensorflow.python.profiler.trace"].enabled, self._enabled = self._enabled, None

    def export(self, path, names):
        """Writes `path`; whether it could be. `names`, bytes, should be in it."""
        self._let_python_in()
        profiler, self._profiler = self._profiler, None
        recorder = None if self._has_gpus() else _Recorder.find()
        if recorder is None:
            profiler.export_to_tb()
            return self._take(path)
        recorder.pause()
        if self._kept is not None:
            try:
                return self._kept.write(path)
            finally:
                del profiler
                self._forget()
                self.drop()
        done = False
        for n_threads in THREADS:
            if recorder.in_child(lambda n=n_threads: self._export(profiler, n)) and self._take(path):
                done = True
                with open(path, "rb") as file:
                    space = file.read()
                if all(name in space for name in names):
                    break
        del profiler
        self._forget()
        return done

    def _forget(self):
        """What the recorder holds is dropped where another session begins."""
        from tensorflow.python.profiler import profiler_v2
        profiler_v2._pywrap_profiler.ProfilerSession().start(self._logs, {"host_tracer_level": 1})

    @staticmethod
    def _has_gpus():
        """What a GPU's profiler has recorded is not there in a child. (To ask TensorFlow for its GPUs makes it set them up.)"""
        return bool(_loaded("/libcuda.so", "/libamdhip64.so"))

    @staticmethod
    def _export(profiler, n_threads):
        for _ in range(n_threads):
            thread = threading.Thread(target=lambda: Session.mark("dpro").Stop())
            thread.start()
            thread.join()
        profiler.export_to_tb()

    def _take(self, path):
        found = glob.glob(os.path.join(glob.escape(self._logs), "plugins", "profile", "*", "*.xplane.pb"))
        if found:
            os.replace(found[0], path)
        self.drop()
        return bool(found)

    def drop(self):
        shutil.rmtree(self._logs, ignore_errors=True)


class _Kept:
    """The events that the preloaded tracer keeps in place of TensorFlow's recorder."""

    def __init__(self, library):
        self._start, self._stop, self._stats = (getattr(library, "dpro_traceme_" + name) for name in ("start", "stop", "stats"))
        self._start.argtypes, self._start.restype = [], ctypes.c_int
        self._stop.argtypes, self._stop.restype = [ctypes.c_char_p], ctypes.c_int64
        self._stats.argtypes, self._stats.restype = [ctypes.POINTER(ctypes.c_uint64)], None

    @classmethod
    def begin(cls):
        """While TensorFlow's recorder runs. None where there is no tracer, or it sees no events as it knows them."""
        try:
            kept = cls(ctypes.CDLL(None))
        except (AttributeError, OSError):
            return None
        if kept._start() < 0:
            return None
        Session.mark("dpro").Stop()
        n_kept, _, n_strange = kept._counts()
        if n_kept > 0 and n_strange == 0:
            return kept
        kept._stop(None)
        return None

    def _counts(self):
        counts = (ctypes.c_uint64 * 3)()
        self._stats(counts)
        return list(counts)

    def write(self, path):
        """Whether there is something in `path` now."""
        n_written = self._stop(os.fsencode(path))
        _, n_lost, n_strange = self._counts()
        if n_lost + n_strange > 0:
            say("events", "%d of TensorFlow's events are missing: there was no room for them" % (n_lost + n_strange))
        if n_written < 0:
            raise OSError(-n_written, os.strerror(-n_written), path)
        return n_written > 0


class _Recorder:
    """TensorFlow's recorder of host events."""

    def __init__(self, library):
        self._level = ctypes.c_int.in_dll(library, _LEVEL)
        self._was = self._level.value
        self._set_collector = getattr(library, _SET_COLLECTOR, None)

    @classmethod
    def find(cls):
        """None in a TensorFlow whose recorder looks otherwise."""
        try:
            path = _loaded("/libtensorflow_framework.so")
            return cls(ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)) if path else None
        except (OSError, ValueError):
            return None

    def leave_closures_out(self):
        """Three events each, at any level, which cost a job more than the recording of its operations, and are none's: as
        the profiler itself does when it stops."""
        if self._set_collector is not None:
            for category in _CLOSURES:
                self._set_collector(category, None)

    def pause(self):
        self._was = self._level.value
        self._level.value = -1

    def in_child(self, work):
        """Whether work() came to its end in a forked child, in which the recorder goes on."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forking with threads: nothing of theirs is used there
            child = os.fork()
        if child == 0:
            code = 1
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS):
                    signal.signal(number, signal.SIG_DFL)  # the job's own handler would report its death
                self._level.value = self._was
                work()
                code = 0
            finally:
                os._exit(code)
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status == 0
            time.sleep(POLL_S)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False
