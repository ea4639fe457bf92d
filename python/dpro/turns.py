"""Strategies by turns: each trains the running job for some steps, so that what they take can be compared, and whatever drifts
meanwhile be told from what a strategy does. `dpro verify` and `dpro tune` take their turns here.

A turn begins with a new reducer (reducer.py) and with modules switched (module_plan.py), on all ranks after the same step, and a few
steps that do not count: DDP cuts its own buckets after the first, and new memory is touched. Ranks ask each other before they switch,
again before the first of what would have them wait for each other, and when they have switched: where one of them could not, all go
back to what the job does by itself. DDP keeps parameters the same on all ranks: if they differ after a turn, turns are over; so they are
if the gradients of a strategy's first step are not the mean of what the ranks computed (gradient_check.py)."""
import collections
import sys
import time

from . import agreement, applied, ddp_plan, job, memory, report

BASELINE = "baseline"
DIFFERS = "its parameters are no longer those of rank 0"
PEAK_DOUBT = 0.1  # of a peak: twice what its predictions were off by at most (doc/accuracy.md), as allocators need more than is asked for

Strategy = collections.namedtuple("Strategy", "name path cap_mb", defaults=(None, None))
Strategy.__doc__ = """`path`: of a plan; `cap_mb`: of DDP's own buckets. With neither it is the job as it is."""


def on_gpu():
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


