"""A simulated training whose truth is known, written as dPRO's first implementation recorded such: TensorFlow under
Horovod on NCCL's rings. Clocks of hosts differ; what the truth says is by a clock that no file has."""
import os
import random


class Horovod:
    """`layers` of equal size on `hosts` x `gpus`; the gradients of `fused` layers travel together, each round the ring in
    2 (n - 1) steps."""

    def __init__(self, hosts=2, gpus=2, layers=6, fused=2, iterations=8, forward_us=3000, backward_us=5000, step_us=700,
                 copy_us=150, update_us=200, latency_us=5, offsets_us=(0, 3700), jitter=0.01, slow=None, seed=1):
        self.world, self.gpus, self.layers, self.fused, self.iterations = hosts * gpus, gpus, layers, fused, iterations
        self.offsets_us = [offsets_us[rank // gpus % len(offsets_us)] for rank in range(self.world)]
        self.random, self.jitter, self.slow = random.Random(seed), jitter, slow
        self.us = {"forward": forward_us, "backward": backward_us, "step": step_us, "copy": copy_us, "update": update_us,
                   "latency": latency_us}
        self.ops = [[] for _ in range(self.world)]  # name, start, end, iteration
        self.stages = [[] for _ in range(self.world)]  # tensor, stage, start, end
        self.chunks = [[] for _ in range(self.world)]  # tensors, step, sends, start, end
        self.starts = []
        self.run()

    def takes(self, what, rank):
        factor = self.slow[1] if self.slow and self.slow[0] == rank and what in ("forward", "backward") else 1
        return self.us[what] * factor * (1 + self.jitter * self.random.uniform(-1, 1))

    def name(self, layer, what):
        return {"forward": f"model/dense_{layer}/MatMul", "backward": f"gradient_tape/model/dense_{layer}/MatMul_1",
                "reduce": f"DistributedGradientTape/HorovodAllreduce.{layer}_0", "update": f"SGD/update_{layer}/ResourceApply"}[what]

    def run(self):
        begin = [1_000_000.0] * self.world
        for iteration in range(self.iterations):
            self.starts.append(min(begin))
            begin = self.iterate(iteration, begin)
        self.starts.append(min(begin))

    def compute(self, rank, name, what, start, iteration):
        end = start + self.takes(what, rank)
        self.ops[rank].append((name, start, end, iteration))
        return end

    def iterate(self, iteration, begin):
        """A device takes what is ready first: an update that waits goes before the next op of the backward pass."""
        ranks = range(self.world)
        now = list(begin)
        waiting = [[] for _ in ranks]  # updates: ready, layer

        def update(rank, until):
            while waiting[rank] and waiting[rank][0][0] <= until:
                ready, layer = waiting[rank].pop(0)
                now[rank] = self.compute(rank, self.name(layer, "update"), "update", max(ready, now[rank]), iteration)

        for rank in ranks:
            for layer in range(self.layers):
                now[rank] = self.compute(rank, self.name(layer, "forward"), "forward", now[rank], iteration)
        free = [0.0] * self.world
        order = list(reversed(range(self.layers)))
        for first in range(0, self.layers, self.fused):
            group = order[first:first + self.fused]
            for layer in group:
                for rank in ranks:
                    update(rank, now[rank])
                    now[rank] = self.compute(rank, self.name(layer, "backward"), "backward", now[rank], iteration)
            ready = max(max(now[rank], free[rank]) for rank in ranks)
            free = self.reduce(group, ready, list(now))
            for rank in ranks:
                waiting[rank] += [(free[rank], layer) for layer in group]
        for rank in ranks:
            update(rank, float("inf"))
        return now

    def reduce(self, group, ready, made):
        ranks = range(self.world)
        tensors = "+".join(str(layer) for layer in sorted(group))
        copied = [ready + self.takes("copy", rank) for rank in ranks]
        received = list(copied)
        link = list(copied)
        for step in range(2 * (self.world - 1)):
            sent = []
            for rank in ranks:
                start = max(received[rank], link[rank])
                sent.append((start, start + self.takes("step", rank)))
                link[rank] = sent[rank][1]
                self.chunks[rank].append((tensors, step, True, *sent[rank]))
            posted, received = received, [max(sent[rank - 1][1] + self.us["latency"], received[rank]) for rank in ranks]
            for rank in ranks:
                self.chunks[rank].append((tensors, step, False, posted[rank], received[rank]))
        done = []
        for rank in ranks:
            end = max(received[rank], link[rank])
            done.append(end + self.takes("copy", rank))
            for layer in group:
                self.stages[rank] += [(layer, "QUEUE", made[rank], ready), (layer, "MEMCPY_IN_FUSION_BUFFER", ready, copied[rank]),
                                      (layer, "NCCL_ALLREDUCE", copied[rank], end), (layer, "MEMCPY_OUT_FUSION_BUFFER", end, done[rank])]
        return done

    @property
    def iteration_ms(self):
        return (self.starts[-1] - self.starts[0]) / self.iterations / 1000

    # ---- files ----

    def trace(self, rank):
        events = [{"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:GPU:0 (pid 3)"}},
                  {"ph": "M", "pid": 3, "tid": 7, "name": "thread_name", "args": {"name": "TensorFlow Ops"}},
                  {"ph": "M", "pid": 3, "tid": 8, "name": "thread_name", "args": {"name": "Steps"}}]
        for name, start, end, iteration in self.ops[rank]:
            events.append({"ph": "X", "pid": 3, "tid": 7, "ts": start + self.offsets_us[rank], "dur": end - start, "name": name,
                           "args": {"long_name": f"StatefulPartitionedCall/{name}:{name.rsplit('/', 1)[1].split('_')[0]}",
                                    "group_id": iteration}})
        return {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}

    def comm(self, rank):
        events = [{"ph": "M", "pid": layer + 1, "name": "process_name", "args": {"name": self.name(layer, "reduce")}}
                  for layer in range(self.layers)]
        events.append({"ph": "M", "pid": 99, "name": "process_name", "args": {"name": "Sync"}})
        timed = []
        for layer, stage, start, end in self.stages[rank]:
            timed.append((start, {"ph": "B", "pid": layer + 1, "name": stage}))
            timed.append((end, {"ph": "E", "pid": layer + 1}))
            if stage == "QUEUE":
                timed.append((end, {"ph": "B", "pid": 99, "name": str(layer)}))
                timed.append((end, {"ph": "E", "pid": 99}))
        timed.sort(key=lambda event: event[0])  # what comes at one time stays in its order
        return events + [{**event, "ts": at + self.offsets_us[rank]} for at, event in timed]

    def comm_detail(self, rank):
        return {"traceEvents": [
            {"ph": "X", "cat": "Comm", "pid": "comm_detail", "tid": "0", "ts": start + self.offsets_us[rank], "dur": end - start,
             "name": f"allreduce.{tensors}.{'SEND' if sends else 'RECV'}",
             "args": {"name": "x", "loopId": 0, "channelId": 0, "chunkId": step, "sliceId": 0}}
            for tensors, step, sends, start, end in self.chunks[rank]]}

    def edges(self):
        for layer in range(self.layers):
            if layer + 1 < self.layers:
                yield self.name(layer, "forward"), self.name(layer + 1, "forward")
                yield self.name(layer + 1, "backward"), self.name(layer, "backward")
            yield self.name(layer, "backward"), self.name(layer, "reduce")
            yield self.name(layer, "reduce"), self.name(layer, "update")
        yield self.name(self.layers - 1, "forward"), self.name(self.layers - 1, "backward")

    def nodes(self):
        return [self.name(layer, what) for what in ("forward", "backward", "reduce", "update") for layer in range(self.layers)]

    def metadata(self):
        types = {"forward": "MatMul", "backward": "MatMul", "reduce": "HorovodAllreduce", "update": "ResourceApplyGradientDescent"}
        into = {}
        for source, target in self.edges():
            into.setdefault(target, []).append({"name": source + ":0", "shape": [512, 512], "dtype": "float32"})
        return {self.name(layer, what): {"op": types[what], "input": into.get(self.name(layer, what), []),
                                         "output": [{"name": self.name(layer, what) + ":0", "shape": [512, 512], "dtype": "float32"}]}
                for what in types for layer in range(self.layers)}

    def gml(self):
        number = {name: at for at, name in enumerate(self.nodes())}
        nodes = "".join(f'  node [\n    id {at}\n    label "{name}"\n  ]\n' for name, at in number.items())
        edges = "".join(f"  edge [\n    source {number[a]}\n    target {number[b]}\n  ]\n" for a, b in self.edges())
        return f"graph [\n  directed 1\n{nodes}{edges}]\n"

    def ring(self, rank):
        n = self.world
        return {"RealRing": {"0": f"{(rank - 1) % n}[1a000] -> {rank}[1b000] [receive] via NET/Socket/0,"
                                  f"{rank}[1b000] -> {(rank + 1) % n}[1c000] [send] via NET/Socket/0"}, "Tree": {}}

    def write(self, case, folder, without=()):
        """Through case.write(name, content); `without` leaves files out."""
        for rank in range(self.world):
            files = {"trace.json.gz": self.trace(rank), "comm.json": self.comm(rank), "comm_detail.json": self.comm_detail(rank),
                     "metadata.json": self.metadata(), "dag.gml": self.gml(), "nccl_rank_graph.json": self.ring(rank),
                     "gradient_name_list.json": {"model_name": "dense",
                                                 "gradient_name_list": [f"dense_{layer}/kernel:0" for layer in range(self.layers)]}}
            for name, content in files.items():
                if name not in without:
                    case.write(os.path.join(folder, f"host{rank // self.gpus}", str(rank % self.gpus), name), content)
        return case.path(folder)
