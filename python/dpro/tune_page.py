"""The page of a tuned job, tune.html in the plan's folder: what tune.json says, to look at. It needs nothing else, no script either."""
import html
import os

from . import files
from .applied import size_text

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #191c21; --dim: #59616d; --line: #dfe3e8; --accent: #0072b2;
  --good: #00795a; --bad: #b63b00; --band: rgba(0, 114, 178, 0.22); }
@media (prefers-color-scheme: dark) { :root { --page: #121418; --card: #1b1e24; --text: #e7eaee; --dim: #9ba4b0; --line: #30353e;
  --accent: #62b5ea; --good: #3ccf9f; --bad: #ff8a50; --band: rgba(98, 181, 234, 0.28); } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font-variant-numeric: tabular-nums;
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 20px 16px 48px; }
h1 { font-size: 20px; margin: 0 0 4px; } h2 { font-size: 15px; margin: 0 0 10px; } h1, h2, p { overflow-wrap: anywhere; }
p { margin: 6px 0; } .dim { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px; margin-top: 16px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 16px; }
.tiles .card { margin: 0; } .value { font-size: 25px; font-weight: 600; line-height: 1.25; }
.one { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 4px 18px; padding: 12px 0;
  border-top: 1px solid var(--line); }
.one:first-of-type { border-top: 0; } .one > div { overflow-wrap: anywhere; } .name { font-weight: 600; }
@media (max-width: 700px) { .one { grid-template-columns: minmax(0, 1fr); } }
svg { display: block; width: 100%; overflow: visible; } .narrow { height: 64px; } .times { height: 150px; }
.key { display: inline-block; margin-right: 12px; }
.scale { display: flex; justify-content: space-between; color: var(--dim); font-size: 12.5px; }
"""
COLOURS = ("#8d95a1", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d52")  # of the baseline, then of finalists
DOT = ('<path d="M%.2f %.2fh0" stroke="%s" stroke-width="6" stroke-linecap="round" vector-effect="non-scaling-stroke">'
       "<title>%s</title></path>")


def write(path, told, text):
    """`told`: as tune.json; `text`: what was said last."""
    files.Folder.write_text(path, page(told, text))


def page(told, text):
    race, promised = told["race"], {one["name"]: one for one in told["finalists"]}
    names = sorted(race["names"], key=lambda name: (
        name != race["winner"], race["names"][name]["blocks"] == 0, -race["names"][name]["saves_pct"]))
    return "".join((
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'">'
        "<title>dpro tune</title><style>", STYLE, "</style></head><body><main><h1>dpro tune</h1>",
        "<p>%s</p>" % html.escape(text[:1].upper() + text[1:]), _tiles(told, promised),
        '<section class="card"><h2>What finalists save of a step, block by block</h2>', *(
            _finalist(name, race["names"][name], promised.get(name, {}), told["history"], race["winner"]) for name in names),
        '</section><section class="card"><h2>%s</h2>' % ("Runs" if told.get("restarts") else "Turns"), _times(told["turns"], names),
        '</section><p class="dim">Intervals hold whenever one looks, 95 % sure for all finalists together. All turns are in tune.json.</p>'
        "</main></body></html>\n"))


def _tile(label, value, note, kind=""):
    return '<div class="card"><div class="dim">%s</div><div class="value %s">%s</div><div class="dim">%s</div></div>' % (
        label, kind, html.escape(value), html.escape(note))


def cost_text(cost_pct, compile_s):
    return "which took %.1f %% %s than as it ran%s" % (
        abs(cost_pct), "longer" if cost_pct >= 0 else "less", ", and %.1f s to compile" % compile_s if compile_s else "")


def _tiles(told, promised):
    race = told["race"]
    won, tiles = race["names"].get(race["winner"]), []
    if won:
        tiles.append(_tile("saved of a step", "%.1f %%" % won["saves_pct"], "by %s; %s" % (race["winner"], _interval(won)), "good"))
        expected = promised.get(race["winner"], {}).get("promised_pct")
        if expected is not None:
            tiles.append(_tile("expected", "%.1f %%" % expected, "by the model, before any turn"))
    else:
        tiles.append(_tile("fastest", "as it was", race["why"] or "not decided"))
    tiles.append(_tile("how sure that is", "%.1f %%" % (100 * race["sure"]),
                       "after %d block%s" % (race["blocks"], "s" if race["blocks"] != 1 else "")))
    cost = told.get("cost_pct")
    note = "" if cost is None else cost_text(cost, told.get("compile_s"))
    tiles.append(_tile("steps of turns", str(race["steps"]), note or "of %d at most" % race["budget_steps"]))
    return '<div class="tiles">%s</div>' % "".join(tiles)


def _interval(one):
    return "%.1f to %.1f" % (one["low_pct"], one["high_pct"]) if one["low_pct"] is not None else "no interval yet"


def _finalist(name, one, promised, history, winner):
    """Its numbers, and a band that narrows."""
    given = " ".join("%s=%s" % item for item in promised.get("environment", {}).items() if item[0] != "DPRO_PLAN")
    title = '<div class="name">%s</div>%s' % (html.escape(name), "<div>%s</div>" % html.escape(given) if given not in ("", name) else "")
    state = "the job goes on with it" if name == winner else one["why"]
    expected = "; expected %.1f (&plusmn; %.1f)" % (promised["promised_pct"], promised["promised_half_pct"]) \
        if promised.get("promised_half_pct") is not None else ""
    if one["blocks"] == 0:
        return '<div class="one"><div>%s</div><div class="dim">not measured: %s%s</div></div>' % (title, html.escape(state), expected)
    seen = [(n, block[name]) for n, block in enumerate(history) if name in block]
    return ('<div class="one"><div>%s<div>%.1f %% <span class="dim">(%s)%s</span></div>'
            '<div class="dim">%s; %d block%s%s</div></div><div>%s</div></div>') % (
        title, one["saves_pct"], _interval(one), expected, html.escape(state), one["blocks"], "s" if one["blocks"] != 1 else "",
        "; %s at most" % size_text(one["peak_bytes"]) if one.get("peak_bytes") else "", _band(seen, len(history), *_scale(history)))


def _scale(history):
    """All means and 0, and intervals as far as they are of use."""
    means = [0, *(mean for block in history for mean, _, _ in block.values())]
    ends = [end for block in history for _, low, high in block.values() if low is not None for end in (low, high)]
    room = max(5, max(means) - min(means))
    return max(min(means + ends), min(means) - room) - 1, min(max(means + ends), max(means) + room) + 1


def _band(seen, n_blocks, least, most):
    def x(block):
        return 100 * (block + 0.5) / max(1, n_blocks)

    def y(value):
        return 100 * (most - max(least, min(most, value))) / (most - least)

    known = [(n, low, high) for n, (_, low, high) in seen if low is not None]
    shapes = ['<path d="M0 %.2fH100" stroke="var(--dim)" stroke-dasharray="3 3" vector-effect="non-scaling-stroke"/>' % y(0)]
    if known:
        outline = [(x(n), y(high)) for n, _, high in known] + [(x(n), y(low)) for n, low, _ in reversed(known)]
        shapes.append('<path d="M%sZ" fill="var(--band)"/>' % "L".join("%.2f %.2f" % at for at in outline))
    if seen:
        line = "L".join("%.2f %.2f" % (x(n), y(mean)) for n, (mean, _, _) in seen)
        shapes.append('<path d="M%s" fill="none" stroke="var(--accent)" stroke-width="2" vector-effect="non-scaling-stroke"/>' % line)
        shapes += [DOT % (x(n), y(mean), "var(--accent)", "block %d: %.1f %%" % (n + 1, mean)) for n, (mean, _, _) in seen]
    return ('<svg class="narrow" viewBox="0 0 100 100" preserveAspectRatio="none">%s</svg><div class="scale"><span>block 1</span>'
            "<span>%s to %s %%; dashes: as it ran</span><span>block %d</span></div>") % (
        "".join(shapes), _signed(least), _signed(most), max(1, n_blocks))


def _signed(value):
    return ("%.0f" % value).replace("-", "&minus;")


def _times(turns, names):
    """What a step took in each turn, in their order."""
    turns = [turn for turn in turns if turn["step_ns"]]
    if not turns:
        return "<p>none was measured</p>"
    ms = [sum(turn["step_ns"]) / len(turn["step_ns"]) / 1e6 for turn in turns]
    least, most = min(ms), max(ms)
    names = [name for name in names if any(turn["name"] == name for turn in turns)]
    colours = {name: COLOURS[1 + i % (len(COLOURS) - 1)] for i, name in enumerate(names)}
    dots = [DOT % (100 * (i + 0.5) / len(turns), 95 - 90 * (one - least) / ((most - least) or 1), colours.get(turn["name"], COLOURS[0]),
                   html.escape("%s: %.1f ms" % (turn["name"], one))) for i, (turn, one) in enumerate(zip(turns, ms))]
    legend = " ".join('<span class="key"><span style="color:%s">&#9679;</span> %s</span>' % (
        colours.get(name, COLOURS[0]), html.escape(name)) for name in ("as it ran", *names))
    return ('<p class="dim">%s</p><svg class="times" viewBox="0 0 100 100" preserveAspectRatio="none">%s</svg>'
            '<div class="scale"><span>first turn</span><span>%.1f to %.1f ms a step</span><span>last</span></div>') % (
                legend, "".join(dots), least, most)


def of_state(state):
    """What a block adds to the history: mean and interval of those that were measured in it."""
    return {name: (one["saves_pct"], one["low_pct"], one["high_pct"]) for name, one in state["names"].items()
            if one["in_last_block"]}


def path_in(folder):
    return os.path.join(folder, "tune.html")
