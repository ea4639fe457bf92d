"""dpro verify, with a program in the job's place that leaves the step times of a made-up training: what is said about
them, and what becomes of broken plans. What a real job does is in tests/live/test_plan.py."""
import itertools
import json
import os
import statistics
import sys

from support import CHECK_FAILED, DONE, INPUT, ROOT, USAGE, Case, dpro

sys.path.insert(0, os.path.join(ROOT, "python"))
from dpro import plan as plans  # noqa: E402  reads plans in the job, and needs no torch

OWN = [100.0, 104.0, 98.0, 101.0]  # ms a step, by block
PLAN = [80.0, 84.0, 79.0, 80.0]


def good_plan(**expected):
    return {"schema": "dpro.plan/1", "dpro": "0.1.0",
            "job": {"framework": "pytorch", "world_size": 2,
                    "models": [{"name": "net", "parameters": [{"name": "a", "size_bytes": 4}, {"name": "b", "size_bytes": 8}]}]},
            "expected": expected or {"baseline_ms": 100.0, "iteration_ms": 80.0, "uncertainty_pct": 2.0},
            "communication": {"compression": "none", "changes_numerics": False,
                              "buckets": [{"parameters": ["b"], "size_bytes": 8}, {"parameters": ["a"], "size_bytes": 4}]}}


def turns(**configurations):
    """Mirrored blocks; a turn's steps spread around its time, with one that took very long."""
    listed = []
    for block in range(len(configurations["baseline"])):
        names = list(configurations)
        for name in names + names[::-1]:
            ms = configurations[name][block]
            steps = [round(1e6 * ms * share) for share in (0.99, 1.0, 9.0, 1.0, 0.98, 1.01, 0.97)]
            listed.append({"block": block, "name": name.replace("_", "="), "first_step": len(listed) * 9, "span_ns": sum(steps),
                           "step_ns": steps, "page_faults": len(listed) * len(steps),
                           "bucket_bytes": [8, 4] if name == "plan" else [12]})
    return listed


def signed_ranks(values):
    """Mean and 95 % interval by Wilcoxon's signed ranks, in the slow and obvious way."""
    means = sorted((a + b) / 2 for n, a in enumerate(values) for b in values[n:])
    sums = [sum(rank for rank, sign in enumerate(signs, 1) if sign)
            for signs in itertools.product((0, 1), repeat=len(values))]
    k = max(k for k in range(len(means)) if sum(s < k for s in sums) <= 0.025 * len(sums))
    return statistics.median(means), means[k - 1], means[len(means) - k]


