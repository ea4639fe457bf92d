"""Pipelines, and collectives of several process groups: what waits for what over their ranks."""
import glob
import os
import re
import shutil

from support import BUNDLED, DONE, INPUT, USAGE, Case, dpro, read_text, span, write_text

DATA = os.path.dirname(BUNDLED)
PIPELINE, EXPERTS, MIXED, TENSORS = (os.path.join(DATA, name) for name in ("torch-pp-gloo-n2", "torch-ep-gloo-n2",
                                                                           "torch-fsdp-tp-gloo-n4", "torch-tp-gloo-n2"))
STEPS, STEP_US = 4, 20_000


def job(rank, world, step_of, groups=()):
    """A profile of a rank: step_of(start) gives a step's events."""
    events = []
    for step in range(STEPS):
        start = step * STEP_US
        events.append(span("ProfilerStep#%d" % step, start, STEP_US, cat="user_annotation"))
        events += step_of(start, step)
    return {"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": world, "pg_config": [
        {"pg_name": name, "pg_desc": name, "ranks": ranks} for name, ranks in groups]}, "traceEvents": events}


def dims(n):
    return {"Input Dims": [[n]], "Input type": ["float"]}


class Number:
    """Of the recorder's marks, in a rank's whole window."""

    def __init__(self):
        self.n = -1

    def __call__(self):
        self.n += 1
        return self.n


def transfer(number, kind, peer, posted, waited_from, waited_to, n=1000, held=0):
    """A send or receive: posted, gone on beside, waited for. `held`: so much later the call that posts it returns."""
    call = number()
    name, drawn = {"send": "c10d::send", "recv": "c10d::recv_"}[kind], posted + held + 15
    return [span("dpro.call:%d:%d:0" % (call, peer), posted, held + 20), span(name, posted + 2, held + 16, **dims(n)),
            span("gloo:" + kind, drawn, waited_to - drawn, cat="user_annotation", **dims(n)),
            span("dpro.wait:%d" % call, waited_from, waited_to - waited_from)]


def stage(rank, late=0, n=1000):
    """Rank 0 computes two micro-batches of 2 ms, sends each, and goes on beside the first; rank 1 takes 3 ms for each."""
    number = Number()

    def step_of(start, step):
        if rank == 0:
            return [span("aten::mm", start, 2000), *transfer(number, "send", 1, start + 2000, start + 4050, start + 4060, n),
                    span("aten::mm", start + 2030, 2000), *transfer(number, "send", 1, start + 4100, start + 5200, start + 6000, n),
                    span("aten::add_", start + 6010, 500)]
        return [*transfer(number, "recv", 0, start, start + 20, start + 2500, n), span("aten::mm", start + 2500, 3000 + late),
                *transfer(number, "recv", 0, start + 5500 + late, start + 5520 + late, start + 6000 + late, n),
                span("aten::mm", start + 6000 + late, 3000), span("aten::add_", start + 9010 + late, 500)]

    return job(rank, 2, step_of)


