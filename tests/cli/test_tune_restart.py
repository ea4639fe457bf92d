"""dpro tune --restart: short runs of a job one after the other, with a program in the job's place whose steps take as long as its
variables say."""
import os
import signal
import sys
import types
import unittest.mock

from support import DONE, INPUT, ROOT, SYSTEM, USAGE, Case, dpro, read_json, read_text

sys.path.insert(0, os.path.join(ROOT, "python"))
from dpro import loader_workers, tensorflow_fusion, tune_restart  # noqa: E402

# Its steps take STEP_MS, an expression of `get`, which reads a variable, and `noise`; EXTRA may do more.
PROGRAM = """
import json, os, random, sys
get, path = os.environ.get, os.environ["DPRO_VERIFY"]
with open("told", "a") as file:
    file.write(" ".join([get("DPRO_VERIFY_TURN"), get("A", "-"), get("DPRO_PLAN", "-"), get("HOROVOD_CYCLE_TIME", "-")]) + "\\n")
n_run = len(open("told").readlines())
chance = random.Random(n_run)
ns = [int(1e6 * (STEP_MS) * chance.gauss(1, 0.01)) for _ in range(int(get("DPRO_VERIFY_STEPS")))]
value = {"schema": "dpro.verify-steps/1", "rank": 0, "problem": None, "asynchronous": False, "uses": USES,
         "turns": [{"block": 0, "name": get("DPRO_VERIFY_TURN"), "step_ns": ns, "span_ns": sum(ns), "peak_bytes": None}]}
EXTRA
with open(path, "w") as file:
    json.dump(value, file)
"""


