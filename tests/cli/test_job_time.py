"""How long the job takes without dpro: one number in replay, whatif and optimize, and what it is from."""
import os
import random
import re
import statistics

import gpu_job
from gpu_job import Job
from support import DONE, INPUT, ROOT, Case, dpro, job, recording

DATA = os.path.join(ROOT, "tests", "data")
# of each kind of stack; the last two have nothing that optimize searches
RECORDINGS = ("torch-ddp-gloo-gpt-n2", "torch-ddp-gloo-gpt-n2-default", "byteps-torch-n2", "hvd-mx-n2", "tf-ps-n2", "torch-ep-gloo-n2",
              "torch-fsdp-gloo-n2-memory", "torch-pp-gloo-n2", "torch-tp-gloo-n2")
ALONE = ("torch-pp-gloo-n2", "torch-tp-gloo-n2")


def lasting(*ms):
    starts = [1_700_000_000_000_000_000 + 10 ** 9 * i for i in range(len(ms))]
    return [{"step": i, "start_ns": start, "end_ns": start + round(one * 1e6)} for i, (start, one) in enumerate(zip(starts, ms))]


class JobTime(Case):
    def ask(self, command, trace, *args):
        result = dpro(command, trace, "--json", "--quiet", *args)
        self.assert_code(result, DONE)
        return result.json

    def recorded(self, times_ms, profiler=None):
        """Two ranks whose profiled iterations take as long as those of job(); the others take times_ms."""
        for rank, trace in enumerate(job(world=2)):
            self.write(f"TRACE/host0/rank{rank}/kineto.json", trace)
            steps = {"boundary": "optimizer", "warmup": 10, "timing": [], "structure": [], "before": lasting(*times_ms), "after": []}
            self.write(f"TRACE/host0/rank{rank}/rank.json", recording(rank, steps=steps, profiler=profiler))
        self.write("TRACE/job.json", {"schema": "dpro.job/1", "world_size": 2})
        return self.path("TRACE")

    def test_a_delay_of_a_single_iteration_is_worth_the_same_in_replay_and_whatif(self):
        # launch-bound: its steady period, which is not what is predicted, would not get shorter
        trace = gpu_job.write(self, Job(kernels=200, kernel_us=20.0, cpu_us=80.0, world=2, buckets=4, transfer_us=3000.0), steps=1)[0]
        less = []
        for command, before in (("replay", "predicted"), ("whatif", "baseline")):
            without, delayed = self.ask(command, trace), self.ask(command, trace, "--delay", "COLLECTIVE=0.5")
            less.append(without[before]["iteration_ms"] - delayed["predicted"]["iteration_ms"])
        self.assertGreater(less[0], 2)
        self.assertAlmostEqual(less[1], less[0], delta=0.1)

    def test_all_commands_give_the_same_milliseconds(self):
        for name in RECORDINGS:
            trace = os.path.join(DATA, name)
            with self.subTest(name):
                replayed, asked = self.ask("replay", trace), self.ask("whatif", trace)
                self.assertEqual(asked["job"], replayed["job"])
                self.assertEqual(asked["baseline"]["iteration_ms"], replayed["job"]["iteration_ms"])
                half_pct = 50 * (replayed["job"]["high_ms"] - replayed["job"]["low_ms"]) / replayed["job"]["iteration_ms"]
                self.assertAlmostEqual(asked["baseline"]["uncertainty_pct"], half_pct, delta=0.01)
                if name in ALONE:
                    continue
                searched = self.ask("optimize", trace, "--budget", "0.1")
                self.assertEqual(searched["job"], replayed["job"])
                self.assertEqual(searched["replayed_ms"], replayed["job"]["iteration_ms"])

    def test_what_is_called_measured_is_the_mean_of_what_was(self):
        for name in RECORDINGS:
            trace = os.path.join(DATA, name)
            with self.subTest(name):
                measured = self.ask("replay", trace)["measured"]
                self.assertAlmostEqual(measured["iteration_ms"], statistics.mean(measured["per_iteration_ms"]), places=5)
                self.assertAlmostEqual(self.ask("whatif", trace)["measured_ms"], measured["iteration_ms"], places=5)
                if name not in ALONE:
                    found = self.ask("optimize", trace, "--budget", "0.1")
                    self.assertAlmostEqual(found["measured_ms"], measured["iteration_ms"], places=5)

    def test_steps_that_contradict_the_replay_are_the_number(self):
        plain = self.ask("replay", self.recorded([]))
        own_ms = 0.72 * plain["predicted"]["iteration_ms"]
        trace = self.recorded([own_ms] * 9 + [20 * own_ms])  # one odd step moves nothing
        facts = self.ask("replay", trace)
        self.assertAlmostEqual(facts["job"]["iteration_ms"], own_ms, places=5)
        self.assertEqual((facts["job"]["source"], facts["job"]["from"]), ("steps without the profiler", 20))
        self.assertEqual(facts["predicted"], plain["predicted"])
        said = " ".join(dpro("replay", trace).out.split())
        self.assertRegex(said, r"^Iteration \S+ ms \+- \S+ % without dpro, by 20 steps without the profiler, which the replay contradicts "
                               r"\(\+39 %\);")

    def test_without_such_steps_the_profilers_cost_is_taken_out(self):
        facts = self.ask("replay", self.recorded([], profiler={"op_ns": 4000, "n_ops": 600}))
        self.assertEqual(facts["job"]["iteration_ms"], facts["predicted"]["iteration_ms"])
        self.assertEqual(facts["job"]["source"], "replay without the profiler")

    def test_where_nothing_is_known_without_the_profiler_that_is_said(self):
        period_ms = self.ask("replay", self.recorded([]))["measured"]["iteration_ms"]
        for times in ([], [0.9 * period_ms] * 2, [3 * period_ms] * 10):  # none, too few, and of other work
            trace = self.recorded(times)
            facts = self.ask("replay", trace)
            self.assertEqual((facts["job"]["iteration_ms"], facts["job"]["source"]), (facts["predicted"]["iteration_ms"], "as recorded"))
            self.assertIn("as recorded: the profiler's cost is in it", " ".join(dpro("replay", trace).out.split()))
            self.assertEqual(self.ask("whatif", trace)["baseline"]["iteration_ms"], facts["job"]["iteration_ms"])

    def slowed(self, name, slow, n=12, kernel_us=1000.0, moves=False):
        """Two ranks of 30 ms an iteration; those in `slow` pause for so many ms; if it moves, each rank in every third."""
        def within(rank, number):
            rank.now += 1000.0 * slow.get(number, 0) * (not moves or number % 3 == rank.rank)

        job = Job(kernels=30, kernel_us=kernel_us, world=2, buckets=2, sync="end", within=within, jitter=0.02, accumulates=True)
        return gpu_job.write(self, job, steps=n, folder=name)[0]

    def half_pct(self, facts):
        return 50 * (facts["job"]["high_ms"] - facts["job"]["low_ms"]) / facts["job"]["iteration_ms"]

    def test_what_is_slow_for_a_reason_is_no_drift_of_the_machine(self):
        plain = self.ask("replay", self.slowed("plain", {}))
        recurs = self.ask("replay", self.slowed("recurs", {4: 120, 8: 120, 12: 120}))
        self.assertLess(self.half_pct(recurs), self.half_pct(plain) + 1)
        self.assertAlmostEqual(recurs["job"]["iteration_ms"], statistics.mean(recurs["measured"]["per_iteration_ms"]), delta=0.5)
        rare = self.ask("replay", self.slowed("rare", {5: 900, 8: 900}))  # how often is not sure
        self.assertGreater(self.half_pct(rare), 50)
        self.assertGreater(rare["job"]["low_ms"], 0.85 * plain["job"]["iteration_ms"])  # no faster than the others

    def test_what_the_interval_is_made_of_is_told(self):
        trace = os.path.join(DATA, "torch-ddp-gloo-gpt-n2-default")
        facts, said = self.ask("replay", trace), " ".join(dpro("replay", trace).out.split())
        found = re.search(r"\+- (\S+) % of the job's time: 24 steps (\S+) %, machine drift (\S+) %", said)
        half, *parts = (float(text) for text in found.groups())
        self.assertAlmostEqual(half, self.half_pct(facts), delta=0.06)
        self.assertAlmostEqual(half, sum(part ** 2 for part in parts) ** 0.5, delta=0.1)

    def test_of_one_iteration_it_is_told_as_one(self):
        said = " ".join(dpro("replay", "--steps", "4", self.slowed("one", {})).out.split())
        self.assertIn("of the job's time: 1 iteration 0.0 %, machine drift", said)

    def test_what_warms_up_is_left_out(self):
        trace = self.slowed("warms-up", {1: 2000, 2: 1500}, n=8)
        plain, facts = self.ask("replay", self.slowed("plain", {}, n=8)), self.ask("replay", trace)
        self.assertEqual(facts["job"]["warm_up"], 2)
        self.assertAlmostEqual(facts["job"]["iteration_ms"], plain["job"]["iteration_ms"], delta=0.5)
        self.assertLess(self.half_pct(facts), self.half_pct(plain) + 1)
        self.assertIn("less 2 first iterations that may be warming up, as recorded", " ".join(dpro("replay", trace).out.split()))
        found = self.ask("optimize", trace, "--budget", "0.2")
        self.assertGreater(found["lower_bound_ms"], 0.5 * facts["job"]["iteration_ms"])
        self.assertEqual(found["job"], facts["job"])

    def test_slow_steps_that_recur_without_the_profiler_are_in_their_mean(self):
        period_ms = self.ask("replay", self.recorded([]))["measured"]["iteration_ms"]
        facts = self.ask("replay", self.recorded(([period_ms] * 3 + [1.8 * period_ms]) * 3))
        self.assertAlmostEqual(facts["job"]["iteration_ms"], 1.2 * period_ms, delta=0.01 * period_ms)
        self.assertLess(self.half_pct(facts), 10)
        slower = self.ask("replay", self.recorded([period_ms] * 7 + [1.4 * period_ms] * 5))  # the machine became slower
        self.assertGreater(self.half_pct(slower), 20)

    def test_percentiles_of_a_job_as_it_ran_are_those_that_were_measured(self):
        trace = self.slowed("measured", {5: 50, 8: 300, 11: 20})
        replayed, facts = self.ask("replay", trace), self.ask("whatif", trace)
        times = replayed["measured"]["per_iteration_ms"]
        self.assertAlmostEqual(facts["baseline"]["p50_ms"], statistics.median(times), places=4)
        self.assertAlmostEqual(facts["baseline"]["p95_ms"], max(times), places=4)  # of twelve
        self.assertEqual(facts["predicted"]["p50_ms"], facts["baseline"]["p50_ms"])
        changed = self.ask("whatif", trace, "--delay", "BW=2")
        self.assertGreater(changed["predicted"]["p95_ms"], changed["baseline"]["p95_ms"])

    def test_what_holds_an_iteration_up_is_not_changed_with_the_others(self):
        """A GPU twice as fast; the truth is that job, made anew."""
        for name, slow, moves in (("loader", {3: 300, 7: 300, 11: 300}, False), ("compiles", {5: 900, 8: 900}, False),
                                  ("collects", dict.fromkeys(range(20), 20), True), ("pauses", dict.fromkeys(range(20), 90), True)):
            with self.subTest(name):
                trace = self.slowed(name, slow, moves=moves)
                truth = self.ask("replay", self.slowed(f"{name}-fast", slow, kernel_us=500.0, moves=moves))["measured"]["per_iteration_ms"]
                found = self.ask("whatif", trace, "--compute", "2x")["predicted"]
                self.assertAlmostEqual(found["p50_ms"], statistics.median(truth), delta=1)
                self.assertAlmostEqual(found["p95_ms"], max(truth), delta=1)
                self.assertAlmostEqual(found["iteration_ms"], statistics.mean(truth), delta=1)

    def test_pauses_in_most_iterations_are_no_noise_of_the_machine(self):
        """How unsure their mean is, iterations drawn anew tell."""
        for name, slow in (("alike", dict.fromkeys(range(20), 150)), ("growing", {number: 25 * number for number in range(20)})):
            trace = self.slowed(name, slow, moves=True)  # in two of three
            facts = self.ask("replay", trace)
            times = facts["measured"]["per_iteration_ms"]
            drawn = [statistics.mean(random.Random(i).choices(times, k=len(times))) for i in range(1000)]
            self.assertAlmostEqual(self.half_pct(facts), 196 * statistics.stdev(drawn) / statistics.mean(times), delta=8)
            self.assertIn("because ranks pause in 8 of 12 iterations", facts["verdict"][0]["text"])

    def test_pauses_that_move_from_rank_to_rank_are_told_and_stay(self):
        """Whatever else changes; which of them meet is no surer than usual."""
        often = dict.fromkeys(range(20), 90)
        trace, plain = self.slowed("moves", often, moves=True), self.slowed("plain", {})
        times, usual = (self.ask("replay", of)["measured"]["per_iteration_ms"] for of in (trace, plain))
        paused_ms = statistics.mean(times) - statistics.mean(usual)
        for change in (["--bandwidth", "0.5x"], ["--bucket-cap-mb", "1"]):
            with self.subTest(change=change):
                found, without = self.ask("whatif", trace, *change), self.ask("whatif", plain, *change)
                for of in ("baseline", "predicted"):
                    for key, more_ms in (("iteration_ms", paused_ms), ("p50_ms", statistics.median(times) - statistics.median(usual)),
                                         ("p95_ms", max(times) - max(usual))):
                        self.assertAlmostEqual(found[of][key] - without[of][key], more_ms, delta=1)
                said = re.search(r"pauses of ranks are (\S+) ms of an iteration of", " ".join(found["warnings"]))
                self.assertAlmostEqual(float(said.group(1)), paused_ms, delta=1)
                self.assertGreaterEqual(found["predicted"]["uncertainty_pct"], found["baseline"]["uncertainty_pct"])
                self.assertNotIn("pauses of ranks", " ".join(without["warnings"]))
        found = self.ask("whatif", trace, "--compute", "gpu=2x")  # what makes its time unsure makes its gain unsure
        part = found["uncertainty"]["extrapolation"]
        self.assertGreater(part["predicted_pct"], 10)
        self.assertGreater(100 * part["speedup"] / found["speedup"], 0.95 * part["predicted_pct"])
        self.assertIn("pauses of ranks are", " ".join(self.ask("optimize", trace)["warnings"]))
        more = self.ask("whatif", trace, "--world-size", "8")["predicted"]  # which pause as often: some rank always does
        self.assertGreater(more["p50_ms"], max(usual) + paused_ms)
        self.ask("whatif", self.slowed("together", often))

    def test_slow_iterations_stay_as_slow_with_other_links_and_ranks(self):
        usual = self.slowed("usual", {})
        for name, slow in (("loads", {3: 300, 7: 300, 11: 300}), ("compiles-twice", {5: 900, 8: 900})):
            trace = self.slowed(name, slow)
            more_ms = self.ask("whatif", trace)["baseline"]["p95_ms"] - self.ask("whatif", usual)["baseline"]["p95_ms"]
            for change in (["--bandwidth", "0.5x"], ["--bandwidth", "4x"], ["--world-size", "8"], ["--dp", "16"]):
                with self.subTest(name, change=change):
                    found, without = (self.ask("whatif", of, *change)["predicted"] for of in (trace, usual))
                    self.assertAlmostEqual(found["p50_ms"], without["p50_ms"], delta=0.03 * without["p50_ms"])
                    self.assertAlmostEqual(found["p95_ms"], without["p95_ms"] + more_ms, delta=0.03 * without["p50_ms"])

    def test_percentiles_of_the_job_as_it_ran_are_the_same_whatever_is_asked(self):
        for trace, *questions in ((self.slowed("any", {5: 50, 8: 300}), ["--world-size", "16"], ["--compute", "2x"]),
                                  (os.path.join(DATA, "torch-tp-gloo-n2"), ["--tp", "4"], ["--tp", "1"])):
            as_it_ran = self.ask("whatif", trace)["baseline"]
            for asked in questions:
                with self.subTest(trace=trace, asked=asked):
                    baseline = self.ask("whatif", trace, *asked)["baseline"]
                    self.assertEqual([baseline[k] for k in ("p50_ms", "p95_ms")], [as_it_ran[k] for k in ("p50_ms", "p95_ms")])

    def test_what_tracing_a_session_costs_is_taken_out_of_all_times(self):
        """Nothing tells which ops of RunMetadata it lies in: the steps without it are one number for all."""
        for name in ("tf-session-collectives-n2", "tf-session-collectives-net-n2"):
            trace = os.path.join(DATA, name)
            facts, kept = self.ask("replay", trace), self.ask("replay", trace, "--keep-profiler")
            ratio = facts["predicted"]["iteration_ms"] / kept["predicted"]["iteration_ms"]
            job_ms = facts["job"]["iteration_ms"]
            self.assertAlmostEqual(facts["predicted"]["iteration_ms"], job_ms, delta=0.03 * job_ms)
            self.assertGreater(kept["predicted"]["iteration_ms"], 1.08 * job_ms)
            for rank, with_tracing in zip(facts["ranks"], kept["ranks"]):
                self.assertAlmostEqual(rank["backward_ms"], ratio * with_tracing["backward_ms"], delta=0.01 * rank["backward_ms"])
            self.assertEqual(facts["validation"], kept["validation"])
            said = " ".join(dpro("replay", trace).out.split())
            self.assertRegex(said, r"tracing made iterations \S+ ms longer: all times are scaled to the 20 steps without it")
            self.assertNotIn("contradicts", said)

    def test_a_delay_is_told_of_the_job_without_dpro(self):
        trace = os.path.join(DATA, "torch-ddp-gloo-gpt-n2-default")
        as_it_is, slower = self.ask("replay", trace), self.ask("replay", trace, "--delay", "BW=1.5")
        self.assertEqual(slower["job"], as_it_is["job"])
        ratio = slower["predicted"]["iteration_ms"] / as_it_is["predicted"]["iteration_ms"]
        self.assertAlmostEqual(slower["predicted"]["changed_ms"], ratio * slower["job"]["iteration_ms"], places=3)
        said = " ".join(dpro("replay", trace, "--delay", "BW=1.5").out.split())
        self.assertRegex(said, r"^What if \S+ ms with the change, 294.2 ms without: ")
