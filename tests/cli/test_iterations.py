"""What happens in some iterations only: ranks that are late, iterations that are slow, memory that grows. Jobs on GPUs whose
truth is known, from gpu_job.py."""
import re

import gpu_job
from cpu_job import CpuJob
from gpu_job import Job
from support import Case, dpro, read_json

KERNELS, KERNEL_US, PAUSE_US = 30, 1000.0, 40_000.0  # a step of 30 ms on the GPU, and what a late rank pauses


def verdict(facts, title):
    return next(line["text"] for line in facts["verdict"] if line["title"] == title)


class Numbers(Case):
    """Two ranks whose recordings do not give the same iteration the same number; rank 1's clock is 3 ms behind."""

    def replay(self, name, change, jitter=0.1):
        job = Job(kernels=KERNELS, kernel_us=KERNEL_US, world=2, buckets=2, sync="end", jitter=jitter)
        folder, _ = gpu_job.write(self, job, steps=8, folder=name)
        path = f"{name}/rank1.pt.trace.json.gz"
        trace = read_json(self.path(path))
        trace["traceEvents"] = change(trace["traceEvents"])
        for event in trace["traceEvents"]:
            event["ts"] -= 3000.0
        self.write(path, trace)
        facts = self.assert_replays(folder)
        self.assertAlmostEqual(facts["clock"]["hosts"][1]["offset_ms"], 3.0, delta=0.01)
        return facts

    def test_a_rank_without_marks_is_compared_with_the_same_iterations(self):
        for jitter, told_by in ((0.1, "when their collectives end tells"), (0.0, "their clocks tell")):
            facts = self.replay(f"unmarked-{jitter}", lambda events: [e for e in events if "ProfilerStep" not in e["name"]], jitter)
            self.assertEqual(facts["lateness"]["iterations"], 8)
            self.assertIn(f"1 of 2 ranks (first: rank 1) number their iterations otherwise than rank 0: {told_by}",
                          " ".join(facts["warnings"]))

    def test_a_rank_recorded_later_that_counts_from_its_own_start_is_compared_with_the_same_iterations(self):
        def begin_later(events):
            begin = next(e["ts"] for e in events if e["name"] == "ProfilerStep#2")
            for event in events:
                event["name"] = re.sub("(?<=ProfilerStep#)[0-9]+", lambda m: str(int(m[0]) - 1), event["name"])
            return [e for e in events if e["ts"] >= begin]

        self.assertEqual(self.replay("later", begin_later)["lateness"]["iterations"], 7)


class Joined(Case):
    def test_what_a_rank_takes_part_in_after_its_last_step_is_no_iteration_of_its_own(self):
        """DDP's join(): the ranks that have less input answer the others' collectives."""
        events, _ = CpuJob(world=2, steps=10, counts=1).run()
        last = max(e["ts"] for e in events[1] if e["name"] == "ProfilerStep#9")
        for r, of_rank in enumerate(events):
            of_rank = [e for e in of_rank if "ProfilerStep" not in e["name"] and not (
                r == 1 and e["ts"] > last and e["tid"] == 1 and e["name"] != "c10d::allreduce_")]
            self.write(f"job/rank{r}.json", {"host_name": "host", "distributedInfo": {"backend": "gloo", "rank": r, "world_size": 2},
                                             "traceEvents": sorted(of_rank, key=lambda e: e["ts"])})
        facts = self.assert_replays(self.path("job"))
        self.assertRegex(" ".join(facts["warnings"]), "iteration 5 is left out.*goes on after the job's last step")
        self.assertNotIn("clocks or numbers are wrong", " ".join(facts["warnings"]))


class GpuAlone(Case):
    def test_of_what_launched_its_work_nothing_is_said(self):
        """One step, of which only the GPU was recorded."""
        write = self.write
        self.write = lambda name, content: write(name, dict(content, traceEvents=[
            event for event in content["traceEvents"] if event["cat"] in ("kernel", "gpu_memcpy")]))
        facts = self.assert_replays(gpu_job.write(self, Job(kernels=KERNELS, kernel_us=KERNEL_US), steps=1, folder="alone")[0])
        self.assertEqual(facts["steps"]["found_by"], "nothing")
        self.assertNotRegex(" ".join(facts["warnings"]), "before the recording|inference")


