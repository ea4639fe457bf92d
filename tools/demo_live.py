#!/usr/bin/env python3
"""Records a real training on two ranks, replays it, and sets the prediction beside what was measured: `make demo-live`.

As root the ranks are on two network namespaces joined by a link of 1 Gbit/s (hosts.sh); else both on this one."""
import argparse
import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOSTS = os.path.join(ROOT, "tools", "hosts.sh")
STEPS = 55  # what a recording needs, and a few more


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


def go_first():
    """Ahead of other login sessions, where this is allowed: nice alone does nothing between them."""
    try:
        with open("/proc/self/autogroup", "w", encoding="utf-8") as file:
            file.write("-15")
    except OSError:
        pass


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
    done = subprocess.run(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    if done.returncode != 0:
        if quiet:
            sys.stderr.write((done.stdout + done.stderr).decode("utf-8", "replace")[-3000:])
        raise SystemExit(f"dpro: {script[0]} ended with status {done.returncode}")
    return done.stdout


def train(command, python, script, steps=STEPS, arguments=(), before=(), **how):
    """Trains an example, or a network of bench/memory_models.py, with `arguments`, as launch() does. `before`: a script and its
    arguments, which runs the example."""
    own = [os.path.join("examples", script)] if script.endswith(".py") else ["bench/train_memory.py", "--model", script]
    return launch(command, python, [*before, *own, "--device", "cpu", "--steps", str(steps), *arguments], **how)


def record(dpro, python, script, trace, **options):
    """Trains an example under `dpro profile`."""
    train([dpro, "profile", "-o", trace, "--"], python, script, **options)


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

    def say(line=""):
        print(line, flush=True)

    record(dpro, python, "gpt.py", trace, say=say)
    say()
    say(f"  dpro replay {trace} -o {out}")
    subprocess.run([dpro, "replay", trace, "-o", out], check=True)
    with open(os.path.join(out, "replay.json"), encoding="utf-8") as file:
        replay = json.load(file)
    predicted, profiled = replay["predicted"]["iteration_ms"], replay["measured"]["iteration_ms"]
    say()
    say(f"{'predicted by the replay':<40}{predicted:8.1f} ms")
    say(f"{'measured, while it was recorded':<40}{profiled:8.1f} ms  {100 * (predicted / profiled - 1):+.1f} %")
    unprofiled = replay["unprofiled"]
    say(f"{'measured, just before and after':<40}{unprofiled['iteration_ms']:8.1f} ms  {unprofiled['error_pct']:+.1f} %"
        f"  (mean of {unprofiled['steps']} steps without a profiler)")
    say("\nLook at:")
    say(f"  {out}/report.html          open it in a browser")
    say(f"  {out}/timeline.json.gz     open it at https://ui.perfetto.dev")
    say(f"  {out}/trace                what was recorded")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as problem:
        sys.exit(problem.returncode)
