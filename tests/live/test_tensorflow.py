"""TensorFlow jobs that are not changed leave a trace directory, and do not notice."""
import gzip
import json
import os
import shutil
import subprocess

import frameworks
import live

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
SESSION = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
x = tf1.random_normal((32, 64), seed=7)
w = [tf1.get_variable("w%d" % i, initializer=tf1.random_normal((64, 64), seed=i)) for i in range(3)]
y = x @ w[0] @ w[1] @ w[2]
loss = tf1.reduce_mean(y ** 2)
step = tf1.train.GradientDescentOptimizer(1e-9).minimize(loss)
def train(n):
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for i in range(n):
            value, _ = session.run([loss, step])
        print("LOSS", value, flush=True)
"""
TASKS = """
import json, os, subprocess, sys, time
if "TF_CONFIG" not in os.environ:
    cluster, started = CLUSTER, []
    for job in sorted(cluster):
        for index in reversed(range(len(cluster[job]))):
            config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
            started.append(subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "TF_CONFIG": config}))
    code = started[-1].wait() or started[-2].wait()
    for server in started[:-2]:
        server.kill()
    sys.exit(code)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
config = json.loads(os.environ["TF_CONFIG"])
cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
asked = tf1.ConfigProto()
asked.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
server = tf1.train.Server(cluster, job_name=task["type"], task_index=task["index"], config=asked)
if task["type"] == "ps":
    server.join()
"""
BETWEEN_GRAPHS = TASKS + """
from tensorflow.python.training import session_manager
class Hasty:
    time, monotonic = time.time, time.monotonic
    sleep = staticmethod(lambda s: time.sleep(0.1))  # for half a minute as a rule
session_manager.time = Hasty
with tf1.device(tf1.train.replica_device_setter(worker_device="/job:worker/task:%d" % task["index"], cluster=cluster)):
    y = tf1.random_normal((64, 256), seed=7)
    for i in range(3):
        y = y @ tf1.get_variable("w%d" % i, (256, 256))
    step = tf1.train.get_or_create_global_step()
    train = tf1.train.GradientDescentOptimizer(1e-9).minimize(tf1.reduce_mean(y ** 2), global_step=step)
with tf1.train.MonitoredTrainingSession(master=server.target, is_chief=task["index"] == 0) as session:
    for i in range(120):
        session.run(train)
print("TRAINED", task["index"], flush=True)
"""
COLLECTIVES = TASKS + """
from tensorflow.python.ops import collective_ops
with tf1.device("/job:worker/task:%d/device:CPU:0" % task["index"]):
    y = tf1.random_normal((64, 256), seed=task["index"])
    made = [tf1.get_variable("w%d" % i, initializer=tf1.random_normal((256, 256), seed=i)) for i in range(3)]
    for w in made:
        y = y @ w
    sums = []
    for key, gradient in enumerate(tf1.gradients(tf1.reduce_mean(y ** 2), made)):
        with tf1.control_dependencies(sums[-1:]):
            sums.append(collective_ops.all_reduce(gradient, 2, 1, 10 + key, "Add", "Div", communication_hint="ring"))
    train = tf1.train.GradientDescentOptimizer(1e-9).apply_gradients(zip(sums, made))
options = tf1.RunOptions()
options.experimental.collective_graph_key = 1
with tf1.Session(server.target, config=asked) as session:
    session.run(tf1.global_variables_initializer())
    for i in range(60):
        session.run(train, options=options)
print("TRAINED", task["index"], flush=True)
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
                profile = file.read()
            self.assertNotIn(b"ThreadpoolListener", profile)
            self.assertRegex(profile, rb"tf_Compute/\d{1,7}\D")  # a thread's own number: from dpro's tracer
        job = self.job()
        self.assertEqual((job["framework"], job["world_size"], job["parallel"]), ("tensorflow", 2, "data"))
        facts = self.assert_replays()
        self.assertEqual(len(facts["ranks"]), 2)
        self.assertEqual(self.final_loss(printed), self.final_loss(self.record("tensorflow", dpro=False)))


