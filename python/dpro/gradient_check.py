"""Whether DDP's gradients are the mean of what the ranks computed, in one step: what a plan's buckets must not change. Some places of
each gradient are kept as autograd makes them, before they are reduced, and summed over the ranks when the step is over. A job may scale
or clip all gradients before it ends its step: one factor for all of them is no difference."""
import functools

import torch
import torch.distributed as dist

from .ddp_parameters import reducer_order

MOST_PLACES = 64   # of a gradient
MOST_OFF = 0.02    # of their norm: compression rounds, and sums have another order
MOST_SCALED = 0.01


class Check:
    """Begins before a step, of a DDP model."""

    def __init__(self, ddp):
        self._group, self._own = ddp.process_group, {}
        self._parameters = [p for p in reducer_order(ddp)[1] if p.is_floating_point() and p.requires_grad]
        self._handles = []
        for n, p in enumerate(self._parameters):
            with torch.enable_grad():
                node = p.expand_as(p).grad_fn.next_functions[0][0]  # which gathers its gradient; DDP keeps it
            self._handles.append(node.register_prehook(functools.partial(self._seen, n)))

    def _seen(self, n, gradients):
        if gradients[0] is not None and gradients[0].layout == torch.strided:
            self._own[n] = self._own.get(n, 0) + _places(gradients[0])

    def stop(self):
        for handle in self._handles:
            handle.remove()

    def end(self):
        """(How far off the mean they are, of their norm; by what they are scaled), the same on all ranks; None: it can't be told.
        All ranks call it."""
        self.stop()
        seen = [self._own[n] if n in self._own else _places(p.detach()) * 0 for n, p in enumerate(self._parameters)]
        found = [torch.zeros_like(own) if p.grad is None or p.grad.layout != torch.strided else _places(p.grad)
                 for own, p in zip(seen, self._parameters)]
        size = dist.get_world_size(self._group)
        both = torch.stack([torch.cat(seen), torch.cat(found)])
        dist.all_reduce(both, group=self._group)
        mean, found = (both / size).double()
        scale = float(mean @ found) / max(float(mean @ mean), 1e-300)
        norm = float((scale * mean).norm())
        off = float((found - scale * mean).norm()) / norm if norm > 0 else float("nan")
        return (off, scale) if off == off and abs(off) != float("inf") else None


def _places(tensor):
    tensor = tensor.detach().reshape(-1)
    return tensor[::1 + tensor.numel() // MOST_PLACES].float()


def differs(own, other):
    """What is wrong with gradients of which this is known, beside those of the job as it runs; None: nothing."""
    if not own or own[0] > MOST_OFF or not other:
        return None
    if other[0] > MOST_OFF:
        return "gradients are off the mean of the ranks' by %.0f %%" % min(100 * other[0], 1e6)
    if abs(own[1] - 1) < MOST_SCALED and abs(other[1] - 1) > MOST_SCALED:
        return "gradients are %.3g times the mean of the ranks'" % other[1]
    return None
