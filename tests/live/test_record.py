"""A job that is not changed leaves a whole trace directory, and does not notice."""
import os
import shutil
import statistics
import subprocess

import live

DDP_JOB = """
dist.init_process_group("gloo")
model = DDP(net())
train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), 30)
end()
"""
SINGLE_JOB = """
model = net()
train(model, torch.optim.Adam(model.parameters()), 30)
end()
"""


class Directory(live.Case):
    WARM = True

    def test_an_unchanged_ddp_job_leaves_the_whole_directory(self):
        run = self.once(DDP_JOB)
        self.assert_ran(run)
        for rank in range(2):
            folder = os.path.join(self.trace, "host0", "rank%d" % rank)
            files = set(os.listdir(folder)) - {"net.log"}
            self.assertEqual(files, {"rank.json", "kineto.json.gz", "kineto_et.json.gz", "et.json.gz", "memory.json"})
            info = self.rank(rank)
            self.assertEqual((info["schema"], info["rank"], info["world_size"], info["host"], info["attempt"]),
                             ("dpro.rank/1", rank, 2, "0", 0))
            self.assertTrue(info["complete"])
            self.assertEqual((info["backend"], info["device"], info["batch_size"]), ("gloo", "cpu", 8))
            self.assertEqual(info["process_groups"], [{"name": "0", "description": "default_pg", "backend": "gloo",
                                                       "ranks": [0, 1]}])
            self.assertEqual([w["name"] for w in info["windows"]], ["timing", "structure"])
            for window in info["windows"]:
                for file in window["files"]:
                    self.assertTrue(os.path.exists(os.path.join(folder, file)), file)
            self.assertEqual([len(info["steps"][w]) for w in ("before", "timing", "structure", "after")], [3, 3, 2, 3])
            for step in (s for times in ("before", "timing", "structure", "after") for s in info["steps"][times]):
                self.assertGreater(step["cpu_ns"], 0)
                self.assertLess(step["cpu_ns"], 10 * (step["end_ns"] - step["start_ns"]) + 20e6)
                self.assertGreaterEqual(step["page_faults"], 0)
            self.assertTrue(50 <= info["profiler"]["op_ns"] <= 50_000, info["profiler"])
            self.assertGreaterEqual(info["profiler"]["n_ops"], 100)
            memory = info["memory"]
            self.assertEqual(memory["parameter_bytes"], 4 * (64 * 64 + 64) * 4)
            self.assertEqual(memory["gradient_bytes"], memory["parameter_bytes"])
            self.assertEqual(memory["optimizer_bytes"], memory["parameter_bytes"])  # momentum
            self.assertGreater(memory["rss_peak_bytes"], 50 << 20)
        job = self.job()
        self.assertEqual((job["world_size"], job["parallel"], job["backend"], job["batch_size"], job["iterations"]),
                         (2, "ddp", "gloo", 8, 3))
        self.assertEqual([(h["host"], h["ranks"]) for h in job["hosts"]], [("0", [0, 1])])
        ends = [line for line in run.said if "recorded steps" in line]
        self.assertEqual(len(ends), 1, run.said)  # rank 0 alone
        self.assertIn("recorded steps 8 to 10 of 2 ranks in %s; next: dpro replay %s" % (self.trace, self.trace), ends[0])

    def test_ranks_record_the_same_steps_and_the_profile_is_cut_there(self):
        self.assert_ran(self.once(DDP_JOB))
        steps = [[s["step"] for s in self.rank(rank)["steps"]["timing"]] for rank in range(2)]
        self.assertEqual(steps[0], steps[1])
        away_ns = []
        for rank in range(2):
            self.assertEqual(self.profiled_steps(rank), steps[0])
            times = self.rank(rank)["steps"]["timing"]
            trace = self.kineto(rank)
            base = trace["baseTimeNanoseconds"]
            for event in trace["traceEvents"]:
                if event.get("ph") == "X" and event["name"].startswith("ProfilerStep#"):
                    own = times[int(event["name"].partition("#")[2]) - steps[0][0]]
                    away_ns.append(abs(base + event["ts"] * 1000 - own["start_ns"]))
                    away_ns.append(abs(base + (event["ts"] + event["dur"]) * 1000 - own["end_ns"]))
        self.assertLess(statistics.median(away_ns), 2e6, away_ns)  # something else may run between two looks at the clock

    def test_the_last_optimizer_step_of_the_window_is_whole(self):
        self.assert_ran(self.once(SINGLE_JOB, world=1))
        events = [e for e in self.kineto()["traceEvents"] if e.get("ph") == "X"]
        steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
        updates = [e for e in events if e["name"].startswith("Optimizer.step#")]
        self.assertEqual(len(updates), 3)
        end = max(s["ts"] + s["dur"] for s in steps)
        self.assertLess(max(u["ts"] + u["dur"] for u in updates) - end, 1000)  # us; stopping takes longer

    def test_what_python_takes_to_collect_garbage_is_an_op(self):
        self.assert_ran(self.ranks("""
import gc
model = net()
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30, each=lambda i: gc.collect())
end()
""", world=1))
        collections = [e for e in self.kineto()["traceEvents"] if e.get("name") == "Python GC"]
        self.assertEqual({e["cat"] for e in collections}, {"cpu_op"})
        self.assertGreaterEqual(len(collections), 2)  # between three steps

    def test_losses_and_gradients_are_the_same_with_and_without(self):
        for job, world in ((DDP_JOB, 2), (SINGLE_JOB, 1)):
            with self.subTest(world=world):
                without = self.once(job, world, dpro=False)
                recorded = self.once(job, world)
                self.assert_ran(without)
                self.assertEqual(len(without.digests), world)
                self.assertEqual(recorded.digests, without.digests)
                self.assertEqual(recorded.codes, without.codes)

    def test_the_capture_replays(self):
        if not os.path.exists(live.DPRO):
            self.skipTest("no %s" % live.DPRO)
        self.assert_ran(self.ranks(DDP_JOB, DPRO_ITERATIONS="6"))
        facts = self.replay()
        self.assertGreater(facts["predicted"]["iteration_ms"], 0)
        self.assertGreater(facts["profiler"]["op_ns"], 0)
        self.assertLess(facts["profiler"]["iteration_ms"], facts["measured"]["iteration_ms"] / 2)

    def test_the_profiler_takes_no_new_pages_in_the_window(self):
        self.WARM = False  # what is forked has its pages already
        run = self.ranks("""
model = net(1536, 6)
train(model, torch.optim.SGD(model.parameters(), lr=1e-4), 32, width=1536)
end()
""", world=1, DPRO_WARMUP="6", DPRO_ITERATIONS="6")
        self.assert_ran(run)
        faults = [step["page_faults"] for step in self.rank()["steps"]["timing"]]
        self.assertLess(sum(faults) / len(faults), 1500, faults)  # 9 MiB, a layer's gradient, are 2304

    def test_a_job_that_trains_in_a_thread_is_recorded_to_the_threads_end(self):
        self.WARM = False
        body = """
import threading
def job():
    model = net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), STEPS)
thread = threading.Thread(target=job)
thread.start()
thread.join()
end()
"""
        for n_steps, recorded, why in ((9, [8, 9], "the thread that trains ended after step 9"), (30, [8, 9, 10], None)):
            with self.subTest(steps=n_steps):
                own, self.trace = body.replace("STEPS", str(n_steps)), self.path("trace%d" % n_steps)
                run = self.ranks(own, world=1)
                self.assert_untouched(run, own, world=1)
                self.assertEqual(self.profiled_steps(), recorded)
                self.assertEqual(self.rank()["ended_early"], why)
                self.assertEqual(len([line for line in run.said if "could not be enlarged for the profiler: the thread" in line]), 1)

    def test_a_window_ends_before_the_job_runs_out_of_memory(self):
        self.WARM = False
        job = """
import dpro.memory
dpro.memory.GROWTH = 1 << 60
kept = []
model = net()
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 40, each=lambda i: kept.append(torch.ones(1 << 20)))
end()
"""
        run = self.ranks(job, world=1, DPRO_ITERATIONS="6")
        self.assert_ran(run)
        self.assertIn("ends after", run.err)
        self.assertEqual(self.profiled_steps(), [11])
        self.assertEqual(len(self.rank()["steps"]["timing"]), 1)
        self.assertEqual(run.digests, self.ranks(job.replace("import dpro.memory\ndpro.memory.GROWTH = 1 << 60\n", ""),
                                                 world=1, dpro=False).digests)

    def test_a_step_of_very_many_ops_is_recorded_without_shapes_and_written_a_step_later(self):
        run = self.ranks("""
import dpro.profiler, dpro.windows
dist.init_process_group("gloo")
model = DDP(net())
dpro.windows.MOST_EVENTS = 20
write, n_steps = dpro.profiler.Window.write, 0
def write_and_tell(window, *args):
    sys.stdout.write("WRITTEN after %d\\n" % n_steps)
    return write(window, *args)
dpro.profiler.Window.write = write_and_tell
def count(i):
    global n_steps
    n_steps = i + 1
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30, each=count)
end()
""")
        self.assert_ran(run)
        self.assertIn("without shapes of tensors", run.err)
        for rank in (0, 1):
            info = self.rank(rank)
            timing = [window for window in info["windows"] if window["name"] == "timing"]
            self.assertEqual([(window["first_step"], window["n_steps"]) for window in timing], [(8, 1)])
            self.assertTrue(info["complete"])
            self.assertFalse([e for e in self.kineto(rank)["traceEvents"] if e.get("args", {}).get("Input Dims")])
        self.assertEqual(run.out.count("WRITTEN after 8"), 2, run.out)
        facts = self.replay()
        self.assertEqual([c["bytes"] for c in facts["collectives"]], [4 * 4 * (64 * 64 + 64)])
        self.assertEqual([w for w in facts["warnings"] if "bucket" in w], [])

    def test_what_a_hook_asks_for_when_its_first_collective_is_over_is_recorded(self):
        run = self.ranks("""
dist.init_process_group("gloo")
model = DDP(net())
def hook(state, bucket):
    def then(future):
        dist.all_reduce(torch.ones(1000))
        return future.value()[0]
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(then)
model.register_comm_hook(None, hook)
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30)
end()
""")
        self.assert_ran(run)
        for rank in (0, 1):
            runs = [e["args"]["Input Dims"] for e in self.kineto(rank)["traceEvents"] if e.get("name") == "gloo:all_reduce"]
            self.assertEqual(sorted(runs), [[[1000]]] * 3 + [[[4 * (64 * 64 + 64)]]] * 3)
        self.assertEqual([w for w in self.replay()["warnings"] if "no profile shows" in w], [])

    def test_steps_of_very_many_ops_are_recorded_in_short_windows(self):
        limit = "import dpro.windows\ndpro.windows.MOST_EVENTS = 200\n"
        job = live.SINGLE + limit + "train(model, optimizer, 60)\nend()\n"
        run = self.ranks(job, world=1, DPRO_ITERATIONS="10")
        self.assert_untouched(run, job.replace(limit, ""), world=1)
        self.assertIn("steps are recorded in windows of", run.err)
        self.assertIn("are left out", run.err)
        info = self.rank()
        timing = [window for window in info["windows"] if window["name"] == "timing"]
        self.assertEqual(len(timing), len(info["windows"]))
        self.assertGreater(len(timing), 1)
        first = 3 + 10 + 2
        for window in timing:
            self.assertLess(window["n_steps"], 10)
            self.assertTrue(first <= window["first_step"] and window["first_step"] + window["n_steps"] <= first + 10)
        self.assertEqual(self.replay()["trace"]["iterations"], sum(window["n_steps"] for window in timing))

    def test_a_job_without_distributed_has_one_rank_and_its_host_name(self):
        self.assert_ran(self.once(SINGLE_JOB, world=1))
        info = self.rank()
        self.assertEqual((info["rank"], info["world_size"], info["backend"], info["process_groups"]), (0, 1, None, []))
        self.assertEqual([m["parallel"] for m in info["models"]], ["none"])
        self.assertEqual(self.job()["parallel"], "none")
        self.assertEqual(os.path.basename(os.path.dirname(self.rank_folder())), "host" + info["host"])
        self.assertEqual(info["host"], info["host_name"])

    def test_a_second_run_gets_a_folder_of_its_own(self):
        self.once(SINGLE_JOB, world=1)
        shutil.copytree(self.trace, self.path("trace"))
        self.trace = self.path("trace")
        self.assert_ran(self.ranks(SINGLE_JOB, world=1))
        self.assertEqual(self.rank(root=os.path.join(self.trace, "attempt1"))["attempt"], 1)
        self.assertEqual(self.rank()["attempt"], 0)
        self.assertEqual(self.job(os.path.join(self.trace, "attempt1"))["attempt"], 1)

    def test_torchrun_records_its_workers_and_not_itself(self):
        path = self.script(DDP_JOB)
        run = self.command([*self.TORCHRUN, *self.warm_python(), path], **self.environment())
        self.assert_ran(run)
        self.assertEqual(self.profiled_steps(0), self.profiled_steps(1))
        self.assertEqual(self.job()["hosts"][0]["ranks"], [0, 1])
        self.assertEqual(len([line for line in run.said if "recorded" in line and "transport" not in line]), 1, run.said)

    def test_a_relative_folder_is_where_the_job_was_started(self):
        run = self.ranks("os.chdir('/')\n" + SINGLE_JOB, world=1, out="here")
        self.assert_ran(run)
        self.assertTrue(self.profiled_steps(root=self.path("here")))


