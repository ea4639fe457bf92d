#!/usr/bin/env python3
"""What-ifs of jobs that nobody has seen, against the same jobs run that way: `make accuracy-blind`.

Draws jobs at random (--seed): a network's kind and size, a bucket size, a link. Each trains on two hosts, is recorded, and is
asked for other bucket sizes, 16-bit gradients and a slower link, and for its advice. One more run of the job, without a
profiler, trains by turns with each of these. Prints each error and how many truths lie within the predicted 95 % intervals.
Takes 4 minutes a job and wants a quiet machine and root."""
import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile

from demo_live import ROOT, can_make_hosts, go_first, launch, live_python
from figures import facts_of, gain_pct, off

COVERED_PCT = 95


def draw_job(rng):
    kind = rng.choice(("mlp", "conv", "transformer", "lstm"))
    width, layers, batch = {"mlp": ((512, 768, 1024), (3, 5, 8), (128, 256)), "conv": ((16, 24, 32), (3, 4), (8, 16)),
                            "transformer": ((128, 192, 256), (2, 4, 6), (8, 16)), "lstm": ((256, 384, 512), (1, 2, 3), (8, 16))}[kind]
    return {"kind": kind, "width": rng.choice(width), "layers": rng.choice(layers), "batch_size": rng.choice(batch),
            "bucket_cap_mb": rng.choice((0, 2, 5, 10, 25)), "rate": rng.choice((200, 350, 500, 800, 1200, 2000))}


def configs_of(job):
    """What is run, the job as it was recorded first."""
    others = ["cap=25", "cap=1", "cap=5", "cap=100", "cap=5,compress=fp16", "cap=25,compress=fp16", f"rate={job['rate'] / 2:g}"]
    return [f"rate={job['rate']}", *(other for other in others if other != f"cap={job['bucket_cap_mb']}")]


def options_of(job, config):
    """The options that ask dpro for it."""
    settings = dict(part.split("=") for part in config.split(","))
    options = ["--bandwidth", f"{float(settings['rate']) / job['rate']:g}x"] if "rate" in settings else []
    options += ["--bucket-cap-mb", settings["cap"]] if "cap" in settings else []
    return options + (["--compress", settings["compress"]] if "compress" in settings else [])


def on_hosts(python, job, command, *arguments):
    """What rank 0 printed."""
    options = [f"--{key.replace('_', '-')}={value}" for key, value in job.items()]
    return launch(command, python, [os.path.join("bench", "train_blind.py"), *options, *arguments], rate=f"{job['rate']}mbit", quiet=True)


def record(dpro, python, job, folder):
    """Records the job, then runs it by turns: with what dpro is asked, and the setting that it advises."""
    trace, truth = os.path.join(folder, "trace"), os.path.join(folder, "truth.json")
    os.makedirs(folder)
    with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
        json.dump(job, file)
    on_hosts(python, job, [dpro, "profile", "-q", "-o", trace, "--"], "--steps=60")
    advised = (facts_of(dpro, "optimize", trace)["best"]["setting"] or "").replace("bucket_cap_mb ", "cap=")
    configs = configs_of(job)
    configs += [advised] if advised and advised not in configs else []
    printed = on_hosts(python, job, [], "--steps=5", "--configs", *configs)
    with open(truth, "wb") as file:
        file.write(printed)


def judge(dpro, folder):
    """The job, its predictions beside the truth by config, and (setting, promised, measured gain in %) of the advice."""
    trace = os.path.join(folder, "trace")
    with open(os.path.join(folder, "job.json"), encoding="utf-8") as file:
        job = json.load(file)
    with open(os.path.join(folder, "truth.json"), encoding="utf-8") as file:
        truth = {name: statistics.median(ms for turn in turns for ms in turn) for name, turns in json.load(file).items()}
    own, predicted = next(iter(truth)), {}
    for name, true_ms in truth.items():
        facts = facts_of(dpro, "whatif", trace, *options_of(job, name))
        ms, half_pct, speedup = (facts["predicted"]["iteration_ms"], facts["predicted"]["uncertainty_pct"], facts["speedup"])
        ratio, ratio_half = truth[own] / true_ms, 1.96 * facts["speedup_std"]
        predicted[name] = {"truth_ms": true_ms, "ms": ms, "half_pct": half_pct, "inside": abs(true_ms / ms - 1) * 100 <= half_pct,
                           "ratio_half_pct": 100 * ratio_half / speedup,
                           "ratio_inside": None if name == own else abs(ratio - speedup) <= ratio_half,
                           "ratio_error_pct": off(ratio, speedup)}
    found = facts_of(dpro, "optimize", trace)
    advised = (found["best"]["setting"] or "").replace("bucket_cap_mb ", "cap=")
    promise = None
    if advised in truth:
        promise = advised, gain_pct(found["replayed_ms"], found["best"]["iteration_ms"]), gain_pct(truth[own], truth[advised])
    return job, predicted, promise


def print_job(job, predicted, promise):
    print(" ".join(f"{key}={value}" for key, value in job.items()))
    for name, p in predicted.items():
        ratio = "" if p["ratio_inside"] is None else "  ratio %+5.1f %% (+- %4.1f)%s" % (
            p["ratio_error_pct"], p["ratio_half_pct"], "" if p["ratio_inside"] else "  outside")
        print("  %-22s %7.1f ms, predicted %7.1f  %+5.1f %% (+- %4.1f)%s%s" % (
            name, p["truth_ms"], p["ms"], off(p["ms"], p["truth_ms"]), p["half_pct"], "" if p["inside"] else "  outside",
            ratio), flush=True)
    if promise:
        print("  advised %s: promised %.1f %% less, measured %.1f %%" % promise, flush=True)


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
    judged, promises = [], []
    for number in range(seed, seed + args.jobs):
        job = os.path.join(folder, f"job-{number}")
        if not os.path.exists(os.path.join(job, "truth.json")):
            shutil.rmtree(job, ignore_errors=True)
            record(dpro, python, draw_job(random.Random(number)), job)
        drawn, predicted, promise = judge(dpro, job)
        print(f"job {number}: ", end="")
        print_job(drawn, predicted, promise)
        judged += predicted.values()
        promises += [promise] if promise else []
    inside = [p["inside"] for p in judged]
    ratios = [p["ratio_inside"] for p in judged if p["ratio_inside"] is not None]
    print("inside the 95 %% interval: %d of %d milliseconds (+- %.1f %% in the median), %d of %d ratios (+- %.1f %%)" % (
        sum(inside), len(inside), statistics.median(p["half_pct"] for p in judged), sum(ratios), len(ratios),
        statistics.median(p["ratio_half_pct"] for p in judged if p["ratio_inside"] is not None)))
    if promises:
        off = [promised - measured for _, promised, measured in promises]
        print("promises of settings: off by %.1f points in the mean, %.1f the most, too hopeful in %d of %d" % (
            statistics.mean(map(abs, off)), max(map(abs, off)), sum(o > 0 for o in off), len(off)))
    if not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if all(100 * sum(flags) >= COVERED_PCT * len(flags) for flags in (inside, ratios)) else 1


if __name__ == "__main__":
    sys.exit(main())
