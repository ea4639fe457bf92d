#!/usr/bin/env python3
"""What recording costs a training job: `make bench-live`.

Two ranks of a GPT train over gloo and the loopback device, one core each. Modes alternate in blocks of steps, mirrored
(A B B A), inside one process; each block is set against the one of the other mode beside it, and the overhead is the
median of these ratios, with a 95 % interval from resampling them. For "preloaded but idle" two jobs take turns, one of
which never saw the library; as two processes differ by themselves, several pairs are tried. Beside these stands what
follows from the cost of a socket call. The median alone is judged: on a busy machine the interval is wider than the target.
Then each example is recorded and replayed, and the prediction set against its own steps just before and after the recording.
Writes out/bench-live.json too."""
import json
import os
import statistics
import sys
import tempfile

import bench
from bench import Table
from experiment import ROOT, Turns, by_turns, go_first, launch, live_python, middle, options, train
from figures import facts_of, median_and_interval, off

TRACER_PCT, KINETO_PCT, IDLE_PCT, PREDICTED_PCT = 1.0, 3.0, 0.5, 3.0
LOG_BYTES, MEMORY_MIB = 100, 16
RANKS = 2


# glibc moves its thresholds when the profiler frees its memory, and then every later block costs other page faults, whatever its mode:
# here the thresholds stay where they are
HEAP = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "1073741824"}


def environment(preload=None):
    """Of ranks, each on a core of its own. An installed package would record by itself: after a warm-up without end it does not."""
    idle = {"LD_PRELOAD": preload, "DPRO": "1", "DPRO_WARMUP": "1000000000"} if preload else {"LD_PRELOAD": "", "DPRO": ""}
    return {**HEAP, **idle, "GLOO_SOCKET_IFNAME": "lo", "ONE_CORE": "1"}


def mirrored(modes, n_blocks):
    """a b c  c b a  a b c ..., n_blocks of each."""
    return [mode for i in range(n_blocks) for mode in (modes if i % 2 == 0 else modes[::-1])]


def overheads(blocks, base, mode, n_modes):
    """By key, in percent: a mode's block against the base's in the same round."""
    rounds = {}
    for block in blocks:
        rounds.setdefault(block["block"] // n_modes, {})[block["mode"]] = block
    return {key: [off(*(statistics.median(one[name][key]) for name in (mode, base))) for one in rounds.values()]
            for key in ("ms", "cpu_ms")}


def idle_overheads(python, common, args, tracer):
    """Of two jobs that take turns, one bare and one with the idle tracer."""
    def job(preload):
        return Turns(RANKS, lambda folder: train(
            [], python, "gpt.py", 10 ** 6, common, [os.path.join("bench", "train_example.py"), folder, str(args.steps)], rate=None,
            quiet=True, environment=environment(preload)))

    pairs = by_turns({"as-is": job(None), "idle": job(tracer)}, args.blocks)[0]["idle"]
    return {key: [off(middle(turn, key), middle(own, key)) for turn, own in pairs] for key in ("ms", "cpu_ms")}


def report(table, what, overheads_pct, limit):
    """A row for the time of a step, which is judged, and one for rank 0's CPU time, which other jobs disturb less."""
    for key, name, target in (("ms", what, limit), ("cpu_ms", f"{what}, CPU time", None)):
        median, low, high = median_and_interval(overheads_pct[key])
        table.add(f"{name} [{low:+.1f} .. {high:+.1f}]", median, "%", target, False, digits=2)


def predict(table, dpro, python, script, n_recordings):
    """Records an example several times, replays each; the mean error against its steps without a profiler, just before
    and after. A shared machine changes its speed between those windows, by more than what is asked here: one recording
    tells little."""
    errors, steps_ms = [], []
    for _ in range(n_recordings):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace")
            train([dpro, "profile", "-q", "-o", trace, "--"], python, script, quiet=True)
            unprofiled = facts_of(dpro, "replay", trace)["unprofiled"]
        errors.append(unprofiled["error_pct"])
        steps_ms.append(unprofiled["iteration_ms"])
    table.add(f"{script}: a step without a profiler", statistics.mean(steps_ms), "ms")
    spread = f"{min(errors):+.1f} .. {max(errors):+.1f} of {n_recordings}"
    table.add(f"{script}: predicted {statistics.mean(errors):+.1f} [{spread}], +-", abs(statistics.mean(errors)), "%",
              PREDICTED_PCT, False)


def n_calls(path):
    """Socket calls in a log (tracer/record.h)."""
    with open(path, "rb") as file:
        data = file.read()
    at, n = int.from_bytes(data[12:16], "little"), 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 2:at + 4], "little")
        if size < 8:
            raise SystemExit(f"bench-live: {path}: byte {at}: a record of {size} bytes")
        n += data[at] == 17
        at += size
    return n


