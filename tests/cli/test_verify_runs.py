"""dpro verify where each turn is a run of the job: with a program in the job's place that leaves step times, and with a stand-in
for MXNet, whose steps take as long as it is told. Real jobs are in tests/live/test_verify.py."""
import os
import sys

from support import CHECK_FAILED, DONE, INPUT, USAGE, Case, dpro

NAMES = ["a", "b"]


def plan_for(stack="mxnet-ps", framework="mxnet"):
    return {"schema": "dpro.plan/1", "dpro": "0.1.0",
            "job": {"framework": framework, "stack": stack, "world_size": 2,
                    "models": [{"name": "net", "parameters": [{"name": name, "size_bytes": 8} for name in NAMES]}]},
            "expected": {"baseline_ms": 100.0, "iteration_ms": 80.0, "uncertainty_pct": 2.0},
            "communication": {"compression": "none", "changes_numerics": False,
                              "buckets": [{"parameters": [name], "size_bytes": 8} for name in NAMES]}}


# Leaves steps of TIMES[turn][block] ms, writes down what it was told; EXTRA may change the value, leave another file, or exit.
PROGRAM = """
import json, os, sys
turn, block, path = (os.environ["DPRO_VERIFY" + name] for name in ("_TURN", "_BLOCK", ""))
block, planned = int(block), "DPRO_PLAN" in os.environ
with open("told", "a") as file:
    file.write(" ".join([turn, str(block), os.environ.get("DPRO_PLAN", "-"), os.environ.get("MXNET_KVSTORE_BIGARRAY_BOUND", "-")]) + "\\n")
n_run = len(open("told").readlines())
ns = [round(1e6 * TIMES[turn][block] * share) for share in (0.99, 1, 9, 1, 1.01)]
value = {"schema": "dpro.verify-steps/1", "rank": 0, "plan": os.environ.get("DPRO_PLAN"), "complete": True, "problem": None,
         "framework_version": "1.9.1", "world_size": 2, "models": [], "steps": 5, "settle": 0, "blocks": 4, "warmup": 10, "step": 15,
         "asynchronous": False, "warnings": ["the same"],
         "turns": [{"block": block, "name": turn, "first_step": 11, "span_ns": sum(ns), "step_ns": ns,
                    "bucket_bytes": [8, 8] if planned else []}]}
print("its output")
EXTRA
with open(path, "w") as file:
    json.dump(value, file)
"""
OWN, PLAN = [100.0, 104.0, 98.0, 101.0], [80.0, 84.0, 79.0, 80.0]


