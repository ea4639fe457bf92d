"""Jobs that hang on their GPU, jobs that hang on their CPU, and iterations at a recording's ends: gpu_job.py makes traces
whose true iteration time is known."""
import glob
import os
import random
import re

import gpu_job
from browser import CHROMIUM
from gpu_job import Job
from support import BUNDLED, DONE, USAGE, Case, dpro, read_json, read_text, recording, shared, span  # finds tools/, too

import breakdown

def idle_pct(rank):
    return 100 * rank["idle_ms"] / rank["iteration_ms"]

def verdict(facts, title):
    return next(line["text"] for line in facts["verdict"] if line["title"] == title)

class BoundByGpu(Case):
    """The CPU needs 35 us for each kernel of 50 to 100 us, and does not wait."""

    def assert_bound_by_gpu(self, job, idle=2.0, **options):
        folder, truth = gpu_job.write(self, job, **options)
        facts = self.assert_replays(folder)
        period_ms = truth[0]["period_us"] / 1000
        self.assertAlmostEqual(facts["measured"]["iteration_ms"], period_ms, delta=0.02 * period_ms)
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], period_ms, delta=0.02 * period_ms)
        self.assertLess(facts["validation"]["mean_abs_error_pct"] or 0, 5)
        for rank in facts["ranks"]:
            self.assertLess(idle_pct(rank), idle)
        path = facts["critical_path"]
        on_cpu = sum(op["duration_ms"] + op["gap_ms"] for op in path["ops"] if "thread" in (op["device"] or ""))
        self.assertLess(on_cpu, 0.1 * path["length_ms"])
        return facts, truth

    def test_its_period_is_that_of_the_gpu_while_the_queue_fills(self):
        facts, truth = self.assert_bound_by_gpu(Job())
        self.assertEqual(facts["pace"]["ranks_on_gpu"], 1)
        self.assertAlmostEqual(facts["pace"]["cpu_ms"], truth[0]["cpu_us"] / 1000, delta=0.1)
        self.assertAlmostEqual(facts["pace"]["gpu_ms"], truth[0]["period_us"] / 1000, delta=0.1)
        self.assertIn("GPU-bound", verdict(facts, "Idle"))

    def test_a_collective_waits_for_a_kernel_that_ends_after_its_start_by_rounding(self):
        """Only the last transfer is exposed, and what comes before it is computation without a gap."""
        for rounding_us in (0.0, 0.001, 1.0):
            job = Job(kernels=30, kernel_us=1000.0, world=2, buckets=2, transfer_us=3000.0, sync="end", gpu_rounding_us=rounding_us)
            path = self.assert_replays(gpu_job.write(self, job, folder=f"rounded{rounding_us}")[0])["critical_path"]
            self.assertAlmostEqual(path["by_kind_ms"]["COLLECTIVE"], 3.0, delta=0.1)
            self.assertLess(path["by_kind_ms"]["GAP"], 0.5)

    def test_so_it_is_where_that_work_fills_several_iterations(self):
        """Kernels launched before the recording run for three iterations of the CPU's marks, of which they are no part."""
        for steps in (2, 6):
            facts, _ = self.assert_bound_by_gpu(Job(kernels=300), before=8, synced=False, steps=steps,
                                                folder=f"full{steps}")
            self.assertAlmostEqual(facts["predicted"]["iteration_ms"], facts["measured"]["iteration_ms"],
                                   delta=0.01 * facts["measured"]["iteration_ms"])
        facts, _ = self.assert_bound_by_gpu(Job(kernels=300, world=2, buckets=4), before=4, synced=False, folder="ranks")
        self.assertEqual(facts["pace"]["ranks_on_gpu"], 2)

    def test_so_it_is_of_any_such_job_however_it_is_recorded(self):
        """Its kernels and calls vary, its queue is full, spans overlap by rounding, the GPU has work of before the recording."""
        for seed in range(16):
            rng = random.Random(seed)
            world, steps = rng.choice((1, 1, 2, 3)), rng.randint(2, 6)
            made = dict(world=world, buckets=world > 1 and rng.randint(1, 6), kernels=rng.choice((150, 300, 900)),
                        kernel_us=rng.choice((75.0, 100.0)), cpu_us=rng.choice((25.0, 35.0)), transfer_us=rng.choice((500.0, 2000.0)),
                        jitter=rng.choice((0.0, 0.2, 0.3)), streams=rng.choice((1, 2)), sync=rng.choice((None, None, "loss", "end")),
                        rounding_us=rng.choice((0.0, 0.001, 1.0)), seed=seed)
            how = {"before": rng.randint(3, 5), "synced": False} if steps > 2 and rng.random() < 0.5 else {}
            with self.subTest(steps=steps, **made, **how):
                facts, _ = self.assert_bound_by_gpu(Job(**made), steps=steps, folder=f"job{seed}", **how)
                if not made["sync"]:
                    self.assertEqual(facts["pace"]["ranks_on_gpu"], world)

    def test_so_it_is_where_a_wait_seems_as_long_as_the_op_that_called_it(self):
        for seed in (37, 38):
            self.assert_bound_by_gpu(Job(kernels=900, kernel_us=75.0, cpu_us=35.0, jitter=0.3, sync="end", rounding_us=1.0, seed=seed),
                                     folder=f"wait{seed}")

    def test_so_it_is_where_collectives_take_longest(self):
        facts, _ = self.assert_bound_by_gpu(Job(world=2, buckets=4, kernel_us=40, cpu_us=20, transfer_us=6000))
        self.assertNotIn("GPU-bound", verdict(facts, "Idle"))

    def test_a_rank_that_waits_for_a_slow_one_has_its_period(self):
        folder, truth = gpu_job.write(self, Job(world=2, buckets=4, slow=(1, 5.0)))
        facts = self.assert_replays(folder)
        period_ms = truth[1]["period_us"] / 1000
        self.assertLess(truth[0]["cpu_us"], 0.3 * truth[1]["cpu_us"])
        self.assertAlmostEqual(facts["measured"]["iteration_ms"], period_ms, delta=0.02 * period_ms)
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], period_ms, delta=0.02 * period_ms)
        self.assertEqual(facts["pace"]["ranks_on_gpu"], 1)

    def test_ranks_that_meet_but_take_different_times_are_doubted(self):
        """Rank 0's file lost its kernels (not its copies: the GPU was recorded): the mean of its CPU's marks and of rank 1's GPU is
        the time of no rank."""
        folder, _ = gpu_job.write(self, Job(world=2, buckets=4))
        path = os.path.join(folder, "rank0.pt.trace.json.gz")
        trace = read_json(path)
        trace["traceEvents"] = [e for e in trace["traceEvents"] if e["cat"] != "kernel"]
        self.write("job/rank0.pt.trace.json.gz", trace)
        facts = self.assert_replays(folder)
        self.assertRegex(verdict(facts, "Next step"), "rank 0 takes .* rank 1 .* is incomplete")

    def test_the_disagreement_is_said_in_text_json_and_page(self):
        folder, _ = gpu_job.write(self, Job())
        result = dpro("replay", folder, "-o", self.path("out"))
        self.assert_code(result, DONE)
        self.assertRegex(" ".join(read_json(self.path("out", "replay.json"))["warnings"]), "CPU runs ahead of its GPU")
        self.assertIn("CPU runs ahead of its GPU", read_text(self.path("out", "report.html")))
        self.assertRegex(result.out, r"CPU\s+runs\s+ahead\s+of\s+its\s+GPU")

    def test_drawn_iterations_take_as_long(self):
        folder, truth = gpu_job.write(self, Job(jitter=0.2))
        predicted = self.assert_replays(folder, "--samples", "20")["predicted"]
        for key in ("p50_ms", "p95_ms"):
            self.assertAlmostEqual(predicted[key], truth[0]["period_us"] / 1000, delta=1.0)

    def test_steps_that_were_timed_on_the_cpu_say_nothing_of_it(self):
        folder, truth = gpu_job.write(self, Job(jitter=0.2, world=2, buckets=4, kernel_us=60))
        step_ns = int(700 * truth[0]["period_us"])
        steps = {"boundary": "optimizer", "warmup": 10, "timing": [], "structure": [], "after": [],
                 "before": [{"step": i, "start_ns": i * step_ns, "end_ns": (i + 1) * step_ns} for i in range(10)]}
        for rank in range(2):
            self.write(f"trace/host0/rank{rank}/rank.json", {**recording(rank, steps=steps), "backend": "nccl", "models": []})
            os.rename(self.path(folder, f"rank{rank}.pt.trace.json.gz"), self.path("trace", "host0", f"rank{rank}", "kineto.json.gz"))
        facts = self.assert_json("whatif", self.path("trace"), "--bandwidth", "2x")
        self.assertIsNone(facts["unprofiled_ms"])
        self.assertNotIn("steps without the profiler", dpro("replay", self.path("trace")).out)
        model_ms = truth[0]["period_us"] / 1000 * (1 + facts["misfit_pct"] / 100)
        self.assertAlmostEqual(facts["baseline"]["iteration_ms"], model_ms, delta=0.5)

    def test_gradients_are_ready_when_the_gpu_has_them(self):
        """However far ahead of it the CPU asks for their collectives."""
        for streams in (1, 2):
            ours, slower = (gpu_job.write(self, Job(world=4, buckets=5, streams=streams, transfer_us=us, jitter=0.1),
                                          folder="%d-%d" % (streams, us)) for us in (2000.0, 4000.0))
            for args, truth in ((), ours), (("--bandwidth", "0.5x"), slower), (("--delay", "COLLECTIVE=2"), slower):
                with self.subTest(streams=streams, args=args):
                    predicted = self.assert_json("whatif", ours[0], *args)["predicted"]["iteration_ms"]
                    self.assertAlmostEqual(predicted, truth[1][0]["period_us"] / 1000, delta=1.0)

    def test_parameters_that_are_gathered_ahead_hold_up_what_needs_them_and_links_carry_them_in_order(self):
        for name, kernel_us in (("links decide", 20.0), ("the GPU decides", 60.0)):
            with self.subTest(name):
                ours, faster = (gpu_job.write(self, Job(world=4, units=6, kernel_us=kernel_us, cpu_us=5.0, transfer_us=us,
                                                        jitter=0.1),
                                              folder=f"{name}-{us}")
                                for us in (900.0, 450.0))
                before, after = (dpro("whatif", "--json", ours[0], *options).json["predicted"]["iteration_ms"]
                                 for options in ((), ("--bandwidth", "2x")))
                self.assertAlmostEqual(before, ours[1][0]["period_us"] / 1000, delta=0.02 * before)
                self.assertAlmostEqual(after, faster[1][0]["period_us"] / 1000, delta=0.05 * after)

    def test_that_the_cpu_holds_up_a_faster_job_is_predicted(self):
        told = "the CPU alone takes "
        for slowest in (1.0, 1.2):
            ours, faster = (gpu_job.write(self, Job(world=2, buckets=5, kernel_us=40.0, cpu_us=38.0, transfer_us=us, jitter=0.1,
                                                    slow=(1, slowest), accumulates=True), folder="slow%.1f-%d" % (slowest, us))
                            for us in (1500.0, 375.0))
            with self.subTest(slowest=slowest):
                self.assertNotIn(told, dpro("whatif", ours[0]).out)
                facts = self.assert_json("whatif", ours[0], "--bandwidth", "4x")
                alone_us = 1000 * float(" ".join(facts["warnings"]).partition(told)[2].split()[0])
                self.assertAlmostEqual(alone_us, ours[1][1]["cpu_us"], delta=0.01 * alone_us)
                predicted_us = 1000 * facts["predicted"]["iteration_ms"]
                self.assertAlmostEqual(predicted_us, faster[1][0]["period_us"], delta=0.02 * predicted_us)
                searched = self.assert_json("optimize", ours[0], "--compress", "fp16")
                rows = {row["name"]: row["likely_ms"] for row in searched["baselines"]}
                self.assertEqual(rows["cap-1"], self.assert_json("whatif", ours[0], "--bucket-cap-mb", "1")["predicted"]["iteration_ms"])
                self.assertGreaterEqual(searched["best"]["likely_ms"], 0.999 * alone_us / 1000)
                self.assertEqual(told in " ".join(searched["warnings"]), searched["best"]["likely_ms"] < 1.001 * alone_us / 1000)
                _, halved = gpu_job.write(self, Job(world=2, buckets=5, kernel_us=20.0, cpu_us=38.0, transfer_us=1500.0, jitter=0.1,
                                                    slow=(1, slowest)), folder="halved%.1f" % slowest)
                twice_us = 1000 * self.assert_json("whatif", ours[0], "--compute", "2x")["predicted"]["iteration_ms"]
                self.assertAlmostEqual(twice_us, halved[1]["period_us"], delta=0.03 * twice_us)
        for sync, slow in (None, None), ("end", (1, 1.4)):
            ours, faster = (gpu_job.write(self, Job(kernels=300, kernel_us=20.0, cpu_us=30.0, world=2, buckets=4, transfer_us=us,
                                                    sync=sync, slow=slow), folder="launches-%s-%d" % (sync, us))
                            for us in (1300.0, 650.0))
            for times in ("2x", "100x"):
                predicted_us = 1000 * self.assert_json("whatif", ours[0], "--bandwidth", times)["predicted"]["iteration_ms"]
                self.assertAlmostEqual(predicted_us, faster[1][0]["period_us"], delta=0.01 * predicted_us)
            searched = self.assert_json("optimize", ours[0])
            self.assertEqual("may be no slower" in " ".join(searched["warnings"]), sync is not None)
            if not sync:  # what goes on beside the launches costs nothing, until the GPU has more to do than these
                rows = {row["name"]: row["likely_ms"] for row in searched["baselines"]}
                for what, job, ms in (("one", dict(buckets=1, transfer_us=5200.0), rows["one-bucket"]),
                                      ("slower", dict(buckets=4, transfer_us=4000.0),
                                       self.assert_json("whatif", ours[0], "--bandwidth", "0.325x")["predicted"]["iteration_ms"])):
                    _, other = gpu_job.write(self, Job(kernels=300, kernel_us=20.0, cpu_us=30.0, world=2, **job), folder="launches-" + what)
                    self.assertAlmostEqual(1000 * ms, other[0]["period_us"], delta=30 * ms)
                for speed, cpu_us in (("1.4x", 20.0), ("0.5x", 65.0)):  # of an op and its launch, 35 us
                    facts = self.assert_json("whatif", ours[0], "--compute", "cpu=" + speed, "--bandwidth", "100x")
                    _, other = gpu_job.write(self, Job(kernels=300, kernel_us=20.0, cpu_us=cpu_us, world=2, buckets=4, transfer_us=13.0),
                                             folder="launches-cpu" + speed)
                    predicted_us = 1000 * facts["predicted"]["iteration_ms"]
                    self.assertAlmostEqual(predicted_us, other[0]["period_us"], delta=0.03 * predicted_us)
        waits, _ = gpu_job.write(self, Job(world=2, buckets=5, transfer_us=4000.0, sync="loss"), folder="waits")
        self.assertNotIn(told, dpro("whatif", waits, "--bandwidth", "4x").out)

    def test_a_speed_of_computing_is_that_of_the_gpu(self):
        bound = dict(world=2, buckets=4, kernel_us=100.0, cpu_us=300.0, transfer_us=100.0)
        ours, _ = gpu_job.write(self, Job(**bound), folder="bound")
        _, faster = gpu_job.write(self, Job(**dict(bound, kernel_us=50.0)), folder="gpu")
        _, launching = gpu_job.write(self, Job(**dict(bound, cpu_us=150.0)), folder="cpu")
        for speed, truth in (("2x", faster), ("gpu=2x", faster), ("gpu=2x@0-1", faster), ("cpu=2x", launching)):
            with self.subTest(speed):
                after = self.assert_json("whatif", ours, "--compute", speed)["predicted"]["iteration_ms"]
                self.assertAlmostEqual(after, truth[0]["period_us"] / 1000, delta=0.03 * after)
        text = dpro("whatif", ours, "--compute", "cpu=2x@1").out
        self.assertIn("rank 1 computing 2 times as fast on the CPU", text)
        self.assertIn("no rank 7", dpro("whatif", ours, "--compute", "gpu=2x@7").err)

    def test_a_call_that_waits_for_the_step_before_does_not_hold_up_a_faster_gpu(self):
        bound = dict(kernels=60, kernel_us=400.0, cpu_us=20.0, world=2, buckets=4, transfer_us=1500.0, sync="previous")
        ours, _ = gpu_job.write(self, Job(**bound), folder="event")
        for options, job in ((("--compute", "gpu=2x"), dict(kernel_us=200.0)), (("--compute", "cpu=0.5x"), dict(cpu_us=45.0)),
                             (("--bandwidth", "0.25x"), dict(transfer_us=6000.0))):
            _, truth = gpu_job.write(self, Job(**dict(bound, **job)), folder="event" + options[1])
            after = self.assert_json("whatif", ours, *options)["predicted"]["iteration_ms"]
            self.assertAlmostEqual(after, truth[0]["period_us"] / 1000, delta=0.03 * after)

    def test_a_faster_gpu_makes_it_bound_by_its_cpu(self):
        folder, truth = gpu_job.write(self, Job(), steps=3)  # of more, the last ones wait for a full queue
        faster = self.assert_replays(folder, "--delay", "FW=1", *(
            o for k in range(17) for o in ("--delay", f"conv_forward_{k}=0.1")), *(
            o for k in range(13) for o in ("--delay", f"conv_backward_{k}=0.1")), *(
            o for k in range(5) for o in ("--delay", f"update_{k}=0.1")))
        self.assertAlmostEqual(faster["predicted"]["iteration_ms"], truth[0]["cpu_us"] / 1000, delta=0.5)

    def test_a_public_trace_whose_queue_fills_has_the_period_of_its_gpu(self):
        facts = self.assert_replays(shared("resnet-v100-1gpu-ns"))
        for value in facts["measured"]["per_iteration_ms"]:
            self.assertAlmostEqual(value, 95.7, delta=2.1)
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], 95.7, delta=0.5)
        self.assertLess(idle_pct(facts["ranks"][0]), 2)  # 1.6 % by the union of its kernels
        self.assertLess(facts["validation"]["mean_abs_error_pct"], 1)

