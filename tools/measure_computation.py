#!/usr/bin/env python3
"""What-ifs of computation on real jobs: `make accuracy-computation`.

Trains networks of several kinds (bench/memory_models.py) on two ranks of this machine: once under `dpro profile --probe`, as they
are; then without it, by turns as they are and with modules compiled, in 16 bits, both, and with other batches. What tensors held at
most is counted apart from that. Asks dpro, which has seen the recording alone, and prints each error. Peaks are exact on a busy
machine; times want a quiet one. Takes 15 minutes a network, of which compiling most."""
import argparse
import os
import shutil
import sys
import tempfile

import accuracy_computation
from accuracy_memory import truth_of
from demo_live import ROOT, go_first, live_python
from measure_memory import N_BLOCKS, count_peaks, measure_times, train, write

CONFIGS = ["as-is", "compile=blocks.*", "compile=all", "bf16", "bf16=blocks.*", "compile=blocks.*,bf16", "compile=all,bf16=all",
           "accumulate=2", "accumulate=4", "batch=0.5", "batch=2"]


def main():
    parser = argparse.ArgumentParser(description="what-ifs of computation, on real jobs")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--keep", metavar="DIR", help="keep recordings and truths there; those that are there are judged again")
    parser.add_argument("--no-times", action="store_true", help="peaks only")
    parser.add_argument("--steps", type=int, default=2, help="of a turn")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each variant")
    parser.add_argument("--probe-limit", type=int, default=60, metavar="S", help="seconds")
    parser.add_argument("--configs", nargs="+", default=CONFIGS[1:], help="all: %s" % " ".join(CONFIGS[1:]))
    parser.add_argument("model", nargs="*", choices=[[], *N_BLOCKS], help="all: %s" % ", ".join(N_BLOCKS))
    args = parser.parse_args()
    python, build = live_python(), os.path.join(ROOT, args.build)
    dpro, count = os.path.join(build, "dpro"), os.path.join(build, "bench", "libcount_memory.so")
    folder, rows = args.keep or tempfile.mkdtemp(prefix="dpro-computation-"), []
    go_first()
    for model in args.model or N_BLOCKS:
        trace = os.path.join(folder, model)
        if not os.path.exists(os.path.join(trace, "job.json")):
            shutil.rmtree(trace, ignore_errors=True)
            train(python, "train_memory.py", model, "--steps", "60",
                  command=(dpro, "profile", "-q", "--probe", "compile,bf16,batch", "--probe-limit", str(args.probe_limit), "-o",
                           trace, "--"))
        truth = truth_of(trace, accuracy_computation.TRUTH) or {"model": model, "configs": {}}
        for config in ["as-is", *args.configs]:
            truth["configs"].setdefault(config, {"ratio": None})
        if not args.no_times and any(measured["ratio"] is None for measured in truth["configs"].values()):
            measure_times(python, truth, args)
            write(truth, trace, accuracy_computation.TRUTH)
        missing = [config for config, measured in truth["configs"].items() if "peak_bytes" not in measured]
        if missing:
            truth["batch_size"], peaks = count_peaks(python, count, model, missing)
            for config, peak in peaks.items():
                truth["configs"][config]["peak_bytes"] = peak
            write(truth, trace, accuracy_computation.TRUTH)
        rows.append(accuracy_computation.computation_row(dpro, trace))
    accuracy_computation.print_computation(rows)
    missed = accuracy_computation.missed(rows)
    for line in missed:
        print("outside of its target:", line)
    if not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
