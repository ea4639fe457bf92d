#!/usr/bin/env python3
"""Speed against named peers and limits, in one run: `make bench`.

The input is the bundled trace made large, so that it fits no cache. Peers read the same file, one after the other and
in turns, as processes of their own; what counts is the median of their CPU times, and the ratio of these. Rates of
dpro itself are what the programs in build/bench print. A program that was not built is passed over and named. Writes
out/bench.json too."""
import argparse
import glob
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUNDLED = os.path.join(ROOT, "tests", "data", "torch-ddp-gloo-gpt-n2")
SHARED = os.environ.get("DPRO_SHARED", os.path.join(ROOT, "..", "shared"))

PLAIN_MB_S, GZIP_MB_S, MEMORY_SHARE = 500, 400, 0.5  # of JSON, on one core; peak memory over the JSON's size
PANDAS_RATIO, SIMDJSON_RATIO = 20, 1
EVENT_M_OPS, FIXED_M_OPS, BYTES_PER_OP = 10, 60, 60
DLRM_S = 2.0


class Table:
    def __init__(self):
        self.rows = []

    def add(self, what, value, unit, limit=None, above=True, digits=1):
        """A value, and what it must be above (or below)."""
        good = None if limit is None else value > limit if above else value < limit
        self.rows.append({"what": what, "value": value, "unit": unit, "limit": limit, "good": good})
        target = "" if limit is None else f"{'>' if above else '<'} {limit:g}"
        mark = "" if good is None else "" if good else "!"
        print(f"{what:<52} {value:>12,.{digits}f} {unit:<9} {target:>8} {mark}", flush=True)

    def missing(self, what, why):
        self.rows.append({"what": what, "value": None, "missing": why})
        print(f"{what:<52} {'-':>12} {why}", flush=True)


def run(command):
    """Runs to the end; returns (CPU seconds, wall seconds, peak bytes, output)."""
    start = time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out = process.stdout.read()
        err = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - start
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {process.returncode}: {err.decode()[-500:]}")
    return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * 1024, out.decode()


def make_inputs(folder, times):
    """The bundled ranks' traces, TIMES as large, plain and gzip'd; kept from run to run."""
    paths = {}
    for rank in (0, 1):
        plain = os.path.join(folder, f"x{times}", "plain", f"kineto_rank{rank}.json")
        packed = os.path.join(folder, f"x{times}", "gzip", f"kineto_rank{rank}.json.gz")
        for path in (plain, packed):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.exists(packed):
            source = os.path.join(BUNDLED, f"kineto_rank{rank}.json.gz")
            subprocess.run([sys.executable, os.path.join(ROOT, "bench", "enlarge.py"), source, plain, str(times)],
                           check=True)
            with open(plain, "rb") as file, gzip.open(packed + ".part", "wb", 6) as out:
                shutil.copyfileobj(file, out, 1 << 20)
            os.replace(packed + ".part", packed)
        paths[rank] = (plain, packed)
    return paths


def in_turns(commands, rounds):
    """Median CPU seconds of each command, run in turns so that a busy machine hits all alike."""
    times = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(run(command)[0])
    return {name: statistics.median(values) for name, values in times.items()}


def ingest(table, build, inputs, rounds):
    program = os.path.join(build, "bench", "bench_ingest")
    if not os.path.exists(program):
        table.missing("ingest", "bench_ingest was not built")
        return
    pattern = re.compile(r"([\d.]+) MB/s of JSON a core .*?([\d.]+) s wall.*= ([\d.]+) x")
    for name, index, limit in (("plain JSON", 0, PLAIN_MB_S), ("JSON, gzip'd", 1, GZIP_MB_S)):
        found = pattern.search(run([program, "-t", "1", "-n", str(rounds), inputs[0][index]])[3])
        table.add(f"ingest, {name}, one core", float(found[1]), "MB/s", limit, digits=0)
        table.add(f"ingest, {name}, peak memory over JSON", float(found[3]), "", MEMORY_SHARE, above=False, digits=2)
    both = [inputs[0][1], inputs[1][1]]
    one, two = (float(pattern.search(run([program, "-t", t, "-n", str(rounds), *both])[3])[2]) for t in "12")
    table.add("ingest, two files, two threads over one (wall)", one / two, "x", digits=2)

    plain = inputs[0][0]
    ours = [program, "-t", "1", "-n", "1", plain]
    for name, limit, command in peers(build):
        if isinstance(command, str):
            table.missing(f"ingest over {name}", command)
            continue
        cpu = in_turns({"ours": ours, "peer": [*command, plain]}, rounds)
        table.add(f"ingest over {name} (CPU time)", cpu["peer"] / cpu["ours"], "x", limit, digits=2)


