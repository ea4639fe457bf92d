/* timeline.js: the timeline on a canvas. Each track is three arrays sorted by start; what is in
   view is found by binary search, and slices thinner than a pixel are drawn once a pixel, so that
   the work depends on the screen and not on the trace. */
"use strict";

const KIND_COLOR = {
  FW: "FW", BW: "BW", UPDATE: "UPDATE", INPUT: "INPUT", SEND: "COMM", RECV: "COMM", PUSH: "COMM",
  PULL: "COMM", COLLECTIVE: "COMM", REDUCE: "COPY", COPY: "COPY", LAUNCH: "LAUNCH",
};
const DEVICE_ORDER = [4, 0, 1, 2, 3]; /* by kind: streams first, plain CPU threads last */

/* a parameter server has no rank, but a name */
function processName(data, rank) {
  return (data.processes || {})[rank] || "rank " + rank;
}

function lowerBound(array, value, from) {
  let lo = from || 0, hi = array.length;
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if (array[mid] < value) lo = mid + 1; else hi = mid;
  }
  return lo;
}

function upperBound(array, value) {
  let lo = 0, hi = array.length;
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if (array[mid] <= value) lo = mid + 1; else hi = mid;
  }
  return lo;
}

function undelta(list) {
  const out = new Float64Array(list.length);
  let sum = 0;
  for (let i = 0; i < list.length; i++) out[i] = sum += list[i];
  return out;
}

/* Turns the page's columns into tracks and ops. */
function decodeData(data) {
  const ops = data.ops, n = ops.name.length;
  const zeros = new Uint8Array(n), column = (list) => list || zeros;
  const model = {
    strings: data.strings, kinds: data.kinds, devices: data.devices, processes: data.processes, nOps: n,
    opId: undelta(ops.id), opName: ops.name, opKind: ops.kind, opDevice: ops.device,
    opGap: column(ops.gap), opBytes: column(ops.bytes), opTensor: column(ops.tensor), opModule: column(ops.module),
    collectives: data.collectives, tracks: [], critical: new Uint8Array(n),
    /* where an op is drawn: track and index, -1 when nowhere */
    replayedTrack: new Int32Array(n).fill(-1), replayedAt: new Int32Array(n),
    measuredTrack: new Int32Array(n).fill(-1), measuredAt: new Int32Array(n),
  };
  for (const t of data.tracks) {
    const start = undelta(t.start), op = Int32Array.from(undelta(t.op)), m = start.length;
    const end = new Float64Array(m), lastEnd = new Float64Array(m), waiting = new Int32Array(m).fill(-1);
    let busy = 0, last = -Infinity;
    for (let i = 0; i < m; i++) {
      end[i] = start[i] + t.dur[i];
      last = lastEnd[i] = Math.max(last, end[i]);
    }
    for (let i = 0; i < t.waiting.length; i += 2) waiting[t.waiting[i]] = t.waiting[i + 1];
    for (let i = 0; i < m; i++)
      if (KIND_COLOR[data.kinds[ops.kind[op[i]]]] !== "COMM") busy += t.dur[i]; /* computing */
    const index = model.tracks.length;
    const toTrack = t.replayed ? model.replayedTrack : model.measuredTrack;
    const toAt = t.replayed ? model.replayedAt : model.measuredAt;
    for (let i = 0; i < m; i++)
      if (waiting[i] < 0) { toTrack[op[i]] = index; toAt[op[i]] = i; }
    model.tracks.push({ device: t.device, replayed: !!t.replayed, start, end, lastEnd, op, waiting, busy });
  }
  const start = undelta(data.path.start), op = Int32Array.from(undelta(data.path.op));
  const end = start.map((s, i) => s + data.path.dur[i]);
  for (const o of op) model.critical[o] = 1;
  let last = -Infinity;
  model.path = {
    start, end, op, gap: data.path.gap, lastEnd: end.map((e) => (last = Math.max(last, e))),
    waiting: new Int32Array(op.length).fill(-1), isPath: true, replayed: true,
  };
  return model;
}

