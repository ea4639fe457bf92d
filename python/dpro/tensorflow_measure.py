"""The process that measures a TensorFlow job's step apart from the job (tensorflow_probe.py): as it is, compiled by XLA, in
16 bits, by turns.

What is compiled ends where ranks communicate, as XLA takes no collective in: each part between two of them is a function of its
own with jit_compile. As it is, the step is one function without the collectives. 16 bits are what TensorFlow's own rewrite of
graphs makes of it (auto_mixed_precision_onednn_bfloat16)."""
import json
import os
import time

import tensorflow as tf

from . import report, tensorflow_step
from .probe_result import LEAST_TURNS, MOST_TURNS, TURNS_SECONDS

REWRITE = {"CPU": "auto_mixed_precision_onednn_bfloat16", "GPU": "auto_mixed_precision"}
NO_BOTH = "16 bits in compiled functions are not measured"


def use_cores(cores):
    """For all threads that there are, and those that they start."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            pass


class Measuring:
    def __init__(self, path):
        self._path, self._step = path, tensorflow_step.Step(path)
        self._device = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        self._all_cores = sorted(os.sched_getaffinity(0))
        self._cores = self._all_cores[:self._step.facts["cores"]]  # what this rank has while all of them train
        on_one_core = len(self._cores) == 1 and self._device == "CPU"
        self._now = time.process_time_ns if on_one_core else time.perf_counter_ns
        self._told = {"clock": "cpu" if on_one_core else "wall", "ways": {}}
        self._ways = {}  # {name: (function, facts, whether in 16 bits)}

    def run(self):
        asked, as_it_is = self._step.facts["ways"], self._step.as_it_is()
        self._add("eager", lambda: (as_it_is, {}))
        if "bf16" in asked:
            self._add("bf16", lambda: (as_it_is, {}), lower=True)
            self._turns(LEAST_TURNS)
        if "compile" in asked:
            self._add("compile", self._compiled)
            self._turns(MOST_TURNS)
        if {"bf16", "compile"} <= set(asked):
            self._told["ways"]["compile+bf16"] = {"problem": NO_BOTH}
        self._write()

    def _compiled(self):
        function, n = self._step.compiled()
        return function, {"graphs": n, "breaks": 0}

    def _add(self, name, make, lower=False):
        begin = time.perf_counter()
        try:
            function, facts = make()
            self._call(function, lower)
            if name == "compile":
                facts["compile_ms"] = round(1e3 * (time.perf_counter() - begin), 1)
            self._ways[name] = function, facts, lower
        except Exception as problem:
            self._told["ways"][name] = {"problem": report.first_line(problem)}

    def _call(self, function, lower):
        """Returns how long it took, in ns: with the caches as a step leaves them to the next one."""
        tf.config.optimizer.set_experimental_options({REWRITE[self._device]: lower})
        begin = self._now()
        function(*self._step.given.values())
        tf.test.experimental.sync_devices()
        return self._now() - begin

    def _turns(self, n_turns):
        """Each way once a turn, the first turn being for nothing."""
        times = {name: [] for name in self._ways}
        begin = time.perf_counter()
        use_cores(self._cores)
        for turn in range(n_turns + 1):
            now = time.perf_counter()
            if turn > LEAST_TURNS and (now - begin > TURNS_SECONDS or now > self._step.facts["end"]):
                break
            for name, (function, _, lower) in self._ways.items():
                times[name].append(self._call(function, lower))
        use_cores(self._all_cores)
        for name, (_, facts, _) in self._ways.items():
            passes = times[name][1:]
            self._told["ways"][name] = {"forward_ns": passes, "backward_ns": len(passes) * [0], "kept_bytes": 0, **facts}
        self._write()

    def _write(self):
        part = os.path.join(self._path, "result.part")
        with open(part, "w", encoding="utf-8") as file:
            json.dump(self._told, file)
        os.replace(part, os.path.join(self._path, tensorflow_step.RESULT))


def main(path):
    Measuring(path).run()
    os._exit(0)  # what TensorFlow would clean up takes a while
