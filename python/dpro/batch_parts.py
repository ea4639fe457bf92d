"""A step's batch in several parts, as a plan says: less is kept for the backward pass at a time, and gradients are the same
but for rounding, where the loss is a mean over the batch and no layer looks at the batch as a whole (BatchNorm does).

Each part's share of the gradients is taken as it arrives at the parameters, so that the script's loss stays as it is. DDP
communicates with the last part only."""
import contextlib
import functools
import os
import sys

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from . import agreement, applied, modules, report
from .ddp_parameters import type_is

used = False    # the script goes through its batches here
_chosen = None  # the number of parts while dpro verify switches it


def choose(n):
    global _chosen
    _chosen = n


def _wanted():
    if _chosen is not None:
        return _chosen
    path = os.environ.get("DPRO_PLAN")
    plan = applied.read(path)[0] if path else None
    if plan is None or applied.refused() or os.environ.get("DPRO_VERIFY_TURN") == "baseline":
        return 1
    return plan.memory.micro_batches


def _sizes(value):
    """First dimensions of the tensors in it."""
    if type_is(value, torch.Tensor):
        return {value.shape[0]} if value.dim() else set()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return set().union(*map(_sizes, parts))


def _part(value, size, begin, end):
    """Rows [begin, end) of tensors of `size` rows; the rest as it is."""
    if type_is(value, torch.Tensor):
        return value[begin:end] if value.dim() and value.shape[0] == size else value
    if isinstance(value, dict):
        found = type(value)() if type(value) is dict else dict()
        found.update((key, _part(part, size, begin, end)) for key, part in value.items())
        return found
    if type(value) in (list, tuple):
        return type(value)(_part(part, size, begin, end) for part in value)
    return value


@functools.lru_cache(maxsize=1)
def _tell(size, n, statistics):
    if agreement.rank() == 0:
        report.tell("a batch of %d goes through the model in %d micro-batch%s%s" % (
            size, n, "es" if n > 1 else "", "; its BatchNorm modules take statistics of each" if statistics and n > 1 else ""))


def _unfit(model, sizes):
    for name, is_there in (("Horovod", "horovod.torch" in sys.modules), ("FSDP", modules.any_sharded(model.modules()))):
        if is_there:
            return "not for %s, which reduces gradients in each backward pass: the batch stays whole" % name
    if len(sizes) != 1:
        return "left out: the batch has %s" % (
            "tensors of several first dimensions (%s)" % ", ".join(map(str, sorted(sizes))) if sizes else "no tensor")
    return None


def split(model, batch):
    """The parts of a step's batch, one after the other."""
    global used
    used = True
    n, sizes = _wanted(), _sizes(batch)
    problem = _unfit(model, sizes) if n > 1 else None
    if problem:
        report.say("micro-batches", "the plan's micro-batches are " + problem, agreement.rank())
        n = 1
    one = len(batch) == 1
    if n == 1:
        yield batch[0] if one else batch
        return
    size = sizes.pop()
    n = min(n, size)
    _tell(size, n, any(type_is(module, _BatchNorm) and module.training for module in model.modules()))
    for k in range(n):
        begin, end = k * size // n, (k + 1) * size // n
        part = _part(batch, size, begin, end)
        with _sharing(model, (end - begin) / size), model.no_sync() if k < n - 1 and hasattr(model, "no_sync") \
                else contextlib.nullcontext():
            yield part[0] if one else part


@contextlib.contextmanager
def _sharing(model, share):
    handles = [p.register_hook(lambda gradient: gradient * share) for p in model.parameters() if p.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
