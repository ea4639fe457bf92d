"""`optimize`: the search of `dpro optimize`, with passes written in Python. A binding of the C library's include/dpro/
headers by ctypes: structs here are those there, in the same order."""
import ctypes as c
import functools
import json
import os
import threading

from . import Error

_EDITS = {"merge": 0, "split": 1, "partition": 2, "priority": 3, "move": 4, "compress": 5, "fuse": 6, "unfuse": 7,
          "recompute": 8, "keep": 8, "accumulate": 9, "compute": 10}
_KINDS = ("FW", "BW", "UPDATE", "INPUT")
_NO_TENSOR = _NO_MODULE = 0xffffffff
_COMPRESSIONS = {"none": 0, "fp16": 1, "bf16": 2}
_COMPUTING = {"compile": 1, "bf16": 2}
_ALGORITHMS = {"default": 0, "paper": 1, "dp": 2}
_PASS_ABI = 4
_MOST_EDITS = 1024


def _ways(names):
    return sum(_COMPUTING[name] for name in set(names))


def _way(bits):
    return frozenset(name for name, bit in _COMPUTING.items() if bits & bit)


class _Error(c.Structure):
    _fields_ = [("code", c.c_int), ("text", c.c_char * 508)]


class _Sink(c.Structure):
    _fields_ = [("log", c.c_void_p), ("progress", c.c_void_p), ("arg", c.c_void_p), ("level", c.c_int)]


class _TraceOptions(c.Structure):
    _fields_ = [("rank_regex", c.c_char_p), ("threads", c.c_int), ("without_profile", c.c_int),
                ("processes", c.c_void_p), ("from_host", c.c_int), ("sink", _Sink)]


class _GraphOptions(c.Structure):
    _fields_ = [("first_step", c.c_int64), ("last_step", c.c_int64), ("no_align", c.c_int), ("raw_receives", c.c_int),
                ("dimensions", c.c_char_p), ("step_mark", c.c_char_p), ("clocks_only", c.c_int), ("threads", c.c_int),
                ("shown", c.POINTER(c.c_int64)), ("spent", c.c_void_p), ("sink", _Sink)]


class _ReplayOptions(c.Structure):
    _fields_ = [("samples", c.c_uint32), ("seed", c.c_uint64), ("delays", c.POINTER(c.c_char_p)),
                ("n_delays", c.c_size_t), ("skip_sample", c.c_uint32), ("threads", c.c_int), ("sink", _Sink)]


class _ModelOptions(c.Structure):
    _fields_ = [("profiler_ns", c.c_int64), ("probes", c.c_void_p), ("sink", _Sink),
                ("all_communication", c.c_int)]


class _Tensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("size_bytes", c.c_uint64), ("ready_ns", c.c_int64), ("done_ns", c.c_int64),
                ("bucket", c.c_uint32)]


class _Bucket(c.Structure):
    _fields_ = [("first", c.c_uint32), ("n", c.c_uint32), ("partitions", c.c_uint32), ("priority", c.c_int32),
                ("size_bytes", c.c_uint64), ("ready_ns", c.c_int64), ("start_ns", c.c_int64), ("end_ns", c.c_int64),
                ("critical", c.c_int)]


class _Op(c.Structure):
    _fields_ = [("name", c.c_char_p), ("kind", c.c_int), ("waits", c.c_int), ("tensor", c.c_uint32), ("work_ns", c.c_int64)]


class _Program(c.Structure):
    _fields_ = [("ops", c.POINTER(_Op)), ("n_ops", c.c_uint32)]


class _FusedOp(c.Structure):
    _fields_ = [("program", c.c_uint32), ("first", c.c_uint32), ("n", c.c_uint32), ("work_ns", c.c_int64)]


class _Module(c.Structure):
    _fields_ = [("name", c.c_char_p), ("class_name", c.c_char_p), ("parent", c.c_uint32), ("kept_bytes", c.c_uint64),
                ("recompute_ns", c.c_int64), ("recomputed", c.c_int), ("computing", c.c_uint), ("known", c.c_uint),
                ("gained_ns", c.c_int64 * 4)]


