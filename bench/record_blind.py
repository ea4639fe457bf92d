#!/usr/bin/env python3
"""RECORD_BLIND="STEPS SCRIPT" record_blind.py [ARGUMENTS]: runs a training script as the captures of dpro's accuracy tables
were made: every process of a host on a core of its own, and STEPS steps timed without the profiler before the profile, as many
after it.

Started under `dpro profile` by tools/accuracy_live.py."""
import os
import runpy
import sys

import dpro.session
from dpro.windows import SETTLE


class Between:
    """One profile between two stretches without."""

    def __init__(self, warmup, iterations, windows, _):
        self.windows = windows
        base = max(warmup, 2)
        start = base + N_STEPS
        after = start + 1 + iterations + SETTLE
        self.actions = {base - 1: "open", base: "before", start: "prepare timing", start + 1: "start timing",
                        start + 1 + iterations: "stop timing", after: "after", after + N_STEPS: "done"}


N_STEPS, script = os.environ["RECORD_BLIND"].split(" ", 1)
N_STEPS = int(N_STEPS)
cores = sorted(os.sched_getaffinity(0))
host = int(os.environ.get("HOST", os.environ.get("HOROVOD_RANK", 0)))
os.sched_setaffinity(0, {cores[host % len(cores)]})
dpro.session.Schedule = Between
sys.argv[0], sys.path[0] = script, os.path.dirname(os.path.abspath(script))
runpy.run_path(script, run_name="__main__")
