"""dpro diagnose: what a made-up job is slow for is its first cause, and is blamed for what it costs (tools/faults.py)."""
import os

from support import DPRO, Case  # finds tools/, too

from faults import Lab, rows_of


class Faults(Case):
    def test_each_fault_is_the_first_cause_and_is_blamed_for_what_it_costs(self):
        os.makedirs(self.path("lab"))
        for row in rows_of(Lab(DPRO, self.path("lab")), [0], ""):
            with self.subTest(faults=row["faults"], kind=row["kind"]):
                self.assertIsNone(row["problem"])
                self.assertTrue(row["right"], row["blames"])
                for part in row["each"]:
                    self.assertTrue(part["near"], part)
