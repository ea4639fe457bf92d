"""`Job`: what the commands are asked, asked of the library from Python. A binding by ctypes of include/dpro/job.h, whose
structs layouts.py has."""
from __future__ import annotations

import copy
import ctypes as c
import functools
import html
import itertools
import json
import operator
import os
import re
import sys
import threading

from . import Error, __version__, drawing, layouts

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from typing import Any, Dict, List, Sequence, Tuple, Union
    from .columns import Ranks, Table, Timeline
    Path = Union[str, bytes, os.PathLike[str]]
    _Dict = Dict[str, Any]
else:
    _Dict = dict

_NAMES = {"algorithm": layouts.ALGORITHM, "compression": layouts.COMPRESSION, "processor": layouts.PROCESSOR, "schedule": layouts.SCHEDULE}
_OURS = {"size", "sink", "processes", "from_host", "without_profile", "clocks_only"}
# What this package calls: a library that is older than it may lack some.
CALLED = ("dpro_version", "dpro_job_open", "dpro_job_close", "dpro_job_replay", "dpro_job_diagnose", "dpro_job_whatif",
          "dpro_job_optimize", "dpro_report_json", "dpro_diagnose_json", "dpro_saved_diagnosis_read", "dpro_saved_diagnosis_check",
          "dpro_saved_diagnosis_destroy", "dpro_whatif_json", "dpro_optimize_json", "dpro_optimize_plan", "dpro_optimum_memory_budget",
          "dpro_job_tables", "dpro_job_memory", "dpro_tables_create", "dpro_tables_destroy", "dpro_job_against", "dpro_report_text",
          "dpro_diagnose_text", "dpro_whatif_text", "dpro_optimize_text", "dpro_n_tables", "dpro_table", "dpro_table_column",
          "dpro_tables_n_rows", "dpro_tables_n_ranks", "dpro_tables_name", "dpro_tables_values", "dpro_n_change_kinds",
          "dpro_cause_key", "dpro_change_kind")
# How a field of a what-if is given; the library's table (include/dpro/whatif.h) says which of these it is.
_CHANGES = {"switch": c.c_int, "count": c.c_uint32, "schedule": c.c_int, "long_count": c.c_uint64, "bytes": c.c_uint64,
            "rate": c.c_double, "ratio": c.c_double, "time": c.c_int64, "added_time": c.c_int64, "text": c.c_char_p,
            "path": c.c_char_p, "precision": c.c_char_p, "compression": c.POINTER(c.c_int), "limit": c.POINTER(c.c_uint64),
            "texts": c.POINTER(c.c_char_p), "speeds": c.POINTER(layouts.ComputeChange)}


class Answer(drawing.Drawn, _Dict):
    """What a command prints with --json, as a dict; `json`: the text that it prints, to the byte; `text`: what it prints for
    people, as print() does. A notebook draws it."""
    json: str
    text: str

    def __init__(self, printed: str, text: str = "", asked: Any = None):
        super().__init__(json.loads(printed))
        self.json, self.text, self._asked = printed, text, asked

    def __str__(self) -> str:
        return self.text or super().__str__()

    def _picture(self):
        return drawing.answer(self)

    def _repr_html_(self) -> str:
        path = drawing.svg_of(self.critical_path) if "critical_path" in self else ""
        return "%s%s<pre>%s</pre>" % (drawing.svg_of(self), path and "<p>Critical path</p>" + path, html.escape(self.text))

    def _repr_pretty_(self, printer, cycle):
        printer.text("..." if cycle else str(self))

    @property
    def breakdown(self) -> drawing.Rows:
        """Of a replay: where each rank's iteration goes, a list of dicts, in ms."""
        return drawing.Rows(self["ranks"], drawing.breakdown)

    @property
    def critical_path(self) -> drawing.Rows:
        """Of a replay: its ops, a list of dicts, the first op first, in ms."""
        return drawing.Rows(self["critical_path"]["ops"], drawing.critical_path)

    @property
    def timeline(self) -> Timeline:
        """Of a replay: all ops as they are replayed, a table, in ns; it is replayed once more for it."""
        if self._asked is None:
            raise Error("only a replay has a timeline")
        from . import columns
        return columns.timeline_of(*self._asked, self["critical_path"]["ops"])


def bytes_of(text):
    """Of a size with its unit, as the command takes it; None: it is none."""
    found = re.match(r"(\d+\.?\d*|\.\d+) *(?:([kKMGT])(i?)B|B?)\Z", text)
    if not found:
        return None
    power = " KMGT".index((found.group(2) or " ").upper())
    return int(float(found.group(1)) * (1024 if found.group(3) else 1000) ** power)


