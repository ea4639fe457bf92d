"""dpro replay on jobs of several dimensions of parallelism, as PyTorch writes their traces on GPUs; dimensions that the user
gives; lists of groups that are cut, wrong or hostile."""
import collections
import os
import shutil
import tempfile

from megatron_job import WORLD, Rank
from support import BUNDLED, Case, dpro, read_json, write_json

DATA = os.path.dirname(BUNDLED)


class Dimensions(Case):
    def job(self, ranks=range(WORLD), described=True, listed=None):
        for rank in ranks:
            self.write(f"job/rank{rank}.json", Rank(rank, described).trace(listed))
        return self.path("job")

    def replay(self, *args):
        return self.assert_json("replay", *args, "--no-validate")

    def check(self, facts):
        found = {d["name"]: d["groups"] for d in facts["dimensions"]}
        self.assertEqual(found, {"dp": [[0, 2], [1, 3], [4, 6], [5, 7]], "tp": [[0, 1], [2, 3], [4, 5], [6, 7]],
                                 "pp": [[0, 4], [1, 5], [2, 6], [3, 7]]})
        self.assertIsNone(facts["dimensions_note"])

    def test_three_dimensions_are_named_with_their_evidence(self):
        trace = self.job()
        facts = self.replay(trace)
        self.check(facts)
        evidence = {d["name"]: d["evidence"] for d in facts["dimensions"]}
        self.assertIn("4 groups of 2 neighbouring ranks: a rank's 4 all-reduces in forward and backward", evidence["tp"])
        self.assertIn("named TENSOR_MODEL_PARALLEL_GROUP", evidence["tp"])
        self.assertIn("ranks, 4 apart: a rank's 2 sends and receives", evidence["pp"])
        text = dpro("replay", trace, "--no-validate").out
        self.assertIn("Parallelism: dp 2 x tp 2 x pp 2\n", text)

    def test_what_replicas_of_split_models_can_be_asked_and_what_not(self):
        trace = self.job()
        facts = self.assert_json("optimize", trace)  # no buckets, but its pipeline
        self.assertEqual(facts["pipeline"]["baseline"], {"micro_batches": 1, "schedule": "1f1b"})
        self.assertIn("1f1b 4", [row["name"] for row in facts["baselines"]])
        self.assert_error(dpro("whatif", trace, "--accumulate", "2"), 2, r"only in modules. passes \(tp, cp, ep\), or with FSDP")

    def test_times_and_bytes_are_those_of_the_kernels(self):
        facts = self.replay(self.job())
        by_name = {d["name"]: d for d in facts["dimensions"]}
        self.assertAlmostEqual(by_name["tp"]["communication_ms"], 4 * 0.2, places=3)
        self.assertAlmostEqual(by_name["dp"]["communication_ms"], 2.0, places=3)
        self.assertAlmostEqual(by_name["dp"]["exposed_communication_ms"], 2.0, places=3)
        self.assertEqual(by_name["dp"]["bytes"], 2_000_000)
        self.assertEqual(by_name["tp"]["bytes"], 4 * 2 * 8192)
        self.assertAlmostEqual(facts["between_dimensions"]["communication_ms"], 0.05, places=3)
        for rank in facts["ranks"]:
            self.assertGreaterEqual(rank["communication_ms"] + 1e-6, by_name["dp"]["communication_ms"])

    def test_who_sends_to_whom_follows_from_sizes_and_peers(self):
        traffic = {(t["from"], t["to"], t["dimension"]): t["bytes"] for t in self.replay(self.job())["traffic"]}
        self.assertEqual(traffic[0, 4, "pp"], 2 * 4096)
        self.assertEqual(traffic[4, 0, "pp"], 2 * 4096)
        self.assertEqual(traffic[0, 1, "tp"], 4 * 2 * 8192)  # of 2 ranks each sends all once
        self.assertEqual(traffic[1, 3, "dp"], 2_000_000)
        self.assertNotIn((0, 3, "dp"), traffic)

    def test_recorded_jobs_are_what_they_are(self):
        for name, expected in (("torch-ddp-gloo-gpt-n2", [("dp", [[0, 1]])]), ("torch-fsdp-gloo-n2-memory", [("fsdp", [[0, 1]])]),
                               ("torch-fsdp-tp-gloo-n4", [("fsdp", [[0, 2], [1, 3]]), ("tp", [[0, 1], [2, 3]])]),
                               ("torch-ep-gloo-n2", [("dp", [[0, 1]]), ("ep", [[0, 1]])]), ("torch-pp-gloo-n2", [("pp", [[0, 1]])]),
                               ("hvd-mx-n2", [("dp", [[0, 1]])]), ("byteps-torch-n2", [("dp", [[0, 1]])])):
            with self.subTest(name):
                facts = self.replay(os.path.join(DATA, name))
                self.assertEqual([(d["name"], d["groups"]) for d in facts["dimensions"]], expected)
                self.assertIsNone(facts["dimensions_note"])

    def test_logged_messages_carry_what_the_sizes_imply(self):
        facts = self.replay(os.path.join(DATA, "torch-fsdp-tp-gloo-n4"))
        sent = {(t["from"], t["to"]): t for t in facts["traffic"]}
        self.assertEqual(len(sent), 8)
        bytes_of = {d["name"]: d["bytes"] for d in facts["dimensions"]}
        for pair in sent.values():  # in groups of 2 each sends all that it puts in once
            self.assertFalse(pair["assumed"])
            self.assertEqual(pair["bytes"], bytes_of[pair["dimension"]])

    def test_the_timeline_has_a_track_for_each_dimension(self):
        self.assert_code(dpro("replay", self.job(), "--no-validate", "-o", self.path("out")), 0)
        events = read_json(self.path("out", "timeline.json.gz"))["traceEvents"]
        tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
        slices = collections.defaultdict(list)
        for e in events:
            if e["ph"] == "X" and e["pid"] == 1:
                slices[tracks[e["tid"]]].append(e)
        for kind in ("measured", "replayed"):
            self.assertEqual({track: len(slices[f"{track} \u00b7 {kind}"]) for track in ("dp 2", "tp 2", "pp 2")},
                             {"dp 2": 1, "tp 2": 4, "pp 2": 2})
            times = [(e["ts"], e["ts"] + e["dur"]) for e in slices[f"tp 2 \u00b7 {kind}"]]
            self.assertTrue(all(a[1] <= b[0] + 0.001 for a, b in zip(sorted(times), sorted(times)[1:])))
        self.assertIn("GPU 0 stream 20 \u00b7 replayed", slices)
        self.assertTrue(all(e["args"]["dimension"] == "tp" for e in slices["GPU 0 stream 20 \u00b7 replayed"] if e["cat"] == "COLLECTIVE"))

    def test_shortened_lists_of_ranks_are_looked_up_by_name(self):
        self.check(self.replay(self.job(described=False)))

    def test_one_rank_of_eight_tells_the_sizes(self):
        self.check(self.replay(self.job(ranks=[6])))

    def test_other_numbers_of_replicas_are_answered(self):
        for ranks in (range(WORLD), [6]):  # one rank tells the sizes, too
            trace = self.job(ranks=ranks)
            facts = [dpro("whatif", "--json", trace, *args).json for args in (["--dp", "2560"], ["--world-size", "10240"])]
            self.assertEqual(facts[0]["predicted"], facts[1]["predicted"])
            self.assertTrue(any("10240 ranks" in w for w in facts[0]["warnings"]), facts[0]["warnings"])
            self.assert_error(dpro("whatif", trace, "--world-size", "10"), 2, "no whole number of replicas")
        stages = os.path.join(DATA, "torch-pp-gloo-n2")
        one, two, fast = (dpro("whatif", "--json", stages, *args).json for args in (
            ["--dp", "1"], ["--dp", "2"], ["--dp", "2", "--bandwidth", "2x"]))
        self.assertEqual(one["predicted"], one["baseline"])
        self.assertGreater(two["predicted"]["iteration_ms"], one["predicted"]["iteration_ms"])
        self.assertGreater(two["predicted"]["iteration_ms"], fast["predicted"]["iteration_ms"])
        self.assertTrue(any("all gradients of a rank (0.3 MB on rank 0)" in w for w in two["warnings"]), two["warnings"])
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        copy = os.path.join(folder.name, "stages")
        shutil.copytree(stages, copy)
        path = os.path.join(copy, "host1", "rank1", "rank.json")
        rank = read_json(path)
        rank["memory"]["gradient_bytes"] = 0
        write_json(path, rank)
        self.assert_error(dpro("whatif", copy, "--dp", "2"), 2, "does not tell how large the gradients of rank 1 are")
        routed = dpro("whatif", "--json", os.path.join(DATA, "torch-ep-gloo-n2"), "--world-size", "4").json
        self.assertTrue(any("each has as many experts, or tables, as now" in w for w in routed["warnings"]), routed["warnings"])

    def test_the_user_overrules(self):
        trace = self.job()
        facts = self.replay(trace, "--dims", "pp=2,fsdp=2,tp=2")
        self.assertEqual([(d["name"], d["groups"][0]) for d in facts["dimensions"]],
                         [("fsdp", [0, 2]), ("tp", [0, 1]), ("pp", [0, 4])])
        self.assertIn("as asked for", facts["dimensions"][0]["evidence"])
        self.assertEqual(self.replay(trace, "--dims", "tp=2,pp=2,dp=2")["dimensions"][1]["groups"][0], [0, 1])

    def test_experts_that_the_user_names_lie_over_other_dimensions(self):
        for job, dims, groups in (("torch-ep-gloo-n2", "dp=2,ep=2", [[0, 1]]),
                                  ("torch-fsdp-tp-gloo-n4", "fsdp=2,tp=2,ep=2", [[0, 2], [1, 3]])):
            asked = ["--no-validate", os.path.join(DATA, job), "--dims"]
            experts = next(d for d in self.assert_json("replay", *asked, dims)["dimensions"] if d["name"] == "ep")
            self.assertEqual((experts["lies_over"], experts["groups"]), (True, groups))
            self.assert_error(dpro("replay", *asked, dims[:-1] + "3"), 2, "divided into that many groups of experts")

    def test_dimensions_that_contradict_the_job_are_refused_in_one_line(self):
        trace = self.job()
        for dims, why in (("dp=2,tp=4,pp=2", "these make 16 ranks, the job has 8"), ("dp=8", "contradict this in any order"),
                          ("dp=2,dp=4", "given once"), ("xp=8", "is not sizes of dp"), ("dp", "is not sizes of dp"),
                          ("dp=0,tp=2", "is not sizes of dp"), ("dp=2,tp=2,pp=2,", "is not sizes of dp"), ("", "is not sizes of dp"),
                          ("dp=99999999999999999999", "is not sizes of dp"), ("dp=999999999", "make 999999999 ranks")):
            with self.subTest(dims):
                result = dpro("replay", trace, "--dims", dims)
                self.assert_error(result, 2, why)
                self.assertEqual(result.err.count("\n"), 1, result.err)

    def test_hostile_lists_of_groups_are_survived(self):
        huge = [{"pg_name": "3", "pg_desc": "x" * 5000, "ranks": list(range(3000))}] * 50
        for listed in ([], [None], [{"pg_name": "3"}], [{"pg_name": "3", "ranks": [0, 1, 10 ** 12, -4, "a"]}], [{"ranks": {}}],
                       [{"pg_name": ["3"], "ranks": [0, 0, 0]}], huge, {}, "text"):
            with self.subTest(str(listed)[:60]):
                self.assert_survives(self.job(ranks=[0, 1], described=False, listed=listed), "--no-validate")
