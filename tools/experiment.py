"""Real jobs for demonstrations, benchmarks and tables of accuracy: where they run, how one is started, and jobs that take turns.

As root the ranks are on network namespaces joined by links of a given rate (hosts.sh); else all on this one."""
import argparse
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOSTS = os.path.join(ROOT, "tools", "hosts.sh")
STEPS = 55  # what a recording needs, and a few more
SESSIONS_START_S = 40
WORKERS = 2  # of a job that is not PyTorch's
BETWEEN = 2  # turns of other configs, from one of the job as it is to the next


# ---- where ----


def python_in(venv):
    """The interpreter of an environment, None where there is none."""
    named = os.environ.get("DPRO_%s_PYTHON" % venv.upper().replace("-", "_"))
    python = named or os.path.join(ROOT, ".venv-" + venv, "bin", "python")
    return python if os.path.exists(python) else None


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


def can_make_hosts():
    return (os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("tc") is not None
            and subprocess.run([HOSTS, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0)


def need_hosts(otherwise=""):
    if not can_make_hosts():
        raise SystemExit("dpro: this needs root, ip and tc, for network namespaces" + otherwise)


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


# ---- a job ----


def run_job(name, command, quiet, environment):
    """Returns what was printed if quiet."""
    pipe = subprocess.PIPE if quiet else None
    # torch's own chatter would hide what is to be seen
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **(environment or {})}
    env.pop("PORT", None)  # MXNet's ps-lite would bind every process to it
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    if goes_first:
        threading.Thread(target=let_ranks_go_first, args=(process,), daemon=True).start()
    out, errors = process.communicate()
    if process.returncode != 0:
        if quiet:
            sys.stderr.write((out + errors).decode("utf-8", "replace")[-3000:])
        raise SystemExit(f"dpro: {name} ended with status {process.returncode}")
    return out


def launch(command, python, script, rate="1gbit", say=None, quiet=False, direct=False, ranks=2, environment=None):
    """Runs a script of PyTorch and its arguments on two ranks or more, `command` (`dpro profile ... --`) before each host's torchrun.
    `rate`: of the links between hosts; None: all ranks on this one. `say` is called with the line that a user would type. `direct`: on
    hosts without torchrun, which takes as long to start as a rank."""
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node=1"]
    shown = f"{' '.join(['dpro', *command[1:]])} torchrun {{}} {' '.join(script)}"
    if rate and can_make_hosts():
        torchrun += [f"--nnodes={ranks}", "--node-rank=@HOST", "--master-addr=@ADDRESS", "--master-port=29500"]
        if direct:
            torchrun = ["env", "RANK=@HOST", "LOCAL_RANK=0", f"WORLD_SIZE={ranks}", "MASTER_ADDR=@ADDRESS", "MASTER_PORT=29500", python]
        shell = 'set -- "${@/@HOST/$HOST}"; exec "${@/@ADDRESS/$HOST0}"'
        command = [HOSTS, "--hosts", str(ranks), "--rate", rate, "bash", "-c", shell, "-", *command, *torchrun, *script]
        where = f"{ranks} machines (network namespaces), joined by a link of {rate}/s; on each:"
        shown = shown.format(f"--nnodes={ranks} --node-rank=... --master-addr=...")
    else:
        torchrun[-1] = f"--nproc-per-node={ranks}"
        command = [*command, *torchrun, "--standalone", *script]
        where = f"{ranks} ranks on this machine (as root: in network namespaces of their own with a slow link between them):"
        shown = shown.format(f"--nproc-per-node={ranks}")
    if say:
        say(where)
        say("  " + shown)
    return run_job(script[0], command, quiet, environment)


def train(command, python, script, steps=STEPS, arguments=(), before=(), **how):
    """Trains an example, or a network of bench/memory_models.py, with `arguments`, as launch() does. `before`: a script and its
    arguments, which runs the example."""
    own = [os.path.join("examples", script)] if script.endswith(".py") else ["bench/train_memory.py", "--model", script]
    return launch(command, python, [*before, *own, "--device", "cpu", "--steps", str(steps), *arguments], **how)


# ---- examples of other frameworks ----


class Example:
    """`venv`: its environment, made by tools/venv.sh; `script`; `kind`: what the processes are told of each other;
    `served`: the first worker drives all of them."""

    def __init__(self, venv, script, kind, arguments=(), servers=0, served=False):
        self.venv, self.script, self.kind, self.arguments, self.servers = venv, script, kind, list(arguments), servers
        self.served = served or servers > 0

    def within(self, script):
        """The same, run by a script of bench/, which its environment tells of the example."""
        return Example(self.venv, os.path.join(os.pardir, "bench", script), self.kind, self.arguments, self.servers)


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


def example_command(example, steps, done, rate="1gbit", arguments=(), command=()):
    """Trains an example on two workers, `command` (`dpro profile ... --`) before it on each host. `done`: a file that is there when the
    first worker has ended."""
    python, hosts = python_in(example.venv), can_make_hosts()
    script = [os.path.join("examples", example.script), "--steps", str(steps), *example.arguments, *arguments]
    if example.kind == "horovod":
        horovodrun = os.path.join(os.path.dirname(python), "horovodrun")
        started = [*command, python, horovodrun, "--gloo", "--network-interface", "lo", "-np", str(WORKERS), "-H",
                   "localhost:%d" % WORKERS, python, *script]
        # Horovod finds the others by their names: on one machine, whose own link is slowed down
        return ["unshare", "--net", "bash", "-c", SLOW_LOOPBACK, "-", rate, *started] if hosts else started
    processes = [(host, name, serves(example, name), more) for host, name, more in roles(example, 2 if hosts else 1)]
    started = [*command, sys.executable, "-c", HOST_SCRIPT, json.dumps(processes), done, python, *script]
    return [HOSTS, "--rate", rate, *started] if hosts else started


def train_example(example, command, steps, rate="1gbit", arguments=(), environment=None, quiet=False):
    done = os.path.join(ROOT, "out", ".done-%d" % os.getpid())
    os.makedirs(os.path.dirname(done), exist_ok=True)
    started = example_command(example, steps, done, rate, arguments, command)
    try:
        return run_job(example.script, started, quiet, {"PYTHONDONTWRITEBYTECODE": "1", **(environment or {})})
    finally:
        if os.path.exists(done):
            os.unlink(done)


# ---- turns ----


class Turns:
    """A job that waits for its turns, in processes of its own: in one process, what a config leaves of malloc's heap makes the next
    one fault pages that it never would by itself, and the job as it is took 8 to 15 % longer after another config. `run(folder)`
    runs it, with a pair of named pipes a rank in the folder."""

    def __init__(self, ranks, run):
        self.folder = tempfile.mkdtemp(prefix="dpro-turns-")
        pipes = [[os.path.join(self.folder, "%s.%d" % (name, rank)) for rank in range(ranks)] for name in ("done", "go")]
        for path in pipes[0] + pipes[1]:
            os.mkfifo(path)
        # open at both ends, so that none of this waits for a job that may have failed
        self.done, self.go = ([os.fdopen(os.open(path, os.O_RDWR), mode) for path in paths] for paths, mode in zip(pipes, "rw"))
        self.told = None
        self.job = threading.Thread(target=self.run, daemon=True, args=(run,))
        self.job.start()

    def run(self, run):
        self.told = run(self.folder)

    def take(self):
        """Of each rank, what is known of each step."""
        for pipe in self.go:
            print(file=pipe, flush=True)
        found = []
        for pipe in self.done:
            while not select.select([pipe], [], [], 1)[0]:
                if not self.job.is_alive():
                    raise SystemExit("dpro: a job ended before its turn")
            found.append(json.loads(pipe.readline()))
        return found

    def end(self):
        """What run() returned."""
        for pipe in self.go:
            pipe.close()
        self.job.join()
        shutil.rmtree(self.folder)
        return self.told


def by_turns(jobs, rounds):
    """Of each of these jobs but the one as it is, its turns, every one with the turn of the job as it is that went before; and what
    each job returned."""
    found, own = {config: [] for config in jobs if config != "as-is"}, None
    for job in jobs.values():
        job.take()  # all are ready then
    for number, config in enumerate(rounds * list(found)):
        if number % BETWEEN == 0:
            own = jobs["as-is"].take()
        found[config].append((jobs[config].take(), own))
    return found, {config: job.end() for config, job in jobs.items()}


def middle(ranks, key):
    """Median over a turn's steps, mean over ranks."""
    return statistics.mean(statistics.median(step[key] for step in steps) for steps in ranks)


def ratios(pairs):
    """Of the time that passed, and of what the ranks computed, to the job as it is: the median over turns, and the standard error of
    their mean."""
    found = {}
    for key, name in (("ms", "ratio"), ("cpu_ms", "cpu_ratio")):
        values = [middle(turn, key) / middle(own, key) for turn, own in pairs]
        found[name] = round(statistics.median(values), 5)
        found[name + "_noise"] = round(statistics.stdev(values) / len(values) ** 0.5, 5) if len(values) > 1 else 0.0
    return found


# ---- an experiment ----


def options(description, keep=True):
    """What every experiment can be asked for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build", default="build", help="build folder")
    if keep:
        parser.add_argument("--keep", metavar="DIR", help="keep recordings and truths there; those that are there are judged again")
    return parser


def begin(args):
    """dpro, and the folder of the recordings."""
    folder = os.path.abspath(getattr(args, "keep", None) or tempfile.mkdtemp(prefix="dpro-experiment-"))
    os.makedirs(folder, exist_ok=True)
    go_first()
    return os.path.join(ROOT, args.build, "dpro"), folder


def end(args, folder, outside):
    """The exit status."""
    for line in outside:
        print("outside of its target:", line)
    if not getattr(args, "keep", None):
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if outside else 0


def record_once(trace, run):
    """Unless it is there, a whole recording, made by `run`."""
    if not os.path.exists(os.path.join(trace, "job.json")):
        shutil.rmtree(trace, ignore_errors=True)
        run()
