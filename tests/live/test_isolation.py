"""The job is isolated from dpro: whatever happens to either, the job computes, exits and is killed as without dpro. What was
written until then is readable."""
import glob
import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import time

import live
from live import PLAIN, SINGLE


class Case(live.Case):
    WARM = True

    def assert_readable(self):
        """Everything under its final name is whole."""
        n = 0
        for path in glob.glob(os.path.join(self.trace, "**"), recursive=True):
            if path.endswith((".json", ".json.gz")):
                opener = gzip.open if path.endswith(".gz") else open
                with opener(path, "rt", encoding="utf-8") as file:
                    json.load(file)
                n += 1
        return n


class Endings(Case):
    def test_a_job_that_ends_in_the_window_keeps_what_there_is(self):
        body = SINGLE + "train(model, optimizer, 11)\nend()\n"
        run = self.ranks(body, world=1, DPRO_ITERATIONS="6")
        self.assert_untouched(run, body)
        info = self.rank()
        self.assertFalse(info["complete"])
        self.assertIn("ended after step 11", info["ended_early"])
        steps = [s["step"] for s in info["steps"]["timing"]]
        self.assertEqual(steps, [11])
        self.assertEqual(self.profiled_steps(), steps)  # not the one that was cut short
        self.assertTrue(any("recorded step 11 of 1 rank" in line and "job ended" in line for line in run.said), run.said)

    def test_a_job_that_ends_in_warm_up_says_so(self):
        run = self.ranks(SINGLE + "train(model, optimizer, 2)\nend()\n", world=1, DPRO_WARMUP="10")
        self.assert_ran(run)
        self.assertEqual(len(run.said), 1)
        self.assertIn("nothing recorded: the job ended after 2 steps", run.said[0])
        self.assertFalse(os.path.exists(self.trace))

    def test_a_job_that_ends_before_the_profile_keeps_its_step_times(self):
        run = self.ranks(SINGLE + "train(model, optimizer, 6)\nend()\n", world=1)
        self.assert_ran(run)
        self.assertEqual(len(self.rank()["steps"]["before"]), 3)
        self.assertIn("no step was recorded", run.said[-1])

    def test_an_exception_in_a_step_is_the_jobs_own_and_what_there_is_is_kept(self):
        body = SINGLE + """
def each(i):
    if i == 10:
        raise ArithmeticError("the job's own")
train(model, optimizer, 30, each=each)
"""
        run = self.ranks(body, world=1, DPRO_ITERATIONS="4")
        self.assertEqual(run.codes, [1])
        self.assertIn("ArithmeticError: the job's own", run.err)
        self.assertNotIn("dpro/session.py", run.err)
        self.assertEqual(self.profiled_steps(), [9, 10, 11])
        self.assertFalse(self.rank()["complete"])

    def test_leaving_without_cleaning_up_keeps_what_was_written(self):
        for when, names in ((9, {"rank.json"}), (12, {"rank.json", "kineto.json"})):
            with self.subTest(step=when):
                shutil.rmtree(self.trace, ignore_errors=True)
                body = SINGLE + "train(model, optimizer, 30, each=lambda i: i == %d and os._exit(3))\n" % (when - 1)
                run = self.ranks(body, world=1)
                self.assertEqual(run.codes, [3])
                self.assertFalse(self.rank()["complete"])
                self.assertEqual({n for n in os.listdir(self.rank_folder()) if not n.endswith(".part")} - {"net.log"}, names)
                self.assert_readable()

    def test_killed_at_any_moment_leaves_readable_files(self):
        body = SINGLE + """
print("READY", flush=True)
train(model, optimizer, 100000, each=lambda i: i == 2 and print("STEP", flush=True))
"""
        for delay in (0.0, 0.02, 0.05, 0.1, 0.3) if live.LONG else (0.02, 0.1):
            shutil.rmtree(self.trace, ignore_errors=True)
            process = subprocess.Popen([live.PYTHON, self.script(body)], env=self.environment(), cwd=self.folder,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
            try:
                while process.stdout.readline() not in (b"STEP\n", b""):
                    pass
                time.sleep(delay)
                process.kill()
                self.assertEqual(process.wait(), -signal.SIGKILL)
                self.assert_readable()
            finally:
                process.stdout.close()
                if process.poll() is None:
                    process.kill()

    def test_a_termination_signal_does_what_it_does(self):
        body = SINGLE + "train(model, optimizer, 30, each=lambda i: i == 9 and os.kill(os.getpid(), signal.SIGTERM))\n"
        run = self.ranks(body, world=1)
        self.assertEqual(run.codes, [-signal.SIGTERM])
        self.assert_readable()
        body = SINGLE + """
class Preempted(Exception): pass
def handle(number, frame):
    raise Preempted
signal.signal(signal.SIGTERM, handle)
try:
    train(model, optimizer, 30, each=lambda i: i == 9 and os.kill(os.getpid(), signal.SIGTERM))
except Preempted:
    print("PREEMPTED"); sys.exit(9)
"""
        run = self.ranks(body, world=1, out=self.path("second"))
        self.assertEqual((run.codes, run.out), ([9], "PREEMPTED\n"))

    def test_an_exception_of_the_jobs_signal_handler_passes_through_ours(self):
        body = SINGLE + """
import threading
class Preempted(Exception): pass
def handle(number, frame):
    names = []
    while frame:
        names.append(frame.f_code.co_filename); frame = frame.f_back
    if any(name.endswith("dpro/session.py") for name in names):
        raise Preempted
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
try:
    train(model, optimizer, 3000)
    print("NEVER MET")
except Preempted:
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("PASSED")
"""
        run = self.ranks(body, world=1)
        self.assert_ran(run)
        self.assertIn("PASSED", run.out)

    def test_an_elastic_restart_gets_a_folder_of_its_own(self):
        # as torchrun starts workers again; its own restart takes a minute or more here, with and without dpro
        body = """
dist.init_process_group("gloo")
model = DDP(net())
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30,
      each=lambda i: first and RANK == 1 and i == 14 and os._exit(1))
end()
"""
        first = self.ranks(body, TORCHELASTIC_RESTART_COUNT="0")
        self.assertEqual(first.codes[1], 1)
        self.assertFalse(self.rank(1)["complete"])
        self.assert_ran(self.ranks(body, TORCHELASTIC_RESTART_COUNT="1"))
        again = os.path.join(self.trace, "attempt1")
        for rank in range(2):
            info = self.rank(rank, root=again)
            self.assertEqual((info["complete"], info["attempt"]), (True, 1))
        self.assertEqual(self.job(again)["attempt"], 1)
        self.assert_readable()


class Trouble(Case):
    def check(self, run, *words):
        """One line tells what failed, and the job did not notice."""
        self.assert_untouched(run)
        failed = [line for line in run.said if "recording ends" in line]
        self.assertEqual(len(failed), 1, run.err)
        for word in words:
            self.assertIn(word, failed[0])

    def test_a_folder_that_cannot_be_made(self):
        with open(self.path("file"), "w", encoding="utf-8"):
            pass
        self.check(self.ranks(PLAIN, world=1, out=self.path("file", "trace")), self.path("file"))

    def test_a_folder_removed_midway(self):
        body = SINGLE + """
import shutil
train(model, optimizer, 30, each=lambda i: i == 8 and os.environ.get("DPRO_OUT") and shutil.rmtree(os.environ["DPRO_OUT"]))
end()
"""
        run = self.ranks(body, world=1)
        self.assert_untouched(run)
        self.assertEqual(len([line for line in run.said if "recording ends" in line]), 1, run.err)
        self.assertFalse(os.path.exists(self.trace))

    def test_a_limit_on_file_sizes(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        self.check(self.ranks(PLAIN, world=1, preexec_fn=limit), "disk full")
        self.assert_readable()
        self.assertFalse(self.rank()["complete"])

    def test_a_full_disk(self):
        if os.geteuid() != 0:
            self.skipTest("a small disk is mounted by root only")
        os.mkdir(self.path("disk"))
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k", "none", self.path("disk")],
                          stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no file system can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", self.path("disk")])
        self.trace = self.path("disk", "trace")
        self.check(self.ranks(PLAIN, world=1), self.trace)
        self.assert_readable()

    def test_a_failure_inside_dpro(self):
        run = self.ranks("""
if os.environ.get("DPRO"):
    import dpro.activate
    class Broken:
        def __getattr__(self, name): raise AssertionError("made to fail")
    dpro.activate._session._new_schedule = lambda warmup: Broken()
""" + PLAIN, world=1, PYTHONPATH=os.pathsep.join([live.SITE, os.path.join(live.ROOT, "python")]))
        self.check(run, "AssertionError: made to fail")
        self.assertFalse(os.path.exists(self.trace))

    def test_a_closed_stderr(self):
        body = PLAIN.replace("model = net()", "os.close(2)\nmodel = net()")
        run = self.ranks(body, world=1)
        self.assert_untouched(run)
        self.assertTrue(self.rank()["complete"])

    def test_a_stderr_that_takes_nothing(self):
        for name, body in (("full", "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)\n"),
                           ("no reader", "r, w = os.pipe()\nos.dup2(w, 2)\nos.close(r)\n"),
                           ("full pipe", "r, w = os.pipe()\nos.set_blocking(w, False)\n"
                                         "while True:\n    try: os.write(w, bytes(4096))\n    except BlockingIOError: break\n"
                                         "os.set_blocking(w, True)\nos.dup2(w, 2)\n")):
            with self.subTest(stderr=name):
                self.trace = self.path(name.replace(" ", "-"))
                # torch's own lines would wait for a reader without dpro as well: live.plain_environment() has none
                run = self.ranks(PLAIN.replace("model = net()", body + "model = net()"), world=1)
                self.assert_untouched(run)
                self.assertTrue(self.rank()["complete"])

    def test_a_torch_without_kineto_gives_step_times(self):
        run = self.ranks("torch.autograd.kineto_available = lambda: False\n" + PLAIN, world=1)
        self.assert_ran(run)
        self.assertTrue(any("Kineto" in line and "missing" in line for line in run.said), run.said)
        self.assertEqual(len(self.rank()["steps"]["before"]), 3)

    def test_a_torch_without_hooks_says_so(self):
        shim = self.path("shim")
        os.mkdir(shim)
        os.mkdir(os.path.join(shim, "torch"))
        os.mkdir(os.path.join(shim, "torch", "optim"))
        for name, text in (("torch/__init__.py", "from . import optim\n"), ("torch/optim/__init__.py", "from . import optimizer\n"),
                           ("torch/optim/optimizer.py", "class Optimizer:\n    def __init__(self): pass\n")):
            with open(os.path.join(shim, name), "w", encoding="utf-8") as file:
                file.write(text)
        run = self.command([live.PYTHON, "-c", "import torch.optim.optimizer; print('fine')"],
                           **self.environment(PYTHONPATH=os.pathsep.join([live.SITE, shim])))
        self.assert_ran(run)
        self.assertEqual(run.out, "fine\n")
        self.assertIn("2.0 or later", run.said[0])
