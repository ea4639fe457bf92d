"""What-ifs against the same jobs really run that way.

A file beside a recording has what was measured of it and of configurations of it, `cap=5,compress=fp16` or `recompute=blocks.1` (KINDS).
dpro reads none of these files.

Of buckets: iteration times without a profiler; a capture without a file is judged by its sibling's: same job, other cap. Three errors:
of the milliseconds; of the ratio to the capture's own configuration, which a machine that was faster or slower between recording and
measuring leaves alone; and of the own configuration against the iterations around the recording. And coverage: how often the truth
lies within the 95 % interval.

Of memory, computation and parallel jobs: iteration times by turns with the job as it is, and the peaks of what tensors held
(tools/measure.py wrote it). They are judged by the highest peak of all ranks, and by the ratio of iteration times; where other work
had the machine as well (`busy`), by the ratio of what the ranks' processors worked."""
import gzip
import json
import os
import re
import shutil
import statistics
import tempfile

from figures import ask, fixed, off, show, spread, told, truth_of

COVERED_PCT = 95
SMALL_MB, LARGE_MB = 5, 25  # a recording with buckets up to the one, asked for buckets from the other on


def buckets_truth(folder):
    found = truth_of(folder, "whatif.json") or truth_of(re.sub(r"-cap\d+$", "-cap25", folder), "whatif.json")
    if not found:
        return None
    metadata, configs = truth_of(folder, "metadata.json"), {}
    for config in found["configs"]:
        hook = "" if config["comm_hook"] == "none" else ",compress=" + config["comm_hook"]
        configs[f"cap={config['bucket_cap_mb']:g}{hook}"] = {"ms": config["median_ms"]}
    return {"own": f"cap={metadata['bucket_cap_mb']:g}", "around_ms": metadata["unprofiled_median_ms"], "configs": configs}


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
    if problem or not facts.get("memory"):
        return {"problem": problem or "no memory is told of"}
    ranks = facts["memory"]["ranks"]
    return {"problem": None, "source": facts["memory"]["source"], "ranks": len(ranks),
            "error_pct": max((off(rank["peak_bytes"], measured[rank["rank"]]) for rank in ranks), key=abs),
            "peak_bytes": max(rank["peak_bytes"] for rank in ranks)}


def own_peaks(dpro, folder, truth):
    """As recorded, and from the execution trace alone."""
    peaks = truth["configs"]["as-is"]["peak_bytes"]
    with tempfile.TemporaryDirectory() as temporary:
        copy = os.path.join(temporary, "trace")
        without_allocations(folder, copy)
        return {"recorded": peaks_of(dpro, folder, peaks), "traced": peaks_of(dpro, copy, peaks)}


def own_replay(dpro, folder, truth):
    """Against steps without the profiler."""
    facts, problem = ask(dpro, "replay", folder, "--no-validate")
    return {"replay": {"problem": problem, "error_pct": facts and facts.get("unprofiled", {}).get("error_pct")}}


class Kind:
    """`truth`: the file, or what reads it of a recording's folder; `targets`: median and worst of errors in %; `own`: what is asked of a
    recording as it is, and `own_pct`, its targets."""

    def __init__(self, truth, targets, own=lambda *_: {}, **own_pct):
        self.truth, self.targets, self.own, self.own_pct = truth, targets, own, own_pct

    def read(self, folder):
        return self.truth(folder) if callable(self.truth) else truth_of(folder, self.truth)


KINDS = {"memory": Kind("whatif-memory.json", {"peak": (2.0, 5.0), "ratio": (4.0, 8.0)}, own_peaks, recorded=1.0, traced=3.0),
         "computation": Kind("whatif-computation.json", {"ratio": (4.0, 8.0), "peak": (2.0, 5.0)}),
         "parallel": Kind("whatif-parallel.json", {"ratio": (4.0, 10.0)}, own_replay, replay=5.0),
         "buckets": Kind(buckets_truth, {"ms": (3.0, 8.0)}),
         "blind": Kind("whatif-blind.json", {})}
ERRORS = {"ms": "ms", "ratio": "iteration", "peak": "peak", "tracker": "MemTracker's peak", "rule": "the paper's rule's peak"}


OPTIONS = {"cap": "--bucket-cap-mb", "ranks": "--world-size"}


