#!/usr/bin/env python3
"""Faults whose cost is known, and what `dpro diagnose` says of them: tools/faults.py [--readme]; `make faults` injects them live.

Made-up jobs (tools/fault_jobs.py) are simulated with a fault and without, from several seeds; the difference is the truth. Against it
stands by how much the blame of the fault's cause differs between the two. Prints a table of all faults, with --readme also into
doc/accuracy.md. With --live real jobs train on two hosts (network namespaces) by turns with and without a fault."""
import collections
import json
import os
import random
import shutil
import statistics
import sys

import accuracy_tables
import fault_jobs
from experiment import ROOT, begin, end, live_python, need_hosts, options
from figures import ask, fixed, markdown, show
from measure import blind_on_hosts

SEEDS = 3
BESIDE = ("small_or_unsure", "profiler", "warm_up", "not_explained")  # rows that are no causes
NEAR_PCT, NEAR_MS, NOISE_PCT = 20.0, 3.0, 3.0  # the targets: blame within the larger of the first two; no cause above the third


def for_one(victim, value, otherwise):
    return lambda rank, step: value if rank == victim else otherwise


def some_steps(every, value, otherwise):
    return lambda rank, step: value if step % every == 0 else otherwise


def lengths(job):
    """Work of a rank in a step, 1 in the mean over the ranks."""
    def work(rank, step):
        rng = random.Random(f"{job['seed']} {step}")
        drawn = [rng.uniform(0.5, 1.5) for _ in range(job["world"])]
        return drawn[rank] * job["world"] / sum(drawn)
    return work


def paused(job, ms):
    """A pause of one rank in every 2nd step, by turns of another one."""
    return lambda rank, step: ms * 1000.0 if step % 2 == 0 and step // 2 % job["world"] == rank else 0.0


# Name: kinds of jobs, causes that are right (any of them; their blames add up), and what a drawn job gets.
FAULTS = {
    "none": (("gpu", "cpu", "pipeline", "fsdp"), (), lambda job: {}),
    "one rank is slower": (("gpu", "cpu", "fsdp", "pipeline"), ("slow_rank",), lambda job: {"slow": for_one(job["victim"], 1.4, 1.0)}),
    "one rank's core shared by turns": (("cpu",), ("slow_rank",), lambda job: {"slice_us": for_one(job["victim"], 4_000.0, 0.0)}),
    "link at half its rate": (("gpu", "cpu", "fsdp"), ("slow_link", "communication"), lambda job: {"bytes_us": 2 * job["bytes_us"]}),
    "latency added": (("gpu", "cpu"), ("slow_link", "small_messages", "communication"), lambda job: {"latency_us": 10_000.0}),
    "slow loader, all ranks": (("gpu", "cpu", "fsdp"), ("input",), lambda job: {"loader_us": fault_jobs.always(15_000.0)}),
    "slow loader, one rank": (("gpu", "cpu"), ("input",), lambda job: {"loader_us": for_one(job["victim"], 15_000.0, 300.0)}),
    "slow loader, every 4th step": (("gpu", "cpu"), ("input",), lambda job: {"loader_us": some_steps(4, 60_000.0, 300.0)}),
    ".item() in each step": (("gpu",), ("sync",), lambda job: {"item": fault_jobs.always(True)}),
    "garbage collection": (("gpu", "cpu", "fsdp"), ("garbage_collection", "noise"),
                           lambda job: {"pause_us": paused(job, 60)}),
    "small buckets": (("gpu", "cpu"), ("small_messages",), lambda job: {"buckets": 15 * job["buckets"]}),
    "unbalanced stages": (("pipeline",), ("uneven_stages", "uneven_work"), lambda job: {"layers": for_one(job["world"] - 1, 1.3, 0.7)}),
    "uneven lengths": (("gpu", "cpu", "fsdp"), ("uneven_work",), lambda job: {"work": lengths(job)}),
    "recompilation": (("gpu", "cpu", "fsdp"), ("recompilation",), lambda job: {"compile_us": some_steps(4, 120_000.0, 0.0)}),
    "buckets in the wrong order": (("gpu", "cpu"), ("bucket_order", "communication"), lambda job: {"reversed": True}),
    "memory pressure": (("gpu", "fsdp"), ("allocator",), lambda job: {"retry_us": some_steps(2, (12_000.0, 12_000.0), ())}),
}
# Two at once: each cause is set against what its fault costs alone.
PAIRS = (("one rank is slower", "slow loader, all ranks"), ("latency added", "recompilation"),
         ("slow loader, all ranks", "garbage collection"))