def text_of(name, value):
    """What the library is given for a text or a path."""
    try:
        text = os.fsencode(value)
    except TypeError:
        raise Error("%s=%r: a text or a path is needed" % (name, value)) from None
    if b"\0" in text:
        raise Error("%s=%r: a path or text with a NUL in it can't be given" % (name, value))
    return text


def list_of(name, value, of):
    """The value, if it is a list and not the one thing that should be in it."""
    if isinstance(value, (str, bytes, os.PathLike, dict)) or not hasattr(value, "__iter__"):
        raise Error("%s=%r: a list of %s is needed, also of one: %s=[%r]" % (name, value, of, name, value))
    return list(value)


def number(name, kind, value, least):
    """Of a type of C's; not below `least`, which is None where there is no such bound."""
    whole = kind is not c.c_double
    try:
        given = operator.index(value) if whole else None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        given = None
    if given is None or kind(given).value != given or abs(given) == float("inf") or (least is not None and given < least):
        bits = 8 * c.sizeof(kind)
        signed = kind(-1).value < 0
        lowest = -(1 << bits - 1) if signed else 0
        needed = ("a whole number from %d to %d" % (lowest if least is None else least, (1 << bits - signed) - 1) if whole else
                  "a number above 0" if least else "a number of at least 0")
        raise Error("%s=%r: %s is needed" % (name, value, needed))
    return given


def _least(struct_kind, name, kind):
    """What a field must be at least; of a change 0 would mean that there is none, for which None stands here."""
    if struct_kind is layouts.ComputeChange and kind is c.c_int:
        return -1
    if kind is c.c_double:
        return 0 if struct_kind is layouts.OptimizeOptions else sys.float_info.min
    if kind is c.c_int64:
        return 1 if name == "cycle_ns" else None
    return int(struct_kind is changes_struct() and kind is not c.c_int)


def _value(struct_kind, name, kind, value):
    """What a field of that kind is given."""
    names = _NAMES.get(name, {})
    if names:
        if value not in (names if isinstance(value, str) else names.values()):
            raise Error("%s=%r: %s are known" % (name, value, ", ".join(names)))
        value = names.get(value, value)
    if kind is c.c_char_p:
        return text_of(name, value)
    inner = getattr(kind, "_type_", None)
    if inner is c.c_char_p:
        texts = [text_of(name, text) for text in list_of(name, value, "texts")]
        return (inner * len(texts))(*texts)
    if inner is layouts.ComputeChange:
        changes = list_of(name, value, "dicts")
        if not all(isinstance(change, dict) for change in changes):
            raise Error("%s=%r: a list of dicts is needed" % (name, value))
        return (inner * len(changes))(*(struct(inner, **{"first_rank": -1, "last_rank": -1, **change}) for change in changes))
    if isinstance(value, str) and name.endswith("_bytes"):
        value = bytes_of(value) if bytes_of(value) is not None else value
    if isinstance(inner, type):
        return c.pointer(inner(number(name, inner, value, None if inner is c.c_int64 else 0)))
    return number(name, kind, value, _least(struct_kind, name, kind))


def fields_of(kind):
    """Those that a caller sets; of a list its length is not one of them."""
    fields = dict(kind._fields_)
    return {name: kind for name, kind in fields.items()
            if name not in _OURS and name[0] != "_" and not (name.startswith("n_") and name[2:] in fields)}


def struct(kind, **values):
    """One whose fields that are None or not named are 0, NULL or empty."""
    made, fields, all_fields = kind(), fields_of(kind), dict(kind._fields_)
    if "size" in all_fields:
        made.size = c.sizeof(kind)
    for name, value in values.items():
        if name not in fields and name.endswith("_mb") and name[:-2] + "bytes" in fields:  # as DDP and Horovod name them
            value = None if value is None else int(number(name, c.c_double, value, 0) * (1 << 20))
            name = name[:-2] + "bytes"
        if name not in fields:
            raise Error("%s is not known; what is: %s" % (name, ", ".join(fields)))
        if value is not None:
            given = _value(kind, name, fields[name], value)
            setattr(made, name, given)
            if "n_" + name in all_fields:
                setattr(made, "n_" + name, len(given))
    return made


