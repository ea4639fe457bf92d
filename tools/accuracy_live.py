#!/usr/bin/env python3
"""Each example for TensorFlow, MXNet and Horovod on two workers, recorded anew: `make accuracy-live`, `make bench-frameworks`.

How near predictions come, blind: under `dpro profile --net all` (bench/record_blind.py) steps are timed before and after the profile.
They are taken out of the trace, what is left is replayed, and the prediction and the estimate from the wire
(`unprofiled_iterations.predicted_ms`) stand beside their median. The target is 5 %, of the estimate where there is one, and where the
job was quiet: the steps before the profile and those after it took the same but for 5 %.

--cost: what recording costs. Recorders are switched on and off, in turns of a few steps (bench/record_in_turns.py): by how much a step
took longer while it was recorded than in the turns just before and after, in the same process, the median over all turns and a 95 %
interval from resampling them. The target is 5 %. Both take minutes and want a quiet machine."""
import glob
import json
import os
import statistics
import sys

from experiment import EXAMPLES, begin, end, options, python_in, train_example
from figures import facts_of, median_and_interval, off

TARGET_PCT = 5
HELD_BACK = ("before", "after")
SETTLE, COST_WARMUP = 2, 10


def ranks_of(trace):
    """(path, what it says) of each rank."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(trace), "host*", "rank*", "rank.json")):
        with open(path, encoding="utf-8") as file:
            found.append((path, json.load(file)))
    if not found:
        raise SystemExit("dpro: %s: no rank was recorded" % trace)
    return found


def step_ms(step):
    return (step["end_ns"] - step["start_ns"]) / 1e6


class Blind:
    """Predicted against unprofiled."""
    script, variable, profile = "record_blind.py", "RECORD_BLIND", ("--net", "all")
    head = "  %10s  %8s  %14s  %8s  %8s  %s" % ("unprofiled", "changed", "profiled", "replayed", "estimate", "iterations on the wire")

    def __init__(self, args):
        self.told, self.profile = str(args.steps or 40), (*self.profile, "--iterations", "10")
        self.warmup, self.n_steps, self.offs = 15, 15 + 10 + 2 * (args.steps or 40) + 10, []

    def medians(self, ranks, *names):
        """Mean over ranks."""
        return statistics.mean(statistics.median(step_ms(step) for name in names for step in rank["steps"][name]) for _, rank in ranks)

    def judge(self, dpro, trace):
        """As text. The steps without a profiler are taken out of the trace."""
        ranks = ranks_of(trace)
        truth = self.medians(ranks, *HELD_BACK)
        changed = 100 * abs(self.medians(ranks, "before") - self.medians(ranks, "after")) / truth
        for path, rank in ranks:
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**rank, "steps": {**rank["steps"], **{name: [] for name in HELD_BACK}}}, file)
        facts = facts_of(dpro, "replay", "--no-validate", trace)
        replayed, profiled, wire = facts["predicted"]["iteration_ms"], facts["measured"]["iteration_ms"], facts["unprofiled_iterations"]
        estimate = wire["predicted_ms"]
        found = off(replayed, truth), off(replayed if estimate is None else estimate, truth)
        if changed <= TARGET_PCT:
            self.offs.append(found)
        return "  %7.1f ms  %7.1f%%  %7.1f %+5.1f%%  %+7.1f%%  %8s  %s%s" % (
            truth, changed, profiled, off(profiled, truth), found[0], "-" if estimate is None else "%+.1f%%" % found[1],
            wire["iterations"], "" if changed <= TARGET_PCT else "  not quiet")

    def outside(self):
        for column, what in enumerate(("replayed", "estimate")):
            values = [abs(pair[column]) for pair in self.offs]
            if values:
                print("%s: within %d %% in %d of %d quiet jobs, mean %.1f %%, largest %.1f %%" % (
                    what, TARGET_PCT, sum(value <= TARGET_PCT for value in values), len(values), statistics.mean(values), max(values)))
        return ["an estimate of %+.1f %%" % pair[1] for pair in self.offs if abs(pair[1]) > TARGET_PCT] if self.offs else ["no quiet job"]


class Cost:
    """What recording costs."""
    script, variable, profile, warmup = "record_in_turns.py", "RECORD_IN_TURNS", (), COST_WARMUP
    head = ""

    def __init__(self, args):
        steps, turns = args.steps or 8, args.turns
        self.told, self.over, self.jobs = "%d %d" % (steps, turns), [], []
        self.n_steps = COST_WARMUP + (turns + 1) * steps + turns * (steps + 1 + SETTLE) + 4

    def blocks(self, rank):
        """[(whether recorded, median ms)] of a rank's turns, in their order."""
        steps = sorted((step["step"], name == "timing", step_ms(step)) for name in ("before", "timing", "after")
                       for step in rank["steps"][name])
        found = []
        for number, recorded, ms in steps:
            if not found or found[-1][0] != recorded or found[-1][1] + 1 != number:
                found.append([recorded, number, []])
            found[-1][1] = number
            found[-1][2].append(ms)
        return [(recorded, statistics.median(times)) for recorded, _, times in found]

    def judge(self, _, trace):
        turns = [self.blocks(rank) for _, rank in ranks_of(trace)]
        if len({tuple(recorded for recorded, _ in rank) for rank in turns}) > 1:
            raise SystemExit("dpro: %s: its ranks did not record the same turns" % trace)
        mean = [(turn[0][0], statistics.mean(ms for _, ms in turn)) for turn in zip(*turns)]
        costs = [off(mean[i][1], statistics.mean((mean[i - 1][1], mean[i + 1][1]))) for i in range(1, len(mean) - 1) if mean[i][0]]
        self.jobs.append(costs)
        return "  recorded %.1f ms, not %.1f ms: %+.1f %%" % (*(statistics.median(ms for recorded, ms in mean if recorded == wanted)
                                                                for wanted in (True, False)), statistics.median(costs))

    def sum_up(self, name):
        jobs, self.jobs = self.jobs, []
        cost, low, high = median_and_interval([cost for job in jobs for cost in job])
        if cost > TARGET_PCT:
            self.over.append("%s: %.1f %%" % (name, cost))
        return "  cost: %+.1f %% in the median of all turns [%+.1f .. %+.1f]" % (cost, low, high)

    def outside(self):
        return self.over


