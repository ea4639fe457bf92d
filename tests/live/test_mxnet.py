"""MXNet jobs that are not changed, with their servers and scheduler, leave a trace directory."""
import gzip
import json
import os
import stat

import frameworks


class Store(frameworks.Case):
    framework = "mxnet"

    def check(self, name, n_servers, graph):
        before = set(os.listdir(".")) | {"out"}  # an example makes it
        printed = self.record(name)
        for rank in range(2):
            self.assertEqual(self.files("rank%d" % rank), {"rank.json", "mxnet.json.gz", "net.log", "symbol.json.gz", graph})
            info = self.assert_windows(rank)
            self.assertEqual((info["framework"], info["rank"], info["world_size"], info["backend"], info["batch_size"]),
                             ("mxnet", rank, 2, "dist_sync", 16))
            self.assertEqual(len(info["models"][0]["parameters"]), 16)
            self.assert_operators("rank%d" % rank, "KVStoreDistDefaultStoragePushPull", 16 * 5)
        for server in range(n_servers):
            self.assertEqual(self.files("server%d" % server), {"net.log", "mxnet.json.gz"})
            self.assert_operators("server%d" % server, "CopyCPU2CPU", 5)
        self.assertEqual(self.files("scheduler"), {"net.log"})
        self.assertEqual(set(os.listdir(".")) - before, set())  # a server writes its profile where it stands
        self.assertTrue(stat.S_ISCHR(os.stat(os.devnull).st_mode))  # MXNet removes, at its end, the file it was left with
        return printed

    def assert_operators(self, process, name, least):
        with gzip.open(os.path.join(self.trace, os.listdir(self.trace)[0], process, "mxnet.json.gz"), "rt") as file:
            events = json.load(file)["traceEvents"]
        n = sum(e.get("cat") == "operator" and e["ph"] == "B" and e["name"] == name for e in events)
        self.assertGreaterEqual(n, least, process)

    def test_a_module_and_its_server_are_recorded_and_train_the_same(self):
        self.assertEqual(self.final_loss(self.check("mxnet", 1, "exec_debug_str.txt.gz")),
                         self.final_loss(self.record("mxnet", dpro=False)))
        self.assert_replays()

    def test_gluon_and_its_servers_are_recorded(self):
        self.check("mxnet-gluon", 2, "debug_str.txt.gz")


class Steps(frameworks.Case):
    framework = "mxnet"
    LOOP = """
import mxnet as mx
mx.random.seed(7)
net, loss_of = mx.gluon.nn.Dense(1), mx.gluon.loss.L2Loss()
net.initialize()
net.hybridize()
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
x, y = mx.nd.random.normal(shape=(8, 16)), mx.nd.random.normal(shape=(8, 1))
def train(n):
    for i in range(n):
        with mx.autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step(8)
        value = loss.mean().asscalar()
    print("LOSS", value, flush=True)
"""

    def test_the_jobs_own_profiler_wins(self):
        run = self.run_script(self.LOOP + """
train(12)
mx.profiler.set_config(profile_all=True, filename="own.json")
mx.profiler.set_state("run")
train(2)
mx.profiler.set_state("stop")
mx.profiler.dump()
train(20)
import json
print(len(json.load(open("own.json"))["traceEvents"]) > 10)
""")
        self.assert_ran(run)
        self.assertTrue(run.out.endswith("\nTrue\n"), run.out)
        self.assertEqual([line for line in run.said if "mx.profiler" in line],
                         ["dpro: the job begins to use mx.profiler itself; the timing window ends"])

    def test_a_recording_leaves_the_profiler_to_the_job(self):
        body = self.LOOP + """
train(40)
mx.profiler.set_config(profile_all=True, filename="own.json")
mx.profiler.set_state("run")
train(2)
mx.profiler.set_state("stop")
mx.profiler.dump()
import json
print(sum(e.get("name") == "FullyConnected" for e in json.load(open("own.json"))["traceEvents"]))
"""
        run = self.run_script(body)
        self.assert_ran(run)
        self.assert_windows()
        self.assertEqual(run.out, self.run_script(body, dpro=False).out)

    def test_an_unhybridized_net_has_no_graph_and_says_so(self):
        run = self.run_script(self.LOOP.replace("net.hybridize()", "") + "train(30)")
        self.assert_ran(run)
        self.assertEqual(self.files("rank0") - {"net.log"}, {"rank.json", "mxnet.json.gz"})
        self.assertEqual(len([line for line in run.said if "hybridize() makes one" in line]), 1, run.said)
