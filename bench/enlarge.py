#!/usr/bin/env python3
"""enlarge.py IN OUT TIMES: writes a trace TIMES as large, by repeating the events shifted in time.

The text is kept as the profiler wrote it, only numbers are replaced: every copy's correlation,
External ids, flow ids and record function ids are made distinct, so that the copies join among
themselves only. OUT ending in .gz is compressed.
"""
import gzip
import itertools
import json
import re
import sys

NUMBER = re.compile(
    r'"(ts|id|correlation|[Ee]xternal id|Record function id|Ev Idx|wait_on_cuda_event_record_corr_id)"'
    r'(\s*:\s*)(\d+)(\.\d+)?(?=\s*[,}\n])')


def main():
    source, target, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(source, "rb") as f:
        data = f.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    text = data.decode("utf-8", "surrogateescape")
    start = re.search(r'"traceEvents"\s*:\s*\[', text).end()
    events, end = json.JSONDecoder().raw_decode(text, start - 1)
    spans = [e for e in events if e.get("ph") == "X" and e.get("cat") != "Trace"]
    shift = int(max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans)) + 1000
    body = text[start:end - 1].rstrip()
    step, between, numbers, at = {"ts": shift}, [], [], 0
    for match in NUMBER.finditer(body):
        key, value = match.group(1), int(match.group(3))
        if value > 0 and (key == "ts" or value < 1 << 40):
            step[key] = max(step.get(key, 0), shift if key == "ts" else value + 1)
            between.append(body[at:match.start(3)])
            numbers.append((key, value))
            at = match.end(3)

    with (gzip.open(target, "wb", 6) if target.endswith(".gz") else open(target, "wb")) as out:
        out.write(text[:start].encode("utf-8", "surrogateescape"))
        for copy in range(times):
            moved = (str(value + copy * step[key]) for key, value in numbers)
            copied = "".join(itertools.chain.from_iterable(zip(between, moved))) + body[at:]
            out.write((("," if copy else "") + copied).encode("utf-8", "surrogateescape"))
        out.write(text[end - 1:].encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    main()
