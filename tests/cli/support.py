"""What the command tests share: running the command, and making small traces to feed it."""
import functools
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from browser import browser

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("DPRO_BUILD", os.path.join(ROOT, "build"))
DPRO = os.path.join(BUILD, "dpro")
BUNDLED = os.path.join(ROOT, "tests", "data", "torch-ddp-gloo-gpt-n2")
CAPTURED = os.path.join(ROOT, "tests", "captures")
SHARED = os.path.join(os.environ.get("DPRO_SHARED", os.path.join(ROOT, "..", "shared")), "traces")
sys.path.insert(0, os.path.join(ROOT, "tools"))

with open(os.path.join(BUILD, "meson-info", "intro-buildoptions.json"), encoding="utf-8") as options:
    SANITIZED = next(o["value"] for o in json.load(options) if o["name"] == "b_sanitize") not in ("none", [], ["none"])

DONE, CHECK_FAILED, USAGE, INPUT, SYSTEM = 0, 1, 2, 3, 4


def shared(name):
    """The path of a real trace; skips the test where it is not."""
    path = os.path.join(SHARED, name)
    if not os.path.isdir(path):
        raise unittest.SkipTest(f"{path} is not here")
    return path


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        def refuse(constant):
            raise ValueError(f"{constant} is no JSON")

        return json.loads(self.out, parse_constant=refuse)


READS = ("replay", "diagnose", "whatif", "optimize", "align")


@functools.cache
def known(*args):
    """What the command answers of bundled traces, asked once for all tests of a suite."""
    return dpro(*args, again=True)


def dpro(*args, timeout=120, env=None, again=False, **more):
    """Runs the command; its output must be UTF-8. `again`: though the same was asked before."""
    paths = [arg for arg in args if os.sep in arg]
    if not again and not env and not more and "-o" not in args and args[:1] and args[0] in READS and paths and all(
            path.startswith(os.path.dirname(BUNDLED)) for path in paths):
        return known(*args)
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    done = subprocess.run([DPRO, *args], stdin=subprocess.DEVNULL, stdout=more.pop("stdout", subprocess.PIPE),
                          stderr=subprocess.PIPE, timeout=timeout, env={**clean, **(env or {})}, **more)
    return Result(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())


COMMANDS = ("tune", "profile", "verify", "attach", "replay", "diagnose", "whatif", "optimize", "compare", "align", "export", "completion",
            "help")


def options_of(command):
    """What a command's --help lists: (option, what it calls the value; None: it takes none)."""
    return [(option, form or None) for option, form in
            re.findall(r"(?m)^  (?:-\w,|   ) (--[\w-]+)(?: (\S(?:\S| (?! ))*))?", dpro(command, "--help").out)]


