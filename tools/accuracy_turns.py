"""What the model promised of plans, and what turns in the running job measured (turns.json of `dpro tune`): of recordings, and of jobs of
which nothing else is kept (tests/turns)."""
import glob
import json
import math
import os
import statistics

from figures import fixed, show

HEAD = ("plan", "promised, %:", "±:", "measured, %:", "±:", "off, points:", "off with the model since:")
KIND_HEAD = ("plan", "plans:", "promised, %:", "measured, %:", "off, points, median:", "at most:", "within 3 points:",
             "within both intervals:")
WITHIN_POINTS = 3  # target, of nine in ten


def find(data, folders):
    """{job: path}"""
    found = {os.path.basename(path)[:-len(".json")]: path for path in sorted(glob.glob(os.path.join(data, "turns", "*.json")))}
    found.update({os.path.basename(folder): os.path.join(folder, "turns.json") for folder in folders
                  if os.path.exists(os.path.join(folder, "turns.json"))})
    return found


def rows(files):
    found = []
    for job, path in files.items():
        with open(path, encoding="utf-8") as file:
            turns = json.load(file)["turns"]
        for one in turns:
            half, off = 1.96 * one["std_pct"], one["promised_pct"] - one["saves_pct"]
            found.append({"plan": f"{job}: {one['name']}", "promised_pct": one["promised_pct"],
                          "promised_half_pct": one["promised_half_pct"], "measured_pct": one["saves_pct"],
                          "measured_half_pct": half, "off_points": off,
                          "off_since_points": one["again_pct"] - one["saves_pct"] if "again_pct" in one else None,
                          "covered": abs(off) <= math.hypot(half, one["promised_half_pct"])})
    return found


def cells(row):
    return (f"`{row['plan']}`", fixed(row["promised_pct"], 1, True), fixed(row["promised_half_pct"]),
            fixed(row["measured_pct"], 1, True), fixed(row["measured_half_pct"]), fixed(row["off_points"], 1, True),
            "–" if row["off_since_points"] is None else fixed(row["off_since_points"], 1, True))


def kind_of(plan):
    """A plan's kind of change; of what was measured by restarts, the stack: `cap-5` and `cap-1` are one kind."""
    job, name = plan.split(": ")
    return job.split("-")[1] if name == "plan" or name.startswith("finalist") else name.rstrip("-0123456789 ")


def kind_cells(found):
    """A row a kind."""
    def between(values):
        return " to ".join(dict.fromkeys(fixed(value, 1, True) for value in (min(values), max(values))))

    kinds = {}
    for row in found:
        kinds.setdefault(kind_of(row["plan"]), []).append(row)
    for kind, ones in sorted(kinds.items()):
        off = [abs(one["off_points"]) for one in ones]
        yield (f"`{kind}`", str(len(ones)), *(between([one[key] for one in ones]) for key in ("promised_pct", "measured_pct")),
               fixed(statistics.median(off)), fixed(max(off)), str(sum(one <= WITHIN_POINTS for one in off)),
               str(sum(one["covered"] for one in ones)))


def summary(found):
    since = [row for row in found if row["off_since_points"] is not None]
    text = (f"All {len(found)}: {_near([row['off_points'] for row in found], found)}, {sum(row['covered'] for row in found)} within both "
            "intervals.")
    if since:
        sure = [row for row in since if row["measured_half_pct"] <= WITHIN_POINTS - 1]
        text += (f" The {len(since)} whose recordings were kept: {_near([row['off_points'] for row in since], since)}; with the model "
                 f"since, {_near([row['off_since_points'] for row in since])}. The {len(sure)} of these that were measured within "
                 f"{WITHIN_POINTS - 1} points: {_near([row['off_since_points'] for row in sure])}.")
    return text


def _sure_to_be_near(found):
    """How many measurements would lie so near the truth."""
    return round(sum(math.erf(WITHIN_POINTS * 1.96 / math.sqrt(2) / max(row["measured_half_pct"], 1e-9)) for row in found))


def _near(off, found=()):
    off = list(map(abs, off))
    sure = f" ({_sure_to_be_near(found)} if no promise had an error)" if found else ""
    return (f"{statistics.median(off or [0]):.1f} points off in the median, {max(off, default=0):.1f} at most, "
            f"{sum(one <= WITHIN_POINTS for one in off)} within {WITHIN_POINTS} points{sure}")


def print_turns(found):
    if found:
        show("turns", HEAD, [cells(row) for row in found], "what a plan saves of a step: promised by the model before any turn, measured "
             "in the job that was promised it\n" + summary(found))
