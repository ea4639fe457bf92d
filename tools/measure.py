#!/usr/bin/env python3
"""What-ifs of real jobs against the same jobs run that way: `make accuracy-memory`, `accuracy-computation`, `accuracy-parallel`,
`accuracy-blind`. Each job is recorded once, as it is, and trains once more, without a profiler, by turns with each of its configs. That is
written beside the recording; dpro, which has seen the recording alone, is asked for each, and each error is printed. Wants a quiet machine.

memory, computation: networks of several kinds (bench/memory_models.py) on two ranks of this machine. What tensors held at most is counted
by a preloaded library; of memory, beside it stand MemTracker and the rule of the paper's implementation. Peaks are exact on a busy machine;
times are told as ratios to the job as it is. 10 minutes a network, of computation 15, of which compiling most.

parallel: examples/ on two to eight ranks, each in a network namespace with a slow link: links half and twice as fast, other micro-batches,
other units resharded, more ranks. Wants a core a rank: what a machine of fewer cores says of four ranks is noted with it. 3 minutes a
job. As root, or with --local: all ranks on this machine, joined by its own loopback, whose rate nothing changes.

blind: jobs that nobody has seen, drawn at random (--seed): a network's kind and size, a bucket size, a link; asked for other bucket sizes,
16-bit gradients and a slower link, and for advice (bench/train_blind.py). Counts truths within the predicted 95 % intervals. As root, 4
minutes a job."""
import json
import os
import random
import statistics
import sys
import time

import memory_budget
from accuracy_whatifs import KINDS, change_row, missed, print_changes, print_coverage
from experiment import Turns, begin, by_turns, end, launch, live_python, middle, need_hosts, options, ratios, record_once, train
from figures import facts_of, gain_pct

BUSY = 3  # processes, with the job's own two
COUNT = os.path.join("bench", "libcount_memory.so")  # of the build folder


def run_networks(python, script, model, *arguments, command=(), preload=""):
    """What rank 0 of two printed."""
    return json.loads(launch(command, python, [os.path.join("bench", script), "--model", model, *arguments], rate=None, quiet=True,
                             environment={"LD_PRELOAD": preload}))


class Job:
    """One that is recorded and measured. `configs`: what is run, the job as it is first."""
    ranks, busy = 2, BUSY
    configs = ()

    def record(self, python, dpro, trace, args):
        raise NotImplementedError

    def turns(self, python, config, args):
        raise NotImplementedError

    def by_turns(self, python, configs, args):
        return by_turns({config: self.turns(python, config, args) for config in configs}, args.rounds)

    def measured(self, args):
        load = os.getloadavg()[0]
        return {"on": time.strftime("%Y-%m-%d"), "load": round(load, 1), "cores": os.cpu_count(), "busy": load > self.busy,
                "steps": args.rounds * args.steps}