class _View(c.Structure):
    pass


_SYNC = c.CFUNCTYPE(c.c_int64, c.POINTER(_View), c.c_uint64, c.c_uint32)
_View._fields_ = [("n_ranks", c.c_uint32), ("n_tensors", c.c_uint32), ("n_buckets", c.c_uint32),
                  ("tensors", c.POINTER(_Tensor)), ("order", c.POINTER(c.c_uint32)), ("buckets", c.POINTER(_Bucket)),
                  ("compression", c.c_int), ("iteration_ns", c.c_int64), ("programs", c.POINTER(_Program)),
                  ("n_programs", c.c_uint32), ("critical_program", c.c_uint32), ("fused_ops", c.POINTER(_FusedOp)),
                  ("n_fused_ops", c.c_uint32), ("modules", c.POINTER(_Module)), ("n_modules", c.c_uint32),
                  ("micro_batches", c.c_uint32), ("peak_bytes", c.c_uint64), ("memory_bytes", c.c_uint64),
                  ("sync_ns", _SYNC)]


class _Edit(c.Structure):
    _fields_ = [("kind", c.c_int), ("at", c.c_uint32), ("value", c.c_int64), ("program", c.c_uint32), ("n", c.c_uint32)]


class _Candidate(c.Structure):
    _fields_ = [("edits", c.POINTER(_Edit)), ("n_edits", c.c_uint32)]


class _Pass(c.Structure):
    pass


_PROPOSE = c.CFUNCTYPE(c.c_int, c.POINTER(_Pass), c.POINTER(_View), c.c_uint32, c.POINTER(_Candidate))
_OPFS = c.CFUNCTYPE(c.c_int64, c.POINTER(_Pass), c.POINTER(_Op), c.c_uint32)
_Pass._fields_ = [("abi", c.c_uint32), ("name", c.c_char_p), ("summary", c.c_char_p), ("changes_numerics", c.c_int),
                  ("propose", _PROPOSE), ("opfs_ns", _OPFS), ("state", c.c_void_p)]


class _OptimizeOptions(c.Structure):
    _fields_ = [("algorithm", c.c_int), ("budget_s", c.c_double), ("seed", c.c_uint64), ("threads", c.c_int),
                ("compressions", c.c_uint), ("computing", c.c_uint), ("assumed_costs", c.c_int), ("no_coarsen", c.c_int),
                ("no_partial", c.c_int), ("no_symmetry", c.c_int),
                ("least_servers", c.c_uint32), ("most_servers", c.c_uint32), ("memory_bytes", c.c_uint64),
                ("memory_share", c.c_double), ("no_accumulation", c.c_int), ("graph", c.c_void_p),
                ("pass_files", c.POINTER(c.c_char_p)), ("n_pass_files", c.c_size_t),
                ("passes", c.POINTER(c.POINTER(_Pass))), ("n_passes", c.c_size_t), ("progress", c.c_void_p),
                ("arg", c.c_void_p), ("sink", _Sink)]


class _Report(c.Structure):
    _fields_ = [("trace", c.c_void_p), ("graph", c.c_void_p), ("model", c.c_void_p), ("optimum", c.c_void_p),
                ("plan", c.c_char_p), ("warnings", c.POINTER(c.c_char_p))]


class Tensor:
    """A gradient: name, size_bytes; ready_ns, when it is there on the last rank; done_ns, when its bucket has been
    communicated (both from the iteration's start); bucket, its number."""

    def __init__(self, tensor):
        self.name = tensor.name.decode("utf-8", "replace")
        self.size_bytes, self.ready_ns, self.done_ns = tensor.size_bytes, tensor.ready_ns, tensor.done_ns
        self.bucket = tensor.bucket


