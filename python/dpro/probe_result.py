"""What measuring modules in other ways has in common whatever the framework: which rank does it, in which acts, and what is told
of it: probes.json (doc/formats/probes.md)."""
import glob
import json
import os
import statistics
import sys
import time

from . import report

SCHEMA, FILE = "dpro.probes/1", "probes.json"
LEAST_TURNS, MOST_TURNS, TURNS_SECONDS = 3, 9, 3.0
SETTLED = 0.05  # of what repetitions take, their deviation: dpro whatif assumes no less


def measured_by(folder, info):
    """The folder of the first rank before this one that has the same device, as far as their files are within reach; None: this
    rank measures."""
    paths = glob.glob(os.path.join(glob.escape(folder.root), "host*", "rank*", "rank.json"))
    ranks = sorted((int(os.path.basename(os.path.dirname(path))[4:]), path) for path in paths)
    for rank, path in ranks:
        if rank >= info["rank"]:
            break
        with open(path, encoding="utf-8") as file:
            if json.load(file).get("device_name") == info["device_name"]:
                return os.path.dirname(path)
    return None


def are_settled(times):
    """Whether more repetitions would tell nothing more: lists of what each took."""
    for taken in times:
        middle = statistics.median(taken)
        if statistics.median(abs(ns - middle) for ns in taken) > SETTLED * middle:
            return False
    return True


class Prober:
    """In acts, each at the end of a step: _survey(), _copy(), _probe(). Whatever fails is told as `problem`. One that does not
    measure does the same beside the one that does, so that cores and memory are as busy as in training, and tells nothing."""

    measures = True

    def __init__(self, settings, folder, info, device, threads):
        self._asked, self._limit_s, self._folder = settings.probe, settings.probe_limit_s, folder
        self._entries, self._ended_early, self._begin = [], None, time.perf_counter()
        self._head = {"schema": SCHEMA, "dpro": info["dpro"], "device": device, "device_name": info["device_name"],
                      "versions": info["versions"], "threads": threads}
        self.problem = None

    def act(self, name):
        """What rank.json says of it; None: nothing."""
        try:
            getattr(self, "_" + name)()
        except Exception as problem:
            self._failed(problem)
        if not self.measures:
            return None
        if self.problem:
            report.say("probe", "modules are not measured: %s" % self.problem)
        elif self._ended_early and name == "probe":
            report.say("probe", "measuring modules ended at %s (dpro profile --probe-limit SECONDS)" % self._ended_early)
        return {"file": FILE} if self.problem is None and name == "probe" else {"problem": self.problem or "the job ended before"}

    def end(self):
        """The recording ends."""

    def _failed(self, problem):
        self.problem = report.why(problem)

    def _seconds_left(self):
        return self._limit_s - (time.perf_counter() - self._begin)

    def _progress(self, text):
        if self.measures and sys.stderr is not None and getattr(sys.stderr, "isatty", bool)():
            try:
                sys.stderr.write("\r\033[K" + (text and "dpro: " + text))
                sys.stderr.flush()
            except (OSError, ValueError):
                pass

    def _write(self):
        if not self.measures:
            return
        self._folder.write_json(self._folder.file(FILE), {
            **self._head, "limit_s": self._limit_s, "spent_s": round(time.perf_counter() - self._begin, 1),
            "ended_early": self._ended_early, "probes": self._entries})
