#!/usr/bin/env python3
"""How near the replay comes to what was measured, over all real traces: `make accuracy`.

Reads ../shared/traces (DPRO_SHARED) and what is bundled in tests/data. Prints one table, marks with `!` what misses its
target, writes out/accuracy.json, and with --readme the tables of README.md and doc/accuracy.md. Beside the trace itself only this
script looks at a capture's metadata.json: there stands what the same job took without a profiler, and the rate of its links (for
the Daydream baseline)."""
import argparse
import json
import os
import statistics
import sys

import accuracy_tables
from accuracy_ahead import ahead_rows, print_ahead
from accuracy_choice import choice_row, print_choice
from accuracy_memory import memory_row, print_memory
from accuracy_own import own_row, print_own
from accuracy_parallel import parallel_row, print_parallel
from accuracy_unmarked import print_unmarked, unmarked_row
from accuracy_whatif import print_whatifs, whatif_row
from figures import ask

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ERROR_PCT = 3.0  # target for the replay, and for left-out iterations where they spread less than that

# Not made for replay: thinned by their publisher. Shown, not judged.
NOT_JUDGED = {"sampled-2of128"}
# No timed training iterations in them: execution traces alone, tiny samples, other frameworks.
LEFT_OUT = {"dlrm-8rank-v100-et-plus", "pytorch-et", "pytorch-et-2rank", "chakra-et", "tiny-hta",
            "tf-xplane-gpu-multi-worker", "bytescheduler-mxnet-vgg"}
# Other frameworks' captures: few iterations and hosts of one core, so threads share it; the target is wider.
FRAMEWORK_PREFIXES = ("tf-", "mxnet-", "hvd-", "byteps-")
FRAMEWORK_ERROR_PCT = 5.0


def find_traces():
    shared = os.path.join(os.environ.get("DPRO_SHARED", os.path.join(ROOT, "..", "shared")), "traces")
    found = {}
    for base in (os.path.join(ROOT, "tests", "data"), shared):
        for name in os.listdir(base) if os.path.isdir(base) else ():
            if os.path.isdir(os.path.join(base, name)) and name not in LEFT_OUT:
                found[name] = os.path.join(base, name)
    return [found[name] for name in sorted(found)]


def row_of(dpro, folder):
    name = os.path.basename(folder)
    truth, options = {}, []
    metadata = os.path.join(folder, "metadata.json")
    if os.path.exists(metadata):
        with open(metadata, encoding="utf-8") as file:
            truth = json.load(file)
        if truth.get("link_rate"):
            options = ["--bandwidth", truth["link_rate"]]
    facts, problem = ask(dpro, "replay", folder, *options)
    row = {"trace": name, "judged": name not in NOT_JUDGED, "problem": problem, "missed": [],
           "target_pct": FRAMEWORK_ERROR_PCT if name_is_framework(name) else ERROR_PCT}
    if facts is None:
        return row
    measured, validation, daydream = facts["measured"], facts["validation"], facts["daydream"] or {}
    path = facts["critical_path"]
    row.update({
        "ranks_present": len(facts["trace"]["ranks_present"]), "world_size": facts["trace"]["world_size"],
        "iterations": facts["trace"]["iterations"], "measured_ms": measured["iteration_ms"],
        "std_pct": 100 * measured["std_ms"] / measured["iteration_ms"] if measured["std_ms"] is not None else None,
        "replayed_ms": facts["predicted"]["iteration_ms"], "error_pct": facts["error_pct"],
        "compared_ms": facts["predicted"]["iteration_ms"] + (facts["profiler"]["iteration_ms"] or 0),
        "left_out_mean_pct": validation["mean_abs_error_pct"], "left_out_max_pct": validation["max_abs_error_pct"],
        "daydream_error_pct": daydream.get("error_pct"),
        "gaps_pct": 100 * path["by_kind_ms"].get("GAP", 0) / path["length_ms"] if path["length_ms"] else None,
        "unprofiled_ms": truth.get("unprofiled_median_ms",
                                   truth.get("summary_ms", {}).get("before_and_after", {}).get("median")),
        "profiled_ms": statistics.mean(truth["profiled_ms"]) if truth.get("profiled_ms") else None,
        "warnings": facts["warnings"], "own": own_row(dpro, folder, facts),
    })
    row["quiet"] = any(note.startswith("Quiet") for note in truth.get("notes", ()))
    row["expected_ms"] = facts["unprofiled_iterations"]["predicted_ms"] or row["replayed_ms"]
    if row["unprofiled_ms"]:
        row["unprofiled_error_pct"] = 100 * (row["replayed_ms"] / row["unprofiled_ms"] - 1)
        row["expected_error_pct"] = 100 * (row["expected_ms"] / row["unprofiled_ms"] - 1)
    judge(row)
    return row


