"""dpro whatif of FSDP jobs: what they would take and hold if other units kept their gathered parameters, with modules
recomputed, other batches, in 16 bits."""
import json
import os
import shutil
import sys
import tempfile

from support import BUNDLED, DONE, INPUT, ROOT, USAGE, Case, dpro, read_json, read_text, write_json, write_text

sys.path.insert(0, os.path.join(ROOT, "python"))
from dpro import plan as plans  # noqa: E402  reads plans in the job, and needs no torch

SHARDED = os.path.join(os.path.dirname(BUNDLED), "torch-fsdp-gloo-n2-memory")


def whatif(*args, trace=SHARDED):
    return dpro("whatif", trace, "--json", *args).json


def truth():
    with open(os.path.join(SHARDED, "whatif-sharded.json"), encoding="utf-8") as file:
        return {config: measured["peak_bytes"] for config, measured in json.load(file)["configs"].items()}


def options_of(config):
    options = []
    for part in config.split(","):
        key, _, value = part.partition("=")
        options += {"as-is": ["--reshard", "blocks.*"], "reshard": ["--reshard", value], "recompute": ["--recompute", value],
                    "accumulate": ["--accumulate", value], "batch": ["--batch-size", value + "x"],
                    "bf16": ["--precision", "bf16=" + value if value else "bf16"]}[key]
    return options


