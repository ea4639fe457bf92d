#!/usr/bin/env python3
"""Trains one of examples/ by turns: `train_example.py FOLDER STEPS EXAMPLE [ARGUMENTS]`. A turn of STEPS steps begins whenever rank R
reads a line from the named pipe FOLDER/go.R; of it a line in FOLDER/done.R tells, as JSON, what each step took. Before the first turn,
and before each, some steps are not counted. With ONE_CORE in the environment each rank keeps to a core."""
import itertools
import json
import os
import runpy
import sys
import time

import torch.utils.data

SETTLE = 1  # steps of a turn that are not counted, as the other jobs have had the caches


class Turns(torch.utils.data.DataLoader):
    """The loader of an example's batches, which asks for the next one when a step is over."""
    folder = n_steps = None

    def __iter__(self):
        batches = itertools.cycle(super().__iter__())
        paths = [os.path.join(self.folder, f"{name}.{os.environ['RANK']}") for name in ("done", "go")]
        with open(paths[0], "w", encoding="utf-8") as done, open(paths[1], encoding="utf-8") as go:
            for _ in go:
                times = []
                for _ in range(SETTLE + self.n_steps):
                    begin, cpu = time.perf_counter(), time.process_time()
                    yield next(batches)
                    times.append({"ms": 1e3 * (time.perf_counter() - begin), "cpu_ms": 1e3 * (time.process_time() - cpu)})
                print(json.dumps(times[SETTLE:]), file=done, flush=True)


def main():
    Turns.folder, Turns.n_steps, script = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.utils.data.DataLoader = Turns
    if os.environ.get("ONE_CORE"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
    torch.set_flush_denormal(True)  # else steps take up to four times as long as weights settle, on some processors
    sys.argv = sys.argv[3:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
