"""Every table of a job, with its columns as the library has them. A binding of include/dpro/table.h."""
from __future__ import annotations

import copy
import ctypes as c
import struct
import sys

from . import drawing, frames, layouts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List
    _Columns = Dict[str, "Column"]
    _Tables = List["Table"]
else:
    _Columns, _Tables = dict, list

_TYPES = {"UINT8": "u1", "BOOL": "b1", "UINT16": "u2", "INT32": "i4", "UINT32": "u4", "INT64": "i8", "UINT64": "u8",
          "FLOAT": "f4", "DOUBLE": "f8"}
_C_TYPES = {"u1": c.c_uint8, "b1": c.c_bool, "u2": c.c_uint16, "i4": c.c_int32, "u4": c.c_uint32, "i8": c.c_int64,
            "u8": c.c_uint64, "f4": c.c_float, "f8": c.c_double}
_CODES = {"u1": "B", "b1": "?", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f4": "f", "f8": "d"}
_NONE = 0xffffffff


def _typed(lib):
    for name, result, arguments in (("dpro_n_tables", c.c_uint32, []), ("dpro_table", layouts.Table, [c.c_uint32]),
                                    ("dpro_table_column", layouts.Column, [c.c_uint32, c.c_uint32]),
                                    ("dpro_tables_n_rows", c.c_uint64, [c.c_void_p, c.c_uint32, c.c_uint32]),
                                    ("dpro_tables_n_ranks", c.c_uint32, [c.c_void_p]),
                                    ("dpro_tables_name", c.c_char_p, [c.c_void_p, c.c_uint32]),
                                    ("dpro_tables_values", c.c_void_p, [c.c_void_p] + 3 * [c.c_uint32] + [c.c_void_p])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class _Owner:
    """A job's tables, and what keeps the job as long as anything looks at them."""

    def __init__(self, job, lib):
        self.lib, self.at, self.job = _typed(lib), c.c_void_p(), job.handle
        job.call("dpro_job_tables", c.byref(self.at))


class Column:
    """A sequence of a column's values: numbers, or str where they are names; None: there is none, as where an id leads
    to no row. numpy.asarray(column) is a view, without a copy, of the numbers as they are stored (of names their ids; no
    row: 2^32 - 1). name, unit ("ns", "bytes", ""), meaning; table: the table that ids are of, or None."""

    name: str
    unit: str
    meaning: str

    def __init__(self, owner, table, number, n_rows, rank):
        column, stride = owner.lib.dpro_table_column(table, number), c.c_size_t()
        self.name, self.unit, self.meaning = (text.decode() for text in (column.name, column.unit, column.meaning))
        self.table = column.table.decode() if column.table else None
        self._owner, self._n, self._is_name, self._word = owner, n_rows, column.is_name, column.word
        self._place = table, number, rank
        self._at = owner.lib.dpro_tables_values(owner.at, *self._place, c.byref(stride))
        self._stride = stride.value
        kind = next(name for name, value in layouts.COLUMN_TYPE.items() if value == column.type)
        self._type = _TYPES.get(kind.upper())

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(self._n))]
        row = row + self._n if row < 0 else row
        if not 0 <= row < self._n:
            raise IndexError(row)
        if not self._at:
            return None
        at = self._at + row * self._stride
        if self._type is None:
            text = c.c_char_p.from_address(at).value
            return text.decode("utf-8", "replace") if text is not None else None
        value = _C_TYPES[self._type].from_address(at).value
        if self._is_name:
            return self._owner.lib.dpro_tables_name(self._owner.at, value).decode("utf-8", "replace")
        if self._word:
            return self.name_of(value)
        return None if self.table and value == _NONE else value

    def numbers(self):
        """As they are stored, a list."""
        if not self._n:
            return []
        code = _CODES[self._type]
        after = self._stride - struct.calcsize(code)
        data = c.string_at(self._at, self._n * self._stride - after) + bytes(after)
        return [number for number, in struct.iter_unpack("=%s%dx" % (code, after), data)]

    def copy_from(self, tables):
        """Its values are a copy of those in other tables of the same graph."""
        stride = c.c_size_t()
        at = self._owner.lib.dpro_tables_values(tables, *self._place, c.byref(stride))
        held = c.create_string_buffer(c.string_at(at, self._n * stride.value), self._n * stride.value or 1) if at else None
        self._owner, self._at, self._stride = held, c.addressof(held) if at else None, stride.value

    @property
    def name_of(self):
        """What a number stands for, where the numbers are those of names: a function."""
        if self._is_name:
            return lambda i: self._owner.lib.dpro_tables_name(self._owner.at, i).decode("utf-8", "replace")
        return (lambda i: (self._word(i) or b"").decode() or None) if self._word else None

    @property
    def is_text(self):
        return self._type is None

    @property
    def has_values(self):
        return bool(self._at)

    def __repr__(self):
        return "<column %s: %d values%s: %s>" % (self.name, self._n, " in " + self.unit if self.unit else "", self.meaning)

    @property
    def __array_interface__(self):
        if self._type is None or (self._n and not self._at):
            raise AttributeError("%s: no row has a number" % self.name)
        order = "|" if self._type.endswith("1") else "<" if sys.byteorder == "little" else ">"
        return {"version": 3, "shape": (self._n,), "typestr": order + self._type, "strides": (self._stride or 1,),
                "data": (self._at or 0, True)}