def main():
    parser = options("the examples, recorded anew: predicted against unprofiled, or what recording costs")
    parser.add_argument("--cost", action="store_true", help="what recording costs")
    parser.add_argument("--jobs", type=int, default=2, help="of each example")
    parser.add_argument("--steps", type=int, help="without the profiler, before it and after (40); with --cost of a turn (8)")
    parser.add_argument("--turns", type=int, default=10, help="with --cost: recorded ones of a job")
    parser.add_argument("example", nargs="*", choices=[[], *EXAMPLES], help="all: %s" % ", ".join(EXAMPLES))
    args = parser.parse_args()
    dpro, folder = begin(args)
    asked, width = (Cost if args.cost else Blind)(args), max(map(len, EXAMPLES))
    print("%-*s%s" % (width, "example", asked.head), flush=True)
    for name in args.example or EXAMPLES:
        example = EXAMPLES[name]
        if python_in(example.venv) is None:
            print("%-*s  skipped: no .venv-%s" % (width, name, example.venv), flush=True)
            continue
        for job in range(args.jobs):
            trace = os.path.join(folder, "%s-%d" % (name, job))
            command = [dpro, "profile", "-q", *asked.profile, "--warmup", str(asked.warmup), "-o", trace, "--"]
            train_example(example.within(asked.script), command, asked.n_steps, quiet=True,
                          environment={asked.variable: "%s %s" % (asked.told, os.path.join("examples", example.script))})
            print("%-*s%s" % (width, name, asked.judge(dpro, trace)), flush=True)
        if args.cost:
            print("%-*s%s" % (width, name, asked.sum_up(name)), flush=True)
    return end(args, folder, asked.outside())


if __name__ == "__main__":
    sys.exit(main())