def blames_of(facts):
    """In ms by cause, the largest first; those that are abstained from too, as all add up."""
    of = {cause["cause"]: cause["blame_ms"] for cause in facts["causes"]}
    return dict(sorted(of.items(), key=lambda item: -item[1]))


class Lab:
    """Records made-up jobs in a folder and asks dpro of each once."""
    faults = FAULTS

    def __init__(self, dpro, folder):
        self.dpro, self.folder, self.known = dpro, folder, {}

    def diagnosed(self, kind, seed, faults):
        """(true ms, blames, problem) of a job with these faults."""
        key = kind, seed, faults
        if key not in self.known:
            path = os.path.join(self.folder, f"job{len(self.known)}")
            job = fault_jobs.draw(kind, seed)
            for fault in faults:
                job.update(self.faults[fault][2](job))
            truth = fault_jobs.write(path, job)
            facts, problem = ask(self.dpro, "diagnose", path)
            shutil.rmtree(path)
            self.known[key] = truth, None if problem else blames_of(facts), problem
        return self.known[key]

    def row(self, kind, seed, faults):
        """What is asked of dpro where these faults are: for each, what it costs alone and what it is blamed for."""
        plain_ms, plain, problem = self.diagnosed(kind, seed, ())
        with_ms, blames, problem2 = self.diagnosed(kind, seed, faults)
        row = {"kind": kind, "seed": seed, "faults": faults, "problem": problem or problem2, "plain_ms": plain_ms,
               "cost_ms": with_ms - plain_ms}
        if row["problem"]:
            return row
        row.update(blames=blames, plain=plain, each=[])
        for fault in faults:
            right = self.faults[fault][1]
            truth = self.diagnosed(kind, seed, (fault,))[0] - plain_ms if len(faults) > 1 else row["cost_ms"]
            more = sum(blames.get(cause, 0) - plain.get(cause, 0) for cause in right)
            row["each"].append({"fault": fault, "truth_ms": truth, "blame_ms": more, "error_ms": more - truth,
                                "near": abs(more - truth) <= max(NEAR_MS, truth * NEAR_PCT / 100)})
        first = [cause for cause in blames if cause not in BESIDE][:len(faults)]
        row["first"] = first
        added = sorted((cause for cause in blames if cause not in BESIDE), key=lambda cause: plain.get(cause, 0) - blames[cause])
        for key, causes in (("right", first), ("added", added[:len(faults)])):
            row[key] = all(any(cause in self.faults[fault][1] for cause in causes) for fault in faults)
        return row


def rows_of(lab, seeds, wanted):
    asked = [(kinds, (fault,) if right else (), fault) for fault, (kinds, right, _) in FAULTS.items()]
    asked += [(("gpu", "cpu"), pair, " and ".join(pair)) for pair in PAIRS]
    return (lab.row(kind, seed, faults) for kinds, faults, name in asked for kind in kinds for seed in seeds if wanted in name)


HEAD = ("fault", "jobs:", "cost, ms:", "cause first:", "of what it adds:", "blame within 20 % or 3 ms:", "off by, ms, at most:",
        "causes that came first")