class Bucket:
    """Gradients that travel together: tensors (numbers), partitions, priority, size_bytes; ready_ns, start_ns, end_ns;
    critical, whether the critical path runs through its transfer."""

    def __init__(self, bucket, order):
        self.tensors = [order[i] for i in range(bucket.first, bucket.first + bucket.n)]
        self.partitions, self.priority, self.size_bytes = bucket.partitions, bucket.priority, bucket.size_bytes
        self.ready_ns, self.start_ns, self.end_ns = bucket.ready_ns, bucket.start_ns, bucket.end_ns
        self.critical = bool(bucket.critical)


class Op:
    """What a rank computes up to a gradient, or between two: name; kind, one of FW, BW, UPDATE, INPUT; waits, whether it
    waits for communication first, so that it can't be fused with the op before it; tensor, whose gradient is ready after
    it, or None; work_ns."""

    def __init__(self, op):
        self.name = op.name.decode("utf-8", "replace")
        self.kind, self.waits, self.work_ns = _KINDS[op.kind], bool(op.waits), op.work_ns
        self.tensor = None if op.tensor == _NO_TENSOR else op.tensor


class Module:
    """A module of the model, by which recomputation and computing are chosen: name, class_name; parent, the number of the
    one that it lies in, or None; kept_bytes, that recomputing it by itself gives back; recompute_ns, what that takes;
    recomputed, whether the strategy does so; computing, how the strategy computes it, a set of "compile" and "bf16";
    gained_ns, by each such set (a frozenset) that is known and allowed: what it wins of an iteration's work."""

    def __init__(self, module):
        self.name, self.class_name = (text.decode("utf-8", "replace") for text in (module.name, module.class_name))
        self.parent = None if module.parent == _NO_MODULE else module.parent
        self.kept_bytes, self.recompute_ns, self.recomputed = module.kept_bytes, module.recompute_ns, bool(module.recomputed)
        self.computing = _way(module.computing)
        self.gained_ns = {_way(way): module.gained_ns[way] for way in range(1, 4) if module.known >> way & 1}


class View:
    """The job under the strategy that is looked at: n_ranks, tensors, buckets (in the order of launch), compression,
    iteration_ns; programs, the ops that ranks run one after the other (those that compute alike share one);
    critical_program, of the rank that is done last; fused_ops, (program, first op, number, ns) of each; modules,
    outer ones before those within them; micro_batches; peak_bytes and memory_bytes, what a rank holds and may hold, or
    None. A pass must keep nothing of it."""

    def __init__(self, pointer):
        view = pointer.contents
        self._pointer = pointer
        self.n_ranks, self.iteration_ns = view.n_ranks, view.iteration_ns
        self.tensors = [Tensor(view.tensors[t]) for t in range(view.n_tensors)]
        self.buckets = [Bucket(view.buckets[b], view.order) for b in range(view.n_buckets)]
        self.compression = next(name for name, value in _COMPRESSIONS.items() if value == view.compression)
        self.critical_program = view.critical_program
        self.modules = [Module(module) for module in view.modules[:view.n_modules]]
        self.micro_batches = view.micro_batches
        self.peak_bytes, self.memory_bytes = view.peak_bytes or None, view.memory_bytes or None
        self.fused_ops = [(f.program, f.first, f.n, f.work_ns) for f in view.fused_ops[:view.n_fused_ops]]

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
        self.c = _Pass(_PASS_ABI, name.encode(), (function.__doc__ or name).strip().split("\n")[0].encode(),
                       int(bool(getattr(function, "changes_numerics", False))), _PROPOSE(self._propose),
                       _OPFS(self._opfs_ns) if hasattr(function, "opfs_ns") else _OPFS(), None)

    def _propose(self, _, view, index, candidate):
        try:
            if index == 0:
                self._here.candidates = [list(edits) for edits in self.function(View(view))]
            candidates = self._here.candidates
            if self.problem is not None or index >= len(candidates):
                return 0
            edits = candidates[index]
            if len(edits) > _MOST_EDITS:
                raise ValueError("a candidate has %d edits; %d are possible" % (len(edits), _MOST_EDITS))
            for i, edit in enumerate(edits):
                candidate.contents.edits[i] = self._edit(*edit)
            candidate.contents.n_edits = len(edits)
            return 1
        except Exception as problem:  # nothing may fly through the C code in between
            self.problem = self.problem or problem
            return 0

    def _opfs_ns(self, _, ops, n_ops):
        try:
            ns = None if self.problem is not None else self.function.opfs_ns([Op(op) for op in ops[:n_ops]])
            return -1 if ns is None else int(ns)
        except Exception as problem:
            self.problem = self.problem or problem
            return -1

    @staticmethod
    def _edit(kind, at=0, value=0, *more):
        if kind not in _EDITS:
            raise ValueError("%r is no edit: %s" % (kind, ", ".join(_EDITS)))
        if kind == "compress":
            at, value = 0, _COMPRESSIONS[at]
        if kind == "accumulate":
            at, value = 0, at
        if kind == "recompute":
            value = 1
        if kind == "compute":
            value = _ways(value or ())
        if kind == "unfuse":
            return _Edit(_EDITS[kind], at=value, program=at)
        if kind == "fuse":
            return _Edit(_EDITS[kind], at=value, program=at, n=more[0], value=int(more[1]))
        return _Edit(_EDITS[kind], at, value)