class Resharding(Case):
    def test_peaks_are_those_of_the_job_that_ran_so(self):
        counted = truth()
        for config, peaks in counted.items():
            with self.subTest(config=config):
                memory = whatif(*options_of(config))["memory"]
                self.assertEqual(memory["baseline_peak_bytes"], max(counted["as-is"]))
                # what FSDP still holds when it adds up a last gradient is not followed
                allowed = 0.02 if config == "accumulate=4" else 5e-5
                self.assertAlmostEqual(memory["peak_bytes"] / max(peaks), 1, delta=allowed)

    def test_replay_holds_what_was_counted(self):
        counted = truth()["as-is"]
        ranks = dpro("replay", SHARDED, "--json", "--no-validate").json["memory"]["ranks"]
        self.assertEqual([rank["peak_bytes"] for rank in ranks], counted)
        self.assertEqual([rank["measured_peak_bytes"] for rank in ranks], counted)
        self.assertGreater(ranks[0]["by_category"]["communication"], 0)  # what was gathered

    def test_gathers_that_go_make_the_iteration_shorter_and_those_that_come_longer(self):
        facts = {units: whatif("--reshard", units) for units in ("none", "blocks.1", "blocks.*", "all")}
        times = [it["predicted"]["iteration_ms"] for it in facts.values()]
        self.assertEqual(times, sorted(times))
        self.assertEqual(facts["blocks.*"]["predicted"], facts["blocks.*"]["baseline"])
        self.assertEqual(facts["blocks.1"]["units"], [{"name": "", "reshards_before": False, "reshards": False},
                                                      {"name": "blocks.0", "reshards_before": True, "reshards": False},
                                                      {"name": "blocks.1", "reshards_before": True, "reshards": True}])
        self.assertGreater(facts["none"]["speedup"], 1)
        self.assertIsNone(facts["none"]["link"]["algorithm"])  # there are no buckets

    def test_gathers_that_come_ahead_take_as_long_where_a_thread_waits_for_them(self):
        for distance in ("1", "2"):
            facts = whatif("--prefetch", distance)
            self.assertEqual(facts["changes"], {"prefetch": int(distance)})
            self.assertAlmostEqual(facts["speedup"], 1, delta=0.02)
            self.assertGreaterEqual(facts["memory"]["peak_bytes"], facts["memory"]["baseline_peak_bytes"])
        self.assertFalse(any("follow each other" in w for w in whatif("--prefetch", "1")["warnings"]))
        most = whatif("--prefetch", "99")
        self.assertEqual(most["predicted"], whatif("--prefetch", "1")["predicted"])  # of two blocks
        self.assertTrue(any("at most 2 units of the job follow each other" in w for w in most["warnings"]), most["warnings"])
        both = whatif("--prefetch", "1", "--reshard", "none")
        self.assertLess(both["predicted"]["iteration_ms"], both["baseline"]["iteration_ms"])
        self.assertGreaterEqual(both["memory"]["peak_bytes"], whatif("--reshard", "none")["memory"]["peak_bytes"])

    def test_gathers_can_not_come_ahead_where_nothing_shows_them(self):
        unfit = dpro("optimize", SHARDED, "--memory", "1MB", "--servers", "1:3")
        self.assert_error(unfit, USAGE, "has no parameter servers to change")
        for trace, asked, why in ((BUNDLED, ["--prefetch", "2"], "shards no parameters"),
                                  (SHARDED, ["--prefetch", "2", "--reshard", "all"], "kept its parameters")):
            result = dpro("whatif", trace, *asked)
            self.assert_error(result, USAGE, why)

    def test_faster_computation_and_delays_go_with_it(self):
        plain = whatif("--reshard", "none")["predicted"]["iteration_ms"]
        self.assertLess(whatif("--reshard", "none", "--compute", "2x")["predicted"]["iteration_ms"], plain)
        self.assertGreater(whatif("--reshard", "none", "--delay", "BW=+100")["predicted"]["iteration_ms"], plain)
        self.assertLess(whatif("--compute", "2x")["speedup"], 2)

    def test_modules_and_batches_go_with_it(self):
        plain = whatif("--recompute", "blocks.*")
        self.assertEqual(plain["memory"]["recomputed"][0], "blocks.0")
        self.assertGreater(plain["predicted"]["iteration_ms"], plain["baseline"]["iteration_ms"])
        both = whatif("--recompute", "blocks.*", "--reshard", "none")
        self.assertLess(both["predicted"]["iteration_ms"], plain["predicted"]["iteration_ms"])
        self.assertEqual([unit["reshards"] for unit in both["units"]], [False, False, False])

    def test_a_module_around_units_that_keep_their_parameters_can_be_recomputed(self):
        whole = self.path("all.json")
        write_json(whole, [""])
        facts, plain = whatif("--recompute", whole, "--reshard", "none"), whatif("--reshard", "none")
        self.assertEqual(facts["memory"]["recomputed"], [""])
        self.assertGreater(facts["predicted"]["iteration_ms"], plain["predicted"]["iteration_ms"])
        self.assert_error(dpro("whatif", SHARDED, "--recompute", whole, "--reshard", "blocks.0"), USAGE, "unit 'blocks.0' in it")

    def test_a_budget_is_kept_to_by_recomputation(self):
        done = dpro("optimize", SHARDED, "--memory", "45MB", "--json", "-q")
        self.assertEqual(done.code, DONE)
        memory, counted = done.json["memory"], truth()
        self.assertEqual(memory["recompute"], ["blocks.0"])
        self.assertAlmostEqual(memory["peak_bytes"] / max(counted["recompute=blocks.0"]), 1, delta=5e-5)
        tried = {choice["name"]: choice for choice in memory["choices"]}
        for name, asked in (("recompute 1", whatif("--recompute", "blocks.0")), ("accumulate 2", whatif("--accumulate", "2"))):
            self.assertEqual(tried[name]["iteration_ms"], asked["predicted"]["iteration_ms"])
            self.assertEqual(tried[name]["peak_bytes"], asked["memory"]["peak_bytes"])
        least = dpro("optimize", SHARDED, "--memory", "1MB", "--no-accumulate", "--json", "-q").json["memory"]
        self.assertEqual({choice["micro_batches"] for choice in least["choices"]}, {1})
        every = whatif("--recompute", "blocks.*")["memory"]["peak_bytes"]
        self.assertAlmostEqual(every / max(counted["recompute=blocks.*"]), 1, delta=5e-5)
        self.assertGreater(least["least_budget_bytes"], 0.9 * every)  # nothing holds less by recomputing what units lie in
        self.assertIn("before fully_shard", dpro("optimize", SHARDED, "--memory", "45MB").out)

    def test_each_micro_batch_communicates(self):
        facts, half = whatif("--accumulate", "2"), whatif("--batch-size", "0.5x")
        self.assertEqual(facts["memory"]["micro_batches"], 2)
        self.assertTrue(any("set_requires_gradient_sync" in w for w in facts["warnings"]), facts["warnings"])
        twice = 2 * half["predicted"]["iteration_ms"]
        self.assertLess(facts["predicted"]["iteration_ms"], twice)  # the update is done once
        self.assertGreater(facts["predicted"]["iteration_ms"], 0.9 * twice)
        self.assertGreater(facts["uncertainty"]["batch_size"]["predicted_pct"], 10)
        spread = {which: facts[which]["p95_ms"] / facts[which]["p50_ms"] - 1 for which in ("baseline", "predicted")}
        self.assertGreater(spread["predicted"], 0.8 * spread["baseline"] - 0.005)  # a slow iteration is slow in each micro-batch

    def test_gathers_take_as_long_whatever_the_batch_is(self):
        times = {size: whatif("--batch-size", size)["predicted"]["iteration_ms"] for size in ("0.25x", "1x", "4x")}
        self.assertGreater(times["4x"] / times["1x"], 2.5)
        self.assertLess(times["4x"] / times["1x"], 4)
        self.assertGreater(times["0.25x"] / times["1x"], 0.25)

    def test_the_search_finds_the_fastest_that_fits(self):
        asked = {units: whatif("--reshard", units) for units in ("none", "blocks.0", "blocks.1", "blocks.*", "all")}
        found = {units: (it["predicted"]["iteration_ms"], it["memory"]["peak_bytes"]) for units, it in asked.items()}
        for budget in [peak for _, peak in found.values()]:
            with self.subTest(budget=budget):
                best = dpro("optimize", SHARDED, "--memory", str(budget), "--json", "-q").json
                fastest = min(ms for ms, peak in found.values() if peak <= budget)
                self.assertEqual((best["best"]["iteration_ms"], best["memory"]["fits"]), (fastest, True))
                units = ",".join(unit["name"] for unit in best["units"] if unit["reshards"])
                asked = found[{"": "none", ",blocks.0,blocks.1": "all"}.get(units, units.replace("blocks.0,blocks.1", "blocks.*"))]
                self.assertEqual((best["best"]["iteration_ms"], best["memory"]["peak_bytes"]), asked)
        others = {it["name"]: (it["iteration_ms"], it["peak_bytes"]) for it in best["baselines"]}
        self.assertEqual(others, {"all kept": found["none"], "all resharded": found["all"]})

    def test_gathering_ahead_is_tried_and_taken_only_if_it_is_sure_to_help(self):
        done = dpro("optimize", SHARDED, "--json", "-q").json
        ahead = {it["name"]: (it["iteration_ms"], it["peak_bytes"]) for it in done["baselines"] if it["name"].startswith("prefetch")}
        for n in (1, 2):
            asked = whatif("--reshard", "none", "--prefetch", str(n))
            self.assertEqual(ahead.pop("prefetch %d" % n), (asked["predicted"]["iteration_ms"], asked["memory"]["peak_bytes"]))
        self.assertEqual((ahead, done["prefetch"]), ({}, 0))  # on a CPU it hides nothing

    def test_the_plan_says_of_each_unit_what_it_does(self):
        plan = self.path("plan")
        self.assertEqual(dpro("optimize", SHARDED, "--memory", "54MB", "-o", plan).code, DONE)
        written = read_json(os.path.join(plan, "plan.json"))
        self.assertEqual(written["schema"], "dpro.plan/5")
        self.assertEqual(written["sharding"]["units"], [{"name": name, "reshard_after_forward": True}
                                                        for name in ("", "blocks.0", "blocks.1")])
        self.assertEqual(sorted(os.listdir(plan)), ["optimize.html", "optimize.json", "plan.json"])
        read = plans.read(plan)
        self.assertEqual([(unit.name, unit.reshards) for unit in read.units], [("", True), ("blocks.0", True), ("blocks.1", True)])
        self.assertTrue(read.of_modules)

    def test_a_gain_that_is_less_than_its_error_is_not_advised(self):
        done = dpro("optimize", SHARDED, "-o", self.path("plan"))
        self.assertIn("nothing is sure to help: the best strategy found takes", " ".join(done.out.split()))
        self.assertIn("0 rounds, stopped by: nothing left to try", " ".join(done.out.split()))
        self.assertTrue(plans.read(self.path("plan")).is_own)
        facts = dpro("optimize", SHARDED, "--json", "-q").json
        self.assertFalse(facts["best"]["helps"])
        kept = facts["memory"]["baseline_peak_bytes"]  # not that of what is advised against
        self.assertLess(kept, facts["memory"]["peak_bytes"])
        self.assertIn("Memory    %.1f MB at its peak" % (kept / 1e6), done.out)
        self.assertTrue(all(row["uncertainty_pct"] > 0 for row in facts["baselines"]))
        self.assertRegex(done.out, r"  all kept +[0-9.]+ ms +-[0-9.]+ % +[0-9.]+  no unit gathered again")

    def test_a_measurement_is_to_choose_among_units_that_may_be_faster(self):
        facts = dpro("optimize", SHARDED, "--finalists", "4", "-o", self.path("plan"), "--json", "-q").json
        self.assertFalse(facts["best"]["helps"])
        names = [one["name"] for one in facts["finalists"]]
        self.assertIn("all kept", names)
        self.assertEqual(len(set(names)), len(names))
        for one in facts["finalists"]:
            sharding = read_json(os.path.join(one["plan"], "plan.json"))["sharding"]
            kept = not any(unit["reshard_after_forward"] for unit in sharding["units"])
            self.assertEqual(kept, one["name"] != "all resharded")
            self.assertEqual(sharding.get("prefetch", 0), int(one["name"].split()[1]) if "prefetch" in one["name"] else 0)

    def test_other_ways_to_compute_do_not_hide_what_units_win(self):
        alone = dpro("optimize", SHARDED, "--json", "-q").json
        rows = {row["name"]: row for row in alone["baselines"]}
        both = dpro("optimize", SHARDED, "--allow", "bf16,assumed", "--json", "-q").json
        told = {row["name"]: row for row in both["baselines"]}
        self.assertEqual({name: told[name]["iteration_ms"] for name in rows}, {name: rows[name]["iteration_ms"] for name in rows})
        self.assertEqual(told["communication"]["iteration_ms"], alone["best"]["iteration_ms"])
        self.assertIn("are searched one by one", " ".join(both["warnings"]))
        no_probes = os.path.join(os.path.dirname(BUNDLED), "torch-fsdp-tp-gloo-n4")
        alone, both = [dpro("optimize", no_probes, "--json", "-q", *more).json for more in ([], ["--allow", "bf16,assumed"])]
        self.assertLess(alone["best"]["iteration_ms"], alone["replayed_ms"])
        self.assertEqual((both["best"], both["units"]), (alone["best"], alone["units"]))

    def test_where_nothing_is_faster_the_plan_is_what_the_job_does(self):
        done = dpro("optimize", SHARDED, "--memory", "58MB", "-o", self.path("plan"))
        self.assertIn("which changes nothing", done.err)
        read = plans.read(self.path("plan"))
        self.assertEqual([(unit.name, unit.reshards) for unit in read.units], [("", False), ("blocks.0", True), ("blocks.1", True)])
        self.assertTrue(read.is_own)

    def test_what_no_plan_can_do_is_a_recommendation(self):
        plan = self.path("plan")
        dpro("optimize", SHARDED, "-o", plan)
        done = dpro("optimize", SHARDED, "--memory", "45MB", "-o", plan)
        self.assertEqual((done.code, sorted(os.listdir(plan))), (DONE, ["optimize.html", "optimize.json"]))
        self.assertIn("wrote a recommendation to", done.err)
        self.assertEqual(read_json(os.path.join(plan, "optimize.json"))["memory"]["recompute"], ["blocks.0"])

    def test_units_that_make_no_sense_are_refused_by_the_job(self):
        job = {"framework": "pytorch", "world_size": 2, "models": []}
        for units in ([{"name": "a"}], [{"reshard_after_forward": True}], [{"name": "a", "reshard_after_forward": 1}], {}, [3],
                      [{"name": "a", "reshard_after_forward": True}, {"name": "a", "reshard_after_forward": False}]):
            with self.subTest(units), open(self.path("plan.json"), "w", encoding="utf-8") as file:
                json.dump({"schema": "dpro.plan/5", "job": job, "sharding": {"units": units}}, file)
                file.flush()
                self.assertRaises(plans.Unusable, plans.read, self.path("plan.json"))

    def test_the_text_says_how_many_units(self):
        text = dpro("whatif", SHARDED, "--reshard", "none").out
        self.assertIn("units resharded", text)
        self.assertIn("2 of 3", text)
        self.assertIn("0 of 3", text)

    def test_what_makes_no_sense_is_said(self):
        write_json(self.path("all.json"), [""])
        for args, words in ((["--reshard", "blocks.7"], "no FSDP unit of the job is named 'blocks.7'; it has blocks.0, blocks.1"),
                            (["--recompute", "blocks.7"], "no module of the job is named 'blocks.7'"),
                            (["--recompute", self.path("all.json")], "the model has FSDP's unit 'blocks.0' in it")):
            with self.subTest(args=args):
                self.assert_error(dpro("whatif", SHARDED, *args), USAGE, words)
        self.assert_error(dpro("whatif", SHARDED, "--bucket-cap-mb", "5"), INPUT, "parameters are sharded")
        self.assert_error(dpro("optimize", SHARDED, "--servers", "1:3"), USAGE, "has no parameter servers to change")
        for option in ("--compress", "fp16"), ("--pass", "none.so"):
            self.assert_error(dpro("optimize", SHARDED, *option), USAGE, option[0] + " is for gradients that travel in buckets")
        self.assert_error(dpro("whatif", BUNDLED, "--reshard", "all"), USAGE, "the job shards no parameters")

    def test_profiles_alone_tell_that_parameters_are_sharded(self):
        for rank in (0, 1):
            shutil.copy(os.path.join(SHARDED, "host0", f"rank{rank}", "kineto.json.gz"), self.path(f"rank{rank}.json.gz"))
        self.assert_error(dpro("optimize", self.folder), INPUT, "parameters are sharded")
        self.assert_error(dpro("whatif", self.folder, "--bucket-cap-mb", "5"), INPUT, "parameters are sharded")
        self.assert_code(dpro("whatif", self.folder, "--bandwidth", "2x"), DONE)

    def edited(self, folder, ranks, old, new):
        """The recording with other annotations on these ranks."""
        trace = shutil.copytree(SHARDED, os.path.join(folder, "trace"))
        for rank in ranks:
            for name in ("kineto.json.gz", "kineto_et.json.gz"):
                path = os.path.join(trace, "host0", "rank%d" % rank, name)
                text = read_text(path)
                self.assertIn(old, text)
                write_text(path, text.replace(old, new))
        return trace

    def test_a_unit_that_is_asked_for_ahead_by_name_is_gathered_for_its_backward_pass(self):
        """set_modules_to_backward_prefetch() does it outside of FSDP::pre_backward."""
        trace = self.edited(self.path("."), (0, 1), '"FSDP::pre_backward', '"x')
        facts = whatif("--reshard", "none", trace=trace)
        self.assertEqual([unit["reshards_before"] for unit in facts["units"]], [False, True, True])
        self.assertGreater(facts["speedup"], 1)

    def test_a_rank_whose_profile_tells_otherwise_breaks_nothing(self):
        for old, new in (('"FSDP::pre_backward', '"x'), ('"FSDP::all_gather (blocks.0)', '"x'), ('"FSDP::all_gather_copy_out', '"x'),
                         ('"FSDP::post_forward', '"x'), ('"FSDP::backward_prefetch for blocks.0', '"FSDP::backward_prefetch for blocks.1'),
                         ('FSDP::all_gather (blocks.1)', 'FSDP::all_gather (blocks.0)')):
            with self.subTest(old=old), tempfile.TemporaryDirectory() as folder:
                trace = self.edited(folder, (1,), old, new)
                for units in ("none", "all", "blocks.0"):
                    result = dpro("whatif", trace, "--json", "--reshard", units)
                    self.assertIn(result.code, (DONE, USAGE), result.err)
                    if result.code == DONE:
                        self.assertGreater(result.json["memory"]["peak_bytes"], 0)
