"""Which part of training the work of a GPU is, where nothing marks or numbers it. Jobs whose truth is known, from gpu_job.py:
kernels of 1 ms, so that counts are milliseconds."""
import gpu_job
from gpu_job import Job
from support import Case, dpro, span


class Phases(Case):
    def replay(self, name, program, steps=8, **job):
        self.folder, _ = gpu_job.write(self, Job(kernel_us=1000.0, program=program, sync="end", **job), steps=steps, folder=name)
        return self.assert_replays(self.folder)

    def assert_phases(self, facts, forward, backward, update):
        for rank in facts["ranks"]:
            for key, ms in (("forward_ms", forward), ("backward_ms", backward), ("update_ms", update)):
                self.assertAlmostEqual(rank[key], ms, delta=0.2, msg=key)

    def test_two_optimizers_each_with_its_passes(self):
        """A GAN: its generator's forward pass comes after the discriminator's update."""
        def gan(rank):
            for kernels in (8, 5):
                yield from rank.forward(kernels)
                reduced = yield from rank.backward(2 * kernels, buckets=1 if rank.job.world > 1 else 0)
                yield from rank.update(3, after=reduced)
            rank.wait_for_gpu()

        for world in (1, 2):
            facts = self.replay(f"gan-{world}", gan, world=world)
            self.assert_phases(facts, 8 + 5, 2 * (8 + 5), 2 * 3)
            self.assertIsNone(facts["micro_batches"])

    def test_buckets_are_chosen_wherever_gradients_are_reduced(self):
        def trains(rank):
            for kernels in passes:
                yield from rank.forward(kernels)
                reduced = yield from rank.backward(2 * kernels, buckets=buckets)
                yield from rank.update(3, after=reduced)
            rank.wait_for_gpu()

        for buckets, passes in ((1, (6,)), (2, (6,)), (3, (6,)), (4, (6,)), (2, (8, 5)), (1, (4, 4, 8))):
            with self.subTest(buckets=buckets, passes=passes):
                self.replay(f"job-{buckets}-{len(passes)}", trains, world=2)
                chosen = self.assert_json("optimize", self.folder)["baseline"]["communication"]["buckets"]
                self.assertEqual(len(chosen), buckets * len(passes))

    def test_micro_batches(self):
        def accumulate(rank):
            for micro in range(4):
                yield from rank.forward(4)
                reduced = yield from rank.backward(8, buckets=2 if micro == 3 and rank.job.world > 1 else 0)
            yield from rank.update(2, after=reduced)
            rank.wait_for_gpu()

        for world in (1, 2):
            facts = self.replay(f"micro-{world}", accumulate, world=world)
            self.assert_phases(facts, 4 * 4, 4 * 8, 2)
            self.assertEqual(facts["micro_batches"], 4)
            self.assertIn("4 micro-batches an iteration", dpro("replay", self.folder).out)

    def test_gradients_are_reduced_in_some_iterations_only(self):
        def accumulate(rank):
            last = rank.number % 4 == 0
            yield from rank.forward(4)
            reduced = yield from rank.backward(8, buckets=2 if last else 0)
            if last:
                yield from rank.update(2, after=reduced)
            rank.wait_for_gpu()

        facts = self.replay("no-sync", accumulate, steps=16, world=2)
        said = {line["title"]: line["text"] for line in facts["verdict"]}
        seldom = "4 of 16 communicate, .*accumulated.*step.. once an iteration"
        self.assertRegex(said["Next step"], seldom)
        self.assertRegex(" ".join(facts["warnings"]), seldom)
        self.assert_error(dpro("optimize", self.folder), 3, "most iterations show no communication; " + seldom)

    def test_two_losses(self):
        def losses(rank):
            for kernels in (9, 2):
                yield from rank.forward(kernels)
                yield from rank.backward(2 * kernels)
            yield from rank.update(3)
            rank.wait_for_gpu()

        facts = self.replay("losses", losses)
        self.assert_phases(facts, 9 + 2, 2 * (9 + 2), 3)

    def test_what_evaluates_after_the_update_is_forward(self):
        def evaluates(rank):
            yield from rank.forward(6)
            yield from rank.backward(12)
            yield from rank.update(3)
            if rank.number in numbers:
                for _ in range(5):
                    yield from rank.forward(6)
                    yield from rank.forward(1, "aten::argmax")
            rank.wait_for_gpu()

        numbers = range(100)
        self.assert_phases(self.replay("evaluates", evaluates), 6 + 5 * 7, 12, 3)
        numbers = range(0, 100, 4)
        facts = self.replay("every-4th", evaluates, steps=12)
        self.assert_phases(facts, 6 + 5 * 7 / 4, 12, 3)
        self.assertEqual(facts["slow_iterations"]["every"], 4)
        numbers = [4]
        facts = self.replay("once", evaluates, steps=4)
        self.assert_phases(facts, 6, 12, 3)
        idle = next(line["text"] for line in facts["verdict"] if line["title"] == "Idle")
        self.assertIn(", of which 8.75 ms are GPU work that only some iterations have", idle)

    def test_all_of_an_evaluation_within_steps_that_communicate_is_told(self):
        """A collective is one op of an iteration; all kernels that only some have more of are why these are slow."""
        def evaluates(rank):
            for micro in range(4):
                yield from rank.forward(4)
                reduced = yield from rank.backward(8, buckets=2 if micro == 3 else 0)
            yield from rank.update(2, after=reduced)
            if rank.number % 3 == 0:
                for _ in range(3):
                    yield from rank.forward(4)
                    yield from rank.forward(1, "aten::argmax")
            rank.wait_for_gpu()

        facts = self.replay("micro-evaluates", evaluates, steps=12, world=2)
        self.assert_phases(facts, 16 + 15 / 3, 32, 2)
        self.assertAlmostEqual(facts["slow_iterations"]["more_ms"], 15, delta=0.1)


