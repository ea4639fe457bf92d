"""dpro profile around torchrun: the job's own end is kept, and what it recorded until then is told and replays."""
import glob
import json
import os
import shutil
import signal
import subprocess
import time

from live import DPRO, PYTHON, Case

TRAIN = """
dist.init_process_group("gloo")
model = DDP(net())
train(model, torch.optim.SGD(model.parameters(), lr=0.1), int(sys.argv[1]), each=lambda i: %s)
end()
"""


class Profile(Case):
    def profile(self, steps, each="None", python=None):
        return [DPRO, "profile", "-o", self.trace, "--", *self.TORCHRUN, *(python or self.warm_python()), self.script(TRAIN % each),
                str(steps)]

    def closing(self, run):
        """What dpro profile says at the end, after all that the recorder said in the job."""
        lines = run.err.splitlines()
        return [line for line in lines if line.startswith("dpro: ")][-2:]

    def test_a_job_of_torchrun_is_recorded_and_replays(self):
        run = self.command(self.profile(40, python=[PYTHON]), timeout=300, **self.environment(dpro=False))
        self.assert_ran(run)
        self.assertEqual(self.closing(run), ["dpro: recorded 2 ranks: 3 steps, structure, transport",
                                             f"dpro: next: dpro replay {self.trace}"])
        done = subprocess.run([DPRO, "replay", self.trace, "--json"], stdout=subprocess.PIPE, timeout=120, check=True)
        self.assertEqual([rank["rank"] for rank in json.loads(done.stdout)["ranks"]], [0, 1])

    def test_a_job_that_fails_keeps_its_exit_code_and_what_it_recorded(self):
        run = self.command(self.profile(40, "i == 10 and sys.exit(3)"), timeout=300, **self.environment(dpro=False))
        self.assertEqual(run.codes, [1])  # torchrun's own
        self.assertTrue(os.path.exists(os.path.join(self.rank_folder(), "rank.json")))
        self.assertIn(f"dpro: next: dpro replay {self.trace}", run.err)

    def test_a_job_that_is_terminated_ends_and_is_told(self):
        process = self.start(self.profile(100000, "time.sleep(0.01)", [PYTHON]), self.environment(dpro=False))
        deadline = time.monotonic() + 200
        while not os.path.exists(os.path.join(self.trace, "host0", "rank1", "rank.json")):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        self.assertNotEqual(process.wait(200), 0)
        for path in glob.glob("/proc/[0-9]*/cmdline"):  # its ranks are gone, too
            try:
                with open(path, "rb") as file:
                    self.assertNotIn(self.folder.encode(), file.read())
            except OSError:
                continue

    def test_the_last_line_follows_from_what_happened(self):
        limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (%d, %d)); "
        kill = "os.kill(os.getpid(), signal.SIGKILL)"
        for begin, n_steps, last, end, said in (
                ("", 0, 0, "", "loaded a framework; the process ended before a step of training"),
                ("", 3, 0, "", "ended after 3 steps, and the first to be recorded is step 8: let it train 10 steps"),
                ("", 40, 4, kill, "was killed or left without cleaning up after 4 steps, and the first to be recorded is step 8"),
                ("", 40, 9, kill, "was killed or left without cleaning up after step 9, while steps 8 to 10 were recorded"),
                (limit % (300, 300), 40, 0, "", "recording failed after step 2: %s: File too large" % self.trace),
                (limit % (9000, 9000), 40, 0, "", "recording failed after step 10: %s" % self.trace)):
            with self.subTest(steps=n_steps, last=last, begin=begin):
                shutil.rmtree(self.trace, ignore_errors=True)
                path = self.script(begin + "\nmodel = net()\ntrain(model, torch.optim.SGD(model.parameters(), lr=0.05), %d,\n"
                                   "      each=lambda i: i + 1 == %d and (%s))\n" % (n_steps, last, end or "None"))
                run = self.command([DPRO, "profile", "-o", self.trace, "--", *self.warm_python(), path],
                                   **self.environment(dpro=False))
                self.assertIn(said, run.said[-1])
                self.assertTrue(run.said[-1].startswith("dpro: nothing recorded: "), run.said)
