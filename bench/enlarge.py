#!/usr/bin/env python3
"""enlarge.py IN OUT TIMES: writes a trace TIMES as large, by repeating the events shifted in time.

The text is kept as the profiler wrote it, only numbers are replaced: every copy's correlation,
External ids, flow ids and record function ids are made distinct, so that the copies join among
themselves only. OUT ending in .gz is compressed.
"""
import gzip
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
    step = {"ts": shift}
    for match in NUMBER.finditer(body):
        key, value = match.group(1), int(match.group(3))
        if key != "ts" and value < 1 << 40:
            step[key] = max(step.get(key, 0), value + 1)

    def move(match, copy):
        key, value = match.group(1), int(match.group(3))
        if value > 0 and (key == "ts" or value < 1 << 40):
            value += copy * step[key]
        return f'"{key}"{match.group(2)}{value}{match.group(4) or ""}'

    with (gzip.open(target, "wb", 6) if target.endswith(".gz") else open(target, "wb")) as out:
        out.write(text[:start].encode("utf-8", "surrogateescape"))
        for copy in range(times):
            moved = NUMBER.sub(lambda m, copy=copy: move(m, copy), body)
            out.write((("," if copy else "") + moved).encode("utf-8", "surrogateescape"))
        out.write(text[end - 1:].encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    main()
