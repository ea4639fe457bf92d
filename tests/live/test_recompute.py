"""Modules that a plan has recomputed in the backward pass of an unchanged script: the same losses, gradients, buffers and
random numbers to the last bit; what can't be recomputed is as it was."""
import json
import os

import live

MODELS = """
import torch.nn as nn
calls = {}
def count(module, args):
    calls[module.number] = calls.get(module.number, 0) + 1
class Block(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(d), nn.MultiheadAttention(d, 4, batch_first=True, dropout=0.1)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * d, d))
    def forward(self, x, *, mask):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(x)
class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(64, 32)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(32, 64)
    def forward(self, x):
        x, mask = self.tokens(x), torch.zeros(16, 16)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.head(x)
    def batch(self, g):
        return torch.randint(0, 64, (4, 16), generator=g)
class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(8 if n else 3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
                                                   nn.Dropout2d(0.2)) for n in range(4)])
        self.head = nn.Linear(8, 10)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))
    def batch(self, g):
        return torch.randn(4, 3, 8, 8, generator=g)
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.LSTM(16, 16, 2, dropout=0.1, batch_first=True) for _ in range(4)])
        self.head = nn.Linear(16, 10)
    def forward(self, x):
        state = None
        for block in self.blocks:
            x, state = block(x, state)
        return self.head(x[:, -1])
    def batch(self, g):
        return torch.randn(4, 7, 16, generator=g)
class Deep(nn.Module):
    rows = 4000
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()) for _ in range(8)])
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
    def batch(self, g):
        return torch.randn(self.rows, 64, generator=g)
def run(net, name, make=lambda model: model, bf16=False, steps=5, accumulate=1):
    global digest
    digest = hashlib.sha256()
    torch.manual_seed(7)
    model = net()
    trained = make(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(RANK)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                loss = trained(model.batch(g)).float().pow(2).mean()
            loss.backward()
        see(loss, model)
        optimizer.step()
    for buffer in model.buffers():
        digest.update(buffer.numpy().tobytes())
    print("MODEL", RANK, name, digest.hexdigest(), int(torch.random.get_rng_state().sum()), flush=True)
    return model
"""


def plan(*names, world_size=1, **more):
    return {"schema": "dpro.plan/3", "dpro": "0.1.0",
            "job": {"framework": "pytorch", "stack": "ddp", "world_size": world_size, "models": []},
            "memory": {"recompute": list(names), "micro_batches": 1, "budget_bytes": None, "baseline_peak_bytes": 3 << 30,
                       "peak_bytes": 5 << 29, **more}}


class Case(live.Case):
    WARM = True

    def run_planned(self, body, value, world=1, **more):
        os.makedirs(self.path("plan"), exist_ok=True)
        with open(self.path("plan", "plan.json"), "w", encoding="utf-8") as file:
            json.dump(value, file)
        return self.ranks(MODELS + body, world, dpro=False, DPRO_PLAN=self.path("plan"), PYTHONPATH=live.SITE, **more)

    def lines(self, run, word="MODEL"):
        return sorted(line for line in run.out.splitlines() if line.startswith(word))

    def assert_same(self, body, value, world=1, **more):
        run, without = self.run_planned(body, value, world, **more), self.once(MODELS + body, world, dpro=False)
        self.assert_ran(run)
        self.assert_ran(without)
        self.assertEqual(self.lines(run), self.lines(without))
        self.assertNotEqual(self.lines(run), [])
        return run