@functools.lru_cache(maxsize=None)
def library():
    from . import settings
    path = settings.library("libdpro.so")
    if path is None:
        raise Error("libdpro.so is not with the package; install dpro whole (pip install, make install), or build the checkout")
    try:
        lib = c.CDLL(path)
        lib.dpro_version.restype = c.c_char_p
        version = lib.dpro_version().decode("utf-8", "replace")
        lacks = [name for name in CALLED if not hasattr(lib, name)]
        problem = "lacks %s" % lacks[0] if lacks else "" if version == __version__ else "is of dpro " + version
    except (OSError, AttributeError) as reason:  # of another machine, cut, another library
        problem = "can't be used (%s)" % reason
    if problem:
        raise Error("%s %s, but the package %s of dpro %s needs its own: they were not built together; build the checkout "
                    "again (make), or install dpro whole (pip install, make install)" %
                    (path, problem, os.path.dirname(os.path.abspath(__file__)), __version__))
    lib.dpro_job_close.argtypes = [c.c_void_p]
    lib.dpro_optimum_memory_budget.argtypes = [c.c_void_p]
    lib.dpro_optimum_memory_budget.restype = layouts.MemoryBudget
    return lib


@functools.lru_cache(maxsize=None)
def _tables_known():
    library().dpro_table.restype = layouts.Table
    return [library().dpro_table(c.c_uint32(i)).name.decode() for i in range(library().dpro_n_tables())]


def change_kinds():
    """The table of what-ifs."""
    library().dpro_change_kind.restype = c.POINTER(layouts.ChangeKind)
    return [library().dpro_change_kind(c.c_size_t(i)).contents for i in range(library().dpro_n_change_kinds())]


@functools.lru_cache(maxsize=None)
def changes_struct():
    """struct dpro_changes, as far as the table has it: what it does not name stays 0."""
    names = {value: name for name, value in layouts.CHANGE_TYPE.items()}
    found = [(field.offset, field.name.decode(), _CHANGES[names[field.type]])
             for kind in change_kinds() for field in kind.fields if field.name]
    fields, end = [("size", c.c_size_t)], c.sizeof(c.c_size_t)
    for offset, name, kind in sorted(found, key=operator.itemgetter(0)):
        fields += [("_gap%d" % offset, c.c_char * (offset - end)), (name, kind)]
        end = offset + c.sizeof(kind)
        if name in ("compute", "delays"):  # a list: their number follows
            fields.append(("n_" + name, c.c_size_t))
            end += c.sizeof(c.c_size_t)
    return type("Changes", (c.Structure,), {"_pack_": 1, "_layout_": "ms", "_fields_": fields})


_RATE = re.compile(r"(\d+\.?\d*|\.\d+) *([kmgtKMGT]?)(i?)(bits?|b|B)(?:/s|ps)?\Z")
_TIME = re.compile(r"([+-])(\d+\.?\d*|\.\d+)(ns|us|ms|s)\Z")
_SPEED = re.compile(r"(?:(cpu|gpu)=)?(\d+\.?\d*|\.\d+)x(?:@(\d+)(?:-(\d+))?)?\Z")


def _speed_or_time(text, names):
    """What "0.5x", "10gbit" and "+10us" set of these fields: a name, a value."""
    ratio, rate, time = re.match(r"(\d+\.?\d*|\.\d+)x\Z", text), _RATE.match(text), _TIME.match(text)
    if ratio:
        return names["ratio"], float(ratio.group(1))
    if rate:
        scale = (1024 if rate.group(3) else 1000) ** " KMGT".index((rate.group(2) or " ").upper())
        return names["s"], float(rate.group(1)) * scale / (1 if rate.group(4) == "B" else 8)
    return names["ns"], int(float(time.group(1) + time.group(2)) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[time.group(3)])


def _of_option(kind, value):
    """The fields that an option of `dpro whatif` sets, of its value as the command takes it; a number where that is one."""
    names, types = [field.name.decode() for field in kind.fields if field.name], layouts.CHANGE_TYPE
    if kind.fields[0].type == types["time"]:
        return {names[0]: None if value is None else int(number(names[0], c.c_double, value, 0) * 1e6)}
    if kind.fields[0].type == types["speeds"]:
        texts = [_SPEED.match(text) for text in ([value] if isinstance(value, str) else value)]
        return {names[0]: [{"processor": found[1] or "default", "speed": float(found[2]), "first_rank": int(found[3] or -1),
                            "last_rank": int(found[4] or found[3] or -1)} for found in texts]}
    if kind.fields[0].type == types["texts"]:
        return {names[0]: [value] if isinstance(value, str) else value}
    if len(names) == 1 or value is None:
        return {names[0]: value}
    option, made = kind.option.decode().replace("-", "_"), {}
    for part in value.split(","):
        scope, _, text = part.rpartition("=")
        of = {"": option.split("_size")[0], "inter": "between", "intra": "within"}[scope] + "_"
        name, given = _speed_or_time(text, {name.rsplit("_", 1)[1]: name for name in names if name.startswith(of)})
        made[name] = given
    return made


