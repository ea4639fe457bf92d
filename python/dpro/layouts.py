"""Structs and enums of the library, made by tools/layouts.py from include/dpro/: not to be edited."""
import ctypes as c


def _struct(name):
    return type(name, (c.Structure,), {})


AgainstReport = _struct("AgainstReport")
Candidate = _struct("Candidate")
ChangeField = _struct("ChangeField")
ChangeKind = _struct("ChangeKind")
Column = _struct("Column")
ComputeChange = _struct("ComputeChange")
Daydream = _struct("Daydream")
DiagnoseOptions = _struct("DiagnoseOptions")
DiagnoseReport = _struct("DiagnoseReport")
Edit = _struct("Edit")
Error = _struct("Error")
JobOptions = _struct("JobOptions")
JobReplayOptions = _struct("JobReplayOptions")
JobTime = _struct("JobTime")
MemoryBudget = _struct("MemoryBudget")
MemoryHolder = _struct("MemoryHolder")
MemoryPoint = _struct("MemoryPoint")
OptimizeOptions = _struct("OptimizeOptions")
OptimizeProgress = _struct("OptimizeProgress")
OptimizeReport = _struct("OptimizeReport")
Pass = _struct("Pass")
PassBucket = _struct("PassBucket")
PassModule = _struct("PassModule")
PassOp = _struct("PassOp")
PassProgram = _struct("PassProgram")
PassTensor = _struct("PassTensor")
PassView = _struct("PassView")
RankMemory = _struct("RankMemory")
Report = _struct("Report")
Sink = _struct("Sink")
Table = _struct("Table")
Validation = _struct("Validation")
WhatifReport = _struct("WhatifReport")

Error._fields_ = [("code", c.c_int), ("text", c.c_char * 508)]
Sink._fields_ = [("log", c.c_void_p), ("progress", c.c_void_p), ("arg", c.c_void_p), ("level", c.c_int)]
JobOptions._fields_ = [("size", c.c_size_t), ("threads", c.c_int), ("rank_regex", c.c_char_p),
    ("without_profile", c.c_int), ("processes", c.c_void_p), ("from_host", c.c_int), ("first_step", c.c_int64),
    ("last_step", c.c_int64), ("no_align", c.c_int), ("raw_receives", c.c_int), ("dimensions", c.c_char_p),
    ("step_mark", c.c_char_p), ("shown", c.POINTER(c.c_int64)), ("clocks_only", c.c_int), ("probes", c.c_char_p),
    ("keep_profiler", c.c_int), ("sink", Sink)]
JobReplayOptions._fields_ = [("size", c.c_size_t), ("samples", c.c_uint32), ("seed", c.c_uint64),
    ("delays", c.POINTER(c.c_char_p)), ("n_delays", c.c_size_t), ("bandwidth_bytes_per_s", c.c_double),
    ("no_validate", c.c_int)]
Report._fields_ = [("trace", c.c_void_p), ("graph", c.c_void_p), ("replay", c.c_void_p),
    ("validation", c.POINTER(Validation)), ("daydream", c.POINTER(Daydream)), ("n_samples", c.c_uint32),
    ("profiler_op_ns", c.c_int64), ("profiler_ns", c.c_int64), ("what_if", c.c_int), ("as_it_is_ns", c.c_int64),
    ("diagnosis", c.POINTER(DiagnoseReport)), ("sink", Sink)]
DiagnoseOptions._fields_ = [("size", c.c_size_t), ("threads", c.c_int), ("profiler_ns", c.c_int64),
    ("model", c.c_void_p), ("trace", c.c_char_p), ("sink", Sink)]
JobTime._fields_ = [("ns", c.c_int64), ("low_ns", c.c_int64), ("high_ns", c.c_int64), ("source", c.c_int),
    ("n", c.c_uint32), ("n_warm_up", c.c_uint32)]
DiagnoseReport._fields_ = [("trace", c.c_void_p), ("graph", c.c_void_p), ("diagnosis", c.c_void_p), ("job", JobTime),
    ("profiler_ns", c.c_int64), ("measures", c.c_void_p), ("baseline", c.c_void_p),
    ("against", c.POINTER(AgainstReport))]
ComputeChange._fields_ = [("speed", c.c_double), ("first_rank", c.c_int), ("last_rank", c.c_int),
    ("processor", c.c_int)]
ChangeField._fields_ = [("name", c.c_char_p), ("key", c.c_char_p), ("said", c.c_char_p), ("offset", c.c_size_t),
    ("type", c.c_int)]
