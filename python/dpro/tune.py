"""A faster plan for the job that runs, found in that job: what `dpro tune` starts. The first steps are recorded (session.py). Rank 0
has dpro search in them, in a process of its own, while the job trains on, and tells the other ranks what was found. These finalists
train the job by turns (turns.py), fewer and fewer of them, until a measurement says which is fastest (race.py). The job goes on with
that one, and its plan is kept.

The job comes first: it never waits for the search, and on any doubt it goes on as it was, which one line says."""
import json
import math
import os
import subprocess
import sys
import time

from . import __version__, agreement, applied, files, own_process, report, status, tune_page
from .race import LEAST_VALUES, Race
from .session import Session
from .settings import number
from .turns import BASELINE, Strategy, Turns, on_gpu

SUBJECT = "tune"
TURNS = "turns.json"  # in the recording
AHEAD = 2             # steps from the one in which rank 0 tells what was found to the one in which all begin: ranks are one apart
SEARCH_S = 120        # the most that the search may take
NICER = 10            # than the job, whose processors they are
TURN_S = 0.3          # that a turn should take, as steps are few and short ones vary by more
LEAST_STEPS, MOST_STEPS = 4, 20     # of a turn, until it is known what a switch takes
SETTLE_STEPS = 2                    # at its begin, which do not count
SWITCH_SHARE, LEAST_BLOCKS = 0.08, 8  # of a turn that a switch may take; blocks that longer turns leave room for
BUDGET_S = 180                      # of turns, where nothing else is asked for
LEAST_BUDGET, MOST_BUDGET = 240, 10000  # steps


