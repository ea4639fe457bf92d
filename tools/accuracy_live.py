#!/usr/bin/env python3
"""How near predictions come to what a job takes without a profiler, blind: `make accuracy-live`.

Trains each example for TensorFlow, MXNet and Horovod on two workers under `dpro profile --net all` (bench/record_blind.py),
takes the steps that were timed without the profiler out of the trace, replays what is left, and sets the prediction and the
estimate from the wire (`unprofiled_iterations.predicted_ms`) beside the median of those steps. The target is 5 %, of the estimate where
there is one, and where the job was quiet: that the steps before the profile and those after it took the same but for 5 %, or
nothing could be told of those between them. Takes minutes and wants a quiet machine."""
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
from figures import facts_of, off

TARGET_PCT = 5
HELD_BACK = ("before", "after")


def medians(ranks, *names):
    """The median of such steps in ms, mean over ranks."""
    return statistics.mean(statistics.median((step["end_ns"] - step["start_ns"]) / 1e6
                                             for name in names for step in rank["steps"][name]) for rank in ranks)


def hold_back(trace):
    """Takes the steps without a profiler out of a trace. Their median, and by how much of it those before the profile differ
    from those after."""
    ranks = []
    for path in glob.glob(os.path.join(glob.escape(trace), "host*", "rank*", "rank.json")):
        with open(path, encoding="utf-8") as file:
            rank = json.load(file)
        ranks.append(rank)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**rank, "steps": {**rank["steps"], **{name: [] for name in HELD_BACK}}}, file)
    if not ranks:
        raise SystemExit("dpro: %s: no rank was recorded" % trace)
    median = medians(ranks, *HELD_BACK)
    return median, 100 * abs(medians(ranks, "before") - medians(ranks, "after")) / median


def main():
    parser = argparse.ArgumentParser(description="predicted against unprofiled, on recordings of the examples")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--jobs", type=int, default=2, help="of each example")
    parser.add_argument("--warmup", type=int, default=15, help="steps before everything")
    parser.add_argument("--iterations", type=int, default=10, help="profiled steps")
    parser.add_argument("--steps", type=int, default=40, help="timed without the profiler, before it and after")
    parser.add_argument("--keep", metavar="DIR", help="keep the traces there")
    parser.add_argument("example", nargs="*", type=example_named, help="all: %s" % ", ".join(EXAMPLES))
    args = parser.parse_args()
    os.chdir(ROOT)
    go_first()
    dpro, folder = os.path.join(args.build, "dpro"), args.keep or tempfile.mkdtemp(prefix="dpro-accuracy-")
    steps, width, offs = args.warmup + args.iterations + 2 * args.steps + 10, max(map(len, EXAMPLES)), []
    print("%-*s  %10s  %8s  %14s  %8s  %8s  %s" % (width, "example", "unprofiled", "changed", "profiled", "replayed",
                                                   "estimate", "iterations on the wire"), flush=True)
    for name in args.example or EXAMPLES:
        example = EXAMPLES[name]
        if python_in(example.venv) is None:
            print("%-*s  skipped: no .venv-%s" % (width, name, example.venv), flush=True)
            continue
        blind = Example(example.venv, os.path.join(os.pardir, "bench", "record_blind.py"), example.kind, example.arguments,
                        example.servers)
        for job in range(args.jobs):
            trace = os.path.join(folder, "%s-%d" % (name, job))
            train(blind, [dpro, "profile", "-q", "--net", "all", "--warmup", str(args.warmup), "--iterations",
                          str(args.iterations), "-o", trace, "--"], steps, quiet=True,
                  environment={"RECORD_BLIND": "%d %s" % (args.steps, os.path.join("examples", example.script))})
            truth, changed = hold_back(trace)
            facts = facts_of(dpro, "replay", "--no-validate", trace)
            replayed, wire = facts["predicted"]["iteration_ms"], facts["unprofiled_iterations"]
            estimate = wire["predicted_ms"]
            quiet = changed <= TARGET_PCT
            found = off(replayed, truth), off(replayed if estimate is None else estimate, truth)
            if quiet:
                offs.append(found)
            print("%-*s  %7.1f ms  %7.1f%%  %7.1f %+5.1f%%  %+7.1f%%  %8s  %s%s" % (
                width, name, truth, changed, facts["measured"]["iteration_ms"], off(facts["measured"]["iteration_ms"], truth),
                found[0], "-" if estimate is None else "%+.1f%%" % found[1], wire["iterations"],
                "" if quiet else "  not quiet"), flush=True)
    if not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    for column, what in enumerate(("replayed", "estimate")):
        values = [abs(pair[column]) for pair in offs]
        if values:
            print("%s: within %d %% in %d of %d quiet jobs, mean %.1f %%, largest %.1f %%" % (
                what, TARGET_PCT, sum(value <= TARGET_PCT for value in values), len(values), statistics.mean(values),
                max(values)))
    return 0 if offs and all(abs(pair[1]) <= TARGET_PCT for pair in offs) else 1


if __name__ == "__main__":
    sys.exit(main())
