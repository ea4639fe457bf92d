#!/usr/bin/env python3
"""The peer of bench_replay: the same generated graph, replayed the same way in Python.

A heap for each device and one over the devices, from the standard library; with --networkx the
graph is a networkx.DiGraph, as in the paper's published code, where it is installed. The makespan is
the one that bench_replay prints for the same arguments.

    peer_replay.py [--networkx] [ops [ranks]]
"""
import heapq
import sys
import time

KERNELS_A_BUCKET = 12
OPS_A_BUCKET = 2 * KERNELS_A_BUCKET + 2


def generate(n_ops, n_ranks):
    """Durations, devices and successors by op id, as bench_replay.c makes them."""
    state = 1

    def pick(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        return (state >> 33) % n

    n_buckets = n_ops // n_ranks // OPS_A_BUCKET
    ops_a_rank = n_buckets * OPS_A_BUCKET
    dur, device = [], []
    for rank in range(n_ranks):
        for _ in range(n_buckets):
            for _ in range(KERNELS_A_BUCKET):
                dur += [4000 + pick(8000), 2000 + pick(30000)]
                device += [rank * 3, rank * 3 + 1]
            dur += [0, 50000]
            device += [None, rank * 3 + 2]
    succ = [[] for _ in dur]
    for rank in range(n_ranks):
        for bucket in range(n_buckets):
            first = rank * ops_a_rank + bucket * OPS_A_BUCKET
            arrival = first + 2 * KERNELS_A_BUCKET
            barrier = arrival - rank * ops_a_rank
            for i in range(KERNELS_A_BUCKET):
                launch = first + 2 * i
                succ[launch].append(launch + 1)
                if i + 1 < KERNELS_A_BUCKET:
                    succ[launch].append(launch + 2)
                    succ[launch + 1].append(launch + 3)
                elif bucket + 1 < n_buckets:
                    succ[launch].append(first + OPS_A_BUCKET)
                    succ[launch + 1].append(first + OPS_A_BUCKET + 1)
            for i in range(3):
                succ[arrival - 1 - 2 * i].append(arrival)
            if rank:
                succ[arrival].append(barrier)
            succ[barrier].append(arrival + 1)
    return dur, device, succ


def replay(n_ops, dur, device, successors):
    """The latest end: (max(ready, clock), ready, id) decides, as in include/dpro/replay.h."""
    pending, ready = [0] * n_ops, [0] * n_ops
    for op in range(n_ops):
        for other in successors(op):
            pending[other] += 1
    clock, queues, order, latest = {}, {}, [], 0

    def push(op):
        queue = queues.setdefault(device(op), [])
        heapq.heappush(queue, (ready[op], op))
        if queue[0][1] == op:
            announce(device(op))

    def announce(where):
        at, op = queues[where][0]
        heapq.heappush(order, (max(at, clock.get(where, 0)), at, op, where))

    for op in range(n_ops):
        if pending[op] == 0:
            push(op)
    while order:
        start, at, op, where = heapq.heappop(order)
        queue = queues[where]
        if not queue or queue[0] != (at, op) or start != max(at, clock.get(where, 0)):
            continue  # announced before something changed
        heapq.heappop(queue)
        end = start + dur(op)
        latest = max(latest, end)
        if where is not None:
            clock[where] = end
        for other in successors(op):
            ready[other] = max(ready[other], end)
            pending[other] -= 1
            if pending[other] == 0:
                push(other)
        if queue:
            announce(where)
    return latest


def main():
    args = [a for a in sys.argv[1:] if a != "--networkx"]
    n_ops = int(args[0]) if args else 100000
    n_ranks = int(args[1]) if len(args) > 1 else 64
    dur, device, succ = generate(n_ops, n_ranks)
    n_ops, kind = len(dur), "heapq"
    if "--networkx" in sys.argv:
        import networkx

        kind = "networkx"
        graph = networkx.DiGraph()
        for op in range(n_ops):
            graph.add_node(op, dur=dur[op], device=device[op])
        graph.add_edges_from((op, other) for op in range(n_ops) for other in succ[op])
        accessors = (lambda op: graph.nodes[op]["dur"], lambda op: graph.nodes[op]["device"],
                     graph.successors)
    else:
        accessors = (dur.__getitem__, device.__getitem__, succ.__getitem__)
    start = time.process_time()
    latest = replay(n_ops, *accessors)
    seconds = time.process_time() - start
    print(f"{kind} {n_ops / seconds * 1e-6:.3f} M ops/s, {n_ops} ops, "
          f"makespan {latest * 1e-6:.3f} ms")


if __name__ == "__main__":
    main()