def _library():
    from .settings import library
    path = library("libdpro.so")
    if path is None:
        raise Error("optimize: libdpro.so is not with the package; install dpro whole (pip install, make install), or "
                    "build the checkout")
    lib = c.CDLL(path)
    for name in ("trace", "graph", "replay", "model", "optimum"):
        getattr(lib, "dpro_%s_destroy" % name).argtypes = [c.c_void_p]
    lib.dpro_graph_take_out_profiler.argtypes = lib.dpro_graph_profiler_op_ns.argtypes = [c.c_void_p]
    lib.dpro_replay_iteration_ns.argtypes = [c.c_void_p]
    lib.dpro_graph_profiler_op_ns.restype = lib.dpro_replay_iteration_ns.restype = c.c_int64
    return lib


class _Run:
    """Calls that fail raise; what was made is destroyed in the end, last first."""

    def __init__(self):
        self.lib = _library()
        self.made = []

    def call(self, name, *args):
        error = _Error()
        if getattr(self.lib, name)(*args, c.byref(error)) < 0:
            raise Error(error.text.decode("utf-8", "replace"))

    def make(self, what, name, *args):
        made = c.c_void_p()
        self.call(name, *args, c.byref(made))
        self.made.append((what, made))
        return made

    def close(self):
        for what, made in reversed(self.made):
            getattr(self.lib, "dpro_%s_destroy" % what)(made)
        self.made = []


def _take_out_profiler(run, graph):
    """What it made of an iteration, ns."""
    if run.lib.dpro_graph_profiler_op_ns(graph) <= 0:
        return 0
    times = []
    for take_out in (True, False):
        replay = run.make("replay", "dpro_replay_run", graph, c.byref(_ReplayOptions()))
        times.append(run.lib.dpro_replay_iteration_ns(replay))
        if take_out:
            run.lib.dpro_graph_take_out_profiler(graph)
    return max(0, times[0] - times[1])


def _json(run, report):
    libc = c.CDLL(None)
    libc.open_memstream.restype = c.c_void_p
    libc.fclose.argtypes = [c.c_void_p]
    libc.free.argtypes = [c.c_void_p]
    text, size = c.c_void_p(), c.c_size_t()
    stream = libc.open_memstream(c.byref(text), c.byref(size))
    if not stream:
        raise MemoryError
    try:
        run.call("dpro_optimize_json", c.byref(report), c.c_void_p(stream))
    finally:
        libc.fclose(stream)
    try:
        return json.loads(c.string_at(text, size.value))
    finally:
        libc.free(text)


