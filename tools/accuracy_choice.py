"""What `dpro optimize` chooses against the rows of its own table, and what Algorithm 1 alone and the search without each of its
speed-ups find, on every recording that has buckets to choose."""
import os

from figures import ask, off

MOST_OFF_PCT = 0.5  # a simpler strategy may take so much longer, or half a standard error of the difference
WAYS = {"Algorithm 1": ["--algorithm", "paper"], "not coarsened": ["--no-coarsen"], "no symmetry": ["--no-symmetry"]}


def choice_row(dpro, folder):
    """One recording; None where no plan can be made of it."""
    facts, problem = ask(dpro, "optimize", folder)
    if problem or not facts["baselines"]:
        return None
    best, rows = facts["best"], {baseline["name"]: baseline["iteration_ms"] for baseline in facts["baselines"]}
    least = min(rows, key=rows.get)
    row = {"trace": os.path.basename(folder), "own_ms": facts["replayed_ms"], "chosen_ms": best["iteration_ms"],
           "fastest_ms": best["found_ms"], "row": least, "row_ms": rows[least], "off_pct": off(best["iteration_ms"], rows[least]),
           "seconds": facts["search"]["seconds"], "ways": {}}
    for name, options in WAYS.items():
        other, problem = ask(dpro, "optimize", folder, *options)
        row["ways"][name] = {"problem": problem, "off_pct": other and off(other["best"]["found_ms"], best["found_ms"]),
                             "seconds": other and other["search"]["seconds"]}
    return row


def print_choice(rows):
    head = ("trace", "as it ran", "chosen", "fastest", "best row", "chosen %", "seconds", *(name + " %, s" for name in WAYS))
    lines = [head]
    for row in rows:
        lines.append((row["trace"], "%.1f" % row["own_ms"], "%.1f" % row["chosen_ms"], "%.1f" % row["fastest_ms"],
                      "%.1f %s" % (row["row_ms"], row["row"]), "%+.2f%s" % (row["off_pct"], "!" if row["off_pct"] > MOST_OFF_PCT else " "),
                      "%.2f" % row["seconds"],
                      *("%+.2f %5.2f" % (way["off_pct"], way["seconds"]) if not way["problem"] else "-" for way in row["ways"].values())))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    print()
    for line in lines:
        print("%-*s  %s" % (widths[0], line[0], "  ".join("%*s" % pair for pair in zip(widths[1:], line[1:]))))
    print("choice: ms by the model, expected; chosen %%: against the best row of the table, ! over %g %%, which is allowed within half a "
          "standard error;\nAlgorithm 1 and the search without a speed-up: what was found against the fastest, %%, and seconds\n"
          "%d of %d choices within %g %% of the best row" % (
              MOST_OFF_PCT, sum(row["off_pct"] <= MOST_OFF_PCT for row in rows), len(rows), MOST_OFF_PCT))
