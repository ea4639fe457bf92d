"""Horovod's timelines beside profiles and alone, and those of BytePS."""
import glob
import os
import re
import shutil

from support import BUNDLED, CAPTURED, DONE, INPUT, ROOT, USAGE, Case, dpro, read_json, read_text, span

EPOCH_US = 1_800_000_000_000_000
ITERATION_US = 100_000


def profile(rank, iterations=4, start_us=EPOCH_US):
    events = []
    for i in range(iterations):
        begin = start_us + i * ITERATION_US
        events.append(span(f"ProfilerStep#{i}", begin, ITERATION_US, cat="user_annotation"))
        for name, at, dur in (("forward", 1000, 18000), ("grad_a", 20000, 100), ("grad_b", 25000, 100), ("update", 80000, 10000)):
            events.append(span(name, begin + at, dur))
    return {"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}, "traceEvents": events}


ONE_EACH = re.compile("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")
CYCLES_US = (0, 10_000, 20_000, 30_000, 70_000, 80_000, 90_000)  # one that is busy


def torch_profile(rank, iterations=4, start_us=EPOCH_US):
    """Of PyTorch: no op says that it hands a gradient to Horovod, or which."""
    events = []
    for i in range(iterations):
        begin = start_us + i * ITERATION_US
        events.append(span(f"ProfilerStep#{i}", begin, ITERATION_US, cat="user_annotation"))
        events.append(span("Optimizer.step#SGD.step", begin + 27000, 65000, cat="user_annotation"))
        for name, at, dur in (("aten::mm", 1000, 18000),
                              ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 20000, 100),
                              ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 25000, 100),
                              ("aten::set_", 70100, 10), ("aten::set_", 70200, 10), ("aten::add_", 80000, 10000)):
            events.append(span(name, begin + at, dur))
    return {"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}, "traceEvents": events}


def timeline(iterations=4, start_us=EPOCH_US, cycles=()):
    """As text, since what is wrong with one is mostly where its text ends."""
    lines = ['{"name":"process_name","ph":"M","pid":0,"args":{"start_time_since_epoch_in_micros":%d}}' % start_us]
    for pid, name in ((1, "grad_a"), (2, "grad_b")):
        lines.append('{"name":"process_name","ph":"M","pid":%d,"args":{"name":"%s"}}' % (pid, name))
    for i in range(iterations):
        for pid, ready in ((1, 21000), (2, 28000)):
            for phase, name, at in (("B", "NEGOTIATE_ALLREDUCE", ready), ("E", None, 29900), ("B", "ALLREDUCE", 30000),
                                    ("B", "MEMCPY_IN_FUSION_BUFFER", 30000), ("E", None, 31000),
                                    ("B", "GLOO_ALLREDUCE", 31000), ("E", None, 69000),
                                    ("B", "MEMCPY_OUT_FUSION_BUFFER", 69000), ("E", None, 70000), ("E", None, 70000)):
                named = '"name":"%s",' % name if name else ""
                lines.append('{"ph":"%s",%s"ts":%d,"pid":%d}' % (phase, named, i * ITERATION_US + at, pid))
            lines[-1] = lines[-1][:-1] + ',"args":{"dtype":"float32","shape":"[512, 10]"}}'
    lines += ['{"ph":"i","name":"CYCLE_START","ts":%d,"s":"g"}' % (i * ITERATION_US + at)
              for i in range(iterations) for at in cycles]
    return "[\n" + ",\n".join(lines) + "]\n"


# By iteration, which groups of tensors were reduced from when to when; c is ready long before the others.
ALIKE = (("c", 24000, 27000), ("ab", 54000, 80000))
OTHERWISE = (("c", 24000, 26000), ("a", 52000, 54000), ("b", 55000, 80000))
READY_US = {"a": 50100, "b": 50100, "c": 20100}


def early_profile(rank, iterations):
    events = []
    for i in range(iterations):
        begin = EPOCH_US + i * ITERATION_US
        events.append(span(f"ProfilerStep#{i}", begin, ITERATION_US, cat="user_annotation"))
        for name, at, dur in (("forward", 1000, 18000), ("grad_c", 20000, 100), ("backward", 20200, 29000), ("grad_a", 50000, 50),
                              ("grad_b", 50050, 50), ("update", 82000, 10000)):
            events.append(span(name, begin + at, dur))
    return {"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}, "traceEvents": events}


def early_timeline(iterations):
    """From the midst of the first iteration on, when c was reduced already."""
    lines = ['{"name":"process_name","ph":"M","pid":0,"args":{"start_time_since_epoch_in_micros":%d}}' % EPOCH_US]
    lines += ['{"name":"process_name","ph":"M","pid":%d,"args":{"name":"grad_%s"}}' % (pid, "abc"[pid - 1]) for pid in (1, 2, 3)]
    for i, groups in enumerate(iterations):
        for tensors, start, end in groups[0 if i else 1:]:
            for tensor in tensors:
                for phase, name, at in (("B", "NEGOTIATE_ALLREDUCE", READY_US[tensor]), ("E", None, start - 100),
                                        ("B", "ALLREDUCE", start), ("B", "GLOO_ALLREDUCE", start), ("E", None, end),
                                        ("E", None, end)):
                    named = '"name":"%s",' % name if name else ""
                    lines.append('{"ph":"%s",%s"ts":%d,"pid":%d}' % (phase, named, i * ITERATION_US + at, "_abc".index(tensor)))
                lines[-1] = lines[-1][:-1] + ',"args":{"dtype":"float32","shape":"[512, 10]"}}'
    return "[\n" + ",\n".join(lines) + "]\n"


class Horovod(Case):
    def put(self, text, ranks=(0, 1), **options):
        for rank in ranks:
            self.write(f"job/rank{rank}.json", profile(rank, **options))
        self.write("job/timeline_rank0.json", text)
        return self.path("job")

    def test_a_round_that_fused_otherwise_was_busy_when_it_was(self):
        """Not while nothing was ready: between c and the others backward runs."""
        iterations = [OTHERWISE if i % 3 == 1 else ALIKE for i in range(12)]
        for rank in (0, 1):
            self.write(f"job/rank{rank}.json", early_profile(rank, len(iterations)))
        self.write("job/timeline_rank0.json", early_timeline(iterations))
        facts = self.assert_replays(self.path("job"))
        self.assertEqual((facts["horovod"]["groups"], facts["horovod"]["tensors"]), (2, 3))
        self.assertLess(abs(facts["error_pct"]), 1)
        self.assertLess(facts["validation"]["mean_abs_error_pct"], 2)
        self.assertLess(facts["horovod"]["negotiate_ms"], 8)  # 3.9 for each of the two groups, but for the rounds of three

    def test_its_thread_is_told_of_in_the_report_and_in_json(self):
        facts = self.assert_replays(self.put(timeline()))
        self.assertEqual(facts["horovod"], {"tensors": 2, "groups": 1, "rounds": 4, "rounds_fused_alike": 4, "cycle_ms": None,
                                            "negotiate_ms": 4.9, "copy_ms": 2, "callback_ms": 0})
        # Horovod's groups are no evidence of clocks: without transport logs nothing ties those
        self.assertEqual([warning[:13] for warning in facts["warnings"]], ["1 of 2 clocks"])
        out = dpro("replay", self.path("job")).out
        self.assertIn("Horovod: 2 tensors in 1 group (4 of 4 rounds were fused in these groups)", out)

    def test_an_optimizer_of_pytorch_waits_for_what_autograd_handed_over(self):
        for rank in range(2):
            self.write(f"job/rank{rank}.json", torch_profile(rank))
        self.write("job/timeline_rank0.json", timeline())
        facts = self.assert_replays(self.path("job"))
        self.assertLess(abs(facts["error_pct"]), 1)
        self.assertGreater(min(rank["exposed_communication_ms"] for rank in facts["ranks"]), 35)
        slower = dpro("replay", self.path("job"), "--delay", "COLLECTIVE=2", "--json").json
        self.assertGreater(slower["predicted"]["iteration_ms"], facts["predicted"]["iteration_ms"] + 35)

    def test_a_grouped_call_hands_over_all_its_tensors(self):
        for rank in range(2):
            job = torch_profile(rank)
            events = [e for e in job["traceEvents"] if e["name"] != "aten::set_" and not (
                ONE_EACH.search(e["name"]) and e["ts"] % ITERATION_US == 20000)]
            for event in events:
                event["name"] = ONE_EACH.sub("horovod_allreduce", event["name"])
            self.write(f"job/rank{rank}.json", {**job, "traceEvents": events})
        self.write("job/timeline_rank0.json", timeline().replace("grad_a", "grads_1of2").replace("grad_b", "grads_2of2"))
        facts = self.assert_replays(self.path("job"))
        slower = dpro("replay", self.path("job"), "--delay", "aten::mm=2", "--json").json
        self.assertAlmostEqual(slower["predicted"]["iteration_ms"], facts["predicted"]["iteration_ms"] + 18, delta=2)

    def test_a_rank_that_wrote_a_timeline_too_began_when_it_says(self):
        waits = []
        for late in (0, 9000):
            folder = self.put(timeline())
            own = re.sub(r'"ts":(\d*)(3[01]000),', lambda ts: '"ts":%s%d,' % (ts[1], int(ts[2]) + late), timeline())
            self.write("job/timeline_rank1.json", own)
            ranks = self.assert_replays(folder)["ranks"]
            waits.append([rank["wait_for_peers_ms"] for rank in ranks])
        self.assertEqual(waits, [[0, 0], [9, 0]])

    def test_steps_that_end_in_the_midst_of_a_round_are_replaced_by_the_rounds(self):
        def cut_us(rank, step):  # elsewhere each time
            return 32_000 + 6000 * ((step + rank) % 3)

        folder = self.put(timeline(10), iterations=10)
        for rank in (0, 1):
            marked = profile(rank, 10)
            for step, mark in enumerate(event for event in marked["traceEvents"] if event["name"].startswith("ProfilerStep")):
                mark["ts"] += cut_us(rank, step)
                mark["dur"] += cut_us(rank, step + 1) - cut_us(rank, step)
            self.write(f"job/rank{rank}.json", marked)
        facts = self.assert_replays(folder)
        self.assertEqual(facts["measured"]["per_iteration_ms"], 9 * [100])
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], 100, delta=0.01)

    def test_a_job_without_a_timeline_says_null(self):
        self.write("job/rank0.json", profile(0))
        self.assertIsNone(self.assert_replays(self.path("job"))["horovod"])

    def test_of_a_timeline_cut_in_the_middle_the_whole_part_is_used(self):
        text = timeline()
        facts = self.assert_replays(self.put(text[:text.rindex('"GLOO_ALLREDUCE"') + 4]))
        self.assertEqual(facts["horovod"]["rounds"], 3)
        self.assertTrue(any("ends in the middle of its JSON" in warning for warning in facts["warnings"]), facts["warnings"])

    def test_a_timeline_that_its_writer_left_open_is_no_damage(self):
        facts = self.assert_replays(self.put(timeline().rstrip("]\n") + ",\n"))
        self.assertFalse([warning for warning in facts["warnings"] if "timeline" in warning])
        self.assertEqual(facts["horovod"]["rounds"], 4)

    def test_a_timeline_of_another_run_is_left_out(self):
        facts = self.assert_replays(self.put(timeline(start_us=EPOCH_US - 7_200_000_000)))
        self.assertIsNone(facts["horovod"])
        self.assertRegex(facts["warnings"][0], "timeline_rank0.json: recorded 7199 seconds away from rank 0's profile")

    def test_a_timeline_whose_rank_has_no_profile_is_left_out(self):
        facts = self.assert_replays(self.put(timeline(), ranks=(1,)))
        self.assertIsNone(facts["horovod"])
        self.assertTrue(any("rank 0 has no profile" in warning for warning in facts["warnings"]), facts["warnings"])

    def negotiated(self, world, slow, cached=False, tensors=3, rounds=6, twice=False):
        """A timeline in which the coordinator hears each rank; `slow` is ready 15 ms after the others."""
        events = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": EPOCH_US}}]
        events += [{"name": "process_name", "ph": "M", "pid": t + 1, "args": {"name": f"grad_{t}"}} for t in range(tensors)]
        for r in range(rounds):
            begin, rows = r * ITERATION_US, []
            for t in range(tensors):
                ready = [begin + 20_000 + 1000 * t + (15_000 if rank == slow else 0) for rank in range(world)]
                go = begin + 40_000 + 2000 * t
                heard = [] if cached and r else [(at, {"ph": "X", "name": str(rank), "dur": 0}) for rank, at in enumerate(ready)]
                heard += heard[:1] if twice else []
                rows += [(at, {**e, "pid": t + 1, "ts": at}) for at, e in (
                    (min(ready), {"ph": "B", "name": "NEGOTIATE_ALLREDUCE"}), *heard, (go, {"ph": "E"}),
                    (go, {"ph": "B", "name": "ALLREDUCE"}), (go, {"ph": "B", "name": "NCCL_ALLREDUCE"}), (go + 1500, {"ph": "E"}),
                    (go + 1501, {"ph": "E", "args": {"dtype": "float32", "shape": "[1000, 100]"}}))]
            events += [e for _, e in sorted(rows, key=lambda row: row[0])]
        return events

    def test_a_timeline_alone_tells_who_was_last(self):
        for world, slow in ((4, 2), (2, 0), (5, 4)):
            with self.subTest(world=world):
                facts = self.assert_replays(self.write(f"{world}/timeline.json", self.negotiated(world, slow)))
                self.assertEqual((facts["trace"]["world_size"], facts["trace"]["ranks_present"]), (world, list(range(world))))
                self.assertAlmostEqual(facts["predicted"]["iteration_ms"], ITERATION_US / 1000, delta=0.1)
                for rank in facts["ranks"]:
                    # until the last one hands its first tensor over, and then for each of the others
                    waits = rank["wait_for_peers_ms"]
                    self.assertLess(waits, 1) if rank["rank"] == slow else self.assertGreater(waits, 10)
                self.assertTrue(any(f"of {world} ranks, rank {slow} was the last to be ready in 18 of 18 negotiations" in w
                                    for w in facts["warnings"]), facts["warnings"])
                self.assertFalse(any("clocks" in w for w in facts["warnings"]), facts["warnings"])
                self.assertIn(f"straggler: rank {slow}", dpro("replay", self.path(str(world))).out.replace("\n               ", " "))

    def test_a_rank_that_was_noted_twice_counts_once(self):
        facts = self.assert_replays(self.write("timeline.json", self.negotiated(4, 2, twice=True)))
        self.assertTrue(any("of 4 ranks, rank 2 was the last to be ready in 18 of 18 negotiations" in w for w in facts["warnings"]),
                        facts["warnings"])

    def test_ranks_that_were_heard_of_once_are_missing(self):
        """With Horovod's cache only the first negotiation of a tensor lists the ranks: who was last later is not known."""
        facts = self.assert_replays(self.write("timeline.json", self.negotiated(4, 2, cached=True)))
        self.assertEqual((facts["trace"]["world_size"], facts["trace"]["ranks_present"]), (4, [0]))
        self.assertTrue(any("1 of 4 ranks" in w for w in facts["warnings"]), facts["warnings"])

    def test_a_timeline_alone_tells_of_communication_and_what_is_missing(self):
        self.write("timeline.json", timeline())
        facts = self.assert_replays(self.path("timeline.json"))
        self.assertEqual(facts["horovod"]["tensors"], 2)
        self.assertTrue(any("without a profile" in warning for warning in facts["warnings"]), facts["warnings"])

    def test_a_timeline_without_one_whole_reduction_is_named(self):
        text = timeline()
        self.write("timeline.json", text[:text.index('"ALLREDUCE"')])
        self.assert_error(dpro("replay", self.path("timeline.json")), INPUT, "timeline.json")

    def test_a_bucket_cap_makes_groups_of_the_jobs(self):
        result = dpro("whatif", self.put(timeline()), "--bucket-cap-mb", "1")
        self.assertRegex(result.out.replace("\n    ", " "), "buckets are predicted as groups of gradients that the job makes")

    def ask(self, *arguments):
        result = dpro("whatif", self.put(timeline(cycles=CYCLES_US)), "--json", *arguments)
        self.assert_code(result, DONE)
        return result.json

    def test_what_is_ready_in_a_cycle_travels_together(self):
        facts = self.ask("--cycle-time", "10")
        self.assertEqual(facts["changes"], {"cycle_time_ms": 10})
        own = facts["baseline"]["communication"]
        self.assertEqual((own["cycle_time_ms"], own["fusion_threshold_bytes"], len(own["buckets"])), (10, 128 << 20, 1))
        self.assertEqual(facts["predicted"]["communication"], own)
        self.assertEqual(facts["speedup"], 1)

    def test_with_a_threshold_of_0_each_gradient_travels_alone(self):
        facts = self.ask("--fusion-mb", "0")
        self.assertEqual(facts["changes"], {"fusion_mb": 0})
        found = facts["predicted"]["communication"]
        self.assertEqual((found["fusion_threshold_bytes"], [len(b["parameters"]) for b in found["buckets"]]), (0, [1, 1]))
        self.assertLessEqual(facts["speedup"], 1)

    def test_gradients_wait_for_a_longer_cycle(self):
        times = [self.ask("--cycle-time", str(ms))["predicted"]["iteration_ms"] for ms in (10, 200, 500)]
        self.assertLess(times[0], times[1])
        self.assertEqual(times[1:], [200, 500])

    def test_cycles_that_are_not_marked_or_not_there_are_refused(self):
        self.assert_error(dpro("whatif", self.put(timeline()), "--cycle-time", "5"), USAGE, "HOROVOD_TIMELINE_MARK_CYCLES=1")
        self.assert_error(dpro("whatif", BUNDLED, "--fusion-mb", "5"), USAGE, "does not reduce this job's gradients")
        marked = self.put(timeline(cycles=CYCLES_US))
        self.assert_error(dpro("whatif", marked, "--fusion-mb", "5", "--bucket-cap-mb", "5"), USAGE, "or buckets, not both")
        for wrong in ("0", "-1", "x", "1e9"):
            self.assert_code(dpro("whatif", marked, "--cycle-time", wrong), USAGE)


