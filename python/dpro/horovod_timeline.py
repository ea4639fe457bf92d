"""Horovod's timeline around the recorder's windows: which tensors were reduced together and when, as rank 0 saw it.

Horovod starts one in a running job where HOROVOD_TIMELINE=DYNAMIC was set before hvd.init (activate.py does that). From
then to the job's end a thread of rank 0's looks for something to write without ever resting, which takes a core away from
the training; the preloaded tracer has it sleep in between."""
import ctypes
import os
import sys

from .report import say
from .tracer import ease

FILE = "timeline.json"
_WRITER = "_ZN7horovod6common14TimelineWriter10WriterLoopEv"
_BINDINGS = ("tensorflow", "mxnet", "torch")


def attach(_, module):
    """To horovod.<binding>.mpi_ops, which has loaded Horovod's library; before hvd.init."""
    library = getattr(getattr(module, "_basics", None), "MPI_LIB_CTYPES", None)
    writer = getattr(library, _WRITER, None)
    if writer is not None and os.environ.get("HOROVOD_TIMELINE") == "DYNAMIC":
        ease(ctypes.cast(writer, ctypes.c_void_p))


def _horovod():
    """The binding that the job has initialized."""
    for name in _BINDINGS:
        module = sys.modules.get("horovod." + name)
        if module is not None and module.is_initialized():
            return module
    return None


class Timeline:
    def __init__(self, folder):
        self._folder, self._horovod = folder, _horovod()
        self._running = self._started = False

    def start(self):
        """A step ahead of the window: it begins with Horovod's next cycle."""
        if self._horovod is None:
            return
        try:
            self._horovod.start_timeline(self._folder.file(FILE), mark_cycles=True)
            self._running = self._started = True
        except (ValueError, AttributeError) as problem:
            why = problem if isinstance(problem, ValueError) else "this Horovod can't start one in a running job"
            if os.environ.get("HOROVOD_TIMELINE") not in (None, "DYNAMIC"):
                why = "the job writes one itself, %s: put it into the trace directory" % os.environ["HOROVOD_TIMELINE"]
            say("timeline", "Horovod's timeline is not recorded: %s" % why, self._folder.rank)

    def stop(self):
        """Names of the files: Horovod goes on writing for a moment, and only on rank 0."""
        if not self._running:
            return []
        self._running = False
        self._horovod.stop_timeline()
        return [FILE] if self._folder.rank == 0 else []

    def drop(self):
        if self._started:
            self._folder.drop(FILE)
