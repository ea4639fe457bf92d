"""Which of several ways to train is fastest, by measured steps: as few as it takes to be sure (`dpro tune`).

All that are still in the race run in blocks, each twice and in mirrored order (A B C C B A), so that a steady drift of the machine has
the same share in all. Each half of a block gives one value for a pair: the logarithm of the ratio of their times in it. (A steady drift
makes one half's value larger by what it makes the other's smaller, so that it widens intervals and shifts none.) The time is the mean of
the middle half of a turn's steps: a checkpoint or an evaluation among them does not count, and where steps vary by themselves it is less
unsteady than a median. What a value differs from the median of all by more than MOST_OFF times the usual is taken as off by that much,
so that one disturbed turn does not hide all others.

Values of a pair are about normal, their variance unknown, and after each block one looks whether it is enough. So the interval is one
that holds after any block, whenever one stops: the confidence sequence of the scale invariant mixture of t-tests, H. Wang and
A. Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance" (2024), Theorem 4.9, solved for the
mean. With K finalists each pair has 1/K of the error that is allowed: what says that the best is behind is one of its K pairs, and
what says that one beats the baseline is one of the baseline's.

One that is three standard errors from saving enough leaves, too: that is no promise, so that the usual error of a mean will do.

Where the budget is too small for that, the worse half leaves after each share of it: successive halving, Z. Karnin, T. Koren and
O. Somekh, "Almost optimal exploration in multi-armed bandits" (2013). It can miss the best, and never takes what is not sure to beat
the baseline."""
import math
import random
import statistics

from .applied import size_text

PRECISION = 0.2    # c^2 of the theorem: differences of some twice a value's noise are what is looked for
MOST_OFF = 4       # standard deviations of what is usual
LEAST_VALUES = 6   # before anything is sure: few may agree by chance
LEAST_NOISE = 1e-5 # of an iteration: what a clock can tell
HOPELESS = 3       # standard errors from saving enough, of one that leaves before that is sure
HOPELESS_VALUES = 8

UNTRIED, FAILED, LITTLE, SLOWER, BEHIND = "untried", "failed", "little", "slower", "behind"  # why one is out; BEHIND is not sure


def middle_mean(values):
    """The mean without the least and the largest quarter."""
    values, cut = sorted(values), len(values) // 4
    return statistics.fmean(values[cut:len(values) - cut])


def _spread(values):
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


def _evidence(values):
    """ln of how much a bet against a mean of 0 has won, by Theorem 4.9: above 1/error never but with that probability."""
    n, total = len(values), sum(values)
    squares = sum(value * value for value in values) + n * LEAST_NOISE ** 2
    return 0.5 * math.log(PRECISION / (n + PRECISION)) - 0.5 * n * math.log(1 - total * total / (n + PRECISION) / squares)


def _reach(values, error):
    """How far from the mean of the values their true mean may be."""
    n = len(values)
    if n < LEAST_VALUES:
        return math.inf
    most = math.exp((2 * math.log(1 / error) + math.log1p(n / PRECISION)) / n)
    left = 1 - most * PRECISION / (n + PRECISION)
    return math.sqrt((most - 1) * (statistics.pvariance(values) + LEAST_NOISE ** 2) / left) if left > 0 else math.inf


def _percent(log_ratio):
    """What is saved of the time."""
    return -100 * math.expm1(log_ratio) if math.isfinite(log_ratio) else -math.copysign(math.inf, log_ratio)


