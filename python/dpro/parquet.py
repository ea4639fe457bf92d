"""What `dpro export --parquet DIR` runs: every table of a job as NAME.parquet in DIR.

Its arguments are DIR [OPTION=NUMBER-OR-TEXT...] -- PATH..., options those of a dpro.Job.
Columns are those of --csv: in_rank of a table that each rank has, id, then the table's; units and meanings are their metadata."""
import os
import sys

from . import Error, frames, optimizer

_NONE = 0xffffffff
USAGE, INPUT, SYSTEM = 2, 3, 4


def _array(arrow, numpy, column):
    """A column; what leads to no row, or has no value, is null."""
    if column.is_text:
        return arrow.array(list(column), arrow.string())
    if not column.has_values:
        return arrow.nulls(len(column), arrow.string() if column.name_of else arrow.int64())
    words = frames.words_of(column)
    if words:
        return arrow.DictionaryArray.from_arrays(arrow.array(words[1]), arrow.array(words[0], arrow.string()))
    values = numpy.asarray(column)
    return arrow.array(values, mask=values == _NONE) if column.table else arrow.array(values)


def _table(arrow, numpy, parts):
    """One of the tables of all ranks, `parts`."""
    made = []
    for part in parts:
        columns = [(name, _array(arrow, numpy, column), column.unit, column.meaning) for name, column in part.items()]
        columns.insert(0, ("id", arrow.array(numpy.arange(part.n_rows, dtype="u4")), "", "the number of the row"))
        if part.rank is not None:
            columns.insert(0, ("in_rank", arrow.array(numpy.full(part.n_rows, part.rank, "u4")), "", "the rank's id in ranks"))
        fields = [arrow.field(name, values.type, metadata={"unit": unit, "meaning": meaning}) for name, values, unit, meaning in columns]
        made.append(arrow.Table.from_arrays([values for _, values, _, _ in columns],
                                            schema=arrow.schema(fields, metadata={"meaning": part.meaning})))
    return arrow.concat_tables(made).unify_dictionaries()


def write(job, folder):
    """Writes all tables or none: a file is written beside its place, and all are renamed in the end."""
    arrow, numpy = frames.needed("pyarrow", "--parquet"), frames.needed("numpy", "--parquet")
    import pyarrow.parquet
    os.makedirs(folder, exist_ok=True)
    written = []
    try:
        for name, found in job.tables.items():
            parts = found if isinstance(found, list) else [found]
            if parts:
                written.append(os.path.join(folder, name + ".parquet"))
                pyarrow.parquet.write_table(_table(arrow, numpy, parts), written[-1] + ".part")
        while written:
            os.replace(written[-1] + ".part", written[-1])
            written.pop()
    finally:
        for path in written:
            if os.path.exists(path + ".part"):
                os.remove(path + ".part")


def main(args):
    at = args.index("--")
    options = dict(option.split("=", 1) for option in args[1:at])
    options = {name: int(value) if name in ("threads", "no_align", "raw_receives") else value for name, value in options.items()}
    if "steps" in options:
        options["steps"] = tuple(map(int, options["steps"].split(":")))
    code = USAGE
    try:
        frames.needed("pyarrow", "--parquet (with %s)" % sys.executable)
        code = INPUT
        job = optimizer.Job(args[at + 1:], **options)
        job.tables
        write(job, args[0])
    except Error as problem:
        print("dpro: %s" % problem, file=sys.stderr)
        return code
    except OSError as problem:
        print("dpro: %s: can't be written: %s" % (problem.filename or args[0], os.strerror(problem.errno) if problem.errno else problem),
              file=sys.stderr)
        return SYSTEM
    return 0
