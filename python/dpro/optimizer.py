"""`optimize`: the search of `dpro optimize`, with passes written in Python."""
from __future__ import annotations

import ctypes as c
import functools
import sys
import threading

from . import Error, layouts, library
from .layouts import ALGORITHM, COMPRESSION, COMPUTING, EDIT_KIND, OP_KIND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Tuple, Union

_EDITS = {**EDIT_KIND, "keep": EDIT_KIND["recompute"]}
_KINDS = {value: name.upper() for name, value in OP_KIND.items()}
_NO_TENSOR = _NO_MODULE = 0xffffffff
_COMPUTING = {"compile": COMPUTING["compiled"], "bf16": COMPUTING["bf16"]}
_PROPOSE = dict(layouts.Pass._fields_)["propose"]


def _ways(names):
    return sum(_COMPUTING[name] for name in set(names))


def _way(bits):
    return frozenset(name for name, bit in _COMPUTING.items() if bits & bit)


class _Copy:
    """Of the fields of a struct that are no pointers to others."""

    def __init__(self, of):
        for name, _ in of._fields_:
            value = getattr(of, name)
            setattr(self, name, value.decode("utf-8", "replace") if isinstance(value, bytes) else value)


class Tensor(_Copy):
    """A gradient: name, size_bytes; ready_ns, when it is there on the last rank; done_ns, when its bucket has been
    communicated (both from the iteration's start); bucket, its number."""


class Bucket(_Copy):
    """Gradients that travel together: tensors (numbers), partitions, priority, size_bytes; ready_ns, start_ns, end_ns;
    critical, whether the critical path runs through its transfer."""

    def __init__(self, bucket, order):
        super().__init__(bucket)
        self.tensors, self.critical = order[bucket.first:bucket.first + bucket.n], bool(bucket.critical)


class Op(_Copy):
    """What a rank computes up to a gradient, or between two: name; kind, one of FW, BW, UPDATE, INPUT; waits, whether it
    waits for communication first, so that it can't be fused with the op before it; tensor, whose gradient is ready after
    it, or None; work_ns."""

    def __init__(self, op):
        super().__init__(op)
        self.kind, self.waits = _KINDS[op.kind], bool(op.waits)
        self.tensor = None if op.tensor == _NO_TENSOR else op.tensor


class Module(_Copy):
    """A module of the model, by which recomputation and computing are chosen: name, class_name; parent, the number of the
    one that it lies in, or None; kept_bytes, that recomputing it by itself gives back; recompute_ns, what that takes;
    recomputed, whether the strategy does so; computing, how the strategy computes it, a set of "compile" and "bf16";
    gained_ns, by each such set (a frozenset) that is known and allowed: what it wins of an iteration's work."""

    def __init__(self, module):
        super().__init__(module)
        self.parent = None if module.parent == _NO_MODULE else module.parent
        self.recomputed, self.computing = bool(module.recomputed), _way(module.computing)
        self.gained_ns = {_way(way): module.gained_ns[way] for way in range(1, 4) if module.known >> way & 1}


class View:
    """The job under the strategy that is looked at: n_ranks, tensors, buckets (in the order of launch), compression,
    iteration_ns; programs, the ops that ranks run one after the other (those that compute alike share one);
    critical_program, of the rank that is done last; modules, outer ones before those within them; micro_batches;
    peak_bytes and memory_bytes, what a rank holds and may hold, or None. A pass must keep nothing of it."""

    def __init__(self, pointer):
        view = pointer.contents
        self._pointer = pointer
        self.n_ranks, self.iteration_ns = view.n_ranks, view.iteration_ns
        self.tensors = [Tensor(view.tensors[t]) for t in range(view.n_tensors)]
        self.buckets = [Bucket(view.buckets[b], view.order) for b in range(view.n_buckets)]
        self.compression = next(name for name, value in COMPRESSION.items() if value == view.compression)
        self.critical_program = view.critical_program
        self.modules = [Module(module) for module in view.modules[:view.n_modules]]
        self.micro_batches = view.micro_batches
        self.peak_bytes, self.memory_bytes = view.peak_bytes or None, view.memory_bytes or None

    @functools.cached_property
    def programs(self):
        view = self._pointer.contents
        return [[Op(op) for op in program.ops[:program.n_ops]] for program in view.programs[:view.n_programs]]

    def sync_ns(self, size_bytes, partitions=1):
        """t_sync(s, k): what communicating so many bytes takes by itself, in partitions."""
        return self._pointer.contents.sync_ns(self._pointer, size_bytes, partitions)


