"""`tables`: every table of a job, with its columns as the library has them. A binding of include/dpro/table.h."""
import ctypes as c
import sys

from . import layouts, library

_TYPES = {"UINT8": "u1", "BOOL": "b1", "UINT16": "u2", "INT32": "i4", "UINT32": "u4", "INT64": "i8", "UINT64": "u8",
          "FLOAT": "f4", "DOUBLE": "f8"}
_C_TYPES = {"u1": c.c_uint8, "b1": c.c_bool, "u2": c.c_uint16, "i4": c.c_int32, "u4": c.c_uint32, "i8": c.c_int64,
            "u8": c.c_uint64, "f4": c.c_float, "f8": c.c_double}
_NONE = 0xffffffff


def _lib():
    lib = library.library()
    for name, result, arguments in (("dpro_n_tables", c.c_uint32, []), ("dpro_table", layouts.Table, [c.c_uint32]),
                                    ("dpro_table_column", layouts.Column, [c.c_uint32, c.c_uint32]),
                                    ("dpro_tables_n_rows", c.c_uint64, [c.c_void_p, c.c_uint32, c.c_uint32]),
                                    ("dpro_tables_n_ranks", c.c_uint32, [c.c_void_p]),
                                    ("dpro_tables_name", c.c_char_p, [c.c_void_p, c.c_uint32]),
                                    ("dpro_tables_values", c.c_void_p, [c.c_void_p] + 3 * [c.c_uint32] + [c.c_void_p]),
                                    ("dpro_tables_destroy", None, [c.c_void_p])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class _Owner:
    """The job and its tables, as long as anything looks at them."""

    def __init__(self, trace, options):
        self.lib, self.at, report = _lib(), c.c_void_p(), layouts.Report()
        self.job = library.Job(trace, **options)
        self.job.asked("replay", library.struct(layouts.JobReplayOptions, no_validate=1), report)
        library.call("dpro_tables_create", c.c_void_p(report.graph), c.c_void_p(report.replay), c.byref(self.at))

    def __del__(self):
        if getattr(self, "at", None):
            self.lib.dpro_tables_destroy(self.at)


class Column:
    """A sequence of a column's values: numbers, or str where they are names; None: there is none, as where an id leads
    to no row. numpy.asarray(column) is a view, without a copy, of the numbers as they are stored (of names their ids; no
    row: 2^32 - 1). name, unit ("ns", "bytes", ""), meaning; table: the table that ids are of, or None."""

    def __init__(self, owner, table, number, n_rows, rank):
        column, stride = owner.lib.dpro_table_column(table, number), c.c_size_t()
        self.name, self.unit, self.meaning = (text.decode() for text in (column.name, column.unit, column.meaning))
        self.table = column.table.decode() if column.table else None
        self._owner, self._n, self._is_name, self._word = owner, n_rows, column.is_name, column.word
        self._at = owner.lib.dpro_tables_values(owner.at, table, number, rank, c.byref(stride))
        self._stride = stride.value
        kind = next(name for name, value in layouts.COLUMN_TYPE.items() if value == column.type)
        self._type = _TYPES.get(kind.upper())

    def __len__(self):
        return self._n

    def __getitem__(self, row):
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
            return self._word(value).decode()
        return None if self.table and value == _NONE else value

    @property
    def __array_interface__(self):
        if self._type is None or (self._n and not self._at):
            raise AttributeError("%s: no row has a number" % self.name)
        order = "|" if self._type.endswith("1") else "<" if sys.byteorder == "little" else ">"
        return {"version": 3, "shape": (self._n,), "typestr": order + self._type, "strides": (self._stride or 1,),
                "data": (self._at or 0, True)}


class Table(dict):
    """{name of a column: Column}. name, meaning of a row; n_rows; rank: the rank's id in `ranks`, of a table of a rank."""

    def __init__(self, owner, number, rank):
        table = owner.lib.dpro_table(number)
        self.name, self.meaning, self.rank = table.name.decode(), table.meaning.decode(), rank if table.of_ranks else None
        self.n_rows = owner.lib.dpro_tables_n_rows(owner.at, number, rank)
        columns = (Column(owner, number, i, self.n_rows, rank) for i in range(table.n_columns))
        super().__init__((column.name, column) for column in columns)


def tables(trace, **options):
    """{name: Table} of all tables of the job whose traces are at `trace`, a path or several (doc/formats/tables.md); of a
    table of a rank, a list with one for each rank. Options are those of Job."""
    owner = _Owner(trace, options)
    found = {}
    for number in range(owner.lib.dpro_n_tables()):
        n_ranks = owner.lib.dpro_tables_n_ranks(owner.at) if owner.lib.dpro_table(number).of_ranks else 1
        each = [Table(owner, number, rank) for rank in range(n_ranks)]
        found[each[0].name if each else ""] = each if owner.lib.dpro_table(number).of_ranks else each[0]
    return found
