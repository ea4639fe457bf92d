#!/usr/bin/env python3
"""Records a real training on two ranks, replays it, and sets the prediction beside what was measured: `make demo-live`.

As root the ranks are on two network namespaces joined by a link of 1 Gbit/s (hosts.sh); else both on this one."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time

from figures import off

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOSTS = os.path.join(ROOT, "tools", "hosts.sh")
STEPS = 55  # what a recording needs, and a few more
SESSIONS_START_S = 40


def live_python():
    """An interpreter that has torch."""
    python = os.environ.get("DPRO_PYTHON") or os.path.join(ROOT, ".venv", "bin", "python")
    find_torch = [python, "-c", "import importlib.metadata as m; m.version('torch')"]
    if os.path.exists(python) and subprocess.run(find_torch, stderr=subprocess.DEVNULL).returncode == 0:
        return python
    try:
        with open(os.path.join(ROOT, ".venv.missing"), encoding="utf-8") as file:
            reason = file.read().strip()
    except OSError:
        reason = f"no torch for {python}"
    raise SystemExit(f"dpro: this needs PyTorch: {reason}")


def set_first(process="self"):
    try:
        with open(f"/proc/{process}/autogroup", "w", encoding="utf-8") as file:
            file.write("-20")
    except OSError:
        pass


def go_first():
    """Ahead of other login sessions, where this is allowed: nice alone does nothing between them."""
    global goes_first
    goes_first = True
    set_first()


goes_first = False


def let_ranks_go_first(process):
    """Hosts and ranks are sessions of their own, that start one after another."""
    until = time.monotonic() + SESSIONS_START_S
    while process.poll() is None and time.monotonic() < until:
        found = [process.pid]
        for parent in found:  # grows
            set_first(parent)
            try:
                with open(f"/proc/{parent}/task/{parent}/children", encoding="utf-8") as file:
                    found += file.read().split()
            except OSError:
                pass
        time.sleep(0.5)


def can_make_hosts():
    return (os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("tc") is not None
            and subprocess.run([HOSTS, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0)


def launch(command, python, script, rate="1gbit", say=None, quiet=False, direct=False, ranks=2, environment=None):
    """Runs a script and its arguments on two ranks or more, `command` (`dpro profile ... --`) before each host's torchrun; returns what
    was printed if quiet. `rate`: of the links between hosts; None: all ranks on this one. `say` is called with the line that a user
    would type. `direct`: on hosts without torchrun, which takes as long to start as a rank."""
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node=1"]
    shown = f"{' '.join(['dpro', *command[1:]])} torchrun {{}} {' '.join(script)}"
    # torch's own chatter would hide what is to be seen
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **(environment or {})}
    if rate and can_make_hosts():
        torchrun += [f"--nnodes={ranks}", "--node-rank=@HOST", "--master-addr=@ADDRESS", "--master-port=29500"]
        if direct:
            torchrun = ["env", "RANK=@HOST", "LOCAL_RANK=0", f"WORLD_SIZE={ranks}", "MASTER_ADDR=@ADDRESS", "MASTER_PORT=29500", python]
        shell = 'set -- "${@/@HOST/$HOST}"; exec "${@/@ADDRESS/$HOST0}"'
        command = [HOSTS, "--hosts", str(ranks), "--rate", rate, "bash", "-c", shell, "-", *command, *torchrun, *script]
        if say:
            say(f"{ranks} machines (network namespaces), joined by a link of {rate}/s; on each:")
            say("  " + shown.format(f"--nnodes={ranks} --node-rank=... --master-addr=..."))
    else:
        torchrun[-1] = f"--nproc-per-node={ranks}"
        command = [*command, *torchrun, "--standalone", *script]
        if say:
            say(f"{ranks} ranks on this machine (as root: in network namespaces of their own with a slow link between them):")
            say("  " + shown.format(f"--nproc-per-node={ranks}"))
    pipe = subprocess.PIPE if quiet else None
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    if goes_first:
        threading.Thread(target=let_ranks_go_first, args=(process,), daemon=True).start()
    out, errors = process.communicate()
    if process.returncode != 0:
        if quiet:
            sys.stderr.write((out + errors).decode("utf-8", "replace")[-3000:])
        raise SystemExit(f"dpro: {script[0]} ended with status {process.returncode}")
    return out


def train(command, python, script, steps=STEPS, arguments=(), before=(), **how):
    """Trains an example, or a network of bench/memory_models.py, with `arguments`, as launch() does. `before`: a script and its
    arguments, which runs the example."""
    own = [os.path.join("examples", script)] if script.endswith(".py") else ["bench/train_memory.py", "--model", script]
    return launch(command, python, [*before, *own, "--device", "cpu", "--steps", str(steps), *arguments], **how)


def record(dpro, python, script, trace, **options):
    """Trains an example under `dpro profile`."""
    train([dpro, "profile", "-o", trace, "--"], python, script, **options)


def replay(dpro, trace, out):
    """Replays what was recorded, as a user would, and sets the prediction beside what was measured."""
    print(f"\n  dpro replay {trace} -o {out}", flush=True)
    subprocess.run([dpro, "replay", trace, "-o", out], check=True)
    with open(os.path.join(out, "replay.json"), encoding="utf-8") as file:
        facts = json.load(file)
    predicted, unprofiled = facts["predicted"]["iteration_ms"], facts.get("unprofiled")
    print(f"\n{'predicted by the replay':<40}{predicted:8.1f} ms")
    rows = [("measured, while it was recorded", facts["measured"]["iteration_ms"], "")]
    if unprofiled:
        rows.append(("measured, just before and after", unprofiled["iteration_ms"],
                     f"  (mean of {unprofiled['steps']} steps without a profiler)"))
    for what, ms, note in rows:
        print(f"{what:<40}{ms:8.1f} ms  {off(predicted, ms):+.1f} %{note}")
    print(f"\nLook at:\n  {out}/report.html          open it in a browser\n"
          f"  {out}/timeline.json.gz     open it at https://ui.perfetto.dev\n  {out}/trace                what was recorded")


def main():
    parser = argparse.ArgumentParser(description="record a real training, replay it")
    parser.add_argument("--build", default="build", help="build folder")
    args = parser.parse_args()
    python, dpro = live_python(), os.path.join(args.build, "dpro")
    os.chdir(ROOT)
    out = os.path.join("out", "demo-live")
    trace = os.path.join(out, "trace")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    go_first()

    record(dpro, python, "gpt.py", trace, say=lambda line: print(line, flush=True))
    replay(dpro, trace, out)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as problem:
        sys.exit(problem.returncode)
