#!/usr/bin/env python3
"""What recording costs a job of TensorFlow, MXNet and Horovod: each example is trained on two workers, recorded, several
times; prints by how much a step of the timing window took longer than those before and after it, in the same process, and
what a job that is not recorded takes. Takes minutes and wants a quiet machine; the target is 5 %."""
import argparse
import glob
import json
import os
import re
import shutil
import statistics
import sys
import tempfile

from demo_live import ROOT, go_first
from example import EXAMPLES, python_of, train


def windows(trace):
    """Medians of all ranks' step times: (in the window, outside of it), ms."""
    inside, outside = [], []
    for path in glob.glob(os.path.join(glob.escape(trace), "host*", "rank*", "rank.json")):
        with open(path, encoding="utf-8") as file:
            steps = json.load(file)["steps"]
        inside += [step["end_ns"] - step["start_ns"] for step in steps["timing"]]
        outside += [step["end_ns"] - step["start_ns"] for name in ("before", "after") for step in steps[name]]
    return statistics.median(inside) / 1e6, statistics.median(outside) / 1e6


def main():
    parser = argparse.ArgumentParser(description="what recording costs, by framework")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--runs", type=int, default=5, help="of each example, recorded and not")
    parser.add_argument("--iterations", type=int, default=20, help="steps of a window")
    parser.add_argument("example", nargs="*", help="all: %s" % ", ".join(EXAMPLES))
    args = parser.parse_args()
    os.chdir(ROOT)
    go_first()
    dpro, folder = os.path.join(args.build, "dpro"), tempfile.mkdtemp(prefix="dpro-bench-")
    steps = 10 + 3 * args.iterations + 8
    width, worst = max(map(len, EXAMPLES)), 0
    print("%-*s  %9s  %9s  %9s  %s" % (width, "example", "recorded", "around it", "alone", "cost, median of %d runs (all)"
                                       % args.runs), flush=True)
    for name in args.example or EXAMPLES:
        if python_of(EXAMPLES[name]) is None:
            print("%-*s  skipped: no .venv-%s" % (width, name, EXAMPLES[name].venv), flush=True)
            continue
        costs, inside, outside, alone = [], [], [], []
        for run in range(args.runs):
            trace = os.path.join(folder, "%s-%d" % (name, run))
            train(EXAMPLES[name], [dpro, "profile", "-q", "--iterations", str(args.iterations), "-o", trace, "--"], steps,
                  quiet=True)
            in_window, out_of_it = windows(trace)
            inside.append(in_window)
            outside.append(out_of_it)
            costs.append(100 * (in_window / out_of_it - 1))
            printed = train(EXAMPLES[name], [], steps, quiet=True).decode()
            alone.append(float(re.search(r"median step time ([\d.]+) ms", printed)[1]))
        cost = statistics.median(costs)
        worst = max(worst, cost)
        print("%-*s  %6.1f ms  %6.1f ms  %6.1f ms  %+.1f %% (%s)" % (
            width, name, statistics.median(inside), statistics.median(outside), statistics.median(alone), cost,
            ", ".join("%+.1f" % c for c in sorted(costs))), flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if worst <= 5 else 1


if __name__ == "__main__":
    sys.exit(main())