class Network(Job):
    N_BLOCKS = {"transformer": 6, "convolutional": 6, "mixer": 6, "recurrent": 4, "branches": 7, "two-blocks": 2, "dense": 6,
                "encoder": 5}
    PROBE = ["--probe", "compile,bf16,batch,recompute"]

    def __init__(self, model, kind):
        self.model, self.kind = model, kind
        second = "+".join(f"blocks.{block}" for block in range(0, self.N_BLOCKS[model], 2))
        parts = ["accumulate=2", "accumulate=4", "batch=0.5", "batch=2"]
        self.configs = {"memory": ["as-is", "recompute=blocks.*", "recompute=" + second, "recompute=blocks.1", *parts, "bf16"],
                        "computation": ["as-is", "compile=blocks.*", "compile=all", "bf16", "bf16=blocks.*", "compile=blocks.*,bf16",
                                        "compile=all,bf16=all", "recompute=blocks.*", *parts]}[kind]

    def record(self, python, dpro, trace, args):
        probe = [*self.PROBE, "--probe-limit", args.probe_limit] if self.kind == "computation" else []
        run_networks(python, "train_memory.py", self.model, "--steps", "60", command=(dpro, "profile", "-q", *probe, "-o", trace, "--"))

    def turns(self, python, config, args):
        arguments = ["--settle", "3", "--steps", str(args.steps), "--configs", config, "--turns"]
        return Turns(self.ranks, lambda folder: run_networks(python, "train_memory.py", self.model, *arguments, folder))

    def peaks(self, python, args, configs):
        count = os.path.join(os.path.abspath(args.build), COUNT)
        return run_networks(python, "train_memory.py", self.model, "--steps", "2", "--configs", *configs, preload=count)

    def measure(self, python, _, args, truth, write):
        """Fills in what `truth` lacks."""
        truth = truth or {"model": self.model, "configs": {}}
        found = truth["configs"]
        for config in ["as-is", *(args.configs or self.configs)]:
            found.setdefault(config, {"ratio": None})
        missing = [config for config in found if "peak_bytes" not in found[config]
                   or (self.kind == "memory" and "tracker_bytes" not in found[config])]
        if missing:
            peaks = self.peaks(python, args, missing)
            others = run_networks(python, "peer_memory.py", self.model, "--configs", *missing) if self.kind == "memory" else {}
            truth["batch_size"] = peaks["batch_size"]
            for config, ranks in peaks["configs"].items():
                found[config].update(peak_bytes=[max(rank["peak"]) for rank in ranks], **others.get(config, {}))
            write(truth)
        missing = [config for config in found if found[config]["ratio"] is None]
        if missing and not args.no_times:
            turns, told = self.by_turns(python, dict.fromkeys(["as-is", *missing]), args)
            truth["batch_size"] = told["as-is"]["batch_size"]
            for config, pairs in turns.items():
                found[config].update(ratios(pairs), iteration_ms=statistics.mean(middle(turn, "ms") for turn, _ in pairs))
            own = [middle(own, "ms") for pairs in turns.values() for _, own in pairs]
            found["as-is"].update(ratio=1.0, cpu_ratio=1.0, iteration_ms=statistics.mean(own))
            truth["measured"] = self.measured(args)
            write(truth)

    def budget(self, python, dpro, trace, args):
        """Ways to keep to a budget, as in Table 4 of the paper."""
        def ratios_of(configs):
            return {config: ratios(pairs) for config, pairs in self.by_turns(python, ["as-is", *configs], args)[0].items()}
        return memory_budget.measure(dpro, trace, self.model, lambda configs: self.peaks(python, args, configs), ratios_of,
                                     lambda: os.getloadavg()[0])


class Parallel(Job):
    """`changes`: what is measured beside the job and its links half and twice as fast; `configs`: of each the arguments besides the
    job's own, the ranks, and the link rate in Mbit/s."""
    SIZE = "--layers 4 --width 128 --vocabulary 2048 --context 64"
    BUNDLED = "--width 64 --vocabulary 512 --context 32"  # with what is in tests/data
    STEPS = 60  # of a recording

    def __init__(self, script, ranks, rate, changes, arguments="", size=SIZE):
        self.script, self.ranks, self.rate, self.arguments = script, ranks, rate, [*size.split(), *arguments.split()]
        self.busy = ranks + 1
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

    def train(self, python, command, steps, rate, ranks, arguments, before=()):
        train(command, python, self.script, steps, rate=rate and "%dmbit" % rate, quiet=True, direct=True, ranks=ranks,
              arguments=[*self.arguments, *arguments], before=before)

    def record(self, python, dpro, trace, args):
        self.train(python, [dpro, "profile", "-q", "-o", trace, "--"], self.STEPS, self.rate, self.ranks, [])

    def turns(self, python, config, args):
        arguments, ranks, rate = self.configs[config]
        return Turns(ranks, lambda folder: self.train(python, [], 10 ** 6, rate, ranks, arguments,
                                                      [os.path.join("bench", "train_example.py"), folder, str(args.steps)]))

    def iteration(self, turns):
        """Of each turn the median of its steps, mean over ranks: median and quartiles of these."""
        times = [middle(turn, "ms") for turn in turns]
        low, median, high = statistics.quantiles(times, n=4) if len(times) > 1 else 3 * times
        return {"iteration_ms": round(median, 3), "quartiles_ms": [round(low, 3), round(high, 3)], "turns": len(times)}

    def measure(self, python, _, args, truth, write):
        if truth or args.no_times:
            return
        found, _ = self.by_turns(python, self.configs, args)
        own = list({id(own): own for pairs in found.values() for _, own in pairs}.values())
        configs = {"as-is": {"ratio": 1.0, "cpu_ratio": 1.0, **self.iteration(own)}}
        for config, pairs in found.items():
            configs[config] = {**ratios(pairs), **self.iteration([turn for turn, _ in pairs])}
        write({"script": self.script, "arguments": self.arguments, "ranks": self.ranks, "rate_mbit": self.rate, "configs": configs,
               "measured": self.measured(args)})


