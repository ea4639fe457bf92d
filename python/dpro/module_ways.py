"""Modules of an unchanged script whose forward goes another way while that is switched on: recomputed (recompute.py), compiled
or in 16 bits (computing.py).

The forward of a module's class is wrapped, and lets each module that is wanted go through its ways, the outermost first;
others, copies of such a module included, go as ever. So a model is pickled and copied as without."""
import contextlib
import functools
import threading
import types
import weakref

import torch

from . import module_marks, module_state, modules
from .ddp_parameters import type_is

compiled = False  # something of the job is compiled by us
_wanted = {}  # id of a module: its ways
_as_they_are = threading.local()


class Way:
    """How a module is computed while `on`. call(below, module, args, kwargs) stands for below(module, *args, **kwargs)."""
    order = 0  # smaller: outside of others
    keys = ()  # what it is, as rank.json names it

    def __init__(self, name, module):
        self.name, self.on = name, False
        self.module = weakref.ref(module, lambda _, key=id(module), forget=_wanted.pop: forget(key, None))  # globals go before at the end

    def is_for(self, module):
        return self.module() is module

    def call(self, below, module, args, kwargs):
        raise NotImplementedError


@contextlib.contextmanager
def as_they_are():
    """Modules that are called meanwhile, by this thread, go no way of ours."""
    n = getattr(_as_they_are, "n", 0)
    _as_they_are.n = n + 1
    try:
        yield
    finally:
        _as_they_are.n = n


def _called(ways, own, module, args, kwargs):
    below = own
    if not getattr(_as_they_are, "n", 0):
        for way in reversed(ways):
            if way.on:
                below = functools.partial(_through, way, below)
    return below(module, *args, **kwargs)


def _through(way, below, module, *args, **kwargs):
    return way.call(below, module, args, kwargs)


def _wrap(cls):
    """The class's forward. The wrapper has the globals of what it wraps, in which TorchScript looks for names."""
    own = cls.forward
    if getattr(own, "_dpro", None) is cls:
        return
    compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)  # which torch before 2.3 lacks
    wanted, key_of, type_of, called = _wanted, id, type, _called

    def forward(self, *args, **kwargs):
        if compiling() or key_of(self) not in wanted or type_of(self) is not cls:
            return own(self, *args, **kwargs)
        return called(wanted[key_of(self)], own, self, args, kwargs)

    wrapped = functools.wraps(own)(types.FunctionType(forward.__code__, own.__globals__, own.__name__, None, forward.__closure__))
    wrapped._dpro = cls
    cls.forward = wrapped


def lies_in(name, other):
    return name != other and (name.startswith(other + ".") or other == "" or other.endswith("/") and name.startswith(other))


def outermost(names):
    """Those that lie in none of the others."""
    return [name for name in names if not any(lies_in(name, other) for other in names)]


def find(models, names, what, unfit, make):
    """A way of each of these modules, but of those within each other, switched off, and what speaks against it. unfit(module,
    around it) says why one can't be `what`; make(name, module) is its way, where it has none of this kind."""
    there, found, around = dict(modules.of_models(models)), [], modules.Around(models)
    for name in outermost(names):
        if name not in there:
            return [], "the model has no module %s to be %s" % (name, what)
        module = there[name]
        problem = _unfit(module, around.of(module)) or unfit(module, around.of(module))
        if problem:
            return [], "%s can't be %s: %s" % (name or "the model", what, problem)
        made = make(name, module)
        found.append(next((way for way in _wanted.get(id(module), ()) if way.is_for(module) and way.is_like(made)), made))
    return found, None


def _unfit(module, around):
    """Why a module can go no way of ours, None where nothing is known to speak against it; `around`: what it lies in and holds."""
    if "forward" in module.__dict__ or not isinstance(getattr(type(module), "forward", None), types.FunctionType):
        return "its forward is no method of its class"
    return entangled(module, around)


def entangled(module, around):
    """What takes part in a call of a module, or is done by it, beyond its own computation."""
    if module_marks.anything_compiled() and not compiled or modules.any_compiled(around):
        return "it is compiled"
    if modules.any_sharded(around):
        return "FSDP has wrapped it"
    if modules.any_replicated(around):
        return "DataParallel copies it"
    for part in module.modules():
        if type_is(part, torch.jit.ScriptModule):
            return "it is compiled by TorchScript"
        if type_is(part, torch.nn.SyncBatchNorm):
            return "its SyncBatchNorm communicates"
        if getattr(part, "max_norm", None) is not None and type_is(part, torch.nn.Embedding, torch.nn.EmbeddingBag):
            return "it changes parameters (max_norm)"
    return None


def prepare(found):
    """They can be switched on from now on."""
    for way in found:
        module = way.module()
        _wrap(type(module))
        ways = [other for other in _wanted.get(id(module), ()) if other is not way and other.is_for(module)]
        _wanted[id(module)] = sorted([*ways, way], key=lambda way: way.order)


def switch(found):
    """These and no others are on."""
    for ways in list(_wanted.values()):
        for way in ways:
            way.on = way in found and way.problem is None


def stop(kind):
    """None of this kind is on any more."""
    for ways in list(_wanted.values()):
        for way in ways:
            if type(way) is kind:
                way.on = False


def trains(args, kwargs):
    """Whether a call with these is one of training, which ways are for; not one that another tool takes apart."""
    return torch.is_grad_enabled() and not torch._C._get_tracing_state() and bool(
        module_state.tensors_in((args, kwargs)) or module_state.untriable(args, kwargs))
