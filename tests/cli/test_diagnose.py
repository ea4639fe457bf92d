"""dpro diagnose: causes, in milliseconds that add up."""
import glob
import json
import os
import re
import unittest
from decimal import Decimal

import support
from stage_job import StageJob
from support import BUNDLED, CHECK_FAILED, DONE, INPUT, USAGE, Case, dpro, read_text, span
from test_stages import uneven


def blames(facts):
    return {cause["cause"]: Decimal(str(cause["blame_ms"])) for cause in facts["causes"]}


class Diagnose(Case):
    def test_ideal_and_blames_add_up_to_the_iteration_on_all_traces(self):
        for trace in sorted(glob.glob(os.path.join(os.path.dirname(BUNDLED), "*"))):
            with self.subTest(trace=trace):
                facts = self.assert_json("diagnose", trace)
                self.assertEqual(facts["schema"], "dpro.diagnose/1")
                replayed = dpro("replay", trace, "--json", "--no-validate").json["predicted"]
                self.assertEqual(facts["explained_ms"], replayed["iteration_ms"])
                self.assertEqual(sum(blames(facts).values()) + Decimal(str(facts["ideal_ms"])), Decimal(str(facts["iteration_ms"])))
                self.assertEqual(sorted(cause["order"] for cause in facts["causes"] if cause.get("order")),
                                 [n + 1 for n, _ in enumerate(one for one in facts["causes"] if one.get("order"))])
                for cause in facts["causes"]:
                    if (cause["uncertainty_ms"] or 0) > max(cause["blame_ms"], 0):  # of how often it strikes
                        self.assertIn(2 * len(cause["iterations"]), range(1, facts["n_iterations"]), cause["cause"])
                    if cause["parts"]:
                        self.assertEqual(sum(Decimal(str(part["blame_ms"])) for part in cause["parts"]),
                                         Decimal(str(cause["blame_ms"])), cause["cause"])
                    if cause["cause"] != "not_explained":
                        self.assertGreaterEqual(cause["blame_ms"], 0)

    def test_rows_of_the_text_add_up_as_they_are_printed(self):
        done = dpro("diagnose", BUNDLED)
        self.assert_code(done, 0)
        self.assertRegex(done.out, r"^Verdict +[0-9.]+ of [0-9.]+ ms (a replayed|an) iteration \([0-9.]+ %\) are lost: [0-9.]+ ms, ")
        self.assert_fits(done.out)
        self.assertNotRegex(done.out, r"(?m) $")
        self.assertRegex(done.out, r"communication that nothing hides: [0-9.]+ ms\n +of +dp all_reduce")
        for trace in sorted(glob.glob(os.path.join(os.path.dirname(BUNDLED), "*"))):
            with self.subTest(trace=trace):
                rows = re.search(r"(?ms)^  From the ideal.*?$(.*?)^  iteration +([0-9.]+)", dpro("diagnose", trace).out)
                values = re.findall(r"(?m)^  \S.*?  +(-?[0-9.]+)(?: |$)", rows[1])
                self.assertEqual(sum(map(Decimal, values)), Decimal(rows[2]), rows[0])

    def test_small_causes_are_told_by_size(self):
        for trace in sorted(glob.glob(os.path.join(os.path.dirname(BUNDLED), "*"))):
            with self.subTest(trace=trace):
                told = re.search(r"(?s)\nSmall or unsure\n(.*?)(\n\n|\Z)", dpro("diagnose", trace).out)
                small = [float(ms) for ms in re.findall(r"([0-9.]+) +ms, ", told[1].replace("\n", " "))] if told else []
                self.assertEqual(small, sorted(small, reverse=True))

    def test_the_text_of_sixteen_ranks_fits_into_its_lines(self):
        for longer, waits in ((1, "rank, for +0 +1 +2 +.*\n +0 +0 +[0-9]+ "), (100, "most: rank [0-9]+ for [0-9]+: [0-9.]+; ")):
            times = uneven(4)
            trace = self.write("job.csv", StageJob(dp=4, stages=4, times=lambda *op: longer * times(*op)).csv(apart=0.01))
            text = dpro("diagnose", trace).out
            self.assert_fits(text)
            self.assertRegex(text, "\nWho waits for whom, ms an iteration:\n  " + waits)
            self.assertIn("\n\n  Stragglers, by the definitions of OSDI'25", text)

    def test_thresholds_fail_in_one_line(self):
        done = dpro("diagnose", BUNDLED, "--fail-on", "exposed>15%, lost > 20%,slow_rank>5000ms,launch>0ms", "-q")
        self.assert_code(done, CHECK_FAILED)
        self.assertRegex(done.err, r"\Adpro: --fail-on: this recording can't tell small_messages, so the sum exposed leaves it out\n"
                         r"dpro: --fail-on: exposed is 1[0-9.]+ %, more than 15 %; lost is [0-9.]+ %, more than 20 %\n\Z")
        self.assertIn("From the ideal", done.out)
        done = dpro("diagnose", BUNDLED, "--fail-on", "lost>99%", "-q")
        self.assert_code(done, DONE)
        self.assertEqual(done.err, "")

    def test_what_is_hardly_above_a_threshold_is_said_to_be(self):
        ms = max(cause["blame_ms"] for cause in self.assert_json("diagnose", BUNDLED)["causes"] if cause["cause"] == "communication")
        self.assert_code(dpro("diagnose", BUNDLED, "--fail-on", f"communication>{ms:.6f}ms"), DONE)
        done = dpro("diagnose", BUNDLED, "--fail-on", f"communication>{ms - 1e-6:.6f}ms")
        self.assert_code(done, CHECK_FAILED)
        said, limit = re.search(r"communication is ([0-9.]+) ms, more than ([0-9.]+) ms", done.err).groups()
        self.assertGreater(float(said), float(limit))

    def test_a_threshold_that_is_none_says_what_there_are(self):
        for text in ("exposed", "exposed>", "exposed>5", "exposed>5s", "nothing>5ms", "lost>5%,", ",lost>5%", "lost>-1ms", "lost>5%%",
                     "lost>nanms", "lost>5ms lost>6ms", "x" * 5000 + ">1ms", "lost>" + "1" * 5000 + "ms"):
            with self.subTest(text[:30]):
                done = dpro("diagnose", "no such trace", "--fail-on", text)
                self.assert_code(done, USAGE)
                self.assertIn("names: lost, exposed, straggler, ", done.err)

    def test_a_saved_diagnosis_is_compared_by_cause(self):
        other, good = BUNDLED + "-default", self.path("good.json")
        self.assert_code(dpro("diagnose", BUNDLED, "--save", good, "-q"), DONE)
        self.assertLess(os.path.getsize(good), 4000)
        same = self.assert_json("diagnose", BUNDLED, "--against", good)
        self.assertEqual(same["against"]["difference_ms"], 0)
        self.assertEqual(same["against"]["p_value"], 1)
        self.assertIsNone(same["against"]["differs"])
        self.assertIn("which may be noise: p = 1.000", dpro("diagnose", BUNDLED, "--against", good).out)
        facts = self.assert_json("diagnose", other, "--against", good)
        against = facts["against"]
        self.assertEqual(sum(Decimal(str(c["difference_ms"])) for c in against["causes"]), Decimal(str(against["difference_ms"])))
        for cause in against["causes"]:
            self.assertEqual(Decimal(str(cause["now_ms"])) - Decimal(str(cause["then_ms"])), Decimal(str(cause["difference_ms"])))
        self.assertLess(against["p_value"], 0.001)
        for saved in ("json", "save"):  # --json can be a baseline, too
            path = self.write("all.json", dpro("diagnose", BUNDLED, "--json").out) if saved == "json" else good
            self.assertEqual(self.assert_json("diagnose", other, "--against", path)["against"]["causes"], against["causes"])
        self.assertRegex(dpro("diagnose", other, "--against", good).out, r"Against +[0-9.]+ ms \([0-9.]+ %\) (more|less) an iteration than")

    def test_a_baseline_that_is_none_is_refused_in_one_line(self):
        good = self.path("good.json")
        self.assert_code(dpro("diagnose", BUNDLED, "--save", good, "-q"), DONE)
        text = read_text(good)
        facts = json.loads(text)
        for name, content, said in (
                ("another version", json.dumps({**facts, "schema": "dpro.diagnose/2"}),
                 "saved as dpro.diagnose/2, which dpro .* does not read"),
                ("of something else", json.dumps({**facts, "schema": "dpro.replay/1"}), "no diagnosis"),
                ("without a time", json.dumps({**facts, "iteration_ms": None}), "no iteration time"),
                ("of another framework", json.dumps({**facts, "framework": "mxnet"}), "of a job of mxnet with 2 ranks"),
                ("without its causes", json.dumps({**facts, "causes": []}), "add up to"),
                ("cut", text[:len(text) // 2], "ends too early; 'dpro diagnose TRACE --save FILE' writes it again"),
                ("empty", "", ""), ("no object", "[1, 2]", ""), ("no JSON", "\0" * 100, ""),
                ("deep", "[" * 100000, ""), ("huge numbers", text.replace('"blame_ms":', '"blame_ms":1e300'), "blame_ms"),
                ("many causes", json.dumps({**facts, "causes": facts["causes"] * 1000}), "more than")):
            with self.subTest(name):
                done = dpro("diagnose", BUNDLED, "--against", self.write("bad.json", content))
                self.assert_code(done, INPUT)
                self.assertRegex(done.err, "^dpro: .*bad.json: .*%s.*\n$" % said)
        self.assert_code(dpro("diagnose", BUNDLED, "--against", self.path("missing.json")), INPUT)

    def test_a_baseline_of_another_job_is_refused_whatever_else_is_asked(self):
        def other(name):
            return os.path.join(os.path.dirname(BUNDLED), name)
        good, later = self.path("good.json"), self.path("later.json")
        self.assert_code(dpro("diagnose", BUNDLED, "--save", good, "-q"), DONE)
        for name in ("torch-ddp-gloo-conv-n2-memory", "torch-ddp-gloo-lstm-n2-2gbit", "torch-tp-gloo-n2"):
            for options in ((), ("--fail-on", "lost>0%"), ("--save", later), ("--json",), ("-o", self.path("out"))):
                with self.subTest(name, options=options):
                    done = dpro("diagnose", other(name), "--against", good, *options)
                    self.assert_error(done, INPUT, "of what this one does: they are different jobs")
                    self.assertEqual(done.out, "")
        self.assertFalse(os.path.exists(later) or os.path.exists(self.path("out")))
        for name in ("torch-ddp-gloo-gpt-n2-memory", "torch-ddp-gloo-gpt-n2-default"):  # other buckets, another recording
            self.assert_code(dpro("diagnose", other(name), "--against", good), DONE)
        with open(good, encoding="utf-8") as file:
            facts = json.load(file)
        first = sum(len(work["op"]) for work in facts["work"]), [work["ms"] for work in facts["work"]]
        self.assertLessEqual(first[0], 60 * 16)
        self.assertEqual(first[1], sorted(first[1], reverse=True))
        del facts["work"], facts["gradient_bytes"]  # as an older dpro saved it
        old = self.write("old.json", json.dumps(facts))
        self.assert_code(dpro("diagnose", other("torch-tp-gloo-n2"), "--against", old), DONE)

    def test_efficiencies_multiply_and_who_waits_for_whom_adds_up(self):
        for trace in sorted(glob.glob(os.path.join(os.path.dirname(BUNDLED), "*"))):
            with self.subTest(trace=trace):
                measures = self.assert_json("diagnose", trace)["measures"]
                pop = measures["pop"]
                if pop["parallel_efficiency"] is not None:
                    product = pop["load_balance"] * pop["serialisation"] * pop["transfer"]
                    self.assertAlmostEqual(product, pop["parallel_efficiency"], places=8)
                    self.assertTrue(all(0 <= factor <= 1 for factor in pop.values() if factor is not None))
                waits = {}
                for wait in measures["waiting"]:
                    self.assertNotEqual(wait["rank"], wait["for"])
                    waits[wait["rank"]] = waits.get(wait["rank"], 0) + wait["ms"]
                for rank in self.assert_json("replay", trace, "--no-validate")["ranks"]:
                    self.assertLessEqual(waits.get(rank["rank"], 0), rank["wait_for_peers_ms"] + 1e-3)

    def test_arithmetic_is_set_against_the_peak_where_shapes_are_recorded(self):
        def with_shapes(dims, op="aten::mm"):
            def trace(rank, step_ms=20):
                events = []
                for step in range(4):
                    begin = step * step_ms * 1000 + 1000
                    events.append(span(f"ProfilerStep#{step}", begin, step_ms * 1000 - 20, cat="user_annotation"))
                    events.append(span(op, begin + 100, 90, **dims))
                    events.append(span("cudaLaunchKernel", begin + 120, 5, cat="cuda_runtime", correlation=step + 1))
                    events.append(span("gemm", begin + 200, 8000, 7, "kernel", 0, correlation=step + 1, stream=7, device=0))
                    events.append(span("cudaDeviceSynchronize", begin + 300, 19000, cat="cuda_runtime"))
                return {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}], "traceEvents": events}
            return trace
        dims = {"Input Dims": [[8192, 8192], [8192, 8192]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
        measures = self.assert_json("diagnose", self.write("shapes.json", with_shapes(dims)(0)))["measures"]
        family, = measures["families"]
        self.assertEqual((family["family"], family["precision"], measures["peak_source"]), ("matmul", "16-bit", "data sheet"))
        self.assertAlmostEqual(family["gflop"], 2 * 8192**3 / 1e9, places=3)
        self.assertAlmostEqual(family["tflops_per_s"], 2 * 8192**3 / 8e-3 / 1e12, places=2)
        self.assertAlmostEqual(measures["mfu"], 2 * 8192**3 / 312e12 / 20e-3, places=3)
        measures = self.assert_json("diagnose", self.write("bare.json", with_shapes({})(0)))["measures"]
        self.assertIsNone(measures["mfu"])
        self.assertEqual([measures[key] for key in ("S", "M_W", "M_S", "S_t", "S_w")], [None, None, None, {}, []])
        self.assertIn("timeline of stages", measures["stragglers_unknown"])
        self.assertIn("record_shapes", measures["mfu_needs"])
        dims = {"Input Dims": [[32, 3, 224, 224], [64, 3, 7, 7]]}
        measures = self.assert_json("diagnose", self.write("old.json", with_shapes(dims, "aten::convolution")(0)))["measures"]
        self.assertIsNone(measures["mfu"])
        self.assertIn("strides", measures["mfu_needs"])

    def test_one_rank_or_one_iteration_is_told_of_as_far_as_it_goes(self):
        alone = self.assert_json("diagnose", *glob.glob(os.path.join(BUNDLED, "*rank0*")))
        self.assertNotIn("slow_rank", blames(alone))
        self.assertIn("communication", blames(alone))
        self.assertTrue(any("1 of 2 ranks are here" in warning for warning in alone["warnings"]), alone["warnings"])
        single = self.assert_json("diagnose", BUNDLED, "--steps", "5")
        self.assertEqual({cause["uncertainty_ms"] for cause in single["causes"]}, {None})
        self.assertIn("\n\n  Of one iteration there are no intervals.", dpro("diagnose", BUNDLED, "--steps", "5").out)

    def test_what_the_iteration_is_other_than_the_replay_is_named(self):
        data = os.path.dirname(BUNDLED)
        for trace, row, source in (("hvd-mx-n2", "not_explained", "steps of the same run without the profiler"),
                                   ("../captures/mxnet-ps-gluon", "profiler", "transport logs")):
            facts = self.assert_json("diagnose", os.path.join(data, trace))
            rest = facts["iteration_ms"] - facts["explained_ms"]
            self.assertGreater(abs(rest), 0.05 * facts["explained_ms"])
            self.assertAlmostEqual(float(blames(facts)[row]), rest, places=6)
            said, = (warning for warning in facts["warnings"] if warning.startswith("the replay takes"))
            self.assertIn(source, said)
        self.assertFalse(any("the replay takes" in warning for warning in self.assert_json("diagnose", BUNDLED)["warnings"]))

    def test_a_job_that_does_not_communicate(self):
        facts = self.assert_json("diagnose", os.path.join(os.path.dirname(BUNDLED), "torch-nccl-conv-h200-memory"))
        self.assertNotIn("communication", blames(facts))
        self.assertGreater(facts["ideal_ms"], 0)

    def test_a_what_if_says_what_fixing_a_cause_wins(self):
        facts = self.assert_json("diagnose", BUNDLED)
        told = {cause["cause"]: cause for cause in facts["causes"]}["communication"]
        self.assertEqual(told["command"], f"dpro whatif {BUNDLED} --bandwidth 2x")
        asked = dpro("whatif", BUNDLED, "--bandwidth", "2x", "--json").json
        self.assertGreater(told["command_gain_ms"], 0)
        self.assertIn(told["command_gain_ms"], [round(asked["baseline"]["iteration_ms"] - asked["predicted"]["iteration_ms"], 6)])
        self.assertIn(f" +- {told['command_uncertainty_ms']:.1f} ms\n", dpro("diagnose", BUNDLED).out)

    def test_a_what_if_that_is_not_sure_says_so_and_a_small_one_is_no_answer(self):
        told = dpro("diagnose", os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-lstm-n2-2gbit")).out
        self.assertRegex(told, r"--bandwidth 2x +# wins [0-9.]+ \+- [0-9.]+ ms, too little to be sure of\n")
        facts = self.assert_json("diagnose", os.path.join(os.path.dirname(BUNDLED), "tf-session-collectives-net-n2"))
        self.assertEqual([cause["command"] for cause in facts["causes"]], [None] * len(facts["causes"]))
        self.assertIn("look at when ranks arrive", facts["causes"][0]["next_step"])
        self.assertNotIn("count most", told.replace("\n       ", " "))
        self.assertIn("Its bytes count most", self.assert_json("diagnose", BUNDLED)["causes"][0]["next_step"])

    def test_a_what_if_that_wins_more_than_all_of_a_cause_is_not_sure(self):
        """It reckons with time that computing loses beside communication, of which the recording shows nothing."""
        for rank, trace in enumerate(support.job(layers=4, forward_us=20_000, backward_us=40_000)):
            self.write(f"job/rank{rank}.json", json.dumps(trace).replace("[1000]", "[1000000]"))  # of 4 MB each
        told = self.assert_json("diagnose", self.path("job"))["causes"][0]
        self.assertEqual(told["cause"], "communication")
        self.assertGreater(told["command_gain_ms"], told["alone_ms"])
        self.assertGreaterEqual(told["command_uncertainty_ms"], told["command_gain_ms"])
        self.assertIn("may lose beside communication, which this recording does not show", told["next_step"])

    def test_what_is_not_explained_comes_first_where_it_is_more_than_all_causes(self):
        facts = self.assert_json("diagnose", os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-conv-n2-memory"))
        self.assertRegex(facts["verdict"], "^without dpro the job takes [0-9.]+ ms less than the replay, more than all causes together")
        self.assertIn("even the replay's ideal is longer", facts["verdict"])

    def test_no_links_are_faster_than_the_ideal(self):
        """Where communication is known to slow computing down beside it, faster links win that, too; where it is assumed, that is said."""
        facts = self.assert_json("diagnose", BUNDLED + "-default")
        asked = dpro("whatif", BUNDLED + "-default", "--bandwidth", "1000x", "--json").json
        faster = asked["predicted"]["iteration_ms"] / asked["baseline"]["iteration_ms"]
        self.assertLess(facts["ideal_ms"], faster * facts["explained_ms"])
        unsure = {a["cause"]: a for a in self.assert_json("diagnose", BUNDLED)["abstained"]}["contention"]
        self.assertRegex(unsure["needs"], r"[0-9.]+ \+- [0-9.]+ ns for each byte")

    def test_what_uneven_stages_have_more_goes_to_the_others(self):
        def diagnosed(name, *of_stages):
            job = StageJob(dp=2, stages=4, micro_batches=8, steps=5, times=lambda optype, dp, stage, step, n:
                           0.01 * (of_stages[stage] if "compute" in optype else 0.05))
            facts = self.assert_json("diagnose", self.write(name, job.csv()))
            return facts["iteration_ms"], {cause["cause"]: cause for cause in facts["causes"]}
        even_ms, even = diagnosed("even.csv", 1.125, 1.125, 1.125, 1.125)
        uneven_ms, causes = diagnosed("uneven.csv", 1, 1, 1.5, 1)
        self.assertNotIn("uneven_stages", even)
        self.assertAlmostEqual(causes["uneven_stages"]["alone_ms"], uneven_ms - even_ms, delta=0.02 * (uneven_ms - even_ms))
        self.assertEqual([part["what"] for part in causes["uneven_stages"]["parts"]], ["stage 2"])

    def test_advice_fits_the_framework(self):
        data = os.path.dirname(BUNDLED)
        stages = StageJob(dp=2, stages=2, steps=5, times=uneven(4))
        for trace in (os.path.join(data, "tf-ps-n2"), os.path.join(data, "hvd-mx-n2"), self.write("job.csv", stages.csv(apart=0.01))):
            text = dpro("diagnose", trace).out
            self.assertNotRegex(text, r"torch[.]|CUDA|with_stack|record_shapes", trace)
        self.assertNotIn("CPU threads", text)
        parts = [part["what"] for cause in self.assert_json("diagnose", os.path.join(data, "tf-session-collectives-n2"))["causes"]
                 for part in cause["parts"]]
        self.assertFalse([part for part in parts if "_SOURCE" in part], parts)

    def test_the_first_launch_of_a_job_is_named_so_and_the_ideal_is_a_row_though_it_is_nothing(self):
        def event(cat, name, ts, dur, tid, **args):
            return {"ph": "X", "cat": cat, "name": name, "pid": 0 if cat == "kernel" else 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
        trace = {"schemaVersion": 1, "traceEvents": [
            event("cpu_op", "aten::add", 1000, 19_800_000, 1, **{"External id": 1}),
            event("cuda_runtime", "cudaLaunchKernel", 1010, 19_799_000, 1, correlation=7, **{"External id": 1}),
            event("kernel", "vectorized_elementwise_kernel", 19_801_010, 0.001, 7, correlation=7, stream=7, device=0)]}
        path = self.write("add.json", trace)
        self.assertRegex(dpro("diagnose", path).out, r"\n  ideal +0 ")
        launch, = self.assert_json("diagnose", path)["causes"]
        self.assertEqual(launch["cause"], "launch")
        self.assertIn("the first calls of a job", launch["next_step"])

    def test_any_number_of_threads_finds_the_same(self):
        self.assertEqual(dpro("diagnose", BUNDLED, "--json", "--threads", "1").out,
                         dpro("diagnose", BUNDLED, "--json", "--threads", "3").out)


if __name__ == "__main__":
    unittest.main()
