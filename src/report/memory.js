/* memory.js: what each rank holds over the replayed iteration, on a canvas that moves with the timeline
   above it, and who holds it at the peak. Names come from traces: they are only ever set as text. */
"use strict";

/* "blocks.0" of "blocks.0.mlp.0": what a repeated block consists of is one */
const wholeBlock = (module) => (module.match(/^.*?(^|\.)\d+(?=\.|$)/) || [module])[0];

/* Turns the page's columns into arrays: held[c][i] up to and with category c from at[i] on. */
function decodeMemory(ranks, facts) {
  const byRank = new Map(facts.map((f) => [f.rank, f]));
  return ranks.map((r) => {
    const at = undelta(r.at), names = Object.keys(MEMORY_COLOR).filter((c) => r.held[c]);
    const own = names.map((c) => undelta(r.held[c])), held = [];
    let below = new Float64Array(at.length);
    for (const column of own) held.push((below = below.map((v, i) => v + column[i])));
    return { rank: r.rank, at, names, own, held, total: below, fact: byRank.get(r.rank) };
  });
}

class MemoryTimeline {
  constructor(canvas, ranks, timeline, onHover) {
    Object.assign(this, { canvas, ranks, timeline, onHover });
    this.context = canvas.getContext("2d");
    this.row = 92;
    this.most = Math.max(1, ...ranks.map((r) => Math.max(r.fact.peak_bytes, ...r.total)));
    const highest = [...ranks].sort((a, b) => b.fact.peak_bytes - a.fact.peak_bytes);
    this.few = ranks.length <= 4 ? ranks : [highest[0], highest[highest.length - 1]];
    this.shown = this.few;
    canvas.addEventListener("pointermove", (e) => this.hover(e));
    canvas.addEventListener("pointerleave", (e) => this.onHover(null, e));
    canvas.addEventListener("dblclick", () => timeline.fitAll());
  }

  showAll(all) { this.shown = all ? this.ranks : this.few; this.draw(); }

  /* the same time stands below the same time */
  draw() {
    const t = this.timeline, c = this.context, width = t.width, height = this.shown.length * this.row;
    const w = Math.round(width * t.ratio), h = Math.round(height * t.ratio);
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
      this.canvas.style.height = height + "px";
    }
    const style = getComputedStyle(document.documentElement);
    this.color = (name) => style.getPropertyValue("--" + name).trim();
    c.setTransform(t.ratio, 0, 0, t.ratio, 0, 0);
    c.fillStyle = this.color("card");
    c.fillRect(0, 0, width, height);
    c.font = t.font;
    c.textBaseline = "middle";
    c.textAlign = "left";
    this.shown.forEach((r, i) => this.drawRank(r, i * this.row));
  }

  y(bytes, top) { return top + 6 + (1 - bytes / this.most) * (this.row - 14); }

  drawRank(r, top) {
    const t = this.timeline, c = this.context, bottom = this.y(0, top);
    t.label.call({ context: c, font: t.font, fit: t.fit }, "rank " + r.rank, 8, top + 14, t.gutter - 16, this.color("text"), true);
    const lines = ["peak " + bytes(r.fact.peak_bytes)];
    if (r.fact.measured_peak_bytes) lines.push((t.narrow ? "meas. " : "measured ") + bytes(r.fact.measured_peak_bytes));
    if (r.fact.reserved_peak_bytes) lines.push("reserved " + bytes(r.fact.reserved_peak_bytes));
    if (r.fact.capacity_bytes) lines.push("of " + bytes(r.fact.capacity_bytes));
    c.fillStyle = this.color("dim");
    lines.forEach((line, i) => c.fillText(t.fit.call({ context: c }, line, t.gutter - 16), 8, top + 34 + i * 16));
    c.save();
    c.beginPath();
    c.rect(t.gutter, top, t.width - t.gutter, this.row);
    c.clip();
    c.fillStyle = this.color("soft");
    for (const at of t.ticks().at) c.fillRect(Math.round(t.x(at)), top, 1, this.row);
    const columns = this.columns(r);
    for (let k = r.names.length - 1; k >= 0; k--) {
      c.fillStyle = this.color(MEMORY_COLOR[r.names[k]]);
      c.beginPath();
      c.moveTo(t.gutter, bottom);
      for (const [x, i] of columns) {
        const y = this.y(r.held[k][i], top);
        c.lineTo(x, y);
        c.lineTo(x + columns.width, y);
      }
      c.lineTo(t.width, bottom);
      c.fill();
    }
    this.drawPeak(r, top, bottom);
    c.restore();
    c.fillStyle = this.color("line");
    c.fillRect(t.gutter, Math.round(bottom), t.width - t.gutter, 1);
  }

  /* For each pixel the point in it at which most is held, or the last before it. */
  columns(r) {
    const t = this.timeline, out = [];
    let i = Math.max(0, upperBound(r.at, t.t0) - 1);
    for (let x = t.gutter; x < t.width; x++) {
      const end = t.t(x + 1);
      let best = i;
      while (i + 1 < r.at.length && r.at[i + 1] < end) {
        i++;
        if (r.total[i] > r.total[best]) best = i;
      }
      out.push([x, best]);
    }
    out.width = 1;
    return out;
  }

  drawPeak(r, top, bottom) {
    const t = this.timeline, c = this.context, at = r.fact.at.ms;
    const y = this.y(r.fact.peak_bytes, top), x = at === null ? t.x(r.at[0]) : t.x(at * 1e6);
    c.strokeStyle = c.fillStyle = this.color("mark");
    c.setLineDash([3, 3]);
    c.beginPath();
    c.moveTo(x, y);
    c.lineTo(x, bottom);
    c.moveTo(t.gutter, y);
    c.lineTo(t.width, y);
    c.stroke();
    c.setLineDash([]);
    c.beginPath();
    c.moveTo(x - 5, y - 6);
    c.lineTo(x + 5, y - 6);
    c.lineTo(x, y + 1);
    c.fill();
  }

  hover(e) {
    const box = this.canvas.getBoundingClientRect(), t = this.timeline;
    const x = e.clientX - box.left, r = this.shown[Math.floor((e.clientY - box.top) / this.row)];
    if (!r || x < t.gutter) return this.onHover(null, e);
    const [, i] = this.columns(r)[Math.min(Math.floor(x - t.gutter), Math.floor(t.width - t.gutter) - 1)];
    const rows = r.names.map((name, k) => [memoryWords(name), bytes(r.own[k][i]), r.own[k][i]]);
    this.onHover({ rank: r.rank, at: t.t(x), total: r.total[i],
      rows: rows.filter((row) => row[2] > 0).reverse().map((row) => row.slice(0, 2)) }, e);
  }
}

