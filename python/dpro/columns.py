"""Every table of a job, with its columns as the library has them. A binding of include/dpro/table.h."""
import ctypes as c
import sys

from . import frames, layouts

_TYPES = {"UINT8": "u1", "BOOL": "b1", "UINT16": "u2", "INT32": "i4", "UINT32": "u4", "INT64": "i8", "UINT64": "u8",
          "FLOAT": "f4", "DOUBLE": "f8"}
_C_TYPES = {"u1": c.c_uint8, "b1": c.c_bool, "u2": c.c_uint16, "i4": c.c_int32, "u4": c.c_uint32, "i8": c.c_int64,
            "u8": c.c_uint64, "f4": c.c_float, "f8": c.c_double}
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
            return self.name_of(value)
        return None if self.table and value == _NONE else value

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


class Table(dict):
    """{name of a column: Column}. name, meaning of a row; n_rows; rank: the rank's id in `ranks`, of a table of a rank."""

    def __init__(self, owner, number, rank):
        table = owner.lib.dpro_table(number)
        self.name, self.meaning, self.rank = table.name.decode(), table.meaning.decode(), rank if table.of_ranks else None
        self.n_rows = owner.lib.dpro_tables_n_rows(owner.at, number, rank)
        columns = (Column(owner, number, i, self.n_rows, rank) for i in range(table.n_columns))
        super().__init__((column.name, column) for column in columns)

    def to_pandas(self):
        """A pandas.DataFrame, whose index is the rows' ids."""
        return frames.pandas_of(self)

    def to_arrow(self):
        """A pyarrow.Table."""
        return frames.arrow_of(self)

    def to_polars(self):
        """A polars.DataFrame."""
        return frames.polars_of(self)

    def __repr__(self):
        return "<table %s: %d rows (%s) of %s>" % (self.name, self.n_rows, self.meaning, ", ".join(self))

    def _repr_html_(self):
        first = range(min(self.n_rows, 21))
        return frames.rows_html(["id", *self], [[row, *(column[row] for column in self.values())] for row in first],
                                "%s: %d rows, %s" % (self.name, self.n_rows, self.meaning))


def tables_of(job, lib):
    """{name: Table} of all tables of a job of the library; of a table of a rank, a list with one for each rank."""
    owner = _Owner(job, lib)
    found = {}
    for number in range(owner.lib.dpro_n_tables()):
        of_ranks = owner.lib.dpro_table(number).of_ranks
        each = [Table(owner, number, rank) for rank in range(owner.lib.dpro_tables_n_ranks(owner.at) if of_ranks else 1)]
        found[owner.lib.dpro_table(number).name.decode()] = each if of_ranks else each[0]
    return found
