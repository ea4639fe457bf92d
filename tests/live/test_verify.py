"""dpro verify of jobs that are run once for each turn: TensorFlow's collectives on two hosts, each with its own command, and Horovod."""
import json

import live
import test_framework_plans
from frameworks import experiment


class Runs(test_framework_plans.Plans):
    def verify(self, name, plan, *options):
        """What is printed by all hosts."""
        command = [live.DPRO, "verify", "--plan", plan, "--blocks", "1", "--warmup", "3", "--steps", "5", "--stop", *options, "--"]
        return experiment.train_example(experiment.EXAMPLES[name], command, 100000, arguments=["--width", "4"], quiet=True).decode()

    def check_verified(self, name):
        plan = self.make_plan(name)
        told = json.loads(self.verify(name, plan, "--json"))
        self.assertEqual((told["runs"], told["blocks"], told["steps"], told["warmup"], told["world_size"], told["complete"]),
                         (4, 1, 5, 3, 2, True))
        own, planned = told["configurations"]
        self.assertEqual((len(own["bucket_bytes"]), len(planned["bucket_bytes"])), (0, 2))
        for ms in own["per_turn_ms"] + planned["per_turn_ms"]:
            self.assertTrue(1 < ms < 10000, told)
        self.assertEqual(told["verdict"], "no-interval")

    def check_not_applied(self, name):
        plan = self.make_plan(name, self.of_another_model)
        with self.assertRaises(SystemExit) as caught:
            self.verify(name, plan)
        self.assertIn("status 3", str(caught.exception))


class Ring(Runs):
    framework = "tensorflow"

    def test_each_turn_is_a_run_and_one_host_has_the_result(self):
        self.check_verified("tensorflow")

    def test_a_plan_that_is_not_applied_ends_it(self):
        self.check_not_applied("tensorflow")


class Horovod(Runs):
    framework = "horovod"

    def test_each_turn_is_a_run_on_tensorflow(self):
        self.check_verified("horovod-tensorflow")

    def test_each_turn_is_a_run_on_mxnet(self):
        self.check_verified("horovod-mxnet")
