#!/usr/bin/env python3
"""Speed against named peers and targets, in one run: `make bench`.

The inputs are a bundled trace of a training on CPUs and, from ../shared/traces, one of a GPU, made large so that they fit no
cache, and a Megatron-like job; they are kept in out/bench. What is compared runs in turns, each time as a process of its own; medians
count. A program that was not built is passed over and named. Writes out/bench.json too."""
import argparse
import collections
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from experiment import ROOT

FOLDER = os.path.join(ROOT, "out", "bench")
CPU_TRACE = os.path.join(ROOT, "tests", "data", "torch-ddp-gloo-gpt-n2", "kineto_rank0.json.gz"), 20  # 127 MB of JSON
SHARED = os.path.join(os.environ.get("DPRO_SHARED", os.path.join(ROOT, "..", "shared")), "traces")
CPU_JOB = os.path.join(SHARED, "torch-ddp-gloo-gpt-n4-500mbit-cap25")
GPU_TRACE = os.path.join(SHARED, "ddp-a100-rank3of8", "control.json.gz")
GPU_TIMES, LARGE_TIMES = 2, 58  # 70 MB, 2 GB of JSON
RANKS = 1024

GZIP_MB_S, MEMORY_SHARE = 900, 0.5  # of JSON to a graph; peak memory over the JSON's size
WHOLE_MB_S, LARGE_S, RANKS_S, RANKS_GB = 500, 4, 8, 2  # dpro replay --json
TWICE_RATIO = 1.8  # two threads, or processes, over one
PROTOBUF_MB_S, PROTOBUF_MEMORY = 300, 1  # TensorFlow's files to spans; peak memory over the file's size
PANDAS_RATIO = 20
EVENT_M_OPS, BYTES_PER_OP = 20, 60
DLRM_S = 2
SEARCH_S, EVALUATIONS_S = {2: 60, 16: 10, 128: 60}, {16: 1000, 1024: 50}  # by ranks: seconds; a second
ALLOCATOR_M_REQUESTS = 4
ALIGN_S, ALIGN_BYTES, ALIGN_RATIO = (1, 30), 64, 1  # 16 clocks and 1,024
BUSY = 0.2  # cores that others may have while time on the wall is taken


class Table:
    """Rows of a value and what it must be above (or below), printed as they come."""

    def __init__(self, what="what"):
        self.rows = []
        print(f"{what:<80} {'value':>10} {'':<8} {'target':>8}")

    def section(self, title):
        print(f"\n{title}", flush=True)

    def add(self, what, value, unit, limit=None, above=True, digits=1, busy=False):
        """`busy`: others had the machine as well, so that the value is not judged."""
        good = None if limit is None or busy else value >= limit if above else value <= limit
        self.rows.append({"what": what, "value": value, "unit": unit, "limit": limit, "busy": busy, "good": good})
        target = "" if limit is None else f"{'>=' if above else '<='} {limit:g}"
        verdict = "busy" if busy else {None: "", True: "met", False: "MISSED"}[good]
        print(f"{what:<80} {value:>10,.{digits}f} {unit:<8} {target:>8} {verdict}".rstrip(), flush=True)

    def note(self, text):
        print(text, flush=True)

    def missing(self, what, why):
        self.rows.append({"what": what, "value": None, "missing": why})
        print(f"{what:<80} {'-':>10} {why}", flush=True)

    def finish(self, name):
        """Prints how many targets were reached, and writes all to out/`name`."""
        judged = [row["good"] for row in self.rows if row.get("good") is not None]
        summary = f"{sum(judged)} of {len(judged)} targets met"
        busy, missing = (sum(bool(row.get(key)) for row in self.rows) for key in ("busy", "missing"))
        summary += f"; {busy} not judged, as other programs had more than {BUSY:g} cores" if busy else ""
        summary += f"; {missing} not measured" if missing else ""
        print(f"\n{summary}")
        os.makedirs(os.path.join(ROOT, "out"), exist_ok=True)
        with open(os.path.join(ROOT, "out", name), "w", encoding="utf-8") as out:
            json.dump({"schema": "dpro.bench/1", "rows": self.rows, "summary": summary}, out, indent=1)
            out.write("\n")


