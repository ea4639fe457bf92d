"""What the transport logs show of iterations that no profile has, and so of the profiler's cost."""
import os

from support import CAPTURED, DONE, ROOT, Case, dpro, job, recording

EPOCH_NS = 1_700_000_000_000_000_000
CALLS, BYTES = 4, 50_000  # an iteration's
HEADER = "t_start_ns,t_end_ns,tid,conn,local,remote,dir,call,offset,requested,returned\n"


def iteration(start_ns, offset, n_bytes=BYTES, lost=None):
    """Sends in the midst of an iteration, all but a lost one."""
    lines = []
    for call in range(CALLS):
        if call == lost:
            continue
        at = start_ns + 40_000_000 + 2_000_000 * call
        lines.append(f"{at},{at + 1_900_000},1,0,10.0.0.1:4000,10.0.0.2:5000,tx,send,{offset + call * n_bytes},{n_bytes},{n_bytes}\n")
    return "".join(lines)


class UnprofiledIterations(Case):
    def setUp(self):
        super().setUp()
        self.traces = job(iterations=6)
        for rank, trace in enumerate(self.traces):
            self.write(f"trace/rank{rank}.json", trace)
        self.starts_ns = [EPOCH_NS + round(1000 * event["ts"]) for event in self.traces[0]["traceEvents"]
                          if event["name"].startswith("ProfilerStep#")]
        self.period_ns = (self.starts_ns[-1] - self.starts_ns[0]) / (len(self.starts_ns) - 1)

    def log(self, times_ns, paused=0, sizes=(BYTES,), late=(), lost=()):
        """Iterations that took these times end when the profile begins; `paused` others went by unrecorded. Of the profile's
        the `late` ones send when the next has begun. In the `lost` ones the log has no third send."""
        starts, at = [], self.starts_ns[0] - 500_000_000
        for took in reversed(times_ns):
            at -= round(took)
            starts.insert(0, at)
        lines, offset = [HEADER], 0
        for k, start in enumerate(starts):
            lines.append(iteration(start, offset, sizes[k % len(sizes)], 2 if k in lost else None))
            offset += CALLS * sizes[k % len(sizes)]
        offset += paused * CALLS * sizes[0]
        for k, start in enumerate(self.starts_ns):
            put_off = round(self.period_ns) - 39_000_000 if k in late else 0
            lines.append(iteration(start + put_off, offset, sizes[k % len(sizes)]))
            offset += CALLS * sizes[k % len(sizes)]
        self.write("trace/net_rank0.csv", "".join(lines))

    def facts(self):
        return self.assert_replays(self.path("trace"))

    def assert_silent(self, facts):
        self.assertEqual(facts["unprofiled_iterations"], {"iterations": 0, "iteration_ms": None, "std_ms": None, "asking_ms": None,
                                            "profiler_ms": None, "standard_error_ms": None, "predicted_ms": None})

    def wobbling(self, share, n=12):
        return [self.period_ns * share * (1 + (-1) ** k * 0.01) for k in range(n)]

    def test_iterations_before_the_profile_tell_what_it_cost(self):
        self.log([5 * self.period_ns, *self.wobbling(0.9)], paused=53)
        facts = self.facts()
        wire, predicted = facts["unprofiled_iterations"], facts["predicted"]["iteration_ms"]
        self.assertEqual(wire["iterations"], 10)  # ends of the stretch are not sure to be whole
        self.assertAlmostEqual(wire["iteration_ms"], 0.9 * self.period_ns / 1e6, delta=0.2)
        self.assertAlmostEqual(wire["profiler_ms"], 0.1 * self.period_ns / 1e6, delta=0.3)
        self.assertAlmostEqual(wire["predicted_ms"], predicted * (1 - wire["profiler_ms"] / facts["measured"]["iteration_ms"]),
                               delta=0.001)
        said = dpro("replay", self.path("trace"))
        self.assert_code(said, DONE)
        self.assertRegex(said.out, r"Iteration +\S+ ms \+- \S+ % without dpro, by 10 iterations outside of the profile")
        self.assertEqual(facts["job"]["iteration_ms"], wire["predicted_ms"])
        self.assertEqual(facts["job"]["source"], "transport logs without the profiler")
        self.assertRegex(" ".join(said.out.split()), "by the transport logs: .* mean of 10 iterations outside of the profile")

    def test_what_may_be_chance_has_a_standard_error(self):
        self.log([self.period_ns * (0.95 + (-1) ** k * 0.2) for k in range(12)], paused=53)
        wire = self.facts()["unprofiled_iterations"]
        self.assertGreater(wire["iterations"], 5)
        self.assertGreater(wire["profiler_ms"], 0)
        self.assertAlmostEqual(wire["standard_error_ms"], wire["std_ms"] / wire["iterations"] ** 0.5, delta=0.2)
        said = " ".join(dpro("replay", self.path("trace")).out.split())
        self.assertRegex(said, r"so the profiler cost \S+ ms \(standard error \S+ ms\), and \S+ ms are expected without it")

    def test_a_profiler_makes_nothing_faster(self):
        self.log(self.wobbling(1.2))
        facts = self.facts()
        self.assertEqual(facts["unprofiled_iterations"]["profiler_ms"], 0)
        self.assertEqual(facts["unprofiled_iterations"]["predicted_ms"], facts["predicted"]["iteration_ms"])
        said = " ".join(dpro("replay", self.path("trace")).out.split())
        self.assertIn("no cost of the profiler shows", said)
        self.assertEqual(facts["job"]["iteration_ms"], facts["predicted"]["iteration_ms"])

    def test_what_an_iteration_sends_may_go_out_in_the_next(self):
        self.log(self.wobbling(0.9), late=(1, 4))
        wire = self.facts()["unprofiled_iterations"]
        self.assertGreaterEqual(wire["iterations"], 9)
        self.assertAlmostEqual(wire["iteration_ms"], 0.9 * self.period_ns / 1e6, delta=0.2)

    def test_what_most_send_twice_is_no_iteration(self):
        self.log(self.wobbling(0.9), late=(0, 2, 4))
        self.assert_silent(self.facts())

    def test_pauses_are_no_iterations(self):
        times = self.wobbling(0.9)
        times[5] *= 20
        self.log(times)
        wire = self.facts()["unprofiled_iterations"]
        self.assertAlmostEqual(wire["iteration_ms"], 0.9 * self.period_ns / 1e6, delta=0.3)

    def test_a_moment_that_the_log_lost_is_of_no_iteration(self):
        n = []
        for lost in (), (6,):
            self.log([5 * self.period_ns, *self.wobbling(0.9)], paused=53, lost=lost)
            n.append(self.facts()["unprofiled_iterations"]["iterations"])
        self.assertEqual(n, [10, 6])  # an iteration counts between two others, whose ends are known, too

    def test_too_few_iterations_tell_nothing(self):
        self.log(self.wobbling(0.9, 6))
        self.assert_silent(self.facts())

    def test_a_log_of_the_profile_alone_tells_nothing(self):
        self.log([])
        self.assert_silent(self.facts())

    def test_iterations_of_different_sizes_tell_nothing(self):
        self.log(self.wobbling(0.9), sizes=(BYTES, 2 * BYTES, BYTES // 2, 3 * BYTES))
        self.assert_silent(self.facts())

    def test_steps_that_the_recorder_timed_tell_it_better(self):
        self.log(self.wobbling(0.9))
        step = {"start_ns": self.starts_ns[0] - 900_000_000, "end_ns": self.starts_ns[0] - 800_000_000}
        for rank, trace in enumerate(self.traces):
            os.remove(self.path("trace", f"rank{rank}.json"))
            self.write(f"trace/host0/rank{rank}/kineto.json", trace)
            self.write(f"trace/host0/rank{rank}/rank.json",
                       recording(rank, steps={"boundary": "optimizer", "warmup": 10, "timing": [], "structure": [],
                                              "before": [step], "after": []}))
        os.rename(self.path("trace", "net_rank0.csv"), self.path("trace", "host0", "rank0", "net.csv"))
        self.assert_silent(self.facts())

    def test_offsets_that_no_job_reaches(self):
        self.log(self.wobbling(0.9))
        with open(self.path("trace", "net_rank0.csv"), "a", encoding="utf-8") as file:
            at = self.starts_ns[0] - 10**9
            file.write(f"{at},{at + 1000},1,0,10.0.0.1:4000,10.0.0.2:5000,tx,send,{2**63 - 10},5,5\n")
            file.write(f"{at},{at + 1000},1,0,10.0.0.1:4000,10.0.0.2:5000,tx,send,{2**63 - 1},4294967295,4294967295\n")
        self.facts()

    def test_a_sessions_master_asks_for_logs(self):
        wire = self.assert_replays(os.path.join(CAPTURED, "tf-ps-v1"))["unprofiled_iterations"]
        self.assertGreater(wire["asking_ms"], 0.5)
        self.assertLess(wire["asking_ms"], 2)
        self.assertGreaterEqual(wire["profiler_ms"], wire["asking_ms"])

    def test_what_asking_takes_is_that_of_the_steps_that_were_chosen(self):
        trace = os.path.join(CAPTURED, "tf-ps-v1")
        whole = self.assert_replays(trace)["unprofiled_iterations"]["asking_ms"]
        pairs = [self.assert_replays(trace, "--steps", f"{k}:{k + 1}")["unprofiled_iterations"]
                 ["asking_ms"] for k in (2, 3, 4)]
        self.assertEqual(len(set(pairs)), len(pairs))  # each pair of steps its own
        self.assertLess(max(abs(pair - whole) for pair in pairs), 0.5)

    def test_xplane_asks_for_nothing(self):
        self.assertIsNone(self.assert_replays(os.path.join(ROOT, "tests", "data", "tf-ps-n2"))["unprofiled_iterations"]["asking_ms"])
