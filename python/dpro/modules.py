"""The modules of the trained models, by name: as named_modules() has them, without what wraps them (DDP, torch.compile,
FSDP 1, checkpoint_wrapper)."""
import sys

import torch

from .ddp_parameters import type_is

_INSIDE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def inside(module):
    """What is wrapped, all layers of it taken off; a module that wraps nothing is itself."""
    parallel = [found for found in (
        getattr(sys.modules.get("torch.nn.parallel.distributed"), "DistributedDataParallel", None),
        getattr(sys.modules.get("torch.nn.parallel.data_parallel"), "DataParallel", None)) if found]
    while True:
        name = next((name for name in _INSIDE if name in module._modules), None)
        if name is None and type_is(module, *parallel):
            name = "module"
        if name is None or module._modules[name] is None:
            return module
        module = module._modules[name]


def named(model):
    """(name, module) of each module once, outer ones first; "" is the model itself."""
    seen, found = set(), []

    def walk(name, module):
        module = inside(module)
        if id(module) in seen:
            return
        seen.add(id(module))
        found.append((name, module))
        for child_name, child in module._modules.items():
            if type_is(child, torch.nn.Module):
                walk(name + "." + child_name if name else child_name, child)

    walk("", model)
    return found


def of_models(models):
    """Likewise of several: names of the second model's and later ones' begin with their number, "1/blocks.0"."""
    seen = set()
    for n, model in enumerate(models):
        for name, module in named(model):
            if id(module) not in seen:
                seen.add(id(module))
                yield ("%d/%s" % (n, name) if n else name), module


class Around:
    """What modules of these models lie in and hold, wrappers included."""

    def __init__(self, models):
        self._outer = {}
        for model in models:
            for outer in model.modules():
                for child in outer.children():
                    self._outer.setdefault(id(child), []).append(outer)

    def of(self, module):
        """All that it lies in, itself, and all that lies in it."""
        found, left, seen = list(module.modules()), list(self._outer.get(id(module), ())), set()
        while left:
            outer = left.pop()
            if id(outer) not in seen:
                seen.add(id(outer))
                found.append(outer)
                left += self._outer.get(id(outer), ())
        return found


def _any(found, *wrappers):
    kinds = tuple(kind for kind in (getattr(sys.modules.get(where), name, None) for where, name in wrappers) if kind)
    return any(type_is(module, *kinds) for module in found)


def any_compiled(found):
    return any(getattr(module, "_compiled_call_impl", None) is not None for module in found) or _any(
        found, ("torch._dynamo.eval_frame", "OptimizedModule"))


def any_sharded(found):
    return _any(found, ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
                ("torch.distributed.fsdp", "FSDPModule"), ("torch.distributed._composable.fsdp", "FSDPModule"))


def any_checkpointed(found):
    return _any(found, ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "ActivationWrapper"))


def any_replicated(found):
    return _any(found, ("torch.nn.parallel.data_parallel", "DataParallel"))
