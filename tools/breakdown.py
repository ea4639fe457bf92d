"""How long a rank's GPU computes in an iteration, and how long it only communicates, straight from PyTorch's profile: what
`dpro replay` says of the same iteration is set against it."""
import gzip
import json
import re

CALLS, WORK = ("cuda_runtime", "cuda_driver", "Runtime"), ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")


def is_profile(path):
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        return '"traceEvents"' in file.read(1 << 20)


def covered_us(events):
    total, until = 0, float("-inf")
    for begin, end in sorted((float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in events):
        total += max(end - max(begin, until), 0)
        until = max(until, end)
    return total


def of_iterations(path):
    """By number (computing, communication beside it) in ms, of the kernels and copies that are launched in it."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    launched = {event["args"].get("correlation"): float(event["ts"]) for event in events if event.get("cat") in CALLS}
    work = [event for event in events if event.get("cat") in WORK]
    found = {}
    for event in events:
        step = re.match(r"ProfilerStep\s*#\s*(\d+)", event["name"])
        if step and event.get("cat") != "gpu_user_annotation":
            begin, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
            of = [its for its in work if begin <= launched.get(its["args"].get("correlation"), -1) < end]
            computing = covered_us(its for its in of if "nccl" not in its["name"].lower())
            found[int(step[1])] = computing / 1e3, (covered_us(of) - computing) / 1e3
    return found


def computing_ms(rank):
    """Of a row of `ranks` of replay's JSON."""
    return sum(rank[phase + "_ms"] for phase in ("forward", "backward", "update", "input"))


def communication_ms(rank):
    return rank["exposed_communication_ms"] + rank["wait_for_peers_ms"]
