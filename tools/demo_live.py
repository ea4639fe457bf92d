#!/usr/bin/env python3
"""Trains a small job on two ranks under `dpro profile`, replays it, and sets the prediction beside what was measured: `make demo-live`
with PyTorch, `make example-tensorflow` and its kin with one of EXAMPLES."""
import argparse
import json
import os
import shutil
import subprocess
import sys

from experiment import EXAMPLES, HOSTS, ROOT, go_first, let_ranks_go_first, live_python, python_in, train, train_example  # noqa: F401
from figures import off

LINE = "%-40s%8.1f ms%s"


def replay(dpro, trace, out):
    """Replays what was recorded, as a user would, and sets the prediction beside what was measured."""
    print(f"\n  dpro replay {trace} -o {out}", flush=True)
    subprocess.run([dpro, "replay", trace, "-o", out], check=True)
    with open(os.path.join(out, "replay.json"), encoding="utf-8") as file:
        facts = json.load(file)
    predicted, unprofiled = facts["predicted"]["iteration_ms"], facts.get("unprofiled")
    rows = [("measured, while it was recorded", facts["measured"]["iteration_ms"], "")]
    if unprofiled:
        rows.append(("measured, just before and after", unprofiled["iteration_ms"],
                     f"  (mean of {unprofiled['steps']} steps without a profiler)"))
    print("\n" + LINE % ("predicted by the replay", predicted, ""))
    for what, ms, note in rows:
        print(LINE % (what, ms, f"  {off(predicted, ms):+.1f} %{note}"))
    print(f"\nLook at:\n  {out}/report.html          open it in a browser\n"
          f"  {out}/timeline.json.gz     open it at https://ui.perfetto.dev\n  {out}/trace                what was recorded")


def main():
    parser = argparse.ArgumentParser(description="record a real training, replay it")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("example", nargs="?", choices=EXAMPLES, help="of another framework than PyTorch")
    args = parser.parse_args()
    os.chdir(ROOT)
    example = EXAMPLES.get(args.example)
    if example and python_in(example.venv) is None:
        raise SystemExit("dpro: no .venv-%s: tools/venv.sh %s makes it" % (example.venv, example.venv))
    python = live_python() if not example else None
    dpro, out = os.path.join(args.build, "dpro"), os.path.join("out", "example-" + args.example if example else "demo-live")
    trace = os.path.join(out, "trace")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    go_first()
    command = [dpro, "profile", "-o", trace, "--"]
    if example:
        train_example(example, command, 60)
    else:
        train(command, python, "gpt.py", say=lambda line: print(line, flush=True))
    replay(dpro, trace, out)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as problem:
        sys.exit(problem.returncode)
