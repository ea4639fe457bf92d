"""What the structure window records of memory: marks of modules in the profile, and what the rank held when it began."""
import collections
import json
import os
import subprocess
import unittest

import live

MODEL = """
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(64)
        self.cell = torch.nn.RNNCell(64, 64)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Dropout(0.1), torch.nn.Linear(128, 64))
    def forward(self, x):
        h = self.norm(x)
        for _ in range(3):
            h = self.cell(x, h)
        return x + self.mlp(h)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(64, 8)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
DDP_JOB = MODEL + """
dist.init_process_group("gloo")
kept = torch.ones(1000)
frozen = torch.nn.Linear(100, 100)
model = DDP(Net(), gradient_as_bucket_view=len(sys.argv) > 1)
train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), 30)
end()
"""
BLOCK = ["norm", "cell", "mlp", "mlp.0", "mlp.1", "mlp.2"]
NAMES = ["", "blocks", "blocks.0", *("blocks.0." + name for name in BLOCK), "blocks.1", *("blocks.1." + name for name in BLOCK),
         "head"]
N_PARAMETERS = 2 * (64 * 2 + 2 * (64 * 64 + 64) + 64 * 128 + 128 + 128 * 64 + 64) + 64 * 8 + 8


class Case(live.Case):
    WARM = True

    def held(self, rank=0):
        with open(os.path.join(self.rank_folder(rank), "memory.json"), encoding="utf-8") as file:
            return json.load(file)

    def marks(self, rank=0):
        """(name, start, end) in order, of the second step."""
        spans = [e for e in self.kineto(rank, "kineto_et.json")["traceEvents"] if e.get("ph") == "X"]
        step = sorted((e for e in spans if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])[-1]
        found = [(e["name"].partition(":")[2], e["ts"], e["ts"] + e["dur"]) for e in spans
                 if e["name"].startswith("dpro.module:") and e["ts"] >= step["ts"]]
        return sorted(found, key=lambda mark: (mark[1], -mark[2]))

    def marked(self, rank=0):
        return [name for name, _, _ in self.marks(rank)]

    def bytes_by_category(self, held):
        found = collections.Counter()
        for category, _, _, size in held["blocks"] + held["freed"]:
            found[category] += size
        return found


class Held(Case):
    def test_each_module_is_marked_where_it_is_called(self):
        run = self.once(DDP_JOB)
        self.assert_untouched(run, DDP_JOB, world=2)
        block = ["norm", "cell", "cell", "cell", "mlp", "mlp.0", "mlp.1", "mlp.2"]
        for rank in range(2):
            marks = self.marks(rank)
            self.assertEqual([name for name, _, _ in marks], [
                "", "blocks.0", *("blocks.0." + name for name in block), "blocks.1", *("blocks.1." + name for name in block), "head"])
            spans = {name: (start, end) for name, start, end in marks}
            self.assertLessEqual(spans["blocks.0"][0], spans["blocks.0.mlp.0"][0])
            self.assertLessEqual(spans["blocks.0.mlp"][1], spans["blocks.0"][1])
            self.assertLessEqual(spans["blocks.0"][1], spans["blocks.1"][0])
            names = {node["name"] for node in self.kineto(rank, "et.json")["nodes"]}
            self.assertIn("dpro.module:blocks.1.mlp", names)

    def test_what_is_held_is_told_once_by_what_it_is_for(self):
        self.assert_ran(self.once(DDP_JOB))
        for rank in range(2):
            held = self.held(rank)
            self.assertEqual((held["schema"], held["device"]), ("dpro.memory/1", "cpu"))
            self.assertEqual([name for name, _ in held["modules"]], NAMES)
            self.assertEqual(dict(held["modules"])["blocks.1.norm"], "BatchNorm1d")
            self.assertTrue(1 << 28 < held["capacity_bytes"] < 1 << 45)
            found, sizes = self.bytes_by_category(held), {(c, n): s for c, n, _, s in held["blocks"] + held["freed"]}
            running = 2 * (2 * 64 * 4 + 8)
            self.assertEqual(found["parameter"], 4 * N_PARAMETERS + running + 4 * (100 * 100 + 100))
            self.assertEqual(sizes["parameter", "blocks.0.norm.running_mean"], 64 * 4)
            self.assertEqual(sizes["gradient", "blocks.1.mlp.2.weight"], 64 * 128 * 4)
            self.assertEqual(sizes["optimizer_state", "head.weight.momentum_buffer"], 64 * 8 * 4)
            for category in ("gradient", "bucket", "optimizer_state"):
                self.assertEqual(found[category], 4 * N_PARAMETERS, category)
            self.assertEqual(found["input"], 8 * 64 * 4)
            self.assertIn(4000, [size for category, _, _, size in held["blocks"] if category == "other"])
            addresses = [address for category, _, address, _ in held["blocks"] + held["freed"] if category != "bucket"]
            self.assertEqual(len(set(addresses)), len(addresses))
            self.assertNotIn(0, addresses)
            structure = [window for window in self.rank(rank)["windows"] if window["name"] == "structure"][0]
            self.assertTrue(structure["start_ns"] - 2e9 < held["when_ns"] < structure["end_ns"])

    def test_what_the_first_step_gives_back_is_told(self):
        self.assert_ran(self.once(DDP_JOB))
        held = self.held()
        freed = held["freed"]
        self.assertEqual({category for category, _, _, _ in freed}, {"gradient", "input", "other"})  # optimizer.zero_grad()
        self.assertEqual(sum(size for category, _, _, size in freed if category == "gradient"), 4 * N_PARAMETERS)
        self.assertNotIn(4000, [size for _, _, _, size in freed])

    def test_gradients_that_are_views_of_buckets_are_told_as_the_buckets(self):
        run = self.once(DDP_JOB, arguments=["view"])
        self.assert_untouched(run, DDP_JOB, world=2, arguments=["view"])
        held = self.held()
        self.assertEqual(self.bytes_by_category(held)["gradient"], 4 * N_PARAMETERS)
        self.assertEqual(self.bytes_by_category(held)["bucket"], 0)
        self.assertEqual([block for block in held["freed"] if block[0] == "gradient"], [])


class Allocator(unittest.TestCase):
    """How a GPU's allocator is set; none is needed, and none is initialised."""

    @unittest.skipUnless(live._torch_version(), "needs torch")
    def test_its_settings_are_told_of_a_gpu(self):
        def told(device, more="", **env):
            code = ("import json, torch\nfrom dpro import held_memory\n%s\nprint(json.dumps(held_memory.allocator_members("
                    "torch.device(%r))))\nassert not torch.cuda.is_initialized() or %r" % (more, device, more))
            clean = {name: value for name, value in os.environ.items() if not name.endswith("ALLOC_CONF")}
            run = subprocess.run([live.PYTHON, "-c", code], stdout=subprocess.PIPE, check=True, stdin=subprocess.DEVNULL,
                                 env={**clean, "PYTHONPATH": os.path.join(live.ROOT, "python"), **env})
            return json.loads(run.stdout)

        self.assertEqual(told("cuda:0"), {"allocator": ""})
        self.assertEqual(told("cpu", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64"), {})
        self.assertEqual(told("cuda:0", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64"), {"allocator": "max_split_size_mb:64"})
        old = "for name in ('get', 'set'):\n    torch._C.__dict__.pop('_accelerator_%sAllocatorSettings' % name, None)\n"
        self.assertEqual(told("cuda:0", old, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64", PYTORCH_ALLOC_CONF="backend:native"),
                         {"allocator": "max_split_size_mb:64"})
        other = "torch.cuda.is_initialized = lambda: True\ntorch.cuda.get_allocator_backend = lambda: 'pluggable'"
        self.assertEqual(told("cuda:0", other), {"allocator": "", "backend": "pluggable"})

    @unittest.skipUnless(live._torch_version(), "needs torch")
    def test_its_segments_are_told(self):
        code = """
import json, torch
from dpro import held_memory
block = {"address": 4096, "size": 512, "requested_size": 8, "state": "active_allocated", "frames": []}
free = {"address": 4608, "size": 2096640, "requested_size": 0, "state": "inactive", "frames": []}
segment = {"device": 1, "address": 4096, "total_size": 2097152, "stream": 7, "segment_type": "small", "segment_pool_id": (0, 0),
           "is_expandable": False, "blocks": [block, free]}
asked = []
def snapshot(**options):
    asked.append(options)
    return [segment, {**segment, "device": 0}, {**segment, "segment_pool_id": (0, 1), "is_expandable": True}]
def old():
    return [segment]
def told(device, keeps, snapshot):
    torch.cuda.memory_snapshot, torch._C._cuda_isHistoryEnabled = snapshot, lambda: keeps
    return held_memory.segment_members(torch.device(device))
print(json.dumps([told("cuda:1", False, snapshot)]))
torch.cuda.is_initialized, torch.cuda.get_allocator_backend = lambda: True, lambda: "native"
print(json.dumps([told("cpu", False, snapshot), told("cuda:1", False, snapshot), told("cuda:1", True, snapshot),
                  told("cuda:1", True, old), asked]))
"""
        run = subprocess.run([live.PYTHON, "-c", code], stdout=subprocess.PIPE, check=True, stdin=subprocess.DEVNULL,
                             env={**os.environ, "PYTHONPATH": os.path.join(live.ROOT, "python")})
        before, after = map(json.loads, run.stdout.splitlines())
        blocks = [[512, "active_allocated"], [2096640, "inactive"]]
        segments = {"segments": [[4096, 2097152, 7, "small", False, False, blocks], [4096, 2097152, 7, "small", True, True, blocks]]}
        self.assertEqual(before, [{}])
        self.assertEqual(after, [{}, segments, segments, {}, [{}, {"include_traces": False}]])


class Unusual(Case):
    def run_alone(self, body, **more):
        run = self.ranks(MODEL + body, world=1, **more)
        self.assert_untouched(run, MODEL + body)
        return run

    def test_a_forward_that_fails_leaves_no_mark_open(self):
        self.run_alone("""
class Failing(torch.nn.Module):
    def forward(self, x):
        raise ArithmeticError
class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.failing, self.b = torch.nn.Linear(64, 64), Failing(), torch.nn.Linear(64, 64)
    def forward(self, x):
        x = self.a(x)
        try:
            self.failing(x)
        except ArithmeticError:
            pass
        return self.b(x)
model = Outer()
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30)
end()
""")
        marks = self.marks()
        self.assertEqual([name for name, _, _ in marks], ["", "a", "failing", "b"])
        self.assertLessEqual(marks[2][2], marks[3][1])

    def test_wrappers_are_left_out_of_names_and_a_recomputed_forward_is_marked_again(self):
        self.run_alone("""
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
model = Net()
model.blocks[1] = checkpoint_wrapper(model.blocks[1])
model.head = checkpoint_wrapper(model.head)
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30)
end()
""")
        names = self.marked()
        self.assertEqual((names.count("blocks.1"), names.count("blocks.0"), names.count("head")), (2, 1, 2))
        self.assertEqual(set(names), set(NAMES) - {"blocks"})
        self.assertIn("blocks.1.norm.weight", [name for _, name, _, _ in self.held()["blocks"]])

    def test_modes_of_the_jobs_see_no_marks(self):
        self.run_alone("""
from torch.utils._python_dispatch import TorchDispatchMode
from torch.overrides import TorchFunctionMode
seen = {}
class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        seen[str(function)] = 1
        return function(*args, **(kwargs or {}))
class Function(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen[str(function)] = 1
        return function(*args, **(kwargs or {}))
class Watched(Net):
    def forward(self, x):
        with Dispatch(), Function():
            return super().forward(x)
model = Watched()
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30)
digest.update(repr(sorted(name for name in seen if " at 0x" not in name)).encode())
end()
""")
        self.assertEqual(set(self.marked()), set(NAMES) - {"blocks"})

    def test_a_module_called_too_often_is_not_marked_any_more(self):
        run = self.run_alone("""
class Long(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.nothing = torch.nn.Linear(64, 64), torch.nn.Identity()
    def forward(self, x):
        x = self.a(x)
        for _ in range(10002):
            x = self.nothing(x)
        return x
model = Long()
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30)
end()
""")
        self.assertEqual(self.marked(), ["", "a"])
        self.assertIn("nothing is called more than 10000 times a step", run.err)

    def test_a_compiled_job_has_no_marks(self):
        self.WARM = False  # the compiler keeps more than modules
        self.run_alone("""
model = Net()
compiled = torch.compile(lambda x: x + 1, backend="eager")
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30, each=lambda i: compiled(torch.ones(4)))
end()
""")
        self.assertEqual(self.marked(), [])
        self.assertEqual(self.bytes_by_category(self.held())["gradient"], 4 * N_PARAMETERS)

    def test_modules_of_a_second_model_have_its_number(self):
        self.run_alone("""
a, b = Net(), net()
train(torch.nn.Sequential(b), torch.optim.SGD(b.parameters(), lr=0.1), 1)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (a, b)]
for i in range(40):
    for m, optimizer in zip((a, b), optimizers):
        optimizer.zero_grad()
        loss = m(torch.ones(8, 64)).pow(2).mean()
        loss.backward()
        see(loss, m)
        optimizer.step()
end()
""")
        self.assertIn("1/0", self.marked())
        self.assertIn(["1/", "Sequential"], self.held()["modules"])

    def test_trouble_with_it_ends_nothing_else(self):
        run = self.run_alone("""
if os.environ.get("DPRO"):
    import dpro.held_memory
    def look(*args):
        raise AssertionError("made to fail")
    dpro.held_memory.look = look
model = Net()
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30)
end()
""", PYTHONPATH=os.pathsep.join([live.SITE, os.path.join(live.ROOT, "python")]))
        self.assertTrue(self.rank()["complete"])
        self.assertIn("AssertionError: made to fail", run.err)
        self.assertFalse(os.path.exists(os.path.join(self.rank_folder(), "memory.json")))
        self.assertEqual(self.marked(), [])