class BoundByCpu(Case):
    def test_launches_that_take_longer_than_kernels_are_the_bottleneck(self):
        for name, job in (("alone", Job(kernel_us=20, cpu_us=60)), ("two", Job(kernel_us=20, cpu_us=60, world=2, buckets=4)),
                          ("varies", Job(kernel_us=20, cpu_us=60, jitter=0.3))):
            with self.subTest(job=name):
                folder, truth = gpu_job.write(self, job, folder=name)
                facts = self.assert_replays(folder)
                period_ms = truth[0]["period_us"] / 1000
                self.assertAlmostEqual(facts["predicted"]["iteration_ms"], period_ms, delta=0.02 * period_ms)
                self.assertEqual(facts["pace"], {"ranks_on_gpu": 0, "cpu_ms": None, "gpu_ms": None, "ahead_ms": None})
                self.assertRegex(verdict(facts, "Idle"), r"critical path: (9\d|100) % CPU work")
                self.assertGreater(idle_pct(facts["ranks"][0]), 30)

class NotRecorded(Case):
    """The work of GPUs is missing: the profiler lacked the right to see it, or was told not to look."""

    def write(self, name, content):
        """Without device rows on these ranks, with the ranges in which c10d calls NCCL."""
        rank = content["distributedInfo"]["rank"]
        if rank in self.lacking:
            events = [e for e in content["traceEvents"] if e["pid"] != 0]
            if self.cpu_only:
                events = [e for e in events if e["cat"] != "cuda_runtime"]
            calls = [dict(e, cat="user_annotation", name="nccl:all_reduce", args={}) for e in events
                     if self.calls_nccl and e["name"].startswith("c10d::")]
            content["traceEvents"] = events + calls
        super().write(name, content)

    def replay_without(self, lacking, calls_nccl=True, cpu_only=False, **job):
        self.lacking, self.calls_nccl, self.cpu_only = lacking, calls_nccl, cpu_only
        folder, _ = gpu_job.write(self, Job(**job), folder=f"job{len(os.listdir(self.path()))}")
        return folder, self.assert_json("replay", folder)

    def assert_said(self, folder, facts, *patterns):
        self.assertFalse(facts["trace"]["gpu_recorded"])
        for title in ("Critical path", "Communication", "Idle"):
            self.assertIn("work of GPUs was not recorded", verdict(facts, title))
        for pattern in patterns + ("no right to use CUPTI.*record again with ProfilerActivity.CUDA",):
            self.assertRegex(verdict(facts, "Next step"), pattern)
            self.assertEqual(len([text for text in facts["warnings"] if "CUPTI" in text]), 1)
        self.assertNotIn("no communication was recognised", " ".join(facts["warnings"]))
        for command in (["optimize"], ["whatif", "--compute", "2x"], ["whatif", "--bandwidth", "2x"]):
            self.assert_error(dpro(command[0], folder, *command[1:]), 3, *patterns)

    def test_it_is_said_with_the_collectives_that_were_called_and_nothing_is_advised(self):
        for cpu_only in (False, True):
            with self.subTest(cpu_only=cpu_only):
                self.assert_said(*self.replay_without((0, 1), cpu_only=cpu_only, world=2, buckets=4),
                                 "not recorded on any rank: the CPU launches kernels or calls NCCL, and no kernel")

    def test_so_it_is_on_one_rank_of_several(self):
        for lacking, named in (((1,), "rank 1"), ((0, 3), "ranks 0, 3")):
            folder, facts = self.replay_without(lacking, world=4, buckets=4)
            self.assertTrue(facts["trace"]["gpu_recorded"])
            self.assertIn(f"4 of 4 ranks are here, {named} without the GPU's work: in", " ".join(facts["warnings"]))
            self.assert_code(dpro("replay", folder, "-o", self.path("page")), 0)
            if CHROMIUM:
                self.assertIn(f"{4 - len(lacking)} of 4 ranks are in the trace with their GPU's work",
                              self.dom(self.path("page", "report.html")))
            self.assertEqual(facts["trace"]["ranks_without_gpu"], list(lacking))
            self.assertEqual(facts["trace"]["ranks_present"], [0, 1, 2, 3])
            told = [rank for rank in range(4) if rank not in lacking]
            self.assertEqual([rank["rank"] for rank in facts["ranks"]], told)
            self.assertEqual(sorted(int(rank) for rank in facts["critical_path"]["by_rank_ms"]), told[-1:] if len(told) == 1 else told)
            self.assertRegex(" ".join(facts["warnings"]), f"not recorded on {named}: the CPU launches kernels or "
                                                          "calls NCCL.*, so that nothing is said of it here. The.*CUPTI")
            self.assertIn(f"; the GPU was recorded on {len(told)} of 4 ranks, not on rank {lacking[0]}",
                          verdict(facts, "Communication"))
            _, all_facts = self.replay_without((), world=4, buckets=4)
            self.assertAlmostEqual(facts["predicted"]["iteration_ms"], all_facts["predicted"]["iteration_ms"], delta=0.5)
            self.assertLess(facts["critical_path"]["by_kind_ms"].get("LAUNCH", 0), 0.2 * facts["critical_path"]["length_ms"])
            self.assert_code(dpro("whatif", folder, "--compute", "2x"), 0)

    def test_so_it_is_of_a_single_rank(self):
        self.assert_said(*self.replay_without((0,)), "not recorded on rank 0: the CPU launches kernels or calls NCCL, and no kernel")

    def test_a_job_that_uses_no_gpu_or_little_of_it_does_not_lack_it(self):
        for job in (dict(lacking=(0,), cpu_only=True), dict(lacking=(), kernels=3, kernel_us=2.0)):
            folder, facts = self.replay_without(**job)
            self.assertTrue(facts["trace"]["gpu_recorded"])
            self.assertNotIn("CUPTI", " ".join(facts["warnings"]))
            self.assert_code(dpro("whatif", folder, "--compute", "2x"), 0)

