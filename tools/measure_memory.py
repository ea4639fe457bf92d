#!/usr/bin/env python3
"""What-ifs of memory and of computation on real jobs: `make accuracy-memory`, `make accuracy-computation`.

Trains networks of several kinds (bench/memory_models.py) on two ranks of this machine: once under `dpro profile`, as they are; then
without it, by turns as they are and with each of CONFIGS. What tensors held at most is counted by a preloaded library; of memory,
beside it stand MemTracker and the rule of the paper's implementation. Asks dpro, which has seen the recording alone, and prints each
error. Peaks are exact on a busy machine; times want a quiet one, and are told as ratios to the job as it is. Takes 10 minutes a
network, of computation 15, of which compiling most."""
import argparse
import json
import os
import select
import shutil
import statistics
import sys
import tempfile
import threading
import time

import memory_budget
from accuracy_whatifs import KINDS, change_row, missed, print_changes
from demo_live import ROOT, go_first, launch, live_python
from figures import truth_of

BUSY = 3  # processes, with the job's own two
RANKS = 2
COUNT = os.path.join("bench", "libcount_memory.so")  # of the build folder
BETWEEN = 2  # turns of other configs, from one of the job as it is to the next
N_BLOCKS = {"transformer": 6, "convolutional": 6, "mixer": 6, "recurrent": 4, "branches": 7, "two-blocks": 2, "dense": 6,
            "encoder": 5}


PROBE = ["--probe", "compile,bf16,batch,recompute"]


def configs_of(kind, model):
    """What is run, the job as it was recorded first."""
    second = "+".join(f"blocks.{block}" for block in range(0, N_BLOCKS[model], 2))
    return {"memory": ["as-is", "recompute=blocks.*", "recompute=" + second, "recompute=blocks.1", "accumulate=2", "accumulate=4",
                       "batch=0.5", "batch=2", "bf16"],
            "computation": ["as-is", "compile=blocks.*", "compile=all", "bf16", "bf16=blocks.*", "compile=blocks.*,bf16",
                            "compile=all,bf16=all", "recompute=blocks.*", "accumulate=2", "accumulate=4", "batch=0.5", "batch=2"]}[kind]


def train(python, script, model, *arguments, command=(), preload=""):
    """What rank 0 printed."""
    return json.loads(launch(command, python, [os.path.join("bench", script), "--model", model, *arguments], rate=None, quiet=True,
                             environment={"LD_PRELOAD": preload}))


class Turns:
    """A job that waits for its turns, in processes of its own: in one process, what a config leaves of malloc's heap makes the next
    one fault pages that it never would by itself, and the job as it is took 8 to 15 % longer after another config. `run(folder)`
    runs it, with a pair of named pipes a rank in the folder."""

    def __init__(self, ranks, run):
        self.folder = tempfile.mkdtemp(prefix="dpro-turns-")
        pipes = [[os.path.join(self.folder, "%s.%d" % (name, rank)) for rank in range(ranks)] for name in ("done", "go")]
        for path in pipes[0] + pipes[1]:
            os.mkfifo(path)
        # open at both ends, so that none of this waits for a job that may have failed
        self.done, self.go = ([os.fdopen(os.open(path, os.O_RDWR), mode) for path in paths] for paths, mode in zip(pipes, "rw"))
        self.told = None
        self.job = threading.Thread(target=self.run, daemon=True, args=(run,))
        self.job.start()

    def run(self, run):
        self.told = run(self.folder)

    def take(self):
        """Of each rank, what is known of each step."""
        for pipe in self.go:
            print(file=pipe, flush=True)
        found = []
        for pipe in self.done:
            while not select.select([pipe], [], [], 1)[0]:
                if not self.job.is_alive():
                    raise SystemExit("dpro: a job ended before its turn")
            found.append(json.loads(pipe.readline()))
        return found

    def end(self):
        """What run() returned."""
        for pipe in self.go:
            pipe.close()
        self.job.join()
        shutil.rmtree(self.folder)
        return self.told


def middle(ranks, key):
    """Median over a turn's steps, mean over ranks."""
    return statistics.mean(statistics.median(step[key] for step in steps) for steps in ranks)


def by_turns(jobs, rounds):
    """Of each of these jobs but the one as it is, its turns, every one with the turn of the job as it is that went before; and what
    each job returned."""
    found, own = {config: [] for config in jobs if config != "as-is"}, None
    for job in jobs.values():
        job.take()  # all are ready then
    for number, config in enumerate(rounds * list(found)):
        if number % BETWEEN == 0:
            own = jobs["as-is"].take()
        found[config].append((jobs[config].take(), own))
    return found, {config: job.end() for config, job in jobs.items()}


def models_by_turns(python, model, configs, args):
    """The batch size, and turns as of by_turns."""
    def job(config):
        arguments = ["--settle", "3", "--steps", str(args.steps), "--configs", config, "--turns"]
        return Turns(RANKS, lambda folder: train(python, "train_memory.py", model, *arguments, folder))

    found, told = by_turns({config: job(config) for config in ["as-is", *configs]}, args.rounds)
    return told["as-is"]["batch_size"], found


