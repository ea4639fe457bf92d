#!/usr/bin/env python3
"""Speed against named peers and limits, in one run: `make bench`.

The inputs are a bundled trace of a CPU's training and, from ../shared/traces, one of a GPU's, made large so that they fit no
cache. Peers read the same file, one after the other and in turns, as processes of their own; what counts is the median of
the rates they print, which are of CPU time, and the ratio of these. A program that was not built is passed over and named.
Writes out/bench.json too."""
import argparse
import gzip
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUNDLED = os.path.join(ROOT, "tests", "data", "torch-ddp-gloo-gpt-n2")
SHARED = os.environ.get("DPRO_SHARED", os.path.join(ROOT, "..", "shared"))
GPU_TRACE, GPU_TIMES = os.path.join(SHARED, "traces", "ddp-a100-rank3of8", "control.json.gz"), 2  # 70 MB of JSON

GZIP_MB_S, MEMORY_SHARE = 900, 0.5  # of JSON to a graph, on one core; peak memory over the JSON's size
WHOLE_MB_S, THREADS_RATIO = 500, 1.8  # dpro replay --json of a GPU's trace; two threads over one
PROTOBUF_MB_S, PROTOBUF_MEMORY = 300, 1  # TensorFlow's files to spans, on one core; peak memory over the file's size
PANDAS_RATIO = 20
EVENT_M_OPS, FIXED_M_OPS, BYTES_PER_OP = 20, 150, 60
DLRM_S = 2.0
SEARCH_S, EVALUATIONS_S = {2: 60, 16: 10, 128: 60}, {16: 1000, 1024: 50}  # by ranks: seconds; a second
ALLOCATOR_M_REQUESTS = 10
RECOMPUTE_S = 0.1  # which of 96 blocks to recompute
ALIGN_S, ALIGN_BYTES, ALIGN_RATIO = (1, 30), 64, 1  # 16 clocks and 1,024


class Table:
    def __init__(self):
        self.rows = []

    def add(self, what, value, unit, limit=None, above=True, digits=1):
        """A value, and what it must be above (or below)."""
        good = None if limit is None else value > limit if above else value < limit
        self.rows.append({"what": what, "value": value, "unit": unit, "limit": limit, "good": good})
        target = "" if limit is None else f"{'>' if above else '<'} {limit:g}"
        mark = "" if good is None else "" if good else "!"
        print(f"{what:<96} {value:>12,.{digits}f} {unit:<9} {target:>8} {mark}", flush=True)

    def missing(self, what, why):
        self.rows.append({"what": what, "value": None, "missing": why})
        print(f"{what:<96} {'-':>12} {why}", flush=True)

    def finish(self, name):
        """Prints how many targets were reached, and writes all to out/`name`."""
        judged = [row for row in self.rows if row.get("good") is not None]
        reached = sum(row["good"] for row in judged)
        summary = f"{reached} of {len(judged)} targets reached (! marks the others)"
        print(summary)
        os.makedirs(os.path.join(ROOT, "out"), exist_ok=True)
        with open(os.path.join(ROOT, "out", name), "w", encoding="utf-8") as out:
            json.dump({"schema": "dpro.bench/1", "rows": self.rows, "summary": summary}, out, indent=1)
            out.write("\n")


RATE = re.compile(r"([\d.]+) MB/s of JSON a core")
SPANS_RATE = re.compile(r"([\d.]+) to spans")
SPANS_MEMORY = re.compile(r"\(([\d.]+) MB, .* ([\d.]+) MB to spans")
WALL = re.compile(r"([\d.]+) s wall to spans")
MEMORY = re.compile(r"= ([\d.]+) x\)")


