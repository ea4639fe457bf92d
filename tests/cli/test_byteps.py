"""Jobs of BytePS: a recording of real training with PyTorch, and who is who by what its launcher sets."""
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
import unittest

from support import DONE, ROOT, Case, dpro, read_json

RECORDED = os.path.join(ROOT, "tests", "data", "byteps-torch-n2")
TENSORS, RANKS, ITERATIONS = 16, 2, 4


def parameters():
    with open(os.path.join(RECORDED, "hostvm", "rank0", "rank.json"), encoding="utf-8") as file:
        return {p["name"]: p["size_bytes"] for model in json.load(file)["models"] for p in model["parameters"]}


def comm(start_us, n):
    """comm.json of the first n gradients, pushed 100 ms after each step's begin."""
    events = []
    for number, name in enumerate(sorted(parameters())[:n]):
        label, key = "Comm.byteps.Gradient." + name, str(65536 * number)
        for k, stage in enumerate((None, "REDUCE", "COPYD2H", "PUSH", "PULL", "COPYH2D", "BROADCAST")):
            events += [{"ph": "X", "args": {"name": label}, "pid": label, "name": label + ("." + stage if stage else ""), "cat": "Comm",
                        "ts": int(at) + 100000 + 1000 * (k - 1 if stage else 0), "dur": 900 if stage else 6000,
                        "tid": key if stage else "total"} for at in start_us]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


class Recorded(Case):
    def copied(self, *left_out):
        shutil.copytree(RECORDED, self.path("trace"))
        for name in left_out:
            os.unlink(self.path("trace", "hostvm", name))
        return self.path("trace")

    def test_pushes_and_pulls_are_in_the_graph(self):
        facts = self.assert_replays(RECORDED)
        self.assertLess(abs(facts["error_pct"]), 5)
        transport = facts["transport"]
        self.assertEqual(transport["pulls"], transport["pushes"])
        self.assertGreaterEqual(transport["pushes"], TENSORS * RANKS * ITERATIONS)
        self.assertEqual((transport["collectives"], transport["collectives_tied"]), (TENSORS * RANKS * ITERATIONS,) * 2)
        self.assertEqual(transport["unpaired_bytes"], 0)
        exchanged, = facts["collectives"]
        self.assertEqual((exchanged["kind"], exchanged["count"], exchanged["ranks"]), ("push_pull", TENSORS, RANKS))
        self.assertEqual(exchanged["pattern"], "parameter server")

    def test_the_optimizer_waits_for_what_it_takes(self):
        plain, slow = (self.assert_replays(RECORDED, *options)["predicted"]["iteration_ms"] for options in ((), ("--delay", "PULL=20")))
        self.assertGreater(slow, 1.1 * plain)

    def test_tensors_are_called_by_their_parameters(self):
        self.assert_code(dpro("optimize", RECORDED, "-q", "-o", self.path("plan")), DONE)
        with open(self.path("plan", "byteps_partition.txt"), encoding="utf-8") as file:
            planned = [line.split() for line in file]
        self.assertEqual({name for name, _ in planned}, set(parameters()))

    def test_what_is_lost_without_a_log_is_said(self):
        facts = self.assert_replays(self.copied("server0/net.log.gz"))
        self.assertEqual(facts["transport"]["collectives_tied"], TENSORS * RANKS * ITERATIONS)
        self.assertRegex(" ".join(facts["warnings"]), "no other log has the other end")
        shutil.rmtree(self.path("trace"))
        facts = self.assert_replays(self.copied("rank1/net.log.gz"))
        self.assertRegex(" ".join(facts["warnings"]), "rank 1")

    def add_own_trace(self, rank, n):
        profile = read_json(self.path("trace", "hostvm", f"rank{rank}", "kineto.json.gz"))
        base_us = profile["baseTimeNanoseconds"] / 1000
        start_us = [base_us + e["ts"] for e in profile["traceEvents"] if e.get("name", "").startswith("ProfilerStep")]
        self.write(f"trace/hostvm/rank{rank}/comm.json", comm(start_us, n))

    def test_without_the_logs_its_own_trace_tells_the_exchanges(self):
        trace = self.copied(*(f"rank{rank}/net.log.gz" for rank in range(RANKS)), "server0/net.log.gz")
        for rank in range(RANKS):
            self.add_own_trace(rank, TENSORS)
        exchanged, = self.assert_replays(trace)["collectives"]
        self.assertEqual([exchanged[key] for key in ("kind", "count", "ranks", "messages")],
                         ["push_pull", TENSORS, RANKS, 0])

    def test_its_own_trace_beside_the_logs_adds_nothing(self):
        trace = self.copied()
        self.add_own_trace(0, 4)
        facts = self.assert_replays(trace)
        self.assertEqual(facts["transport"]["collectives"], TENSORS * RANKS * ITERATIONS)

    def test_its_own_trace_alone_tells_when_tensors_were_away(self):
        """As BytePS 0.2.5 writes it: all of a stage before the next stage."""
        shutil.copytree(RECORDED, self.path("trace"))
        for rank in range(RANKS):
            folder = self.path("trace", "hostvm", "rank%d" % rank)
            os.unlink(os.path.join(folder, "net.log.gz"))
            profile = read_json(os.path.join(folder, "kineto.json.gz"))
            base_us = profile["baseTimeNanoseconds"] / 1000
            start_us = [base_us + e["ts"] for e in profile["traceEvents"] if e.get("name", "").startswith("ProfilerStep")]
            self.write("trace/hostvm/rank%d/comm.json" % rank, comm(start_us, 3))
        shutil.rmtree(self.path("trace", "hostvm", "server0"))
        facts = self.assert_replays(self.path("trace"))
        exchanged, = facts["collectives"]
        self.assertEqual((exchanged["kind"], exchanged["count"], exchanged["ranks"]), ("push_pull", 3, RANKS))

    def test_cut_logs_are_read_as_far_as_they_go(self):
        for name in ("rank0", "server0"):
            trace = self.copied()
            path = os.path.join(trace, "hostvm", name, "net.log")
            with gzip.open(path + ".gz") as packed:
                data = packed.read()
            os.unlink(path + ".gz")
            for part in (0.2, 0.5, 0.9):
                with open(path, "wb") as file:
                    file.write(data[:int(part * len(data))])
                self.assert_replays(trace)
            shutil.rmtree(trace)