class Turns:
    """Of a session, which has `job` and `sources`, and is asked:

    next_block()             names of the strategies whose turns come next, in order, the same on all ranks; None: no more
    turn_over(turn)          a turn has been measured
    left_out(name, problem)  this strategy can't be had; whether to go on without it, in this block, too
    turns_over(problem)      there are no more"""

    def __init__(self, session, n_steps, n_settle):
        self._session = session
        self.n_steps, self.n_settle = n_steps, n_settle
        self.turns = []             # that are over
        self.compile_ns = []        # steps in which some rank compiled
        self.now = BASELINE         # what the job trains with
        self.measures_peaks = False  # of memory of all on a CPU, behind their first turns
        self._models = []           # (DDP model, layouts by strategy) of each model that is switched
        self._caps = {}             # by strategy
        self._paths = {}            # of plans, by strategy
        self._compares = False      # parameters of ranks, which are the same as the job runs
        self._within_ranks = {}     # by strategy: ways of its modules, and its number of micro-batches
        self._compiles = False      # in the next step
        self._names = []            # of models that have no DDP
        self._store = None          # by which ranks without DDP agree
        self._left = []             # turns of the block to come
        self._peaks = set()         # strategies whose peak was measured
        self._n_blocks = 0
        self._step = self._n = 0    # steps of the job, and of the turn
        self._begin_ns = self._before_ns = self._faults = 0
        self._times = None          # of the turn's steps; before the first turn: None
        self._gradients, self._checks = {}, []  # what was found of each strategy, of each model; while it is found
        self._peak = None           # while it is measured
        self._watch = None          # of backward passes, in the first steps of a strategy
        self._watched = {BASELINE}  # strategies that had them
        self._problem = None        # what the strategy that trains turned out not to do
        self._own_peak = 0          # the most that a GPU's allocator has given the job as it is

    # What there is to switch

    def prepare(self, strategies):
        """Asks all ranks whether they can have these. Returns why not, by name."""
        problems, self._caps = {}, {s.name: s.cap_mb for s in strategies if s.cap_mb is not None}
        plans = self._paths = {s.name: s.path for s in strategies if s.path}
        own = {name for name, path in plans.items() if ddp_plan.without_buckets(applied.read(path)[0])}  # the job's buckets
        layouts = {id(ddp): {} for ddp in ddp_plan.models()}
        for name, path in plans.items():
            for ddp in ddp_plan.models() if name not in own else ():
                *_, layouts[id(ddp)][name], problem = ddp_plan.prepare(ddp, path)
                if problem:
                    problems[name] = problem
        for ddp in ddp_plan.models():
            found = {name: layout for name, layout in layouts[id(ddp)].items() if layout}
            if found:
                self._models.append((ddp, found))
        fits = own.union(*(found for _, found in self._models)) if ddp_plan.models() else set(plans)
        problems = {name: problem for name, problem in problems.items() if name not in fits}
        for name in plans:
            problem = self._prepare_within_ranks(name, plans[name]) if name in fits else None
            if problem:
                problems[name] = problem
            elif name not in problems and name not in self._within_ranks and not any(name in found for _, found in self._models):
                problems[name] = applied.read(plans[name])[1] or "the job has no DDP model"
        if not self._models:
            problems.update(dict.fromkeys(self._caps, "the job has no DDP model that a plan fits"))
        self._compares = True
        self._compares = bool(self._models) and self._ask("own", other=DIFFERS) is None
        return problems

    def _prepare_within_ranks(self, name, path):
        """What the plan says of modules and micro-batches; returns what keeps the job from it."""
        from . import computing, module_plan, recompute
        plan = applied.read(path)[0]
        if plan is None or not plan.within_ranks:
            return None
        models = self._session.job.find_models(self._session.sources)
        found, problem = module_plan.prepare(plan, models) if plan.of_modules else ((), None)
        if problem:
            return problem
        if not self._within_ranks:
            self._names = [module_plan.name_of(module) for module in models]
            self._store = module_plan.store_of(models)[0]
            recompute.when_given_up(self._gave_up)
            computing.when_failed(self._gave_up)
        self._within_ranks[name] = found, plan.memory.micro_batches
        return None

    def _gave_up(self, problem):
        """What turned out not to be possible: the ranks learn of it when they ask each other the next time."""
        self._problem = problem

    def _begin_watch(self):
        """Memory runs out in the first steps of a strategy, if ever."""
        if self.now not in self._watched:
            from . import backward_again
            self._watched.add(self.now)
            self._watch = backward_again.watch(self._session.job.find_models(self._session.sources), self._gave_up)

    def _end_watch(self):
        watch, self._watch = self._watch, None
        if watch:
            watch.stop()

    def knows(self, name):
        """Whether the job can be switched to it."""
        return name == BASELINE or name in self._within_ranks or name in self._caps or any(name in found for _, found in self._models)

    def changes_heap(self, paths):
        return not on_gpu() and any(applied.read(paths[name])[0].changes_heap for name in self._within_ranks)

    @property
    def switches_within_ranks(self):
        return bool(self._within_ranks)

    @property
    def model_names(self):
        from . import reducer
        return [reducer.name_of(ddp) for ddp, _ in self._models] or self._names

    # Switching

    def _ask(self, what, problem=None, other=agreement.OTHER):
        from . import reducer
        if self._compares and other == DIFFERS:
            what += ", %x" % sum(reducer.digest(ddp) for ddp, _ in self._models)
        stores = [agreement.TorchStore(ddp.process_group) for ddp, _ in self._models] or ([self._store] if self._store else [])
        return next(filter(None, [agreement.ask(store, "turns", what, problem, other) for store in stores]), None)

    def switch(self, name):
        """To what all ranks train with from now on. Returns None, or the name of the strategy that does not go, and why; the job is
        as it was before or, where some rank could not make it, as it is by itself."""
        before = self.now
        self._end_watch()
        problem, self._problem = self._ask("step %d: %s" % (self._step, name), self._problem, DIFFERS), None
        if problem:
            return before, problem
        for half in (self._make, self._cut):
            problem = self._ask("step %d: %s of %s" % (self._step, half.__name__, name), self._tried(half, name))
            if problem:
                self._back()
                return name, problem
            if not any(name in layouts for _, layouts in self._models):
                break  # it is whole
        self.now = name
        return None

    @staticmethod
    def _tried(half, name):
        try:
            half(name)
        except Exception as problem:
            return report.why(problem)
        return None

    def _make(self, name):
        """What each rank does by itself."""
        from . import reducer
        self._check_memory(applied.read(self._paths[name])[0] if name in self._paths else None)
        for ddp, layouts in self._models:
            if name in layouts:
                reducer.make_layout(ddp, layouts[name])
            else:
                reducer.set_cap(ddp, self._caps.get(name))
        self._switch_within_ranks(name)

    def _cut(self, name):
        for ddp, layouts in self._models:
            if name in layouts:
                ddp_plan.cut(ddp, layouts[name])

    def _check_memory(self, plan):
        """Not every backward pass that runs out of memory can be made again (backward_again.py), and then the job ends: other ranks wait
        for gradients that were half computed. So a plan needs room for what it is expected to hold more than the job, and for what
        that may be off by."""
        cuda = on_gpu() and sys.modules["torch"].cuda
        if cuda and self.now == BASELINE:
            self._own_peak = max(self._own_peak, cuda.max_memory_allocated())
        if plan is None or not (plan.memory.peak_bytes and plan.memory.baseline_peak_bytes):
            return
        more, doubt = plan.memory.peak_bytes - plan.memory.baseline_peak_bytes, int(PEAK_DOUBT * plan.memory.peak_bytes)
        left = max(cuda.mem_get_info()[0] + cuda.memory_reserved() - self._own_peak if cuda else memory.room(job.n_local()), 0)
        if more + doubt > left:
            raise MemoryError("it is expected to hold %s %s than the job, give or take %s, and %s has %s left" % (
                applied.size_text(abs(more)), "more" if more >= 0 else "less", applied.size_text(doubt),
                "the GPU" if cuda else "a rank here", applied.size_text(left)))

    def _back(self):
        """A rank that can't do this either has no reducer any more: ddp_plan.change raises Broken."""
        for ddp, _ in self._models:
            ddp_plan.change(ddp)
        self._switch_within_ranks(BASELINE)
        self.now = BASELINE

    def _switch_within_ranks(self, name):
        if self._within_ranks:
            from . import batch_parts, module_plan
            found, n = self._within_ranks.get(name, ((), 1))
            self._compiles = any(getattr(way, "compiles", False) and not way.tried for way in found)
            module_plan.switch(found)
            batch_parts.choose(n)

    def stop(self, name=BASELINE, asks=True):
        """Turns are over; the job goes on with that strategy. Returns what keeps it from that. `asks`: the other ranks, without whom
        only what is each rank's own business changes."""
        if self._peak:
            self._peak.stop()
            self._peak = None
        self._end_watch()
        for check in self._checks:
            check.stop()
        problem, self._checks = None, []
        if name != self.now:
            failed = self.switch(name) if asks else (name, None)
            if failed:
                self._switch_within_ranks(BASELINE)
                problem = failed[1]
        self._models, self._within_ranks = [], {}
        return problem

    # Steps

    def begin(self, step):
        self._step = step
        if not self._next_block():
            return
        if self._left[0] != BASELINE:  # which all others are compared with
            self._begin_check()
        if not self._checks:
            self._next_turn()

    def stepped(self, step):
        now = time.perf_counter_ns()
        self._step = step
        if self._checks:
            missing = self._ask("step %d" % step)  # a rank that has joined, without inputs left, does not communicate as the others
            if missing:
                self._session.turns_over(missing)
                return
            wrong = self._end_check()
            if wrong:
                self._ruined(self.now, wrong, "a step", "", step)
                return
            if self._times is None:
                self._next_turn()
                return
        self._n += 1
        if self._compiles:
            self._compiles = False
            self.compile_ns.append(now - self._before_ns)
        if self._n > self.n_settle + self.n_steps:
            self._peak_step()
            return
        if self._n > self.n_settle:
            self._times.append(now - self._before_ns)
        if self._n == self.n_settle:
            if not self._problem:  # else it may come again
                self._end_watch()
            now = self._begin_ns = self._device_done()
            self._faults = memory.page_faults()
            if on_gpu():
                self._peak = self._watch_peak()
        elif self._n == self.n_settle + self.n_steps:
            self._end_turn(self._device_done())
            now = time.perf_counter_ns()
        self._before_ns = now

    def _watch_peak(self):
        return self._session.job.watch_peak(self._session.sources)

    def _device_done(self):
        """The time at which all is computed."""
        self._session.job.settle()
        return time.perf_counter_ns()

    def _next_turn(self):
        while True:
            if not self._left and not self._next_block():
                return
            failed = self.switch(self._left[0]) if self._left[0] != self.now else None
            if failed is None:
                break
            if failed[1].endswith(DIFFERS):
                if failed[0] == BASELINE:  # the job's own doing
                    self._compares = False
                    continue
                self._ruined(*failed, "steps", ", which they were before",
                             self.turns[-1]["first_step"] - self.n_settle if self.turns else self._step)
                return
            if failed[0] == BASELINE or not self._session.left_out(*failed) or (self.now != BASELINE and self.switch(BASELINE)):
                self._session.turns_over(failed[1])
                return
            self._left = [name for name in self._left if name != failed[0]]
        del self._left[0]
        self._n, self._times = 0, []
        self._begin_check()
        self._begin_watch()
        self._before_ns = time.perf_counter_ns()

    def _begin_check(self):
        if self._compares and self.now not in self._gradients and (self.now == BASELINE or BASELINE in self._gradients):
            from . import gradient_check
            self._checks = [gradient_check.Check(ddp) for ddp, _ in self._models]

    def _end_check(self):
        """What is wrong with the gradients of the step that is over, the same on all ranks."""
        from . import gradient_check
        checks, self._checks = self._checks, []
        self._gradients[self.now] = found = [check.end() for check in checks]
        wrong = next(filter(None, map(gradient_check.differs, self._gradients[BASELINE], found)), None)
        return self._ask("gradients of %s" % self.now, wrong) if self.now != BASELINE else None

    def _ruined(self, name, problem, after, more, step):
        """The job is no longer what it was before that step."""
        self._session.left_out(name, problem)
        self._back()
        self._session.turns_over("after %s with %s, %s%s: checkpoints from before step %d are sound" % (after, name, problem, more, step))

    def _next_block(self):
        names = self._session.next_block()
        if names is None:
            self._session.turns_over(None)
            return False
        self._left = list(names)
        self._n_blocks += 1
        return True

    def _end_turn(self, now_ns):
        from . import reducer
        self.turns.append({
            "block": self._n_blocks - 1, "name": self.now,
            "first_step": self._step - self.n_steps + 1, "span_ns": now_ns - self._begin_ns,
            "step_ns": self._times, "page_faults": memory.page_faults() - self._faults, "peak_bytes": None,
            "bucket_bytes": [size for ddp, _ in self._models for size in reducer.bucket_bytes(ddp)]})
        if on_gpu() and self._peak:
            self.turns[-1]["peak_bytes"], self._peak = self._peak.bytes(), None
        elif self._wants_peak():  # not among what is timed
            self._peaks.add(self.now)
            self._peak = self._watch_peak()
        if self._peak is None:
            self._turn_is_over()

    def _wants_peak(self):
        """On a CPU, where that takes two more steps under a profiler: once of what may hold more or less than the job, and of the job,
        if the first block has not put it out."""
        if self.now in self._peaks or on_gpu():
            return False
        return self.measures_peaks or self._n_blocks > 1 and bool(self._within_ranks) and self.now in (BASELINE, *self._within_ranks)

    def _peak_step(self):
        self._peak.step_ended()
        if self._n == self.n_settle + self.n_steps + self._peak.n_steps:
            peak, self._peak = self._peak, None
            self.turns[-1]["peak_bytes"] = peak.bytes()
            self._turn_is_over()

    def _turn_is_over(self):
        self._session.turn_over(self.turns[-1])
        self._next_turn()

    @property
    def is_block_over(self):
        return not self._left
