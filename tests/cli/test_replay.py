"""What a replay says, on the bundled real trace and on small made-up jobs."""
import glob
import gzip
import html.parser
import json
import os
import re
import shutil
import tempfile

from support import BUNDLED, DONE, INPUT, ROOT, USAGE, Case, dpro, job, read_json, read_text, span, write_json

PARTS = ("forward_ms", "backward_ms", "update_ms", "input_ms", "exposed_communication_ms", "wait_for_peers_ms",
         "idle_ms")


def rank_of(facts, rank):
    return next(r for r in facts["ranks"] if r["rank"] == rank)


def keys_of(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


class Tags(html.parser.HTMLParser):
    """The elements that a browser would make of a page, and what its scripts hold."""

    def __init__(self, page):
        super().__init__()
        self.names, self.scripts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.names and self.names[-1] == "script" and not self.scripts[-1]:
            self.scripts[-1] = data.strip()


class UnmarkedSteps(Case):
    """Two ranks, each with a range around each step, and no marks of steps."""

    def write(self, n=4, optimizer=True):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        for rank in range(2):
            events = []
            for i in range(n):
                begin = 10_000 * i
                events.append(span("train step (%d)" % i, begin, 9_000, cat="user_annotation"))
                events.append(span("forward", begin, 4_200, cat="user_annotation"))
                events += [span("aten::linear", begin + 100 + 500 * k, 400, **{"Sequence number": 8 * i + k, "Fwd thread id": 0})
                           for k in range(8)]
                events += [span("autograd::engine::evaluate_function: AddmmBackward0", begin + 8000 - 400 * k, 300, 2,
                                **{"Sequence number": 8 * i + k, "Fwd thread id": 1}) for k in range(8)]
                if optimizer:
                    events.append(span("Optimizer.step#AdamW.step", begin + 8500, 300, cat="user_annotation"))
                    events.append(span("aten::_foreach_add_", begin + 8600, 100))
            write_json(os.path.join(folder, f"rank{rank}.json"),
                       {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events})
        return folder

    def test_one_step_is_one_iteration(self):
        facts = self.assert_replays(self.write(1))
        self.assertEqual(facts["steps"], {"found": 1, "found_by": "optimizer", "name": "Optimizer.step#AdamW.step", "updates": 1})
        self.assertAlmostEqual(facts["measured"]["iteration_ms"], 8.6)  # from the first op to the last
        self.assertTrue(any("--step-mark" in text for text in facts["warnings"]))

    def test_what_was_decided_is_said(self):
        for optimizer, found_by in ((True, "optimizer"), (False, "ranges")):
            facts = self.assert_replays(self.write(optimizer=optimizer))
            self.assertEqual((facts["steps"]["found"], facts["steps"]["found_by"]), (4, found_by))
            self.assertAlmostEqual(facts["measured"]["per_iteration_ms"][1], 10)
            self.assertTrue(any("iterations were found by" in text for text in facts["warnings"]))

    def test_the_range_that_is_named_is_an_iteration(self):
        folder = self.write()
        for pattern in ("train step", "train step (", r"step \([0-9]"):
            with self.subTest(pattern=pattern):
                if pattern.endswith("("):
                    self.assert_error(dpro("replay", folder, "--step-mark", pattern), USAGE, "--step-mark")
                    continue
                facts = self.assert_replays(folder, "--step-mark", pattern)
                self.assertEqual(facts["steps"], {"found": 4, "found_by": "marks", "name": "train step (0)", "updates": None})
                self.assertEqual(facts["measured"]["per_iteration_ms"], [10, 10, 10, 9])
        part = self.assert_replays(folder, "--step-mark", "forward")  # the last iteration is more than its range, too
        self.assertEqual(part["measured"]["per_iteration_ms"], [10, 10, 10, 9])
        chosen = self.assert_replays(folder, "--step-mark", "train step", "--steps", "3:3")
        self.assertEqual(chosen["measured"]["per_iteration_ms"], [9])

    def test_a_range_that_is_not_there_is_refused_with_those_that_are(self):
        self.assert_error(dpro("replay", self.write(), "--step-mark", "epoch"), INPUT, "no range of rank 0 .*'train step \\(0\\)'")


class Bundled(Case):
    @classmethod
    def setUpClass(cls):
        cls.result = dpro("replay", BUNDLED, "--json", "--samples", "50")
        assert cls.result.code == DONE, cls.result.err
        cls.facts = cls.result.json

    def test_every_key_of_the_schema_is_there(self):
        facts = self.facts
        self.assertEqual(facts["schema"], "dpro.replay/1")
        self.assertRegex(facts["version"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(facts["trace"]["framework"], "pytorch")
        self.assertEqual(facts["trace"]["world_size"], 2)
        self.assertEqual(facts["trace"]["ranks_present"], [0, 1])
        self.assertEqual(facts["trace"]["iterations"], len(facts["measured"]["per_iteration_ms"]))
        self.assertGreaterEqual(facts["trace"]["iterations"], 5)
        files = {os.path.basename(f["path"]): (f["kind"], f["rank"], f["bytes"]) for f in facts["trace"]["files"]}
        for rank in (0, 1):
            for name, kind in (("kineto_rank", "kineto"), ("kineto_et_rank", "kineto"), ("et_rank", "execution-trace")):
                name = f"{name}{rank}.json.gz"
                self.assertEqual(files[name], (kind, rank, os.path.getsize(os.path.join(BUNDLED, name))))
        for group, keys in {
            "measured": ("iteration_ms", "median_ms", "std_ms"), "predicted": ("iteration_ms", "p50_ms", "p95_ms"),
            "validation": ("mean_abs_error_pct", "max_abs_error_pct"), "daydream": ("iteration_ms", "error_pct"),
        }.items():
            for key in keys:
                self.assertIsInstance(facts[group][key], (int, float), f"{group}.{key}")
        self.assertIsInstance(facts["error_pct"], (int, float))
        self.assertEqual(facts["validation"]["method"], "leave-one-out")
        for rank in facts["ranks"]:
            for key in PARTS + ("rank", "communication_ms"):
                self.assertIsInstance(rank[key], (int, float), key)
        for key in ("length_ms", "by_kind_ms", "by_rank_ms", "ops"):
            self.assertIn(key, facts["critical_path"])
        for op in facts["critical_path"]["ops"]:
            for key in ("name", "rank", "device", "kind", "start_ms", "duration_ms"):
                self.assertIn(key, op)
        self.assertEqual(len(facts["clock"]["hosts"]), 2)
        self.assertIsInstance(facts["warnings"], list)

    def test_every_key_is_documented(self):
        documented = set(re.findall(r"`([A-Za-z0-9_]+)`", read_text(os.path.join(ROOT, "doc", "formats", "replay-json.md"))))
        facts = json.loads(json.dumps(self.facts))
        facts["critical_path"]["by_kind_ms"] = facts["critical_path"]["by_rank_ms"] = {}  # keys that are data
        self.assertEqual(set(keys_of(facts)) - documented, set())

    def test_a_documented_key_is_printed(self):
        sections = re.findall(r"(?ms)^## `(\w+)`\n(.*?)(?=^## |\Z)", read_text(os.path.join(ROOT, "doc", "formats", "replay-json.md")))
        flat = ("trace", "measured", "slow_iterations", "job", "steps", "pace", "predicted", "validation", "contradiction",
                "daydream", "unprofiled", "unprofiled_iterations", "critical_path")
        self.assertLessEqual(set(flat), {name for name, _ in sections})
        for name, text in sections:
            if name in flat:
                cells = re.findall(r"(?m)^\| (`.*?) \|", text)
                keys = set(re.findall(r"`(\w+)`", " ".join(cells))) - {"servers_ms"}  # of a job that has servers
                self.assertEqual(keys, set(self.facts[name]), name)

    def test_the_iteration_is_predicted(self):
        self.assertLessEqual(abs(self.facts["error_pct"]), 3.0)
        measured, predicted = self.facts["measured"]["iteration_ms"], self.facts["predicted"]["iteration_ms"]
        self.assertAlmostEqual(self.facts["error_pct"], 100 * (predicted / measured - 1), delta=0.01)

    def test_the_measured_time_is_that_of_the_steps(self):
        steps = []
        for path in sorted(glob.glob(os.path.join(BUNDLED, "kineto_rank*.json.gz"))):
            events = read_json(path)["traceEvents"]
            steps += [e["dur"] / 1000 for e in events if e["name"].startswith("ProfilerStep#")]
        self.assertAlmostEqual(self.facts["measured"]["iteration_ms"], sum(steps) / len(steps), delta=0.02 * steps[0])

    def test_the_parts_of_a_rank_add_up_to_the_iteration(self):
        for rank in self.facts["ranks"]:
            whole = rank.get("iteration_ms", self.facts["predicted"]["iteration_ms"])
            self.assertAlmostEqual(sum(rank[p] for p in PARTS), whole, delta=0.001 * whole)
            self.assertGreaterEqual(min(rank[p] for p in PARTS), 0)
            self.assertGreaterEqual(rank["communication_ms"] + 0.001, rank["exposed_communication_ms"])

    def test_the_critical_path_adds_up(self):
        path = self.facts["critical_path"]
        for key in ("by_kind_ms", "by_rank_ms"):
            self.assertAlmostEqual(sum(path[key].values()), path["length_ms"], delta=0.001 * path["length_ms"])
        starts = [op["start_ms"] for op in path["ops"]]
        self.assertEqual(starts, sorted(starts))

    def test_results_are_the_same_at_any_number_of_threads(self):
        one, two, default = (dpro("replay", BUNDLED, "--json", "--samples", "50", *args)
                             for args in (["--threads", "1"], ["--threads", "2"], []))
        self.assert_code(one, DONE)
        self.assertEqual(one.out, two.out)
        self.assertEqual(one.out, default.out)

    def test_a_folder_a_glob_and_lists_in_any_order_give_the_same(self):
        files = sorted(glob.glob(os.path.join(BUNDLED, "*.gz")))
        given = [self.assert_replays(*paths) for paths in ([BUNDLED], [os.path.join(BUNDLED, "*.gz")], files, files[::-1])]
        for facts in given:
            del facts["trace"]["files"]
            self.assertEqual((facts["predicted"], facts["ranks"]), (given[0]["predicted"], given[0]["ranks"]))
        self.assertEqual(given[1:3], given[2:])

    def lost(self, facts, rank):
        return rank_of(facts, rank)["wait_for_peers_ms"] + rank_of(facts, rank)["exposed_communication_ms"]

    def test_a_late_rank_costs_every_other_rank_what_it_costs_the_iteration(self):
        late = self.assert_replays(BUNDLED, "--delay", "FW@1=+20")
        rise = late["predicted"]["iteration_ms"] - self.facts["predicted"]["iteration_ms"]
        self.assertGreater(rise, 10)  # a part may vanish in what rank 1 had to wait for
        self.assertLess(rise, 20.1)
        self.assertAlmostEqual(self.lost(late, 0) - self.lost(self.facts, 0), rise, delta=1)
        self.assertLess(rank_of(late, 1)["wait_for_peers_ms"], rank_of(self.facts, 1)["wait_for_peers_ms"] + 0.001)

    def test_a_rank_that_is_last_anyhow_makes_every_other_rank_wait(self):
        # from here on nothing of rank 1's delay hides behind rank 0's own backward and transfers
        late = self.assert_replays(BUNDLED, "--delay", "FW@1=+300")
        later = self.assert_replays(BUNDLED, "--delay", "FW@1=+320")
        rise = rank_of(later, 0)["wait_for_peers_ms"] - rank_of(late, 0)["wait_for_peers_ms"]
        self.assertAlmostEqual(rise, 20, delta=3)
        self.assertAlmostEqual(later["predicted"]["iteration_ms"] - late["predicted"]["iteration_ms"], 20, delta=3)
        self.assertLess(rank_of(later, 1)["wait_for_peers_ms"], 3)

    def test_collectives_are_made_of_the_messages_that_were_sent(self):
        (all_reduce,) = self.facts["collectives"]
        self.assertEqual({key: all_reduce[key] for key in ("kind", "ranks", "count", "bytes", "pattern")},
                         {"kind": "all_reduce", "ranks": 2, "count": 4, "bytes": 29480960, "pattern": "ring"})
        # each rank sends 2(N-1)/N of a bucket, in chunks of a MiB or less
        self.assertGreaterEqual(all_reduce["messages"], 2 * 29480960 / (1 << 20))
        whole = self.assert_replays(os.path.join(BUNDLED, "*.json.gz"))  # without the transport's logs
        self.assertEqual([c["pattern"] for c in whole["collectives"]], [None])
        self.assertLess(abs(whole["predicted"]["iteration_ms"] / self.facts["predicted"]["iteration_ms"] - 1), 0.005)

    def test_slower_receives_make_the_iteration_longer(self):
        slower = self.assert_replays(BUNDLED, "--delay", "RECV=2")
        self.assertGreater(slower["predicted"]["iteration_ms"], self.facts["predicted"]["iteration_ms"] * 1.1)

    def test_a_faster_rank_makes_no_iteration_longer(self):
        base = self.facts["predicted"]["iteration_ms"]
        for rank in (0, 1):
            faster = self.assert_replays(BUNDLED, "--no-validate", "--delay", f"COMPUTE@{rank}=0.97")
            slower = self.assert_replays(BUNDLED, "--no-validate", "--delay", f"COMPUTE@{rank}=+20")
            self.assertLess(faster["predicted"]["iteration_ms"], base * 1.001)
            self.assertLess(slower["predicted"]["iteration_ms"], base + 20.5)

    def test_uncorrected_receives_and_clocks_are_worse(self):
        for options in (("--raw-receives",), ("--no-align",)):
            self.assertGreater(abs(self.assert_replays(BUNDLED, *options)["error_pct"]), abs(self.facts["error_pct"]))

    def test_the_rank_regex_renames_ranks(self):
        for rank in (0, 1):
            with gzip.open(os.path.join(BUNDLED, f"kineto_rank{rank}.json.gz")) as trace:
                self.write(f"host-{rank}-of-2.json", trace.read())
        facts = self.assert_replays(self.folder, "--rank-regex", "host-([0-9]+)")
        self.assertEqual(facts["trace"]["ranks_present"], [0, 1])

    def test_one_rank_alone_still_replays_and_the_others_are_missed(self):
        alone = os.path.join(BUNDLED, "kineto_rank1.json.gz")
        facts = self.assert_replays(alone)
        self.assertEqual((facts["trace"]["ranks_present"], facts["trace"]["world_size"]), ([1], 2))
        self.assertTrue(facts["warnings"])
        self.assertRegex(dpro("replay", alone).out, r"(?m)^Communication .*; 1 of 2 ranks recorded$")

    def test_what_was_written_into_the_trace_is_no_part_of_it(self):
        folder = self.write_job("job")
        before = dpro("replay", folder)
        self.assert_code(dpro("replay", folder, "-o", os.path.join(folder, "out")), DONE)
        self.assertEqual(dpro("replay", folder).out, before.out)

    def test_no_diagnosis_is_left_of_an_earlier_report(self):
        for delay, left in (([], True), (["--delay", "BW=0.5"], False)):
            self.assert_code(dpro("replay", BUNDLED, "-o", self.path("out"), *delay), DONE)
            self.assertEqual(os.path.exists(self.path("out", "diagnose.json")), left)

    def test_the_output_folder_holds_a_page_a_timeline_and_json(self):
        out = self.path("deep", "out")
        result = dpro("replay", BUNDLED, "-o", out)
        self.assert_code(result, DONE)
        self.assertEqual(sorted(os.listdir(out)), ["diagnose.json", "replay.json", "report.html", "timeline.json.gz"])
        written = read_json(os.path.join(out, "replay.json"))
        cause = max(read_json(os.path.join(out, "diagnose.json"))["causes"], key=lambda cause: cause["blame_ms"] if cause["order"] else 0)
        step = written["verdict"].pop()["text"]  # by the diagnosis, in its milliseconds
        blame = f"{cause['blame_ms']:.{1 if cause['blame_ms'] >= 100 else 2}f}"
        self.assertTrue(step.endswith(f"{cause['title']} ({blame} ms): {cause['next_step']}"), step)
        plain = self.assert_replays(BUNDLED)["verdict"]
        self.assertIn("'dpro diagnose' says what each cause of lost time costs", plain.pop()["text"])
        self.assertEqual(written["verdict"], plain)
        self.assertEqual(written["predicted"], self.assert_replays(BUNDLED)["predicted"])
        self.assertTrue(read_json(os.path.join(out, "timeline.json.gz"))["traceEvents"])
        page = read_text(os.path.join(out, "report.html"))
        self.assertNotRegex(page, r"""(src|href)=["']?(https?:)?//""")  # opens offline
        again = dpro("replay", BUNDLED, "-o", out, "-q")
        self.assert_code(again, DONE)
        self.assertEqual(again.err, "")
        changed = self.path("changed")
        self.assertIn("wrote report.html, timeline.json.gz and replay.json", dpro("replay", BUNDLED, "--delay", "BW=2", "-o", changed).err)
        self.assertEqual(sorted(os.listdir(changed)), ["replay.json", "report.html", "timeline.json.gz"])

    def test_the_text_begins_with_a_short_verdict(self):
        result = dpro("replay", BUNDLED)
        self.assert_code(result, DONE)
        self.assertEqual(result.err, "")
        verdict = result.out.split("\n\n")[0].splitlines()
        self.assertLessEqual(len(verdict), 8)  # the first says, too, what is not known, the last what comes after
        self.assertIn("as recorded: the profiler's cost is in it", " ".join(result.out.split()))
        self.assertIn("ms", verdict[0])

    def test_drawn_iterations_are_in_the_text(self):
        plain, drawn = dpro("replay", BUNDLED), dpro("replay", BUNDLED, "--samples", "50")
        self.assertNotIn("p95", plain.out)
        p50 = self.facts["predicted"]["p50_ms"]
        self.assertRegex(drawn.out, rf"p50 of 50 drawn iterations +{p50:.1f}\n")
        self.assertEqual(self.facts["predicted"]["samples"], 50)

    def test_drawn_iterations_are_like_the_measured_ones_in_every_bundled_trace(self):
        for folder in sorted(glob.glob(os.path.join(ROOT, "tests", "data", "*", ""))):
            with self.subTest(os.path.basename(folder[:-1])):
                facts = self.assert_replays(folder, "--no-validate", "--samples", "100")
                again = self.assert_replays(folder, "--no-validate", "--samples", "100")
                self.assertEqual(facts["predicted"], again["predicted"])
                measured, predicted = facts["measured"]["per_iteration_ms"], facts["predicted"]
                self.assertAlmostEqual(predicted["p50_ms"] / predicted["iteration_ms"], 1, delta=0.05)
                self.assertLess(predicted["p95_ms"], 1.05 * max(measured))
                self.assertLessEqual(predicted["p50_ms"], predicted["p95_ms"])

    def test_a_validation_that_was_not_asked_for_is_not_blamed_on_the_trace(self):
        result = dpro("replay", BUNDLED, "--no-validate")
        self.assert_code(result, DONE)
        self.assertIn("self-validation: not asked for", result.out)
        self.assertNotIn("too few iterations", result.out)

    def test_the_iteration_of_the_critical_path_is_named(self):
        path = self.facts["critical_path"]
        self.assertIn(path["iteration"], range(1, 7))
        self.assertIn(f"Critical path (iteration {path['iteration']}, replayed): {path['length_ms']:.1f} ms",
                      dpro("replay", BUNDLED).out)


class Synthetic(Case):
    def write_job(self, **options):
        for rank, trace in enumerate(job(**options)):
            self.write(f"rank{rank}.json", trace)
        return self.folder

    def test_a_plain_process_without_communication_replays(self):
        self.write_job(world=1, communicates=False)
        facts = self.assert_replays(self.folder)
        self.assertEqual(facts["trace"]["ranks_present"], [0])
        self.assertLessEqual(abs(facts["error_pct"]), 3)
        self.assertIsNone(facts["daydream"]["iteration_ms"])
        self.assertEqual(facts["ranks"][0]["communication_ms"], 0)

    def test_a_slow_rank_is_waited_for(self):
        facts = self.assert_replays(self.write_job(world=3, slow=(2, 15_000), transfer_us=1000))
        for rank in (0, 1):
            self.assertAlmostEqual(rank_of(facts, rank)["wait_for_peers_ms"], 15, delta=1)
        self.assertLess(rank_of(facts, 2)["wait_for_peers_ms"], 1)

    def test_a_late_start_in_a_single_iteration_is_named(self):
        traces = job(iterations=1, slow=(1, 15_000))
        for event in traces[1]["traceEvents"]:  # the time is spent before the iteration, not in its forward
            if event["name"].startswith("Optimizer.zero_grad"):
                event["ts"] += 15_000
            elif event["dur"] > 15_000 and event["ts"] <= 1_000_000_300:
                event["ts"] += 15_000
                event["dur"] -= 15_000
        for rank, trace in enumerate(traces):
            self.write(f"rank{rank}.json", trace)
        result = dpro("replay", self.folder)
        self.assert_code(result, DONE)
        self.assertRegex(result.out, r"Next step +record 10 iterations: .* start\s+up\s+to 15\.\d+ ms\s+apart")
        self.assertRegex(result.out, r"longest gap: 15\.\d+ ms on rank 1, before .*; the rank starts late")

    def test_a_closure_of_the_optimizer_changes_no_phase(self):
        plain, closed = (job(world=1, communicates=False)[0] for _ in range(2))
        begins = [event["ts"] for event in closed["traceEvents"] if event["name"].startswith("ProfilerStep")]
        ranges = [event for event in closed["traceEvents"] if event["name"].startswith("Optimizer.step")]
        for event, begin in zip(ranges, begins):
            event["ts"], event["dur"] = begin + 1, event["ts"] + event["dur"] - begin - 1
        closed["traceEvents"].sort(key=lambda event: (event["ts"], -event["dur"]))
        ranks = {}
        for folder, trace in (("plain", plain), ("closed", closed)):
            self.write(folder + "/rank0.json", trace)
            ranks[folder] = rank_of(self.assert_replays(self.path(folder)), 0)
        self.assertEqual(ranks["closed"], ranks["plain"])
        self.assertAlmostEqual(ranks["closed"]["forward_ms"], 30, delta=0.1)
        faster = self.assert_replays(self.path("closed"), "--delay", "FW=0.5")
        self.assertAlmostEqual(faster["predicted"]["iteration_ms"], ranks["plain"]["iteration_ms"] - 15, delta=0.5)

    def test_open_and_bare_arrays_are_read(self):
        events = json.dumps(job(world=1, communicates=False)[0]["traceEvents"])
        plain = self.assert_replays(self.write("a/rank0.json", events))
        open_array = self.assert_replays(self.write("b/rank0.json", events[:-1] + ","))
        self.assertEqual(plain["predicted"], open_array["predicted"])

    def test_bytes_that_are_no_utf8_come_out_as_utf8(self):
        text = json.dumps(job(world=1, communicates=False, name="caf@@")[0]).replace("@@", "\udce9")
        self.write("rank0.json", text)
        for args in (["--json"], []):
            self.assert_code(dpro("replay", self.folder, *args, "-o", self.path("out")), DONE)
        for name in ("replay.json", "report.html"):
            self.assertIn("caf", read_text(self.path("out", name)))

    def test_names_are_escaped_in_every_output(self):
        evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x00\x1b[31m\x7f\n\u2028\ud83d\ude00"
        self.write("rank0<b>\x1b[31m.json", json.dumps(job(world=1, communicates=False, name=evil)[0]))
        text = dpro("replay", self.folder)
        self.assert_code(text, DONE)
        self.assertNotRegex(text.out, "[\x00-\x09\x0b-\x1f\x7f]")
        out = self.path("out")
        result = dpro("replay", self.folder, "--json", "-vv", "-o", out)
        self.assert_code(result, DONE)
        self.assertNotRegex(result.err, "[\x00-\x09\x0b-\x1f\x7f]")
        names = [op["name"] for op in result.json["critical_path"]["ops"]]
        self.assertTrue(any("alert(1)" in name for name in names), names[:5])
        page = read_text(os.path.join(out, "report.html"))
        tags = Tags(page)
        self.assertNotIn("img", tags.names)
        self.assertFalse([script for script in tags.scripts if script.startswith("alert")])
        self.assertNotRegex(page, "[\x00-\x09\x0b-\x1f\x7f]")
        self.assertIn("alert(1)", page)
        read_json(os.path.join(out, "timeline.json.gz"))
