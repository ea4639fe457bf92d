"""A job of TensorFlow, MXNet or Horovod round the whole loop: recorded, replayed, its plan made, applied and measured.

Baseline and plan are measured in turns (baseline plan plan baseline ...), each a run of its own without the recorder, so that what drifts
meanwhile weighs on both. An example prints the median of its last three quarters of steps; of the turns the median
counts, as now and then a whole run is slower by a tenth. How far they are apart tells how far the gain can be judged:
turns go on until that suffices."""
import json
import os
import re
import statistics
import subprocess
import sys

import frameworks  # first: it finds tools/
import live
from frameworks import experiment

STEPS = 60          # of a recording
TURN_STEPS = 40     # of a turn
LEAST_TURNS, MOST_TURNS = 8, 16
MOST_UNSURE = 2.5   # percentage points, a standard error of the achieved gain with which it can be judged
MOST_ENDED = 2      # turns that may end before their time, and are made again
MOST_OFF = 8        # percentage points between what was expected and what was achieved
REPLAY_OFF_PCT = 5  # of the profiled mean


def step_ms(printed):
    return float(re.search(r"median step time ([\d.]+) ms", printed)[1])


def standard_error(turns):
    """Of their median, in per cent, by how far they are from it."""
    middle = statistics.median(turns)
    away = 1.4826 * statistics.median(abs(turn - middle) for turn in turns)  # a standard deviation, were they normal
    return 100 * 1.25 * away / middle / len(turns)**0.5


class Loop:
    """`record`, `plan` and `measure` are steps that may be made one by one; `facts` grows with them."""

    def __init__(self, name, folder, arguments=(), rate="1gbit", settings=None):
        self.example, self.folder, self.arguments, self.rate = experiment.EXAMPLES[name], folder, list(arguments), rate
        self.settings = settings or {}  # of the job's environment
        self.trace, self.plan_folder = os.path.join(folder, "trace"), os.path.join(folder, "plan")
        self.facts = {"example": name}

    def _train(self, command, steps, environment=None):
        return experiment.train_example(self.example, command, steps, self.rate, self.arguments,
                             {**self.settings, **(environment or {})}, quiet=True).decode()

    def record(self, trace=None, options=()):
        self._train([live.DPRO, "profile", "-q", "-o", trace or self.trace, *options, "--"], STEPS)

    def replay(self):
        replay = self._dpro("replay", self.trace)
        self.facts["replay_error_pct"] = replay["error_pct"]
        self.facts["profiled_ms"] = replay["measured"]["iteration_ms"]
        return replay

    @staticmethod
    def _dpro(*arguments):
        done = subprocess.run([live.DPRO, *arguments, "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise AssertionError(done.stderr.decode())
        return json.loads(done.stdout)

    def plan(self, *options):
        found = self._dpro("optimize", self.trace, "-o", self.plan_folder, *options)
        self.facts["helps"] = found["best"]["helps"]
        self.facts["model_ms"], self.facts["plan_model_ms"] = found["replayed_ms"], found["best"]["iteration_ms"]
        self.facts["expected_pct"] = 100 * (1 - 1 / found["best"]["speedup"]) if found["best"]["helps"] else 0.0
        self.facts["buckets"] = [len(found[which]["communication"]["buckets"]) for which in ("baseline", "best")]
        return found

    def planned(self):
        """What a job needs to take the plan without being recorded."""
        environment = {"DPRO_PLAN": self.plan_folder,
                       "PYTHONPATH": os.pathsep.join(filter(None, (live.SITE, os.environ.get("PYTHONPATH"))))}
        for name in os.listdir(self.plan_folder):
            if name.endswith(".env"):
                with open(os.path.join(self.plan_folder, name), encoding="utf-8") as file:
                    environment.update(line.strip().split("=", 1) for line in file if "=" in line)
        return environment

    def _turn(self, turn):
        """Horovod on MXNet ends with a failed check of oneDNN's layouts now and then, in turns without dpro, too."""
        while True:
            try:
                return step_ms(self._train([], TURN_STEPS, self.planned() if turn == "plan" else None))
            except SystemExit:
                self.facts["turns_ended"] = self.facts.get("turns_ended", 0) + 1
                if self.facts["turns_ended"] > MOST_ENDED:
                    raise

    def measure(self):
        times, n_turns = {"baseline": [], "plan": []}, 0
        while n_turns < LEAST_TURNS or (n_turns < MOST_TURNS and self.facts["unsure_points"] > MOST_UNSURE):
            for turn in ("baseline", "plan", "plan", "baseline"):
                times[turn].append(self._turn(turn))
                n_turns += 1
            self._judge(times)

    def _judge(self, times):
        own, plan = (statistics.median(times[turn]) for turn in ("baseline", "plan"))
        unsure = sum(standard_error(turns)**2 for turns in times.values())**0.5 * plan / own
        spread = 100 * (max(times["baseline"]) - min(times["baseline"])) / own
        self.facts.update(own_ms=own, plan_ms=plan, turns_ms=times, achieved_pct=100 * (1 - plan / own),
                          unsure_points=unsure, own_spread_pct=spread)

    def applied(self):
        """The `plan` entries of rank.json, of a recorded run with the plan."""
        trace = os.path.join(self.folder, "planned")
        self.record(trace, ["--plan", self.plan_folder])
        found = []
        for root, _, names in sorted(os.walk(trace)):
            if "rank.json" in names:
                with open(os.path.join(root, "rank.json"), encoding="utf-8") as file:
                    found.append(json.load(file)["plan"])
        return found

    def check(self, case):
        """The figures of the issue."""
        facts = self.facts
        case.assertLess(abs(facts["replay_error_pct"]), REPLAY_OFF_PCT, facts)
        if facts["helps"]:
            if facts["unsure_points"] > MOST_UNSURE:
                case.skipTest("turns differ by too much to judge a gain: %r" % facts)
            case.assertLess(abs(facts["expected_pct"] - facts["achieved_pct"]), MOST_OFF, facts)


class Case(frameworks.Case):
    def loop(self, name, arguments=(), rate="1gbit", settings=None):
        if not os.environ.get("DPRO_LONG"):
            self.skipTest("minutes of training on an idle machine; 'make test-long' runs it")
        loop = Loop(name, self.folder, arguments, rate, settings)
        loop.record()
        loop.replay()
        loop.plan()
        for told in loop.applied() if loop.facts["helps"] else ():
            self.assertEqual((told["applied"], told["reason"]), (True, None))
        if loop.facts["helps"]:  # else the plan is what the job does, and turns would tell how much they differ by themselves
            loop.measure()
        print(json.dumps(loop.facts), file=sys.stderr)
        loop.check(self)
        return loop.facts


def main():
    """plan_loop.py EXAMPLE FOLDER RATE [NAME=VALUE...] [STEP...] -- ARGUMENTS: for trying by hand; prints the facts."""
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    name, folder, rate, *wanted = sys.argv[1:at]
    settings = dict(text.split("=", 1) for text in wanted if "=" in text)
    wanted = [text for text in wanted if "=" not in text]
    loop = Loop(name, folder, sys.argv[at + 1:], rate, settings)
    for step in wanted or ("record", "replay", "plan", "measure"):
        getattr(loop, step)()
    print(json.dumps(loop.facts, indent=1))


if __name__ == "__main__":
    main()