def read_text(path):
    """Of a file that may be gzip'd."""
    with open(path, "rb") as file:
        content = file.read()
    return (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()


def read_json(path):
    return json.loads(read_text(path))


def write_text(path, text):
    """gzip'd when the name says so."""
    with open(path, "wb") as file:
        file.write(gzip.compress(text.encode(), 1) if path.endswith(".gz") else text.encode())


def write_json(path, value):
    write_text(path, json.dumps(value))


class Case(unittest.TestCase):
    """A test with a folder of its own."""

    maxDiff = 2000

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="dpro-test-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, content):
        """Writes bytes, text or (as JSON) an object; gzip'd when the name says so."""
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogateescape")
        if name.endswith(".gz"):
            content = gzip.compress(content, 1)
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as out:
            out.write(content)
        return self.path(name)

    def write_job(self, folder, **options):
        """Writes the traces of job(**options), one a rank."""
        for rank, trace in enumerate(job(**options)):
            self.write(f"{folder}/rank{rank}.json", trace)
        return self.path(folder)

    def write_recording(self, folder, plan=None, **options):
        """The same as a trace directory with the facts of each rank."""
        for rank, trace in enumerate(job(**options)):
            self.write(f"{folder}/host0/rank{rank}/kineto.json", trace)
            self.write(f"{folder}/host0/rank{rank}/rank.json", recording(rank, options.get("world", 2), plan=plan))
        return self.path(folder)

    def assert_code(self, result, *codes):
        self.assertIn(result.code, codes, f"stdout:\n{result.out[-2000:]}\nstderr:\n{result.err[-2000:]}")

    def assert_fits(self, text, columns=100):
        """That no line is longer; commands to copy are never folded, and hold the checkout's path, wherever that is."""
        self.assertLessEqual(max(len(line.replace(ROOT, "")) for line in text.splitlines()), columns)

    def assert_error(self, result, code, *patterns):
        """The command failed as it should: that code, nothing on stdout, one line on stderr."""
        self.assert_code(result, code)
        self.assertEqual(result.out, "")
        self.assertRegex(result.err, r"\Adpro: [^\n]+\n\Z")
        self.assertNotRegex(result.err[:-1], r"[\x00-\x1f\x7f]")
        for pattern in patterns:
            self.assertRegex(result.err, pattern)

    def dom(self, page, **more):
        """A page's elements once its scripts have run."""
        return browser().dom(page, **more)

    def assert_json(self, *args, **more):
        """The command did its work; returns the JSON."""
        result = dpro(*args, "--json", **more)
        self.assert_code(result, DONE)
        return result.json

    def assert_replays(self, *args):
        return self.assert_json("replay", *args)

    def assert_survives(self, *args):
        """Either the rest could be replayed (and a warning tells what was left out), or the input was refused."""
        result = dpro("replay", *args, "--json")
        if result.code == DONE:
            self.assertTrue(result.json["warnings"])
        else:
            self.assert_error(result, INPUT)
        return result


def span(name, start_us, dur_us, tid=1, cat="cpu_op", pid=100, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start_us, "dur": dur_us, "args": args}


LAYERS = 3


def job(world=2, iterations=4, layers=LAYERS, forward_us=10_000, backward_us=20_000, transfer_us=8_000, slow=None,
        communicates=True, accumulates=True, micro_batches=1, steps=True, start_us=1_000_000_000.0, name="aten::linear"):
    """The Kineto traces of a small data-parallel CPU job, one a rank: forward, backward with an all-reduce a layer on
    a thread of its own, optimizer. `slow` = (rank, us) makes that rank's forward longer; the others wait. `transfer_us`: of
    each all-reduce, or a list by layer. `accumulates`: the trace tells which gradients a bucket holds.
    Each of the micro-batches reduces all gradients."""
    traces = []
    longest = max(0, slow[1] if slow else 0)
    transfers = transfer_us if isinstance(transfer_us, list) else layers * [transfer_us]
    for rank in range(world):
        events = []
        step_start = start_us
        sequence = 0
        for step in range(1, iterations + 1):
            late = slow[1] if slow and slow[0] == rank else 0
            now = step_start + 100
            events.append(span("Optimizer.zero_grad#SGD.zero_grad", now, 50, cat="user_annotation"))
            now += 100
            for _ in range(micro_batches):
                first = now
                for layer in range(layers):
                    dur = forward_us + (late if layer == 0 else 0)
                    events.append(span(name, now, dur, **{"Sequence number": sequence + layer, "Fwd thread id": 0}))
                    now += dur + 10
                events.append(span("DistributedDataParallel.forward", first - 10, now - first + 10, cat="user_annotation"))
                now += 100
                behind = first + 110 + layers * (forward_us + 10) + longest  # when the slowest starts its backward
                free = 0
                for layer in reversed(range(layers)):
                    events.append(span("autograd::engine::evaluate_function: AddmmBackward0", now, backward_us,
                                       **{"Sequence number": sequence + layer, "Fwd thread id": 1}))
                    if communicates:
                        call = now + backward_us - 200
                        if accumulates:
                            events.append(span("torch::autograd::AccumulateGrad", call - 60, 50, **{"Input Dims": [[1000]]}))
                        events.append(span("c10d::allreduce_", call, 150,
                                           **{"Input Dims": [[[1000]], [], [], [], [], []],
                                              "Input type": ["TensorList", "", "", "", "Scalar", "Scalar"]}))
                        begin = max(call + 160, free)
                        slowest = max(behind + (layers - layer) * (backward_us + 10) - 50, free)
                        free = max(begin, slowest) + transfers[layer]
                        events.append(span("gloo:all_reduce", begin, free - begin, tid=2, cat="user_annotation",
                                           **{"Input Dims": [[1000]], "Input type": ["float"]}))
                    now += backward_us + 10
                now = max(now, free) + 50
                sequence += layers
            events.append(span("Optimizer.step#SGD.step", now, 1000, cat="user_annotation"))
            events.append(span("aten::add_", now + 10, 900))
            now += 1100
            if steps:
                events.append(span(f"ProfilerStep#{step}", step_start, now - step_start, cat="user_annotation"))
            step_start = now + 20
        trace = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": 1_700_000_000_000_000_000,
                 "traceEvents": sorted(events, key=lambda e: (e["ts"], -e["dur"]))}
        if world > 1:
            ranks = list(range(world))
            trace["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": world, "pg_count": 1, "pg_config": [
                {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "pg_size": world,
                 "ranks": ranks}]}
        traces.append(trace)
    return traces


