"""Sharded, tensor, pipeline and expert parallel jobs are recorded unchanged, and their calls and waits marked."""
import json
import os
import re
import subprocess

import live

EXAMPLES = os.path.join(live.ROOT, "examples")
SMALL = ["--device", "cpu", "--batch-size", "4", "--layers", "2", "--width", "64", "--vocabulary", "512", "--context", "16"]
MARK = re.compile(r"dpro\.(call|wait):(\d*)(?::(\d*):(.*))?$")

# What is asked for outside of any window, before and after one, goes to torch's own methods.
AROUND = """
from torch._C import _distributed_c10d as c10d
dist.init_process_group("gloo")
model = DDP(net())
own = {name: vars(c10d.ProcessGroup)[name] for name in ("send", "recv", "allreduce", "barrier")}
seen = set()
def each(i):
    seen.add(all(vars(c10d.ProcessGroup)[name] is method for name, method in own.items()))
    data = torch.full((3,), float(i))
    if RANK == 0:
        work = dist.isend(data, 1)
        work.wait()
    else:
        dist.recv(data, 0)
    dist.all_reduce(data)
    assert data.tolist() == [2.0 * i] * 3
    for bad in (lambda: dist.send(data, RANK), lambda: dist.all_reduce("no tensor")):
        try:
            bad()
        except (TypeError, ValueError):
            pass
        else:
            raise AssertionError("no error")
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30, each=each)
print("SEEN", RANK, sorted(seen), all(vars(c10d.ProcessGroup)[name] is method for name, method in own.items()), flush=True)
end()
"""

