"""dpro tune: what the job is given, and the search beside it, with stand-ins for both. Real jobs are in tests/live/test_tune.py."""
import io
import math
import os
import resource
import shutil
import sys
import time
import types
import unittest.mock

from browser import CHROMIUM, browser
from support import BUNDLED, ROOT, USAGE, Case, dpro, read_json

sys.path.insert(0, os.path.join(ROOT, "python"))
from dpro import race, tune, tune_page, turns  # noqa: E402

PROGRAM = """
import json, os, sys
with open("told", "w") as file:
    json.dump({name: value for name, value in os.environ.items() if name.startswith("DPRO")}, file)
sys.exit(int(sys.argv[1]))
"""


class Command(Case):
    def tune(self, *options, code="0", env=None):
        return dpro("tune", *options, "--", sys.executable, "-S", self.write("train.py", PROGRAM), code, cwd=self.folder, env=env or {})

    def told(self):
        return read_json(self.path("told"))

    def test_the_job_is_told_what_to_do_and_its_exit_code_is_the_commands(self):
        result = self.tune("-o", "plan", "--allow", "compile,bf16", "--memory", "2GiB", "--budget", "200steps", code="7",
                           env={"DPRO_PLAN": "another"})
        self.assert_code(result, 7)
        self.assertIn("there was nothing to tune: no Python process of ", result.err)
        self.assertFalse(os.path.exists(self.path("plan")))
        told = self.told()
        self.assertEqual((told["DPRO"], told["DPRO_TUNE"], told["DPRO_OUT"]), ("1", self.path("plan"), self.path("plan/trace")))
        self.assertEqual((told["DPRO_TUNE_BUDGET"], told["DPRO_TUNE_MEMORY"], told["DPRO_PROBE"]), ("200", str(2 << 30), "compile,bf16"))
        self.assertIn("--allow compile,bf16", told["DPRO_TUNE_SEARCH"])
        self.assertIn("--memory %d" % (2 << 30), told["DPRO_TUNE_SEARCH"])
        self.assertTrue(os.path.samefile(told["DPRO_TUNE_DPRO"], dpro.__globals__["DPRO"]))
        self.assertNotIn("DPRO_PLAN", told)
        self.assertFalse(os.path.exists(self.path("plan")))  # as nothing came into it

    def test_turns_of_an_earlier_recording_go_with_it(self):
        for name in ("job.json", "turns.json", "host0/rank0/rank.json"):
            self.write("plan/trace/" + name, {"schema": "dpro.job/1", "rank": 0, "world_size": 1})
        self.assert_code(self.tune("-o", "plan", "--force"), 0)
        self.assertFalse(os.path.exists(self.path("plan/trace/turns.json")))

    def test_what_it_needs_and_what_it_refuses(self):
        for options in ((), ("-o", "plan", "--budget", "0"), ("-o", "plan", "--budget", "9 s"), ("-o", "plan", "--allow", "fp8"),
                        ("-o", "plan", "--memory", "0")):
            self.assert_code(self.tune(*options), USAGE)


