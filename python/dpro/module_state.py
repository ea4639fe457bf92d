"""What a call of a module may read and change besides its inputs: buffers, attributes, random numbers. Kept before a call that is
not the job's, and put back after it."""
import contextlib
import enum
import functools
import random
import sys

import torch
from torch.utils import _pytree

from .ddp_parameters import type_is

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum)


@contextlib.contextmanager
def swapped(buffers):
    """(module, name, tensor): the module has this one in place of its own meanwhile."""
    own = []
    try:
        for module, name, tensor in buffers:
            own.append((module, name, module._buffers.get(name)))
            module._buffers[name] = tensor
        yield
    finally:
        for module, name, tensor in reversed(own):
            module._buffers[name] = tensor


def buffers_of(module):
    """(the module that has it, its name) of each buffer."""
    return [(part, name) for part in module.modules() for name, buffer in part._buffers.items() if buffer is not None]


def own_buffers(places):
    """Around calls that change copies of these buffers, not them."""
    return swapped([(part, name, part._buffers[name].detach().clone()) for part, name in places])


def mapped(value, function):
    """The tensors within tuples, lists, dicts and their kin through the function; others are kept."""
    return _pytree.tree_map(lambda leaf: function(leaf) if type_is(leaf, torch.Tensor) else leaf, value)


def _leaves(value):
    return _pytree.tree_flatten(value)[0]


def tensors_in(value):
    return [leaf for leaf in _leaves(value) if type_is(leaf, torch.Tensor)]


def untriable(args, kwargs):
    """Why a call that is given these can't be made for a trial, None where it can. What may hold tensors that mapped() does not
    find is the job's own, and what a call changes in it stays."""
    for leaf in _leaves((args, kwargs)):
        if type_is(leaf, torch.Tensor):
            if leaf.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return "it is first called while a CUDA graph is captured"
        elif isinstance(leaf, torch.Generator) or not (isinstance(leaf, _PLAIN) or callable(leaf) or
                                                       type(leaf).__module__.partition(".")[0] == "torch"):
            return "it is given a %s, which it may change" % type(leaf).__name__
    return None


def same(a, b):
    """Of tensors each bit that counts, else what can be compared without asking the objects much."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type_is(a, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or a.layout != b.layout:
            return False
        return bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (int, float, complex, str, bytes, bool)):
        return a == b or a != a and b != b
    return True


def _copy(value):
    return type(value)(value) if type(value) in (list, set) else dict(value) if type(value) is dict else value


class Attributes:
    """Of a module and those in it, one level deep, without parameters, buffers and modules."""

    OWN = ("_parameters", "_buffers", "_modules")

    def __init__(self, module):
        self._of = [(part, {key: _copy(value) for key, value in part.__dict__.items() if key not in self.OWN}, dict(part.__dict__))
                    for part in module.modules()]

    def difference(self, other):
        """The name of one that differs, else None."""
        for (part, a, _), (_, b, _) in zip(self._of, other._of):
            for key in a.keys() | b.keys():
                if key not in a or key not in b or not same(a[key], b[key]):
                    return "%s.%s" % (type(part).__name__, key)
        return None

    def restore(self):
        for part, copies, own in self._of:
            for key in [key for key in part.__dict__ if key not in own]:
                del part.__dict__[key]
            for key, value in own.items():
                part.__dict__[key] = value
                if type(value) in (list, set, dict) and key in copies and type(copies[key]) is type(value):
                    value.clear()
                    (value.extend if type(value) is list else value.update)(copies[key])


def _generators(module):
    """(get the state, set it) of generators that the module or one in it has as an attribute."""
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    for part in module.modules():
        for value in part.__dict__.values():
            if isinstance(value, torch.Generator):
                yield value.get_state, value.set_state
            elif isinstance(value, random.Random):
                yield value.getstate, value.setstate
            elif numpy and isinstance(value, numpy.Generator):
                bits = value.bit_generator
                yield functools.partial(getattr, bits, "state"), functools.partial(setattr, bits, "state")


class Random:
    """The random numbers of the process: torch's, Python's, numpy's, and those of the module's own generators."""

    def __init__(self, module, tensors):
        self._own = [(restore, state()) for state, restore in _generators(module)]
        self._cpu = torch.get_rng_state()
        own = (*module.parameters(), *module.buffers())  # which may be elsewhere than what the module is given
        self._devices = sorted({t.device.index for t in (*tensors, *own) if t.device.type == "cuda"})
        self._cuda = [torch.cuda.get_rng_state(n) for n in self._devices]
        self._python = random.getstate()
        numpy = getattr(sys.modules.get("numpy"), "random", None)
        self._numpy = numpy and (numpy, numpy.get_state())

    def others_used(self):
        """Whether any but torch's were drawn since."""
        if random.getstate() != self._python:
            return True
        if not self._numpy:
            return False
        now, before = self._numpy[0].get_state(), self._numpy[1]
        return now[2] != before[2] or bool((now[1] != before[1]).any())

    def torch_used(self):
        return not torch.equal(torch.get_rng_state(), self._cpu) or any(
            not torch.equal(torch.cuda.get_rng_state(n), state) for n, state in zip(self._devices, self._cuda))

    def restore_torch(self):
        torch.set_rng_state(self._cpu)
        for n, state in zip(self._devices, self._cuda):
            torch.cuda.set_rng_state(state, n)

    def restore(self):
        self.restore_torch()
        random.setstate(self._python)
        if self._numpy:
            self._numpy[0].set_state(self._numpy[1])
        for restore, state in self._own:
            restore(state)


@contextlib.contextmanager
def as_before(module, args, kwargs):
    """What a call of the module changes meanwhile is put back, but for buffers; yields its Random."""
    numbers, attributes = Random(module, tensors_in((args, kwargs))), Attributes(module)
    try:
        yield numbers
    finally:
        attributes.restore()
        numbers.restore()
