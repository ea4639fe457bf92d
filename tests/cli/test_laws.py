"""The laws that blames keep, whatever the job: they add up, what takes nothing has none, more of a fault has no less, and equal
ranks, by whatever numbers, have equal ones."""
import glob
import gzip
import json
import os
import random
from decimal import Decimal

import gpu_job
from stage_job import StageJob
from support import DONE, INPUT, ROOT, SHARED, Case, dpro
from test_causes import LOADER, job, mallocs, pause
from test_stages import uneven

STEPS = 6
OF_FAULTS = ("allocator", "recompilation", "garbage_collection", "slow_link", "recomputation", "uneven_stages", "start_apart")
GROWING = (  # a cause, and more and more of it
    ("slow_rank", [{"factor": lambda rank, op, by=by: by if rank.rank == 2 else 1} for by in (1, 1.1, 1.3, 2)]),
    ("input", [{"sync": "end", "before_forward": pause(us, LOADER, lambda rank, number: rank == 1)} for us in (10, 4000, 8000, 30_000)]),
    ("communication", [{"transfer_us": us} for us in (200, 1000, 3000, 9000)]),
    ("allocator", [{"sync": "loss", "within": lambda rank, number, n=n: [rank.call("cudaMalloc", 800.0) for _ in range(n)]}
                   for n in (0, 5, 10, 40)]),
)


def traces():
    """All that there are."""
    for folder in (os.path.join(ROOT, "tests", "data"), os.path.join(ROOT, "tests", "captures"), SHARED,
                   os.path.join(SHARED, "stragglers"), os.path.join(SHARED, "..", "cases")):
        yield from sorted(glob.glob(os.path.join(folder, "*/")) + glob.glob(os.path.join(folder, "*.json*")))


def blames(facts):
    return {cause["cause"]: cause["blame_ms"] for cause in facts["causes"] + facts["abstained"]}


class Laws(Case):
    def put(self, **changed):
        return gpu_job.write(self, job(**changed), steps=STEPS, folder=f"job{random.random()}")[0]

    def diagnosed(self, **changed):
        return self.assert_json("diagnose", self.put(**changed))

    def assert_adds_up(self, facts):
        def sums(values):
            return sum(Decimal(str(value)) for value in values)
        self.assertEqual(sums([facts["ideal_ms"]] + [cause["blame_ms"] for cause in facts["causes"]]), Decimal(str(facts["iteration_ms"])))
        for cause in facts["causes"]:
            if cause["parts"]:
                self.assertEqual(sums(part["blame_ms"] for part in cause["parts"]), Decimal(str(cause["blame_ms"])), cause["cause"])
        small = sums(cause["blame_ms"] for cause in facts["causes"] if cause["cause"] == "small_or_unsure")
        self.assertEqual(sums(cause["blame_ms"] for cause in facts["abstained"]), small)

    def test_blames_add_up_to_the_nanosecond_on_all_traces(self):
        told = 0
        for trace in traces():
            with self.subTest(trace=trace):
                done = dpro("diagnose", trace, "--json")
                self.assertIn(done.code, (DONE, INPUT))
                if done.code == DONE:
                    self.assert_adds_up(done.json)
                    told += 1
        self.assertGreaterEqual(told, 20)

    def test_what_takes_nothing_is_not_blamed(self):
        for changed in ({}, {"jitter": 0.0}, {"world": 1, "buckets": 0}, {"units": 4}, {"sync": "end", "cpu_us": 80.0}):
            with self.subTest(**changed):
                facts = self.diagnosed(**changed)
                self.assert_adds_up(facts)
                for cause in OF_FAULTS:
                    self.assertEqual(blames(facts).get(cause, 0), 0, cause)

    def test_more_of_a_fault_is_blamed_no_less(self):
        for cause, faults in GROWING:
            with self.subTest(cause):
                found = [blames(self.diagnosed(jitter=0.0, **fault)).get(cause, 0) for fault in faults]
                self.assertEqual(found, sorted(found))
                self.assertGreater(found[-1], found[0] + 2)

    def test_more_of_a_slow_worker_of_a_timeline_is_blamed_no_less(self):
        found = []
        for by in (1, 1.2, 1.6, 3):
            folder = self.write(f"{by}.csv", StageJob(dp=4, stages=2, times=uneven(3, by=by)).csv())
            facts = self.assert_json("diagnose", folder)
            self.assert_adds_up(facts)
            found.append(blames(facts).get("slow_rank", 0))
        self.assertEqual(found, sorted(found))

    def test_equal_ranks_are_blamed_alike(self):
        for changed in ({"factor": lambda rank, op: 1.3 if rank.rank in (1, 3) else 1},
                        {"sync": "end", "before_forward": pause(9000.0, LOADER, lambda rank, number: rank in (0, 3))},
                        {"sync": "loss", "within": mallocs}):
            facts = self.diagnosed(jitter=0.0, **changed)
            first = facts["causes"][0]
            with self.subTest(first["cause"]):
                self.assert_adds_up(facts)
                self.assertIn(first["ranks"], ([1, 3], [0, 3], [0, 1, 2, 3]))
                if first["cause"] == "slow_rank":
                    one, other = (part["blame_ms"] for part in first["parts"])
                    self.assertAlmostEqual(one, other, delta=0.01 * one)

    def test_other_numbers_of_ranks_change_nothing_else(self):
        other = [2, 0, 3, 1]
        for changed in ({"factor": lambda rank, op: 1.3 if rank.rank == 2 else 1},
                        {"sync": "end", "before_forward": pause(9000.0, LOADER, lambda rank, number: rank == 1)}, {}):
            with self.subTest(**changed):
                folder, moved = self.put(**changed), f"moved{random.random()}"
                facts = self.assert_json("diagnose", folder)
                for path in glob.glob(os.path.join(folder, "*.gz")):
                    with gzip.open(path, "rt", encoding="utf-8") as file:
                        trace = json.load(file)
                    info = trace["distributedInfo"]
                    info["rank"] = other[info["rank"]]
                    self.write(f"{moved}/rank{info['rank']}.json", trace)
                found = self.assert_json("diagnose", self.path(moved))
                for key in ("iteration_ms", "ideal_ms"):
                    self.assertAlmostEqual(found[key], facts[key], delta=1e-3 * facts["iteration_ms"])
                for cause in facts["causes"]:
                    same = next(c for c in found["causes"] if c["cause"] == cause["cause"])
                    self.assertAlmostEqual(same["blame_ms"], cause["blame_ms"], delta=2e-3 * facts["iteration_ms"])
                    self.assertEqual(same["ranks"], sorted(other[rank] for rank in cause["ranks"]), cause["cause"])
