"""Tables as pandas, Arrow and Polars have them, and as HTML.

Numbers are not copied. Names are categories, whose codes are the numbers of the library."""
import html
import importlib

from . import Error


def needed(package, what):
    try:
        return importlib.import_module(package)
    except ImportError:
        package = package.partition(".")[0]
        raise Error("%s needs the package %s: pip install %s" % (what, package, package)) from None


def words_of(column):
    """What the numbers of a column of names stand for, by number, and the numbers; None: they are no names."""
    numpy = needed("numpy", "a table of names")
    name_of = column.name_of
    if name_of is None or not len(column):
        return None
    codes = numpy.asarray(column)
    return [name_of(i) or "" for i in range(int(codes.max()) + 1)], codes


def _values(column, named, nothing):
    """named(words, codes) of names; nothing(number of rows) where no row has a value; of others a numpy array, or a list of texts."""
    numpy = needed("numpy", "a table")
    if column.is_text:
        return list(column)
    if not column.has_values:
        return nothing(len(column))
    words = words_of(column)
    return named(*words) if words else numpy.asarray(column)


def pandas_of(table):
    """A DataFrame; its index is the rows' ids."""
    pandas, numpy = needed("pandas", "to_pandas()"), needed("numpy", "to_pandas()")
    columns = {name: _values(column, lambda words, codes: pandas.Categorical.from_codes(codes, _distinct(words)),
                             lambda n: numpy.broadcast_to(numpy.float64("nan"), n))  # one number, seen n times
               for name, column in table.items()}
    frame = pandas.DataFrame(columns, copy=False)
    frame.index.name = "id"
    return frame


def _distinct(words):
    """Categories may not be twice; only the empty name and those of other tables could be."""
    seen, made = set(), []
    for i, word in enumerate(words):
        made.append(word if word not in seen else "%s (%d)" % (word, i))
        seen.add(made[-1])
    return made


def arrow_of(table):
    arrow = needed("pyarrow", "to_arrow()")
    return arrow.table({name: _values(column, lambda words, codes: arrow.DictionaryArray.from_arrays(arrow.array(codes), words),
                                      arrow.nulls) for name, column in table.items()})


def polars_of(arrow_table):
    return needed("polars", "to_polars()").from_arrow(arrow_table)


def pandas_of_ranks(tables):
    """One DataFrame; its index is each row's rank, as `in_rank` of what `dpro export` writes, and its id."""
    pandas = needed("pandas", "to_pandas()")
    found = {table.rank: pandas_of(table) for table in _with_rows(tables)}
    return pandas.concat(found, names=["in_rank", "id"]) if found else pandas.DataFrame()


def arrow_of_ranks(tables):
    """One Arrow table, whose first column is each row's rank, `in_rank`."""
    arrow, numpy = needed("pyarrow", "to_arrow()"), needed("numpy", "to_arrow()")
    found = [arrow_of(table).add_column(0, "in_rank", [numpy.full(table.n_rows, table.rank, "u4")]) for table in _with_rows(tables)]
    return arrow.concat_tables(found, promote_options="default").unify_dictionaries() if found else arrow.table({})


def _with_rows(tables):
    return [table for table in tables if table.n_rows] or tables[:1]


def rows_html(names, rows, caption="", most=20):
    """The first rows as an HTML table."""
    head = "".join("<th>%s</th>" % html.escape(name) for name in names)
    body = "".join("<tr>%s</tr>" % "".join("<td>%s</td>" % html.escape("" if value is None else str(value)) for value in row)
                   for row in rows[:most])
    more = " (the first %d)" % most if len(rows) > most else ""
    return "<table><caption>%s%s</caption><thead><tr>%s</tr></thead><tbody>%s</tbody></table>" % (html.escape(caption), more, head, body)