ChangeKind._fields_ = [("option", c.c_char_p), ("argument", c.c_char_p), ("form", c.c_char_p), ("help", c.c_char_p),
    ("choices", c.POINTER(c.c_char_p)), ("least", c.c_uint64), ("most", c.c_uint64), ("said_least", c.c_char_p),
    ("changes_numbers", c.c_int), ("changes_memory", c.c_int), ("is_of_plans", c.c_int), ("fields", ChangeField * 7)]
WhatifReport._fields_ = [("trace", c.c_void_p), ("graph", c.c_void_p), ("model", c.c_void_p), ("changes", c.c_void_p),
    ("whatif", c.c_void_p)]
RankMemory._fields_ = [("rank", c.c_int), ("source", c.c_int), ("on_gpu", c.c_int), ("peak_bytes", c.c_uint64),
    ("by_category", c.c_uint64 * 10), ("peak_ns", c.c_int64), ("peak_op", c.c_uint32), ("peak_phase", c.c_int),
    ("peak_module", c.c_char_p), ("allocator", c.c_int), ("reserved_peak_bytes", c.c_uint64),
    ("refused_bytes", c.c_uint64), ("refused_op", c.c_uint32), ("measured_peak_bytes", c.c_uint64),
    ("measured_reserved_bytes", c.c_uint64), ("capacity_bytes", c.c_uint64), ("growth_bytes", c.c_uint64),
    ("growth_since", c.c_int64), ("kept_bytes", c.c_uint64), ("holders", c.POINTER(MemoryHolder)),
    ("points", c.POINTER(MemoryPoint)), ("n_holders", c.c_uint32), ("n_points", c.c_uint32)]
OptimizeOptions._fields_ = [("size", c.c_size_t), ("algorithm", c.c_int), ("budget_s", c.c_double),
    ("seed", c.c_uint64), ("threads", c.c_int), ("compressions", c.c_uint), ("computing", c.c_uint),
    ("assumed_costs", c.c_int), ("no_coarsen", c.c_int), ("no_partial", c.c_int), ("no_symmetry", c.c_int),
    ("least_servers", c.c_uint32), ("most_servers", c.c_uint32), ("memory_bytes", c.c_uint64),
    ("memory_share", c.c_double), ("no_accumulation", c.c_int), ("graph", c.c_void_p),
    ("pass_files", c.POINTER(c.c_char_p)), ("n_pass_files", c.c_size_t), ("passes", c.POINTER(c.POINTER(Pass))),
    ("n_passes", c.c_size_t), ("progress", c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(OptimizeProgress))),
    ("arg", c.c_void_p), ("sink", Sink), ("n_finalists", c.c_uint32)]
OptimizeReport._fields_ = [("trace", c.c_void_p), ("graph", c.c_void_p), ("model", c.c_void_p), ("optimum", c.c_void_p),
    ("plan", c.c_char_p), ("warnings", c.POINTER(c.c_char_p))]
MemoryBudget._fields_ = [("budget_bytes", c.c_uint64), ("capacity_bytes", c.c_uint64), ("least_bytes", c.c_uint64),
    ("leaked_bytes", c.c_uint64), ("growth_bytes", c.c_uint64), ("needed", c.c_int), ("fits", c.c_int)]
Pass._fields_ = [("abi", c.c_uint32), ("name", c.c_char_p), ("summary", c.c_char_p), ("changes_numerics", c.c_int),
    ("propose", c.CFUNCTYPE(c.c_int, c.POINTER(Pass), c.POINTER(PassView), c.c_uint32, c.POINTER(Candidate))),
    ("state", c.c_void_p)]
Table._fields_ = [("name", c.c_char_p), ("meaning", c.c_char_p), ("of_ranks", c.c_int), ("n_columns", c.c_uint32)]
Column._fields_ = [("name", c.c_char_p), ("unit", c.c_char_p), ("meaning", c.c_char_p), ("type", c.c_int),
    ("table", c.c_char_p), ("is_name", c.c_int), ("word", c.CFUNCTYPE(c.c_char_p, c.c_int64))]
Validation._fields_ = [("method", c.c_char_p), ("n", c.c_uint32), ("mean_abs_error_pct", c.c_double),
    ("max_abs_error_pct", c.c_double), ("measured_std_pct", c.c_double), ("mean_error_pct", c.c_double)]
Daydream._fields_ = [("iteration_ns", c.c_int64), ("bandwidth_bytes_per_s", c.c_double),
    ("bandwidth_was_given", c.c_int)]
