"""What-ifs against the same jobs really run that way.

Of buckets: whatif.json beside a capture has iteration times of other bucket caps and of fp16 gradients, measured without a
profiler; a capture without one is judged by its sibling's: same job, other cap. Three errors: of the milliseconds; of the ratio to
the capture's own configuration, which a machine that was faster or slower between recording and measuring leaves alone; and of the
own configuration against the iterations around the recording. And coverage: how often the truth lies within the 95 % interval.

Of memory, computation and parallel jobs (KINDS): a file beside the recording has iteration times by turns with the job as it is,
and the peaks of what tensors held (tools/measure_*.py wrote it). They are judged by the highest peak of all ranks, and by the ratio of
iteration times; where other work had the machine as well (`busy`), by the ratio of what the ranks' processors worked. dpro reads
none of these files."""
import gzip
import json
import os
import re
import shutil
import statistics
import tempfile

from figures import ask, fixed, off, show, spread, told, truth_of

MEDIAN_PCT, WORST_PCT = 3.0, 8.0  # targets of buckets
COVERED_PCT = 95
SMALL_MB, LARGE_MB = 5, 25  # a recording with buckets up to the one, asked for buckets from the other on


# ---- buckets ----


def buckets_truth(folder):
    """{(cap, hook): ms}, or None."""
    found = truth_of(folder, "whatif.json") or truth_of(re.sub(r"-cap\d+$", "-cap25", folder), "whatif.json")
    return found and {(c["bucket_cap_mb"], c["comm_hook"]): c["median_ms"] for c in found["configs"]}


def buckets_row(dpro, folder):
    """One capture's what-ifs; None where nothing was measured to compare with."""
    truth = buckets_truth(folder)
    if truth is None:
        return None
    metadata = truth_of(folder, "metadata.json")
    own, around = (metadata["bucket_cap_mb"], "none"), metadata["unprofiled_median_ms"]
    row = {"trace": os.path.basename(folder), "problem": None, "configs": [], "around_ms": around,
           "machine_pct": off(truth[own], around)}
    for (cap, hook), measured in truth.items():
        compress = [] if hook == "none" else ["--compress", hook]
        facts, row["problem"] = ask(dpro, "whatif", folder, "--bucket-cap-mb", f"{cap:g}", *compress)
        if row["problem"]:
            return row
        predicted, baseline, half = (facts["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"],
                                     facts["predicted"]["uncertainty_pct"])
        config = {"bucket_cap_mb": cap, "compress": hook, "measured_ms": measured, "predicted_ms": predicted,
                  "error_pct": off(predicted, measured), "half_pct": half, "covered": abs(measured / predicted - 1) * 100 <= half,
                  "ratio_error_pct": None, "ratio_half_pct": None, "ratio_covered": None,
                  "small_to_large": own[0] <= SMALL_MB and (cap >= LARGE_MB or hook != "none")}
        if (cap, hook) != own:
            real, half = truth[own] / measured, 1.96 * facts["speedup_std"]
            config.update(ratio_error_pct=off(predicted / baseline, measured / truth[own]), ratio_half_pct=100 * half / facts["speedup"],
                          ratio_covered=abs(real - facts["speedup"]) <= half)
        row["configs"].append(config)
        row["own_error_pct"], row["misfit_pct"] = off(baseline, around), facts["misfit_pct"]
    return row


def bucket_title(config):
    return f"cap {config['bucket_cap_mb']:g}" + ("" if config["compress"] == "none" else f" + {config['compress']}")


def bucket_table(rows):
    """Head and cells: errors of milliseconds, and of ratios in parentheses."""
    titles = list(dict.fromkeys(bucket_title(config) for row in rows for config in row["configs"]))
    lines = []
    for row in rows:
        cells = {}
        for config in row["configs"]:
            ratio = "own" if config["ratio_error_pct"] is None else fixed(config["ratio_error_pct"], 1, True)
            cells[bucket_title(config)] = f"{fixed(config['error_pct'], 1, True)} ({ratio})"
        lines.append((f"`{row['trace']}`", *(cells.get(title, "–") for title in titles)))
    return ("recorded", *(title + ":" for title in titles)), lines


def print_coverage(configs):
    """Returns a summary."""
    summary = {}
    for name, key, prefix in (("coverage of 95 % intervals", "ms", ""), ("of ratios", "ratio", "ratio_")):
        judged = [c for c in configs if c[prefix + "covered"] is not None]
        halves, inside = [c[prefix + "half_pct"] for c in judged], sum(c[prefix + "covered"] for c in judged)
        summary[key] = {"n": len(judged), "inside": inside, "median_half_pct": statistics.median(halves), "widest_half_pct": max(halves),
                        "reached": 100 * inside >= COVERED_PCT * len(judged)}
        print("%s: %d of %d inside%s (target %d %%), +- %.1f %% in the median, %.1f %% the widest" % (
            name, inside, len(judged), "" if summary[key]["reached"] else "!", COVERED_PCT, statistics.median(halves), max(halves)))
    told("learnt from small buckets, the ratio of large ones and fp16",
         spread(c["ratio_error_pct"] for c in configs if c["small_to_large"]))
    return summary


