"""dpro diagnose --against: why one trace of a job is slower than another, by pairs whose difference is known."""
import glob
import gzip
import json
import os
import random
import unittest

import gpu_job
from cpu_job import CpuJob
from stage_job import StageJob
from support import BUNDLED, DONE, INPUT, Case, dpro


class Against(Case):
    def put(self, folder, **job):
        more = {"kernels": 90, "sync": "end", "jitter": 0.01}
        more.update(job)
        path, facts = gpu_job.write(self, gpu_job.Job(**more), steps=8, folder=folder)
        return path, facts[0]["period_us"] / 1000

    def against(self, good, bad):
        facts = self.assert_json("diagnose", bad, "--against", good)["against"]
        total = facts["not_matched_ms"] + sum(cause["blame_ms"] for cause in facts["causes"])
        self.assertAlmostEqual(total, facts["b_ms"] - facts["a_ms"], places=5)
        return facts

    def blames(self, a, b):
        """By cause; the causes together are the true difference."""
        (good, before), (bad, after) = self.put("a", **a), self.put("b", **b)
        facts = self.against(good, bad)
        self.assertAlmostEqual(facts["b_ms"] - facts["a_ms"], after - before, delta=0.2)
        self.assertLess(abs(facts["not_matched_ms"]), 0.05 * abs(after - before) + 0.1)
        return facts, {cause["cause"]: cause for cause in facts["causes"]}, after - before

    def test_an_op_family_that_is_slower_is_blamed(self):
        facts, causes, true = self.blames({"cpu_us": 150.0}, {"cpu_us": 180.0})
        for cause in ("forward", "backward", "update"):
            self.assertAlmostEqual(causes[cause]["blame_ms"], true / 3, delta=0.2 * true / 3)
        self.assertEqual(causes["forward"]["parts"][0]["what"], "aten::conv2d")
        self.assertLess(facts["p"], 0.001)
        self.assertFalse(facts["is_noise"])

    def test_an_op_more_in_each_step_is_a_cause_of_its_own(self):
        facts, causes, true = self.blames({}, {"before_forward": lambda rank, number: rank.op("aten::load", 7_000.0)})
        self.assertAlmostEqual(causes["new_ops"]["blame_ms"], true, delta=0.1 * true)
        self.assertEqual(causes["new_ops"]["parts"][0]["what"], "aten::load")
        back = self.against(self.path("b"), self.path("a"))
        self.assertEqual({cause["cause"]: -cause["blame_ms"] for cause in back["causes"]}["gone_ops"],
                         causes["new_ops"]["blame_ms"])

    def test_a_forward_pass_that_is_computed_again_comes_first(self):
        names = ("native_layer_norm", "addmm", "gelu", "addmm", "native_dropout", "add")

        def program(again):
            def run(rank):
                for thread in ([1] * 8 + [2] * 8):
                    for name in names if thread == 1 or again else ():
                        yield from rank.launch("aten::" + name, name + "_kernel", 200.0, gpu_job.COMPUTE, tid=thread)
                    if thread == 2:
                        yield from rank.launch("AddmmBackward0", "conv_backward_1", 1500.0, gpu_job.COMPUTE, tid=2)
                rank.wait_for_gpu()
            return run

        facts, causes, true = self.blames({"program": program(False)}, {"program": program(True)})
        self.assertEqual(facts["causes"][0]["cause"], "recomputation")
        self.assertAlmostEqual(causes["recomputation"]["blame_ms"], true, delta=0.15 * true)
        back = self.against(self.path("b"), self.path("a"))
        self.assertEqual(back["causes"][0]["cause"], "recomputation")
        self.assertAlmostEqual(back["causes"][0]["blame_ms"], -true, delta=0.15 * true)

    def test_kernels_that_another_library_calls_otherwise_are_those_that_the_same_ops_launch(self):
        bound = {"cpu_us": 14.0, "kernel_us": 200.0}
        (good, before), (bad, after) = self.put("a", **bound), self.put("b", **{**bound, "kernel_us": 260.0})
        for path in glob.glob(os.path.join(bad, "*")):
            with gzip.open(path, "rt") as file:
                text = file.read()
            self.write(path, json.loads(text.replace('"conv_', '"cutlass_').replace('"update_', '"foreach_')))
        facts = self.against(good, bad)
        causes = {cause["cause"]: cause["blame_ms"] for cause in facts["causes"]}
        self.assertAlmostEqual(causes["forward"] + causes["backward"] + causes["update"], after - before, delta=0.1 * (after - before))

    def test_the_rest_of_an_op_that_asks_for_a_bucket_is_no_whole_one(self):
        paths = [CpuJob(layers=6, buckets=n, transfer=13_500 / n).write(self, str(n)) for n in (3, 6)]
        facts = self.against(*paths)
        for cause in facts["causes"]:
            self.assertLess(abs(cause["blame_ms"]), 0.02 * facts["b_ms"], cause["cause"])

    def test_ranks_that_only_one_job_has_count_for_what_they_are_slower_than_the_others(self):
        """Beside them they run: 4 ranks, and 6 of which the last is as fast, or takes 1.3 times as long."""
        small = CpuJob().write(self, "small")
        for factor in (1, 1.3):
            job = CpuJob(world=6, slow=lambda r, *_: factor if r == 5 else 1)
            large = job.write(self, f"large{factor}")
            for a, b, name, sign in ((small, large, "new_ops", 1), (large, small, "gone_ops", -1)):
                found = self.assert_json("diagnose", b, "--against", a)["against"]
                blames = {cause["cause"]: cause["blame_ms"] for cause in found["causes"]}
                cost_ms = sign * (job.run()[1] - CpuJob().run()[1]) / 1000
                self.assertAlmostEqual(blames.get(name, 0) + blames.get("communication", 0), cost_ms, delta=0.05 * abs(cost_ms) + 1)
                self.assertLess(abs(found["not_matched_ms"]), 1)

    def test_a_wait_for_the_gpu_more_is_one(self):
        _, causes, true = self.blames({"cpu_us": 90.0}, {"cpu_us": 90.0, "within": lambda rank, number: rank.wait_for_gpu()})
        self.assertAlmostEqual(causes["new_ops"]["blame_ms"], true, delta=0.1 * true)

    def test_a_rank_that_became_slow_is_named(self):
        job = {"world": 2, "buckets": 3, "cpu_us": 200.0}
        _, causes, true = self.blames(job, dict(job, slow=(1, 1.3)))
        computing = [causes[cause] for cause in ("forward", "backward", "update")]
        self.assertAlmostEqual(sum(cause["blame_ms"] for cause in computing), true, delta=0.1 * true)
        self.assertEqual([cause["ranks"] for cause in computing], [[1]] * 3)

    def test_a_slower_link_is_communication(self):
        job = {"world": 2, "buckets": 3}
        _, causes, true = self.blames(job, dict(job, transfer_us=8000.0))
        self.assertAlmostEqual(causes["communication"]["blame_ms"], true, delta=0.05 * true)
        self.assertEqual(causes["communication"]["ranks"], [0, 1])

    def test_other_buckets_are_communication_and_a_difference(self):
        job = {"world": 2, "transfer_us": 4000.0}
        facts, causes, true = self.blames(dict(job, buckets=2), dict(job, buckets=6))
        self.assertAlmostEqual(causes["communication"]["blame_ms"], true, delta=0.05 * true)
        self.assertEqual([row["what"] for row in facts["differences"]], ["communication"])

    def test_a_larger_batch_is_a_difference(self):
        def program(rank):
            yield from rank.forward(20, "aten::mm")
            end = yield from rank.launch("MmBackward0", "gemm_backward", rank.job.kernel_us, 7, tid=2)
            red = yield from rank.communicate("allreduce", end, 2)
            rank.let_stream_wait(1)
            yield from rank.update(10, red)
            rank.wait_for_gpu()
        job = {"program": program, "kernel_us": 200.0, "rows": lambda rank: 64}
        facts, _, _ = self.blames(job, dict(job, kernel_us=300.0, rows=lambda rank: 96))
        self.assertEqual(facts["differences"], [
            {"what": "work of a rank", "a": "0.671 GFLOP an iteration", "b": "1.01 GFLOP an iteration"}])

    def test_passes_of_stages_match_where_they_follow_one_another_at_once(self):
        """1.5 times as long on a worker: no op is another one."""
        paths, ms = [], []
        for factor in (1, 1.5):
            job = StageJob(dp=4, stages=4, micro_batches=8, steps=4, times=lambda op, r, s, step, n: (
                0.001 if "compute" not in op else (0.02 + random.Random(f"{op}{r}{s}{step}{n}").random() / 1000)
                * (factor if (r, s) == (2, 1) else 1)))
            paths.append(self.path(f"stages{factor}.csv"))
            with open(paths[-1], "w", encoding="utf-8") as table:
                table.write(job.csv())
            ms.append(job.iteration() * 1000)
        causes = {cause["cause"]: cause["blame_ms"] for cause in self.against(*paths)["causes"]}
        self.assertAlmostEqual(causes["forward"] + causes["backward"], ms[1] - ms[0], delta=0.05 * (ms[1] - ms[0]))

    def test_what_only_some_steps_have_is_found(self):
        def compiles(rank, number):
            if number % 4 == 0:
                rank.now += 90_000.0
        (good, _), (bad, _) = self.put("a"), self.put("b", before_forward=compiles)
        facts = self.against(good, bad)
        self.assertEqual(facts["causes"][0]["cause"], "gaps")
        self.assertAlmostEqual(facts["causes"][0]["blame_ms"], 90 / 4, delta=0.5)
        self.assertEqual({number % 4 for number in facts["causes"][0]["iterations"]}, {0})

    def test_noise_is_called_noise(self):
        (good, _), (bad, _) = self.put("a", jitter=0.1, seed=1), self.put("b", jitter=0.1, seed=5)
        self.assertTrue(self.against(good, bad)["is_noise"])
        self.assertIn("no difference beyond noise (p = ", dpro("diagnose", bad, "--against", good).out)

    def test_a_trace_is_no_slower_than_itself(self):
        for trace in sorted(glob.glob(os.path.join(os.path.dirname(BUNDLED), "*"))):
            with self.subTest(trace=trace):
                facts = self.against(trace, trace)
                self.assertEqual([facts["causes"], facts["not_matched_ms"], facts["differences"]], [[], 0, []])
                self.assertEqual((facts["a_matched"], facts["b_matched"]), (1, 1))

    def test_real_buckets_of_another_size_are_told_from_the_machine(self):
        other = os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-gpt-n2-default")
        text = dpro("diagnose", other, "--against", BUNDLED)
        self.assert_code(text, DONE)
        self.assertRegex(text.out, r"Differs  communication: \d+ x all_reduce of ")
        self.assertRegex(text.out, r"(?m)^  all, replayed ")
        self.assert_fits(text.out, 110)

    def test_a_small_table_of_stages_is_no_saved_diagnosis(self):
        def table(name, **options):
            return self.write(name, StageJob(dp=3, stages=4, **options).csv(apart=0.01))
        slow = table("slow.csv", times=lambda optype, dp, stage, step, n: 0.02 if (dp, stage) == (2, 1) else 0.01)
        facts = self.against(table("good.csv"), slow)
        self.assertGreater(facts["b_ms"], facts["a_ms"] + 20)

    def test_different_jobs_are_refused(self):
        def other(name):
            return os.path.join(os.path.dirname(BUNDLED), name)
        self.assert_error(dpro("diagnose", BUNDLED, "--against", other("hvd-mx-n2")), INPUT, "a job of mxnet, B of pytorch")
        self.assert_error(dpro("diagnose", BUNDLED, "--against", other("torch-ddp-gloo-conv-n2-memory")), INPUT, "different jobs")
        self.assert_error(dpro("diagnose", BUNDLED, "--against", self.path("absent")), INPUT, "absent")


if __name__ == "__main__":
    unittest.main()