def options_of(truth, config):
    """The options of dpro whatif that ask for it."""
    options = []
    for part in [] if config == "as-is" else config.split(","):
        key, _, value = part.partition("=")
        value = value.replace("+", ",")
        if key == "batch":
            options += ["--batch-size", str(round(truth["batch_size"] * float(value)))]
        elif key == "bf16":
            options += ["--precision", "bf16" if value in ("", "all") else "bf16=" + value]
        elif key == "rate":
            options += ["--bandwidth", f"{float(value) / truth['rate']:g}x"]
        else:
            options += [OPTIONS.get(key, "--" + key), value + "x" * (key == "bandwidth") or "all"]
    return options


def title_of(config):
    """What a table calls it."""
    key, _, value = config.partition("=")
    if key == "recompute":
        return "recompute all" if "*" in value else "every second" if "+" in value or value.endswith(".0") else "one"
    title = {"accumulate": "in %s parts", "batch": "batch x %s", "cap": "cap %s"}.get(key)
    return title % value.replace(",compress=", " + ") if title and value else config


def change(dpro, folder, truth, config):
    """One what-if beside what was measured, of milliseconds, of the ratio to the job as it is, and of the peak."""
    measured, own = truth["configs"][config], truth.get("own", "as-is")
    facts, problem = ask(dpro, "whatif", folder, *options_of(truth, config))
    facts = facts or {"predicted": {"iteration_ms": None}}
    ratio = measured.get("cpu_ratio" if truth.get("measured", {}).get("busy") and "cpu_ratio" in measured else "ratio")
    if "ms" in measured and config != own:
        ratio = measured["ms"] / truth["configs"][own]["ms"]
    peak = measured.get("peak_bytes") and max(measured["peak_bytes"])
    ms, speedup = facts["predicted"]["iteration_ms"], facts.get("speedup")  # null: its time can't be predicted
    predicted, held = ms and ms / facts["baseline"]["iteration_ms"], (facts.get("memory") or {}).get("peak_bytes")
    half = 1.96 * facts["speedup_std"] if ms and speedup else None
    return {"config": config, "problem": problem or ("no memory is told of" if peak and held is None else None),
            "measured_ms": measured.get("ms"), "predicted_ms": ms, "ms_error_pct": off(ms, measured.get("ms")),
            "ms_half_pct": facts["predicted"].get("uncertainty_pct") if "ms" in measured else None,
            "baseline_ms": facts.get("baseline", {}).get("iteration_ms"), "misfit_pct": facts.get("misfit_pct"),
            "measured_ratio": ratio, "noise": measured.get("ratio_noise"), "predicted_ratio": predicted,
            "ratio_half_pct": half and 100 * half / speedup,
            "source": (facts.get("computation") or {}).get("source"), "measured_bytes": peak, "predicted_bytes": held,
            "ratio_error_pct": off(predicted, ratio), "peak_error_pct": off(held, peak),
            "ratio_covered": abs(1 / ratio - speedup) <= half if half is not None and ratio else None,
            "ms_covered": abs(off(measured["ms"], ms)) <= facts["predicted"]["uncertainty_pct"] if ms and "ms" in measured else None,
            "tracker_error_pct": off(measured.get("tracker_bytes"), peak), "rule_error_pct": off(measured.get("rule_bytes"), peak)}


def change_row(dpro, folder, name):
    """One recording; None where nothing was measured to compare with."""
    truth = KINDS[name].read(folder)
    if truth is None:
        return None
    own = truth.get("own", "as-is")
    peaks = truth["configs"][own].get("peak_bytes")
    row = {"trace": os.path.basename(folder), "measured": truth.get("measured"), "measured_bytes": peaks and max(peaks),
            "own": KINDS[name].own(dpro, folder, truth), "whatifs": [change(dpro, folder, truth, config) for config in truth["configs"]]}
    row["problem"] = next((one["problem"] for one in row["whatifs"] if one["problem"]), None)
    if "around_ms" in truth and not row["problem"]:
        baseline, machine = row["whatifs"][-1]["baseline_ms"], truth["configs"][own]["ms"]
        row.update(own_error_pct=off(baseline, truth["around_ms"]), misfit_pct=row["whatifs"][-1]["misfit_pct"],
                   machine_pct=off(machine, truth["around_ms"]), small=float(own.partition("=")[2]) <= SMALL_MB)
    return row


def summary_of(rows):
    whatifs = [one for row in rows for one in row["whatifs"] if one["config"] != "as-is"]
    keys = dict.fromkeys(key for row in rows for key in row["own"])
    return {"asked": len(whatifs), "answered": sum(one["problem"] is None for one in whatifs),
            **{key: spread(row["own"][key].get("error_pct") for row in rows) for key in keys},
            **{key: spread(one[key + "_error_pct"] for one in whatifs) for key in ERRORS}}


