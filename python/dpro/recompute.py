"""Modules whose activations are not kept but computed again in the backward pass, as a plan says, in the unchanged script.

The forward of a module's class is wrapped, and lets each module that is to be recomputed go through
torch.utils.checkpoint (non-reentrant); others, copies of such a module included, go as ever. So a model is pickled and
copied as without. Before a module is recomputed for the first time, it is tried (recompute_trial.py)."""
import contextlib
import functools
import inspect
import threading
import types
import weakref

import torch
import torch.utils.checkpoint

from . import module_marks, module_state, modules, recompute_trial
from .ddp_parameters import type_is

_wanted = {}  # id of a module: its Recomputed
_problem = None  # why nothing is recomputed any more
_when_given_up = None
_depth = threading.local()  # of recomputed modules within each other


class Recomputed:
    """A module that is recomputed while `on`."""

    def __init__(self, name, module):
        self.name, self.on = name, False
        self._tried, self._changed = False, ()
        self.module = weakref.ref(module, lambda _, key=id(module): _wanted.pop(key, None))

    def call(self, own, args, kwargs):
        module = self.module()
        if not self._applies(module, args, kwargs):
            return own(module, *args, **kwargs)
        if not self._tried:
            self._tried = True
            problem, self._changed = recompute_trial.look(own, module, args, kwargs)
            if problem:
                give_up("%s can't be recomputed: %s" % (self.name or "the model", problem))
                return own(module, *args, **kwargs)
        kept = [(owner, name, owner._buffers[name].detach().clone()) for owner, name in self._changed]
        n, keys = len(args), list(kwargs)

        def run(*given):
            return own(module, *given[:n], **dict(zip(keys, given[n:])))

        _depth.n = getattr(_depth, "n", 0) + 1
        try:
            return torch.utils.checkpoint.checkpoint(
                run, *args, *kwargs.values(), use_reentrant=False, preserve_rng_state=True,
                context_fn=lambda: (contextlib.nullcontext(), _again(module, kept)))
        finally:
            _depth.n -= 1

    def _applies(self, module, args, kwargs):
        if not self.on or not module.training or not torch.is_grad_enabled():
            return False
        if torch._C._get_tracing_state() or torch._C._current_graph_task_id() != -1 or getattr(_depth, "n", 0):
            return False
        if not any(type_is(arg, torch.Tensor) for arg in (*args, *kwargs.values())):
            return False
        if _others_hooks():
            give_up("%s is called within a recomputation, or other hooks for saved tensors, of the job's" % self.name)
            return False
        return True


def _others_hooks():
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None


@contextlib.contextmanager
def _again(module, kept):
    """Around the second forward: buffers that it changes are as they were before the first one, and afterwards as the
    first one left them."""
    with module_state.swapped((owner, name, value.clone()) for owner, name, value in kept), module_marks.again(module):
        yield


def _wrap(cls):
    """The class's forward. The wrapper has the globals of what it wraps, in which TorchScript looks for names."""
    own = cls.forward
    if getattr(own, "_dpro", None) is cls:
        return
    compiling = torch.compiler.is_compiling
    wanted, key_of, type_of = _wanted, id, type

    def forward(self, *args, **kwargs):
        if compiling() or key_of(self) not in wanted or type_of(self) is not cls:
            return own(self, *args, **kwargs)
        return wanted[key_of(self)].call(own, args, kwargs)

    wrapped = functools.wraps(own)(types.FunctionType(forward.__code__, own.__globals__, own.__name__, None, forward.__closure__))
    wrapped._dpro = cls
    cls.forward = wrapped


def outermost(names):
    """Those that lie in none of the others."""
    return [name for name in names if not any(
        name != other and (name.startswith(other + ".") or other == "" or other.endswith("/") and name.startswith(other))
        for other in names)]


def find(models, names):
    """The Recomputed of each of these modules, switched off, and what speaks against recomputing them."""
    there = dict(modules.of_models(models))
    found, around = [], modules.Around(models)
    for name in outermost(names):
        if name not in there:
            return [], "the model has no module %s to recompute" % name
        problem = unfit(there[name], around.of(there[name]))
        if problem:
            return [], "%s can't be recomputed: %s" % (name or "the model", problem)
        found.append((name, there[name]))
    return [_wanted.get(id(module)) or Recomputed(name, module) for name, module in found], None


def unfit(module, around):
    """Why a module can't be recomputed, None where nothing is known to speak against it; `around`: what it lies in and
    holds."""
    if "context_fn" not in inspect.signature(torch.utils.checkpoint.checkpoint).parameters:
        return "this torch (%s) is too old" % torch.__version__
    if "forward" in module.__dict__ or not isinstance(getattr(type(module), "forward", None), types.FunctionType):
        return "its forward is no method of its class"
    if module_marks.anything_compiled() or modules.any_compiled(around):
        return "it is compiled"
    if modules.any_sharded(around):
        return "FSDP has wrapped it"
    if modules.any_checkpointed(around):
        return "the job recomputes it already"
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
    for recomputed in found:
        module = recomputed.module()
        _wrap(type(module))
        _wanted[id(module)] = recomputed


def switch(found):
    """These and no others are recomputed."""
    for recomputed in list(_wanted.values()):
        recomputed.on = recomputed in found and _problem is None


def give_up(problem):
    """What was found out too late for the ranks to agree on it. That they differ harms nothing: recomputing communicates
    nothing."""
    global _problem
    _problem = problem
    switch(())
    if _when_given_up:
        _when_given_up(problem)


def when_given_up(then):
    global _when_given_up
    _when_given_up = then