class Sessions(frameworks.Case):
    framework = "tensorflow"

    def test_a_parameter_server_job_leaves_a_profile_of_every_task(self):
        printed = self.record("tensorflow-ps")
        info = self.assert_windows()
        self.assertEqual((info["rank"], info["world_size"], info["warnings"]), (0, 2, []))
        self.assertNotIn("window", info)
        self.assertEqual(self.files("rank0"), {"rank.json", "net.log", "xplane.pb.gz", "runmeta.pb.gz"})
        self.assertEqual(self.files("rank1"), {"net.log", "xplane.pb"})
        self.assertEqual(self.files("ps0"), {"net.log", "xplane.pb"})
        facts = self.replay()
        self.assertEqual((facts["trace"]["iterations"], facts["warnings"]), (5, []))
        self.assert_close(facts)
        self.assertEqual(self.final_loss(printed), self.final_loss(self.record("tensorflow-ps", dpro=False)))

    def test_one_process_is_recorded_as_many_are(self):
        body = SESSION + "train(30)"
        run = self.run_script(body)
        self.assert_ran(run)
        self.assert_windows()
        self.assertEqual(self.files("rank0") - {"net.log"}, {"rank.json", "xplane.pb.gz", "runmeta.pb.gz"})
        self.assertEqual(self.replay()["trace"]["iterations"], 5)
        self.assertEqual(run.out, self.run_script(body, dpro=False).out)

    def run_tasks(self, body, servers):
        ports = ["127.0.0.1:%d" % port for port in live.free_ports(servers + 2)]
        return self.run_script(body.replace("CLUSTER", repr({"ps": ports[2:], "worker": ports[:2]} if servers else {"worker": ports})))

    def test_collectives_of_sessions_are_those_of_all_ranks(self):
        run = self.run_tasks(COLLECTIVES, servers=0)
        self.assert_ran(run)
        for rank in (0, 1):
            self.assertIn("TRAINED %d" % rank, run.out)
            self.assert_windows(rank)
        facts = self.replay()
        self.assertEqual((facts["trace"]["ranks_present"], facts["trace"]["iterations"]), ([0, 1], 5))
        self.assertEqual({(of["kind"], of["ranks"]) for of in facts["collectives"]}, {("all_reduce", 2)})
        self.assertEqual(sum(of["count"] for of in facts["collectives"]), 3)
        self.assert_close(facts)
        done = subprocess.run([live.DPRO, "optimize", "-q", self.trace, "--json"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        buckets = json.loads(done.stdout)["baseline"]["communication"]["buckets"]
        self.assertEqual([bucket["size_bytes"] for bucket in buckets], 3 * [4 * 256 * 256])

    def test_collectives_that_overlap_are_replayed_so(self):
        """With the tracer each process has a profile; without, the client asks TensorFlow of each step."""
        for options in ((), ("--net", "off")):
            with self.subTest(options=options):
                shutil.rmtree(self.trace, ignore_errors=True)
                self.record("tensorflow-collectives", options=options)
                facts = self.replay()
                self.assertEqual((facts["trace"]["ranks_present"], facts["trace"]["iterations"]), ([0, 1], 5))
                self.assertEqual(sum(of["count"] for of in facts["collectives"]), 8)
                self.assert_close(facts)

    def test_logs_from_the_start_are_those_of_their_processes(self):
        self.record("tensorflow-ps", options=("--net", "all"))
        logs = sorted(name for name in os.listdir(self.trace) if name.endswith(".log"))
        self.assertEqual(len(logs), 3, logs)  # beside the folders: nobody knew then whose they are
        facts = self.replay()
        self.assertEqual(facts["warnings"], [])
        self.assertEqual((facts["transport"]["processes"], facts["trace"]["iterations"]), (3, 5))

    def test_of_clients_with_sessions_of_their_own_one_is_replayed(self):
        run = self.run_tasks(BETWEEN_GRAPHS, servers=1)
        self.assert_ran(run)
        for rank in (0, 1):
            self.assertIn("TRAINED %d" % rank, run.out)
            self.assertTrue(self.rank(rank)["complete"])
        # the server profiles in rank 0's window; another client that gets to its own elsewhen asks of every step, and says so
        self.assert_windows(0)
        self.assertEqual(self.files("rank0"), {"rank.json", "net.log", "xplane.pb.gz", "runmeta.pb.gz"})
        self.assertIn("xplane.pb", self.files("ps0"))
        facts = self.replay()
        self.assertRegex("\n".join(facts["warnings"]), "several ranks drive a session .*: only that of rank 0 is replayed")
        self.assertEqual(facts["trace"]["iterations"], 5)
        self.assert_close(facts)

    def test_where_a_server_does_not_profile_every_step_is_asked_for(self):
        run = self.run_script("""
import os
if os.environ.get("DPRO"):
    import dpro.tensorflow_windows
    dpro.tensorflow_windows.SessionWindow._wait_for_tasks = lambda window: {"ps0"}
""" + SESSION + "train(30)")
        self.assert_ran(run)
        self.assertEqual(len([line for line in run.said if "no profile of ps0" in line]), 1, run.said)
        self.assertTrue(self.rank(0)["complete"])
        steps = {"runmeta_step%d.pb.gz" % step for step in range(5)}
        self.assertEqual(self.files("rank0") - {"net.log"}, steps | {"rank.json"})
        self.assertEqual(self.replay()["trace"]["iterations"], 5)


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
spaces = tf.io.gfile.glob("logs/plugins/profile/*/*.xplane.pb")
print(len(spaces), b"MatMul" in open(spaces[0], "rb").read())
""")
        self.assert_ran(run)
        self.assertTrue(run.out.endswith("\n1 True\n"), run.out)
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
    dpro.xplane._Kept.begin = lambda: None  # as on a GPU, or where there is no tracer
""" + LOOP + "train(30)")
        self.assert_ran(run)
        self.assertNotIn("Abort", run.err)
        self.assertIn("xplane.pb.gz", self.files("rank0"))
        self.assert_windows()
