"""What draws itself: as SVG in a notebook, and by matplotlib with plot(), where it is there."""
from __future__ import annotations

import html

from . import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List
    _Dicts = List[Dict[str, Any]]
else:
    _Dicts = list

COLOURS = {"forward": "#4c78a8", "backward": "#72b7b2", "update": "#eeca3b", "input": "#b279a2", "exposed_communication": "#e45756",
           "wait_for_peers": "#ff9da6", "idle": "#d4d4d4", "ideal": "#54a24b", "blame": "#e45756", "as it ran": "#9d9da1",
           "changed": "#4c78a8"}
_LINES = ("#4c78a8", "#e45756", "#54a24b", "#eeca3b", "#b279a2", "#72b7b2", "#ff9da6", "#9d9da1")
_PARTS = {"FW": "forward", "BW": "backward", "UPDATE": "update", "INPUT": "input", "SEND": "exposed_communication",
          "RECV": "exposed_communication", "COLLECTIVE": "exposed_communication", "BARRIER": "wait_for_peers"}
_WIDTH, _LEFT, _RIGHT, _MOST_LANES = 560, 250, 170, 32


class Drawn:
    """A picture with the text below it. _picture(): Lanes or Lines; None: nothing to draw."""

    def _picture(self) -> Any:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return "%s<pre>%s</pre>" % (svg_of(self), html.escape(str(self)))

    def plot(self, axes: Any = None) -> Any:
        """Draws it by matplotlib, into `axes` or new ones, which it returns."""
        picture = self._picture()
        if picture is None:
            raise frames.Error("plot: there is nothing to draw")
        plt = frames.needed("matplotlib.pyplot", "plot()")
        if axes is None:
            axes = plt.subplots(figsize=(10, picture.height / 60 + 1), layout="constrained")[1]
        picture.plot(axes)
        return axes


def svg_of(drawn):
    picture = drawn._picture()
    return picture.svg() if picture else ""


class Lanes:
    """Boxes on lanes, lengths in ms: lanes: [(label, [(part, start, length, told)], what stands behind it)]; a part that is in
    COLOURS has its colour; `legend`: parts that are told by their colours only."""

    def __init__(self, lanes, legend=()):
        self.lanes, self.legend = lanes[:_MOST_LANES], legend
        self.height = 22 * (len(self.lanes) + (len(legend) + 3) // 4) + 8

    def svg(self):
        scale = _WIDTH / (max((start + length for _, boxes, _ in self.lanes for _, start, length, _ in boxes), default=0) or 1)
        svg = _Svg(self.height)
        for number, (label, boxes, behind) in enumerate(self.lanes):
            y = number * 22
            svg.text(_LEFT - 6, y + 15, label if len(label) <= 35 else label[:34] + "\u2026", "end")
            for part, start, length, told in boxes:
                svg.box(_LEFT + start * scale, y + 3, length * scale, part, "%s: %.3f ms" % (told, length))
            svg.text(_LEFT + max((start + length for _, start, length, _ in boxes), default=0) * scale + 4, y + 15, behind, "start")
        for number, part in enumerate(self.legend):
            x, y = _LEFT + number % 4 * 180, (len(self.lanes) + number // 4) * 22 + 4
            svg.box(x, y, 12, part, part)
            svg.text(x + 16, y + 13, part.replace("_", " "), "start")
        return str(svg)

    def plot(self, axes):
        for number, (_, boxes, _) in enumerate(self.lanes):
            axes.broken_barh([(start, length) for _, start, length, _ in boxes], (number - 0.4, 0.8),
                             facecolors=[COLOURS.get(part, COLOURS["blame"]) for part, *_ in boxes])
        for part in self.legend:
            axes.barh(0, 0, color=COLOURS[part], label=part.replace("_", " "))
        axes.set_yticks(range(len(self.lanes)), [label for label, *_ in self.lanes])
        axes.invert_yaxis()
        axes.set_xlabel("ms")
        if self.legend:
            axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2))


class Lines:
    """Curves: [(label, [(x, y)])]; `steps`: a value holds until the next one; `from_0`: y begins at 0."""
    height = 260

    def __init__(self, lines, x, y, steps=False, from_0=False):
        self.lines, self.x, self.y, self.steps, self.from_0 = lines[:_MOST_LANES], x, y, steps, from_0

    def svg(self):
        xs, ys = ([point[i] for _, points in self.lines for point in points] for i in (0, 1))
        x0, x1, y0, y1 = min(xs), max(xs), 0 if self.from_0 else min(ys), max(ys)
        svg = _Svg(self.height)

        def place(x, y):
            return _LEFT + (x - x0) / (x1 - x0 or 1) * _WIDTH, 210 - (y - y0) / (y1 - y0 or 1) * 190

        for number, (label, points) in enumerate(self.lines):
            colour, at = _LINES[number % len(_LINES)], [place(*point) for point in points]
            if self.steps:
                at = [corner for one, then in zip(at, [*at[1:], at[-1]]) for corner in (one, (then[0], one[1]))]
            svg.line(at, colour, label)
            svg.text(_LEFT + _WIDTH + 6, at[-1][1] + 4, label, "start", colour)
        for x in (x0, x1):
            svg.text(place(x, y0)[0], 228, "%.6g" % x, "middle")
        for y in (y0, y1):
            svg.text(_LEFT - 6, place(x0, y)[1] + 4, "%.6g" % y, "end")
        svg.text(_LEFT + _WIDTH / 2, 246, self.x, "middle")
        svg.text(_LEFT - 6, 115, self.y, "end")
        return str(svg)

    def plot(self, axes):
        for label, points in self.lines:
            axes.plot(*zip(*points), label=label, drawstyle="steps-post" if self.steps else "default")
        axes.set_xlabel(self.x)
        axes.set_ylabel(self.y)
        if self.from_0:
            axes.set_ylim(bottom=0)
        axes.legend()


