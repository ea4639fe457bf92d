"""What happens in some iterations only: ranks that are late, iterations that are slow, memory that grows. Jobs on GPUs whose
truth is known, from gpu_job.py."""
import gpu_job
from gpu_job import Job
from support import Case, dpro

KERNELS, KERNEL_US, PAUSE_US = 30, 1000.0, 40_000.0  # a step of 30 ms on the GPU, and what a late rank pauses


def verdict(facts, title):
    return next(line["text"] for line in facts["verdict"] if line["title"] == title)


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
        for late, often in (([2] * 10, ""), ([2, 2, None, 2, None, 2, 2, None, 2, None], ", late in 6 of 10 iterations")):
            facts = self.replay(late, f"late-{late.count(2)}")
            self.assertEqual(facts["lateness"]["straggler"], 2)
            self.assertIn("straggler: rank 2" + often, verdict(facts, "Communication"))
            self.assertIn("mostly for it", verdict(facts, "Next step"))
            self.assertIsNone(facts["lateness"]["lost_ms"])

    def test_a_late_rank_that_changes_is_no_straggler(self):
        for late, ranks in (([1, 0, 2, 0, 3, 3, 3, 3, 1, 0, 3, 0], "rank 3 5x, rank 0 4x, rank 1 2x, rank 2 1x"),
                            ([1, 3] * 5, "rank 1 5x, rank 3 5x"),
                            ([0, None, None, 0, None, None], "rank 0 2x")):
            facts = self.replay(late, f"changes-{len(set(late))}")
            self.assertIsNone(facts["lateness"]["straggler"])
            self.assertIn("; no constant straggler: " + ranks, verdict(facts, "Communication"))
            step = verdict(facts, "Next step")
            self.assertIn(ranks, step)
            self.assertIn(f"in {len(late)} iterations, which costs ", step)
            self.assertNotIn("mostly", step)
            paused = (len(late) - late.count(None)) / len(late)
            healthy, _ = gpu_job.write(self, Job(kernels=KERNELS, kernel_us=KERNEL_US, world=4, buckets=2, sync="end"),
                                       steps=len(late), folder="healthy")
            healthy_ms = self.assert_replays(healthy)["measured"]["iteration_ms"]
            lost_ms = facts["measured"]["iteration_ms"] - healthy_ms
            self.assertGreater(lost_ms, 15 * paused)
            self.assertAlmostEqual(facts["lateness"]["lost_ms"], lost_ms, delta=0.05 * lost_ms)

    def test_the_first_iteration_waits_as_long_as_it_did(self):
        """Its late rank pauses after nothing that the recording lacks."""
        facts = self.replay([1, 0, 2, 0, 3, 3, 3, 3], "first")
        self.assertAlmostEqual(facts["error_pct"], 0, delta=0.1)
