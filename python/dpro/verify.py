"""What a plan is worth, measured: the running job trains with its own buckets and with the plan's by turns, A B B A, so that
whatever drifts meanwhile cancels out. What `dpro verify` starts; it does the arithmetic (src/verify).

A turn begins with a new reducer (reducer.py) on all ranks after the same step, and a few steps that do not count: DDP
cuts its own buckets after the first, and new memory is touched. Nothing else is on: no profiler, no log. Rank 0 writes
the step times after each block of mirrored turns, so that a job which is stopped leaves what there is."""
import os
import sys
import time

from . import agreement, applied, job_steps, memory, planned, report, verify_file
from .session import Session
from .settings import number

BASELINE, PLAN = "baseline", "plan"


def _against():
    """What else is measured, by name: limits in MB that a person might try, and paths of other plans."""
    caps, plans = {}, {}
    for text in filter(None, os.environ.get("DPRO_VERIFY_AGAINST", "").split(",")):
        if os.path.isabs(text):
            plans["plan=%s" % os.path.basename(text)] = text
            continue
        try:
            cap = float(text)
        except ValueError:
            cap = 0.0
        if not 0 < cap < float("inf"):
            report.say("against", "DPRO_VERIFY_AGAINST: %s is no bucket size in MB and is left out" % text)
            continue
        caps["cap=%s" % text] = cap
    return caps, plans


