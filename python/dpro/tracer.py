"""Starting and stopping the transport tracer, which is preloaded, and the NCCL profiler plugin, which NCCL loads."""
import ctypes
import os

from .report import say

FUNCTION_BYTES = 4096  # a function of a page at most


class _Log:
    def __init__(self, library, prefix, file):
        self.file = file
        self._start = getattr(library, prefix + "start")
        self._stop = getattr(library, prefix + "stop")
        self._mark = getattr(library, prefix + "mark")
        self._stats = getattr(library, prefix + "stats")
        self._start.argtypes, self._start.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_int
        self._stop.argtypes, self._stop.restype = [], None
        self._mark.argtypes, self._mark.restype = [ctypes.c_char_p], None
        self._stats.argtypes, self._stats.restype = [ctypes.POINTER(ctypes.c_uint64)], ctypes.c_int
        self.running = False

    def start(self, folder, rank):
        code = self._start(os.fsencode(os.path.join(folder, self.file)), rank)
        if code < 0:
            say(self.file, "%s cannot be recorded: %s" % (self.file, os.strerror(-code)))
        self.running = code >= 0

    def stop(self):
        if self.running:
            self.running = False
            self._stop()

    def mark(self, name):
        self._mark(name.encode())

    @property
    def stats(self):
        out = (ctypes.c_uint64 * 4)()
        if self._stats(out) < 0:
            return None
        return dict(zip(("n_records", "n_lost", "file_bytes", "memory_bytes"), out))


def _transport():
    try:
        return _Log(ctypes.CDLL(None), "dpro_tracer_", "net.log")
    except (AttributeError, OSError):
        return None


def ease(function):
    """Where the tracer is preloaded, a thread that does nothing but yield in this function (its address) sleeps instead."""
    try:
        ask = ctypes.CDLL(None).dpro_tracer_ease
    except (AttributeError, OSError):
        return
    ask.argtypes, ask.restype = [ctypes.c_void_p, ctypes.c_size_t], None
    ask(function, FUNCTION_BYTES)


def _nccl():
    plugin = os.environ.get("NCCL_PROFILER_PLUGIN", "")
    for path in (plugin, "libnccl-profiler-%s.so" % plugin):
        try:  # only when NCCL has loaded it already
            return _Log(ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD), "dpro_nccl_", "nccl.log")
        except (AttributeError, OSError):
            continue
    return None


class Tracer:
    """Both logs of this process, for the recorder's windows."""

    def __init__(self, net, distributed):
        self._net = net
        self._distributed = distributed
        self._logs = []

    def start(self, folder, rank, window):
        if self._net == "off":
            return
        if not self._logs:
            transport = _transport()
            if transport is None and self._distributed:
                say("transport", "the transport is not recorded: libdpro_tracer.so is not preloaded in this process "
                                 "(dpro profile does that)", rank)
            self._logs = [log for log in (transport, _nccl()) if log]
            if transport and self._net == "all":  # it began before anybody knew who it is of
                transport.mark("process " + os.path.basename(folder))
        for log in self._logs:
            if not (self._net == "all" and log.file == "net.log"):
                log.start(folder, rank)
            log.mark(window)

    def stop(self, window):
        for log in self._logs:
            log.mark("/" + window)
            log.stop()

    @property
    def stats(self):
        return {log.file: log.stats for log in self._logs}
