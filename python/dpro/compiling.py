"""torch.compile of a function, with what came of it: which graphs were made of it, which of them ran, why others were not.

The backend is inductor, with the backward pass compiled at once. A graph that inductor fails at runs as it is. Graphs are not
cut at DDP's buckets."""
import contextlib
import sys
import types

import torch


class Compiled:
    """own(module, ...) compiled: modules of one class share what is made of it, where it fits them."""

    def __init__(self, own):
        def run(module, *args, **kwargs):
            return own(module, *args, **kwargs)

        # Torch keeps what it made by code object, and makes only a few variants of one.
        code = run.__code__.replace(co_name="dpro_" + own.__name__)
        run = types.FunctionType(code, run.__globals__, own.__name__, None, run.__closure__)
        self._function = torch.compile(run, backend=self._backend, dynamic=False)
        self._options = None
        self.n_made = self.n_ran = 0
        self.problem = None  # why the last graph could not be compiled

    def __call__(self, module, *args, **kwargs):
        if self._options is None:
            import torch._dynamo
            self._options = torch._dynamo.config.patch(optimize_ddp=False, suppress_errors=True)
        with self._options:
            return self._function(module, *args, **kwargs)

    def _backend(self, graph, inputs):
        from torch._dynamo.backends.registry import lookup_backend
        self.n_made += 1
        try:
            with _backward_too():
                inner = lookup_backend("inductor")(graph, inputs)
        except Exception as problem:
            self.problem = _first_line(problem)
            return graph.forward

        def ran(*args):
            self.n_ran += 1
            return inner(*args)
        return ran


def _backward_too():
    import torch._functorch.config as config
    name = "force_non_lazy_backward_lowering"
    return config.patch({name: True}) if hasattr(config, name) else contextlib.nullcontext()  # older: in the first backward pass


def _first_line(problem):
    lines = str(problem).strip().splitlines() or [""]
    return "%s: %s" % (type(problem).__name__, lines[0][:200])


def breaks():
    """What torch's compiler could not go on at so far, by reason."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return dict(counters.get("graph_break", {}))


def new_break(before):
    """The first line of one that was not in breaks() `before`; None where there is none."""
    return next((reason.splitlines()[0] for reason, n in breaks().items() if n > before.get(reason, 0)), None)
