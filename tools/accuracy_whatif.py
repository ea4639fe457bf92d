"""What-ifs against the same jobs really run that way: whatif.json beside a capture has iteration times of other bucket caps
and of fp16 gradients, measured without a profiler. A capture without one is judged by its sibling's: same job, other cap.

Three errors: of the milliseconds; of the ratio to the capture's own configuration, which a machine that was faster or
slower between recording and measuring leaves alone; and, of the model's own configuration, against the iterations around the
recording. How much faster the machine ran that configuration when the what-ifs were measured stands beside them: by so much
a model that is right about its recording is off in milliseconds.

And coverage: how often the measured truth lies within the printed 95 % interval, of the milliseconds and of the ratio, with the
intervals' widths; and the ratio's error from recordings with small buckets to large ones and to fp16, where all of the
communication ran beside computation."""
import json
import os
import re
import statistics

from figures import ask, off

MEDIAN_PCT, WORST_PCT = 3.0, 8.0  # targets
COVERED_PCT = 95
SMALL_MB, LARGE_MB = 5, 25  # a recording with buckets up to the one, asked for buckets from the other on


def truth_of(folder):
    """{(cap, hook): ms}, or None."""
    paths = [folder, re.sub(r"-cap\d+$", "-cap25", folder)]
    path = next((p for p in paths if os.path.exists(os.path.join(p, "whatif.json"))), None)
    if path is None:
        return None
    with open(os.path.join(path, "whatif.json"), encoding="utf-8") as file:
        configs = json.load(file)["configs"]
    return {(c["bucket_cap_mb"], c["comm_hook"]): c["median_ms"] for c in configs}


def metadata_of(folder):
    with open(os.path.join(folder, "metadata.json"), encoding="utf-8") as file:
        return json.load(file)


def whatif_row(dpro, folder):
    """One capture's what-ifs; None where nothing was measured to compare with."""
    truth = truth_of(folder)
    if truth is None:
        return None
    metadata = metadata_of(folder)
    own, around = metadata["bucket_cap_mb"], metadata["unprofiled_median_ms"]
    row = {"trace": os.path.basename(folder), "problem": None, "configs": [], "around_ms": around,
           "machine_pct": off(truth[(own, "none")], around)}
    for (cap, hook), measured in truth.items():
        compress = [] if hook == "none" else ["--compress", hook]
        facts, row["problem"] = ask(dpro, "whatif", folder, "--bucket-cap-mb", f"{cap:g}", *compress)
        if row["problem"]:
            return row
        predicted, baseline = facts["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"]
        ratio = predicted / baseline / (measured / truth[(own, "none")])
        half = facts["predicted"]["uncertainty_pct"]
        speedup, speedup_half = facts["speedup"], 1.96 * facts["speedup_std"]
        real = truth[(own, "none")] / measured
        is_own = (cap, hook) == (own, "none")
        row["own_error_pct"] = off(baseline, around)
        row["misfit_pct"] = facts["misfit_pct"]
        row["configs"].append({"bucket_cap_mb": cap, "compress": hook, "measured_ms": measured, "predicted_ms": predicted,
                               "error_pct": off(predicted, measured),
                               "ratio_error_pct": None if is_own else 100 * (ratio - 1), "half_pct": half,
                               "covered": abs(measured / predicted - 1) * 100 <= half,
                               "ratio_half_pct": None if is_own else 100 * speedup_half / speedup,
                               "ratio_covered": None if is_own else abs(real - speedup) <= speedup_half,
                               "small_to_large": own <= SMALL_MB and (cap >= LARGE_MB or hook != "none")})
    return row


def coverage_of(configs, key):
    """Of those intervals that `key` begins the names of."""
    judged = [c for c in configs if c[key + "covered"] is not None]
    halves = [c[key + "half_pct"] for c in judged]
    inside = sum(c[key + "covered"] for c in judged)
    return {"n": len(judged), "inside": inside, "median_half_pct": statistics.median(halves), "widest_half_pct": max(halves),
            "reached": 100 * inside >= COVERED_PCT * len(judged)}


