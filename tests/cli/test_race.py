"""The race of `dpro tune`: simulated jobs of which it is known what is fastest."""
import math
import os
import random
import statistics
import sys
import unittest
import unittest.mock

from support import ROOT

sys.path.insert(0, os.path.join(ROOT, "python"))
from dpro import race  # noqa: E402

STEPS, SETTLE = 4, 2
SEEDS = 500 if os.environ.get("DPRO_LONG") else 150
EQUAL = {"base": 1, "a": 1, "b": 1, "c": 1}
ONE_BETTER = dict(EQUAL, b=0.95)


class Job:
    """Makes steps; `noise` says what becomes of one, of its number and a source of chance."""

    def __init__(self, noise, seed):
        self.noise, self.chance = noise, random.Random(seed)
        self.n = self.chance.randrange(100)
        self.walk = 0

    def step(self, time):
        self.n += 1
        return int(1e8 * time * self.noise(self))


def steady(job):
    return 1 + job.chance.gauss(0, 0.01)


def unsteady(job):
    return 1 + job.chance.gauss(0, 0.05)


def by_half(job):
    return job.chance.uniform(0.5, 1.5)


def drifts(job):
    job.walk += 0.0003 + job.chance.gauss(0, 0.002)
    return steady(job) * math.exp(job.walk)


def saves_checkpoints(job):
    return steady(job) * (10 if job.chance.random() < 0.03 else 1)


def evaluates(job):
    return steady(job) * (3 if job.n % 100 < 12 else 1)


def is_disturbed(job):
    """Now and then some fifteen steps take a third longer."""
    job.walk = 15 if job.walk <= 0 and job.chance.random() < 0.02 else job.walk - 1
    return 1 + job.chance.gauss(0, 0.03) + (0.3 if job.walk > 0 else 0)


def has_heavy_tails(job):
    return 1 + 0.01 * abs(job.chance.gauss(0, 1) / (abs(job.chance.gauss(0, 1)) + 1e-3))


def run(times, noise, seed=0, budget=600, **options):
    job, contest = Job(noise, seed), race.Race(list(times), "base", budget, STEPS, settle_steps=SETTLE, **options)
    for block in iter(contest.next_block, None):
        for name in block:
            for _ in range(SETTLE):
                job.step(times[name])
            contest.add(name, [job.step(times[name]) for _ in range(STEPS)])
    return contest.state()


def turn(contest, times):
    """One block, if there is one, of steps that all take what `times` says."""
    for name in contest.next_block() or ():
        if contest.is_in(name):
            contest.add(name, [times[name]] * STEPS)