def unfaulty(rows):
    """Of jobs without a fault: the causes above 3 %."""
    found = {}
    for row in rows:
        for cause, ms in row.get("blames", {}).items() if not row["faults"] else ():
            if 100 * ms > NOISE_PCT * row["plain_ms"]:
                found.setdefault(cause, []).append(100 * ms / row["plain_ms"])
    told = [f"{cause} {fixed(min(pct), 0)} to {fixed(max(pct), 0)} % in {len(pct)}" for cause, pct in sorted(found.items())]
    return ", ".join(told) or "none"


def table_of(rows):
    lines = []
    for faults in dict.fromkeys(row["faults"] for row in rows):
        these = [row for row in rows if row["faults"] == faults and not row["problem"]]
        if not faults and these:
            lines.append(("`no fault`", str(len(these)), "0", "–", "–", "–", "–", f"above {NOISE_PCT:g} %: {unfaulty(these)}"))
        if not faults or not these:
            continue
        parts, costs = [part for row in these for part in row["each"]], [row["cost_ms"] for row in these]
        first = collections.Counter(cause for row in these for cause in row["first"])
        lines.append((f"`{' and '.join(faults)}`", str(len(these)),
                      "–".join(dict.fromkeys(fixed(cost, 0) for cost in (min(costs), max(costs)))),
                      *(f"{sum(row[key] for row in these)}" for key in ("right", "added")),
                      f"{sum(part['near'] for part in parts)}/{len(parts)}",
                      fixed(max((part["error_ms"] for part in parts), key=abs), 1, True),
                      ", ".join(f"{cause} {n}" for cause, n in first.most_common())))
    return lines


def print_row(row):
    what = (' and '.join(row["faults"]) or "none") + ("" if row["kind"] == "live" else f" ({row['kind']} {row['seed']})")
    if row["problem"]:
        print(f"{what}: {row['problem']}")
        return
    says = ", ".join(f"{cause} {ms:.1f}" for cause, ms in row["blames"].items() if ms >= 0.05)
    costs = "; ".join(f"{part['truth_ms']:.1f} ms, blamed {part['blame_ms']:.1f}{'' if part['near'] else ' !'}" for part in row["each"])
    print(f"{what}: {row['plain_ms']:.1f} + {costs or '0'}{'' if row['right'] else ' WRONG FIRST'}: {says}", flush=True)


# Of real jobs: settings of bench/train_blind.py that put a fault in, the causes that are right, and settings of the job without it.
# Read back losses (.item()) cost a CPU nothing, and it has no allocator that retries.
USUAL, COMPILED, PIPELINE = "rate=2000", "rate=2000,compiled=1", "rate=2000,stages=4/4"
LIVE = {
    "none": ("", (), USUAL),
    "one rank's core shared": ("fault=core", ("slow_rank",), USUAL),
    "link at half its rate": ("rate=500", ("slow_link", "communication"), "rate=1000"),
    "latency added": ("latency=10", ("slow_link", "small_messages", "communication"), USUAL),
    "slow loader, all ranks": ("fault=loader", ("input",), USUAL),
    "slow loader, one rank": ("fault=loader-one", ("input",), USUAL),
    "slow loader, every 4th step": ("fault=loader-4th", ("input",), USUAL),
    "garbage collection": ("fault=gc", ("garbage_collection",), USUAL),
    "small buckets": ("cap=0.05", ("small_messages", "communication"), USUAL),
    "unbalanced stages": ("stages=6/2", ("uneven_stages", "uneven_work"), PIPELINE),
    "uneven lengths": ("fault=lengths", ("uneven_work",), USUAL),
    "recompilation": ("fault=recompile", ("recompilation",), COMPILED),
    "buckets in the wrong order": ("fault=order", ("bucket_order", "communication"), USUAL),
}
LIVE_PAIRS = (("one rank's core shared", "slow loader, all ranks"), ("latency added", "slow loader, every 4th step"))
LIVE_JOB = {"kind": "transformer", "width": 128, "layers": 4, "batch_size": 32, "bucket_cap_mb": 2, "rate": 2000}


