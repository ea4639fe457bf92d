"""Units of PyTorch's FSDP (fully_shard) that free their gathered parameters after the forward pass, or keep them for the backward
pass, and that gather the next units ahead, as a plan says: by the public calls of their modules. Ranks gather together: all do it
or none."""
import weakref

from . import agreement, model

_switched = []  # units that are other than the job had them


class Unit:
    """Of a module that fully_shard wrapped; `reshards`: what the plan wants, other than the job has."""

    def __init__(self, name, module, reshards):
        self.name, self._module, self._reshards = name, weakref.ref(module), reshards
        self.keys = ("reshard" if reshards else "keep",)

    def set(self, on):
        module = self._module()
        if module is not None:
            module.set_reshard_after_forward(self._reshards == on, recurse=False)


class Prefetching:
    """Of a module that fully_shard wrapped: `after` and `before` are those whose passes come next, forward and backward."""
    keys = ("prefetch",)

    def __init__(self, name, module, after, before):
        self.name, self._module = name, weakref.ref(module)
        self._after, self._before = ([weakref.ref(other) for other in others] for others in (after, before))

    def set(self, on):
        module = self._module()
        if module is not None:
            after, before = ([ref() for ref in others if on and ref() is not None] for others in (self._after, self._before))
            module.set_modules_to_forward_prefetch(after)
            module.set_modules_to_backward_prefetch(before)


def find(models, units, prefetch):
    """The Unit of each of the plan's units that does otherwise now, their Prefetching, and what speaks against it."""
    there, found, chain = {}, [], []
    for root in map(model.unwrapped, models):
        outer = None
        for name, module, groups in model.fsdp2_units(root, model.fsdp2_class()):
            outer = outer or module
            there.setdefault(name, []).append((module, groups, module is outer))
    for unit in units:
        places = there.get(unit.name, [])
        what = "FSDP unit %s" % unit.name if unit.name else "FSDP unit that is the model itself"
        if len(places) != 1:
            return [], ("the models have several of %s" if places else "the model has no %s") % what
        module, groups, is_root = places[0]
        before = [_reshards(module, group, is_root) for group in groups]
        if None in before or not groups:
            return [], "%s shards otherwise than over all ranks of its group, or not at all" % what
        if set(before) != {unit.reshards}:
            found.append(Unit(unit.name, module, unit.reshards))
        around = not unit.name or any(name.startswith(unit.name + ".") for name in there)
        if prefetch and not around:  # the model itself, and what has others in it, ask as they did
            chain.append((unit.name, module))
            if module._get_fsdp_state()._states_to_forward_prefetch or module._get_fsdp_state()._states_to_backward_prefetch:
                return [], "the job says itself what %s prefetches" % what
    inner = [module for _, module in chain]
    for n, (name, module) in enumerate(chain):
        found.append(Prefetching(name, module, inner[n + 1:n + 1 + prefetch], inner[max(n - prefetch, 0):n][::-1]))
    return found, None


def _reshards(module, group, is_root):
    """Whether it frees its parameters; None where it keeps a part of them, which can't be asked for again."""
    state, to = module._get_fsdp_state(), group.post_forward_mesh_info
    if is_root and state._is_root is None and getattr(state, "_auto_reshard_after_forward", True):
        return False  # as soon as PyTorch knows that it is the root, at its first forward pass
    if not hasattr(group.mesh_info, "shard_mesh_size") or to is not None and to is not group.mesh_info:
        return None
    return to is not None


def switch(found):
    """These do as the plan says from now on, and all others as the job had them."""
    try:
        for unit in _switched:
            if unit not in found:
                unit.set(False)
        for unit in found:
            unit.set(True)
    except Exception as problem:
        raise agreement.Broken("dpro: FSDP could not reshard units as all ranks had agreed; run the job without the plan") from problem
    _switched[:] = found
