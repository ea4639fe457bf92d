"""A session of TensorFlow 1 whose gradients go by collectives that overlap: a recording of two workers, eight collectives a step."""
import os

from support import ROOT, Case, dpro

RECORDED = os.path.join(ROOT, "tests", "data", "tf-session-collectives-n2")
LOGGED = os.path.join(ROOT, "tests", "data", "tf-session-collectives-net-n2")
COLLECTIVES, STEPS = 8, 10


class SessionCollectives(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.facts = dpro("replay", "--json", RECORDED).json

    def test_what_overlapped_in_the_recording_overlaps_in_the_replay(self):
        """In turns they would take 2.3 times as long."""
        self.assertLess(abs(self.facts["error_pct"]), 3)
        self.assertEqual(sum(c["count"] for c in self.facts["collectives"] if c["ranks"] == 2), COLLECTIVES)

    def test_a_replay_that_agrees_contradicts_nothing(self):
        self.assertFalse(self.facts["contradiction"]["contradicts"])

    def test_a_few_steps_are_replayed_as_well(self):
        for steps in ("0:2", "3:5", "6:9"):
            self.assertLess(abs(self.assert_replays(RECORDED, "--steps", steps)["error_pct"]), 3, steps)

    def test_the_model_of_it_has_collectives_that_share_the_link(self):
        facts = self.assert_json("whatif", "--bandwidth", "0.5x", RECORDED)
        self.assertLess(abs(facts["misfit_pct"]), 10)
        self.assertGreater(facts["predicted"]["iteration_ms"], 1.2 * facts["baseline"]["iteration_ms"])

    def test_optimize_searches_and_says_that_the_script_makes_the_collectives(self):
        for trace in (RECORDED, LOGGED):
            facts = self.assert_json("optimize", "-q", trace)
            self.assertEqual(len(facts["baseline"]["communication"]["buckets"]), COLLECTIVES)
        self.assertIn("the script can make any packs of gradients", " ".join(dpro("optimize", "-q", LOGGED).out.split()))

    def test_the_large_ones_are_tied_to_their_messages_though_they_overlap(self):
        facts = self.assert_replays(LOGGED)
        self.assertLess(abs(facts["error_pct"]), 3)
        large = facts["collectives"][0]
        self.assertEqual((large["count"], large["bytes"], large["messages"], large["pattern"]), (1, 2 << 20, 4, "ring"))
        self.assertGreater(facts["transport"]["collectives_tied"], 2 * STEPS)
        self.assertRegex(facts["warnings"][0], r"^6 of 8 collectives are replayed whole")

    def test_the_model_of_what_is_tied_has_collectives_that_share_the_link(self):
        facts = dpro("whatif", "--json", LOGGED).json
        self.assertLess(abs(facts["misfit_pct"]), 10)
        self.assertEqual(facts["link"]["collectives_at_once"], COLLECTIVES)