def print_coverage(configs):
    """Returns a summary."""
    summary = {"ms": coverage_of(configs, ""), "ratio": coverage_of(configs, "ratio_")}
    for name, key in (("coverage of 95 % intervals", "ms"), ("of ratios", "ratio")):
        c = summary[key]
        print("%s: %d of %d inside%s (target %d %%), +- %.1f %% in the median, %.1f %% the widest" % (
            name, c["inside"], c["n"], "" if c["reached"] else "!", COVERED_PCT, c["median_half_pct"], c["widest_half_pct"]))
    small = [abs(c["ratio_error_pct"]) for c in configs if c["small_to_large"]]
    if small:
        summary["small_to_large_mean_pct"] = statistics.mean(small)
        print("learnt from small buckets, of large ones and fp16: |error of the ratio| %.1f %% in the mean, %.1f %% the worst, of %d" % (
            statistics.mean(small), max(small), len(small)))
    return summary


def print_whatifs(rows):
    """Returns a summary."""
    good = [row for row in rows if not row["problem"]]
    print("\nwhat-ifs: predicted ms (error % / error % of the ratio to the capture's own configuration)")
    for row in rows:
        if row["problem"]:
            print(row["trace"], "failed:", row["problem"])
            continue
        cells = []
        for c in row["configs"]:
            name = f"cap {c['bucket_cap_mb']:g}" + ("" if c["compress"] == "none" else " " + c["compress"])
            ratio = "own" if c["ratio_error_pct"] is None else f"{c['ratio_error_pct']:+.1f}"
            cells.append(f"{name}: {c['predicted_ms']:.0f} ({c['error_pct']:+.1f} / {ratio})")
        print(f"{row['trace']:<42}", "  ".join(cells), " own, around the recording: %+.1f; machine: %+.1f" % (
            row["own_error_pct"], row["machine_pct"]))
    errors = [abs(c["error_pct"]) for row in good for c in row["configs"]]
    ratios = [abs(c["ratio_error_pct"]) for row in good for c in row["configs"] if c["ratio_error_pct"] is not None]
    if not errors:
        return None
    own, machine, misfit = ([abs(row[key]) for row in good] for key in ("own_error_pct", "machine_pct", "misfit_pct"))
    # had the machine run the capture's own configuration as fast as around the recording
    same = [abs(off(c["predicted_ms"], c["measured_ms"] / (1 + row["machine_pct"] / 100))) for row in good for c in row["configs"]]
    summary = {"n": len(errors), "median_pct": statistics.median(errors), "worst_pct": max(errors),
               "ratio_median_pct": statistics.median(ratios), "ratio_worst_pct": max(ratios),
               "own_median_pct": statistics.median(own), "own_worst_pct": max(own),
               "machine_median_pct": statistics.median(machine), "machine_worst_pct": max(machine),
               "misfit_median_pct": statistics.median(misfit), "misfit_worst_pct": max(misfit),
               "same_machine_median_pct": statistics.median(same), "same_machine_worst_pct": max(same)}
    print("|error|: median %.1f %%, worst %.1f %%; of ratios: median %.1f %%, worst %.1f %% (targets %g and %g %%)" % (
        summary["median_pct"], summary["worst_pct"], summary["ratio_median_pct"], summary["ratio_worst_pct"],
        MEDIAN_PCT, WORST_PCT))
    print("had the machine stayed as fast as around the recording: median %.1f %%, worst %.1f %%" % (
        summary["same_machine_median_pct"], summary["same_machine_worst_pct"]))
    print("own configuration against the iterations around the recording: median %.1f %%, worst %.1f %%; the machine ran it "
          "differently when what-ifs were measured: median %.1f %%, worst %.1f %%" % (
              summary["own_median_pct"], summary["own_worst_pct"], summary["machine_median_pct"],
              summary["machine_worst_pct"]))
    print("the models are off their recordings' medians by %.1f %% in the median, %.1f %% at most" % (
        summary["misfit_median_pct"], summary["misfit_worst_pct"]))
    summary["coverage"] = print_coverage([c for row in good for c in row["configs"]])
    return summary
