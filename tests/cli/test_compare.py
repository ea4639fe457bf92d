"""dpro compare: two traces of a job, and what a plan promised with what it brought."""

import gpu_job
from support import BUNDLED, CHECK_FAILED, DONE, INPUT, USAGE, Case, dpro


class Compare(Case):
    def put(self, name, plan=None, **options):
        return self.write_recording(name, plan, **options)

    def compare(self, a, b):
        facts = self.assert_json("compare", a, b)
        self.assertEqual(facts["schema"], "dpro.compare/1")
        difference = facts["difference"]  # what is no noise has an interval without 0
        self.assertEqual(difference["p"] > 0.05, abs(difference["less_pct"]) <= difference["less_half_pct"], difference)
        return facts

    def test_a_job_is_no_different_from_itself(self):
        facts = self.compare(BUNDLED, BUNDLED)
        self.assertEqual(facts["difference"]["less_pct"], 0)
        self.assertGreater(facts["difference"]["less_half_pct"], 0)
        self.assertTrue(all(phase["a_ms"] == phase["b_ms"] for phase in facts["phases"]))
        self.assertIsNone(facts["plan"])
        text = dpro("compare", BUNDLED, BUNDLED)
        self.assert_code(text, DONE)
        self.assertIn("no difference beyond noise", text.out)

    def test_what_became_longer_is_found(self):
        facts = self.compare(self.put("a"), self.put("b", backward_us=30_000))
        phases = {phase["name"]: phase["b_ms"] - phase["a_ms"] for phase in facts["phases"]}
        self.assertAlmostEqual(phases["backward"], 30, delta=1)
        self.assertAlmostEqual(phases["forward"], 0, delta=0.5)
        self.assertEqual(facts["against"]["causes"][0]["cause"], "backward")
        self.assertEqual(len(facts["a"]["communication"]["collectives"]), 3)
        self.assertLess(facts["difference"]["less_pct"], -10)
        text = dpro("compare", self.path("a"), self.path("b"))
        self.assertRegex(text.out, r"B takes [0-9.]+ % more time an iteration")
        self.assert_fits(text.out)

    def test_thresholds_fail_in_one_line(self):
        a, b = self.put("a"), self.put("b", backward_us=30_000)
        done = dpro("compare", a, b, "-q", "--fail-on", "iteration>5%,backward>20ms,forward>1ms")
        self.assert_code(done, CHECK_FAILED)
        self.assertRegex(done.err, r"^dpro: --fail-on: iteration is [0-9.]+ %, more than 5 %; backward is [0-9.]+ ms, more than 20 ms\n$")
        self.assert_code(dpro("compare", b, a, "--fail-on", "iteration>0%,backward>0ms"), DONE)
        done = dpro("compare", a, b, "--fail-on", "lost>5%")
        self.assert_code(done, USAGE)
        self.assertIn("names: iteration, forward, backward, update, input, exposed, waiting, idle", done.err)

    def test_slow_iterations_that_recur_are_a_difference(self):
        def load(rank, number):
            rank.op("aten::load", 150_000.0 if number % 4 == 0 else 100.0)
        before, _ = gpu_job.write(self, gpu_job.Job(kernels=60, sync="end"), steps=12, folder="before")
        after, _ = gpu_job.write(self, gpu_job.Job(kernels=60, sync="end", before_forward=load), steps=12, folder="after")
        difference = self.compare(before, after)["difference"]
        self.assertLess(difference["less_pct"] + difference["less_half_pct"], -100)
        self.assertRegex(dpro("compare", before, after).out, r"Verdict +B takes [0-9.]+ % more time")

    def test_times_of_a_cpu_are_not_set_beside_those_of_a_gpu(self):
        whole, _ = gpu_job.write(self, gpu_job.Job(kernels=60, sync="end"), folder="whole")
        write = self.write
        self.write = lambda name, content: write(name, dict(content, traceEvents=[
            event for event in content["traceEvents"] if event["pid"] != 0]))
        lacking, _ = gpu_job.write(self, gpu_job.Job(kernels=60, sync="end"), folder="lacking")
        for a, b, side in ((lacking, whole, "A"), (whole, lacking, "B")):
            facts = self.compare(a, b)
            for phase in facts["phases"]:
                self.assertEqual((phase["a_ms"] is None, phase["b_ms"] is None), (side == "A", side == "B"))
            text = dpro("compare", a, b).out
            self.assertRegex(text, f"Verdict .*(\n .*)*\nGPU +not recorded in {side}: what an iteration consists of is not compared")
            self.assertNotIn("forward", text)
            self.assertIn("measured", text)
        self.assertIn("GPU      not recorded in A and B", dpro("compare", lacking, lacking).out)

    def test_what_a_plan_promised_stands_beside_what_it_brought(self):
        def plan(iteration_ms):
            return {"path": "/plan/plan.json", "applied": True, "reason": None,
                    "expected": {"baseline_ms": 100.0, "iteration_ms": iteration_ms, "speedup": 1.0, "uncertainty_pct": 2.0}}
        before = self.put("before", backward_us=30_000)
        less = self.compare(before, self.put("after"))["difference"]["less_pct"]
        for iteration_ms, verdict in ((100 - less, "as expected"), (100 - less - 20, "less"), (100 - less + 20, "more")):
            facts = self.compare(before, self.put("after", plan=plan(iteration_ms)))
            self.assertEqual(facts["plan"]["verdict"], verdict)
            self.assertAlmostEqual(facts["plan"]["expected_less_pct"], 100 - iteration_ms, places=2)
            self.assertAlmostEqual(facts["plan"]["achieved_less_pct"], less, places=2)
        text = dpro("compare", before, self.path("after"))
        self.assertRegex(text.out, r"Plan +expected [0-9.]+ % less \(\+- [0-9.]+ points\), achieved [0-9.]+ %: more")

    def test_a_machine_that_became_slower_is_told_from_a_plan(self):
        plan = {"path": "/plan/plan.json", "applied": True, "reason": None, "expected": None}
        same = self.compare(self.put("a"), self.put("b", plan=plan, backward_us=15_000))
        self.assertFalse(any("no plan changes" in w for w in same["warnings"]))
        slower = self.compare(self.path("a"), self.put("b", plan=plan, forward_us=12_000))
        self.assertTrue(any("takes 20 % more time in B, which no plan changes" in w for w in slower["warnings"]))

    def test_a_plan_that_was_not_applied_is_said(self):
        plan = {"path": "/plan/plan.json", "applied": False, "reason": "it is for 4 ranks", "expected": None}
        facts = self.compare(self.put("a"), self.put("b", plan=plan))
        self.assertEqual((facts["plan"]["applied"], facts["plan"]["reason"]), (False, "it is for 4 ranks"))
        self.assertIsNone(facts["plan"]["verdict"])
        self.assertTrue(any("not applied: it is for 4 ranks" in w for w in facts["warnings"]))

    def test_jobs_of_different_size_are_warned_of(self):
        facts = self.compare(self.put("a"), self.put("b", world=3))
        self.assertTrue(any("A is a job of 2 ranks, B of 3" in w for w in facts["warnings"]))

    def test_two_traces_are_needed(self):
        for args in ([], [BUNDLED], [BUNDLED] * 3):
            self.assert_error(dpro("compare", *args), USAGE, "needs two folders, files or globs")
        self.assert_error(dpro("compare", BUNDLED, self.path("absent")), INPUT, "absent")
