"""A backward pass that runs out of memory in a turn is made again as the job does it by itself: the model's forward pass is run once more,
without the plan, and its backward pass from the gradients of the model's results, which were there already. Gradients that had arrived
stay, the others follow through the same nodes, so that DDP communicates as ever: other ranks only wait longer for this one.

The first pass's activations make room first. They are kept in boxes, by hooks for saved tensors, in the steps that are watched."""
import contextlib
import functools
import sys
import weakref

import torch

from . import model, module_state, module_ways, modules, report
from .ddp_parameters import type_is


class _Box:
    """What autograd keeps in place of a tensor."""
    __slots__ = ("tensor", "__weakref__")

    def __init__(self, tensor):
        self.tensor = tensor


def _unpack(box):
    return box.tensor


def is_own(pack):
    """Of hooks for saved tensors."""
    return getattr(pack, "func", None) is _pack


def _pack(boxes, tensor):
    box = _Box(tensor)
    boxes.append(weakref.ref(box))
    return box


def _n_sent():
    """Collectives so far, of each process group."""
    dist = sys.modules.get("torch.distributed")
    groups = list(dist.distributed_c10d._world.pg_map) if dist is not None and dist.is_available() and dist.is_initialized() else []
    return [group._get_sequence_number_for_group() for group in groups if hasattr(group, "_get_sequence_number_for_group")]


class _Call:
    """Of a model's forward, with all that another call needs to give the same."""

    def __init__(self, module, args, kwargs, boxes):
        self.inputs, self.outs, self.gradients = (args, kwargs), [], {}
        self._tensors = [*module_state.tensors_in((args, kwargs)), *module.parameters()]
        self._versions = self._now()
        self.numbers = module_state.Random(module, self._tensors)
        self.buffers = [(part, name, part._buffers[name].detach().clone()) for part, name in module_state.buffers_of(module)]
        kinds = {t.device.type for t in self._tensors} | {"cpu"}
        self._autocasts = [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)]
        self._sent, self._is_alone = _n_sent(), False
        self._hooks = torch.autograd.graph.saved_tensors_hooks(functools.partial(_pack, boxes), _unpack)
        self._hooks.__enter__()

    def _now(self):
        return [t._version for t in self._tensors]

    @property
    def is_repeatable(self):
        """By this rank alone: other ranks would not take part in what is communicated."""
        return self._is_alone and self._now() == self._versions and not any(t.requires_grad and not t.is_leaf for t in self._tensors)

    def returned(self, result):
        self._hooks.__exit__()
        self._is_alone = _n_sent() == self._sent
        self.outs = _trained(result)
        for n, out in enumerate(self.outs):
            out.register_hook(functools.partial(self.gradients.__setitem__, n))

    @contextlib.contextmanager
    def as_then(self, module):
        """Around another call, which leaves all as it is now."""
        buffers = [(part, name, kept.clone()) for part, name, kept in self.buffers]
        with contextlib.ExitStack() as stack:
            stack.enter_context(module_ways.as_they_are())
            stack.enter_context(module_state.as_before(module, *self.inputs))
            stack.enter_context(module_state.swapped(buffers))
            for kind, dtype in self._autocasts:
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            self.numbers.restore()
            yield


def _trained(result):
    return [t for t in module_state.tensors_in(result) if t.requires_grad and not t.is_leaf]


def _leads_elsewhere(tensors, outs):
    """Whether there is another way from these than through those to what has a gradient."""
    ends, left = {out.grad_fn for out in outs}, [t.grad_fn for t in tensors]
    seen = set(ends)
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            return True
        left += [following for following, _ in node.next_functions]
    return False