def run(command):
    """Runs to the end; returns what it printed."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise SystemExit(f"bench: {' '.join(command)}: exit status {done.returncode}\n{done.stderr.decode()[-500:]}")
    return done.stdout.decode()


def figure(pattern, output):
    return float(pattern.search(output)[1])


def make_input(folder, source, times):
    """A trace, TIMES as large, plain and gzip'd; kept from run to run."""
    name = f"{os.path.basename(source).split('.')[0]}.json"
    plain = os.path.join(folder, f"x{times}", "plain", name)
    packed = os.path.join(folder, f"x{times}", "gzip", f"{name}.gz")
    for path in (plain, packed):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(packed):
        subprocess.run([sys.executable, os.path.join(ROOT, "bench", "enlarge.py"), source, plain, str(times)], check=True)
        with open(plain, "rb") as file, gzip.open(packed + ".part", "wb", 6) as out:
            shutil.copyfileobj(file, out, 1 << 20)
        os.replace(packed + ".part", packed)
    return plain, packed


def in_turns(commands, rounds):
    """Median rate of each command, run in turns so that a busy machine hits all alike."""
    rates = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            rates[name].append(figure(RATE, run(command)))
    return {name: statistics.median(values) for name, values in rates.items()}


def ingest(table, build, folder, times, rounds):
    program = os.path.join(build, "bench", "bench_ingest")
    if not os.path.exists(program):
        table.missing("ingest", "bench_ingest was not built")
        return
    ranks = [make_input(folder, os.path.join(BUNDLED, f"kineto_rank{rank}.json.gz"), times) for rank in (0, 1)]
    ingest_one(table, build, program, "CPU's trace", *ranks[0], rounds)
    one, two = (figure(WALL, run([program, "-t", t, "-n", str(rounds), ranks[0][1], ranks[1][1]])) for t in "12")
    table.add("ingest, two CPUs' traces, two threads over one (wall)", one / two, "x", THREADS_RATIO, digits=2)
    if not os.path.exists(GPU_TRACE):
        table.missing("ingest, GPU's trace", "no ../shared/traces")
        return
    plain, packed = make_input(folder, GPU_TRACE, GPU_TIMES)
    ingest_one(table, build, program, "GPU's trace", plain, packed, rounds)
    replay_json(table, build, packed, os.path.getsize(plain), rounds)


def ingest_one(table, build, program, trace, plain, packed, rounds):
    for name, path, limit in (("plain", plain, None), ("gzip'd", packed, GZIP_MB_S)):
        out = run([program, "-t", "1", "-n", str(rounds), path])
        table.add(f"ingest to a graph, {trace}, {name}, one core", figure(RATE, out), "MB/s", limit, digits=0)
        table.add(f"ingest, {trace}, {name}, peak memory over JSON", figure(MEMORY, out), "", MEMORY_SHARE, False, digits=2)
    for name, limit, command, missing in peers(build):
        if missing:
            table.missing(f"ingest, {trace}, over {name}", missing)
            continue
        rates = in_turns({"ours": [program, "-t", "1", plain], "peer": [*command, plain]}, rounds)
        table.add(f"ingest to a graph, {trace}, over {name}", rates["ours"] / rates["peer"], "x", limit, digits=2)


def replay_json(table, build, path, size, rounds):
    """The whole command on one trace: reading, graph, validation, replay and JSON; its CPU time and its wall time."""
    cpu, wall = {}, {}
    for threads in "12":
        command = [os.path.join(build, "dpro"), "replay", path, "--json", "-q", "--threads", threads]
        times = []
        for _ in range(rounds):
            start, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            run(command)
            then = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append((then.ru_utime + then.ru_stime - used.ru_utime - used.ru_stime, time.monotonic() - start))
        cpu[threads], wall[threads] = (statistics.median(values) for values in zip(*times))
    table.add("dpro replay --json, GPU's trace, gzip'd, CPU time", size / cpu["1"] / 1e6, "MB/s", WHOLE_MB_S, digits=0)
    table.add("dpro replay --json, two threads over one (wall)", wall["1"] / wall["2"], "x", THREADS_RATIO, digits=2)