def live_config(among, faults):
    """Settings of the job with these faults, of those that it may have."""
    settings = dict(part.split("=") for part in LIVE[among[0]][2].split(","))
    for part in (part for fault in faults for part in LIVE[fault][0].split(",") if part):
        key, value = part.split("=")
        settings[key] = f"{settings[key]}+{value}" if key == "fault" and key in settings else value
    return ",".join(f"{key}={value}" for key, value in settings.items())


def usual_ms(turns):
    """The mean step: of each step of a turn the median over turns, so that a busy second of the machine does not count."""
    return statistics.mean(statistics.median(steps) for steps in zip(*turns))


class LiveLab(Lab):
    """Records real jobs on two hosts; and trains them by turns, which tells what their faults cost."""

    faults = LIVE

    def __init__(self, dpro, folder, python):
        super().__init__(dpro, folder)
        self.python = python

    def on_hosts(self, config, command, *arguments):
        job = {**LIVE_JOB, "layers": 8, "batch_size": 8} if "stages" in config else LIVE_JOB
        return blind_on_hosts(self.python, job, command, *arguments)

    def recorded(self, config):
        """(blames, problem)"""
        trace = os.path.join(self.folder, config.replace("/", " "))
        if not os.path.exists(trace):
            self.on_hosts(config, [self.dpro, "profile", "-q", "-o", trace, "--"], "--steps=60", f"--config={config}")
        if config not in self.known:
            facts, problem = ask(self.dpro, "diagnose", trace)
            self.known[config] = None if problem else blames_of(facts), problem
        return self.known[config]

    def diagnosed(self, _, among, faults):
        """`among`: the faults that take turns."""
        config, path = live_config(among, faults), os.path.join(self.folder, " and ".join(among) + ".json")
        if not os.path.exists(path):
            mixes = dict.fromkeys(live_config(among, mix) for mix in ((), *((fault,) for fault in among), among))
            printed = self.on_hosts(config, [], "--steps=8", "--configs", *mixes)
            with open(path, "wb") as file:
                file.write(printed)
        with open(path, encoding="utf-8") as file:
            return usual_ms(json.load(file)[config]), *self.recorded(config)


def live_rows(lab, wanted):
    for among in (*((fault,) for fault in LIVE), *LIVE_PAIRS):
        if wanted in " and ".join(among):
            yield lab.row("live", among, among if LIVE[among[0]][1] else ())


def main():
    parser = options("what dpro diagnose says of faults whose cost is known")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="jobs of each kind and fault")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this in their name")
    parser.add_argument("--readme", action="store_true", help="renew the table of doc/accuracy.md")
    parser.add_argument("--live", action="store_true", help="real jobs in place of made-up ones")
    args, rows = parser.parse_args(), []
    if args.live:
        need_hosts()
    dpro, folder = begin(args)
    found = rows_of(Lab(dpro, folder), range(args.seeds), args.only)
    if args.live:
        found = live_rows(LiveLab(dpro, folder, live_python()), args.only)
    for row in found:
        print_row(row)
        rows.append(row)
    lines, judged = table_of(rows), [row for row in rows if row["faults"] and not row["problem"]]
    table = "live" if args.live else "faults"
    show(table, HEAD, lines)
    print(f"right cause first in {sum(row['right'] for row in judged)} of {len(judged)}, of what its fault adds in "
          f"{sum(row['added'] for row in judged)}; blame near in {sum(part['near'] for row in judged for part in row['each'])}")
    if args.readme and lines:
        accuracy_tables.write(ROOT, {table: markdown(HEAD[:-1], [line[:-1] for line in lines])})
    problems = ["%s: %s" % (row["faults"], row["problem"]) for row in rows if row["problem"]]
    return end(args, folder, problems if judged else ["no job with a fault"])


if __name__ == "__main__":
    sys.exit(main())