def missed(rows, name):
    """What is outside of its target, as text."""
    found, kind, summary = [], KINDS[name], summary_of(rows)
    for row in rows:
        for key, limit in kind.own_pct.items():
            own = row["own"][key]
            if own["problem"] or own["error_pct"] is None or abs(own["error_pct"]) > limit:
                found.append("%s, %s: %s" % (row["trace"], key, own["problem"] or fixed(own["error_pct"], 2, True) + " %"))
        for one in row["whatifs"]:
            if one["problem"]:
                found.append("%s, %s: %s" % (row["trace"], one["config"], one["problem"]))
                continue
            found += ["%s, %s: %s %+.1f %%" % (row["trace"], one["config"], ERRORS[key], one[key + "_error_pct"])
                      for key, (_, worst) in kind.targets.items() if abs(one[key + "_error_pct"] or 0) > worst]
    return found + ["%s: %.1f %% off in the median" % (ERRORS[key], summary[key]["median_pct"]) for key, (median, _) in kind.targets.items()
                    if summary[key] and summary[key]["median_pct"] > median]


HEAD = ("what-if", "ms:", "predicted:", "error, %:", "±, %:", "time x:", "±:", "predicted:", "error, %:", "±, %:", "peak, MB:",
        "predicted:", "error, %:", "by", "MemTracker, %:", "rule, %:")


def cells_of(one):
    if one["problem"]:
        return one["config"], "failed: " + one["problem"]
    peaks = [one[key] and one[key] / 1e6 for key in ("measured_bytes", "predicted_bytes")]
    return (one["config"], fixed(one["measured_ms"]), fixed(one["measured_ms"] and one["predicted_ms"]),
            fixed(one["ms_error_pct"], 1, True), fixed(one["ms_half_pct"]),
            *(fixed(one[key], 3) for key in ("measured_ratio", "noise", "predicted_ratio")),
            fixed(one["ratio_error_pct"], 1, True), fixed(one["ratio_half_pct"], 0), *map(fixed, peaks),
            fixed(one["peak_error_pct"], 2, True), one["source"] or "–",
            *(fixed(one[key + "_error_pct"], 1, True) for key in ("tracker", "rule")))


def print_changes(rows, name):
    """Returns a summary."""
    for row in rows:
        own = ["%s %s" % (key, one["problem"] or fixed(one["error_pct"], 2, True) + " %") for key, one in row["own"].items()]
        show(", ".join([f"{name} of {row['trace']}", *own]), HEAD, [cells_of(one) for one in row["whatifs"]])
    summary = summary_of(rows)
    for key, errors in summary.items():
        if key not in ("asked", "answered"):
            told(f"{name}: {ERRORS.get(key, key)}", errors)
    return summary


def is_large(config):
    cap, _, hook = config.partition(",")
    return bool(hook) or float(cap.partition("=")[2]) >= LARGE_MB


def bucket_table(rows):
    """Head and cells: errors of milliseconds, and of ratios in parentheses."""
    titles = list(dict.fromkeys(title_of(one["config"]) for row in rows for one in row["whatifs"]))
    lines = []
    for row in rows:
        cells = {title_of(one["config"]): "%s (%s)" % (
            fixed(one["ms_error_pct"], 1, True), "own" if one["measured_ratio"] is None else fixed(one["ratio_error_pct"], 1, True))
            for one in row["whatifs"]}
        lines.append((f"`{row['trace']}`", *(cells.get(title, "–") for title in titles)))
    return ("recorded", *(title + ":" for title in titles)), lines


def print_coverage(rows):
    """How often the truth lies within the 95 % interval; returns a summary."""
    whatifs, summary = [one for row in rows for one in row["whatifs"]], {}
    for name, key in (("coverage of 95 % intervals", "ms"), ("of ratios", "ratio")):
        judged = [one for one in whatifs if one[key + "_covered"] is not None]
        halves, inside = [one[key + "_half_pct"] for one in judged], sum(one[key + "_covered"] for one in judged)
        summary[key] = {"n": len(judged), "inside": inside, "median_half_pct": statistics.median(halves), "widest_half_pct": max(halves),
                        "reached": 100 * inside >= COVERED_PCT * len(judged)}
        print("%s: %d of %d inside%s (target %d %%), +- %.1f %% in the median, %.1f %% the widest" % (
            name, inside, len(judged), "" if summary[key]["reached"] else "!", COVERED_PCT, statistics.median(halves), max(halves)))
    return summary


