"""What a plan is worth where a running job can't change what the plan does, or would not be the same afterwards: each turn is a run of
the job, with the plan or without, and this process is of one of them. `dpro verify` starts them; it does the arithmetic (src/verify).

Steps are timed, and nothing else is on: no profiler, no log. A job that synchronises works at one pace, so that rank 0 speaks for all."""
import os
import statistics
import sys
import time

from . import applied, job_steps, loader_workers, memory, report, tensorflow_fusion, verify_file
from .settings import number, turn
from .turns import on_gpu

LEAVE_S = 0.3  # for threads of a backend to let go of the last collectives: torch may abort if Python ends before
LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE")  # variables of launchers
BEHIND = 2  # steps: with more of them still to be computed after the last, what a single one took says little


class Turn(verify_file.Timed):
    def __init__(self, settings):
        super().__init__(settings)
        self._file, self._name = os.environ["DPRO_VERIFY"], turn()
        self._block = number("DPRO_VERIFY_BLOCK", 0, 0)
        self._n_blocks = number("DPRO_VERIFY_BLOCKS", 4, 1)
        self._n_steps = number("DPRO_VERIFY_STEPS", 30, 1)
        self._rank = self._world_size = None  # until the first step
        self._least = 1  # the first step whose end is known to be one
        self._begin_ns = self._before_ns = self._faults = None
        self._step_ns = []
        self._measured = self._asynchronous = None  # when all steps are timed
        self._peak, self._n_peak_steps = None, 0

    def serve(self, name, server=None):
        verify_file.serve(self._file)

    # Steps

    def _step_ended(self, step, now_ns, frame):
        if self.off:
            return
        self._step, now = step, time.perf_counter_ns()
        if self._rank is None:
            self._rank, self._world_size, _ = self.job.place()
            if self._rank == 0 and number("DPRO_VERIFY_RUN", 1, 1) == 1:
                self._tell_steps()
        if self._measured is not None:
            self._peak_step()
        elif self._begin_ns is not None:
            self._step_ns.append(now - self._before_ns)
            if len(self._step_ns) == self._n_steps:
                self._timed(now)
        elif step >= max(self.settings.warmup, self._least):
            if on_gpu():
                self._peak = self.job.watch_peak(self._cycle.sources)
            self.job.settle()
            self._begin_ns, self._faults = time.perf_counter_ns(), memory.page_faults()
            now = self._begin_ns
        self._before_ns = now

    def _timed(self, last_ns):
        self.job.settle()
        end_ns = time.perf_counter_ns()
        self._asynchronous = end_ns - last_ns > BEHIND * statistics.median(self._step_ns)
        self._measured = {"block": self._block, "name": self._name, "first_step": self._step - self._n_steps + 1,
                          "span_ns": end_ns - self._begin_ns, "step_ns": self._step_ns,
                          "page_faults": memory.page_faults() - self._faults}
        if self._block == 0 and not on_gpu():  # in more steps: what a profiler leaves of the heap is not to be timed
            self._peak = self.job.watch_peak(self._cycle.sources)
        if not self._peak or not self._peak.n_steps:
            self._end()

    def _peak_step(self):
        self._peak.step_ended()
        self._n_peak_steps += 1
        if self._n_peak_steps == self._peak.n_steps:
            self._end()

    def _restart(self, step):
        """Another optimizer ends the steps than it seemed."""
        self._drop_peak()
        self._least, self._begin_ns, self._step_ns, self._measured, self._n_peak_steps = step + 1, None, [], None, 0

    def _drop_peak(self):
        peak, self._peak = self._peak, None
        if peak:
            peak.stop()

    def _tell_steps(self):
        report.tell("verify: each run " + job_steps.text(
            max(self.settings.warmup, self._least) + self._n_steps, job_steps.of_job(1),
            "run it longer, or choose fewer by --warmup and --steps"))

    # The end

    def _end(self):
        problem = self._problem()
        self._write_turn(problem)
        self._let_go()
        if self._rank == 0 and not problem:
            ns = self._measured["span_ns"] / self._n_steps if self._asynchronous else statistics.median(self._step_ns)
            report.tell("verify: %s: %.1f ms a step" % (self._name, ns / 1e6))
        if os.environ.get("DPRO_VERIFY_STOP") == "1":
            time.sleep(LEAVE_S)
            sys.exit(0)

    @staticmethod
    def _plan():
        return applied.read(os.environ["DPRO_PLAN"])[0] if os.environ.get("DPRO_PLAN") else None

    def _problem(self):
        """Why the job did not train with what the turn is of."""
        state, plan = self.job.plan() or {"applied": True}, self._plan()
        if tensorflow_fusion.problem():
            return tensorflow_fusion.problem()
        of_modules = state["applied"] and plan is not None and plan.of_modules and not plan.is_own
        if state["applied"] and not (of_modules and not any(state.get("modules", {}).values())):
            return None
        return "the plan is not applied%s: %s" % (" to modules" if of_modules else "", state["reason"])

    def _write_turn(self, problem):
        plan, peak = self._plan(), self._peak
        self._peak = None
        sizes = self.job.bucket_bytes() or (bucket.size_bytes for bucket in (plan.buckets if plan else ()))
        turn = dict(self._measured, peak_bytes=peak.bytes() if peak else None, bucket_bytes=list(sizes))
        self._write(problem, [] if problem else [turn], self._asynchronous)

    def _write(self, problem, turns=(), asynchronous=False):
        plan = self._plan()
        verify_file.write(self._file, self._rank, {
            "plan": plan and plan.path, "complete": problem is None, "problem": problem,
            "framework_version": self.job.versions().get(self.job.framework, self.job.versions().get("torch")),
            "world_size": self._world_size, "models": [], "steps": self._n_steps, "settle": 0, "blocks": self._n_blocks,
            "warmup": self.settings.warmup, "step": self._step, "asynchronous": asynchronous, "turns": list(turns), "uses": _uses(),
            "warnings": report.warnings})

    def at_exit(self):
        if self.off or os.getpid() != self._pid or self._rank is None:
            return
        self.off = True
        try:
            if self._measured is not None:  # but for the peak
                self._drop_peak()
                self._write_turn(self._problem())
                return
            self._write("the job ended after step %d, and a turn takes %d (%d to warm up, %d that are timed): run it longer, or choose "
                        "fewer by --warmup and --steps" % (self._step, max(self.settings.warmup, self._least) + self._n_steps,
                                                           self.settings.warmup, self._n_steps))
        except Exception:
            pass  # dpro verify tells that there is nothing

    def write_failed(self, problem):
        if self._rank is not None:
            self._write(problem)


def _uses():
    """What of the job has variables that could be tried (tune_restart.py)."""
    torch, dist = sys.modules.get("torch"), sys.modules.get("torch.distributed")
    carriers = [name for name in ("horovod", "byteps") if name in sys.modules]
    if dist is not None and dist.is_available() and dist.is_initialized() and dist.get_backend() == "nccl":
        carriers.append("nccl")
    loaders = sys.modules.get(loader_workers.MODULE)
    if "tensorflow.python.framework.func_graph" in sys.modules and torch is None:
        carriers.append("tensorflow")
    local = [os.environ[name] for name in LOCAL_RANKS if os.environ.get(name, "").isdigit()]
    return {"carriers": carriers, "cpus": len(os.sched_getaffinity(0)), "local_ranks": int(local[0]) if local else None,
            "threads": torch.get_num_threads() if torch is not None else None,
            "loader_workers": loader_workers.of_job(loaders) if loaders is not None else None}
