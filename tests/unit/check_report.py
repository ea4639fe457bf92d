"""Checks a report's folder as a reader of it would: check_report.py FOLDER [hostile] [what-if] [empty] [memory]."""

import gzip
import json
import re
import sys
from decimal import Decimal

HOSTILE = (
    "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)> \"q\" 'a' & \\ \n\r\t\x01"
    "\x1b[31m \ufffd\ufffd \u2028 \x9b end"
)
SECTIONS = {
    "trace": ["framework", "world_size", "ranks_present", "iterations", "files"],
    "measured": ["iteration_ms", "median_ms", "std_ms", "per_iteration_ms"],
    "predicted": ["iteration_ms", "p50_ms", "p95_ms"],
    "validation": ["method", "mean_abs_error_pct", "max_abs_error_pct"],
    "daydream": ["iteration_ms", "error_pct"],
    "critical_path": ["length_ms", "by_kind_ms", "by_rank_ms", "ops"],
    "clock": ["hosts"],
}
PARTS = "forward backward update input exposed_communication wait_for_peers idle".split()


def parse(text):
    return json.loads(text, parse_float=Decimal)


def check_json(report, flags):
    assert report["schema"] == "dpro.replay/1", report["schema"]
    for key in ["version", "error_pct", "ranks", "warnings"]:
        assert key in report, key
    for section, keys in SECTIONS.items():
        for key in keys:
            assert key in report[section], (section, key)
    for file in report["trace"]["files"]:
        assert set(file) >= {"path", "kind", "rank", "bytes"}
        assert file["kind"] in ("kineto", "execution-trace")
    assert len(report["trace"]["files"]) == len(report["trace"]["ranks_present"])
    for rank in report["ranks"]:
        assert "communication_ms" in rank
        if rank["forward_ms"] + rank["backward_ms"] + rank["update_ms"] == 0:
            assert rank["idle_ms"] is None, rank
        else:
            assert sum(rank[part + "_ms"] for part in PARTS) == rank["iteration_ms"], rank
    path = report["critical_path"]
    assert "GAP" in path["by_kind_ms"]
    assert sum(path["by_kind_ms"].values()) == path["length_ms"]
    assert sum(path["by_rank_ms"].values()) == path["length_ms"]
    assert sum(op["duration_ms"] + op["gap_ms"] for op in path["ops"]) == path["length_ms"]
    for op in path["ops"]:
        assert set(op) >= {"name", "rank", "device", "kind", "start_ms", "duration_ms"}
    for host in report["clock"]["hosts"]:
        assert set(host) >= {"host", "ranks", "method", "offset_ms", "uncertainty_ms"}
    assert len(report["warnings"]) == 2 and report["warnings"][1].startswith("rank 3: 2 of 14")
    if "empty" in flags:
        assert path["ops"] == [] and path["length_ms"] == 0
        assert report["measured"]["iteration_ms"] is None and report["error_pct"] is None
        return
    measured, predicted = report["measured"]["iteration_ms"], report["predicted"]["iteration_ms"]
    if "what-if" in flags:
        assert report["error_pct"] is None and report["daydream"]["error_pct"] is None
    else:
        error = 100 * (predicted - measured) / measured
        assert abs(report["error_pct"] - error) < Decimal("0.001")
    if "hostile" in flags:
        assert HOSTILE in [op["name"] for op in path["ops"]]
        assert report["warnings"][0] == HOSTILE