def name_is_framework(name):
    return name.startswith(FRAMEWORK_PREFIXES)


def judge(row):
    if not row["judged"]:
        return
    error = row["error_pct"]
    if row["profiled_ms"] and name_is_framework(row["trace"]):
        error = 100 * (row["replayed_ms"] / row["profiled_ms"] - 1)
    if error is None or abs(error) > row["target_pct"]:
        row["missed"].append("error")
    left_out = row["left_out_mean_pct"]
    if left_out is not None and left_out > max(row["target_pct"], row["std_pct"] or 0):
        row["missed"].append("left_out")
    if row["quiet"] and name_is_framework(row["trace"]) and abs(row["expected_error_pct"]) > row["target_pct"]:
        row["missed"].append("expected")


def error_at(injected, local_ns):
    """Of a clock whose error is known at two moments."""
    (first_ns, first), (last_ns, last) = ((m["trace_time_ns"], m["error_ns"])
                                          for m in injected["error_at_first_and_last_profiled_step"])
    return first + (last - first) * (local_ns - first_ns) / (last_ns - first_ns)


def true_correction(metadata, rank, local_ns):
    """What has to be added to a rank's clock, which was made to show true + offset + ppm * (true - ref), to be on rank 0's."""
    truth = metadata["clock_truth"]
    injected = next(r for r in truth["per_rank"] if r["rank"] == rank)
    if "error_at_first_and_last_profiled_step" in injected:
        reference = next(r for r in truth["per_rank"] if r["rank"] == 0)
        return error_at(reference, local_ns) - error_at(injected, local_ns)
    anchor = metadata["ranks"][0]["tracer_clock_anchors"][0]
    ref_ns = truth["ref_mono_ns"] + anchor["realtime_ns"] - anchor["monotonic_ns"]
    drift = injected["ppm"] * 1e-6
    return -injected["offset_ns"] - (local_ns - ref_ns - injected["offset_ns"]) * drift / (1 + drift)


def clock_row(dpro, folder):
    """How far the clocks found are from those injected; None where none were."""
    metadata = os.path.join(folder, "metadata.json")
    if not os.path.exists(metadata):
        return None
    with open(metadata, encoding="utf-8") as file:
        truth = json.load(file)
    if "clock_truth" not in truth:
        return None
    facts, problem = ask(dpro, "align", folder)
    row = {"trace": os.path.basename(folder), "problem": problem}
    if problem:
        return row
    worst = uncertain = most = outside = 0
    for clock in facts["hosts"]:
        for segment in clock["segments"] if clock["ranks"] else ():
            for local_ns in (segment["start_ns"], segment["end_ns"]):
                found = segment["offset_ns"] + segment["drift_ppm"] * 1e-6 * (local_ns - segment["start_ns"])
                wanted = true_correction(truth, clock["ranks"][0], local_ns)
                worst, most = max(worst, abs(found - wanted)), max(most, abs(wanted))
                outside += abs(found - wanted) > segment["uncertainty_ns"] + 1
            uncertain = max(uncertain, segment["uncertainty_ns"])
    row.update({"injected_ms": most / 1e6, "error_us": worst / 1e3, "uncertainty_us": uncertain / 1e3, "outside": outside,
                "pairs": facts["pairs"], "violations_before": facts["violations_before"],
                "violations_after": facts["violations_after"]})
    for name, options in (("neither", ("--no-align", "--raw-receives")), ("receives_only", ("--no-align",)),
                          ("clocks_only", ("--raw-receives",))):
        facts, problem = ask(dpro, "replay", folder, "--no-validate", *options)
        row[name + "_error_pct"] = None if problem else facts["error_pct"]
    return row


