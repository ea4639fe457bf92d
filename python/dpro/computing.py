"""Modules that are computed otherwise, as a plan says: compiled (compiling.py), under autocast to bfloat16, or both. In training
only. Before a module is for the first time, it is tried (computing_trial.py); one that can't be runs as it is."""
import sys
import threading
import time

import torch
from torch.utils import _pytree

from . import agreement, applied, compiling, computing_trial, module_state, module_ways, report
from .ddp_parameters import type_is

_compiled = {}  # (forward, what its parameters are, shapes of the inputs) -> Compiled
_compiled_around = threading.local()  # modules in which the one that is called lies
_trials = None  # those of the modules that are on


class Computed(module_ways.Way):
    """A module that is compiled (`compiles`), in 16 bits (`bf16`), or both, while `on`."""
    order = 1

    def __init__(self, name, module, compiles, bf16):
        super().__init__(name, module)
        self.compiles, self.bf16 = compiles, bf16
        self.keys = ("compile",) * compiles + ("bf16",) * bf16
        self.tried, self.problem = False, None
        self._compiled = None
        self._device = next((p.device.type for p in module.parameters()), "cpu")

    def is_like(self, other):
        return type(other) is Computed and self.keys == other.keys

    def call(self, below, module, args, kwargs):
        if not self._applies(module, args, kwargs):
            return below(module, *args, **kwargs)
        if not self.tried:
            self._try(below, module, args, kwargs)
        elif _trials:
            _trials.end()
        if self.problem:
            return below(module, *args, **kwargs)
        try:
            return self._run(self._compiled or below, module, args, kwargs)
        except Exception as problem:
            if not report.is_out_of_memory(problem):
                raise
            self.problem = "%s ran out of memory: %s" % (self.name or "the model", report.first_line(problem))
        give_up(self.problem)  # behind the except: its traceback holds what was computed
        return below(module, *args, **kwargs)

    def _applies(self, module, args, kwargs):
        if not self.on or not module.training or getattr(_compiled_around, "n", 0):
            return False
        return module_ways.trains(args, kwargs)

    def _run(self, function, module, args, kwargs):
        _compiled_around.n = getattr(_compiled_around, "n", 0) + self.compiles
        try:
            return (in_bf16(function, self._device) if self.bf16 else function)(module, *args, **kwargs)
        finally:
            _compiled_around.n -= self.compiles

    def _try(self, below, module, args, kwargs):
        self.tried = True
        if _trials:
            _trials.begin()
        try:
            with module_ways.as_they_are():
                self.problem = self._look(below, module, args, kwargs)
        except Exception as problem:
            self.problem = report.why(problem)
        if self.problem:
            self.on, self._compiled = False, None
        if _trials:
            _trials.ended(self)

    def _look(self, below, module, args, kwargs):
        if self.bf16 and _autocasts(self._device):
            return "the job runs it under autocast itself"
        if not self.compiles:
            return computing_trial.look(below, lambda *a, **k: self._run(below, a[0], a[1:], k), module, args, kwargs, None, True)
        module_ways.compiled = True
        key = (below, tuple((name, p.shape, p.dtype, p.requires_grad) for name, p in module.named_parameters()),
               tuple(t.shape for t in module_state.tensors_in((args, kwargs))))
        problem = None
        for attempt in range(2):  # modules that differ in more than that are too many variants of one
            self._compiled = compiled = _compiled.get(key) if attempt == 0 else None
            if compiled is None:
                self._compiled = compiled = compiling.Compiled(below)
                _compiled.setdefault(key, compiled)
                attempt = 1
            found = []
            problem = compiled.tried(lambda: found.append(computing_trial.look(
                below, lambda *a, **k: self._run(compiled, a[0], a[1:], k), module, args, kwargs, compiled,
                self.bf16 or _autocasts(self._device))))
            problem = compiled.problem or found[0] or problem
            if problem is None or attempt:
                break
        return problem


def _autocasts(device):
    try:
        return torch.is_autocast_enabled(device)
    except TypeError:  # before torch 2.4
        return torch.is_autocast_enabled() if device == "cuda" else torch.is_autocast_cpu_enabled()


