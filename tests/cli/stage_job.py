"""Timelines of pipeline stages, made up: each pass, message and collective of each worker, by a simulator of its own."""
import csv
import io
from statistics import mean, median

COLUMNS = ("optype", "dp_rank", "stage", "rank", "step", "mb_id", "mc", "seq_id", "start_ts", "duration")
MESSAGES = {("F", "send"): "forward-send", ("F", "recv"): "forward-recv", ("B", "send"): "backward-send", ("B", "recv"): "backward-recv"}
PASSES = {"F": "forward-compute", "B": "backward-compute"}
SHARED = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
ALL_RANKS = "optimizer-clip-main-grad"
MEANS = ("forward-compute", "backward-compute", "optimizer", "gc")


class StageJob:
    """`chunks`: model chunks a stage; `overlaps`: gradients are scattered chunk by chunk; `strays`: messages that enter or
    leave the model are listed, too. `meets`: after its passes the last stage waits for that of all data-parallel ranks, in something
    that is not listed. `collects`: before which of its passes a stage collects garbage, if not after all. `seldom`: collections that
    take no time are not listed. late(dp rank, stage, step): seconds before a step's first gather. times(op type, dp rank, stage, step, n)
    gives what an op takes, in seconds; of communication, after its last member has begun."""

    def __init__(self, dp=2, stages=2, micro_batches=4, chunks=1, steps=3, overlaps=False, strays=True, meets=False, collects=None,
                 seldom=False, late=None, times=None):
        self.dp, self.stages, self.micro_batches, self.chunks = dp, stages, micro_batches, chunks
        self.steps, self.overlaps, self.strays, self.meets = steps, overlaps, strays, meets
        self.collects, self.seldom, self.late = collects, seldom, late or (lambda *at: 0)
        self.times = times or (lambda *op: 0.01)
        self.ops = {}  # (stage, type, n) -> [chunk, micro-batch, ops before, peer]
        for stage in range(stages):
            self.add_stage(stage)
        self.pair()

    def passes(self, stage):
        """(F or B, chunk, micro-batch) in the order of Megatron's schedules."""
        n, apart = self.micro_batches * self.chunks, self.stages
        if self.chunks == 1:
            warmup = min(n, self.stages - stage - 1)
        else:
            warmup = min(n, (self.stages - stage - 1) * 2 + (self.chunks - 1) * apart)

        def nth(kind, k):
            chunk = k // apart % self.chunks if self.chunks > 1 else 0
            batch = k // (apart * self.chunks) * apart + k % apart if self.chunks > 1 else k
            return kind, chunk if kind == "F" else self.chunks - 1 - chunk, batch

        order = [nth("F", k) for k in range(warmup)]
        for k in range(n - warmup):
            order += [nth("F", warmup + k), nth("B", k)]
        return order + [nth("B", n - warmup + k) for k in range(warmup)]

    def add(self, stage, optype, n, before, chunk=0, batch=-1):
        self.ops[stage, optype, n] = [chunk, batch, [op for op in before if op in self.ops or op[0] == stage], None]
        return stage, optype, n

    def add_stage(self, stage):
        order, last, count = self.passes(stage), [], {"F": 0, "B": 0}
        gathers = [self.add(stage, "params-all-gather", c, [(stage, "params-all-gather", c - 1)] if c else [], c)
                   for c in range(self.chunks)]
        begun, ended = set(), {}
        first_backward = next(i for i, at in enumerate(order) if at[0] == "B")
        names = []
        for i, (kind, chunk, batch) in enumerate(order):
            k = count[kind]
            last = [self.add(stage, "gc", 0, last)] if i == self.collects else last
            count[kind] += 1
            name = self.add(stage, PASSES[kind], k, list(last), chunk, batch)
            names.append(name)
            if kind == "F" and chunk not in begun:
                begun.add(chunk)
                self.ops[name][2].append(gathers[chunk])
            if kind == "B":
                ended[chunk] = name
            last, place = [name], chunk * self.stages + stage
            receives = place > 0 if kind == "F" else place + 1 < self.chunks * self.stages
            sends = place + 1 < self.chunks * self.stages if kind == "F" else place > 0
            for way, there in (("recv", receives), ("send", sends)):
                if there or (self.chunks > 1 and self.strays):
                    self.add_message(stage, kind, way, name, (place, batch) if there else None)
        for way in ("send", "recv"):  # asked for two passes before the first backward pass
            message = stage, MESSAGES["B", way], 0
            if message in self.ops and first_backward >= 2:
                self.ops[message][2].append(names[first_backward - 2])
        scatters = []
        for chunk in reversed(range(self.chunks)):
            before = (scatters[-1:] or gathers[-1:]) + ([ended[chunk]] if self.overlaps else [])
            scatters.append(self.add(stage, "grads-reduce-scatter", len(scatters), before, chunk))
        last = [self.add(stage, "gc", 0, last)] if self.collects is None else last
        last = [self.add(stage, "layernorm-grads-all-reduce", 0, last + (scatters[-1:] if self.overlaps else []))]
        if stage in (0, self.stages - 1):
            last = [self.add(stage, "embedding-grads-all-reduce", 0, last)]
        if self.overlaps:
            last = [self.add(stage, "separate-grads-all-reduce", 0, last)]
        for scatter in () if self.overlaps else scatters:
            self.ops[scatter][2] += last
            last = [scatter]
        self.add(stage, "optimizer", 0, [self.add(stage, ALL_RANKS, 0, last)])

    def add_message(self, stage, kind, way, of, key):
        """The n-th message of a kind belongs to its n-th pass that crosses a border."""
        optype = MESSAGES[kind, way]
        n = sum(op[:2] == (stage, optype) for op in self.ops)
        before = [(stage, optype, n - 1)] if n else []
        if way == "send":
            before.append(of)
        else:
            self.ops[of][2].append((stage, optype, n))
            if of[2] > 0:
                before.append((stage, of[1], of[2] - 1))
        self.add(stage, optype, n, before)
        if key:
            self.ops[stage, optype, n].append((kind, way, *key))

    def pair(self):
        at = {self.ops[op][4]: op for op in self.ops if len(self.ops[op]) > 4}
        for (kind, way, place, batch), op in at.items():
            if way == "send":
                peer = at[kind, "recv", place + (1 if kind == "F" else -1), batch]
                self.ops[op][3], self.ops[peer][3] = peer, op

    def members(self, op, replica):
        stage, optype, n = op
        if optype in SHARED:
            return [(op, r) for r in range(self.dp)]
        if optype == ALL_RANKS:
            return [((s, optype, n), r) for s in range(self.stages) for r in range(self.dp)]
        if optype == "embedding-grads-all-reduce":
            return [((s, optype, n), replica) for s in sorted({0, self.stages - 1})]
        peer = self.ops[op][3]
        return [(op, replica)] + ([(peer, replica)] if peer else [])

    def simulate(self, step, times):
        """(op, replica) -> (start, end), by working off what is known, over and over."""
        start, end = {}, {}
        todo = [(op, r) for op in self.ops for r in range(self.dp)]
        while todo:
            left = []
            for op, r in todo:
                meets = self.meets and op[:2] == (self.stages - 1, "layernorm-grads-all-reduce")
                before = [(at, other) for at in self.ops[op][2] for other in (range(self.dp) if meets else [r])]
                if (op, r) not in start and all(at in end for at in before):
                    start[op, r] = max([end[at] for at in before], default=self.late(r, op[0], step))
                group = self.members(op, r)
                if all(member in start for member in group):
                    end[op, r] = max(start[member] for member in group) + times(op[1], r, op[0], step, op[2])
                else:
                    left.append((op, r))
            assert len(left) < len(todo), "in a circle"
            todo = left
        return {at: (start[at], end[at]) for at in end}

    def iteration(self, times=None):
        """The mean of steps, in seconds."""
        return mean(max(end for _, end in self.simulate(step, times or self.times).values()) for step in range(self.steps))

    def usual(self):
        values = {}
        for step in range(self.steps):
            for stage, optype, n in self.ops:
                for r in range(self.dp):
                    values.setdefault(optype, []).append(self.times(optype, r, stage, step, n))
        usual = {optype: (mean if optype in MEANS else median)(values[optype]) for optype in values}
        return lambda optype, *rest: usual[optype]

    def rows(self, apart=0.0):
        """`apart`: seconds between steps, on one clock; None: each step counts from 0."""
        at = 0.0
        for step in range(self.steps):
            times = self.simulate(step, self.times)
            for (op, r), (start, end) in sorted(times.items()):
                stage, optype, n = op
                if self.seldom and optype == "gc" and start == end:
                    continue
                yield dict(optype=optype, dp_rank=r, stage=stage, rank=stage * self.dp + r, step=10 + step, mb_id=self.ops[op][1],
                           mc=self.ops[op][0], seq_id=n, start_ts=at + start, duration=end - start)
            at += 0 if apart is None else max(end for _, end in times.values()) + apart

    def csv(self, columns=COLUMNS, **options):
        out = io.StringIO()
        table = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows(**options))
        return out.getvalue()

    def chrome(self, cut=True, **options):
        """`cut`: communication begins when its last member does."""
        events, kinds = [], {"compute": 0, "pp-comm": 1, "tp-comm": 2, "dp-comm": 3, "misc": 4}
        groups = {}
        rows = list(self.rows(**options))
        for row in rows:
            for (stage, optype, n), r in self.members((row["stage"], row["optype"], row["seq_id"]), row["dp_rank"]):
                key = row["step"], stage, optype, n, r
                groups[key] = max(groups.get(key, 0), row["start_ts"])
        for row in rows:
            optype, start = row["optype"], row["start_ts"]
            if cut and (optype in MESSAGES.values() or "grads" in optype or optype in SHARED or optype == ALL_RANKS):
                start = groups[row["step"], row["stage"], optype, row["seq_id"], row["dp_rank"]]
            kind = "pp-comm" if optype in MESSAGES.values() else "compute" if optype in MEANS else "dp-comm"
            events.append({"name": optype, "cat": optype, "pid": row["dp_rank"], "tid": row["rank"] * 5 + kinds[kind], "ph": "X",
                           "ts": start * 1e6, "dur": (row["start_ts"] + row["duration"] - start) * 1e6,
                           "args": {"step": row["step"], "model_chunk": row["mc"], "mb_id": row["mb_id"], "seq_id": row["seq_id"]}})
        for stage in range(self.stages):
            for r in range(self.dp):
                for kind, number in kinds.items():
                    events.append({"name": "thread_name", "ph": "M", "pid": r, "tid": (stage * self.dp + r) * 5 + number,
                                   "args": {"name": f"PP rank {stage}, TP rank 0, {kind}"}})
        return events
