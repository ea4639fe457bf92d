"""Modules that a plan has compiled, or computed in 16 bits, in an unchanged script: what comes out is near to what comes out without,
and what can't be so is as it was."""
import json
import os

import live
import test_recompute

BODY = """
import torch.nn as nn
class Block(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
    def forward(self, x):
        return x + self.mlp(self.norm(x))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.lstm, self.tail = nn.LSTM(32, 32, batch_first=True), nn.Sequential(nn.Linear(32, 32), nn.Tanh())
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.tail(self.lstm(x)[0])
def length(step):
    return 6
def run(make=lambda model: model, steps=4, model=None):
    torch.manual_seed(7)
    model = model or Net()
    trained = make(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(RANK)
    for step in range(steps):
        optimizer.zero_grad()
        made = trained(torch.randn(8, length(step), 32, generator=g))
        loss = (made - 1).pow(2).mean()
        loss.backward()
        see(loss, model)
        optimizer.step()
        if steps < 10:
            sys.stdout.write("LOSS %d %.9f %s\\n" % (RANK, loss.item(), made.dtype))
    return model
if WORLD > 1:
    dist.init_process_group("gloo")
"""
TRAIN = "run(DDP if WORLD > 1 else lambda model: model)\nend()\n"
BLOCKS = ["blocks.%d" % n for n in range(3)]
SIZES = {name: tensor for n in range(3) for name, tensor in (
    ("blocks.%d.norm.weight" % n, 128), ("blocks.%d.norm.bias" % n, 128), ("blocks.%d.mlp.0.weight" % n, 16384),
    ("blocks.%d.mlp.0.bias" % n, 512), ("blocks.%d.mlp.2.weight" % n, 16384), ("blocks.%d.mlp.2.bias" % n, 128))}
SIZES.update({"lstm.weight_ih_l0": 16384, "lstm.weight_hh_l0": 16384, "lstm.bias_ih_l0": 512, "lstm.bias_hh_l0": 512,
              "tail.0.weight": 4096, "tail.0.bias": 128})


def plan(compiled=(), bf16=(), recompute=(), world_size=1):
    value = test_recompute.plan(*recompute, world_size=world_size)
    return dict(value, schema="dpro.plan/4",
                computation={"compile": list(compiled), "bf16": list(bf16), "changes_numerics": True})


def all_of_it():
    """Two buckets as well, for two ranks."""
    value = plan(["blocks.0", "blocks.1"], ["blocks.1", "tail"], ["blocks.0", "blocks.1", "blocks.2"], 2)
    value["job"]["models"] = [{"name": "Net", "parameters": [{"name": name, "size_bytes": size} for name, size in SIZES.items()]}]
    parts = [[name for name in SIZES if name.startswith("blocks") != (n == 0)] for n in range(2)]
    value["communication"] = {"buckets": [{"parameters": names, "size_bytes": sum(SIZES[name] for name in names)} for names in parts]}
    return value


class Case(test_recompute.Case):
    def run_planned(self, body, value, world=1, **more):
        more.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(live.CACHE, "inductor"))
        self.WARM = not value["computation"]["compile"] and "torch.compile" not in body  # the compiler keeps more than modules
        return super().run_planned(body, value, world, **more)

    def once(self, body, *arguments, **more):
        self.WARM = "torch.compile" not in body
        return super().once(body, *arguments, **more)

    def losses(self, run):
        return [(float(line.split()[2]), line.split()[3]) for line in self.lines(run, "LOSS")]

    def assert_near(self, value, most_off, world=1, **more):
        run = self.run_planned(BODY + TRAIN, value, world, **more)
        without = self.once(test_recompute.MODELS + BODY + TRAIN, world, dpro=False, **more)
        self.assert_ran(run)
        found, expected = self.losses(run), self.losses(without)
        self.assertEqual(len(found), 4 * world)
        for (a, dtype), (b, _) in zip(found, expected):
            self.assertLessEqual(abs(a - b), most_off * b)
            self.assertEqual(dtype, "torch.float32")
        return run, found != expected


