"""What a plan says of modules, in the job: recomputed, compiled, in 16 bits, gathered again by FSDP. Decided at the first forward pass that
trains, when the models are as they will be, whatever carries the gradients. All ranks do it or none."""
import functools
import gc
import sys
import weakref

import torch
from torch.nn.modules import module as hooks

from . import agreement, applied, job, model, report
from .ddp_parameters import type_is

MOST_CALLS = 1 << 20  # of modules, without an optimizer: the job trains in a way of its own

_done = []  # weak references to models that were decided on


def _is_done(model):
    return any(ref() is model for ref in _done)


def attach(plan):
    """When torch.nn.modules.module is there, and torch itself is still being imported."""
    _Start(plan)


class _Start:
    def __init__(self, plan):
        self._plan, self._n_calls = plan, 0
        self._handle = hooks.register_module_forward_pre_hook(self._entered)

    def _entered(self, module, args):
        compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)  # which torch before 2.3 lacks
        if compiling() or not (module.training and torch.is_grad_enabled()):
            return
        self._n_calls += 1
        if self._n_calls & (self._n_calls - 1):  # to look for optimizers takes a while: at the 1st, 2nd, 4th, ... call
            return
        self._look()

    def _look(self):
        try:
            optimizers = optimizers_of_job()
            if optimizers or self._n_calls >= MOST_CALLS:
                self._handle.remove()
            if optimizers:
                use(self._plan, model.find(optimizers))
        except Exception as problem:
            if isinstance(problem, agreement.Broken) or report.is_the_jobs(problem):
                raise
            self._handle.remove()
            refuse(report.first_line(problem), _what(self._plan))


def optimizers_of_job():
    return [thing for thing in gc.get_objects() if type_is(thing, torch.optim.Optimizer)]


def refuse(problem, what="recomputed"):
    report.say("plan-" + what, "nothing is %s, the job runs on as it does: %s" % (what, problem), agreement.rank())
    applied.in_part(problem)


def _what(plan):
    """That modules are, in a word."""
    if plan.units and not plan.changes_heap:
        return "resharded otherwise"
    if not (plan.computing.compiled or plan.computing.bf16):
        return "recomputed"
    return "compiled or in 16 bits" if not plan.memory.recompute else "recomputed, compiled or in 16 bits"


def store_of(models):
    """By which the ranks that train these models agree; and why they can't, else None."""
    ddp_class = model.ddp_class()
    for module in models:
        if ddp_class and type_is(module, ddp_class):
            return agreement.TorchStore(module.process_group), None
    if "horovod.torch" in sys.modules:
        from . import horovod_plan
        store = horovod_plan.Rendezvous()
        return store, store.missing()
    return agreement.store_of_all(), None


def find(plan, models):
    """The ways (module_ways.py) of the modules that the plan names, and what speaks against them."""
    from . import computing, module_ways, recompute, sharding
    recomputed, problem = recompute.find(models, plan.memory.recompute)
    if problem:
        return [], problem
    units, problem = sharding.find(models, plan.units, plan.prefetch)
    if problem:
        return [], problem
    computed, problem = computing.find(models, plan.computing)
    for way in computed if not problem else ():
        inner = next((other.name for other in recomputed if module_ways.lies_in(other.name, way.name)), None)
        if inner is not None and way.compiles:
            problem = "%s can't be recomputed: it lies in %s, which is to be compiled" % (inner, way.name or "the model")
    return ([], problem) if problem else (recomputed + computed + units, None)


def prepare(plan, models):
    """Asks all ranks. Returns the ways, switched off; None when they can't be gone, and why."""
    from . import module_ways
    found, (store, problem) = None, store_of(models)
    if problem is None:
        try:
            problem = _unfit(plan, models)
            if problem is None:
                found, problem = find(plan, models)
        except Exception as failed:  # every rank has to answer
            problem = report.why(failed)
        problem = agreement.ask(store, "recompute", plan.digest, problem)
    if problem:
        return None, problem
    module_ways.prepare(_ways(found))
    return found, None


def _ways(found):
    from . import module_ways
    return [way for way in found if type_is(way, module_ways.Way)]


def switch(found):
    """These ways are gone from now on, and no others."""
    from . import computing, module_ways, sharding
    ways = _ways(found)
    module_ways.switch(ways)
    computing.switched(ways)
    sharding.switch([unit for unit in found if unit not in ways])


def _unfit(plan, models):
    world_size = max(agreement.world_size(), job.place()[1])
    if world_size != plan.world_size:
        return "it is for %d rank%s, this job has %d" % (plan.world_size, "s" if plan.world_size > 1 else "", world_size)
    return None


def use(plan, models):
    """Does what the plan says of modules, if all ranks can."""
    from . import recompute
    if applied.refused():  # which has been said, with the reason
        return
    if all(map(_is_done, models)):  # by dpro.apply
        return
    _done.extend(map(weakref.ref, models))
    found, problem = prepare(plan, models)
    if problem:
        refuse(problem, _what(plan))
        return
    if plan.is_own and not found:
        applied.keep_own(plan, agreement.rank())
        return
    recompute.when_given_up(functools.partial(_gave_up, found))
    switch(found)
    applied.tell_modules(plan, agreement.rank(), ", ".join(name_of(module) for module in models), found)


def _gave_up(found, problem):
    """Recomputing, which all ranks had agreed on."""
    refuse(problem)
    applied.left_out([way.name for way in found if "recompute" in way.keys], problem, ("recompute",))


def name_of(module):
    from . import modules
    return type(modules.inside(module)).__name__