class Verification(Session):
    """Takes from a Session how steps are found."""
    records = False

    def __init__(self, settings):
        super().__init__(settings)
        self._file = os.environ["DPRO_VERIFY"]
        self._n_steps = number("DPRO_VERIFY_STEPS", 6, 1)
        self._n_settle = number("DPRO_VERIFY_SETTLE", 2, 2)
        self._n_blocks = number("DPRO_VERIFY_BLOCKS", 8, 1)
        self._caps, self._plans = _against()
        self._plans[PLAN] = os.environ["DPRO_PLAN"]
        self._left, self._n_turns_block = [], 1  # turns to come; known when the plans are
        self._rank = self._world_size = None  # while there is a process group
        self._planned = None   # (model, layouts by plan) of each model that the plan is for
        self._now = BASELINE        # what the models have
        self._turns = []       # that are over
        self._n = 0            # steps of the one that runs
        self._begin_ns = self._before_ns = self._faults = 0
        self._turn_times = []
        self._names = []       # of models that have no DDP
        self._within_ranks = {}  # by plan: ways of its modules, and its number of micro-batches
        self._store = None     # by which ranks without DDP agree
        self._peak = None      # while it is measured
        self._problem = None

    # Steps

    def _step_ended(self, step, now_ns, frame):
        if self.off:
            return
        self._step = step
        if step == 1 and planned.rank() == 0:
            self._tell_steps()
        if self._planned is None:
            if step >= self.settings.warmup:
                self._begin()
            return
        now = time.perf_counter_ns()
        self._n += 1
        if self._n > self._n_settle + self._n_steps:
            self._peak_step()
            return
        if self._n > self._n_settle:
            self._turn_times.append(now - self._before_ns)
        if self._n == self._n_settle:
            now = self._begin_ns = self._device_done()
            self._faults = memory.page_faults()
            if self._on_gpu():
                self._peak = self.job.watch_peak(self._cycle.sources)
        elif self._n == self._n_settle + self._n_steps:
            self._end_turn(self._device_done())
            now = time.perf_counter_ns()
        self._before_ns = now

    def _restart(self, step):
        if self._planned:
            self._end("another optimizer turned out to end the steps (a longer --warmup lets it show before)")

    def _device_done(self):
        """The time at which all is computed."""
        self.job.settle()
        return time.perf_counter_ns()

    def _tell_steps(self):
        n_turns, warmup = 2 * (1 + len(self._caps) + len(self._plans)), max(self.settings.warmup, 1)
        block, peaks = n_turns * (self._n_settle + self._n_steps), 0
        if not self._on_gpu() and any(plan and plan.within_ranks for plan, *_ in map(applied.read, self._plans.values())):
            from . import peak
            peaks = n_turns * peak.OfCpu.n_steps
        has = job_steps.of_job(1)
        n_fit = (has[0] - warmup - peaks) // block if has else 0
        report.tell("verify: " + job_steps.text(
            warmup + self._n_blocks * block + peaks, has,
            ("run it longer, or take --blocks %d" % n_fit) if n_fit > 0 else "run it longer, or choose fewer by --warmup and --steps"))

    # Turns

    def _begin(self):
        self._rank, self._world_size = planned.rank(), planned.world_size()
        self._planned = []
        own = {name for name, path in self._plans.items() if planned.without_buckets(applied.read(path)[0])}  # the job's buckets
        for ddp in () if len(own) == len(self._plans) else planned.models():
            layouts = {} if PLAN in own else {PLAN: planned.prepare(ddp, self._plans[PLAN])[2]}
            if None not in layouts.values():
                self._planned.append((ddp, layouts))
        if self._planned or PLAN in own or not planned.models():
            problem = self._prepare_within_ranks()
            if problem:
                self._planned = []
                self._end(problem)
                return
        for name in [name for name in self._plans if name not in {PLAN, *own} and self._planned]:
            found = [planned.prepare(ddp, self._plans[name])[2] for ddp, _ in self._planned]
            if None in found:
                report.say("against-" + name, "%s is left out: it does not fit the job" % name, self._rank)
                continue
            for (_, layouts), layout in zip(self._planned, found):
                layouts[name] = layout
        there = {*self._within_ranks, *(self._planned[0][1] if self._planned else ())}
        names = [BASELINE, PLAN, *self._caps, *(name for name in self._plans if name != PLAN and name in there)]
        self._left = (names + names[::-1]) * self._n_blocks
        self._n_turns_block = 2 * len(names)
        if self._planned or PLAN in self._within_ranks:
            if any(applied.read(self._plans[name])[0].changes_heap for name in self._within_ranks) and not self._on_gpu():
                report.say("heap", "on a CPU, what a turn with modules that are computed otherwise leaves of the heap changes what "
                                   "the next one takes: with --turns runs it does not", self._rank)
            self._write(False)  # a job that is killed is not taken for one without training
            self._next_turn()
        else:
            self._end((applied.state("no DDP model") or {}).get("reason") or "the job has no DDP model")

    def _prepare_within_ranks(self):
        """What the plans say of modules and micro-batches; returns what keeps the job from it."""
        from . import computing, module_plan, recompute
        models = None
        for name, path in list(self._plans.items()):
            plan = applied.read(path)[0]
            if plan is None or not plan.within_ranks:
                continue
            models = models or self.job.find_models(self._cycle.sources)
            found, problem = module_plan.prepare(plan, models) if plan.of_modules else ((), None)
            if problem and name == PLAN:
                return problem
            if problem:
                report.say("against-" + name, "%s is left out: %s" % (name, problem), self._rank)
                del self._plans[name]
                continue
            self._within_ranks[name] = found, plan.memory.micro_batches
            self._names = [module_plan.name_of(module) for module in models]
        if self._within_ranks:
            self._store = module_plan.store_of(models)[0]
            recompute.when_given_up(self._gave_up)
            computing.when_failed(self._gave_up)
        return None

    def _gave_up(self, problem):
        """What turned out not to be possible: the ranks end when they ask each other the next time."""
        self._problem = problem

    def _next_turn(self):
        name = self._left.pop(0)
        if name != self._now:
            self._switch(name)
        self._n, self._turn_times = 0, []
        self._before_ns = time.perf_counter_ns()

    def _switch(self, name):
        for ddp, layouts in self._planned:
            problem = agreement.ask(agreement.TorchStore(ddp.process_group), "verify", "step %d: %s" % (self._step, name), self._problem)
            if problem:
                self._end(problem, restore=False)
                return
            if name in layouts:
                planned.change(ddp, layouts[name])
            else:
                planned.change(ddp, cap_mb=self._caps.get(name))
        if self._within_ranks:
            problem = None if self._planned else agreement.ask(
                self._store, "verify", "step %d: %s" % (self._step, name), self._problem)
            if problem:
                self._end(problem, restore=False)
                return
            self._switch_within_ranks(name)
        self._now = name

    def _switch_within_ranks(self, name):
        from . import batch_parts, module_plan
        found, n = self._within_ranks.get(name, ((), 1))
        module_plan.switch(found)
        batch_parts.choose(n)

    def _on_gpu(self):
        return sys.modules["torch"].cuda.is_initialized()

    def _end_turn(self, now_ns):
        from . import reducer
        n_faults = memory.page_faults() - self._faults
        self._turns.append({
            "block": len(self._turns) // self._n_turns_block, "name": self._now,
            "first_step": self._step - self._n_steps + 1, "span_ns": now_ns - self._begin_ns,
            "step_ns": self._turn_times, "page_faults": n_faults, "peak_bytes": None,
            "bucket_bytes": [size for ddp, _ in self._planned for size in reducer.bucket_bytes(ddp)]})
        if self._on_gpu() and self._peak:
            self._turns[-1]["peak_bytes"], self._peak = self._peak.bytes(), None
        elif self._within_ranks and len(self._turns) <= self._n_turns_block:  # one block is enough, and not among what is timed
            self._peak = self.job.watch_peak(self._cycle.sources)
        if self._peak is None:
            self._turn_is_over()

    def _peak_step(self):
        self._peak.step_ended()
        if self._n == self._n_settle + self._n_steps + self._peak.n_steps:
            peak, self._peak = self._peak, None
            self._turns[-1]["peak_bytes"] = peak.bytes()
            self._turn_is_over()

    def _turn_is_over(self):
        if len(self._turns) % self._n_turns_block == 0:
            if sys.stderr.isatty() and self._rank == 0:
                report.tell("verify: block %d of %d measured" % (len(self._turns) // self._n_turns_block, self._n_blocks))
            self._write(not self._left)
        if self._left:
            self._next_turn()
        else:
            self._end(None)

    # The end

    def _end(self, problem, restore=True):
        self._problem = self._problem or problem
        if self._peak:
            self._peak.stop()
            self._peak = None
        if restore and (self._planned or self._within_ranks) and self._now != BASELINE:
            self._switch(BASELINE)
        if self.off:  # ended meanwhile
            return
        if self._within_ranks:
            self._switch_within_ranks(BASELINE)
        self._write(problem is None)
        self._let_go()
        self._planned, self._within_ranks = [], {}
        stop = os.environ.get("DPRO_VERIFY_STOP") == "1"
        if self._rank == 0 and problem is None:
            report.tell("verify: all is measured after step %d; the job %s" % (
                self._step, "ends" if stop else "goes on with its own buckets (Ctrl-C ends it, the result stays)"))
        if stop:
            time.sleep(0.3)  # gloo's threads let go of the last collectives; torch may abort if Python ends before
            sys.exit(0)

    def _write(self, complete):
        rank = planned.rank() if self._rank is None else self._rank
        if rank != 0 and os.environ.get("LOCAL_RANK") != "0":
            return
        import torch
        from . import reducer
        plan = applied.read(os.environ["DPRO_PLAN"])[0]
        verify_file.write(self._file, rank, {
            "plan": plan and plan.path, "complete": complete, "problem": self._problem,
            "framework_version": str(torch.__version__), "world_size": self._world_size,
            "models": [reducer.name_of(ddp) for ddp, _ in self._planned or ()] or self._names,
            "steps": self._n_steps, "settle": self._n_settle, "blocks": self._n_blocks, "warmup": self.settings.warmup,
            "step": self._step, "asynchronous": torch.cuda.is_initialized(), "turns": self._turns,
            "warnings": report.warnings})

    def at_exit(self):
        if not self.off and os.getpid() == self._pid and self._n_events:
            self.off = True
            try:
                self._write(False)
            except Exception:
                pass  # dpro verify tells that there is nothing

    def fail(self, problem):
        self.off = True
        if isinstance(problem, agreement.Broken):
            raise problem
        self._problem = "%s: %s" % (type(problem).__name__, str(problem).split("\n")[0])
        report.say("fail", "the verification ends, the job goes on: %s" % self._problem)
        try:
            self._write(False)
        except Exception:
            pass
        self._let_go()