def print_clocks(rows, replays):
    """The paper's experiment: the same job replayed with clocks aligned and receives corrected, with one of them, with neither."""
    by_name = {row["trace"]: row for row in replays}
    head = ("trace", "injected", "off by", "+-", "pairs", "violated: before", "after", "replay: neither", "RECV only",
            "clocks only", "both", "Daydream")
    lines = [head]
    for row in rows:
        if row["problem"]:
            print(row["trace"], "failed:", row["problem"])
            continue
        replayed = by_name[row["trace"]]
        lines.append((row["trace"], "%.1f ms" % row["injected_ms"], "%.1f us" % row["error_us"] + ("!" if row["outside"] else ""),
                      "%.1f us" % row["uncertainty_us"], str(row["pairs"]), str(row["violations_before"]),
                      str(row["violations_after"]), number(row, "neither_error_pct", 2), number(row, "receives_only_error_pct", 2),
                      number(row, "clocks_only_error_pct", 2), number(replayed, "error_pct", 2),
                      number(replayed, "daydream_error_pct", 1)))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    print()
    for line in lines:
        print(f"{line[0]:<{widths[0]}}  " + "  ".join(f"{c:>{w}}" for c, w in zip(line[1:], widths[1:])))
    print("clocks: largest error at either end of the recording over all ranks, ! outside of the stated uncertainty; replay: "
          "error % of the iteration time with\nclocks aligned, each RECV starting with its SEND, both, neither")


def across(dpro, folder, learn, predict):
    """Learns on one file of a run and predicts the other."""
    learnt, problem = ask(dpro, "replay", os.path.join(folder, learn))
    target, problem2 = ask(dpro, "replay", os.path.join(folder, predict))
    name = f"{os.path.basename(folder)}: {learn.split('.')[1]} for {predict.split('.')[1]}"
    row = {"trace": name, "judged": False, "problem": problem or problem2, "missed": []}
    if learnt and target:
        measured = target["measured"]
        row.update({"ranks_present": 1, "world_size": 1, "iterations": target["trace"]["iterations"],
                    "measured_ms": measured["iteration_ms"],
                    "std_pct": 100 * measured["std_ms"] / measured["iteration_ms"],
                    "replayed_ms": learnt["predicted"]["iteration_ms"],
                    "error_pct": 100 * (learnt["predicted"]["iteration_ms"] / measured["iteration_ms"] - 1)})
    return row


def number(row, key, digits, mark=None):
    value = row.get(key)
    text = "-" if value is None else f"{value:+.{digits}f}" if key.endswith("error_pct") else f"{value:.{digits}f}"
    return text + ("!" if mark and mark in row["missed"] else " ")


def print_table(rows):
    head = ("trace", "ranks", "iter", "measured ", "std % ", "replayed ", "error % ", "left out ", "max ", "gaps % ",
            "Daydream ", "unprof. ", "replay % ", "less cost % ")
    lines = []
    for row in rows:
        if row["problem"]:
            lines.append((row["trace"] + ("" if row["judged"] else " *"), "failed: " + row["problem"]))
            continue
        lines.append((row["trace"] + ("" if row["judged"] else " *"), f"{row['ranks_present']}/{row['world_size']}",
                      str(row["iterations"]), number(row, "measured_ms", 2), number(row, "std_pct", 1),
                      number(row, "replayed_ms", 2), number(row, "error_pct", 2, "error"),
                      number(row, "left_out_mean_pct", 2, "left_out"), number(row, "left_out_max_pct", 2),
                      number(row, "gaps_pct", 0),
                      number(row, "daydream_error_pct", 1), number(row, "unprofiled_ms", 1),
                      number(row, "unprofiled_error_pct", 1), number(row, "expected_error_pct", 1, "expected")))
    widths = [max(len(line[i]) for line in [head] + [x for x in lines if len(x) > 2] if i < len(line))
              for i in range(len(head))]
    widths[0] = max(len(line[0]) for line in lines)
    for line in [head] + lines:
        if len(line) == 2:
            print(f"{line[0]:<{widths[0]}}  {line[1]}")
        else:
            print(f"{line[0]:<{widths[0]}}  " + "  ".join(f"{c:>{w}}" for c, w in zip(line[1:], widths[1:])))


