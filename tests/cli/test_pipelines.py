"""Micro-batches and schedules of pipelines: found in a trace, and asked for otherwise."""
import os
import re

from support import BUNDLED, DONE, INPUT, USAGE, Case, dpro, span
from test_parallel import PIPELINE, STEPS, Number, dims, transfer

FORWARD_US, BACKWARD_US, UPDATE_US, REDUCED_US = 2000, 4000, 1000, 3000
SHARDED = os.path.join(os.path.dirname(BUNDLED), "torch-fsdp-gloo-n2-memory")
NO_PIPELINE = os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-gpt-n2-default")


def order(schedule, stage, n_stages, n):
    """Passes of a stage: (way, micro-batch), way 0 for forward and 1 for backward."""
    ahead = n if schedule == "gpipe" else min(n, n_stages - stage)
    passes = [(0, i) for i in range(ahead)]
    for i in range(n):
        passes.append((1, i))
        if ahead + i < n:
            passes.append((0, ahead + i))
    return passes


def run(schedule, n_stages, n):
    """When each pass begins and ends: {(stage, way, micro-batch): (begin, end)}."""
    lists, done, free = [order(schedule, s, n_stages, n) for s in range(n_stages)], {}, [0] * n_stages
    while any(lists):
        for s, passes in enumerate(lists):
            while passes:
                way, i = passes[0]
                source = (s - 1, 0, i) if way == 0 else (s + 1, 1, i)
                if 0 <= source[0] < n_stages and source not in done:
                    break
                begin = max(free[s], done[source][1] + 60 if source in done else 0)
                done[s, way, i] = begin, begin + (FORWARD_US, BACKWARD_US)[way]
                free[s] = done[s, way, i][1] + 50
                passes.pop(0)
    return done


def all_reduce(number, group, begin, end, waited=None):
    """Waited for at once, or from `waited` on."""
    call, waited = number(), begin + 22 if waited is None else waited
    return [span("dpro.call:%d::%s" % (call, group), begin, 20), span("c10d::allreduce_", begin + 2, 16, **dims(500)),
            span("gloo:all_reduce", begin + 25, end - begin - 30, tid=5, cat="user_annotation", **dims(500)),
            span("dpro.wait:%d" % call, waited, max(end - 2 - waited, 4))]


