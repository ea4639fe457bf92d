"""Where steps are known otherwise: replays against steps without the profiler, and iterations found without marks.

The replay knows nothing of the steps that the recorder timed without the profiler; the job's time is their median. So it is found
from some of them and compared with the others: every other step, and those after the recorded window from those before it."""
import gzip
import json
import os
import statistics
import tempfile

from figures import ask, fixed, off, show, spread, told

OWN = "steps without the profiler"
MARK = "ProfilerStep#"


# ---- a recording's own steps ----


def halves(steps):
    """{how: (which are shown, which are held back)}; each a list of (block, index)."""
    places = [(block, i) for block in ("before", "after") for i in range(len(steps[block]))]
    return {"next": (places[::2], places[1::2]),
            "after": ([p for p in places if p[0] == "before"], [p for p in places if p[0] == "after"])}


def copy_with(folder, recordings, shown, place):
    """The recording, in which only these steps were timed."""
    for base, _, files in os.walk(folder):
        into = os.path.join(place, os.path.relpath(base, folder))
        os.makedirs(into, exist_ok=True)
        for name in files:
            path = os.path.abspath(os.path.join(base, name))
            if path not in recordings:
                os.symlink(path, os.path.join(into, name))
                continue
            steps = recordings[path]["steps"]
            kept = {block: [steps[block][i] for b, i in shown if b == block] for block in ("before", "after")}
            with open(os.path.join(into, name), "w", encoding="utf-8") as file:
                json.dump({**recordings[path], "steps": {**steps, **kept}}, file)


def held_back_error(dpro, folder, recordings, shown, held):
    with tempfile.TemporaryDirectory() as place:
        copy_with(folder, recordings, shown, place)
        facts, _ = ask(dpro, "replay", place, "--no-validate")
    if facts is None or facts["job"]["source"] != OWN:
        return None, None
    steps = [r["steps"][block][i] for r in recordings.values() for block, i in held]
    truth = statistics.median((step["end_ns"] - step["start_ns"]) / 1e6 for step in steps)
    return off(facts["job"]["iteration_ms"], truth), facts["job"]["low_ms"] <= truth <= facts["job"]["high_ms"]


def own_row(dpro, folder, facts):
    """None: its steps were not timed, or tell nothing of the job."""
    job, recordings = facts["job"], {}
    if job["source"] != OWN:
        return None
    for base, _, files in os.walk(folder):
        if "rank.json" in files:
            path = os.path.abspath(os.path.join(base, "rank.json"))
            with open(path, encoding="utf-8") as file:
                recordings[path] = json.load(file)
    recordings = {path: r for path, r in recordings.items() if r.get("steps") and r["steps"]["before"]}
    row = {"steps": facts["unprofiled"]["steps"], "job_ms": job["iteration_ms"],
           "half_pct": 50 * (job["high_ms"] - job["low_ms"]) / job["iteration_ms"],
           "replay_pct": facts["unprofiled"]["median_error_pct"]}
    for how, (shown, held) in halves(next(iter(recordings.values()))["steps"]).items():
        row[how + "_pct"], row[how + "_inside"] = held_back_error(dpro, folder, recordings, shown, held)
    return row


def own_cells(row):
    own = row["own"]
    return (f"`{row['trace']}`", str(own["steps"]), fixed(own["job_ms"]), fixed(own["half_pct"]),
            *(fixed(own[key], 1, True) for key in ("replay_pct", "next_pct", "after_pct")))


OWN_HEAD = ("recording", "steps:", "job, ms:", "±, %:", "replay, %:", "every other step, %:", "after the window, %:")


def print_own(rows):
    show(f"own {OWN}", OWN_HEAD, [own_cells(row) for row in rows])
    for key, what in (("replay_pct", "replay, not shown these steps"), ("next_pct", "the job's time, of every other step from the rest"),
                      ("after_pct", "of those after the window from those before it")):
        told(what, spread(row["own"][key] for row in rows))
    inside = [row["own"][how + "_inside"] for row in rows for how in ("next", "after") if row["own"][how + "_inside"] is not None]
    print(f"of the steps that were held back, {sum(inside)} of {len(inside)} medians lie within the 95 % interval that the others give")


# ---- without marks ----


def write_unmarked(folder, place):
    """PyTorch's traces of a recording, less their ranges of steps; nothing else of it, as other files tell how many steps there were.
    Returns how many it wrote."""
    n = 0
    for base, _, files in os.walk(folder):
        for name in sorted(files):
            path = os.path.join(base, name)
            if not name.endswith((".json", ".json.gz")) or "_et" in name or name.startswith("et_"):
                continue  # an execution trace of a step says what is in one
            try:
                with (gzip.open if name.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
                    trace = json.load(file)
            except (OSError, ValueError):
                continue
            events = isinstance(trace, dict) and trace.get("traceEvents") or ()
            rest = [event for event in events if not str(event.get("name", "")).startswith(MARK)]
            if len(rest) < len(events):
                n += 1
                copy = os.path.relpath(path, folder).replace(os.sep, "_").removesuffix(".gz")
                with open(os.path.join(place, copy), "w", encoding="utf-8") as file:
                    json.dump({**trace, "traceEvents": rest}, file)
    return n


def unmarked_row(dpro, folder, marked):
    """None: no trace of it has marks, which are the truth. `marked`: the row of the recording as it is."""
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


def is_found(row):
    """All of its iterations, which then needs no row in the documents."""
    return row["found"] == row["iterations"] and abs(row["error_pct"]) < 0.1 and row["found_by"] == "optimizer"


def unmarked_cells(row):
    if row["problem"]:
        return row["trace"], row["problem"]
    return (f"`{row['trace']}`", str(row["iterations"]), fixed(row["marked_ms"]), str(row["found"]), fixed(row["unmarked_ms"]),
            fixed(row["error_pct"], 2, True), row["found_by"])


UNMARKED_HEAD = ("recording", "marked:", "ms:", "found:", "ms:", "error, %:", "found by")


def print_unmarked(rows):
    show("without marks of steps", UNMARKED_HEAD, [unmarked_cells(row) for row in rows])
    told("an iteration without marks", spread(row["error_pct"] for row in rows if not row["problem"]))
