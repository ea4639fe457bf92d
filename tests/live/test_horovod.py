"""Horovod's jobs, on TensorFlow, MXNet and PyTorch, leave rank 0's timeline beside what the framework leaves."""
import gzip
import json
import os
import statistics
import subprocess

import frameworks
import live


class Case(frameworks.Case):
    def check(self, name, files, tensor):
        printed = self.record(name)
        self.assertEqual(self.files("rank0"), files | {"rank.json", "net.log", "timeline.json.gz"})
        self.assertEqual(self.files("rank1"), files | {"rank.json", "net.log"})
        for rank in range(2):
            info = self.assert_windows(rank)
            self.assertEqual((info["rank"], info["world_size"], info["local_rank"]), (rank, 2, rank))
            self.assertIn("horovod", info["versions"])
        with gzip.open(os.path.join(self.rank_folder(0), "timeline.json.gz"), "rt") as file:
            events = json.load(file)
        steps = self.rank(0)["steps"]["timing"]
        begin_us = events[0]["args"]["start_time_since_epoch_in_micros"]
        reduced = [e for e in events if e.get("name") == "ALLREDUCE" and e["ph"] == "B"
                   and steps[0]["start_ns"] <= 1000 * (begin_us + e["ts"]) <= steps[-1]["end_ns"]]
        # of the first and the last step some are on the other side of the recorder's bounds, or before the timeline
        self.assertAlmostEqual(len(reduced), 16 * len(steps), delta=16)
        self.assertTrue(any(tensor in e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]))
        self.assertEqual(self.final_loss(printed), self.final_loss(self.record(name, dpro=False)))


class Recordings(Case):
    framework = "horovod"

    def test_its_timeline_takes_no_core_of_rank_0(self):
        self.record("horovod-tensorflow")
        used = [statistics.median(step["cpu_ns"] / (step["end_ns"] - step["start_ns"]) for step in self.rank(rank)["steps"]["before"])
                for rank in range(2)]  # cores; only rank 0 has a timeline
        self.assertLess(used[0], used[1] + 0.25)

    def test_tensorflow(self):
        self.check("horovod-tensorflow", {"xplane.pb.gz", "runmeta.pb.gz", "graph.pb.gz"}, "HorovodAllreduce")

    def test_a_plan_reaches_every_rank_and_changes_what_is_fused(self):
        self.record("horovod-tensorflow")
        fused = self.n_collectives()
        plan = self.path("plan")
        done = subprocess.run([live.DPRO, "optimize", "-q", self.trace, "-o", plan], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        with open(os.path.join(plan, "plan.json"), encoding="utf-8") as file:
            value = json.load(file)
        value["communication"]["is_own"] = True  # whatever was found: the groups stay, the settings change
        with open(os.path.join(plan, "plan.json"), "w", encoding="utf-8") as file:
            json.dump(value, file)
        with open(os.path.join(plan, "horovod.env"), "w", encoding="utf-8") as file:
            file.write("HOROVOD_FUSION_THRESHOLD=1024\nHOROVOD_CYCLE_TIME=2\n")
        self.trace = self.path("planned")
        self.record("horovod-tensorflow", options=["--plan", plan])
        for rank in range(2):
            told = self.rank(rank)["plan"]
            self.assertEqual((told["applied"], told["reason"]), (True, None))
            self.assertGreater(told["expected"]["iteration_ms"], 0)
        self.assertGreater(self.n_collectives(), fused)

    def n_collectives(self):
        """How often Horovod's ring ran in the window: tensors that are fused begin it together."""
        with gzip.open(os.path.join(self.rank_folder(0), "timeline.json.gz"), "rt") as file:
            return len({e["ts"] // 20 for e in json.load(file) if e.get("name") == "GLOO_ALLREDUCE"})

    def test_mxnet(self):
        self.check("horovod-mxnet", {"mxnet.json.gz", "symbol.json.gz", "debug_str.txt.gz"}, "")


class OnPyTorch(Case):
    framework = "horovod-pytorch"

    def test_pytorch(self):
        self.check("horovod-pytorch", {"kineto.json.gz", "kineto_et.json.gz", "et.json.gz", "memory.json"}, "0.weight")
        self.assert_replays()