def processes(table, build, folder, rounds):
    """Four ranks of a GPU's trace, read by one process with one thread, and by two under mpirun."""
    name = "dpro replay of 4 GPUs, two processes over one, a thread each (wall)"
    if not os.path.exists(GPU_TRACE) or not shutil.which("mpirun"):
        table.missing(name, "no ../shared/traces, or no mpirun")
        return
    plain, _ = make_input(folder, GPU_TRACE, GPU_TIMES)
    ranks = os.path.join(folder, "ranks")
    os.makedirs(ranks, exist_ok=True)
    with open(plain, "rb") as file:
        text = file.read()
    for rank in range(4):
        with open(os.path.join(ranks, f"rank{rank}.json"), "wb") as out:
            out.write(re.sub(rb'("distributedInfo":[^}]*?"rank": )\d+', rb"\g<1>%d" % rank, text, count=1))
    command = [os.path.join(build, "dpro"), "replay", ranks, "-v", "--threads", "1"]
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    seconds = {1: [], 2: []}
    for _ in range(rounds):
        for n, taken in seconds.items():
            start = time.monotonic()
            done = subprocess.run(["mpirun", "-n", str(n), *command], stdin=subprocess.DEVNULL, capture_output=True, check=True)
            taken.append(time.monotonic() - start)
    table.add(name, statistics.median(seconds[1]) / statistics.median(seconds[2]), "x", THREADS_RATIO, digits=2)
    received = re.search(rb"([0-9]+) kB received for each", done.stderr)
    table.add("the same, received by the first process of each rank of another", int(received[1]) / 1e3, "MB")


def protobuf(table, build, folder, rounds):
    """TensorFlow's files, captures made large; deleted again, as they are."""
    program = os.path.join(build, "bench", "bench_ingest")
    for name, script, source, times in (
            ("XPlane", "enlarge_xplane.py", ("tf-mwms-ring", "worker0.xplane.pb.gz"), 1600),
            ("RunMetadata of a session", "enlarge_runmeta.py", ("tf-ps-v1", "runmeta_step0.pb.gz"), 2000)):
        source = os.path.join(SHARED, "traces", *source)
        if not os.path.exists(source) or not os.path.exists(program):
            table.missing(f"ingest, {name}", f"no {os.path.basename(source)}, or bench_ingest was not built")
            continue
        large = os.path.join(folder, f"large-{os.path.basename(source)}"[:-3])
        os.makedirs(folder, exist_ok=True)
        subprocess.run([sys.executable, os.path.join(ROOT, "bench", script), source, large, str(times)], check=True)
        out = run([program, "-t", "1", "-n", str(rounds), large])
        os.unlink(large)
        size, peak = (float(part) for part in SPANS_MEMORY.search(out).groups())
        table.add(f"ingest to spans, {name}, one core", figure(SPANS_RATE, out), "MB/s", PROTOBUF_MB_S, digits=0)
        table.add(f"ingest to spans, {name}, memory over the file", peak / size, "", PROTOBUF_MEMORY, False, digits=2)
        table.add(f"ingest to a graph, {name}, memory over the file", figure(MEMORY, out), "", digits=2)


def peers(build):
    """(name, ratio to be above, command, why there is none)"""
    simdjson = os.path.join(build, "bench", "bench_simdjson")
    python = os.path.join(ROOT, ".venv-bench", "bin", "python")
    yield ("simdjson's On-Demand, parsing only", None, [simdjson],
           None if os.path.exists(simdjson) else "bench_simdjson was not built (libsimdjson-dev)")
    yield ("json + pandas", PANDAS_RATIO, [python, os.path.join(ROOT, "bench", "pandas_read.py")],
           None if os.path.exists(python) else "no .venv-bench; use 'make bench'")


