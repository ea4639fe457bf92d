#!/usr/bin/env python3
"""Sharded, tensor, pipeline and expert parallel jobs, replayed and asked what-ifs: `make accuracy-parallel`.

Trains examples/ on two to eight ranks, each in a network namespace of its own with a slow link: once under `dpro profile`; then without
it, by turns as it was and with links half and twice as fast, other micro-batches, other units resharded, more ranks. Writes
whatif-parallel.json beside each recording, asks dpro, which has seen the recording alone, and prints each error. Wants a quiet
machine, and a core a rank: what a machine of fewer cores says of four ranks is noted with it. Takes 3 minutes a job. As root, or with
--local: all ranks on this machine, joined by its own loopback, whose rate nothing changes."""
import os
import shutil
import statistics
import sys
import time

from accuracy_whatifs import KINDS, change_row, missed, print_changes
from demo_live import can_make_hosts, train
from figures import truth_of
from measure_memory import Turns, begin, by_turns, end, middle, options, ratios, write

STEPS = 60  # of a recording
SIZE = "--layers 4 --width 128 --vocabulary 2048 --context 64"
BUNDLED = "--width 64 --vocabulary 512 --context 32"  # with what is in tests/data


class Job:
    """`changes`: what is measured beside the job and its links half and twice as fast; `configs`: of each the arguments besides the
    job's own, the ranks, and the link rate in Mbit/s."""

    def __init__(self, script, ranks, rate, changes, arguments="", size=SIZE):
        self.script, self.ranks, self.rate, self.arguments = script, ranks, rate, [*size.split(), *arguments.split()]
        self.configs = {"as-is": ([], ranks, rate), "bandwidth=0.5": ([], ranks, rate // 2), "bandwidth=2": ([], ranks, rate * 2)}
        for config in changes.split():
            key, _, value = config.partition("=")
            more = {"reshard": ["--no-reshard"], "prefetch": ["--prefetch", value], "microbatches": ["--micro-batches", value],
                    "schedule": ["--schedule", value]}.get(key, [])
            self.configs[config] = (more, ranks if more else int(value), rate)

    def move_here(self):
        """All ranks on this machine, whose links are what they are."""
        self.configs = {config: (arguments, ranks, None) for config, (arguments, ranks, rate) in self.configs.items() if rate == self.rate}
        self.rate = None


PIPELINE = "--micro-batches 4"
JOBS = {
    "fsdp2": Job("fsdp.py", 2, 200, "reshard=none prefetch=2 ranks=4"),
    "fsdp4": Job("fsdp.py", 4, 200, "reshard=none ranks=2 ranks=8"),
    "tp2": Job("tensor_parallel.py", 2, 200, "tp=1"),
    "tp2-wide": Job("tensor_parallel.py", 2, 200, "tp=1 tp=4", "--layers 2 --width 256 --batch-size 8"),
    "pp2": Job("pipeline.py", 2, 200, "microbatches=2 microbatches=12 schedule=interleaved", PIPELINE),
    "pp2-interleaved": Job("pipeline.py", 2, 200, "microbatches=6 microbatches=12 schedule=1f1b schedule=gpipe",
                           PIPELINE + " --schedule interleaved"),
    "pp2-zero-bubble": Job("pipeline.py", 2, 200, "microbatches=6 schedule=1f1b schedule=interleaved",
                           PIPELINE + " --schedule zero-bubble"),
    "pp4": Job("pipeline.py", 4, 200, "microbatches=6 microbatches=12 schedule=gpipe", PIPELINE),
    "ep2": Job("experts.py", 2, 200, "ranks=4"),
    "ddp4": Job("gpt.py", 4, 200, "ranks=2 ranks=8"),
    "fsdp2-tp2": Job("tensor_parallel.py", 4, 200, "reshard=none ranks=8", "--tp 2"),
    "dp2-pp2-tp2": Job("pipeline.py", 8, 200, "microbatches=12", "--dp 2 --tp 2 --micro-batches 4"),
    "torch-pp-gloo-n2": Job("pipeline.py", 2, 100, "microbatches=2 microbatches=8",
                            "--layers 2 --batch-size 16 --micro-batches 4", BUNDLED),
    "torch-ep-gloo-n2": Job("experts.py", 2, 100, "ranks=4", "--layers 2 --batch-size 16 --experts 4", BUNDLED),
    "torch-fsdp-tp-gloo-n4": Job("tensor_parallel.py", 4, 100, "reshard=none", "--layers 1 --width 128 --batch-size 8 --tp 2", BUNDLED),
}


def link(rate):
    return rate and "%dmbit" % rate


def record(python, dpro, trace, job):
    if not os.path.exists(os.path.join(trace, "job.json")):
        shutil.rmtree(trace, ignore_errors=True)
        train([dpro, "profile", "-q", "-o", trace, "--"], python, job.script, STEPS, link(job.rate), quiet=True, direct=True,
              ranks=job.ranks, arguments=job.arguments)


def start(python, job, config, steps):
    arguments, ranks, rate = job.configs[config]

    def run(folder):
        train([], python, job.script, 10 ** 6, link(rate), quiet=True, direct=True, ranks=ranks,
              arguments=[*job.arguments, *arguments], before=[os.path.join("bench", "train_example.py"), folder, str(steps)])

    return Turns(ranks, run)


def iteration(turns):
    """Of each turn the median of its steps, mean over ranks: median and quartiles of these."""
    times = [middle(turn, "ms") for turn in turns]
    low, median, high = statistics.quantiles(times, n=4) if len(times) > 1 else 3 * times
    return {"iteration_ms": round(median, 3), "quartiles_ms": [round(low, 3), round(high, 3)], "turns": len(times)}


def measure(python, job, args):
    found, _ = by_turns({config: start(python, job, config, args.steps) for config in job.configs}, args.rounds)
    own = list({id(own): own for pairs in found.values() for _, own in pairs}.values())
    configs = {"as-is": {"ratio": 1.0, "cpu_ratio": 1.0, **iteration(own)}}
    for config, pairs in found.items():
        configs[config] = {**ratios(pairs), **iteration([turn for turn, _ in pairs])}
    load, cores = os.getloadavg()[0], os.cpu_count()
    return {"script": job.script, "arguments": job.arguments, "ranks": job.ranks, "rate_mbit": job.rate, "configs": configs,
            "measured": {"on": time.strftime("%Y-%m-%d"), "load": round(load, 1), "cores": cores, "busy": load > job.ranks + 1,
                         "steps": args.rounds * args.steps}}


def main():
    parser = options("sharded, tensor, pipeline and expert parallel jobs, and what-ifs of them", 4)
    parser.add_argument("--only", nargs="+", choices=JOBS, default=[job for job in JOBS if not job.startswith("torch-")],
                        metavar="JOB", help="of %s" % ", ".join(JOBS))
    parser.add_argument("--local", action="store_true", help="all ranks on this machine, without links of their own")
    args = parser.parse_args()
    if args.local:
        for name in args.only:
            JOBS[name].move_here()
    elif not can_make_hosts():
        raise SystemExit("dpro: network namespaces are needed: run this as root, with ip and tc, or with --local")
    (python, dpro, folder), rows = begin(args), []
    for name in args.only:
        trace = os.path.join(folder, name)
        record(python, dpro, trace, JOBS[name])
        truth = truth_of(trace, KINDS["parallel"].truth)
        if truth is None and not args.no_times:
            truth = measure(python, JOBS[name], args)
            write(truth, trace, "parallel")
        if truth:
            rows.append(change_row(dpro, trace, "parallel"))
            print_changes(rows[-1:], "parallel")
    return end(args, folder, missed(rows, "parallel"))


if __name__ == "__main__":
    sys.exit(main())