class Elsewhere(live.Case):
    """Processes in which there is nothing to record."""
    WARM = True

    def test_python_without_torch_is_left_alone(self):
        run = self.command([live.PYTHON, "-c", "import sys; print('torch' in sys.modules)"], **self.environment())
        self.assert_ran(run)
        self.assertEqual((run.out, run.err), ("False\n", ""))
        self.assertFalse(os.path.exists(self.trace))

    def test_a_torch_that_trains_nothing_is_said_to_be_so(self):
        run = self.command([live.PYTHON, "-c", "import torch; print(torch.ones(2).sum().item())"], **self.environment())
        self.assert_ran(run)
        self.assertEqual(run.out, "2.0\n")
        self.assertEqual(len(run.said), 1, run.err)
        self.assertIn("nothing recorded", run.said[0])

    def test_without_the_variable_nothing_happens(self):
        environment = self.environment()
        del environment["DPRO"]
        path = self.script(SINGLE_JOB)
        run = self.command([live.PYTHON, path], **environment)
        self.assert_ran(run)
        self.assertEqual(run.said, [])
        self.assertFalse(os.path.exists(self.trace))

    def test_the_environments_own_sitecustomize_still_runs(self):
        os.mkdir(self.path("own"))
        with open(self.path("own", "sitecustomize.py"), "w", encoding="utf-8") as file:
            file.write("import sys; sys.own_ran = __file__\n")
        code = "import sys, sitecustomize; print(sys.own_ran == sitecustomize.__file__, %r in sys.path)" % live.SITE
        run = self.command([live.PYTHON, "-c", code],
                           **self.environment(PYTHONPATH=live.SITE + os.pathsep + self.path("own")))
        self.assert_ran(run)
        self.assertEqual(run.out, "True False\n")

    def test_importing_torch_is_what_it_was(self):
        code = ("import torch.optim.optimizer as o, importlib, inspect; print(o.__spec__.name, type(o.__loader__).__name__, "
                "'exec_module' in vars(o.__loader__), len(inspect.getsource(o)) > 1000); importlib.reload(o)")
        run = self.command([live.PYTHON, "-c", code], **self.environment())
        self.assert_ran(run)
        self.assertEqual(run.out, "torch.optim.optimizer SourceFileLoader False True\n")

    def test_a_wrong_number_is_said_and_the_default_used(self):
        run = self.ranks(SINGLE_JOB, world=1, DPRO_WARMUP="many")
        self.assert_ran(run)
        self.assertTrue(any("DPRO_WARMUP=many" in line for line in run.said), run.err)