def ratio(pairs, key):
    """Median over turns of the ratio to the job as it is, and the standard error of their mean."""
    ratios = [middle(turn, key) / middle(own, key) for turn, own in pairs]
    return statistics.median(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0


def ratios(pairs):
    """Of the time that passed, and of what the ranks computed."""
    found = {}
    for key, name in (("ms", "ratio"), ("cpu_ms", "cpu_ratio")):
        found[name], found[name + "_noise"] = (round(figure, 5) for figure in ratio(pairs, key))
    return found


def count_peaks(python, count, model, configs):
    """The batch size, and of each config the peak of each rank."""
    found = train(python, "train_memory.py", model, "--steps", "2", "--configs", *configs, preload=count)
    return found["batch_size"], {config: [max(rank["peak"]) for rank in ranks] for config, ranks in found["configs"].items()}


def measure_peaks(python, count, truth, configs, with_peers):
    truth["batch_size"], peaks = count_peaks(python, count, truth["model"], configs)
    others = train(python, "peer_memory.py", truth["model"], "--configs", *configs) if with_peers else {}
    for config, peak in peaks.items():
        truth["configs"][config].update(peak_bytes=peak, **others.get(config, {}))


def measure_times(python, truth, args):
    missing = [config for config, measured in truth["configs"].items() if measured["ratio"] is None and config != "as-is"]
    truth["batch_size"], found = models_by_turns(python, truth["model"], missing, args)
    for config, pairs in found.items():
        truth["configs"][config].update(ratios(pairs), iteration_ms=statistics.mean(middle(turn, "ms") for turn, _ in pairs))
    own = [middle(own, "ms") for pairs in found.values() for _, own in pairs]
    truth["configs"]["as-is"].update(ratio=1.0, cpu_ratio=1.0, iteration_ms=statistics.mean(own))
    load = os.getloadavg()[0]
    truth["measured"] = {"on": time.strftime("%Y-%m-%d"), "load": round(load, 1), "busy": load > BUSY, "steps": args.rounds * args.steps}


def write(truth, folder, kind):
    with open(os.path.join(folder, KINDS[kind].truth), "w", encoding="utf-8") as file:
        json.dump(truth, file, indent=1)
        file.write("\n")


def record(python, dpro, trace, model, *options):
    if not os.path.exists(os.path.join(trace, "job.json")):
        shutil.rmtree(trace, ignore_errors=True)
        train(python, "train_memory.py", model, "--steps", "60", command=(dpro, "profile", "-q", *options, "-o", trace, "--"))


def options(description, steps):
    """What all that measure jobs by turns can be asked for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--keep", metavar="DIR", help="keep recordings and truths there; those that are there are judged again")
    parser.add_argument("--no-times", action="store_true", help="measure no times")
    parser.add_argument("--steps", type=int, default=steps, help="of a turn")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each variant")
    return parser


def begin(args):
    """The Python of live tests, dpro, the folder of the recordings."""
    folder = os.path.abspath(args.keep or tempfile.mkdtemp(prefix="dpro-measure-"))
    os.makedirs(folder, exist_ok=True)
    go_first()
    return live_python(), os.path.join(ROOT, args.build, "dpro"), folder


def end(args, folder, outside):
    """The exit status."""
    for line in outside:
        print("outside of its target:", line)
    if not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if outside else 0


def budgets(python, dpro, folder, count, args):
    """Prints what ways to keep to a budget took and hold; what is outside of its target."""
    tables = []
    for model in [model for model in args.model or memory_budget.MODELS if model in N_BLOCKS]:
        trace = os.path.join(folder, model)
        record(python, dpro, trace, model)
        tables.append(memory_budget.measure(
            dpro, trace, model,
            lambda configs: train(python, "train_memory.py", model, "--steps", "2", "--configs", *configs, preload=count),
            lambda configs: {config: ratios(pairs) for config, pairs in models_by_turns(python, model, configs, args)[1].items()},
            lambda: os.getloadavg()[0]))
    return memory_budget.print_table(tables, any(facts["load"] > BUSY for facts in tables))


def main():
    parser = options("what-ifs of memory and of computation, on real jobs", 2)
    parser.add_argument("--computation", action="store_true", help="modules compiled and in 16 bits, in place of memory")
    parser.add_argument("--configs", nargs="+", help="of computation (default: all)")
    parser.add_argument("--probe-limit", default="60", metavar="S", help="seconds")
    parser.add_argument("--table4", action="store_true", help="only ways to keep to a budget, as in Table 4 of the paper; 10 minutes")
    parser.add_argument("model", nargs="*", choices=[[], *N_BLOCKS], help="all: %s" % ", ".join(N_BLOCKS))
    args = parser.parse_args()
    (python, dpro, folder), rows, kind = begin(args), [], "computation" if args.computation else "memory"
    count = os.path.join(os.path.dirname(dpro), COUNT)
    for model in [] if args.table4 else args.model or N_BLOCKS:
        trace = os.path.join(folder, model)
        record(python, dpro, trace, model, *([*PROBE, "--probe-limit", args.probe_limit] if args.computation else ()))
        truth = truth_of(trace, KINDS[kind].truth) or {"model": model, "configs": {}}
        for config in ["as-is", *(args.configs or configs_of(kind, model))]:
            truth["configs"].setdefault(config, {"ratio": None})
        missing = [config for config, measured in truth["configs"].items()
                   if "peak_bytes" not in measured or (kind == "memory" and "tracker_bytes" not in measured)]
        if missing:
            measure_peaks(python, count, truth, missing, kind == "memory")
            write(truth, trace, kind)
        if not args.no_times and any(measured["ratio"] is None for measured in truth["configs"].values()):
            measure_times(python, truth, args)
            write(truth, trace, kind)
        rows.append(change_row(dpro, trace, kind))
    outside = []
    if rows:
        print_changes(rows, kind)
        outside += missed(rows, kind)
    if args.table4 or not (args.computation or args.model or args.no_times):
        outside += budgets(python, dpro, folder, count, args)
    return end(args, folder, outside)


if __name__ == "__main__":
    sys.exit(main())
