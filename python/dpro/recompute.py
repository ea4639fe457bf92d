"""Modules whose activations are not kept but computed again in the backward pass, as a plan says: they go through
torch.utils.checkpoint (non-reentrant). Before a module is recomputed for the first time, it is tried (recompute_trial.py)."""
import contextlib
import inspect
import threading

import torch
import torch.utils.checkpoint

from . import backward_again, module_marks, module_state, module_ways, modules, recompute_trial

_problem = None  # why nothing is recomputed any more
_when_given_up = None
_depth = threading.local()  # of recomputed modules within each other


class Recomputed(module_ways.Way):
    """A module that is recomputed while `on`."""
    order, keys = 0, ("recompute",)

    def __init__(self, name, module):
        super().__init__(name, module)
        self._tried, self._changed = False, ()

    @property
    def problem(self):
        return _problem

    @staticmethod
    def is_like(other):
        return type(other) is Recomputed

    def call(self, below, module, args, kwargs):
        if not self._applies(module, args, kwargs):
            return below(module, *args, **kwargs)
        if not self._tried:
            self._tried = True
            with module_ways.as_they_are():
                problem, self._changed = recompute_trial.look(below, module, args, kwargs)
            if problem:
                give_up("%s can't be recomputed: %s" % (self.name or "the model", problem))
                return below(module, *args, **kwargs)
        kept = [(owner, name, owner._buffers[name].detach().clone()) for owner, name in self._changed]
        _depth.n = getattr(_depth, "n", 0) + 1
        try:
            return recomputed(below, module, args, kwargs, kept)
        finally:
            _depth.n -= 1

    def _applies(self, module, args, kwargs):
        if not self.on or not module.training or not module_ways.trains(args, kwargs):
            return False
        if torch._C._current_graph_task_id() != -1 or getattr(_depth, "n", 0):
            return False
        if _others_hooks():
            give_up("%s is called within the job's own recomputation or hooks for saved tensors" % self.name)
            return False
        return True


def recomputed(below, module, args, kwargs, kept=()):
    """below(module, *args, **kwargs), computed again in the backward pass. `kept`: (owner, name, value) of buffers that it changes,
    before it."""
    n, keys = len(args), list(kwargs)

    def run(*given):
        return below(module, *given[:n], **dict(zip(keys, given[n:])))

    return torch.utils.checkpoint.checkpoint(
        run, *args, *kwargs.values(), use_reentrant=False, preserve_rng_state=True,
        context_fn=lambda: (contextlib.nullcontext(), _again(module, kept)))


def _others_hooks():
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = top(True) if top is not None else None
    return hooks is not None and not backward_again.is_own(hooks[0])


@contextlib.contextmanager
def _again(module, kept):
    """Around the second forward: buffers that it changes are as they were before the first one, and afterwards as the
    first one left them."""
    with module_state.swapped((owner, name, value.clone()) for owner, name, value in kept), module_marks.again(module):
        yield


def find(models, names):
    """The Recomputed of each of these modules, switched off, and what speaks against recomputing them."""
    return module_ways.find(models, names, "recomputed", _unfit, Recomputed)


def unknown():
    """Why this torch can recompute nothing as is done here; None: it can."""
    if "context_fn" not in inspect.signature(torch.utils.checkpoint.checkpoint).parameters:
        return "this torch (%s) is too old" % torch.__version__
    return None


def _unfit(module, around):
    return unknown() or ("the job recomputes it already" if modules.any_checkpointed(around) else None)


def give_up(problem):
    """What was found out too late for the ranks to agree on it. That they differ harms nothing: recomputing communicates nothing."""
    global _problem
    _problem = problem
    module_ways.stop(Recomputed)
    if _when_given_up:
        _when_given_up(problem)


def when_given_up(then):
    global _when_given_up
    _when_given_up = then
