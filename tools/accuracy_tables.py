"""The tables of accuracy in README.md and doc/accuracy.md: made from what `make accuracy` found, and compared with it by a test.

A table stands between `<!-- accuracy: NAME -->` and `<!-- accuracy: end -->`. A row whose trace is not here (public traces are not
part of the repository) stays as it is."""
import os
import re
import textwrap

from accuracy_steps import OWN_HEAD, UNMARKED_HEAD, is_found, own_cells, unmarked_cells
import accuracy_turns
from accuracy_whatifs import bucket_table, title_of
from figures import fixed, markdown

README_ROWS = ("torch-ddp-gloo-gpt-n4-500mbit-cap25", "tf-mwms-ring", "mxnet-ps-module", "byteps-torch-n2", "ddp-a100-rank3of8")


def name(row):
    return f"`{row['trace']}`" + ("" if row["judged"] else " \\*")


def replay_cells(row):
    return (name(row), f"{row['ranks_present']}/{row['world_size']}", str(row["iterations"]), fixed(row["measured_ms"]),
            fixed(row.get("compared_ms")), fixed(row["error_pct"], 2, True), fixed(row.get("left_out_mean_pct")),
            fixed(row["std_pct"]), fixed(row.get("gaps_pct"), 0), fixed(row.get("daydream_error_pct"), 1, True))


REPLAY_HEAD = ("trace", "ranks", "iterations:", "measured, ms:", "replayed, ms:", "error, %:", "left out, %:", "std, %:", "gaps, %:",
               "Daydream error, %:")
DOC_COLUMNS = (0, 1, 2, 3, 5, 6, 7, 8, 9)  # the time replayed follows from the error
README_COLUMNS = (0, 1, 3, 5, 6, 7)


def clock_cells(row, replayed):
    return (f"`{row['trace']}`", fixed(row["injected_ms"]) + " ms", fixed(row["error_us"]) + " µs", fixed(row["uncertainty_us"]) + " µs",
            *(fixed(row[key + "_error_pct"], 2, True) for key in ("neither", "receives_only", "clocks_only")),
            fixed(replayed["error_pct"], 2, True))


CLOCK_HEAD = ("trace", "clocks apart by:", "found, off by at most:", "stated, ±:", "error, %: neither:", "RECV:", "clocks:", "both:")


def memory_lines(rows):
    """Errors of peaks, and of iterations in parentheses."""
    titles = list(dict.fromkeys(title_of(one["config"]) for row in rows for one in row["whatifs"] if one["config"] != "as-is"))
    lines = []
    for row in rows:
        cells = {}
        for one in row["whatifs"]:
            peak, ms = (fixed(one[key + "_error_pct"], 1, True) for key in ("peak", "ratio"))
            cells[title_of(one["config"])] = "–" if one["problem"] else peak if one["ratio_error_pct"] is None else f"{peak} ({ms})"
        seen = [fixed(row["own"][key].get("error_pct"), 2, True) for key in ("recorded", "traced")]
        lines.append((f"`{row['trace']}`", fixed(row["measured_bytes"] / 1e6), *seen, *(cells.get(title, "–") for title in titles)))
    head = ("recorded", "peak, MB:", "as recorded, %:", "execution trace alone, %:", *(title + ":" for title in titles))
    return markdown(head, lines)


def wrapped(text):
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def whatif_summary_lines(s):
    return wrapped(
        f"In the median |error| is {s['median_pct']:.1f} % (at worst {s['worst_pct']:.1f}), of ratios {s['ratio_median_pct']:.1f} % "
        f"({s['ratio_worst_pct']:.1f}). The machine itself ran the recorded configuration {s['machine_median_pct']:.1f} % (at most "
        f"{s['machine_worst_pct']:.1f}) differently by then. Without that, |error| would be {s['same_machine_median_pct']:.1f} % in "
        f"the median and {s['same_machine_worst_pct']:.1f} at worst. Against the iterations around the recording the models are "
        f"{s['own_median_pct']:.1f} % off (at most {s['own_worst_pct']:.1f}).")


