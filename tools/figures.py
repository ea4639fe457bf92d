"""What tools ask dpro, how they compare figures, and how they print tables of them."""
import json
import os
import random
import statistics
import subprocess


def ask(dpro, *arguments, fails=(0,)):
    """(facts, None) or (None, what went wrong): a status that is not in `fails`."""
    done = subprocess.run([dpro, *arguments, "--json", "-q"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode not in fails:
        return None, (done.stderr.decode("utf-8", "replace").splitlines() or [f"exit status {done.returncode}"])[0]
    return json.loads(done.stdout), None


def facts_of(dpro, *arguments, **more):
    """The same, where nothing can go on without an answer."""
    facts, problem = ask(dpro, *arguments, **more)
    if problem:
        raise SystemExit(f"{' '.join((dpro, *arguments))}: {problem}")
    return facts


def truth_of(folder, name):
    """What was measured stands beside a recording; None: nothing."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def off(value, truth):
    """In %."""
    return None if value is None or not truth else 100 * (value / truth - 1)


def gain_pct(before, after):
    return 100 * (1 - after / before)


def spread(values):
    """Of errors: median and worst of what there is."""
    there = [abs(value) for value in values if value is not None]
    return {"n": len(there), "median_pct": statistics.median(there), "worst_pct": max(there)} if there else None


def told(what, errors):
    """A line that sums them up; none, where there are none."""
    if errors:
        print("%s: |error| %.2f %% in the median, %.2f %% at worst, of %d" % (what, errors["median_pct"], errors["worst_pct"], errors["n"]))


def median_and_interval(values):
    """The median, and its 95 % interval from resampling."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[-51]


def fixed(value, digits=1, signed=False):
    """With a minus sign that is one, and none before zero; "–": not known."""
    if value is None:
        return "–"
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    if float(text) == 0:
        text = f"{0:.{digits}f}"
    return text.replace("-", "−")


def markdown(head, rows):
    """A column whose title ends in ":" holds numbers."""
    lines = ["| " + " | ".join(title.rstrip(":") for title in head) + " |",
             "| " + " | ".join("---:" if title.endswith(":") else "---" for title in head) + " |"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def show(title, head, rows, note=""):
    """The same on a terminal, without columns that nothing is in; a row of two cells tells why there are no others."""
    rows = [[cell.replace("`", "").replace("\\", "") for cell in row] for row in rows]
    whole = [row for row in rows if len(row) == len(head)]
    used = [i for i in range(len(head)) if i == 0 or any(row[i] not in ("–", "") for row in whole)]
    widths = {i: max(len(row[i]) for row in [[title.rstrip(":") for title in head], *whole]) for i in used}
    widths[0] = max(widths[0], *(len(row[0]) for row in rows)) if rows else widths[0]
    print(f"\n{title}")
    for row in [[title.rstrip(":") for title in head], *rows]:
        cells = [f"{row[i]:>{widths[i]}}" if head[i].endswith(":") else f"{row[i]:<{widths[i]}}" for i in used if i] \
            if len(row) == len(head) else row[1:]
        print("  ".join([f"{row[0]:<{widths[0]}}", *cells]).rstrip())
    if note:
        print(note)
