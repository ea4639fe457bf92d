#!/usr/bin/env python3
"""pandas_read.py FILE...: what Python tools do with a trace: json.loads, then a DataFrame of the events.

Prints MB/s of JSON a core, and the peak memory over the JSON's size. Needs pandas.
"""
import gzip
import json
import resource
import sys
import time

import pandas


def main():
    n_bytes = n_events = 0
    start = time.process_time()
    for path in sys.argv[1:]:
        with open(path, "rb") as f:
            data = f.read()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        n_bytes += len(data)
        trace = json.loads(data)
        frame = pandas.DataFrame(trace["traceEvents"] if isinstance(trace, dict) else trace)
        n_events += len(frame)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{n_bytes / seconds / 1e6:.0f} MB/s of JSON a core ({n_bytes / 1e6:.1f} MB, {n_events} events, "
          f"{seconds:.3f} s CPU, peak memory {peak / 1e6:.1f} MB = {peak / n_bytes:.2f} x)")


if __name__ == "__main__":
    main()