def replay(table, build):
    program = os.path.join(build, "bench", "bench_replay")
    if not os.path.exists(program):
        table.missing("replay", "bench_replay was not built")
        return
    recorded = os.path.join(ROOT, "tests", "data", "torch-ddp-gloo-gpt-n2-default")
    sizes = (("64 ranks", ["5000000", "64"]), ("1,024 ranks", ["5000000", "1024"]), ("recorded DDP on CPUs", [recorded]))
    for what, arguments in sizes:
        out = run([program, *arguments])
        for name, engine, limit in (("event-driven", "event", EVENT_M_OPS), ("fixed order", "fixed", FIXED_M_OPS)):
            rate = re.search(rf"^{engine}.*?median ([\d.]+) M ops/s, ([\d.]+) bytes/op", out, re.M)
            if not rate:
                table.missing(f"replay, {name}, {what}", "not in what bench_replay printed")
                continue
            table.add(f"replay, {name}, {what}, one core", float(rate[1]), "M ops/s", limit)
            if what == "64 ranks":
                table.add(f"replay, {name}, peak memory", float(rate[2]), "B an op", BYTES_PER_OP, False)
    size = ["100000", "64"]
    ours = figure(re.compile(r"^event.*?median ([\d.]+) M ops/s", re.M), run([program, *size]))
    peer = figure(re.compile(r"^heapq ([\d.]+) M ops/s", re.M),
                  run([sys.executable, os.path.join(ROOT, "bench", "peer_replay.py"), *size]))
    table.add("replay, event-driven, over the same in Python", ours / peer, "x", digits=0)


def allocator(table, build):
    """The simulated caching allocator: a training's step again and again, and random requests; 500 blocks at a time."""
    program = os.path.join(build, "bench", "bench_allocator")
    if not os.path.exists(program):
        table.missing("allocator", "bench_allocator was not built")
        return
    for kind in "training", "random":
        rate = figure(re.compile(r"([\d.]+) million requests a second"), run([program, kind]))
        table.add(f"caching allocator, {kind}, one core", rate, "M a second", ALLOCATOR_M_REQUESTS)


def align(table, build):
    program = os.path.join(build, "bench", "bench_align")
    python = os.path.join(ROOT, ".venv-bench", "bin", "python")
    if not os.path.exists(program):
        table.missing("align", "bench_align was not built")
        return
    found = re.findall(r"^(\d+) clocks, (\d+) pairs: ([\d.]+) s on one core, ([\d.]+) bytes a pair", run([program]), re.M)
    for (clocks, pairs, seconds, size), limit in zip(found, ALIGN_S):
        what = f"align, {clocks} clocks, {int(pairs) / 1e6:.0f} M pairs"
        table.add(f"{what}, one core", float(seconds), "s", limit, above=False, digits=2)
        table.add(f"{what}, memory", float(size), "B a pair", ALIGN_BYTES, above=False)
    if not os.path.exists(python):
        table.missing("align, SciPy (HiGHS)", "no .venv-bench; use 'make bench'")
        return
    with tempfile.TemporaryFile("w+") as file:
        subprocess.run([program, "16", "1000000"], stdout=file, check=True)
        file.seek(0)
        out = subprocess.run([python, os.path.join(ROOT, "bench", "peer_align.py")], stdin=file, stdout=subprocess.PIPE, check=True,
                             text=True).stdout
    seconds = float(re.search(r"pairs: ([\d.]+) s", out)[1])
    table.add("the same 16 clocks, SciPy (HiGHS)", seconds, "s", digits=2)
    table.add("align / SciPy", seconds / float(found[0][2]), "x faster", ALIGN_RATIO)


def recompute(table, build):
    """Which of 96 blocks to recompute: the slowest budget of each kind of chain, over what it may take."""
    program = os.path.join(build, "bench", "bench_recompute")
    if not os.path.exists(program):
        table.missing("modules to recompute", "bench_recompute was not built")
        return
    for kind, seconds, exact, n in re.findall(r"(.*): ([\d.]+) s, (\d+) of (\d+) exact", run([program])):
        table.add(f"modules to recompute, {kind}, over {RECOMPUTE_S} s", float(seconds) / RECOMPUTE_S, "x", 1, False, digits=3)
        table.add(f"modules to recompute, {kind}, exact", int(exact) / int(n), "", 0.999)