def main():
    parser = options("what recording costs a training job", keep=False)
    for name, default, what in (("steps", 10, "steps a block"), ("blocks", 12, "blocks or turns a mode"),
                                ("batch-size", 12, "samples a step and rank"), ("recordings", 3, "recordings of each example")):
        parser.add_argument("--" + name, type=int, default=default, help=what)
    args = parser.parse_args()
    tracer, python = os.path.join(ROOT, args.build, "tracer", "libdpro_tracer.so"), live_python()
    go_first()

    table = Table("what [95 % interval]")
    common = [f"--batch-size={args.batch_size}"]
    with tempfile.TemporaryDirectory() as folder:
        modes = ["off", "tracer", "kineto"]
        log = os.path.join(folder, "net@.log")
        result = json.loads(launch([], python, [os.path.join("bench", "train_in_turns.py"), *common, f"--steps={args.steps}",
                                                f"--blocks={','.join(mirrored(modes, args.blocks))}", f"--net-log={log}"],
                                   rate=None, quiet=True, environment=environment(tracer)))
        blocks = result["blocks"]
        steps = [ms for block in blocks if block["mode"] == "off" for ms in block["ms"]]
        step_ms = statistics.median(steps)
        table.add(f"a step without recording ({len(steps)} steps)", step_ms, "ms")
        report(table, "tracer", overheads(blocks, "off", "tracer", 3), TRACER_PCT)
        report(table, "tracer and torch.profiler", overheads(blocks, "off", "kineto", 3), KINETO_PCT)
        calls, size = n_calls(log.replace("@", "0")), os.path.getsize(log.replace("@", "0"))
        if calls:
            calls_a_step = calls / (2 * args.blocks * (args.steps + 1))
            table.add("socket calls a step and rank", calls_a_step, "", digits=0)
            table.add("log, per socket call", size / calls, "B", LOG_BYTES, False)
        else:
            table.missing("log, per socket call", "no socket call was recorded")
        table.add("records lost", result["tracer"]["n_lost"], "", digits=0)
        table.add("memory of the tracer", result["tracer"]["memory_bytes"] / 2**20, "MiB", MEMORY_MIB, False)

    pairs = [idle_overheads(python, common, args, tracer) for _ in range(4)]
    report(table, "preloaded but idle", {key: [one for pair in pairs for one in pair[key]] for key in pairs[0]}, IDLE_PCT)
    added_ns = bench.tracer(table, os.path.join(ROOT, args.build), 5)
    if calls and added_ns:
        for what, ns, limit in zip(("tracer", "preloaded but idle"), reversed(added_ns), (TRACER_PCT, IDLE_PCT)):
            table.add(f"{what}, from calls and their cost", 1e-4 * ns * calls_a_step / step_ms, "%", limit, False, digits=3)
    for script in ("cnn.py", "gpt.py", "fsdp.py"):
        predict(table, os.path.join(ROOT, args.build, "dpro"), python, script, args.recordings)

    table.finish("bench-live.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