def check_memory(report, counters, drawn, flags):
    """The member "memory", the timeline's counters and the page's pictures say the same."""
    memory = report["memory"]
    if "memory" not in flags:
        assert memory is None and not counters and not drawn
        return
    ranks = [rank["rank"] for rank in report["ranks"]]
    assert [rank["rank"] for rank in memory["ranks"]] == [rank for rank in ranks if rank != 6]
    assert memory["source"] == ("execution trace" if 5 in ranks else "allocations")
    pictures = {picture["rank"]: picture for picture in drawn}
    assert set(pictures) <= set(ranks) and len(pictures) == min(len(memory["ranks"]), 16)
    for rank in memory["ranks"]:
        peak = rank["peak_bytes"]
        assert sum(rank["by_category"].values()) == peak
        assert rank["holders_in_all"] >= len(rank["holders"])
        if rank["holders_in_all"] == len(rank["holders"]):
            assert sum(holder["bytes"] for holder in rank["holders"]) == peak
        assert rank["at"]["phase"] == "backward" and rank["at"]["module"] is not None
        assert rank["reserved_peak_bytes"] >= peak or "tight" in flags
        if "what-if" in flags:
            assert rank["error_pct"] is None
        else:
            assert abs(rank["error_pct"] - 100 * (Decimal(peak) / rank["measured_peak_bytes"] - 1)) < Decimal("0.001")
        of_rank = [event for event in counters if event["pid"] == rank["rank"] + 1]
        assert max(event["args"]["total"] for event in of_rank) == peak
        for event in of_rank:
            assert event["ts"] >= 0 and 2 * event["args"]["total"] == sum(event["args"].values()), event
        if rank["rank"] not in pictures:
            continue
        held, total, highest = pictures[rank["rank"]]["held"], 0, 0
        assert all(len(column) == len(pictures[rank["rank"]]["at"]) for column in held.values())
        for changes in zip(*held.values()):
            total += sum(changes)
            highest = max(highest, total)
        assert highest == peak


def check_timeline(events, report, flags):
    tracks, flows, names = {}, {}, {}
    for e in events:
        if e["ph"] == "X":
            tracks.setdefault((e["pid"], e["tid"]), []).append(e)
            assert e["args"]["kind"] and e["dur"] >= 0 and e["ts"] >= 0
        elif e["ph"] in "sf":
            flows.setdefault(e["id"], []).append(e)
        elif e["name"] == "process_name":
            assert e["pid"] not in names
            names[e["pid"]] = e["args"]["name"]
    assert len(names) == len(report["ranks"]) + 1 and "critical path" in names.values()
    for slices in tracks.values():
        open_ends = []
        for e in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
            while open_ends and open_ends[-1] <= e["ts"]:
                open_ends.pop()
            assert not open_ends or e["ts"] + e["dur"] <= open_ends[-1], e
            open_ends.append(e["ts"] + e["dur"])
    for pair in flows.values():
        pair.sort(key=lambda e: e["ph"], reverse=True)
        assert [e["ph"] for e in pair] == ["s", "f"] and pair[0]["ts"] <= pair[1]["ts"]
        for e in pair:  # both ends lie in a slice, or viewers drop the arrow
            slices = tracks[(e["pid"], e["tid"])]
            assert any(s["ts"] <= e["ts"] <= s["ts"] + s["dur"] for s in slices), e
    if "empty" in flags:
        return
    kinds = {e["cat"] for slices in tracks.values() for e in slices}
    if len(report["ranks"]) > 1:
        assert {"FW", "BW", "COLLECTIVE", "WAIT", "LAUNCH"} <= kinds
        assert {e["name"] for pair in flows.values() for e in pair} >= {"launch", "last arrival"}
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"stream 7 \u00b7 measured", "stream 7 \u00b7 replayed"} <= threads


def check_page(page, flags):
    assert page.count("<script") == 2 and page.count("</script") == 2
    assert "<!--" not in page
    assert not re.search(r"(src|href)\s*=|https?://(?!www\.w3\.org/2000/svg)|@import|url\(", page.split('id="data">')[0])
    data = parse(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
    n = len(data["ops"]["name"])
    for column in data["ops"].values():
        assert len(column) == n
    for track in data["tracks"]:
        assert len(track["op"]) == len(track["start"]) == len(track["dur"])
    assert all(name < len(data["strings"]) for name in data["ops"]["name"])
    if "hostile" in flags:
        assert HOSTILE in data["strings"]
    return data["memory"]


def main():
    folder, flags = sys.argv[1], sys.argv[2:]
    with open(folder + "/replay.json", encoding="utf-8") as file:
        report = parse(file.read())
    check_json(report, flags)
    with gzip.open(folder + "/timeline.json.gz", "rt", encoding="utf-8") as file:
        events = parse(file.read())["traceEvents"]
    check_timeline([event for event in events if event["ph"] != "C"], report, flags)
    with open(folder + "/report.html", encoding="utf-8") as file:
        drawn = check_page(file.read(), flags)
    check_memory(report, [event for event in events if event["ph"] == "C"], drawn, flags)


main()
