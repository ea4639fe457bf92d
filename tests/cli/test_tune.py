"""dpro tune: what the job is given, and the search beside it, with stand-ins for both. Real jobs are in tests/live/test_tune.py."""
import json
import os
import sys
import time
import unittest.mock

from support import ROOT, USAGE, Case, dpro

sys.path.insert(0, os.path.join(ROOT, "python"))
from dpro import tune  # noqa: E402

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
        with open(self.path("told"), encoding="utf-8") as file:
            return json.load(file)

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




class Told(Case):
    def test_what_a_finalist_saves_or_costs_is_told_once_its_interval_tells_something(self):
        for mean, low, high, told in ((17.24, 12.1, 21.8, "saves 17.2 % (12.1 to 21.8)"),
                                      (-8.8, -30.6, 2.0, "costs 8.8 % (-2.0 to 30.6)"), (3.0, -1e20, 100.0, "saves 3.0 % (so far)"),
                                      (0.0, -float("inf"), float("inf"), "saves 0.0 % (so far)")):
            self.assertEqual(tune.saves({"saves_pct": mean, "low_pct": low, "high_pct": high}), told)