class Timeline {
  constructor(canvas, model, options) {
    this.canvas = canvas;
    this.model = model;
    this.options = options; /* iterationNs, onHover, onSelect, onMeasure, onDraw */
    this.context = canvas.getContext("2d");
    this.show = { measured: true, replayed: true, criticalOnly: false, arrows: false };
    this.match = null;
    this.selected = -1;
    this.measuring = false; /* dragging measures a range, else it moves the view */
    this.measured = null; /* [from, to] */
    this.scroll = 0;
    this.gutter = 264;
    this.axis = 26;
    this.ranks = this.groupByRank();
    this.range();
    this.t0 = this.min;
    this.span = this.max - this.min;
    this.readColors();
    this.layout();
    this.listen();
    this.resize();
  }

  groupByRank() {
    const ranks = new Map();
    this.model.devices.forEach(([rank, kind, name], device) => {
      if (!ranks.has(rank)) ranks.set(rank, { rank, devices: [], open: false, path: 0 });
      ranks.get(rank).devices.push({ device, kind, name, tracks: [] });
    });
    const byDevice = [];
    for (const r of ranks.values()) for (const d of r.devices) byDevice[d.device] = d;
    for (const t of this.model.tracks) byDevice[t.device].tracks.push(t);
    const list = [...ranks.values()].sort((a, b) => (a.rank < 0) - (b.rank < 0) || a.rank - b.rank);
    for (const r of list) {
      r.devices = r.devices.filter((d) => d.tracks.length > 0);
      r.devices.sort((a, b) => DEVICE_ORDER[a.kind] - DEVICE_ORDER[b.kind] || a.device - b.device);
      const busy = (d) => Math.max(...d.tracks.map((t) => t.busy));
      r.main = r.devices.reduce((best, d) => {
        if (!best) return d;
        const computes = (x) => (x.kind === 1 ? 2 : x.kind === 0 ? 1 : 0); /* stream, CPU thread, else */
        if (computes(best) !== computes(d)) return computes(best) < computes(d) ? d : best;
        return busy(d) > busy(best) ? d : best;
      }, null);
    }
    const path = this.model.path, byRank = new Map(list.map((r) => [r.rank, r]));
    for (let i = 0; i < path.op.length; i++) {
      const device = this.model.opDevice[path.op[i]];
      if (device >= 0) byRank.get(this.model.devices[device][0]).path += path.end[i] - path.start[i];
    }
    /* a small job is shown whole; of a large one the ranks that hold it up most */
    const most = [...list].sort((a, b) => b.path - a.path || a.rank - b.rank);
    most.slice(0, list.length <= 2 ? 2 : list.length <= 8 ? 2 : 1).forEach((r) => (r.open = true));
    return list;
  }

  range() {
    let min = 0, max = this.options.iterationNs || 0;
    for (const t of this.model.tracks) {
      if (!t.start.length) continue;
      min = Math.min(min, t.start[0]);
      max = Math.max(max, t.lastEnd[t.lastEnd.length - 1]);
    }
    if (max <= min) max = min + 1000;
    const pad = (max - min) * 0.01;
    this.min = min - pad;
    this.max = max + pad;
  }

