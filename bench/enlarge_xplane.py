#!/usr/bin/env python3
"""enlarge_xplane.py IN OUT TIMES: writes a TensorFlow profile (.xplane.pb) TIMES as large, by repeating its lines shifted
in time. The names stay behind the lines, where the profiler wrote them. OUT ending in .gz is compressed.

    python3 bench/enlarge_xplane.py ../shared/traces/tf-mwms-ring/worker0.xplane.pb.gz /tmp/big.xplane.pb 2000
    build/bench/bench_ingest /tmp/big.xplane.pb
"""
import gzip
import sys

from wire import message, number, raw_fields

PLANES, LINES, TIMESTAMP_NS = 1, 3, 3


def moved(line, shift_ns):
    out = []
    for kind, value, raw in raw_fields(line):
        out.append(number(TIMESTAMP_NS, value + shift_ns) if kind == TIMESTAMP_NS else raw)
    return message(LINES, b"".join(out))


def main():
    source, target, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(source, "rb") as file:
        data = file.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    second = 10**9
    with (gzip.open if target.endswith(".gz") else open)(target, "wb") as out:
        for field, value, raw in raw_fields(data):
            if field != PLANES:
                out.write(raw)
                continue
            parts = []
            for kind, line, text in raw_fields(value):
                parts += [moved(line, second * i) for i in range(times)] if kind == LINES else [text]
            out.write(message(PLANES, b"".join(parts)))


if __name__ == "__main__":
    main()
