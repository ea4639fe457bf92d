"""dpro whatif: what holds of its answers for jobs of every kind, whatever the numbers are."""
import functools
import os

from support import BUNDLED, DONE, Case, dpro

JOBS = ("torch-pp-gloo-n2", "torch-ep-gloo-n2", "torch-fsdp-tp-gloo-n4", "torch-tp-gloo-n2",
        "torch-fsdp-gloo-n2-memory", "torch-ddp-gloo-gpt-n2-memory", "tf-ps-n2", "hvd-mx-n2")
CHANGES_NOTHING = ("--bandwidth 1x", "--latency +0us", "--compute 1x", "--delay ALL=1", "--delay FW=+0", "--batch-size 1x",
                   "--accumulate 1", "--recompute none", "--compress none", "--tp 2")
# from the shortest iteration to the longest
LONGER = (("--bandwidth 100x", "--bandwidth 2x", "", "--bandwidth 0.9x", "--bandwidth 0.25x"),
          ("--latency 0x", "", "--latency +100us", "--latency +10ms"),
          ("--compute 4x", "--compute 4x@1", "", "--compute 0.9x@1", "--compute 0.5x@1", "--compute 0.5x"),
          ("--delay BW=0.5", "", "--delay BW=1.1", "--delay BW=2"),
          ("", "--delay FW@0=+1", "--delay FW@0=+4", "--delay FW@0=+16"),
          ("", "--delay BW@1=+1", "--delay BW@1=+4", "--delay BW@1=+16"))
TOLERANCE = 1e-3  # of an iteration: ends of iterations that swing


@functools.cache
def ask(job, asked):
    """None: that can't be asked of the job."""
    result = dpro("whatif", "--json", os.path.join(os.path.dirname(BUNDLED), job), *asked.split())
    return result.json if result.code == DONE else None


class Properties(Case):
    def test_what_changes_nothing_changes_no_number(self):
        for job in JOBS:
            own = ask(job, "")
            self.assertEqual(own["baseline"]["uncertainty_pct"], own["predicted"]["uncertainty_pct"])
            self.assertEqual(own["baseline"]["iteration_ms"], own["predicted"]["iteration_ms"])
            for asked in CHANGES_NOTHING:
                facts = ask(job, asked)
                with self.subTest(job=job, asked=asked):
                    for key in ("baseline", "predicted", "memory", "speedup") if facts else ():
                        self.assertEqual(facts.get(key), own.get(key))

    def test_a_ratio_of_1_changes_no_recorded_job(self):
        """Of all bundled recordings; where one is refused, nothing is promised."""
        for job in sorted(os.listdir(os.path.dirname(BUNDLED))):
            for asked in ("--compute 1x", "--bandwidth 1x", "--latency 1x", "--delay BW=1", "--delay ALL=1 --delay FW=+0"):
                facts = ask(job, asked)
                with self.subTest(job=job, asked=asked):
                    for key in ("iteration_ms", "p50_ms", "p95_ms", "uncertainty_pct") if facts else ():
                        self.assertEqual(facts["baseline"][key], facts["predicted"][key])

    def test_what_changes_nothing_changes_nothing_beside_another_change(self):
        for job in (*JOBS, "torch-nccl-conv-h200-memory"):
            for change, nothing in (("--delay BW=2", "--bandwidth 1x"), ("--delay BW=2", "--batch-size 1x"),
                                    ("--accumulate 2", "--precision fp32")):
                alone, facts = ask(job, change), ask(job, change + " " + nothing)
                with self.subTest(job=job, change=change, nothing=nothing):
                    for key in ("iteration_ms", "p50_ms", "p95_ms", "uncertainty_pct") if facts else ():
                        self.assertEqual(facts["predicted"][key], alone["predicted"][key])

    def test_a_speed_counts_beside_a_delay(self):
        for job in JOBS:
            delayed, faster = (ask(job, "--delay BW=2" + more)["speedup"] for more in ("", " --compute 2x"))
            with self.subTest(job=job):
                self.assertGreater(faster, 1.02 * delayed)

    def test_buckets_as_they_are_change_nothing_beside_other_servers(self):
        for job in ("tf-ps-n2", "byteps-torch-n2"):
            more = ask(job, "--servers 4")["predicted"]
            own = self.write(job, [bucket["parameters"] for bucket in more["communication"]["buckets"]])
            self.assertEqual(ask(job, "--servers 4 --buckets " + own)["predicted"]["iteration_ms"], more["iteration_ms"])

    def test_slower_links_hosts_and_ops_never_make_an_iteration_shorter(self):
        for job in JOBS:
            for chain in LONGER:
                answers = [(asked, facts["predicted"]["iteration_ms"]) for asked in chain if (facts := ask(job, asked))]
                self.assertGreater(len(answers), 1)
                for (shorter, less), (longer, more) in zip(answers, answers[1:]):
                    with self.subTest(job=job, shorter=shorter, longer=longer):
                        self.assertGreater(more, (1 - TOLERANCE) * less)

    def test_more_of_a_delay_never_makes_an_iteration_shorter_beside_other_changes(self):
        for job, kind, beside in (("byteps-torch-n2", "COLLECTIVE", "--batch-size 2x"), ("hvd-mx-n2", "COLLECTIVE", "--bandwidth 10x"),
                                  ("torch-ddp-gloo-lstm-n2-2gbit", "SEND", "--bandwidth 10x")):
            answers = [ask(job, f"{beside} --delay {kind}={by}")["predicted"]["iteration_ms"] for by in (0.5, 1, 1.1, 2, 4)]
            for less, more in zip(answers, answers[1:]):
                with self.subTest(job=job, answers=answers):
                    self.assertGreater(more, (1 - TOLERANCE) * less)

    def test_threads_that_launch_twice_as_fast_save_no_more_where_the_gpu_has_more_to_do(self):
        own, faster, larger, both = (ask("torch-nccl-conv-h200-memory", asked)["predicted"]["iteration_ms"] for asked in
                                     ("", "--compute cpu=2x", "--batch-size 2x", "--batch-size 2x --compute cpu=2x"))
        self.assertLess(larger - both, 1.01 * (own - faster))

    def test_an_interval_holds_the_iteration_and_is_no_narrower_for_a_change(self):
        for job in JOBS:
            own = ask(job, "")["predicted"]["uncertainty_pct"]
            for asked in ("--bandwidth 0.25x", "--compute 2x", "--bandwidth 4x --compute 0.5x", "--delay BW=2"):
                facts = ask(job, asked)
                with self.subTest(job=job, asked=asked):
                    self.assertGreaterEqual(facts["predicted"]["uncertainty_pct"], 0.99 * own)
                    parts = sum(part["predicted_pct"]**2 for part in facts["uncertainty"].values())
                    self.assertAlmostEqual(parts**0.5, facts["predicted"]["uncertainty_pct"], delta=0.01)
                    ratio = facts["baseline"]["iteration_ms"] / facts["predicted"]["iteration_ms"]
                    self.assertAlmostEqual(facts["speedup"], ratio, delta=1e-4)