  readColors() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue("--" + name).trim();
    this.color = {};
    for (const name of ["card", "text", "dim", "line", "soft", "mark", "accent", "IDLE", "WAIT"])
      this.color[name] = get(name);
    this.fill = this.model.kinds.map((k) => get(KIND_COLOR[k] || "LAUNCH"));
    this.ink = this.model.kinds.map((k) => get((KIND_COLOR[k] || "LAUNCH") + "-ink"));
    this.waitFill = this.hatch(get("WAIT"), "rgba(0,0,0,0.35)");
    this.waitInk = get("WAIT-ink");
    this.gapFill = this.hatch(get("soft"), get("dim"));
    this.font = "11px " + get("sans");
  }

  hatch(base, stroke) {
    const tile = document.createElement("canvas"), c = tile.getContext("2d");
    tile.width = tile.height = 6;
    c.fillStyle = base;
    c.fillRect(0, 0, 6, 6);
    c.strokeStyle = stroke;
    c.lineWidth = 1;
    c.beginPath();
    for (const at of [-6, 0, 6]) { c.moveTo(at, 6); c.lineTo(at + 6, 0); }
    c.stroke();
    return this.context.createPattern(tile, "repeat");
  }

  layout() {
    const rows = [{ type: "path", h: 28, track: this.model.path }];
    for (const rank of this.ranks) {
      rows.push({ type: "rank", h: 24, rank });
      if (!rank.open) continue;
      for (const d of rank.devices) {
        const shown = d.tracks.filter((t) => (t.replayed ? this.show.replayed : this.show.measured));
        shown.forEach((track, i) =>
          rows.push({ type: "track", h: 19 + (i === shown.length - 1 ? 5 : 0), track, device: d, rank, first: i === 0 }));
      }
    }
    let y = 0;
    for (const r of rows) { r.y = y; y += r.h; }
    this.rows = rows;
    this.total = y;
  }

  resize() {
    const box = this.canvas.parentElement.clientWidth;
    const wanted = Math.min(this.total + this.axis + 2, Math.max(320, Math.round(window.innerHeight * 0.68)));
    const ratio = window.devicePixelRatio || 1;
    this.width = box;
    this.narrow = box < 640;
    this.gutter = this.narrow ? Math.max(110, Math.round(box * 0.38)) : 264;
    this.height = wanted;
    this.canvas.style.height = wanted + "px";
    this.canvas.width = Math.round(box * ratio);
    this.canvas.height = Math.round(wanted * ratio);
    this.ratio = ratio;
    this.clamp();
    this.redraw();
  }

  relayout() { this.layout(); this.resize(); }

  clamp() {
    const full = this.max - this.min;
    this.span = Math.min(Math.max(this.span, 50), full);
    this.t0 = Math.min(Math.max(this.t0, this.min), this.max - this.span);
    const room = Math.max(0, this.total - (this.height - this.axis));
    this.scroll = Math.min(Math.max(this.scroll, 0), room);
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  x(t) { return this.gutter + ((t - this.t0) / this.span) * (this.width - this.gutter); }
  t(x) { return this.t0 + ((x - this.gutter) / (this.width - this.gutter)) * this.span; }

  draw() {
    const c = this.context, { width, height, gutter, axis } = this;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = this.color.card;
    c.fillRect(0, 0, width, height);
    c.font = this.font;
    c.textBaseline = "middle";
    c.save();
    c.beginPath();
    c.rect(0, axis, width, height - axis);
    c.clip();
    this.drawGrid();
    for (const row of this.rows) {
      const y = axis + row.y - this.scroll;
      if (y + row.h < axis || y > height) continue;
      if (row.type === "rank") this.drawRankRow(row, y);
      else if (row.type === "path") this.drawPathRow(row, y);
      else this.drawTrackRow(row, y);
    }
    if (this.show.arrows) this.drawArrows();
    this.drawScrollbar();
    c.restore();
    this.drawAxis();
    this.drawRange();
    if (this.options.onDraw) this.options.onDraw();
  }

  ticks() {
    const want = this.span / Math.max(2, (this.width - this.gutter) / 110);
    const power = Math.pow(10, Math.floor(Math.log10(want)));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= want);
    const out = [];
    for (let i = Math.ceil(this.t0 / step); i * step <= this.t0 + this.span; i++) out.push(i * step);
    return { step, at: out };
  }

  drawGrid() {
    const c = this.context;
    c.fillStyle = this.color.soft;
    for (const t of this.ticks().at) c.fillRect(Math.round(this.x(t)), this.axis, 1, this.height);
  }

  drawAxis() {
    const c = this.context, { step, at } = this.ticks();
    c.fillStyle = this.color.card;
    c.fillRect(0, 0, this.width, this.axis);
    const [unit, name] = step >= 1e5 ? [1e6, "ms"] : step >= 100 ? [1e3, "µs"] : [1, "ns"];
    const digits = Math.max(0, Math.min(3, -Math.floor(Math.log10(step / unit) + 1e-9)));
    c.textAlign = "left";
    c.fillStyle = this.color.dim;
    const predicted = "predicted end", end = this.x(this.options.iterationNs) + 4;
    const from = end - c.measureText(predicted).width - 8;
    for (const t of at) {
      const x = this.x(t);
      if (x < this.gutter) continue;
      c.fillRect(Math.round(x), this.axis - 5, 1, 5);
      const text = (t / unit).toFixed(digits) + " " + name;
      const right = x + 4 + c.measureText(text).width;
      if (right < this.width && !(right > from && x < end && this.options.iterationNs >= 0)) c.fillText(text, x + 4, 10);
    }
    c.fillRect(0, this.axis - 1, this.width, 1);
    this.drawMarker(0, "");
    this.drawMarker(this.options.iterationNs, predicted);
  }

  drawMarker(t, text) {
    const c = this.context, x = Math.round(this.x(t));
    if (!(t >= 0) || x < this.gutter || x > this.width) return;
    c.save();
    c.strokeStyle = this.color.accent;
    c.setLineDash([4, 3]);
    c.beginPath();
    c.moveTo(x + 0.5, this.axis);
    c.lineTo(x + 0.5, this.height);
    c.stroke();
    c.restore();
    if (!text) return;
    const w = c.measureText(text).width;
    c.fillStyle = this.color.accent;
    c.fillText(text, x - w - 2, 10);
  }

  drawRange() {
    if (!this.measured) return;
    const c = this.context, [from, to] = this.measured.map((t) => Math.max(this.gutter, Math.min(this.width, this.x(t))));
    if (to <= this.gutter || from >= this.width) return;
    c.fillStyle = this.color.accent;
    c.globalAlpha = 0.16;
    c.fillRect(from, 0, Math.max(1, to - from), this.height);
    c.globalAlpha = 1;
    for (const x of [from, to]) c.fillRect(Math.round(x), 0, 1, this.height);
    const text = ns(Math.round(this.measured[1] - this.measured[0])), width = c.measureText(text).width + 8;
    const left = Math.max(this.gutter, Math.min(this.width - width, (from + to - width) / 2));
    c.fillRect(left, 1, width, 17);
    c.fillStyle = this.color.card;
    c.textAlign = "left";
    c.fillText(text, left + 4, 10);
  }

  /* From one moment to another one, in either order; null: nothing. */
  measure(a, b) {
    this.measured = a === null ? null : [Math.max(this.min, Math.min(a, b)), Math.min(this.max, Math.max(a, b))];
    this.redraw();
    this.options.onMeasure(this.measured);
  }

  label(text, x, y, width, color, bold) {
    const c = this.context;
    c.font = bold ? "600 12px " + this.font.slice(5) : this.font;
    c.fillStyle = color;
    c.textAlign = "left";
    c.fillText(this.fit(text, width), x, y);
    c.font = this.font;
  }

  /* Cuts out the middle of what does not fit. */
  fit(text, width) {
    const c = this.context;
    if (text.length * 3 < width && c.measureText(text).width <= width) return text;
    if (text.length > 200) text = text.slice(0, 100) + text.slice(-100);
    if (c.measureText(text).width <= width) return text;
    const characters = [...text];
    let lo = 0, hi = characters.length;
    const cut = (n) => characters.slice(0, Math.ceil(n / 2)).join("") + "…" + (n > 1 ? characters.slice(-Math.floor(n / 2)).join("") : "");
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (c.measureText(cut(mid)).width <= width) lo = mid; else hi = mid - 1;
    }
    return lo ? cut(lo) : "";
  }

  /* What a slice has room for of a name: C++ decoration goes first, then the end. */
  brief(text, width) {
    const c = this.context;
    if (c.measureText(text.slice(0, 300)).width <= width) return text;
    text = text.slice(0, 300).replace(/^void /, "").replace(/^(at|cub|cutlass)::(native::)?(\(anonymous namespace\)::)?/, "");
    if (c.measureText(text).width <= width) return text;
    const characters = [...text];
    let lo = 0, hi = characters.length;
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (c.measureText(characters.slice(0, mid).join("") + "…").width <= width) lo = mid; else hi = mid - 1;
    }
    return lo >= 4 ? characters.slice(0, lo).join("") + "…" : "";
  }

  drawPathRow(row, y) {
    this.label("critical path", 8, y + row.h / 2, this.gutter - 16, this.color.text, true);
    this.clipped(y, row.h, () => this.drawSlices(row.track, y + 4, row.h - 8));
  }

  drawRankRow(row, y) {
    const c = this.context, rank = row.rank;
    c.fillStyle = this.color.soft;
    c.fillRect(0, y + 1, rank.open ? this.width : this.gutter - 6, row.h - 2);
    c.fillStyle = this.color.dim;
    c.beginPath();
    const ax = 12, ay = y + row.h / 2;
    if (rank.open) { c.moveTo(ax - 4, ay - 2); c.lineTo(ax + 4, ay - 2); c.lineTo(ax, ay + 4); }
    else { c.moveTo(ax - 2, ay - 4); c.lineTo(ax + 4, ay); c.lineTo(ax - 2, ay + 4); }
    c.fill();
    const title = processName(this.model, rank.rank);
    this.label(title, 22, ay, this.gutter - 30, this.color.text, true);
    if (rank.open || !rank.main) return;
    const left = 34 + c.measureText(title).width + 8;
    if (this.gutter - left > 40) this.label(rank.main.name, left, ay, this.gutter - left - 12, this.color.dim);
    const shown = rank.main.tracks.filter((t) => (t.replayed ? this.show.replayed : this.show.measured));
    const h = (row.h - 4) / Math.max(1, shown.length);
    this.clipped(y, row.h, () => shown.forEach((t, i) => this.drawSlices(t, y + 2 + i * h, h - (shown.length > 1 ? 1 : 0))));
  }

  drawTrackRow(row, y) {
    const h = 18, c = this.context, narrow = this.narrow;
    const tag = row.track.replayed ? (narrow ? "repl." : "replayed") : narrow ? "meas." : "measured";
    const w = c.measureText(tag).width;
    this.label(tag, this.gutter - w - 10, y + h / 2, w + 4, this.color.dim);
    if (row.first) this.label(row.device.name, narrow ? 10 : 22, y + h / 2, this.gutter - w - (narrow ? 26 : 44), this.color.text);
    this.clipped(y, row.h, () => this.drawSlices(row.track, y, h));
  }

  clipped(y, h, body) {
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(this.gutter, Math.max(y, this.axis), this.width - this.gutter, h);
    c.clip();
    body();
    c.restore();
  }

  faded(op) {
    return (this.match && !this.match[op]) || (this.show.criticalOnly && !this.model.critical[op]);
  }

  drawSlices(track, y, h) {
    const c = this.context, model = this.model, { start, end, op, waiting } = track;
    const scale = (this.width - this.gutter) / this.span, t1 = this.t0 + this.span;
    let i = upperBound(track.lastEnd, this.t0);
    while (i < start.length && start[i] < t1) {
      const x = this.gutter + (start[i] - this.t0) * scale;
      const width = (end[i] - start[i]) * scale;
      if (track.isPath && track.gap[i] * scale >= 1) {
        c.fillStyle = this.gapFill;
        c.fillRect(x - track.gap[i] * scale, y + 3, track.gap[i] * scale, h - 6);
      }
      if (width < 1) {
        /* all that start within this pixel; the last of them may reach further */
        const pixel = Math.floor(x);
        let j = lowerBound(start, this.t0 + (pixel + 1 - this.gutter) / scale, i + 1);
        if (j - 1 > i && (end[j - 1] - start[j - 1]) * scale >= 1) j--;
        let best = i;
        const step = Math.max(1, (j - i) >> 4);
        for (let k = i; k < j; k += step)
          if (this.faded(op[best]) !== this.faded(op[k]) ? this.faded(op[best]) : end[k] - start[k] > end[best] - start[best]) best = k;
        this.drawSlice(track, best, pixel, 1, y, h);
        i = j;
      } else {
        this.drawSlice(track, i, x, width, y, h);
        i++;
      }
    }
  }

  drawSlice(track, i, x, width, y, h) {
    const c = this.context, op = track.op[i], kind = this.model.opKind[op], wait = track.waiting[i] >= 0;
    c.globalAlpha = this.faded(op) ? 0.16 : 1;
    c.fillStyle = wait ? this.waitFill : this.fill[kind];
    const left = Math.max(x, this.gutter - 4), right = Math.min(x + width, this.width + 4);
    c.fillRect(left, y, Math.max(1, right - left - (width > 3 ? 0.75 : 0)), h);
    if (!track.isPath && track.replayed && !wait && this.model.critical[op] && h > 8) {
      c.fillStyle = this.color.mark;
      c.fillRect(left, y + h - 3, Math.max(1, right - left - (width > 3 ? 0.75 : 0)), 3);
    }
    if (op === this.selected) {
      c.strokeStyle = this.color.mark;
      c.lineWidth = 2;
      c.strokeRect(left + 1, y + 1, Math.max(1, right - left - 2.75), h - 2);
    }
    if (right - left > 34 && h >= 14) {
      c.fillStyle = wait ? this.waitInk : this.ink[kind];
      c.textAlign = "left";
      const from = Math.max(left, this.gutter) + 4;
      c.fillText(this.brief(this.nameOf(track, i), right - from - 5), from, y + h / 2 - (track.isPath ? 0 : 0.5));
    }
    c.globalAlpha = 1;
  }

  nameOf(track, i) {
    const s = this.model.strings, c = track.waiting[i];
    return c >= 0 ? "waiting for peers: " + s[this.model.collectives.kind[c]] : s[this.model.opName[track.op[i]]];
  }

  /* The op of the rank that a waiting slice waits for; -1: not waiting, or not known. */
  waitsFor(track, i) {
    const last = track.waiting[i] < 0 ? -1 : this.model.collectives[track.replayed ? "replayed" : "measured"][track.waiting[i]];
    return last === track.op[i] ? -1 : last;
  }

  /* From the rank that arrived last to those that waited for it, at the moment when it arrived. */
  drawArrows() {
    const c = this.context, m = this.model, scale = (this.width - this.gutter) / this.span, rowOf = new Map();
    for (const row of this.rows) {
      if (row.type === "track") rowOf.set(row.track, row);
      else if (row.type === "rank" && !row.rank.open) for (const d of row.rank.devices) for (const t of d.tracks) rowOf.set(t, row);
    }
    const middle = (row) => this.axis + row.y - this.scroll + (row.type === "track" ? 9 : row.h / 2);
    c.fillStyle = c.strokeStyle = this.color.text;
    c.lineWidth = 1;
    for (const [track, row] of rowOf) {
      if (row.type !== "track") continue;
      for (let i = upperBound(track.lastEnd, this.t0); i < track.start.length && track.start[i] < this.t0 + this.span; i++) {
        const last = (track.end[i] - track.start[i]) * scale >= 4 ? this.waitsFor(track, i) : -1;
        const from = last < 0 ? null : rowOf.get(m.tracks[(track.replayed ? m.replayedTrack : m.measuredTrack)[last]]);
        const x = Math.round(this.x(track.end[i])) + 0.5, y = middle(row);
        if (!from || x < this.gutter || x > this.width) continue;
        const up = middle(from) > y ? 1 : -1;
        c.beginPath();
        c.moveTo(x, middle(from));
        c.lineTo(x, y);
        c.stroke();
        c.beginPath();
        c.moveTo(x - 4, y + 7 * up);
        c.lineTo(x + 4, y + 7 * up);
        c.lineTo(x, y);
        c.fill();
      }
    }
  }

  drawScrollbar() {
    const view = this.height - this.axis;
    if (this.total <= view) return;
    const c = this.context, h = Math.max(24, (view * view) / this.total);
    const y = this.axis + (this.scroll / (this.total - view)) * (view - h);
    c.fillStyle = this.color.dim;
    c.globalAlpha = 0.55;
    c.fillRect(this.width - 7, y, 5, h);
    c.globalAlpha = 1;
  }

  rowAt(y) {
    const at = y - this.axis + this.scroll;
    return y < this.axis ? null : this.rows.find((r) => at >= r.y && at < r.y + r.h);
  }

  hit(x, y) {
    const row = this.rowAt(y);
    if (!row || x < this.gutter) return null;
    let track = row.track;
    if (row.type === "rank") {
      if (row.rank.open || !row.rank.main) return null;
      const shown = row.rank.main.tracks.filter((t) => (t.replayed ? this.show.replayed : this.show.measured));
      track = shown[Math.min(shown.length - 1, Math.floor(((y - this.axis + this.scroll - row.y) / row.h) * shown.length))];
    }
    if (!track) return null;
    const t = this.t(x), slack = this.span / (this.width - this.gutter);
    let best = -1;
    for (let i = upperBound(track.start, t + slack) - 1; i >= 0 && track.lastEnd[i] >= t - slack; i--) {
      if (track.end[i] < t - slack) continue;
      if (best < 0 || (t >= track.start[i] && t < track.end[i])) best = i;
      if (t >= track.start[i] && t < track.end[i]) break;
    }
    return best < 0 ? null : { track, i: best };
  }

  zoom(factor, x) {
    const at = this.t(x);
    this.span *= factor;
    this.clamp();
    this.t0 = at - ((x - this.gutter) / (this.width - this.gutter)) * this.span;
    this.moved();
  }

  pan(fraction) { this.t0 += fraction * this.span; this.moved(); }
  scrollBy(pixels) { this.scroll += pixels; this.moved(); }
  moved() { this.clamp(); this.redraw(); }
  fitAll() { this.t0 = this.min; this.span = this.max - this.min; this.moved(); }

  setMatch(match) { this.match = match; this.redraw(); }
  select(op) { this.selected = op; this.redraw(); this.options.onSelect(op); }

  /* Brings an op into view, opening its rank; false: it is drawn nowhere. */
  goTo(op, near) {
    const m = this.model;
    const useReplayed = m.replayedTrack[op] >= 0 && (this.show.replayed || m.measuredTrack[op] < 0);
    const track = m.tracks[useReplayed ? m.replayedTrack[op] : m.measuredTrack[op]];
    if (!track) return false;
    const i = useReplayed ? m.replayedAt[op] : m.measuredAt[op];
    const rank = this.ranks.find((r) => r.rank === m.devices[track.device][0]);
    if (!rank.open) { rank.open = true; this.layout(); this.resize(); }
    const row = this.rows.find((r) => r.track === track);
    if (row) {
      const view = this.height - this.axis;
      if (row.y < this.scroll || row.y + row.h > this.scroll + view) this.scroll = row.y - view / 2;
    }
    const length = track.end[i] - track.start[i];
    if (near) this.span = Math.max(length * 8, 2000);
    else if (length < this.span / 400) this.span = Math.max(length * 60, 2000);
    else if (length > this.span) this.span = length * 1.5;
    this.t0 = (track.start[i] + track.end[i]) / 2 - this.span / 2;
    this.moved();
    this.select(op);
    return true;
  }

  openAll(open) {
    for (const r of this.ranks) r.open = open;
    this.relayout();
  }

  listen() {
    const canvas = this.canvas;
    let drag = null;
    const place = (e) => {
      const box = canvas.getBoundingClientRect();
      return [e.clientX - box.left, e.clientY - box.top];
    };
    canvas.addEventListener("wheel", (e) => {
      const [x] = place(e);
      const pixels = e.deltaMode === 1 ? 16 : e.deltaMode === 2 ? 400 : 1;
      e.preventDefault();
      if (e.shiftKey || x < this.gutter) this.scrollBy((e.deltaY || e.deltaX) * pixels);
      else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.pan((e.deltaX * pixels) / (this.width - this.gutter));
      else this.zoom(Math.exp(Math.max(-200, Math.min(200, e.deltaY * pixels)) * 0.0022), x);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (e) => {
      if (e.button !== 0) return;
      const [x, y] = place(e);
      canvas.setPointerCapture(e.pointerId);
      const range = (this.measuring || e.shiftKey) && x >= this.gutter;
      drag = { x, y, t0: this.t0, scroll: this.scroll, moved: false, bar: x > this.width - 10, from: range ? this.t(x) : null };
    });
    canvas.addEventListener("pointermove", (e) => {
      const [x, y] = place(e);
      if (!drag) {
        const hit = this.hit(x, y);
        canvas.style.cursor = hit || (x < this.gutter && (this.rowAt(y) || {}).type === "rank") ? "pointer" : "default";
        this.options.onHover(hit, e);
        return;
      }
      if (!drag.moved && Math.abs(x - drag.x) + Math.abs(y - drag.y) < 4) return;
      drag.moved = true;
      this.options.onHover(null, e);
      const view = this.height - this.axis;
      if (drag.from !== null) return this.measure(drag.from, this.t(Math.max(x, this.gutter)));
      if (drag.bar) this.scroll = drag.scroll + ((y - drag.y) * this.total) / view;
      else {
        canvas.style.cursor = "grabbing";
        this.t0 = drag.t0 - ((x - drag.x) / (this.width - this.gutter)) * this.span;
        this.scroll = drag.scroll - (y - drag.y);
      }
      this.moved();
    });
    canvas.addEventListener("pointerup", (e) => {
      const was = drag, [x, y] = place(e);
      drag = null;
      canvas.style.cursor = "default";
      if (!was || was.moved) return;
      const row = this.rowAt(y);
      if (row && row.type === "rank" && (x < this.gutter || row.rank.open)) {
        row.rank.open = !row.rank.open;
        this.relayout();
        return;
      }
      const hit = this.hit(x, y);
      this.select(hit ? hit.track.op[hit.i] : -1);
    });
    canvas.addEventListener("pointercancel", () => (drag = null));
    canvas.addEventListener("pointerleave", (e) => this.options.onHover(null, e));
    canvas.addEventListener("dblclick", (e) => { if (place(e)[0] >= this.gutter) this.fitAll(); });
    document.addEventListener("keydown", (e) => this.key(e));
    window.addEventListener("resize", () => this.resize());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.readColors(); this.redraw(); });
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName)) return;
    const middle = this.gutter + (this.width - this.gutter) / 2;
    const focused = document.activeElement === this.canvas || this.canvas.matches(":hover");
    const keys = {
      w: () => this.zoom(0.7, middle), s: () => this.zoom(1 / 0.7, middle),
      a: () => this.pan(-0.2), d: () => this.pan(0.2), f: () => this.fitAll(),
      m: () => this.measure(this.t0, this.t0 + this.span), escape: () => this.measure(null),
    };
    const arrows = {
      ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1),
      ArrowUp: () => this.scrollBy(-48), ArrowDown: () => this.scrollBy(48),
      "+": () => this.zoom(0.7, middle), "-": () => this.zoom(1 / 0.7, middle),
    };
    const action = keys[e.key.toLowerCase()] || (focused && arrows[e.key]);
    if (!action) return;
    e.preventDefault();
    action();
  }
}
