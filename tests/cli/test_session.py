"""A session of TensorFlow 1 of which every process was profiled: a recording of a parameter server and two workers."""
import gzip
import json
import os
import shutil
import statistics
import sys

from support import DONE, INPUT, ROOT, Case, dpro

sys.path.insert(0, os.path.join(ROOT, "bench"))
from wire import fields, message, number, raw_fields

RECORDED = os.path.join(ROOT, "tests", "data", "tf-ps-n2")
STEPS = 10


def changed(data, change):
    """A profile whose events are what change(fields of the event, name of it, names of its statistics) says, None: gone."""
    out = b""
    for field, plane, raw in raw_fields(data):
        if field != 1 or dict(fields(plane)).get(2) != b"/host:CPU":
            out += raw
            continue
        names = {kind: {} for kind in (4, 5)}
        for kind, value in fields(plane):
            if kind in names:
                entry = dict(fields(dict(fields(value))[2]))
                names[kind][entry.get(1, 0)] = entry.get(2, b"").decode()
        parts = b""
        for kind, value, part in raw_fields(plane):
            if kind == 3:
                events = b""
                for inner, event, own in raw_fields(value):
                    kept = own if inner != 4 else change(event, names[4][dict(fields(event)).get(1, 0)], names[5])
                    events += kept or b""
                part = message(3, events)
            parts += part
        out += message(1, parts)
    return out


def without_marks(data):
    return changed(data, lambda event, name, stats: None if name == "train" else message(4, event))


def of_another_run(data):
    """Its runs have numbers that no other process knows."""
    def renumber(event, name, stats):
        parts = b""
        for field, value, part in raw_fields(event):
            if field == 4:
                stat = dict(fields(value))
                if stats.get(stat[1]) in ("id", "step_id"):
                    part = message(4, b"".join(number(k, v if k == 1 else v ^ 1) for k, v in fields(value)))
            parts += part
        return message(4, parts)
    return changed(data, renumber)


class Session(Case):
    def copied(self, **changes):
        """The recording with some profiles changed, None: gone."""
        shutil.copytree(RECORDED, self.path("trace"))
        for name, change in changes.items():
            path = self.path("trace", "hostvm", name, "xplane.pb.gz")
            with gzip.open(path) as file:
                data = file.read()
            os.unlink(path)
            if change is not None:
                with open(path[:-len(".gz")], "wb") as file:
                    file.write(change(data))
        return self.path("trace")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        said = dpro("replay", "-vv", "--json", RECORDED)
        cls.said, cls.facts = said.err, said.json

    def test_steps_of_all_tasks_are_put_together(self):
        facts = self.facts
        self.assertEqual(facts["warnings"], [])
        self.assertEqual((facts["trace"]["ranks_present"], facts["trace"]["world_size"]), ([0, 1], 2))
        self.assertEqual(facts["trace"]["iterations"], STEPS)
        self.assertLess(abs(facts["error_pct"]), 5)
        with open(os.path.join(RECORDED, "hostvm", "rank0", "rank.json"), encoding="utf-8") as file:
            recorded = [(step["end_ns"] - step["start_ns"]) / 1e6 for step in json.load(file)["steps"]["timing"]]
        self.assertLess(abs(facts["measured"]["iteration_ms"] / statistics.mean(recorded) - 1), 0.01)

    def test_every_op_is_a_node_of_the_graph(self):
        for process in ("rank 0", "rank 1", "ps 0"):
            self.assertRegex(self.said, r"runmeta.pb.gz: ([\d,]+) of \1 ops of %s are nodes of it" % process)

    def test_every_variable_is_pulled_and_every_gradient_pushed(self):
        kinds = self.facts["critical_path"]["by_kind_ms"]
        self.assertGreater(kinds["PUSH"], 14)  # 2 MiB at 1 Gbit/s, each way
        self.assertGreater(kinds["PULL"], 14)
        said = dpro("whatif", "--json", RECORDED)
        self.assert_code(said, DONE)
        for name in ("conv0_w", "conv1_w", "fc0_w", "fc1_w", "conv0_b", "conv1_b", "fc0_b", "fc1_b"):
            self.assertIn('"%s"' % name, said.out)
        self.assertLess(abs(said.json["baseline"]["iteration_ms"] / said.json["measured_ms"] - 1), 0.05)

    def test_each_step_is_replayed_in_its_own_order_and_the_first_from_its_begin(self):
        """Which tensor comes next on a link is chance; of two or three steps one is the first."""
        for steps in ("0:1", "0:2", "3:5", "4:6", "5:8", "6:9"):
            self.assertLess(abs(self.assert_replays(RECORDED, "--steps", steps)["error_pct"]), 0.1, steps)

    def test_a_client_that_marked_nothing_has_a_step_a_run(self):
        facts = self.assert_replays(self.copied(rank0=without_marks))
        self.assertGreaterEqual(facts["trace"]["iterations"], STEPS)
        self.assertLess(abs(facts["predicted"]["iteration_ms"] / self.facts["predicted"]["iteration_ms"] - 1), 0.1)

    def test_without_a_servers_profile_the_run_metadata_is_replayed(self):
        facts = self.assert_replays(self.copied(ps0=None))
        self.assertRegex(facts["warnings"][0], r"hostvm/rank0/runmeta.pb.gz: no profile of ps 0 is beside it")
        self.assertEqual(facts["trace"]["iterations"], 1)

    def test_profiles_of_two_runs_are_not_put_together(self):
        facts = self.assert_replays(self.copied(rank1=of_another_run))
        self.assertRegex(facts["warnings"][0], "no step is whole in the profiles of all tasks")
        self.assertEqual(facts["trace"]["iterations"], 1)

    def test_a_cut_profile_gives_the_steps_that_all_have(self):
        with gzip.open(os.path.join(RECORDED, "hostvm", "ps0", "xplane.pb.gz")) as file:
            n = len(file.read())
        for share in range(1, 10):
            with self.subTest(share=share):
                said = dpro("replay", "--json", self.copied(ps0=lambda data, share=share: data[:n * share // 10]))
                self.assert_code(said, DONE, INPUT)
                if said.code == DONE:
                    self.assertRegex("\n".join(said.json["warnings"]), "ps0/xplane.pb")
                shutil.rmtree(self.path("trace"))

    def test_a_cut_run_metadata_is_told_of_once(self):
        trace = self.copied()
        path = os.path.join(trace, "hostvm", "rank0", "runmeta.pb.gz")
        with open(path, "rb") as file:
            data = file.read()
        with open(path, "wb") as file:
            file.write(data[:len(data) // 2])
        warnings = self.assert_replays(trace)["warnings"]
        self.assertEqual(len([line for line in warnings if "gzip file is cut short" in line]), 1, warnings)

    def test_profiles_alone_say_that_they_lack_the_graph(self):
        trace = self.copied()
        os.unlink(os.path.join(trace, "hostvm", "rank0", "runmeta.pb.gz"))
        facts = self.assert_replays(trace)
        self.assertRegex("\n".join(facts["warnings"]), "no graph beside 3 of 3 profiles: .* of the session's runs")
        self.assertLess(abs(facts["predicted"]["iteration_ms"] / facts["measured"]["iteration_ms"] - 1), 0.05)