def print_buckets(rows):
    """Returns a summary; None where there is nothing to sum up."""
    good = [row for row in rows if not row["problem"]]
    head, lines = bucket_table(good)
    show("what-ifs of buckets: error % (error % of the ratio to the capture's own configuration)", head,
         lines + [(row["trace"], row["problem"]) for row in rows if row["problem"]])
    whatifs = [(row, one) for row in good for one in row["whatifs"]]
    if not whatifs:
        return None
    summary = {"n": len(whatifs)}
    # had the machine run the capture's own configuration as fast as around the recording
    same = [off(one["predicted_ms"], one["measured_ms"] / (1 + row["machine_pct"] / 100)) for row, one in whatifs]
    for key, what, errors in (
            ("", "what-ifs of buckets (targets %g and %g %%)" % KINDS["buckets"].targets["ms"],
             [one["ms_error_pct"] for _, one in whatifs]),
            ("ratio_", "ratios", [one["ratio_error_pct"] for _, one in whatifs]),
            ("same_machine_", "had the machine stayed as fast as around the recording", same),
            ("own_", "own configuration against the iterations around the recording", [row["own_error_pct"] for row in good]),
            ("machine_", "how differently the machine ran it when what-ifs were measured", [row["machine_pct"] for row in good]),
            ("misfit_", "the models against their recordings' medians", [row["misfit_pct"] for row in good])):
        errors = spread(errors)
        told(what, errors)
        summary.update({key + "median_pct": errors["median_pct"], key + "worst_pct": errors["worst_pct"]})
    summary["coverage"] = print_coverage(good)
    large = [one["ratio_error_pct"] for row, one in whatifs if row["small"] and is_large(one["config"])]
    told("learnt from small buckets, the ratio of large ones and fp16", spread(large))
    return summary


# ---- choices of dpro optimize, against the rows of its own table, Algorithm 1 alone, and the search without each of its speed-ups ----

MOST_OFF_PCT = 0.5  # a simpler strategy may take so much longer, or half a standard error of the difference
WAYS = {"Algorithm 1": ["--algorithm", "paper"], "not coarsened": ["--no-coarsen"], "no symmetry": ["--no-symmetry"]}


def choice_row(dpro, folder):
    """One recording; None where no plan can be made of it."""
    facts, problem = ask(dpro, "optimize", folder)
    if problem or not facts["baselines"]:
        return None
    best, rows = facts["best"], {baseline["name"]: baseline["iteration_ms"] for baseline in facts["baselines"]}
    least = min(rows, key=rows.get)
    row = {"trace": os.path.basename(folder), "own_ms": facts["replayed_ms"], "chosen_ms": best["iteration_ms"],
           "fastest_ms": best["found_ms"], "row": least, "row_ms": rows[least], "off_pct": off(best["iteration_ms"], rows[least]),
           "seconds": facts["search"]["seconds"], "ways": {}}
    for name, options in WAYS.items():
        other, problem = ask(dpro, "optimize", folder, *options)
        row["ways"][name] = {"problem": problem, "off_pct": other and off(other["best"]["found_ms"], best["found_ms"]),
                             "seconds": other and other["search"]["seconds"]}
    return row


def print_choice(rows):
    ways = (f"{way}: %, s:" for way in WAYS)
    show("choices", ("trace", "as it ran:", "chosen:", "fastest:", "best row:", "chosen, %:", "seconds:", *ways),
         [(row["trace"], fixed(row["own_ms"]), fixed(row["chosen_ms"]), fixed(row["fastest_ms"]), f"{row['row_ms']:.1f} {row['row']}",
           fixed(row["off_pct"], 2, True) + "!" * (row["off_pct"] > MOST_OFF_PCT), fixed(row["seconds"], 2),
           *(f"{way['off_pct']:+.2f} {way['seconds']:5.2f}" if not way["problem"] else "-" for way in row["ways"].values()))
          for row in rows],
         "ms by the model, expected; chosen %%: against the best row of the table, ! over %g %%, which is allowed within half a standard "
         "error;\nAlgorithm 1 and the search without a speed-up: what was found against the fastest, %%, and seconds\n"
         "%d of %d choices within %g %% of the best row" % (MOST_OFF_PCT, sum(row["off_pct"] <= MOST_OFF_PCT for row in rows), len(rows),
                                                           MOST_OFF_PCT))
