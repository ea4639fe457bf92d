"""All ranks do what a plan says, or none: whoever is missing, late, or wants something else. Ranks are threads here, and so
is their store."""
import os
import sys
import threading
import time
import types
import unittest
import unittest.mock

from support import ROOT

sys.path.insert(0, os.path.join(ROOT, "python"))
from dpro import agreement, ddp_plan, tensorflow_plan  # noqa: E402


class Memory(agreement.Store):
    values, changed = {}, threading.Condition()

    def __init__(self, name, rank, size, late_s=0):
        self.name, self.rank, self.size, self.late_s = name, rank, size, late_s

    def put(self, key, text):
        with self.changed:
            self.values[key] = text
            self.changed.notify_all()

    def get(self, key, wait_s):
        with self.changed:
            self.changed.wait_for(lambda: key in self.values, wait_s)
            return self.values.get(key)


class Agreement(unittest.TestCase):
    def setUp(self):
        Memory.values.clear()
        agreement._n_asked.clear()
        os.environ["DPRO_PLAN_WAIT"] = "2"
        self.addCleanup(os.environ.pop, "DPRO_PLAN_WAIT")

    def answers(self, size, ranks=None, digests=None, problems=None, late_s=None):
        """What each rank that asks is told."""
        found = {}

        def ask(rank):
            store = Memory("rank%d" % rank, rank, size)  # each thread counts its own questions
            store.name = ""
            time.sleep((late_s or {}).get(rank, 0))
            with lock:
                agreement._n_asked.clear()
            found[rank] = agreement.ask(store, "plan", (digests or {}).get(rank, "same"), (problems or {}).get(rank))

        lock = threading.Lock()
        threads = [threading.Thread(target=ask, args=(rank,)) for rank in ranks or range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def test_without_process_groups_a_rank_is_what_the_launcher_says(self):
        for name in ("HOROVOD_RANK", "RANK"):
            with unittest.mock.patch.dict(os.environ, {name: "1"}):
                self.assertEqual(agreement.rank(), 1, name)

    def test_all_agree(self):
        self.assertEqual(self.answers(5), dict.fromkeys(range(5)))

    def test_one_that_is_late_but_in_time_is_waited_for(self):
        self.assertEqual(self.answers(3, late_s={0: 0.5}), dict.fromkeys(range(3)))
        Memory.values.clear()
        self.assertEqual(self.answers(3, late_s={2: 0.5}), dict.fromkeys(range(3)))

    def test_one_problem_keeps_all_from_it(self):
        told = self.answers(4, problems={2: "no such file"})
        self.assertEqual(set(told.values()), {"rank 2: no such file"})

    def test_another_plan_keeps_all_from_it(self):
        told = self.answers(4, digests={3: "other"})
        self.assertEqual(set(told.values()), {"rank 3: its plan or its options differ from those of rank 0"})

    def test_a_missing_rank_keeps_all_from_it(self):
        told = self.answers(3, ranks=[0, 1])
        self.assertEqual(len(set(told.values())), 1)
        self.assertIn("rank 2 did not", told[0])
        Memory.values.clear()
        told = self.answers(3, ranks=[1, 2])
        self.assertEqual(len(set(told.values())), 1)
        self.assertIn("rank 0 did not answer within 4 s", told[1])

    def test_a_first_rank_that_comes_when_the_others_have_gone_does_it_no_more(self):
        told = self.answers(3, late_s={0: 5})
        self.assertNotIn(None, told.values())


class Alike(unittest.TestCase):
    def test_of_models_that_are_alike_each_gets_its_own_buckets(self):
        plan = types.SimpleNamespace(models=[("A", {"x": 4}), ("B", {"x": 8}), ("A", {"x": 4})])
        self.assertEqual([ddp_plan._model(plan, {"x": 4}, n) for n in range(3)], [0, 2, 2])
        self.assertEqual(ddp_plan._model(plan, {"x": 8}), 1)


class Names(unittest.TestCase):
    """TensorFlow's gradients, in the plan by the ops that ran, in the job by those of its graph."""

    def test_an_op_that_was_fused_is_found_by_its_layer(self):
        here = ["g/conv/Filter", "g/conv/Reshape_1", "g/dense/MatMul_1", "g/dense/BiasAddGrad"]
        planned = ["g/dense/BiasAddGrad", "g/conv/Filter", "g/conv/Filter:1", "g/dense/MatMul_1"]
        self.assertEqual(tensorflow_plan.match(planned, here), (dict(zip(planned, (3, 0, 1, 2))), None))

    def test_where_two_would_do_neither_is_taken(self):
        here = ["g/conv/Reshape_1", "g/conv/Reshape_2"]
        numbers, problem = tensorflow_plan.match(["g/conv/Filter:1", "g/conv/Filter:2"], here)
        self.assertIsNone(numbers)
        self.assertIn("no gradient here is surely", problem)

    def test_other_gradients_are_another_model(self):
        for planned in (["a/x", "b/y"], ["a/x"], ["a/x", "a/z", "a/x"]):
            self.assertIn("it is for another model", tensorflow_plan.match(planned, ["a/x", "c/y", "d/z"])[1])
