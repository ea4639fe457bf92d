"""The examples train, alone and on two ranks, and the same way each time."""
import functools
import os
import re
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SMALL = {"cnn.py": ["--width", "8", "--blocks", "1"],
         "gpt.py": ["--layers", "2", "--width", "64", "--vocabulary", "512"],
         "fsdp.py": ["--layers", "2", "--width", "64", "--vocabulary", "512"],
         "tensor_parallel.py": ["--layers", "2", "--width", "128", "--vocabulary", "512"],
         "pipeline.py": ["--layers", "2", "--width", "128", "--vocabulary", "512", "--micro-batches", "2"],
         "experts.py": ["--layers", "2", "--width", "64", "--vocabulary", "512"]}


def train(script, *options, ranks=1, tries=2):
    """Runs an example; returns its final loss as it printed it. Torch itself (dpro is not in these runs) now and then
    aborts when a trained process ends: that run is made once more."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run([*(launch if ranks > 1 else [sys.executable]), os.path.join(ROOT, "examples", script),
                           "--device", "cpu", "--steps", "12", "--batch-size", "4", *SMALL[script], *options],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0 and "terminate called without an active exception" in output and tries > 1:
        return train(script, *options, ranks=ranks, tries=tries - 1)
    found = re.search(rf"^median step time [\d.]+ ms over the last 9 steps, {ranks} ranks, cpu, final loss (\S+)$",
                      output, re.M)
    if done.returncode != 0 or not found:
        raise AssertionError(f"{script}: exit status {done.returncode}\n{output[-3000:]}")
    return found[1]


once = functools.cache(train)


class Examples(unittest.TestCase):
    def test_each_trains_alone(self):
        for script in SMALL if os.environ.get("DPRO_LONG") else ("cnn.py", "gpt.py"):
            with self.subTest(script=script):
                once(script)

    def test_each_trains_on_two_ranks_to_the_same_loss_every_time(self):
        for script in SMALL:
            with self.subTest(script=script):
                loss = once(script, ranks=2)
                if script == "gpt.py" or os.environ.get("DPRO_LONG"):
                    self.assertEqual(loss, train(script, ranks=2))

    def test_data_loaders_with_processes_of_their_own_give_the_same_samples(self):
        self.assertEqual(once("gpt.py"), train("gpt.py", "--workers", "2"))

    def test_splitting_the_model_changes_where_it_is_computed_not_what_is_learnt(self):
        alone = float(train("gpt.py", "--width", "128"))
        for script in ("tensor_parallel.py", "pipeline.py"):
            with self.subTest(script=script):
                self.assertAlmostEqual(float(once(script, ranks=2)), alone, places=4)
        alone = float(train("gpt.py", "--width", "128", "--layers", "4"))
        for schedule in ("interleaved", "zero-bubble") if os.environ.get("DPRO_LONG") else ("interleaved",):
            with self.subTest(schedule=schedule):
                self.assertAlmostEqual(float(train("pipeline.py", "--schedule", schedule, "--layers", "4", ranks=2)), alone, places=4)

    def test_sharding_the_parameters_changes_how_they_are_stored_not_what_is_learnt(self):
        self.assertAlmostEqual(float(once("gpt.py", ranks=2)), float(once("fsdp.py", ranks=2)), places=4)