class Single(Case):
    COUNTED = """
model = run(%s, "%s", bf16=%s, steps=4)
inner = next(m for m in model.blocks[1].modules() if not m._modules)
print("CLASS", type(inner).__name__)
inner.register_forward_pre_hook(lambda module, args: print("CALLED", flush=True))
model(model.batch(torch.Generator())).sum().backward()
with torch.no_grad():
    model(model.batch(torch.Generator()))
model.eval()
model(model.batch(torch.Generator())).sum().backward()
"""

    def check(self, net):
        for bf16 in (False, True):
            with self.subTest(bf16=bf16):
                if bf16 and net == "Recurrent" and live.without_bf16_lstm():
                    self.skipTest(live.without_bf16_lstm())
                body = self.COUNTED % (net, net, bf16)
                run = self.assert_same(body, plan("blocks.1", "blocks.3"))
                self.assertEqual(len(run.said), 1, run.said)
                self.assertIn("plan applied to %s: 2 modules are recomputed in the backward pass; expected: a peak of "
                              "2.50 GiB instead of 3.00 GiB" % net, run.said[0])
                called = 3 if net == "Recurrent" else 4  # the LSTM's own hook is outside of what is recomputed
                self.assertEqual(len(self.lines(run, "CALLED")), called)

    def test_a_transformer_with_dropout(self):
        self.check("Transformer")

    @live.at_length
    def test_a_convolutional_net_with_batch_norm(self):
        self.check("Conv")

    @live.at_length
    def test_a_recurrent_net(self):
        self.check("Recurrent")

    GIVEN = """
import collections, dataclasses
State = collections.namedtuple("State", "x mask")
@dataclasses.dataclass
class Shared:
    x: torch.Tensor
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 64)
    def forward(self, given, *more):
        %s
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
    def forward(self, x):
        given = %s
        for block in self.blocks:
            given = block(given, %s)
        return given.x if hasattr(given, "x") else given[0] if type(given) is tuple else given["x"] if type(given) is dict else given
    def batch(self, g):
        return torch.randn(8, 64, generator=g)
model = run(Outer, "a")
model.blocks[1].a.register_forward_pre_hook(lambda module, args: print("CALLED", flush=True))
model(model.batch(torch.Generator())).sum().backward()
"""

    @live.at_length
    def test_what_a_block_is_given_in_tuples_and_dicts(self):
        for given, forward in (("(x, x > 0)", "return torch.tanh(self.a(given[0])) * given[1], given[1]"),
                               ("State(x, x > 0)", "return State(torch.tanh(self.a(given.x)) * given.mask, given.mask)"),
                               ("{'x': x}", "return {'x': torch.tanh(self.a(given['x']))}")):
            with self.subTest(given=given):
                value, body = plan("blocks.1", "blocks.2"), self.GIVEN % (forward, given, "")
                run, without = self.run_planned(body, value), self.once(MODELS + body, 1, dpro=False)
                self.assert_ran(run)
                self.assertEqual([line for line in self.lines(run) if "CALLED" not in line], self.lines(without))
                self.assertIn("2 modules are recomputed", run.said[0])
                self.assertEqual((len(self.lines(run, "CALLED")), len(self.lines(without, "CALLED"))), (2, 1))

    def test_the_whole_model_and_modules_in_each_other(self):
        for names in ([""], ["blocks.1", "blocks.1.mlp", "blocks.1.mlp.0", "head"]):
            with self.subTest(names=names):
                self.assert_same('run(Transformer, "a")', plan(*names))

    @live.at_length
    def test_copies_pickles_and_scripts_of_the_model_are_as_without(self):
        run = self.assert_same("""
import copy, io
model = run(Conv, "a")
copied = copy.deepcopy(model)
file = io.BytesIO()
torch.save(model, file)
file.seek(0)
loaded = torch.load(file, weights_only=False)
scripted = torch.jit.script(copied)
x = torch.ones(2, 3, 8, 8)
print("MODEL", *(m.eval()(x).sum().item() for m in (model, copied, loaded, scripted)))
traced = torch.jit.trace(model, x)
import torch.fx
torch.fx.symbolic_trace(model)
""", plan("blocks.1"))
        self.assertEqual(len(run.said), 1, run.said)

    def test_memory_is_saved(self):
        body = """
Deep.rows = 20000
model = run(Deep, "a", steps=2)
x = model.batch(torch.Generator())
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
    loss = model(x).pow(2).mean()
    loss.backward()
held = most = 0
for event in profile.profiler.kineto_results.events():
    if event.name() == "[memory]":
        held += event.nbytes()
        most = max(most, held)
print("PEAK", most)
"""
        run = self.assert_same(body, plan(*("blocks.%d" % n for n in range(8))))
        without = self.once(MODELS + body, 1, dpro=False)
        peaks = [int(self.lines(r, "PEAK")[0].split()[1]) for r in (run, without)]
        self.assertLess(peaks[0], 0.7 * peaks[1])


