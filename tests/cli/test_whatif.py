"""dpro whatif: other buckets, links, hosts, ranks, of real and of made-up jobs."""
import glob
import gzip
import json
import os
import re
import shutil

from support import (BUNDLED, CAPTURED, DONE, INPUT, LAYERS, USAGE, Case, dpro, job, options_of, plain_profile, read_json, read_text,
                     single_process, write_json)


def get_slower(trace):
    """The same job on a machine that is half as fast at the end as at the beginning."""
    events = [event for event in trace["traceEvents"] if "ts" in event]
    first, last = min(event["ts"] for event in events), max(event["ts"] for event in events)

    def later(at_us):
        return at_us + (at_us - first) ** 2 / (2 * (last - first))

    for event in events:
        begin, end = later(event["ts"]), later(event["ts"] + event.get("dur", 0))
        event["ts"] = begin
        if "dur" in event:
            event["dur"] = end - begin
    return trace


def forget_memory(folder):
    """A rank's recording without anything that tells what the rank held."""
    for name in ("et.json.gz", "kineto_et.json.gz", "memory.json"):
        os.remove(os.path.join(folder, name))
    path = os.path.join(folder, "kineto.json.gz")
    trace = read_json(path)
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("name") != "[memory]"]
    write_json(path, trace)


class WhatIf(Case):
    def ask(self, *args):
        facts = self.assert_json("whatif", *args)
        self.assertEqual(facts["schema"], "dpro.whatif/1")
        return facts

    def time(self, *args):
        return self.ask(BUNDLED, *args)["predicted"]["iteration_ms"]

    def test_transfers_that_computation_holds_up_tell_nothing_of_the_link(self):
        facts = self.ask(os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-lstm-n2-2gbit"))
        self.assertLess(abs(facts["misfit_pct"]), 5)
        self.assertAlmostEqual(facts["link"]["bandwidth_bytes_per_s"]["value"], 2e9 / 8, delta=40e6)

    def test_profiles_alone_tell_of_links_whose_collectives_ran_at_once(self):
        """Without logs of the transport, of a job whose two threads of gloo share the link."""
        for name, rate in (("torch-ddp-gloo-lstm-n2-2gbit", 2e9 / 8), ("torch-ddp-gloo-gpt-n2-default", 1e9 / 8)):
            for path in glob.glob(os.path.join(os.path.dirname(BUNDLED), name, "**", "kineto.json.gz"), recursive=True):
                self.write(f"{name}/{os.path.basename(os.path.dirname(path))}.json.gz", read_json(path))
            facts = self.ask(self.path(name))
            self.assertLess(abs(facts["misfit_pct"]), 5)
            self.assertAlmostEqual(facts["link"]["bandwidth_bytes_per_s"]["value"] / rate, 1, delta=0.15)

    def test_a_tiny_bucket_that_waits_does_not_tell_what_a_byte_takes(self):
        """As DDP's own one of which parameters were used."""
        for rank, trace in enumerate(job(backward_us=8000, transfer_us=[9000, 8000, 8000])):
            for name, sizes in (("c10d::allreduce_", [[[1]], [], [], [], [], []]), ("gloo:all_reduce", [[1]])):
                for event in [event for event in trace["traceEvents"] if event["name"] == name][LAYERS - 1::LAYERS]:
                    event["args"]["Input Dims"] = sizes
            self.write(f"job/rank{rank}.json", trace)
        self.assertLess(abs(self.ask(self.path("job"))["misfit_pct"]), 5)

    def test_many_small_buckets_cost_the_computation_their_threads_share_cores_with(self):
        """An all-reduce of gloo's takes half a millisecond of a core beside its bytes, hidden behind nothing."""
        few, many = (self.ask(BUNDLED, "--bucket-cap-mb", cap)["predicted"] for cap in ("1", "0.001"))
        more = len(many["communication"]["buckets"]) - len(few["communication"]["buckets"])
        self.assertGreater(more, 15)
        self.assertGreater(many["iteration_ms"] - few["iteration_ms"], 0.3 * more)

    def test_predictions_are_for_the_job_without_the_profiler(self):
        for name in ("torch-ddp-gloo-gpt-n2-default", "tf-ps-n2", "hvd-mx-n2"):
            with self.subTest(trace=name):
                facts = self.ask(os.path.join(os.path.dirname(BUNDLED), name))
                told = dpro("replay", os.path.join(os.path.dirname(BUNDLED), name), "--json", "--no-validate").json["unprofiled"]
                self.assertGreater(told["steps"], 5)
                self.assertLess(abs(facts["unprofiled_ms"] / told["iteration_ms"] - 1), 0.1)  # the median, and the mean
                self.assertEqual(facts["baseline"]["iteration_ms"], facts["unprofiled_ms"])

    def test_added_milliseconds_are_added_as_they_are(self):
        """However much the model's computation was scaled; the replay says the same."""
        trace = os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-gpt-n2-default")
        plain = dpro("replay", trace, "--json", "--no-validate").json["predicted"]["iteration_ms"]
        for delay in ("FW@1=+50", "BW=+50"):
            with self.subTest(delay=delay):
                facts = self.ask(trace, "--delay", delay)
                more = facts["predicted"]["iteration_ms"] - facts["baseline"]["iteration_ms"]
                replayed = dpro("replay", trace, "--json", "--no-validate", "--delay", delay).json["predicted"]["iteration_ms"]
                self.assertAlmostEqual(more, 50, delta=2)
                self.assertAlmostEqual(more, replayed - plain, delta=4)

    def test_a_delay_of_one_rank_costs_between_nothing_and_all_of_it(self):
        for name in ("torch-ddp-gloo-lstm-n2-2gbit", "torch-ddp-gloo-gpt-n2-memory"):
            for delay, added in (("FW@0=+8", 8), ("BW@1=+2", 2), ("BW@0=+8", 8), ("BW@1=+8", 8)):
                with self.subTest(trace=name, delay=delay):
                    facts = self.ask(os.path.join(os.path.dirname(BUNDLED), name), "--delay", delay)
                    more = facts["predicted"]["iteration_ms"] - facts["baseline"]["iteration_ms"]
                    self.assertGreater(more, -0.1)
                    self.assertLess(more, added + 0.1)

    def test_where_no_steps_were_timed_without_it_they_are_for_the_measured_ones(self):
        facts, measured = self.ask(BUNDLED), dpro("replay", BUNDLED, "--json", "--no-validate").json["measured"]
        self.assertIsNone(facts["unprofiled_ms"])
        self.assertLess(abs(facts["baseline"]["iteration_ms"] / measured["iteration_ms"] - 1), 0.03)

    def test_without_changes_both_are_the_job_as_it_ran(self):
        facts = self.ask(BUNDLED)
        self.assertEqual(facts["changes"], {})
        self.assertEqual(facts["baseline"], facts["predicted"])
        self.assertEqual(facts["speedup"], 1)
        self.assertLess(facts["speedup_std"], 0.03)  # of two runs of it, in turns
        self.assertEqual(facts["uncertainty"]["extrapolation"]["predicted_pct"], 0)
        self.assertLess(abs(facts["misfit_pct"]), 8)
        self.assertLess(facts["baseline"]["p50_ms"], facts["baseline"]["p95_ms"])
        self.assertEqual(facts["link"]["algorithm"], "ring")

    def test_the_bundled_jobs_buckets_are_those_of_its_cap(self):
        facts = self.ask(BUNDLED, "--bucket-cap-mb", "5")
        self.assertEqual(facts["changes"], {"bucket_cap_mb": 5})
        self.assertEqual(facts["predicted"]["communication"], facts["baseline"]["communication"])
        self.assertEqual(len(facts["predicted"]["communication"]["buckets"]), 4)

    def test_buckets_follow_ddps_rule(self):
        tensors = [(b["parameters"], b["size_bytes"])
                   for b in self.ask(BUNDLED, "--bucket-cap-mb", "0.00001")["predicted"]["communication"]["buckets"]]
        self.assertTrue(all(len(names) == 1 for names, _ in tensors))
        for first, cap in ((1, 25), (5, 5), (2, 4), (8, 3), (1, 100)):
            wanted, names, size = [], [], 0
            for (name,), size_bytes in tensors:
                names.append(name)
                size += size_bytes
                if size >= (cap if wanted else first) * 1048576:
                    wanted.append(names)
                    names, size = [], 0
            wanted += [names] if names else []
            found = self.ask(BUNDLED, "--bucket-cap-mb", f"{cap},first {first}")["predicted"]["communication"]["buckets"]
            self.assertEqual([b["parameters"] for b in found], wanted)

    def test_a_job_that_casts_its_gradients_keeps_ddp_s_caps_and_is_not_cast_again(self):
        """DDP counts what parameters take, whatever its communication hook sends."""
        folder = self.write_recording("cast")
        for rank, trace in enumerate(job()):
            for event in trace["traceEvents"]:
                if event["name"] == "gloo:all_reduce":
                    event["args"]["Input type"] = ["c10::Half"]
            self.write(f"cast/host0/rank{rank}/kineto.json", trace)
        found = self.ask(folder, "--bucket-cap-mb", "0.005")["predicted"]["communication"]["buckets"]
        self.assertEqual([b["size_bytes"] for b in found], [4000, 2000])
        self.assert_error(dpro("whatif", folder, "--compress", "fp16"), USAGE, "already casts the gradients that it sends")
        self.assertEqual(dpro("whatif", self.write_recording("float"), "--compress", "fp16").code, DONE)

    def test_slower_links_and_hosts_make_an_iteration_longer(self):
        base = self.time()
        times = [self.time("--bandwidth", f"{ratio}x") for ratio in (0.25, 0.5, 1, 2, 4)]
        self.assertEqual(times, sorted(times, reverse=True))
        self.assertEqual(times[2], base)
        self.assertLess(self.time("--compute", "2x"), base)
        self.assertGreater(self.time("--compute", "0.5x@1"), base)
        self.assertGreaterEqual(self.time("--compute", "0.5x"), self.time("--compute", "0.5x@1"))
        self.assertGreater(self.time("--latency", "+10ms"), base)
        self.assertLess(self.time("--compress", "fp16"), base)
        self.assertGreater(self.time("--world-size", "8"), base)

    def test_no_faster_link_makes_an_iteration_longer(self):
        """Cores that hold up transfers and are held up by them take no longer for both at once than one after the other."""
        for name in ("torch-ddp-gloo-conv-n2-memory", "torch-ddp-gloo-lstm-n2-2gbit", "torch-ep-gloo-n2"):
            times = [dpro("whatif", "--json", os.path.join(os.path.dirname(BUNDLED), name), "--bandwidth", ratio)
                     .json["predicted"]["iteration_ms"] for ratio in ("0.5x", "1x", "1.1x", "1.5x", "2x", "4x")]
            self.assertEqual(times, sorted(times, reverse=True), name)

    def test_a_rate_is_that_of_the_link(self):
        # the bundled job ran on links of 1 Gbit/s
        self.assertAlmostEqual(self.time("--bandwidth", "1gbit") / self.time(), 1, delta=0.03)
        self.assertEqual(self.time("--bandwidth", "125MB/s"), self.time("--bandwidth", "1gbit"))

    def test_communication_delayed_on_links_that_are_faster_by_as_much_is_as_it_was(self):
        facts = self.ask(BUNDLED, "--delay", "COMM=2", "--bandwidth", "2x", "--latency", "0.5x")
        self.assertAlmostEqual(facts["speedup"], 1, delta=0.01)

    def test_other_durations_cost_what_the_replay_says(self):
        """An op's time is what the replay knows best: a model beside it won 0.07 ms where 8.9 are to be won."""
        for name, off, delays in (
                ("torch-ddp-gloo-gpt-n2", 0.03, ("BW=0.5", "FW=+50", "ALL=2", "UPDATE=+30")), ("torch-ddp-gloo-gpt-n2", 0.02, ("SEND=2",)),
                ("torch-ddp-gloo-lstm-n2-2gbit", 0.03, ("ALL=2", "BW=0.5")), ("hvd-mx-n2", 0.03, ("COMM=1.5",)),
                ("tf-session-collectives-net-n2", 0.03, ("COMPUTE=1.5", "FW=2")), ("tf-ps-n2", 0.03, ("COMM=1.5",)),
                ("byteps-torch-n2", 0.02, ("COLLECTIVE=2",)), ("torch-ep-gloo-n2", 0.02, ("CPU=0.5",)),
                ("torch-nccl-conv-h200-memory", 0.02, ("GPU=0.5",)), ("torch-pp-gloo-n2", 0.02, ("BW@1=+1",))):
            trace = os.path.join(os.path.dirname(BUNDLED), name)
            own = self.ask(trace)["predicted"]["iteration_ms"]
            seen = self.assert_replays(trace, "--no-validate")["predicted"]["iteration_ms"]
            for delay in delays:
                with self.subTest(name=name, delay=delay):
                    asked = self.ask(trace, "--delay", delay)["predicted"]["iteration_ms"] / own
                    replayed = self.assert_replays(trace, "--no-validate", "--delay", delay)["predicted"]["iteration_ms"] / seen
                    if off == 0.02:
                        self.assertGreater(abs(replayed - 1), 0.05)
                    self.assertAlmostEqual(asked, replayed, delta=off if off == 0.02 else off * replayed)

    def test_changes_combine_and_are_told(self):
        facts = self.ask(BUNDLED, "--bucket-cap-mb", "2,first=1", "--partition-mb", "1", "--compress", "bf16",
                         "--bandwidth", "0.5x", "--latency", "+10us", "--compute", "1.5x", "--compute", "0.9x@0-1",
                         "--delay", "FW=1.1", "--world-size", "4")
        self.assertEqual(facts["changes"], {
            "bucket_cap_mb": 2, "first_bucket_mb": 1, "partition_mb": 1, "compress": "bf16", "bandwidth_ratio": 0.5,
            "latency_add_ns": 10000,
            "compute": [{"speed": 1.5, "ranks": None, "processor": None}, {"speed": 0.9, "ranks": [0, 1], "processor": None}],
            "delays": ["FW=1.1"], "world_size": 4})
        self.assertEqual(facts["predicted"]["communication"]["compression"], "bf16")
        self.assertGreater(max(b["partitions"] for b in facts["predicted"]["communication"]["buckets"]), 1)
        self.assertTrue(any("bf16 rounds gradients" in w for w in facts["warnings"]))
        self.assertTrue(any("4 ranks" in w for w in facts["warnings"]))

    def test_without_options_it_lists_what_can_be_asked_and_why_not_the_rest(self):
        out = dpro("whatif", BUNDLED).out
        can, cannot = out.split("What can be asked of the job:\n")[1].split("\nWhat can't, and why:\n")
        self.assertRegex(can, r"(?m)^--bucket-cap-mb +now 4 buckets, the largest of [0-9.]+ MB$")
        self.assertRegex(can, r"(?m)^--bandwidth +now links of 9\d\d Mbit/s$")
        self.assertRegex(cannot, r"(?m)^--servers, --bigarray-bound, --server-bandwidth: the job has no parameter servers to change")
        options = [option for option, _ in options_of("whatif")]
        for option in options[:options.index("--probes")]:
            self.assertRegex(out, option + r"[\s,:]")
        self.assert_fits(out)

    def test_the_text_says_the_same(self):
        result = dpro("whatif", BUNDLED, "--bandwidth", "0.5x")
        self.assert_code(result, DONE)
        self.assertIn("links 0.5 times as fast", result.out)
        self.assertRegex(result.out, r"Verdict +[0-9.]+ ms more an iteration, 0\.[0-9]+ times as fast")
        self.assertEqual(result.err, "")
        self.assert_fits(result.out)

    def test_the_parts_of_the_interval_add_up(self):
        facts = self.ask(BUNDLED, "--bucket-cap-mb", "100")
        parts = facts["uncertainty"]
        self.assertEqual(sorted(parts), ["batch_size", "computing", "extrapolation", "iterations", "learnt_numbers",
                                         "machine_drift", "model_misfit"])
        for side in ("baseline", "predicted"):
            squares = sum(part[side + "_pct"] ** 2 for part in parts.values())
            self.assertAlmostEqual(squares ** 0.5, facts[side]["uncertainty_pct"], delta=0.01)
        self.assertAlmostEqual(sum(part["speedup"] ** 2 for part in parts.values()) ** 0.5, 1.96 * facts["speedup_std"], delta=1e-4)
        self.assertGreater(parts["machine_drift"]["predicted_pct"], 5)  # six iterations say little of another day
        self.assertRegex(dpro("whatif", BUNDLED, "--bucket-cap-mb", "100").out,
                         r"\+- % +of what if: .*machine drift [0-9.]+,[^(]*extrapolation [0-9.]+")

    def test_messages_are_never_free(self):
        message = self.ask(BUNDLED)["link"]["message_ns"]
        self.assertGreater(message["value"], 20_000)
        self.assertGreater(message["std"], 20_000)

    def test_iterations_that_drift_are_told_of(self):
        for rank, trace in enumerate(job(iterations=8)):
            self.write(f"steady/rank{rank}.json", trace)
            self.write(f"drifts/rank{rank}.json", get_slower(trace))
        self.assertFalse(any("through the recording" in w for w in self.ask(self.path("steady"))["warnings"]))
        told = [w for w in self.ask(self.path("drifts"))["warnings"] if "through the recording" in w]
        self.assertEqual(len(told), 1, told)
        self.assertRegex(told[0], r"iterations get longer through the recording: [0-9.]+ ms in the first third, [0-9.]+ ms in "
                                  r"the last \(\+[0-9]+ % over [0-9]+ iterations, p = 0\.0")
        self.assertIn(told[0], dpro("replay", self.path("drifts"), "--json").json["warnings"])

    def test_a_list_of_buckets_and_a_plan_are_taken(self):
        trace = self.named_job()
        names = [f"layers.{i}.weight" for i in reversed(range(LAYERS))]
        lists = self.write("lists.json", [names[:1], names[1:]])
        plan = self.write("plan/plan.json", {"schema": "dpro.plan/1", "communication": {
            "compression": "none", "buckets": [{"parameters": names[:1]}, {"parameters": names[1:]}]}})
        found = [self.ask(trace, "--buckets", path)["predicted"]
                 for path in (lists, plan, os.path.dirname(plan))]
        self.assertEqual([b["parameters"] for b in found[0]["communication"]["buckets"]], [names[:1], names[1:]])
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])

    def named_job(self, **options):
        return self.write_recording("TRACE", **options)

    def test_a_list_that_does_not_fit_names_the_difference(self):
        for content, *says in (([["x"]], "'x' is no gradient of this trace"),
                              ([["layers.0.weight"]], "2 of the 3 gradients of this trace are in no bucket"),
                              ({"schema": "dpro.plan/7"}, "dpro.plan/7", "dpro.plan/1 to "),
                              ("[[", "ends too early")):
            path = self.write("list.json", content if isinstance(content, str) else json.dumps(content))
            self.assert_error(dpro("whatif", self.named_job(), "--buckets", path), INPUT, "list.json: ", *says)
        self.assert_error(dpro("whatif", BUNDLED, "--buckets", self.path("absent")), INPUT, "absent")

    def test_impossible_changes_are_wrong_usage(self):
        for args in (["--world-size", "0"], ["--world-size", "1"], ["--world-size", "1000000"], ["--bandwidth", "-1gbit"],
                     ["--bandwidth", "0x"], ["--bandwidth", "500"], ["--compute", "0x"], ["--compute", "-1x"],
                     ["--compute", "2"], ["--compute", "2x@9"], ["--compute", "2x@1-0"], ["--latency", "10us"],
                     ["--latency", "+10"], ["--compress", "int8"], ["--bucket-cap-mb", "0"], ["--bucket-cap-mb", "5,last 1"],
                     ["--bucket-cap-mb", "nan"], ["--partition-mb", "-1"], ["--partition-mb", "0.000001"],
                     ["--bucket-cap-mb", "5", "--buckets", "x"], ["--delay", "nothing=2"], ["--delay", "FW@9=2"]):
            with self.subTest(args):
                self.assert_error(dpro("whatif", BUNDLED, *args), USAGE)
        served = os.path.join(os.path.dirname(BUNDLED), "tf-ps-n2")
        self.assert_error(dpro("whatif", served, "--dp", "3000", "--servers", "2000"), USAGE,
                          "so many parameter servers can't be predicted; 2 to 2097 can")
        keys = os.path.join(CAPTURED, "mxnet-ps-gluon")
        self.assert_error(dpro("whatif", keys, "--bigarray-bound", "100000", "--partition-mb", "1"), USAGE, "partitions, not both")
        self.assert_error(dpro("whatif"), USAGE, "needs a folder")

    def test_zero_shares_out_the_optimizers_state_and_its_update(self):
        job = os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-gpt-n2-memory")
        own, two, eight = (self.ask(job, *args) for args in ((), ("--zero", "1"), ("--zero", "1", "--dp", "8")))
        state = dpro("replay", job, "--json", "--no-validate").json["memory"]["ranks"][0]["by_category"]
        self.assertEqual(two["changes"], {"zero": 1})
        for facts, share in ((two, 2), (eight, 8)):
            saved = facts["memory"]["baseline_peak_bytes"] - facts["memory"]["peak_bytes"]
            self.assertAlmostEqual(saved / (state["optimizer_state"] * (1 - 1 / share)), 1, delta=0.01)
        self.assertEqual(two["baseline"], own["baseline"])
        self.assertTrue(any("each of 8 ranks is assumed to update an equal share" in w for w in eight["warnings"]), eight["warnings"])
        slow, slow_zero = (self.ask(job, "--bandwidth", "100mbit", *args)["predicted"]["iteration_ms"] for args in ((), ("--zero", "1")))
        mb = sum(b["size_bytes"] for b in own["baseline"]["communication"]["buckets"]) / 1e6
        gather_ms = mb / 2 / (12.5 * 1448 / 1514) * 1e3  # half of the parameters to the other rank
        self.assertAlmostEqual((slow_zero - slow) / gather_ms, 1, delta=0.1)
        for other, args, says in (("hvd-mx-n2", ["1"], "ZeRO is predicted for jobs of PyTorch's DDP"),
                                  ("torch-tp-gloo-n2", ["1"], "the job's ranks communicate more than gradients: compiled modules, ZeRO"),
                                  ("torch-ddp-gloo-gpt-n2", ["2"], "--zero: '2' is not 1, the stage that can be predicted")):
            self.assert_error(dpro("whatif", os.path.join(os.path.dirname(BUNDLED), other), "--zero", *args), USAGE, says)

    def test_ten_thousand_workers_take_as_much_longer_as_they_are_more_at_a_server(self):
        served = os.path.join(os.path.dirname(BUNDLED), "tf-ps-n2")
        few, many = (self.ask(served, "--dp", n)["predicted"]["iteration_ms"] for n in ("128", "10240"))
        self.assertAlmostEqual(many / few / 80, 1, delta=0.03)

    def test_micro_batches_take_a_little_longer_and_say_that_it_is_assumed(self):
        facts = self.ask(BUNDLED, "--accumulate", "4")
        self.assertEqual(facts["changes"], {"micro_batches": 4})
        self.assertEqual(facts["memory"]["micro_batches"], 4)
        self.assertGreater(facts["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"])
        self.assertLess(facts["speedup"], 1)
        self.assertGreater(facts["uncertainty"]["batch_size"]["predicted_pct"], 10)
        self.assertTrue(any("the time of a micro-batch is assumed" in w for w in facts["warnings"]), facts["warnings"])
        self.assertRegex(dpro("whatif", BUNDLED, "--accumulate", "4").out, r"Memory +[0-9.]+ MB -> [0-9.]+ MB \+- ")
        self.assertNotIn("Memory", dpro("whatif", BUNDLED, "--bandwidth", "2x").out)

    def test_recomputation_takes_a_gpu_its_kernels_or_their_launches(self):
        job = self.path("job")
        shutil.copytree(os.path.join(os.path.dirname(BUNDLED), "torch-nccl-conv-h200-memory"), job)
        facts = self.ask(job, "--recompute", "blocks.*")
        more_ms = facts["predicted"]["iteration_ms"] - facts["baseline"]["iteration_ms"]
        self.assertTrue(8 < more_ms < 13, more_ms)  # the kernels of a forward pass take 12.4 ms, those of the stem among them
        self.assertNotIn("launches", str(facts["warnings"]))
        path = os.path.join(job, "host0", "rank0", "kineto.json.gz")
        profile = read_json(path)
        for event in profile["traceEvents"]:
            if event.get("cat") == "kernel":
                event["dur"] /= 50
        write_json(path, profile)
        facts = self.ask(job, "--recompute", "blocks.*")
        faster_ms = facts["predicted"]["iteration_ms"] - facts["baseline"]["iteration_ms"]
        self.assertTrue(more_ms / 10 < faster_ms < 0.7 * more_ms, faster_ms)  # a fiftieth, were it not for the launches
        self.assertRegex(str(facts["warnings"]), "the GPU waits for launches in")

    def test_what_cutting_the_batch_changes_is_told(self):
        for trace, told in (("torch-ddp-gloo-conv-n2-memory", 1), ("torch-ddp-gloo-gpt-n2-memory", 0)):
            warnings = self.ask(os.path.join(os.path.dirname(BUNDLED), trace), "--accumulate", "2")["warnings"]
            self.assertEqual(sum("stem.1 (BatchNorm2d) and 14 more take statistics of each micro-batch" in w for w in warnings),
                             told, warnings)

    def test_one_thread_computes_small_kernels_of_small_batches_without_copies(self):
        peaks = {}
        for threads in (1, 2):
            job = self.path("threads%d" % threads)
            shutil.copytree(os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-conv-n2-memory"), job)
            for path in glob.glob(os.path.join(job, "host0", "rank*", "*")):
                if os.path.basename(path) not in ("et.json.gz", "rank.json"):
                    continue
                opened = gzip.open if path.endswith(".gz") else open
                with opened(path, "rt", encoding="utf-8") as file:
                    text = file.read()
                text = re.sub(r"(\[\d+,\d+,)3,3\]", r"\g<1>1,1]", text) if path.endswith(".gz") else \
                    text.replace('"batch_size":', '"threads":%d,"batch_size":' % threads)
                with opened(path, "wt", encoding="utf-8") as file:
                    file.write(text)
            peaks[threads] = [self.ask(job, "--batch-size", size)["memory"]["peak_bytes"] for size in ("24", "16", "15")]
        self.assertEqual(peaks[1][:2], peaks[2][:2])
        self.assertLess(peaks[1][2], peaks[2][2])

    def test_a_step_of_two_models_is_not_cut(self):
        job = self.path("job")
        shutil.copytree(BUNDLED + "-memory", job)
        for path in glob.glob(os.path.join(job, "host0", "rank*", "kineto_et.json.gz")):
            text = read_text(path)
            with gzip.open(path, "wt", encoding="utf-8") as file:  # one that wraps nothing called, and a second one
                file.write(text.replace('"dpro.module:"', '"nothing"').replace('"dpro.module:head"', '"dpro.module:1/"'))
        self.assert_error(dpro("whatif", job, "--accumulate", "2"), USAGE, "calls 2 models")
        done = dpro("optimize", job, "--memory", "1MB", "--json", "-q").json
        self.assertEqual({choice["micro_batches"] for choice in done["memory"]["choices"]}, {1})
        self.assertEqual(sum("the batch is not cut: a step of the job calls 2 models" in w for w in done["warnings"]), 1)

    def test_a_trace_that_knows_no_modules_or_batch_says_so(self):
        for args, says in ((["--recompute", "blocks.0"], "which modules"), (["--recompute", "all"], "which modules"),
                           (["--batch-size", "4"], "batch size"), (["--accumulate", "1025"], "accumulate")):
            with self.subTest(args):
                self.assert_error(dpro("whatif", BUNDLED, *args), USAGE, says)
        nothing = self.ask(BUNDLED, "--recompute", "none", "--accumulate", "1")
        self.assertEqual(nothing["speedup"], 1)
        self.assertEqual(nothing["memory"]["peak_bytes"], nothing["memory"]["baseline_peak_bytes"])

    def test_a_rank_of_whose_memory_nothing_is_known_holds_what_the_others_do(self):
        job = self.path("job")
        shutil.copytree(BUNDLED + "-memory", job)
        full = self.ask(job, "--recompute", "all")
        forget_memory(os.path.join(job, "host0", "rank1"))
        facts = self.ask(job, "--recompute", "all")
        self.assertEqual(facts["memory"]["peak_bytes"], full["memory"]["peak_bytes"])
        self.assertAlmostEqual(facts["speedup"], full["speedup"], delta=0.02)
        self.assertTrue(any("1 of the 2 ranks, such as rank 1" in w for w in facts["warnings"]), facts["warnings"])
        self.assertFalse(any("of the 2 ranks" in w for w in full["warnings"]), full["warnings"])
        forget_memory(os.path.join(job, "host0", "rank0"))
        self.assert_error(dpro("whatif", job, "--recompute", "all"), USAGE, "what the ranks held")

    def test_a_recording_of_torch_s_own_profiler_is_asked_for_batches(self):
        job, memory = plain_profile(self.path("plain")), BUNDLED + "-memory"

        def won(trace, *asked):
            facts = self.ask(trace, *asked)["memory"]
            return facts["baseline_peak_bytes"] - facts["peak_bytes"]
        for asked, plain in (("4", "0.25x"), ("32", "2x")):
            self.assertAlmostEqual(won(job, "--batch-size", plain) / won(memory, "--batch-size", asked), 1, delta=0.01)
        self.assertAlmostEqual(won(job, "--accumulate", "2") / won(memory, "--accumulate", "2"), 1, delta=0.01)
        self.assert_error(dpro("whatif", job, "--batch-size", "4"), USAGE, "batch size", "such as 2x")
        self.assert_error(dpro("whatif", job, "--recompute", "all"), USAGE, "which modules", "dpro profile")

    def test_a_single_process_is_asked_for_what_it_computes_and_holds(self):
        alone, memory = single_process(self.path("alone")), BUNDLED + "-memory"
        for asked in (["--recompute", "all"], ["--accumulate", "2"], ["--batch-size", "4"]):
            with self.subTest(asked):
                facts, both = self.ask(alone, *asked), self.ask(memory, *asked)
                # a rank alone has no buckets
                self.assertLess(facts["memory"]["baseline_peak_bytes"], both["memory"]["baseline_peak_bytes"] + 1)
                saved = facts["memory"]["baseline_peak_bytes"] - facts["memory"]["peak_bytes"]
                self.assertAlmostEqual(saved / (both["memory"]["baseline_peak_bytes"] - both["memory"]["peak_bytes"]), 1, delta=0.01)
                self.assertAlmostEqual(facts["baseline"]["iteration_ms"], facts["unprofiled_ms"] or facts["measured_ms"], delta=10)
        out = dpro("whatif", alone, "--recompute", "all").out
        for word in ("bucket", "link", "collective"):
            self.assertNotIn(word, out)
        self.assertRegex(dpro("whatif", alone).out, r"(?s)--dp,.*--schedule: the trace has one rank, which\s+sends its gradients")
        for refused in (["--recompute", "all", "--bandwidth", "2x"], ["--world-size", "4"], ["--gradient-views"]):
            self.assert_error(dpro("whatif", alone, *refused), INPUT, "one rank, which sends its gradients to nobody")

    def test_a_plan_that_also_recomputes_says_that_its_buckets_alone_are_looked_at(self):
        self.assert_code(dpro("optimize", BUNDLED, "-o", self.path("plan")), DONE)
        plan = read_json(self.path("plan/plan.json"))
        plan["memory"] = {"recompute": ["blocks.0"], "micro_batches": 2}
        path = self.write("plan.json", json.dumps(plan))
        warnings = self.ask(BUNDLED, "--buckets", path)["warnings"]
        self.assertTrue(any("only the plan's buckets are used" in w for w in warnings), warnings)

    def test_a_trace_with_too_little_says_what_is_missing(self):
        one = self.write("one.json", job(world=1)[0])
        self.assert_error(dpro("whatif", one, "--bandwidth", "2x"), INPUT, "one rank")
        self.assert_error(dpro("whatif", self.write_job("silent", communicates=False)), INPUT, "communicat")
        facts = self.ask(self.write_job("single", iterations=1), "--bandwidth", "0.5x")
        self.assertTrue(any("one iteration" in w for w in facts["warnings"]))
        self.assertEqual(facts["predicted"]["p50_ms"], facts["predicted"]["iteration_ms"])
