"""Modules measured in other ways after the windows (dpro profile --probe): what is found, and that the job is not changed by it."""
import json
import os

import live
from live import Case

JOBS = """
import gc, random, torch.nn as nn
random.seed(3)
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
    def forward(self, x):
        return x + self.drop(self.mlp(self.norm(x)))
class Blocks(nn.Module):
    def __init__(self, kind, width=64):
        super().__init__()
        self.tokens, self.head = nn.Embedding(100, width), nn.Linear(width, 100)
        self.blocks = nn.ModuleList(kind(width) for _ in range(3))
        self.head.weight = self.tokens.weight
    def forward(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
class Lstm(nn.LSTM):
    def __init__(self, width):
        super().__init__(width, width, batch_first=True)
    def forward(self, x):
        return super().forward(x)[0]
class Conv(nn.Sequential):
    def __init__(self, n_in, n_out):
        super().__init__(nn.Conv2d(n_in, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True))
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Conv(3, 16), Conv(16, 16), Conv(16, 16))
        self.calls = 0
    def forward(self, x):
        return self.blocks(x).mean((2, 3))
def run(model, make, steps=32, wrap=None):
    world = WORLD > 1
    if world:
        dist.init_process_group("gloo")
    outer = (wrap or DDP)(model) if world else model
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.01, momentum=0.9)
    for i in range(steps):
        optimizer.zero_grad()
        loss = outer(make()).pow(2).mean()
        loss.backward()
        optimizer.step()
        see(loss, outer)
    for buffer in model.buffers():
        digest.update(buffer.numpy().tobytes())
    for state in optimizer.state.values():
        digest.update(state["momentum_buffer"].numpy().tobytes())
    digest.update(repr(sorted(vars(model))).encode())
    digest.update(repr(random.getstate()).encode())
    if "torch._dynamo" in sys.modules:
        digest.update(b"" if not torch._dynamo.utils.counters else b"compiled")
    digest.update(b"kept" * any(type(thing).__name__ == "Stopwatch" for thing in gc.get_objects()))
    end()
"""
GPT = JOBS + "run(Blocks(Block), lambda: torch.randint(100, (4, 16)))\n"
LSTM = JOBS + "run(Blocks(Lstm), lambda: torch.randint(100, (4, 16)))\n"
BATCHNORM = JOBS + "run(Network(), lambda: torch.randn(4, 3, 16, 16))\n"
UNDER_AUTOCAST = JOBS + """
class Low(Network):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()
run(Low(), lambda: torch.randn(4, 3, 16, 16))
"""
SMALL = JOBS + "run(nn.Sequential(nn.Linear(64, 64), nn.GELU()), lambda: torch.randn(4, 64), 24)\n"
PLAIN = {"DPRO_PROBE": "bf16,batch,recompute", "DPRO_PROBE_LIMIT": "120"}
COMPILED = {"DPRO_PROBE": "compile", "DPRO_PROBE_LIMIT": "400", "DPRO_ITERATIONS": "1"}