class Recorded(Case):
    def test_rounds_that_were_fused_otherwise_take_no_longer_for_that(self):
        """Two ranks of examples/horovod_mxnet.py, of which 4 of 11 rounds were fused as the graph has it."""
        facts = self.assert_replays(os.path.join(ROOT, "tests", "data", "hvd-mx-n2"))
        self.assertEqual([facts["horovod"][key] for key in ("tensors", "rounds", "rounds_fused_alike")], [22, 11, 4])
        self.assertLess(abs(facts["error_pct"]), 5)
        spread = 100 * facts["measured"]["std_ms"] / facts["measured"]["iteration_ms"]
        self.assertLess(facts["validation"]["mean_abs_error_pct"], 1.5 * spread)


    def test_its_settings_are_asked_for_and_planned(self):
        trace = os.path.join(ROOT, "tests", "data", "hvd-mx-n2")

        def ask(*arguments):
            result = dpro("whatif", trace, "--json", *arguments)
            self.assert_code(result, DONE)
            return result.json

        facts = ask()  # nothing is changed
        self.assertEqual(facts["predicted"]["communication"], facts["baseline"]["communication"])
        facts = ask("--fusion-mb", "0")
        self.assertEqual(len(facts["predicted"]["communication"]["buckets"]), 22)
        self.assertLess(abs(facts["misfit_pct"]), 15)
        self.assertLess(facts["speedup"], 0.95)
        self.assertLess(ask("--cycle-time", "100")["speedup"], 0.95)
        result = dpro("optimize", trace, "-q", "-o", self.path("plan"))
        self.assert_code(result, DONE)
        planned = read_json(self.path("plan/plan.json"))["communication"]
        settings = read_text(self.path("plan/horovod.env"))
        self.assertAlmostEqual(planned["cycle_time_ms"], 1, delta=0.2)
        if planned["is_own"]:
            self.assertEqual(settings, "")
        elif "fusion_threshold_bytes" in planned:
            self.assertIn("HOROVOD_FUSION_THRESHOLD=%d\n" % planned["fusion_threshold_bytes"], settings)
        else:
            self.assertIn("HOROVOD_DISABLE_GROUP_FUSION=1\n", settings)


    def test_what_waits_for_its_thread_is_no_work(self):
        """A job that fuses nothing: its updates take up when Horovod's thread falls idle between two groups. Of 174 ms computing
        takes some 20; a plan saved 20.9 % when it was measured."""
        trace = os.path.join(ROOT, "tests", "data", "hvd-mx-unfused-n2")
        self.assertLess(abs(self.assert_replays(trace)["error_pct"]), 5)
        facts = self.assert_json("whatif", trace, "--bandwidth", "1000Gbit")
        self.assertGreater(facts["speedup"], 2)
        found = dpro("optimize", trace, "--json")
        self.assert_code(found, DONE)
        self.assertTrue(found.json["best"]["helps"])
        self.assertAlmostEqual(100 * (1 - 1 / found.json["best"]["speedup"]), 20.9, delta=8)


