#!/usr/bin/env python3
"""The paper's evaluation on jobs that two cores can run: `make bench-networks`.

BERT, ResNet, VGG and Inception in small, each over PyTorch's DDP, TensorFlow's ring and Horovod on TensorFlow, and jobs of examples/,
servers of TensorFlow and MXNet among them, in two network namespaces with a link of 1 Gbit/s or 300 Mbit/s between them. A job of PyTorch
is tuned while it runs (dpro tune; `compile`: what may be compiled, too): its own buckets or units beside the finalists, by turns. Any
other is recorded, searched and measured by restarts: as it is, with the plans, and with what dpro tune --restart tries by itself. One of
TensorFlow's ring is probed for op fusion, too. Jobs that are done are passed over (--again: not), so that the tool can be ended at any
time. Finalists that were chosen go to doc/accuracy.md with --readme."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import threading

from accuracy_tables import renewed
from bench import ROOT
from experiment import HOSTS, Example, example_command, go_first, let_ranks_go_first, live_python, python_in
from figures import markdown

FOLDER = os.path.join(ROOT, "out", "bench-networks")
NETWORKS, RATES = ("bert", "resnet", "vgg", "inception"), ("1gbit", "300mbit")
EXAMPLES = {"gpt": ("gpt.py", "--batch-size", "4", "--layers", "2"), "cnn": ("cnn.py", "--batch-size", "1"),
            "fsdp": ("fsdp.py", "--batch-size", "4", "--width", "128")}
SERVED = {"tfps": Example("tensorflow", "tensorflow_ps.py", "tensorflow", ["--width", "8", "--units", "512", "--hidden", "3"], servers=2),
          "mxnet": Example("mxnet", "mxnet_ps.py", "mxnet", ["--width", "8"], servers=2)}
STACKS = {"ddp": NETWORKS, "example": tuple(EXAMPLES), "compile": ("bert", "resnet"), "ring": NETWORKS, "horovod": NETWORKS,
          "servers": tuple(SERVED)}
RUNNING = ("ddp", "example", "compile")  # what is tuned in a running job
NAMES = (*NETWORKS, *EXAMPLES, *SERVED)
HEAD = ("job: what", "saves of a step, %:", "interval", "promised, %:", "verdict")
LIMIT_S = 900  # of a command
TORCH = "RANK=$HOST LOCAL_RANK=0 WORLD_SIZE=$HOSTS MASTER_ADDR=$HOST0 MASTER_PORT=29500"
TF_CONFIG = """'{"cluster": {"worker": ["10.77.0.1:2222", "10.77.0.2:2222"]}, "task": {"type": "worker", "index": '$HOST'}}'"""


def program(stack, network, rate, steps, folder):
    """The job's command: of both hosts."""
    served = Example("horovod", os.path.join(os.pardir, "bench", "train_networks.py"), "horovod", ["--horovod", "--model", network])
    if stack in ("horovod", "servers"):
        return example_command(SERVED.get(network, served), steps, os.path.join(folder, "done"), rate)
    python, rank = (python_in("tensorflow"), "TF_CONFIG=" + TF_CONFIG) if stack == "ring" else (live_python(), TORCH)
    name = {"ring": "bench/train_networks.py", "example": "examples/" + EXAMPLES.get(network, ("",))[0]}.get(stack, "bench/train_memory.py")
    options = EXAMPLES[network][1:] if stack == "example" else ("--model", network)
    script = [python, os.path.join(ROOT, name), *options, "--steps", str(steps)]
    return [HOSTS, "--rate", rate, "bash", "-c", f'exec env OMP_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=2 {rank} "$@"', "-", *script]


def commands(args, stack, network, rate, folder):
    """One after the other."""
    def job(steps):
        return ["--", *program(stack, network, rate, steps, folder)]

    if stack in RUNNING:
        return [[args.dpro, "tune", "-o", folder, "--force", "--budget", str(args.budget), *(stack == "compile") * ["--allow", "compile"],
                 *job(args.budget + args.more_steps)]]
    trace = os.path.join(folder, "trace")
    return [[args.dpro, "profile", "-q", "-o", trace, "--force", *(stack == "ring") * ["--probe", "compile"], *job(args.more_steps)],
            [args.dpro, "optimize", "-q", trace, "-o", folder, *(stack == "ring") * ["--allow", "compile"], "--finalists", "3"],
            [args.dpro, "tune", "--restart", "-o", folder, "--warmup", "5", "--budget", str(args.budget), *job(args.more_steps)]]