class Probe(Case):
    WARM = True

    def probes(self):
        with open(os.path.join(self.rank_folder(), "probes.json"), encoding="utf-8") as file:
            return json.load(file)

    def entries(self):
        return {entry["modules"][0][0]: entry for entry in self.probes()["probes"]}

    def assert_measured(self, entry, ways):
        self.assertNotIn("problem", entry)
        for way in ways:
            found = entry["ways"][way]
            self.assertNotIn("problem", found, way)
            self.assertGreaterEqual(len(found["forward_ns"]), 3)
            self.assertEqual(len(found["forward_ns"]), len(found["backward_ns"]))
            self.assertTrue(min(found["forward_ns"]) > 0 and min(found["backward_ns"]) > 0)
            self.assertGreater(found["kept_bytes"], 0)

    def ran(self, body, world=2, **more):
        self.WARM = "compile" not in more["DPRO_PROBE"]  # the compiler keeps more than modules
        run = self.ranks(body, world, TORCHINDUCTOR_CACHE_DIR=self.path("compiled"), **more)
        self.WARM = True
        self.assert_untouched(run, body, world)
        early = self.probes()["ended_early"]
        said = ["dpro: measuring modules ended at %s (dpro profile --probe-limit SECONDS)" % early] if early else []
        self.assertEqual([line for line in run.said if "recorded step" not in line], said, run.err)
        self.err = run.err
        return self.entries()

    def test_alike_blocks_are_measured_once_and_the_job_goes_on_as_without(self):
        """The other rank of the host computes the same meanwhile."""
        seen = """if os.environ.get("DPRO"):
        import dpro.probe
        own = dpro.probe.Probe._plain
        def told(probe, *rest):
            sys.stderr.write("seen: computes, measures is %s\\n" % probe.measures)
            return own(probe, *rest)
        dpro.probe.Probe._plain = told
"""
        body = GPT.replace("    world = WORLD > 1\n", "    " + seen + "    world = WORLD > 1\n")
        entries = self.ran(body, **PLAIN)
        for measures in (True, False):
            self.assertGreater(self.err.count("computes, measures is %s" % measures), 1)
        self.assertEqual(entries["blocks.0"]["modules"], [["blocks.0"], ["blocks.1"], ["blocks.2"]])
        for name in ("", "blocks.0"):
            self.assert_measured(entries[name], ("eager", "bf16"))
            own, again = (sorted(entries[name]["ways"][way]["backward_ns"])[1] for way in ("eager", "recompute"))
            self.assertGreater(again, own)
        self.assertEqual(entries["blocks.0"]["inputs"], [["float32", [4, 16, 64]]])
        self.assertEqual(sorted(entries[""]["batches"]), ["0.25", "0.5", "2"])  # those of its parts would tell nothing more
        self.assertFalse("batches" in entries["blocks.0"])
        twice = entries[""]["batches"]["2"]
        self.assertEqual({len(ns) for ns in (twice["forward_ns"], twice["backward_ns"], *twice["eager"].values())},
                         {len(twice["forward_ns"])})
        self.assertEqual(self.rank()["probes"], {"file": "probes.json"})
        self.assertGreater(self.probes()["fault_ns"], 100)
        self.assertTrue(self.rank()["complete"])
        self.assertFalse("probes" in self.rank(1) or os.path.exists(os.path.join(self.rank_folder(1), "probes.json")))

    def test_no_longer_than_the_other_ranks_wait(self):
        body = GPT.replace('init_process_group("gloo")', 'init_process_group("gloo", timeout=__import__("datetime").timedelta(seconds=9))')
        self.assert_ran(self.ranks(body, **{**PLAIN, "DPRO_PROBE": "bf16"}))
        self.assertEqual(self.probes()["limit_s"], 4.5)

    @live.at_length
    def test_statistics_of_batchnorm_stay_the_jobs(self):
        entries = self.ran(BATCHNORM, **PLAIN)
        self.assertEqual(entries["blocks.1"]["modules"], [["blocks.1"], ["blocks.2"]])
        self.assert_measured(entries["blocks.1"], ("eager", "bf16"))

    @live.at_length
    def test_modules_of_a_job_under_autocast_are_measured_under_it(self):
        entries = self.ran(UNDER_AUTOCAST, **PLAIN)
        self.assertEqual(entries["blocks.1"]["inputs"], [["bfloat16", [4, 16, 16, 16]]])
        self.assert_measured(entries["blocks.1"], ("eager",))
        self.assertEqual(entries["blocks.1"]["ways"]["bf16"], {"problem": "the job computes it in 16 bits"})

    def test_a_compiled_module_is_measured_and_nothing_of_the_compiler_stays(self):
        entries = self.ran(SMALL, 1, **COMPILED)
        self.assert_measured(entries[""], ("eager", "compile"))
        compiled = entries[""]["ways"]["compile"]
        self.assertEqual((compiled["graphs"], compiled["breaks"]), (1, 0))
        self.assertEqual(len(compiled["eager"]["forward_ns"]), len(compiled["forward_ns"]))

    def test_what_the_time_is_too_short_for_has_no_numbers_and_no_problem(self):
        entries = self.ran(GPT, **{**PLAIN, "DPRO_PROBE": "compile,bf16", "DPRO_PROBE_LIMIT": "3"})
        self.assertRegex(self.probes()["ended_early"], r"^the time limit; not measured in all ways: .*\bblocks\.0\b")
        ways = entries["blocks.0"]["ways"]
        left_out = {way for way in ways if "left_out" in ways[way]}
        self.assertLessEqual({"compile", "compile+bf16"}, left_out)  # how many of the others fit is the machine's affair
        self.assert_measured(entries["blocks.0"], set(ways) - left_out)
        for way in left_out:
            self.assertIn("time", ways[way]["left_out"])
            self.assertFalse({"forward_ns", "problem"} & set(ways[way]), way)

    @live.at_length
    def test_what_the_compiler_leaves_alone_is_told(self):
        entries = self.ran(LSTM, 1, **COMPILED)
        self.assertIn("nothing of it is compiled", entries["blocks.0"]["ways"]["compile"]["problem"])

    def test_what_the_cpu_can_not_compute_in_16_bits_is_told(self):
        entries = self.ran(LSTM, 1, DPRO_PROBE="bf16", DPRO_PROBE_LIMIT="60", DPRO_ITERATIONS="1",
                           ONEDNN_MAX_CPU_ISA="AVX2")  # no instructions for it, and then no LSTM
        self.assert_measured(entries["blocks.0"], ("eager",))
        self.assertIn("LSTM", entries["blocks.0"]["ways"]["bf16"]["problem"])

    @live.at_length
    def test_without_a_cpp_compiler_the_problem_is_told(self):
        for n, more in enumerate(({"CXX": "/nowhere/c++"}, {"PATH": "/nowhere"})):
            with self.subTest(more):
                self.trace = self.path("trace%d" % n)
                entries = self.ran(SMALL, 1, out=self.trace, **COMPILED, **more)
                self.assertIn("C++ compiler", entries[""]["ways"]["compile"]["problem"])

    def test_compiled_code_that_crashes_ends_no_job_and_costs_no_other_module(self):
        crash, compiler = self.path("crash.h"), self.path("c++")
        with open(crash, "w", encoding="utf-8") as file:
            file.write('#include <csignal>\nstatic const int crash = raise(SIGSEGV);\n')
        with open(compiler, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\nfor file in "$@"; do\n  case $file in *.cpp) grep -q "erf(" "$file" && set -- "$@" -include %s;; esac\n'
                       'done\nexec c++ "$@"\n' % crash)
        os.chmod(compiler, 0o755)
        body = SMALL.replace("nn.Sequential(", "nn.Sequential(nn.Sequential(nn.Linear(64, 64), nn.Tanh()), ")
        entries = self.ran(body, 1, CXX=compiler, **COMPILED)
        self.assertEqual(entries[""]["ways"]["compile"], {"problem": "compiling it, or what that made, died of SIGSEGV"})
        self.assert_measured(entries["0"], ("eager", "compile"))

    @live.at_length
    def test_a_module_that_takes_for_ever_to_compile_ends_in_time(self):
        body = JOBS + """
class Slow(nn.Linear):
    def forward(self, x):
        n = 0
        for _ in range(3000000):
            n += 1
        return super().forward(x * n) / n
run(nn.Sequential(Slow(8, 8), nn.GELU()), lambda: torch.randn(4, 8), 24)
"""
        entries = self.ran(body, 1, **{**COMPILED, "DPRO_PROBE_LIMIT": "20"})
        self.assertIn("time", entries[""]["ways"]["compile"]["left_out"])
        self.assertLess(self.probes()["spent_s"], 40)

    def test_modules_with_a_flaw_are_refused_and_the_job_goes_on_as_without(self):
        flaws = """
class Counts(nn.Linear):
    def forward(self, x):
        self.n = getattr(self, "n", 0) + 1
        return super().forward(x)
class Writes(nn.Linear):
    def forward(self, x):
        return super().forward(x.mul_(2))
class Communicates(nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        dist.all_reduce(x.detach().clone())
        return x
class Fails(nn.Linear):
    def forward(self, x):
        return super().forward(x) if torch.is_grad_enabled() else 1 / 0
# large: on a loaded machine one waits long for the other rank, and what takes under 2 % of a forward pass is not looked at
model = nn.ModuleList(kind(512, 512) for kind in (Counts, Writes, Communicates, Fails))
class All(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = model
    def forward(self, x):
        for part in self.parts:
            x = part(x + 0)
        return x
run(All(), lambda: torch.randn(256, 512))
"""
        entries = self.ran(JOBS + flaws, **PLAIN)
        for name, problem in (("0", "each call of it changes"), ("1", "changes its input"), ("2", "communicates"),
                              ("3", "ZeroDivisionError")):
            self.assertIn(problem, entries["parts." + name]["problem"])

    @live.at_length
    def test_control_flow_that_depends_on_data_is_measured_with_its_breaks(self):
        body = JOBS + """
class Depends(nn.Linear):
    def forward(self, x):
        return super().forward(x.exp() if x.sum() > 0 else x.sin()).relu()
run(Depends(64, 64), lambda: torch.randn(4, 64), 24)
"""
        compiled = self.ran(body, 1, **COMPILED)[""]["ways"]["compile"]
        self.assertNotIn("problem", compiled)
        self.assertTrue(compiled["breaks"] >= 1 and compiled["graphs"] >= 1, compiled)

    @live.at_length
    def test_running_out_of_memory_is_told(self):
        body = JOBS + """
def grad(*args, **kwargs):
    raise torch.OutOfMemoryError("no memory") if hasattr(torch, "OutOfMemoryError") else RuntimeError("no memory")
torch.autograd.grad = grad
run(nn.Sequential(nn.Linear(64, 64), nn.GELU()), lambda: torch.randn(4, 64), 24)
"""
        self.assertIn("no memory", self.ran(body, 1, **COMPILED)[""]["problem"])

    def test_jobs_that_can_not_be_measured_say_why(self):
        hook = "m = Blocks(Block)\nm.blocks[1].mlp.register_forward_hook(lambda *a: None)\nm.head.weight.register_hook(lambda g: g)\n"
        for body, where, problem in (
                (JOBS + hook + "run(m, lambda: torch.randint(100, (4, 16)))\n", "", "has hooks"),
                (JOBS + "m = Blocks(Block)\nm.compile(backend='eager')\nrun(m, lambda: torch.randint(100, (4, 16)))\n", None,
                 "the job compiles itself"),
                (JOBS + "run(Blocks(Block), lambda: torch.randint(100, (4, 16)), 21)\n", None, "the job ended before")):
            with self.subTest(problem=problem):
                run = self.ranks(body, 1, out=self.path(problem.replace(" ", "-")), DPRO_PROBE="bf16")
                self.assert_ran(run)
                self.trace = self.path(problem.replace(" ", "-"))
                self.assertIn(problem, self.rank()["probes"]["problem"] if where is None else self.entries()[where]["problem"])