class OtherDevices(Case):
    """Rows of an accelerator that dpro has no word for are a device's ops, whatever the file calls them."""

    def write(self, name, content):
        content["traceEvents"] = [self.change(event) for event in content["traceEvents"]] + self.more
        super().write(name, content)

    def replay_as(self, change, more=(), **job):
        self.change, self.more = change, list(more)
        folder, _ = gpu_job.write(self, Job(**job), folder=f"job{len(os.listdir(self.path()))}")
        return self.assert_json("replay", folder)

    @staticmethod
    def named(event, cat, runtime=None, **more):
        """A device's row as `cat` (None: without), calls of its runtime as `runtime`, all else as it is."""
        if event["cat"] in ("kernel", "gpu_memcpy"):
            event = dict(event, cat=cat, **more)
        elif event["cat"] == "cuda_runtime" and runtime:
            event = dict(event, cat=runtime)
        return {key: value for key, value in event.items() if value is not None}

    def assert_like(self, facts, plain, keys=("iteration_ms", "forward_ms", "backward_ms", "exposed_communication_ms", "idle_ms")):
        for rank, as_gpu in zip(facts["ranks"], plain["ranks"]):
            for key in keys:
                self.assertAlmostEqual(rank[key], as_gpu[key], delta=0.05 * as_gpu["iteration_ms"], msg=key)

    def assert_said(self, facts, *patterns):
        said = [text for text in facts["warnings"] if "kinds that dpro does not know" in text]
        self.assertEqual(len(said), 1, facts["warnings"])
        for pattern in patterns:
            self.assertRegex(said[0], pattern)

    def test_they_are_read_by_their_place_whatever_their_category(self):
        job = dict(world=2, buckets=4, sync="end")
        plain = self.replay_as(lambda event: event, **job)
        for cat, runtime in (("mtia_ccp_events", "mtia_runtime"), ("hpu_op", None), ("npu_kernel", "privateuse1_runtime")):
            with self.subTest(cat=cat):
                facts = self.replay_as(lambda event, cat=cat, runtime=runtime: self.named(event, cat, runtime), **job)
                self.assert_like(facts, plain)
                self.assert_said(facts, f'rank0.* and others: .* [0-9]+ of "{cat}" are read as a device\'s ops')
                self.assertEqual([c["kind"] for c in facts["collectives"]], [c["kind"] for c in plain["collectives"]])

    def test_so_they_are_without_a_category_by_their_process_and_what_sums_them_up_is_left_out(self):
        job = dict(world=1, sync="end")
        more = [{"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "Accelerator 0"}},
                {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "args": {"name": "Usage"}}]
        more += [{"ph": "X", "name": name, "pid": 9, "tid": tid, "ts": 1_000_000_000.0, "dur": 150_000.0}
                 for tid, name in enumerate(("Computing", "Free"))]
        plain = self.replay_as(lambda event: event, **job)
        facts = self.replay_as(lambda event: self.named(event, None), more, **job)
        self.assert_like(facts, plain)
        self.assert_said(facts, '1806 of "Accelerator 0" are read as', '2 of "Usage" are left out')

    def test_so_they_are_where_only_their_thread_is_called_a_stream(self):
        def change(event):
            if event["cat"] not in ("kernel", "gpu_memcpy"):
                return event
            event = self.named(event, None, pid=100, tid=f"stream {event['tid']}")
            return dict(event, args={key: value for key, value in event["args"].items() if key != "stream"})
        job = dict(world=2, buckets=4, sync="end")
        facts = self.replay_as(change, **job)
        self.assert_like(facts, self.replay_as(lambda event: event, **job))
        self.assert_said(facts, '1830 of "no category" are read as')

    def test_what_launched_them_is_told_by_time_where_nothing_else_does(self):
        def change(event):
            event = self.named(event, "x_op")
            if event["cat"] == "cuda_runtime":
                return dict(event, cat="overhead")
            return dict(event, args={key: value for key, value in event["args"].items() if key not in ("correlation", "External id")})
        job = dict(kernels=60, sync="end")
        facts, plain = self.replay_as(change, **job), self.replay_as(lambda event: event, **job)
        self.assert_like(facts, plain, ("iteration_ms", "idle_ms"))
        self.assertGreater(facts["ranks"][0]["forward_ms"], 0)

    def test_so_is_what_waits_for_them(self):
        """Streams wait for each other, and the thread for them, in calls that were not recorded."""
        def change(event):
            event = self.named(event, "x_op")
            if event["cat"] == "cuda_runtime" or event["name"] in ("aten::item", "aten::detach"):
                return dict(event, cat="overhead")
            return dict(event, args={key: value for key, value in event["args"].items() if key not in ("correlation", "External id")})
        facts = self.replay_as(change, kernels=60, kernel_us=500.0, buckets=1, world=2, sync="end")
        path = facts["critical_path"]
        self.assertLess(path["by_kind_ms"]["GAP"], 0.15 * path["length_ms"], path["by_kind_ms"])
        self.assertGreater(path["by_kind_ms"]["COLLECTIVE"], 1)

    def test_rows_of_cpu_threads_are_none(self):
        plain = self.replay_as(lambda event: event)
        more = [{"ph": "X", "cat": cat, "name": "x", "pid": 100, "tid": 1, "ts": 1_000_000_000.0 + i * 1000, "dur": 900.0}
                for i, cat in enumerate(("enqueue", "dequeue", "anything"))]
        more += [{"ph": "M", "name": "process_labels", "pid": 70, "tid": 0, "args": {"labels": "CPU"}},
                 {"ph": "X", "name": "Runtime@Launch", "pid": 70, "tid": 5, "ts": 1_000_000_000.0, "dur": 90_000.0}]
        facts = self.replay_as(lambda event: event, more)
        self.assertEqual((facts["ranks"], facts["warnings"]), (plain["ranks"], plain["warnings"]))

class OddEnds(Case):
    def assert_left_out(self, facts, iteration, reason):
        self.assertEqual([odd["iteration"] for odd in facts["left_out"]], [iteration])
        self.assertRegex(facts["left_out"][0]["reason"], reason)
        self.assertRegex(" ".join(facts["warnings"]), f"iteration {iteration} is left out.*{reason}")
        self.assertLess(abs(facts["error_pct"]), 1)
        self.assertNotIn("record", verdict(facts, "Next step"))

    def test_a_first_step_with_kernels_launched_before_is_left_out(self):
        folder, _ = gpu_job.write(self, Job(sync="loss"), before=2, synced=False, steps=4)
        facts = self.assert_replays(folder)
        self.assert_left_out(facts, 3, "kernels .* launched before the recording")
        self.assertEqual(facts["trace"]["iterations"], 3)

    def test_work_that_only_some_steps_have_is_said(self):
        waits = Job(jitter=0.2, uneven=90, within=lambda rank, number: rank.wait_for_gpu() if number % 3 == 0 else None)
        for name, job, said in (("waits", waits, True), ("uneven", Job(jitter=0.2, uneven=90), False), ("even", Job(jitter=0.2), False)):
            folder, _ = gpu_job.write(self, job, steps=9, folder=f"some-{name}")
            facts = self.assert_replays(folder)
            self.assertEqual(bool(re.search(r"ms of an iteration \(\d+ %\), on average on rank 0, are GPU work that only some "
                                            r"iterations have",
                                            " ".join(facts["warnings"]))), said, name)
            if name == "uneven":
                self.assertAlmostEqual(facts["predicted"]["iteration_ms"], facts["measured"]["iteration_ms"], delta=0.2)
                self.assertLess(facts["ranks"][0]["idle_ms"], 0.5)

    def test_the_only_step_on_a_gpu_that_is_never_done_is_what_the_gpu_takes(self):
        for name, job in (("a-little", Job(kernels=30, jitter=0.02)), ("a-step", Job(jitter=0.02)),
                          ("far", Job(kernel_us=200, jitter=0.02)),
                          ("waits", Job(kernel_us=200, jitter=0.02, sync="previous")),
                          ("ranks", Job(kernel_us=200, jitter=0.02, world=2, buckets=4, sync="previous"))):
            with self.subTest(job=name):
                folder, truth = gpu_job.write(self, job, before=5, synced=False, steps=1, folder=f"only-{name}")
                facts = self.assert_replays(folder)
                period_ms = truth[0]["period_us"] / 1000
                self.assertEqual(facts["left_out"], [])
                for number in ("measured", "predicted"):
                    self.assertAlmostEqual(facts[number]["iteration_ms"], period_ms, delta=0.01 * period_ms)
                self.assertLess(facts["ranks"][0]["idle_ms"], 0.02 * period_ms + 0.1)
                self.assertRegex(" ".join(facts["warnings"]),
                                 r"one iteration only, launched [\d.]+ ms before the GPU had finished earlier work")
                twice = self.assert_json("whatif", folder, "--compute", "gpu=2x")["predicted"]["iteration_ms"]
                self.assertLess(twice, 0.56 * period_ms)

    def test_an_evaluation_in_some_steps_that_wait_for_their_gpu_counts_once(self):
        def program(rank):
            yield from rank.forward(40)
            yield from rank.backward(40)
            yield from rank.update(10)
            if rank.number % 3 == 0:
                yield from rank.forward(60)
            rank.wait_for_gpu()

        folder, _ = gpu_job.write(self, Job(program=program), steps=9)
        facts = self.assert_replays(folder)
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], facts["measured"]["iteration_ms"], delta=0.1)

    def test_a_first_step_with_the_profilers_start_is_left_out(self):
        folder, truth = gpu_job.write(self, Job(kernel_us=20, cpu_us=60), startup_us=30_000)
        facts = self.assert_replays(folder)
        self.assert_left_out(facts, 1, "it took 49.61 ms")
        self.assertAlmostEqual(facts["measured"]["iteration_ms"], truth[0]["period_us"] / 1000, delta=0.1)

    def test_a_last_step_that_was_cut_is_left_out(self):
        folder, _ = gpu_job.write(self, Job(), cut_us=142_000)
        self.assert_left_out(self.assert_replays(folder), 6, "the recording ended before the GPU had done")

    def test_last_steps_whose_work_the_gpu_had_not_come_to_are_left_out(self):
        for lost in (3, 6):
            with self.subTest(lost=lost):
                folder, truth = gpu_job.write(self, Job(), steps=8, lost_steps=lost, folder=f"lost{lost}")
                facts = self.assert_replays(folder)
                self.assertEqual([odd["iteration"] for odd in facts["left_out"]], list(range(8, 8 - lost, -1)))
                self.assertRegex(facts["left_out"][0]["reason"], "the recording ended before the GPU had done")
                period_ms = truth[0]["period_us"] / 1000
                self.assertAlmostEqual(facts["predicted"]["iteration_ms"], period_ms, delta=0.02 * period_ms)

    def test_the_same_step_is_left_out_on_all_ranks(self):
        folder, _ = gpu_job.write(self, Job(world=2, buckets=4, sync="loss"), before=2, synced=False)
        facts = self.assert_replays(folder)
        self.assertEqual({odd["iteration"] for odd in facts["left_out"]}, {3})
        self.assertEqual(facts["trace"]["iterations"], 5)

    def test_an_odd_step_that_was_chosen_is_kept(self):
        folder, _ = gpu_job.write(self, Job(kernel_us=20, cpu_us=60), startup_us=30_000)
        facts = self.assert_replays(folder, "--steps", "1:1")
        self.assertEqual(facts["left_out"], [])
        self.assertAlmostEqual(facts["measured"]["iteration_ms"], 49.61, delta=0.1)

    def test_iterations_that_vary_are_kept(self):
        # without marks the first one begins with the recording, here with the start of loaders and of the GPU, 4.8 s
        for trace, n, left_out in [(shared(name), n, odd) for name, n, odd in (
                ("gloo-cpu-rank34of300", 5, []), ("ddp-a100-rank3of8", 6, []), ("resnet-2080ti-1gpu", 29, [0]))]:
            with self.subTest(trace=trace):
                facts = self.assert_replays(trace, "--no-validate")
                self.assertEqual([odd["iteration"] for odd in facts["left_out"]], left_out)
                self.assertEqual(facts["trace"]["iterations"], n)

