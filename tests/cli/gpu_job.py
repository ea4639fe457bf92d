"""Kineto traces of jobs on GPUs whose true iteration time is known, for lack of a GPU here: threads launch kernels on
streams, and ranks meet in collectives, as CUDA and NCCL let them. Launch costs, kernel times and their number are those
of public traces (ResNet-50 on a V100 and on an A100: 500 to 2,000 kernels of 20 to 200 us, 5 to 12 us a launch)."""
import functools
import random

QUEUE_DEPTH = 1024  # launches that a stream takes on before the next one blocks
LAUNCH_DELAY_US = 3.0  # from a launch to its kernel on an idle stream
COMPUTE, COMMUNICATE = 7, 20  # streams


class Job:
    """What one rank does in a step. CPU costs are between launches; all times in us."""

    def __init__(self, kernels=300, kernel_us=100.0, cpu_us=30.0, world=1, buckets=0, transfer_us=2000.0, sync=None,
                 streams=1, jitter=0.0, slow=None, start_us=1_000_000_000.0, seed=1, rounding_us=0.0, uneven=0, units=0,
                 within=None, before_forward=None, gpu_rounding_us=0.0, program=None, factor=None, accumulates=False,
                 rows=None, per_host=0):
        self.kernels, self.kernel_us, self.cpu_us = kernels, kernel_us, cpu_us
        self.world, self.buckets, self.transfer_us = world, buckets, transfer_us
        # None, or where a step waits for its GPU: "loss" (before backward) or "end"; "previous": at its end for the
        # work of the step before
        self.sync = sync
        self.streams, self.jitter = streams, jitter
        self.slow = slow  # (rank, factor) of the CPU's costs
        self.start_us, self.seed = start_us, seed
        self.uneven = uneven  # more kernels in every third step
        self.rounding_us, self.gpu_rounding_us = rounding_us, gpu_rounding_us  # what ends may be late by
        # called with a rank and a step's number: before its forward pass, and between that and the backward one
        self.before_forward, self.within = before_forward, within
        self.program = program  # called with a rank: what it does in place of passes forward and back
        self.factor = factor  # called with a rank and an op's name: how much longer its kernels take there
        self.accumulates = accumulates  # autograd's ops tell which gradients a bucket holds
        self.per_host = per_host  # ranks; 0: no host is recorded
        self.rows = rows  # called with a rank: of the matrices that it multiplies; None: no shapes are recorded
        self.units = units  # whose parameters are sharded, and gathered one unit ahead


