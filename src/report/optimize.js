/* optimize.js: builds the page of a search from the embedded data. Names come from traces: they are
   only ever set as text, never as markup. */
"use strict";

(function () {
  const data = pageData(), { report } = data;

  /* ---- strategies side by side ---- */

  const RESULT = report.best.setting && report.best.helps ? "chosen" : "best found";

  /* Half of the 95 % interval of a row's time beside the job as it ran. */
  const half = (row) => (known(row.uncertainty_pct) ? row.uncertainty_pct / 100 * row.iteration_ms : 0);

  function bars() {
    const rows = [
      ["as it ran", report.replayed_ms, "IDLE", report.baseline.text],
      [RESULT, report.best.iteration_ms, "UPDATE", report.best.text + (RESULT === "chosen" ? "; " + report.best.setting : ""),
        half(report.best), report.best.likely_ms],
      ...report.servers.map((s) => [plural(s.servers, "server"), s.iteration_ms, "UPDATE",
        "the best found with this number; placed as usual: " + ms(s.usual_ms)]),
      ...report.baselines.map((b) => [b.name, b.iteration_ms, "FW", b.text + (b.buckets ? ", " + plural(b.buckets, "bucket") : ""), half(b), b.likely_ms]),
    ];
    const longest = Math.max(...rows.map(([name]) => name.length));
    const W = ROOM, left = 16 + Math.min(6.4 * longest, NARROW ? 120 : 200), right = 130, line = 24, top = 8;
    const max = Math.max(...rows.map(([, value, , , doubt]) => value + (doubt || 0))), x = (v) => left + (v / max) * (W - left - right);
    const H = top + rows.length * line + 22;
    const s = picture(W, H, "iteration time of each strategy");
    const both = rows.some(([, value, , , , likely]) => known(likely) && likely !== value);
    rows.forEach(([name, value, fill, what, doubt, likely], i) => {
      const y = top + i * line;
      const change = (100 * (value - report.replayed_ms)) / report.replayed_ms;
      s.append(svg("text", { x: left - 8, y: y + 14, "text-anchor": "end" }, name));
      s.append(titled(svg("rect", { x: left, y: y + 2, width: Math.max(1, x(value) - left), height: line - 7, rx: 2,
        style: "fill:var(--" + fill + ")" }), name + ": " + ms(value) + (doubt ? " ± " + ms(doubt) : "") + (both && known(likely) ? ", most likely " + ms(likely) : ""), what));
      if (both && known(likely))
        s.append(svg("circle", { cx: x(likely), cy: y + line / 2 - 1.5, r: 3, style: "fill:var(--mark)" }));
      if (doubt) {
        const from = Math.max(left, x(value - doubt)), to = x(value + doubt), mid = y + line / 2 - 1.5;
        s.append(svg("path", { d: "M" + from + " " + mid + "H" + to + "M" + from + " " + (mid - 4) + "v8M" + to + " " + (mid - 4) + "v8",
          style: "fill:none;stroke:var(--mark);stroke-width:1.2" }));
      }
      s.append(svg("text", { x: x(value + (doubt || 0)) + 6, y: y + 14 }, ms(value) +
        (i === 0 ? "" : " (" + (change <= -0.05 ? "−" : change >= 0.05 ? "+" : "") + pct(Math.abs(change), 1) + ")")));
    });
    if (report.lower_bound_ms) {
      const bound = x(report.lower_bound_ms), room = NARROW ? 95 : 0;
      s.append(svg("line", { x1: bound, x2: bound, y1: 0, y2: H - 18, style: "stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3" }));
      s.append(svg("text", { x: Math.min(bound, W - room), y: H - 5, "text-anchor": "middle", style: "fill:var(--bad)" },
        "no bucketing gets below " + ms(report.lower_bound_ms)));
    }
    return card("Iteration time by strategy, all by the same model", el("figure", "", s),
      rows.some(([, , , , doubt]) => doubt) ? el("p", "dim", "Lines: the 95 % interval of the difference to how it ran.") : null,
      both ? el("p", "dim", "Bars: the expected time, a mean over the model's errors and the measured iterations, by which strategies are chosen. " +
        "Points: the most likely time, by the model's best guess of each number, which is what dpro whatif prints.") : null);
  }

  /* ---- memory ---- */

  /* Time against peak of what was tried; what is left of the line fits. */
  function scatter(memory) {
    const W = ROOM, H = 230, left = 70, right = 20, top = 22, bottom = 40, budget = memory.budget_bytes;
    const points = memory.choices;
    const most = Math.max(budget, ...points.map((p) => p.peak_bytes)) * 1.06 / 1e6;
    const times = points.map((p) => p.iteration_ms), slow = Math.max(...times), fast = Math.min(...times);
    const span = slow - fast || 1, x = (size) => left + (size / 1e6 / most) * (W - left - right);
    const y = (v) => top + ((slow - v) / span) * (H - top - bottom);
    const s = picture(W, H, "iteration time against peak memory of each choice");
    for (const tick of ticks(most)) {
      s.append(svg("line", { x1: x(tick * 1e6), x2: x(tick * 1e6), y1: top - 8, y2: H - bottom + 8, style: "stroke:var(--line)" }));
      s.append(svg("text", { x: x(tick * 1e6), y: H - bottom + 20, "text-anchor": "middle" }, tick.toLocaleString("en") + " MB"));
    }
    for (const v of slow > fast ? [slow, fast] : [fast]) s.append(svg("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, ms(v)));
    s.append(svg("line", { x1: x(budget), x2: x(budget), y1: top - 8, y2: H - bottom + 8,
      style: "stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3" }));
    s.append(svg("text", { x: x(budget), y: top - 11, "text-anchor": x(budget) > W / 2 ? "end" : "start", style: "fill:var(--bad)" },
      "budget " + bytes(budget)));
    /* A label goes where it touches no other point, above or below its own, to its right or left. */
    const radius = (p) => (p.chosen ? 6 : 4), labels = [];
    function label(p) {
      const cx = x(p.peak_bytes), cy = y(p.iteration_ms), wide = 6.5 * p.name.length;
      const places = [[10, -6], [10, 14], [-10, -6], [-10, 14], [10, -18], [-10, -18], [10, 26], [-10, 26], [10, -34], [-10, -34]].map(([dx, dy]) => {
        const from = dx > 0 ? cx + dx : cx + dx - wide, base = cy + dy;
        const out = from < left || from + wide > W || base < top - 4 || base > H - bottom + 8 ? 100 : 0;
        const hit = points.filter((q) => x(q.peak_bytes) > from - radius(q) && x(q.peak_bytes) < from + wide + radius(q) &&
          y(q.iteration_ms) > base - 11 - radius(q) && y(q.iteration_ms) < base + 3 + radius(q)).length;
        const over = labels.filter((l) => l.from < from + wide && from < l.from + l.wide && Math.abs(l.base - base) < 13).length;
        return { dx, base, from, wide, cost: out + hit + 10 * over };
      });
      const best = places.reduce((a, b) => (b.cost < a.cost ? b : a));
      labels.push(best);
      return svg("text", { x: cx + best.dx, y: best.base, "text-anchor": best.dx > 0 ? "start" : "end" }, p.name);
    }
    for (const p of points) {
      const fill = p.chosen ? "UPDATE" : p.fits ? "FW" : "IDLE";
      s.append(titled(svg("circle", { cx: x(p.peak_bytes), cy: y(p.iteration_ms), r: radius(p), style: "fill:var(--" + fill + ")" }),
        p.name, ms(p.iteration_ms) + ", " + bytes(p.peak_bytes), p.chosen ? "chosen" : p.fits ? "fits" : "does not fit"));
      if (p.chosen || p === points[0]) s.append(label(p));
    }
    s.append(svg("text", { x: (left + W - right) / 2, y: H - 3, "text-anchor": "middle" }, "peak of the rank that holds most"));
    return el("figure", "", s);
  }

  /* What is held at the peak, as it ran and as found. */
  function held(memory) {
    const rows = [["as it ran", memory.baseline_peak_bytes, memory.baseline_by_category], [RESULT, memory.peak_bytes, memory.by_category]];
    const W = ROOM, left = NARROW ? 84 : 100, right = 90, line = 28, H = rows.length * line + 8;
    const most = Math.max(...rows.map((r) => r[1]), memory.budget_bytes || 0), x = (v) => left + (v / most) * (W - left - right);
    const s = picture(W, H, "what is held at the peak, before and after"), seen = new Set();
    rows.forEach(([name, total, categories], i) => {
      let from = 0;
      const y = i * line + 4;
      s.append(svg("text", { x: left - 8, y: y + 15, "text-anchor": "end" }, name));
      for (const category in MEMORY_COLOR) {
        const size = categories[category] || 0;
        if (size <= 0) continue;
        seen.add(category);
        s.append(titled(svg("rect", { x: x(from), y, width: Math.max(0.5, x(from + size) - x(from)), height: line - 8,
          style: "fill:var(--" + MEMORY_COLOR[category] + ")" }), memoryWords(category) + ": " + bytes(size)));
        from += size;
      }
      const end = x(Math.max(from, total)), bound = x(memory.budget_bytes || 0), crossed = bound > end - 4 && bound < end + 76;
      s.append(svg("text", { x: (crossed ? bound : end) + 6, y: y + 15 }, bytes(total)));
    });
    if (memory.budget_bytes)
      s.append(svg("line", { x1: x(memory.budget_bytes), x2: x(memory.budget_bytes), y1: 0, y2: H,
        style: "stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3" }));
    return el("div", "", legend(Object.keys(MEMORY_COLOR).filter((c) => seen.has(c)).map((c) => [MEMORY_COLOR[c], memoryWords(c)]), "above"), el("figure", "", s));
  }

  function memory() {
    const m = report.memory;
    if (!m) return null;
    return card("Memory", m.choices.length ? scatter(m) : null, held(m));
  }

  /* ---- buckets on the wire ---- */

  function timeline(title, communication, times, end) {
    const W = ROOM, left = 34, right = 14, line = 18, top = 6, shown = Math.min(times.length, 40);
    const x = (v) => left + (v / end) * (W - left - right), H = top + shown * line + 22;
    const s = picture(W, H, title);
    for (const tick of ticks(end)) {
      s.append(svg("line", { x1: x(tick), x2: x(tick), y1: 0, y2: H - 18, style: "stroke:var(--line)" }));
      s.append(svg("text", { x: x(tick), y: H - 5, "text-anchor": "middle" }, tick.toFixed(0) + " ms"));
    }
    for (let b = 0; b < shown; b++) {
      const [ready, start, done] = times[b], bucket = communication.buckets[b], y = top + b * line;
      const names = bucket.parameters, more = names.length > 6 ? "… and " + (names.length - 6) + " more" : "";
      const tell = [bytes(bucket.size_bytes) + ", " + plural(names.length, "gradient") +
        (bucket.partitions > 1 ? ", " + bucket.partitions + " parts" : ""),
        "ready " + ms(ready) + ", under way " + ms(start) + " to " + ms(done), ...names.slice(0, 6), more];
      const group = svg("g", {});
      group.append(svg("text", { x: left - 6, y: y + 12, "text-anchor": "end" }, String(b)));
      if (start > ready)
        group.append(svg("rect", { x: x(ready), y: y + 6, width: Math.max(0.5, x(start) - x(ready)), height: 3, style: "fill:var(--WAIT)" }));
      group.append(svg("rect", { x: x(start), y: y + 2, width: Math.max(1, x(done) - x(start)), height: line - 6, rx: 2,
        style: "fill:var(--COMM)" }));
      s.append(titled(group, ...tell));
    }
    return el("div", "", el("h3", "", title), el("figure", "", s),
      times.length > shown ? el("div", "dim", "the first " + shown + " of " + times.length + " buckets") : null);
  }

  function timelines() {
    if (data.best_times.length === 0) return null;
    const ends = (times) => times.map((t) => t[2]);
    const end = Math.max(report.replayed_ms, report.best.iteration_ms, ...ends(data.baseline_times), ...ends(data.best_times));
    return card("Buckets in an iteration",
      legend([["WAIT", "ready, waiting for its turn"], ["COMM", "under way"]], "above"),
      timeline("As it ran: " + report.baseline.text, report.baseline.communication, data.baseline_times, end),
      timeline(RESULT[0].toUpperCase() + RESULT.slice(1) + ": " + report.best.text, report.best.communication, data.best_times, end));
  }

  /* ---- the search ---- */

  function curve() {
    const found = report.search.improvements, W = ROOM, H = 190, left = 70, right = 14, top = 10, bottom = 34;
    const section = card("The search", el("p", "dim",
      report.search.algorithm + ", " + plural(report.search.candidates, "candidate") + " in " +
      report.search.seconds.toFixed(2) + " s, " + plural(report.search.rounds, "round") + ", stopped by: " + report.search.stopped_by));
    if (found.length === 0) return section;
    const last = Math.max(report.search.candidates, 2);
    const values = [report.replayed_ms, ...found.map((f) => f.iteration_ms)];
    const bound = report.lower_bound_ms, low = Math.min(bound || Infinity, ...values), high = Math.max(...values), span = high - low || 1;
    const x = (n) => left + (Math.log(Math.max(n, 1)) / Math.log(last)) * (W - left - right);
    const y = (v) => top + ((high - v) / span) * (H - top - bottom);
    const s = picture(W, H, "best iteration time found so far");
    let path = "M" + left + " " + y(report.replayed_ms);
    for (const f of found) path += "H" + x(f.candidates) + "V" + y(f.iteration_ms);
    path += "H" + (W - right);
    if (bound)
      s.append(svg("line", { x1: left, x2: W - right, y1: y(bound), y2: y(bound), style: "stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3" }),
        svg("text", { x: W - right, y: y(bound) - 4, "text-anchor": "end", style: "fill:var(--bad)" }, "lower bound"));
    s.append(svg("path", { d: path, style: "fill:none;stroke:var(--accent);stroke-width:2" }));
    for (const f of found)
      s.append(titled(svg("circle", { cx: x(f.candidates), cy: y(f.iteration_ms), r: 3, style: "fill:var(--accent)" }),
        ms(f.iteration_ms), "candidate " + f.candidates + ", after " + f.seconds.toFixed(3) + " s"));
    for (const v of [high, low]) s.append(svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, ms(v)));
    for (let n = 1; n <= last; n *= 10) {
      const atEnd = x(n) > W - right - 24; // in the middle it would be cut off
      s.append(svg("text", { x: atEnd ? W : x(n), y: H - 18, "text-anchor": atEnd ? "end" : "middle" }, n.toLocaleString("en")));
    }
    s.append(svg("text", { x: (left + W - right) / 2, y: H - 3, "text-anchor": "middle" }, "candidates evaluated"));
    section.append(el("figure", "", s));
    return section;
  }

  function decisions() {
    if (report.strategy.length === 0) return null;
    return card("Changes to the job's strategy", table([{ title: "pass", className: "kind", cell: (d) => d.pass },
      { title: "target", cell: (d) => cuttable(d.target) }, { title: "decision", cell: (d) => cuttable(d.decision.replace(/(\d) ([kMG]?B|ms)\b/g, "$1\u00a0$2")) }], report.strategy, { className: "wrapped" }));
  }

  function warnings() {
    if (report.warnings.length === 0) return null;
    return card("Warnings", el("ul", "", report.warnings.map((w) => el("li", "", w))));
  }

  const said = verdict(report.verdict);
  if (report.next.length) said.querySelector("dd:last-child").append(command(report.next));
  const main = el("main", "",
    el("header", "", el("h1", "", "Optimize"), el("span", "grow"), el("span", "dim", "dpro " + report.version)),
    said,
    el("div", "grid", el("div", "stack", bars(), memory(), curve()), el("div", "stack", timelines(), decisions())),
    warnings());
  document.body.append(main);
})();
