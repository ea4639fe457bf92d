#!/usr/bin/env python3
"""RECORD_IN_TURNS="STEPS TURNS SCRIPT" record_in_turns.py [ARGUMENTS]: runs a training script whose recorder opens its timing
window again and again: STEPS unrecorded steps, STEPS recorded ones, TURNS times, and STEPS unrecorded ones at the end.

A machine changes its pace from minute to minute by more than recording costs; blocks that lie side by side in one process
share it. Started under `dpro profile` by tools/accuracy_live.py --cost, which reads the steps' times from the trace directory; of
what was recorded only the last window is kept whole."""
import os
import runpy
import sys

import dpro.session
from dpro.windows import SETTLE


class Turns:
    def __init__(self, warmup, _, windows, __):
        self.windows = windows
        base = max(warmup, 2)
        self.actions = {base - 1: "open"}
        for _ in range(N_TURNS):
            self.actions[base] = "before"
            self.actions[base + N_STEPS] = "prepare timing"
            self.actions[base + N_STEPS + 1] = "start timing"
            self.actions[base + 2 * N_STEPS + 1] = "stop timing"
            base += 2 * N_STEPS + 1 + SETTLE
        self.actions[base] = "after"
        self.actions[base + N_STEPS] = "done"


N_STEPS, N_TURNS, script = os.environ["RECORD_IN_TURNS"].split(" ", 2)
N_STEPS, N_TURNS = int(N_STEPS), int(N_TURNS)
dpro.session.Schedule = Turns
sys.argv[0], sys.path[0] = script, os.path.dirname(os.path.abspath(script))
runpy.run_path(script, run_name="__main__")