def changes_of(keywords):
    """struct dpro_changes of the names of its fields, or of options of `dpro whatif`, "_" for "-", and their values."""
    options, made, fields = {kind.option.decode().replace("-", "_"): kind for kind in change_kinds()}, {}, fields_of(changes_struct())
    for name, value in keywords.items():
        kind = options.get(name)
        text = isinstance(value, str) or (isinstance(value, list) and isinstance((value + [None])[0], str))
        is_field = name in fields and not (text and name in ("batch_size", "compute"))
        if kind is None or is_field or name.endswith("_mb"):
            made[name] = value
            continue
        try:
            made.update(_of_option(kind, value))
        except (AttributeError, KeyError, TypeError):
            takes = "--%s takes: %s" % (kind.option.decode(), " ".join(kind.help.decode().split()))
            raise Error("%s=%r is not what %s" % (name, value, takes)) from None
    return struct(changes_struct(), **made)


def call(name, *args):
    """Of the library; raises what it says when it fails."""
    error = layouts.Error()
    if getattr(library(), name)(*args, c.byref(error)) < 0:
        raise Error(error.text.decode("utf-8", "replace"))


def _printed(name, report):
    libc = c.CDLL(None)
    libc.open_memstream.restype = c.c_void_p
    libc.fclose.argtypes = libc.free.argtypes = [c.c_void_p]
    text, size = c.c_void_p(), c.c_size_t()
    stream = libc.open_memstream(c.byref(text), c.byref(size))
    if not stream:
        raise MemoryError
    try:
        call(name, c.byref(report), c.c_void_p(stream))
    finally:
        libc.fclose(stream)
    try:
        return c.string_at(text, size.value).decode("utf-8", "replace")
    finally:
        libc.free(text)


def _answer(kind, report, asked=None):
    return Answer(_printed("dpro_%s_json" % kind, report), _printed("dpro_%s_text" % kind, report), asked)


class _Handle:
    """An open job of the library's, until nothing needs it: a closed Job may have given out columns."""

    def __init__(self):
        self.at = c.c_void_p()

    def __del__(self):
        if getattr(self, "at", None):
            library().dpro_job_close(self.at)


def _in_a_thread(work):
    """work(), so that Ctrl-C is heard while the library computes: it goes on to the end of that call, and answers no other
    until then."""
    result = []

    def run():
        try:
            result.append((work(), None))
        except BaseException as problem:  # raised where it was asked
            result.append((None, problem))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    value, problem = result[0]
    if problem is not None:
        raise problem
    return value