class Runs(Case):
    def setUp(self):
        super().setUp()
        self.write("plan/plan.json", plan_for())
        self.write("plan/mxnet.env", "MXNET_KVSTORE_BIGARRAY_BOUND=4000\n")

    def verify(self, *arguments, extra="", env=None, given="plan", **times):
        if os.path.exists(self.path("told")):
            os.unlink(self.path("told"))
        program = PROGRAM.replace("EXTRA", extra).replace("TIMES", repr({"baseline": OWN, "plan": PLAN, **times}))
        return dpro("verify", "--plan", given, *arguments, "--", sys.executable, "-S", self.write("train.py", program), cwd=self.folder,
                    env={"TMPDIR": self.folder, **(env or {})})

    def told(self):
        with open(self.path("told"), encoding="utf-8") as file:
            return [line.split() for line in file]

    def test_turns_are_runs_in_mirrored_order_and_only_the_plans_are_given_it(self):
        result = self.verify("--json", "--blocks=3", env={"DPRO_PLAN": "another", "MXNET_KVSTORE_BIGARRAY_BOUND": "7"})
        self.assert_code(result, DONE)
        own, planned = ["-", "7"], [self.path("plan"), "4000"]
        self.assertEqual(self.told(), [[name, str(block), *(planned if name == "plan" else own)] for block in range(3)
                                       for name in ("baseline", "plan", "plan", "baseline")])
        self.assertEqual(result.err.count("verify: run "), 12)
        self.assertIn("dpro: verify: run 12 of 12: baseline\n", result.err)
        self.assertEqual(result.err.count("its output"), 12)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("dpro-verify")], [])

    def test_what_is_told_is_what_is_told_of_one_run(self):
        result = self.verify("--json")
        self.assert_code(result, DONE)
        told = result.json
        self.assertEqual((told["schema"], told["runs"], told["blocks"], told["steps"], told["settle"], told["warmup"]),
                         ("dpro.verify/1", 16, 4, 5, 0, 10))
        self.assertEqual((told["complete"], told["problem"], told["warnings"]), (True, None, ["the same"]))
        self.assertEqual(told["plan"], self.path("plan"))
        self.assertEqual([c["per_turn_ms"] for c in told["configurations"]],
                         [[ms for ms in times for half in (1, 2)] for times in (OWN, PLAN)])
        self.assertEqual([c["bucket_bytes"] for c in told["configurations"]], [[], [8, 8]])
        self.assertEqual((told["verdict"], told["expected_gain_pct"]), ("as-expected", 20.0))
        self.assertAlmostEqual(told["gain_pct"]["mean"], 19.8, delta=0.2)
        said = " ".join(self.verify().out.split())
        self.assertIn("as expected (20.0 +- 1.6 %)", said)
        self.assertIn("4 blocks of mirrored turns, each a run of the job: 5 steps after 10 to warm up; 2 ranks", said)
        self.assertIn("baseline 100.5 - - - -", said)
        self.assert_code(self.verify("--fail-on", "slower", plan=[130.0] * 4), CHECK_FAILED)

    def test_another_plan_takes_its_turns(self):
        self.write("other/plan.json", plan_for())
        self.write("other/mxnet.env", "MXNET_KVSTORE_BIGARRAY_BOUND=9\n")
        result = self.verify("--json", "--blocks=2", "--against", "plan=other", **{"plan=other": [90.0] * 4})
        self.assert_code(result, DONE)
        self.assertEqual([line[0] for line in self.told()], ["baseline", "plan", "plan=other", "plan=other", "plan", "baseline"] * 2)
        self.assertEqual({line[0]: line[3] for line in self.told()}, {"baseline": "-", "plan": "4000", "plan=other": "9"})
        self.assertEqual((result.json["best_other"], result.json["configurations"][2]["gain_pct"]["mean"] > 9), ("plan=other", True))

    def test_buckets_by_size_take_their_turns_in_a_job_of_ddps(self):
        self.write("plan/plan.json", plan_for("ddp", "pytorch"))
        result = self.verify("--turns=runs", "--json", "--blocks=1", "--against", "cap=5", **{"cap=5": [90.0]})
        self.assert_code(result, DONE)
        self.assertEqual([line[0] for line in self.told()], ["baseline", "plan", "cap=5", "cap=5", "plan", "baseline"])
        self.assertEqual({line[0]: line[2] for line in self.told()}, {"baseline": "-", "plan": self.path("plan"), "cap=5": "-"})
        self.assertEqual((result.json["turns"], result.json["runs"], result.json["best_other"]), ("runs", 6, "cap=5"))

    def test_a_run_that_fails_ends_all_and_what_was_measured_is_told(self):
        result = self.verify("--json", extra="n_run == 15 and sys.exit(7)")
        self.assert_code(result, 7)
        self.assertEqual(len(self.told()), 15)
        self.assertEqual((result.json["blocks"], result.json["complete"]), (3, False))
        self.assertEqual(result.json["problem"], "run 15 of 16 (plan): it ended with exit code 7")
        self.assertIn("dpro: run 15 of 16 (plan): it ended with exit code 7\n", result.err)
        result = self.verify(extra="n_run == 6 and sys.exit(7)")
        self.assert_code(result, 7)
        self.assertIn("4 were wanted, but run 6 of 16 (plan): it ended with exit code 7", " ".join(result.out.split()))
        result = self.verify(extra="n_run == 3 and sys.exit(7)")
        self.assert_code(result, 7)
        self.assertEqual(result.out.count("\n"), 3)  # the program's alone
        self.assertIn("dpro: not one block of turns was measured: run 3 of 16 (plan): it ended with exit code 7\n", result.err)

    def test_a_plan_that_is_not_applied_is_said_and_nothing_is_judged(self):
        result = self.verify(extra="planned and value.update(turns=[], problem='the plan is not applied: rank 1: it is another')")
        self.assert_code(result, INPUT)
        self.assertEqual(len(self.told()), 2)
        self.assertIn("run 2 of 16 (plan): the plan is not applied: rank 1: it is another", result.err)
        self.assertNotIn("saves", result.out)

    def test_a_program_that_does_not_train_is_run_once(self):
        result = self.verify(extra="sys.exit(0)")
        self.assert_code(result, INPUT)
        self.assertEqual(len(self.told()), 1)
        self.assertIn("nothing was measured: run 1 of 16 (baseline): no Python process made a step of training", result.err)

    def test_hosts_without_rank_0_make_the_same_runs_and_say_where_the_result_is(self):
        for name, extra in (("another rank", "value['rank'], path = 1, path + '.other'"),
                            ("servers", "value, path = {'rank': -1, 'turns': []}, path + '.serves'"),
                            # MXNet numbers its workers anew in each run: that of the first counts
                            ("rank 0 later", "n_run % 2 and (value.update(rank=1)); path += '.other' if n_run % 2 else ''")):
            with self.subTest(name):
                result = self.verify("--json", "--blocks=2", extra=extra)
                self.assertEqual((result.code, result.out, len(self.told())), (DONE, "", 8), result.err)
                self.assertIn("rank 0 of the job, on another node, has the result", result.err)
        result = self.verify("--json", "--blocks=2",
                             extra="n_run % 2 or value.update(rank=1); path += '' if n_run % 2 else '.other'")
        self.assertEqual(result.json["blocks"], 2)

    def test_steps_in_disorder_are_refused(self):
        self.assert_code(self.verify(extra="value['turns'][0]['name'] = 'baseline'"), INPUT)
        self.assert_code(self.verify(extra="value['turns'] *= 2"), INPUT)
        self.assert_code(self.verify(extra="value = [1]"), INPUT)

    def test_what_has_no_meaning_here_is_refused_before_anything_runs(self):
        self.write("other/plan.json", plan_for("horovod"))
        self.write("byteps/plan.json", plan_for("byteps"))
        for plan, arguments, code, text in (("plan", ["--settle=2"], USAGE, "--settle is for turns within one run"),
                                            ("plan", ["--turns=steps"], USAGE, "only PyTorch's DDP can be switched"),
                                            ("plan", ["--against", "cap=5"], USAGE, "PyTorch's DDP's"),
                                            ("plan", ["--against", "plan=other"], INPUT, "it is for horovod"),
                                            ("plan", ["--against", "plan=plan", "--against", "plan=plan"], USAGE, "given twice"),
                                            ("plan", ["--against", "plan=nowhere"], INPUT, "nowhere"),
                                            ("byteps", [], INPUT, "BytePS")):
            with self.subTest(plan=plan, arguments=arguments):
                result = self.verify(*arguments, given=plan)
                self.assert_error(result, code, text)
                self.assertFalse(os.path.exists(self.path("told")))