class _Svg:
    def __init__(self, height):
        self.height, self.parts = height, []

    def text(self, x, y, words, anchor, colour="currentColor"):
        self.parts.append('<text x="%.0f" y="%.0f" text-anchor="%s" font-size="12" fill="%s">%s</text>' %
                          (x, y, anchor, colour, html.escape(words)))

    def box(self, x, y, width, part, told):
        self.parts.append('<rect x="%.1f" y="%d" width="%.1f" height="16" fill="%s"><title>%s</title></rect>' %
                          (x, y, max(width, 0.5), COLOURS.get(part, COLOURS["blame"]), html.escape(told)))

    def line(self, points, colour, told):
        self.parts.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"><title>%s</title></polyline>' %
                          (" ".join("%.1f,%.1f" % point for point in points), colour, html.escape(told)))

    def __str__(self):
        return '<svg width="%d" height="%d" role="img">%s</svg>' % (_LEFT + _WIDTH + _RIGHT, self.height, "".join(self.parts))


def one_behind_the_other(label, parts):
    """A lane of (part, length)."""
    boxes, at = [], 0
    for part, length in parts:
        boxes.append((part, at, length, part))
        at += length
    return label, boxes, "%.2f ms" % at


def ops(lanes):
    """Of {label: [(start, end, kind, name)]} of ops, in ms; what is too short to be seen is drawn as one with its neighbours."""
    pixel, drawn = max((op[1] for found in lanes.values() for op in found), default=0) / _WIDTH, []
    for label, found in lanes.items():
        boxes = []
        for start, end, kind, name in sorted(found):
            part = _PARTS.get(kind, "idle")
            if boxes and start < boxes[-1][1] + boxes[-1][2] + pixel / 2 and (end - start < pixel or boxes[-1][0] == part):
                boxes[-1] = (boxes[-1][0], boxes[-1][1], max(end, boxes[-1][1] + boxes[-1][2]) - boxes[-1][1], boxes[-1][3])
            else:
                boxes.append((part, start, end - start, name))
        drawn.append((label, boxes, ""))
    return Lanes(drawn, [part for part in dict.fromkeys(_PARTS.values()) if any(box[0] == part for _, boxes, _ in drawn for box in boxes)])


def answer(of):
    """The picture of an answer of the library, by its schema."""
    schema = of.get("schema", "").partition("/")[0]
    if schema == "dpro.replay":
        return breakdown(of["ranks"])
    if schema == "dpro.diagnose":
        lanes, at = [one_behind_the_other("ideal", [("ideal", of["ideal_ms"])])], of["ideal_ms"]
        for cause in of["causes"]:
            lanes.append((cause["cause"].replace("_", " "), [(cause["cause"], at + min(cause["blame_ms"], 0), abs(cause["blame_ms"]),
                                                             cause["title"])], "%+.2f ms" % cause["blame_ms"]))
            at += cause["blame_ms"]
        return Lanes([*lanes, one_behind_the_other("iteration", [("as it ran", of["iteration_ms"])])])
    if schema == "dpro.whatif" and of.get("predicted"):
        return Lanes([one_behind_the_other(name, [(name, of[key]["iteration_ms"])])
                      for name, key in (("as it ran", "baseline"), ("changed", "predicted"))])
    if schema == "dpro.optimize":
        return Lanes([one_behind_the_other(row["name"], [("changed", row["iteration_ms"])])
                      for row in of["baselines"] if row.get("iteration_ms")])
    return None


def breakdown(ranks):
    parts = list(COLOURS)[:7]
    return Lanes([one_behind_the_other("rank %d" % rank["rank"], [(part, rank[part + "_ms"]) for part in parts]) for rank in ranks], parts)


def critical_path(path):
    lanes = {}
    for op in path:
        if op["device"]:
            process = op.get("process") or "rank %s" % op["rank"]
            lanes.setdefault("%s: %s" % (process, op["device"]), []).append(
                (op["start_ms"], op["start_ms"] + op["duration_ms"], op["kind"], op["name"]))
    return ops(dict(sorted(lanes.items())))


def curves(rows, x):
    """Of Job.curve(): a line for each setting of the other keywords."""
    lines = {}
    for row in rows:
        label = ", ".join("%s=%s" % (name, value) for name, value in row.items() if name not in (x, "iteration_ms"))
        at = row[x] if isinstance(row[x], (int, float)) else len(lines.get(label, ()))
        lines.setdefault(label or "iteration_ms", []).append((at, row["iteration_ms"]))
    return Lines([(label, sorted(points)) for label, points in lines.items()], x, "ms")


class Rows(Drawn, _Dicts):
    """A list of dicts that prints and draws itself. `picture`: a function of it."""

    def __init__(self, rows, picture):
        super().__init__(rows)
        self._draw = picture

    def _picture(self):
        return self._draw(self) if self else None

    def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return frames.needed("pandas", "to_pandas()").DataFrame(list(self))

    def __repr__(self):
        shown = self[:20]
        names = list(dict.fromkeys(name for row in shown for name in row))
        cells = [names, *([("%.3f" % value if isinstance(value, float) else "" if value is None else str(value))[:40]
                           for value in map(row.get, names)] for row in shown)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in cells]
        return "\n".join(lines + ["... %d rows in all" % len(self)] * (len(self) > 20))

    __str__ = __repr__
