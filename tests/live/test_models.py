"""What is written about models: DDP's buckets in every mode, FSDP's units, several models and optimizers; and that the
steps are found in all of them."""
import json
import os

import live

# Each mode trains the same network. DDP hands each bucket to a communication hook: that is the truth, in a run without dpro.
# With dpro, only the mode "hook" has one.
BUCKETS = """
import json
from contextlib import nullcontext
dist.init_process_group("gloo")
class Net(torch.nn.Module):
    def __init__(self, unused):
        super().__init__()
        self.skips = unused
        self.first = torch.nn.Linear(64, 256)
        self.frozen = torch.nn.Linear(256, 256)
        self.frozen.weight.requires_grad_(False)
        self.left = torch.nn.Linear(256, 512)
        self.right = torch.nn.Linear(256, 512)
        self.tied = torch.nn.Linear(512, 64)
        self.again = torch.nn.Linear(512, 64)
        self.again.weight = self.tied.weight
        self.unused = torch.nn.Linear(8, 8)
    def forward(self, x):
        x = self.frozen(self.first(x).relu())
        y = self.tied(self.right(x)) + self.again(self.left(x))
        return y if self.skips else y + self.unused(x[:, :8]).sum()
def make(mode, arguments):
    net = Net(mode == "unused")
    model = DDP(net, bucket_cap_mb=0.5, **arguments)
    names = {id(p): n for n, p in net.named_parameters()}
    def hook(state, bucket):
        truth[mode][bucket.index()] = [names[id(p)] for p in bucket.parameters()]
        work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return work.then(lambda f: f.value()[0])
    if "truth" in sys.argv or mode == "hook":
        model.register_comm_hook(None, hook)
    return model
MODES, MICRO = %(modes)r, %(micro)d
truth = {mode: {} for mode in MODES}
models = [make(mode, arguments) for mode, arguments in MODES.items()]
optimizer = torch.optim.SGD([p for model in models for p in model.parameters() if p.requires_grad], lr=0.01)
g = torch.Generator().manual_seed(RANK)
for i in range(24 * MICRO):
    x = torch.randn(4, 64, generator=g)
    last = i %% MICRO == MICRO - 1
    for model in models:
        with nullcontext() if last else model.no_sync():
            model(x).pow(2).mean().backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
if "truth" in sys.argv and RANK == 0:
    print("TRUTH", json.dumps({mode: [buckets[k] for k in sorted(buckets)] for mode, buckets in truth.items()}))
end()
"""


SETTINGS = {"view": "gradient_as_bucket_view", "static": "static_graph", "unused": "find_unused_parameters", "hook": "comm_hook"}


class Buckets(live.Case):
    WARM = True

    def check(self, modes, micro=1):
        """The buckets of each mode are DDP's."""
        body = BUCKETS % {"modes": modes, "micro": micro}
        without = self.ranks(body, dpro=False, arguments=["truth"])
        self.assert_ran(without)
        truth = json.loads(next(line for line in without.out.splitlines() if line.startswith("TRUTH "))[6:])
        self.assert_ran(self.ranks(body))
        models = {}
        for model in self.rank()["models"]:
            set_ones = [mode for mode, setting in SETTINGS.items() if model["ddp"][setting]]
            self.assertLessEqual(len(set_ones), 1)
            models[set_ones[0] if set_ones else "default"] = model
        self.assertEqual(set(models), set(modes))
        for mode, model in models.items():
            with self.subTest(mode):
                found = [[model["parameters"][n]["name"] for n in bucket["parameters"]] for bucket in model["buckets"]]
                self.assertEqual(found, truth[mode])
                self.assertGreater(len(found), 1)
                for bucket in model["buckets"]:
                    self.assertEqual(bucket["size_bytes"],
                                     sum(model["parameters"][n]["size_bytes"] for n in bucket["parameters"]))
                self.assertEqual((model["parallel"], model["process_group"], model["ddp"]["bucket_cap_mb"]), ("ddp", "0", 0.5))

    def test_buckets_are_those_of_every_mode(self):
        self.check({"default": {}, "view": {"gradient_as_bucket_view": True}, "static": {"static_graph": True},
                    "unused": {"find_unused_parameters": True}, "hook": {}})

    def test_accumulated_gradients_are_one_step(self):
        self.check({"default": {}}, micro=3)
        self.assertEqual(self.profiled_steps(), [8, 9, 10])
        events = [e for e in self.kineto()["traceEvents"] if e.get("name") == "DistributedDataParallel.forward"]
        self.assertGreaterEqual(len(events), 9)
        self.assertTrue(self.rank()["complete"])