def main():
    parser = argparse.ArgumentParser(description="replayed against measured, over all real traces")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--out", default="out/accuracy.json", help="where the JSON goes")
    parser.add_argument("--readme", action="store_true", help="renew the tables of README.md and doc/accuracy.md")
    args = parser.parse_args()
    dpro = os.path.join(ROOT, args.build, "dpro")
    rows, unmarked = [], []
    for folder in find_traces():
        rows.append(row_of(dpro, folder))
        unmarked.append(unmarked_row(dpro, folder, rows[-1]))
        if os.path.basename(folder) == "kineto-tb-resnet50-nw0":
            a, b = sorted(n for n in os.listdir(folder) if n.endswith(".json.gz"))[:2]
            rows += [across(dpro, folder, a, b), across(dpro, folder, b, a)]
    clocks = [row for row in (clock_row(dpro, folder) for folder in find_traces()) if row]
    if not rows:
        print("accuracy: no traces found", file=sys.stderr)
        return 1
    print_table(rows)
    print("times in ms; left out: mean |error %| of iterations predicted from the others; gaps: share of the "
          "critical path in which nothing that is known ran;\nunprof.: median of the steps without a profiler, of which "
          "no prediction is made; replay %: the replay's error against it; less cost %: the same less what "
          "the\ntransport logs show of the profiler's cost\n! misses its target "
          f"(|error| <= {ERROR_PCT:g} %, left out <= the larger of {ERROR_PCT:g} % and std; other frameworks' captures: "
          f"{FRAMEWORK_ERROR_PCT:g} %, of the mean by the job's own clock, and less cost too, where the capture calls itself quiet); "
          "* shown, not judged")
    judged = [r for r in rows if r["judged"]]
    good = [r for r in judged if not r["problem"] and not r["missed"]]
    errors = [abs(r["error_pct"]) for r in judged if not r["problem"] and r["error_pct"] is not None]
    summary = f"{len(good)} of {len(judged)} traces within their targets"
    if errors:
        summary += f"; |error| mean {sum(errors) / len(errors):.2f} %, largest {max(errors):.2f} %"
    print(summary)
    if clocks:
        print_clocks(clocks, rows)
    print_own([row for row in rows if row.get("own")])
    unmarked = [row for row in unmarked if row]
    print_unmarked(unmarked)
    ahead = ahead_rows(dpro)
    print_ahead(ahead)
    whatifs = [row for row in (whatif_row(dpro, folder) for folder in find_traces()) if row]
    whatif_summary = print_whatifs(whatifs) if whatifs else None
    memory = [row for row in (memory_row(dpro, folder) for folder in find_traces()) if row]
    memory_summary = print_memory(memory) if memory else None
    parallel = [row for row in (parallel_row(dpro, folder) for folder in find_traces()) if row]
    print_parallel(parallel)
    choices = [row for row in (choice_row(dpro, folder) for folder in find_traces()) if row]
    print_choice(choices)
    os.makedirs(os.path.dirname(os.path.join(ROOT, args.out)), exist_ok=True)
    results = {"schema": "dpro.accuracy/1", "error_target_pct": ERROR_PCT, "rows": rows, "clocks": clocks, "unmarked": unmarked,
               "ahead": ahead, "whatifs": whatifs, "whatif_summary": whatif_summary, "memory": memory,
               "memory_summary": memory_summary, "parallel": parallel, "choices": choices,
               "summary": summary}
    with open(os.path.join(ROOT, args.out), "w", encoding="utf-8") as out:
        json.dump(results, out, indent=1)
        out.write("\n")
    for document in accuracy_tables.write(ROOT, results) if args.readme else ():
        print(f"renewed the tables of {document}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
