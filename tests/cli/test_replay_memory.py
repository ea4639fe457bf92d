"""What dpro replay says of memory, against sums over the same trace's events that this file makes itself."""
import glob
import json
import os
import shutil

from support import BUNDLED, Case, dpro, read_json, write_json

ROOT = os.path.dirname(BUNDLED)


def events_peak(path):
    """The most that is alive in the second step of a structure window, of what was allocated within the window."""
    document = read_json(path)
    events = document["traceEvents"]
    steps = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and e["name"].startswith("ProfilerStep#"))
    begin, end = steps[-1]
    alive = most = 0
    for ts, size in sorted(((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"), key=lambda e: e[0]):
        alive += size
        if begin <= ts <= end:
            most = max(most, alive)
    return document["distributedInfo"]["rank"], most


class ReplayMemory(Case):
    def memory(self, *arguments):
        done = dpro("replay", "-q", "--no-validate", "--json", *arguments)
        self.assert_code(done, 0)
        return json.loads(done.out)["memory"]

    def test_a_gpu_holds_what_its_allocator_counted(self):
        rank = self.memory(os.path.join(ROOT, "torch-nccl-conv-h200-memory"))["ranks"][0]
        self.assertAlmostEqual(rank["peak_bytes"], rank["measured_peak_bytes"], delta=1e-5 * rank["peak_bytes"])
        self.assertGreater(rank["reserved_peak_bytes"], 1.4 * rank["peak_bytes"])
        self.assertAlmostEqual(rank["reserved_peak_bytes"], rank["measured_reserved_peak_bytes"], delta=0.01 * rank["peak_bytes"])

    def test_what_was_reserved_comes_first_and_is_simulated_for_changes_only(self):
        folder = os.path.join(ROOT, "torch-nccl-conv-h200-memory")
        own, changed = (" ".join(dpro("replay", "-q", "--no-validate", folder, *more).out.split()) for more in ([], ["--delay", "FW=2"]))
        self.assertIn("when it was recorded", own)
        self.assertNotIn("the allocator reserves", own)
        self.assertRegex(changed, "the allocator reserved [^;]* when it was recorded; the allocator reserves ")

    def test_a_change_goes_from_what_was_reserved(self):
        """A recording whose allocator reserved a third more than is simulated: that stays in proportion."""
        folder, trace = os.path.join(ROOT, "torch-nccl-conv-h200-memory"), self.path("trace")
        own = self.memory(folder)["ranks"][0]["measured_reserved_peak_bytes"]
        options = ["--recompute", "all"]
        before = self.assert_json("whatif", folder, *options)["memory"]
        self.assertEqual(before["baseline_reserved_peak_bytes"], own)
        shutil.copytree(folder, trace)
        for path in glob.glob(os.path.join(trace, "**", "kineto_et*.json.gz"), recursive=True):
            profile = read_json(path)
            for event in profile["traceEvents"]:
                if event.get("name") == "[memory]" and event["args"].get("Total Reserved"):
                    event["args"]["Total Reserved"] = event["args"]["Total Reserved"] * 4 // 3
            write_json(path, profile)
        after = self.assert_json("whatif", trace, *options)["memory"]
        self.assertEqual(after["baseline_reserved_peak_bytes"], own * 4 // 3)
        for key in ("baseline_reserved_peak_bytes", "reserved_peak_bytes"):
            self.assertAlmostEqual(after[key] / before[key], 4 / 3, delta=0.001)

    def test_the_peak_is_what_the_events_add_up_to(self):
        for name in ("torch-ddp-gloo-gpt-n2", "torch-ddp-gloo-gpt-n2-default"):
            folder = os.path.join(ROOT, name)
            expected = dict(events_peak(path) for path in glob.glob(os.path.join(folder, "**", "kineto_et*.json.gz"), recursive=True))
            memory = self.memory(folder)
            self.assertEqual(memory["source"], "allocations")
            self.assertEqual([rank["rank"] for rank in memory["ranks"]], sorted(expected))
            for rank in memory["ranks"]:
                held = rank["by_category"]
                before = sum(held.get(what, 0) for what in ("parameter", "optimizer_state", "bucket"))
                self.assertLess(abs((rank["peak_bytes"] - before) / expected[rank["rank"]] - 1), 0.01, name)
                self.assertEqual(sum(held.values()), rank["peak_bytes"])
                self.assertEqual(sum(holder["bytes"] for holder in rank["holders"]), rank["peak_bytes"])
                self.assertLess(abs(rank["error_pct"]), 1)
                self.assertEqual(rank["at"]["phase"], "backward")
                self.assertIsNone(rank["reserved_peak_bytes"])

    def test_the_text_says_it_and_what_it_does_not_know(self):
        text = " ".join(dpro("replay", "-q", "--no-validate", BUNDLED).out.split())
        self.assertRegex(text, r"Memory: the most that a rank's device holds all 2 ranks alike: \d+\.\d MB, \d+\.\d+ ms into the "
                               r"iteration, in backward .*; measured \d+\.\d MB \([-+]?0\.\d %\)")
        self.assertIn("from the profile's list of what was allocated and freed", text)

    def test_a_what_if_is_not_compared_with_what_was_measured(self):
        memory = self.memory(BUNDLED, "--delay", "BW=2")
        self.assertTrue(all(rank["error_pct"] is None and rank["measured_peak_bytes"] for rank in memory["ranks"]))
        text = dpro("replay", "-q", "--no-validate", BUNDLED, "--delay", "BW=2").out
        self.assertIn("measured without the change", " ".join(text.split()))

    def test_a_recording_without_it_says_how_to_get_it(self):
        recording = os.path.join(ROOT, "torch-ddp-gloo-lstm-n2-2gbit")
        self.assertIsNone(self.memory(recording))
        self.assertIn("\nMemory: not known. 'dpro profile' records it", dpro("replay", "-q", "--no-validate", recording).out)

    def test_other_traces_say_nothing_of_memory(self):
        self.assertIsNone(self.memory(self.write_job("job")))
        done = dpro("replay", "-q", "--no-validate", self.path("job"))
        self.assertNotIn("Memory", done.out)

    def test_a_comparison_has_both_peaks_and_says_what_only_one_knows(self):
        whole, bare = os.path.join(ROOT, "torch-ddp-gloo-gpt-n2-default"), self.path("bare")
        os.mkdir(bare)
        for path in glob.glob(os.path.join(BUNDLED, "kineto_*.json.gz")):  # nothing tells of parameters without an execution trace
            os.symlink(path, os.path.join(bare, os.path.basename(path)))
        self.assertIn("what was there before the profile began", " ".join(dpro("replay", "-q", "--no-validate", bare).out.split()))
        told = json.loads(dpro("compare", "-q", "--json", bare, whole).out)
        for side, folder in (("a", bare), ("b", whole)):
            self.assertEqual(told[side]["peak_bytes"], max(rank["peak_bytes"] for rank in self.memory(folder)["ranks"]))
            self.assertEqual(sum(told[side]["peak_by_category"].values()), told[side]["peak_bytes"])
        self.assertTrue(any("only the memory of B includes" in warning for warning in told["warnings"]), told["warnings"])
        done = dpro("compare", "-q", whole, whole)
        self.assertRegex(done.out, r"Memory at the highest peak of a rank, in MB\n.*\n  peak +(\d+\.\d) +\1 +0\.000 ")
        self.assertNotIn("of B only", done.out)

    def test_the_timeline_has_counters(self):
        self.assert_code(dpro("replay", "-q", "--no-validate", BUNDLED, "-o", self.path("out")), 0)
        events = [event for event in read_json(self.path("out", "timeline.json.gz"))["traceEvents"] if event["ph"] == "C"]
        ranks = read_json(self.path("out", "replay.json"))["memory"]["ranks"]
        for rank in ranks:
            counted = [event["args"]["total"] for event in events if event["pid"] == rank["rank"] + 1]
            self.assertGreater(len(counted), 100)
            self.assertEqual(max(counted), rank["peak_bytes"])
