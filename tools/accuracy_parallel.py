"""Sharded, tensor, pipeline and expert parallel jobs: replays against steps without the profiler, and what-ifs against the same jobs
really run that way: whatif-parallel.json beside a recording (tools/measure_parallel.py wrote it; dpro never reads it) has iteration
times by turns with the job as it was recorded. What-ifs are judged by the ratio of iteration times, which a machine that was faster or
slower between recording and measuring leaves alone."""
import os

from accuracy_memory import truth_of
from figures import ask, off, spread

TRUTH = "whatif-parallel.json"
REPLAY_PCT, WHATIF_PCT = (2.0, 5.0), (4.0, 10.0)  # targets: median, worst


def options_of(config):
    """The options of dpro whatif that ask for it."""
    key, _, value = config.partition("=")
    return {"bandwidth": ["--bandwidth", value + "x"], "reshard": ["--reshard", value], "prefetch": ["--prefetch", value],
            "microbatches": ["--microbatches", value], "schedule": ["--schedule", value], "ranks": ["--world-size", value],
            "tp": ["--tp", value]}[key]


def told_as(config):
    """In a table's head."""
    key, _, value = config.partition("=")
    return {"bandwidth": "links x " + value, "reshard": "resharding: " + value, "prefetch": "prefetching: " + value,
            "microbatches": value + " micro-batches",
            "schedule": "schedule: " + value,
            "ranks": value + " ranks", "tp": "tp " + value}[key]


def parallel_row(dpro, folder):
    """One recording; None where nothing was measured to compare with."""
    truth = truth_of(folder, TRUTH)
    if truth is None:
        return None
    facts, problem = ask(dpro, "replay", folder, "--no-validate")
    own = truth["configs"]["as-is"]
    row = {"trace": os.path.basename(folder), "ranks": truth["ranks"], "measured": truth["measured"],
           "measured_ms": own["iteration_ms"], "problem": problem, "predicted_ms": facts and facts["predicted"]["iteration_ms"],
           "profiled_error_pct": facts and facts["error_pct"],
           "error_pct": facts and facts.get("unprofiled", {}).get("error_pct"), "whatifs": []}
    for config, measured in truth["configs"].items():
        if config == "as-is":
            continue
        facts, problem = ask(dpro, "whatif", folder, *options_of(config))
        predicted = facts and facts["predicted"]["iteration_ms"] / facts["baseline"]["iteration_ms"]
        row["whatifs"].append({"config": config, "problem": problem, "measured_ratio": measured["ratio"],
                               "noise": measured["ratio_noise"], "predicted_ratio": predicted,
                               "half_pct": facts and facts["predicted"].get("uncertainty_pct"),
                               "error_pct": off(predicted, measured["ratio"])})
    return row


def summary_of(rows):
    whatifs = [one for row in rows for one in row["whatifs"]]
    return {"replay": spread(row["error_pct"] for row in rows), "whatif": spread(one["error_pct"] for one in whatifs),
            "asked": len(whatifs), "answered": sum(one["problem"] is None for one in whatifs)}


def missed(rows):
    """What is outside of its target, as text."""
    found = []
    for row in rows:
        if row["problem"] or row["error_pct"] is None or abs(row["error_pct"]) > REPLAY_PCT[1]:
            found.append("%s: %s" % (row["trace"], row["problem"] or "%s %% off" % row["error_pct"]))
        for one in row["whatifs"]:
            if one["problem"] or abs(one["error_pct"]) > WHATIF_PCT[1]:
                found.append("%s, %s: %s" % (row["trace"], one["config"], one["problem"] or "%+.1f %%" % one["error_pct"]))
    return found


def print_parallel(rows):
    for row in rows:
        load = row["measured"]
        print("%s: %d ranks, measured %.1f ms (load %.1f, %d cores)" % (row["trace"], row["ranks"], row["measured_ms"], load["load"],
                                                                       load["cores"]))
        if row["problem"]:
            print("  replay: %s" % row["problem"])
            continue
        print("  replay %.1f ms: %s %% off steps without the profiler, %+.1f %% off those with it" % (
            row["predicted_ms"], row["error_pct"], row["profiled_error_pct"]))
        for one in row["whatifs"]:
            told = "%.3f x, %+.1f %%" % (one["predicted_ratio"], one["error_pct"]) if not one["problem"] else one["problem"]
            print("  %-16s measured %.3f x (+-%.3f)  predicted %s" % (one["config"], one["measured_ratio"], one["noise"], told))
