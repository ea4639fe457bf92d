"""A job of TensorFlow, MXNet or Horovod round the whole loop: recorded, replayed, its plan made, applied and measured.

Own and plan are measured in turns (own plan plan own), each a run of its own without the recorder, so that what drifts
meanwhile weighs on both. An example prints the median of its last three quarters of steps."""
import json
import os
import re
import subprocess
import sys

import frameworks  # first: it knows where example is
import live
from frameworks import example

STEPS = 60          # of a turn
MOST_OFF = 8        # percentage points between what was expected and what was achieved
REPLAY_OFF_PCT = 5  # of the profiled mean


def step_ms(printed):
    return float(re.search(r"median step time ([\d.]+) ms", printed)[1])


class Loop:
    """`record`, `plan` and `measure` are steps that may be made one by one; `facts` grows with them."""

    def __init__(self, name, folder, arguments=(), rate="1gbit", settings=None):
        self.example, self.folder, self.arguments, self.rate = example.EXAMPLES[name], folder, list(arguments), rate
        self.settings = settings or {}  # of the job's environment
        self.trace, self.plan_folder = os.path.join(folder, "trace"), os.path.join(folder, "plan")
        self.facts = {"example": name}

    def _train(self, command, steps, environment=None):
        return example.train(self.example, command, steps, self.rate, self.arguments,
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
        self.facts["buckets"] = [len(found[which]["communication"]["buckets"]) for which in ("own", "best")]
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

    def measure(self, turns="abba", steps=STEPS):
        times = {"a": [], "b": []}
        for turn in turns:
            times[turn].append(step_ms(self._train([], steps, self.planned() if turn == "b" else None)))
        own, plan = (sum(times[turn]) / len(times[turn]) for turn in "ab")
        self.facts.update(own_ms=own, plan_ms=plan, turns_ms=times, achieved_pct=100 * (1 - plan / own))

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
