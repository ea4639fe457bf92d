#!/usr/bin/env python3
"""What-ifs of computation on real jobs: `make accuracy-computation`.

Trains networks of several kinds (bench/memory_models.py) on two ranks of this machine: once under `dpro profile --probe`, as they
are; then without it, by turns as they are and with modules compiled, in 16 bits, both, and with other batches. Asks dpro, which has
seen the recording alone, and prints each error. Wants a quiet machine; takes 15 minutes a network, of which compiling most."""
import argparse
import os
import shutil
import sys
import tempfile

import accuracy_computation
from accuracy_memory import truth_of
from demo_live import ROOT, go_first, live_python
from measure_memory import N_BLOCKS, measure_times, train, write

CONFIGS = ["as-is", "compile=blocks.*", "compile=all", "bf16", "bf16=blocks.*", "compile=blocks.*,bf16", "compile=all,bf16=all",
           "accumulate=2", "accumulate=4", "batch=0.5", "batch=2"]


def main():
    parser = argparse.ArgumentParser(description="what-ifs of computation, on real jobs")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--keep", metavar="DIR", help="keep recordings and truths there; those that are there are judged again")
    parser.add_argument("--steps", type=int, default=2, help="of a turn")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each variant")
    parser.add_argument("--probe-limit", type=int, default=60, metavar="S", help="seconds")
    parser.add_argument("--configs", nargs="+", default=CONFIGS[1:], help="all: %s" % " ".join(CONFIGS[1:]))
    parser.add_argument("model", nargs="*", choices=[[], *N_BLOCKS], help="all: %s" % ", ".join(N_BLOCKS))
    args = parser.parse_args()
    python, dpro = live_python(), os.path.join(ROOT, args.build, "dpro")
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
        missing = [config for config in ["as-is", *args.configs] if config not in truth["configs"]]
        if missing:
            truth["configs"].update({config: {"ratio": None} for config in missing})
            measure_times(python, truth, args)
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