Run = collections.namedtuple("Run", "cpu_s wall_s peak_bytes others out err")


def busy_s():
    """Seconds that all processors have worked."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def measure(command, **more):
    """Runs to the end: CPU time with all children, time, the largest process's memory, cores that others had, output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start, before = time.monotonic(), busy_s()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, **more)
        _, status, used = os.wait4(process.pid, 0)
        wall, busy = time.monotonic() - start, busy_s() - before
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    if process.returncode != 0:
        raise SystemExit(f"bench: {' '.join(command)}: exit status {process.returncode}\n{texts[1][-500:]}")
    cpu = used.ru_utime + used.ru_stime
    return Run(cpu, wall, used.ru_maxrss * 1024, max(busy - cpu, 0) / wall, *texts)


def run(command):
    return measure(command).out


def in_turns(commands, rounds):
    """What each command took, run in turns so that a busy machine hits all alike."""
    runs = [[] for _ in commands]
    for _ in range(rounds):
        for command, of_it in zip(commands, runs):
            of_it.append(measure(command))
    return runs


def median(runs, key):
    return statistics.median(getattr(run, key) for run in runs)


RATE, MEMORY = r"([\d.]+) MB/s of JSON a core", r"= ([\d.]+) x\)"


def figure(pattern, output):
    return float(re.search(pattern, output, re.M)[1])


def program(table, build, name, what):
    """Where it is; None, which a row says, if it was not built."""
    path = os.path.join(build, "bench", name)
    if os.path.exists(path):
        return path
    table.missing(what, f"{name} was not built")
    return None


def bench_python():
    """The interpreter with the peers, and why there is none."""
    venv = os.path.join(ROOT, ".venv-bench")
    missing = os.path.exists(venv + ".missing") or not os.path.exists(venv)
    return os.path.join(venv, "bin", "python"), "no .venv-bench: tools/venv.sh bench makes it" if missing else None


def kept(name, make):
    """The path of what `make(path)` writes unless it is there."""
    path = os.path.join(FOLDER, name)
    if not os.path.exists(path):
        print(f"bench: making {os.path.relpath(path, ROOT)}", file=sys.stderr)
        os.makedirs(FOLDER, exist_ok=True)
        part = os.path.join(FOLDER, "part-" + name)
        make(part)
        os.replace(part, path)
    return path


def enlarged(source, times, suffix):
    script = [sys.executable, os.path.join(ROOT, "bench", "enlarge.py"), source]
    return kept(f"x{times}-{os.path.basename(source).split('.')[0]}{suffix}", lambda path: run([*script, path, str(times)]))


def json_bytes(path):
    """Of a gzip'd file, or all in a folder."""
    if os.path.isdir(path):
        return sum(json_bytes(os.path.join(path, name)) for name in os.listdir(path))
    with open(path, "rb") as file:
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(), "little")


def peers(build):
    """(name, ratio to be above, command, why there is none)"""
    simdjson = os.path.join(build, "bench", "bench_simdjson")
    python, missing = bench_python()
    yield ("simdjson's On-Demand, which only parses", None, [simdjson],
           None if os.path.exists(simdjson) else "bench_simdjson was not built (libsimdjson-dev)")
    yield "json + pandas", PANDAS_RATIO, [python, os.path.join(ROOT, "bench", "pandas_read.py")], missing


def ingest(table, build, rounds):
    table.section("Reading a trace to a graph, one thread, CPU time")
    ours = program(table, build, "bench_ingest", "reading")
    for name, (source, times) in (("DDP on CPUs, 127 MB", CPU_TRACE), ("a GPU's, 70 MB", (GPU_TRACE, GPU_TIMES))):
        if not os.path.exists(source):
            table.missing(name, "no ../shared/traces")
        elif ours:
            plain, packed = (enlarged(source, times, suffix) for suffix in (".json", ".json.gz"))
            out = run([ours, "-t", "1", "-n", str(rounds), packed])
            table.add(f"{name}, gzip'd", figure(RATE, out), "MB/s", GZIP_MB_S, digits=0)
            table.add("  its peak memory over the JSON's size", figure(MEMORY, out), "", MEMORY_SHARE, False, digits=2)
            for peer, limit, command, missing in peers(build):
                if missing:
                    table.missing(f"  plain, over {peer}", missing)
                    continue
                rates = [statistics.median(figure(RATE, run.out) for run in runs)
                         for runs in in_turns([[ours, "-t", "1", plain], [*command, plain]], rounds)]
                table.add(f"  plain, over {peer}", rates[0] / rates[1], "x", limit, digits=2)


