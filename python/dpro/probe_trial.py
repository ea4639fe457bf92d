"""Whether a module can be called outside of training: some calls of it, each operator looked at before it runs."""
import functools

from torch.utils._python_dispatch import TorchDispatchMode

from . import recompute_trial

COMMUNICATION = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor")


class Communicates(Exception):
    """With ranks that wait for something else."""


class _Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in COMMUNICATION:
            raise Communicates("the module communicates (%s)" % func)
        self.n += not getattr(func, "is_view", False) and "view" not in func.__name__
        return func(*args, **(kwargs or {}))


def look(own, module, call):
    """Returns why it can't, None where it can, and how many operators its forward pass consists of, views apart. own(module, ...)
    is its forward, `call` says what it is given."""
    def counted(*args, **kwargs):
        before = operators.n
        result = own(*args, **kwargs)
        found.append(operators.n - before)
        return result

    found = []
    with _Operators() as operators:
        problem, _ = recompute_trial.look(counted, module, *call.inputs())
        if problem is None:
            call.both_passes(functools.partial(own, module))
    return problem, found[0] if found else None
