#!/usr/bin/env python3
"""megatron_ranks.py FOLDER RANKS: writes the traces of a Megatron-like job, 8 ranks a host, gzip'd; hosts' clocks differ, and so do the
times of ranks."""
import gzip
import json
import multiprocessing
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "cli"))

from megatron_job import Rank  # noqa: E402

GPUS, STAGES = 8, 2
MORE = {  # what the profiler writes besides, by category
    "kernel": {"queued": 0, "context": 1, "registers per thread": 128, "shared memory": 49152, "blocks per SM": 0.969697,
               "warps per SM": 7.757576, "grid": [128, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 12},
    "cuda_runtime": {"External id": 1869557, "cbid": 430}}


def write(folder, n_ranks, rank):
    trace = Rank(rank, sizes=(n_ranks // GPUS // STAGES, GPUS), layers=4, kernels=100, steps=10).trace()
    trace["hostName"] = f"host{rank // GPUS}"
    late_us, random_us = random.Random(rank // GPUS).uniform(0, 1e6), random.Random(rank)
    for event in trace["traceEvents"]:
        event["args"].update(MORE.get(event["cat"], {}))
        event["ts"] = round(1e9 + event["ts"] + late_us + random_us.uniform(0, 1), 3)
        event["dur"] = round(event["dur"] * random_us.uniform(0.98, 1), 3)
    with open(os.path.join(folder, f"rank{rank}.json.gz"), "wb") as out:
        out.write(gzip.compress(json.dumps(trace).encode(), 6))


def main():
    folder, n_ranks = sys.argv[1], int(sys.argv[2])
    os.makedirs(folder, exist_ok=True)
    with multiprocessing.Pool() as pool:
        pool.starmap(write, [(folder, n_ranks, rank) for rank in range(n_ranks)], 16)


if __name__ == "__main__":
    main()
