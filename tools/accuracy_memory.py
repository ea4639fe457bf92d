"""Peaks of memory, and what-ifs of memory and time, against the same jobs really run that way: whatif-memory.json beside a
recording (tools/measure_memory.py wrote it; dpro never reads it) has peaks of the bytes that tensors held, counted without a
profiler, and iteration times by turns with the job as it is.

A recording is judged twice: as it is, and from its execution trace alone, in a copy without what was allocated and freed.
What-ifs are judged by the highest peak of all ranks, and by the ratio of iteration times, which a machine that was faster or
slower between recording and measuring leaves alone; where other work had the machine as well (`busy`), by the ratio of what the
ranks' processors worked. Beside them stand MemTracker of PyTorch, which ran each variant, and the rule of the paper's
implementation."""
import gzip
import json
import os
import re
import shutil
import tempfile

from figures import ask, off, spread

TRUTH = "whatif-memory.json"
PEAK_PCT, TRACE_PCT = 1.0, 3.0  # targets: as recorded; from the execution trace alone
WHATIF_PCT = {"peak": (2.0, 5.0), "ms": (4.0, 8.0)}  # median, worst


def truth_of(folder, name=TRUTH):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def options_of(truth, config):
    """The options of dpro whatif that ask for it."""
    options = []
    for part in config.split(","):
        key, _, value = part.partition("=")
        if key == "recompute":
            options += ["--recompute", value.replace("+", ",")]
        elif key == "accumulate":
            options += ["--accumulate", value]
        elif key == "batch":
            options += ["--batch-size", str(round(truth["batch_size"] * float(value)))]
        elif key == "compile":
            options += ["--compile", value.replace("+", ",") or "all"]
        elif key == "bf16":
            options += ["--precision", "bf16" if value in ("", "all") else "bf16=" + value.replace("+", ",")]
    return options


def without_allocations(folder, copy):
    """A copy of a recording that lacks the profile's events of memory; what stands in memory.json stays."""
    shutil.copytree(folder, copy)
    for path, _, files in os.walk(copy):
        for name in files:
            if not re.match(r"kineto_et.*\.json(\.gz)?$", name):
                continue
            opened = gzip.open if name.endswith(".gz") else open
            with opened(os.path.join(path, name), "rt", encoding="utf-8") as file:
                profile = json.load(file)
            profile["traceEvents"] = [event for event in profile["traceEvents"] if event.get("name") != "[memory]"]
            with opened(os.path.join(path, name), "wt", encoding="utf-8") as file:
                json.dump(profile, file)


def peaks_of(dpro, folder, measured):
    """Worst error over the ranks of the replayed peak, the source that it is from, and what went wrong."""
    facts, problem = ask(dpro, "replay", folder, "--no-validate")
    if problem:
        return {"problem": problem}
    if not facts.get("memory"):
        return {"problem": "no memory is told of"}
    ranks = facts["memory"]["ranks"]
    errors = [off(rank["peak_bytes"], measured[rank["rank"]]) for rank in ranks]
    worst = max(errors, key=abs)
    return {"problem": None, "source": facts["memory"]["source"], "ranks": len(ranks), "error_pct": worst,
            "peak_bytes": max(rank["peak_bytes"] for rank in ranks)}


def measured_ratio(truth, config):
    """Of a config's iteration to the job's own."""
    return truth["configs"][config].get("cpu_ratio" if truth.get("measured", {}).get("busy") else "ratio")


def memory_row(dpro, folder):
    """One recording; None where nothing was measured to compare with."""
    truth = truth_of(folder)
    if truth is None:
        return None
    own = truth["configs"]["as-is"]
    row = {"trace": os.path.basename(folder), "model": truth["model"], "measured_bytes": max(own["peak_bytes"]),
           "recorded": peaks_of(dpro, folder, own["peak_bytes"]), "whatifs": []}
    with tempfile.TemporaryDirectory() as temporary:
        copy = os.path.join(temporary, "trace")
        without_allocations(folder, copy)
        row["traced"] = peaks_of(dpro, copy, own["peak_bytes"])
    for config, measured in truth["configs"].items():
        facts, problem = ask(dpro, "whatif", folder, *options_of(truth, config))
        memory = facts and facts.get("memory")
        peak = max(measured["peak_bytes"])
        ratio = measured_ratio(truth, config)
        ms = facts and facts["predicted"]["iteration_ms"]  # null: its time can't be predicted
        predicted = ms and ms / facts["baseline"]["iteration_ms"]
        row["whatifs"].append({
            "config": config, "problem": problem or (None if memory else "no memory is told of"), "measured_bytes": peak,
            "measured_ratio": ratio, "predicted_bytes": memory and memory["peak_bytes"], "predicted_ratio": predicted,
            "half_pct": facts and facts["predicted"].get("uncertainty_pct"),
            "peak_error_pct": off(memory and memory["peak_bytes"], peak), "ms_error_pct": off(predicted, ratio),
            "tracker_error_pct": off(measured.get("tracker_bytes"), peak),
            "rule_error_pct": off(measured.get("rule_bytes"), peak)})
    return row


