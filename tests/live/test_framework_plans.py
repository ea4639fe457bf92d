"""Plans in jobs of TensorFlow's collectives and of Horovod, and the loop from a recording to what its plan brings."""
import json
import os
import subprocess

import frameworks
import live
import plan_loop


DEEP = ["--width", "8", "--hidden", "6", "--batch-size", "32"]  # many gradients of several sizes


class Plans(plan_loop.Case):
    """A plan made by hand: two packs or groups of what the job sends as it likes."""

    def make_plan(self, name, change=lambda plan: None):
        self.record(name)
        plan = self.path("plan")
        done = subprocess.run([live.DPRO, "optimize", "-q", self.trace, "-o", plan], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        path = os.path.join(plan, "plan.json")
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
        sizes = {p["name"]: p["size_bytes"] for p in value["job"]["models"][0]["parameters"]}
        names = [n for bucket in value["communication"]["buckets"] for n in bucket["parameters"]]
        value["communication"].update(is_own=False, buckets=[
            {"model": 0, "parameters": names[half::2], "size_bytes": sum(sizes[n] for n in names[half::2])}
            for half in range(2)])
        value["communication"].pop("fusion_threshold_bytes", None)  # these are groups that the job makes
        change(value)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file)
        if value["job"]["stack"] == "horovod":
            with open(os.path.join(plan, "horovod.env"), "w", encoding="utf-8") as file:
                file.write("HOROVOD_DISABLE_GROUP_FUSION=1\nHOROVOD_FUSION_THRESHOLD=134217728\n")
        return plan

    def told_of(self, name, plan):
        """What each rank says of the plan, with which the job trains the same."""
        plain = self.final_loss(self.record(name, dpro=False))
        self.trace = self.path("planned")
        self.assertEqual(self.final_loss(self.record(name, options=["--plan", plan])), plain)
        return [self.rank(rank)["plan"] for rank in range(2)]

    def check_applied(self, name):
        plan = self.make_plan(name)
        for told in self.told_of(name, plan):
            self.assertEqual((told["applied"], told["reason"]), (True, None))
        self.assertEqual(sum(c["count"] for c in self.replay()["collectives"] if c["kind"] == "all_reduce"), 2)

    def check_refused(self, name, change, reason):
        plan = self.make_plan(name, change)
        for told in self.told_of(name, plan):
            self.assertFalse(told["applied"])
            self.assertIn(reason, told["reason"])

    def loop_that_helps(self, *job):
        facts = self.loop(*job)
        self.assertTrue(facts["helps"], facts)
        self.assertGreater(facts["achieved_pct"], 5, facts)

    @staticmethod
    def of_another_model(plan):
        for parameter in plan["job"]["models"][0]["parameters"]:
            parameter["name"] = "other/" + parameter["name"]
        for bucket in plan["communication"]["buckets"]:
            bucket["parameters"] = ["other/" + name for name in bucket["parameters"]]


class Ring(Plans):
    framework = "tensorflow"

    def test_packs_are_the_plans_and_the_job_trains_the_same(self):
        self.check_applied("tensorflow")

    def test_a_plan_for_another_model_is_left(self):
        self.check_refused("tensorflow", self.of_another_model, "it is for another model")

    def test_the_loop(self):
        self.loop("tensorflow", ["--hidden", "4", "--batch-size", "32"])


class Horovod(Plans):
    framework = "horovod"

    def test_groups_on_tensorflow_are_the_plans_and_the_job_trains_the_same(self):
        self.check_applied("horovod-tensorflow")

    def test_groups_on_mxnet_are_the_plans_and_the_job_trains_the_same(self):
        self.check_applied("horovod-mxnet")

    def test_a_plan_for_another_world_is_left(self):
        self.check_refused("horovod-mxnet", lambda plan: plan["job"].update(world_size=4), "it is for 4 ranks, this job has 2")

    def test_the_loop_on_tensorflow(self):
        self.loop("horovod-tensorflow", rate="500mbit")

    def test_the_loop_on_mxnet(self):
        self.loop("horovod-mxnet", rate="500mbit")

    def test_the_loop_of_a_job_that_fuses_nothing_on_tensorflow(self):
        self.loop_that_helps("horovod-tensorflow", DEEP, "250mbit", {"HOROVOD_FUSION_THRESHOLD": "0"})

    def test_the_loop_of_a_job_that_fuses_nothing_on_mxnet(self):
        self.loop_that_helps("horovod-mxnet", DEEP, "250mbit", {"HOROVOD_FUSION_THRESHOLD": "0"})


class HorovodOnPyTorch(Plans):
    framework = "horovod-pytorch"

    def test_groups_are_the_plans_and_the_job_trains_the_same(self):
        self.check_applied("horovod-pytorch")

    def test_modules_are_recomputed_and_the_job_trains_the_same(self):
        recomputed = ["0", "1", "4"]  # a convolution, BatchNorm, which keeps statistics, and another convolution
        name = "horovod-pytorch"
        plan = self.make_plan(name, lambda plan: plan.setdefault("memory", {}).update(recompute=recomputed))
        for told in self.told_of(name, plan):
            self.assertEqual((told["applied"], told["reason"]), (True, None))
            self.assertEqual(told["modules"]["recompute"], recomputed)
