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
import accuracy_turns
from accuracy_steps import own_row, print_own, print_unmarked, unmarked_row
from accuracy_tables import CLOCK_HEAD, REPLAY_HEAD, clock_cells, replay_cells
from accuracy_whatifs import change_row, choice_row, print_buckets, print_changes, print_choice
from experiment import ROOT
from figures import ask, fixed, show, truth_of

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


def turns_rows():
    return accuracy_turns.rows(accuracy_turns.find(os.path.join(ROOT, "tests"), find_traces()))


def each(row, dpro, *more):
    """Of all traces, those that have such a row."""
    return [found for found in (row(dpro, folder, *more) for folder in find_traces()) if found]


def row_of(dpro, folder):
    name = os.path.basename(folder)
    truth = truth_of(folder, "metadata.json") or {}
    options = ["--bandwidth", truth["link_rate"]] if truth.get("link_rate") else []
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
    truth = truth_of(folder, "metadata.json") or {}
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
    show("clocks", (*CLOCK_HEAD, "pairs:", "violated before:", "after:"), [
        (row["trace"], row["problem"]) if row["problem"] else
        (*(cell + "!" * (i == 2 and row["outside"] > 0) for i, cell in enumerate(clock_cells(row, by_name[row["trace"]]))),
         *(str(row[key]) for key in ("pairs", "violations_before", "violations_after"))) for row in rows],
         "largest error at either end of the recording over all ranks, ! outside of the stated uncertainty; replay: error % of the "
         "iteration time with\neach RECV starting with its SEND, clocks aligned, both, neither")


def print_table(rows):
    lines = []
    for row in rows:
        if row["problem"]:
            lines.append((row["trace"], "failed: " + row["problem"]))
            continue
        marks = {5: "error", 6: "left_out"}
        lines.append((*(cell + "!" * (marks.get(i) in row["missed"]) for i, cell in enumerate(replay_cells(row))),
                      fixed(row.get("unprofiled_ms")), fixed(row.get("unprofiled_error_pct"), 1, True),
                      fixed(row.get("expected_error_pct"), 1, True) + "!" * ("expected" in row["missed"])))
    show("replays", (*REPLAY_HEAD, "unprofiled, ms:", "replay, %:", "less cost, %:"), lines,
         "left out: mean |error %| of iterations predicted from the others; gaps: share of the critical path in which nothing that is "
         "known ran;\nunprofiled: median of the steps without a profiler; less cost: the replay less what the transport logs show of the "
         f"profiler's cost\n! misses its target (|error| <= {ERROR_PCT:g} %, left out <= the larger of {ERROR_PCT:g} % and std; other "
         f"frameworks' captures: {FRAMEWORK_ERROR_PCT:g} %, of the mean by the\njob's own clock, and less cost too, where the capture "
         "calls itself quiet); * shown, not judged")


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
    clocks = each(clock_row, dpro)
    if not rows:
        print("accuracy: no traces found", file=sys.stderr)
        return 1
    print_table(rows)
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
    results = {"schema": "dpro.accuracy/1", "error_target_pct": ERROR_PCT, "rows": rows, "clocks": clocks, "unmarked": unmarked,
               "whatifs": each(change_row, dpro, "buckets"), "summary": summary}
    results["whatif_summary"] = print_buckets(results["whatifs"])
    for kind in ("memory", "computation", "parallel"):
        results[kind] = each(change_row, dpro, kind)
        results[kind + "_summary"] = print_changes(results[kind], kind)
    results["choices"] = each(choice_row, dpro)
    print_choice(results["choices"])
    results["turns"] = turns_rows()
    accuracy_turns.print_turns(results["turns"])
    os.makedirs(os.path.dirname(os.path.join(ROOT, args.out)), exist_ok=True)
    with open(os.path.join(ROOT, args.out), "w", encoding="utf-8") as out:
        json.dump(results, out, indent=1)
        out.write("\n")
    for document in accuracy_tables.write(ROOT, accuracy_tables.tables_of(results)) if args.readme else ():
        print(f"renewed the tables of {document}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
