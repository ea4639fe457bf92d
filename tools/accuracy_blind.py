#!/usr/bin/env python3
"""What-ifs of jobs that nobody has seen, against the same jobs run that way: `make accuracy-blind`.

Draws jobs at random (--seed): a network's kind and size, a bucket size, a link. Each trains on two hosts, is recorded, and is
asked for other bucket sizes, 16-bit gradients and a slower link. Only then does one run of the job, minutes later and without
a profiler, train by turns with each of these. Prints each error and how many truths lie within the predicted 95 % intervals.
Takes 4 minutes a job and wants a quiet machine and root."""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

from demo_live import HOSTS, ROOT, can_make_hosts, go_first, live_python

COVERED_PCT = 95


def draw_job(rng):
    kind = rng.choice(("mlp", "conv", "transformer", "lstm"))
    width, layers, batch = {"mlp": ((512, 768, 1024), (3, 5, 8), (128, 256)), "conv": ((16, 24, 32), (3, 4), (8, 16)),
                            "transformer": ((128, 192, 256), (2, 4, 6), (8, 16)), "lstm": ((256, 384, 512), (1, 2, 3), (8, 16))}[kind]
    return {"kind": kind, "width": rng.choice(width), "layers": rng.choice(layers), "batch_size": rng.choice(batch),
            "bucket_cap_mb": rng.choice((0, 2, 5, 10, 25)), "rate": rng.choice((200, 350, 500, 800, 1200, 2000))}


def configs_of(job):
    """What is run, by the options that ask dpro for it."""
    half = {"cap=25": ["--bucket-cap-mb", "25"], "cap=1": ["--bucket-cap-mb", "1"], "cap=5": ["--bucket-cap-mb", "5"],
            "cap=100": ["--bucket-cap-mb", "100"], "cap=5,compress=fp16": ["--bucket-cap-mb", "5", "--compress", "fp16"],
            "cap=25,compress=fp16": ["--bucket-cap-mb", "25", "--compress", "fp16"],
            f"rate={job['rate'] / 2:g}": ["--bandwidth", "0.5x"]}
    half.pop(f"cap={job['bucket_cap_mb']}", None)
    return half