class ChosenSteps(Case):
    def assert_one_as_among_all(self, path, numbers, most_off_pct):
        everything = self.assert_replays(path, "--no-validate")["measured"]["per_iteration_ms"]
        self.assertEqual(len(everything), len(numbers))
        for number, value in zip(numbers, everything):
            facts = self.assert_replays(path, "--no-validate", "--steps", f"{number}:{number}")
            self.assertEqual(facts["measured"]["per_iteration_ms"], [value], number)
            self.assertLess(abs(facts["error_pct"]), most_off_pct, number)

    def test_one_step_is_measured_as_among_others(self):
        self.assert_one_as_among_all(BUNDLED, range(1, 7), 3)
        folder, _ = gpu_job.write(self, Job(jitter=0.2))
        self.assert_one_as_among_all(folder, range(1, 7), 3)
        folder, _ = gpu_job.write(self, Job(kernel_us=20, cpu_us=60, jitter=0.2), folder="launch")
        self.assert_one_as_among_all(folder, range(1, 7), 3)

    def test_so_it_is_in_public_traces(self):
        for trace, numbers in [(shared(name), numbers) for name, numbers in (
                ("ddp-a100-rank0of2", range(4, 7)), ("ddp-a100-rank3of8", range(1009, 1015)),
                ("gloo-cpu-rank34of300", range(551, 556)), ("resnet-v100-1gpu-ns", range(101, 106)))]:
            with self.subTest(trace=trace):
                self.assert_one_as_among_all(trace, numbers, 3)

    def test_any_range_has_the_measured_times_of_its_steps(self):
        everything = self.assert_replays(BUNDLED, "--no-validate")["measured"]["per_iteration_ms"]
        for first in range(1, 7):
            for last in range(first + 1, 7):
                facts = self.assert_replays(BUNDLED, "--no-validate", "--steps", f"{first}:{last}")
                self.assertEqual(facts["measured"]["per_iteration_ms"], everything[first - 1:last])

