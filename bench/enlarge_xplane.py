#!/usr/bin/env python3
"""enlarge_xplane.py IN OUT TIMES: writes a TensorFlow profile (.xplane.pb) TIMES as large, by repeating its lines shifted
in time. The names stay behind the lines, where the profiler wrote them. OUT ending in .gz is compressed.

    python3 bench/enlarge_xplane.py ../shared/traces/tf-mwms-ring/worker0.xplane.pb.gz /tmp/big.xplane.pb 2000
    build/bench/bench_ingest /tmp/big.xplane.pb
"""
import gzip
import sys

PLANES, LINES, TIMESTAMP_NS = 1, 3, 3


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def fields(data):
    """(number, value or None, the field as it stands)"""
    at = 0
    while at < len(data):
        start = at
        tag, at = read_varint(data, at)
        value = None
        if tag & 7 == 0:
            value, at = read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(tag & 7)
            if size is None:
                size, at = read_varint(data, at)
            value = data[at:at + size]
            at += size
        yield tag >> 3, value, data[start:at]


def message(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def moved(line, shift_ns):
    out = []
    for number, value, raw in fields(line):
        out.append(varint(TIMESTAMP_NS << 3) + varint(value + shift_ns) if number == TIMESTAMP_NS else raw)
    return message(LINES, b"".join(out))


def main():
    source, target, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(source, "rb") as file:
        data = file.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    second = 10**9
    with (gzip.open if target.endswith(".gz") else open)(target, "wb") as out:
        for number, value, raw in fields(data):
            if number != PLANES:
                out.write(raw)
                continue
            parts = []
            for kind, line, text in fields(value):
                parts += [moved(line, second * i) for i in range(times)] if kind == LINES else [text]
            out.write(message(PLANES, b"".join(parts)))


if __name__ == "__main__":
    main()