def print_buckets(rows):
    """Returns a summary; None where there is nothing to sum up."""
    good = [row for row in rows if not row["problem"]]
    head, lines = bucket_table(good)
    show("what-ifs of buckets: error % (error % of the ratio to the capture's own configuration)", head,
         lines + [(row["trace"], row["problem"]) for row in rows if row["problem"]])
    configs = [(row, config) for row in good for config in row["configs"]]
    if not configs:
        return None
    summary = {"n": len(configs)}
    # had the machine run the capture's own configuration as fast as around the recording
    same = [off(c["predicted_ms"], c["measured_ms"] / (1 + row["machine_pct"] / 100)) for row, c in configs]
    for key, what, errors in (
            ("", f"what-ifs of buckets (targets {MEDIAN_PCT:g} and {WORST_PCT:g} %)", [c["error_pct"] for _, c in configs]),
            ("ratio_", "ratios", [c["ratio_error_pct"] for _, c in configs]),
            ("same_machine_", "had the machine stayed as fast as around the recording", same),
            ("own_", "own configuration against the iterations around the recording", [row["own_error_pct"] for row in good]),
            ("machine_", "how differently the machine ran it when what-ifs were measured", [row["machine_pct"] for row in good]),
            ("misfit_", "the models against their recordings' medians", [row["misfit_pct"] for row in good])):
        errors = spread(errors)
        told(what, errors)
        summary.update({key + "median_pct": errors["median_pct"], key + "worst_pct": errors["worst_pct"]})
    summary["coverage"] = print_coverage([config for _, config in configs])
    return summary


# ---- memory, computation, parallel jobs ----


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
    """`targets`: median and worst of errors in %; `own`: what is asked of a recording as it is, and `own_pct`, its targets."""

    def __init__(self, truth, targets, own=lambda *_: {}, **own_pct):
        self.truth, self.targets, self.own, self.own_pct = truth, targets, own, own_pct


KINDS = {"memory": Kind("whatif-memory.json", {"peak": (2.0, 5.0), "ratio": (4.0, 8.0)}, own_peaks, recorded=1.0, traced=3.0),
         "computation": Kind("whatif-computation.json", {"ratio": (4.0, 8.0), "peak": (2.0, 5.0)}),
         "parallel": Kind("whatif-parallel.json", {"ratio": (4.0, 10.0)}, own_replay, replay=5.0)}
ERRORS = {"ratio": "iteration", "peak": "peak", "tracker": "MemTracker's peak", "rule": "the paper's rule's peak"}


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
        else:
            options += ["--world-size" if key == "ranks" else "--" + key, value + "x" * (key == "bandwidth") or "all"]
    return options


def title_of(config):
    """What a table calls it."""
    key, _, value = config.partition("=")
    if key == "recompute":
        return "recompute all" if "*" in value else "every second" if "+" in value or value.endswith(".0") else "one"
    return {"accumulate": "in %s parts", "batch": "batch x %s"}[key] % value if value else config


def change(dpro, folder, truth, config):
    """One what-if beside what was measured."""
    measured = truth["configs"][config]
    facts, problem = ask(dpro, "whatif", folder, *options_of(truth, config))
    ratio = measured.get("cpu_ratio" if truth.get("measured", {}).get("busy") and "cpu_ratio" in measured else "ratio")
    peak = measured.get("peak_bytes") and max(measured["peak_bytes"])
    ms = facts and facts["predicted"]["iteration_ms"]  # null: its time can't be predicted
    predicted, held = ms and ms / facts["baseline"]["iteration_ms"], facts and (facts.get("memory") or {}).get("peak_bytes")
    return {"config": config, "problem": problem or ("no memory is told of" if peak and held is None else None),
            "measured_ratio": ratio, "noise": measured.get("ratio_noise"), "predicted_ratio": predicted,
            "half_pct": 196 * facts["speedup_std"] / facts["speedup"] if ms and facts.get("speedup") else None,
            "source": facts and (facts.get("computation") or {}).get("source"), "measured_bytes": peak, "predicted_bytes": held,
            "ratio_error_pct": off(predicted, ratio), "peak_error_pct": off(held, peak),
            "tracker_error_pct": off(measured.get("tracker_bytes"), peak), "rule_error_pct": off(measured.get("rule_bytes"), peak)}


def change_row(dpro, folder, name):
    """One recording; None where nothing was measured to compare with."""
    truth = truth_of(folder, KINDS[name].truth)
    if truth is None:
        return None
    peaks = truth["configs"]["as-is"].get("peak_bytes")
    return {"trace": os.path.basename(folder), "measured": truth.get("measured"), "measured_bytes": peaks and max(peaks),
            "own": KINDS[name].own(dpro, folder, truth), "whatifs": [change(dpro, folder, truth, config) for config in truth["configs"]]}


def summary_of(rows):
    whatifs = [one for row in rows for one in row["whatifs"] if one["config"] != "as-is"]
    own = dict.fromkeys(key for row in rows for key in row["own"])
    return {"asked": len(whatifs), "answered": sum(one["problem"] is None for one in whatifs),
            **{key: spread(row["own"][key].get("error_pct") for row in rows) for key in own},
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


HEAD = ("what-if", "time x:", "±:", "predicted:", "error, %:", "±, %:", "peak, MB:", "predicted:", "error, %:", "by", "MemTracker, %:",
        "rule, %:")


def cells_of(one):
    if one["problem"]:
        return one["config"], "failed: " + one["problem"]
    peaks = [one[key] and one[key] / 1e6 for key in ("measured_bytes", "predicted_bytes")]
    return (one["config"], *(fixed(one[key], 3) for key in ("measured_ratio", "noise", "predicted_ratio")),
            fixed(one["ratio_error_pct"], 1, True), fixed(one["half_pct"], 0), *map(fixed, peaks), fixed(one["peak_error_pct"], 2, True),
            one["source"] or "–", *(fixed(one[key + "_error_pct"], 1, True) for key in ("tracker", "rule")))


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
