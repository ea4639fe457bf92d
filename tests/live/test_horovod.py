"""Horovod's jobs, on TensorFlow and on MXNet, leave rank 0's timeline beside what the framework leaves."""
import gzip
import json
import os
import unittest

import frameworks


class Recordings(frameworks.Case):
    framework = "horovod"

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
        self.assertEqual(len(reduced) // len(steps), 16, len(reduced))
        self.assertTrue(any(tensor in e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]))
        self.assertEqual(self.final_loss(printed), self.final_loss(self.record(name, dpro=False)))

    def test_tensorflow(self):
        self.check("horovod-tensorflow", {"xplane.pb.gz", "runmeta.pb.gz"}, "HorovodAllreduce")

    def test_mxnet(self):
        self.check("horovod-mxnet", {"mxnet.json.gz", "symbol.json.gz", "debug_str.txt.gz"}, "")


if __name__ == "__main__":
    unittest.main()