class Table(_Columns):
    """{name of a column: Column}. name, meaning of a row; n_rows; rank: the rank's id in `ranks`, of a table of a rank."""
    name: str
    meaning: str
    n_rows: int

    def __init__(self, name, meaning, n_rows, columns, rank=None):
        super().__init__(columns)
        self.name, self.meaning, self.n_rows, self.rank = name, meaning, n_rows, rank

    def to_pandas(self) -> Any:
        """A pandas.DataFrame, whose index is the rows' ids."""
        return frames.pandas_of(self)

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return frames.arrow_of(self)

    def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return frames.polars_of(frames.arrow_of(self))

    def __repr__(self):
        return "<table %s: %d rows (%s) of %s>" % (self.name, self.n_rows, self.meaning, ", ".join(self))

    def _repr_html_(self) -> str:
        first = range(min(self.n_rows, 21))
        return frames.rows_html(["id", *self], [[row, *(column[row] for column in self.values())] for row in first],
                                "%s: %d rows, %s" % (self.name, self.n_rows, self.meaning))


class Ranks(drawing.Drawn, _Tables):
    """A table for each rank, of what its device holds. A notebook draws how much that is over an iteration."""

    def __init__(self, tables, job):
        super().__init__(tables)
        self._job = job

    def to_pandas(self) -> Any:
        """A pandas.DataFrame of all ranks, whose index is the rows' ranks (`in_rank`) and ids. Copied, as ranks are joined."""
        return frames.pandas_of_ranks(self)

    def to_arrow(self) -> Any:
        """A pyarrow.Table of all ranks, with a column `in_rank`."""
        return frames.arrow_of_ranks(self)

    def to_polars(self) -> Any:
        """A polars.DataFrame of all ranks, with a column `in_rank`."""
        return frames.polars_of(frames.arrow_of_ranks(self))

    def _picture(self):
        curves = self._job.memory_curves()
        return drawing.Lines(curves, "ms of the iteration", "MB", steps=True, from_0=True) if curves else None


class Timeline(drawing.Drawn, Table):
    """The ops of an iteration, as they are replayed; rows are those of job.ops. A notebook draws what each device runs."""

    def __init__(self, job, columns, path):
        super().__init__("timeline", "an op as it is replayed; ids are those of ops", len(columns["start_ns"]), columns)
        self._devices, self._path = job.tables["devices"], path

    def _picture(self):
        lanes = {"critical path": [(op["start_ms"], op["start_ms"] + op["duration_ms"], op["kind"], op["name"]) for op in self._path]}
        kind_of, name_of = self["kind"].name_of, self["name"].name_of
        runs = [("rank %d: " % rank if rank >= 0 else "server: ") + name
                for rank, name in zip(self._devices["rank"], self._devices["name"])]
        lanes.update((run, []) for run in runs)
        for device, start, end, kind, name in zip(*(self[column].numbers() for column in ("device", "start_ns", "end_ns", "kind", "name"))):
            if device != _NONE and end > start:
                lanes[runs[device]].append((start / 1e6, end / 1e6, kind_of(kind), name_of(name)))
        return drawing.ops({label: found for label, found in lanes.items() if found})

    def _repr_html_(self) -> str:
        return drawing.svg_of(self) + Table._repr_html_(self)


def _table(owner, job, number):
    of, lib = owner.lib.dpro_table(number), owner.lib

    def made(rank):
        n_rows = lib.dpro_tables_n_rows(owner.at, number, rank)
        columns = [Column(owner, number, i, n_rows, rank) for i in range(of.n_columns)]
        return Table(of.name.decode(), of.meaning.decode(), n_rows, {column.name: column for column in columns},
                     rank if of.of_ranks else None)

    return Ranks(map(made, range(lib.dpro_tables_n_ranks(owner.at))), job) if of.of_ranks else made(0)


def tables_of(job, lib):
    """{name: Table} of all tables of a job of the library; of a table of a rank, a list with one for each rank."""
    owner, kept = _Owner(job, lib), copy.copy(job)  # which stays when the job is closed
    return {lib.dpro_table(number).name.decode(): _table(owner, kept, number) for number in range(lib.dpro_n_tables())}


def timeline_of(job, asked, path):
    """Of a replay that is asked again; path: its critical path."""
    columns = {name: job.ops[name] for name in ("rank", "device", "kind", "name")}
    columns.update((name, copy.copy(job.replayed[name])) for name in ("start_ns", "end_ns"))
    job.look_at_replay(asked, lambda tables: [columns[name].copy_from(tables) for name in ("start_ns", "end_ns")])
    return Timeline(job, columns, path)
