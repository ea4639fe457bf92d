"""What a plan is worth, measured: the running job trains with its own buckets and with the plan's by turns (turns.py), A B B A, so
that whatever drifts meanwhile cancels out. What `dpro verify` starts; it does the arithmetic (src/verify).

Nothing else is on: no profiler, no log. Rank 0 writes the step times after each block of mirrored turns, so that a job which is
stopped leaves what there is."""
import os
import sys
import time

from . import applied, ddp_plan, job_steps, report, verify_file
from .settings import number
from .turns import BASELINE, Strategy, Turns, on_gpu

PLAN = "plan"


def _against():
    """What else is measured: limits in MB that a person might try, and paths of other plans."""
    found = []
    for text in filter(None, os.environ.get("DPRO_VERIFY_AGAINST", "").split(",")):
        if os.path.isabs(text):
            found.append(Strategy("plan=%s" % os.path.basename(text), text))
            continue
        try:
            cap = float(text)
        except ValueError:
            cap = 0.0
        if not 0 < cap < float("inf"):
            report.say("against", "DPRO_VERIFY_AGAINST: %s is no bucket size in MB and is left out" % text)
            continue
        found.append(Strategy("cap=%s" % text, cap_mb=cap))
    return found


class Verification(verify_file.Timed):
    def __init__(self, settings):
        super().__init__(settings)
        self._file = os.environ["DPRO_VERIFY"]
        self._n_blocks = self._n_blocks_left = number("DPRO_VERIFY_BLOCKS", 8, 1)
        self._turns = Turns(self, number("DPRO_VERIFY_STEPS", 6, 1), number("DPRO_VERIFY_SETTLE", 2, 2))
        self._strategies = [Strategy(PLAN, os.environ["DPRO_PLAN"]), *_against()]
        self._names = None  # of those that take turns, when that is known
        self._rank = self._world_size = None  # while there is a process group
        self._problem = None

    # Steps

    def _step_ended(self, step, now_ns, frame):
        if self.off:
            return
        self._step = step
        if step == 1 and ddp_plan.rank() == 0:
            self._tell_steps()
        if self._names is not None:
            self._turns.stepped(step)
        elif step >= self.settings.warmup:
            self._begin()

    def _restart(self, step):
        if self._names is not None:
            self._end("another optimizer turned out to end the steps (a longer --warmup lets it show before)")

    def _tell_steps(self):
        n_turns, warmup = 2 * (1 + len(self._strategies)), max(self.settings.warmup, 1)
        block, peaks = n_turns * (self._turns.n_settle + self._turns.n_steps), 0
        plans = [applied.read(strategy.path)[0] for strategy in self._strategies if strategy.path]
        if not on_gpu() and any(plan and plan.within_ranks for plan in plans):
            from . import peak
            peaks = n_turns // 2 * peak.OfCpu.n_steps
        has = job_steps.of_job(1)
        n_fit = (has[0] - warmup - peaks) // block if has else 0
        report.tell("verify: " + job_steps.text(
            warmup + self._n_blocks * block + peaks, has,
            ("run it longer, or take --blocks %d" % n_fit) if n_fit > 0 else "run it longer, or choose fewer by --warmup and --steps"))

    def _begin(self):
        self._rank, self._world_size = ddp_plan.rank(), ddp_plan.world_size()
        problems = self._turns.prepare(self._strategies)
        for name, problem in problems.items():
            if name != PLAN:
                report.say("against-" + name, "%s is left out: %s" % (name, problem), self._rank)
        self._names = [BASELINE, *(strategy.name for strategy in self._strategies if strategy.name not in problems)]
        if PLAN in problems:
            applied.refuse(problems[PLAN], self._rank)
            self._end(problems[PLAN])
            return
        if self._turns.changes_heap({strategy.name: strategy.path for strategy in self._strategies}):
            report.say("heap", "on a CPU, a turn with modules compiled, recomputed or in 16 bits leaves a heap that changes the "
                               "time of the next turn; --turns runs avoids this", self._rank)
        self._turns.measures_peaks = self._turns.switches_within_ranks
        self._write(False)  # a job that is killed is not taken for one without training
        self._turns.begin(self._step)

    # Turns

    def next_block(self):
        self._n_blocks_left -= 1
        return self._names + self._names[::-1] if self._n_blocks_left >= 0 else None

    def turn_over(self, turn):
        if self._turns.is_block_over:
            if sys.stderr.isatty() and self._rank == 0:
                report.tell("verify: block %d of %d measured" % (turn["block"] + 1, self._n_blocks))
            self._write(self._n_blocks_left == 0)

    def left_out(self, name, problem):
        return False

    def turns_over(self, problem):
        self._end(problem, asks=problem is None)

    # The end

    def _end(self, problem, asks=True):
        models = self._turns.model_names
        failed = self._turns.stop(asks=asks)
        self._problem = problem or failed
        if self.off:  # ended meanwhile
            return
        self._write(self._problem is None, models)
        self._let_go()
        stop = os.environ.get("DPRO_VERIFY_STOP") == "1"
        if self._rank == 0 and problem is None:
            report.tell("verify: all is measured after step %d; the job %s" % (
                self._step, "ends" if stop else "goes on with its own buckets (Ctrl-C ends it, the result stays)"))
        if stop:
            time.sleep(0.3)  # gloo's threads let go of the last collectives; torch may abort if Python ends before
            sys.exit(0)

    def _write(self, complete, models=None):
        rank = ddp_plan.rank() if self._rank is None else self._rank
        if rank != 0 and os.environ.get("LOCAL_RANK") != "0":
            return
        import torch
        plan = applied.read(os.environ["DPRO_PLAN"])[0]
        verify_file.write(self._file, rank, {
            "plan": plan and plan.path, "complete": complete, "problem": self._problem,
            "framework_version": str(torch.__version__), "world_size": self._world_size,
            "models": self._turns.model_names if models is None else models,
            "steps": self._turns.n_steps, "settle": self._turns.n_settle, "blocks": self._n_blocks, "warmup": self.settings.warmup,
            "step": self._step, "asynchronous": on_gpu(), "turns": self._turns.turns, "warnings": report.warnings})

    def at_exit(self):
        if not self.off and os.getpid() == self._pid and self._n_events:
            self.off = True
            try:
                self._write(False)
            except Exception:
                pass  # dpro verify tells that there is nothing

    def write_failed(self, problem):
        self._problem = problem
        self._write(False)