class Unmarked(Case):
    """What an iteration is, of a CPU job that nothing marks: each pass forward and back takes 30 ms, an update 4."""

    def make(self, step, n=9):
        """step(self, i) calls what follows; returns the folder."""
        self.events, self.now, self.number = [], 0, 0
        for i in range(n):
            step(i)
        self.write("job/rank0.json", {"traceEvents": self.events})
        return self.path("job")

    def call(self, name, us, tid=1, cat="cpu_op", **args):
        self.events.append(span(name, self.now, us, tid, cat, **args))
        self.now += us

    def load(self):
        self.call("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1000, cat="user_annotation")

    def train(self, numbered=True):
        for layer in range(10):
            self.call("aten::linear", 1000, **({"Sequence number": self.number + layer, "Fwd thread id": 0} if numbered else {}))
        for layer in reversed(range(10)):
            self.call("autograd::engine::evaluate_function: AddmmBackward0", 2000, 2,
                      **({"Sequence number": self.number + layer, "Fwd thread id": 1} if numbered else {}))
        self.number += 10

    def update(self, marked=False):
        if marked:
            self.events.append(span("Optimizer.step#AdamW.step", self.now, 4000, cat="user_annotation"))
        self.call("aten::_fused_adamw_", 4000)

    def assert_iterations(self, folder, n, ms, found_by="optimizer"):
        facts = self.assert_replays(folder)
        self.assertEqual((facts["steps"]["found"], facts["steps"]["found_by"]), (n, found_by))
        self.assertAlmostEqual(facts["job"]["iteration_ms"], ms, delta=0.02 * ms)
        return facts

    def test_a_loader_that_is_called_for_each_micro_batch_is_no_iteration(self):
        for numbered in (True, False):
            def accumulates(i, numbered=numbered):
                for _ in range(4):
                    self.load()
                    self.train(numbered)
                self.update()

            self.assert_iterations(self.make(accumulates), 9, 4 * 31 + 4)
            self.assert_iterations(self.make(accumulates, 1), 1, 4 * 31 + 4)

    def test_nor_is_it_where_the_update_is_unknown(self):
        def accumulates(_):
            for _ in range(4):
                self.load()
                self.train()
            self.call("my_op", 4000)

        self.assert_iterations(self.make(accumulates), 9, 4 * 31 + 4, "passes")

    def test_a_validation_pass_joins_no_steps(self):
        def validates(i):
            self.load()
            self.train()
            self.update(marked)
            if i % 3 == 2:
                for _ in range(4):
                    self.load()
                    self.call("aten::linear", 10_000)

        for marked in (False, True):
            facts = self.assert_iterations(self.make(validates), 9, 35 + 4 * 11 / 3)
            self.assertEqual(facts["slow_iterations"]["every"], 3)

    def test_optimizers_of_one_class_that_take_turns_are_one_iteration(self):
        """One loads and the other does not; or each calls what the other does not."""
        def gan(i):
            self.load()
            self.train()
            self.update(True)
            self.train()
            self.update(True)

        def plays(i):
            for op in ("aten::tanh", "aten::relu"):
                self.load()
                self.call(op, 1000)
                self.train()
                self.update(True)

        facts = self.assert_iterations(self.make(gan), 9, 1 + 2 * 34)
        self.assertEqual(facts["steps"]["updates"], 2)
        self.assert_iterations(self.make(plays), 9, 2 * 36)

    def test_optimizers_of_steps_that_only_do_more_at_times_are_not(self):
        def logs(i):
            self.load()
            self.train()
            self.update(True)
            if i % 2 == 1:
                self.call("aten::item", 1000)

        self.assert_iterations(self.make(logs, 12), 12, 35.5)

    def test_what_comes_in_every_fourth_step_joins_no_steps(self):
        """A range of the user, alone or beside those of each step's parts; a compiler that traces a backward pass."""
        def saves(i):
            if i % 4 == 0:
                self.call("save_checkpoint", 8000, cat="user_annotation")
            begin = self.now
            self.train()
            if ranges:
                self.events.append(span("forward_backward", begin - 1, self.now - begin + 2, cat="user_annotation"))
            self.update()

        def compiles(i):
            if i % 4 == 3:
                for k in range(5):
                    self.events.append(span("autograd::engine::evaluate_function: MulBackward0", self.now + 100 + 1000 * k, 500))
                self.events.append(span("_compile.compile_inner (dynamo_timed)", self.now + 10, 7900))
                self.call("dynamo", 8000)
            else:
                self.call("TorchDynamo Cache Lookup", 10)
            self.train()
            self.update(True)

        for ranges in (False, True):
            facts = self.assert_iterations(self.make(saves, 12), 12, 34 + 8 / 4)
            self.assertEqual(facts["slow_iterations"]["every"], 4)
        facts = self.assert_iterations(self.make(compiles, 12), 12, 34 + 8 / 4)
        self.assertEqual(facts["slow_iterations"]["every"], 4)

    def test_one_op_or_two_again_and_again_are_one_iteration(self):
        """As a benchmark of a kernel has them."""
        for ops in (("aten::mm",), ("aten::mm", "aten::relu")):
            def calls(i, ops=ops):
                for op in ops:
                    self.call(op, 1000)
                self.now += 2000 if i == 0 else 0

            facts = self.assert_iterations(self.make(calls, 10), 1, 10 * len(ops) + 2, "nothing")
            self.assertIn("recording (inference, or a forward pass alone", " ".join(facts["warnings"]))

    def test_an_iteration_that_does_less_than_half_of_the_others_is_one(self):
        """As L-BFGS has them once it is near its goal; or a job the first one."""
        for light in (3, 0):
            def less(i, light=light):
                for _ in range(1 if i % 4 == light else 4):
                    self.train()
                self.update(True)

            self.assert_iterations(self.make(less, 12), 12, 3.25 * 30 + 4)
            self.assert_iterations(self.make(lambda i: less(i + 4 * (i > 0 and light == 0)), 4), 4, 3.25 * 30 + 4)

    def test_micro_batches_may_be_more_in_some_iterations(self):
        def accumulates(i):
            for _ in range(2 + i % 3):
                self.train()
            self.update(True)

        folder = self.make(accumulates, 12)
        facts = self.assert_iterations(folder, 12, 3 * 30 + 4)
        self.assertEqual((facts["fewest_micro_batches"], facts["micro_batches"]), (2, 4))
        self.assertIn("2 to 4 micro-batches an iteration", dpro("replay", folder).out)

    def test_a_range_that_holds_several_updates_is_an_iteration(self):
        def plays(i):
            begin = self.now
            for _ in range(2):
                self.train()
                self.update()
            self.events.append(span("round", begin - 1, self.now - begin + 1, cat="user_annotation"))
            self.now += 2

        self.assert_iterations(self.make(plays), 9, 2 * 34, "ranges")

    def test_a_rollout_leads_up_to_the_first_of_its_updates(self):
        def learns(i):
            for _ in range(10):
                self.call("aten::linear", 1000)
            for k in range(4):
                self.train()
                self.call("aten::norm", 400 * ((4 * i + k) * 37 % 11))
                self.update(True)

        folder = self.make(learns, 6)
        facts = self.assert_iterations(folder, 24, 34 + 2 + 10 / 4)
        self.assertEqual(facts["steps"]["updates"], 1)
        self.assertEqual([row["iteration"] for row in facts["slow_iterations"]["iterations"]], list(range(0, 24, 4)))
        self.assertEqual(facts["slow_iterations"]["every"], 4)
        self.assertIn("24 of them, each with 1 update;", " ".join(facts["warnings"]))
        cause = next(cause for cause in self.assert_json("diagnose", folder)["causes"] if cause["cause"] == "slow_iterations")
        self.assertEqual(cause["parts"][0]["what"], "aten::linear, every 4 iterations")
        self.assertNotIn("warming up", cause["next_step"])

    def test_a_rollout_of_any_length_leads_up_to_its_update(self):
        """So do several ops of one name, such as those that load a batch."""
        for ops in (lambda i: 10 + i % 3, lambda _: 2):
            def plays(i, ops=ops):
                for _ in range(ops(i)):
                    self.call("aten::randn", 1000)
                self.train()
                self.update(True)

            mean = sum(map(ops, range(9))) / 9
            facts = self.assert_iterations(self.make(plays), 9, mean + 34)
            for i, ms in enumerate(facts["measured"]["per_iteration_ms"]):
                self.assertAlmostEqual(ms, ops(i) + 34, delta=0.1)
            self.assertAlmostEqual(facts["ranks"][0]["update_ms"], 4, delta=0.1)
            self.assertAlmostEqual(facts["ranks"][0]["forward_ms"], mean + 10, delta=0.4)

    def test_an_evaluation_joins_no_steps_that_are_updated_by_hand(self):
        """Into parameters, or as functions of the old ones; where all passes are updated, nothing is accumulated."""
        for op in ("aten::sub_", "aten::sub"):
            def evaluates(i, op=op):
                self.call("aten::randn", 1000)
                self.train()
                for _ in range(10):
                    self.call(op, 400)
                if i % 5 == 4:
                    self.call("aten::linear", 10_000)
                    self.call("aten::argmax", 1000)

            facts = self.assert_iterations(self.make(evaluates, 15), 15, 35 + 11 / 5, "passes")
            self.assertEqual(facts["slow_iterations"]["every"], 5)
            self.assertAlmostEqual(facts["ranks"][0]["update_ms"], 4, delta=0.1)

    def test_the_last_step_of_an_epoch_may_accumulate_fewer(self):
        def epoch(_):
            for micro in range(11):
                self.train()
                if micro % 4 == 3 or micro == 10:
                    self.update(True)

        facts = self.assert_iterations(self.make(epoch, 3), 9, 11 * 30 / 3 + 4)
        self.assertEqual(facts["micro_batches"], 4)

    def test_a_gradient_that_is_differentiated_itself_lacks_no_forward_pass(self):
        """A gradient penalty: functions of the second pass were recorded within the first."""
        def penalty(_):
            first, again = self.number, self.number + 10
            for layer in range(10):
                self.call("aten::linear", 1000, **{"Sequence number": first + layer, "Fwd thread id": 0})
            for layer in reversed(range(10)):
                self.events.append(span("aten::mm", self.now + 100, 1000, **{"Sequence number": again + layer, "Fwd thread id": 0}))
                self.call("autograd::engine::evaluate_function: AddmmBackward0", 1500,
                          **{"Sequence number": first + layer, "Fwd thread id": 1})
            for layer in range(10):
                self.call("autograd::engine::evaluate_function: MmBackward0", 500, **{"Sequence number": again + layer, "Fwd thread id": 1})
            self.number += 20
            self.update(True)

        self.assert_iterations(self.make(penalty, 6), 6, 34)

    def test_a_forward_pass_alone_has_no_gradients_to_add_up(self):
        def evaluates(_):
            self.load()
            self.call("aten::linear", 10_000)

        folder = self.make(evaluates)
        self.assert_error(dpro("whatif", folder, "--accumulate", "2"), 2, "no backward pass was recorded")
        self.assertNotRegex(dpro("whatif", folder).out, "(?m)^--accumulate($| +now)")

    def test_losses_of_one_forward_pass_are_no_micro_batches(self):
        """The second loss is computed once the first one's gradients are there."""
        def losses(_):
            first = self.number
            self.train()
            self.call("aten::mean", 1000, **{"Sequence number": self.number, "Fwd thread id": 0})
            self.call("autograd::engine::evaluate_function: MeanBackward0", 1000, 2,
                      **{"Sequence number": self.number, "Fwd thread id": 1})
            for layer in reversed(range(10)):
                self.call("autograd::engine::evaluate_function: AddmmBackward0", 2000, 2,
                          **{"Sequence number": first + layer, "Fwd thread id": 1})
            self.number += 1
            self.update(True)

        facts = self.assert_iterations(self.make(losses), 9, 30 + 22 + 4)
        self.assertNotIn(facts["micro_batches"], range(2, 100))

    def test_optimizers_that_step_within_backward_passes_mark_no_iterations(self):
        """One for each parameter, called as soon as its gradient is there."""
        def steps(_):
            begin = self.now + 10_000
            self.train()
            for layer in range(10):
                self.events.append(span("Optimizer.step#Adam.step", begin + layer * 2000 + 500, 1000, 2, "user_annotation"))

        self.assert_iterations(self.make(steps), 9, 30, "passes")

    def test_a_step_whose_gradients_overflowed_is_an_iteration(self):
        """As a GradScaler skips it. Not where a step zeroes the gradients of each of its losses."""
        def zero(self):
            self.call("Optimizer.zero_grad#AdamW.zero_grad", 100, cat="user_annotation")

        def scales(i):
            self.call("aten::randn", 1000)
            zero(self)
            self.train()
            if i % 4 != 1:
                self.update(True)

        def losses(_):
            for _ in range(2):
                zero(self)
                self.train()
            self.update(True)

        facts = self.assert_iterations(self.make(scales, 12), 12, 31.1 + 4 * 3 / 4)
        self.assertAlmostEqual(facts["ranks"][0]["forward_ms"], 11, delta=0.1)  # what comes before zero_grad, too
        self.assertNotIn(facts["micro_batches"], range(2, 100))
        self.assertIsNone(facts["steps"]["updates"])
        self.assertIn("12 of them, 3 of them without an update;", " ".join(facts["warnings"]))
        self.assert_iterations(self.make(losses, 12), 12, 2 * 30.1 + 4)

    def test_ops_that_call_what_is_differentiated_evaluate_too(self):
        """As recorded: aten::linear holds aten::addmm, and the number that the latter has for itself."""
        def linear(us, **numbers):
            self.events.append(span("aten::addmm", self.now + 10, us - 20, **numbers))
            self.call("aten::linear", us, **numbers)

        def evaluates(i):
            first = self.number
            for layer in range(10):
                linear(1000, **{"Sequence number": first + layer, "Fwd thread id": 0})
            for layer in reversed(range(10)):
                self.call("autograd::engine::evaluate_function: AddmmBackward0", 2000,
                          **{"Sequence number": first + layer, "Fwd thread id": 1})
            self.number += 10
            self.update(True)
            if i % 3 == 2:
                linear(9000)

        facts = self.assert_iterations(self.make(evaluates), 9, 34 + 9 / 3)
        for key, ms in (("forward_ms", 13), ("backward_ms", 20), ("update_ms", 4)):
            self.assertAlmostEqual(facts["ranks"][0][key], ms, delta=0.1, msg=key)