def peers(build):
    """(name, ratio to reach, command or why there is none)"""
    simdjson = os.path.join(build, "bench", "bench_simdjson")
    yield ("simdjson's DOM parser", SIMDJSON_RATIO,
           [simdjson] if os.path.exists(simdjson) else "bench_simdjson was not built (libsimdjson-dev)")
    python = os.path.join(ROOT, ".venv-bench", "bin", "python")
    for script in sorted(glob.glob(os.path.join(ROOT, "bench", "peer_*.py"))):
        name = os.path.basename(script)[5:-3]
        yield (f"json + {name} in Python", PANDAS_RATIO if name == "pandas" else None,
               [python, script] if os.path.exists(python) else "no .venv-bench; use 'make bench'")


def replay(table, build):
    program = os.path.join(build, "bench", "bench_replay")
    if not os.path.exists(program):
        table.missing("replay", "bench_replay was not built")
        return
    out = run([program])[3]
    for name, pattern, unit, limit, above in (
            ("event-driven, one core", r"event[^\n]*?([\d.]+) M ops/s", "M ops/s", EVENT_M_OPS, True),
            ("fixed order, one core", r"fixed[^\n]*?([\d.]+) M ops/s", "M ops/s", FIXED_M_OPS, True),
            ("memory", r"([\d.]+) (?:bytes|B)(?: resident)?(?: an|/) ?op", "B an op", BYTES_PER_OP, False)):
        found = re.search(pattern, out)
        if found:
            table.add(f"replay, {name}", float(found[1]), unit, limit, above)
        else:
            table.missing(f"replay, {name}", "not in what bench_replay printed")


def whole(table, build, rounds):
    folder = os.path.join(SHARED, "traces", "dlrm-8rank-v100-kineto+et")
    name = "dpro replay of the 8-rank DLRM set, files written"
    if not os.path.isdir(folder):
        table.missing(name, "no ../shared/traces")
        return
    command = [os.path.join(build, "dpro"), "replay", folder, "-q", "-o", os.path.join(ROOT, "out", "bench", "dlrm")]
    table.add(name, statistics.median(run(command)[1] for _ in range(rounds)), "s", DLRM_S, above=False, digits=2)


def main():
    parser = argparse.ArgumentParser(description="speed against named peers and limits")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each program; medians count")
    parser.add_argument("--times", type=int, default=20, help="how much larger than the bundled trace the input is")
    args = parser.parse_args()
    build = os.path.join(ROOT, args.build)
    table = Table()
    print(f"{'what':<52} {'value':>12} {'':<9} {'target':>8}")
    ingest(table, build, make_inputs(os.path.join(ROOT, "out", "bench"), args.times), args.rounds)
    replay(table, build)
    whole(table, build, args.rounds)
    missed = [row for row in table.rows if row.get("good") is False]
    judged = [row for row in table.rows if row.get("good") is not None]
    summary = f"{len(judged) - len(missed)} of {len(judged)} targets reached (! marks the others)"
    print(summary)
    with open(os.path.join(ROOT, "out", "bench.json"), "w", encoding="utf-8") as out:
        json.dump({"schema": "dpro.bench/1", "rows": table.rows, "summary": summary}, out, indent=1)
        out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
