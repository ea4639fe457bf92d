"""TensorFlow jobs that are not changed leave a trace directory, and do not notice."""
import gzip
import os
import unittest

import frameworks

PRELUDE = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf
tf.keras.utils.set_random_seed(7)
x, y = tf.random.normal((8, 16)), tf.random.normal((8, 1))
"""
LOOP = PRELUDE + """
w = tf.Variable(tf.random.normal((16, 1)))
@tf.function
def gradient_of(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - y) ** 2)
    return loss, tape.gradient(loss, w)
@tf.function
def step(x, y):
    loss, gradient = gradient_of(x, y)
    w.assign_sub(0.01 * gradient)
    return loss
@tf.function
def other(x):
    return tf.reduce_sum(x)
def train(n):
    for i in range(n):
        loss = step(x, y)
        other(x)
    print("LOSS", loss.numpy(), w.numpy().sum(), flush=True)
"""
UNKNOWN_OPS = """
import glob, gzip, sys
from tensorflow.core.protobuf import config_pb2
from tensorflow.tsl.profiler.protobuf import xplane_pb2
metadata, space = config_pb2.RunMetadata(), xplane_pb2.XSpace()
metadata.ParseFromString(gzip.open(sys.argv[1] + "/runmeta.pb.gz").read())
space.ParseFromString(gzip.open(sys.argv[1] + "/xplane.pb.gz").read())
nodes = {n.name for f in metadata.function_graphs for g in f.partition_graphs for n in g.node}
ops = {p.event_metadata[e.metadata_id].name for p in space.planes for l in p.lines for e in l.events}
ops = {name.rsplit(":", 1)[0] for name in ops if ":" in name and "::" not in name}
print(len(ops), *sorted(ops - nodes))
"""


class Ring(frameworks.Case):
    framework = "tensorflow"

    def test_an_unchanged_job_leaves_the_whole_directory_and_trains_the_same(self):
        printed = self.record("tensorflow")
        for rank in range(2):
            self.assertEqual(self.files("rank%d" % rank), {"rank.json", "xplane.pb.gz", "runmeta.pb.gz", "graph.pb.gz", "net.log"})
            info = self.assert_windows(rank)
            self.assertEqual((info["framework"], info["rank"], info["world_size"]), ("tensorflow", rank, 2))
            self.assertEqual(info["models"][0]["parallel"], "data")
            self.assertEqual(len(info["models"][0]["parameters"]), 16)
            unknown = self.in_framework(UNKNOWN_OPS, self.rank_folder(rank)).split()
            self.assertGreater(int(unknown[0]), 100)
            self.assertIn(unknown[1:], ([], ["EagerLocalExecute"]))
            with gzip.open(os.path.join(self.rank_folder(rank), "xplane.pb.gz")) as file:
                self.assertNotIn(b"ThreadpoolListener", file.read())
        job = self.job()
        self.assertEqual((job["framework"], job["world_size"], job["parallel"]), ("tensorflow", 2, "data"))
        facts = self.assert_replays()
        self.assertEqual(len(facts["ranks"]), 2)
        self.assertEqual(self.final_loss(printed), self.final_loss(self.record("tensorflow", dpro=False)))


class Sessions(frameworks.Case):
    framework = "tensorflow"

    def test_a_parameter_server_job_leaves_every_step_and_the_servers_transport(self):
        self.record("tensorflow-ps")
        info = self.assert_windows()
        self.assertEqual((info["rank"], info["world_size"]), (0, 2))
        steps = {"runmeta_step%d.pb.gz" % step for step in range(5)}
        self.assertEqual(self.files("rank0"), steps | {"rank.json", "net.log"})
        self.assertEqual(self.files("rank1"), {"net.log"})
        self.assertEqual(self.files("ps0"), {"net.log"})


class Steps(frameworks.Case):
    framework = "tensorflow"

    def check(self, body, boundary="optimizer", **more):
        run = self.run_script(body, **more)
        self.assert_ran(run)
        info = self.assert_windows()
        self.assertEqual(info["steps"]["boundary"], boundary)
        self.assertEqual(self.files("rank0") - {"net.log"}, {"rank.json", "xplane.pb.gz", "runmeta.pb.gz", "graph.pb.gz"})
        return run, info

    def test_a_step_is_a_call_of_the_function_that_takes_gradients(self):
        run, info = self.check(LOOP + "train(30)")
        self.assertEqual(self.run_script(LOOP + "train(30)", dpro=False).out, run.out)
        self.assertEqual([step["step"] for step in info["steps"]["timing"]], [11, 12, 13, 14, 15])

    def test_keras_fit_is_found(self):
        self.check(PRELUDE + """
model = tf.keras.Sequential([tf.keras.Input((16,)), tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y, batch_size=2, epochs=9, verbose=0)
""")

    def test_two_lines_say_where_a_step_ends(self):
        _, info = self.check(LOOP + """
import dpro
recorder = dpro.Recorder(w)
@dpro.profile(recorder)
def train_one_step():
    step(x, y)
    step(x, y)
for i in range(30):
    train_one_step()
""", boundary="recorder")
        self.assertEqual([step["step"] for step in info["steps"]["timing"]], [11, 12, 13, 14, 15])

    def test_the_jobs_own_profiler_wins(self):
        run = self.run_script(LOOP + """
train(12)
tf.profiler.experimental.start("logs")
train(2)
tf.profiler.experimental.stop()
train(20)
print(len(tf.io.gfile.glob("logs/plugins/profile/*/*.xplane.pb")))
""")
        self.assert_ran(run)
        self.assertTrue(run.out.endswith("\n1\n"), run.out)
        self.assertEqual([line for line in run.said if "tf.profiler" in line],
                         ["dpro: the job begins to use tf.profiler itself; the timing window ends"])

    def test_an_exception_of_the_jobs_arrives_as_it_was(self):
        body = LOOP + """
@tf.function
def broken(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.debugging.assert_less(x, -1e9, message="made to fail")
        loss = tf.reduce_sum(x)
    return tape.gradient(loss, x)
train(5)
try:
    broken(x)
except tf.errors.InvalidArgumentError as problem:
    print("made to fail" in str(problem))
train(30)
"""
        run = self.run_script(body)
        self.assert_ran(run)
        self.assertIn("\nTrue\n", run.out)
        self.assertEqual(run.out, self.run_script(body, dpro=False).out)

    def test_a_failure_inside_dpro_ends_the_recording_only(self):
        body = LOOP + "train(30)"
        broken = """
import os
if os.environ.get("DPRO"):
    import dpro.xplane
    def start(self, options): raise OSError("made to fail")
    dpro.xplane.Session.start = start
"""
        run = self.run_script(broken + body)
        self.assert_ran(run)
        self.assertEqual(run.out, self.run_script(body, dpro=False).out)
        self.assertEqual(len([line for line in run.said if "made to fail" in line]), 1, run.said)


class Crashes(frameworks.Case):
    framework = "tensorflow"

    def test_a_profiler_that_dies_takes_neither_the_job_nor_the_recording_with_it(self):
        run = self.run_script("""
import os
if os.environ.get("DPRO"):
    import dpro.xplane
    export = dpro.xplane.Session._export
    def dies(profiler, n_threads):
        if n_threads == 0:
            os.abort()
        export(profiler, n_threads)
    dpro.xplane.Session._export = staticmethod(dies)
""" + LOOP + "train(30)")
        self.assert_ran(run)
        self.assertNotIn("Abort", run.err)
        self.assertIn("xplane.pb.gz", self.files("rank0"))
        self.assert_windows()


if __name__ == "__main__":
    unittest.main()