class _Callable:
    """A Python function as a pass of the library's."""

    def __init__(self, function):
        self.function = function
        self.problem = None
        self._here = threading.local()  # a view's candidates, asked for one by one
        name = getattr(function, "__name__", "pass")
        self.c = layouts.Pass(layouts.PASS_ABI, name.encode(), (function.__doc__ or name).strip().split("\n")[0].encode(),
                       int(bool(getattr(function, "changes_numerics", False))), _PROPOSE(self._propose), None)

    def _propose(self, _, view, index, candidate):
        try:
            if index == 0:
                self._here.candidates = [list(edits) for edits in self.function(View(view))]
            candidates = self._here.candidates
            if self.problem is not None or index >= len(candidates):
                return 0
            edits = candidates[index]
            if len(edits) > layouts.PASS_MAX_EDITS:
                raise ValueError("a candidate has %d edits; %d are possible" % (len(edits), layouts.PASS_MAX_EDITS))
            for i, edit in enumerate(edits):
                candidate.contents.edits[i] = self._edit(*edit)
            candidate.contents.n_edits = len(edits)
            return 1
        except Exception as problem:  # nothing may fly through the C code in between
            self.problem = self.problem or problem
            return 0

    @staticmethod
    def _edit(kind, at=0, value=0):
        if kind not in _EDITS:
            raise ValueError("%r is no edit: %s" % (kind, ", ".join(_EDITS)))
        if kind == "compress":
            at, value = 0, COMPRESSION[at]
        if kind == "accumulate":
            at, value = 0, at
        if kind == "recompute":
            value = 1
        if kind == "compute":
            value = _ways(value or ())
        return layouts.Edit(_EDITS[kind], at, value)


class Job(library.Job):
    __doc__ = library.Job.__doc__

    def optimize(self, plan: Union[library.Path, None] = None, passes: Iterable[Callable[[View], Any]] = (), budget_s: float = 0,
                 seed: int = 0, algorithm: str = "default", compress: Iterable[str] = (),
                 servers: Union[int, Tuple[int, int], None] = None, memory: Union[int, str, None] = None, accumulate: bool = True,
                 allow: Iterable[str] = ()) -> library.Answer:
        """Searches the communication strategy that makes an iteration of the job shortest; returns the result as `dpro
        optimize --json` prints it, an Answer of schema dpro.optimize/1. With `plan`, a plan is written into that
        folder. `servers`, a number or a pair of them (from, to), says how many parameter servers the job may have.
        `allow` names what may be done to computation, which then rounds otherwise: "compile" (modules, by
        torch.compile), "bf16" (modules, under autocast), as far as a probe measured what that costs; with "assumed"
        also where none did. `memory` is what a rank may hold, in bytes, as in "16GiB", or with a % as in "80%" of what its
        device has: where the job holds more, modules are recomputed and, unless `accumulate` is false, the batch is cut.

        `passes` are functions: pass(view) returns candidates, each a list of edits: ("merge", bucket), ("split",
        bucket, n), ("partition", bucket, k), ("priority", bucket, p), ("move", bucket, place), ("compress", "fp16"),
        ("recompute", module), ("keep", module), ("accumulate", micro-batches), ("compute", module, {"compile",
        "bf16"}). Edits count buckets as the ones before them in the list left them. The same view must get the same
        answer. With an attribute `changes_numerics` that is true, a pass is only used where `compress` or `allow`
        allows something. What a pass raises, optimize raises."""
        compress, allow, passes = (library.list_of(name, value, of) for name, value, of in (
            ("compress", compress, "names"), ("allow", allow, "names"), ("passes", passes, "functions")))
        unknown = [name for name in compress if name not in COMPRESSION]
        if unknown:
            raise Error("optimize: compress=%r: %s are known" % (unknown[0], ", ".join(COMPRESSION)))
        unknown = [name for name in allow if name not in (*_COMPUTING, "assumed")]
        if unknown:
            raise Error("optimize: allow=%r: %s, assumed are known" % (unknown[0], ", ".join(_COMPUTING)))
        least, most = servers if isinstance(servers, (tuple, list)) and len(servers) == 2 else (servers, servers)
        least, most = (library.number("servers", c.c_uint32, value or 0, 0) for value in (least, most))
        bytes_allowed, share = memory, None
        if isinstance(memory, str):
            bytes_allowed = library.bytes_of(memory)
            try:
                if bytes_allowed is None:
                    share = library.number("memory", c.c_double, float(memory.rstrip("%")) / 100,
                                           sys.float_info.min if memory.endswith("%") else float("inf"))
            except (ValueError, Error):
                raise Error("memory=%r: a size such as 16GiB, bytes, or a share above 0 such as '80%%', are needed" % memory) from None
        if bytes_allowed is not None:
            library.number("memory", c.c_uint64, bytes_allowed, 1)
        given = [_Callable(function) for function in passes]
        options = library.struct(
            layouts.OptimizeOptions, algorithm=algorithm, budget_s=budget_s, seed=seed,
            compressions=sum(1 << COMPRESSION[name] for name in set(compress)),
            computing=_ways(name for name in allow if name in _COMPUTING), assumed_costs="assumed" in allow, least_servers=least,
            most_servers=most, memory_bytes=bytes_allowed, memory_share=share, no_accumulation=not accumulate)
        options.passes = (c.POINTER(layouts.Pass) * len(given))(*[c.pointer(p.c) for p in given])
        options.n_passes = len(given)
        try:
            return self.searched(options, plan)
        finally:
            for p in given:
                if p.problem is not None:
                    raise p.problem


def ask(question, trace, options):
    """Of a job that is opened for it; the options are those of the job and of the question."""
    of_job = {name: options.pop(name) for name in [*library.fields_of(layouts.JobOptions), "steps"] if name in options}
    with Job(trace, **of_job) as job:
        return getattr(job, question)(**options)