class Search(Case):
    """`dpro optimize` is a script here."""

    def search(self, script, **environment):
        path = self.write("dpro", "#!/bin/sh\n" + script)
        os.chmod(path, 0o755)
        os.makedirs(self.path("search"), exist_ok=True)
        with unittest.mock.patch.dict(os.environ, {"DPRO_TUNE_DPRO": path, "DPRO": "1", **environment}):
            search = tune.Search(self.path("search"), self.path("trace"))
        self.addCleanup(search.end)
        return search

    def ended(self, search):
        until = time.monotonic() + 60
        while (problem := search.problem()) is tune.Search.RUNS and time.monotonic() < until:
            time.sleep(0.01)
        return problem

    def test_it_is_given_the_trace_and_what_the_user_asked_for_but_nothing_that_records(self):
        search = self.search('echo "$@ [$DPRO$LD_PRELOAD]" >&2', DPRO_TUNE_SEARCH="--memory 7", LD_PRELOAD="")
        self.assertIsNone(self.ended(search))
        with open(self.path("search", "messages.txt"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "optimize %s -o %s --quiet --threads 1 --memory 7 []\n" % (
                self.path("trace"), self.path("search")))

    def test_one_that_fails_or_takes_too_long_says_why(self):
        self.assertEqual(self.ended(self.search("echo this; echo that >&2; echo dpro: no ranks >&2; exit 3")),
                         "the search failed: no ranks")
        self.assertEqual(self.ended(self.search("exit 4")), "the search failed: exit code 4")
        with unittest.mock.patch.object(tune, "SEARCH_S", 0):
            search = self.search("exec sleep 100")
        self.assertEqual(self.ended(search), "the search took longer than 120 s")




class Learns(Case):
    """A recording with turns: what a search and what-ifs say of plans that were measured, and of others."""
    DEMO = BUNDLED + "-default"

    def setUp(self):
        super().setUp()
        shutil.copytree(self.DEMO, self.path("TRACE"))
        self.before = self.assert_json("optimize", self.path("TRACE"), "--finalists", "5", "-o", self.path("plan"))
        self.own_ms = self.before["replayed_ms"]
        self.plans = {}
        for one in self.before["finalists"]:
            self.plans[one["name"]] = read_json(os.path.join(one["plan"], "plan.json"))

    def measured(self, saves, **more):
        turns = [{"name": name, "saves_pct": pct, "std_pct": 0.3, "plan": dict(self.plans[name], **more.pop("plan", {}))}
                 for name, pct in saves.items()]
        self.write("TRACE/turns.json", {"schema": "dpro.turns/1", "framework_version": "2.13.0+cpu", "world_size": 2, "turns": turns,
                                        **more})

    def search(self):
        return self.assert_json("optimize", self.path("TRACE"), "--finalists", "9")

    @staticmethod
    def row(facts, name):
        return next(one for one in facts["baselines"] if one["name"] == name)

    def whatif(self, *options):
        return self.assert_json("whatif", self.path("TRACE"), *options)

    def test_a_plan_that_was_measured_takes_what_it_took_and_others_of_its_kinds_move_with_it(self):
        self.assertIsNone(self.before["turns"])
        self.measured({"cap-1": 9.0})
        facts = self.search()
        was, now = (self.row(one, "cap-1") for one in (self.before, facts))
        self.assertAlmostEqual(now["iteration_ms"], 0.91 * self.own_ms, delta=0.005 * self.own_ms)
        self.assertLess(now["uncertainty_pct"], 2)
        self.assertGreater(was["uncertainty_pct"], 8)
        for name, alike in (("cap-2", 1), ("byteps", 0.5)):  # buckets as well; parts and order beside them
            was, now = (self.row(one, name) for one in (self.before, facts))
            self.assertGreater(now["iteration_ms"], was["iteration_ms"], name)
            self.assertLess(now["uncertainty_pct"] / now["iteration_ms"], was["uncertainty_pct"] / was["iteration_ms"], name)
            self.assertGreater(now["uncertainty_pct"], was["uncertainty_pct"] * (1 - alike / 2))
        self.assertEqual(facts["turns"]["n"], 1)
        self.assertGreater(facts["best"]["iteration_ms"], self.before["best"]["iteration_ms"])
        text = dpro("optimize", self.path("TRACE")).out
        self.assertIn("Measured  by turns of 1 plan in this job (dpro tune), which correct what is expected; before, ", text)

    def test_the_choice_follows_what_was_measured(self):
        self.measured({name: 22.0 if name == "cap-2" else 5.0 for name in self.plans})
        facts = self.search()
        self.assertEqual(facts["best"]["setting"], "bucket_cap_mb 2")
        self.assertAlmostEqual(facts["best"]["iteration_ms"], 0.78 * self.own_ms, delta=0.005 * self.own_ms)
        self.assertEqual(facts["turns"]["n"], 5)
        self.assertLessEqual(facts["lower_bound_ms"], facts["best"]["iteration_ms"])

    def test_what_ifs_of_plans_know_it_and_others_do_not(self):
        before = [self.whatif("--bucket-cap-mb", "1"), self.whatif("--bucket-cap-mb", "1", "--bandwidth", "2x")]
        self.measured({"cap-1": 9.0})
        after = self.whatif("--bucket-cap-mb", "1")
        self.assertAlmostEqual(after["predicted"]["iteration_ms"], 0.91 * self.own_ms, delta=0.005 * self.own_ms)
        self.assertLess(after["speedup_std"], before[0]["speedup_std"] / 5)
        self.assertIn("corrected by measured turns of this job (plans: 1); without them an iteration takes %.2f ms"
                      % before[0]["predicted"]["iteration_ms"], after["warnings"])
        self.assertEqual(self.whatif("--bucket-cap-mb", "1", "--bandwidth", "2x")["predicted"], before[1]["predicted"])

    def test_turns_of_another_job_and_damaged_ones_are_left_out_with_one_warning(self):
        buckets = {"plan": {"communication": {"buckets": [{"parameters": ["another.weight"], "size_bytes": 4}]}}}
        for more, why in (({"world_size": 4}, "it is of a job of 4 ranks, this one has 2"),
                          ({"framework_version": "2.9"}, "it is of torch 2.9, this job ran with 2.13.0+cpu"),
                          (buckets, "bucket 0: 'another.weight' is no gradient of this trace"),
                          ({"schema": "dpro.turns/2"}, "its schema is not dpro.turns/1"),
                          ({"turns": [{"saves_pct": 101, "std_pct": 1}]}, "'turns[0].saves_pct'")):
            self.measured({"cap-1": 9.0}, **more)
            self.assert_left_out(why)
        for text in ('{"schema":"dpro.turns/1","turns":[{"plan":', "no JSON"):
            self.write("TRACE/turns.json", text)
            self.assert_left_out("turns.json: ")

    def assert_left_out(self, why):
        facts = self.search()
        self.assertEqual([warning for warning in facts["warnings"] if "turns.json" in warning and why in warning
                          and warning.endswith("what was measured by turns is left out")],
                         [warning for warning in facts["warnings"] if "turns.json" in warning], why)
        self.assertEqual((facts["best"]["iteration_ms"], facts["turns"]), (self.before["best"]["iteration_ms"], None))
        self.assertEqual(sum("turns.json" in warning for warning in self.whatif("--bucket-cap-mb", "1")["warnings"]), 1)


class LearnsOfUnits(Learns):
    """The same of FSDP's units."""
    DEMO = os.path.join(os.path.dirname(BUNDLED), "torch-fsdp-gloo-n2-memory")

    def test_a_plan_that_was_measured_takes_what_it_took_and_others_of_its_kinds_move_with_it(self):
        self.measured({"all kept": 1.5})
        facts = self.search()
        for name, was_ms in ((name, self.row(self.before, name)["iteration_ms"]) for name in ("prefetch 1", "all resharded")):
            self.assertGreater(self.row(facts, name)["iteration_ms"], was_ms, name)
        self.assertAlmostEqual(self.row(facts, "all kept")["iteration_ms"], 0.985 * self.own_ms, delta=0.001 * self.own_ms)
        self.assertLess(self.row(facts, "all kept")["uncertainty_pct"], 1)
        self.assertEqual(facts["turns"]["n"], 1)
        self.assertEqual(self.whatif("--reshard", "none")["predicted"]["iteration_ms"], self.row(facts, "all kept")["iteration_ms"])

    def test_the_choice_follows_what_was_measured(self):
        self.measured({"all kept": 3.0, "prefetch 1": 5.0, "prefetch 2": 9.0})
        facts = self.search()
        self.assertAlmostEqual(facts["best"]["iteration_ms"], 0.91 * self.own_ms, delta=0.001 * self.own_ms)
        self.assertEqual(facts["prefetch"], 2)
        self.assertAlmostEqual(facts["turns"]["before_ms"], self.before["best"]["iteration_ms"], places=3)

    test_what_ifs_of_plans_know_it_and_others_do_not = None
    test_turns_of_another_job_and_damaged_ones_are_left_out_with_one_warning = None


class Told(Case):
    def test_a_plan_that_changes_nothing_names_gradients_as_each_model_does(self):
        models = [{"name": "A", "parameters": [{"name": "x"}, {"name": "y"}]}, {"name": "B", "parameters": [{"name": "x"}]}]
        own = tune._own({"job": {"models": models}, "expected": None}, [
            {"parameters": ["x of model 1"], "size_bytes": 8}, {"parameters": ["y", "x"], "size_bytes": 12}])
        self.assertEqual([(bucket["model"], bucket["parameters"]) for bucket in own["communication"]["buckets"]], [
            (1, ["x"]), (0, ["y", "x"])])

    def test_the_plan_that_is_kept_expects_what_its_promise_and_the_turns_say_together(self):
        plan = {"expected": {"baseline_ms": 200.0, "iteration_ms": 180.0, "speedup": 1.111, "uncertainty_pct": 19.6}, "job": {}}
        told = {std: tune.corrected(plan, {"saves_pct": 20.0, "std_pct": std})["expected"] for std in (0.08, 8.0, math.inf)}
        self.assertEqual(told[math.inf], plan["expected"])  # one block alone, which tells nothing of its error
        self.assertAlmostEqual(told[0.08]["iteration_ms"], 160, delta=0.1)
        self.assertAlmostEqual(told[0.08]["uncertainty_pct"], 0.196, delta=0.01)
        self.assertAlmostEqual(told[8.0]["iteration_ms"], (180 * 160) ** 0.5, delta=0.1)  # both are 10 % unsure
        self.assertAlmostEqual(told[8.0]["uncertainty_pct"], 19.6 / 2 ** 0.5, delta=0.1)
        self.assertAlmostEqual(told[8.0]["speedup"], 200 / told[8.0]["iteration_ms"], places=5)
        self.assertEqual(tune.corrected({"expected": None}, {"saves_pct": 20.0, "std_pct": 1.0}), {"expected": None})

    def test_what_a_finalist_saves_or_costs_is_told_once_its_interval_tells_something(self):
        for mean, low, high, told in ((17.24, 12.1, 21.8, "saves 17.2 % (12.1 to 21.8)"),
                                      (-8.8, -30.6, 2.0, "costs 8.8 % (-2.0 to 30.6)"), (3.0, -1e20, 100.0, "saves 3.0 % (so far)"),
                                      (0.0, -float("inf"), float("inf"), "saves 0.0 % (so far)")):
            self.assertEqual(tune.saves({"saves_pct": mean, "low_pct": low, "high_pct": high}), told)


class Room(Case):
    PLAN = types.SimpleNamespace(memory=types.SimpleNamespace(baseline_peak_bytes=6 << 30, peak_bytes=9 << 30))

    def assert_room(self, one, fits, text):
        if fits:
            one._check_memory(self.PLAN)
        else:
            with self.assertRaisesRegex(MemoryError, r"hold 3\.00 GiB more than the job, give or take 921\.6 MiB, and " + text):
                one._check_memory(self.PLAN)

    def test_a_plan_for_which_a_gpu_has_no_room_is_out_before_it_is_applied(self):
        for free_gib, fits in ((3, True), (2, False)):  # and 1.5 GiB that the allocator keeps
            cuda = types.SimpleNamespace(mem_get_info=lambda free_gib=free_gib: (free_gib << 30, 16 << 30),
                                         memory_reserved=lambda: 8 << 30, max_memory_allocated=lambda: 13 << 29)
            one = turns.Turns(None, 4, 2)
            with unittest.mock.patch.dict(sys.modules, torch=types.SimpleNamespace(cuda=cuda)), \
                    unittest.mock.patch.object(turns, "on_gpu", lambda: True):
                self.assert_room(one, fits, "the GPU has 3.50 GiB left")
                one.now, cuda.max_memory_allocated = "recompute", lambda: 1 << 30  # what another plan holds is not what the job does
                self.assert_room(one, fits, "the GPU has 3.50 GiB left")

    def test_on_a_cpu_peaks_take_steps_only_of_what_may_hold_otherwise_and_is_still_in(self):
        one = turns.Turns(None, 4, 2)
        one._within_ranks = {"compile": ((), 1)}
        names = [turns.BASELINE, "cap-2", "compile"]

        def wanted():
            found = []
            for one.now in names:
                found += [one.now] if one._wants_peak() else []
            return found

        one._n_blocks = 1
        self.assertEqual(wanted(), [])
        one._n_blocks = 2
        self.assertEqual(wanted(), [turns.BASELINE, "compile"])
        one._n_blocks, one.measures_peaks = 1, True  # as --memory asks, and dpro verify
        self.assertEqual(wanted(), names)
        one._peaks = {"cap-2"}
        self.assertEqual(wanted(), [turns.BASELINE, "compile"])

    def test_so_is_one_for_which_the_host_or_the_process_has_none(self):
        status = {"VmHWM": 4 << 30, "VmRSS": 3 << 30, "VmSize": 5 << 30, "VmPeak": 6 << 30, "VmData": 2 << 30}
        for available, limits, left in ((10, {}, 4), (9, {}, 3.5), (10, {resource.RLIMIT_AS: 9}, 3), (10, {resource.RLIMIT_DATA: 6}, 3),
                                        (10, {resource.RLIMIT_DATA: 8}, 4)):
            with unittest.mock.patch.multiple(turns.memory, available=lambda n=available: n << 30, _of_process=status.get), \
                    unittest.mock.patch.object(resource, "getrlimit", lambda limit, limits=limits: (
                        limits[limit] << 30 if limit in limits else resource.RLIM_INFINITY, 0)), \
                    unittest.mock.patch.object(turns.job, "n_local", lambda: 2), unittest.mock.patch.dict(sys.modules, torch=None):
                self.assert_room(turns.Turns(None, 4, 2), left == 4, r"a rank here has %.2f GiB left" % left)

    def test_a_cgroup_around_the_process_counts_without_files_that_are_cached(self):
        for line, names in (("0::/a/b", ("memory.max", "memory.current", "inactive_file")),
                            ("4:memory:/a/b", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))):
            folder = "/sys/fs/cgroup" + ("/memory" if line[0] == "4" else "") + "/a"
            files = {"/proc/self/cgroup": line, "/proc/meminfo": "MemAvailable: 9000 kB", "%s/%s" % (folder, names[0]): "5000000",
                     "%s/%s" % (folder, names[1]): "3000000", folder + "/memory.stat": "anon 7\n%s 1000000" % names[2],
                     folder + "/b/" + names[0]: "max", folder + "/b/" + names[1]: "7"}

            def reads(path, files=files, **_):
                if path not in files:
                    raise FileNotFoundError(path)
                return io.StringIO(files[path] + "\n")
            with unittest.mock.patch.object(turns.memory, "open", reads, create=True):
                self.assertEqual(turns.memory.available(), 3000000)

    def test_finalists_that_change_what_is_held_tell_how_much(self):
        fsdp = os.path.join(os.path.dirname(BUNDLED), "torch-fsdp-gloo-n2-memory")
        for one in self.assert_json("optimize", fsdp, "--finalists", "5", "-o", self.path("plan"))["finalists"]:
            memory = read_json(os.path.join(one["plan"], "plan.json"))["memory"]
            self.assertGreater(memory["peak_bytes"], memory["baseline_peak_bytes"])  # units are kept