def split_stage(rank, n_stages, n):
    """The same of two ranks a stage, which reduce activations half-way through each pass, and two pipelines of them, side by side."""
    return stage(rank // 2 % n_stages, "1f1b", n_stages, n, width=2, rank=rank)


def replicated(rank, n_stages, n):
    """Two pipelines side by side, replicas of each other, which reduce gradients for REDUCED_US from half-way through the last
    backward pass, and wait for that when all is sent."""
    return stage(rank // 2, "1f1b", n_stages, n, width=2, rank=rank, reduces=True)


def stage(number_of, schedule, n_stages, n, leave_out=(), width=1, rank=None, holds_up=False, reduces=False):
    """A stage begins its next step when it has done all of its own. `holds_up`: every other call to receive returns with the data."""
    number, done, events, free = Number(), run(schedule, n_stages, n), [], 0
    here, rank, world = number_of, number_of if rank is None else rank, n_stages * width * (2 if width > 1 and not reduces else 1)
    groups = [("pp%d" % first, [first + width * s for s in range(n_stages)])
              for base in range(0, world, n_stages * width) for first in range(base, base + width)] if width > 1 else []
    groups += [("dp%d" % first if reduces else "tp%d" % first, [first, first + 1]) for first in range(0, world, 2)] if width > 1 else []
    own = [(name, ranks) for name, ranks in groups if rank in ranks]
    period = max(end for _, end in done.values()) + UPDATE_US + 200
    for step in range(STEPS):
        begun, sent = free, 0
        for way, i in order(schedule, here, n_stages, n):
            begin, end = (step * period + at for at in done[here, way, i])
            ahead, behind = (here - 1, here + 1) if way == 0 else (here + 1, here - 1)
            if 0 <= ahead < n_stages and ("recv", way, i) not in leave_out:
                held = max(begin - free - 30, 0) if holds_up and i % 2 else 0
                events += transfer(number, "recv", rank + width * (ahead - here), free, free + held + 22, begin - 1, held=held)
            name = "aten::mm" if way == 0 else "autograd::engine::evaluate_function: MmBackward0"
            half, marks = (begin + end) // 2, {"Sequence number": i, "Fwd thread id": way}
            events.append(span(name, begin, half - begin, **marks))
            if width > 1 and not reduces:
                events += all_reduce(number, own[1][0], half, half + 200)
                half += 200
            if reduces and (way, i) == (1, n - 1):
                latest = here if width > 1 else 0  # stage that posts it
                posted, reduced = half, step * period + sum(done[latest, way, i]) // 2 + REDUCED_US
                half += 20
            events.append(span(name, half, end - half, **marks))
            free = end + 1
            if 0 <= behind < n_stages and ("send", way, i) not in leave_out:
                waited = step * period + done[here, 1, n - 1][1] + 50 + 5 * sent  # for all at the end
                events += transfer(number, "send", rank + width * (behind - here), free, waited, waited + 4)
                free += 24
                sent += 1
        free = max(end + 100, free)
        if reduces:
            events += all_reduce(number, own[1][0] if own else "", posted, reduced, free)
            free = max(reduced, free + 4) + 2
        events.append(span("Optimizer.step#SGD.step", free, UPDATE_US, cat="user_annotation"))
        events.append(span("aten::add_", free + 10, UPDATE_US - 20))
        free += UPDATE_US + 10
        events.append(span("ProfilerStep#%d" % step, begun, free - begun, cat="user_annotation"))
    info = {"backend": "gloo", "rank": rank, "world_size": world,
            "pg_config": [{"pg_name": name, "pg_desc": name, "ranks": ranks} for name, ranks in own]}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}


def chunk_passes(rank, n_ranks, n):
    """Of a rank with two stages and one round of micro-batches, its own and the one as many ranks on: (way, stage, micro-batch)."""
    ahead = min(n + 2 * (n_ranks - 1 - rank), 2 * n)
    there = [(0, rank + n_ranks * (k // n), k % n) for k in range(2 * n)]
    back = [(1, rank + n_ranks * (1 - k // n), k % n) for k in range(2 * n)]
    turns = [one for k in range(2 * n - ahead) for one in (there[ahead + k], back[k])]
    return there[:ahead] + turns + back[2 * n - ahead:]


def run_chunks(n_ranks, n, share=1):
    """When each pass begins and ends; the last stage of all takes twice as long as another."""
    lists, done, free = [chunk_passes(r, n_ranks, n) for r in range(n_ranks)], {}, [0] * n_ranks
    while any(lists):
        for r, passes in enumerate(lists):
            while passes:
                way, stage, i = passes[0]
                source = (way, stage - 1 if way == 0 else stage + 1, i)
                if 0 <= source[1] < 2 * n_ranks and source not in done:
                    break
                begin = max(free[r], done[source][1] if source in done else 0) + 60
                took = (FORWARD_US, BACKWARD_US)[way] * share * (2 if stage == 2 * n_ranks - 1 else 1)
                done[way, stage, i] = begin, begin + took
                free[r] = begin + took + 50
                passes.pop(0)
    return done


def chunk_stages(rank, n_ranks, n, splits=False):
    """A rank of a schedule with two stages a rank, which the job marks. `splits`: so are the halves of backward passes."""
    number, done, events, free = Number(), run_chunks(n_ranks, n), [], 0
    period = max(end for _, end in done.values()) + UPDATE_US + 400
    own_end = max(end for (_, stage, _), (_, end) in done.items() if stage % n_ranks == rank)
    for step in range(STEPS):
        begun, sent = free, 0
        for way, stage, i in chunk_passes(rank, n_ranks, n):
            begin, over = (step * period + at for at in done[way, stage, i])
            before, behind = (stage - 1, stage + 1) if way == 0 else (stage + 1, stage - 1)
            if 0 <= before < 2 * n_ranks:
                events += transfer(number, "recv", before % n_ranks, free, free + 22, begin - 1)
            name = "aten::mm" if way == 0 else "autograd::engine::evaluate_function: MmBackward0"
            parts = [("F", begin, over)] if way == 0 else [("B", begin, over)]
            if way == 1 and splits:
                parts = [("I", begin, (begin + over) // 2), ("W", (begin + over) // 2, over)]
            events += [span("PP:%d%s%d" % (stage, part, i), at, end - at, cat="user_annotation") for part, at, end in parts]
            events += [span(name, at, end - at, **{"Sequence number": i, "Fwd thread id": way}) for _, at, end in parts]
            free = over + 1
            if 0 <= behind < 2 * n_ranks:
                waited = step * period + own_end + 50 + 5 * sent
                events += transfer(number, "send", behind % n_ranks, free, waited, waited + 4)
                free += 24
                sent += 1
        free = step * period + own_end + 50 + 5 * sent + 10
        events.append(span("Optimizer.step#SGD.step", free, UPDATE_US, cat="user_annotation"))
        events.append(span("aten::add_", free + 10, UPDATE_US - 20))
        free += UPDATE_US + 10
        events.append(span("ProfilerStep#%d" % step, begun, free - begun, cat="user_annotation"))
    return {"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": n_ranks}, "traceEvents": events}


def iteration_ms(n_stages, n, row_share):
    """Passes of n micro-batches, each as long as `row_share` of those above, with nothing between them."""
    pair = FORWARD_US + BACKWARD_US
    return (n + n_stages - 1) * pair * row_share / 1e3


class Pipelines(Case):
    def traces(self, schedule, n_stages=3, n=4, holds_up=False, **changes):
        return [self.write("rank%d.json" % rank,
                           stage(rank, schedule, n_stages, n, changes.get("rank%d" % rank, ()), holds_up=holds_up))
                for rank in range(n_stages)]

    def whatif(self, traces, *options):
        result = dpro("whatif", *traces, *options, "--json")
        self.assertEqual(result.code, DONE, result.err)
        return result.json

    def assert_refused(self, traces, *options, why):
        result = dpro("whatif", *traces, *options)
        self.assertEqual(result.code, USAGE, result.out + result.err)
        self.assertIn(why, result.err)
        self.assertEqual(len(result.err.strip().splitlines()), 1, result.err)

    def test_the_recorded_schedule_is_named(self):
        for schedule in ("gpipe", "1f1b"):
            for n_stages, n in ((2, 3), (3, 4), (4, 4)):
                facts = self.assert_replays(*self.traces(schedule, n_stages, n))
                self.assertEqual((facts["micro_batches"], facts["schedule"]), (n, schedule), (n_stages, n))

    def test_one_micro_batch_for_each_stage_is_one_that_is_not_cut(self):
        facts = self.assert_replays(*self.traces("1f1b", 2, 1))
        self.assertEqual(facts["micro_batches"], 1)

    def test_more_micro_batches_fill_the_pipeline_better(self):
        facts = self.whatif(self.traces("1f1b"), "--microbatches", "8")
        gain = facts["baseline"]["iteration_ms"] - facts["predicted"]["iteration_ms"]
        self.assertAlmostEqual(gain, iteration_ms(3, 4, 1) - iteration_ms(3, 8, 0.5), delta=1.2)
        before, after = (facts["pipeline"][key]["bubble_pct"] for key in ("baseline", "predicted"))
        self.assertTrue(all(x > y for x, y in zip(before, after)), facts["pipeline"])

    def test_fewer_micro_batches_leave_it_emptier(self):
        facts = self.whatif(self.traces("gpipe"), "--microbatches", "2")
        more = facts["predicted"]["iteration_ms"] - facts["baseline"]["iteration_ms"]
        self.assertAlmostEqual(more, iteration_ms(3, 2, 2) - iteration_ms(3, 4, 1), delta=1.2)

    def test_pipelines_side_by_side_whose_stages_split_tensors(self):
        traces = [self.write("rank%d.json" % rank, split_stage(rank, 2, 4)) for rank in range(8)]
        facts = self.assert_replays(*traces)
        self.assertEqual((facts["micro_batches"], facts["schedule"]), (4, "1f1b"))
        self.assertEqual([(d["name"], d["size"]) for d in facts["dimensions"]], [("tp", 2), ("pp", 2)])
        facts = self.whatif(traces, "--microbatches", "8")
        gain = facts["baseline"]["iteration_ms"] - facts["predicted"]["iteration_ms"]
        plain = iteration_ms(2, 4, 1) - iteration_ms(2, 8, 0.5)
        self.assertTrue(plain - 2.5 < gain < plain, (gain, plain))  # each reduces as often as the others did
        slow = self.whatif(traces, "--microbatches", "8", "--latency", "+1ms")
        self.assertGreater(slow["predicted"]["iteration_ms"] - facts["predicted"]["iteration_ms"], 16)  # in each pass

    def test_gradients_of_replicas_are_reduced_in_the_last_backward_pass(self):
        alone = self.whatif(self.traces("1f1b", 2), "--microbatches", "8")
        traces = [self.write("rank%d.json" % rank, replicated(rank, 2, 4)) for rank in range(4)]
        asked = "--dims", "dp=2,pp=2"
        facts = self.whatif(traces, *asked, "--microbatches", "8")
        tied = [self.write("tied%d.json" % rank, stage(rank, "1f1b", 2, 4, reduces=True)) for rank in range(2)]
        tied = self.whatif(tied, "--microbatches", "8")  # by all ranks of the job
        gains = [run["baseline"]["iteration_ms"] - run["predicted"]["iteration_ms"] for run in (alone, facts, tied)]
        self.assertAlmostEqual(gains[0] - gains[1], 1, delta=0.2)  # half as long, the pass hides 1 of 3 ms in place of 2
        self.assertAlmostEqual(gains[0] - gains[2], 1, delta=0.2)
        slower = self.whatif(traces, *asked, "--microbatches", "8", "--latency", "+1ms")
        self.assertGreater(slower["predicted"]["iteration_ms"], facts["predicted"]["iteration_ms"] + 2)
        more = self.whatif(traces, *asked, "--schedule", "gpipe", "--dp", "4")["predicted"]["iteration_ms"]
        self.assertGreater(more, self.whatif(traces, *asked, "--schedule", "gpipe")["predicted"]["iteration_ms"])

    def test_shards_of_a_pipeline_change_with_its_micro_batches(self):
        traces = [self.write("rank%d.json" % rank, replicated(rank, 2, 4)) for rank in range(4)]
        four, eight, same = ([self.whatif(traces, "--dims", "fsdp=2,pp=2", *run, *shards)["predicted"]["iteration_ms"]
                              for shards in ((), ("--dp", "4"))] for run in ((), ("--microbatches", "8"), ("--microbatches", "4")))
        for whole, half in (four, eight, same):  # 1 ms of update
            self.assertAlmostEqual(whole - half, 0.45, delta=0.12)
        self.assertEqual(four[0], same[0])

    def test_stages_are_told_of_the_ranks_that_stay(self):
        traces = [self.write("rank%d.json" % rank, stage(rank // 4 % 2, "1f1b", 2, 4, width=4, rank=rank)) for rank in range(16)]
        asked = "--dims", "ep=2,pp=2,dp=2,tp=2", "--schedule", "gpipe", "--compute", "2x@4-7", "--compute", "2x@12-15"
        of_all, of_half = (self.whatif(traces, *asked, *fewer)["pipeline"]["predicted"]["bubble_pct"] for fewer in ((), ("--dp", "1")))
        self.assertGreater(of_all[1], of_all[0] + 10)
        for before, after in zip(of_all, of_half):
            self.assertAlmostEqual(after, before, delta=2)

    def test_stages_of_a_rank_that_are_marked(self):
        def end_ms(*args):
            return max(end for _, end in run_chunks(*args).values()) / 1e3

        traces = [self.write("rank%d.json" % rank, chunk_stages(rank, 3, 3)) for rank in range(3)]
        facts = self.assert_replays(*traces)
        self.assertEqual((facts["micro_batches"], facts["stages_a_rank"], facts["schedule"]), (3, 2, "interleaved"))
        self.assertIn("3 micro-batches, schedule interleaved, 2 stages a rank", dpro("replay", *traces).out)
        self.assertLess(abs(facts["error_pct"]), 2)
        more = self.whatif(traces, "--microbatches", "2")  # of one round, too
        self.assertAlmostEqual(more["predicted"]["iteration_ms"] - more["baseline"]["iteration_ms"],
                               end_ms(3, 2, 1.5) - end_ms(3, 3), delta=1)
        turns = self.whatif(traces, "--schedule", "gpipe")
        gpipe_ms = (2 * 2 + 3 * 3) * (FORWARD_US + BACKWARD_US) / 1e3  # the last rank's stages take as long as three others
        self.assertAlmostEqual(turns["predicted"]["iteration_ms"] - turns["baseline"]["iteration_ms"], gpipe_ms - end_ms(3, 3), delta=1.5)
        self.assert_refused(traces, "--microbatches", "7", why="can't be divided into 2 equal rounds")
        self.assert_refused(traces, "--schedule", "zero-bubble", why="record steps with such a schedule")

    def test_a_zero_bubble_schedule_shows_the_parts_of_backward_passes(self):
        traces = [self.write("rank%d.json" % rank, chunk_stages(rank, 3, 3, splits=True)) for rank in range(3)]
        self.assertEqual(self.assert_replays(*traces)["schedule"], "zero-bubble")
        facts = self.whatif(traces, "--schedule", "interleaved")
        self.assertTrue(any("between the longer of its parts" in line for line in facts["warnings"]), facts["warnings"])
        # of both parts one after the other, with bubbles that are no longer filled; or of the longer one alone
        both_ms, own = 1.02 * facts["baseline"]["iteration_ms"], facts["predicted"]
        self.assertLess(own["iteration_ms"], both_ms)
        self.assertGreater(own["iteration_ms"] * (1 + own["uncertainty_pct"] / 100), both_ms)

    def test_either_schedule_takes_as_long_where_nothing_is_sent_slowly(self):
        facts = self.whatif(self.traces("1f1b"), "--schedule", "gpipe")
        self.assertAlmostEqual(facts["speedup"], 1, delta=0.03)
        self.assertEqual(facts["pipeline"]["predicted"]["schedule"], "gpipe")

    def test_a_schedule_and_micro_batches_as_recorded_change_nothing(self):
        facts = self.whatif(self.traces("1f1b"), "--schedule", "1f1b", "--microbatches", "4")
        self.assertEqual(facts["baseline"]["iteration_ms"], facts["predicted"]["iteration_ms"])

    def test_calls_that_are_held_up_now_and_then_leave_more_open(self):
        plain, held = (self.whatif(self.traces("1f1b", holds_up=holds_up), "--microbatches", "8")["uncertainty"]["extrapolation"]
                       for holds_up in (False, True))
        self.assertGreater(held["predicted_pct"], 3 * plain["predicted_pct"] + 5)

    def test_slow_links_hold_up_micro_batches(self):
        traces = self.traces("1f1b")
        plain, slow = (self.whatif(traces, "--microbatches", "8", *options) for options in ((), ("--latency", "+2ms")))
        self.assertGreater(slow["predicted"]["iteration_ms"] - plain["predicted"]["iteration_ms"], 4)

    def test_what_the_trace_does_not_tell_is_refused_in_one_line(self):
        traces = self.traces("1f1b")
        self.assert_refused(traces, "--schedule", "interleaved", why="shows no blocks")
        self.assert_refused(traces, "--schedule", "zero-bubble", why="or ask for --schedule 1f1b")
        self.assert_refused([NO_PIPELINE], "--microbatches", "8", why="has no pipeline")
        self.assert_refused([NO_PIPELINE], "--schedule", "gpipe", why="has no pipeline")

    def test_what_else_changes_passes_is_not_asked_for_with_them(self):
        for option, value in (("--accumulate", "2"), ("--batch-size", "2x"), ("--precision", "bf16")):
            self.assert_refused([PIPELINE], "--microbatches", "8", option, value, why="leave out " + option)
        for option, value in (("--reshard", "all"), ("--accumulate", "2"), ("--batch-size", "2x")):
            self.assert_refused([SHARDED], "--microbatches", "8", option, value, why="has no pipeline")

    def test_a_stage_that_is_missing_is_told(self):
        self.assert_refused(self.traces("1f1b")[:2], "--microbatches", "8", why="no counterpart in the trace")

    def test_a_send_that_nobody_receives_is_told(self):
        traces = self.traces("1f1b", rank1=[("recv", 0, 3)])
        self.assert_refused(traces, "--microbatches", "8", why="no counterpart in the trace")

    def test_stages_that_pass_on_unequal_numbers_are_told(self):
        traces = self.traces("gpipe", rank0=[("send", 0, 3)], rank1=[("recv", 0, 3)])
        self.assert_refused(traces, "--microbatches", "8", why="micro-batches are not known")

    def test_a_recorded_pipeline(self):
        facts = self.assert_replays(PIPELINE)
        self.assertEqual((facts["micro_batches"], facts["schedule"]), (4, "1f1b"))
        facts = self.whatif([PIPELINE], "--microbatches", "8", "--schedule", "gpipe")
        self.assertEqual(facts["pipeline"]["predicted"]["micro_batches"], 8)
        self.assertGreater(facts["uncertainty"]["batch_size"]["predicted_pct"], 0)

    def test_the_search_finds_the_fastest_of_all_that_can_be_asked(self):
        facts = self.assert_json("optimize", PIPELINE)
        asked = {"%s %d" % (schedule, n): self.whatif([PIPELINE], "--microbatches", str(n), "--schedule", schedule)
                 for schedule in ("gpipe", "1f1b") for n in (1, 2, 4, 8, 16, 32) if schedule == "gpipe" or n > 1}
        times = {name: it["predicted"]["iteration_ms"] for name, it in asked.items()}
        rows = {row["name"]: row for row in facts["baselines"]}
        self.assertEqual(set(rows), set(times) - {"1f1b 4"})  # as it ran
        for name, row in rows.items():
            self.assertEqual(row["likely_ms"], times[name], name)
        best, run = facts["best"], facts["pipeline"]["best"]
        self.assertEqual(facts["pipeline"]["baseline"], {"micro_batches": 4, "schedule": "1f1b"})
        self.assertEqual(best["likely_ms"], times["%s %d" % (run["schedule"], run["micro_batches"])])
        self.assertEqual(facts["search"]["improvements"][-1]["iteration_ms"], min(times.values()))
        self.assertLessEqual(best["iteration_ms"], 1.005 * min(row["iteration_ms"] for row in facts["baselines"]))
        self.assertTrue(all(row["uncertainty_pct"] > 0 for row in facts["baselines"]), facts["baselines"])
        self.assertTrue(any("schedule interleaved is not tried: each recorded rank" in line for line in facts["warnings"]),
                        facts["warnings"])

    def test_what_is_found_for_a_pipeline_is_said_as_the_script_has_it(self):
        result = dpro("optimize", PIPELINE, "-o", self.path("plan"))
        self.assertEqual(result.code, DONE, result.err)
        self.assertIn("ScheduleGPipe(stage, n_microbatches=1", " ".join(result.out.split()))
        self.assertIn("no plan can change the passes", result.out)
        self.assertEqual(sorted(os.listdir(self.path("plan"))), ["optimize.html", "optimize.json"])

    def test_a_pipeline_that_nothing_makes_faster_for_sure_stays_as_it_is(self):
        facts = self.assert_json("optimize", *self.traces("1f1b"))
        self.assertFalse(facts["best"]["helps"], facts["best"])
        self.assertIsNone(facts["best"]["script"])
        self.assertIn("keep 4 micro-batches, schedule 1f1b", " ".join(dpro("optimize", *self.traces("1f1b")).out.split()))

    def test_what_no_pipeline_has_is_refused_by_the_search(self):
        self.assert_error(dpro("optimize", PIPELINE, "--compress", "fp16"), USAGE, "--compress is for gradients")
        self.assert_error(dpro("optimize", PIPELINE, "--memory", "1GB"), INPUT, "the trace does not tell what the job's ranks hold")

    def test_messages_that_buffers_hold_tell_only_a_link_s_limits(self):
        """Of 32 KB each, over 100 Mbit/s, which a limiter let pass as a burst: they arrived at 500 MB/s and more."""
        facts = self.whatif([PIPELINE], "--bandwidth", "0.5x")
        rate = facts["link"]["bandwidth_bytes_per_s"]
        self.assertGreater(rate["std"], rate["value"])
        said = next(warning for warning in facts["warnings"] if "what buffers hold" in warning)
        low = float(re.search(r"from (\S+) MB/s to the learnt one", said).group(1))
        self.assertTrue(low < 100 / 8 < rate["value"] / 1e6, said)

    def test_blocks_that_several_stages_a_rank_can_not_be_made_of_are_told(self):
        self.assert_refused([PIPELINE], "--schedule", "interleaved", why="shows no blocks")
