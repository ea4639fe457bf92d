"""What-ifs of computation - modules compiled, in 16 bits, other batches - against the same jobs really run that way: beside a
recording with probes, whatif-computation.json has their iteration times by turns with the job as it is, and the peaks of what
tensors held (tools/measure_computation.py wrote it; dpro never reads it). Judged as in tools/accuracy_memory.py."""
import os

from accuracy_memory import WHATIF_PCT, measured_ratio, number, options_of, truth_of
from figures import ask, off, spread

TRUTH = "whatif-computation.json"
UNITS = {"ratio": "iteration", "peak": "peak"}
TARGETS = {"ratio": WHATIF_PCT["ms"], "peak": WHATIF_PCT["peak"]}


def computation_row(dpro, folder):
    """One recording; None where nothing was measured to compare with."""
    truth = truth_of(folder, TRUTH)
    if truth is None:
        return None
    row = {"trace": os.path.basename(folder), "model": truth["model"], "whatifs": []}
    for config, measured in truth["configs"].items():
        if config == "as-is":
            continue
        facts, problem = ask(dpro, "whatif", folder, *options_of(truth, config))
        ratio, peak = measured_ratio(truth, config), measured.get("peak_bytes") and max(measured["peak_bytes"])
        predicted = facts and facts["predicted"]["iteration_ms"] / facts["baseline"]["iteration_ms"]
        predicted_peak = facts and facts.get("memory") and facts["memory"]["peak_bytes"]
        row["whatifs"].append({"config": config, "problem": problem, "measured_ratio": ratio, "predicted_ratio": predicted,
                               "half_pct": facts and 196 * facts["speedup_std"] / facts["speedup"],
                               "source": facts and facts.get("computation", {}).get("source"), "ratio_error_pct": off(predicted, ratio),
                               "measured_bytes": peak, "predicted_bytes": predicted_peak, "peak_error_pct": off(predicted_peak, peak)})
    return row


def summary_of(rows):
    whatifs = [one for row in rows for one in row["whatifs"]]
    judged = [one for one in whatifs if one["ratio_error_pct"] is not None]
    return {"asked": len(whatifs), "answered": sum(one["problem"] is None for one in whatifs),
            "within": sum(abs(one["ratio_error_pct"]) <= one["half_pct"] for one in judged),
            **{key: spread(one[key + "_error_pct"] for one in whatifs) for key in TARGETS}}


def missed(rows):
    """What is outside of its target, as text."""
    found, summary = [], summary_of(rows)
    for row in rows:
        for one in row["whatifs"]:
            name = "%s, %s" % (row["trace"], one["config"])
            if one["problem"]:
                found.append("%s: %s" % (name, one["problem"]))
                continue
            found += ["%s: %s %+.1f %%" % (name, UNITS[key], one[key + "_error_pct"]) for key, (_, worst) in TARGETS.items()
                      if one[key + "_error_pct"] is not None and abs(one[key + "_error_pct"]) > worst]
    return found + ["%s: %.1f %% off in the median" % (UNITS[key], summary[key]["median_pct"]) for key, (median, _) in TARGETS.items()
                    if summary[key] and summary[key]["median_pct"] > median]


def print_computation(rows):
    """Returns a summary."""
    print("\ncomputation: an iteration's ratio to the job as it is, peak of what tensors hold, MB, and errors in %")
    for row in rows:
        print(row["trace"])
        for one in row["whatifs"]:
            if one["problem"]:
                print("  %-28s x %s, failed: %s" % (one["config"], number(one["measured_ratio"], "%.3f"), one["problem"]))
                continue
            print("  %-28s x %s, predicted %.3f %6s (+- %s)   %8s MB, predicted %8s %6s   %s" % (
                one["config"], number(one["measured_ratio"], "%.3f"), one["predicted_ratio"], number(one["ratio_error_pct"], "%+.1f"),
                number(one["half_pct"], "%.0f"), number(one["measured_bytes"] and one["measured_bytes"] / 1e6, "%.1f"),
                number(one["predicted_bytes"] and one["predicted_bytes"] / 1e6, "%.1f"), number(one["peak_error_pct"], "%+.1f"),
                one["source"] or ""))
    summary = summary_of(rows)
    for key in TARGETS:
        if summary[key]:
            print("%s: |error| %.1f %% in the median, %.1f %% the worst, of %d" % (
                UNITS[key], summary[key]["median_pct"], summary[key]["worst_pct"], summary[key]["n"]))
    print("%d iterations within their interval" % summary["within"])
    return summary
