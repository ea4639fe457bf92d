"""What can't be changed in a running job, found by short runs of it one after the other: `dpro tune --restart` runs this.

Each turn is a run of the job that ends when its steps are timed (verify_turn.py): as it is, with the plans in the folder (of `dpro
optimize -o DIR --finalists N`), and with each value of the variables that what the job uses reads: the first run tells which these
are. A race (race.py) says which run comes next, and when it is decided. All turns are kept in the folder, so that the same command goes
on where it was ended."""
import contextlib
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from . import __version__, files, loader_workers, report, settings, tensorflow_fusion, tune_page
from .race import Race
from .tune import finite, saves, standing, sure

BASELINE = "baseline"
STATE = "tune.json"
SCHEMA = "dpro.tune/1"
SLOWEST, MORE_S = 5, 60  # times what a run took as the job is, and seconds more: then a run is ended
LEAVE_S = 40             # for a launcher to end its ranks, which may be sessions of their own
FINAL_BLOCKS = 6         # that the default budget has for the last two
MIB = 1 << 20
# What a job uses (verify_turn.py) -> variables of which each value is tried. Theirs are the defaults that are left out.
VARIABLES = {
    "horovod": {"HOROVOD_FUSION_THRESHOLD": (0, 16 * MIB, 64 * MIB), "HOROVOD_CYCLE_TIME": (2, 5, 10)},
    "byteps": {"BYTEPS_PARTITION_BYTES": (1 * MIB, 2 * MIB, 8 * MIB)},
    "nccl": {"NCCL_ALGO": ("Ring", "Tree"), "NCCL_BUFFSIZE": (1 * MIB, 16 * MIB)},
}
THREADS = "OMP_NUM_THREADS"
# Names of what TensorFlow's XLA may compile -> the environment of it; what is by layer needs dpro in the job.
FUSIONS = {**{"XLA %s" % name: {tensorflow_fusion.FLAGS: flags} for name, flags in tensorflow_fusion.BY_FLAGS.items()},
           "XLA by layer": {tensorflow_fusion.VARIABLE: tensorflow_fusion.LAYERS}}
OURS = ("DPRO_PLAN", "DPRO_TUNE", "DPRO_VERIFY")  # variables that the job has from here
PLAN_FILES = {"horovod": "horovod.env", "mxnet-ps": "mxnet.env", "byteps": "byteps.env"}


class Stopped(Exception):
    """Its text says why there are no more runs."""


def asked(texts):
    """[{NAME: value}] of texts such as NAME=1,2."""
    return [{name: value} for name, _, values in (text.partition("=") for text in texts) for value in values.split(",") if value]