class LateRanks(Case):
    """Four ranks, one of which pauses in each step, by a list of ranks."""

    def replay(self, late, name):
        def pause(rank, number):
            if number <= len(late) and late[number - 1] == rank.rank:
                rank.now += PAUSE_US

        job = Job(kernels=KERNELS, kernel_us=KERNEL_US, world=4, buckets=2, sync="end", within=pause)
        folder, truth = gpu_job.write(self, job, steps=len(late), folder=name)
        facts = self.assert_replays(folder)
        counted = {rank["rank"]: rank["late"] for rank in facts["lateness"]["ranks"] if rank["late"] > 0}
        self.assertEqual(counted, {rank: late.count(rank) for rank in set(late) - {None}})
        for rank in facts["lateness"]["ranks"]:
            times = rank["waited_for_ms"]
            self.assertEqual([ms > 1 for ms in times], [r == rank["rank"] for r in late])
        return facts

    def test_a_rank_that_is_late_in_most_iterations_is_the_straggler(self):
        for late, often in (([2] * 10, ""), ([2, 2, None, 2, None, 2, 2, None, 2, None], " in 6 of 10 iterations,")):
            facts = self.replay(late, f"late-{late.count(2)}")
            self.assertEqual(facts["lateness"]["straggler"], 2)
            self.assertEqual(facts["lateness"]["stragglers"], [2])
            later_ms = next(rank["later_ms"] for rank in facts["lateness"]["ranks"] if rank["rank"] == 2)
            self.assertAlmostEqual(later_ms, facts["measured"]["iteration_ms"] - self.healthy_ms(len(late)), delta=2.1)
            self.assertIn(f"straggler: rank 2, late{often} by {later_ms:.2f} ms on average", verdict(facts, "Communication"))

    def test_one_iteration_or_two_tell_of_no_straggler(self):
        facts = self.replay_pauses("few", lambda rank, number: 30 if rank == 2 else 0, steps=2)
        self.assertIsNone(facts["lateness"]["straggler"])
        self.assertIn("; no constant straggler, of 2 iterations: rank 2 in 2", verdict(facts, "Communication"))

    def healthy_ms(self, steps):
        healthy, _ = gpu_job.write(self, Job(kernels=KERNELS, kernel_us=KERNEL_US, world=4, buckets=2, sync="end"),
                                   steps=steps, folder="healthy")
        return self.assert_replays(healthy)["measured"]["iteration_ms"]

    def replay_pauses(self, name, pause_ms, world=4, steps=10):
        job = Job(kernels=KERNELS, kernel_us=KERNEL_US, world=world, buckets=2, sync="end",
                  within=lambda rank, number: pause(pause_ms(rank.rank, number))(rank, number))
        return self.assert_replays(gpu_job.write(self, job, steps=steps, folder=name)[0])

    def test_ranks_that_are_always_late_take_turns_at_being_the_last(self):
        for name, slow, world in (("two", (1, 3), 4), ("three", (0, 2, 5), 8), ("always-second", (1, 3), 4)):
            def pause_ms(rank, number):
                if rank not in slow:
                    return 0
                last = slow[0 if name == "always-second" else number % len(slow)]
                return 40 if rank == last else 36

            facts = self.replay_pauses(name, pause_ms, world)
            self.assertEqual(sorted(facts["lateness"]["stragglers"]), list(slow))
            self.assertIn(facts["lateness"]["straggler"], slow)
            self.assertEqual({rank["late"] for rank in facts["lateness"]["ranks"] if rank["rank"] in slow}, {10})
            self.assertRegex(verdict(facts, "Communication"), r"; stragglers: ranks \d,? .*and \d, late by \d\d\.\d\d ms or more on ")
            self.assertTrue(all(rank["later_ms"] > 15 for rank in facts["lateness"]["ranks"] if rank["rank"] in slow))
            self.assertLessEqual(set(slow), {rank["rank"] for rank in facts["lateness"]["ranks"]})

    def test_a_straggler_costs_a_share_that_matters_and_is_no_chance(self):
        facts = self.replay_pauses("little", lambda rank, number: 0.7 if rank == 2 else 0)
        self.assertIsNone(facts["lateness"]["straggler"])
        self.assertNotIn("straggler", verdict(facts, "Communication"))
        for world in (2, 4, 8):
            for seed in range(4):
                random = gpu_job.random.Random(seed * 100 + world)
                times = [[20 * random.random() for _ in range(world)] for _ in range(12)]
                facts = self.replay_pauses(f"chance-{world}-{seed}", lambda rank, number: times[min(number, 12) - 1][rank], world, 12)
                self.assertEqual(facts["lateness"]["stragglers"], [])
        facts = self.replay_pauses("noisy", lambda rank, number: times[min(number, 12) - 1][rank] + (15 if rank == 5 else 0), 8, 12)
        self.assertEqual(facts["lateness"]["stragglers"], [5])

    def test_stalls_of_another_rank_do_not_hide_a_straggler(self):
        """Rare and long, so that means and standard errors are theirs."""
        for late_ms in (12.3, 30):  # of which the GPU's queue hides a part
            for name, stalls in (("rare", (4, 9)), ("often", (2, 5, 8, 11))):
                facts = self.replay_pauses(f"{name}-{late_ms:.0f}", lambda rank, number: (
                    late_ms if rank == 1 else 200 if rank == 2 and number in stalls else 0), steps=12)
                self.assertEqual(facts["lateness"]["stragglers"], [1])
                self.assertIn("straggler: rank 1, late in", verdict(facts, "Communication"))

    def test_a_slower_rank_is_named_where_the_others_wait_for_it_under_their_own_work(self):
        def trains(rank):
            yield from rank.forward(4)
            reduced = yield from rank.backward(20, buckets=5)
            yield from rank.update(2, after=reduced)
            rank.wait_for_gpu()

        for slow, said in (((2,), "; rank 2 computes 52.00 ms an iteration, others 26.00 ms"), ((), "")):
            job = Job(kernel_us=1000.0, world=4, transfer_us=15_000.0, program=trains,
                      factor=lambda rank, op: 2 if rank.rank in slow else 1)
            facts = self.assert_replays(gpu_job.write(self, job, steps=6, folder="slow%d" % len(slow))[0])
            self.assertIsNone(facts["lateness"]["straggler"])
            self.assertEqual(re.search("; .*|$", verdict(facts, "Communication")).group(), said)

    def test_ranks_that_meet_have_one_iteration_time(self):
        """Rank 0 pauses at the end of each fifth iteration, the last one, too, in which the others' do not wait for it."""
        def pausing(rank):
            yield from rank.passes(KERNELS)
            rank.now += PAUSE_US if rank.rank == 0 and rank.number % 5 == 0 else 0

        job = Job(kernels=KERNELS, kernel_us=KERNEL_US, world=4, buckets=2, sync="end", program=pausing)
        facts = self.assert_replays(gpu_job.write(self, job, steps=15, folder="checkpoints")[0])
        truth_ms = self.healthy_ms(15) + PAUSE_US / 1e3 / 5
        for ms in (facts["job"]["iteration_ms"], facts["predicted"]["iteration_ms"], facts["measured"]["iteration_ms"]):
            self.assertAlmostEqual(ms, truth_ms, delta=0.005 * truth_ms)

    def test_a_rank_that_a_coin_chooses_is_no_straggler(self):
        """Of two ranks one is late in each iteration by the same time: the median of 12 in 20 has no spread."""
        late = "00110011001110001000"
        folder = CpuJob(world=2, steps=20,
                        slow=lambda r, step, phase, _: 1.7 if int(late[step]) == r and phase == "forward" else 1).write(self)
        said = {line["title"]: line["text"] for line in self.assert_replays(folder)["verdict"]}
        self.assertIn("no constant straggler, of 20 iterations: rank 0 in 12, rank 1 in 8", said["Communication"])

    def test_a_late_rank_that_changes_is_no_straggler(self):
        for late, ranks in (([1, 0, 2, 0, 3, 3, 3, 3, 1, 0, 3, 0], "12 iterations: rank 3 in 5, rank 0 in 4, rank 1 in 2, rank 2 in 1"),
                            ([1, 3] * 5, "10 iterations: rank 1 in 5, rank 3 in 5"),
                            ([0, None, None, 0, None, None], "6 iterations: rank 0 in 2")):
            facts = self.replay(late, f"changes-{len(set(late))}")
            self.assertIsNone(facts["lateness"]["straggler"])
            self.assertRegex(verdict(facts, "Communication"), "; no constant straggler, of " + ranks)

    def test_the_first_iteration_waits_as_long_as_it_did(self):
        """Its late rank pauses after nothing that the recording lacks."""
        facts = self.replay([1, 0, 2, 0, 3, 3, 3, 3], "first")
        self.assertAlmostEqual(facts["error_pct"], 0, delta=0.1)


