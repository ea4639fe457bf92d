"""Jobs drawn at random whose truth is known: dpro must find it in whatever is left of a recording, and what it says of a change
is what the job with that change takes. support.job() simulates and writes them."""
import random

from support import Case, job

SEEDS = range(16)


def draw(seed):
    """Options of job()."""
    rng = random.Random(seed)
    world, layers = rng.randint(2, 4), rng.randint(2, 5)
    slow = (rng.randrange(world), rng.randint(5, 30) * 1000) if rng.random() < 0.7 else None
    return {"world": world, "layers": layers, "forward_us": rng.randint(4, 20) * 1000, "backward_us": rng.randint(8, 40) * 1000,
            "transfer_us": [rng.randint(1, 40) * 1000 for _ in range(layers)], "slow": slow, "iterations": rng.randint(3, 6)}


def starts(trace):
    return [event["ts"] for event in trace["traceEvents"] if event["name"].startswith("ProfilerStep#")]


def period_ms(options):
    begins = starts(job(**options)[0])
    return (begins[-1] - begins[0]) / (len(begins) - 1) / 1000


class RandomJobs(Case):
    def put(self, name, traces, change=lambda rank, trace: None):
        for rank, trace in enumerate(traces):
            change(rank, trace)
            self.write(f"{name}/rank{rank}.json", trace)
        return self.path(name)

    def assert_near(self, found, truth, ratio=0.01):
        self.assertAlmostEqual(found, truth, delta=ratio * truth)

    def test_its_iteration_and_what_ranks_spend_it_on_are_found(self):
        for seed in SEEDS:
            options = draw(seed)
            with self.subTest(**options):
                facts = self.assert_replays(self.put(f"job{seed}", job(**options)))
                period, layers = period_ms(options), options["layers"]
                for ms in (facts["measured"]["iteration_ms"], facts["predicted"]["iteration_ms"]):
                    self.assert_near(ms, period)
                late_rank, late_us = options["slow"] or (None, 0)
                for rank in facts["ranks"]:
                    late = late_us if rank["rank"] == late_rank else 0
                    self.assert_near(rank["forward_ms"], (layers * options["forward_us"] + late) / 1000)
                    self.assert_near(rank["backward_ms"], layers * options["backward_us"] / 1000, 0.03)
                    self.assertLess(rank["wait_for_peers_ms"], 0.5 + (late_us - late) / 1000)
                one, = facts["collectives"]
                self.assertEqual((one["kind"], one["count"], one["ranks"], one["bytes"]),
                                 ("all_reduce", layers, options["world"], layers * 4000))

    def test_so_it_is_without_marks_of_steps_with_the_recorders_facts_and_with_other_clocks(self):
        for seed in SEEDS:
            options, rng = draw(seed), random.Random(seed)
            offsets = [0] + [rng.randint(-20, 20) * 1000 for _ in range(options["world"] - 1)]

            def unmark(_, trace):
                trace["traceEvents"] = [event for event in trace["traceEvents"] if not event["name"].startswith("ProfilerStep#")]

            def shift(rank, trace):
                trace["host_name"] = f"node{rank}"
                for event in trace["traceEvents"]:
                    event["ts"] += offsets[rank]

            with self.subTest(**options):
                period = period_ms(options)
                facts = self.assert_replays(self.put(f"unmarked{seed}", job(**options), unmark))
                self.assertEqual((facts["steps"]["found_by"], facts["trace"]["iterations"]), ("optimizer", options["iterations"]))
                self.assert_near(facts["predicted"]["iteration_ms"], period)
                facts = self.assert_replays(self.write_recording(f"recording{seed}", **options))
                self.assert_near(facts["predicted"]["iteration_ms"], period)
                shifted = self.put(f"shifted{seed}", job(**options), shift)
                self.assert_near(self.assert_replays(shifted)["predicted"]["iteration_ms"], period)
                hosts = self.assert_json("align", shifted)["hosts"]
                self.assertEqual([host["method"] for host in hosts], ["reference"] + (options["world"] - 1) * ["collectives"])
                for host in hosts:
                    for segment in host["segments"]:
                        found = segment["offset_ns"] / 1000
                        self.assertLess(abs(found + offsets[host["ranks"][0]]), segment["uncertainty_ns"] / 1000 + 1)

    def test_what_a_change_makes_of_it_is_what_the_changed_job_takes(self):
        changes = {"FW=2": lambda o: {"forward_us": 2 * o["forward_us"], "slow": o["slow"] and (o["slow"][0], 2 * o["slow"][1])},
                   "BW=0.5": lambda o: {"backward_us": o["backward_us"] // 2},
                   "COLLECTIVE=3": lambda o: {"transfer_us": [3 * us for us in o["transfer_us"]]}}
        for seed in SEEDS:
            options = draw(seed)
            folder = self.put(f"job{seed}", job(**options))
            for delay, change in changes.items():
                with self.subTest(delay=delay, **options):
                    facts = self.assert_json("replay", "--delay", delay, "--no-validate", folder)
                    self.assert_near(facts["predicted"]["iteration_ms"], period_ms({**options, **change(options)}), 0.02)

    def test_so_it_is_of_links_in_95_of_100_intervals(self):
        inside = []
        for seed in SEEDS:
            options = draw(seed)
            folder = self.write_recording(f"job{seed}", **options)
            for ratio in (0.5, 0.8, 2):
                predicted = self.assert_json("whatif", "--bandwidth", f"{ratio}x", folder)["predicted"]
                truth = period_ms({**options, "transfer_us": [us / ratio for us in options["transfer_us"]]})
                inside.append(abs(truth / predicted["iteration_ms"] - 1) * 100 <= predicted["uncertainty_pct"])
        self.assertGreaterEqual(sum(inside), 0.95 * len(inside))
