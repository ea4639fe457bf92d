"""The process that measures a TensorFlow job's step apart from the job (tensorflow_probe.py): as it is, compiled by XLA, in
16 bits, by turns.

What is compiled ends where ranks communicate, as XLA takes no collective in: each part between two of them is a function of its
own with jit_compile. As it is, the step is one function without the collectives. 16 bits are what TensorFlow's own rewrite of
graphs makes of it (auto_mixed_precision_onednn_bfloat16). Beside that, what XLA fuses by itself and layer by layer
(tensorflow_fusion.py)."""
import collections
import json
import os
import statistics
import time

import tensorflow as tf

from . import report, tensorflow_fusion, tensorflow_step
from .probe_result import LEAST_TURNS, MOST_TURNS, TURNS_SECONDS

REWRITE = {"CPU": "auto_mixed_precision_onednn_bfloat16", "GPU": "auto_mixed_precision"}
MOST_KINDS = 6  # of layers that are measured by themselves
SURE = 2        # standard errors
NO_BOTH = "16 bits in compiled functions are not measured"


def use_cores(cores):
    """For all threads that there are, and those that they start."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            pass


class Way:
    """One to compute the step: `lower` in 16 bits, `auto` with what XLA would fuse by itself."""

    def __init__(self, function, facts=None, lower=False, auto=False):
        self.function, self.facts, self.lower, self.auto = function, facts or {}, lower, auto

    def told(self, passes):
        return {"forward_ns": passes, "backward_ns": len(passes) * [0], "kept_bytes": 0, **self.facts}


class Measuring:
    def __init__(self, path):
        self._path, self._step = path, tensorflow_step.Step(path)
        self._device = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        self._all_cores = sorted(os.sched_getaffinity(0))
        self._cores = self._all_cores[:self._step.facts["cores"]]  # what this rank has while all of them train
        on_one_core = len(self._cores) == 1 and self._device == "CPU"
        self._now = time.process_time_ns if on_one_core else time.perf_counter_ns
        self._told = {"clock": "cpu" if on_one_core else "wall", "ways": {}, "fusions": []}
        self._ways = {}

    def run(self):
        asked, as_it_is = self._step.facts["ways"], self._step.as_it_is()
        self._add("eager", lambda: Way(as_it_is))
        if "bf16" in asked:
            self._add("bf16", lambda: Way(as_it_is, lower=True))
            self._measure(LEAST_TURNS)
        if "compile" in asked:
            self._add("compile", self._compiled)
            self._measure(MOST_TURNS)
        if {"bf16", "compile"} <= set(asked):
            self._told["ways"]["compile+bf16"] = {"problem": NO_BOTH}
        self._write()
        if "compile" in asked:
            self._fuse()

    def _compiled(self):
        function, n = self._step.compiled()
        return Way(function, {"graphs": n, "breaks": 0})

    def _add(self, name, make):
        begin = time.perf_counter()
        try:
            way = make()
            self._call(way)
            if name != "bf16" and name != "eager":
                way.facts["compile_ms"] = round(1e3 * (time.perf_counter() - begin), 1)
            self._ways[name] = way
        except Exception as problem:
            self._told["ways"][name] = {"problem": report.first_line(problem)}

    def _call(self, way):
        """Returns how long it took, in ns: with the caches as a step leaves them to the next one."""
        tf.config.optimizer.set_experimental_options({REWRITE[self._device]: way.lower})
        tf.config.optimizer.set_jit("autoclustering" if way.auto else False)
        begin = self._now()
        way.function(*self._step.given.values())
        tf.test.experimental.sync_devices()
        return self._now() - begin

    def _turns(self, n_turns):
        """{way: what each took}: each once a turn, the first turn being for nothing."""
        times = {name: [] for name in self._ways}
        begin = time.perf_counter()
        use_cores(self._cores)
        for turn in range(n_turns + 1):
            now = time.perf_counter()
            if turn > LEAST_TURNS and (now - begin > TURNS_SECONDS or now > self._step.facts["end"]):
                break
            for name, way in self._ways.items():
                times[name].append(self._call(way))
        use_cores(self._all_cores)
        return {name: taken[1:] for name, taken in times.items()}

    def _measure(self, n_turns):
        self._told["ways"].update((name, self._ways[name].told(passes)) for name, passes in self._turns(n_turns).items())
        self._write()

    # Op fusion

    def _fuse(self):
        """What XLA fuses by itself; layer by layer; and of the kinds of layers those that are surely faster so. A layer's gradients
        are ready at its end anyway, so that fusing it is worth while if it takes less (the paper's Theorem 1)."""
        layers = tensorflow_fusion.clusters(self._step.names, tensorflow_fusion.LAYERS).values()
        n_of = collections.Counter(map(tensorflow_fusion.kind_of, layers))
        kinds = [kind for kind, _ in n_of.most_common(MOST_KINDS)]
        self._fused(["default", tensorflow_fusion.LAYERS] if layers else ["default"])
        if len(n_of) > 1:
            faster = [kind for kind, ratios in self._ratios(kinds).items() if self._is_faster(ratios)]
            if faster and len(faster) < len(n_of):
                self._fused([",".join(faster)])

    def _ratios(self, names):
        """{name: its times against the job's in the same turns}, of what could be made; of which the times stay in self._times."""
        self._ways = {"eager": self._ways["eager"]}
        for name in names:
            if time.perf_counter() < self._step.facts["end"]:
                self._add(name, lambda name=name: Way(self._step.as_it_is(name), auto=name in tensorflow_fusion.BY_FLAGS))
        self._times = self._turns(MOST_TURNS)
        return {name: [ns / own for ns, own in zip(self._times[name], self._times["eager"])] for name in names if name in self._ways}

    @staticmethod
    def _is_faster(ratios):
        return len(ratios) > 1 and 1 - statistics.mean(ratios) > SURE * statistics.stdev(ratios) / len(ratios) ** 0.5

    def _fused(self, names):
        for name in self._ratios(names):
            ways = {"eager": "eager", "compile": name}
            self._told["fusions"].append({"name": name, "by_layer": name not in tensorflow_fusion.BY_FLAGS, "ways": {
                way: self._ways[own].told(self._times[own]) for way, own in ways.items()}})
        self._write()

    def _write(self):
        part = os.path.join(self._path, "result.part")
        with open(part, "w", encoding="utf-8") as file:
            json.dump(self._told, file)
        os.replace(part, os.path.join(self._path, tensorflow_step.RESULT))


def main(path):
    Measuring(path).run()
    os._exit(0)  # what TensorFlow would clean up takes a while