/* The card; null where nothing is known. */
function memoryCard(report, data) {
  const memory = report.memory;
  if (!memory) return null;
  const ranks = decodeMemory(data.memory, memory.ranks), canvas = el("canvas"), holding = el("div");
  const highest = memory.ranks.reduce((a, b) => (b.peak_bytes > a.peak_bytes ? b : a));
  canvas.setAttribute("aria-label", "what each rank holds over the replayed iteration");
  let view = null, whole = true, shown = highest;

  function place(r) {
    if (r.at.op === null) return "when the iteration begins";
    const of = r.at.module === null ? "" : " of " + (r.at.module || "the model");
    return ns(Math.round(r.at.ms * 1e6)) + " into the iteration" + (r.at.phase ? ", in " + r.at.phase + of : "") + " (" + r.at.op + ")";
  }

  function holders() {
    const r = shown, MOST = 12, modules = new Map();
    for (const h of r.holders) {
      const name = h.module === null ? "no module" : (whole ? wholeBlock(h.module) : h.module) || "the model itself";
      if (!modules.has(name)) modules.set(name, { name, bytes: 0, blocks: 0, parts: {} });
      const m = modules.get(name), part = (m.parts[h.category] = m.parts[h.category] || { bytes: 0, blocks: 0 });
      for (const sum of [m, part]) {
        sum.bytes += h.bytes;
        sum.blocks += h.blocks;
      }
    }
    const list = [...modules.values()].sort((a, b) => b.bytes - a.bytes);
    const rest = r.peak_bytes - list.slice(0, MOST).reduce((sum, m) => sum + m.bytes, 0);
    const parts = (m) => Object.keys(MEMORY_COLOR).filter((c) => m.parts[c]).map((c) => [m.name, m.parts[c].bytes, MEMORY_COLOR[c],
      [[memoryWords(c), bytes(m.parts[c].bytes)], ["blocks", String(m.parts[c].blocks)]]]);
    holding.replaceChildren(el("h3", "", "Who holds the peak of rank " + r.rank + ", " + bytes(r.peak_bytes) + ", " + place(r)), table([
      { title: "module", className: "op", cell: (m) => middle(m.name) }, { title: "holds", num: true, cell: (m) => bytes(m.bytes) },
      { title: "share", num: true, cell: (m) => pct(share(m.bytes, r.peak_bytes)) },
      { title: "of it", className: "held", cell: (m) => bar(parts(m), list[0].bytes) },
      { title: "blocks", num: true, cell: (m) => String(m.blocks) }], list.slice(0, MOST)),
      ...(rest > 0 ? [el("p", "dim", "Other modules hold " + bytes(rest) + "; replay.json has more.")] : []));
  }

  const listed = memory.ranks.slice(0, 512), ofRank = choice("rank", listed.map((r) => "rank " + r.rank), (at) => {
    shown = listed[at];
    holders();
  });
  ofRank.selectedIndex = listed.indexOf(highest);
  holders();
  const used = Object.keys(MEMORY_COLOR).filter((c) => ranks.some((r) => r.names.includes(c)));
  const drawn = ranks.length < memory.ranks.length ? " The " + ranks.length + " ranks with the highest peaks of " + memory.ranks.length + " can be drawn." : "";
  const section = card(null, el("div", "bar-tools", el("h2", "", "Memory"),
    ranks.length > 4 ? toggle("all ranks", false, (on) => view.showAll(on)) : null,
    memory.ranks.some((r) => r.holders.some((h) => h.module && wholeBlock(h.module) !== h.module)) ?
      toggle("whole blocks", true, (on) => { whole = on; holders(); }) : null,
    el("span", "grow"), memory.ranks.length > 1 ? ofRank : null),
    el("div", "", canvas),
    legend(used.map((c) => [MEMORY_COLOR[c], memoryWords(c)])),
    ...memory.ranks.filter((r) => r.growth_bytes).slice(0, 16).map((r) => el("p", "growth", "Rank " + r.rank + " grows by " +
      bytes(r.growth_bytes) + " in each iteration" + (r.grows_since === null ? " from the first recorded one on" : " since iteration " + r.grows_since) +
      ", which is not given back (a leak?). What had come together is part of \"other\".")), holding,
    el("p", "dim", "Known " + memory.note + "." + drawn));

  function start(timeline) {
    view = new MemoryTimeline(canvas, ranks, timeline, (hit, e) => {
      if (!hit) return hideTip();
      showTip(e, "rank " + hit.rank + ": " + bytes(hit.total), [["at", ns(Math.round(hit.at))], ...hit.rows]);
    });
    timeline.options.onDraw = () => view.draw();
    view.draw();
  }
  return { card: section, start };
}
