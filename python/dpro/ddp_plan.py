"""A plan in a job of DDP: its models are given the plan's buckets when they are made, or by `dpro.apply`.

All ranks do it or none (agreement.py). A plan that can't be used, for whatever reason, is told in one line, and the job
goes on as it would without."""
import functools
import os
import sys
import weakref

from . import applied, report, settings
from .agreement import Broken, rank, world_size
from .report import say

DDP_MODULE = "torch.nn.parallel.distributed"

STACK = "ddp"

_made = []  # weak references to the job's DDP models


def _guarded(function):
    @functools.wraps(function)
    def safely(*args):
        try:
            return function(*args)
        except Exception as problem:
            if isinstance(problem, Broken) or report.is_the_jobs(problem):
                raise
            _refuse(report.first_line(problem))
            return None
    return safely


def attach(module):
    """To the module of DDP: a model is given the plan's buckets at the end of its making."""
    ddp_class = module.DistributedDataParallel
    init = ddp_class.__init__

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        _constructed(self)

    ddp_class.__init__ = __init__
    _watch_hooks(ddp_class)


def _watch_hooks(ddp_class):
    from . import reducer
    reducer.watch_hooks(ddp_class, lambda ddp, name: _tell_left_out(name))


@_guarded
def _constructed(ddp):
    if ddp in models():  # a class of the job's that calls the constructor twice
        return
    _made.append(weakref.ref(ddp))
    path = os.environ.get("DPRO_PLAN")
    if settings.cap_mb() is not None:
        _cap(ddp, settings.cap_mb())
    elif path and not settings.verifying() and not without_buckets(applied.read(path)[0], ddp):
        use(ddp, path)


def _cap(ddp, cap_mb):
    from . import reducer
    problem = reducer.unfit(ddp)
    if problem:
        _refuse(problem)
    else:
        change(ddp, cap_mb=cap_mb)


def without_buckets(plan, ddp=None):
    """Whether it says nothing of communication, or nothing is communicated: module_plan.py does the rest."""
    if plan is None or not plan.within_ranks:
        return False
    return not plan.buckets or plan.world_size == 1 and (ddp is None or ddp.process_group.size() == 1)


def use(ddp, path):
    """Gives the model the plan's buckets, if all ranks can. Returns whether it did."""
    from . import reducer
    plan = applied.read(path)[0]
    if plan is not None and plan.keeps_all:
        applied.keep_own(plan, rank())
        return False
    plan, parameters, layout, problem = prepare(ddp, path)
    if problem:
        _refuse(problem, path)
        return False
    _watch_hooks(_base(type(ddp)))
    change(ddp, layout)
    more = ", up to %d partitions" % max(layout.partitions) if max(layout.partitions) > 1 else ""
    more += ", sent as %s" % layout.compression if layout.compression != "none" else ""
    sizes = [sum(parameters.sizes[i] for i in bucket) for bucket in layout.buckets]
    applied.tell(plan, rank(), reducer.name_of(ddp), sizes, more=more)
    return True


def change(ddp, layout=None, cap_mb=None):
    """Gives the model a layout's buckets, or DDP's, when all ranks have agreed on it."""
    from . import reducer
    try:
        if layout is None:
            reducer.set_cap(ddp, cap_mb)
            return
        reducer.make_layout(ddp, layout)
        cut(ddp, layout)
    except Exception as problem:
        raise Broken("dpro: rank %d could not make the buckets that all ranks had agreed on; run the job without the plan"
                     % rank()) from problem


def cut(ddp, layout):
    from . import reducer
    other = reducer.cut_layout(ddp, layout)
    if other:
        say("plan-buckets", "DDP can't make all of the plan's buckets, the nearest are used: %s" % other, rank())


def prepare(ddp, path):
    """Asks all ranks of the model's group. Returns the plan, the model's parameters, the plan's layout of them, and None; or three
    times None and why it can't be used."""
    import torch.distributed as dist
    from . import agreement, reducer
    plan, problem = applied.read_for(STACK, path)
    parameters = layout = None
    try:
        if plan is not None:
            parameters, layout, problem = _fit(plan, ddp)
    except Exception as failed:  # every rank has to answer
        problem = report.why(failed)
    if dist.get_world_size(ddp.process_group) == 1:
        problem = problem or "there is one process only"
    problem = agreement.ask(agreement.TorchStore(ddp.process_group), "plan", plan.digest if plan else "", problem)
    if problem:
        return None, None, None, problem
    layout.plan = plan
    if layout.needs_hook and reducer.hook_of(ddp):
        _tell_left_out(reducer.hook_of(ddp))
    return plan, parameters, layout, None


def _base(ddp_class):
    return next(c for c in ddp_class.__mro__ if c.__module__ == DDP_MODULE)


def models():
    """The DDP models of the job that were made since dpro is in it, as they were made."""
    return [ddp for ddp in (ref() for ref in _made) if ddp is not None]


def _refuse(problem, path=None):
    applied.refuse(problem, rank(), path)


def _tell_left_out(hook):
    say("plan-hook", "the job has a communication hook of its own (%s): the plan's buckets are used, its partitions, "
                     "priorities and compression are left out" % hook, rank())