PIPELINE = "--micro-batches 4"
PARALLEL = {
    "fsdp2": Parallel("fsdp.py", 2, 200, "reshard=none prefetch=2 ranks=4"),
    "fsdp4": Parallel("fsdp.py", 4, 200, "reshard=none ranks=2 ranks=8"),
    "tp2": Parallel("tensor_parallel.py", 2, 200, "tp=1"),
    "tp2-wide": Parallel("tensor_parallel.py", 2, 200, "tp=1 tp=4", "--layers 2 --width 256 --batch-size 8"),
    "pp2": Parallel("pipeline.py", 2, 200, "microbatches=2 microbatches=12 schedule=interleaved", PIPELINE),
    "pp2-interleaved": Parallel("pipeline.py", 2, 200, "microbatches=6 microbatches=12 schedule=1f1b schedule=gpipe",
                                PIPELINE + " --schedule interleaved"),
    "pp2-zero-bubble": Parallel("pipeline.py", 2, 200, "microbatches=6 schedule=1f1b schedule=interleaved",
                                PIPELINE + " --schedule zero-bubble"),
    "pp4": Parallel("pipeline.py", 4, 200, "microbatches=6 microbatches=12 schedule=gpipe", PIPELINE),
    "ep2": Parallel("experts.py", 2, 200, "ranks=4"),
    "ddp4": Parallel("gpt.py", 4, 200, "ranks=2 ranks=8"),
    "fsdp2-tp2": Parallel("tensor_parallel.py", 4, 200, "reshard=none ranks=8", "--tp 2"),
    "dp2-pp2-tp2": Parallel("pipeline.py", 8, 200, "microbatches=12", "--dp 2 --tp 2 --micro-batches 4"),
    "torch-pp-gloo-n2": Parallel("pipeline.py", 2, 100, "microbatches=2 microbatches=8",
                                 "--layers 2 --batch-size 16 --micro-batches 4", Parallel.BUNDLED),
    "torch-ep-gloo-n2": Parallel("experts.py", 2, 100, "ranks=4", "--layers 2 --batch-size 16 --experts 4", Parallel.BUNDLED),
    "torch-fsdp-tp-gloo-n4": Parallel("tensor_parallel.py", 4, 100, "reshard=none", "--layers 1 --width 128 --batch-size 8 --tp 2",
                                      Parallel.BUNDLED),
}


def blind_on_hosts(python, job, command, *arguments):
    """What rank 0 of bench/train_blind.py printed."""
    own = [f"--{key.replace('_', '-')}={value}" for key, value in job.items()]
    return launch(command, python, [os.path.join("bench", "train_blind.py"), *own, *arguments], rate=f"{job['rate']}mbit", quiet=True)


def advised_by(dpro, trace):
    """The setting, as a config, and by how much it shortens an iteration, %."""
    found = facts_of(dpro, "optimize", trace)
    return ((found["best"]["setting"] or "").replace("bucket_cap_mb ", "cap="),
            gain_pct(found["replayed_ms"], found["best"]["iteration_ms"]))


class Drawn(Job):
    SIZES = {"mlp": ((512, 768, 1024), (3, 5, 8), (128, 256)), "conv": ((16, 24, 32), (3, 4), (8, 16)),
             "transformer": ((128, 192, 256), (2, 4, 6), (8, 16)), "lstm": ((256, 384, 512), (1, 2, 3), (8, 16))}

    def __init__(self, seed):
        rng = random.Random(seed)
        kind = rng.choice(list(self.SIZES))
        width, layers, batch = self.SIZES[kind]
        self.drawn = {"kind": kind, "width": rng.choice(width), "layers": rng.choice(layers), "batch_size": rng.choice(batch),
                      "bucket_cap_mb": rng.choice((0, 2, 5, 10, 25)), "rate": rng.choice((200, 350, 500, 800, 1200, 2000))}
        others = ["cap=25", "cap=1", "cap=5", "cap=100", "cap=5,compress=fp16", "cap=25,compress=fp16", f"rate={self.drawn['rate'] / 2:g}"]
        self.own = f"rate={self.drawn['rate']}"
        self.configs = [self.own, *(other for other in others if other != f"cap={self.drawn['bucket_cap_mb']}")]

    def record(self, python, dpro, trace, args):
        blind_on_hosts(python, self.drawn, [dpro, "profile", "-q", "-o", trace, "--"], "--steps=60")

    def measure(self, python, recorded, args, truth, write):
        """With what dpro is asked, and the setting that it advises."""
        if truth:
            return
        configs = dict.fromkeys([*self.configs, *filter(None, [advised_by(*recorded)[0]])])
        turns = json.loads(blind_on_hosts(python, self.drawn, [], "--steps=5", "--configs", *configs))
        write({"own": self.own, "rate": self.drawn["rate"], "job": self.drawn,
               "configs": {config: {"ms": statistics.median(ms for turn in times for ms in turn)} for config, times in turns.items()}})

    def print_promise(self, dpro, trace):
        """Returns by how much it is off, in points; None where nothing was advised."""
        truth = KINDS["blind"].read(trace)["configs"]
        advised, promised = advised_by(dpro, trace)
        if advised not in truth:
            return None
        saved = gain_pct(truth[self.own]["ms"], truth[advised]["ms"])
        print("advised %s: promised %.1f %% less, measured %.1f %%" % (advised, promised, saved), flush=True)
        return promised - saved