class Race:
    """`names`: of all that run, the most promising first; the baseline's too or not. Those that the budget can't measure once in its first
    share come in later, where none that runs is ahead of the baseline. `settle_steps`: of each turn, which are not measured and cost
    as much. Calls of next_block() and add() in the same order give the same race: who kept what was added can go on with it."""

    def __init__(self, names, baseline, budget_steps, steps_a_turn, least_gain=0.01, alpha=0.05, settle_steps=0, memory_bytes=None):
        self.baseline, self.finalists = baseline, [name for name in names if name != baseline]
        self.budget_steps, self.steps = budget_steps, 0
        self._steps_a_turn, self._settle, self._memory_bytes = steps_a_turn, settle_steps, memory_bytes
        self._least = -math.log1p(-least_gain)
        self._alpha = alpha
        self._blocks = []      # ln of the times of both turns, by name
        self._usual = 0
        self._turns = {}       # of the block that runs: measured steps of each turn, by name
        self._peaks = dict.fromkeys([baseline, *self.finalists])
        self._out = {}         # kind and reason, by name
        self._round_ends = 0   # after how many blocks
        self._decided = None
        self._error = alpha / max(1, len(self.finalists))
        while len(self.racing()) > 1 and not self._is_room(len(self.racing())):
            self._leave(self.racing()[-1], UNTRIED, "the budget of %d steps is too small to measure it" % budget_steps)

    # The course

    @property
    def _cost(self):
        """Steps of what runs in a block."""
        return 2 * (self._steps_a_turn + self._settle)

    def lengthen(self, steps_a_turn, blocks):
        """Longer turns, as far as the budget then still has so many blocks; returns their steps."""
        most = (self.budget_steps - self.steps) // (2 * blocks * (1 + len(self.racing()))) - self._settle
        self._steps_a_turn = max(self._steps_a_turn, min(steps_a_turn, most))
        return self._steps_a_turn

    def racing(self):
        """The finalists that are in."""
        return [name for name in self.finalists if name not in self._out]

    def is_in(self, name):
        """Whether a turn of it is still to run: in a block that runs it may fail."""
        return name == self.baseline or name not in self._out

    def next_block(self):
        """Names in the order of their turns; None: it is decided."""
        self._end_block()
        if not self._decided and not any(self._mean(name) < -self._standard_error(name) for name in self.racing()):
            self._take_in()
        if not self.racing():
            self._decided = self._decided or "no other is left"
        if self._decided:
            return None
        cost = self._cost * (1 + len(self.racing()))
        if self.steps + cost > self.budget_steps:
            self._decided = "the budget of %d steps %s" % (
                self.budget_steps, "is used up" if self._blocks else "is too small for a block of turns, which takes %d" % cost)
            return None
        if self._round_ends == 0:
            self._begin_round()
        names = [self.baseline, *self.racing()]
        random.Random(len(self._blocks)).shuffle(names)
        self._turns = {name: [] for name in names}
        return names + names[::-1]

    def add(self, name, step_times_ns, peak_bytes=None, failed=None):
        """A turn of it is over; `failed` says why it can't be used."""
        self.steps += len(step_times_ns) + self._settle
        self._peaks[name] = max(filter(None, (peak_bytes, self._peaks[name])), default=None)
        if name == self.baseline and (failed or not step_times_ns):
            self._decided = "the baseline could not be measured: %s" % (failed or "it made no step")
        elif failed or not step_times_ns:
            self._leave(name, FAILED, failed or "it made no step")
        elif self._memory_bytes and (self._peaks[name] or 0) > self._memory_bytes and name != self.baseline:
            self._leave(name, FAILED, "it holds %s, more than the %s allowed" % (
                size_text(self._peaks[name]), size_text(self._memory_bytes)))
        else:
            self._turns[name].append(step_times_ns)
        if all(len(turns) == 2 for one, turns in self._turns.items() if self.is_in(one)):
            self._end_block()

    def _leave(self, name, kind, why):
        self._out.setdefault(name, (kind, why))

    def _end_block(self):
        times = {name: [math.log(max(1, middle_mean(turn))) for turn in turns] for name, turns in self._turns.items() if len(turns) == 2}
        self._turns = {}
        if len(times) < 2 or self.baseline not in times:
            return
        self._blocks.append(times)
        self._usual = self._find_usual()
        if not self._decided:
            self._judge()

    # What is sure

    def _find_usual(self):
        """By how much the values of a pair with the baseline differ, as a rule: of all finalists together, as each has few."""
        off = []
        for name in self.finalists:
            values = self._differences(name, self.baseline)
            middle = statistics.median(values or [0])
            off += [abs(value - middle) for value in values]
        return 1.4826 * statistics.median(off)

    def _differences(self, name, other):
        return [one - its for times in self._blocks if name in times and other in times for one, its in zip(times[name], times[other])]

    def _values(self, name, other):
        values = self._differences(name, other)
        if len(values) <= LEAST_VALUES:
            return values
        middle, most = statistics.median(values), MOST_OFF * max(self._usual, _spread(values))
        return [min(max(value, middle - most), middle + most) for value in values]

    def _interval(self, name, other):
        """(mean, low, high) of ln of the ratio of their times."""
        values = self._values(name, other)
        if not values:
            return 0, -math.inf, math.inf
        mean, reach = statistics.fmean(values), _reach(values, self._error)
        return mean, mean - reach, mean + reach

    def _standard_error(self, name):
        """Of the mean of a finalist's values, at one time: few blocks tell little of their spread, so that it is no less than what is
        usual for all; infinite: not known."""
        values = self._values(name, self.baseline)
        if not values or (len(values) < 2 and self._usual == 0):
            return math.inf
        return max(statistics.stdev(values) if len(values) > 1 else 0, self._usual, LEAST_NOISE) / math.sqrt(len(values))

    def _is_hopeless(self, name):
        """That it would still turn out to save enough is so unlikely that no more turns are spent on it. What is given up this way is
        a finalist, never what the intervals promise."""
        return (len(self._values(name, self.baseline)) >= HOPELESS_VALUES
                and self._mean(name) - HOPELESS * self._standard_error(name) > -self._least)

    def _judge(self):
        """Who leaves, and whether it is decided: one that is surely slower than another that runs, or surely can't win enough over the
        baseline. If one is sure to beat the baseline, it wins as soon as no other can be better by enough."""
        for name in self.racing():
            if self._interval(name, self.baseline)[1] > -self._least:
                self._leave(name, LITTLE, "it can't save more than %.3g %%" % _percent(-self._least))
                continue
            if self._is_hopeless(name):
                self._leave(name, BEHIND, "it is unlikely to save more than %.3g %%" % _percent(-self._least))
                continue
            ahead = [other for other in self.racing() if self._interval(name, other)[1] > 0]
            if ahead:
                self._leave(name, SLOWER, "it is slower than %s" % ahead[0])
        if not self.racing() and not self._take_in():
            unlikely = any(kind == BEHIND for kind, _ in self._out.values())
            self._decided = "no other %s more than %.3g %%" % ("is likely to save" if unlikely else "saves", _percent(-self._least))
        if self._decided or not self._blocks or not any(self._values(name, self.baseline) for name in self.racing()):
            return
        best = self._leader()
        if self._beats(best) and all(self._interval(name, best)[1] > -self._least for name in self.racing() if name != best):
            self._decided = "%s is faster" % best
            if len(self.racing()) > 1:
                self._decided += ", and no other by more than %.3g %%" % _percent(-self._least)
        elif len(self._blocks) >= self._round_ends > 0:
            self._halve()

    def _mean(self, name):
        return self._interval(name, self.baseline)[0]

    def _beats(self, name):
        return self._interval(name, self.baseline)[2] < 0

    def _leader(self):
        return min(self.racing(), key=self._mean)

    # Shares of the budget

    def _blocks_of_round(self, n):
        """Of n finalists, in their share of the steps that are left: there are as many rounds as it takes to halve them to one, and that
        one's own."""
        return (self.budget_steps - self.steps) / (1 + math.ceil(math.log2(n))) / (self._cost * (1 + n))

    def _is_room(self, n):
        return self._blocks_of_round(n) >= 1

    def _take_in(self):
        """The most promising of those that there was no room for; returns whether there is one."""
        untried = [name for name, (kind, _) in self._out.items() if kind == UNTRIED]
        if not untried or not self._is_room(len(self.racing()) + 1):
            return False
        del self._out[min(untried, key=self.finalists.index)]
        self._begin_round()
        return True

    def _begin_round(self):
        self._round_ends = len(self._blocks) + max(1, int(self._blocks_of_round(len(self.racing()))))

    def _halve(self):
        by_time = sorted(self.racing(), key=lambda name: statistics.median(self._values(name, self.baseline)))
        for name in by_time[(len(by_time) + 1) // 2:]:
            self._leave(name, BEHIND, "it is behind, and the budget is too small to be sure of that")
        self._begin_round()

    # What came of it

    def winner(self):
        """The baseline where nothing is sure to beat it."""
        faster = [name for name in self.finalists if self._out.get(name, (BEHIND,))[0] == BEHIND and self._beats(name)]
        return min(faster, key=self._mean, default=self.baseline)

    def _sure(self, values):
        """How sure it is that their mean is above 0."""
        return 1 - min(1, math.exp(-_evidence(values)) / self._error * self._alpha) if values and sum(values) > 0 else 0

    def _how_sure(self, winner):
        """That it beats the baseline; of the baseline, that no other saves enough."""
        if winner != self.baseline:
            return self._sure(self._values(self.baseline, winner))
        others = [name for name in self.finalists if self._out.get(name, ("",))[0] not in (FAILED, UNTRIED)]
        return min((self._sure([value + self._least for value in self._values(name, winner)]) for name in others), default=1)

    def state(self):
        winner, names = self.winner(), {}
        for name in self.finalists:
            mean, low, high = self._interval(name, self.baseline)
            kind, why = self._out.get(name, ("racing", "it is in the race"))
            names[name] = {"in": name not in self._out, "kind": kind, "why": why, "blocks": sum(name in times for times in self._blocks),
                           "in_last_block": any(name in times for times in self._blocks[-1:]), "saves_pct": _percent(mean),
                           "low_pct": _percent(high), "high_pct": _percent(low), "peak_bytes": self._peaks[name],
                           "std_pct": 100 * math.exp(mean) * self._standard_error(name)}
        return {"winner": winner, "sure": self._how_sure(winner), "decided": self._decided is not None, "why": self._decided,
                "blocks": len(self._blocks), "steps": self.steps, "budget_steps": self.budget_steps, "names": names}
