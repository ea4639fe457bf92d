"""What the live tests of TensorFlow, MXNet and Horovod share: scripts and examples run by the interpreter that has the
framework, DPRO_<NAME>_PYTHON or that of .venv-<name>; skipped where there is none."""
import glob
import os
import statistics
import subprocess
import unittest

import live  # finds tools/
import experiment

python = experiment.python_in

SMALL = {"DPRO_WARMUP": "4", "DPRO_ITERATIONS": "5"}
N_STEPS = 30  # of a recording with these, and a few more


def missing(name):
    """Why the tests of a framework are skipped, None when they run."""
    return None if python(name) else "no .venv-%s: tools/venv.sh %s makes it" % (name, name)


class Case(live.Case):
    framework = None  # whose environment

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        reason = missing(cls.framework)
        if reason:
            raise unittest.SkipTest(reason)  # once for all of the class

    def run_script(self, body, dpro=True, **more):
        """A script of one process."""
        path = self.path("train.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(body)
        environment = self.environment(dpro, **{**SMALL, **more})
        if dpro:
            environment["PYTHONPATH"] = os.pathsep.join((live.SITE, os.path.join(live.ROOT, "python")))
        return self.command([python(self.framework), path], **environment)

    def record(self, name, *arguments, dpro=True, options=()):
        """Trains an example on two workers; returns what it printed."""
        command = [live.DPRO, "profile", "-q", "-o", self.trace, *options, "--"] if dpro else []
        return experiment.train_example(experiment.EXAMPLES[name], command, N_STEPS, arguments=["--width", "4", *arguments],
                             environment=SMALL, quiet=True).decode()

    def final_loss(self, printed):
        self.assertIn("final loss ", printed)
        return printed.split("final loss ")[1].split()[0]

    def files(self, *of):
        """Names in the folder of a process, whatever its host."""
        found = glob.glob(os.path.join(self.trace, "host*", *of))
        self.assertEqual(len(found), 1, os.listdir(self.trace))
        return set(os.listdir(found[0]))

    def assert_windows(self, rank=0):
        info = self.rank(rank)
        self.assertTrue(info["complete"])
        self.assertEqual([len(info["steps"][w]) for w in ("before", "timing", "after")], [5, 5, 5])
        self.assertEqual(info["warnings"], [])
        return info

    def assert_replays(self):
        facts = self.replay()
        steps = [self.rank(rank)["steps"]["timing"] for rank in range(2)]
        usual_ms = statistics.median(step["end_ns"] - step["start_ns"] for times in steps for step in times) / 1e6
        self.assertAlmostEqual(facts["measured"]["iteration_ms"], usual_ms, delta=0.3 * usual_ms)
        self.assert_close(facts)
        return facts

    def assert_close(self, facts):
        """The replay is as near as five short steps of a job that shares two cores with much else let it be."""
        self.assertLess(abs(facts["error_pct"]), max(15, 3 * facts["validation"]["measured_std_pct"]), facts["measured"])

    def in_framework(self, code, *arguments):
        """What a line of the framework's Python prints."""
        done = subprocess.run([python(self.framework), "-c", code, *arguments], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr.decode()[-2000:])
        return done.stdout.decode().strip()
