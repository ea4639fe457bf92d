"""A TensorFlow step measured in other ways after the windows (dpro profile --probe), and a job that is not changed by it."""
import json
import os
import shutil
import subprocess

import frameworks
import live
from test_tensorflow import LOOP, PRELUDE

FIT = PRELUDE + """
import numpy
model = tf.keras.Sequential([tf.keras.Input((16,)), tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dropout(0.2),
                             tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)])
model.compile("adam", "mse", OPTIONS)
data = tf.data.Dataset.from_tensor_slices((tf.random.normal((400, 16)), tf.random.normal((400, 1)))).shuffle(100).batch(8)
history = model.fit(data, epochs=2, verbose=0)
print("LOSS", history.history["loss"], [v.numpy().sum() for v in model.variables + model.optimizer.variables],
      model.layers[1].seed_generator.state.numpy() if hasattr(model.layers[1], "seed_generator") else "", flush=True)
"""
PYTHON_INSIDE = LOOP.replace("loss, gradient = gradient_of(x, y)",
                             "loss, gradient = gradient_of(tf.numpy_function(lambda a: a, [x], tf.float32), y)")
COMPILED = LOOP.replace("@tf.function\ndef step", "@tf.function(jit_compile=True)\ndef step")
LAST_BATCH = LOOP.replace("for i in range(n):", "for i in range(n):\n        if i > 22: break")


class TensorFlowProbe(frameworks.Case):
    framework = "tensorflow"

    def probes(self):
        with open(os.path.join(self.rank_folder(), "probes.json"), encoding="utf-8") as file:
            return json.load(file)

    def probed(self, body, asked="compile", **more):
        """Trains with a probe, and without dpro."""
        shutil.rmtree(self.trace, ignore_errors=True)
        run = self.run_script(body, **{"DPRO_PROBE": asked, "DPRO_PROBE_LIMIT": "120", **more})
        self.assert_ran(run)
        self.assertEqual(run.out, self.run_script(body, dpro=False).out)

    def assert_measured(self, ways):
        probes = self.probes()
        entry, *fusions = probes["probes"]
        self.assertEqual([fusion["modules"] for fusion in fusions][:1], [[["default"]]] * ("compile" in ways))
        self.assertEqual((entry["modules"], probes["device"], probes["ended_early"]), ([[""]], "cpu", None))
        for way in ways:
            self.assertGreaterEqual(len(entry["ways"][way].get("forward_ns", ())), 3, entry["ways"])
            self.assertGreater(min(entry["ways"][way]["forward_ns"]), 0)
        self.assertEqual(self.rank()["probes"], {"file": "probes.json"})
        self.assertEqual([name for name in self.files("rank0") if name.endswith(".part")], [])
        return entry

    def test_a_loop_of_its_own_is_measured_and_trains_the_same(self):
        self.probed(LOOP + "train(40)")
        entry = self.assert_measured(("eager", "compile"))
        self.assertEqual(entry["inputs"], [["float32", [8, 16]], ["float32", [8, 1]]])
        self.assertEqual(entry["ways"]["compile"]["graphs"], 1)

    def test_a_batch_of_an_iterator_is_kept_and_the_job_gets_it_all_the_same(self):
        self.probed(FIT.replace("OPTIONS", "jit_compile=False"), "compile,bf16")
        entry = self.assert_measured(("eager", "compile"))
        self.assertEqual(sorted(entry["inputs"]), [["float32", [8, 1]], ["float32", [8, 16]]])
        self.assertIn("compiled functions", entry["ways"]["compile+bf16"]["problem"])

    def test_steps_that_can_not_be_measured_say_why(self):
        for body, problem in ((FIT.replace("OPTIONS", "jit_compile=True"), "the job compiles itself"),
                              (COMPILED + "train(40)", "the job compiles itself"),
                              (PYTHON_INSIDE + "train(40)", "it does more than compute: PyFunc"),
                              (LAST_BATCH + "train(40)", "the job ended before")):
            with self.subTest(problem=problem):
                self.probed(body)
                self.assertIn(problem, self.rank()["probes"]["problem"])

    def test_what_is_not_done_in_time_is_ended(self):
        self.probed(LOOP + "train(40)", DPRO_PROBE_LIMIT="1")
        self.assertEqual(self.probes()["probes"][0]["ways"], {"compile": {"problem": "the time that was left was too short"}})

    def test_a_ring_is_compiled_between_its_collectives_and_the_gain_is_told(self):
        printed = self.record("tensorflow", options=("--probe", "compile", "--probe-limit", "120"))
        entry = self.assert_measured(("eager", "compile"))
        self.assertEqual(entry["ways"]["compile"]["graphs"], 2)
        self.assertNotIn("probes", self.rank(1))
        done = subprocess.run([live.DPRO, "whatif", "-q", self.trace, "--compile", "all", "--json"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        facts = json.loads(done.stdout)
        self.assertEqual(facts["computation"], {"compiled": [""], "bf16": [], "source": "probes"})
        self.assertNotEqual(facts["speedup"], 1)
        self.assertEqual(self.final_loss(printed), self.final_loss(self.record("tensorflow", dpro=False)))