class Races(unittest.TestCase):
    def races(self, times, noise, budget=600, seeds=SEEDS):
        """Winners by number of races; what a winner is that the truth does not have may be one in twenty."""
        won, steps, wrong, best = {}, [], 0, min(times.values())
        for seed in range(seeds):
            state = run(times, noise, seed, budget)
            winner = state["winner"]
            won[winner] = won.get(winner, 0) + 1
            wrong += winner != "base" and times[winner] >= times["base"]
            steps.append(state["steps"])
        found = sum(n for name, n in won.items() if times[name] < best + 0.0101)
        print("race of %d, steps %s: false winner %.1f %%, within 1 %% of the best %.1f %%, %d steps, at most %d" % (
            len(times), noise.__name__.replace("_", " "), 100 * wrong / seeds, 100 * found / seeds, statistics.median(steps), max(steps)))
        self.assertLessEqual(wrong, 0.05 * seeds)
        return {name: n / seeds for name, n in won.items()}, found / seeds, statistics.median(steps)

    def test_nothing_wins_where_all_are_equal(self):
        for noise in steady, unsteady, drifts, saves_checkpoints, is_disturbed, has_heavy_tails:
            self.races(EQUAL, noise)

    def test_nothing_wins_where_steps_vary_by_half(self):
        self.races(EQUAL, by_half)

    def test_one_that_is_faster_by_5_percent_wins(self):
        for noise in steady, drifts, saves_checkpoints, has_heavy_tails:
            won, _, steps = self.races(ONE_BETTER, noise)
            self.assertGreater(won["b"], 0.95)
            self.assertLess(steps, 300)

    def test_one_that_is_faster_wins_though_some_turns_are_disturbed(self):
        """With one value a block, of which most are disturbed, a third of these races were decided."""
        _, found, _ = self.races({"base": 1, "a": 0.94, "b": 0.95, "c": 1.05}, is_disturbed, 600, 40)
        self.assertGreater(found, 0.7)

    def test_what_costs_much_is_not_measured_until_that_is_sure(self):
        """Steps vary by a fifth: that it is hopeless is seen in three quarters of the steps that it takes to be sure; a winner is missed no
        more often."""
        noisy, steps, found = (lambda job: 1 + job.chance.gauss(0, 0.2)), {}, {}
        noisy.__name__ = "a fifth"
        for hopeless in race.HOPELESS, math.inf:
            with unittest.mock.patch.object(race, "HOPELESS", hopeless):
                _, _, steps[hopeless] = self.races({"base": 1, "a": 1.1, "b": 1.12}, noisy, 4000, SEEDS // 10)
                _, found[hopeless], _ = self.races({"base": 1, "a": 0.96, "b": 1}, noisy, 4000, SEEDS // 10)
        self.assertLess(steps[race.HOPELESS], 0.75 * steps[math.inf])
        self.assertGreater(found[race.HOPELESS], found[math.inf] - 0.1)

    def test_turns_grow_as_far_as_the_budget_goes(self):
        contest = race.Race(["base", "a", "b"], "base", 600, 10, settle_steps=2)
        self.assertEqual(contest.lengthen(8, 5), 10)
        self.assertEqual(contest.lengthen(15, 5), 15)
        self.assertEqual(contest.lengthen(1000, 5), 18)  # 600 = 5 blocks x 3 x 2 turns x (18 + 2)
        turn(contest, {"base": 1, "a": 1, "b": 1})
        self.assertEqual(len(contest.next_block()), 6)

    def test_evaluations_between_steps_only_take_time(self):
        won, _, _ = self.races(ONE_BETTER, evaluates, 1000)
        self.assertGreater(won["b"], 0.9)

    def test_a_baseline_that_is_best_stays(self):
        won, _, steps = self.races({"base": 1, "a": 1.02, "b": 1.03, "c": 1.08}, unsteady)
        self.assertGreater(won["base"], 0.99)
        self.assertLess(run({"base": 1, "a": 1.02, "b": 1.03, "c": 1.08}, steady)["steps"], 300)

    def test_of_twelve_one_within_a_percent_of_the_best_wins(self):
        times = {"base": 1, **{"f%d" % n: 0.94 + 0.01 * n for n in range(12)}}
        _, found, steps = self.races(times, steady, 1500, SEEDS // 5)
        self.assertGreater(found, 0.97)
        self.assertLess(steps, 700)

    def test_one_that_there_was_no_room_for_comes_in_where_the_others_win_nothing(self):
        won, found, _ = self.races({"base": 1, "a": 1.02, "b": 1.05, "c": 0.9, "d": 1, "e": 1}, steady, 240, 100)
        self.assertGreater(found, 0.9)

    def test_an_interval_holds_after_any_block(self):
        missed = 0
        for seed in range(SEEDS):
            job = Job(steady, seed)
            contest = race.Race(["a"], "base", 10 ** 6, STEPS)
            outside = False
            for _ in range(30):
                contest._turns = {name: [[job.step(time) for _ in range(STEPS)] for _ in range(2)]
                                  for name, time in (("base", 1), ("a", 0.99))}
                contest._decided = "goes on"
                contest._end_block()
                _, low, high = contest._interval("a", "base")
                outside |= not low <= math.log(0.99) <= high
            missed += outside
        print("interval of 30 looks misses the truth in %.1f %%" % (100 * missed / SEEDS))
        self.assertLessEqual(missed, 0.05 * SEEDS)

    def test_a_share_of_the_budget_leaves_the_better_half(self):
        state = run({"base": 1, "a": 0.98, "b": 0.96, "c": 0.97, "d": 0.99}, unsteady, 1, 400)
        kinds = [one["kind"] for one in state["names"].values()]
        self.assertIn("behind", kinds)
        self.assertLessEqual(state["steps"], 400)

    def test_what_a_small_budget_can_not_measure_is_left_out(self):
        state = run({"base": 1, **{"f%d" % n: 0.97 for n in range(12)}}, steady, 0, 200)
        self.assertEqual(state["names"]["f11"]["kind"], "untried")
        self.assertEqual(state["names"]["f11"]["why"], "the budget of 200 steps is too small to measure it")
        self.assertTrue(state["names"]["f0"]["blocks"] > 0)

    def test_the_state_says_what_is_saved_and_how_sure(self):
        state = run(ONE_BETTER, steady, 3)
        b = state["names"]["b"]
        self.assertTrue(b["low_pct"] <= 5 <= b["high_pct"], b)
        self.assertGreater(state["sure"], 0.95)
        self.assertEqual(state["why"], "b is faster")
        self.assertIn(state["names"]["a"]["why"], ("it can't save more than 1 %", "it is slower than b"))


class Turns(unittest.TestCase):
    TIMES = {"base": 100000, "a": 90000, "b": 80000}

    def start(self, **options):
        return race.Race(list(self.TIMES), "base", 1000, STEPS, **options)

    def test_a_block_is_mirrored(self):
        block = self.start().next_block()
        self.assertEqual(block, block[::-1])
        self.assertEqual(sorted(block[:3]), ["a", "b", "base"])

    def test_one_that_fails_is_out_and_the_others_go_on(self):
        contest = self.start()
        turn(contest, self.TIMES)
        for name in contest.next_block():
            if contest.is_in(name):
                contest.add(name, [self.TIMES[name]] * STEPS, failed="it ran out of memory" if name == "b" else None)
        for _ in range(3):
            turn(contest, self.TIMES)
        self.assertEqual(contest.state()["names"]["b"]["why"], "it ran out of memory")
        self.assertNotEqual(contest.state()["winner"], "b")

    def test_one_that_holds_too_much_is_out(self):
        contest = self.start(memory_bytes=2 << 30)
        for name in contest.next_block():
            if contest.is_in(name):
                contest.add(name, [self.TIMES[name]] * STEPS, peak_bytes=3 << 30 if name == "a" else 1 << 30)
        self.assertEqual(contest.state()["names"]["a"]["why"], "it holds 3.00 GiB, more than the 2.00 GiB allowed")
        self.assertEqual(contest.state()["names"]["b"]["peak_bytes"], 1 << 30)
        contest = self.start(memory_bytes=80 << 20)
        contest.next_block()
        contest.add("a", [100.0], 81 << 20)
        self.assertEqual(contest.state()["names"]["a"]["why"], "it holds 81.0 MiB, more than the 80.0 MiB allowed")

    def test_where_all_fail_the_baseline_stays(self):
        contest = self.start()
        for name in contest.next_block():
            if contest.is_in(name):
                contest.add(name, [self.TIMES[name]] * STEPS, failed=None if name == "base" else "it broke")
        self.assertIsNone(contest.next_block())
        self.assertEqual((contest.state()["winner"], contest.state()["why"]), ("base", "no other is left"))

    def test_a_block_that_is_cut_off_says_nothing(self):
        contest = self.start()
        turn(contest, self.TIMES)
        contest.add(contest.next_block()[0], [1] * STEPS)
        state = contest.state()
        self.assertEqual((state["blocks"], state["winner"]), (1, "base"))
        self.assertAlmostEqual(state["names"]["b"]["saves_pct"], 20, 3)

    def test_the_last_block_counts_though_nobody_asks_for_another(self):
        contest = self.start()
        turn(contest, self.TIMES)
        self.assertEqual(contest.state()["blocks"], 1)

    def test_the_same_turns_are_the_same_race(self):
        self.assertEqual(run(ONE_BETTER, drifts, 5), run(ONE_BETTER, drifts, 5))


if __name__ == "__main__":
    unittest.main()