class Places(unittest.TestCase):
    def ask(self, code, **env):
        return subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"), **env},
                              stdout=subprocess.PIPE, check=True, timeout=60).stdout.decode().strip()

    def test_a_worker_has_the_rank_that_byteps_gives_it(self):
        of_job = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "3", "DMLC_WORKER_ID": "2", "BYTEPS_LOCAL_SIZE": "4", "BYTEPS_LOCAL_RANK": "1"}
        code = "from dpro import job; print(job.place())"
        self.assertEqual(self.ask(code, **of_job), "(9, 12, 1)")
        self.assertEqual(self.ask(code, **{**of_job, "RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "0"}), "(5, 6, 0)")
        self.assertEqual(self.ask(code, **{**of_job, "BYTEPS_LOCAL_SIZE": "x"}), "(3, 3, 1)")


class Servers(Case):
    def test_servers_that_share_a_trace_directory_are_told_apart(self):
        """The modules that a server of BytePS imports, in their order; the job's rank 0 begins to record later."""
        self.write("byteps/__init__.py", "")
        self.write("byteps/common/__init__.py", "")
        out = self.path("trace")
        self.write("byteps/server/__init__.py", "import byteps.common, glob, time\nfor _ in range(400):\n"
                   "    time.sleep(0.05 if len(glob.glob(%r)) < 3 else 0)\n" % os.path.join(out, "host*", "s*"))
        env = {**os.environ, "DPRO": "1", "DPRO_OUT": out, "DMLC_ROLE": "server",
               "PYTHONPATH": os.pathsep.join((os.path.join(ROOT, "python", "dpro", "site"), os.path.join(ROOT, "python"), self.folder))}
        running = [subprocess.Popen([sys.executable, "-c", "import byteps.server"], env=dict(env, DMLC_ROLE=role))
                   for role in ("server", "server", "scheduler")]
        while any(process.poll() is None for process in running):
            self.write("trace/host0/rank0/rank.json", {"pid": 1, "windows": [], "complete": False})
            time.sleep(0.2)
        for process in running:
            self.assertEqual(process.wait(60), 0)
        host, = [name for name in os.listdir(out) if name.startswith("host") and name != "host0"]
        self.assertEqual(sorted(os.listdir(os.path.join(out, host))), ["scheduler", "server0", "server1"])
