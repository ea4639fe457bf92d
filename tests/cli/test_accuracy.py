"""The tables of README.md and doc/accuracy.md say what the tool says: replay is deterministic, so to the last digit."""
import contextlib
import io
import json
import os
import types

from support import BUNDLED, DPRO, ROOT, Case, read_text  # finds tools/, too

import accuracy
import accuracy_tables
import accuracy_turns
import bench_networks
import memory_budget
from accuracy_whatifs import KINDS, MOST_OFF_PCT, bucket_table, buckets_truth, change_row, choice_row, missed
from experiment import ratios
from figures import truth_of

DATA = os.path.dirname(BUNDLED)


def row(trace, error_pct=0.0, **more):
    return {"trace": trace, "judged": True, "problem": None, "ranks_present": 2, "world_size": 2, "iterations": 3, "measured_ms": 10.0,
            "compared_ms": 10.0, "error_pct": error_pct, "left_out_mean_pct": None, "std_pct": None, "gaps_pct": 0.4,
            "daydream_error_pct": -0.04, **more}


def results(*rows):
    return {"rows": list(rows), "clocks": [], "whatifs": [], "whatif_summary": None}


class Networks(Case):
    """tools/bench_networks.py: what was measured of a job, as rows."""

    def tuned(self, job, complete=True):
        """A job's tune.json, as dpro tune writes it."""
        def entry(saves, **more):
            return {"in": True, "blocks": 3, "saves_pct": saves, "low_pct": None, "high_pct": None, "peak_bytes": None, **more}

        names = {"baseline": entry(0.0), "cap-1": entry(4.26, low_pct=1.0, high_pct=7.5),
                 "buckets": entry(-9.0, low_pct=-12.0, high_pct=-6.0, **{"in": False}), "XLA default": entry(None, blocks=0)}
        self.write(job + "/tune.json", json.dumps({
            "complete": complete, "race": {"blocks": 3, "winner": "cap-1", "names": names},
            "finalists": [{"name": "cap-1", "promised_pct": 5.04}, {"name": "buckets"}, {"name": "XLA default"}]}))

    def test_what_was_measured_is_a_row_and_nothing_else(self):
        self.tuned("vgg-ddp-1gbit")
        self.write("bert-ring-1gbit/log", "it failed")
        self.assertEqual(list(bench_networks.rows(self.folder)), [
            ("`vgg-ddp-1gbit: cap-1`", "+4.3", "+1.0 to +7.5", "+5.0", "chosen"),
            ("`vgg-ddp-1gbit: buckets`", "-9.0", "-12.0 to -6.0", "–", "out")])

    def test_a_job_that_is_done_is_passed_over_and_one_that_fails_is_said(self):
        self.tuned("vgg-ddp-1gbit")
        self.tuned("vgg-ddp-300mbit", complete=False)
        args = types.SimpleNamespace(folder=self.folder, again=False, dpro="/bin/false", budget=1, more_steps=1, python={"ddp": "python"})
        self.assertIsNone(bench_networks.run(args, "ddp", "vgg", "1gbit"))
        self.assertIn("dpro tune ended with exit code 1", bench_networks.run(args, "ddp", "vgg", "300mbit"))

    def test_a_ring_is_recorded_with_a_probe_searched_and_restarted(self):
        args = types.SimpleNamespace(dpro="dpro", budget=60, more_steps=90, python={"ring": "python"})
        record, search, tune = bench_networks.commands(args, "ring", "bert", "300mbit", "folder")
        self.assertEqual((record[1], search[1], tune[1:3]), ("profile", "optimize", ["tune", "--restart"]))
        self.assertIn("--probe", record)
        self.assertEqual(tune[tune.index("--rate") + 1], "300mbit")