class Breakdown(Case):
    """Of each iteration by itself, as of the kernels of the profile: to half a percent of it."""

    def assert_as_in_profiles(self, path, *files):
        profiles = [breakdown.of_iterations(file) for file in files]
        for number in profiles[0]:
            ranks = self.assert_replays(path, "--no-validate", "--steps", f"{number}:{number}")["ranks"]
            for rank, profile in zip(ranks, profiles):
                most = rank["iteration_ms"] / 200
                computing, communication = profile[number]
                self.assertAlmostEqual(breakdown.computing_ms(rank), computing, delta=most, msg=(number, rank["rank"]))
                self.assertAlmostEqual(breakdown.communication_ms(rank), communication, delta=most, msg=(number, rank["rank"]))

    def test_of_a_made_up_job(self):
        folder, _ = gpu_job.write(self, Job(kernel_us=20, cpu_us=60, world=2, buckets=3, sync="end"))
        self.assert_as_in_profiles(folder, *sorted(glob.glob(os.path.join(folder, "*.json*"))))

    def test_of_public_traces(self):
        for trace in ("ddp-a100-rank0of2", "ddp-a100-rank3of8", "resnet-v100-1gpu-ns"):
            with self.subTest(trace=trace):
                path = shared(trace)
                self.assert_as_in_profiles(path, *sorted(glob.glob(os.path.join(path, "*.json.gz"))))

