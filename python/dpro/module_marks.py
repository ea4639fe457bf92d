"""Marks in a profile where the forward pass of each module begins and ends: spans named `dpro.module:NAME`.

They are made by torch's global hooks around a module's forward, which are there while the structure window is open. A
module that is called again, as when its activations are recomputed in the backward pass, is marked again."""
import contextlib
import sys
import threading
import weakref

import torch
from torch.nn.modules import module as hooks
from torch.profiler import record_function

from . import modules, report

PREFIX = "dpro.module:"
MOST_CALLS = 10000  # of one module in a step: beyond, it is marked no more


def anything_compiled():
    """Compiled code notices hooks, and would be compiled again."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return bool(counters and counters["frames"]["total"])


def _without_modes(enter, *args):
    """Whatever the job has put around each call of an operator is not to see the marks'."""
    with torch._C.DisableTorchFunction():
        if not torch._C._len_torch_dispatch_stack():
            enter(*args)
            return
        from torch.utils._python_dispatch import _disable_current_modes
        with _disable_current_modes():
            enter(*args)


_active = None  # the ModuleMarks that mark now


@contextlib.contextmanager
def again(module):
    """A forward that is computed again without a call of the module."""
    marks = _active
    if marks is None:
        yield
        return
    marks._entered(module, None)
    try:
        yield
    finally:
        marks._left(module, None, None)


class ModuleMarks:
    """Of these models, from watch() on; marked from begin() until end(). `failed(problem)` is told of what went wrong,
    and nothing is marked from then on."""

    def __init__(self, models, failed):
        self._names = {id(module): PREFIX + name for name, module in modules.of_models(models)}
        self._outer = {id(modules.inside(model)) for model in models}
        self._kept = [module for _, module in modules.of_models(models)]  # ids stay theirs
        self._failed = failed
        self._handles = []
        self._marking = False
        self._n_calls = {}
        self._open = threading.local()  # (module's id, mark) of each call that goes on in a thread
        self._inputs = []  # weak references to what came into a model last

    def watch(self):
        self._handles = [hooks.register_module_forward_pre_hook(self._entered),
                         hooks.register_module_forward_hook(self._left, always_call=True)]

    def begin(self):
        global _active
        self._marking, _active = True, self

    def begin_step(self):
        self._n_calls = {}

    def end(self):
        global _active
        _active = None
        handles, self._handles, self._marking = self._handles, [], False
        for handle in handles:
            handle.remove()
        self._close(0)
        self._names, self._outer, self._kept, self._inputs = {}, set(), [], []

    def inputs(self):
        """The tensors that came into a model in its last call and are still there."""
        return [tensor for tensor in (ref() for ref in self._inputs) if tensor is not None]

    # Hooks

    def _entered(self, module, args):
        name = self._names.get(id(module))
        if name is None or not self._handles or torch._C._get_tracing_state():
            return
        try:
            if id(module) in self._outer and args is not None:
                self._inputs = [weakref.ref(arg) for arg in args if issubclass(type(arg), torch.Tensor)]
            if self._marking:
                self._mark(id(module), name)
        except Exception as problem:
            self._give_up(problem)

    def _mark(self, key, name):
        n = self._n_calls[key] = self._n_calls.get(key, 0) + 1
        if n > MOST_CALLS:
            del self._names[key]
            report.say("calls-" + name, "%s is called more than %d times a step and not marked any more"
                       % (name[len(PREFIX):] or "the model", MOST_CALLS))
            return
        mark = record_function(name)
        _without_modes(mark.__enter__)
        self._calls().append((key, mark))

    def _left(self, module, args, result):
        """Called also where the forward failed; where it failed by more than an Exception, an outer one's is."""
        calls = self._calls()
        if not calls:
            return
        try:
            at = next((n for n in reversed(range(len(calls))) if calls[n][0] == id(module)), None)
            if at is not None:
                self._close(at)
        except Exception as problem:
            self._give_up(problem)

    def _calls(self):
        calls = getattr(self._open, "calls", None)
        if calls is None:
            calls = self._open.calls = []
        return calls

    def _close(self, at):
        calls = self._calls()
        while len(calls) > at:
            _without_modes(calls.pop()[1].__exit__, None, None, None)

    def _give_up(self, problem):
        if report.is_the_jobs(problem):
            raise problem
        self._marking = False
        self._failed(problem)