class Tables(Case):
    def test_what_is_not_known_is_a_dash_and_zero_has_no_sign(self):
        line = accuracy_tables.tables_of(results(row("a", -0.004)))["replay"][-1]
        self.assertEqual(line, "| `a` | 2/2 | 3 | 10.0 | 0.00 | – | – | 0 | 0.0 |")

    def test_rows_of_traces_that_are_not_here_stay(self):
        place = "text\n<!-- accuracy: replay -->\n%s<!-- accuracy: end -->\nmore\n"
        old = "| head |\n| --- |\n| `b` | 1 |\n| `a` | 2 |\n"
        text = accuracy_tables.renewed(place % old, accuracy_tables.tables_of(results(row("a"), row("c"))))
        names = [accuracy_tables.row_name(line) for line in text.splitlines()]
        self.assertEqual([name for name in names if name], ["a", "b", "c"])
        self.assertIn("| `b` | 1 |", text)
        self.assertNotIn("| `a` | 2 |", text)
        self.assertTrue(text.startswith("text\n") and text.endswith("more\n"))

    def test_every_place_in_the_documents_has_its_table(self):
        found = []
        for path in accuracy_tables.documents(ROOT):
            places = accuracy_tables.PLACE.findall(read_text(path))
            found += [name for _, name, _, _ in places]
            for _, name, lines, _ in places:
                self.assertTrue(lines.strip(), f"{path}: {name} is empty; run make accuracy")
        self.assertEqual(sorted(found), ["clocks", "faults", "live", "memory", "networks", "own", "readme", "replay", "turns",
                                         "turns-summary", "unmarked", "unprofiled", "whatif", "whatif-summary"])


class Agreement(Case):
    """Each trace that is here, replayed and aligned, is in the documents as it stands."""

    def check(self, folders, tables):
        found = accuracy_tables.tables_of(tables)
        for path in accuracy_tables.documents(ROOT):
            text = read_text(path)
            for _, table, old, _ in accuracy_tables.PLACE.findall(text):
                said = {accuracy_tables.row_name(line): line for line in old.splitlines()}
                for line in found.get(table, ()):
                    name = accuracy_tables.row_name(line)
                    if name:
                        self.assertEqual(said.get(name), line, f"{os.path.relpath(path, ROOT)} is old; run make accuracy")
        self.assertTrue(folders)

    def test_bundled_traces_are_in_the_documents_as_they_are_replayed(self):
        folders = [folder for folder in accuracy.find_traces() if os.path.dirname(folder) == DATA]
        self.check(folders, results(*(accuracy.row_of(DPRO, folder) for folder in folders)))

    def test_traces_beside_the_repository_are_in_the_documents_as_they_are_replayed(self):
        folders = [folder for folder in accuracy.find_traces() if os.path.dirname(folder) != DATA]
        if not folders:
            self.skipTest("no ../shared/traces here")
        found = results(*(accuracy.row_of(DPRO, folder) for folder in folders))
        found["clocks"] = [one for one in (accuracy.clock_row(DPRO, folder) for folder in folders) if one]
        self.check(folders, found)

    def test_what_ifs_are_in_the_documents_as_they_are_told(self):
        folders = [folder for folder in accuracy.find_traces() if buckets_truth(folder)]
        if not folders:
            self.skipTest("no measured what-ifs here")
        _, (cells,) = bucket_table([change_row(DPRO, folders[0], "buckets")])
        text = read_text(os.path.join(ROOT, "doc", "accuracy.md"))
        self.assertIn("| " + " | ".join(cells) + " |\n", text, "run make accuracy")


class Turns(Case):
    def test_what_turns_are_unsure_of_is_told_beside_what_promises_are_off(self):
        def row(off, half):
            return {"off_points": off, "off_since_points": off, "covered": True, "measured_half_pct": half}
        text = accuracy_turns.summary([row(2.0, 0.0), row(-2.5, 1.0), row(9.0, 300.0), row(1.0, 300.0)])
        self.assertIn("3 within 3 points (2 if no promise had an error), 4 within both intervals.", text)
        self.assertIn("measured within 2 points: 2.2 points off in the median, 2.5 at most, 2 within 3 points.", text)

    def test_promises_and_what_turns_measured_are_in_the_document(self):
        tables = accuracy_tables.tables_of(dict(results(), turns=accuracy.turns_rows()))
        text = read_text(os.path.join(ROOT, "doc", "accuracy.md"))
        self.assertGreater(len(tables["turns"]), 6)
        self.assertIn("\n".join(tables["turns-summary"]), text, "run make accuracy")
        for line in tables["turns"]:
            self.assertIn(line + "\n", text, "run make accuracy")


