"""Trace directories of dPRO's first implementation: simulated jobs, whose truth is known, in its files."""
import gzip
import json
import os
import random
import re
import shutil
import unittest

from reference_job import Horovod, PushPull
from support import DONE, INPUT, ROOT, Case, dpro


class Rings(Case):
    """TensorFlow under Horovod on NCCL's rings."""

    def check(self, job, without=(), most_pct=1.0):
        self.n_written = getattr(self, "n_written", 0) + 1
        facts = self.assert_replays(job.write(self, f"trial{self.n_written}", without))
        self.assertLess(abs(facts["predicted"]["iteration_ms"] / job.iteration_ms - 1) * 100, most_pct)
        return facts

    def names(self, path):
        """Of the ops that a replay shows."""
        self.assert_code(dpro("replay", path, "-o", self.path("out")), DONE)
        with gzip.open(self.path("out", "timeline.json.gz"), "rt", encoding="utf-8") as file:
            return {event["name"] for event in json.load(file)["traceEvents"]}

    def test_the_iteration_is_that_of_the_job(self):
        for more in ({}, {"hosts": 2, "gpus": 1, "offsets_us": (0, -900_000)}, {"hosts": 1, "gpus": 4, "jitter": 0},
                     {"hosts": 4, "gpus": 1, "slow": (1, 1.3), "offsets_us": (0, 5000, -7000, 300)},
                     {"layers": 12, "fused": 3, "step_us": 2500}, {"update_us": 1500}):
            with self.subTest(**more):
                job = Horovod(**more)
                facts = self.check(job)
                self.assertEqual(facts["warnings"], [])
                self.assertEqual(facts["horovod"]["groups"], -(-job.layers // job.fused))
                self.assertEqual(len({file["rank"] for file in facts["trace"]["files"]}), job.world)

    def test_every_file_is_known(self):
        facts = self.check(Horovod())
        kinds = {os.path.basename(file["path"]): file["kind"] for file in facts["trace"]["files"]}
        self.assertEqual(kinds, {"trace.json.gz": "tensorflow-chrome", "comm.json": "timeline", "comm_detail.json": "nccl-chunks",
                                 "metadata.json": "tensorflow-metadata", "dag.gml": "gml", "gradient_name_list.json": "gradients",
                                 "nccl_rank_graph.json": "nccl-rings"})

    def test_ranks_are_counted_through_the_hosts(self):
        facts = self.check(Horovod(hosts=2, gpus=2))
        ranks = {tuple(file["path"].split("/")[-3:-1]): file["rank"] for file in facts["trace"]["files"]}
        self.assertEqual(ranks, {("host0", "0"): 0, ("host0", "1"): 1, ("host1", "0"): 2, ("host1", "1"): 3})

    def test_clocks_are_told_by_the_chunks(self):
        path = Horovod(hosts=2, gpus=2, offsets_us=(0, 3700)).write(self, "trial")
        hosts = dpro("align", path, "--json").json["hosts"]
        self.assertAlmostEqual(hosts[1]["segments"][0]["offset_ns"], -3_700_000, delta=20_000)

    def test_a_ring_of_chunks_is_replayed_message_by_message(self):
        result = dpro("replay", Horovod().write(self, "trial"))
        self.assertIn("3 all_reduce over 4 ranks, 6.3 MB a rank: ring, 72 messages", result.out)

    def test_tensors_bear_their_gradients_names(self):
        self.assertIn("dense_5/kernel:0", self.names(Horovod().write(self, "trial")))

    def test_numbers_of_gradients_may_be_listed_by_name(self):
        job = Horovod()
        path = job.write(self, "trial", without=("gradient_name_list.json",))
        for rank in range(job.world):
            self.write(f"trial/host{rank // 2}/{rank % 2}/gradient_name2ID.json",
                       {f"HorovodAllreduce.dense_{layer}_kernel_0": layer for layer in range(job.layers)})
        self.assertIn("dense_5_kernel_0", self.names(path))

    def test_what_there_is_suffices(self):
        """Without a graph, without names, without chunks, without rings: less is known, the rest is as true."""
        for without in (("dag.gml",), ("metadata.json",), ("metadata.json", "dag.gml"), ("gradient_name_list.json",),
                        ("comm_detail.json",), ("nccl_rank_graph.json",), ("comm.json", "comm_detail.json")):
            with self.subTest(without=without):
                self.check(Horovod(), without)

    def test_one_ranks_graph_and_names_are_everyones(self):
        job = Horovod()
        path = job.write(self, "trial")
        for rank in range(1, job.world):
            for name in ("dag.gml", "metadata.json", "gradient_name_list.json"):
                os.remove(os.path.join(path, f"host{rank // 2}", str(rank % 2), name))
        facts = self.assert_replays(path)
        self.assertLess(abs(facts["predicted"]["iteration_ms"] / job.iteration_ms - 1), 0.01)
        self.assertEqual(facts["warnings"], [])

    def test_steps_that_not_all_ranks_have_are_left_out(self):
        job = Horovod()
        for rank in (1, 2):
            job.ops[rank] = [op for op in job.ops[rank] if op[3] >= 2]
        self.assertEqual(self.check(job)["trace"]["iterations"], 6)

    def test_links_that_are_twice_as_fast_shorten_what_is_exposed(self):
        slow, fast = Horovod(step_us=2500, jitter=0), Horovod(step_us=1250, jitter=0)
        result = dpro("whatif", slow.write(self, "trial"), "--bandwidth", "2x", "--json").json
        gain = result["baseline"]["iteration_ms"] - result["predicted"]["iteration_ms"]
        self.assertAlmostEqual(gain / (slow.iteration_ms - fast.iteration_ms), 1, delta=0.1)


class Servers(Case):
    """BytePS's pushes and pulls."""

    def check(self, job, without=(), **how):
        self.n_written = getattr(self, "n_written", 0) + 1
        facts = self.assert_replays(job.write(self, f"trial{self.n_written}", without, **how))
        self.assertLess(abs(facts["predicted"]["iteration_ms"] / job.iteration_ms - 1), 0.01)
        return facts

    def test_the_iteration_is_that_of_the_job(self):
        for more in ({}, {"rdma": True}, {"jitter": 0, "workers": 2, "servers": 1}, {"slow": (1, 1.2)}):
            with self.subTest(**more):
                job = PushPull(**more)
                facts = self.check(job)
                self.assertEqual(facts["warnings"], [])
                self.assertEqual([(c["kind"], c["pattern"], c["messages"]) for c in facts["collectives"]],
                                 [("push_pull", "parameter server", 4 * job.layers * job.workers)])

    def test_what_waited_for_a_device_does_not_wait_twice(self):
        for more in ({"parts": 2}, {"parts": 3}, {"parts": 4}, {"parts": 4, "workers": 2, "servers": 1}, {"parts": 2, "rdma": True}):
            with self.subTest(**more):
                job = PushPull(**more)
                facts = self.assert_replays(job.write(self, f"parts{len(os.listdir(self.path()))}"))
                self.assertLess(abs(facts["predicted"]["iteration_ms"] / job.iteration_ms - 1), 0.03)

    def test_derived_timelines_tell_the_same(self):
        self.assertEqual(self.check(PushPull(), derived=True)["warnings"], [])

    def test_byteps_own_traces_tell_exchanges_where_there_are_no_logs(self):
        for parts in (1, 2):
            with self.subTest(parts=parts):
                job = PushPull(parts=parts, workers=2)
                facts = self.assert_replays(job.write(self, f"own{parts}", own=True))
                [exchanges] = facts["collectives"]
                self.assertEqual((exchanges["kind"], exchanges["messages"]), ("push_pull", 0))
                self.assertLess(abs(facts["predicted"]["iteration_ms"] / job.iteration_ms - 1), 0.05)

    def test_of_a_host_with_several_gpus_the_first_one_exchanges(self):
        """The others' files are theirs: the pushes and pulls are replayed as if they were not there."""
        job = PushPull()
        path = job.write(self, "trial")
        for worker in range(job.workers):
            shutil.copytree(os.path.join(path, f"traces_{worker}", "0"), os.path.join(path, f"traces_{worker}", "1"))
        facts = self.assert_replays(path)
        self.assertEqual((facts["trace"]["world_size"], facts["warnings"]), (2 * job.workers, []))
        self.assertEqual([c["messages"] for c in facts["collectives"]], [4 * job.layers * job.workers])
        self.assertLess(abs(facts["predicted"]["iteration_ms"] / job.iteration_ms - 1), 0.01)

    def test_clocks_are_told_by_requests_and_answers(self):
        path = PushPull().write(self, "trial")
        hosts = {host["host"]: host for host in dpro("align", path, "--json").json["hosts"]}
        for name, offset_us in (("traces_1", -2500), ("traces_2", 1800)):
            self.assertAlmostEqual(hosts[name]["segments"][0]["offset_ns"] / 1000, offset_us, delta=100)

    def test_what_is_missing_is_said(self):
        for without, said in ((("server_log_0.txt", "server_log_1.txt"), "have no log of their work"),
                              (("server_0.log", "server_1.log"), "no log of server 1 (node 10)"),
                              (("worker_1.log",), "no log of worker 1 (node 11)"), (("key_dict.txt",), "keys that no tensor has")):
            with self.subTest(without=without):
                warnings = self.check(PushPull(), without)["warnings"]
                self.assertTrue(any(said in warning for warning in warnings), warnings)

    def test_hostile_lines_are_survived(self):
        job, dice = PushPull(workers=2, servers=1, layers=3, iterations=4), random.Random(3)
        for name in ("comm/worker_1.log", "comm/server_0.log", "server/server_log_0.txt", "key_dict.txt"):
            for _ in range(8):
                path = job.write(self, "trial")
                with open(os.path.join(path, name), "rb+") as file:
                    text = bytearray(file.read())
                    for _ in range(8):
                        text[dice.randrange(len(text))] = dice.choice(b"0123456789- :,\ntfx\x00\xff")
                    file.seek(0)
                    file.write(text[:dice.randrange(len(text) // 2, len(text))])
                    file.truncate()
                result = dpro("replay", path, "--json")
                self.assertIn(result.code, (0, INPUT), result.err)


class Mxnet(Case):
    """Its MXNet kind: mx.profiler's events, the executor's text, and names of gradients with their shapes."""

    def put(self):
        source = os.path.join(ROOT, "tests", "data", "hvd-mx-n2", "hostvm")
        def read(*path):
            with gzip.open(os.path.join(source, *path)) as file:
                return file.read()
        graph = read("rank0", "debug_str.txt.gz").decode()
        names = [name for name in re.findall(r"Variable:(\S+)", graph) if not name.endswith(("data", "running_mean", "running_var"))]
        for rank in range(2):
            folder = f"trial/host0/{rank}/"
            for name, content in (("trace.json.gz", read(f"rank{rank}", "mxnet.json.gz").decode()), ("symbol_debug_str.txt", graph),
                                  ("comm.json", read("rank0", "timeline.json.gz").decode()),
                                  ("metadata.json", {"outputs": ["out"], "out_shapes": [[16, 10]], "opt_aggregate_num": 4,
                                                     "gradient_name_list": [name + ";shape=(64, 64);dtype=float32" for name in names]})):
                self.write(folder + name, content)
        return self.path("trial"), names

    def test_its_files_are_one_job(self):
        path, names = self.put()
        facts = self.assert_replays(path)
        self.assertEqual((facts["trace"]["world_size"], facts["trace"]["framework"]), (2, "mxnet"))
        self.assertLess(abs(facts["predicted"]["iteration_ms"] / facts["measured"]["iteration_ms"] - 1), 0.05)
        self.assertEqual([line for line in facts["warnings"] if "passed over" in line], [])
        told = dpro("replay", path).out
        self.assertIn(f"Horovod: {len(names)} tensors in", " ".join(told.split()))

    def test_without_its_graph_the_rest_is_read(self):
        path, _ = self.put()
        for rank in range(2):
            os.remove(os.path.join(path, "host0", str(rank), "symbol_debug_str.txt"))
        self.assert_replays(path)


class Harmed(Case):
    """Each file of a recording cut, emptied, or holding something else: it is named, and nothing wrong is said of the others."""

    HARMS = {"cut": lambda text: text[:len(text) * 2 // 3], "empty": lambda text: b"", "object": lambda text: b"{}",
             "junk": lambda text: b"\x00\x01 not what it should be \xff\n" * 50}

    def check(self, job, files, ranks, **how):
        trial = job.write(self, "trial", **how)
        for name in files:
            path = os.path.join(trial, name)
            with open(path, "rb") as file:
                text = file.read()
            for harm, harmed in self.HARMS.items():
                with self.subTest(name=name, harm=harm):
                    with open(path, "wb") as file:
                        file.write(harmed(text))
                    facts = self.assert_replays(trial)
                    lines = facts["warnings"]
                    self.assertTrue(any(name in line for line in lines), lines)
                    self.assertEqual(facts["trace"]["world_size"], ranks, lines)
                    lost = "trace.json" in name and harm != "cut"
                    self.assertEqual([line for line in lines if "ranks are here" in line and not line.startswith("all")],
                                     [line for line in lines if lost and line.startswith(f"{ranks - 1} of {ranks} ranks are here")])
            with open(path, "wb") as file:
                file.write(text)

    def test_a_rank_of_rings(self):
        self.check(Horovod(iterations=6), [f"host1/0/{name}" for name in BadRings.FILES], 4)

    def test_a_worker_of_servers(self):
        files = [f"traces_1/0/{name}" for name in BadRings.FILES if name not in ("comm.json", "comm_detail.json", "nccl_rank_graph.json")]
        self.check(PushPull(iterations=6), files, 3)

    def test_logs_of_servers_and_workers(self):
        self.check(PushPull(iterations=6), ["comm/worker_1.log", "comm/server_0.log", "server/server_log_0.txt", "key_dict.txt"], 3)

    def test_derived_timelines(self):
        self.check(PushPull(iterations=6), ["comm_timeline.json", "server_timeline.json"], 3, derived=True)

    def test_all_of_a_rank(self):
        """It counts: the others keep their numbers."""
        trial = Horovod(iterations=6).write(self, "trial")
        for name in BadRings.FILES:
            with open(os.path.join(trial, "host0", "1", name), "wb"):
                pass
        facts = self.assert_replays(trial)
        self.assertEqual({file["rank"] for file in facts["trace"]["files"] if "host1" in file["path"]}, {2, 3})


class BadRings(Case):
    FILES = ("trace.json.gz", "comm.json", "comm_detail.json", "metadata.json", "dag.gml", "gradient_name_list.json",
             "nccl_rank_graph.json")

    def test_of_a_file_cut_in_the_middle_the_rest_is_used(self):
        job = Horovod(hosts=2, gpus=1)
        for name in self.FILES[1:]:
            with self.subTest(name=name):
                path = job.write(self, "trial")
                cut = os.path.join(path, "host1", "0", name)
                with open(cut, "rb+") as file:
                    file.truncate(os.path.getsize(cut) * 2 // 3)
                self.assert_survives(path)

    def test_hostile_values_are_survived(self):
        job = Horovod(hosts=2, gpus=1, iterations=3, layers=3)
        dice = random.Random(7)
        for name in self.FILES[1:]:
            for _ in range(12):
                path = job.write(self, "trial")
                bad = os.path.join(path, "host1", "0", name)
                with open(bad, "rb") as file:
                    text = bytearray(file.read())
                for _ in range(8):
                    text[dice.randrange(len(text))] = dice.choice(b'0123456789-"[]{},:e\x00\xff')
                with open(bad, "wb") as file:
                    file.write(text)
                result = dpro("replay", path, "--json")
                self.assertIn(result.code, (0, INPUT), result.err)

    def test_numbers_that_no_tensor_has_are_passed_over(self):
        job = Horovod(hosts=2, gpus=1)
        path = job.write(self, "trial")
        self.write("trial/host0/0/gradient_name_list.json", {"model_name": "x", "gradient_name_list": ["only/one:0"]})
        facts = self.assert_replays(path)
        self.assertLess(abs(facts["predicted"]["iteration_ms"] / job.iteration_ms - 1), 0.01)

    def test_chunks_of_another_run_are_of_no_collective(self):
        job, other = Horovod(hosts=2, gpus=1), Horovod(hosts=2, gpus=1)
        path = job.write(self, "trial")
        for rank in range(2):
            events = other.comm_detail(rank)
            for event in events["traceEvents"]:
                event["ts"] += 3_600_000_000
            self.write(f"trial/host{rank}/0/comm_detail.json", events)
        facts = self.assert_replays(path)
        self.assertLess(abs(facts["predicted"]["iteration_ms"] / job.iteration_ms - 1), 0.01)

    def test_a_profile_without_ops_is_named(self):
        self.write("trial/host0/0/trace.json.gz", {"traceEvents": [{"ph": "M", "pid": 1, "name": "process_name",
                                                                    "args": {"name": "/device:GPU:0"}}]})
        self.assert_error(dpro("replay", self.path("trial")), INPUT, "trace.json.gz")

    def test_names_alone_are_no_trace(self):
        self.write("trial/host0/0/gradient_name_list.json", {"model_name": "x", "gradient_name_list": ["a:0"]})
        self.assert_error(dpro("replay", self.path("trial")), INPUT, "trial")


if __name__ == "__main__":
    unittest.main()