# As much of MXNet as a trainer needs; a step takes longer without the plan's variable.
FAKE_MXNET = {
    "mxnet/__init__.py": "__version__ = '1.9.1'\nfrom . import nd\nfrom .gluon import trainer\n",
    "mxnet/nd.py": "def waitall():\n    pass\n",
    "mxnet/gluon/__init__.py": "",
    "mxnet/gluon/trainer.py": """
import os, time
class Trainer:
    def step(self, batch_size):
        time.sleep(0.002 if "MXNET_KVSTORE_BIGARRAY_BOUND" in os.environ else 0.02)
    def update(self, batch_size):
        pass
""",
}
TRAIN = "import mxnet\ntrainer = mxnet.gluon.trainer.Trainer()\nfor i in range(N):\n    trainer.step(8)\nprint('trained')\n"


class Jobs(Case):
    """With the package in the job."""

    def setUp(self):
        super().setUp()
        for name, text in FAKE_MXNET.items():
            self.write(name, text)
        self.write("plan/plan.json", plan_for())
        self.write("plan/mxnet.env", "MXNET_KVSTORE_BIGARRAY_BOUND=4000\n")

    def verify(self, *arguments, steps, train=TRAIN):
        script = self.write("train.py", train.replace("range(N)", "range(%d)" % steps))
        return dpro("verify", "--plan", "plan", "--warmup=2", "--steps=6", *arguments, "--", sys.executable, script, cwd=self.folder,
                    env={"TMPDIR": self.folder})

    def test_steps_are_timed_in_the_job(self):
        result = self.verify("--json", "--blocks=3", steps=10)
        self.assert_code(result, DONE)
        told = result.json
        self.assertEqual((told["runs"], told["blocks"], told["steps"], told["warmup"], told["world_size"], told["framework_version"]),
                         (12, 3, 6, 2, 1, "1.9.1"))
        self.assertTrue(told["plan"].endswith("plan/plan.json"))
        self.assertGreater(told["gain_pct"]["mean"], 30)  # 90 where nothing else runs
        self.assertEqual([c["bucket_bytes"] for c in told["configurations"]], [[], [8, 8]])
        self.assertEqual(result.err.count("trained"), 12)
        self.assertRegex(result.err, r"dpro: verify: baseline: \d+\.\d ms a step\n")
        self.assertEqual(sorted(os.listdir(self.folder)), ["mxnet", "plan", "train.py"])

    def test_with_stop_a_run_ends_with_its_turn(self):
        result = self.verify("--stop", "--blocks=1", steps=100000)
        self.assert_code(result, DONE)
        self.assertNotIn("trained", result.out)
        self.assertIn("too few to exclude noise", " ".join(result.out.split()))

    def test_a_job_that_is_too_short_says_what_a_turn_takes(self):
        result = self.verify(steps=7)
        self.assert_code(result, INPUT)
        self.assertIn("run 1 of 16 (baseline): the job ended after step 7, and a turn takes 8 (2 to warm up, 6 that are timed)", result.err)

    def test_a_plan_whose_variables_are_not_set_is_not_applied(self):
        train = "import os\nos.environ.pop('MXNET_KVSTORE_BIGARRAY_BOUND', None)\n" + TRAIN
        result = self.verify(steps=10, train=train)
        self.assert_code(result, INPUT)
        self.assertIn("run 2 of 16 (plan): the plan is not applied: MXNET_KVSTORE_BIGARRAY_BOUND is not 4000 in this process",
                      result.err)

    def test_a_job_that_runs_ahead_of_what_computes_is_timed_as_a_whole(self):
        """Steps that only ask take nothing; to wait for them takes what they take."""
        trainer = "mxnet/gluon/trainer.py"
        self.write(trainer, FAKE_MXNET[trainer].replace("time.sleep(", "from .. import nd; nd.asked += ("))
        self.write("mxnet/nd.py", "import time\nasked = 0\ndef waitall():\n    global asked\n    time.sleep(asked)\n    asked = 0\n")
        result = self.verify("--json", "--blocks=1", steps=10)
        self.assert_code(result, DONE)
        own = result.json["configurations"][0]["iteration_ms"]
        self.assertTrue(20 <= own < 200, own)

    def test_a_failure_of_dpros_own_leaves_the_job_alone(self):
        self.write("mxnet/nd.py", "def waitall():\n    raise RuntimeError('broken')\n")
        result = self.verify(steps=10)
        self.assert_code(result, INPUT)
        self.assertIn("the verification ends, the job goes on: RuntimeError: broken", result.err)
        self.assertIn("run 1 of 16 (baseline): RuntimeError: broken", result.err)
        self.assertIn("trained", result.out)
