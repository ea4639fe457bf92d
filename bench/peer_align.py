"""The same clocks by a general solver: SciPy's HiGHS, given all pairs at once as one linear program.

Reads lines of "sender receiver sent_ns received_ns"; the unknowns are an offset and a drift a clock, and how far all
pairs can be kept from being violated, which is made as large as can be. Prints the solver's time."""
import sys
import time

import numpy
from scipy.optimize import linprog
from scipy.sparse import csr_matrix


def main():
    pairs = numpy.loadtxt(sys.stdin, dtype=numpy.int64)
    sender, receiver, sent, received = pairs.T
    n = int(max(sender.max(), receiver.max())) + 1
    start = time.process_time()
    first = numpy.full(n, numpy.iinfo(numpy.int64).max)
    numpy.minimum.at(first, sender, sent)
    # aligned = local - first + offset + drift * (local - first), in ms and ppm: sent + slack <= received
    since = [(t - first[clock]) * 1e-6 for clock, t in ((sender, sent), (receiver, received))]
    rows = numpy.arange(len(pairs))
    matrix = csr_matrix((numpy.concatenate([numpy.ones(len(rows)), since[0] * 1e-6, -numpy.ones(len(rows)), -since[1] * 1e-6,
                                            numpy.ones(len(rows))]),
                         (numpy.concatenate([rows] * 5),
                          numpy.concatenate([2 * sender, 2 * sender + 1, 2 * receiver, 2 * receiver + 1, numpy.full(len(rows), 2 * n)]))),
                        shape=(len(rows), 2 * n + 1))
    cost = numpy.zeros(2 * n + 1)
    cost[-1] = -1
    bounds = [(0, 0), (0, 0)] + [(None, None), (-600, 600)] * (n - 1) + [(None, None)]
    result = linprog(cost, A_ub=matrix, b_ub=since[1] - since[0], bounds=bounds, method="highs")
    print(f"{n} clocks, {len(pairs)} pairs: {time.process_time() - start:.2f} s, {result.message}")


if __name__ == "__main__":
    main()
