"""A plan in real jobs of two ranks over gloo: DDP gets exactly its buckets, in every mode, on all ranks or on none, and
trains to the same numbers."""
import json
import os
import subprocess

import live

# net(): four layers of 64, weights of 16,384 bytes and biases of 256.
SIZES = {"%d.%s" % (n, what): size for n in range(4) for what, size in (("weight", 16384), ("bias", 256))}
# Not contiguous in the order in which gradients become ready (3.bias, 3.weight, 2.bias, ...), some of equal size.
BUCKETS = [["3.bias", "3.weight", "2.bias"], ["1.weight"], ["2.weight"], ["0.bias"], ["1.bias", "0.weight"]]

MODES = """
names = None
def buckets_of(ddp):
    names = {id(p): n for n, p in ddp.module.named_parameters()}
    return [[names[id(p)] for p in bucket.parameters()] for bucket in ddp.reducer._get_zeros_like_grad_buckets()]
def job(steps=4, accumulate=False, hook=None, make=DDP, **mode):
    global digest
    digest = hashlib.sha256()
    torch.manual_seed(7)
    ddp = make(net(), **mode)
    if hook:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(RANK)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for part in range(2 if accumulate else 1):
            x = torch.randn(8, 64, generator=g)
            with ddp.no_sync() if accumulate and part == 0 else torch.enable_grad():
                loss = ddp(x).pow(2).mean()
                loss.backward()
        see(loss, ddp)
        optimizer.step()
    told = ddp._get_ddp_logging_data()
    print("MODE", RANK, sorted(mode), accumulate, digest.hexdigest(), flush=True)
    print("BUCKETS", RANK, sorted(mode), buckets_of(ddp), flush=True)
    print("TOLD", RANK, sorted(mode), told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes"), flush=True)
    return ddp
dist.init_process_group("gloo")
"""

ALL_MODES = MODES + """
job()
job(accumulate=True)
job(gradient_as_bucket_view=True, accumulate=True)
job(static_graph=True)
job(static_graph=True, gradient_as_bucket_view=True)
job(find_unused_parameters=True)
job(find_unused_parameters=True, gradient_as_bucket_view=True)
job(bucket_cap_mb=1, accumulate=True)
import copy, pickle, io
ddp = job()
copied = copy.deepcopy(ddp)
torch.save(ddp, io.BytesIO())
copied(torch.ones(8, 64)).sum().backward()
end()
"""


def plan(buckets=None, world_size=2, compression="none", **more):
    sizes = more.pop("sizes", SIZES)
    listed = [dict({"parameters": names, "size_bytes": sum(sizes[name] for name in names)}, **more.get("each", {}))
              for names in buckets or BUCKETS]
    for n, extra in more.get("some", {}).items():
        listed[n].update(extra)
    return {"schema": "dpro.plan/1", "dpro": "0.1.0",
            "job": {"framework": "pytorch", "world_size": world_size,
                    "models": [{"name": "Sequential",
                                "parameters": [{"name": name, "size_bytes": size} for name, size in sizes.items()]}]},
            "expected": {"baseline_ms": 10.0, "iteration_ms": 8.0, "speedup": 1.25, "uncertainty_pct": 2.0},
            "communication": {"compression": compression, "changes_numerics": compression != "none", "buckets": listed}}


class Case(live.Case):
    WARM = True

    def plan(self, value=None, name="plan"):
        os.makedirs(self.path(name), exist_ok=True)
        with open(self.path(name, "plan.json"), "w", encoding="utf-8") as file:
            file.write(value if isinstance(value, str) else json.dumps(value or plan()))
        return self.path(name)

    def lines(self, run, word):
        return sorted(line for line in run.out.splitlines() if line.startswith(word))

    def without(self, body):
        """The same job without dpro."""
        run = self.once(body, dpro=False)
        self.assert_ran(run)
        return run

    def run_planned(self, body, path, **more):
        return self.ranks(body, dpro=False, DPRO_PLAN=path, PYTHONPATH=live.SITE, **more)