class Models(live.Case):
    WARM = True

    def test_a_ddp_model_wrapped_again_is_described_once(self):
        self.assert_ran(self.ranks("""
dist.init_process_group("gloo")
inner = net()
first = DDP(inner)
train(first, torch.optim.SGD(inner.parameters(), lr=0.01), 1)
second = DDP(inner, bucket_cap_mb=0.03)
train(second, torch.optim.SGD(inner.parameters(), lr=0.01), 30)
end()
"""))
        models = self.rank()["models"]
        self.assertEqual([m["ddp"]["bucket_cap_mb"] for m in models], [0.03])
        self.assertGreater(len(models[0]["buckets"]), 1)

    def test_fully_sharded_units_are_named_with_their_parameters(self):
        run = self.ranks("""
dist.init_process_group("gloo")
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    print("NO FSDP2"); sys.exit(0)
model = net()
for layer in model:
    fully_shard(layer, reshard_after_forward=True)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())
for i in range(24):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).pow(2).mean().backward()
    optimizer.step()
end()
""")
        if "NO FSDP2" in run.out:
            self.skipTest("this torch has no fully_shard")
        self.assert_ran(run)
        model = self.rank()["models"][0]
        self.assertEqual(model["parallel"], "fsdp")
        self.assertEqual(model["process_group"], "0")
        units = [(u["name"], u["parameters"], u["reshard_after_forward"]) for u in model["fsdp"]["units"]]
        self.assertEqual(units, [(str(i), [2 * i, 2 * i + 1], True) for i in range(4)])
        self.assertEqual(model["parameters"][0]["shape"], [64, 64])
        self.assertEqual(self.rank()["memory"]["parameter_bytes"], 4 * (64 * 64 + 64) * 4 // 2)
        self.assertEqual(self.job()["parallel"], "fsdp")
        self.assertEqual(self.profiled_steps(0), self.profiled_steps(1))
        self.assertEqual(len([line for line in run.said if "transport" not in line]), 1, run.said)

    def test_what_is_trained_is_a_stage_and_not_the_whole_whose_layers_it_took(self):
        run = self.ranks("""
dist.init_process_group("gloo")
from torch.distributed.fsdp import fully_shard
class Stage(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers
    def forward(self, x):
        return self.layers(x)
whole = net()
stage = Stage(whole[:2])
for layer in stage.layers:
    fully_shard(layer)
fully_shard(stage)
holder = torch.nn.ModuleList([stage])
optimizer = torch.optim.Adam(holder.parameters())
for i in range(24):
    optimizer.zero_grad()
    stage(torch.randn(8, 64)).pow(2).mean().backward()
    optimizer.step()
end()
""")
        self.assert_ran(run)
        models = self.rank()["models"]
        self.assertEqual([model["name"] for model in models], ["FSDPStage"])
        units = [(u["name"], u["parameters"]) for u in models[0]["fsdp"]["units"]]
        self.assertEqual(units, [("layers.0", [0, 1]), ("layers.1", [2, 3])])

    @live.at_length
    def test_the_older_fully_sharded_wrapper_is_described_as_well(self):
        run = self.ranks("""
dist.init_process_group("gloo")
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
try:
    model = torch.nn.Sequential(*[FSDP(torch.nn.Linear(64, 64), device_id=torch.device("cpu")) for _ in range(3)])
    model = FSDP(model, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for i in range(24):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).pow(2).mean().backward()
        optimizer.step()
except (RuntimeError, AttributeError, NotImplementedError) as problem:
    print("NO FSDP1", problem); sys.exit(0)
end()
""")
        if "NO FSDP1" in run.out:
            self.skipTest(run.out.splitlines()[0][:200])
        self.assert_ran(run)
        model = self.rank()["models"][0]
        self.assertEqual([u["name"] for u in model["fsdp"]["units"]], ["0", "1", "2"])
        self.assertEqual([p["name"] for p in model["parameters"]], [n + p for n in "012" for p in (".weight", ".bias")])
        self.assertEqual(model["parameters"][0]["shape"], [64, 64])


class Steps(live.Case):
    WARM = True

    def test_a_generator_with_a_critic_stepped_five_times_ends_the_step(self):
        self.assert_ran(self.ranks("""
dist.init_process_group("gloo")
critic, generator = DDP(net(layers=2)), DDP(net(layers=3))
steps = torch.optim.Adam(critic.parameters()), torch.optim.RMSprop(generator.parameters())
for i in range(24):
    for optimizer, model, n in ((steps[0], critic, 5), (steps[1], generator, 1)):
        for _ in range(n):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).pow(2).mean().backward()
            optimizer.step()
end()
"""))
        info = self.rank()
        self.assertEqual(sorted(len(m["parameters"]) for m in info["models"]), [4, 6])
        self.assertEqual(sorted(o["class"] for o in info["optimizers"]), ["Adam", "RMSprop"])
        self.assertEqual(self.profiled_steps(0), self.profiled_steps(1))
        self.check_updates({"Adam": 5, "RMSprop": 1}, "RMSprop")

    @live.at_length
    def test_a_critic_that_is_held_still_while_the_generator_steps_is_described_as_ddp_has_it(self):
        run = self.ranks("""
dist.init_process_group("gloo")
critic, generator = DDP(net(layers=2)), DDP(net(layers=3))
steps = torch.optim.SGD(critic.parameters(), 0.01), torch.optim.SGD(generator.parameters(), 0.01)
for i in range(24):
    made = generator(torch.randn(8, 64))
    steps[0].zero_grad()
    critic(made.detach()).pow(2).mean().backward()
    steps[0].step()
    critic.requires_grad_(False)
    steps[1].zero_grad()
    critic.module(made).pow(2).mean().backward()
    steps[1].step()
    critic.requires_grad_(True)
end()
""")
        self.assert_ran(run)
        self.assertFalse(any("can't be described" in line for line in run.said), run.said)
        self.assertEqual(sorted(sum(len(bucket["parameters"]) for bucket in model["buckets"]) for model in self.rank()["models"]), [4, 6])

    def check_updates(self, counts, last):
        """In every profiled step the optimizers stepped that often, that one at its end."""
        events = [e for e in self.kineto()["traceEvents"] if e.get("ph") == "X"]
        steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
        self.assertEqual(len(steps), 3)
        for step in steps:
            inside = sorted((e["ts"], e["name"]) for e in events if e["name"].startswith("Optimizer.step#")
                            and step["ts"] <= e["ts"] < step["ts"] + step["dur"])
            names = [name.split("#")[1].split(".")[0] for _, name in inside]
            self.assertEqual({name: names.count(name) for name in names}, counts)
            self.assertEqual(names[-1], last)

    def test_of_two_optimizers_the_last_one_of_a_cycle_ends_the_step(self):
        self.assert_ran(self.ranks("""
model, other = net(), net()
optimizers = torch.optim.SGD(model.parameters(), lr=0.01), torch.optim.Adam(other.parameters())
for i in range(30):
    for o, m in zip(optimizers, (model, other)):
        o.zero_grad()
        m(torch.randn(8, 64)).pow(2).mean().backward()
        o.step()
end()
""", world=1))
        self.check_updates({"SGD": 1, "Adam": 1}, "Adam")

    @live.at_length
    def test_steps_that_a_gradient_scaler_skips_count(self):
        run = self.ranks("""
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler") else None
if scaler is None:
    print("NO SCALER"); sys.exit(0)
for i in range(30):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64)).pow(2).mean()
    scaler.scale(loss * (float("inf") if i % 3 == 0 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
print("SCALE", scaler.get_scale())
end()
""", world=1)
        if "NO SCALER" in run.out:
            self.skipTest("this torch has no torch.amp.GradScaler")
        self.assert_ran(run)
        info = self.rank()
        self.assertEqual([s["step"] for s in info["steps"]["timing"]], [8, 9, 10])
        self.assertGreater(info["steps"]["skipped"], 3)

    def test_optimizers_of_every_kind_are_seen(self):
        cases = {
            "closure": "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)",
            "fused": "optimizer = torch.optim.Adam(model.parameters(), fused=True)",
            "foreach": "optimizer = torch.optim.Adam(model.parameters(), foreach=True)",
            "subclass": """
class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = Own(model.parameters(), lr=0.01)""",
            "scratch": """
class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})
    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=0.01)
        return loss
optimizer = Own(model.parameters())""",
            "scheduled": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)""",
        }
        for name, make in cases.items():
            if name in ("foreach", "scheduled") and not live.LONG:
                continue
            with self.subTest(name):
                trace = self.path(name)
                run = self.ranks("model = net()\n" + make + """
def closure():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64)).pow(2).mean()
    loss.backward()
    return loss
