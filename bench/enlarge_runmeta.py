#!/usr/bin/env python3
"""enlarge_runmeta.py IN OUT TIMES: writes TensorFlow's RunMetadata TIMES as large: the nodes of its graphs and the kernels of
its step once more under other names, and later. OUT ending in .gz is compressed.

    python3 bench/enlarge_runmeta.py ../shared/traces/tf-ps-v1/NAME.pb.gz /tmp/big.pb 2000
    build/bench/bench_ingest /tmp/big.pb
"""
import gzip
import sys

from wire import message, number, raw_fields

STEP_STATS, PARTITION_GRAPHS, FUNCTION_GRAPHS = 1, 3, 4
DEVICES, NODE_STATS = 1, 2
STATS_NAME, START_MICROS, SCHEDULED_MICROS, START_NANOS, SCHEDULED_NANOS = 1, 2, 9, 13, 17
NODES, NODE_NAME, NODE_INPUT = 1, 1, 3


def renamed(name, suffix):
    """"a/b", "a/b:1", "^a/b"."""
    node, colon, output = name.partition(b":")
    return node + suffix + colon + output


def copy_node(node, suffix):
    out = [message(kind, renamed(value, suffix)) if kind in (NODE_NAME, NODE_INPUT) else raw
           for kind, value, raw in raw_fields(node)]
    return message(NODES, b"".join(out))


def copy_stats(stats, suffix, later_us):
    out = []
    for kind, value, raw in raw_fields(stats):
        if kind == STATS_NAME and not value.startswith(b"Recv"):
            raw = message(kind, value + suffix)
        elif kind in (START_MICROS, SCHEDULED_MICROS):
            raw = number(kind, value + later_us)
        elif kind in (START_NANOS, SCHEDULED_NANOS):
            raw = number(kind, value + later_us * 1000)
        out.append(raw)
    return message(NODE_STATS, b"".join(out))


def repeat(content, wanted, times, copy):
    """The message with each field of a kind once more for each further copy, all of a copy together."""
    all_fields = list(raw_fields(content))
    out = [raw for _, _, raw in all_fields]
    for i in range(1, times):
        out += [copy(value, i) for kind, value, _ in all_fields if kind == wanted]
    return b"".join(out)


def suffix_of(i):
    return b"_copy%d" % i


def enlarge_step(step, times):
    return b"".join(message(DEVICES, repeat(value, NODE_STATS, times, lambda s, i: copy_stats(s, suffix_of(i), i * 1000)))
                    if kind == DEVICES else raw for kind, value, raw in raw_fields(step))


def enlarge_graph(graph, times):
    return repeat(graph, NODES, times, lambda node, i: copy_node(node, suffix_of(i)))


def main():
    source, target, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(source, "rb") as file:
        data = file.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    with (gzip.open if target.endswith(".gz") else open)(target, "wb") as out:
        for kind, value, raw in raw_fields(data):
            if kind == STEP_STATS:
                raw = message(kind, enlarge_step(value, times))
            elif kind == PARTITION_GRAPHS:
                raw = message(kind, enlarge_graph(value, times))
            elif kind == FUNCTION_GRAPHS:
                raw = message(kind, b"".join(message(inner, enlarge_graph(graph, times))
                                             for inner, graph, _ in raw_fields(value)))
            out.write(raw)


if __name__ == "__main__":
    main()
