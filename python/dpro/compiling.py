"""torch.compile of a function, with what came of it: which graphs were made of it, which of them ran, why others were not.

The backend is inductor, with the backward pass compiled at once. A graph that inductor fails at runs as it is. Graphs are not
cut at DDP's buckets. The second shape that a size of an input takes is compiled for any: no further one is compiled anew."""
import contextlib
import sys
import types

import torch

from . import agreement, report


class Compiled:
    """own(module, ...) compiled: modules of one class share what is made of it, where it fits them.

    around(graph, inputs): a context in which it is compiled. `strict`: what torch's compiler can't trace is raised, rather
    than run as it is."""

    def __init__(self, own, around=lambda graph, inputs: contextlib.nullcontext(), strict=False):
        def run(module, *args, **kwargs):
            return own(module, *args, **kwargs)

        # Torch keeps what it made by code object, and makes only a few variants of one. It leaves methods of its own classes
        # alone, nn.Sequential's for one, unless something else calls them.
        code = run.__code__.replace(co_name="dpro_" + own.__name__)
        run = types.FunctionType(code, run.__globals__, own.__name__, None, run.__closure__)
        self._function = torch.compile(run, backend=self._backend)
        self._around, self._strict, self._options = around, strict, None
        self.n_made = self.n_ran = self.n_breaks = 0
        self.problem = None  # why the last graph could not be compiled

    def __call__(self, module, *args, **kwargs):
        if self._options is None:
            import torch._dynamo
            self._options = torch._dynamo.config.patch(optimize_ddp=False, suppress_errors=not self._strict)
        with self._options:
            return self._function(module, *args, **kwargs)

    def _backend(self, graph, inputs):
        self.n_made += 1
        if any(isinstance(size, torch.SymInt) for size in inputs):
            report.say("compiled anew", "a compiled module is given other shapes than before: this step compiles it anew, for any "
                       "shape, and takes longer. Such code may be slower than the plan promises; dpro verify measures it",
                       agreement.rank())
        try:
            with self._around(graph, inputs):
                inner = compile_graph(graph, inputs)
        except Exception as problem:
            self.problem = report.first_line(problem)
            return graph.forward

        def ran(*args):
            self.n_ran += 1
            return inner(*args)
        return ran

    def tried(self, run):
        """Calls run(), which calls it; why nothing of it is compiled, None where something is."""
        n_ran, before, self.problem = self.n_ran, breaks(), None
        run()
        now = breaks()
        self.n_breaks = sum(now.values()) - sum(before.values())
        if self.problem is None and self.n_ran == n_ran:
            new = next((reason for reason, n in now.items() if n > before.get(reason, 0)), "torch's compiler finds no graph in it")
            return "nothing of it is compiled: " + new.splitlines()[0]
        return self.problem


def compile_graph(graph, inputs):
    """Its backward pass too; older torch compiles that when it is first called."""
    import torch._functorch.config as config
    from torch._inductor.compile_fx import compile_fx
    name = "force_non_lazy_backward_lowering"
    with config.patch({name: True}) if hasattr(config, name) else contextlib.nullcontext():
        return compile_fx(graph, inputs)


def breaks():
    """What torch's compiler could not go on at so far, by reason."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return dict(counters.get("graph_break", {}))