class Restarts(Case):
    def tune(self, *options, time="100", uses="{}", extra="", env=None):
        program = self.write("train.py", PROGRAM.replace("STEP_MS", time).replace("USES", uses).replace("EXTRA", extra))
        return dpro("tune", "--restart", "-o", "plan", *options, "--", sys.executable, "-S", program, cwd=self.folder,
                    env={"DPRO_VERIFY_STEPS": "6", "DPRO_WARMUP": "2", **(env or {})})

    def told(self):
        with open(self.path("told"), encoding="utf-8") as file:
            return [line.split() for line in file]

    def state(self):
        return read_json(self.path("plan", "tune.json"))

    def best(self):
        return read_text(self.path("plan", "tune.env"))

    FASTER = "{'4': 90, '8': 97}.get(get('A'), 100)"

    def test_the_value_with_which_the_job_is_fastest_is_named(self):
        result = self.tune("--try", "A=4,8", time=self.FASTER)
        self.assert_code(result, DONE)
        self.assertRegex(result.err, r"tune: A=4 is fastest, and saves \d+\.\d % .* of a step; 9\d\.\d % sure after \d+ runs")
        self.assertIn("tune: next: env A=4 " + sys.executable, result.err)
        self.assertEqual(self.best(), "A=4\n")
        state = self.state()
        self.assertEqual((state["schema"], state["complete"], state["race"]["winner"]), ("dpro.tune/1", True, "A=4"))
        self.assertEqual(len(state["turns"]), len(self.told()) - 1)  # the first run tells what the job uses
        self.assertEqual({(name, value) for name, value, *_ in self.told()}, {("baseline", "-"), ("A=4", "4"), ("A=8", "8")})

    def test_a_job_that_nothing_makes_faster_is_left_alone(self):
        result = self.tune("--try", "A=4,8")
        self.assert_code(result, DONE)
        self.assertIn("tune: the job is best started as it was", result.err)
        self.assertEqual(self.best(), "")

    def test_the_same_command_goes_on_where_it_was_ended(self):
        ends = "if n_run == 5: import signal; os.kill(os.getppid(), signal.SIGINT); import time; time.sleep(9)"
        first = self.tune("--try", "A=4,8", time=self.FASTER, extra=ends)
        self.assert_code(first, 130)
        self.assertIn("tune: interrupted; so far", first.err)
        self.assertEqual(len(self.state()["turns"]), 3)
        second = self.tune("--try", "A=4,8", time=self.FASTER, extra=ends)
        self.assert_code(second, DONE)
        self.assertIn("tune: goes on after 3 runs", second.err)
        self.assertEqual(self.state()["race"]["winner"], "A=4")
        self.assertEqual(len(self.told()) - 2, len(self.state()["turns"]))
        other = self.tune("--try", "A=4", time=self.FASTER)
        self.assert_code(other, INPUT)
        self.assertIn("is of another command or of other options", other.err)

    def test_a_command_that_is_terminated_ends_its_run_with_what_that_had_started(self):
        result = self.tune("--try", "A=4", time=self.FASTER, extra="import signal, subprocess, time\nif n_run == 5:\n"
                           "    subprocess.Popen(['sleep', '71.3'])\n    os.kill(os.getppid(), signal.SIGTERM)\n    time.sleep(71)")
        self.assert_code(result, 128 + signal.SIGTERM)
        self.assertIn("tune: interrupted; so far", result.err)
        left = [name for name in os.listdir("/proc") if name.isdigit() and "sleep\0" + "71.3" in self.command_of(name)]
        self.assertEqual(left, [])

    @staticmethod
    def command_of(process):
        try:
            return read_text("/proc/%s/cmdline" % process)
        except OSError:
            return ""

    def test_what_can_not_be_read_or_started_is_one_line(self):
        for text, why in (("{", "is damaged (JSONDecodeError: "), ("[]", "is damaged (AttributeError: ")):
            self.write("plan/tune.json", text)
            result = self.tune("--try", "A=4")
            self.assert_code(result, INPUT)
            self.assertEqual((result.err.count("\n"), why in result.err), (1, True), result.err)
        os.unlink(self.path("plan", "tune.json"))
        for folder, program, code, why in (("plan", "no-such", SYSTEM, "tune: no-such: No such file"),
                                           ("train.py", "true", SYSTEM, "train.py: Not a directory")):
            result = dpro("tune", "--restart", "-o", folder, "--", program, cwd=self.folder)
            self.assert_code(result, code)
            self.assertIn(why, result.err.splitlines()[-1])

    def test_plans_in_the_folder_and_variables_of_what_the_job_uses_are_tried(self):
        for folder in ("plan", "plan/finalist-2"):
            self.write(folder + "/plan.json", {"job": {"stack": "horovod"}})
            self.write(folder + "/horovod.env", "HOROVOD_CYCLE_TIME=%d\n" % len(folder))
        result = self.tune("--budget", "900", time="80 if get('DPRO_PLAN') else 100",
                           uses="{'carriers': ['horovod'], 'cpus': 4, 'threads': 2, 'local_ranks': 2}")
        self.assert_code(result, DONE)
        told = {name: more for name, *more in self.told()}
        self.assertEqual(told["finalist-2"], ["-", self.path("plan", "finalist-2"), "15"])
        self.assertEqual(told["HOROVOD_CYCLE_TIME=5"], ["-", "-", "5"])
        self.assertIn("HOROVOD_FUSION_THRESHOLD=0", told)
        self.assertIn("OMP_NUM_THREADS=1", told)
        self.assertNotIn("OMP_NUM_THREADS=2", told)
        self.assertNotIn("BYTEPS_PARTITION_BYTES=1048576", told)
        self.assertIn("next: dpro profile --plan " + self.path("plan"), result.err)

    def test_a_run_that_fails_is_out_and_the_others_go_on(self):
        result = self.tune("--try", "A=4,8", time=self.FASTER, extra="if get('A') == '4': sys.exit(3)")
        self.assert_code(result, DONE)
        self.assertIn("tune: A=4 is out: it ended with exit code 3", result.err)
        self.assertEqual(sum(name == "A=4" for name, *_ in self.told()), 1)
        result = self.tune("--try", "A=5", extra="sys.exit(3)")
        self.assert_code(result, INPUT)

    def test_a_job_that_can_not_be_measured_is_said(self):
        result = self.tune("--try", "A=4", extra="sys.exit(7)")
        self.assert_code(result, INPUT)
        self.assertIn("tune: the job as it is can't be measured: it ended with exit code 7", result.err)
        result = self.tune("--try", "A=4", extra="value['turns'] = []")
        self.assertIn("no Python process made a step of training", result.err)
        result = self.tune()
        self.assertIn("dpro knows no variable or plan to try for this job", result.err)

    def test_values_to_try_need_restarts(self):
        self.assert_code(dpro("tune", "-o", "plan", "--try", "A=1", "--", "true", cwd=self.folder), USAGE)
        self.assert_code(self.tune("--try", "A"), USAGE)
        self.assert_code(self.tune("--allow", "compile"), USAGE)