class Rank:
    def __init__(self, job, rank, is_recorded=True):
        self.job, self.rank, self.is_recorded = job, rank, is_recorded
        self.random, self.noise = random.Random(job.seed * 1000 + rank), random.Random(rank)
        self.now = job.start_us
        self.free = {}  # stream -> when its last work is over
        self.ends = {}  # stream -> ends of all its work, to find the queue full
        self.events = []
        self.correlation = 0
        self.cpu_factor = job.slow[1] if job.slow and job.slow[0] == rank else 1.0
        self.transfer_us = None  # of the collective that it is in, if not the job's
        self.group = ("0", list(range(job.world)))  # whose
        self.before = 0.0  # when the last step's work is over
        self.marks, self.begins = [], []  # begins of steps, on the CPU and on the GPU

    def vary(self, us):
        return us * (1 + self.job.jitter * self.random.uniform(-1, 1))

    def emit(self, cat, name, start, dur, pid, tid, **args):
        if not self.is_recorded:
            return
        late = (self.job.rounding_us if pid == 100 else self.job.gpu_rounding_us) * self.noise.randrange(2)
        begin, end = round(start, 3), round(start + dur + late, 3)
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": begin,
                            "dur": round(end - begin, 3), "args": args})

    def op(self, name, us, tid=1, **args):
        """A framework's op that launches nothing."""
        us = self.vary(us) * self.cpu_factor
        self.emit("cpu_op", name, self.now, us, 100, tid, **args)
        self.now += us

    def call(self, name, us, tid=1, **args):
        self.emit("cuda_runtime", name, self.now, us, 100, tid, **args)
        self.now += us

    def launch(self, op, kernel, us, stream, tid=1, after=0.0, cat="kernel", **args):
        """Yields where ranks meet; a kernel runs after what its stream was given before, and after `after`."""
        cpu = self.vary(self.job.cpu_us) * self.cpu_factor
        begin, self.now = self.now, self.now + cpu * 0.5
        ends = self.ends.setdefault(stream, [])
        called = self.now
        self.now += 5.0
        if len(ends) >= QUEUE_DEPTH and ends[-QUEUE_DEPTH] > self.now:
            self.now = ends[-QUEUE_DEPTH]
        self.correlation += 1
        start = max(self.now + LAUNCH_DELAY_US, self.free.get(stream, 0) + 1.0, after)
        if self.job.factor:
            us *= self.job.factor(self, op)
        end = start + self.vary(us) if kernel.find("nccl") < 0 else (yield start)
        self.free[stream] = end
        ends.append(end)
        external = self.correlation
        self.emit("cuda_runtime", "cudaMemcpyAsync" if cat == "gpu_memcpy" else "cudaLaunchKernel", called,
                  self.now - called, 100, tid, correlation=self.correlation, **{"External id": external})
        self.emit(cat, kernel, start, end - start, 0, stream, correlation=self.correlation, device=0, stream=stream,
                  **{"External id": external}, **args)
        self.now += cpu * 0.5
        shapes = {}
        if self.job.rows and op == "aten::mm":
            shapes = {"Input Dims": [[self.job.rows(self), 512], [512, 512]], "Input type": ["float", "float"]}
        self.emit("cpu_op", op, begin, self.now - begin, 100, tid, **{"External id": external}, **shapes)
        return end

    def let_stream_wait(self, tid):
        self.call("cudaEventRecord", 2.0, tid)
        self.call("cudaStreamWaitEvent", 2.0, tid)

    def wait_for(self, name, until, **args):
        """A call that blocks until the GPU has come so far."""
        self.call(name, max(until - self.now, 0) + 4.0, **args)

    def wait_for_gpu(self):
        begin = self.now
        self.wait_for("cudaStreamSynchronize", max(self.free.values()))
        self.emit("cpu_op", "aten::item", begin, self.now - begin + 1.0, 100, 1)
        self.now += 2.0

    def communicate(self, kind, after, tid, elements=1_000_000, transfer_us=None):
        job, self.transfer_us = self.job, transfer_us
        received, sent = {"_allgather_base": (1, job.world), "_reduce_scatter_base": (job.world, 1)}.get(kind, (1, 1))
        name = {"_allgather_base": "AllGather", "_reduce_scatter_base": "ReduceScatter_Sum_f32"}.get(kind, "AllReduce_Sum_f32")
        self.let_stream_wait(tid)
        return (yield from self.launch(
            "c10d::%s_" % kind, f"ncclDevKernel_{name}_RING_LL(ncclDevComm*, unsigned long)", job.transfer_us, COMMUNICATE, tid=tid,
            after=after, **{"Collective name": kind, "In msg nelems": elements * received, "Out msg nelems": elements * sent,
                            "Group size": len(self.group[1]), "dtype": "Float", "Process Group Name": self.group[0],
                            "Process Group Ranks": str(self.group[1])}))

    def passes_of_units(self):
        """Forward and back over all units, each of which waits for its parameters; the next ones' are asked for before."""
        job = self.job
        for tid, units in ((1, list(range(job.units))), (2, list(range(job.units))[::-1])):
            gathered = []
            for i in range(job.units):
                for _ in units[len(gathered):i + 1]:
                    gathered.append((yield from self.communicate("_allgather_base", self.free[COMPUTE], tid)))
                self.let_stream_wait(tid)
                for _ in units[len(gathered):i + 2]:
                    gathered.append((yield from self.communicate("_allgather_base", self.free[COMPUTE], tid)))
                for k in range(job.kernels * tid // 3 // job.units):
                    end = yield from self.launch("aten::mm", f"gemm_{k % 5}", job.kernel_us, COMPUTE, tid=tid, after=gathered[i])
                if tid == 2:
                    reduced = yield from self.communicate("_reduce_scatter_base", end, tid)
        self.let_stream_wait(1)
        yield from self.launch("aten::_foreach_add_", "update", job.kernel_us, COMPUTE, after=reduced)

    def forward(self, kernels, name="aten::conv2d"):
        for k in range(kernels):
            yield from self.launch(name, f"conv_forward_{k}", self.job.kernel_us, COMPUTE)

    def backward(self, kernels, buckets=0):
        """Returns when the last bucket is reduced."""
        reduced = 0.0
        self.now += 5.0
        for k in range(kernels):
            end = yield from self.launch("ConvolutionBackward0", f"conv_backward_{k}", self.job.kernel_us, COMPUTE, tid=2)
            if buckets and (k + 1) % max(kernels // buckets, 1) == 0:
                reduced = yield from self.communicate("allreduce", end, 2)
        if reduced:
            self.let_stream_wait(tid=1)
        return reduced

    def update(self, kernels, after=0.0):
        for k in range(kernels):
            yield from self.launch("aten::_foreach_add_", f"update_{k}", self.job.kernel_us, COMPUTE, after=after)

    def step(self, number, startup_us=0.0):
        job, begin, self.number = self.job, self.now, number
        self.marks.append(begin)
        kernels = job.kernels + (job.uneven if number % 3 == 0 else 0)
        self.op("aten::zero_", 20)
        self.now += startup_us
        yield from self.launch("aten::copy_", "Memcpy HtoD (Pinned -> Device)", job.kernel_us, COMPUTE, cat="gpu_memcpy")
        self.begins.append(self.free[COMPUTE])
        if job.before_forward:
            job.before_forward(self, number)
        yield from (job.program(self) if job.program else self.passes_of_units() if job.units else self.passes(kernels))
        self.op("aten::detach", 20)
        self.emit("user_annotation", f"ProfilerStep#{number}", begin, self.now - begin, 100, 1)

    def passes(self, kernels):
        job, per_stream = self.job, kernels // 3
        side = 0.0
        for k in range(per_stream):
            yield from self.launch("aten::conv2d", f"conv_forward_{k % 17}", job.kernel_us, COMPUTE)
            if job.streams > 1 and k % 10 == 5:
                side = yield from self.launch("aten::embedding", f"gather_{k % 3}", job.kernel_us * 2, 13, after=side)
        if job.sync == "loss":
            self.wait_for_gpu()
        if job.within:
            job.within(self, self.number)
        reduced = 0.0
        self.now += 5.0
        for k in range(per_stream):
            end = yield from self.launch("ConvolutionBackward0", f"conv_backward_{k % 13}", job.kernel_us, COMPUTE, tid=2)
            if job.buckets and (k + 1) % max(per_stream // job.buckets, 1) == 0:
                if job.accumulates:
                    self.op("torch::autograd::AccumulateGrad", 5.0, tid=2, **{"Input Dims": [[1_000_000]]})
                reduced = yield from self.communicate("allreduce", end, 2)
        if reduced:
            self.let_stream_wait(tid=1)
        after = reduced
        for k in range(kernels - 2 * per_stream):
            yield from self.launch("aten::_foreach_add_", f"update_{k % 5}", job.kernel_us * 0.5, COMPUTE, after=after)
        if job.sync == "end":
            self.wait_for_gpu()
        if job.sync == "previous":
            self.wait_for("cudaEventSynchronize", self.before)
            self.before = self.free[COMPUTE]

    def run(self, first, last, synced_at, startup):
        """Steps first to last; before `synced_at` the program waits for its GPU, as a profiler that starts does."""
        for number in range(first, last + 1):
            if number == synced_at:
                self.now = max(self.now, max(self.free.values(), default=0.0)) + 100.0
            yield from self.step(number, startup[1] if number == startup[0] else 0.0)


def run_ranks(job, first, last, synced_at, startup=(0, 0.0), is_recorded=True):
    """All ranks' programs at once: each runs up to its next collective; then all know when it is over."""
    ranks = [Rank(job, r, is_recorded) for r in range(job.world)]
    running = [rank.run(first, last, synced_at, startup) for rank in ranks]
    send = [None] * job.world
    while running:
        starts = []
        for r, program in enumerate(running):
            try:
                starts.append(program.send(send[r]))
            except StopIteration:
                starts.append(None)
        if None in starts:
            break
        send = [max(starts[r] for r in rank.group[1]) + (rank.transfer_us or job.transfer_us) for rank in ranks]
    return ranks


class Truth:
    """What is true of rank r is [r]: period_us, its iteration time in many more steps, which are simulated when somebody asks, and
    cpu_us, what the marks of steps are apart."""

    def __init__(self, job, ranks, before, steps):
        self.job, self.before, self.steps, self.marks = job, before, steps, [rank.marks for rank in ranks]

    @functools.cached_property
    def endless(self):
        return run_ranks(self.job, 1, self.before + self.steps + 20, None, is_recorded=False)

    def __getitem__(self, rank):
        begins, marks = self.endless[rank].begins[-12:], self.marks[rank]
        return {"period_us": (begins[-1] - begins[0]) / (len(begins) - 1),
                "cpu_us": (marks[-1] - marks[self.before]) / (self.steps - 1) if self.steps > 1 else None}


def write(case, job, steps=6, before=0, synced=True, cut_us=None, folder="job", startup_us=0.0,
          lost_steps=0):
    """Records steps `before` + 1 to `before` + `steps` into a folder of `case`; with synced=False the GPU still has
    work of the steps before when the recording begins; startup_us: what the profiler's start takes in the first step;
    cut_us: the recording's length, where it ends within a step; lost_steps: so many of the last ones have no work on the GPU, as
    the recording ended before. Returns the folder and the truth."""
    first, last = before + 1, before + steps
    ranks = run_ranks(job, 1, last, first if synced else None, (first, startup_us))
    for rank in ranks:
        begin = rank.marks[before]
        until = begin + cut_us if cut_us else float("inf")
        gpu_until = rank.begins[last - lost_steps] - job.kernel_us if lost_steps else until
        events = []
        for event in rank.events:
            gpu = event["cat"] in ("kernel", "gpu_memcpy")
            over = event["ts"] + event["dur"]
            if (over > begin if gpu else event["ts"] >= begin) and over <= (gpu_until if gpu else until):
                events.append(event)
        trace = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}],
                 "distributedInfo": {"backend": "nccl", "rank": rank.rank, "world_size": job.world},
                 **({"host_name": f"host{rank.rank // job.per_host}"} if job.per_host else {}), "traceEvents": events}
        case.write(f"{folder}/rank{rank.rank}.pt.trace.json.gz", trace)
    return case.path(folder), Truth(job, ranks, before, steps)
