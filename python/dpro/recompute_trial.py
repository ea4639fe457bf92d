"""Whether a module's forward gives the same when it is computed again right after, which recomputing it rests on.

The module is called twice on copies of its inputs, without gradients; the second time as a recomputation would: torch's
random numbers and the buffers as before the first call, the rest as that left it. Then all is as it was."""
import contextlib

import torch
import torch.utils.checkpoint

from . import module_state, report


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
    cached = torch.is_autocast_cache_enabled()
    try:
        problem = module_state.untriable(args, kwargs)
        if problem:
            return problem, ()
        torch.set_autocast_cache_enabled(False)  # what is cast here has no gradient
        with torch.no_grad(), module_state.as_before(module, args, kwargs) as numbers:
            return _look(own, module, args, kwargs, numbers)
    except Exception as problem:
        return report.why(problem), ()
    finally:
        torch.set_autocast_cache_enabled(cached)


def _look(own, module, args, kwargs, numbers):
    places = module_state.buffers_of(module)
    versions = [p._version for p in module.parameters()]
    checkpoints = _Checkpoints()

    def run():
        """The result, the buffers after it, and whether an input was written to: a tensor, or what holds it."""
        inputs = module_state.mapped((args, kwargs), lambda t: t.detach().clone())
        at_first = [(t, t._version) for t in module_state.tensors_in(inputs)]
        with module_state.own_buffers(places), checkpoints.watched():
            result = own(module, *inputs[0], **inputs[1])
            after = [part._buffers.get(name) for part, name in places]
        now = module_state.tensors_in(inputs)
        writes = len(now) != len(at_first) or any(t is not first or t._version != n for t, (first, n) in zip(now, at_first))
        return result, after, writes

    result, buffers, writes = run()
    if writes:
        return "it changes its input in place", ()
    if checkpoints.seen:
        return "the job recomputes parts of it already", ()
    if numbers.others_used():
        return "it draws random numbers that are not torch's", ()
    if [p._version for p in module.parameters()] != versions:
        return "it changes parameters", ()
    changed = [place for place, buffer in zip(places, buffers) if not module_state.same(buffer, place[0]._buffers[place[1]])]
    after_first = module_state.Attributes(module)
    numbers.restore_torch()
    again, _, _ = run()
    if not module_state.same(result, again):
        return "computed again, it gives something else", ()
    different = after_first.difference(module_state.Attributes(module))
    if different:
        return "each call of it changes %s" % different, ()
    return None, changed
