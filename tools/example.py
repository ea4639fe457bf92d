#!/usr/bin/env python3
"""Trains one of examples/ on two workers under `dpro profile`, replays it, and sets the prediction beside what was measured:
`make example-tensorflow` and its kin.

As root the workers are on two network namespaces joined by a link of 1 Gbit/s (hosts.sh); else both on this one."""
import argparse
import json
import os
import shutil
import subprocess
import sys

from demo_live import HOSTS, ROOT, can_make_hosts, go_first, replay

WORKERS = 2


class Example:
    """`venv`: its environment, made by tools/venv.sh; `script`; `kind`: what the processes are told of each other;
    `served`: the first worker drives all of them."""

    def __init__(self, venv, script, kind, arguments=(), servers=0, served=False):
        self.venv, self.script, self.kind, self.arguments, self.servers = venv, script, kind, list(arguments), servers
        self.served = served or servers > 0


EXAMPLES = {
    "tensorflow": Example("tensorflow", "tensorflow_ring.py", "tensorflow"),
    "tensorflow-ps": Example("tensorflow", "tensorflow_ps.py", "tensorflow", servers=1),
    # on two servers, with weights of several layers to share out
    "tensorflow-ps-2": Example("tensorflow", "tensorflow_ps.py", "tensorflow",
                               ["--width", "8", "--units", "512", "--hidden", "3"], servers=2),
    # worker 0 drives the session, the other one serves
    "tensorflow-collectives": Example("tensorflow", "tensorflow_collectives.py", "tensorflow", served=True),
    "tensorflow-sessions": Example("tensorflow", "tensorflow_collectives.py", "tensorflow", ["--own-sessions"]),
    "mxnet-2": Example("mxnet", "mxnet_ps.py", "mxnet", servers=2),
    "mxnet": Example("mxnet", "mxnet_ps.py", "mxnet", servers=1),
    "mxnet-gluon": Example("mxnet", "mxnet_ps.py", "mxnet", ["--gluon"], servers=2),
    "horovod-tensorflow": Example("horovod", "horovod_tensorflow.py", "horovod"),
    "horovod-mxnet": Example("horovod", "horovod_mxnet.py", "horovod"),
    "horovod-pytorch": Example("horovod-pytorch", "horovod_pytorch.py", "horovod"),
}


def example_named(name):
    """For argparse, which refuses an empty list of choices."""
    if name not in EXAMPLES:
        raise argparse.ArgumentTypeError("%r is none of %s" % (name, ", ".join(EXAMPLES)))
    return name


def python_in(venv):
    """The interpreter of an environment, None where there is none."""
    named = os.environ.get("DPRO_%s_PYTHON" % venv.upper().replace("-", "_"))
    python = named or os.path.join(ROOT, ".venv-" + venv, "bin", "python")
    return python if os.path.exists(python) else None


def roles(example, hosts):
    """(host, name, environment) of each process, the first worker last: when it ends, the job has. An address of ADDRESS<H>
    is put in where it is known."""
    found = []
    if example.kind == "tensorflow":
        cluster = {"worker": ["ADDRESS%d:%d" % (w % hosts, 29510 + w) for w in range(WORKERS)]}
        if example.servers:
            cluster["ps"] = ["ADDRESS%d:%d" % (s % hosts, 29500 + s) for s in range(example.servers)]
        for job, addresses in cluster.items():
            for index in range(len(addresses)):
                config = {"cluster": cluster, "task": {"type": job, "index": index}}
                found.append((index % hosts, "%s%d" % (job, index), {"TF_CONFIG": json.dumps(config)}))
    elif example.kind == "mxnet":
        common = {"DMLC_PS_ROOT_URI": "ADDRESS0", "DMLC_PS_ROOT_PORT": "29520", "DMLC_NUM_WORKER": str(WORKERS),
                  "DMLC_NUM_SERVER": str(example.servers)}
        for role, n in (("scheduler", 1), ("server", example.servers), ("worker", WORKERS)):
            for index in range(n):
                own = {"DMLC_NODE_HOST": "ADDRESS%d" % (index % hosts)} if hosts > 1 else {}
                found.append((index % hosts, "%s%d" % (role, index), {**common, **own, "DMLC_ROLE": role}))
    return sorted(found, key=lambda process: process[1] == "worker0")


def serves(example, name):
    """Whether a process waits for ever when the training is over."""
    return example.kind == "tensorflow" and example.served and name != "worker0"


