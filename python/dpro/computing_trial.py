"""Whether a module can be computed in another way (computing.py): tried with a forward and a backward pass on copies of its inputs,
before the job's own call of it; beside one as it is. Then all is as it was, and compiled code is there."""
import torch
from torch.utils import _pytree

from . import module_state, report

MOST_OFF = 1e-2   # of a result's norm: compiled code only rounds otherwise
MOST_ROUNDS = 3   # by then nothing new is to be compiled


class _Unfit(Exception):
    pass


def look(own, computed, module, args, kwargs, compiled, rounds):
    """Returns why not, None where it can. own(module, ...) is its forward, `computed` stands for it, with `compiled` (compiling.py)
    in it or None; `rounds`: whether that may round as 16 bits do."""
    problem = module_state.untriable(args, kwargs)
    if problem:
        return problem
    try:
        with module_state.as_before(module, args, kwargs) as numbers, \
                torch.autograd.graph.saved_tensors_hooks(_itself, _itself):  # not those of a recomputation around it
            _look(_Call(module, args, kwargs), own, computed, numbers, compiled, rounds)
        return None
    except _Unfit as problem:
        return str(problem)
    except Exception as problem:
        return report.why(problem)


def _itself(tensor):
    return tensor


class _Call:
    def __init__(self, module, args, kwargs):
        self._module, self._inputs = module, (args, kwargs)
        self._buffers = module_state.buffers_of(module)
        self._parameters = list(module.parameters())
        self._versions = [p._version for p in self._parameters]

    def run(self, function):
        """The result, after a backward pass through it that leaves no gradients."""
        leaves = []

        def copy(tensor):
            own = tensor.detach().clone()
            if not tensor.requires_grad:
                return own
            leaves.append(own.requires_grad_())
            return own.clone()  # which may be written to, as the job's own

        args, kwargs = module_state.mapped(self._inputs, copy)
        with module_state.own_buffers(self._buffers):
            result = function(self._module, *args, **kwargs)
            made = [t for t in _pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
            leaves += [p for p in self._parameters if p.requires_grad and not p._backward_hooks]
            if made and leaves:
                torch.autograd.grad([t.sum() for t in made], leaves, allow_unused=True)
        if [p._version for p in self._parameters] != self._versions:
            raise _Unfit("it changes parameters")
        return _pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result)


def _look(call, own, computed, numbers, compiled, rounds):
    plain = call.run(own)
    if compiled and numbers.others_used():
        raise _Unfit("it draws random numbers that are not torch's")
    is_random = numbers.torch_used()
    for _ in range(MOST_ROUNDS if compiled else 1):
        n_made = compiled.n_made if compiled else 0
        numbers.restore_torch()
        result = call.run(computed)
        if not compiled or compiled.n_made == n_made:
            break
    else:
        raise _Unfit("each call of it is compiled anew")
    _compare(plain, result, not is_random and not rounds)


def _compare(plain, result, values):
    a, shape = _pytree.tree_flatten(plain)
    b, other_shape = _pytree.tree_flatten(result)
    if shape != other_shape:
        raise _Unfit("its result has another structure")
    for x, y in zip(a, b):
        if not isinstance(x, torch.Tensor):
            if not _is_plain(x):
                raise _Unfit("it gives a %s, in which tensors can't be found" % type(x).__name__)
            continue
        if not isinstance(y, torch.Tensor) or (x.shape, x.dtype, x.device) != (y.shape, y.dtype, y.device):
            raise _Unfit("it gives other shapes or data types")
        if values and x.is_floating_point() and bool(x.isfinite().all()) and not _is_near(x, y):
            raise _Unfit("it gives other numbers")


def _is_plain(value):
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size))


def _is_near(x, y):
    return bool((x.double() - y.double()).norm() <= MOST_OFF * x.double().norm() + 1e-6 * x.numel() ** 0.5)
