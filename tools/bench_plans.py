#!/usr/bin/env python3
"""What plans are worth on real jobs: `make bench-plans`.

Each example trains in two network namespaces with a link of 1 Gbit/s (--rate-mbit) between them. It is recorded with DDP's own
buckets, and what its modules cost compiled and in 16 bits is probed.

communication: a plan is made of that, and one job then runs by turns with its own buckets, the plan's, those of a grid of
bucket_cap_mb, which is what a person would try, with a bucket a gradient, one bucket, and what Horovod and BytePS would send by
default (which gradients together, in what parts; by DDP all the same). Beside each measured gain stands what was predicted from the
recording. Then the recording answers for a link of half the rate, and a second recording, made there, says what came true.

computation: the paper's deep dive. Plans of op fusion alone, tensor fusion alone, both searched together, and with 16 bits allowed;
beside them what people do: nothing, the model compiled as a whole or block by block, autocast everywhere. Each that differs (of
--plans) is measured by turns, each a run of the job; then how long the search takes with its means of being fast off, one by one.

sharding: which of FSDP's units keep their parameters, with all memory there is and with half of what keeping all takes more, on a
link of 200 Mbit/s; the time saved and the peak, promised and measured by turns of one run.

Writes out/bench-plans.json."""
import collections
import glob
import json
import os
import statistics
import sys
import tempfile

from bench import Table
from experiment import ROOT, STEPS, begin, end, live_python, options, train
from figures import ask, facts_of, gain_pct, off

CAPS_MB = ("0.000001", "1", "5", "100000")  # the first: a bucket a gradient; the last: one bucket
HOROVOD_CYCLE_NS, HOROVOD_BYTES = 5_000_000, 64 << 20  # its defaults
BYTEPS_BYTES = 4_096_000
WITHIN_POINTS, RATE_PCT = 5, 8  # targets
PARTS = ("communication", "computation", "sharding")
WARMUP = 5  # steps of a run
SINGLES = {"both": ("tensor fusion", "op fusion"), "both, 16 bits": ("tensor fusion", "op fusion", "autocast")}
SEARCHES = (("as it is", ()), ("without symmetry", ("--no-symmetry",)), ("without partial replay", ("--no-partial",)),
            ("without the Coarsened View", ("--no-coarsen",)))
SEARCH_S = 10  # at most


class Job:
    """A script on two hosts, with a link of so many Mbit/s."""

    def __init__(self, args, dpro, python, script, rate_mbit, arguments=()):
        self.args, self.dpro, self.python, self.script, self.arguments = args, dpro, python, script, arguments
        self.rate = "%.0fmbit" % rate_mbit

    def record(self, trace, *options, direct=False):
        train([self.dpro, "profile", "-q", "-o", trace, *options, "--"], self.python, self.script, STEPS, rate=self.rate, quiet=True,
              direct=direct, arguments=self.arguments)

    def verify(self, plans, *options, steps=10 ** 6, direct=False):
        """What dpro verify says of plans, its folder or a config: the first is what the others are set against."""
        against = [part for plan in plans[1:] for part in ("--against", plan)]
        printed = train([self.dpro, "verify", "--json", "--plan", plans[0], *against, *options, "--"], self.python, self.script, steps,
                        rate=self.rate, quiet=True, direct=direct, arguments=self.arguments).decode()
        return json.JSONDecoder().raw_decode(printed[printed.index("{"):])[0]

    def turns(self):
        return ["--blocks", str(self.args.blocks), "--steps", str(self.args.steps)]


def tell_gain(table, what, gain, predicted, judged):
    between = f" [{gain['low']:.1f} .. {gain['high']:.1f}]" if gain["low"] is not None else ""
    table.add(f"{what} gains{between}", gain["mean"], "%")
    if predicted is not None:
        table.add(f"{what}, predicted {predicted:.1f} %, off by", abs(predicted - gain["mean"]), "points",
                  WITHIN_POINTS if judged else None, False)


def best_pct(found):
    """What the plan gains that dpro optimize found."""
    return gain_pct(found["replayed_ms"], found["best"]["iteration_ms"])