# Started once a host: its processes, of which those that only serve are ended with the first worker.
HOST_SCRIPT = r"""
import json, os, signal, subprocess, sys, time
host, processes = int(os.environ.get("HOST", 0)), json.loads(sys.argv[1])
addresses = ["10.77.0.%d" % (h + 1) if "HOST" in os.environ else "127.0.0.1" for h in range(8)]
command, done = sys.argv[3:], sys.argv[2]
started, begun = [], time.time()
def over():  # this run: dpro verify makes several
    return os.path.exists(done) and os.path.getmtime(done) >= begun
for at, name, serves, environment in processes:
    if at != host:
        continue
    environment = {k: v.replace("ADDRESS0", addresses[0]).replace("ADDRESS1", addresses[1]) for k, v in environment.items()}
    if "HOST" in os.environ:
        environment["DMLC_INTERFACE"] = "eth0"
    started.append((name, serves, subprocess.Popen(command, env={**os.environ, **environment})))
code = 0
for name, serves, process in started:
    if not serves:
        code = process.wait() or code
if any(name == "worker0" for name, _, _ in started):
    open(done, "w").close()
while any(serves and process.poll() is None for _, serves, process in started) and not over():
    time.sleep(0.1)
for name, serves, process in started:
    if serves and process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait()
sys.exit(code)
"""


# As hosts.sh has its links.
SLOW_LOOPBACK = """ip link set lo up; tc qdisc add dev lo root tbf rate "$1" burst 80kb latency 50ms; shift
for local in 127.0.0.1 127.0.0.0/8; do
    ip route replace local $local dev lo table local proto kernel scope host src 127.0.0.1 congctl cubic
done
sysctl -qw net.ipv4.tcp_limit_output_bytes=1048576; exec "$@\""""


def train(example, command, steps, rate="1gbit", arguments=(), environment=None, quiet=False):
    """Trains an example on two workers, `command` (`dpro profile ... --`) before it on each host."""
    python = python_in(example.venv)
    script = [os.path.join("examples", example.script), "--steps", str(steps), *example.arguments, *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    env.pop("PORT", None)  # ps-lite would bind every process to it
    apart = can_make_hosts() and example.kind != "horovod"
    if example.kind == "horovod":
        horovodrun = os.path.join(os.path.dirname(python), "horovodrun")
        launch = [*command, python, horovodrun, "--gloo", "--network-interface", "lo", "-np", str(WORKERS), "-H",
                  "localhost:%d" % WORKERS, python, *script]
        if can_make_hosts():  # Horovod finds the others by their names: on one machine, whose own link is slowed down
            launch = ["unshare", "--net", "bash", "-c", SLOW_LOOPBACK, "-", rate, *launch]
    else:
        processes = [(host, name, serves(example, name), more) for host, name, more in roles(example, 2 if apart else 1)]
        done = os.path.join(ROOT, "out", ".done-%d" % os.getpid())
        os.makedirs(os.path.dirname(done), exist_ok=True)
        launch = [*command, sys.executable, "-c", HOST_SCRIPT, json.dumps(processes), done, python, *script]
        if apart:
            launch = [HOSTS, "--rate", rate, *launch]
    pipe = subprocess.PIPE if quiet else None
    try:
        ran = subprocess.run(launch, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    finally:
        if example.kind != "horovod" and os.path.exists(done):
            os.unlink(done)
    if ran.returncode != 0:
        if quiet:
            sys.stderr.write((ran.stdout + ran.stderr).decode("utf-8", "replace")[-3000:])
        raise SystemExit("dpro: the training of %s ended with status %d" % (example.script, ran.returncode))
    return ran.stdout


def main():
    parser = argparse.ArgumentParser(description="train an example under dpro profile, replay it")
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--steps", type=int, default=60, help="steps to train")
    parser.add_argument("--out", help="folder of the results (out/NAME)")
    args = parser.parse_args()
    example = EXAMPLES[args.example]
    os.chdir(ROOT)
    if python_in(example.venv) is None:
        raise SystemExit("dpro: no .venv-%s: tools/venv.sh %s makes it" % (example.venv, example.venv))
    dpro, out = os.path.join(args.build, "dpro"), args.out or os.path.join("out", "example-" + args.example)
    trace = os.path.join(out, "trace")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    go_first()
    train(example, [dpro, "profile", "-o", trace, "--"], args.steps)
    replay(dpro, trace, out)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as problem:
        sys.exit(problem.returncode)