def protobuf(table, build, rounds):
    """TensorFlow's files, captures made large; deleted again, as they are."""
    table.section("Reading TensorFlow's files to spans, one thread, CPU time")
    ours = program(table, build, "bench_ingest", "reading")
    for name, script, source, times in (
            ("XPlane", "enlarge_xplane.py", ("tf-mwms-ring", "worker0.xplane.pb.gz"), 1600),
            ("RunMetadata of a session", "enlarge_runmeta.py", ("tf-ps-v1", "runmeta_step0.pb.gz"), 2000)):
        source = os.path.join(SHARED, *source)
        if not os.path.exists(source):
            table.missing(name, "no ../shared/traces")
        elif ours:
            with tempfile.TemporaryDirectory() as folder:
                large = os.path.join(folder, os.path.basename(source)[:-3])
                run([sys.executable, os.path.join(ROOT, "bench", script), source, large, str(times)])
                out = run([ours, "-t", "1", "-n", str(rounds), large])
            size, peak = map(float, re.search(r"\(([\d.]+) MB, .* ([\d.]+) MB to spans", out).groups())
            table.add(f"{name}, {size:.0f} MB", figure(r"([\d.]+) to spans", out), "MB/s", PROTOBUF_MB_S, digits=0)
            table.add("  its peak memory over the file's size", peak / size, "", PROTOBUF_MEMORY, False, digits=2)


def twice(table, what, runs, of_two, jobs=1, limit=TWICE_RATIO):
    table.add(f"  {what} over one (time on the wall)", jobs * median(runs, "wall_s") / median(of_two, "wall_s"), "x", limit,
              digits=2, busy=max(median(runs, "others"), median(of_two, "others")) > BUSY)


def whole(table, build, rounds):
    table.section("dpro replay --json, gzip'd, one thread, CPU time")
    dpro = [os.path.join(build, "dpro"), "replay", "-q", "--json", "--threads"]
    if os.path.exists(GPU_TRACE):
        path = enlarged(GPU_TRACE, GPU_TIMES, ".json.gz")
        runs, rest = in_turns([[*dpro, "1", path], [*dpro, "1", path, "--no-validate"]], rounds)
        used = median(runs, "cpu_s")
        table.add("a GPU's, 70 MB", json_bytes(path) / used / 1e6, "MB/s", WHOLE_MB_S, digits=0)
        table.add("  of which leave-one-out validation", 100 * (1 - median(rest, "cpu_s") / used), "%", digits=0)
        large(table, dpro, "one rank on a GPU", enlarged(GPU_TRACE, LARGE_TIMES, ".json.gz"), LARGE_S, None)
        folder = os.path.join(SHARED, "dlrm-8rank-v100-kineto+et")
        runs, = in_turns([[dpro[0], "replay", "-q", "--threads", "1", folder, "-o", os.path.join(FOLDER, "dlrm")]], rounds)
        table.add("8 ranks of DLRM on GPUs, to text, a page and a timeline", median(runs, "cpu_s"), "s", DLRM_S, False, digits=2)
    else:
        table.missing("a GPU's, 70 MB, 2 GB; DLRM", "no ../shared/traces")
    script = [sys.executable, os.path.join(ROOT, "bench", "megatron_ranks.py")]
    folder = kept(f"megatron-{RANKS}", lambda path: run([*script, path, str(RANKS)]))
    large(table, dpro, f"{RANKS:,} Megatron-like ranks", folder, RANKS_S, RANKS_GB)