class Variables(Case):
    def test_a_run_that_hangs_is_ended(self):
        restarts = tune_restart.Restarts(self.folder, ["sleep", "60"], [])
        restarts._limit_s = 0.2
        with unittest.mock.patch.dict(os.environ):
            turn = restarts._measure("baseline")
        self.assertRegex(turn["problem"], "^it took longer than ")

    def test_data_loaders_get_another_number_of_workers(self):
        class Loader:
            def __init__(self, dataset, batch_size=1, num_workers=0, *, prefetch_factor=None, persistent_workers=False):
                self.dataset, self.num_workers, self.more = dataset, num_workers, (batch_size, prefetch_factor, persistent_workers)

        module = types.SimpleNamespace(DataLoader=Loader, IterableDataset=bytes)
        loader_workers.attach(3, module)
        self.assertEqual([one.num_workers for one in (Loader([], 8, 1), Loader([], num_workers=2), Loader([]), Loader(b""))], [3, 3, 3, 0])
        Loader.__init__ = Loader.__init__.__wrapped__
        loader_workers.attach(0, module)
        loader = Loader([], 8, 2, prefetch_factor=4, persistent_workers=True)
        self.assertEqual((loader.num_workers, loader.more, loader_workers.of_job(module)), (0, (8, None, False), 0))
        others = Loader([]), Loader([])
        others[1].num_workers = 1
        self.assertIsNone(loader_workers.of_job(module))
        tried = tune_restart.known({"cpus": 8, "local_ranks": 2, "loader_workers": 0}, {})
        self.assertEqual(tried, [{"DPRO_LOADER_WORKERS": text} for text in ("1", "2", "4")])

    def test_what_the_job_has_already_is_not_tried(self):
        tried = tune_restart.known({"carriers": ["horovod", "nccl"], "threads": None}, {"HOROVOD_CYCLE_TIME": "5"})
        self.assertIn({"HOROVOD_CYCLE_TIME": "10"}, tried)
        self.assertNotIn({"HOROVOD_CYCLE_TIME": "5"}, tried)
        self.assertIn({"NCCL_ALGO": "Tree"}, tried)

    def test_a_tensorflow_job_is_tried_with_what_xla_may_compile(self):
        uses = {"carriers": ["tensorflow"], "threads": None}
        tried = tune_restart.known(uses, {})
        self.assertEqual([tune_restart.named(values) for values in tried], ["XLA default", "XLA elementwise", "XLA by layer"])
        self.assertEqual(tune_restart.setting(tried[0]), "TF_XLA_FLAGS='--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit'")
        self.assertEqual(tune_restart.known(uses, {"TF_XLA_FLAGS": "--tf_xla_auto_jit=1"}), [])


class Fusion(Case):
    NAMES = ("Placeholder", "net/dense_1/MatMul", "net/dense_1/MatMul/ReadVariableOp", "net/norm/moments/mean", "net/norm/mul",
             "loss/sub", "gradient_tape/net/dense_1/MatMul/MatMul_1", "gradient_tape/net/norm/moments/mul", "gradient_tape/loss/Neg",
             "adam/net/dense_1/add", "AddN")

    def test_ops_and_their_gradients_are_told_apart_by_layers(self):
        found = tensorflow_fusion.clusters(self.NAMES, "layers")
        self.assertEqual(found, {
            "net/dense_1/MatMul": "net/dense_1", "net/dense_1/MatMul/ReadVariableOp": "net/dense_1", "net/norm/moments/mean": "net/norm",
            "net/norm/mul": "net/norm", "loss/sub": "loss", "gradient_tape/net/dense_1/MatMul/MatMul_1": "net/dense_1",
            "gradient_tape/net/norm/moments/mul": "net/norm", "gradient_tape/loss/Neg": "loss"})

    def test_a_layer_is_chosen_by_its_name_or_its_kind(self):
        for which, layers in (("dense", {"net/dense_1"}), ("net/norm,loss", {"net/norm", "loss"}), ("nothing", set())):
            self.assertEqual(set(tensorflow_fusion.clusters(self.NAMES, which).values()), layers)

    def test_a_layer_of_no_model_is_one(self):
        names = ("dense/MatMul", "dense/BiasAdd", "gradient_tape/dense/MatMul/MatMul", "gradient_tape/dense/BiasAdd/BiasAddGrad")
        self.assertEqual(set(tensorflow_fusion.clusters(names, "layers").values()), {"dense"})

    def test_flags_are_added_to_those_of_the_job(self):
        with unittest.mock.patch.dict(os.environ, {"DPRO_XLA": "elementwise", "TF_XLA_FLAGS": "--a"}):
            self.assertTrue(tensorflow_fusion.begin())
            self.assertEqual(os.environ["TF_XLA_FLAGS"],
                             "--a --tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_ops_to_cluster=FUSIBLE")