class Verify(Case):
    def test_buckets_that_are_the_jobs_own_are_said(self):
        listed = turns(baseline=OWN, plan=PLAN)
        for turn in listed:
            turn["bucket_bytes"] = [8, 4]
        self.steps(listed)
        result = self.verify()
        self.assertEqual(result.code, DONE, result.err)
        self.assertIn("the plan's buckets are those that the job has by itself", " ".join(result.out.split()))
        self.assertEqual(self.verify("--json").json["verdict"], "same")
        other = good_plan()  # which also sends 16 bits
        other["communication"].update(compression="fp16", changes_numerics=True)
        self.write("plan/plan.json", other)
        self.assertNotEqual(self.verify("--json").json["verdict"], "same")

    def test_iterations_that_differ_by_more_than_the_gain_are_explained(self):
        self.steps(turns(baseline=[100.0, 100.0, 157.0, 158.0, 159.0], plan=[80.0, 80.0, 120.0, 121.0, 122.0]), blocks=5)
        told = " ".join(self.verify().out.split())
        self.assertRegex(told, r"medians of all turns\) differ by 23\.\d %, because the machine's speed changed")
        self.steps(turns(baseline=OWN, plan=PLAN))
        self.assertNotIn("medians of all turns", self.verify().out)

    def setUp(self):
        super().setUp()
        self.write("plan/plan.json", good_plan())

    def steps(self, listed, **more):
        return self.write("steps.json", dict({
            "schema": "dpro.verify-steps/1", "plan": "plan.json", "complete": True, "problem": None, "framework_version": "2.13",
            "world_size": 2, "models": ["net"], "steps": 7, "settle": 2, "blocks": 4, "warmup": 10, "step": 300,
            "asynchronous": False, "turns": listed, "warnings": []}, **more))

    def verify(self, *arguments, script='cp steps.json "$DPRO_VERIFY"'):
        return dpro("verify", "--plan", "plan", *arguments, "--", "sh", "-c", script, cwd=self.folder,
                    env={"TMPDIR": self.folder})

    def test_gain_and_interval_are_those_of_the_blocks(self):
        self.steps(turns(baseline=OWN, plan=PLAN, cap_5=[90.0] * 4))
        result = self.verify("--json")
        self.assertEqual(result.code, DONE, result.err)
        told = result.json
        gains = [100 * (1 - p / o) for o, p in zip(OWN, PLAN) for half in (1, 2)]
        middle, low, high = signed_ranks(gains)
        self.assertAlmostEqual(told["gain_pct"]["mean"], middle, 2)
        self.assertAlmostEqual(told["gain_pct"]["low"], low, 2)
        self.assertAlmostEqual(told["gain_pct"]["high"], high, 2)
        self.assertEqual([c["name"] for c in told["configurations"]], ["baseline", "plan", "cap=5"])
        self.assertAlmostEqual(told["configurations"][0]["iteration_ms"], statistics.median(OWN), 5)
        self.assertEqual(told["configurations"][1]["per_turn_ms"], [ms for ms in PLAN for half in (1, 2)])
        self.assertEqual(told["configurations"][1]["bucket_bytes"], [8, 4])
        self.assertEqual(told["configurations"][1]["per_turn_page_faults"], [1, 4, 7, 10, 13, 16, 19, 22])
        self.assertEqual((told["turns"], told["runs"]), ("steps", 1))
        self.assertEqual(told["expected_gain_pct"], 20.0)
        self.assertEqual(told["expected_uncertainty_pct"], 1.6)
        self.assertEqual(told["verdict"], "as-expected")
        self.assertEqual(told["best_other"], "cap=5")
        self.assertAlmostEqual(told["gain_over_best_other_pct"]["mean"], signed_ranks([100 * (1 - p / 90) for p in PLAN * 2])[0], 2)

    def test_the_highest_peak_of_each_kind_of_turn_is_told(self):
        listed = turns(baseline=OWN, plan=PLAN)
        peaks = {"baseline": [300 << 20, 290 << 20], "plan": [200 << 20, 210 << 20]}
        for turn in listed[:4]:
            turn["peak_bytes"] = peaks[turn["name"]].pop()
        self.steps(listed)
        told = self.verify("--json").json
        self.assertEqual([c["peak_bytes"] for c in told["configurations"]], [300 << 20, 210 << 20])
        self.assertIn("peak of memory on rank 0: 220.2 MB with the plan, 314.6 MB without (-30.0 %)", self.verify().out)
        for turn in listed:
            if turn["name"] == "plan":
                turn["step_ns"] = [2 * ns for ns in turn["step_ns"]]
        self.steps(listed)
        self.assertIn("takes more time, for less memory: it saves -", self.verify().out)
        for turn in listed:
            turn["peak_bytes"] = None if turn["name"] == "plan" else -5
        self.steps(listed)
        told = self.verify("--json").json
        self.assertEqual([c["peak_bytes"] for c in told["configurations"]], [None, None])
        self.assertNotIn("peak", self.verify().out)

    def test_verdicts(self):
        cases = ((PLAN, "as-expected", "as expected (20.0 +- 1.6 %)"), ([90.0, 93.0, 88.0, 92.0], "less", "less than expected"),
                 ([60.0, 62.0, 60.0, 59.0], "more", "more than expected"),
                 ([99.0, 108.0, 90.0, 104.0], "noise", "no difference beyond noise"),
                 ([110.0, 113.0, 109.0, 111.0], "slower", "slower than what the job does by itself"))
        for times, key, text in cases:
            with self.subTest(key):
                self.steps(turns(baseline=OWN, plan=times))
                self.assertEqual(self.verify("--json").json["verdict"], key)
                result = self.verify("--fail-on", "slower")
                self.assertIn(text, " ".join(result.out.split()))
                self.assertEqual(result.code, CHECK_FAILED if key == "slower" else DONE)

    def test_without_an_expectation_a_gain_is_just_faster(self):
        self.write("plan/plan.json", good_plan(speedup=1.2))
        self.steps(turns(baseline=OWN, plan=PLAN))
        told = self.verify("--json").json
        self.assertEqual((told["verdict"], told["expected_gain_pct"]), ("faster", None))

    def test_a_turn_that_was_disturbed_changes_little(self):
        listed = turns(baseline=OWN * 2, plan=PLAN * 2)
        self.steps(listed)
        before = self.verify("--json").json["gain_pct"]
        listed[5]["step_ns"] = [3 * ns for ns in listed[5]["step_ns"]]
        self.steps(listed)
        after = self.verify("--json").json["gain_pct"]
        self.assertEqual(listed[5]["name"], "plan")
        self.assertLess(abs(before["mean"] - after["mean"]), 0.3)  # as a mean it would be 12 points
        self.assertLess(before["low"] - after["low"], 1)

    def test_only_whole_blocks_count_and_fewer_than_three_have_no_interval(self):
        self.steps(turns(baseline=OWN, plan=PLAN)[:7], complete=False, step=77)
        told = self.verify("--json").json
        self.assertEqual((told["blocks"], told["complete"], told["verdict"]), (1, False, "no-interval"))
        self.assertEqual(told["gain_pct"], {"mean": 20.0, "low": None, "high": None})
        self.assertIn("4 were wanted, but the job ended after step 77", " ".join(self.verify().out.split()))
        self.steps(turns(baseline=OWN, plan=PLAN)[:7], complete=False, step=77, problem="rank 2: it was late")
        self.assertIn("4 were wanted, but rank 2: it was late after step 77", " ".join(self.verify().out.split()))

    def test_behind_a_gpu_a_turn_is_timed_from_first_to_last_step(self):
        self.steps(turns(baseline=OWN, plan=PLAN), asynchronous=True)
        step = sum((0.99, 1.0, 9.0, 1.0, 0.98, 1.01, 0.97)) / 7
        self.assertAlmostEqual(self.verify("--json").json["configurations"][1]["per_turn_ms"][0], 80 * step, 3)

    def test_a_job_that_was_too_short_says_what_it_takes(self):
        self.steps(turns(baseline=OWN, plan=PLAN)[:3], complete=False, step=30)
        result = self.verify()
        self.assertEqual(result.code, INPUT)
        self.assertIn("ended after step 30, before one block of turns was measured: one block takes 46 steps, all 4 blocks take 154",
                      result.err)

    def test_what_kept_the_job_from_measuring_is_said(self):
        self.steps([], complete=False, problem="rank 1: it is for 4 ranks, this job has 2")
        result = self.verify()
        self.assertEqual(result.code, INPUT)
        self.assertIn("nothing was measured: rank 1: it is for 4 ranks", result.err)
        result = self.verify(script="true")
        self.assertEqual(result.code, INPUT)
        self.assertIn("nothing was measured: no Python process", result.err)

    def test_on_the_nodes_without_rank_0_it_is_said_where_the_result_is(self):
        self.steps(turns(baseline=OWN, plan=PLAN), rank=8)
        result = self.verify("--json")
        self.assertEqual((result.code, result.out), (DONE, ""))
        self.assertIn("rank 0 of the job, on another node, has the result", result.err)

    def test_steps_that_make_no_sense_are_refused(self):
        listed = turns(baseline=OWN, plan=PLAN)
        listed[1]["name"], listed[2]["name"], listed[3]["name"] = "baseline", "plan", "plan"
        self.steps(listed)
        self.assertEqual(self.verify().code, INPUT)
        self.write("steps.json", '{"turns":[{"name":')
        self.assertEqual(self.verify().code, INPUT)

    def test_the_programs_exit_code_and_output_are_its_own(self):
        self.steps(turns(baseline=OWN, plan=PLAN))
        result = self.verify("--json", script='echo its output; cp steps.json "$DPRO_VERIFY"; exit 7')
        self.assertEqual(result.code, 7)
        self.assertEqual(result.json["verdict"], "as-expected")
        self.assertIn("its output", result.err)
        self.assertIn("its output", self.verify(script='echo its output; cp steps.json "$DPRO_VERIFY"').out)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("dpro-verify")], [])

    def test_the_environment_says_what_is_to_be_measured(self):
        self.write("other/plan.json", good_plan())
        result = self.verify("--steps=4", "--blocks=3", "--settle=2", "--warmup=0", "--against", "cap=1", "--against", "cap=2.5",
                             "--against", "plan=" + self.path("other"), script="env | grep ^DPRO | sort")
        told = dict(line.split("=", 1) for line in result.out.splitlines())
        self.assertEqual(told["DPRO_PLAN"], self.path("plan"))
        self.assertEqual(told["DPRO_VERIFY_AGAINST"], "1,2.5," + self.path("other"))
        self.assertEqual([told["DPRO_VERIFY_" + name] for name in ("STEPS", "BLOCKS", "SETTLE")], ["4", "3", "2"])
        self.assertEqual(told["DPRO_WARMUP"], "0")
        self.assertNotIn("DPRO", told)

    def test_finalists_beside_the_plan_are_measured_too(self):
        for name in ("finalist-2", "finalist-3"):
            self.write("plan/%s/plan.json" % name, good_plan())
        result = self.verify("--against", "cap=1", script="env | grep ^DPRO_VERIFY_AGAINST")
        self.assertEqual(result.out.strip(), "DPRO_VERIFY_AGAINST=1,%s,%s" % (
            self.path("plan", "finalist-2"), self.path("plan", "finalist-3")))
        self.steps(turns(baseline=OWN, plan=PLAN, **{"plan_finalist-2": PLAN}))
        self.assertIn("plan=finalist-2", self.verify().out)

    def test_on_a_cpu_plans_that_change_modules_have_runs_for_turns(self):
        def turns_of(plan, *arguments):
            self.write("plan/plan.json", plan)
            result = self.verify(*arguments, script='echo "turn=$DPRO_VERIFY_TURN"')
            return result.out.strip().replace("turn=baseline", "runs").replace("turn=", "steps"), "on a CPU" in result.err

        def changed(device, **parts):
            plan = good_plan()
            plan["job"].update({"device": device} if device else {})
            return dict(plan, schema="dpro.plan/4", **parts)

        compiled, in_bf16 = ({"computation": {"compile": names, "bf16": others, "changes_numerics": True}}
                             for names, others in ((["a"], []), ([], [""])))
        recomputed, cut = {"memory": {"recompute": ["a"]}}, {"memory": {"micro_batches": 2}}
        for parts in (compiled, in_bf16, recomputed, cut):
            with self.subTest(parts):
                self.assertEqual(turns_of(changed("cpu", **parts)), ("runs", True))
                self.assertEqual(turns_of(changed(None, **parts)), ("runs", True))
                self.assertEqual(turns_of(changed("cuda", **parts)), ("steps", False))
                self.assertEqual(turns_of(changed("cpu", **parts), "--turns=steps"), ("steps", False))
        self.write("other/plan.json", changed("cpu", **compiled))
        self.assertEqual(turns_of(changed("cpu")), ("steps", False))
        self.assertEqual(turns_of(changed("cpu"), "--turns=runs"), ("runs", False))
        self.assertEqual(turns_of(changed("cpu"), "--against", "plan=other"), ("runs", True))
        self.assertEqual(turns_of(changed("cuda"), "--against", "plan=other"), ("steps", False))

    def test_a_plan_to_compare_with_must_be_one(self):
        result = self.verify("--against", "plan=" + self.path("nowhere"), script="echo started")
        self.assert_error(result, INPUT, "nowhere")
        self.assertEqual(result.out, "")

    def test_wrong_usage(self):
        for arguments in (["--steps=0"], ["--settle=1"], ["--against", "cap=0"], ["--against", "25"],
                          ["--against", "plan="], ["--fail-on", "less"], ["--turns=ranks"]):
            with self.subTest(arguments):
                self.assertEqual(self.verify(*arguments).code, USAGE)
        self.assertEqual(dpro("verify", "--", "true").code, USAGE)
        self.assertEqual(dpro("verify", "--plan", self.path("plan")).code, USAGE)