def large(table, dpro, what, path, limit_s, limit_gb):
    """A job of some seconds: by one thread, two, and two processes where it has ranks for them."""
    size, processes = json_bytes(path), os.path.isdir(path)
    both = ["sh", "-c", '"$@" > /dev/null & "$@" && wait $!', "sh"]
    commands = [[*dpro, "1", path], [*dpro, "2", path], [*both, *dpro, "1", path]]
    if processes and shutil.which("mpirun"):
        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        commands.append(["mpirun", "-q", "-n", "2", *dpro, "1", "-v", path])
    runs, threads, apart, *mpi = in_turns(commands, 3)
    table.add(f"{what}, {size / 1e9:.1f} GB", median(runs, "cpu_s"), "s", limit_s, False, digits=2)
    peak = median(runs, "peak_bytes")
    if limit_gb:
        table.add("  its peak memory", peak / 1e9, "GB", limit_gb, False, digits=2)
    table.add("  its peak memory over the JSON's size", peak / size, "", MEMORY_SHARE, False, digits=2)
    twice(table, "two threads", runs, threads)
    twice(table, "the machine's limit: two such replays at once", runs, apart, 2, None)
    if mpi:
        twice(table, "two processes under mpirun", runs, mpi[0])
        received = figure(r"([0-9]+) kB received for each", mpi[0][0].err)
        table.add("  received by the first process of each rank of the other", received, "kB", digits=0)
    elif processes:
        table.missing("  two processes under mpirun", "no mpirun (openmpi-bin)")


def replay(table, build):
    table.section("Replay engine, one core, CPU time")
    ours = program(table, build, "bench_replay", "engine")
    if not ours:
        return
    rate = r"^event.*?median ([\d.]+) M ops/s, ([\d.]+) bytes/op, makespan (.*)"
    figures = {}
    for what, *arguments in (("64 ranks", "5000000", "64"), ("1,024 ranks", "5000000", "1024"), ("DDP on CPUs", CPU_JOB),
                             ("a GPU's", GPU_TRACE), ("100,000 ops", "100000", "64")):
        out = run([ours, *arguments]) if arguments[0].isdigit() or os.path.exists(arguments[0]) else ""
        figures[what] = re.search(rate, out, re.M)
    at_64, at_1024 = (float(figures[ranks][1]) for ranks in ("64 ranks", "1,024 ranks"))
    table.add("event-driven, a generated graph of 5 M ops, 64 ranks", at_64, "M ops/s", EVENT_M_OPS)
    table.add("  on 1,024 ranks over on 64", at_1024 / at_64, "x", 1, digits=2)
    table.add("  peak memory", float(figures["64 ranks"][2]), "B an op", BYTES_PER_OP, False)
    peer = run([sys.executable, os.path.join(ROOT, "bench", "peer_replay.py"), "100000", "64"])
    small = figures["100,000 ops"]
    if small[3] not in peer:
        raise SystemExit(f"bench: the engine's makespan is {small[3]}, the peer's is another: {peer}")
    table.add("  over the same in Python, 100,000 ops", float(small[1]) / figure(r"^heapq ([\d.]+)", peer), "x", digits=0)
    for what in "DDP on CPUs", "a GPU's":
        if figures[what]:
            table.add(f"event-driven, a recorded graph, {what}", float(figures[what][1]), "M ops/s", EVENT_M_OPS)
        else:
            table.missing(f"event-driven, a recorded graph, {what}", "no ../shared/traces")


def allocator(table, build):
    """A training's step again and again, and random requests; 500 blocks at a time."""
    ours = program(table, build, "bench_allocator", "caching allocator")
    for kind in ("training", "random") if ours else ():
        table.add(f"caching allocator, simulated, {kind} requests", figure(r"([\d.]+) million requests a second", run([ours, kind])), "M/s",
                  ALLOCATOR_M_REQUESTS)


