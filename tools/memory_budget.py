"""The paper's Table 4 on real jobs: a network that is to fit a share of its peak by recomputation alone, by accumulation alone, and
by what `dpro optimize --memory` takes; time and peak of each as predicted, and as measured by turns."""
import json
import os

from accuracy_whatifs import options_of
from figures import facts_of, fixed, show

SHARE = 0.6  # of the peak as the job ran
MODELS = ("transformer", "convolutional", "recurrent")
FACTS = "memory-budget.json"
WAYS = ("recomputation", "accumulation", "dpro's choice")
SLOWER_PCT = 2.0  # than the better of the two, beside noise


def config_of(recomputed, parts):
    """As bench/train_memory.py takes it."""
    found = (["recompute=" + "+".join(recomputed)] if recomputed else []) + (["accumulate=%d" % parts] if parts > 1 else [])
    return ",".join(found) or "as-is"


def search(dpro, folder, budget, *more):
    """What it takes, and all that it tried; (None, choices): nothing fits."""
    memory = facts_of(dpro, "optimize", folder, "--memory", str(budget), *more, fails=(0, 1))["memory"]
    return (config_of(memory["recompute"], memory["micro_batches"]) if memory["fits"] else None), memory


def choose(dpro, folder):
    """The budget, and a config a way; None: that way does not fit."""
    _, memory = search(dpro, folder, 1 << 50)
    budget = int(SHARE * memory["baseline_peak_bytes"])
    alone, _ = search(dpro, folder, budget, "--no-accumulate")
    chosen, memory = search(dpro, folder, budget)
    parts = [choice for choice in memory["choices"] if choice["fits"] and not choice["recomputed"] and choice["micro_batches"] > 1]
    fewest = min((choice["micro_batches"] for choice in parts), default=1)
    return budget, dict(zip(WAYS, (alone, config_of([], fewest) if parts else None, chosen)))


def predict(dpro, folder, truth, config):
    facts = facts_of(dpro, "whatif", folder, *options_of(truth, config))
    return {"predicted_ratio": facts["predicted"]["iteration_ms"] / facts["baseline"]["iteration_ms"],
            "predicted_bytes": facts["memory"]["peak_bytes"]}


def measure(dpro, folder, model, peaks_of, ratios_of, load):
    """What was predicted and measured, which is written beside the recording, too. `peaks_of` and `ratios_of` run configs."""
    budget, ways = choose(dpro, folder)
    others = sorted({config for config in ways.values() if config and config != "as-is"})
    peaks = peaks_of(["as-is", *others])
    own = dict.fromkeys(("ratio", "cpu_ratio"), 1.0) | dict.fromkeys(("ratio_noise", "cpu_ratio_noise"), 0.0)
    times = {"as-is": own, **ratios_of(others)}
    rows = {config: {"measured_bytes": max(max(rank["peak"]) for rank in peaks["configs"][config]),
                     **predict(dpro, folder, peaks, config), **times[config]} for config in times}
    facts = {"model": model, "budget_bytes": budget, "ways": ways, "configs": rows, "load": round(load(), 1)}
    with open(os.path.join(folder, FACTS), "w", encoding="utf-8") as file:
        json.dump(facts, file, indent=1)
        file.write("\n")
    return facts


def slower_pct(facts, key):
    """How much slower dpro's choice was than the best way that fits, in %, and the noise of that; None: there is no other."""
    rows, ways = facts["configs"], facts["ways"]
    others = [rows[ways[way]] for way in WAYS[:2] if ways[way]]
    if not others or not ways[WAYS[2]]:
        return None
    best, chosen = min(others, key=lambda row: row[key]), rows[ways[WAYS[2]]]
    return 100 * (chosen[key] / best[key] - 1), 100 * (chosen[key + "_noise"] ** 2 + best[key + "_noise"] ** 2) ** 0.5


def print_table(tables, busy):
    """Returns what is outside of its target."""
    key, missed = "cpu_ratio" if busy else "ratio", []
    for facts in tables:
        lines = []
        for way, config in facts["ways"].items():
            row = config and facts["configs"][config]
            if not row:
                lines.append((way, "does not fit"))
                continue
            lines.append((way, fixed(row["predicted_ratio"], 3), fixed(row[key], 3), fixed(2 * row[key + "_noise"], 3),
                          fixed(row["predicted_bytes"] / 1e6), fixed(row["measured_bytes"] / 1e6), config))
            if row["measured_bytes"] > facts["budget_bytes"]:
                missed.append("%s, %s: %.1f MB do not fit" % (facts["model"], way, row["measured_bytes"] / 1e6))
        show("%s: %.1f MB as it is, to fit %.1f MB, %d %% of the peak; time as a ratio to the job as it is%s" % (
            facts["model"], facts["configs"]["as-is"]["measured_bytes"] / 1e6, facts["budget_bytes"] / 1e6, 100 * SHARE,
            " (of the ranks' own work: the machine was busy)" if busy else ""),
             ("way", "predicted:", "measured:", "±:", "MB predicted:", "measured:", "config"), lines)
        slower = slower_pct(facts, key)
        if slower and slower[0] > SLOWER_PCT + 2 * slower[1]:
            missed.append("%s: dpro's choice is %.1f %% slower than the better way (noise %.1f)" % (facts["model"], *slower))
    return missed