class Plans(Case):
    def refused(self, value, *texts):
        """By the command before it starts the program, and in the job."""
        path = self.write("plan.json", value)
        result = dpro("verify", "--plan", path, "--", "sh", "-c", "echo started")
        self.assertEqual((result.code, result.out), (INPUT, ""), result.err)
        with self.assertRaises(plans.Unusable) as caught:
            plans.read(path)
        for said in (result.err, str(caught.exception)):
            self.assertIn(path, said)
            self.assertEqual(said.strip().count("\n"), 0)
            for text in texts:
                self.assertIn(text, said)

    def changed(self, change):
        value = good_plan()
        change(value)
        return value

    def test_broken_plans_are_refused_with_their_fault_named(self):
        def buckets(plan):
            return plan["communication"]["buckets"]

        def parameters(plan):
            return plan["job"]["models"][0]["parameters"]

        def computation(compiled=(), bf16=(), changes_numerics=True):
            return {"compile": list(compiled), "bf16": list(bf16), "changes_numerics": changes_numerics}

        cases = {
            "another schema": (lambda p: p.update(schema="dpro.plan/9"), "dpro.plan/9", "dpro.plan/1"),
            "no plan": (lambda p: p.pop("schema"), "schema"),
            "another framework": (lambda p: p["job"].update(framework="mxnet"), "pytorch"),
            "no world size": (lambda p: p["job"].pop("world_size"), "world_size"),
            "an empty bucket": (lambda p: buckets(p)[0].update(parameters=[]), "buckets[0]", "empty"),
            "a parameter twice": (lambda p: buckets(p)[1].update(parameters=["b"], size_bytes=8), "buckets[1]", "already", "b"),
            "an unknown parameter": (lambda p: buckets(p)[1].update(parameters=["c"]), "buckets[1]", "c"),
            "a parameter in no bucket": (lambda p: buckets(p).pop(), "in no bucket", "a"),
            "a wrong size": (lambda p: buckets(p)[0].update(size_bytes=9), "buckets[0]", "size_bytes"),
            "no partitions": (lambda p: buckets(p)[0].update(partitions=0), "buckets[0]", "partitions"),
            "too many partitions": (lambda p: buckets(p)[0].update(partitions=9999), "buckets[0]", "partitions"),
            "another model": (lambda p: buckets(p)[0].update(model=1), "buckets[0]", "model"),
            "a parameter listed twice": (lambda p: parameters(p).append({"name": "a", "size_bytes": 4}), "twice", "a"),
            "no parameters": (lambda p: parameters(p).clear(), "no parameters"),
            "no size": (lambda p: parameters(p)[0].pop("size_bytes"), "size_bytes"),
            "too many micro-batches": (lambda p: p.update(memory={"micro_batches": 1025}), "micro_batches", "1024"),
            "half a micro-batch": (lambda p: p.update(memory={"micro_batches": 2.5}), "micro_batches"),
            "a number as a text": (lambda p: p.update(memory={"micro_batches": "2"}), "micro_batches"),
            "half a partition": (lambda p: buckets(p)[0].update(partitions=1.5), "buckets[0]", "partitions"),
            "half a rank": (lambda p: p["job"].update(world_size=2.5), "world_size"),
            "a module twice": (lambda p: p.update(memory={"recompute": ["a", "a"]}), "recompute", "twice"),
            "a compiled module twice": (lambda p: p.update(computation=computation(["a", "a"])), "compile", "twice"),
            "a module that is no name": (lambda p: p.update(computation=computation(bf16=[1])), "name"),
            "modules that are no list": (lambda p: p.update(computation={"compile": {}}), "list"),
            "other numbers, not allowed": (lambda p: p.update(computation=computation(["a"], changes_numerics=False)),
                                           "changes_numerics"),
            "a compression of its own": (lambda p: p["communication"].update(compression="int8"), "int8"),
        }
        for name, (change, *texts) in cases.items():
            with self.subTest(name):
                self.refused(self.changed(change), *texts)

    def test_files_that_are_no_plans_are_refused(self):
        whole = json.dumps(good_plan())
        for name, text in (("cut", whole[:200]), ("empty", ""), ("no object", "[1]"), ("no JSON", "schema: dpro.plan/1"),
                           ("deep", "[" * 100000)):
            with self.subTest(name):
                self.refused(text)
        for path, text in ((self.path("nowhere"), "No such file"), (self.folder, "plan.json")):
            result = dpro("verify", "--plan", path, "--", "echo", "started")
            self.assertEqual((result.code, result.out), (INPUT, ""))
            self.assertIn(path, result.err)
            self.assertRaisesRegex(plans.Unusable, text, plans.read, path)

    def test_what_is_optional_may_be_missing_and_what_is_new_is_passed_over(self):
        value = good_plan()
        value.pop("expected")
        value["new"] = {"deep": [1, {"x": None}]}
        value["communication"].pop("compression")
        value["communication"]["buckets"][0].update(partitions=2, priority=-3, model=0, new=1)
        path = self.write("plan.json", value)
        self.assertEqual(plans.read(path).buckets[0].priority, -3)
        result = dpro("verify", "--plan", path, "--", "true")
        self.assertIn("nothing was measured", result.err)  # the program was started