REPLICAS_OF_SPLIT_TENSORS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "slices"))
model = parallelize_module(net(), mesh["slices"], {"1": ColwiseParallel(), "2": RowwiseParallel()})
model = DDP(model, device_mesh=mesh["copies"], bucket_cap_mb=0.03)
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30)
from dpro import reducer
print("UNFIT", reducer.unfit(model), flush=True)
end()
"""


class Marks(live.Case):
    WARM = True

    def whatif(self, trace, *args):
        done = subprocess.run([live.DPRO, "whatif", trace, *args, "--json"], stdin=subprocess.DEVNULL, capture_output=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return json.loads(done.stdout)

    def record(self, script, *arguments, ranks=2, out=None):
        self.assert_ran(self.run_script(os.path.join(EXAMPLES, script), ranks, out=out, arguments=["--steps", "30", *SMALL, *arguments]))

    def marks(self, rank):
        """(what, number, peer, group) of each mark of the timing window, by time."""
        events = [(e["ts"], MARK.match(e["name"])) for e in self.kineto(rank)["traceEvents"] if e.get("ph") == "X"]
        return [found.groups() for _, found in sorted((e for e in events if e[1]), key=lambda e: e[0])]

    def test_sends_and_receives_are_marked_with_their_peers(self):
        self.record("pipeline.py", "--micro-batches", "2")
        for rank in (0, 1):
            marks = self.marks(rank)
            self.assertEqual({(peer, group) for what, _, peer, group in marks if what == "call"}, {(str(1 - rank), "0")})
            calls, waits = ([number for what, number, _, _ in marks if what == w] for w in ("call", "wait"))
            self.assertEqual(len(calls), 3 * 2 * 2)  # steps, micro-batches, there and back
            self.assertEqual(sorted(calls), sorted(waits))

        def whatif(n):
            return subprocess.run([live.DPRO, "whatif", self.trace, "--json", "--microbatches", n], stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=600, check=False)
        facts = json.loads(whatif("4").stdout)
        self.assertEqual([facts["pipeline"][key]["micro_batches"] for key in ("baseline", "predicted")], [2, 4])
        self.assertLess(facts["memory"]["peak_bytes"], facts["memory"]["baseline_peak_bytes"])  # a row in flight, not two
        self.assertIn(b"the pipeline's batch has 4 rows, too few for 5", whatif("5").stderr)

    def test_blocks_of_a_rank_are_foretold_as_stages_that_take_turns(self):
        peaks = {}
        for schedule in ("1f1b", "interleaved"):
            out = self.path(schedule)
            self.record("pipeline.py", "--layers", "4", "--micro-batches", "2", "--schedule", schedule, out=out)
            other = "interleaved" if schedule == "1f1b" else "1f1b"
            facts = self.whatif(out, "--schedule", other)
            self.assertEqual([facts["pipeline"][key]["schedule"] for key in ("baseline", "predicted")], [schedule, other])
            peaks[schedule], peaks[schedule, "to " + other] = (facts["memory"][key] for key in ("baseline_peak_bytes", "peak_bytes"))
        self.assertAlmostEqual(peaks["1f1b", "to interleaved"] / peaks["interleaved"], 1, delta=0.1)
        self.assertAlmostEqual(peaks["interleaved", "to 1f1b"] / peaks["1f1b"], 1, delta=0.15)

    def test_collectives_are_marked_with_their_group(self):
        self.record("experts.py")
        calls = [mark for mark in self.marks(0) if mark[0] == "call"]
        self.assertEqual(len(calls), 3 * 2 * 5)  # steps, blocks, all-to-alls
        self.assertEqual({call[2:] for call in calls}, {("", "0")})

    @live.at_length
    def test_shards_within_replicas_are_what_was_foretold_of_shards_over_all(self):
        jobs = {}
        for replicas in (1, 2):
            root = jobs[replicas] = self.path("replicas%d" % replicas)
            self.record("fsdp.py", "--replicas", str(replicas), ranks=4, out=root)
        plain, hybrid = (self.replay(jobs[n])["dimensions"] for n in (1, 2))
        self.assertEqual([(d["name"], d["groups"]) for d in plain], [("fsdp", [[0, 1, 2, 3]])])
        self.assertEqual([(d["name"], d["groups"]) for d in hybrid], [("dp", [[0, 2], [1, 3]]), ("fsdp", [[0, 1], [2, 3]])])
        self.assertEqual(plain[0]["communications"], hybrid[1]["communications"])
        units = 3  # two blocks and the model: an all-reduce follows the reduction of each
        self.assertEqual(hybrid[0]["communications"], units)
        foretold = self.whatif(jobs[1], "--shard", "2")
        self.assertTrue(any("all-reduced over 2 replicas" in w for w in foretold["warnings"]), foretold["warnings"])
        real = self.whatif(jobs[2], "--latency", "1x")["memory"]
        # Which gradients a rank holds at its peak depends on how far its collectives have got; parameters and state do not.
        self.assertEqual(foretold["memory"]["by_category"]["parameter"], real["by_category"]["parameter"])
        state = [memory["by_category"]["optimizer_state"] for memory in (foretold["memory"], real)]
        self.assertAlmostEqual(state[0], state[1], delta=0.01 * state[1])  # steps are counted on each rank
        self.assertAlmostEqual(foretold["memory"]["peak_bytes"], real["peak_bytes"], delta=0.25 * real["peak_bytes"])

    def test_replicas_of_split_tensors_reduce_the_parts(self):
        run = self.ranks(REPLICAS_OF_SPLIT_TENSORS, world=4)
        self.assert_ran(run)
        self.assertEqual(run.out.count("UNFIT its parameters are tensor-parallel"), 4, run.out)
        part, whole, bias = 64 * 64 * 2, 64 * 64 * 4, 64 * 4
        sizes = {"0": (whole, bias), "1": (part, bias // 2), "2": (part, bias), "3": (whole, bias)}
        for rank in range(4):
            entry = self.rank(rank)["models"][0]
            self.assertEqual({p["name"]: p["size_bytes"] for p in entry["parameters"]}, {
                "%s.%s" % (n, name): size for n in sizes for name, size in zip(("weight", "bias"), sizes[n])})
            self.assertEqual(sorted(n for bucket in entry["buckets"] for n in bucket["parameters"]), list(range(8)))
            ranks = {group["name"]: group["ranks"] for group in self.rank(rank)["process_groups"]}
            self.assertEqual(ranks[entry["process_group"]], [rank % 2, rank % 2 + 2])
        self.assertEqual([(d["name"], d["groups"]) for d in self.replay(self.trace)["dimensions"]],
                         [("dp", [[0, 2], [1, 3]]), ("tp", [[0, 1], [2, 3]])])
        alone = self.whatif(self.trace, "--tp", "1")["memory"]["by_category"]
        self.assertEqual([alone[kind] for kind in ("parameter", "bucket")], 2 * [4 * (whole + bias)])

    def test_nothing_is_left_of_the_marks_and_errors_are_the_jobs_own(self):
        with_dpro, without = self.ranks(AROUND), self.ranks(AROUND, dpro=False)
        self.assert_ran(with_dpro)
        self.assertEqual(with_dpro.digests, without.digests)
        for rank in (0, 1):
            self.assertIn("SEEN %d [False, True] True" % rank, with_dpro.out)
            self.assertIn("SEEN %d [True] True" % rank, without.out)