class Distributed(Case):
    def test_buckets_and_recomputation_of_one_plan(self):
        sizes = {"%d.%s" % (n, what): size for n in range(4) for what, size in (("weight", 16384), ("bias", 256))}
        value = plan("1", "3", world_size=2)
        value["job"]["models"] = [{"name": "Sequential", "parameters": [
            {"name": name, "size_bytes": size} for name, size in sizes.items()]}]
        buckets = [[name for name in sizes if name[0] in part] for part in ("23", "01")]
        value["communication"] = {"buckets": [{"parameters": names, "size_bytes": sum(sizes[name] for name in names)}
                                              for names in buckets]}
        body = """
dist.init_process_group("gloo")
class Net(nn.Sequential):
    def batch(self, g):
        return torch.randn(4, 64, generator=g)
model = run(lambda: Net(*net()), "a", make=DDP, accumulate=2)
end()
"""
        run = self.assert_same(body, value, world=2)
        self.assertEqual(len(run.said), 2, run.said)
        self.assertIn("plan applied to Net: 2 buckets", run.said[0])
        self.assertIn("plan applied to Net: 2 modules are recomputed", run.said[1])
        value["memory"]["recompute"] = ["9"]
        run = self.assert_same(body, value, world=2)
        self.assertEqual(len(run.said), 1, run.said)
        self.assertIn("the plan is not applied, the job runs on with its own buckets: rank 0: the model has no module 9", run.said[0])

    def mode(self, mode, net="Transformer"):
        body = """
dist.init_process_group("gloo")
run(%s, "a", make=lambda model: DDP(model, %s), accumulate=2 if "static" not in "%s" else 1)
end()
""" % (net, mode, mode)
        run = self.assert_same(body, plan("blocks.1", "blocks.3", world_size=2), world=2)
        self.assertEqual(len(run.said), 1, run.said)
        self.assertIn("plan applied to %s: 2 modules" % net, run.said[0])

    @live.at_length
    def test_a_static_graph(self):
        self.mode("static_graph=True")

    @live.at_length
    def test_unused_parameters(self):
        self.mode("find_unused_parameters=True")

    def test_gradients_that_are_views_of_buckets(self):
        self.mode("gradient_as_bucket_view=True", "Conv")

    @live.at_length
    def test_a_plan_that_one_rank_lacks_is_applied_by_none(self):
        run = self.assert_same("""
if RANK == 1:
    os.environ["WORLD_SIZE"] = "3"
dist.init_process_group("gloo", rank=RANK, world_size=2)
run(Transformer, "a", make=DDP)
end()
""", plan("blocks.1", world_size=2), world=2)
        self.assertEqual(len(run.said), 1, run.said)
        self.assertIn("nothing is recomputed, the job runs on as it does: rank 1: it is for 2 ranks, this job has 3", run.said[0])


