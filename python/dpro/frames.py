"""Tables as pandas, Arrow and Polars have them, and pictures of answers for notebooks.

Numbers are not copied. Names are categories, whose codes are the numbers of the library."""
import html
import importlib

from . import Error

_NONE = 0xffffffff
COLOURS = {"forward": "#4c78a8", "backward": "#72b7b2", "update": "#eeca3b", "input": "#b279a2", "exposed_communication": "#e45756",
           "wait_for_peers": "#ff9da6", "idle": "#d4d4d4", "ideal": "#54a24b", "blame": "#e45756", "as it ran": "#9d9da1",
           "changed": "#4c78a8"}


def needed(package, what):
    try:
        return importlib.import_module(package)
    except ImportError:
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


def polars_of(table):
    return needed("polars", "to_polars()").from_arrow(arrow_of(table))


def rows_html(names, rows, caption="", most=20):
    """The first rows as an HTML table."""
    head = "".join("<th>%s</th>" % html.escape(name) for name in names)
    body = "".join("<tr>%s</tr>" % "".join("<td>%s</td>" % html.escape("" if value is None else str(value)) for value in row)
                   for row in rows[:most])
    more = " (the first %d)" % most if len(rows) > most else ""
    return "<table><caption>%s%s</caption><thead><tr>%s</tr></thead><tbody>%s</tbody></table>" % (html.escape(caption), more, head, body)


def bars_html(rows, legend=()):
    """Bars of parts as SVG, lengths in ms: rows of (label, [(part, length, start or None)]); a part without a start follows the one
    before. `legend`: parts that are told by their colours only."""
    width, height, left = 560, 22, 170
    scale = width / max((end for _, parts in rows for end in _ends(parts)), default=1)
    svg = []

    def text(x, y, words, anchor):
        svg.append('<text x="%.0f" y="%d" text-anchor="%s" font-size="12" fill="currentColor">%s</text>' %
                   (x, y, anchor, html.escape(words)))

    def box(x, y, box_width, part, told):
        svg.append('<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>' %
                   (x, y, max(box_width, 0.5), height - 6, COLOURS.get(part, COLOURS["blame"]), html.escape(told)))

    for number, (label, parts) in enumerate(rows):
        y, ends = number * height, _ends(parts)
        text(left - 6, y + 15, label, "end")
        for (part, length, _), end in zip(parts, ends):
            box(left + (end - length) * scale, y + 3, length * scale, part, "%s: %.3f ms" % (part, length))
        text(left + max(ends, default=0) * scale + 4, y + 15, "%.2f ms" % sum(length for _, length, _ in parts), "start")
    for number, part in enumerate(legend):
        x, y = left + number % 4 * 180, (len(rows) + number // 4) * height + 4
        box(x, y, 12, part, part)
        text(x + 16, y + 13, part.replace("_", " "), "start")
    n_rows = len(rows) + (len(legend) + 3) // 4
    return '<svg width="%d" height="%d" role="img">%s</svg>' % (left + width + 100, n_rows * height + 8, "".join(svg))


def _ends(parts):
    ends, at = [], 0
    for _, length, start in parts:
        at = (at if start is None else start) + length
        ends.append(at)
    return ends


def picture(answer):
    """Of an answer of the library, by its schema."""
    schema = answer.get("schema", "").partition("/")[0]
    if schema == "dpro.replay":
        parts = list(COLOURS)[:7]
        return bars_html([("rank %d" % rank["rank"], [(part, rank[part + "_ms"], None) for part in parts])
                          for rank in answer["ranks"][:32]], parts)
    if schema == "dpro.diagnose":
        rows, at = [("ideal", [("ideal", answer["ideal_ms"], None)])], answer["ideal_ms"]
        for cause in answer["causes"]:
            rows.append((cause["cause"].replace("_", " "), [(cause["cause"], abs(cause["blame_ms"]), at + min(cause["blame_ms"], 0))]))
            at += cause["blame_ms"]
        return bars_html([*rows, ("iteration", [("as it ran", answer["iteration_ms"], None)])])
    if schema == "dpro.whatif" and answer.get("predicted"):
        return bars_html([(name, [(name, answer[key]["iteration_ms"], None)])
                          for name, key in (("as it ran", "baseline"), ("changed", "predicted"))])
    if schema == "dpro.optimize":
        return bars_html([(row["name"], [("changed", row["iteration_ms"], None)])
                          for row in answer["baselines"] if row.get("iteration_ms")])
    return ""
