"""Made-up jobs with faults put in, for tools/faults.py: simulated here, so what a fault costs is known, and written as Kineto files.

A job's CPU launches kernels on streams and ranks meet in collectives (tests/cli/gpu_job.py), or its CPU computes and a thread of
gloo's communicates. A fault is a change of the options of draw()."""
import gzip
import json
import os
import random
import sys

from experiment import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "cli"))
import gpu_job  # noqa: E402

LAST_SHARE = 0.05  # of the gradients in the last bucket, which nothing hides
KERNELS = {"send": "SendRecv", "recv": "SendRecv", "allreduce": "AllReduce_Sum_f32_RING_LL", "_allgather_base": "AllGather_RING_LL",
           "_reduce_scatter_base": "ReduceScatter_Sum_f32_RING_LL"}
COMPUTE, COMMUNICATE = gpu_job.COMPUTE, gpu_job.COMMUNICATE
MAIN, GLOO = 1, 3  # threads
CHUNKS = 5  # of a forward pass, with Python's time between them
NEVER = {"loader_us": 300.0}  # of a step without a fault


def draw(kind, seed):
    """Options of a job: kind "gpu", "cpu", "fsdp" or "pipeline"."""
    rng = random.Random(f"{kind} {seed}")
    world, kernels = rng.choice((2, 4)) if kind != "pipeline" else 2, rng.randint(40, 70)
    kernel_us = rng.uniform(200, 400) if kind != "cpu" else rng.uniform(400, 900)
    return {"kind": kind, "seed": seed, "world": world, "kernels": kernels, "kernel_us": kernel_us, "cpu_us": 0.4 * kernel_us,
            "python_us": rng.uniform(600, 900), "buckets": rng.randint(3, 6), "latency_us": 400.0, "jitter": 0.01,
            # of all gradients on the link, where the backward pass takes 2; FSDP sends parameters, too
            "bytes_us": (0.4 if kind == "fsdp" else 1) * kernels * kernel_us * rng.uniform(1.4, 1.7),
            "micro_batches": 8, "victim": rng.randrange(world), "rng": rng}


class Job(gpu_job.Job):
    """What a step of each rank is: gpu_job's options, and those that faults change."""

    def __init__(self, options):
        super().__init__(kernels=options["kernels"], kernel_us=options["kernel_us"], cpu_us=options["cpu_us"], world=options["world"],
                         jitter=options["jitter"], seed=options["seed"])
        self.options = options
        self.on_gpu = options["kind"] != "cpu"
        rng = random.Random(options["seed"])
        weights = [rng.uniform(0.2, 1.8) for _ in range(options["buckets"] - 1)]
        self.shares = [(1 - LAST_SHARE) * weight / sum(weights) for weight in weights] + [LAST_SHARE]  # of the gradients, by bucket


def always(value):
    return lambda rank, step: value


