"""dpro whatif --compile, --precision, --probes, dpro optimize --allow: modules computed in other ways."""
import json
import os
import re
import shutil

import gpu_job
from support import BUNDLED, INPUT, USAGE, Case, dpro, read_json, read_text, write_json, write_text

GPT = os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-gpt-n2-memory")  # two blocks of a transformer


def way(forward, backward, **more):
    return {"forward_ns": [forward * 1000000 + i for i in range(5)], "backward_ns": [backward * 1000000 + i for i in range(5)],
            "kept_bytes": 1000, **more}


def on_gpu(alone, launch, device):
    """Both passes alike."""
    passes = {"_ns": alone, "_launch_ns": launch, "_device_ns": device}
    return {name + of: [ms * 1000000] * 3 for name in ("forward", "backward") for of, ms in passes.items()}


def probes(*of, **more):
    return {"schema": "dpro.probes/1", "device": "cpu", "device_name": "AMD EPYC", "versions": {"torch": "2.13.0+cpu"}, "threads": 1,
            "probes": list(of), **more}


BLOCKS = {"class": "TransformerBlock", "modules": [["blocks.0"], ["blocks.1"]],
          "ways": {"eager": way(100, 200), "compile": way(50, 100, graphs=1, breaks=0), "bf16": way(80, 160),
                   "compile+bf16": {"problem": "BackendCompilerFailed: no"}}}


