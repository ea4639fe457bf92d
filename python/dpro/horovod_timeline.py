"""Horovod's timeline around the recorder's windows: which tensors were reduced together and when, as rank 0 saw it.

Horovod starts one in a running job where HOROVOD_TIMELINE=DYNAMIC was set before hvd.init (activate.py does that)."""
import os
import sys

from .report import say

FILE = "timeline.json"
_BINDINGS = ("tensorflow", "mxnet", "torch")


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
