"""Checks a report's folder as a reader of it would: its three files agree and add up."""
import json
import re
from decimal import Decimal

from support import read_text

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
MOST_DRAWN = 16  # ranks whose memory a page has


def parse(text):
    return json.loads(text, parse_float=Decimal)


def check_json(report, what_if):
    assert report["schema"] == "dpro.replay/1", report["schema"]
    for key in ["version", "error_pct", "ranks", "warnings"]:
        assert key in report, key
    for section, keys in SECTIONS.items():
        for key in keys if report[section] is not None else ():
            assert key in report[section], (section, key)
    for file in report["trace"]["files"]:
        assert set(file) >= {"path", "kind", "rank", "bytes"}
    for rank in report["ranks"]:
        assert "communication_ms" in rank
        if rank["forward_ms"] + rank["backward_ms"] + rank["update_ms"] == 0:
            assert rank["idle_ms"] is None, rank
        else:
            assert sum(rank[part + "_ms"] for part in PARTS) == rank["iteration_ms"], rank
    path = report["critical_path"]
    assert "GAP" in path["by_kind_ms"]
    assert sum(path["by_kind_ms"].values()) == path["length_ms"]
    assert (sum(path["by_rank_ms"].values()) == path["length_ms"]) or None in [op["rank"] for op in path["ops"]]  # a server's
    assert sum(op["duration_ms"] + op["gap_ms"] for op in path["ops"]) == path["length_ms"]
    for op in path["ops"]:
        assert set(op) >= {"name", "rank", "device", "kind", "start_ms", "duration_ms"}
    for host in report["clock"]["hosts"]:
        assert set(host) >= {"host", "ranks", "method", "offset_ms", "uncertainty_ms"}
    measured, predicted = report["measured"]["iteration_ms"], report["predicted"]["iteration_ms"]
    if what_if:
        assert report["error_pct"] is None and (report["daydream"] or report)["error_pct"] is None
    else:
        cost = report["profiler"]["iteration_ms"] if report["profiler"] else None
        assert abs(report["error_pct"] - 100 * (predicted + (cost or 0) - measured) / measured) < Decimal("0.001")


def check_memory(report, counters, drawn, what_if):
    """The member "memory", the timeline's counters and the page's pictures say the same."""
    memory = report["memory"]
    if memory is None:
        assert not counters and not drawn
        return
    pictures = {picture["rank"]: picture for picture in drawn}
    assert len(pictures) == min(len(memory["ranks"]), MOST_DRAWN)
    assert set(pictures) <= {rank["rank"] for rank in memory["ranks"]}
    for rank in memory["ranks"]:
        peak = rank["peak_bytes"]
        assert sum(rank["by_category"].values()) == peak
        assert rank["holders_in_all"] >= len(rank["holders"])
        if rank["holders_in_all"] == len(rank["holders"]):
            assert sum(holder["bytes"] for holder in rank["holders"]) == peak
        if what_if:
            assert rank["error_pct"] is None
        elif rank["measured_peak_bytes"]:
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


def check_timeline(events, report):
    """Returns the kinds of its slices, the names of its flows and of its threads."""
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
    assert sum(name.startswith("rank ") for name in names.values()) == len(report["ranks"]), names
    assert "critical path" in names.values()
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
    return ({e["cat"] for slices in tracks.values() for e in slices}, {e["name"] for pair in flows.values() for e in pair},
            {e["args"]["name"] for e in events if e["name"] == "thread_name"})


def check_page(page):
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
    return data


def check_folder(folder, what_if=False):
    """Returns the report, the page's data, and what check_timeline does."""
    report, timeline, page = (read_text(f"{folder}/{name}") for name in ("replay.json", "timeline.json.gz", "report.html"))
    report, events = parse(report), parse(timeline)["traceEvents"]
    check_json(report, what_if)
    found = check_timeline([event for event in events if event["ph"] != "C"], report)
    data = check_page(page)
    check_memory(report, [event for event in events if event["ph"] == "C"], data["memory"], what_if)
    return report, data, found