class OthersTimelines(Case):
    def test_byteps_partitions_are_read(self):
        events = []
        for i in range(4):
            for key in (26148864, 26148865):
                for stage, at in (("PUSH", 10000), ("PULL", 40000)):
                    events.append({"ph": "X", "args": {"name": "Comm.byteps.gradient_0"}, "pid": "Comm.byteps.gradient_0",
                                   "name": f"Comm.byteps.gradient_0.{stage}", "ts": EPOCH_US + i * ITERATION_US + at, "dur": 20000,
                                   "tid": str(key), "cat": "Comm"})
        for rank in range(2):
            self.write(f"byteps/{rank}/comm.json", {"traceEvents": events, "displayTimeUnit": "ms"})
        facts = self.assert_replays(self.path("byteps"))
        self.assertEqual([(file["kind"], file["rank"]) for file in facts["trace"]["files"]], [("timeline", 0), ("timeline", 1)])
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], 100, delta=20)

    def test_other_chrome_traces_are_not_known(self):
        """Among them timelines of ByteScheduler, and what TensorFlow makes of a profile for a viewer."""
        named = {"ph": "M", "pid": 3, "name": "process_name"}
        for name, label, event in (("bytescheduler", "fc6_weight_0", {"ph": "B", "pid": 3, "ts": 1, "name": "PUSH_PULLQUEUE"}),
                                   ("viewer", "/device:GPU:0", {"ph": "X", "pid": 3, "ts": 1, "dur": 2, "name": "Relu",
                                                               "args": {"long_name": "m/relu:Relu"}})):
            with self.subTest(name):
                self.write(f"{name}.json", {"traceEvents": [dict(named, args={"name": label}), event]})
                self.assert_error(dpro("replay", self.path(f"{name}.json")), INPUT, "not a trace that dpro knows|events have no categories")