class Pipeline(Case):
    def traces(self, **changes):
        return [self.write("rank%d.json" % rank, stage(rank, **changes.get("rank%d" % rank, {}))) for rank in (0, 1)]

    def test_what_is_computed_beside_a_send_is_computation(self):
        facts = self.assert_replays(*self.traces())
        work = {rank["rank"]: rank["forward_ms"] for rank in facts["ranks"]}
        self.assertGreater(work[0], 3.9)  # both micro-batches
        self.assertLess(facts["error_pct"], 1)

    def test_sends_meet_their_receives_in_order(self):
        facts = self.assert_replays(*self.traces())
        self.assertEqual(sum(c["count"] for c in facts["collectives"]), 2)
        self.assertEqual({c["ranks"] for c in facts["collectives"]}, {2})

    def line(self, world, **args):
        """Stages of a line as torch.profiler records them: no marks of dpro, peers in `args` at most."""
        def stage_of(rank):
            def send(start, peer):
                inputs = {"Concrete Inputs": ["", "", str(peer), "0"]} if args else {}
                name, kind = ("send", "send") if peer > rank else ("recv_", "recv")
                return [span("c10d::" + name, start, 20, **dims(1000), **inputs),
                        span("gloo:" + kind, start + 10, 300, cat="user_annotation", **dims(1000))]
            return lambda start, _: [event for peer, at in ((rank - 1, 1000), (rank + 1, 3000)) if 0 <= peer < world
                                     for event in [span("aten::mm", start + at, 900), *send(start + at + 900, peer)]]
        return self.assert_replays(*[self.write("rank%d.json" % rank, job(rank, world, stage_of(rank))) for rank in range(world)])

    def test_of_a_job_of_two_ranks_the_other_one_is_the_peer(self):
        facts = self.line(2)
        self.assertEqual([(c["ranks"], c["count"]) for c in facts["collectives"]], [(2, 1)])
        self.assertEqual([(d["name"], d["size"]) for d in facts["dimensions"]], [("pp", 2)])

    def test_the_peer_of_a_send_is_its_input(self):
        facts = self.line(3, inputs=True)
        self.assertEqual([(c["ranks"], c["count"]) for c in facts["collectives"]], [(2, 2)])
        self.assertEqual([(d["name"], d["size"]) for d in facts["dimensions"]], [("pp", 3)])

    def test_receives_that_are_posted_in_another_order_meet_the_sends_of_their_size(self):
        def step_of(rank, number):
            kind, sizes = ("send", (500, 300)) if rank == 0 else ("recv", (300, 500))

            def step(start, _):
                posted = [transfer(number, kind, 1 - rank, start + 1000 * (i + 1), start + 5000 + 100 * i, start + 5050 + 100 * i, n)
                          for i, n in enumerate(sizes)]
                return [span("aten::mm", start, 900), *posted[0], *posted[1], span("aten::add_", start + 6000, 500)]
            return step

        traces = [self.write("rank%d.json" % rank, job(rank, 2, step_of(rank, Number()))) for rank in (0, 1)]
        facts = self.assert_replays(*traces)
        self.assertEqual([(c["ranks"], c["count"]) for c in facts["collectives"]], [(2, 2)])
        self.assertFalse([line for line in facts["warnings"] if "counterpart" in line], facts["warnings"])

    def test_a_receiver_waits_for_a_slower_stage_and_a_sender_for_a_busy_one(self):
        plain = self.assert_replays(*self.traces())["predicted"]["iteration_ms"]
        later = self.assert_replays(*self.traces(), "--delay", "aten::mm@0=+5")["predicted"]["iteration_ms"]
        self.assertGreater(later - plain, 4)

    def test_a_send_is_over_when_a_receiver_that_waits_has_it(self):
        """Its own wait is over when the sender's buffers have it."""
        def step_of(rank, marks, number):
            def step(start, _):
                kind, posted, until = ("send", 2000, 2060) if rank == 0 else ("recv", 0, 6000)
                sent = transfer(number, kind, 1 - rank, start + posted, start + posted + 30, start + until)
                return [*(event for event in sent if marks or "dpro." not in event["name"]), span("aten::mm", start + until + 5, 900),
                        *([span("aten::mm", start, 1990)] if rank == 0 else [])]
            return step

        for marks in (True, False):
            traces = [self.write("rank%d.json" % rank, job(rank, 2, step_of(rank, marks, Number()))) for rank in (0, 1)]
            exposed = {rank["rank"]: rank["exposed_communication_ms"] for rank in self.assert_replays(*traces)["ranks"]}
            self.assertTrue(3.8 < exposed[1] < 4.1, (marks, exposed))

    def test_a_wait_is_no_work(self):
        facts = self.assert_replays(*self.traces())
        waiting = {rank["rank"]: rank["wait_for_peers_ms"] + rank["exposed_communication_ms"] for rank in facts["ranks"]}
        self.assertGreater(waiting[1], 2)
        work = {rank["rank"]: rank["forward_ms"] for rank in facts["ranks"]}
        self.assertTrue(4 < work[0] < 5 and 6 < work[1] < 7, work)  # what it computes, and 0.5 ms

    def test_a_call_that_is_held_up_has_posted_before(self):
        def receives(start, step):
            held = 3000 if step else 0
            return [*transfer(number, "recv", 0, start, start + held + 30, start + max(held, 1000) + 70, held=held),
                    span("aten::mm", start + max(held, 1000) + 80, 1000)]

        def sends(start, _):
            return [span("aten::mm", start, 1000), *transfer(number, "send", 1, start + 1000, start + 1030, start + 1060),
                    span("aten::mm", start + 1070, STEP_US - 1080)]

        traces = []
        for rank, step_of in enumerate((sends, receives)):
            number = Number()
            traces.append(self.write("rank%d.json" % rank, job(rank, 2, step_of)))
        facts = self.assert_replays(*traces)
        self.assertLess(facts["error_pct"], 1)  # the sender waits for nothing
        work = {rank["rank"]: rank["forward_ms"] for rank in facts["ranks"]}
        self.assertGreater(work[0], STEP_US / 1000 - 0.2)

    def test_a_stage_that_is_missing_is_said_and_the_rest_replayed(self):
        facts = self.assert_replays(self.traces()[1])
        self.assertTrue(any("1 of 2 ranks are here" in line for line in facts["warnings"]), facts["warnings"])

    def test_a_rank_of_another_program_is_said(self):
        facts = self.assert_replays(*self.traces(rank1={"n": 777}))
        self.assertTrue(any("no counterpart of their kind and size" in line for line in facts["warnings"]), facts["warnings"])