def _fit(plan, ddp):
    """The model's parameters, the plan's layout of them, and what speaks against it."""
    import torch.distributed as dist
    from . import reducer
    world_size = dist.get_world_size()
    if world_size != plan.world_size:
        return None, None, "it is for %d ranks, this job has %d" % (plan.world_size, world_size)
    problem = reducer.unfit(ddp)
    if problem:
        return None, None, problem
    parameters = reducer.Parameters(ddp)
    here = dict(zip(parameters.names, parameters.sizes))
    if len(here) != len(parameters.names):
        return None, None, "the model has several parameters of one name"
    number = _model(plan, here, _alike_before(ddp, here))
    ratios = {size / here[name] for name, size in plan.models[number][1].items() if here.get(name)}
    if len(ratios) == 1:  # else than 1 where a hook of the job's sends them in fewer bits, as was recorded
        here = {name: size * min(ratios) for name, size in here.items()}
    problem = _difference(plan.models[number], reducer.name_of(ddp), here)
    if problem is None and plan.of_modules and len(plan.models) == 1:
        from . import module_plan
        problem = module_plan.find(plan, [ddp])[1]
    if problem:
        return None, None, problem
    numbers = {name: n for n, name in enumerate(parameters.names)}
    buckets = [bucket for bucket in plan.buckets if bucket.model == number]
    lowest = min(bucket.priority for bucket in buckets)
    layout = reducer.Layout([[numbers[name] for name in bucket.names] for bucket in buckets],
                            [bucket.partitions for bucket in buckets],
                            [bucket.priority > lowest for bucket in buckets], plan.compression)
    return parameters, layout, reducer.unfit_layout(parameters, layout)


def _model(plan, here, n_before=0):
    """The plan's model that is most like this one; of several that are alike the one after those before it."""
    def likeness(n):
        sizes = plan.models[n][1]
        return (sum(here.get(name) == size for name, size in sizes.items()), -len(sizes))
    most = max(map(likeness, range(len(plan.models))))
    alike = [n for n in range(len(plan.models)) if likeness(n) == most]
    return alike[min(n_before, len(alike) - 1)]


def _alike_before(ddp, here):
    """How many of the job's models with the same parameters were made before this one."""
    from . import reducer
    earlier = models()
    earlier = [other for other in earlier[:next((n for n, other in enumerate(earlier) if other is ddp), 0)] if reducer.unfit(other) is None]
    return sum(dict(zip(one.names, one.sizes)) == here for one in map(reducer.Parameters, earlier))


def _difference(model, name_here, here):
    name, sizes = model
    for parameter, size in sizes.items():
        if parameter not in here:
            return "it is for another model (%s): %s here has no parameter %s to reduce" % (name, name_here, parameter)
        if here[parameter] != size:
            return "it is for another model (%s): its parameter %s has %d bytes, here it has %d" % (name, parameter, size, here[parameter])
    for parameter in here:
        if parameter not in sizes:
            return "it is for another model (%s): it does not know parameter %s of %s" % (name, parameter, name_here)
    return None


def apply(model, path):
    """dpro.apply."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    if not isinstance(model, torch.nn.Module):
        from . import Error
        raise Error("apply() takes a torch.nn.Module and the folder of a plan")
    if not isinstance(model, DistributedDataParallel):
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            plan = applied.read(os.fspath(path))[0]
            if plan is not None and plan.of_modules:
                _use_modules(plan, model)
                return model
            _refuse("this job has no other ranks (dist.init_process_group comes before dpro.apply)", path)
            return model
        device = next(model.parameters()).device
        model = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device])
    _apply(model, path)
    return model


@_guarded
def _apply(ddp, path):
    from . import reducer
    layout, (plan, _) = reducer.layout_of(ddp), applied.read(os.fspath(path))
    if plan is not None and plan.of_modules and (without_buckets(plan, ddp) or layout or use(ddp, path)):
        _use_modules(plan, ddp)
    elif layout is None:
        use(ddp, path)
    elif plan is None or plan.path != layout.plan.path:
        say("plan-twice", "dpro.apply: the model has the plan %s already, which is kept" % layout.plan.path, rank())


@_guarded
def _use_modules(plan, model):
    from . import module_plan
    module_plan.use(plan, [model])


def _advise(memory):
    from . import batch_parts
    if batch_parts.used:
        return
    sizes, peaks = (memory.peak_bytes, memory.baseline_peak_bytes), ""
    if all(sizes):
        peaks = "; expected with it: a peak of %s instead of %s" % tuple(map(applied.size_text, sizes))
    problem = "its %d micro-batches take a line in the script, 'for x, y in dpro.micro_batches(model, x, y):' around forward " \
              "and backward%s" % (memory.micro_batches, peaks)
    say("plan-micro-batches", "the plan is applied in part: " + problem, rank())
    applied.in_part(problem)


class FirstStep:
    """The hook that tells a job without DDP, when it trains, that there is nothing to apply a plan to."""

    def __init__(self, optimizers):
        register = getattr(optimizers, "register_optimizer_step_post_hook", None)
        self._handle = register(self._stepped) if register else None

    def _stepped(self, optimizer, args, kwargs):
        self._handle.remove()
        plan = applied.read(os.environ["DPRO_PLAN"])[0]
        if plan and plan.memory.micro_batches > 1:
            _advise(plan.memory)
        elif plan and plan.keeps_all:
            if not _made:  # a DDP model has told of it
                applied.keep_own(plan, rank())
        elif not _made and "horovod.torch" not in sys.modules and not (plan and plan.within_ranks):
            _refuse("%s; a plan is for the gradients of DistributedDataParallel"
                    % ("the job is a single process" if world_size() == 1 else "it has no DDP model"))

    def keep_out_of(self, dynamo):
        """What we do is not to be compiled with the job."""
        hooks = self._handle.hooks_dict_ref() if self._handle else {}
        if self._handle and self._handle.id in hooks:
            hooks[self._handle.id] = dynamo.disable(self._stepped)
