"""How far a recording's replay, and the job's time as dpro tells it, are off its own steps without the profiler.

The replay knows nothing of these steps; the job's time is their median. So it is found from some of them and compared with the
others, which it was not shown: every other step, and those after the recorded window from those before it."""
import json
import os
import statistics
import tempfile

from figures import ask, off


def lasted_ms(step):
    return (step["end_ns"] - step["start_ns"]) / 1e6


def halves(steps):
    """{how: (which are shown, which are held back)}; each a list of (block, index)."""
    places = [(block, i) for block in ("before", "after") for i in range(len(steps[block]))]
    return {"next": (places[::2], places[1::2]),
            "after": ([p for p in places if p[0] == "before"], [p for p in places if p[0] == "after"])}


def copy_with(folder, recordings, shown, place):
    """The recording, in which only these steps were timed."""
    for base, _, files in os.walk(folder):
        into = os.path.join(place, os.path.relpath(base, folder))
        os.makedirs(into, exist_ok=True)
        for name in files:
            path = os.path.abspath(os.path.join(base, name))
            if path not in recordings:
                os.symlink(path, os.path.join(into, name))
                continue
            facts = dict(recordings[path])
            facts["steps"] = {**facts["steps"], **{block: [facts["steps"][block][i] for b, i in shown if b == block]
                                                   for block in ("before", "after")}}
            with open(os.path.join(into, name), "w", encoding="utf-8") as file:
                json.dump(facts, file)


def held_back_error(dpro, folder, recordings, shown, held):
    with tempfile.TemporaryDirectory() as place:
        copy_with(folder, recordings, shown, place)
        facts, _ = ask(dpro, "replay", place, "--no-validate")
    if facts is None or facts["job"]["source"] != "steps without the profiler":
        return None, None
    truth = statistics.median(lasted_ms(r["steps"][block][i]) for r in recordings.values() for block, i in held)
    return off(facts["job"]["iteration_ms"], truth), facts["job"]["low_ms"] <= truth <= facts["job"]["high_ms"]


def own_row(dpro, folder, facts):
    """None: its steps were not timed, or tell nothing of the job."""
    if facts["job"]["source"] != "steps without the profiler":
        return None
    recordings = {}
    for base, _, files in os.walk(folder):
        if "rank.json" in files:
            path = os.path.abspath(os.path.join(base, "rank.json"))
            with open(path, encoding="utf-8") as file:
                recordings[path] = json.load(file)
    recordings = {path: r for path, r in recordings.items() if r.get("steps") and r["steps"]["before"]}
    row = {"steps": facts["unprofiled"]["steps"], "job_ms": facts["job"]["iteration_ms"],
           "half_pct": 50 * (facts["job"]["high_ms"] - facts["job"]["low_ms"]) / facts["job"]["iteration_ms"],
           "replay_pct": facts["unprofiled"]["median_error_pct"]}
    for how, (shown, held) in halves(next(iter(recordings.values()))["steps"]).items():
        row[how + "_pct"], row[how + "_inside"] = held_back_error(dpro, folder, recordings, shown, held)
    return row


def print_own(rows):
    if not rows:
        return
    width = max(len(row["trace"]) for row in rows)
    print(f"\n{'own steps without the profiler':<{width}}  steps    job ms  +- %  replay %  next %  after %")
    for row in rows:
        own = row["own"]
        held = ["      -" if own[key] is None else f"{own[key]:+7.1f}" for key in ("next_pct", "after_pct")]
        print(f"{row['trace']:<{width}}  {own['steps']:>5}  {own['job_ms']:>8.1f}  {own['half_pct']:4.1f}  {own['replay_pct']:+8.1f} "
              f"{held[0]}  {held[1]}")
    for key, what in (("replay_pct", "replay, not shown these steps"), ("next_pct", "the job's time, of every other step from the rest"),
                      ("after_pct", "of those after the window from those before it")):
        errors = [abs(row["own"][key]) for row in rows if row["own"][key] is not None]
        print(f"{what}: |error| {statistics.median(errors):.1f} % in the median, {max(errors):.1f} % at worst")
    inside = [row["own"][how + "_inside"] for row in rows for how in ("next", "after") if row["own"][how + "_inside"] is not None]
    print(f"of the steps that were held back, {sum(inside)} of {len(inside)} medians lie within the 95 % interval that the others give")
