"""Whether a module's forward gives the same when it is computed again right after, which recomputing it rests on.

The module is called twice on copies of its inputs, without gradients; the second time as a recomputation would: torch's
random numbers and the buffers as before the first call, the rest as that left it. Then all is as it was."""
import contextlib
import functools
import random
import sys

import torch
import torch.utils.checkpoint

from .ddp_parameters import type_is


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


def _mapped(value, function):
    """The tensors within tuples, lists and dicts through the function; others are kept."""
    if type_is(value, torch.Tensor):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)(_mapped(part, function) for part in value)
    if type(value) is dict:
        return {key: _mapped(part, function) for key, part in value.items()}
    return value


def _tensors(value):
    found = []
    _mapped(value, found.append)
    return found


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


class _Attributes:
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


class _Random:
    """The random numbers of the process: torch's, Python's, numpy's, and those of the module's own generators."""

    def __init__(self, module, tensors):
        self._own = [(restore, state()) for state, restore in _generators(module)]
        self._cpu = torch.get_rng_state()
        self._devices = sorted({t.device.index for t in tensors if t.device.type == "cuda"})
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


class _Checkpoints:
    """Whether the job recomputes something itself meanwhile."""

    def __init__(self):
        self.seen = False

    @contextlib.contextmanager
    def watched(self):
        module, names = torch.utils.checkpoint, ("_checkpoint_without_reentrant_generator", "CheckpointFunction")
        own = {name: getattr(module, name) for name in names if hasattr(module, name)}
        outer = self

        class Function:
            @staticmethod
            def apply(*args):
                outer.seen = True
                return own["CheckpointFunction"].apply(*args)

        def generator(*args, **kwargs):
            outer.seen = True
            return own["_checkpoint_without_reentrant_generator"](*args, **kwargs)

        try:
            for name, watching in zip(names, (generator, Function)):
                if name in own:
                    setattr(module, name, watching)
            yield
        finally:
            for name, value in own.items():
                setattr(module, name, value)


def look(own, module, args, kwargs):
    """Returns why the module can't be recomputed, None when it can, and its buffers that a forward changes, as pairs of
    module and name. own(module, ...) is its forward."""
    given = _tensors((args, kwargs))
    if any(t.device.type == "cuda" for t in given) and torch.cuda.is_current_stream_capturing():
        return "it is first called while a CUDA graph is captured", ()
    numbers, before = _Random(module, given), _Attributes(module)
    cached = torch.is_autocast_cache_enabled()
    try:
        torch.set_autocast_cache_enabled(False)  # what is cast here has no gradient
        with torch.no_grad():
            return _look(own, module, args, kwargs, numbers)
    except Exception as problem:
        from . import report
        if report.is_the_jobs(problem):
            raise
        return "%s: %s" % (type(problem).__name__, str(problem).split("\n")[0]), ()
    finally:
        torch.set_autocast_cache_enabled(cached)
        before.restore()
        numbers.restore()


def _look(own, module, args, kwargs, numbers):
    places = [(part, name) for part in module.modules() for name, buffer in part._buffers.items() if buffer is not None]
    versions = [p._version for p in module.parameters()]
    checkpoints = _Checkpoints()

    def run():
        """The result, the buffers after it, and whether an input was written to."""
        inputs = _mapped((args, kwargs), lambda t: t.detach().clone())
        at_first = [t._version for t in _tensors(inputs)]
        with swapped((part, name, part._buffers[name].clone()) for part, name in places), checkpoints.watched():
            result = own(module, *inputs[0], **inputs[1])
            after = [part._buffers.get(name) for part, name in places]
        return result, after, [t._version for t in _tensors(inputs)] != at_first

    result, buffers, writes = run()
    if writes:
        return "it changes its input in place", ()
    if checkpoints.seen:
        return "the job recomputes parts of it already", ()
    if numbers.others_used():
        return "it draws random numbers that are not torch's", ()
    if [p._version for p in module.parameters()] != versions:
        return "it changes parameters", ()
    changed = [place for place, buffer in zip(places, buffers) if not same(buffer, place[0]._buffers[place[1]])]
    after_first = _Attributes(module)
    numbers.restore_torch()
    again, _, _ = run()
    if not same(result, again):
        return "computed again, it gives something else", ()
    different = after_first.difference(_Attributes(module))
    if different:
        return "each call of it changes %s" % different, ()
    return None, changed