class Applied(Case):
    def test_compiled_modules_round_otherwise_and_what_compiles_nothing_is_told(self):
        run, _ = self.assert_near(plan([*BLOCKS, "tail", "lstm"]), 1e-4)
        self.assertEqual(len(run.said), 4, run.err)
        for said, text in zip(run.said, (
                "plan applied to Net: 5 modules are compiled, which rounds otherwise", "compiling 5 modules: this step takes longer",
                "compiled 4 of 5 modules in ",
                "computed as without the plan: lstm: nothing of it is compiled: Attempted to wrap RNN, GRU, or LSTM")):
            self.assertIn(text, said)

    def needs_bf16_lstm(self):
        if live.without_bf16_lstm():
            self.skipTest(live.without_bf16_lstm())

    def test_the_whole_model_in_16_bits(self):
        self.needs_bf16_lstm()
        run, differs = self.assert_near(plan(bf16=[""]), 0.02)
        self.assertTrue(differs)
        self.assertEqual(run.said, ["dpro: plan applied to Net: the model is computed in bfloat16, which rounds to 8 bits; expected: a "
                                    "peak of 2.50 GiB instead of 3.00 GiB"])

    def test_what_the_cpu_can_not_compute_in_16_bits_is_computed_as_without_the_plan(self):
        older = {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # no instructions for it, and then no LSTM
        run, differs = self.assert_near(plan(bf16=[""]), 0, **older)
        self.assertFalse(differs)
        self.assertIn("computed as without the plan: the model: RuntimeError: ", run.said[-1])
        self.assertIn("LSTM", run.said[-1])

    @live.at_length
    def test_modules_that_are_compiled_within_a_model_in_16_bits(self):
        self.needs_bf16_lstm()
        run, differs = self.assert_near(plan(BLOCKS, [""]), 0.02)
        self.assertTrue(differs)
        self.assertIn("3 modules are compiled, the model is computed in bfloat16", run.said[0])
        self.assertIn("compiled 3 of 3 modules", run.said[-1])

    @live.at_length
    def test_a_second_length_is_compiled_for_any_and_that_is_told_once(self):
        body = BODY + "length = lambda step: 6 + step\nrun(steps=8)\nend()\n"
        run, without = self.run_planned(body, plan(BLOCKS)), self.once(test_recompute.MODELS + body, 1, dpro=False)
        self.assert_ran(run)
        for (loss, _), (own, _) in zip(self.losses(run), self.losses(without)):
            self.assertAlmostEqual(loss, own, places=4)
        self.assertEqual(["compiles it anew" in line for line in run.said].count(True), 1, run.err)

    def test_buckets_with_modules_that_are_recomputed_compiled_and_in_16_bits(self):
        run, differs = self.assert_near(all_of_it(), 0.02, world=2)
        self.assertTrue(differs)
        self.assertIn("plan applied to Net: 2 buckets", run.said[0])
        self.assertIn("3 modules are recomputed in the backward pass, 2 modules are compiled, 2 modules are computed in bfloat16",
                      run.said[1])
        self.assertIn("compiled 2 of 2 modules", run.said[-1])


class Left(Case):
    """What turns out not to be possible is as without the plan, to the last bit."""

    def test_no_compiler(self):
        run = self.assert_same(BODY + TRAIN, plan(BLOCKS), CXX="/nonexistent", TORCHINDUCTOR_CACHE_DIR=self.path("inductor"))
        self.assertEqual(len(run.said), 4, run.err)
        self.assertIn("compiled 0 of 3 modules", run.said[2])
        self.assertIn("computed as without the plan: blocks.0, blocks.1, blocks.2: InvalidCxxCompiler: ", run.said[3])

    @live.at_length
    def test_a_rank_without_a_compiler(self):
        body = """
if RANK == 1:
    os.environ.update(CXX="/nonexistent", TORCHINDUCTOR_CACHE_DIR="%s")
""" % self.path("inductor") + BODY + TRAIN
        run = self.run_planned(body, plan(["blocks.0"], world_size=2), world=2)
        self.assert_ran(run)
        self.assertIn("compiled 1 of 1 module ", run.errs[0])
        self.assertIn("dpro: rank 1: computed as without the plan: blocks.0: InvalidCxxCompiler", run.errs[1])

    @live.at_length
    def test_a_module_that_is_another_each_time(self):
        run = self.assert_same(BODY + """
class Odd(nn.Linear):
    n = 0
    def forward(self, x):
        self.n += 1
        return super().forward(x) * (1 + 1 / self.n)
model = Net()
model.tail = Odd(32, 32)
print("MODEL", run(model=model).tail.n)
end()
""", plan(["tail"]))
        self.assertIn("computed as without the plan: tail: each call of it is compiled anew", run.said[-1])

    def refused(self, body, value, text):
        run = self.assert_same(BODY + body, value)
        self.assertEqual(len(run.said), 1, run.err)
        self.assertIn("compiled or in 16 bits, the job runs on as it does: " + text, run.said[0])

    def assert_same(self, body, value, world=1, **more):
        run, without = self.run_planned(body, value, world, **more), self.once(test_recompute.MODELS + body, world, dpro=False)
        self.assert_ran(run)
        self.assert_ran(without)
        self.assertEqual(run.digests, without.digests)
        self.assertNotEqual(run.digests, [])
        return run

    def test_what_the_ranks_agree_on_not_to_do(self):
        cases = (
                ('run(lambda model: torch.compile(model, backend="eager"))\nend()\n', plan(["tail"]),
                 "tail can't be compiled: it is compiled"),
                ("run(lambda model: model)\nend()\n", plan([""], recompute=["tail"]),
                 "tail can't be recomputed: it lies in the model, which is to be compiled"),
                (TRAIN, plan(["blocks.9"]), "the model has no module blocks.9 to be compiled"),
                ("model = Net()\nmodel.tail = torch.jit.script(model.tail)\nrun(model=model)\nend()\n", plan(bf16=["tail"]),
                 "tail can't be computed in bfloat16: "),
                ("model = Net()\nmodel.tail[0].forward = model.tail[0].forward\nrun(model=model)\nend()\n", plan(["tail.0"]),
                 "tail.0 can't be compiled: its forward is no method of its class"))
        for body, value, text in cases if live.LONG else cases[:2]:
            with self.subTest(text):
                self.refused(body, value, text)


class Verify(Case):
    def verify(self, value, world=1, **more):
        out = self.path("steps.json")
        body = BODY + TRAIN.replace("model)", "model, 4 + 4 * 5 + 2 * 2 + 1)")
        run = self.run_planned(body, value, world, DPRO_VERIFY=out, DPRO_VERIFY_STEPS="3", DPRO_VERIFY_SETTLE="2", DPRO_VERIFY_BLOCKS="1",
                               DPRO_WARMUP="4", **more)
        self.assert_ran(run)
        with open(out, encoding="utf-8") as file:
            return run, json.load(file)

    def test_modules_as_they_are_and_compiled_by_turns(self):
        run, value = self.verify(plan(BLOCKS, ["tail"]))
        self.assertEqual((value["complete"], value["problem"]), (True, None), run.err)
        turns = value["turns"]
        self.assertEqual([turn["name"] for turn in turns], ["baseline", "plan", "plan", "baseline"])
        self.assertEqual([turn["peak_bytes"] is None for turn in turns], [False, False, True, True], turns)  # once each
        self.assertIn("compiled 3 of 3 modules", run.err)
        for turn in turns:  # nothing is compiled in what is timed
            self.assertLess(max(turn["step_ns"]), 5e8, run.err)

    def test_with_buckets_on_two_ranks(self):
        run, value = self.verify(all_of_it(), 2)
        self.assertEqual((value["complete"], value["problem"]), (True, None), run.err)
        self.assertEqual([len(turn["bucket_bytes"]) for turn in value["turns"]], [1, 2, 2, 1])
        self.assertTrue(value["turns"][1]["peak_bytes"] < value["turns"][0]["peak_bytes"], value)

    def test_ends_where_nothing_of_the_plan_can_be_done(self):
        run, value = self.verify(plan(["lstm"]))
        self.assertFalse(value["complete"])
        self.assertIn("nothing is compiled or in 16 bits as planned: lstm", value["problem"])