def run(args, stack, network, rate):
    """Returns what went wrong, None."""
    folder = os.path.join(args.folder, "%s-%s-%s" % (network, stack, rate))
    if args.again:
        shutil.rmtree(folder, ignore_errors=True)
    if is_done(folder):
        return None
    os.makedirs(folder, exist_ok=True)
    for command in commands(args, stack, network, rate, folder):
        with open(os.path.join(folder, "log"), "ab") as log:
            job = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env={**os.environ, "DPRO_VERIFY_STEPS": "8", "OMP_NUM_THREADS": "1"})
        threading.Thread(target=let_ranks_go_first, args=(job,), daemon=True).start()
        try:
            code = job.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.wait()
            return "dpro %s took longer than %d s" % (command[1], LIMIT_S)
        if code:
            return "dpro %s ended with exit code %d: %s" % (command[1], code, os.path.join(folder, "log"))
    return None if is_done(folder) else "nothing was decided: %s" % os.path.join(folder, "log")


def told(folder):
    try:
        with open(os.path.join(folder, "tune.json"), encoding="utf-8") as file:
            return json.load(file)
    except OSError:
        return None


def is_done(folder):
    found = told(folder)
    return bool(found and found["complete"])


def rows(folder):
    """Of each finalist of each job that was measured; none of what was not."""
    for name in sorted(os.listdir(folder)):
        found = told(os.path.join(folder, name))
        if not found or not found["race"]["blocks"]:
            continue
        race, promised = found["race"], {one["name"]: one.get("promised_pct") for one in found["finalists"]}
        for what, entry in race["names"].items():
            if what == "baseline" or entry["saves_pct"] is None or not entry["blocks"]:
                continue
            low, high = entry["low_pct"], entry["high_pct"]
            verdict = "out" if not entry["in"] else "so far" if not found["complete"] else "chosen" if what == race["winner"] else ""
            yield ("`%s: %s`" % (name, what), "%+.1f" % entry["saves_pct"],
                   "–" if low is None or high is None else "%+.1f to %+.1f" % (low, high),
                   "–" if promised.get(what) is None else "%+.1f" % promised[what], verdict)


def write(folder):
    """The finalists that a job goes on with."""
    path = os.path.join(ROOT, "doc", "accuracy.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(renewed(text, {"networks": markdown(HEAD[:-1], [row[:-1] for row in rows(folder) if row[-1] == "chosen"])}))


def main():
    parser = argparse.ArgumentParser(description="the paper's evaluation on small jobs")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--networks", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--stacks", nargs="+", choices=STACKS, default=tuple(STACKS))
    parser.add_argument("--rates", nargs="+", default=RATES, help="of the link between both hosts, as tc has them")
    parser.add_argument("--budget", type=int, default=600, help="steps of turns of a job")
    parser.add_argument("--more-steps", type=int, default=120, help="of a job beside these: recording, search")
    parser.add_argument("--folder", default=FOLDER, help="where jobs are kept")
    parser.add_argument("--again", action="store_true", help="also those that are done")
    parser.add_argument("--readme", action="store_true", help="renew the table of doc/accuracy.md")
    args = parser.parse_args()
    args.dpro = os.path.join(ROOT, args.build, "dpro")
    go_first()
    for stack in args.stacks:
        for network in [one for one in STACKS[stack] if one in args.networks]:
            for rate in args.rates:
                problem = run(args, stack, network, rate)
                print(f"{network}, {stack}, {rate}: {problem or 'measured'}", flush=True)
    os.makedirs(args.folder, exist_ok=True)
    for row in rows(args.folder):
        print("  ".join(row))
    if args.readme:
        write(args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