for i in range(24):
    optimizer.step(closure)
end()
""", world=1, out=trace)
                self.assert_ran(run)
                self.assertTrue(self.rank(root=trace)["complete"])
                self.assertEqual(self.profiled_steps(root=trace), [8, 9, 10])

    def test_a_parameter_that_never_got_a_shape_is_left_out(self):
        run = self.ranks("""
model = net()
model[0].unused = torch.nn.LazyLinear(3)
train(model, torch.optim.SGD(model.parameters(), lr=0.01), 26)
end()
""", world=1)
        self.assert_ran(run)
        info = self.rank()
        self.assertEqual((info["complete"], info["warnings"]), (True, []))
        self.assertEqual([p["name"] for p in info["models"][0]["parameters"]],
                         ["%d.%s" % (n, name) for n in range(4) for name in ("weight", "bias")])

    def test_an_optimizer_that_steps_another_one_is_one(self):
        run = self.ranks("""
from torch.distributed.optim import ZeroRedundancyOptimizer
dist.init_process_group("gloo")
model = DDP(net())
train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01), 26)
end()
""")
        self.assert_ran(run)
        self.assertEqual(self.profiled_steps(0), [8, 9, 10])
        self.assertEqual(self.profiled_steps(1), [8, 9, 10])

    def test_a_compiled_model_and_a_compiled_step_are_seen_and_compute_the_same(self):
        self.WARM = False  # the compiler keeps more than modules
        job = """