class Graphs(Case):
    def test_a_cuda_graph_of_a_whole_step_does_not_tell_its_phases(self):
        result = self.replay(["gemm_0", "gemm_1", "gemm_2"])
        self.assertIn("nothing recorded tells forward, backward and update apart", result.out)
        self.assertNotIn("forward computation", result.out)
        self.assertRegex(result.out, "iteration +unknown phase +idle")
        self.assertFalse(self.assert_json("replay", self.path("rank0.json"))["trace"]["phases_known"])

    def test_kernels_without_ops_do_not_tell_their_phases(self):
        for kept in (("kernel", "gpu_memcpy"), ("kernel", "gpu_memcpy", "cuda_runtime")):
            folder, _ = gpu_job.write(self, Job(kernel_us=200), folder=f"kept{len(kept)}")
            path = self.path(f"{folder}/rank0.pt.trace.json.gz")
            trace = read_json(path)
            trace["traceEvents"] = [event for event in trace["traceEvents"] if event["cat"] in kept]
            self.write(f"kept{len(kept)}/rank0.pt.trace.json.gz", trace)
            result = dpro("replay", folder)
            self.assertNotIn("forward computation", result.out)
            self.assertIn("computation of unknown phase", result.out)
            self.assertFalse(self.assert_json("replay", folder)["trace"]["phases_known"])
            self.assert_error(dpro("replay", folder, "--delay", "FW=0.5"), USAGE,
                              "nothing recorded tells which ops are forward; delay COMPUTE")

    def test_ranges_around_launches_do(self):
        """One graph each, whose kernels are named alike."""
        for names, phases in ((("forward", "my backward", "optimizer step"), (6, 6, 6)), (("fwd",), (6, 0, 0)),
                              (("model.forward", "loss.backward"), (6, 6, 0))):
            result = self.replay(["gemm_0", "gemm_1", "gemm_2"], names)
            facts = self.assert_json("replay", self.path("rank0.json"))
            rank = facts["ranks"][0]
            self.assertEqual((rank["forward_ms"], rank["backward_ms"], rank["update_ms"]), phases)
            self.assertTrue(facts["trace"]["phases_known"])
            self.assertNotIn("unknown phase", result.out)
        self.replay(["gemm_0", "gemm_1"], ("forward_backward",))
        self.assertFalse(self.assert_json("replay", self.path("rank0.json"))["trace"]["phases_known"])

    def replay(self, kernels, ranges=(None,)):
        events = []
        for step in range(3):
            begin = 100_000 * step
            events.append(span("ProfilerStep#%d" % step, begin, 99_000, cat="user_annotation"))
            for number, around in enumerate(ranges):
                call = {"correlation": 7 + step * len(ranges) + number}
                if around:
                    events.append(span(around, begin + 90, 70, cat="user_annotation"))
                events.append(span("cudaGraphLaunch", begin + 100, 50, cat="cuda_runtime", **call))
                events += [span(name, begin + 200 + 3_000 * i, 2_000, cat="kernel", pid=0, tid=7, stream=7, device=0, **call)
                           for i, name in enumerate(kernels)]
                begin += 30_000
        result = dpro("replay", self.write("rank0.json", {"traceEvents": events}))
        self.assert_code(result, DONE)
        return result

    def test_names_of_some_kernels_do(self):
        """From the first that is named for a backward pass to the last; what follows is an update where one is named for it."""
        adam = "multi_tensor_apply_kernel<Adam>"
        loss = "nll_loss_backward_kernel"
        for kernels, phases in ((["gemm", "relu", loss, "gemm", "flash_bwd_kernel", "gemm", adam, "scale"], (4, 8, 4)),
                                (["gemm", "cudnn_wgrad_engine", "gemm"], (2, 4, 0))):
            self.replay(kernels)
            rank = self.assert_json("replay", self.path("rank0.json"))["ranks"][0]
            self.assertEqual((rank["forward_ms"], rank["backward_ms"], rank["update_ms"]), phases)