def grouped(rank, late=0):
    """Ranks 0 and 1, 2 and 3 split a layer, 0 and 2, 1 and 3 a batch: a collective of each group a step."""
    number = Number()
    pair, other = ("tp%d" % (rank // 2), [rank // 2 * 2, rank // 2 * 2 + 1]), ("dp%d" % (rank % 2), [rank % 2, rank % 2 + 2])

    def all_reduce(at, group, end):
        call = number()
        return [span("dpro.call:%d::%s" % (call, group), at, 20), span("c10d::allreduce_", at + 2, 16, **dims(500)),
                span("gloo:all_reduce", at + 30, end - at - 30, tid=5, cat="user_annotation", **dims(500)),
                span("dpro.wait:%d" % call, at + 40, end - at - 30)]

    def step_of(start, step):
        slow = 3000 if rank >= 2 else 0
        return [span("aten::mm", start, 1000 + slow), *all_reduce(start + 1000 + slow, pair[0], start + 1500 + slow),
                span("aten::addmm", start + 1600 + slow, 1000),
                *all_reduce(start + 2600 + slow, other[0], start + 6200), span("aten::add_", start + 6300, 100)]

    return job(rank, 4, step_of, [pair, other])


class Groups(Case):
    def test_a_collective_joins_the_ranks_of_its_group_alone(self):
        traces = [self.write("rank%d.json" % rank, grouped(rank)) for rank in range(4)]
        facts = self.assert_replays(*traces)
        self.assertEqual([(c["ranks"], c["count"]) for c in facts["collectives"]], [(2, 4)])
        # ranks 0 and 1 wait for 2 and 3 in the second collective, not in the first
        waiting = {rank["rank"]: rank["wait_for_peers_ms"] for rank in facts["ranks"]}
        self.assertTrue(all(2.5 < waiting[rank] < 3.5 for rank in (0, 1)), waiting)
        self.assertTrue(all(waiting[rank] < 0.3 for rank in (2, 3)), waiting)


def exchanging(rank):
    """An op of autograd's that blocks in a collective between what it asks for and the next op, as torch.profiler alone shows it."""
    def step_of(start, step):
        asked, over = start + 2020, start + 8000 + 50 * step
        return [span("aten::mm", start, 2000), span("Exchange", start + 2005, over + 60 - start - 2005),
                span("c10d::alltoall_base_", asked, 30, **dims(500_000)),
                span("gloo:all_to_all", asked + 35, over - asked - 35, tid=5, cat="user_annotation", **dims(500_000)),
                span("aten::mm", over + 100, 3000), span("aten::add_", over + 3110, 500)]

    return job(rank, 2, step_of, [("0", [0, 1])])


class Blocked(Case):
    def test_an_op_that_blocks_until_a_collective_is_over_waits_for_it(self):
        for rank in (0, 1):
            self.write("job/rank%d.json" % rank, exchanging(rank))
        facts = self.assert_replays(self.path("job"))
        for rank in facts["ranks"]:
            self.assertLess(rank["forward_ms"], 6)
            self.assertGreater(rank["exposed_communication_ms"] + rank["wait_for_peers_ms"], 5.5)


class Recorded(Case):
    """Real jobs, recorded by dpro profile."""

    def test_a_pipeline(self):
        facts = self.assert_replays(PIPELINE)
        self.assertLess(abs(facts["error_pct"]), 1)
        self.assertEqual(facts["transport"]["collectives_tied"], facts["transport"]["collectives"])
        pairs = [c for c in facts["collectives"] if c["kind"] in ("send", "recv")]
        self.assertEqual(sum(c["count"] for c in pairs), 8)  # 4 micro-batches, there and back
        self.assertEqual(sum(c["messages"] for c in pairs), 8)
        self.assertFalse([line for line in facts["warnings"] if "clock" in line or "whole" in line], facts["warnings"])

    def test_a_pipeline_without_its_transport(self):
        copy = self.path("copy")
        shutil.copytree(PIPELINE, copy)
        for folder, _, files in os.walk(copy):
            for name in files:
                if name.startswith("net."):
                    os.remove(os.path.join(folder, name))
        facts = self.assert_replays(copy)
        self.assertLess(abs(facts["error_pct"]), 1)
        self.assertFalse([line for line in facts["warnings"] if "clock" in line], facts["warnings"])

    def test_experts(self):
        facts = self.assert_replays(EXPERTS)
        self.assertLess(abs(facts["error_pct"]), 1)
        self.assertFalse([line for line in facts["warnings"] if "whole" in line], facts["warnings"])
        self.assertEqual([c["count"] for c in facts["collectives"] if c["kind"] == "all_to_all"], [10])  # 2 blocks, 5 each

    def test_sharded_and_split(self):
        facts = self.assert_replays(MIXED)
        self.assertLess(abs(facts["error_pct"]), 2)  # of three iterations; another rank is the last one at the end of each
        self.assertEqual({c["ranks"] for c in facts["collectives"]}, {2})
        self.assertFalse([line for line in facts["warnings"] if "whole" in line or "matched" in line], facts["warnings"])

    def test_a_rank_of_a_pipeline_may_be_missing(self):
        result = dpro("replay", os.path.join(PIPELINE, "hostvm", "rank1"), "--json")
        self.assertIn(result.code, (DONE, INPUT))
        if result.code == DONE:
            self.assertTrue(result.json["warnings"])

    def test_tensors_split_over_other_ranks(self):
        def ask(*args):
            result = dpro("whatif", "--json", TENSORS, *args)
            self.assert_code(result, DONE)
            return result.json

        as_it_is = ask("--tp", "2")
        self.assertEqual(as_it_is["predicted"]["iteration_ms"], as_it_is["baseline"]["iteration_ms"])
        alone, four = ask("--tp", "1"), ask("--tp", "4")
        # the peaks of the same job on one rank and on four; a few bytes more: a counter of steps on each rank
        self.assertAlmostEqual(alone["memory"]["peak_bytes"], 19073112, delta=16)
        away = 132000  # how far a collective has got: ranks of the one job differ by as much
        self.assertGreater(four["memory"]["peak_bytes"], 8693860 - away)
        self.assertLess(four["memory"]["peak_bytes"], 8824932 + away)
        self.assertEqual(alone["memory"]["by_category"]["communication"], 0)
        kept = [[facts["memory"]["by_category"][kind] for kind in ("parameter", "gradient", "temporary")] for facts in (alone, four)]
        self.assertEqual(kept, [[4242432, 4242432, 2101260], [1877760, 1877760, 1049612]])
        slow = ["--bandwidth", "0.01x"]  # a ring over four ranks carries more, one rank nothing
        times = [ask("--tp", n, *slow)["predicted"]["iteration_ms"] for n in ("1", "2", "4")]
        self.assertLess(times[0], times[1])
        self.assertLess(times[1], times[2])
        large = ["--bandwidth", "1000x", "--delay", "BW=10"]  # a rank of more has less to do
        times = [ask("--tp", n, *large)["predicted"]["iteration_ms"] for n in ("4", "2", "1")]
        self.assertLess(times[0], times[1])
        self.assertLess(times[1], times[2])
        self.assertTrue(any("4 ranks instead of 2: ops on their parts take 0.5 times" in w for w in four["warnings"]))

    def test_replicas_and_ranks_that_split_tensors_change_together(self):
        def ask(*args):
            result = dpro("whatif", "--json", TENSORS, *args)
            self.assert_code(result, DONE)
            return result.json

        as_it_is, alone, four = ask("--tp", "2", "--dp", "1"), ask("--tp", "1", "--dp", "1"), ask("--tp", "4", "--dp", "1")
        self.assertEqual(as_it_is["predicted"]["iteration_ms"], as_it_is["baseline"]["iteration_ms"])
        self.assertEqual([f["predicted"] for f in (alone, four)], [ask("--tp", n)["predicted"] for n in "14"])
        both, world = ask("--tp", "4", "--dp", "2"), ask("--tp", "4", "--world-size", "8")
        self.assertEqual(both["predicted"], world["predicted"])
        self.assertEqual(both["memory"], ask("--tp", "4")["memory"])  # a replica holds what it held
        more = both["predicted"]["iteration_ms"] - ask("--tp", "4")["predicted"]["iteration_ms"]
        less = ask("--tp", "2", "--dp", "2")["predicted"]["iteration_ms"] - as_it_is["predicted"]["iteration_ms"]
        self.assertGreater(less, more)  # a rank of four has fewer gradients
        self.assertTrue(any("all gradients of a rank (1.9 MB on rank 0)" in w for w in both["warnings"]), both["warnings"])

    def test_what_ranks_with_split_tensors_exchange_recomputing_exchanges_again(self):
        def ms(*args):
            return self.assert_json("whatif", TENSORS, *args)["predicted"]["iteration_ms"]

        for modules, n in ((["--recompute", "blocks.0"], 2), (["--recompute", "blocks.0.mlp"], 1), (["--recompute", "head"], 0)):
            later = ms(*modules, "--latency", "+5ms") - ms(*modules) - (ms("--latency", "+5ms") - ms())
            self.assertAlmostEqual(later, n * 10, delta=0.01)  # of an all-reduce of two ranks, two messages
        self.assertGreater(ms("--accumulate", "2"), ms())
        self.assert_error(dpro("whatif", MIXED, "--recompute", "all"), USAGE)

    def test_a_rank_whose_file_is_cut_before_a_thread_that_communicates_is_left_out(self):
        """The profiler writes that thread's spans last, so that all iterations lack them."""
        folder = self.path("cut")
        shutil.copytree(MIXED, folder)
        path = glob.glob(os.path.join(folder, "*", "rank3", "kineto.json.gz"))[0]
        text = read_text(path)
        for part in 0.99, 0.7:
            write_text(path, text[:int(part * len(text))])
            facts = self.assert_json("replay", folder)
            self.assertLess(abs(facts["predicted"]["iteration_ms"] / facts["measured"]["iteration_ms"] - 1), 0.05, part)
            self.assertIn("rank 3 is left out", " ".join(facts["warnings"]))
            whole, cut = (self.assert_json("whatif", trace, "--dp", "4") for trace in (MIXED, folder))
            self.assertAlmostEqual(cut["speedup"], whole["speedup"], delta=0.03)
            self.assertLess(cut["speedup_std"], 1.2 * whole["speedup_std"])

    def test_a_budget_of_ranks_with_split_tensors_is_searched(self):
        self.assert_error(dpro("optimize", TENSORS), INPUT, "no gradients were found")
        result = dpro("optimize", TENSORS, "--memory", "11.6MB", "--json")
        self.assert_code(result, 1)  # what it holds at its peak is the optimizer's
        tried = {choice["name"]: choice for choice in result.json["memory"]["choices"]}
        asked = self.assert_json("whatif", TENSORS, "--accumulate", "2")
        self.assertEqual(tried["accumulate 2"]["iteration_ms"], asked["predicted"]["iteration_ms"])
        self.assertEqual(tried["accumulate 2"]["peak_bytes"], asked["memory"]["peak_bytes"])

    def test_what_split_tensors_take_and_hold_grows_with_the_batch(self):
        facts = [dpro("whatif", "--json", TENSORS, "--batch-size", size).json for size in ("0.5x", "1x", "2x")]
        kinds = [[f["memory"]["by_category"][kind] for kind in ("parameter", "optimizer_state", "activation")] for f in facts]
        self.assertEqual([k[:2] for k in kinds], 3 * [kinds[0][:2]])
        self.assertLess(kinds[0][2], kinds[2][2])
        times = [f["predicted"]["iteration_ms"] for f in facts]
        self.assertEqual(times[1], facts[1]["baseline"]["iteration_ms"])
        self.assertLess(times[0], 0.9 * times[1])
        self.assertLess(1.2 * times[1], times[2])
        slow = [dpro("whatif", "--json", TENSORS, *batch, "--bandwidth", "0.01x").json["predicted"]["iteration_ms"]
                for batch in ((), ("--batch-size", "2x"))]
        self.assertAlmostEqual(slow[1] / slow[0], 2, delta=0.1)  # what ranks send each other is twice as large

    def test_with_fewer_ranks_ops_may_stand_still_for_less_time(self):
        half = {}
        for factor in (0.5, 2):
            copy = self.path("cpu%g" % factor)
            shutil.copytree(TENSORS, copy)
            for rank in ("rank0", "rank1"):
                path = os.path.join(copy, "host0", rank, "rank.json")
                text = re.sub(r'"cpu_ns": ?(\d+)', lambda found: '"cpu_ns":%d' % (factor * int(found[1])), read_text(path))
                os.chmod(path, 0o644)
                write_text(path, text)
            facts = dpro("whatif", "--json", copy, "--tp", "1").json
            told = [line for line in facts["warnings"] if "of CPU time: with fewer ranks" in line]
            half[factor] = facts["predicted"]["uncertainty_pct"], len(told)
        self.assertEqual((half[0.5][1], half[2][1]), (1, 0))
        self.assertGreater(half[0.5][0], half[2][0] + 10)

    def test_a_part_of_an_execution_trace_does_not_tell_what_is_split(self):
        copy = self.path("cut")
        shutil.copytree(TENSORS, copy)
        path = os.path.join(copy, "host0", "rank0", "et.json.gz")
        os.chmod(path, 0o644)
        os.truncate(path, os.path.getsize(path) // 2)
        self.assert_error(dpro("whatif", copy, "--tp", "1"), USAGE, "which of rank 0's work is on split tensors: .* \\(et.json.gz")

    def test_what_of_other_splits_is_not_known_is_said(self):
        for trace, args, why in ((TENSORS, ["3"], "4 heads, which 3 ranks can't share out evenly: give a number that divides 4"),
                                 (TENSORS, ["4", "--world-size", "6"], "6 ranks are no whole number of replicas: .* make up 4 ranks"),
                                 (TENSORS, ["0"], "--tp"), (MIXED, ["1"], "does not show which of rank 0's work is on split tensors"),
                                 (PIPELINE, ["2"], "for jobs with one dimension tp, .* has pp 2. --dims"),
                                 (BUNDLED, ["2"], "has dp 2. --dims")):
            with self.subTest(args=args):
                self.assert_error(dpro("whatif", trace, "--tp", *args), USAGE, why)