class Rank(gpu_job.Rank):
    def __init__(self, job, rank):
        super().__init__(job, rank)
        self.sequence, self.meeting, self.n_met, self.elements = 0, None, 0, 0

    def option(self, name, default):
        """What an option that differs by rank and step is now."""
        return self.job.options.get(name, always(default))(self.rank, self.number)

    def annotate(self, name, begin, tid=MAIN):
        self.emit("user_annotation", name, begin, self.now - begin, 100, tid)

    def compute(self, op, kernel, us, tid=MAIN, after=0.0):
        us *= self.option("slow", 1.0) * (self.option("work", 1.0) if not kernel.startswith("update") else 1.0)
        args = {"Sequence number": self.sequence, "Fwd thread id": 0 if tid == MAIN else 1}
        if self.job.on_gpu:
            return (yield from self.launch(op, kernel, us, COMPUTE, tid=tid, after=after))
        self.now = max(self.now, after)
        us, slice_us = self.vary(us), self.option("slice_us", 0.0)
        if self.random.random() * slice_us < us and slice_us:
            us += slice_us  # another process has the core for as long
        name = op if op.startswith("aten") else f"autograd::engine::evaluate_function: {op}"
        self.emit("cpu_op", name, self.now, us, 100, MAIN, **args)
        self.now += us + 5.0
        return self.now

    def meet(self, what, members, us, after, tid):
        """A collective of these ranks, or a message; returns when it is over."""
        self.n_met += 1
        if self.job.on_gpu:
            elements, peer = self.elements, [r for r in members if r != self.rank]
            size = {"Dst Rank" if what == "send" else "Src Rank": peer[0]} if what in ("send", "recv") else {}
            self.let_stream_wait(tid)
            stream = COMMUNICATE + (4 if what == "recv" else 2 if what == "send" else 0) + (self.rank > peer[0]) * bool(size)
            return (yield from self.launch(f"c10d::{what}_", f"ncclDevKernel_{KERNELS[what]}(ncclDevComm*, unsigned long)", us, stream,
                                           tid=tid, after=after, **{"Collective name": what, "In msg nelems": elements,
                                                           "Out msg nelems": elements, "Group size": self.job.world, "dtype": "Float",
                                                           "Process Group Name": "0",
                                                           "Process Group Ranks": str(list(range(self.job.world))), **size}))
        dims = {"Input Dims": [[[self.elements]], [], [], [], [], []], "Input type": ["TensorList", "", "", "", "Scalar", "Scalar"]}
        self.emit("cpu_op", "c10d::allreduce_", self.now, 40.0, 100, MAIN, **dims)
        begin = max(self.now + 50.0, self.free.get(GLOO, 0.0) + 1.0)
        self.now += 45.0
        over = yield begin
        self.emit("user_annotation", "gloo:all_reduce", begin, over - begin, 100, GLOO,
                  **{"Input Dims": [[self.elements]], "Input type": ["float"]})
        self.free[GLOO] = over
        return over

    def reduce(self, share, after, tid, what="allreduce"):
        options, self.elements = self.job.options, int(50e6 * share)
        us = options["latency_us"] + options["bytes_us"] * share
        self.meeting = ("all", self.n_met), tuple(range(self.job.world)), us
        return (yield from self.meet(what, range(self.job.world), us, after, tid))

    def message(self, what, peer, key, us, after, tid):
        self.meeting, self.elements = (key, tuple(sorted((self.rank, peer))), us), 1_000_000
        over = yield from self.meet(what, sorted((self.rank, peer)), us, after, tid)
        if what == "recv":
            self.let_stream_wait(tid)
        return over

    def wait(self, until):
        """The CPU waits for what was launched, or for gloo."""
        if self.job.on_gpu:
            self.wait_for_gpu()
        else:
            self.now = max(self.now, until) + 20.0

    def load(self):
        begin = self.now
        self.now += self.option("loader_us", NEVER["loader_us"])
        self.annotate("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin)

    def pause(self):
        """What befalls the CPU within the forward pass: a pause, of which nothing is recorded; compiling; the allocator's retry."""
        self.now += self.option("pause_us", 0.0)
        compile_us = self.option("compile_us", 0.0)
        if compile_us:
            begin = self.now
            self.now += compile_us
            self.annotate("_compile.compile_inner (dynamo_timed)", begin + 10.0)
            self.emit("cpu_op", "Torch-Compiled Region: 0/0", begin, self.now - begin + 100.0, 100, MAIN)
            self.now += 110.0
        for us in self.option("retry_us", ()):
            self.wait_for("cudaFree", max(self.free.values()))
            self.call("cudaFree", us / 2)
            self.call("cudaMalloc", us / 2)

    def count_kernels(self):
        return round(self.job.kernels * self.option("layers", 1.0))

    def forward_pass(self, after=0.0):
        begin, per_chunk = self.now, self.count_kernels() // CHUNKS
        for chunk in range(CHUNKS):
            for k in range(per_chunk):
                yield from self.compute("aten::linear", f"gemm_{(chunk * per_chunk + k) % 17}", self.job.kernel_us, after=after)
                self.sequence += 1
            if chunk == 1:
                self.pause()
            if self.option("item", False):
                self.wait_for_gpu()
            self.now += self.job.options["python_us"] if self.job.on_gpu else 20.0
        self.annotate("DistributedDataParallel.forward", begin)

    def backward_pass(self, after=0.0, buckets=0):
        """Returns when its last bucket is reduced, or its last kernel is over."""
        kernels, over, ready = 2 * (self.count_kernels() // CHUNKS) * CHUNKS, 0.0, []
        at = [(i + 1) * kernels // buckets for i in range(buckets)] if buckets else []
        tid = 2 if self.job.on_gpu else MAIN
        for k in range(kernels):
            self.sequence -= k % 2
            end = yield from self.compute("AddmmBackward0", f"gemm_backward_{k % 13}", self.job.kernel_us, 2, after)
            if k + 1 in at:
                ready.append(self.job.shares[len(ready)])
                if not self.job.options.get("reversed"):
                    over = yield from self.reduce(ready[-1], end, tid)
        for share in reversed(ready) if self.job.options.get("reversed") else ():
            over = yield from self.reduce(share, end, tid)
        return over or end

    def update_pass(self, after):
        if self.job.on_gpu:
            self.let_stream_wait(MAIN)
        else:
            self.wait(after)
        begin = self.now
        for k in range(3):
            yield from self.compute("aten::_foreach_add_", f"update_{k}", self.job.kernel_us / 2, after=after)
        self.annotate("Optimizer.step#SGD.step", begin)

    def step(self, number, startup_us=0.0):
        begin, self.number = self.now, number
        self.marks.append(begin)
        self.load()
        if self.job.options["kind"] == "pipeline":
            reduced = yield from self.pipeline_passes()
        elif self.job.options["kind"] == "fsdp":
            reduced = yield from self.sharded_passes()
        else:
            yield from self.forward_pass()
            reduced = yield from self.backward_pass(buckets=self.job.options["buckets"])
        yield from self.update_pass(reduced)
        if self.job.on_gpu:
            self.wait_for_gpu()
        self.annotate(f"ProfilerStep#{number}", begin)
        self.now += 20.0

    def sharded_passes(self):
        """Forward and back over units whose parameters are gathered one unit ahead; gradients are scattered (FSDP)."""
        units = range(CHUNKS)
        for tid in (1, 2):
            gathered, kernels = [], tid * (self.count_kernels() // CHUNKS)
            for i in units:
                while len(gathered) < min(i + 2, CHUNKS):
                    gathered.append((yield from self.reduce(0.2, self.free.get(COMPUTE, 0.0), tid, "_allgather_base")))
                self.let_stream_wait(tid)
                for k in range(kernels):
                    op, name = ("aten::mm", "gemm") if tid == 1 else ("AddmmBackward0", "gemm_backward")
                    end = yield from self.compute(op, f"{name}_{k % 13}", self.job.kernel_us, tid, gathered[i])
                if tid == 1 and i == 1:
                    self.pause()
                if tid == 2:
                    reduced = yield from self.reduce(0.2, end, tid, "_reduce_scatter_base")
        return reduced

    def pipeline_passes(self):
        """All micro-batches forward, then all back (GPipe); a rank is a stage."""
        rank, world, step = self.rank, self.job.world, self.number
        for m in range(self.job.options["micro_batches"]):
            after = 0.0
            if rank > 0:
                after = yield from self.message("recv", rank - 1, (step, m, "forward", rank), 200.0, 0.0, MAIN)
            yield from self.forward_pass(after)
            if rank + 1 < world:
                yield from self.message("send", rank + 1, (step, m, "forward", rank + 1), 200.0, self.free[COMPUTE], MAIN)
        for m in range(self.job.options["micro_batches"]):
            after = 0.0
            if rank + 1 < world:
                after = yield from self.message("recv", rank + 1, (step, m, "back", rank), 200.0, 0.0, 2)
            yield from self.backward_pass(after)
            if rank > 0:
                yield from self.message("send", rank - 1, (step, m, "back", rank - 1), 200.0, self.free[COMPUTE], 2)
        return self.free[COMPUTE]


def run(options, steps):
    """All ranks' programs: each runs up to where it meets others, and goes on when all of them have come."""
    ranks = [Rank(Job(options), r) for r in range(options["world"])]
    programs = [rank.run(1, steps, None, (0, 0.0)) for rank in ranks]
    runnable, waiting = [(r, None) for r in range(len(ranks))], {}
    while runnable:
        r, over = runnable.pop()
        try:
            start = programs[r].send(over)
        except StopIteration:
            continue
        key, members, us = ranks[r].meeting
        there = waiting.setdefault(key, {})
        there[r] = start
        if len(there) == len(members):
            over = max(there.values()) + us
            runnable += [(member, over) for member in waiting.pop(key)]
    assert not waiting, "ranks wait for others that never come"
    return ranks


def write(folder, options, steps=9, before=2):
    """Records `steps` steps after those `before`; returns the true mean time of these in ms, but of the first, before which nothing is
    recorded."""
    ranks = run(options, before + steps + 1)
    os.makedirs(folder)
    for rank in ranks:
        begin, end = rank.marks[before], rank.marks[before + steps]
        backend = "nccl" if rank.job.on_gpu else "gloo"
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl" if rank.job.on_gpu else "cpu:gloo",
                 "pg_size": rank.job.world, "ranks": list(range(rank.job.world))}
        trace = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}] if rank.job.on_gpu else [],
                 "distributedInfo": {"backend": backend, "rank": rank.rank, "world_size": rank.job.world, "pg_count": 1,
                                     "pg_config": [group]},
                 "traceEvents": [event for event in rank.events if event["ts"] >= begin and event["ts"] + event["dur"] <= end]}
        with gzip.open(os.path.join(folder, f"rank{rank.rank}.json.gz"), "wt", 1) as out:
            json.dump(trace, out)
    return max((rank.marks[before + steps] - rank.marks[before + 1]) / (steps - 1) / 1000 for rank in ranks)