class Refused(Case):
    def check(self, body, *names, text=None, before=""):
        run = self.assert_same(body, plan(*names))
        said = [line for line in run.said if "nothing is recomputed, the job runs on as it does: " in line]
        self.assertEqual(len(said), 1, run.err[-3000:])
        self.assertIn(text, said[0])

    def test_a_module_that_is_not_there(self):
        self.check('run(Transformer, "a")', "blocks.1", "blocks.9", text="the model has no module blocks.9")

    def test_a_module_that_the_job_recomputes(self):
        self.check("""
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
class Wrapped(Conv):
    def __init__(self):
        super().__init__()
        self.blocks[1] = checkpoint_wrapper(self.blocks[1])
run(Wrapped, "a")
""", "blocks.1", text="the job recomputes it already")
        for reentrant in (False, True) if live.LONG else ():
            self.check("""
from torch.utils.checkpoint import checkpoint
class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 64)
    def forward(self, x):
        return checkpoint(self.a, x, use_reentrant=%s)
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), Inner()
    def forward(self, x):
        return self.b(self.a(x))
    def batch(self, g):
        return torch.randn(8, 64, generator=g)
run(Outer, "a")
""" % reentrant, "b", text="the job recomputes parts of it already")
        self.check("""
from torch.utils.checkpoint import checkpoint
class Outer(Conv):
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x.mean((2, 3)))
run(Outer, "a")
""", "blocks.1", text="blocks.1 is called within the job's own recomputation")

    BODY = """
import random
import numpy
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n, self.noise = nn.Linear(64, 64), 0, torch.Generator().manual_seed(1)
    def forward(self, x):
        %s
        return self.a(x) * 2
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.odd = nn.Linear(64, 64), Odd()
    def forward(self, x):
        return self.odd(self.first(x))
    def batch(self, g):
        return torch.randn(8, 64, generator=g)
random.seed(1)
numpy.random.seed(1)
model = run(Outer, "a")
print("MODEL", model.odd.n, random.random(), numpy.random.random(), torch.rand(1, generator=model.odd.noise).item())
"""

    def test_what_is_not_the_same_again(self):
        lines = (("x.add_(1)", "changes its input in place"),
                 ("x = x + numpy.random.random()", "random numbers that are not torch's"),
                 ("self.n += 1", "each call of it changes Odd.n"),
                 ("x = x + random.random()", "random numbers that are not torch's"),
                 ("x = x + torch.rand(1, generator=self.noise)", "computed again, it gives something else"),
                 ("self.a.weight.data = self.a.weight.data * 1.0 if self.a.weight.grad is None else self.a.weight.data\\n"
                  "        self.a.bias.data.add_(0.0); torch._foreach_add_([self.a.bias.detach()], 0.0)", "it changes parameters"))
        for line, text in lines if live.LONG else lines[:2]:
            with self.subTest(line=line):
                self.check(self.BODY % line.replace("\\n", "\n"), "odd", text=text)

    @live.at_length
    def test_what_changes_what_it_is_given(self):
        for given, more, forward, text in (
                ("x", "seen", "more[0].append(given); return self.a(given)", "changes its input in place"),
                ("{'x': x}", "", "given['x'] = self.a(given['x']); return given", "changes its input in place"),
                ("State(x, x.clone())", "", "given.mask.add_(1); return State(self.a(given.x), given.mask)", "changes its input in place"),
                ("Shared(x)", "", "given.x = self.a(given.x); return given", "it is given a Shared, which it may change"),
                ("x", "torch.Generator()", "return self.a(given)", "it is given a Generator, which it may change")):
            with self.subTest(given=given, more=more):
                body = (Single.GIVEN % (forward, given, more)).replace("given = %s" % given, "given, seen = %s, [x]" % given)
                self.check(body, "blocks.1", text=text)

    @live.at_length
    def test_what_is_compiled(self):
        self.check("""
run(Conv, "a", make=lambda model: torch.compile(model, backend="eager"))
""", "blocks.1", text="it is compiled")

    def test_what_fails_in_the_trial_is_the_jobs_own_affair(self):
        self.check(self.BODY % "assert torch.is_grad_enabled()", "odd", text="AssertionError")

    def test_a_buffer_that_the_forward_reads_and_writes_is_as_it_was(self):
        run = self.assert_same("""
class Ema(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 64)
        self.register_buffer("mean", torch.zeros(64))
        self.register_buffer("n", torch.zeros((), dtype=torch.long))
    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.n = self.n + 1
        return torch.tanh(self.a(x - self.mean)) * self.n
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.ema = nn.Linear(64, 64), Ema()
    def forward(self, x):
        return self.ema(self.ema(self.first(x)))
    def batch(self, g):
        return torch.randn(8, 64, generator=g)
run(Outer, "a")
""", plan("ema"))
        self.assertIn("1 module is recomputed", run.said[0])



