#!/usr/bin/env python3
"""What plans are worth on real jobs: `make bench-plans`.

Each example trains in two network namespaces with a 1 Gbit link between them. It is recorded with DDP's own buckets, a
plan is made of that, and one job then runs by turns with its own buckets, the plan's, those of a grid of bucket_cap_mb,
which is what a person would try, with a bucket a gradient, one bucket, and what Horovod and BytePS would send by default
(which gradients together, in what parts; by DDP all the same). Beside each measured gain stands what was predicted from the
recording. Then the recording
answers for a link of half the rate, and a second recording, made there, says what came true. Writes out/bench-plans.json."""
import argparse
import json
import os
import sys
import tempfile

import bench
from bench import ROOT, Table
from demo_live import go_first, live_python, record, train

CAPS_MB = ("0.000001", "1", "5", "100000")  # the first: a bucket a gradient; the last: one bucket
HOROVOD_CYCLE_NS, HOROVOD_BYTES = 5_000_000, 64 << 20  # its defaults
BYTEPS_BYTES = 4_096_000
WITHIN_POINTS, RATE_PCT = 5, 8  # targets


def ask(dpro, *arguments):
    return json.loads(bench.run([dpro, *arguments]))


def gain_pct(before_ms, after_ms):
    return 100 * (1 - after_ms / before_ms)


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


def predicted_pct(dpro, trace, folder, found, name):
    if name == "plan":
        return gain_pct(found["replayed_ms"], found["best"]["iteration_ms"])
    kind, value = name.split("=")
    change = ["--buckets", os.path.join(folder, value)] if kind == "plan" else ["--bucket-cap-mb", value]
    told = ask(dpro, "whatif", trace, "--json", *change)
    return gain_pct(told["baseline"]["iteration_ms"], told["predicted"]["iteration_ms"])


def judge_plan(args, dpro, python, script, trace, folder, table):
    plan = os.path.join(folder, "plan")
    found = ask(dpro, "optimize", trace, "-o", plan, "--json")
    verify = [dpro, "verify", "--plan", plan, "--json", "--blocks", str(args.blocks), "--steps", str(args.steps)]
    others = [f"cap={cap}" for cap in CAPS_MB] + write_others(trace, plan, folder)
    for other in others:
        verify += ["--against", other]
    n_steps = 20 + args.blocks * 2 * (2 + len(others)) * (args.steps + 3)
    printed = train([*verify, "--"], python, script, steps=n_steps, quiet=True).decode()
    measured = json.JSONDecoder().raw_decode(printed[printed.index("{"):])[0]
    for config in measured["configurations"]:
        if config["name"] == "baseline":
            table.add(f"{script}: a step with DDP's own buckets", config["iteration_ms"], "ms")
            continue
        gain, predicted = config["gain_pct"], predicted_pct(dpro, trace, folder, found, config["name"])
        table.add(f"{script}: {config['name']} gains [{gain['low']:.1f} .. {gain['high']:.1f}]", gain["mean"], "%")
        is_plan = config["name"] == "plan"
        table.add(f"{script}: {config['name']}, predicted {predicted:.1f} %, off by", abs(predicted - gain["mean"]), "points",
                  WITHIN_POINTS if is_plan else None, False)
    over = measured["gain_over_best_other_pct"]
    table.add(f"{script}: plan over {measured['best_other']} [{over['low']:.1f} .. {over['high']:.1f}], at most",
              over["high"], "%", 0)


def judge_rate(dpro, python, script, trace, folder, table):
    told = ask(dpro, "whatif", trace, "--json", "--bandwidth", "0.5x")["predicted"]["iteration_ms"]
    slow = os.path.join(folder, "slow")
    record(dpro, python, script, slow, rate="500mbit", quiet=True)
    unprofiled = ask(dpro, "replay", slow, "--json")["unprofiled"]["iteration_ms"]
    table.add(f"{script}: a step at 500 Mbit/s", unprofiled, "ms")
    table.add(f"{script}: as told from 1 Gbit/s, {told:.0f} ms, off by", abs(100 * (told / unprofiled - 1)), "%", RATE_PCT,
              False)


def main():
    parser = argparse.ArgumentParser(description="what plans are worth on real jobs")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--steps", type=int, default=6, help="timed steps of a turn")
    parser.add_argument("--blocks", type=int, default=4, help="blocks of mirrored turns")
    parser.add_argument("scripts", nargs="*", default=["gpt.py", "cnn.py"], help="of examples/")
    args = parser.parse_args()
    python, dpro = live_python(), os.path.join(ROOT, args.build, "dpro")
    go_first()
    table = Table()
    for script in args.scripts:
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace")
            record(dpro, python, script, trace, quiet=True)
            judge_plan(args, dpro, python, script, trace, folder, table)
            judge_rate(dpro, python, script, trace, folder, table)
    summary = table.summary()
    print(summary)
    os.makedirs(os.path.join(ROOT, "out"), exist_ok=True)
    table.write(os.path.join(ROOT, "out", "bench-plans.json"), summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
