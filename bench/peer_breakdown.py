#!/usr/bin/env python3
"""The temporal breakdown of Holistic Trace Analysis beside that of `dpro replay`, iteration by iteration, in % of it:
`peer_breakdown.py DPRO TRACE...` with a Python that has HolisticTraceAnalysis. Prints the table that doc/accuracy.md sums up.

HTA counts whole recordings in whole microseconds; here it is given the kernels that an iteration's CPU launches, and so is what the
same definitions give of times as they are recorded. Computing: kernels but NCCL's, and copies; communication: all else while one
runs."""
import glob
import json
import logging
import os
import subprocess
import sys
import warnings

import pandas
from hta.analyzers.breakdown_analysis import BreakdownAnalysis
from hta.trace_analysis import TraceAnalysis
from hta.utils.utils import get_kernel_type

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools"))
import breakdown  # noqa: E402


class Cut:
    """A trace as HTA holds it, of some kernels."""

    def __init__(self, trace, kernels):
        self.symbol_table, self.traces = trace.symbol_table, {0: kernels}


def by_hta(trace, rank, number):
    """(computing, communication beside it) in ms, of an iteration's kernels."""
    frame, names = trace.traces[rank], trace.symbol_table.get_sym_table()
    kernels = frame[(frame.stream != -1) & (frame.iteration == number)].copy()
    kinds = kernels.name.apply(lambda name: get_kernel_type(names[name]))
    # copies are neither for HTA; here they are computing, as for dpro
    computing = Cut(trace, kernels[kinds != "COMMUNICATION"])
    own, both = (BreakdownAnalysis.get_temporal_breakdown(of, visualize=False).iloc[0] for of in (computing, Cut(trace, kernels)))
    busy, all_busy = (of["kernel_time(us)"] - of["idle_time(us)"] for of in (own, both))
    return busy / 1e3, (all_busy - busy) / 1e3


def main():
    dpro, *traces = map(os.path.abspath, sys.argv[1:])
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    print("| trace | rank | ms | computing, %: HTA | not rounded | dpro | communication, %: HTA | not rounded | dpro |")
    for path in traces:
        files = sorted(glob.glob(os.path.join(path, "**", "*.json.gz"), recursive=True)) if os.path.isdir(path) else [path]
        files = [file for file in files if breakdown.is_profile(file)]
        hta = TraceAnalysis(trace_files=dict(enumerate(files)), include_last_profiler_step=True).t
        for rank, file in enumerate(files):
            rows = []
            for number, (own, exposed) in breakdown.of_iterations(file).items():
                facts = json.loads(subprocess.run([dpro, "replay", "--json", "-q", "--steps", f"{number}:{number}", path],
                                                  capture_output=True, check=True).stdout)
                mine = facts["ranks"][rank]
                theirs = by_hta(hta, rank, number) if number in set(hta.traces[rank].iteration) else (None, None)
                rows.append((mine["iteration_ms"], theirs[0], own, breakdown.computing_ms(mine), theirs[1], exposed,
                             breakdown.communication_ms(mine)))
            ms, *parts = pandas.DataFrame(rows).mean()
            print(f"| {os.path.basename(path)} | {rank} | {ms:.1f} | " + " | ".join(f"{100 * part / ms:.2f}" for part in parts) + " |")


if __name__ == "__main__":
    main()