def in_bf16(function, device_type):
    def lower(*args, **kwargs):
        with torch.autocast(device_type, dtype=torch.bfloat16):
            result = function(*args, **kwargs)
        return _pytree.tree_map_only(torch.Tensor, lambda t: t.float() if t.dtype == torch.bfloat16 else t, result)
    return lower


class Trials:
    """Tells of modules that are tried, one after the other, in the first step with them: that takes longer than others."""

    def __init__(self, ways):
        self._n = sum(way.compiles for way in ways)
        self._left, self._ended = list(ways), []
        self._began = None

    def begin(self):
        if self._began is None:
            self._began = time.monotonic()
            if self._n and agreement.rank() == 0:
                report.tell("compiling %d module%s: this step takes longer" % (self._n, "s" if self._n > 1 else ""))

    def ended(self, way):
        self._ended.append(way)
        self._left = [other for other in self._left if other is not way]
        n_compiled = sum(other.compiles for other in self._ended)
        if self._left and way.compiles and agreement.rank() == 0 and sys.stderr.isatty():
            report.tell("compiled %d of %d modules" % (n_compiled, self._n))
        if not self._left:
            self.end()

    def end(self):
        """All were tried, or a step has begun again; the rest is not called."""
        global _trials
        if not self._ended:
            return
        _trials, rank = None, agreement.rank()
        failed = [way for way in self._ended if way.problem]
        n = sum(way.compiles and not way.problem for way in self._ended)
        problems = {}
        for way in failed:
            problems.setdefault(way.problem, []).append(way.name or "the model")
        text = "; ".join("%s: %s" % (_list(names), problem) for problem, names in problems.items())
        if self._n and rank == 0:
            report.tell("compiled %d of %d module%s in %.1f s" % (n, self._n, "s" if self._n > 1 else "", time.monotonic() - self._began))
        if failed:
            report.say("computing " + text, "%scomputed as without the plan: %s" % ("rank %d: " % rank if rank else "", text))
            applied.left_out([way.name for way in failed], text)
            if _when_failed and len(failed) == len(self._ended):
                _when_failed("nothing is compiled or in 16 bits as planned: " + text)


def _list(names):
    return ", ".join(names) if len(names) < 4 else "%s, %s, ... (%d modules)" % (*names[:2], len(names))


def give_up(problem):
    """What fails in the job's own step: from this call on modules are computed as the job does by itself. That ranks differ harms
    nothing: they communicate the same."""
    module_ways.stop(Computed)
    report.say("computing-memory", "modules are computed as without the plan from now on: %s" % problem, agreement.rank())
    if _when_failed:
        _when_failed(problem)


_when_failed = None


def when_failed(then):
    global _when_failed
    _when_failed = then


def find(models, computing):
    """The Computed of each module that a plan's `computing` names, switched off; and what speaks against it. Of those within each
    other in one list the outermost counts. One that is compiled may lie in one that is in 16 bits, and is so too then."""
    compiled = module_ways.outermost(list(dict.fromkeys(computing.compiled)))
    in_bf16 = [name for name in module_ways.outermost(list(dict.fromkeys(computing.bf16)))
               if not any(module_ways.lies_in(name, other) for other in compiled)]
    found = []
    for compiles, bf16, what in ((True, False, "compiled"), (False, True, "computed in bfloat16"), (True, True, "compiled")):
        of_kind = [name for name in dict.fromkeys([*compiled, *in_bf16]) if (name in compiled, name in in_bf16) == (compiles, bf16)]
        ways, problem = module_ways.find(models, of_kind, what, lambda module, _, bf16=bf16: _unfit(module, bf16),
                                         lambda name, module, way=(compiles, bf16): Computed(name, module, *way))
        if problem:
            return [], problem
        found += ways
    return found, None


def _unfit(module, bf16):
    if bf16:
        dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
        if dtypes - {torch.float32}:
            return "its parameters are %s" % ", ".join(sorted(str(dtype).replace("torch.", "") for dtype in dtypes))
    if not hasattr(torch, "compile"):
        return "this torch (%s) has no compiler" % torch.__version__
    return None


def switched(found):
    """These are on from now on."""
    global _trials
    untried = [way for way in found if type_is(way, Computed) and not way.tried]
    _trials = Trials(untried) if untried else None
