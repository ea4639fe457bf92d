"""A process that serves and never steps: a parameter server, a scheduler, a worker that another one drives.

Its transport is recorded while the workers' is, in TRACE/host<H>/<name>: a thread looks whether rank 0 has begun to write
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


def serve(settings, name, server=None):
    """This process is `name`, a text or a function that gives it once the job runs. `server` is told of the window, if
    given: begin(folder, rank 0's rank.json), end()."""
    if not _threads and settings.net != "off":
        _threads.append(Bystander(settings, name, server))
        _threads[0].start()


class Bystander(threading.Thread):
    def __init__(self, settings, name, server):
        super().__init__(name="dpro-bystander", daemon=True)
        self._settings, self._name, self._server = settings, name, server
        self._begun = time.time() - 1  # of what ran here before, files are left

    def _find(self):
        """rank.json of this run's rank 0."""
        for pattern in ("host*/rank0/rank.json", "attempt*/host*/rank0/rank.json"):
            for path in glob.iglob(os.path.join(glob.escape(self._settings.out), pattern)):
                try:
                    if os.stat(path).st_mtime >= self._begun:
                        return path
                except OSError:
                    pass
        return None

    def run(self):
        try:
            self._run()
        except Exception:  # what is missing then is told by dpro replay
            pass

    def _run(self):
        path = None
        while path is None:
            time.sleep(POLL_S)
            path = self._find()
        root = os.path.dirname(os.path.dirname(os.path.dirname(path)))
        name = self._name() if callable(self._name) else self._name
        folder = os.path.join(root, "host" + files.host_number(socket.gethostname()), name)
        os.makedirs(folder, exist_ok=True)
        if self._server:
            self._server.begin(folder, _read(path))
        tracer = Tracer(self._settings.net, True)
        tracer.start(folder, int(name[4:]) if name.startswith("rank") else -1, "timing")
        rank = _read(path)
        while not (rank["windows"] or rank["complete"] or rank.get("ended_early")):
            time.sleep(POLL_S)
            rank = _read(path)
        tracer.stop("timing")
        if self._server:
            self._server.end()


def _read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)
