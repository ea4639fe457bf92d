"""A process that serves and never steps: a parameter server, a scheduler, a worker that another one drives.

Its transport is recorded while the workers' is, in TRACE/host<H>/<name>: a thread looks whether rank 0 has begun to write
into the trace directory, and whether its window is over. Where that directory is not shared with a worker's machine,
DPRO_NET=all records it. What its framework can tell besides is a Server's matter."""
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
    """This process is `name`, a text or a function that gives it once the job runs. `server`: a Server."""
    if not _threads and settings.net != "off":
        _threads.append(NonTraining(settings, name, server or Server()))
        _threads[0].start()


class Server:
    """What a framework's process does when others are recorded; called by a thread of its own, one after the other."""

    def begin(self, folder, rank):
        """Rank 0 has a folder; `folder` is this process's, `rank` rank 0's rank.json."""

    def look(self, window):
        """Every moment until the recording is over: which window rank 0 is about to record or records, None: none."""

    def end(self):
        """Rank 0's first window is over."""


class NonTraining(threading.Thread):
    def __init__(self, settings, name, server):
        super().__init__(name="dpro-non-training", daemon=True)
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
            try:
                self._server.look(None)
            except Exception:
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
        self._server.begin(folder, _read(path))
        tracer = Tracer(self._settings.net, True)
        tracer.start(folder, int(name[4:]) if name.startswith("rank") else -1, "timing")
        tracing, over, written = True, False, None
        while not over:
            now = os.stat(path).st_mtime_ns, os.stat(path).st_ino
            if now != written:
                rank, written = _read(path), now
            over = rank["complete"] or bool(rank.get("ended_early"))
            self._server.look(None if over else rank.get("window"))
            if tracing and (rank["windows"] or over):
                tracing = False
                tracer.stop("timing")
                self._server.end()
            time.sleep(POLL_S)


def _read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)
