#!/usr/bin/env python3
"""What recording costs a job of TensorFlow, MXNet and Horovod: each example is trained on two workers whose recorders are
switched on and off, in turns of a few steps (bench/record_in_turns.py). Prints by how much a step took longer while it was
recorded than in the turns just before and after, in the same process: the median over all turns, and a 95 % interval from
resampling them. Takes minutes and wants a quiet machine; the target is 5 %."""
import argparse
import glob
import json
import os
import shutil
import statistics
import sys
import tempfile

from demo_live import ROOT, go_first
from example import EXAMPLES, Example, example_named, python_in, train
from figures import median_and_interval, off

WARMUP, SETTLE = 10, 2


def blocks(rank):
    """[(whether recorded, median ms)] of a rank's turns, in their order."""
    steps = sorted((step["step"], name == "timing", step["end_ns"] - step["start_ns"])
                   for name in ("before", "timing", "after") for step in rank["steps"][name])
    found = []
    for number, recorded, ns in steps:
        if not found or found[-1][0] != recorded or found[-1][1] + 1 != number:
            found.append([recorded, number, []])
        found[-1][1] = number
        found[-1][2].append(ns / 1e6)
    return [(recorded, statistics.median(times)) for recorded, _, times in found]


def costs(trace):
    """([% that each recorded turn took longer than those beside it, mean of all ranks], [ms recorded], [ms not])."""
    turns = []
    for path in glob.glob(os.path.join(glob.escape(trace), "host*", "rank*", "rank.json")):
        with open(path, encoding="utf-8") as file:
            turns.append(blocks(json.load(file)))
    if not turns or len({tuple(recorded for recorded, _ in rank) for rank in turns}) > 1:
        raise SystemExit("dpro: %s: its ranks did not record the same turns" % trace)
    mean = [(turn[0][0], statistics.mean(ms for _, ms in turn)) for turn in zip(*turns)]
    found = [off(mean[i][1], statistics.mean((mean[i - 1][1], mean[i + 1][1])))
             for i in range(1, len(mean) - 1) if mean[i][0]]
    return found, [ms for recorded, ms in mean if recorded], [ms for recorded, ms in mean if not recorded]


def main():
    parser = argparse.ArgumentParser(description="what recording costs, by framework")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--jobs", type=int, default=2, help="of each example")
    parser.add_argument("--turns", type=int, default=10, help="recorded ones of a job")
    parser.add_argument("--steps", type=int, default=8, help="of a turn")
    parser.add_argument("example", nargs="*", type=example_named, help="all: %s" % ", ".join(EXAMPLES))
    args = parser.parse_args()
    os.chdir(ROOT)
    go_first()
    dpro, folder = os.path.join(args.build, "dpro"), tempfile.mkdtemp(prefix="dpro-bench-")
    steps = WARMUP + (args.turns + 1) * args.steps + args.turns * (args.steps + 1 + SETTLE) + 4
    width, worst = max(map(len, EXAMPLES)), 0
    print("%-*s  %9s  %9s  %s" % (width, "example", "recorded", "not", "cost: median of all turns [95 %] (of each job)"),
          flush=True)
    for name in args.example or EXAMPLES:
        example = EXAMPLES[name]
        if python_in(example.venv) is None:
            print("%-*s  skipped: no .venv-%s" % (width, name, example.venv), flush=True)
            continue
        in_turns = Example(example.venv, os.path.join(os.pardir, "bench", "record_in_turns.py"), example.kind,
                           example.arguments, example.servers)
        turns = "%d %d %s" % (args.steps, args.turns, os.path.join("examples", example.script))
        of_jobs, inside, outside = [], [], []
        for job in range(args.jobs):
            trace = os.path.join(folder, "%s-%d" % (name, job))
            train(in_turns, [dpro, "profile", "-q", "--warmup", str(WARMUP), "-o", trace, "--"], steps,
                  environment={"RECORD_IN_TURNS": turns}, quiet=True)
            found = costs(trace)
            of_jobs.append(found[0])
            inside += found[1]
            outside += found[2]
        every = [cost for job in of_jobs for cost in job]
        cost, low, high = median_and_interval(every)
        worst = max(worst, cost)
        print("%-*s  %6.1f ms  %6.1f ms  %+.1f %% [%+.1f .. %+.1f] (%s)" % (
            width, name, statistics.median(inside), statistics.median(outside), cost, low, high,
            ", ".join("%+.1f" % statistics.median(job) for job in of_jobs)), flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if worst <= 5 else 1


if __name__ == "__main__":
    sys.exit(main())
