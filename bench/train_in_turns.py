#!/usr/bin/env python3
"""Trains the GPT of examples/ on each rank and times its steps, in blocks that differ in what records: `off`, `tracer`,
`kineto` (tracer and torch.profiler with shapes). tools/bench_live.py starts it and reads the JSON that rank 0 prints."""
import ctypes
import gc
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples"))
from gpt import gpt_arguments, make_model  # noqa: E402


class Tracer:
    """The preloaded library's own start and stop."""

    def __init__(self, log, rank):
        library = ctypes.CDLL(None)
        self.start_call, self.stop_call, self.stats_call = (
            getattr(library, "dpro_tracer_" + name) for name in ("start", "stop", "stats"))
        self.log, self.rank = log, rank

    def start(self):
        status = self.start_call(os.fsencode(self.log), self.rank)
        if status < 0:
            raise OSError(-status, os.strerror(-status), self.log)

    def stop(self):
        self.stop_call()

    def stats(self):
        out = (ctypes.c_uint64 * 4)()
        self.stats_call(out)
        return dict(zip(("n_records", "n_lost", "file_bytes", "memory_bytes"), out))


def main():
    parser = gpt_arguments("steps timed in turns")
    parser.add_argument("--bucket-cap-mb", type=float, default=5)
    parser.add_argument("--blocks", required=True, help="a mode a block: off,tracer,kineto,...")
    parser.add_argument("--warmup", type=int, default=8, help="steps before the first block")
    parser.add_argument("--net-log", default=os.devnull, help="the tracer's log; @ becomes the rank")
    args = parser.parse_args()
    blocks = args.blocks.split(",")
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(make_model(args), bucket_cap_mb=args.bucket_cap_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    text = torch.randint(args.vocabulary, (args.batch_size, args.context + 1),
                         generator=torch.Generator().manual_seed(rank))
    tracer = Tracer(args.net_log.replace("@", str(rank)), rank)

    def step():
        begin = time.perf_counter()
        optimizer.zero_grad()
        logits = model(text[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return 1e3 * (time.perf_counter() - begin)

    for _ in range(args.warmup):
        step()
    results, largest = [], {}
    for number, mode in enumerate(blocks):
        profiler = None
        if mode in ("tracer", "kineto"):
            tracer.start()
        if mode == "kineto":
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True)
            profiler.start()
        dist.barrier()
        step()  # the first after a change is not counted
        cpu = time.process_time()
        times_ms = [step() for _ in range(args.steps)]
        cpu = time.process_time() - cpu
        results.append({"block": number, "mode": mode, "ms": times_ms, "cpu_ms": [1e3 * cpu / args.steps]})
        dist.barrier()
        if profiler:
            profiler.stop()
            profiler = None
            gc.collect()  # its events are in cycles
        if mode in ("tracer", "kineto"):
            largest = {key: max(value, largest.get(key, 0)) for key, value in tracer.stats().items()}
            tracer.stop()
        dist.barrier()
    if rank == 0:
        json.dump({"blocks": results, "tracer": largest}, sys.stdout)
    dist.barrier()
    time.sleep(0.3)  # gloo's threads let go of the last collectives; torch may abort if Python ends before
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
