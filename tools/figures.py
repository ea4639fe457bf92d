"""What tools ask dpro, and how they compare figures."""
import json
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


def off(value, truth):
    """In %."""
    return None if value is None or not truth else 100 * (value / truth - 1)


def gain_pct(before, after):
    return 100 * (1 - after / before)


def spread(values):
    """Of errors: median and worst of what there is."""
    there = [abs(value) for value in values if value is not None]
    return {"n": len(there), "median_pct": statistics.median(there), "worst_pct": max(there)} if there else None


def median_and_interval(values):
    """The median, and its 95 % interval from resampling."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[-51]