class Computing(Case):
    def ask(self, *args):
        return self.assert_json("whatif", *args)

    def probed(self, *of, **more):
        """A copy of the recording with probes of its own."""
        trace = self.path("trace")
        shutil.copytree(GPT, trace, dirs_exist_ok=True)
        write_json(os.path.join(trace, "host0", "rank0", "probes.json"), probes(*of, **more))
        return trace

    def test_what_a_probe_measured_is_in_the_time(self):
        trace = self.probed(BLOCKS)
        blocks, one = (self.ask(trace, "--compile", names) for names in ("blocks.*", "blocks.1"))
        self.assertEqual(blocks["changes"], {"compile": "blocks.*"})
        self.assertEqual(blocks["computation"], {"compiled": ["blocks.0", "blocks.1"], "bf16": [], "source": "probes"})
        self.assertEqual(one["computation"]["compiled"], ["blocks.1"])
        own = blocks["baseline"]["iteration_ms"]
        saved, saved_by_one = (own - facts["predicted"]["iteration_ms"] for facts in (blocks, one))
        self.assertGreater(saved, own / 4)  # blocks are more than half of it, and take half of the time
        self.assertLess(saved, own / 2)
        self.assertAlmostEqual(saved_by_one / saved, 0.5, delta=0.1)
        self.assertGreater(blocks["uncertainty"]["computing"]["predicted_pct"], 0.1)
        self.assertTrue(any("may round otherwise" in w for w in blocks["warnings"]), blocks["warnings"])
        self.assertNotIn("computation", self.ask(trace, "--bandwidth", "2x"))

    def test_a_probed_recomputation_takes_what_it_took(self):
        trace = self.probed(BLOCKS)
        more = {}
        for backward in (None, 300, 400):  # of 100 and 200 as it is: the second forward pass alone, and twice as much
            ways = {**BLOCKS["ways"], "recompute": way(100, backward)} if backward else BLOCKS["ways"]
            self.probed({**BLOCKS, "ways": ways})
            facts = self.ask(trace, "--recompute", "blocks.*")
            more[backward] = facts["predicted"]["iteration_ms"] - facts["baseline"]["iteration_ms"]
        self.assertGreater(more[None], 0)
        self.assertAlmostEqual(more[400] / more[300], 2, delta=0.1)
        facts = self.ask(trace, "--recompute", "blocks.0")
        self.assertAlmostEqual((facts["predicted"]["iteration_ms"] - facts["baseline"]["iteration_ms"]) / more[400], 0.5, delta=0.1)

    def test_modules_of_a_second_model_end_with_their_gradients(self):
        """Names of modules have their model's number, those of parameters don't."""
        trace = self.probed(BLOCKS)
        own = self.ask(trace, "--compile", "blocks.0")
        self.probed({**BLOCKS, "modules": [["1/blocks.0"], ["1/blocks.1"]]})
        for rank in (0, 1):
            path = os.path.join(trace, "host0", "rank%d" % rank, "kineto_et.json.gz")
            write_text(path, read_text(path).replace('"dpro.module:', '"dpro.module:1/'))
        facts = self.ask(trace, "--compile", "1/blocks.0")
        self.assertEqual(facts["computation"]["compiled"], ["1/blocks.0"])
        self.assertEqual(facts["predicted"], own["predicted"])

    def test_on_a_gpu_the_larger_of_launches_and_kernels_counts(self):
        trace = self.path("trace")
        shutil.copytree(os.path.join(os.path.dirname(BUNDLED), "torch-nccl-conv-h200-memory"), trace)

        def ratio(model, own, low):
            blocks = {"class": "Residual", "modules": [["blocks.%d" % n] for n in range(6)], "ways": {"eager": own, "bf16": low}}
            write_json(os.path.join(trace, "host0", "rank0", "probes.json"),
                       probes({"class": "Convolutional", "modules": [[""]], "ways": {"eager": model}}, blocks))
            facts = self.ask(trace, "--precision", "bf16=blocks.*")
            return facts["predicted"]["iteration_ms"] / facts["baseline"]["iteration_ms"]

        small, low = on_gpu(100, 90, 40), on_gpu(120, 110, 20)  # alone, launches are all that counts
        waits = ratio(on_gpu(500, 450, 100), small, low)
        runs_ahead = ratio(on_gpu(500, 100, 450), small, low)
        self.assertTrue(1.05 < waits < 1.25, waits)
        self.assertTrue(0.45 < runs_ahead < 0.8, runs_ahead)

    def test_page_faults_that_probes_have_none_of_stay(self):
        trace = self.probed(BLOCKS)
        facts = {}
        for fault_ns in (0, 300):
            self.probed(BLOCKS, fault_ns=fault_ns)
            for rank in (0, 1):
                path = os.path.join(trace, "host0", "rank%d" % rank, "rank.json")
                write_text(path, re.sub('"page_faults": *[0-9]+', '"page_faults": 1000000', read_text(path)))
            facts[fault_ns] = self.ask(trace, "--compile", "blocks.*")
        own = facts[0]["baseline"]["iteration_ms"]
        saved, saved_beside_faults = (own - facts[fault_ns]["predicted"]["iteration_ms"] for fault_ns in (0, 300))
        self.assertAlmostEqual(saved_beside_faults / saved, 1 - 300 / own, delta=0.05)
        self.assertLess(saved_beside_faults, 0.95 * saved)
        errors = [facts[fault_ns]["uncertainty"]["computing"]["predicted_pct"] for fault_ns in (0, 300)]
        self.assertGreater(errors[1], errors[0])

    def with_flags(self, flags, *of):
        """A copy of the recording, of a CPU with these flags, with probes of its own."""
        trace = self.probed(*of)
        for rank in (0, 1):
            path = os.path.join(trace, "host0", "rank%d" % rank, "rank.json")
            write_json(path, {**read_json(path), "cpu_flags": flags})
        return trace

    def test_the_time_of_16_bits_is_not_told_without_a_probe_where_the_cpu_may_lack_instructions(self):
        small = {**BLOCKS, "ways": {"eager": way(100, 200), "bf16": {"left_out": "the time was over after 60 s"}}}
        for flags, of, said in ((None, (), "does not say"), (["avx2"], (), "has no instructions"),
                                ([], (small,), "--probe-limit SECONDS' and more time than before")):
            with self.subTest(flags):
                trace = self.with_flags(flags, *of)
                args = ["--precision", "bf16=blocks.*"]
                facts = self.ask(trace, *args)
                self.assertEqual((facts["predicted"]["iteration_ms"], facts["speedup"], facts["computation"]["source"]), (None,) * 3)
                self.assertLess(facts["memory"]["peak_bytes"], facts["memory"]["baseline_peak_bytes"])
                self.assertIn("dpro profile --probe bf16", facts["no_time"])
                text = " ".join(dpro("whatif", trace, *args).out.split())
                self.assertIn("can't be predicted", text)
                self.assertIn(said, text)
                self.assertNotIn("what if ", text)
                self.assertEqual(self.optimize(trace, "--allow", "bf16,assumed")["best"]["computation"]["bf16"], [])
        self.assertLess(self.ask(self.with_flags([], BLOCKS), *args)["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"])

    def test_fp32_of_a_job_that_calls_autocast_itself_is_refused(self):
        trace = self.with_flags(["avx512_bf16"])
        for rank in (0, 1):
            path = os.path.join(trace, "host0", "rank%d" % rank, "kineto.json.gz")
            profile = read_json(path)
            events = profile["traceEvents"]
            for event in [e for e in events if e.get("name") == "aten::linear"]:
                events[:] = [e for e in events if e is event or e.get("tid") != event["tid"] or e.get("ph") != "X" or
                             not event["ts"] <= e["ts"] < event["ts"] + event["dur"]]
                for name, at, part in (("aten::to", 0.1, 0.2), ("aten::linear", 0.4, 0.5)):
                    events.append({**event, "name": name, "ts": event["ts"] + at * event["dur"], "dur": part * event["dur"]})
            write_json(path, profile)
        self.assert_error(dpro("whatif", trace, "--precision", "fp32"), USAGE, "torch.autocast", "record the job again")

    def test_fp32_of_a_job_whose_kernels_are_in_16_bits_is_refused(self):
        trace, _ = gpu_job.write(self, gpu_job.Job(world=2, buckets=2, kernels=30))
        self.ask(trace, "--precision", "fp32")
        path = os.path.join(trace, "rank1.pt.trace.json.gz")
        write_text(path, read_text(path).replace('"conv_forward_', '"ampere_bf16_s16816fprop_'))
        self.assert_error(dpro("whatif", trace, "--precision", "fp32"), USAGE, "16 bits", "record the job again")

    def test_16_bits_without_a_probe_are_assumed_and_said_so(self):
        facts = self.ask(self.with_flags(["amx_bf16"]), "--precision", "bf16")
        self.assertEqual(facts["computation"], {"compiled": [], "bf16": [""], "source": "assumed"})
        self.assertTrue(any("assumed, not measured" in w for w in facts["warnings"]), facts["warnings"])
        self.assertTrue(any("check its loss" in w for w in facts["warnings"]), facts["warnings"])
        self.assertGreater(facts["uncertainty"]["computing"]["predicted_pct"], 30)
        self.assertLess(facts["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"])
        measured = self.ask(self.probed(BLOCKS), "--precision", "bf16=blocks.*")
        self.assertEqual(measured["computation"], {"compiled": [], "bf16": ["blocks.0", "blocks.1"], "source": "probes"})
        self.assertLess(measured["uncertainty"]["computing"]["predicted_pct"], 10)

    def test_what_is_in_neither_way_stays_as_it_was(self):
        for args in (["--compile", "none"], ["--precision", "fp32"]):
            with self.subTest(args):
                facts = self.ask(GPT, *args)
                self.assertEqual(facts["speedup"], 1)
                self.assertEqual(facts["computation"], {"compiled": [], "bf16": [], "source": None})

    def test_the_rest_of_a_model_in_16_bits_is_so_part_by_part(self):
        both = {**BLOCKS, "ways": {**BLOCKS["ways"], "compile+bf16": way(40, 80)}}
        facts = self.ask(self.probed(both), "--compile", "blocks.*", "--precision", "bf16")
        computation = facts["computation"]
        self.assertEqual(computation["compiled"], ["blocks.0", "blocks.1"])
        self.assertIn("head", computation["bf16"])
        self.assertIn("blocks.0", computation["bf16"])
        self.assertNotIn("", computation["bf16"])
        self.assertNotIn("blocks.0.attention", computation["bf16"])

    def test_what_was_not_measured_is_composed_and_said_so(self):
        apart = {**BLOCKS, "ways": {name: way for name, way in BLOCKS["ways"].items() if name != "compile+bf16"}}
        trace = self.probed(apart)
        blocks, whole = (self.ask(trace, "--compile", names) for names in ("blocks.*", "all"))
        self.assertEqual(whole["computation"], {"compiled": [""], "bf16": [], "source": "composed"})
        self.assertAlmostEqual(whole["speedup"] / blocks["speedup"], 1, delta=0.02)  # the rest stays as it is
        wide, narrow = (facts["uncertainty"]["computing"]["predicted_pct"] for facts in (whole, blocks))
        self.assertGreater(wide, 1.5 * narrow)
        self.assertTrue(any("part of this is composed from times" in w for w in whole["warnings"]), whole["warnings"])
        bf16, both = (self.ask(trace, "--precision", "bf16=blocks.*", *more) for more in ([], ["--compile", "blocks.*"]))
        self.assertEqual(both["computation"]["source"], "composed")
        self.assertTrue(any("either way alone" in w for w in both["warnings"]), both["warnings"])
        self.assertLess(both["predicted"]["iteration_ms"], min(f["predicted"]["iteration_ms"] for f in (bf16, blocks)))
        wide, narrow = (facts["uncertainty"]["computing"]["predicted_pct"] for facts in (both, bf16))
        self.assertGreater(wide, 1.5 * narrow)
        facts = self.ask(trace, "--compile", "all", "--precision", "bf16")
        self.assertEqual(facts["computation"], {"compiled": [""], "bf16": [""], "source": "composed"})
        self.assertLess(facts["predicted"]["iteration_ms"], whole["predicted"]["iteration_ms"])

    def test_what_failed_is_not_composed(self):
        whole = {"class": "Transformer", "modules": [[""]], "ways": {"eager": way(1000, 2000), "compile": {"problem": "it fails"}}}
        self.assert_error(dpro("whatif", self.probed(BLOCKS, whole), "--compile", "all"), USAGE, "it fails")

    def test_a_way_that_is_not_known_is_refused(self):
        trace = self.probed(BLOCKS)
        for args, says in ((["--compile", "head"], "how long head takes"), (["--compile", "head"], "'dpro profile --probe"),
                           (["--compile", "blocks.0", "--precision", "bf16=blocks.0"], "BackendCompilerFailed: no"),
                           (["--compile", "blocks.0", "--precision", "bf16=blocks.0.mlp"], "compiled as one"),
                           (["--precision", "fp8"], "fp8"), (["--precision", "bf16="], "bf16="),
                           (["--precision", "bf16=blocks.7"], "no module of the job is named 'blocks.7'")):
            with self.subTest(args):
                self.assert_error(dpro("whatif", trace, *args), USAGE, says)
        self.assert_error(dpro("whatif", BUNDLED, "--precision", "bf16"), USAGE, "neither the job's modules nor their times")

    def test_modules_of_a_plan_are_taken(self):
        trace = self.probed(BLOCKS)
        plan = {"schema": "dpro.plan/4", "computation": {"compile": ["blocks.1"], "bf16": ["blocks.0"], "changes_numerics": True}}
        for of, options in ((json.dumps(plan), [["--compile"], ["--precision"]]), (json.dumps(["blocks.1"]), [["--compile"]])):
            path = self.write("modules.json", of)
            args = ["--compile", path] + (["--precision", "bf16=" + path] if len(options) > 1 else [])
            facts = self.ask(trace, *args)
            self.assertEqual(facts["computation"]["compiled"], ["blocks.1"])
            self.assertEqual(facts["computation"]["bf16"], ["blocks.0"] if len(options) > 1 else [])
        path = self.write("modules.json", json.dumps({**plan, "computation": {}}))
        self.assert_error(dpro("whatif", trace, "--compile", path), INPUT, "computation.compile")

    def test_probes_of_another_run_count_by_name_and_class(self):
        path = self.write("probes.json", json.dumps(probes(BLOCKS)))
        facts = self.ask(GPT, "--probes", path, "--compile", "blocks.*")
        self.assertEqual(facts["predicted"], self.ask(self.probed(BLOCKS), "--compile", "blocks.*")["predicted"])
        for other, says in (({"device_name": "Xeon"}, "with the device Xeon"), ({"versions": {"torch": "2.1"}}, "with PyTorch 2.1")):
            with self.subTest(says):
                self.assert_error(dpro("whatif", GPT, "--probes", self.write("other.json", json.dumps(probes(BLOCKS, **other)))),
                                  USAGE, says)
        for text, code, says in ((json.dumps(probes({**BLOCKS, "class": "Residual"})), USAGE, "another model"),
                                 (json.dumps(probes({**BLOCKS, "modules": [["layers.0"]]})), USAGE, "another model"),
                                 (json.dumps(probes()), INPUT, "no module was probed"), ("{}", INPUT, "dpro.probes/1"),
                                 ("[", INPUT, "bad.json")):
            with self.subTest(says):
                self.assert_error(dpro("whatif", GPT, "--probes", self.write("bad.json", text)), code, says)
        self.assert_error(dpro("whatif", BUNDLED, "--probes", path), USAGE, "does not tell the job's modules")
        self.assert_error(dpro("whatif", GPT, "--probes", self.path("absent")), INPUT, "absent")

    def test_what_was_left_out_is_told_with_the_reason(self):
        head = {"class": "Linear", "modules": [["head"]],
                "ways": {"eager": way(10, 20), "compile": {"left_out": "it is one operator, with which nothing can be fused"}}}
        self.assert_error(dpro("whatif", self.probed(BLOCKS, head), "--compile", "head"), USAGE, "not measured, as it is one operator")

    def test_runs_of_neighbours_that_dpro_once_measured_count_for_nothing(self):
        run = {"class": "TransformerBlock", "modules": [["blocks.0", "blocks.1"]], "ways": {"compile": way(1, 1)}}
        facts, without = (self.ask(self.probed(*of), "--compile", "blocks.*") for of in ((run, BLOCKS), (BLOCKS,)))
        self.assertEqual(facts["predicted"], without["predicted"])
        self.assertFalse(any("make no sense" in w for w in facts["warnings"]), facts["warnings"])

    def test_other_batches_take_what_a_probe_measured_of_them(self):
        whole = {"class": "Transformer", "modules": [[""]], "ways": {"eager": way(1000, 2000)},
                 "batches": {"0.5": way(400, 800), "0.25": way(180, 360), "2": way(2600, 5200)}}
        trace = self.probed(whole)
        for args, least, most in ((["--accumulate", "2"], 0.78, 0.9), (["--accumulate", "4"], 0.7, 0.85),
                                  (["--batch-size", "8"], 0.4, 0.5), (["--batch-size", "32"], 2.2, 2.7)):
            with self.subTest(args):
                facts = self.ask(trace, *args)
                ratio = 1 / facts["speedup"]
                self.assertGreater(ratio, least)
                self.assertLess(ratio, most)
                self.assertGreater(facts["uncertainty"]["batch_size"]["predicted_pct"], 10)
                self.assertFalse(any("assumed" in w for w in facts["warnings"]), facts["warnings"])

    # ---- optimize ----

    def optimize(self, *args):
        return self.assert_json("optimize", *args)

    def test_a_plan_compiles_what_wins_and_says_what_that_brings(self):
        trace, plan = self.probed(BLOCKS), self.path("plan")
        facts = self.optimize(trace, "--allow", "compile,bf16", "-o", plan)
        self.assertEqual(facts["best"]["computation"], {"compile": ["blocks.0", "blocks.1"], "bf16": [], "fused_ops": []})
        self.assertTrue(facts["best"]["helps"] and facts["best"]["changes_numerics"])
        self.assertEqual((facts["computing"]["allowed"], facts["computing"]["modules"]), (["compile", "bf16"], 2))
        baselines = {b["name"]: b for b in facts["baselines"]}
        self.assertGreater(baselines["communication"]["iteration_ms"], 1.2 * facts["best"]["iteration_ms"])
        self.assertEqual(facts["computing"]["communication_ms"], baselines["communication"]["iteration_ms"])
        self.assertTrue(baselines["bf16"]["computes"] and not baselines["communication"]["computes"])
        self.assertGreaterEqual(baselines["blocks compiled"]["iteration_ms"], facts["best"]["iteration_ms"])
        self.assertTrue(any(d["pass"] == "op-fusion" and "blocks.1" in d["target"] for d in facts["strategy"]), facts["strategy"])
        self.assertTrue(any("may round otherwise" in w for w in facts["warnings"]), facts["warnings"])
        written = read_json(os.path.join(plan, "plan.json"))
        self.assertEqual(written["schema"], "dpro.plan/4")
        self.assertEqual(written["computation"], {"compile": ["blocks.0", "blocks.1"], "bf16": [], "changes_numerics": True})
        self.assertAlmostEqual(written["expected"]["iteration_ms"], facts["best"]["iteration_ms"], delta=0.001)
        text = dpro("optimize", trace, "--allow", "compile").out
        self.assertIn("compiling 2 modules", text)
        self.assertIn("compiled: blocks.0 ... blocks.1 (2 modules)", text)

    def test_only_what_is_allowed_is_tried(self):
        trace = self.probed(BLOCKS)
        for args in ([], ["--compress", "fp16"]):
            facts = self.optimize(trace, *args)
            self.assertEqual(facts["best"]["computation"], {"compile": [], "bf16": [], "fused_ops": []})
            self.assertIsNone(facts["computing"])
            self.assertFalse(any(b["computes"] or b["name"] == "communication" for b in facts["baselines"]))
        in_bf16 = self.optimize(trace, "--allow", "bf16")["best"]["computation"]
        self.assertEqual((in_bf16["compile"], in_bf16["bf16"]), ([], ["blocks.0", "blocks.1"]))
        for text in ("", "compile,", "fp16", "compile bf16", "compile,compile,what"):
            self.assert_error(dpro("optimize", trace, "--allow", text), USAGE, "--allow", "compile, bf16, assumed")

    def test_where_nothing_wins_nothing_is_compiled_and_that_is_said(self):
        for ways in ({"compile": way(103, 206), "bf16": way(150, 200)}, {"compile": way(99, 199)}):
            ways = {w: {**v, "graphs": 1, "breaks": 0} for w, v in ways.items()}
            trace = self.probed({**BLOCKS, "ways": {"eager": way(100, 200), **ways}})
            with self.subTest(ways):
                facts = self.optimize(trace, "--allow", "compile,bf16", "-o", self.path("plan"))
                self.assertEqual(facts["best"]["computation"]["compile"], [])
                self.assertNotIn("computation", read_json(os.path.join(self.path("plan"), "plan.json")))
                self.assertIn("kept as they are: compiling and 16 bits", dpro("optimize", trace, "--allow", "compile,bf16").out)

    def test_what_no_probe_measured_is_tried_only_where_the_user_insists(self):
        trace = self.with_flags(["amx_bf16"])
        facts = self.optimize(trace, "--allow", "compile,bf16")
        self.assertEqual((facts["best"]["computation"]["bf16"], facts["computing"]["modules"]), ([], 0))
        text = " ".join(dpro("optimize", trace, "--allow", "bf16").out.split())
        self.assertIn("dpro profile --probe", text)
        self.assertIn("--allow bf16,assumed", text)
        facts = self.optimize(trace, "--allow", "bf16,assumed")
        self.assertEqual(facts["best"]["computation"]["bf16"], [""])
        self.assertGreater(facts["computing"]["assumed_modules"], 0)

    def test_the_probes_of_another_run_will_do(self):
        path = self.write("probes.json", json.dumps(probes(BLOCKS)))
        facts = self.optimize(GPT, "--allow", "compile", "--probes", path)
        self.assertEqual(facts["best"]["computation"]["compile"], ["blocks.0", "blocks.1"])

    def test_what_the_compiler_leaves_as_it_is_is_told(self):
        nothing = {**BLOCKS, "ways": {"eager": way(100, 200), "compile": way(100, 200, graphs=0, breaks=0)}}
        facts = self.ask(self.probed(nothing), "--compile", "blocks.*")
        self.assertTrue(any("makes no graph" in w for w in facts["warnings"]), facts["warnings"])