AgainstReport._fields_ = [("a_trace", c.c_void_p), ("b_trace", c.c_void_p), ("a", c.c_void_p), ("b", c.c_void_p),
    ("a_name", c.c_char_p), ("b_name", c.c_char_p), ("against", c.c_void_p)]
MemoryHolder._fields_ = [("module", c.c_char_p), ("category", c.c_int), ("n_blocks", c.c_uint32),
    ("size_bytes", c.c_uint64)]
MemoryPoint._fields_ = [("at_ns", c.c_int64), ("by_category", c.c_uint64 * 10)]
OptimizeProgress._fields_ = [("n_candidates", c.c_uint64), ("baseline_ns", c.c_int64), ("best_ns", c.c_int64)]
PassView._fields_ = [("n_ranks", c.c_uint32), ("n_tensors", c.c_uint32), ("n_buckets", c.c_uint32),
    ("tensors", c.POINTER(PassTensor)), ("order", c.POINTER(c.c_uint32)), ("buckets", c.POINTER(PassBucket)),
    ("compression", c.c_int), ("iteration_ns", c.c_int64), ("programs", c.POINTER(PassProgram)),
    ("n_programs", c.c_uint32), ("critical_program", c.c_uint32), ("modules", c.POINTER(PassModule)),
    ("n_modules", c.c_uint32), ("micro_batches", c.c_uint32), ("peak_bytes", c.c_uint64), ("memory_bytes", c.c_uint64),
    ("sync_ns", c.CFUNCTYPE(c.c_int64, c.POINTER(PassView), c.c_uint64, c.c_uint32))]
Candidate._fields_ = [("edits", c.POINTER(Edit)), ("n_edits", c.c_uint32)]
PassTensor._fields_ = [("name", c.c_char_p), ("size_bytes", c.c_uint64), ("ready_ns", c.c_int64),
    ("done_ns", c.c_int64), ("bucket", c.c_uint32)]
PassBucket._fields_ = [("first", c.c_uint32), ("n", c.c_uint32), ("partitions", c.c_uint32), ("priority", c.c_int32),
    ("size_bytes", c.c_uint64), ("ready_ns", c.c_int64), ("start_ns", c.c_int64), ("end_ns", c.c_int64),
    ("critical", c.c_int)]
PassProgram._fields_ = [("ops", c.POINTER(PassOp)), ("n_ops", c.c_uint32)]
PassModule._fields_ = [("name", c.c_char_p), ("class_name", c.c_char_p), ("parent", c.c_uint32),
    ("kept_bytes", c.c_uint64), ("recompute_ns", c.c_int64), ("recomputed", c.c_int), ("computing", c.c_uint),
    ("known", c.c_uint), ("gained_ns", c.c_int64 * 4)]
Edit._fields_ = [("kind", c.c_int), ("at", c.c_uint32), ("value", c.c_int64)]
PassOp._fields_ = [("name", c.c_char_p), ("kind", c.c_int), ("waits", c.c_int), ("tensor", c.c_uint32),
    ("work_ns", c.c_int64)]

PASS_ABI = 5
PASS_MAX_EDITS = 1024
ALGORITHM = {"default": 0, "paper": 1, "dp": 2}
CHANGE_TYPE = {"switch": 0, "count": 1, "schedule": 2, "long_count": 3, "bytes": 4, "rate": 5, "ratio": 6, "time": 7,
    "added_time": 8, "text": 9, "path": 10, "precision": 11, "compression": 12, "limit": 13, "texts": 14, "speeds": 15}
COLUMN_TYPE = {"uint8": 0, "bool": 1, "uint16": 2, "int32": 3, "uint32": 4, "int64": 5, "uint64": 6, "float": 7,
    "double": 8, "text": 9}
COMPRESSION = {"none": 0, "fp16": 1, "bf16": 2}
COMPUTING = {"as_it_is": 0, "compiled": 1, "bf16": 2}
EDIT_KIND = {"merge": 0, "split": 1, "partition": 2, "priority": 3, "move": 4, "compress": 5, "recompute": 6,
    "accumulate": 7, "compute": 8}
OP_KIND = {"fw": 0, "bw": 1, "update": 2, "input": 3, "send": 4, "recv": 5, "push": 6, "pull": 7, "reduce": 8,
    "copy": 9, "collective": 10, "launch": 11, "in": 12, "out": 13, "barrier": 14}
PROCESSOR = {"default": 0, "cpu": 1, "gpu": 2}
SCHEDULE = {"unknown": 0, "gpipe": 1, "1f1b": 2, "interleaved": 3, "zero_bubble": 4}