def on_hosts(python, job, command, *arguments):
    """What rank 0 printed."""
    options = [f"--{key.replace('_', '-')}={value}" for key, value in job.items()]
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node=1", "--nnodes=2", "--node-rank=@HOST",
                "--master-addr=@ADDRESS", "--master-port=29500", os.path.join("bench", "train_blind.py")]
    shell = 'set -- "${@/@HOST/$HOST}"; exec "${@/@ADDRESS/$HOST0}"'
    done = subprocess.run([HOSTS, "--rate", f"{job['rate']}mbit", "bash", "-c", shell, "-", *command, *torchrun, *options, *arguments],
                          cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"})
    if done.returncode != 0:
        sys.stderr.write(done.stderr.decode("utf-8", "replace")[-3000:])
        raise SystemExit(f"dpro: the training of {job} ended with status {done.returncode}")
    return done.stdout.decode()


def predict(dpro, trace, options):
    done = subprocess.run([dpro, "whatif", "--json", trace, *options], stdout=subprocess.PIPE, check=True)
    facts = json.loads(done.stdout)
    return {"ms": facts["predicted"]["iteration_ms"], "half_pct": facts["predicted"]["uncertainty_pct"],
            "own_ms": facts["baseline"]["iteration_ms"], "speedup": facts["speedup"], "speedup_half": 1.96 * facts["speedup_std"]}


def record(dpro, python, job, folder):
    """Records the job, then runs it by turns."""
    trace, truth = os.path.join(folder, "trace"), os.path.join(folder, "truth.json")
    os.makedirs(folder)
    with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
        json.dump(job, file)
    on_hosts(python, job, [dpro, "profile", "-q", "-o", trace, "--"], "--steps=60")
    printed = on_hosts(python, job, [], "--steps=5", "--configs", f"rate={job['rate']}", *configs_of(job))
    with open(truth, "w", encoding="utf-8") as file:
        file.write(printed)


def judge(dpro, folder):
    """Predictions beside the truth: rows of (what, predicted, measured ms)."""
    with open(os.path.join(folder, "job.json"), encoding="utf-8") as file:
        job = json.load(file)
    options = {f"rate={job['rate']}": [], **configs_of(job)}
    predicted = {name: predict(dpro, os.path.join(folder, "trace"), option or ["--bandwidth", "1x"]) for name, option in options.items()}
    with open(os.path.join(folder, "truth.json"), encoding="utf-8") as file:
        truth = {name: statistics.median(ms for turn in turns for ms in turn) for name, turns in json.load(file).items()}
    own = next(iter(options))
    for name, p in predicted.items():
        ratio = truth[own] / truth[name]
        p["truth_ms"] = truth[name]
        p["inside"] = abs(truth[name] / p["ms"] - 1) * 100 <= p["half_pct"]
        p["ratio_inside"] = None if name == own else abs(ratio - p["speedup"]) <= p["speedup_half"]
        p["ratio_error_pct"] = None if name == own else 100 * (ratio / p["speedup"] - 1)
    return job, predicted


def print_job(job, predicted):
    print(" ".join(f"{key}={value}" for key, value in job.items()))
    for name, p in predicted.items():
        ratio = "" if p["ratio_inside"] is None else "  ratio %+5.1f %% (+- %4.1f)%s" % (
            p["ratio_error_pct"], 100 * p["speedup_half"] / p["speedup"], "" if p["ratio_inside"] else "  outside")
        print("  %-22s %7.1f ms, predicted %7.1f  %+5.1f %% (+- %4.1f)%s%s" % (
            name, p["truth_ms"], p["ms"], 100 * (p["ms"] / p["truth_ms"] - 1), p["half_pct"], "" if p["inside"] else "  outside",
            ratio), flush=True)


def main():
    parser = argparse.ArgumentParser(description="what-ifs of jobs that nobody has seen, against the same jobs run that way")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--jobs", type=int, default=4, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=None, help="of the drawing (default: another one each time)")
    parser.add_argument("--keep", metavar="DIR", help="keep recordings and truths there; those that are there are judged again")
    args = parser.parse_args()
    python, dpro = live_python(), os.path.join(ROOT, args.build, "dpro")
    folder = args.keep or tempfile.mkdtemp(prefix="dpro-blind-")
    seed = random.SystemRandom().randrange(10000) if args.seed is None else args.seed
    if not can_make_hosts():
        raise SystemExit("dpro: this needs root, ip and tc")
    go_first()
    judged = []
    for number in range(seed, seed + args.jobs):
        job = os.path.join(folder, f"job-{number}")
        if not os.path.exists(os.path.join(job, "truth.json")):
            shutil.rmtree(job, ignore_errors=True)
            record(dpro, python, draw_job(random.Random(number)), job)
        drawn, predicted = judge(dpro, job)
        print(f"job {number}: ", end="")
        print_job(drawn, predicted)
        judged += predicted.values()
    inside = [p["inside"] for p in judged]
    ratios = [p["ratio_inside"] for p in judged if p["ratio_inside"] is not None]
    print("inside the 95 %% interval: %d of %d milliseconds (+- %.1f %% in the median), %d of %d ratios (+- %.1f %%)" % (
        sum(inside), len(inside), statistics.median(p["half_pct"] for p in judged), sum(ratios), len(ratios),
        statistics.median(100 * p["speedup_half"] / p["speedup"] for p in judged if p["ratio_inside"] is not None)))
    if not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if all(100 * sum(flags) >= COVERED_PCT * len(flags) for flags in (inside, ratios)) else 1


if __name__ == "__main__":
    sys.exit(main())