def annotate(name, ms, cat="user_annotation"):
    def do(rank, number):
        rank.emit(cat, name, rank.now, ms * 1000, 100, 1)
        rank.now += ms * 1000
    return do


def pause(ms):
    def do(rank, number):
        rank.now += ms * 1000
    return do


class SlowIterations(Case):
    """Two ranks of 30 ms a step; some steps do something else, too."""

    def replay(self, name, steps, do, n=12, ranks=(0, 1), jitter=0.0):
        def within(rank, number):
            if number in steps and rank.rank in ranks:
                do(rank, number)

        job = Job(kernels=KERNELS, kernel_us=KERNEL_US, world=2, buckets=2, sync="end", within=within, jitter=jitter)
        facts = self.assert_replays(gpu_job.write(self, job, steps=n, folder=name)[0])
        self.assertEqual([row["iteration"] for row in facts["slow_iterations"]["iterations"]], sorted(steps))
        return facts

    def test_a_row_of_them_is_told_by_its_ends(self):
        self.assertIn("4 of 12 iterations (5 to 8) take ", self.replay("row", {5, 6, 7, 8}, pause(50))["slow_iterations"]["text"])

    def test_the_first_ones_are_told_as_such(self):
        facts = self.replay("warms-up", {1, 2}, annotate("_compile.compile_inner (dynamo_timed)", 400))
        self.assertRegex(facts["slow_iterations"]["text"], r"^the first 2 of 12 iterations \(1, 2\) take .* longer than the others' \d")

    def test_a_rank_that_measured_fewer_is_said(self):
        def cut(content):
            if content["distributedInfo"]["rank"] > 0:
                last = {1: 8, 2: 10}[content["distributedInfo"]["rank"]]
                end = next(e["ts"] for e in content["traceEvents"] if e["name"] == f"ProfilerStep#{last}")
                content["traceEvents"] = [e for e in content["traceEvents"] if e["ts"] < end]
            return content

        write = self.write
        self.write = lambda name, content: write(name, cut(content))
        folder, _ = gpu_job.write(self, Job(kernels=KERNELS, kernel_us=KERNEL_US, world=3, buckets=2, sync="end"), steps=10, folder="fewer")
        facts = self.assert_replays(folder)
        self.assertEqual(facts["measured"]["iterations"], list(range(1, 8)))
        self.assertIn("2 of 3 ranks measured fewer iterations than others (rank 1 has 7, others up to 10): the 7 that all have are learnt "
                      "from", facts["warnings"])

    def test_they_recur(self):
        do = annotate("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 60)
        for every, first, name in ((3, 3, "3rd"), (4, 2, "4th"), (2, 1, "2nd")):
            facts = self.replay(f"every-{every}", set(range(first, 13, every)), do)
            self.assertEqual(facts["slow_iterations"]["every"], every)
            self.assertIn(f"every {name} iteration (", facts["slow_iterations"]["text"])
        self.assertIsNone(self.replay("twice", {3, 6}, do)["slow_iterations"]["every"])
        self.assertIsNone(self.replay("irregular", {3, 6, 10}, do)["slow_iterations"]["every"])

    def test_those_in_which_alone_ranks_communicate_are_slow_for_that(self):
        job = CpuJob(world=2, steps=12, every=4, transfer=30_000)
        facts = self.assert_replays(job.write(self, "averages"))
        self.assertIn("every 4th iteration (", facts["slow_iterations"]["text"])
        self.assertIn("3 of 12 communicate, and all update the weights", verdict(facts, "Next step"))
        causes = self.assert_json("diagnose", self.path("averages"))["causes"]
        self.assertEqual(causes[0]["cause"], "slow_iterations")
        self.assertEqual(causes[0]["parts"][0]["what"], "communication, every 4 iterations")

    def test_where_the_cpu_runs_ahead_the_gpu_waits_for_it(self):
        def within(rank, number):
            if number in (5, 9):
                annotate("save_checkpoint", 200)(rank, number)

        job = Job(kernels=KERNELS, kernel_us=KERNEL_US, within=within)
        facts = self.assert_replays(gpu_job.write(self, job, steps=12, folder="ahead")[0])
        self.assertEqual(len(facts["slow_iterations"]["iterations"]), 2)

    def test_one_rank_is_enough(self):
        facts = self.replay("one-rank", {5}, annotate("save_checkpoint", 70), ranks=(1,))
        self.assertIn("1 of 12 iterations (5) takes ", facts["slow_iterations"]["text"])

    def test_iterations_that_vary_are_not_slow(self):
        for seed in range(3):
            facts = self.replay(f"vary-{seed}", set(), pause(0), jitter=0.1 * seed)
            self.assertIsNone(facts["slow_iterations"]["text"])

    def test_work_that_lies_in_another_span_in_some_iterations_stays_in_its_phase(self):
        """torch.compile's region holds the ops that it runs."""
        def compile_first(rank, number):
            self.regions.append((rank, rank.now))
            annotate("_compile.compile_inner (dynamo_timed)", 400)(rank, number)

        self.regions = []
        job = Job(kernels=KERNELS, kernel_us=KERNEL_US, world=2, buckets=2, sync="end", before_forward=lambda rank, number:
                  compile_first(rank, number) if number in (5, 8) else None)
        run_ranks = gpu_job.run_ranks

        def with_regions(*args, **options):
            self.regions.clear()
            ranks = run_ranks(*args, **options)
            for rank, begin in self.regions:
                rank.emit("cpu_op", "Torch-Compiled Region: 0/0", begin - 5, 400_000 + KERNELS // 3 * 40.0, 100, 1)
            return ranks

        gpu_job.run_ranks = with_regions
        self.addCleanup(setattr, gpu_job, "run_ranks", run_ranks)
        facts = self.assert_replays(gpu_job.write(self, job, steps=10, folder="regions")[0])
        self.assertEqual([row["iteration"] for row in facts["slow_iterations"]["iterations"]], [5, 8])
        for rank in facts["ranks"]:
            self.assertAlmostEqual(rank["forward_ms"], KERNELS // 3 * KERNEL_US / 1000, delta=0.1)


class ShownIteration(Case):
    """The critical path and the timeline are those of one iteration."""

    def record(self, name, pauses_ms):
        def within(rank, number):
            if number <= len(pauses_ms):
                rank.now += pauses_ms[number - 1] * 1000

        job = Job(kernels=KERNELS, kernel_us=KERNEL_US, world=2, buckets=2, sync="end", within=within)
        return gpu_job.write(self, job, steps=len(pauses_ms), folder=name)[0]

    def test_it_is_the_one_nearest_to_the_mean(self):
        for name, pauses in (("rising", [15, 18, 21, 24, 27, 30, 60]), ("one", [60, 15, 15, 15, 16, 15]),
                              ("half", [50, 20, 32, 50, 20, 50])):
            facts = self.assert_replays(self.record(name, pauses))
            measured = facts["measured"]
            off = {number: abs(ms - measured["iteration_ms"])
                   for number, ms in zip(measured["iterations"], measured["per_iteration_ms"])}
            shown = facts["critical_path"]["iteration"]
            self.assertEqual(off[shown], min(off.values()))
            length = dict(zip(measured["iterations"], measured["per_iteration_ms"]))[shown]
            self.assertAlmostEqual(facts["critical_path"]["length_ms"], length, delta=0.1)

    def test_another_one_is_shown_on_request(self):
        folder = self.record("asked", [0, 20, 40, 60, 80, 100])
        for number in (2, 4, 6):
            facts = self.assert_replays(folder, "--iteration", str(number))
            measured = dict(zip(facts["measured"]["iterations"], facts["measured"]["per_iteration_ms"]))
            self.assertEqual(facts["critical_path"]["iteration"], number)
            self.assertAlmostEqual(facts["critical_path"]["length_ms"], measured[number], delta=0.1)
        refused = dpro("replay", "--iteration", "9", folder)
        self.assertEqual(refused.code, 2)
        self.assertIn("iteration 9 was not measured on all ranks; they are ", refused.err)
        self.assertEqual(dpro("replay", "--iteration", "x", folder).code, 2)


class Growth(Case):
    """Each step takes three blocks in its forward pass, which the next step gives back, and may keep another one."""

    def replay(self, name, keeps, gives=lambda number: [], steps=8, kept=20_000_000, **job):
        def use(rank, number):
            def event(address, size):
                rank.events.append({"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100, "tid": 1,
                                    "ts": round(rank.now, 3), "dur": 0,
                                    "args": {"Addr": address, "Bytes": size, "Device Id": 0, "Device Type": 1}})
                rank.now += 2

            begin = rank.now
            rank.now += 2
            for k in range(3):
                if number > 1:
                    event((number - 1) * 1_000_000_000 + k * 200_000_000, -100_000_000)
            for k in range(3):
                event(number * 1_000_000_000 + k * 200_000_000, 100_000_000)
            if keeps(number):
                event(number * 1_000_000_000 + 700_000_000, kept(number) if callable(kept) else kept)
            for of in gives(number):
                event(of * 1_000_000_000 + 700_000_000, -kept)
            rank.emit("cpu_op", "aten::linear", begin, rank.now - begin + 2, 100, 1)
            rank.now += 2

        job = Job(kernels=KERNELS, kernel_us=KERNEL_US, sync="end", before_forward=use, **job)
        self.facts = self.assert_replays(gpu_job.write(self, job, steps=steps, folder=name)[0])
        return self.facts["memory"]["ranks"][0], dpro("replay", self.path(name)).out.replace("\n    ", " ")

    def test_memory_that_each_step_keeps_is_said_and_no_activation(self):
        rank, text = self.replay("leak", lambda number: True)
        self.assertEqual(rank["growth_bytes"], 20_000_000)
        self.assertEqual(rank["by_category"]["activation"], 300_000_000)
        self.assertIn("grows by 20.0 MB a step from the first recorded step on, which", text)
        self.assertIsNone(rank["grows_since"])
        self.assertIn("find out what keeps 20.0 MB more memory in each iteration (a leak?)", verdict(self.facts, "Next step"))

    def test_what_a_thousand_steps_have_room_for_is_no_next_step(self):
        for kept, said in ((1_000, False), (200_000, False), (900_000, True)):  # of 300 MB and what the steps kept
            rank, text = self.replay(f"tiny-{kept}", lambda number: True, kept=kept)
            self.assertEqual(rank["growth_bytes"], kept)
            self.assertIn("a step", text)
            self.assertEqual("leak" in verdict(self.facts, "Next step"), said)

    def test_it_need_not_keep_as_much_in_each_step(self):
        for name, kept in (("more", lambda number: 5_000_000 * number), ("varies", lambda number: (7 * number % 11 + 2) * 1_000_000)):
            rank, text = self.replay(f"unlike-{name}", lambda number: True, steps=12, kept=kept)
            self.assertIn("a step from the first recorded step on", text)
            mean = sum(kept(number) for number in range(2, 12)) / 10
            self.assertAlmostEqual(rank["growth_bytes"], mean, delta=0.12 * mean)
            last = 2 * max(kept(number) for number in range(1, 13))  # which the next steps may give back
            self.assertLessEqual(rank["by_category"]["activation"], 300_000_000 + last)
        rank, _ = self.replay("stops", lambda number: number < 7, steps=12)
        self.assertEqual((rank["growth_bytes"], rank["by_category"]["activation"]), (None, 300_000_000))

    def test_where_its_pace_changes_the_latest_is_told(self):
        """What is to come goes by it, not by the mean."""
        for name, kept in (("faster", lambda number: 20_000_000 if number < 7 else 50_000_000),
                           ("slower", lambda number: 90_000_000 if number < 7 else 50_000_000)):
            rank, text = self.replay(name, lambda number: True, steps=12, kept=kept)
            self.assertEqual((rank["growth_bytes"], rank["grows_since"]), (50_000_000, 7))
            self.assertIn("grows by 50.0 MB a step since iteration 7, which", text)

    def test_it_may_begin_in_the_second_recorded_step(self):
        rank, text = self.replay("second", lambda number: number >= 2)
        self.assertEqual((rank["growth_bytes"], rank["grows_since"]), (20_000_000, 2))
        self.assertNotIn("from the first recorded step on", text)

    def test_few_steps_tell_of_it_too_and_two_say_that_they_cannot(self):
        for steps in (3, 4):
            rank, text = self.replay(f"few-{steps}", lambda number: True, steps=steps)
            self.assertEqual((rank["growth_bytes"], rank["kept_bytes"]), (20_000_000, None))
            self.assertEqual(rank["by_category"]["activation"], 300_000_000)
            self.assertIn("grows by 20.0 MB a step from the first recorded step on", text)
            self.assertIsNone(self.replay(f"few-flat-{steps}", lambda number: number == 1, steps=steps)[0]["growth_bytes"])
        rank, text = self.replay("few-2", lambda number: True, steps=2)
        self.assertEqual((rank["growth_bytes"], rank["kept_bytes"]), (None, 20_000_000))
        self.assertIn("20.0 MB that the first of two recorded steps took are not given back: two steps can't tell", text)
        self.assertNotIn("two steps", self.replay("flat-2", lambda number: False, steps=2)[1])

    def test_it_may_begin_while_the_job_is_recorded(self):
        rank, text = self.replay("later", lambda number: number >= 7, steps=12)
        self.assertEqual((rank["growth_bytes"], rank["grows_since"]), (20_000_000, 7))
        self.assertEqual(rank["by_category"]["activation"], 300_000_000)
        self.assertIn("grows by 20.0 MB a step since iteration 7, which", text)

    def test_what_the_chosen_iterations_hold_is_told(self):
        self.replay("chosen", lambda number: number >= 7, steps=12)
        for steps, peak, growth in (("1:6", 300_000_000, None), ("2:11", 400_000_000, 20_000_000)):
            rank = dpro("replay", self.path("chosen"), "--steps", steps, "--json", "-q").json["memory"]["ranks"][0]
            self.assertEqual(rank["growth_bytes"], growth)
            self.assertLess(abs(rank["peak_bytes"] - peak), 20_000_001)

    def test_garbage_that_is_collected_now_and_then_is_no_growth(self):
        rank, text = self.replay("garbage", lambda number: True, lambda number: [number - 3, number - 2, number - 1] if number == 7 else [],
                                 steps=11)
        self.assertIsNone(rank["growth_bytes"])
        self.assertNotIn("leak", verdict(self.facts, "Next step"))

    def test_it_is_left_out_of_what_ifs_and_plans(self):
        rank, _ = self.replay("leak-2", lambda number: True, world=2, buckets=2)
        lean, _ = self.replay("lean-2", lambda number: False, world=2, buckets=2)
        self.assertGreater(rank["peak_bytes"], lean["peak_bytes"] + 100_000_000)
        for command in (("whatif", "--compute", "2x"), ("optimize",)):
            facts = dpro(command[0], self.path("leak-2"), *command[1:], "--json", "-q").json
            self.assertEqual(facts["memory"]["baseline_peak_bytes"], lean["peak_bytes"])
            self.assertRegex(" ".join(facts["warnings"]), "the memory of (rank .|2 ranks) grows(, of rank 0)? by 20.0 MB "
                                                          "in each iteration.*are left out of the peaks")
            lean_facts = dpro(command[0], self.path("lean-2"), *command[1:], "--json", "-q").json
            self.assertEqual(lean_facts["memory"]["peak_bytes"], facts["memory"]["peak_bytes"])
            self.assertNotIn("left out of the peaks", " ".join(lean_facts["warnings"]))

    def test_a_budget_beside_it_is_told_what_it_takes(self):
        self.replay("leak-3", lambda number: True, world=2, buckets=2)
        memory = dpro("optimize", self.path("leak-3"), "--json", "-q").json["memory"]
        peak, leaked = memory["baseline_peak_bytes"], memory["leaked_bytes"]
        self.assertGreaterEqual(leaked, 60_000_000)
        for budget, said in ((peak + leaked - 1, "which does not fit"), (peak + leaked + 40_000_000, "for 2 iterations more")):
            out = " ".join(dpro("optimize", self.path("leak-3"), "--memory", str(budget), "-q").out.split())
            self.assertIn("Leak memory grows by 20.0 MB in each iteration", out)
            self.assertIn(said, out)

    def test_what_only_some_steps_keep_is_no_growth(self):
        for name, keeps in (("none", lambda number: False), ("cache", lambda number: number <= 3), ("late", lambda number: number == 5)):
            rank, text = self.replay(name, keeps)
            self.assertIsNone(rank["growth_bytes"])
            self.assertNotIn("grows by", text)