def optimize(trace, plan=None, passes=(), budget_s=0, seed=0, algorithm="default", compress=(), threads=0, servers=None,
             memory=None, accumulate=True, allow=(), step_mark=None):
    """Searches the communication strategy that makes an iteration of the job in `trace` (a path, or several) shortest;
    returns the result as `dpro optimize --json` prints it, a dict of schema dpro.optimize/1. With `plan`, a plan is
    written into that folder. `servers`, a number or a pair of them (from, to), says how many parameter servers the job may have.
    `allow` names what may be done to computation, which then rounds otherwise: "compile" (modules, by torch.compile), "bf16"
    (modules, under autocast), as far as a probe measured what that costs; with "assumed" also where none did.
    `memory` is what a rank may hold, in bytes, or with a % as in "80%" of what its device has: where the job holds more,
    modules are recomputed and, unless `accumulate` is false, the batch is cut. `step_mark` names the range of the program's
    that is an iteration, as --step-mark does.

    `passes` are functions: pass(view) returns candidates, each a list of edits: ("merge", bucket), ("split", bucket, n),
    ("partition", bucket, k), ("priority", bucket, p), ("move", bucket, place), ("compress", "fp16"),
    ("fuse", program, first op, n, ns), ("unfuse", program, first op),
    ("recompute", module), ("keep", module), ("accumulate", micro-batches), ("compute", module, {"compile", "bf16"}). Edits
    count buckets as the ones before them in the list left them. The same view must get the same answer. A pass may have
    attributes: `opfs_ns`, a function that says what a list of neighbouring ops takes as one, ns, or None if they can't be
    fused, so that the search fuses ops;
    `changes_numerics`, if true the pass is only used where `compress` or `allow` allows something. What a pass raises, optimize
    raises."""
    if algorithm not in _ALGORITHMS:
        raise Error("optimize: algorithm=%r: one of %s is needed" % (algorithm, ", ".join(_ALGORITHMS)))
    unknown = [name for name in compress if name not in _COMPRESSIONS]
    if unknown:
        raise Error("optimize: compress=%r: %s are known" % (unknown[0], ", ".join(_COMPRESSIONS)))
    unknown = [name for name in allow if name not in (*_COMPUTING, "assumed")]
    if unknown:
        raise Error("optimize: allow=%r: %s, assumed are known" % (unknown[0], ", ".join(_COMPUTING)))
    least, most = servers if isinstance(servers, (tuple, list)) else (servers or 0, servers or 0)
    bytes_allowed, share = (0, float(memory[:-1]) / 100) if isinstance(memory, str) else (memory or 0, 0)
    paths = [trace] if isinstance(trace, (str, os.PathLike)) else list(trace)
    paths = [os.fsencode(path) for path in paths]
    given = [_Callable(function) for function in passes]
    run = _Run()
    try:
        read = run.make("trace", "dpro_trace_load", (c.c_char_p * len(paths))(*paths), c.c_size_t(len(paths)),
                        c.byref(_TraceOptions(threads=threads)))
        graph_options = _GraphOptions(step_mark=os.fsencode(step_mark) if step_mark is not None else None)
        graph = run.make("graph", "dpro_graph_build", read, c.byref(graph_options))
        model_options = _ModelOptions(profiler_ns=_take_out_profiler(run, graph))
        model = run.make("model", "dpro_model_build", graph, c.byref(model_options))
        options = _OptimizeOptions(algorithm=_ALGORITHMS[algorithm], budget_s=budget_s, seed=seed, threads=threads,
                                   compressions=sum(1 << _COMPRESSIONS[name] for name in set(compress)),
                                   computing=_ways(name for name in allow if name in _COMPUTING),
                                   assumed_costs="assumed" in allow, least_servers=least, most_servers=most,
                                   memory_bytes=bytes_allowed, memory_share=share,
                                   no_accumulation=not accumulate,
                                   passes=(c.POINTER(_Pass) * len(given))(*[c.pointer(p.c) for p in given]),
                                   n_passes=len(given))
        optimum = run.make("optimum", "dpro_optimize_run", model, c.byref(options))
        for p in given:
            if p.problem is not None:
                raise p.problem
        report = _Report(read, graph, model, optimum, os.fsencode(plan) if plan is not None else None, None)
        if plan is not None:
            run.call("dpro_optimize_plan", c.byref(report))
        return _json(run, report)
    finally:
        run.close()
