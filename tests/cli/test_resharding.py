"""dpro whatif --reshard: what FSDP's units would take and hold if others of them kept their gathered parameters."""
import gzip
import json
import os
import shutil
import tempfile
import unittest

from support import BUNDLED, DONE, USAGE, Case, dpro

SHARDED = os.path.join(os.path.dirname(BUNDLED), "torch-fsdp-gloo-n2-memory")


def whatif(*args, trace=SHARDED):
    return dpro("whatif", trace, "--json", *args).json


class Resharding(Case):
    def test_peaks_are_those_of_the_job_that_ran_so(self):
        with open(os.path.join(SHARDED, "whatif-reshard.json"), encoding="utf-8") as file:
            truth = json.load(file)["configs"]
        for config, measured in truth.items():
            with self.subTest(config=config):
                memory = whatif("--reshard", config.replace("as-is", "reshard=blocks.*").partition("=")[2])["memory"]
                self.assertEqual(memory["baseline_peak_bytes"], max(truth["as-is"]["peak_bytes"]))
                self.assertEqual(memory["peak_bytes"], max(measured["peak_bytes"]))

    def test_replay_holds_what_was_counted(self):
        with open(os.path.join(SHARDED, "whatif-reshard.json"), encoding="utf-8") as file:
            counted = json.load(file)["configs"]["as-is"]["peak_bytes"]
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
        self.assertIsNone(facts["none"]["link"])

    def test_faster_computation_and_delays_go_with_it(self):
        plain = whatif("--reshard", "none")["predicted"]["iteration_ms"]
        self.assertLess(whatif("--reshard", "none", "--compute", "2x")["predicted"]["iteration_ms"], plain)
        self.assertGreater(whatif("--reshard", "none", "--delay", "BW=+100")["predicted"]["iteration_ms"], plain)
        self.assertLess(whatif("--compute", "2x")["speedup"], 2)

    def test_the_text_says_how_many_units(self):
        text = dpro("whatif", SHARDED, "--reshard", "none").out
        self.assertIn("units resharded", text)
        self.assertIn("2 of 3", text)
        self.assertIn("0 of 3", text)

    def test_what_makes_no_sense_is_said(self):
        for args, words in ((["--reshard", "blocks.7"], "no FSDP unit of the job is named 'blocks.7'; it has blocks.0, blocks.1"),
                            (["--reshard", "none", "--recompute", "all"], "--reshard, --compute and --delay"),
                            (["--bucket-cap-mb", "5"], "--reshard, --compute and --delay")):
            with self.subTest(args=args):
                self.assert_error(dpro("whatif", SHARDED, *args), USAGE, words)
        self.assert_error(dpro("whatif", BUNDLED, "--reshard", "all"), USAGE, "the job shards no parameters")

    def test_a_rank_whose_profile_tells_otherwise_breaks_nothing(self):
        for old, new in (('"FSDP::pre_backward', '"x'), ('"FSDP::all_gather (blocks.0)', '"x'), ('"FSDP::all_gather_copy_out', '"x'),
                         ('"FSDP::post_forward', '"x'), ('"FSDP::backward_prefetch for blocks.0', '"FSDP::backward_prefetch for blocks.1'),
                         ('FSDP::all_gather (blocks.1)', 'FSDP::all_gather (blocks.0)')):
            with self.subTest(old=old), tempfile.TemporaryDirectory() as folder:
                trace = shutil.copytree(SHARDED, os.path.join(folder, "trace"))
                for name in ("kineto.json.gz", "kineto_et.json.gz"):
                    path = os.path.join(trace, "host0", "rank1", name)
                    with gzip.open(path, "rt", encoding="utf-8") as file:
                        text = file.read()
                    self.assertIn(old, text)
                    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
                        file.write(text.replace(old, new))
                for units in ("none", "all", "blocks.0"):
                    result = dpro("whatif", trace, "--json", "--reshard", units)
                    self.assertIn(result.code, (DONE, USAGE), result.err)
                    if result.code == DONE:
                        self.assertGreater(result.json["memory"]["peak_bytes"], 0)


if __name__ == "__main__":
    unittest.main()
