"""How well iterations are found where nothing marks them: PyTorch's traces of a recording, less their ranges of steps.

What the marks say is the truth. Nothing else of the recording is given, as its other files tell how many steps there were."""
import gzip
import json
import os
import statistics
import tempfile

from figures import ask, off

MARK = "ProfilerStep#"


def read(path):
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def write_unmarked(folder, place):
    """Returns how many traces it wrote."""
    n = 0
    for base, _, files in os.walk(folder):
        for name in sorted(files):
            if not name.endswith((".json", ".json.gz")) or "_et" in name or name.startswith("et_"):
                continue  # an execution trace of a step says what is in one
            trace = read(os.path.join(base, name))
            events = trace.get("traceEvents") if isinstance(trace, dict) else None
            rest = [event for event in events or () if not str(event.get("name", "")).startswith(MARK)]
            if len(rest) == len(events or ()):
                continue
            n += 1
            with open(os.path.join(place, os.path.relpath(os.path.join(base, name), folder).replace(os.sep, "_").removesuffix(".gz")), "w",
                      encoding="utf-8") as file:
                json.dump({**trace, "traceEvents": rest}, file)
    return n


def unmarked_row(dpro, folder, marked):
    """None: no trace of it has marks. `marked`: the row of the recording as it is."""
    with tempfile.TemporaryDirectory() as place:
        if write_unmarked(folder, place) == 0:
            return None
        facts, problem = ask(dpro, "replay", place, "--no-validate")
    row = {"trace": marked["trace"], "problem": problem or marked["problem"]}
    if row["problem"] is None:
        row.update({"iterations": marked["iterations"], "marked_ms": marked["measured_ms"], "found": facts["trace"]["iterations"],
                    "found_by": facts["steps"]["found_by"], "unmarked_ms": facts["measured"]["iteration_ms"],
                    "error_pct": off(facts["measured"]["iteration_ms"], marked["measured_ms"])})
    return row


def print_unmarked(rows):
    if not rows:
        return
    width = max(len(row["trace"]) for row in rows)
    print(f"\n{'without marks of steps':<{width}}  marked        ms  found        ms       %  found by")
    for row in rows:
        if row["problem"]:
            print(f"{row['trace']:<{width}}  {row['problem']}")
            continue
        print(f"{row['trace']:<{width}}  {row['iterations']:>6}  {row['marked_ms']:>8.1f}  {row['found']:>5}  {row['unmarked_ms']:>8.1f}  "
              f"{row['error_pct']:+6.2f}  {row['found_by']}")
    errors = [abs(row["error_pct"]) for row in rows if not row["problem"]]
    if errors:
        print(f"an iteration without marks: |error| {statistics.median(errors):.2f} % in the median, {max(errors):.2f} % at worst")