class MicroBatches(Case):
    BODY = """
import dpro
class Net(nn.Sequential):
    pass
if WORLD > 1:
    dist.init_process_group("gloo")
model = Net(*net()).double()
trained = DDP(model) if WORLD > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
seen = []
model.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
g = torch.Generator().manual_seed(RANK)
for step in range(3):
    x, y = torch.randn(10, 64, generator=g).double(), {"y": torch.randn(10, 64, generator=g).double()}
    optimizer.zero_grad()
    for a, b in dpro.micro_batches(trained, x, y):
        (trained(a) - b["y"]).pow(2).mean().backward()
    optimizer.step()
print("SEEN", RANK, seen)
print("SUM", RANK, "%.12g" % sum(p.sum().item() for p in model.parameters()))
end()
"""

    def check(self, world):
        without = self.once(MODELS + self.BODY, world, dpro=False, PYTHONPATH=os.path.join(live.ROOT, "python"))
        run = self.run_planned(self.BODY, plan(micro_batches=4, world_size=world), world)
        self.assert_ran(run)
        self.assertIn("a batch of 10 goes through the model in 4 micro-batches", run.err)
        for line in self.lines(run, "SEEN"):
            self.assertIn("[2, 3, 2, 3, 2, 3,", line)
        self.assertIn("[10, 10, 10]", without.out)
        self.assertEqual(self.lines(run, "SUM"), self.lines(without, "SUM"))
        self.assertEqual(len(run.said), 1, run.said)

    @live.at_length
    def test_gradients_are_those_of_the_whole_batch(self):
        self.check(1)

    def test_ddp_communicates_once_a_step(self):
        self.check(2)

    def test_a_script_without_the_line_is_told_of_it(self):
        run = self.assert_same('run(Conv, "a")', plan("blocks.1", micro_batches=2))
        self.assertEqual(len(run.said), 2, run.said)
        self.assertIn("the plan is applied in part: its 2 micro-batches take a line in the script, 'for x, y in "
                      "dpro.micro_batches(model, x, y):' around forward and backward; expected with it: a peak of 2.50 GiB "
                      "instead of 3.00 GiB", run.err)

    def test_batches_that_cannot_be_cut_stay_whole(self):
        run = self.run_planned("""
import dpro
for batch in ((torch.ones(4), torch.ones(5)), (1, "a")):
    print("PARTS", len(list(dpro.micro_batches(nn.Linear(2, 2), *batch))))
print("ONE", [len(x) for x in dpro.micro_batches(nn.Linear(2, 2), torch.ones(3, 2))])
""", plan(micro_batches=8))
        self.assertEqual(self.lines(run, "PARTS"), ["PARTS 1", "PARTS 1"])
        self.assertIn("ONE [1, 1, 1]", run.out)
        self.assertIn("tensors of several first dimensions (4, 5)", run.err)


class Verify(Case):
    BODY = """
if WORLD > 1:
    dist.init_process_group("gloo")
run(Deep, "a", make=DDP if WORLD > 1 else lambda model: model, steps=4 + 12 * 5 + 2 * 2 + 1)
end()
"""

    def check(self, world):
        out = self.path("steps.json")
        run = self.assert_same(self.BODY, plan(*("blocks.%d" % n for n in range(8)), world_size=world), world, DPRO_VERIFY=out,
                               DPRO_VERIFY_STEPS="3", DPRO_VERIFY_SETTLE="2", DPRO_VERIFY_BLOCKS="3", DPRO_WARMUP="4")
        with open(out, encoding="utf-8") as file:
            value = json.load(file)
        self.assertEqual((value["complete"], value["problem"], value["models"]), (True, None, ["Deep"]), run.err)
        turns = value["turns"]
        self.assertEqual([turn["name"] for turn in turns], ["baseline", "plan", "plan", "baseline"] * 3)
        self.assertEqual([turn["peak_bytes"] is not None for turn in turns], [True] * 2 + [False] * 10)
        peaks = [turn["peak_bytes"] for turn in turns[:2]]
        n_parameters, activation = 8 * 2 * (64 * 64 + 64) * 4, 4000 * 64 * 4
        held = (3 + (world > 1)) * n_parameters  # with gradients, momentum, buckets
        # Kept: the input of the first block and what each Tanh made; of the last block, the loss, too.
        self.assertTrue(held + 17 * activation < peaks[0] < held + 22 * activation, (peaks, held, activation))
        self.assertTrue(held + 9 * activation < peaks[1] < held + 15 * activation, (peaks, held, activation))

    def test_recomputation_is_switched_by_turns_and_the_peak_of_each_kind_measured(self):
        self.check(1)

    @live.at_length
    def test_with_ddp(self):
        self.check(2)