def align(table, build):
    table.section("Aligning clocks, one core, CPU time")
    ours = program(table, build, "bench_align", "clocks")
    if not ours:
        return
    found = re.findall(r"^(\d+) clocks, (\d+) pairs: ([\d.]+) s on one core, ([\d.]+) bytes a pair", run([ours]), re.M)
    for (clocks, pairs, seconds, _), limit in zip(found, ALIGN_S):
        table.add(f"{int(clocks):,} clocks, {int(pairs) / 1e6:.0f} M pairs", float(seconds), "s", limit, above=False, digits=2)
    table.add("  memory, at most", max(float(size) for *_, size in found), "B a pair", ALIGN_BYTES, above=False)
    python, missing = bench_python()
    if missing:
        table.missing("16 clocks, over SciPy (HiGHS)", missing)
        return
    with tempfile.TemporaryFile() as pairs:
        pairs.write(run([ours, "16", "1000000"]).encode())
        pairs.seek(0)
        out = subprocess.run([python, os.path.join(ROOT, "bench", "peer_align.py")], stdin=pairs, stdout=subprocess.PIPE, check=True)
    seconds = figure(r"pairs: ([\d.]+) s", out.stdout.decode())
    table.add("16 clocks, over SciPy (HiGHS)", seconds / float(found[0][2]), "x", ALIGN_RATIO)


MEANS = {"strawman": "as it is", "coarsened": "with Coarsened View", "partial": "and partial replay", "symmetry": "and symmetry",
         "uncoarsened": "the same without Coarsened View", "all-ranks": "the same without symmetry"}


def search(table, build):
    """The whole search, beside it the paper's Table 5: Algorithm 1 with each means of being fast; evaluations a second."""
    table.section("Searching to convergence, generated jobs, one core, CPU time")
    ours = program(table, build, "bench_search", "search")
    job, ranks, told = "", 0, []
    for line in run([ours]).splitlines() if ours else ():
        took = re.match(r" +(\S+) +(> [\d.e-]+ s, < )?([\d.e-]+) s", line)
        rate = re.match(r" +evaluations on (\d+) ranks: (\d+)", line)
        if not line.startswith(" "):
            job, ranks, told = line, int(re.search(r"(\d+) ranks", line)[1]), []
        elif rate:
            table.add(f"{job}: exact evaluations", float(rate[2]), "a second", EVALUATIONS_S.get(int(rate[1])), digits=0)
        elif took[1] in ("default", "computing"):
            table.add(job, float(took[3]), "s", SEARCH_S[ranks], False, digits=3)
            if told:
                table.note("  Algorithm 1 alone, s: " + ", ".join(told))
        elif took[1] in ("uncoarsened", "all-ranks"):
            table.add("  " + MEANS[took[1]], float(took[3]), "s", digits=3)
        else:
            seconds = [f"{float(s):.0f}" if float(s) >= 10 else f"{float(s):.2g}" for s in re.findall(r"[\d.e-]+(?= s)", took[0])]
            told.append(f"{' to '.join(seconds)} {MEANS[took[1]]}")


def tracer(table, build, rounds):
    """What the transport tracer adds to a socket call of 64 bytes; returns it, idle and recording, in ns."""
    ours, library = program(table, build, "bench_tracer", "socket call"), os.path.join(build, "tracer", "libdpro_tracer.so")
    if not ours:
        return None
    ns = {"bare": [], "idle": [], "recording": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for preload in ([], ["env", f"LD_PRELOAD={library}", "DPRO=1", "DPRO_NET_PEERS=all"]):
                for mode, value in re.findall(r"(\w+) ([\d.]+) ns a call", run([*preload, ours, f"{folder}/log"])):
                    ns[mode].append(float(value))
    bare, idle, recording = (min(ns[mode]) for mode in ("bare", "idle", "recording"))  # other jobs only add
    table.add(f"the transport tracer adds to a socket call of {bare:.0f} ns, idle", idle - bare, "ns", digits=0)
    table.add("  recording", recording - bare, "ns", digits=0)
    return idle - bare, recording - bare


def main():
    parser = argparse.ArgumentParser(description="speed against named peers and targets")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each program; medians count")
    args = parser.parse_args()
    build = os.path.join(ROOT, args.build)
    table = Table()
    ingest(table, build, args.rounds)
    whole(table, build, args.rounds)
    replay(table, build)
    search(table, build)
    align(table, build)
    protobuf(table, build, args.rounds)
    table.section("Others")
    allocator(table, build)
    tracer(table, build, args.rounds)
    table.finish("bench.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
