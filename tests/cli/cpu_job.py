"""Recordings of a job that computes on CPUs, made up: a thread of passes, and one of gloo's that reduces buckets in turn."""
import random

COLLECTIVE = {"Input Dims": [[1_000_000]], "Input type": ["float"]}


class CpuJob:
    """All times in us. Called with a rank, a step and, where it is of an op, its phase and layer: slow (a factor), load, gap_us.
    `between`: from a transfer's end to the next one's begin. `counts`: integers that are reduced behind the buckets, as DDP's
    find_unused_parameters has it. `every`: ranks communicate in each such step only, as where they average their models. `copies`: called
    with a rank, a step and a bucket, how late the thread wakes that copies the bucket out; then no sizes are recorded."""

    def __init__(self, world=4, steps=10, layers=8, forward=10_000, backward=20_000, buckets=4, transfer=8000, update=12_000,
                 slow=lambda *at: 1, load=lambda *at: 200, op_gap=10, between=2, counts=0, every=1, copies=None):
        self.world, self.steps, self.layers, self.buckets = world, steps, layers, buckets
        self.forward, self.backward, self.transfer, self.update = forward, backward, transfer, update
        self.slow, self.load, self.op_gap, self.between, self.counts, self.every = slow, load, op_gap, between, counts, every
        self.copies = copies

    def run(self):
        """Each rank's events, and the mean step."""
        draws, now = [random.Random(100 + r) for r in range(self.world)], [1e6] * self.world
        events, ends = [[] for _ in now], []

        def emit(r, name, start, us, cat="cpu_op", tid=1, **args):
            events[r].append({"ph": "X", "cat": cat, "name": name, "pid": 100 + r, "tid": tid, "ts": round(start, 3),
                              "dur": round(us, 3), "args": args})

        def compute(r, step, name, us, phase, layer=0):
            us *= (1 + 0.01 * draws[r].uniform(-1, 1)) * self.slow(r, step, phase, layer)
            emit(r, name, now[r], us)
            now[r] += us
        for step in range(self.steps):
            begun, ready, free = list(now), [[] for _ in now], 0
            for r in range(self.world):
                emit(r, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", now[r], self.load(r, step), "user_annotation")
                now[r] += self.load(r, step) + 20
                for layer in range(self.layers):
                    compute(r, step, "aten::linear", self.forward, "forward", layer)
                    now[r] += self.op_gap
                for layer in reversed(range(self.layers)):
                    compute(r, step, "autograd::engine::evaluate_function: AddmmBackward0", self.backward, "backward", layer)
                    asked = [1_000_000] * (layer % (self.layers // self.buckets) == 0) + [self.counts] * (self.counts > 0 and layer == 0)
                    asked = [] if step % self.every else asked
                    for i, numel in enumerate(asked):  # as autograd's last work for the layer
                        at = now[r] - 55 * (len(asked) - i)
                        sizes = {"Input Dims": [[[numel]], [], [], [], [], []],
                                 "Input type": ["TensorList", "", "", "", "Scalar", "Scalar"]}
                        emit(r, "c10d::allreduce_", at, 50, **({} if self.copies else sizes))
                        ready[r].append(at + 50)
                    now[r] += self.op_gap
            ends_of = []
            for bucket in range(len(ready[0])):
                us, of = (self.transfer, COLLECTIVE) if bucket < self.buckets else (
                    100, {"Input Dims": [[self.counts]], "Input type": ["int"]})
                before, free = free, max([free] + [times[bucket] for times in ready]) + us
                for r in range(self.world):
                    start = max(ready[r][bucket] + 5, before + self.between)
                    emit(r, "gloo:all_reduce", start, free - start, "user_annotation", 5, **({} if self.copies else of))
                ends_of.append(free)
            for r in range(self.world if self.copies else 0):
                for bucket, end in enumerate(ends_of):
                    now[r] = max(now[r], end) + self.copies(r, step, bucket)
                    for name, us in ("aten::as_strided", 5), *2 * [("torch.distributed.ddp.reducer::copy_bucket_to_grad", 20)]:
                        emit(r, name, now[r], us)
                        now[r] += us + 1
            for r in range(self.world):
                now[r] = start = max(now[r], free) + 30
                compute(r, step, "aten::_fused_sgd_", self.update, "update")
                emit(r, "Optimizer.step#SGD.step", start - 5, now[r] - start + 10, "user_annotation")
                now[r] += 30
                emit(r, f"ProfilerStep#{step + 3}", begun[r], now[r] - 10 - begun[r], "user_annotation")
            ends.append(max(now))
        return events, (ends[-1] - 1e6) / self.steps

    def write(self, test, folder="cpu"):
        events, _ = self.run()
        for r, of_rank in enumerate(events):
            test.write(f"{folder}/rank{r}.json.gz", {"schemaVersion": 1, "deviceProperties": [], "host_name": "host", "distributedInfo": {
                "backend": "gloo", "rank": r, "world_size": self.world}, "traceEvents": sorted(of_rank, key=lambda event: event["ts"])})
        return test.path(folder)