def search(table, build):
    """The paper's Table 5 on generated jobs of 16 ranks, seconds; the whole search; evaluations a second."""
    program = os.path.join(build, "bench", "bench_search")
    if not os.path.exists(program):
        table.missing("search", "bench_search was not built")
        return
    job, ranks = "", 0
    for line in run([program]).splitlines():
        figures = re.match(r" +(\S+) +(?:> ([\d.e-]+) s, < )?([\d.e-]+) s", line)
        rate = re.match(r" +evaluations on (\d+) ranks: (\d+)", line)
        if not line.startswith(" "):
            job, ranks = line, int(re.search(r"(\d+) ranks", line)[1])
        elif figures and figures[1] == "default":
            table.add(f"search, {job}, to convergence, one core", float(figures[3]), "s", SEARCH_S[ranks], False, digits=3)
        elif figures and figures[1] in ("computing", "uncoarsened", "all-ranks"):
            table.add(f"search of buckets and ways of modules, {job}, {figures[1]}, one core", float(figures[3]), "s",
                      SEARCH_S[ranks] if figures[1] == "computing" else None, False, digits=3)
        elif figures and figures[2]:
            table.add(f"Algorithm 1, {job}, {figures[1]}, more than", float(figures[2]), "s")
            table.add(f"Algorithm 1, {job}, {figures[1]}, less than", float(figures[3]), "s")
        elif figures:
            table.add(f"Algorithm 1, {job}, {figures[1]}", float(figures[3]), "s", digits=5)
        elif rate:
            table.add(f"exact evaluations, {job}, one core", float(rate[2]), "a second", EVALUATIONS_S.get(int(rate[1])),
                      digits=0)


def whole(table, build, rounds):
    folder = os.path.join(SHARED, "traces", "dlrm-8rank-v100-kineto+et")
    name = "dpro replay of the 8-rank DLRM set, files written"
    if not os.path.isdir(folder):
        table.missing(name, "no ../shared/traces")
        return
    command = [os.path.join(build, "dpro"), "replay", folder, "-q", "-o", os.path.join(ROOT, "out", "bench", "dlrm")]
    seconds = []
    for _ in range(rounds):
        start = time.monotonic()
        run(command)
        seconds.append(time.monotonic() - start)
    table.add(name, statistics.median(seconds), "s", DLRM_S, above=False, digits=2)


def tracer(table, build, rounds):
    """What the transport tracer adds to a socket call of 64 bytes; returns it, idle and recording, in ns."""
    program, library = (os.path.join(build, *name) for name in (("bench", "bench_tracer"), ("tracer", "libdpro_tracer.so")))
    if not os.path.exists(program) or not os.path.exists(library):
        table.missing("socket call", "bench_tracer or the tracer was not built")
        return None
    ns = {"bare": [], "idle": [], "recording": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for preload in ([], ["env", f"LD_PRELOAD={library}", "DPRO=1", "DPRO_NET_PEERS=all"]):
                for mode, value in re.findall(r"(\w+) ([\d.]+) ns a call", run([*preload, program, f"{folder}/log"])):
                    ns[mode].append(float(value))
    bare, idle, recording = (min(ns[mode]) for mode in ("bare", "idle", "recording"))  # other jobs only add
    table.add("socket call, no tracer", bare, "ns", digits=0)
    table.add("socket call, what the idle tracer adds", idle - bare, "ns", digits=0)
    table.add("socket call, what the recording tracer adds", recording - bare, "ns", digits=0)
    return idle - bare, recording - bare


def main():
    parser = argparse.ArgumentParser(description="speed against named peers and limits")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each program; medians count")
    parser.add_argument("--times", type=int, default=20, help="how much larger than the bundled trace the CPU's is")
    args = parser.parse_args()
    build = os.path.join(ROOT, args.build)
    table = Table()
    print(f"{'what':<96} {'value':>12} {'':<9} {'target':>8}")
    ingest(table, build, os.path.join(ROOT, "out", "bench"), args.times, args.rounds)
    processes(table, build, os.path.join(ROOT, "out", "bench"), args.rounds)
    protobuf(table, build, os.path.join(ROOT, "out", "bench"), args.rounds)
    replay(table, build)
    allocator(table, build)
    align(table, build)
    search(table, build)
    recompute(table, build)
    whole(table, build, args.rounds)
    tracer(table, build, args.rounds)
    table.finish("bench.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