class Choice(Case):
    def test_no_row_of_a_table_is_faster_than_the_choice(self):
        rows = [row for row in (choice_row(DPRO, folder) for folder in accuracy.find_traces() if os.path.dirname(folder) == DATA) if row]
        self.assertGreaterEqual(len(rows), 12)
        for row in rows:
            if not row["row"].startswith("prefetch"):  # which is unsure by more
                self.assertLessEqual(row["off_pct"], MOST_OFF_PCT, row["trace"])


class Budget(Case):
    def test_each_way_to_keep_to_a_budget_is_asked_for(self):
        budget, ways = memory_budget.choose(DPRO, BUNDLED + "-memory")
        self.assertEqual(list(ways), list(memory_budget.WAYS))
        self.assertRegex(ways["recomputation"], r"^recompute=blocks\.[0-9+blocks.]+$")
        self.assertRegex(ways["accumulation"], r"^accumulate=[0-9]+$")
        for config in ways.values():
            predicted = memory_budget.predict(DPRO, BUNDLED + "-memory", {"batch_size": 16}, config)
            self.assertLessEqual(predicted["predicted_bytes"], budget)

    def test_a_choice_that_is_slower_than_another_way_by_more_than_noise_is_told(self):
        def facts(ratio, noise, config="accumulate=2"):
            def one(ratio):
                return {"ratio": ratio, "ratio_noise": noise, "predicted_ratio": 1.1, "predicted_bytes": 5, "measured_bytes": 5}
            configs = {"as-is": one(1.0), "recompute=a": one(1.1), config: one(ratio)}
            return {"model": "net", "budget_bytes": 6, "configs": configs, "load": 0,
                    "ways": {"recomputation": "recompute=a", "accumulation": None, "dpro's choice": config}}
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(memory_budget.print_table([facts(1.2, 0.06)], False), [])
            self.assertEqual(memory_budget.print_table([facts(1.05, 0.0)], False), [])
            self.assertEqual(len(memory_budget.print_table([facts(1.2, 0.01)], False)), 1)
        self.assertRegex(out.getvalue(), "accumulation +does not fit")

    def test_ratios_are_to_the_turn_before(self):
        def turn(ms):
            return [[{"ms": ms, "cpu_ms": 1}, {"ms": ms, "cpu_ms": 1}], [{"ms": ms, "cpu_ms": 1}]]
        self.assertEqual(ratios([(turn(2), turn(1)), (turn(8), turn(4))]),
                         {"ratio": 2, "ratio_noise": 0, "cpu_ratio": 1, "cpu_ratio_noise": 0})


class Memory(Case):
    """What bundled jobs held and took, with changes too."""

    def test_peaks_and_what_ifs_are_within_their_targets(self):
        rows = [change_row(DPRO, folder, "memory") for folder in accuracy.find_traces()
                if os.path.dirname(folder) == DATA and truth_of(folder, KINDS["memory"].truth)]
        self.assertGreaterEqual(len(rows), 2)
        for one in rows:
            self.assertEqual(len(one["whatifs"]), 9)
            bits = next(whatif for whatif in one["whatifs"] if whatif["config"] == "bf16")
            self.assertLess(abs(bits["peak_error_pct"]), 0.5)
        self.assertEqual(missed(rows, "memory"), [])
        text = read_text(os.path.join(ROOT, "doc", "accuracy.md"))
        for line in accuracy_tables.memory_lines(rows)[2:]:
            self.assertIn(line.split(" | ")[0], text)

    def test_a_peak_that_is_off_is_told(self):
        found = {"problem": None, "error_pct": 1.5}
        whatif = {"config": "batch=2", "problem": None, "ms_error_pct": None, "peak_error_pct": -5.5, "ratio_error_pct": 3.0,
                  "tracker_error_pct": None, "rule_error_pct": None}
        told = missed([{"trace": "a", "own": {"recorded": found, "traced": found}, "whatifs": [whatif]}], "memory")
        self.assertEqual(told, ["a, recorded: +1.50 %", "a, batch=2: peak -5.5 %", "peak: 5.5 % off in the median"])