class Changed(Case):
    def test_casts_of_gradients_take_a_gpu_no_longer_than_its_memory(self):
        """They were charged at 5 GB/s: fp16 lost a quarter where it wins."""
        job = Job(kernels=120, kernel_us=200.0, world=2, buckets=4, transfer_us=8000.0, sync="end")
        folder, truth = gpu_job.write(self, job, steps=8)
        halved, _ = gpu_job.write(self, Job(**{**vars(job), "transfer_us": 4000.0}), steps=8, folder="halved")
        facts, other = self.assert_json("whatif", folder, "--compress", "fp16"), self.assert_replays(halved)["predicted"]["iteration_ms"]
        self.assertAlmostEqual(facts["baseline"]["iteration_ms"], truth[0]["period_us"] / 1000, delta=0.5)
        self.assertLess(other, 0.8 * facts["baseline"]["iteration_ms"])
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], other, delta=0.03 * other)

    def test_a_validation_pass_that_only_some_iterations_have_changes_with_the_rest(self):
        """It was idle time that no what-if changed; and what links win in a slow iteration was in proportion to its length."""
        def program(forward_us):
            def trains(rank):
                rank.job.kernel_us = forward_us
                yield from rank.forward(20)
                rank.job.kernel_us = 400.0
                reduced = yield from rank.backward(20, buckets=2)
                yield from rank.update(3, after=reduced)
                rank.wait_for_gpu()
                if rank.number % 4 == 0:
                    rank.job.kernel_us = forward_us
                    yield from rank.forward(100)
                    rank.wait_for_gpu()
            return trains

        common = {"world": 2, "transfer_us": 15_000.0}
        folder, _ = gpu_job.write(self, Job(program=program(400.0), **common), steps=12)
        halved, _ = gpu_job.write(self, Job(program=program(200.0), **common), steps=12, folder="halved")
        facts, truth = self.assert_json("whatif", folder, "--delay", "FW=0.5"), self.assert_replays(halved)["job"]["iteration_ms"]
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], truth, delta=0.01 * truth)
        facts = self.assert_json("whatif", folder, "--bandwidth", "2x")
        won = [facts["baseline"][key] - facts["predicted"][key] for key in ("iteration_ms", "p50_ms", "p95_ms")]
        for ms in won:
            self.assertAlmostEqual(ms, 15, delta=0.6)

    def test_micro_batches_of_a_job_that_has_some_are_not_cut_again(self):
        """--accumulate cut each of them, so that 4 of 4 took longer and 1 of 4 as long."""
        def program(rank):
            for part in range(4):
                yield from rank.forward(12)
                reduced = yield from rank.backward(12, 0 if part < 3 else 2)
            yield from rank.update(3, after=reduced)

        folder, _ = gpu_job.write(self, Job(program=program, world=2, kernel_us=200.0, sync="end"), steps=6)
        for n in "1", "2", "4":
            self.assert_error(dpro("whatif", folder, "--accumulate", n), 2, "already computes 4 micro-batches")

    def test_each_micro_batch_is_launched(self):
        """Launches took as long for four micro-batches as for one: 12 ms were promised where the threads alone take 30. Where
        a step waits for its GPU, they come on top of longer communication; where none does, they go on during it."""
        def program(n, waits):
            def passes(rank):
                rank.job.kernel_us = 200.0 / n
                for part in range(n):
                    yield from rank.forward(20)
                    reduced = yield from rank.backward(20, 0 if part < n - 1 else 2)
                yield from rank.update(3, after=reduced)
                if waits:
                    rank.wait_for_gpu()
            return passes

        for transfer_us, waits, off in (500.0, False, 0.1), (12000.0, False, 0.12), (12000.0, True, 0.06):
            common = {"world": 2, "cpu_us": 180.0, "transfer_us": transfer_us}
            folder, _ = gpu_job.write(self, Job(program=program(1, waits), **common), steps=6)
            _, truth = gpu_job.write(self, Job(program=program(4, waits), **common), steps=6, folder="parts")
            facts = self.assert_json("whatif", folder, "--accumulate", "4")["predicted"]
            self.assertAlmostEqual(facts["iteration_ms"], truth[0]["period_us"] / 1000, delta=off * facts["iteration_ms"])