class Captures(Case):
    """Replayed within 5 % of what was measured; left-out iterations no worse than they spread."""

    def check(self, name, n_tensors):
        folder = os.path.join(CAPTURED, name)
        facts = self.assert_replays(folder)
        self.assertEqual(facts["horovod"]["tensors"], n_tensors)
        self.assertLess(abs(facts["error_pct"]), 5)
        spread = 100 * facts["measured"]["std_ms"] / facts["measured"]["iteration_ms"]
        self.assertLess(facts["validation"]["mean_abs_error_pct"], max(spread, 5))
        return facts

    def check_messages(self, facts, n_groups):
        """Every group of every rank is tied to the bytes that carried it, and to all that its size asks for."""
        transport = facts["transport"]
        self.assertEqual(transport["unpaired_bytes"], 0)
        self.assertEqual([transport["collectives" + what] for what in ("", "_tied", "_checked", "_exact")], [2 * n_groups] * 4)
        reduced = facts["collectives"][0]
        self.assertEqual((reduced["kind"], reduced["messages"]), ("all_reduce", reduced["count"] * 8))

    def test_horovod_on_tensorflow(self):
        self.check_messages(self.check("hvd-tf", 16), 18)

    def test_faster_links_count_where_gradients_are_what_the_update_waits_for(self):
        for name in ("hvd-tf", "hvd-mx"):
            facts = dpro("whatif", os.path.join(CAPTURED, name), "--bandwidth", "2x", "--json").json
            # 2.2 MB at 500 Mbit/s, which both ways share, are some 70 ms
            self.assertLess(facts["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"] - 25)

    def test_horovod_on_mxnet(self):
        self.check_messages(self.check("hvd-mx", 16), 21)

    def test_without_one_rank_s_log_groups_are_replayed_whole(self):
        for path in glob.glob(os.path.join(CAPTURED, "hvd-tf", "*")):
            if "net_proc1" not in path and "times" not in path:
                shutil.copy(path, self.folder)
        facts = self.assert_replays(self.folder)
        self.assertEqual(facts["collectives"][0]["messages"], 0)
        self.assertLess(abs(facts["error_pct"]), 5)
