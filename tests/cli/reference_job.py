"""A simulated training whose truth is known, written as dPRO's first implementation recorded such: TensorFlow under
Horovod on NCCL's rings. Clocks of hosts differ; what the truth says is by a clock that no file has."""
import heapq
import itertools
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


class PushPull:
    """BytePS: `workers` push each layer's gradient, in `parts`, to `servers`, which add them up. A message takes its sender's
    way out and its receiver's way in for as long as it lasts; a server's threads and a worker's device take what is ready
    first. `rdma` says at which end the end of a message is noted."""

    def __init__(self, workers=3, servers=2, layers=6, parts=1, threads=2, iterations=8, forward_us=2000, backward_us=3000,
                 push_us=1200, update_us=100, copy_us=150, sum_us=250, small_us=20, offsets_us=(0, 2500, -1800), jitter=0.01,
                 slow=None, rdma=False, seed=1):
        self.workers, self.servers, self.layers, self.parts, self.threads = workers, servers, layers, parts, threads
        self.iterations, self.jitter, self.slow, self.rdma, self.random = iterations, jitter, slow, rdma, random.Random(seed)
        self.us = {"forward": forward_us, "backward": backward_us, "push": push_us / parts, "update": update_us,
                   "COPY_FIRST": copy_us / parts, "SUM": sum_us / parts, "COPY_MERGED": copy_us / parts, "small": small_us}
        nodes = [("worker", w) for w in range(workers)] + [("server", s) for s in range(servers)]
        self.offset = {node: offsets_us[at % len(offsets_us)] for at, node in enumerate(nodes)}
        self.ops = [[] for _ in range(workers)]
        self.messages, self.works, self.starts = [], [], []
        self.run()

    def takes(self, what, worker=None):
        factor = self.slow[1] if self.slow and self.slow[0] == worker and what in ("forward", "backward") else 1
        return self.us[what] * factor * (1 + self.jitter * self.random.uniform(-1, 1))

    def name(self, layer, what):
        return {"forward": f"model/dense_{layer}/MatMul", "backward": f"gradient_tape/model/dense_{layer}/MatMul_1",
                "reduce": f"DistributedOptimizer/BytePSPushPull_{layer}", "update": f"SGD/update_{layer}/ResourceApply"}[what]

    def key(self, layer, part):
        return (layer << 16) + part

    def server_of(self, layer, part):
        return ("server", (layer * self.parts + part) % self.servers)

    # ---- what happens ----

    def at(self, when, what, *more):
        heapq.heappush(self.agenda, (when, len(self.agenda) + next(self.count), what, more))

    def run(self):
        self.agenda, self.count, self.free, self.waiting = [], itertools.count(1, 100_000), {}, {}
        self.pending, self.iteration = [], [0] * self.workers
        for worker in range(self.workers):
            self.at(1_000_000.0, self.begin, worker)
        while self.agenda:
            self.now, _, what, more = heapq.heappop(self.agenda)
            what(*more)

    def begin(self, worker):
        if worker == 0:
            self.starts.append(self.now)
        if self.iteration[worker] == self.iterations:
            return
        self.left = getattr(self, "left", {})
        self.left[worker] = self.layers
        self.compute(worker, "forward", 0)

    def compute(self, worker, what, layer):
        self.use(("device", worker), self.takes(what, worker), self.computed, worker, what, layer)

    def computed(self, start, worker, what, layer):
        self.ops[worker].append((self.name(layer, what), start, self.now, self.iteration[worker]))
        if what == "forward":
            self.compute(worker, *(("forward", layer + 1) if layer + 1 < self.layers else ("backward", layer)))
        elif what == "backward":
            for part in range(self.parts):
                self.send(("worker", worker), self.server_of(layer, part), "PUSH_REQ", layer, part, worker, self.iteration[worker])
            if layer > 0:
                self.compute(worker, "backward", layer - 1)
        else:
            self.left[worker] -= 1
            if self.left[worker] == 0:
                self.iteration[worker] += 1
                self.begin(worker)

    def use(self, device, dur, then, *more):
        """One thing at a time, what got ready first goes first."""
        queue = self.waiting.setdefault(device, [])
        queue.append((dur, then, more))
        if not self.free.get(device):
            self.go_on(device)

    def go_on(self, device):
        if not self.waiting[device]:
            self.free[device] = False
            return
        dur, then, more = self.waiting[device].pop(0)
        self.free[device] = True
        self.at(self.now + dur, self.used, device, self.now, then, more)

    def used(self, device, start, then, more):
        then(start, *more)
        self.go_on(device)

    def send(self, source, target, stage, *what):
        self.pending.append((source, target, stage, what))
        self.start_messages()

    def start_messages(self):
        for message in list(self.pending):
            source, target, stage, what = message
            if self.free.get(("out", source)) or self.free.get(("in", target)):
                continue
            self.pending.remove(message)
            self.free[("out", source)] = self.free[("in", target)] = True
            dur = self.takes("push" if stage in ("PUSH_REQ", "PULL_RES") else "small")
            self.at(self.now + dur, self.arrived, message, self.now)

    def arrived(self, message, start):
        source, target, stage, (layer, part, worker, iteration) = message
        self.free[("out", source)] = self.free[("in", target)] = False
        self.messages.append((source, target, stage, layer, part, start, self.now))
        state = self.state = getattr(self, "state", {})
        done = state.setdefault((layer, part, iteration), {"pushed": 0, "asked": [], "ready": False, "pulled": 0})
        if stage == "PUSH_REQ":
            done["pushed"] += 1
            op = "COPY_FIRST" if done["pushed"] == 1 else "SUM"
            thread = ("thread", target, self.key(layer, part) % self.threads)
            self.use(thread, self.takes(op), self.worked, target, op, layer, part, iteration, done["pushed"] == self.workers)
            self.send(target, source, "PUSH_RES", layer, part, worker, iteration)
        elif stage == "PUSH_RES":
            self.send(target, source, "PULL_REQ", layer, part, worker, iteration)
        elif stage == "PULL_REQ":
            done["asked"].append(worker)
            self.answer(done, layer, part, iteration)
        else:
            got = state.setdefault((layer, worker, iteration, "got"), [0])
            got[0] += 1
            if got[0] == self.parts:
                self.compute(worker, "update", layer)
        self.start_messages()

    def worked(self, start, server, op, layer, part, iteration, last):
        self.works.append((server[1], op, self.key(layer, part), self.key(layer, part) % self.threads, start, self.now))
        if op == "COPY_MERGED":
            done = self.state[(layer, part, iteration)]
            done["ready"] = True
            self.answer(done, layer, part, iteration)
        elif last:
            thread = ("thread", server, self.key(layer, part) % self.threads)
            self.use(thread, self.takes("COPY_MERGED"), self.worked, server, "COPY_MERGED", layer, part, iteration, False)

    def answer(self, done, layer, part, iteration):
        while done["ready"] and done["asked"]:
            worker = done["asked"].pop(0)
            self.send(self.server_of(layer, part), ("worker", worker), "PULL_RES", layer, part, worker, iteration)

    @property
    def iteration_ms(self):
        return (self.starts[-1] - self.starts[0]) / self.iterations / 1000

    # ---- files ----

    trace = Horovod.trace
    edges, nodes, gml = Horovod.edges, Horovod.nodes, Horovod.gml

    @property
    def offsets_us(self):
        return [self.offset["worker", worker] for worker in range(self.workers)]

    def metadata(self):
        types = {"forward": "MatMul", "backward": "MatMul", "reduce": "BytepsPushPull", "update": "ResourceApplyGradientDescent"}
        into = {}
        for source, target in self.edges():
            into.setdefault(target, []).append({"name": source + ":0", "shape": [512, 512], "dtype": "float32"})
        return {self.name(layer, what): {"op": types[what], "input": into.get(self.name(layer, what), []),
                                         "output": [{"name": self.name(layer, what) + ":0", "shape": [512, 512], "dtype": "float32"}]}
                for what in types for layer in range(self.layers)}

    def log(self, node):
        ids = {("worker", w): 9 + 2 * w for w in range(self.workers)} | {("server", s): 8 + 2 * s for s in range(self.servers)}
        lines = []
        for source, target, stage, layer, part, start, end in self.messages:
            push, request = str(stage.startswith("PUSH")).lower(), str(stage.endswith("REQ")).lower()
            for time, starts, by in ((start, "true", source), (end, "false", target if self.rdma else source)):
                if by == node:
                    lines.append((time, f"{round(time + self.offset[node])} {starts} {push} {request} {self.key(layer, part)} "
                                        f"{ids[source]} {ids[target]}"))
        return f"role={node[0]}, id={ids[node]}, ip=10.0.0.1, port=1234\n" + "".join(line + "\n" for _, line in sorted(lines))

    def server_log(self, server):
        lines = []
        for at, op, key, thread, start, end in self.works:
            if at == server:
                offset = self.offset["server", server]
                lines += [(start, f"{round(start + offset)}: start, {key}, {op}, {thread}"),
                          (end, f"{round(end + offset)}: stop, {key}, {op}, {thread}")]
        return "".join(line + "\n" for _, line in sorted(lines, key=lambda line: line[0]))

    def key_dict(self):
        return "".join(f"byteps.BytePSPushPull.{layer}: " + " ".join(str(self.key(layer, part)) for part in range(self.parts)) + "\n"
                       for layer in range(self.layers))

    def tensor(self, layer, part):
        return f"byteps.BytePSPushPull.{layer}" + (f"~PART{part}" if self.parts > 1 else "")

    def comm_timeline(self):
        """As derived from the logs."""
        pids, events = {}, []
        for source, target, stage, layer, part, start, end in self.messages:
            pid = pids.setdefault((source, target), len(pids))
            for ph, time in (("B", start), ("E", end)):
                events.append({"name": f"{self.tensor(layer, part)}.{stage[:4]}", "ph": ph, "ts": round(time + self.offset[source]),
                               "pid": pid, "tid": 0})
        return [{"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": "{}_{} -> {}_{}".format(*a, *b)}}
                for (a, b), pid in pids.items()] + events

    def comm(self, worker):
        """BytePS's own trace, from first push to last answer of each part."""
        open_, events = {}, []
        for source, target, stage, layer, part, start, end in sorted(self.messages, key=lambda message: message[5]):
            if ("worker", worker) not in (source, target):
                continue
            if stage.endswith("REQ"):
                open_[stage[:4], layer, part] = start
                continue
            name, start = f"Comm.byteps.gradient_{layer}", open_.pop((stage[:4], layer, part))
            events.append({"ph": "X", "args": {"name": name}, "pid": name, "name": f"{name}.{stage[:4]}", "cat": "Comm",
                           "tid": str(self.key(layer, part)), "ts": round(start + self.offset["worker", worker]),
                           "dur": round(end - start)})
        return {"traceEvents": events}

    def server_timeline(self):
        events = [{"name": "process_name", "ph": "M", "pid": server, "tid": 0, "args": {"name": f"server_{server}"}}
                  for server in range(self.servers)]
        for server, op, key, thread, start, end in self.works:
            for ph, time in (("B", start), ("E", end)):
                events.append({"name": f"{self.tensor(key >> 16, key & 0xffff)}.{op}", "ph": ph,
                               "ts": round(time + self.offset["server", server]), "pid": server, "tid": thread})
        return events

    def write(self, case, folder, without=(), derived=False, own=False):
        """`derived`: timelines made of the logs, in their place; `own`: BytePS's own traces, in their place."""
        names = {"model_name": "dense", "gradient_name_list": [f"dense_{layer}/kernel:0" for layer in range(self.layers)]}
        files = {}
        for worker in range(self.workers):
            for name, content in (("trace.json.gz", self.trace(worker)), ("metadata.json", self.metadata()), ("dag.gml", self.gml()),
                                  ("gradient_name_list.json", names)):
                files[f"traces_{worker}/0/{name}"] = content
            files[f"comm/worker_{worker}.log"] = self.log(("worker", worker))
        for server in range(self.servers):
            files[f"comm/server_{server}.log"] = self.log(("server", server))
            files[f"server/server_log_{server}.txt"] = self.server_log(server)
        files["key_dict.txt"] = self.key_dict()
        if derived:
            files = {name: content for name, content in files.items() if not name.startswith(("comm/", "server/", "key_dict"))}
        if own:
            files = {name: content for name, content in files.items() if not name.startswith(("comm/", "server/", "key_dict"))}
            files.update({f"traces_{worker}/0/comm.json": self.comm(worker) for worker in range(self.workers)})
        if derived:
            files.update({"comm_timeline.json": self.comm_timeline(), "server_timeline.json": self.server_timeline()})
        for name, content in files.items():
            if os.path.basename(name) not in without:
                case.write(os.path.join(folder, name), content)
        return case.path(folder)