class Page(Case):
    """tune.html, of a race that is simulated."""

    def told(self, n_blocks):
        names = ["as it was <b>", *("buckets+parts+order+%d" % n for n in range(5))]
        contest, history, turns = race.Race(["baseline", *names], "baseline", 2000, 4), [], []
        for block in range(n_blocks):
            if block:
                history.append(tune_page.of_state(contest.state()))
            for i, name in enumerate(contest.next_block() or ()):
                step_ns = [10 ** 8 - 10 ** 6 * names.index(name) + 10 ** 5 * (i % 3)] * 4 if name in names else [10 ** 8] * 4
                turns.append({"name": name, "step_ns": step_ns})
                contest.add(name, step_ns)
        history.append(tune_page.of_state(contest.state()))
        return tune.finite({"race": contest.state(), "history": history, "turns": turns, "cost_pct": -9.6, "finalists": [
            {"name": name, "promised_pct": 3.0, "promised_half_pct": 2.0} for name in names]})

    def test_it_tells_of_each_finalist_what_was_expected_and_measured(self):
        for n_blocks in (1, 3):
            told = self.told(n_blocks)
            page = tune_page.page(told, "the job goes on with <this>")
            self.assertIn("The job goes on with &lt;this&gt;", page)
            self.assertIn("as it was &lt;b&gt;", page)
            self.assertNotIn("<script", page)
            for name, one in told["race"]["names"].items():
                self.assertIn("%.1f %%" % one["saves_pct"], page, name)
            self.assertEqual(page.count("expected 3.0 (&plusmn; 2.0)"), 6)
            self.assertIn("9.6 % less than as it ran", page)

    def test_one_that_came_in_late_has_its_points_and_one_that_never_ran_no_number(self):
        contest = race.Race(["baseline", "first", "late", "never"], "baseline", 52, 4)
        history = []
        while turns := contest.next_block():
            for name in turns:
                contest.add(name, [110 if name == "first" else 100] * 4)
            history.append(tune_page.of_state(contest.state()))
        page = tune_page.page(tune.finite({"race": contest.state(), "history": history, "turns": [], "finalists": [
            {"name": "late", "promised_pct": 1.0, "environment": {"DPRO_PLAN": "/plan", "THREADS": "2"}}]}), "text")
        late = page.partition('">late<')[2].partition('class="name"')[0]
        self.assertIn("<div>THREADS=2</div>", late)
        self.assertEqual(late.count("<title>block "), contest.state()["names"]["late"]["blocks"])
        self.assertGreater(late.count("<title>block "), 0)
        self.assertRegex(page, r'never</div></div><div class="dim">not measured: the budget')

    def test_it_fits_any_width(self):
        if not CHROMIUM:
            self.skipTest("no Chromium")
        tune_page.write(self.path("tune.html"), self.told(3), "x" * 300)
        for width in (390, 1200):
            with browser().page(self.path("tune.html"), width=width):
                self.assertLessEqual(browser().evaluate("document.documentElement.scrollWidth"), width)
