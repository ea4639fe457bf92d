"""What a plan is worth where a running job can't change how it communicates: each turn is a run of the job, with the plan or
without, and this process is of one of them. `dpro verify` starts them; it does the arithmetic (src/verify).

Steps are timed, and nothing else is on: no profiler, no log. A job that synchronises works at one pace, so that rank 0 speaks for all."""
import os
import statistics
import sys
import time

from . import applied, report, verify_file
from .session import Session
from .settings import number, turn

PEAK_STEPS = 2
BEHIND = 2  # steps: with more of them still to be computed after the last, what a single one took says little


class Turn(Session):
    """Takes from a Session how steps are found."""
    records = False

    def __init__(self, settings):
        super().__init__(settings)
        self._file, self._name = os.environ["DPRO_VERIFY"], turn()
        self._block = number("DPRO_VERIFY_BLOCK", 0, 0)
        self._n_blocks = number("DPRO_VERIFY_BLOCKS", 4, 1)
        self._n_steps = number("DPRO_VERIFY_STEPS", 30, 1)
        self._rank = self._world_size = None  # until the first step
        self._least = 1  # the first step whose end is known to be one
        self._begin_ns = self._before_ns = None
        self._step_ns = []
        self._peak = self._peak_bytes = None

    def serve(self, name, server=None):
        verify_file.serve(self._file)

    # Steps

    def _step_ended(self, step, now_ns, frame):
        if self.off:
            return
        self._step, now = step, time.perf_counter_ns()
        if self._rank is None:
            self._rank, self._world_size, _ = self.job.place()
        if self._begin_ns is not None:
            self._step_ns.append(now - self._before_ns)
            if len(self._step_ns) == self._n_steps:
                self._end(now)
        elif step >= max(self.settings.warmup, self._least):
            self._measure_peak(begins=True)
            self.job.settle()
            self._begin_ns = now = time.perf_counter_ns()
        elif step >= max(self.settings.warmup, self._least) - PEAK_STEPS:
            self._measure_peak()
        self._before_ns = now

    def _measure_peak(self, begins=False):
        """On a CPU in the last steps to warm up, on a GPU in those that are timed."""
        if self._peak is None and self._peak_bytes is None:
            self._peak = self.job.watch_peak(self._cycle.sources)
            if self._peak is not None and begins == (self._peak.n_steps > 0):
                self._peak.stop()
                self._peak = None
        elif self._peak is not None and self._peak.n_steps:
            self._peak.step_ended()
            if begins:
                self._peak_bytes, self._peak = self._peak.bytes(), None

    def _restart(self, step):
        """Another optimizer ends the steps than it seemed."""
        if self._peak:
            self._peak.stop()
            self._peak = None
        self._least, self._begin_ns, self._step_ns = step + 1, None, []

    # The end

    def _end(self, last_ns):
        self.job.settle()
        end_ns = time.perf_counter_ns()
        usual_ns = statistics.median(self._step_ns)
        asynchronous = end_ns - last_ns > BEHIND * usual_ns
        state = self.job.plan() or {"applied": True}
        plan = applied.read(os.environ["DPRO_PLAN"])[0] if state["applied"] and os.environ.get("DPRO_PLAN") else None
        measured = {"block": self._block, "name": self._name, "first_step": self._step - self._n_steps + 1,
                    "span_ns": end_ns - self._begin_ns, "step_ns": self._step_ns,
                    "peak_bytes": self._peak.bytes() if self._peak else self._peak_bytes,
                    "bucket_bytes": [bucket.size_bytes for bucket in plan.buckets] if plan else []}
        self._write(None if state["applied"] else "the plan is not applied: %s" % state["reason"],
                    [measured] if state["applied"] else [], asynchronous)
        self._let_go()
        if self._rank == 0 and state["applied"]:
            ms = (end_ns - self._begin_ns) / self._n_steps if asynchronous else usual_ns
            report.tell("verify: %s: %.1f ms a step" % (self._name, ms / 1e6))
        if os.environ.get("DPRO_VERIFY_STOP") == "1":
            sys.exit(0)

    def _write(self, problem, turns=(), asynchronous=False):
        plan = applied.read(os.environ["DPRO_PLAN"])[0] if os.environ.get("DPRO_PLAN") else None
        verify_file.write(self._file, self._rank, {
            "plan": plan and plan.path, "complete": problem is None, "problem": problem,
            "framework_version": self.job.versions().get(self.job.framework, self.job.versions().get("torch")),
            "world_size": self._world_size, "models": [], "steps": self._n_steps, "settle": 0, "blocks": self._n_blocks,
            "warmup": self.settings.warmup, "step": self._step, "asynchronous": asynchronous, "turns": list(turns),
            "warnings": report.warnings})

    def at_exit(self):
        if self.off or os.getpid() != self._pid or self._rank is None:
            return
        self.off = True
        try:
            self._write("the job ended after step %d, and a turn takes %d (%d to warm up, %d that are timed): run it longer, or choose "
                        "fewer by --warmup and --steps" % (self._step, max(self.settings.warmup, self._least) + self._n_steps,
                                                           self.settings.warmup, self._n_steps))
        except Exception:
            pass  # dpro verify tells that there is nothing

    def fail(self, problem):
        self.off = True
        what = "%s: %s" % (type(problem).__name__, str(problem).split("\n")[0])
        report.say("fail", "the verification ends, the job goes on: %s" % what)
        try:
            if self._rank is not None:
                self._write(what)
        except Exception:
            pass
        self._let_go()