def summary_of(rows):
    whatifs = [one for row in rows for one in row["whatifs"] if one["config"] != "as-is"]
    found = {"recorded": spread(row["recorded"].get("error_pct") for row in rows),
             "traced": spread(row["traced"].get("error_pct") for row in rows),
             "asked": len(whatifs), "answered": sum(one["problem"] is None for one in whatifs)}
    for key in ("peak", "ms", "tracker", "rule"):
        found[key] = spread(one[key + "_error_pct"] for one in whatifs)
    return found


def missed(rows):
    """What is outside of its target, as text."""
    found = []
    for row in rows:
        for key, limit in (("recorded", PEAK_PCT), ("traced", TRACE_PCT)):
            if row[key]["problem"] or abs(row[key]["error_pct"]) > limit:
                found.append("%s, %s: %s" % (row["trace"], key, row[key]["problem"] or "%+.2f %%" % row[key]["error_pct"]))
        for one in row["whatifs"]:
            if one["problem"]:
                found.append("%s, %s: %s" % (row["trace"], one["config"], one["problem"]))
                continue
            for key, (_, limit) in WHATIF_PCT.items():
                if one[key + "_error_pct"] is not None and abs(one[key + "_error_pct"]) > limit:
                    found.append("%s, %s: %s %+.1f %%" % (row["trace"], one["config"], key, one[key + "_error_pct"]))
    summary = summary_of(rows)
    for key, (limit, _) in WHATIF_PCT.items():
        if summary[key] and summary[key]["median_pct"] > limit:
            found.append("%s: %.1f %% off in the median" % (key, summary[key]["median_pct"]))
    return found


def title_of(config):
    """What a table calls it."""
    key, _, value = config.partition("=")
    if key != "recompute":
        return {"accumulate": "in %s parts", "batch": "batch x %s"}[key] % value if value else config
    return "recompute all" if "*" in value else "every second" if "+" in value or value.endswith(".0") else "one"


def number(value, form):
    return "-" if value is None else form % value


def print_memory(rows):
    """Returns a summary."""
    print("\nmemory: peak of what tensors hold, MB, and errors in %: as recorded, from the execution trace alone; what-ifs: peak, "
          "iteration's ratio\nto the job as it is; beside them the error of MemTracker, which ran the variant, and of the paper's rule")
    for row in rows:
        cells = [number(row[key].get("error_pct"), "%+.2f") if not row[key]["problem"] else "failed: " + row[key]["problem"]
                 for key in ("recorded", "traced")]
        print("%-38s %8.1f MB  recorded %s  traced %s" % (row["trace"], row["measured_bytes"] / 1e6, *cells))
        for one in row["whatifs"]:
            if one["problem"]:
                print("  %-44s failed: %s" % (one["config"], one["problem"]))
                continue
            print("  %-44s %8.1f MB, predicted %8.1f  %6s   x %s, predicted %s %6s (+- %s)   MemTracker %6s  rule %6s" % (
                one["config"], one["measured_bytes"] / 1e6, one["predicted_bytes"] / 1e6, number(one["peak_error_pct"], "%+.2f"),
                number(one["measured_ratio"], "%.3f"), number(one["predicted_ratio"], "%.3f"), number(one["ms_error_pct"], "%+.1f"),
                number(one["half_pct"], "%.0f"), number(one["tracker_error_pct"], "%+.1f"), number(one["rule_error_pct"], "%+.1f")))
    summary = summary_of(rows)
    for key, title in (("recorded", "as recorded"), ("traced", "execution trace alone"), ("peak", "what-ifs' peak"),
                       ("ms", "what-ifs' iteration"), ("tracker", "MemTracker's peak"), ("rule", "the paper's rule's peak")):
        if summary[key]:
            print("%s: |error| %.2f %% in the median, %.2f %% the worst, of %d" % (
                title, summary[key]["median_pct"], summary[key]["worst_pct"], summary[key]["n"]))
    return summary