class Watch:
    """Of the one model, until stop(). gave_up(problem) is told when a pass was made again: all modules go no way of ours any more."""

    def __init__(self, module, gave_up):
        self._module, self._gave_up = module, gave_up
        self._calls, self._boxes, self._arrived, self._is_again = [], [], set(), False
        self._handles = [module.register_forward_pre_hook(self._called, with_kwargs=True),
                         module.register_forward_hook(self._returned, with_kwargs=True, always_call=True)]
        self._handles += [p.register_post_accumulate_grad_hook(lambda p: self._arrived.add(id(p)))
                          for p in module.parameters() if p.requires_grad and p.is_leaf]
        self._own = torch.autograd.backward
        self._wrapped = torch.autograd.backward = functools.wraps(self._own)(lambda *args, **kwargs: self._backward(*args, **kwargs))

    def stop(self):
        for handle in self._handles:
            handle.remove()
        if torch.autograd.backward is self._wrapped:
            torch.autograd.backward = self._own
        self._backward = self._own  # whoever keeps what was there
        self._calls = []

    def _called(self, module, args, kwargs):
        if not self._is_again and module.training and torch.is_grad_enabled():
            self._safely(lambda: self._calls.append(_Call(module, args, kwargs, self._boxes)))

    def _returned(self, module, args, kwargs, result):
        if not self._is_again and self._calls and not self._calls[-1].outs:
            self._safely(lambda: self._calls[-1].returned(result))

    def _safely(self, function):
        """The job's call goes on; what can't be watched is not made again."""
        try:
            function()
        except Exception as failed:
            if report.is_the_jobs(failed):
                raise
            self._calls = []

    def _backward(self, tensors, grad_tensors=None, *args, **kwargs):
        if torch._C._current_graph_task_id() != -1:  # within another one
            return self._own(tensors, grad_tensors, *args, **kwargs)
        self._arrived.clear()
        calls, self._calls = self._calls, []
        try:
            self._own(tensors, grad_tensors, *args, **kwargs)
            self._boxes.clear()
            return
        except Exception as failed:
            if not report.is_out_of_memory(failed) or any((*args, *kwargs.values())) or not self._is_fit(calls, tensors):
                raise
            problem = failed.with_traceback(None)  # which holds what was computed
        self._is_again = True
        try:
            self._make_again(calls[0])
        except Exception:
            raise problem from None
        finally:
            self._is_again = False
        self._gave_up("its backward pass ran out of memory, and was made again without it: %s" % report.first_line(problem))

    def _is_fit(self, calls, tensors):
        tensors = [tensors] if type_is(tensors, torch.Tensor) else list(tensors)
        return (len(calls) == 1 and calls[0].gradients and calls[0].is_repeatable
                and all(type_is(t, torch.Tensor) for t in tensors) and not _leads_elsewhere(tensors, calls[0].outs))

    def _make_again(self, call):
        for box in filter(None, (ref() for ref in self._boxes)):
            box.tensor = None
        self._boxes.clear()
        module_ways.switch([])
        left = [p for p in self._module.parameters() if p.requires_grad and id(p) not in self._arrived]
        with call.as_then(self._module), torch.enable_grad():
            outs = _trained(self._module(*call.inputs[0], **call.inputs[1]))
        if [out.shape for out in outs] != [out.shape for out in call.outs]:
            raise RuntimeError("its results are others")
        gradients = torch.autograd.grad([outs[n] for n in call.gradients], left, list(call.gradients.values()), allow_unused=True)
        arriving = [(p, gradient) for p, gradient in zip(left, gradients) if gradient is not None]
        with torch.enable_grad():
            self._own([p.expand_as(p) for p, _ in arriving], [gradient for _, gradient in arriving])


def watch(models, gave_up):
    """A Watch, None where a pass can't be made again by one rank alone: FSDP's ranks gather parameters together in it, and of what
    compilers, hooks of the job and Horovod do in it nothing is known."""
    ddp_class, found = model.ddp_class(), list(models)
    if len(found) != 1 or "horovod.torch" in sys.modules:
        return None
    ddp = found[0] if ddp_class and type_is(found[0], ddp_class) else None
    module = ddp.module if ddp else found[0]
    inner = list(module.modules())
    if modules.any_compiled(inner) or modules.any_sharded(inner) or modules.any_replicated(inner):
        return None
    if ddp and (ddp.static_graph or ddp._get_ddp_logging_data().get("comm_hook") or ddp.mixed_precision):
        return None
    if any(part._backward_hooks or part._backward_pre_hooks for part in inner) or any(p._backward_hooks for p in module.parameters()):
        return None
    try:
        return Watch(module, gave_up)
    except (TypeError, AttributeError):  # of an old torch
        return None
