"""dpro diagnose: causes, in milliseconds that add up."""
import glob
import os
import unittest
from decimal import Decimal

from support import BUNDLED, Case, dpro


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
                for cause in facts["causes"]:
                    if cause["parts"]:
                        self.assertEqual(sum(Decimal(str(part["blame_ms"])) for part in cause["parts"]),
                                         Decimal(str(cause["blame_ms"])), cause["cause"])
                    if cause["cause"] != "not_explained":
                        self.assertGreaterEqual(cause["blame_ms"], 0)

    def test_the_text_names_the_causes_and_their_parts(self):
        text = dpro("diagnose", BUNDLED).out
        self.assertRegex(text, r"(?m)^  ideal +[0-9.]+ m?s +[0-9.]+%")
        self.assertRegex(text, r"communication that nothing hides: [0-9.]+ m?s\n +all_reduce")

    def test_any_number_of_threads_finds_the_same(self):
        self.assertEqual(dpro("diagnose", BUNDLED, "--json", "--threads", "1").out,
                         dpro("diagnose", BUNDLED, "--json", "--threads", "3").out)


if __name__ == "__main__":
    unittest.main()