def known(uses, environment):
    """[{NAME: value}] that a job of which this is known may be faster with: none that it has already."""
    tried = [(name, str(value)) for carrier, variables in VARIABLES.items() if carrier in uses.get("carriers", ())
             for name, values in variables.items() for value in values]
    own = max(1, (uses.get("cpus") or 1) // max(1, uses.get("local_ranks") or 1))  # a rank's share of the CPUs
    for name, has, numbers in ((THREADS, uses.get("threads"), {1, max(1, own // 2), own}),
                               (loader_workers.VARIABLE, uses.get("loader_workers"), {0, 1, max(1, own // 2), own})):
        tried += [(name, str(n)) for n in sorted(numbers) if has is not None and n != has]
    fusions = "tensorflow" in uses.get("carriers", ()) and not tensorflow_fusion.compiles_itself(environment)
    return [{name: value} for name, value in tried if environment.get(name) != value] + fusions * list(FUSIONS.values())


def plans(folder):
    """{name: path} of the plans in a folder that change something."""
    found = {"plan": folder, **{name: os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.startswith("finalist-")}}
    return {name: path for name, path in found.items() if os.path.isfile(os.path.join(path, "plan.json")) and not _is_own(path)}


def _is_own(path):
    """Measured once more, the job as it is would only take runs from the others."""
    with open(os.path.join(path, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    return plan.get("communication", {}).get("is_own") and not set(plan) - {"schema", "dpro", "job", "expected", "communication"}


def of_plan(path):
    """The environment with which a job takes the plan, and what the plan promises."""
    with open(os.path.join(path, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    name, environment = PLAN_FILES.get(plan["job"].get("stack")), {"DPRO_PLAN": path}
    if name and os.path.isfile(os.path.join(path, name)):
        with open(os.path.join(path, name), encoding="utf-8") as file:
            environment.update(line.strip().split("=", 1) for line in file if "=" in line)
    expected = plan.get("expected")
    return {"environment": environment,
            "promised_pct": 100 * (1 - expected["iteration_ms"] / expected["baseline_ms"]) if expected else None}


def setting(values):
    """As a shell takes it."""
    return " ".join("%s=%s" % (name, shlex.quote(value)) for name, value in values.items())


def named(values):
    return next((name for name, fusion in FUSIONS.items() if fusion == values), setting(values))


class Restarts:
    def __init__(self, folder, command, asked_for, budget=0, memory_bytes=None):
        self._folder, self._command, self._asked = folder, command, asked_for
        self._budget, self._memory = budget, memory_bytes
        self._n_steps, self._warmup = settings.number("DPRO_VERIFY_STEPS", 30, 1), settings.number("DPRO_WARMUP", 10, 0)
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self._environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "").partition(":")[2]  # of this program
        self._turns, self._finalists, self._promised = [], {}, {}  # environments, percents by name
        self._uses = None     # what the first run told of the job
        self._race = None     # begins with it
        self._history = []    # by block: tune_page.of_state()
        self._left = []       # names of the block that runs
        self._limit_s = None  # of a run

    def run(self):
        """Returns the exit code."""
        try:
            os.listdir(self._folder)
            self._resume()
            if self._race is None:
                self._begin(self._measure(BASELINE))
            while self._next():
                self._add(self._measure(self._left.pop(0)))
        except KeyboardInterrupt as signalled:
            self._tell_so_far("interrupted")
            return 128 + (signalled.args or (signal.SIGINT,))[0]
        except OSError as failed:
            report.tell("tune: %s: %s" % (failed.filename or self._folder, failed.strerror or failed))
            return 4
        except Stopped as why:
            if self._race is None or self._race.state()["blocks"] == 0:
                report.tell("tune: %s" % why)
                return 3
            self._tell_so_far(str(why))
            return 3
        self._end()
        return 0

    # The race

    def _begin(self, first):
        """The first run, which also warms up files and caches, tells what the job uses."""
        if first["problem"]:
            raise Stopped("the job as it is can't be measured: %s" % first["problem"])
        self._uses = first.pop("uses")
        self._limit_s = SLOWEST * first["seconds"] + MORE_S
        self._choose([*(dict(of_plan(path), name=name) for name, path in plans(self._folder).items()),
                      *({"name": named(values), "environment": values} for values in asked(self._asked) or
                        known(self._uses, self._environment))])
        self._write()

    def _choose(self, finalists):
        self._finalists = {one["name"]: one["environment"] for one in finalists}
        self._promised = {one["name"]: one.get("promised_pct") for one in finalists}
        n = len(self._finalists)
        if n == 0:
            raise Stopped("dpro knows no variable or plan to try for this job: name variables (--try NAME=VALUE,VALUE), or have dpro "
                          "optimize -o %s --finalists 5 write plans there" % self._folder)
        a_run = self._n_steps + self._warmup
        runs = max(2 * (n + 1) * (2 + math.ceil(math.log2(n))), 4 * FINAL_BLOCKS)
        self._race = Race([BASELINE, *self._finalists], BASELINE, self._budget or runs * a_run, self._n_steps,
                          settle_steps=self._warmup, memory_bytes=self._memory)
        report.tell("tune: %d finalists, %d runs at most: %s" % (n, self._race.budget_steps // a_run, ", ".join(self._finalists)))

    def _next(self):
        """Whether another run is to come."""
        while self._left and not self._race.is_in(self._left[0]):
            del self._left[0]
        if not self._left:
            if self._turns and self._race.state()["blocks"]:
                self._history.append(tune_page.of_state(self._race.state()))
                self._tell_block()
            self._left = self._race.next_block() or []
        return bool(self._left)

    def _add(self, turn):
        del turn["uses"]
        self._turns.append(turn)
        self._race.add(turn["name"], turn["step_ns"], turn["peak_bytes"], turn["problem"])
        if turn["problem"]:
            report.tell("tune: %s is out: %s" % (turn["name"], turn["problem"]))
        self._write()

    # One run

    def _measure(self, name):
        with tempfile.TemporaryDirectory(prefix="dpro-tune-") as folder:
            path, began = os.path.join(folder, "turn.json"), time.monotonic()
            report.tell("tune: run %d: %s" % (len(self._turns) + 1, name))
            number = str(len(self._turns) + 1)
            code = self._run_job({
                **self._finalists.get(name, {}), "DPRO_VERIFY": path, "DPRO_VERIFY_TURN": name, "DPRO_VERIFY_RUN": number,
                "DPRO_VERIFY_STOP": "1", "DPRO_VERIFY_STEPS": str(self._n_steps), "DPRO_WARMUP": str(self._warmup),
                "DPRO_VERIFY_BLOCK": "0" if self._memory else "1"})  # in the first, peaks are measured
            found = self._found(path)
        turn = next(iter(found.get("turns", ())), {})
        steps = turn.get("step_ns", [])
        if steps and found.get("asynchronous"):
            steps = [round(turn["span_ns"] / len(steps))] * len(steps)
        problem = found.get("problem")
        if not steps and not problem:
            problem = "no Python process made a step of training with PyTorch, TensorFlow or MXNet, as far as dpro can see"
        if code:
            problem = code if isinstance(code, str) else "it ended with exit code %d" % code
        return {"name": name, "step_ns": [] if problem else steps, "peak_bytes": turn.get("peak_bytes"), "problem": problem,
                "seconds": round(time.monotonic() - began, 3), "uses": found.get("uses") or {}}

    def _run_job(self, given):
        """What it prints goes to stderr, as ours does. Returns its exit code, or why it was ended."""
        job = subprocess.Popen(self._command, env={**self._environment, **given}, stdin=subprocess.DEVNULL, stdout=sys.stderr,
                               start_new_session=True)
        try:
            return job.wait(self._limit_s)
        except subprocess.TimeoutExpired:
            return "it took longer than %d s, %d times what a run of the job takes" % (self._limit_s, SLOWEST)
        finally:
            for number, wait_s in ((signal.SIGTERM, LEAVE_S), (signal.SIGKILL, None)):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(job.pid, number)  # what a launcher left behind, too
                    job.wait(wait_s)

    @staticmethod
    def _found(path):
        for ending in ("", ".other", ".serves"):
            try:
                with open(path + ending, encoding="utf-8") as file:
                    return json.load(file)
            except FileNotFoundError:
                continue
        return {}

    # What is kept

    def _resume(self):
        """What an earlier call measured; Stopped: that was of something else."""
        path = os.path.join(self._folder, STATE)
        if not os.path.exists(path):
            return
        try:
            with open(path, encoding="utf-8") as file:
                kept = json.load(file)
            if any(kept.get(key) != value for key, value in self._same().items()):
                raise Stopped("%s is of another command or of other options: name another folder, or remove it" % path)
            self._uses, self._limit_s = kept["uses"], kept["limit_s"]
            self._choose(kept["finalists"])
            for turn in kept["turns"]:
                if self._next():
                    self._left.pop(0)
                    self._turns.append(turn)
                    self._race.add(turn["name"], turn["step_ns"], turn["peak_bytes"], turn["problem"])
        except (AttributeError, LookupError, TypeError, ValueError) as problem:
            raise Stopped("%s is damaged (%s): name another folder, or remove it" % (path, report.first_line(problem)))
        report.tell("tune: goes on after %d runs" % len(self._turns))

    def _same(self):
        return {"command": self._command, "asked": self._asked, "steps": self._n_steps, "settle": self._warmup}

    def _write(self, complete=False, problem=None, text=None):
        told = finite({
            "schema": SCHEMA, "dpro": __version__, "complete": complete, "problem": problem, "restarts": True, **self._same(),
            "uses": self._uses, "limit_s": self._limit_s, "race": self._race.state(), "turns": self._turns,
            "finalists": [{"name": name, "environment": values, "promised_pct": self._promised[name]}
                          for name, values in self._finalists.items()], "history": self._history, "warnings": report.warnings})
        files.Folder.write_json(os.path.join(self._folder, STATE), told)
        tune_page.write(tune_page.path_in(self._folder), told, text or problem or "runs go on")

    # What is told

    def _tell_block(self):
        state = self._race.state()
        report.tell("tune: block %d, %d runs: %s" % (state["blocks"], len(self._turns), standing(state)))

    def _tell_so_far(self, why):
        if self._race is None:
            report.tell("tune: %s" % why)
            return
        self._write(problem=why)
        state = self._race.state()
        report.tell("tune: %s; so far %s, %s, after %d runs; the same command goes on" % (
            why, "nothing is faster for sure" if state["winner"] == BASELINE else "%s is fastest" % state["winner"], sure(state),
            len(self._turns)))

    def _end(self):
        """Names the fastest, and how the job is started with it."""
        state = self._race.state()
        winner = state["winner"]
        values = self._finalists.get(winner, {})
        with open(os.path.join(self._folder, "tune.env"), "w", encoding="utf-8") as file:
            file.writelines(setting({name: value}) + "\n" for name, value in values.items() if name != "DPRO_PLAN")
        if winner == BASELINE:
            text = "the job is best started as it was: %s" % state["why"]
        else:
            text = "%s is fastest, and %s of a step" % (winner, saves(state["names"][winner]))
        text = "%s; %s after %d runs" % (text, sure(state), len(self._turns))
        self._write(complete=True, text=text)
        report.tell("tune: " + text)
        if "DPRO_PLAN" in values:
            report.tell("tune: next: dpro profile --plan %s -o TRACE -- %s" % (values["DPRO_PLAN"], " ".join(self._command)))
        elif loader_workers.VARIABLE in values:
            report.tell("tune: next: give the script's DataLoader num_workers=%s" % values[loader_workers.VARIABLE])
        elif values:
            report.tell("tune: next: env %s %s" % (setting(values), " ".join(self._command)))


def _interrupt(number, frame):
    raise KeyboardInterrupt(number)


def main():
    """What `dpro tune --restart` gives: the folder, a number of texts and these, the program; its options as variables."""
    folder, n, *rest = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)
    asked_for, command = rest[:int(n)], rest[int(n):]
    return Restarts(folder, command, asked_for, settings.number("DPRO_TUNE_BUDGET", 0, 0),
                    settings.number("DPRO_TUNE_MEMORY", 0, 0) or None).run()


if __name__ == "__main__":
    sys.exit(main())
