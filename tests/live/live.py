"""What the live tests share: running real training processes with dpro in them, and reading what they left.

They need an interpreter that has torch: DPRO_PYTHON, else the one that runs the tests; without torch they are skipped.
A rank is a process with RANK and its kin in the environment; torchrun is used where it matters. A run that several tests look
at is made once (Case.once), even by suites that run at the same time: its files lie in DPRO_TEST_CACHE."""
import atexit
import fcntl
import functools
import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
from ports import free_ports  # noqa: E402

import warm  # noqa: E402

BUILD = os.environ.get("DPRO_BUILD", os.path.join(ROOT, "build"))
DPRO = os.path.join(BUILD, "dpro")
TRACER = os.path.join(BUILD, "tracer", "libdpro_tracer.so")
SITE = os.path.join(ROOT, "python", "dpro", "site")
PYTHON = os.environ.get("DPRO_PYTHON", sys.executable)
LONG = bool(os.environ.get("DPRO_LONG"))  # make test-long

CACHE = os.environ.get("DPRO_TEST_CACHE")
if not CACHE:
    CACHE = tempfile.mkdtemp(prefix="dpro-live-cache-")
    atexit.register(shutil.rmtree, CACHE, ignore_errors=True)


def _torch_version():
    asked = subprocess.run([PYTHON, "-c", "import importlib.metadata as m; print(m.version('torch'))"], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return asked.stdout.decode().strip() if asked.returncode == 0 else None


TORCH = _torch_version()


@functools.cache
def without_bf16_lstm():
    """Why an LSTM can't be computed in bfloat16 here, asked of the library; None: it can."""
    ran = subprocess.run([PYTHON, "-c", "import torch\n"
                          "with torch.autocast('cpu', torch.bfloat16):\n"
                          "    torch.nn.LSTM(8, 8)(torch.zeros(1, 1, 8))"], capture_output=True, text=True, timeout=300)
    return None if ran.returncode == 0 else "no LSTM in 16 bits on this CPU: " + (ran.stderr.strip().splitlines() or [""])[-1]


def at_length(case):
    """A case of `make test-long` alone: another model, or another way to fail, of something that `make test` tries once."""
    return case if LONG else None


# Small enough for a step of a few milliseconds. Prints what must not change with dpro: losses and gradients, exactly.
PRELUDE = """
import os, sys, time, signal, hashlib
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(7)
torch.set_num_threads(1)
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
def net(width=64, layers=4):
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
digest = hashlib.sha256()
def see(loss, model):
    digest.update(repr(loss.item()).encode())
    for p in model.parameters():
        if p.grad is not None:
            digest.update(p.grad.numpy().tobytes())
def train(model, optimizer, steps, width=64, each=lambda i: None):
    g = torch.Generator().manual_seed(RANK)
    for i in range(steps):
        x = torch.randn(8, width, generator=g)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        see(loss, model)
        optimizer.step()
        each(i)
def end():
    sys.stdout.write("DIGEST %d %s %d\\n" % (RANK, digest.hexdigest(), torch.random.get_rng_state().sum()))  # in one piece
    sys.stdout.flush()
    if dist.is_available() and dist.is_initialized():
        # without this torch itself aborts once in 200 exits: a thread of gloo's wants the GIL of an ended Python
        dist.barrier()
        time.sleep(0.3)
        dist.destroy_process_group()
"""

SINGLE = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
"""
PLAIN = SINGLE + "train(model, optimizer, 30)\nend()\n"


class Run:
    def __init__(self, codes, outs, errs):
        self.codes, self.outs, self.errs = codes, outs, errs

    @property
    def out(self):
        return "".join(self.outs)

    @property
    def err(self):
        return "".join(self.errs)

    @property
    def said(self):
        """dpro's own lines."""
        return [line for line in self.err.splitlines() if line.startswith("dpro: ")]

    @property
    def digests(self):
        return sorted(line for line in self.out.splitlines() if line.startswith("DIGEST"))


def plain_environment(**more):
    return {**{k: v for k, v in os.environ.items()
               if not k.startswith(("DPRO_", "PYTHON")) and k not in ("RANK", "WORLD_SIZE", "LD_PRELOAD")},
            "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR", **more}


@functools.cache
def _server(traced):
    """Of warm processes; with dpro's tracer in them, or without."""
    return warm.Server(os.path.join(CACHE, "traced" if traced else "warm"), PYTHON,
                       plain_environment(**({"DPRO": "1", "LD_PRELOAD": TRACER} if traced else {})))


@unittest.skipIf(TORCH is None, "no torch in %s (DPRO_PYTHON names another interpreter)" % PYTHON)
class Case(unittest.TestCase):
    maxDiff = 4000
    WARM = False  # ranks() begin with torch loaded; not where the case is about how dpro gets into a process

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="dpro-live-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.trace = self.path("trace")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def script(self, body, name="train.py"):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(PRELUDE + body)
        return self.path(name)

    def environment(self, dpro=True, out=None, **more):
        environment = plain_environment(DPRO_ITERATIONS="3", DPRO_WARMUP="3")
        if dpro:
            environment.update(DPRO="1", DPRO_OUT=out or self.trace, PYTHONPATH=SITE)
        environment.update(more)
        return environment

    def start(self, command, environment, **more):
        process = subprocess.Popen(command, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=tempfile.TemporaryFile(), stderr=tempfile.TemporaryFile(),
                                   start_new_session=True, **more)
        process.files = []
        self.addCleanup(self._end, process)
        return process

    def _end(self, process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def ranks(self, body, world=2, dpro=True, timeout=300, out=None, arguments=(), preexec_fn=None, **more):
        """Runs the script as `world` ranks; a world of 1 has no rank in its environment at all."""
        return self.run_script(self.script(body), world, dpro, timeout, out, arguments, preexec_fn, **more)

    def run_script(self, path, world=2, dpro=True, timeout=300, out=None, arguments=(), preexec_fn=None, **more):
        environment = self.environment(dpro, out, **more)
        if world > 1:
            environment.update(self.pair_environment(), WORLD_SIZE=str(world), GROUP_RANK="0")
        started = []
        for rank in range(world):
            outs = open(self.path("out%d" % rank), "w+b"), open(self.path("err%d" % rank), "w+b")
            own = dict(environment, **({"RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {}))
            process = self._start_rank([path, *arguments], own, outs, preexec_fn)
            self.addCleanup(self._end, process)
            started.append((process, outs))
        return self._collect(started, timeout)

    def _start_rank(self, command, environment, outs, preexec_fn):
        if self.WARM and preexec_fn is None:
            traced = environment.get("DPRO") == "1" and os.path.exists(TRACER)
            server = _server(traced)
            # as dpro's tracer is found by an interpreter that was executed again with it
            given = dict(environment, LD_PRELOAD=TRACER) if traced and "LD_PRELOAD" not in environment else environment
            if server.fits(given):
                return server.start(command[0], command[1:], given, self.folder, *outs)
        return subprocess.Popen([PYTHON, *command], env=environment, cwd=self.folder, preexec_fn=preexec_fn,
                                stdin=subprocess.DEVNULL, stdout=outs[0], stderr=outs[1], start_new_session=True)

    @staticmethod
    def warm_python(traced=True):
        """What a launcher takes for an interpreter, and begins with torch loaded."""
        return _server(traced).command if os.path.exists(TRACER) or not traced else [PYTHON]

    # Launchers of two ranks, whose command follows; the first takes 4 s to start.
    TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    PAIR = ["sh", "-c", 'RANK=1 LOCAL_RANK=1 "$@" & RANK=0 LOCAL_RANK=0 "$@" && wait $!', "-"]

    @staticmethod
    def pair_environment():
        return {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports()[0])}

    def command(self, command, timeout=300, **environment):
        outs = open(self.path("out"), "w+b"), open(self.path("err"), "w+b")
        process = subprocess.Popen(command, env=environment or self.environment(), cwd=self.folder,
                                   stdin=subprocess.DEVNULL, stdout=outs[0], stderr=outs[1], start_new_session=True)
        self.addCleanup(self._end, process)
        return self._collect([(process, outs)], timeout)

    def _collect(self, started, timeout):
        codes, texts = [], ([], [])
        deadline = time.monotonic() + timeout
        for process, outs in started:
            try:
                codes.append(process.wait(max(deadline - time.monotonic(), 0.1)))
            except subprocess.TimeoutExpired:
                self._end(process)
                codes.append(None)
            for file, text in zip(outs, texts):
                file.seek(0)
                text.append(file.read().decode("utf-8", "replace"))
                file.close()
        return Run(codes, *texts)

    def once(self, body, world=2, dpro=True, **more):
        """ranks(), made once for all tests that ask for the same. self.trace is what it recorded: to be read only."""
        key = hashlib.sha256(json.dumps([body, world, dpro, more], sort_keys=True).encode()).hexdigest()[:16]
        folder = os.path.join(CACHE, key)
        if dpro:
            self.trace = os.path.join(folder, "trace")
        with open(folder + ".lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = os.path.join(folder, "run.json")
            if not os.path.exists(kept):
                shutil.rmtree(folder, ignore_errors=True)
                os.mkdir(folder)
                run = self.ranks(body, world, dpro, **more)
                self.assertNotIn(None, run.codes, run.err[-3000:])
                with open(kept, "w", encoding="utf-8") as file:
                    json.dump([run.codes, run.outs, run.errs], file)
            with open(kept, encoding="utf-8") as file:
                return Run(*json.load(file))

    def assert_ran(self, run):
        self.assertEqual(set(run.codes), {0}, run.err[-4000:])

    def assert_untouched(self, run, body=PLAIN, world=1, **more):
        """The job did what it does without dpro."""
        without = self.once(body, world, dpro=False, **more)
        self.assertEqual(run.codes, without.codes, run.err[-3000:])
        self.assertEqual(run.digests, without.digests)

    def rank_folder(self, rank=0, host=None, root=None):
        root = root or self.trace
        hosts = [h for h in sorted(os.listdir(root)) if h.startswith("host")]
        return os.path.join(root, "host" + host if host else hosts[0], "rank%d" % rank)

    def rank(self, rank=0, root=None):
        with open(os.path.join(self.rank_folder(rank, root=root), "rank.json"), encoding="utf-8") as file:
            return json.load(file)

    def job(self, root=None):
        with open(os.path.join(root or self.trace, "job.json"), encoding="utf-8") as file:
            return json.load(file)

    def kineto(self, rank=0, name="kineto.json", root=None):
        path = os.path.join(self.rank_folder(rank, root=root), name)
        if os.path.exists(path + ".gz"):
            with gzip.open(path + ".gz", "rt", encoding="utf-8") as file:
                return json.load(file)
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def profiled_steps(self, rank=0, root=None):
        return sorted(int(e["name"].partition("#")[2]) for e in self.kineto(rank, root=root)["traceEvents"]
                      if e.get("ph") == "X" and e["name"].startswith("ProfilerStep#"))

    def replay(self, *args):
        done = subprocess.run([DPRO, "replay", *(args or (self.trace,)), "--json"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return json.loads(done.stdout)
