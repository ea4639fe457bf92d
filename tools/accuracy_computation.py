"""What-ifs of computation - modules compiled, in 16 bits, other batches - against the same jobs really run that way: beside a
recording with probes, whatif-computation.json has their iteration times by turns with the job as it is
(tools/measure_computation.py wrote it; dpro never reads it). Judged by ratios, as in tools/accuracy_memory.py."""
import os

from accuracy_memory import ask, measured_ratio, number, off, options_of, spread, truth_of

TRUTH = "whatif-computation.json"
MEDIAN_PCT, WORST_PCT = 4.0, 8.0  # targets


def computation_row(dpro, folder):
    """One recording; None where nothing was measured to compare with."""
    truth = truth_of(folder, TRUTH)
    if truth is None:
        return None
    row = {"trace": os.path.basename(folder), "model": truth["model"], "whatifs": []}
    for config in truth["configs"]:
        if config == "as-is":
            continue
        facts, problem = ask(dpro, "whatif", folder, *options_of(truth, config))
        ratio = measured_ratio(truth, config)
        predicted = facts and facts["predicted"]["iteration_ms"] / facts["baseline"]["iteration_ms"]
        row["whatifs"].append({"config": config, "problem": problem, "measured_ratio": ratio, "predicted_ratio": predicted,
                               "half_pct": facts and 196 * facts["speedup_std"] / facts["speedup"],
                               "source": facts and facts.get("computation", {}).get("source"), "error_pct": off(predicted, ratio)})
    return row


def summary_of(rows):
    whatifs = [one for row in rows for one in row["whatifs"]]
    judged = [one for one in whatifs if one["error_pct"] is not None]
    return {"asked": len(whatifs), "answered": sum(one["problem"] is None for one in whatifs),
            "ratio": spread(one["error_pct"] for one in whatifs),
            "within": sum(abs(one["error_pct"]) <= one["half_pct"] for one in judged)}


def missed(rows):
    """What is outside of its target, as text."""
    found = ["%s, %s: %s" % (row["trace"], one["config"], one["problem"] or "%+.1f %%" % one["error_pct"])
             for row in rows for one in row["whatifs"]
             if one["problem"] or (one["error_pct"] is not None and abs(one["error_pct"]) > WORST_PCT)]
    ratio = summary_of(rows)["ratio"]
    if ratio and ratio["median_pct"] > MEDIAN_PCT:
        found.append("%.1f %% off in the median" % ratio["median_pct"])
    return found


def print_computation(rows):
    """Returns a summary."""
    print("\ncomputation: an iteration's ratio to the job as it is, and errors in %")
    for row in rows:
        print(row["trace"])
        for one in row["whatifs"]:
            if one["problem"]:
                print("  %-28s x %s, failed: %s" % (one["config"], number(one["measured_ratio"], "%.3f"), one["problem"]))
            else:
                print("  %-28s x %s, predicted %.3f %6s (+- %s) %s" % (
                    one["config"], number(one["measured_ratio"], "%.3f"), one["predicted_ratio"], number(one["error_pct"], "%+.1f"),
                    number(one["half_pct"], "%.0f"), one["source"] or ""))
    summary = summary_of(rows)
    if summary["ratio"]:
        print("|error| %.1f %% in the median, %.1f %% the worst, of %d; %d within their interval" % (
            summary["ratio"]["median_pct"], summary["ratio"]["worst_pct"], summary["ratio"]["n"], summary["within"]))
    return summary
