"""The examples train, alone and on two ranks, and the same way each time."""
import os
import re

import live

SMALL = {"cnn.py": ["--width", "8", "--blocks", "1"],
         "gpt.py": ["--layers", "2", "--width", "64", "--vocabulary", "512"],
         "fsdp.py": ["--layers", "2", "--width", "64", "--vocabulary", "512"],
         "tensor_parallel.py": ["--layers", "2", "--width", "128", "--vocabulary", "512"],
         "pipeline.py": ["--layers", "2", "--width", "128", "--vocabulary", "512", "--micro-batches", "2"],
         "experts.py": ["--layers", "2", "--width", "64", "--vocabulary", "512"]}


class Examples(live.Case):
    WARM = True
    losses = {}

    def train(self, script, *options, ranks=1, tries=2):
        """Runs an example; returns its final loss as it printed it. Torch itself (dpro is not in these runs) now and then
        aborts when a trained process ends: that run is made once more."""
        run = self.run_script(os.path.join(live.ROOT, "examples", script), ranks, dpro=False, timeout=240, arguments=[
            "--device", "cpu", "--steps", "12", "--batch-size", "4", *SMALL[script], *options])
        if any(run.codes) and "terminate called without an active exception" in run.err and tries > 1:
            return self.train(script, *options, ranks=ranks, tries=tries - 1)
        self.assert_ran(run)
        found = re.search(rf"^median step time [\d.]+ ms over the last 9 steps, {ranks} ranks, cpu, final loss (\S+)$", run.out, re.M)
        self.assertTrue(found, run.out[-3000:])
        self.losses[script, options, ranks] = found[1]
        return found[1]

    def loss(self, script, *options, ranks=1):
        """Of a run that was made before, where there is one."""
        return self.losses.get((script, options, ranks)) or self.train(script, *options, ranks=ranks)

    def test_each_trains_alone(self):
        for script in SMALL if live.LONG else ("cnn.py", "gpt.py"):
            with self.subTest(script=script):
                self.loss(script)

    def test_each_trains_on_two_ranks_to_the_same_loss_every_time(self):
        for script in SMALL:
            with self.subTest(script=script):
                loss = self.loss(script, ranks=2)
                if script == "gpt.py" or live.LONG:
                    self.assertEqual(loss, self.train(script, ranks=2))

    def test_data_loaders_with_processes_of_their_own_give_the_same_samples(self):
        self.assertEqual(self.loss("gpt.py"), self.train("gpt.py", "--workers", "2"))

    def test_splitting_the_model_changes_where_it_is_computed_not_what_is_learnt(self):
        alone = float(self.train("gpt.py", "--width", "128"))
        for script in ("tensor_parallel.py", "pipeline.py"):
            with self.subTest(script=script):
                self.assertAlmostEqual(float(self.loss(script, ranks=2)), alone, places=4)
        alone = float(self.train("gpt.py", "--width", "128", "--layers", "4"))
        for schedule in ("interleaved", "zero-bubble") if live.LONG else ("interleaved",):
            with self.subTest(schedule=schedule):
                self.assertAlmostEqual(float(self.train("pipeline.py", "--schedule", schedule, "--layers", "4", ranks=2)), alone, places=4)

    def test_sharding_the_parameters_changes_how_they_are_stored_not_what_is_learnt(self):
        self.assertAlmostEqual(float(self.loss("gpt.py", ranks=2)), float(self.loss("fsdp.py", ranks=2)), places=4)