class Activation(live.Case):
    """The interpreter is executed again with the tracer, once, and is otherwise what it was."""

    def setUp(self):
        super().setUp()
        self.package = self.path("package", "dpro")
        os.makedirs(self.path("package"))
        os.symlink(os.path.join(live.ROOT, "python", "dpro"), self.path("real"))
        subprocess.run(["cp", "-r", os.path.join(live.ROOT, "python", "dpro"), self.package], check=True)
        os.mkdir(os.path.join(self.package, "lib"))
        source = self.path("tracer.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write("""
#include <stdint.h>
#include <stdio.h>
int dpro_tracer_start(const char *path, int rank) { FILE *f = fopen(path, "a"); fprintf(f, "start %d\\n", rank); fclose(f); return 0; }
void dpro_tracer_stop(void) { puts("stop"); fflush(stdout); }
void dpro_tracer_mark(const char *name) { puts(name); fflush(stdout); }
int dpro_tracer_stats(uint64_t out[4]) { out[0] = 1; out[1] = 2; out[2] = 3; out[3] = 4; return 0; }
""")
        made = subprocess.run(["cc", "-shared", "-fPIC", "-o", os.path.join(self.package, "lib", "libdpro_tracer.so"),
                               source], stderr=subprocess.DEVNULL)
        if made.returncode:
            self.skipTest("no C compiler")
        self.site = os.path.join(self.package, "site")

    def test_arguments_input_and_exit_status_are_kept(self):
        code = "import os, sys; print(sys.argv, os.environ['LD_PRELOAD'], os.environ['DPRO_PRELOADED'] == str(os.getpid())); sys.exit(5)"
        run = self.command([live.PYTHON, "-W", "ignore", "-c", code, "a b", ""], **self.environment(PYTHONPATH=self.site))
        self.assertEqual(run.codes, [5], run.err)
        self.assertEqual(run.out, "['-c', 'a b', ''] %s True\n" % os.path.join(self.package, "lib", "libdpro_tracer.so"))

    def test_a_script_on_standard_input_runs(self):
        done = subprocess.run([live.PYTHON], input=b"import os\nprint('libdpro_tracer' in os.environ['LD_PRELOAD'])\n",
                              env=self.environment(PYTHONPATH=self.site), stdout=subprocess.PIPE, timeout=60)
        self.assertEqual(done.stdout, b"True\n")

    def test_not_when_the_transport_is_not_wanted(self):
        run = self.command([live.PYTHON, "-c", "import os; print(os.environ.get('LD_PRELOAD'))"],
                           **self.environment(PYTHONPATH=self.site, DPRO_NET="off"))
        self.assertEqual(run.out, "None\n")

    def test_the_tracer_runs_in_the_windows(self):
        run = self.ranks(SINGLE_JOB, world=1, PYTHONPATH=self.site)
        self.assert_ran(run)
        lines = [line for line in run.out.splitlines() if not line.startswith("DIGEST")]
        self.assertEqual(lines, ["timing", "/timing", "stop", "structure", "/structure", "stop"])
        with open(os.path.join(self.rank_folder(), "net.log"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "start 0\nstart 0\n")
        self.assertEqual(self.rank()["logs"]["net.log"], {"n_records": 1, "n_lost": 2, "file_bytes": 3, "memory_bytes": 4})

    def test_a_tracer_for_the_whole_job_is_only_marked(self):
        run = self.ranks(SINGLE_JOB, world=1, PYTHONPATH=self.site, DPRO_NET="all")
        self.assert_ran(run)
        lines = [line for line in run.out.splitlines() if not line.startswith("DIGEST")]
        self.assertEqual(lines, ["process rank0", "timing", "/timing", "structure", "/structure"])