class Buckets(Case):
    def test_every_mode_has_the_buckets_asked_for_and_trains_to_the_same_numbers(self):
        without = self.without(ALL_MODES)
        run = self.run_planned(ALL_MODES, self.plan())
        self.assert_ran(run)
        self.assertEqual(self.lines(run, "MODE"), self.lines(without, "MODE"))
        self.assertNotEqual(self.lines(run, "BUCKETS"), self.lines(without, "BUCKETS"))
        sizes = ", ".join(str(sum(SIZES[name] for name in names)) for names in BUCKETS)
        for line in self.lines(run, "BUCKETS"):
            self.assertEqual([sorted(names) for names in eval(line[line.index("[["):])],  # ours
                             [sorted(names) for names in BUCKETS], line)
        for line in self.lines(run, "TOLD"):
            self.assertTrue(line.endswith(sizes), line)
        self.assertEqual(len([line for line in run.said if "plan applied to Sequential: 5 buckets" in line]), 9)
        self.assertEqual(len(run.said), 9, run.said)  # rank 0, for each model, and nothing else

    def test_partitions_and_priorities_keep_the_numbers_at_two_ranks(self):
        body = MODES + "job(accumulate=True)\njob(gradient_as_bucket_view=True, accumulate=True)\nend()\n"
        without = self.without(ALL_MODES)
        run = self.run_planned(body, self.plan(plan(each={"partitions": 3}, some={2: {"priority": 5}})))
        self.assert_ran(run)
        self.assertEqual(len(self.lines(run, "MODE")), 4)
        self.assertLessEqual(set(self.lines(run, "MODE")), set(self.lines(without, "MODE")))
        self.assertIn("up to 3 partitions", run.said[0])

    def test_compression_is_that_of_torchs_own_hook(self):
        body = MODES + """
import dpro
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
def bf16(state, bucket):  # under another name: DDP refuses the hook's own without NCCL
    return default_hooks.bf16_compress_hook(state, bucket)
for name, hook in (("fp16", default_hooks.fp16_compress_hook), ("bf16", bf16)):
    print(name)
    job(hook=hook)
    job(make=lambda module: dpro.apply(DDP(module), name))
end()
"""
        for name in ("fp16", "bf16"):
            self.plan(plan(compression=name, each={"partitions": 2}), name)
        run = self.ranks(body, dpro=False, PYTHONPATH=os.path.join(live.ROOT, "python"))
        self.assert_ran(run)
        for out in run.outs:
            digests = [line.split()[-1] for line in out.splitlines() if line.startswith("MODE")]
            self.assertEqual(len(digests), 4)
            self.assertEqual((digests[0], digests[2]), (digests[1], digests[3]))
            self.assertNotEqual(digests[0], digests[2])
        self.assertIn("sent as fp16", run.said[0])