model = net()
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.01), momentum=0.9)
@torch.compile(backend="eager")
def update():
    optimizer.step()
for i in range(24):
    optimizer.zero_grad()
    loss = compiled(torch.randn(8, 64)).pow(2).mean()
    loss.backward()
    see(loss, model)
    update()
end()
"""
        run = self.ranks(job, world=1)
        self.assert_ran(run)
        self.assert_untouched(run, job)
        self.assertEqual(self.profiled_steps(), [8, 9, 10])
        self.assertEqual(self.rank()["models"][0]["name"], "Sequential")


class Recorder(live.Case):
    WARM = True

    JOB = """
import dpro
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
recorder = dpro.Recorder(model%s)
@dpro.profile(recorder)
def train_one_step(batch):
    "one step"
    for part in batch.split(4):
        optimizer.zero_grad()
        model(part).pow(2).mean().backward()
        optimizer.step()
    return 42
for i in range(24):
    assert train_one_step(torch.randn(8, 64)) == 42
assert train_one_step.__doc__ == "one step"
end()
"""

    def path_to_package(self):
        return os.path.join(live.ROOT, "python")

    def test_says_where_a_step_is(self):
        run = self.ranks(self.JOB % "", world=1, PYTHONPATH=os.pathsep.join([live.SITE, self.path_to_package()]))
        self.assert_ran(run)
        info = self.rank()
        self.assertEqual(info["steps"]["boundary"], "recorder")
        self.assertEqual(self.profiled_steps(), [8, 9, 10])
        updates = [e for e in self.kineto()["traceEvents"] if e.get("name", "").startswith("Optimizer.step#")]
        self.assertEqual(len(updates), 6)

    def test_records_by_itself_into_a_folder_it_is_given(self):
        run = self.ranks(self.JOB % ", out='mine', warmup=2, iterations=2", world=1, dpro=False,
                         PYTHONPATH=self.path_to_package())
        self.assert_ran(run)
        self.assertEqual(self.profiled_steps(root=self.path("mine")), [6, 7])

    def test_is_nothing_in_a_job_that_is_not_recorded(self):
        run = self.ranks(self.JOB % "" + "print(train_one_step.__closure__ is None or 'dpro' not in str(train_one_step))\n",
                         world=1, dpro=False, PYTHONPATH=self.path_to_package())
        self.assert_ran(run)
        self.assertEqual(run.said, [])

    def test_a_wrong_argument_is_an_error(self):
        for call in ("dpro.Recorder(warmup=-1)", "dpro.Recorder(iterations=0)", "dpro.profile(3)"):
            run = self.command([live.PYTHON, "-c", "import dpro\ntry:\n    %s\nexcept dpro.Error as e:\n    print(e)" % call],
                               **self.environment(dpro=False, PYTHONPATH=self.path_to_package()))
            self.assert_ran(run)
            self.assertTrue(run.out.strip(), call)
