"""A process that serves and never steps: a parameter server, a scheduler, a worker that another one drives.

Its transport is recorded while the workers' is, in TRACE/host<H>/<name>: a thread looks whether a rank has begun to write
into the trace directory, and whether its window is over. Where that directory is not shared with a worker's machine,
DPRO_NET=all records it."""
import glob
import json
import os
import socket
import threading
import time

from . import files
from .tracer import Tracer

POLL_S = 0.05  # a moment of warm-up steps, which come between a rank's first file and its window
_threads = []


def serve(settings, name, when_over=None):
    """This process is `name`, a text or a function that gives it once the job runs. when_over(folder) is called with the
    folder of this process when the window is over."""
    if not _threads and settings.net != "off":
        _threads.append(Bystander(settings, name, when_over))
        _threads[0].start()


class Bystander(threading.Thread):
    def __init__(self, settings, name, when_over):
        super().__init__(name="dpro-bystander", daemon=True)
        self._settings, self._name, self._when_over = settings, name, when_over
        self._begun = time.time() - 1  # of what ran here before, files are left

    def _ranks(self):
        """rank.json of this run."""
        for pattern in ("host*/rank*/rank.json", "attempt*/host*/rank*/rank.json"):
            for path in glob.iglob(os.path.join(glob.escape(self._settings.out), pattern)):
                try:
                    if os.stat(path).st_mtime >= self._begun:
                        yield path
                except OSError:
                    pass

    def _is_over(self, path):
        try:
            with open(path, encoding="utf-8") as file:
                rank = json.load(file)
            return bool(rank["windows"]) or rank["complete"] or rank.get("ended_early") is not None
        except (OSError, ValueError, KeyError):
            return False

    def run(self):
        try:
            self._run()
        except Exception:  # what is missing then is told by dpro replay
            pass

    def _run(self):
        first = None
        while first is None:
            time.sleep(POLL_S)
            first = next(self._ranks(), None)
        root = os.path.dirname(os.path.dirname(os.path.dirname(first)))
        name = self._name() if callable(self._name) else self._name
        folder = os.path.join(root, "host" + files.host_number(socket.gethostname()), name)
        os.makedirs(folder, exist_ok=True)
        tracer = Tracer(self._settings.net, True)
        tracer.start(folder, int(name[4:]) if name.startswith("rank") else -1, "timing")
        while not self._is_over(first):
            time.sleep(POLL_S)
        tracer.stop("timing")
        if self._when_over:
            self._when_over(folder)
