"""The ways in which a module can be computed: as it is, by torch.compile, in 16 bits, both; and whether the compiler compiled
anything at all. What is compiled here is forgotten afterwards, and no cache of the user's is read or written."""
import contextlib
import functools
import logging
import shutil
import time

import torch
from torch.utils import _pytree

from . import probe_result, report

COMPILE, BF16 = "compile", "bf16"
OP_SECONDS, LEAST_OPS = 0.03, 30  # of compiling, before anything was; ops below which it takes no less
LOGS = ("torch._dynamo", "torch._inductor", "torch._functorch")


class TooLate(Exception):
    """There is not enough time left to compile this."""


def forward_of(group_modules):
    """One function that computes these modules one after the other. It is no method of theirs: torch.compile leaves methods of
    torch's own classes alone, nn.Sequential's for one, unless something else calls them. What wraps a call of them (hooks,
    DDP) has no part in it."""
    first, *rest = [module.forward for module in group_modules]

    def compute(*args, **kwargs):
        result = first(*args, **kwargs)
        for forward in rest:
            result = forward(result)
        return result
    return compute


def in_bf16(compute, device_type):
    def lower(*args, **kwargs):
        with torch.autocast(device_type, torch.bfloat16):
            result = compute(*args, **kwargs)
        return _pytree.tree_map_only(torch.Tensor, lambda t: t.float() if t.dtype == torch.bfloat16 else t, result)
    return lower


class Compiled:
    """compute() by torch.compile. Call it once, both passes, and then look at `problem`."""

    def __init__(self, compute, compiler):
        self.n_graphs = self.n_breaks = 0
        self.problem = None
        self._compiler = compiler
        self._function = torch.compile(compute, dynamic=False, backend=self._backend)

    def __call__(self, *args, **kwargs):
        return self._function(*args, **kwargs)

    def _backend(self, graph, inputs):
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def inner(part, *args, **kwargs):
            with self._compiler.in_time(len(part.graph.nodes)):
                return compile_fx_inner(part, *args, **kwargs)

        self.n_graphs += 1
        return compile_fx(graph, inputs, inner_compile=inner)

    def run_first(self, run):
        """Calls run(itself), both passes, for which it is compiled; returns how long that took, in ns."""
        begin = time.perf_counter_ns()
        run(self)
        took = time.perf_counter_ns() - begin
        breaks = self._compiler.breaks()
        self.n_breaks = sum(breaks.values())
        if not self.n_graphs:
            why = next(iter(breaks), "").split("\n")[0]
            self.problem = "torch.compile compiles nothing of it" + (why and " (%s)" % why)
        return took


class Compiler:
    """torch.compile for a while. seconds_left(): how long compiling may take."""

    def __init__(self, device, seconds_left):
        self._device = device
        self._seconds_left, self._op_seconds = seconds_left, OP_SECONDS
        self.missing = None  # why nothing can be compiled

    def _start(self):
        """What takes long only once; and whether it works: it may lack a C or C++ compiler, Triton or Python's headers."""
        try:
            Compiled(lambda x: x.exp() + x, self).run_first(lambda compiled: compiled(torch.zeros(64, device=self._device)))
        except Exception as problem:
            if report.is_the_jobs(problem):
                raise
            self.missing = None if is_late(problem) else short(problem)
        self._op_seconds = OP_SECONDS
        self.forget()

    @contextlib.contextmanager
    def in_time(self, n_ops):
        """Around compiling so many: refused where less time is left than it takes by what was seen so far."""
        if n_ops * self._op_seconds > self._seconds_left():
            raise TooLate("the time that is left is too short to compile its %d ops" % n_ops)
        begin = time.perf_counter()
        yield
        self._op_seconds = max(self._op_seconds / 2, (time.perf_counter() - begin) / max(n_ops, LEAST_OPS))

    def _run_compiler(self, run, command, folder):
        """The C++ compiler, ended when the time is over."""
        left = max(round(self._seconds_left()), 1)
        try:
            run("timeout %d %s" % (left, command) if shutil.which("timeout") else command, folder)
        except Exception as problem:
            if self._seconds_left() <= 0:
                raise TooLate("the time that was left was too short to compile it") from problem
            raise

    @contextlib.contextmanager
    def ready(self):
        """The state of the compiler and of its log, and where it keeps what it compiled."""
        import torch._dynamo
        import torch._inductor.config
        import torch._inductor.utils
        from torch._inductor import cpp_builder
        own = getattr(cpp_builder, "_run_compile_cmd", None)
        fresh = getattr(torch._inductor.utils, "fresh_cache", None) or torch._inductor.utils.fresh_inductor_cache
        levels = [(logger, logger.level) for logger in map(logging.getLogger, LOGS)]
        try:
            for logger, _ in levels:
                logger.setLevel(logging.CRITICAL)
            if own:
                cpp_builder._run_compile_cmd = functools.partial(self._run_compiler, own)
            with torch._dynamo.config.patch(suppress_errors=False), \
                    torch._inductor.config.patch(compile_threads=1, fx_graph_cache=False), fresh():
                self._start()
                yield
        finally:
            if own:
                cpp_builder._run_compile_cmd = own
            self.forget()
            for logger, level in levels:
                logger.setLevel(level)

    @staticmethod
    def forget():
        """What one module was compiled to."""
        from torch._dynamo import utils
        torch._dynamo.reset()
        utils.counters.clear()  # by which others tell whether the job is compiled

    @staticmethod
    def breaks():
        """How often tracing broke off since forget(), by reason."""
        from torch._dynamo import utils
        return dict(utils.counters["graph_break"])


def is_late(problem):
    return type(getattr(problem, "inner_exception", None) or problem) is TooLate


def short(problem):
    """An exception in one line; of what the compiler has wrapped, the inner one."""
    problem = getattr(problem, "inner_exception", None) or problem
    return probe_result.short(problem)