def gradients_ready(trace):
    """(ns, name) of each gradient, in order, by the model."""
    sys.path.insert(0, os.path.join(ROOT, "python"))
    import dpro as package
    views = []

    def look(view):
        views.append(sorted((tensor.ready_ns, tensor.name) for tensor in view.tensors))
        return []

    package.optimize(trace, passes=[look])
    return max(views, key=len)  # the others are of the Coarsened View


def write_others(trace, plan, folder):
    """What Horovod and BytePS would do, as plans of the same job."""
    with open(os.path.join(plan, "plan.json"), encoding="utf-8") as file:
        value = json.load(file)
    sizes = {p["name"]: p["size_bytes"] for p in value["job"]["models"][0]["parameters"]}
    ready = gradients_ready(trace)
    each, cycles, cycle = [], [], None
    for priority, (ns, name) in enumerate(ready):
        each.append({"parameters": [name], "size_bytes": sizes[name], "priority": priority,
                     "partitions": max(1, -(-sizes[name] // BYTEPS_BYTES))})
        if ns // HOROVOD_CYCLE_NS != cycle or cycles[-1]["size_bytes"] + sizes[name] > HOROVOD_BYTES:
            cycles.append({"parameters": [], "size_bytes": 0})
        cycle = ns // HOROVOD_CYCLE_NS
        cycles[-1]["parameters"].append(name)
        cycles[-1]["size_bytes"] += sizes[name]
    for name, buckets in (("horovod", cycles), ("byteps", each)):
        os.mkdir(os.path.join(folder, name))
        with open(os.path.join(folder, name, "plan.json"), "w", encoding="utf-8") as file:
            json.dump({**value, "communication": {"compression": "none", "buckets": buckets}}, file)
    return ["plan=" + os.path.join(folder, name) for name in ("horovod", "byteps")]


def whatif_pct(dpro, trace, *change):
    """What that change gains by dpro whatif, and why that is not known."""
    told, problem = ask(dpro, "whatif", trace, *change)
    return told and gain_pct(told["baseline"]["iteration_ms"], told["predicted"]["iteration_ms"]), problem


def predicted_pct(dpro, trace, folder, name):
    kind, value = name.split("=")
    return whatif_pct(dpro, trace, *(["--buckets", os.path.join(folder, value)] if kind == "plan" else ["--bucket-cap-mb", value]))[0]


def judge_communication(job, trace, folder, table):
    plan, script = os.path.join(folder, "plan"), job.script
    found = facts_of(job.dpro, "optimize", trace, "-o", plan)
    plans = [plan, *(f"cap={cap}" for cap in CAPS_MB), *write_others(trace, plan, folder)]
    measured = job.verify(plans, *job.turns(), steps=20 + job.args.blocks * 2 * (1 + len(plans)) * (job.args.steps + 3))
    own, *others = measured["configurations"]
    table.add(f"{script}: a step with DDP's own buckets", own["iteration_ms"], "ms")
    for config in others:
        is_plan = config["name"] == "plan"
        predicted = best_pct(found) if is_plan else predicted_pct(job.dpro, trace, folder, config["name"])
        tell_gain(table, f"{script}: {config['name']}", config["gain_pct"], predicted, is_plan)
    over = measured["gain_over_best_other_pct"]
    table.add(f"{script}: plan over {measured['best_other']} [{over['low']:.1f} .. {over['high']:.1f}], at most",
              over["high"], "%", 0)
    judge_rate(job, trace, os.path.join(folder, "slow"), table)


def judge_rate(job, trace, slow, table):
    told = facts_of(job.dpro, "whatif", trace, "--bandwidth", "0.5x")["predicted"]["iteration_ms"]
    slower = Job(job.args, job.dpro, job.python, job.script, job.args.rate_mbit / 2)
    slower.record(slow)
    unprofiled = facts_of(job.dpro, "replay", slow)["unprofiled"]["iteration_ms"]
    table.add(f"{job.script}: a step at {slower.rate}/s", unprofiled, "ms")
    table.add(f"{job.script}: as told from {job.rate}/s, {told:.0f} ms, off by", abs(off(told, unprofiled)), "%", RATE_PCT, False)


def blocks_of(trace):
    """Names of the model's blocks: modules that stand as numbers in one list and are made of the same parts."""
    with open(sorted(glob.glob(os.path.join(trace, "host*", "rank0", "memory.json")))[0], encoding="utf-8") as file:
        modules = json.load(file)["modules"]
    names, alike = [name for name, _ in modules], collections.defaultdict(list)
    for name, kind in modules:
        within = any(name.startswith(other + ".") for found in alike.values() for other in found)
        if name.rpartition(".")[2].isdigit() and not within and any(other.startswith(name + ".") for other in names):
            alike[name.rpartition(".")[0], kind].append(name)
    return [name for found in alike.values() if len(found) > 1 for name in found]


class Plan:
    """What a job is to do: buckets, None: its own; modules that are compiled, and in 16 bits, "" being the model."""

    def __init__(self, dpro, trace, folder, value):
        self.folder, self.value = folder, value
        communication, computation = value.get("communication", {}), value.get("computation", {})
        self.buckets = None if communication.get("is_own", True) else json.dumps(communication["buckets"])
        self.compiled, self.bf16 = (sorted(computation.get(key, ())) for key in ("compile", "bf16"))
        options = ["--buckets", folder] if self.buckets else []
        options += ["--compile", ",".join(self.compiled).strip() or "all"] if self.compiled else []
        options += ["--precision", "bf16" if self.bf16 == [""] else "bf16=" + ",".join(self.bf16)] if self.bf16 else []
        self.as_it_is = not options
        self.predicted_pct, self.problem = (0.0, None) if self.as_it_is else whatif_pct(dpro, trace, *options)

    def is_like(self, other):
        return (self.buckets, self.compiled, self.bf16) == (other.buckets, other.compiled, other.bf16)

    @classmethod
    def searched(cls, dpro, trace, folder, *options):
        found = facts_of(dpro, "optimize", trace, "-o", folder, *options)
        with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
            plan = cls(dpro, trace, folder, json.load(file))
        plan.predicted_pct = best_pct(found) if found["best"]["helps"] else 0.0
        return plan

    @classmethod
    def of_modules(cls, dpro, trace, folder, job, compiled=(), bf16=()):
        os.mkdir(folder)
        value = {"schema": "dpro.plan/4", "job": job,
                 "computation": {"compile": list(compiled), "bf16": list(bf16), "changes_numerics": bool(compiled or bf16)}}
        with open(os.path.join(folder, "plan.json"), "w", encoding="utf-8") as file:
            json.dump(value, file)
        return cls(dpro, trace, folder, value)


def make_plans(dpro, trace, folder):
    """By what they are."""
    def path(name):
        return os.path.join(folder, name)

    plans = {"tensor fusion": Plan.searched(dpro, trace, path("tensor")),
             "both": Plan.searched(dpro, trace, path("both"), "--allow", "compile"),
             "both, 16 bits": Plan.searched(dpro, trace, path("both16"), "--allow", "compile,bf16")}
    job = plans["both"].value["job"]
    plans["blocks compiled"] = Plan.of_modules(dpro, trace, path("blocks"), job, blocks_of(trace))
    plans["compiled"] = Plan.of_modules(dpro, trace, path("compiled"), job, [""])
    plans["autocast"] = Plan.of_modules(dpro, trace, path("autocast"), job, (), [""])
    alone = [Plan.of_modules(dpro, trace, path("nothing"), job), plans["blocks compiled"], plans["compiled"],
             Plan.of_modules(dpro, trace, path("alone"), job, plans["both"].compiled)]
    plans["op fusion"] = max((plan for plan in alone if plan.predicted_pct is not None), key=lambda plan: plan.predicted_pct)
    return plans


def judge_computation(job, trace, folder, table):
    args, script = job.args, job.script
    plans, differ, turns = make_plans(job.dpro, trace, folder), [], {}
    for name, plan in plans.items():
        if name in (args.plans or plans) and not plan.as_it_is and not any(plan.is_like(other) for other in differ):
            differ.append(plan)
    own, *measured = job.verify([differ[0].folder, *("plan=" + plan.folder for plan in differ[1:])], "--stop", "--turns", "runs",
                                "--warmup", str(WARMUP), "--blocks", str(args.run_blocks), "--steps", str(args.run_steps),
                                steps=WARMUP + args.run_steps + 10, direct=True)["configurations"]
    table.add(f"{script}: a step as it is, each turn a run", own["iteration_ms"], "ms")
    for name, plan in plans.items():
        if plan.as_it_is:
            turns[name] = own["per_turn_ms"]
        config = next((found for found, other in zip(measured, differ) if plan.is_like(other)), None)
        if config is None:
            table.missing(f"{script}: {name}", "is the job as it is" if plan.as_it_is else "is not measured")
            continue
        turns[name] = config["per_turn_ms"]
        tell_gain(table, f"{script}: {name}", config["gain_pct"], plan.predicted_pct, name in SINGLES)
        if plan.predicted_pct is None:
            table.missing(f"{script}: {name}, predicted", plan.problem)
    for name, singles in SINGLES.items():
        if turns.keys() >= {name, *singles}:
            best = min((turns[single] for single in singles), key=statistics.median)
            gains = [gain_pct(*pair) for pair in zip(best, turns[name])]
            table.add(f"{script}: {name} over the best of {', '.join(singles)} [{min(gains):.1f} .. {max(gains):.1f}]",
                      statistics.median(gains), "%")
    for name, more in SEARCHES:
        search = facts_of(job.dpro, "optimize", trace, "--allow", "compile,bf16", "--budget", str(SEARCH_S), *more)["search"]
        table.add(f"{script}: search {name}, {search['candidates']} candidates, {search['stopped_by']}", search["seconds"], "s",
                  digits=3)


def judge_units(job, folder, table):
    trace, budget = os.path.join(folder, "trace"), []
    job.record(trace, direct=True)
    for name in ("fsdp.py", "fsdp.py, half the memory"):
        plan = os.path.join(folder, "plan%d" % len(budget))
        found = facts_of(job.dpro, "optimize", trace, "-o", plan, *budget)
        peaks = [found["memory"][key] for key in ("baseline_peak_bytes", "peak_bytes")]
        budget = ["--memory", str(sum(peaks) // 2)]
        own, planned = job.verify([plan], "--stop", *job.turns(), direct=True)["configurations"]
        table.add(f"{name}: a step as it is", own["iteration_ms"], "ms")
        tell_gain(table, f"{name}: the plan", planned["gain_pct"], best_pct(found), True)
        table.add(f"{name}: peak {planned['peak_bytes']}, predicted {peaks[1]}, off by",
                  100 * abs(planned["peak_bytes"] / peaks[1] - 1), "%", 1, False)


def main():
    parser = options("what plans are worth on real jobs", keep=False)
    for name, default, what in (("steps", 6, "timed steps of a turn"), ("blocks", 4, "blocks of mirrored turns"),
                                ("run-steps", 8, "timed steps of a turn that is a run"),
                                ("run-blocks", 3, "blocks of mirrored turns that are runs"),
                                ("rate-mbit", 1000, "of the link between both ranks")):
        parser.add_argument("--" + name, type=int, default=default, help=f"{what} (default: {default})")
    parser.add_argument("--plans", nargs="+", metavar="NAME", help="of computation, what is measured: tensor fusion, op fusion, both, "
                        "blocks compiled, compiled, autocast, 'both, 16 bits' (default: all)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured (default: all)")
    parser.add_argument("scripts", nargs="*", default=["gpt.py", "cnn.py"], help="of examples/, or networks of bench/memory_models.py")
    args = parser.parse_args()
    python, (dpro, place), table = live_python(), begin(args), Table()
    if "sharding" in args.parts:
        judge_units(Job(args, dpro, python, "fsdp.py", 200, "--layers 4 --width 128 --vocabulary 2048 --context 64".split()),
                    tempfile.mkdtemp(dir=place), table)
    for script in args.scripts if set(args.parts) - {"sharding"} else ():
        job, folder = Job(args, dpro, python, script, args.rate_mbit), tempfile.mkdtemp(dir=place)
        trace = os.path.join(folder, "trace")
        job.record(trace, *(["--probe", "compile,bf16"] if "computation" in args.parts else []))
        for part, judge in (("computation", judge_computation), ("communication", judge_communication)):
            if part in args.parts:
                judge(job, trace, folder, table)
    table.finish("bench-plans.json")
    return end(args, place, [])


if __name__ == "__main__":
    sys.exit(main())