def unprofiled_lines(rows):
    """Against the same jobs run without a profiler."""
    def between(key, wanted):
        values = [row[key] for row in rows if row.get("unprofiled_ms") and wanted(row["trace"])]
        return values and f"{fixed(min(values), 1, True)} to {fixed(max(values), 1, True)} %"

    gloo = between("unprofiled_error_pct", lambda trace: trace.startswith("torch-"))
    others = between("unprofiled_error_pct", lambda trace: not trace.startswith("torch-"))
    less = between("expected_error_pct", lambda trace: not trace.startswith("torch-"))
    return wrapped(
        f"Against the same jobs run without a profiler the replay is off by {gloo} (PyTorch) and {others} (TensorFlow, "
        "MXNet, Horovod, which took longer when they were profiled); less what their transport logs show of the profiler's "
        f"cost, by {less}.")


def tables_of(results):
    """{name: lines} of the results of tools/accuracy.py."""
    rows = [row for row in results["rows"] if not row["problem"]]
    by_name = {row["trace"]: row for row in rows}
    clocks = [clock_cells(row, by_name[row["trace"]]) for row in results["clocks"] if not row["problem"]]
    own = [own_cells(row) for row in rows if row.get("own")]
    unmarked = [unmarked_cells(row) for row in results.get("unmarked", ()) if not row["problem"] and not is_found(row)]
    whatifs = [row for row in results["whatifs"] if not row["problem"]]
    cells = [replay_cells(row) for row in rows]
    picked = [row for row in cells if row[0].strip("`") in README_ROWS]
    tables = {table: markdown([REPLAY_HEAD[c] for c in columns], [[row[c] for c in columns] for row in lines])
              for table, columns, lines in (("replay", DOC_COLUMNS, cells), ("readme", README_COLUMNS, picked))}
    tables.update({table: markdown(head, lines) for table, head, lines in (
        ("own", OWN_HEAD, own), ("unmarked", UNMARKED_HEAD, unmarked), ("clocks", CLOCK_HEAD, clocks),
        ("whatif", *bucket_table(whatifs))) if lines})
    if results.get("memory"):
        tables["memory"] = memory_lines(results["memory"])
    if results["whatif_summary"]:
        tables["whatif-summary"] = whatif_summary_lines(results["whatif_summary"])
    if results.get("turns"):
        tables["turns"] = markdown(accuracy_turns.KIND_HEAD, accuracy_turns.kind_cells(results["turns"]))
        tables["turns-summary"] = wrapped(accuracy_turns.summary(results["turns"]))
    if any(row.get("unprofiled_ms") for row in rows):
        tables["unprofiled"] = unprofiled_lines(rows)
    return tables


PLACE = re.compile(r"(<!-- accuracy: ([a-z-]+) -->\n)(.*?)(<!-- accuracy: end -->)", re.S)


def row_name(line):
    found = re.match(r"\| `([^`]+)`", line)
    return found and found.group(1)


def merged(old, new):
    """New lines, and the old rows of traces that are not here, in the order of their names."""
    if not any(map(row_name, new)):
        return new
    here = {row_name(line) for line in new}
    rows = [line for line in new if row_name(line)] + [line for line in old if row_name(line) and row_name(line) not in here]
    return [line for line in new if not row_name(line)] + sorted(rows, key=row_name)


def renewed(text, tables):
    def renew(found):
        start, table, old, end = found.groups()
        if table not in tables:
            return found.group(0)
        return start + "".join(line + "\n" for line in merged(old.splitlines(), tables[table])) + end

    return PLACE.sub(renew, text)


def documents(root):
    return [os.path.join(root, "README.md"), os.path.join(root, "doc", "accuracy.md")]


def write(root, tables):
    """Returns the documents that changed."""
    changed = []
    for path in documents(root):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if renewed(text, tables) != text:
            with open(path, "w", encoding="utf-8") as file:
                file.write(renewed(text, tables))
            changed.append(os.path.relpath(path, root))
    return changed