class Tuning(Session):
    compresses = False  # files of the recording, before the search has read them

    def __init__(self, settings):
        super().__init__(settings)
        self._out = os.environ["DPRO_TUNE"]
        self._budget = number("DPRO_TUNE_BUDGET", 0, 0)
        self._memory = number("DPRO_TUNE_MEMORY", 0, 0) or None
        self._course = None      # what is done with a step, once all is recorded
        self._search = None      # rank 0's
        self._rank = self._world_size = self._store = None  # once all is recorded
        self._turns = self._race = None
        self._told = {}          # what rank 0 found
        self._began = None       # (step, seconds) of the first turn
        self._n_blocks = 0
        self._block_began = None # (seconds, turns before it), of rank 0
        self._kept = None        # what the job goes on with
        self._history = []       # rank 0's, by block: tune_page.of_state()

    # Recording

    def _finish(self, reason, at_exit=False):
        cycle, n_steps = self._cycle, self._times["before"] + self._times["after"]
        super()._finish(reason, at_exit)
        if at_exit or reason is not None:
            self._as_it_was(reason)
        elif self.job.framework != "pytorch":
            self._as_it_was("only PyTorch can be switched in a running job: dpro optimize makes a plan of %s, dpro verify measures it"
                            % self.settings.out)
        else:
            self.off, self._cycle = False, cycle
            times = sorted(step["end_ns"] - step["start_ns"] for step in n_steps)
            self._step_ns = times[len(times) // 2] if times else 1e9
            self._rank, self._world_size, self._store = agreement.rank(), agreement.world_size(), agreement.store_of_all()
            self._course, self._until = self._begin_search if self._rank == 0 else self._wait, time.monotonic() + 2 * SEARCH_S

    def _step_ended(self, step, now_ns, frame):
        if self._course is None:
            super()._step_ended(step, now_ns, frame)
        elif not self.off:
            self._step = step
            status.came_to(step=step)
            self._course()

    def _restart(self, step):
        if self._course is None:
            super()._restart(step)
        else:
            self._turns_off("another optimizer turned out to end the steps (a longer --warmup lets it show before)")

    # The search

    def _begin_search(self):
        """All ranks have recorded: they were in this step, too."""
        self._folder.write_job(__version__)
        folder = os.path.join(self._out, "search")
        os.makedirs(folder, exist_ok=True)
        self._search = Search(folder, self.settings.out)
        report.tell("tune: recorded; searching, while the job trains on")
        status.came_to(text=self._so_far())
        self._course = self._look

    def _look(self):
        problem = self._search.problem()
        if problem is Search.RUNS:
            return
        found = {}
        if not problem:
            try:
                found = self._search.found()
            except (OSError, ValueError, KeyError) as failed:  # the other ranks wait for word
                problem = "the search left no plan: %s" % report.first_line(failed)
        self._search = None
        if not problem and not found["finalists"]:
            problem = found["why"]
        budget = self._budget or self._budget_steps()
        told = dict(found, problem=problem, at=self._step + AHEAD, steps=self._turn_steps(budget), budget=budget)
        agreement.tell(self._store, SUBJECT, json.dumps(told))
        self._hear(told)

    def _turn_steps(self, budget):
        """So few that the budget has the turns of one finalist that an interval takes."""
        most = min(MOST_STEPS, budget // (2 * LEAST_VALUES) - SETTLE_STEPS)
        return max(LEAST_STEPS, min(most, round(TURN_S * 1e9 / self._step_ns)))

    def _budget_steps(self):
        return max(LEAST_BUDGET, min(MOST_BUDGET, int(BUDGET_S * 1e9 / self._step_ns)))

    def _wait(self):
        text = agreement.hear(self._store, SUBJECT, 0)
        if text is not None:
            self._hear(json.loads(text))
        elif time.monotonic() > self._until:
            self._as_it_was("rank 0 sent no result of the search")

    def _hear(self, told):
        self._told = told
        if told["problem"]:
            self._as_it_was(told["problem"])
        elif self._step > told["at"]:
            self._as_it_was("rank %d was told of the finalists too late" % self._rank)
        else:
            self._course = self._near

    def _near(self):
        if self._step == self._told["at"]:
            self._begin_turns()

    # Turns

    def _begin_turns(self):
        finalists = self._told["finalists"]
        problem = agreement.ask(self._store, SUBJECT, "step %d" % self._step, None)
        if problem:  # before each finalist is asked about, and waited for
            self._as_it_was(problem)
            return
        for finalist in finalists:
            applied.give(finalist["path"], finalist["plan"])
        self._turns = Turns(self, self._told["steps"], SETTLE_STEPS)
        self._turns.measures_peaks = self._memory is not None
        problems = self._turns.prepare([Strategy(finalist["name"], finalist["path"]) for finalist in finalists])
        for name, problem in problems.items():
            self._tell("%s is out: %s" % (name, problem))
        names = [finalist["name"] for finalist in finalists if finalist["name"] not in problems]
        if not names:
            self._as_it_was("no finalist can be applied")
            return
        if self._rank == 0:
            self._race = Race([BASELINE, *names], BASELINE, self._told["budget"], self._turns.n_steps,
                              settle_steps=self._turns.n_settle, memory_bytes=self._memory)
        self._tell("%d finalist%s by turns, %d steps at most: %s" % (
            len(names), "s" if len(names) > 1 else "", self._told["budget"], ", ".join(map(self._promised, names))))
        if self._turns.changes_heap({finalist["name"]: finalist["path"] for finalist in finalists}):
            self._tell("on a CPU, turns with modules compiled, recomputed or in 16 bits change the heap, and so a little the "
                       "time of the next turns")
        self._write(False)  # what is told of a job that is killed is there
        self._began = self._step, time.perf_counter()
        self._course = lambda: self._turns.stepped(self._step)
        self._turns.begin(self._step)

    def _promised(self, name):
        promised = self._finalist(name)["promised_pct"]
        return "%s (expected to %s %.1f %%)" % (name, "save" if promised >= 0 else "cost", abs(promised))

    def _finalist(self, name):
        return next((finalist for finalist in self._told["finalists"] if finalist["name"] == name), None)

    def next_block(self):
        """What rank 0 has decided on."""
        self._n_blocks += 1
        subject = "%s block %d" % (SUBJECT, self._n_blocks)
        if self._rank != 0:
            text = agreement.hear(self._store, subject, agreement.wait_s())
            told = json.loads(text) if text else {"names": None, "winner": self._turns.now, "steps": self._turns.n_steps}
        else:
            names = self._race.next_block()
            told = {"names": names, "winner": self._race.winner(), "steps": self._longer_turns()}
            agreement.tell(self._store, subject, json.dumps(told))
            if self._n_blocks > 1:
                self._tell_block()
        self._kept, self._turns.n_steps = told["winner"], told["steps"]
        return told["names"]

    def _longer_turns(self):
        """Steps of a turn from now on: as many as make up for what switches took in the block that is over."""
        now, before = time.perf_counter(), self._block_began
        self._block_began, n, own = (now, len(self._turns.turns)), self._turns.n_steps, self._own_ns()
        turns = self._turns.turns[before[1]:] if before else ()
        if not turns or not own or (not on_gpu() and any(turn["peak_bytes"] for turn in turns)):  # finding a peak takes time, too
            return n
        in_turns = sum(turn["span_ns"] for turn in turns)
        switch_ns = (1e9 * (now - before[0]) - in_turns) / len(turns) - self._turns.n_settle * own
        return self._race.lengthen(max(n, round(switch_ns / SWITCH_SHARE / own)), LEAST_BLOCKS)

    def turn_over(self, turn):
        if self._race:
            ns = [round(turn["span_ns"] / self._turns.n_steps)] * self._turns.n_steps if on_gpu() else turn["step_ns"]
            self._race.add(turn["name"], ns, turn["peak_bytes"])

    def left_out(self, name, problem):
        self._tell("%s is out: %s" % (name, problem))
        if self._race:
            self._race.add(name, [], failed=problem)
        return True

    def turns_over(self, problem):
        if problem:
            self._turns_off(problem)
            return
        failed = self._turns.stop(self._kept)
        n_steps, seconds = self._step - self._began[0], time.perf_counter() - self._began[1]
        if failed:
            self._as_it_was(failed)
            return
        if self._race:
            cost_pct = self._cost_pct(n_steps, seconds)
            text = self._end_text(cost_pct)
            self._write(True, cost_pct, text=text)
            self._tell(text)
            self._tell("the plan is in %s, all turns in its tune.html and tune.json; another run takes it with dpro profile --plan %s" % (
                self._out, self._out))
        self._leave()

    def _cost_pct(self, n_steps, seconds):
        """What turns took longer than the same steps as it ran, those apart in which modules were compiled."""
        own, apart = self._own_ns(), self._turns.compile_ns
        n_steps, ns = n_steps - len(apart), 1e9 * seconds - sum(apart)
        return 100 * (ns / (n_steps * own) - 1) if own and n_steps > 0 else None

    def _compile_s(self):
        return sum(self._turns.compile_ns) / 1e9

    def _own_ns(self):
        """A step as the job runs by itself; 0: there was no turn of it."""
        own = [turn for turn in self._turns.turns if turn["name"] == BASELINE]
        return sum(turn["span_ns"] for turn in own) / max(1, sum(len(turn["step_ns"]) for turn in own))

    # What is told

    def _tell(self, text):
        if self._rank == 0:
            report.tell("tune: " + text)

    def _tell_block(self):
        state = self._race.state()
        self._history.append(tune_page.of_state(state))
        self._tell("block %d, %d of %d steps: %s" % (state["blocks"], state["steps"], state["budget_steps"], standing(state)))
        self._write(False)

    def _so_far(self):
        """Of a job that ends."""
        if not self._race:
            return "before the search was over: dpro optimize %s -o %s goes on with it" % (self.settings.out, self._out)
        state = self._race.state()
        return "before it was decided: %s; %s" % (standing(state), "the plan in %s is %s, %s" % (
            self._out, state["winner"], sure(state)) if state["winner"] != BASELINE else
            "nothing is faster for sure yet, and the plan in %s changes nothing" % self._out)

    def _end_text(self, cost_pct):
        state = self._race.state()
        if self._kept == BASELINE:
            text = "the job goes on as it was: %s" % state["why"]
        else:
            text = "the job goes on with %s, which %s of a step, where %.1f %% were expected" % (
                self._kept, saves(state["names"][self._kept]), self._finalist(self._kept)["promised_pct"])
        return "%s; %s after %d steps of turns, %s" % (text, sure(state), state["steps"], tune_page.cost_text(
            cost_pct or 0, self._compile_s()))

    def _write(self, complete, cost_pct=None, problem=None, text=None):
        """The best plan so far, and all turns."""
        if self._rank != 0 or not self._race:
            return
        status.came_to(text=self._so_far())
        try:
            self._write_files(complete, cost_pct, problem, text)
        except OSError as failed:  # turns go on
            report.say("tune-write", "tune: %s: %s" % (self._out, failed.strerror or failed))

    def _write_files(self, complete, cost_pct, problem, text):
        state = self._race.state()
        finalist = self._finalist(state["winner"])
        plan = corrected(finalist["plan"], state["names"][finalist["name"]]) if finalist else self._told["own"]
        files.Folder.write_json(os.path.join(self._out, "plan.json"), plan)
        finalists = [{key: value for key, value in finalist.items() if key != "plan"} for finalist in self._told["finalists"]]
        told = finite({
            "schema": "dpro.tune/1", "dpro": __version__, "complete": complete, "problem": problem, "world_size": self._world_size,
            "steps": self._turns.n_steps, "settle": self._turns.n_settle, "step": self._step, "asynchronous": on_gpu(),
            "cost_pct": cost_pct, "compile_s": self._compile_s(),
            "race": state, "finalists": finalists, "history": self._history, "turns": self._turns.turns,
            "warnings": report.warnings})
        files.Folder.write_json(os.path.join(self._out, "tune.json"), told)
        tune_page.write(tune_page.path_in(self._out), told, text or problem or "turns go on: " + standing(state))
        files.Folder.write_json(os.path.join(self.settings.out, TURNS), self._measured(state))

    def _measured(self, state):
        """What the next search in this recording takes as true."""
        turns = [{"name": one["name"], **{key: one[key] for key in ("promised_pct", "promised_half_pct")},
                  **{key: found[key] for key in ("saves_pct", "low_pct", "high_pct", "std_pct", "blocks")},
                  "steps": sum(len(turn["step_ns"]) for turn in self._turns.turns if turn["name"] == one["name"]),
                  "plan": _without_parameters(one["plan"])}
                 for one in self._told["finalists"] for found in (state["names"].get(one["name"], {}),)
                 if math.isfinite(found.get("std_pct", math.inf))]
        return finite({"schema": "dpro.turns/1", "dpro": __version__, "framework": "pytorch",
                       "framework_version": self.job.versions()["torch"], "world_size": self._world_size, "turns": turns})

    # The end

    def _turns_off(self, problem):
        if self._turns:
            self._turns.stop(asks=False)
        self._write(False, problem=problem)
        self._as_it_was(problem)

    def _as_it_was(self, why):
        if agreement.rank() == 0:
            report.tell("tune: the job goes on as it was: %s" % why)
        self._leave()

    def _leave(self):
        status.came_to(status.ENDED)
        if self._search:
            self._search.end()
        self._course = self._search = self._turns = None
        self._let_go()
        if self.job and self.job.framework == "pytorch":
            self.job.end_steps()
        if self._compressor and not self._compressor.ident:
            self._compressor.start()

    def at_exit(self):
        if self._course is None or self.off or os.getpid() != self._pid:
            super().at_exit()
            return
        self.off = True
        status.came_to(status.ENDED)
        try:
            if self._search:
                self._search.end()
            ended = "the job ended after step %d%s" % (self._step, self._in_turn())
            self._write(False, problem=ended)
            self._tell("%s, %s" % (ended, self._so_far()))
        except Exception:
            pass

    def _in_turn(self):
        """Words of what the job trained with when it ended. What ran out of memory is out."""
        now, died = self._turns.now if self._turns else BASELINE, getattr(sys, "last_value", None)
        if now == BASELINE:
            return ""
        if not (died and report.is_out_of_memory(died)):
            return ", in a turn of %s" % now
        if self._race:
            self._race.add(now, [], failed="the job ran out of memory in a step with it")
        return ", out of memory in a turn of %s (dpro tune --memory leaves plans out that hold more than it says)" % now

    def thread_ended(self):
        if self._course is None:
            super().thread_ended()

    def fail(self, problem):
        if self._course is None:
            super().fail(problem)
            return
        self.off = True
        if isinstance(problem, agreement.Broken):
            raise problem
        report.say("fail", "tuning ends, the job goes on: %s" % report.first_line(problem))
        try:
            if self._turns:
                self._turns.stop(asks=False)
            self._leave()
        except Exception:
            pass


def corrected(plan, found):
    """The plan with what is expected of it since it was measured: the model's promise and the turns', each by how sure it is."""
    expected, half = plan.get("expected"), 1.96
    std = found["std_pct"] / (100 - found["saves_pct"])
    if not expected or not math.isfinite(std) or not expected.get("uncertainty_pct"):
        return plan
    told = ((math.log(expected["iteration_ms"] / expected["baseline_ms"]), (100 * half / expected["uncertainty_pct"]) ** 2),
            (math.log1p(-found["saves_pct"] / 100), 1 / std ** 2))
    weight = sum(weight for _, weight in told)
    ratio = math.exp(sum(log * weight for log, weight in told) / weight)
    return dict(plan, expected=dict(expected, iteration_ms=round(ratio * expected["baseline_ms"], 6), speedup=round(1 / ratio, 6),
                                    uncertainty_pct=round(100 * half / math.sqrt(weight), 3)))


def finite(value):
    """For JSON, which has no infinity."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def saves(entry):
    """"saves 5.0 % (2.1 to 7.9)", "costs 5.0 % (2.1 to 7.9)"; an interval of 100 points and more tells nothing yet."""
    sign, verb = (1, "saves") if entry["saves_pct"] >= 0 else (-1, "costs")
    low, high = sorted((sign * entry["low_pct"], sign * entry["high_pct"]))
    return "%s %.1f %% (%s)" % (verb, sign * entry["saves_pct"], "%.1f to %.1f" % (low, high) if high - low < 100 else "so far")


def standing(state):
    """Of those that are in the race, the best first."""
    if not state["blocks"]:
        return "no block of turns is over"
    names = sorted(state["names"].items(), key=lambda item: -item[1]["saves_pct"])
    return ", ".join("%s %s" % (name, saves(entry)) for name, entry in names if entry["in"]) or state["why"] or "all are out"


def sure(state):
    return "%.1f %% sure" % (100 * state["sure"]) if state["sure"] >= 0.5 else "not sure"


class Search:
    """`dpro optimize`, in a process beside the job."""
    RUNS = object()

    def __init__(self, folder, trace):
        self._folder, self._until = folder, time.monotonic() + SEARCH_S
        command = [os.environ["DPRO_TUNE_DPRO"], "optimize", trace, "-o", folder, "--quiet", "--threads", "1",
                   *os.environ.get("DPRO_TUNE_SEARCH", "").split()]
        with open(self._path("messages.txt"), "wb") as messages:
            self._process = own_process.start("own_process", command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=messages)
        try:
            os.setpriority(os.PRIO_PROCESS, self._process.pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICER))
        except OSError:
            pass

    def _path(self, name):
        return os.path.join(self._folder, name)

    def problem(self):
        """Why nothing was found; None: something was; or RUNS."""
        code = self._process.poll()
        if code is None and time.monotonic() < self._until:
            return self.RUNS
        if code is None:
            self.end()
            return "the search took longer than %d s" % SEARCH_S
        if code == 0:
            return None
        with open(self._path("messages.txt"), encoding="utf-8", errors="replace") as file:
            lines = file.read().replace("dpro: ", "").strip().splitlines()
        return "the search failed: %s" % (lines[-1][:report.MOST_TEXT] if lines else "exit code %d" % code)

    def end(self):
        self._process.kill()
        self._process.wait()

    def found(self):
        """For all ranks: the finalists, and a plan of what the job does by itself."""
        plan, result = (self._read(name) for name in ("plan.json", "optimize.json"))
        told = [(one["name"], one["plan"], one["iteration_ms"], one["uncertainty_pct"]) for one in result["finalists"]]
        if result["best"]["helps"] and not told:  # of a kind that has none
            told = [("search", self._folder, result["best"]["iteration_ms"], result["best"]["uncertainty_pct"])]
        finalists = []
        for name, folder, ms, half_pct in told:
            path = os.path.join(folder, "plan.json")
            finalists.append({"name": name, "path": path, "plan": self._read(path),
                              "promised_pct": 100 * (1 - ms / result["replayed_ms"]), "promised_half_pct": half_pct})
        return {"finalists": finalists, "own": _own(plan, result["baseline"]["communication"]["buckets"]),
                "why": "nothing that dpro could change is expected to save time"}

    def _read(self, name):
        with open(self._path(name), encoding="utf-8") as file:
            return json.load(file)


def _without_parameters(plan):
    """Its buckets name them all."""
    models = [{"name": model["name"]} for model in plan["job"]["models"]]
    return dict(plan, job=dict(plan["job"], models=models))


def _own(plan, buckets):
    """A plan of these buckets that changes nothing: it has none where the ranks send no gradients by buckets."""
    of = {}  # by a gradient's name in the search: its model, and its name there (of models that are alike, recorded_namesake())
    for n, model in enumerate(plan["job"]["models"]):
        for name in (parameter["name"] for parameter in model["parameters"]):
            of["%s of model %d" % (name, n) if name in of else name] = n, name
    buckets = [dict({"model": of.get(bucket["parameters"][0], (0,))[0]}, **dict(
        bucket, parameters=[of.get(name, (0, name))[1] for name in bucket["parameters"]])) for bucket in buckets]
    expected = dict(plan["expected"], iteration_ms=plan["expected"]["baseline_ms"], speedup=1.0) if plan.get("expected") else None
    return {"schema": "dpro.plan/1", "dpro": __version__, "job": dict(plan["job"], models=plan["job"]["models"] if buckets else []),
            "expected": expected, "communication": {"compression": "none", "changes_numerics": False, "is_own": True,
                                                    "buckets": buckets}}