class Job:
    """The job whose traces are at `trace`, a path or several. They are read when the first question is asked, and once:

        with dpro.Job("TRACE") as job:
            for mb in (5, 10, 50):
                print(job.whatif(bucket_cap_bytes=mb << 20)["speedup"])

    Options are the fields of struct dpro_job_options (include/dpro/job.h): threads, rank_regex, step_mark, dimensions,
    probes, shown, no_align, raw_receives, keep_profiler; and `steps`, a pair (first, last). One thread at a time asks a
    job, without the interpreter's lock, and another one that does so meanwhile is refused; several jobs can be asked at once.

    Its tables (doc/formats/tables.md) are attributes: job.ops, job.edges, job.collectives, job.iterations, ...; of the tables
    that each rank has (memory_blocks, ...) a list. Those are of the job as it runs, and stay when the job is closed:

        job.ops["dur_ns"], job.ops.to_pandas(), job.critical_path.to_arrow()"""
    ops: Table
    edges: Table
    ranks: Table
    devices: Table
    collectives: Table
    members: Table
    messages: Table
    dimensions: Table
    tensors: Table
    exchanges: Table
    exchange_ends: Table
    iterations: Table
    left_out: Table
    op_times: Table
    slower: Table
    replayed: Table
    rank_times: Table
    critical_path: Table
    clocks: Table
    clock_ranks: Table
    clock_segments: Table
    memory_blocks: Ranks
    memory_moments: Ranks
    memory_uses: Ranks
    memory_calls: Ranks
    memory_ops: Ranks
    memory_operands: Ranks

    def __init__(self, trace: Union[Path, Sequence[Path]], steps: Union[Tuple[int, int], None] = None, **options: Any):
        one = isinstance(trace, (str, bytes, os.PathLike))
        paths = [text_of("trace", path) for path in ([trace] if one else list_of("trace", trace, "paths"))]
        if steps is not None and not (isinstance(steps, (tuple, list)) and len(steps) == 2):
            raise Error("steps=%r: a pair is needed, the first and the last: steps=(10, 20)" % (steps,))
        first, last = steps or (0, 0)
        if steps is not None and last == 0:
            first = -1  # 0, 0 would mean all
        given = struct(layouts.JobOptions, first_step=first, last_step=last, **options)
        self.handle, self._busy, self._tables = _Handle(), threading.Lock(), None
        self.opened, self._first_path = (trace, {"steps": steps, **options}), paths[0] if paths else b""
        call("dpro_job_open", (c.c_char_p * len(paths))(*paths), c.c_size_t(len(paths)), c.byref(given), c.byref(self.handle.at))

    def __repr__(self) -> str:
        return "dpro.open(%r): ask .replay(), .diagnose(), .whatif(), .optimize(), or tables such as .ops" % (self.opened[0],)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *problem: Any) -> None:
        self.close()

    def close(self) -> None:
        """Its memory is given back when its tables are gone, too."""
        self.handle = self._tables = None

    def alone(self, work):
        """work(), by this thread alone."""
        if not self.handle:
            raise Error("the job is closed")
        if not self._busy.acquire(blocking=False):
            raise Error("the job is being asked already, by another thread or by a call that was interrupted; wait for that, or "
                        "open the job once more")

        def free_after():
            try:
                return work()
            finally:
                self._busy.release()

        if threading.current_thread() is threading.main_thread():
            return _in_a_thread(free_after)
        return free_after()

    def call(self, name, *args):
        self.alone(lambda: call(name, self.handle.at, *args))

    def asked(self, question, options, report):
        self.call("dpro_job_" + question, c.byref(options), c.byref(report))
        return report

    def look_at_replay(self, asked, look):
        """look(its tables), which are gone behind that."""
        report, tables = layouts.Report(), c.c_void_p()
        asked.no_validate = 1

        def replayed():
            call("dpro_job_replay", self.handle.at, c.byref(asked), c.byref(report))
            call("dpro_tables_create", c.c_void_p(report.graph), c.c_void_p(report.replay), c.byref(tables))
            try:
                look(tables)
            finally:
                library().dpro_tables_destroy(tables)

        self.alone(replayed)

    @property
    def tables(self) -> Dict[str, Any]:
        """{name: table} of all tables; of those that each rank has, lists."""
        if self._tables is None:
            from . import columns
            self._tables = columns.tables_of(self, library())
        return self._tables

    if not TYPE_CHECKING:  # for which the tables are named above
        def __getattr__(self, name):
            if name[0] != "_" and name in _tables_known():
                return self.tables[name]
            raise AttributeError("a job has no %r; its tables are %s" % (name, ", ".join(_tables_known())))

    @property
    def memory(self) -> Ranks:
        """The memory's blocks, a table a rank; a notebook draws what ranks hold over an iteration."""
        return self.tables["memory_blocks"]

    def memory_curves(self) -> List[Tuple[str, List[Tuple[float, float]]]]:
        """What each rank holds over an iteration: [("rank 0", [(ms, MB), ...]), ...], of ranks of which it is known."""
        curves, of_rank = [], layouts.RankMemory()
        for rank in range(len(self.memory)):
            self.call("dpro_job_memory", c.c_uint32(rank), c.byref(of_rank))
            points = [(point.at_ns / 1e6, sum(point.by_category) / 1e6) for point in of_rank.points[:of_rank.n_points]]
            curves += [("rank %d" % of_rank.rank, points)] if points else []
        return curves

    def replay(self, **options: Any) -> Answer:
        """What `dpro replay` says, an Answer of schema dpro.replay/1. Options are the fields of struct
        dpro_job_replay_options: samples, seed, delays (as for --delay), bandwidth_bytes_per_s, no_validate."""
        asked = struct(layouts.JobReplayOptions, **options)
        return _answer("report", self.asked("replay", asked, layouts.Report()), (copy.copy(self), asked))

    def diagnose(self, against: Union[Job, Path, None] = None) -> Answer:
        """What `dpro diagnose` says, an Answer of schema dpro.diagnose/1. `against`: another Job to compare with, of which, as of
        this one, the traces are read once more; or the file of a diagnosis that `dpro diagnose --save` or --json wrote."""
        if isinstance(against, Job):
            return self._against(against)
        report = self.asked("diagnose", struct(layouts.DiagnoseOptions), layouts.DiagnoseReport())
        if against is None:
            return _answer("diagnose", report)
        baseline = c.c_void_p()
        call("dpro_saved_diagnosis_read", c.c_char_p(text_of("against", against)), c.byref(baseline))
        try:
            call("dpro_saved_diagnosis_check", baseline, c.c_void_p(report.graph))
            report.baseline = baseline
            return _answer("diagnose", report)
        finally:
            library().dpro_saved_diagnosis_destroy(baseline)

    def _against(self, other):
        """Both as recorded, or both without what the profiler cost: as nothing was asked of them yet."""
        trace, than = (Job(job.opened[0], **job.opened[1]) for job in (self, other))
        between, report = layouts.AgainstReport(), layouts.DiagnoseReport()
        trace.call("dpro_job_against", than.handle.at, c.byref(between))
        between.a_name, between.b_name = other._first_path, self._first_path
        trace.asked("diagnose", struct(layouts.DiagnoseOptions), report)
        report.against = c.pointer(between)
        return _answer("diagnose", report)

    def whatif(self, **changes: Any) -> Answer:
        """What `dpro whatif` says, an Answer of schema dpro.whatif/1; without changes, its "questions" are what can be asked
        of the job, and why not the rest. Changes are the command's options as keywords, with the values that it takes:
        bandwidth="0.5x", bucket_cap_mb=5, compress="bf16", recompute="all", compute=["1.2x@0-3"], delay="BW=0.5"; or the fields
        that these set, in numbers: bandwidth_ratio=0.5. None: as it is; what does not fit is refused with a dpro.Error. Bytes
        may be a text with a unit, as in "5MiB"; a keyword that ends in _bytes may be given in MiB, as one that ends in _mb."""
        asked = changes_of(changes)
        return _answer("whatif", self.asked("whatif", asked, layouts.WhatifReport()))

    def curve(self, **changes: Any) -> drawing.Rows:
        """What-ifs of all values of keywords that are given lists, and of their combinations: a list of dicts, with the values
        and the predicted iteration_ms. A notebook draws it, over the keyword with the most values.

            job.curve(bucket_cap_mb=range(1, 101), bandwidth_ratio=[1, 2])"""
        lists = {name: list(values) for name, values in changes.items() if name not in ("compute", "delays") and
                 hasattr(values, "__iter__") and not isinstance(values, (str, bytes))}
        if not lists or not all(lists.values()):
            raise Error("curve: give a list of values to a keyword, such as bandwidth_ratio=[1, 2, 4]")
        x = max(lists, key=lambda name: len(lists[name]))
        rows = []
        for values in itertools.product(*lists.values()):
            given = dict(zip(lists, values))
            asked = changes_of({**changes, **given})
            answer = json.loads(_printed("dpro_whatif_json", self.asked("whatif", asked, layouts.WhatifReport())))
            rows.append({**given, "iteration_ms": (answer.get("predicted") or answer["job"])["iteration_ms"]})
        return drawing.Rows(rows, lambda rows: drawing.curves(rows, x))

    def searched(self, options, plan):
        """`options`: a struct dpro_optimize_options. What fits no budget becomes no plan."""
        report = self.asked("optimize", options, layouts.OptimizeReport())
        if plan is not None:
            report.plan = text_of("plan", plan)
            if library().dpro_optimum_memory_budget(report.optimum).fits:
                call("dpro_optimize_plan", c.byref(report))
        return _answer("optimize", report)


def _tell_keywords():
    """What `help()` says of whatif() has a line for each keyword, from the library's table."""
    kinds = ((", ".join(field.name.decode() for field in kind.fields if field.name), kind) for kind in change_kinds())
    return "\n".join("    %s (--%s): %s" % (names, kind.option.decode(), " ".join(kind.help.decode().split())) for names, kind in kinds)


try:
    Job.whatif.__doc__ = "%s\n\n%s" % (Job.whatif.__doc__, _tell_keywords())
except Error:  # said when it is asked
    pass