def outside_of_intervals(rows, promises):
    summary = print_coverage(rows)
    if promises:
        print("promises of settings: off by %.1f points in the mean, %.1f the most, too hopeful in %d of %d" % (
            statistics.mean(map(abs, promises)), max(map(abs, promises)), sum(one > 0 for one in promises), len(promises)))
    return ["%s: %d of %d inside" % (key, found["inside"], found["n"]) for key, found in summary.items() if not found["reached"]]


def jobs_of(args):
    if args.kind == "blind":
        need_hosts()
        seed = random.SystemRandom().randrange(10000) if args.seed is None else args.seed
        return {f"job-{number}": Drawn(number) for number in range(seed, seed + args.jobs)}
    known = PARALLEL if args.kind == "parallel" else Network.N_BLOCKS
    names = args.job or [name for name in known if not name.startswith("torch-")]
    if not set(names) <= set(known):
        raise SystemExit("dpro: jobs are of %s" % ", ".join(known))
    if args.kind != "parallel":
        return {name: Network(name, args.kind) for name in ([] if args.table4 else names)}
    if not args.local:
        need_hosts("; or --local")
    for name in names if args.local else ():
        PARALLEL[name].move_here()
    return {name: PARALLEL[name] for name in names}


def budgets(python, dpro, folder, args):
    tables = []
    for model in [model for model in memory_budget.MODELS if model in (args.job or memory_budget.MODELS)]:
        job, trace = Network(model, "memory"), os.path.join(folder, model)
        record_once(trace, lambda: job.record(python, dpro, trace, args))
        tables.append(job.budget(python, dpro, trace, args))
    return memory_budget.print_table(tables, any(facts["load"] > BUSY for facts in tables))


def main():
    parser = options("what-ifs of real jobs, against the same jobs run that way")
    parser.add_argument("kind", choices=("memory", "computation", "parallel", "blind"))
    parser.add_argument("job", nargs="*", help="networks: %s; or parallel jobs: %s" % (", ".join(Network.N_BLOCKS), ", ".join(PARALLEL)))
    parser.add_argument("--no-times", action="store_true", help="measure no times")
    parser.add_argument("--steps", type=int, help="of a turn (2; parallel: 4)")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each config")
    parser.add_argument("--configs", nargs="+", help="of computation (default: all)")
    parser.add_argument("--probe-limit", default="60", metavar="S", help="of computation, seconds")
    parser.add_argument("--table4", action="store_true", help="of memory: only ways to keep to a budget (Table 4 of the paper); 10 minutes")
    parser.add_argument("--local", action="store_true", help="parallel: all ranks on this machine, without links of their own")
    parser.add_argument("--jobs", type=int, default=4, help="blind: how many are drawn")
    parser.add_argument("--seed", type=int, help="blind: of the drawing (default: another one each time)")
    args = parser.parse_intermixed_args()
    args.steps = args.steps or (4 if args.kind == "parallel" else 2)
    python, jobs, rows, promises = live_python(), jobs_of(args), [], []
    dpro, folder = begin(args)
    for name, job in jobs.items():
        trace = os.path.join(folder, name)
        record_once(trace, lambda: job.record(python, dpro, trace, args))
        job.measure(python, (dpro, trace), args, KINDS[args.kind].read(trace), lambda truth: write(truth, trace, args.kind))
        row = change_row(dpro, trace, args.kind)
        if row:
            rows.append(row)
            print_changes([row], args.kind)
        promises += filter(None, [job.print_promise(dpro, trace)] if args.kind == "blind" else [])
    outside = missed(rows, args.kind) if rows else []
    if args.kind == "blind" and rows:
        outside += outside_of_intervals(rows, promises)
    if args.table4 or not (args.kind != "memory" or args.job or args.no_times):
        outside += budgets(python, dpro, folder, args)
    return end(args, folder, outside)


def write(truth, folder, kind):
    with open(os.path.join(folder, KINDS[kind].truth), "w", encoding="utf-8") as file:
        json.dump(truth, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    sys.exit(main())