def recording(rank, world=2, complete=True, attempt=0, steps=None, profiler=None, plan=None):
    """The rank.json of a rank of job()."""
    parameters = [{"name": f"layers.{i}.weight", "shape": [10, 100], "dtype": "float32", "size_bytes": 4000,
                   "requires_grad": True} for i in range(LAYERS)]
    return {"schema": "dpro.rank/1", "rank": rank, "world_size": world, "attempt": attempt, "host": "0",
            "host_name": "node-a", "boot_id": "b", "net_ns": 1, "pid": 100, "complete": complete,
            "framework": "pytorch", "backend": "gloo",
            "process_groups": [{"name": "0", "description": "default_pg", "backend": "gloo", "ranks": [0, 1]}],
            "models": [{"name": "Net", "parallel": "ddp", "process_group": "0", "parameters": parameters,
                        "buckets": [{"parameters": [i], "size_bytes": 4000} for i in reversed(range(LAYERS))]}],
            "steps": steps or {"boundary": "optimizer", "warmup": 10, "timing": [], "structure": [], "before": [],
                               "after": []}, "profiler": profiler, "plan": plan, "warnings": []}


def single_process(folder):
    """The first rank of a bundled recording, as if it had been the whole job."""
    rank = os.path.join(folder, "rank0")
    shutil.copytree(os.path.join(BUNDLED + "-memory", "host0", "rank0"), rank)
    os.remove(os.path.join(rank, "net.log.gz"))
    facts = os.path.join(rank, "rank.json")
    write_json(facts, {**read_json(facts), "world_size": 1, "process_groups": [], "models": []})
    for name in ("kineto.json.gz", "kineto_et.json.gz"):
        trace = read_json(os.path.join(rank, name))
        trace.pop("distributedInfo", None)
        trace["traceEvents"] = [event for event in trace["traceEvents"]
                                if not any(word in event.get("name", "") for word in ("gloo", "all_reduce", "allreduce", "c10d"))]
        write_json(os.path.join(rank, name), trace)
    return folder


def plain_profile(folder):
    """A single process recorded by torch's own profiler, which has no marks of modules, and nobody tells the size of its batch."""
    rank = os.path.join(single_process(folder), "rank0")
    for name in ("rank.json", "memory.json"):
        os.remove(os.path.join(rank, name))
    profile = os.path.join(rank, "kineto_et.json.gz")
    trace = read_json(profile)
    trace["traceEvents"] = [event for event in trace["traceEvents"] if not event.get("name", "").startswith("dpro.module:")]
    write_json(profile, trace)
    return folder


def console_examples(path):
    """[(command, the beginning of its output)] of a document's ```console blocks: commands are lines that begin with "$ ",
    continued where they end in \\."""
    examples = []
    for block in re.findall(r"^```console\n(.*?)^```", read_text(path), re.S | re.M):
        examples += re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.sub(r"\\\n *", "", block), re.M)
    return examples