class Decisions(Case):
    BODY = MODES + "job()\nend()\n"

    def assert_refused(self, run, without, *texts):
        self.assert_ran(run)
        self.assertEqual(run.out, without.out)
        self.assertEqual(len(run.said), 1, run.err)
        self.assertIn("the plan is not applied, the job runs on with its own buckets", run.said[0])
        for text in texts:
            self.assertIn(text, run.said[0])

    def test_a_plan_that_does_not_fit_leaves_the_job_as_it_is_and_says_what_differs(self):
        without = self.without(self.BODY)
        other = dict(SIZES)
        other["3.weight"] = 4096
        cases = (("world size", plan(world_size=4), "it is for 4 ranks, this job has 2"),
                 ("another size", plan(sizes=other), "its parameter 3.weight has 4096 bytes, here it has 16384"))
        for name, value, text in cases:
            with self.subTest(name):
                self.assert_refused(self.run_planned(self.BODY, self.plan(value)), without, text)

    def test_a_plan_that_one_rank_lacks_is_applied_by_none(self):
        without = self.without(self.BODY)
        switch = "if os.environ.get('RANK') == '1': os.environ['DPRO_PLAN'] = %r\n"
        for name, environment, texts in (
                ("missing", self.path("nowhere"), ("rank 1: ", "nowhere: No such file")),
                ("another", self.plan(plan(BUCKETS[::-1]), "other"), ("differ from those of rank 0",))):
            with self.subTest(name):
                run = self.run_planned(switch % environment + self.BODY, self.plan())
                self.assert_refused(run, without, *texts)

    def test_a_rank_without_dpro_keeps_the_others_from_it_and_from_waiting(self):
        without = self.without(self.BODY)
        body = "if os.environ.get('RANK') == '1': DDP.__init__ = DDP.__init__.__wrapped__\n" + self.BODY
        run = self.run_planned(body, self.plan(), DPRO_PLAN_WAIT="2")
        self.assert_refused(run, without, "not every rank of the job answered within 2 s")

    def test_the_jobs_own_hook_stays_and_the_buckets_are_the_plans(self):
        body = MODES + """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
job(hook=allreduce_hook)
end()
"""
        without = self.without(self.BODY)
        sent = {name: size // 2 for name, size in SIZES.items()}  # as one is recorded whose hook casts
        run = self.run_planned(body, self.plan(plan(sizes=sent, each={"partitions": 2})))
        self.assert_ran(run)
        self.assertEqual(self.lines(run, "MODE"), self.lines(without, "MODE"))
        self.assertEqual(len(eval(self.lines(run, "BUCKETS")[0].split("[]", 1)[1])), len(BUCKETS))
        self.assertEqual(len(run.said), 2, run.said)
        self.assertIn("allreduce_hook", run.said[1])

    def test_a_single_process_is_told_that_there_is_nothing_to_apply(self):
        body = "model = net()\ntrain(model, torch.optim.SGD(model.parameters(), lr=0.05), 4)\nend()\n"
        run = self.ranks(body, world=1, dpro=False, DPRO_PLAN=self.plan(), PYTHONPATH=live.SITE)
        self.assert_untouched(run, body)
        self.assertEqual(len(run.said), 1, run.said)
        self.assertIn("single process", run.said[0])

    def test_a_plan_of_the_only_rank_names_no_model_and_keeps_what_the_job_does(self):
        """DDP has buckets there, and sends none."""
        alone = dict(self.pair_environment(), WORLD_SIZE="1", RANK="0")
        body = "dist.init_process_group('gloo')\nmodel = DDP(net())\n" \
               "train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30)\nend()\n"
        self.assert_ran(self.ranks(body, 1, **alone))
        done = subprocess.run([live.DPRO, "optimize", self.trace, "-q", "--allow", "bf16,assumed", "-o", self.path("plan")],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("plan", "plan.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["job"]["models"], [])
        for script in (body, body.replace("dist.init_process_group('gloo')\nmodel = DDP(net())", "model = net()")):
            run = self.ranks(script, 1, dpro=False, DPRO_PLAN=self.path("plan"), PYTHONPATH=live.SITE, **alone)
            self.assertEqual(run.said, ["dpro: the plan keeps what the job does by itself: nothing is changed"])

    def test_apply_wraps_a_bare_model_and_profile_records_the_plans_buckets(self):
        body = MODES + """
import dpro
ddp = job(steps=30, make=lambda module: dpro.apply(module, "plan"))
assert isinstance(ddp, DDP)
end()
"""
        self.plan()
        run = self.ranks(body)
        self.assert_ran(run)
        info = self.rank()
        names = [p["name"] for p in info["models"][0]["parameters"]]
        self.assertEqual([sorted(names[n] for n in bucket["parameters"]) for bucket in info["models"][0]["buckets"]],
                         [sorted(bucket) for bucket in BUCKETS])
        self.assertEqual(info["plan"]["applied"], True)
        self.assertEqual(info["plan"]["expected"]["iteration_ms"], 8.0)


class Verify(Case):
    BODY = """
dist.init_process_group("gloo")
model = DDP(net(), gradient_as_bucket_view=True)
import weakref, gc
seen = set()
def each(i):
    seen.add(weakref.ref(model.reducer))
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 124, each=each)
gc.collect()
sys.stdout.write("REDUCERS %d %d\\n" % (len(seen), sum(ref() is not None for ref in seen)))  # in one piece
end()
"""

    def verify(self, *arguments, body=None, launch=live.Case.PAIR):
        settings = self.environment(dpro=False, **self.pair_environment())
        return self.command([live.DPRO, "verify", "--plan", self.path("plan"), "--steps", "3", "--warmup", "4", *arguments, "--",
                             *launch, *self.warm_python(traced=False), self.script(body or self.BODY)], **settings)

    def test_the_plan_is_measured_by_turns_and_the_job_is_as_it_was(self):
        self.plan()
        self.plan(plan(BUCKETS[:2] + [sum(BUCKETS[2:], [])]), "other")
        run = self.verify("--blocks", "3", "--against", "cap=1", "--against", "plan=" + self.path("other"), "--json", launch=self.TORCHRUN)
        self.assertEqual(run.codes, [0], run.err[-3000:])
        result = json.loads(run.out)
        self.assertEqual(result["schema"], "dpro.verify/1")
        self.assertEqual((result["blocks"], result["steps"], result["complete"], result["world_size"]), (3, 3, True, 2))
        own, planned, cap, other = result["configurations"]
        self.assertEqual([own["name"], planned["name"], cap["name"], other["name"]], ["baseline", "plan", "cap=1", "plan=other"])
        self.assertEqual(len(other["bucket_bytes"]), 3)
        self.assertEqual(planned["bucket_bytes"], [sum(SIZES[name] for name in names) for names in BUCKETS])
        self.assertEqual(own["bucket_bytes"], [66560])
        gain = result["gain_pct"]
        self.assertLess(gain["low"], gain["high"])
        self.assertTrue(gain["low"] <= gain["mean"] <= gain["high"], gain)
        self.assertEqual(result["expected_gain_pct"], 20.0)
        self.assertIn(result["best_other"], ("cap=1", "plan=other"))
        self.assertIn("REDUCERS 19 1", run.err)  # own, 3 x (plan, cap, other, cap, plan, own): the old ones are gone
        digests = sorted(line for line in run.err.splitlines() if line.startswith("DIGEST"))
        self.assertEqual(digests, self.without(self.BODY).digests)

    @live.at_length
    def test_with_stop_the_job_ends_when_all_is_measured(self):
        self.plan(plan(each={"partitions": 2}))
        run = self.verify("--blocks", "2", "--stop", body=self.BODY.replace("124", "100000"))
        self.assertEqual(run.codes, [0], run.err[-3000:])
        self.assertIn("all is measured after step 44; the job ends", run.err)
        self.assertEqual(run.err.count("verify: needs 44 steps; how many the job has can't be told"), 1)
        self.assertNotIn("DIGEST", run.out)
        self.assertIn("2 blocks of mirrored turns, 3 steps a turn after 2 to settle; 2 ranks", run.out)

    def in_bf16(self, name, value, module):
        """A plan with that, and the buckets of `value`; None: the job's."""
        self.plan(dict(value or {key: part for key, part in plan().items() if key != "communication"}, schema="dpro.plan/4",
                       computation={"compile": [], "bf16": [module], "changes_numerics": True}), name)
        return "plan=" + self.path(name)

    def test_modules_computed_otherwise_on_a_cpu_take_runs_of_the_job(self):
        self.in_bf16("plan", plan(), "1")
        body = self.BODY.replace("124", "9")
        run = self.verify("--blocks", "1", "--against", "cap=0.02", "--json", body=body)
        self.assertEqual(run.codes, [0], run.err[-3000:])
        result = json.loads(run.out)
        self.assertEqual((result["turns"], result["runs"], result["blocks"], result["complete"]), ("runs", 6, 1, True))
        found = {config["name"]: config for config in result["configurations"]}
        self.assertEqual(list(found), ["baseline", "plan", "cap=0.02"])
        self.assertEqual([len(config["bucket_bytes"]) for config in found.values()], [1, 5, 2])
        self.assertTrue(all(config["peak_bytes"] for config in found.values()), found)
        self.assertEqual(run.err.count("REDUCERS 1 1"), 12)  # each run has one pair of ranks, which nothing was switched in
        without = self.without(body).digests
        self.assertEqual([run.err.count(digest) for digest in without], [4, 4])  # those of cap=0.02 are the same, in 16 bits not
        self.assertIn("verify: each turn is a run of the job: in one process,", run.err)
        self.assertEqual(run.err.count("verify: each run needs 7 steps; how many"), 1)  # said in the first run only

    @live.at_length
    def test_turns_of_one_process_are_said_to_disturb_each_other(self):
        self.plan()
        run = self.verify("--turns", "steps", "--blocks", "1", "--against", self.in_bf16("other", None, "2"), "--json")
        self.assertEqual(run.codes, [0], run.err[-3000:])
        result = json.loads(run.out)
        self.assertEqual((result["turns"], result["runs"], result["complete"]), ("steps", 1, True))
        self.assertEqual([len(config["bucket_bytes"]) for config in result["configurations"]], [1, 5, 1])
        self.assertIn("leaves a heap", result["warnings"][0])
