#!/usr/bin/env python3
"""What-ifs of computation on real jobs: `make accuracy-computation`.

Trains networks of several kinds (bench/memory_models.py) on two ranks of this machine: once under `dpro profile --probe`, as they
are; then without it, by turns as they are and with modules compiled, in 16 bits, both, recomputed, and with other batches. What
tensors held at most is counted apart from that. Asks dpro, which has seen the recording alone, and prints each error. Peaks are
exact on a busy machine; times want a quiet one. Takes 15 minutes a network, of which compiling most."""
import os
import sys

from accuracy_whatifs import KINDS, change_row, missed, print_changes
from figures import truth_of
from measure_memory import COUNT, N_BLOCKS, begin, count_peaks, end, measure_times, options, record, write

CONFIGS = ["as-is", "compile=blocks.*", "compile=all", "bf16", "bf16=blocks.*", "compile=blocks.*,bf16", "compile=all,bf16=all",
           "recompute=blocks.*", "accumulate=2", "accumulate=4", "batch=0.5", "batch=2"]


def main():
    parser = options("what-ifs of computation, on real jobs", 2)
    parser.add_argument("--probe-limit", type=int, default=60, metavar="S", help="seconds")
    parser.add_argument("--configs", nargs="+", default=CONFIGS[1:], help="all: %s" % " ".join(CONFIGS[1:]))
    parser.add_argument("model", nargs="*", choices=[[], *N_BLOCKS], help="all: %s" % ", ".join(N_BLOCKS))
    args = parser.parse_args()
    (python, dpro, folder), rows = begin(args), []
    count = os.path.join(os.path.dirname(dpro), COUNT)
    for model in args.model or N_BLOCKS:
        trace = os.path.join(folder, model)
        record(python, dpro, trace, model, "--probe", "compile,bf16,batch,recompute", "--probe-limit", str(args.probe_limit))
        truth = truth_of(trace, KINDS["computation"].truth) or {"model": model, "configs": {}}
        for config in ["as-is", *args.configs]:
            truth["configs"].setdefault(config, {"ratio": None})
        if not args.no_times and any(measured["ratio"] is None for measured in truth["configs"].values()):
            measure_times(python, truth, args)
            write(truth, trace, "computation")
        missing = [config for config, measured in truth["configs"].items() if "peak_bytes" not in measured]
        if missing:
            truth["batch_size"], peaks = count_peaks(python, count, model, missing)
            for config, peak in peaks.items():
                truth["configs"][config]["peak_bytes"] = peak
            write(truth, trace, "computation")
        rows.append(change_row(dpro, trace, "computation"))
    print_changes(rows, "computation")
    return end(args, folder, missed(rows, "computation"))


if __name__ == "__main__":
    sys.exit(main())
