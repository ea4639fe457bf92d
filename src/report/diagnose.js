/* diagnose.js: the diagnosis, drawn from dpro.diagnose/1. One bar goes from the ideal to the iteration; below it each of
   its steps is a row, which opens what is known of it. */
"use strict";

/* goTo(op) selects the op in the timeline, which draws one iteration, and says whether it is there. */
function diagnosisCard(d, goTo, iteration) {
  const SHADES = ["COMM", "WAIT", "COPY", "UPDATE", "INPUT", "FW", "BATCH", "LAUNCH"], whole = Math.max(d.iteration_ms, d.explained_ms, 0);
  const of = (v) => pct(share(v, d.explained_ms));
  const doubt = (c) => (known(c.uncertainty_ms) ? " ± " + c.uncertainty_ms.toFixed(c.uncertainty_ms < 9.95 ? 1 : 0) + " ms" : "");
  const listed = (name, list) => (list.length ? (list.length === 1 ? name : name + "s") + " " + list.slice(0, 24).join(", ") + (list.length > 24 ? ", ..." : "") : "");
  const told = d.causes.filter((c) => known(c.order));
  const steps = [{ title: "ideal", blame_ms: d.ideal_ms, shade: "BW" }, ...d.causes.map((cause) => {
    const at = told.indexOf(cause), small = cause.cause === "small_or_unsure";
    return { ...cause, shade: at < 0 ? "IDLE" : SHADES[at % SHADES.length], body: at >= 0 ? () => details(cause) : small ? abstained : null };
  })];

  function abstained() {
    return [el("p", "dim", "Each is below 2 % of the iteration, or below its own uncertainty."),
      facts(d.abstained.filter((a) => a.blame_ms).map((a) => [a.title, ms(a.blame_ms)]))];
  }

  /* The ops in timeline.json.gz beside the page, in Perfetto's SQL. */
  function query(evidence) {
    const quoted = (list) => [...new Set(list)].map((v) => "'" + v.replace(/'/g, "''") + "'").join(", ");
    const ranks = quoted(evidence.filter((e) => known(e.rank)).map((e) => "rank " + e.rank));
    return "SELECT s.ts, s.dur, s.name, process.name AS rank, thread.name AS track FROM slice s JOIN thread_track t ON s.track_id = t.id " +
      "JOIN thread USING (utid) JOIN process USING (upid) WHERE s.name IN (" + quoted(evidence.map((e) => e.op)) + ")" +
      (ranks ? " AND process.name IN (" + ranks + ")" : "") + " ORDER BY s.dur DESC";
  }

  function evidenceTable(list) {
    const show = (e) => {
      const link = action(middle(e.op), () => { link.nextSibling.textContent = goTo(e.id) ? "" : "not in this page's timeline"; });
      return el("span", "", link, el("span", "dim"));
    };
    return table([{ title: "op", cell: show, className: "op" }, { title: "rank", num: true, cell: (e) => (known(e.rank) ? String(e.rank) : "server"), by: (e) => (known(e.rank) ? e.rank : Infinity) },
      { title: "iteration", num: true, cell: (e) => (known(e.iteration) ? String(e.iteration) : ""), by: (e) => e.iteration },
      { title: "start, ms", num: true, cell: (e) => e.start_ms.toFixed(3), by: (e) => e.start_ms },
      { title: "ms", num: true, cell: (e) => e.ms.toFixed(3), by: (e) => e.ms }], list, { most: 20 });
  }

  function details(c) {
    return [
      facts([["blame: its share of what is lost; the rows add up", ms(c.blame_ms) + doubt(c) + ", " + of(c.blame_ms)],
        ["alone: what the iteration wins without this cause only", ms(c.alone_ms)],
        ["in order: what it wins as number " + c.order + " of those taken away", ms(c.in_order_ms)],
        ["where", [listed("rank", c.ranks), listed("iteration", c.iterations)].filter(Boolean).join("; ") || "all ranks and iterations"]]),
      c.next_step ? el("p", "", el("strong", "", "Next: "), c.next_step) : null,
      c.command ? [command(c.command), el("p", "dim", "wins " + ms(c.command_gain_ms) + (c.command_uncertainty_ms === null ? "" : " ± " + ms(c.command_uncertainty_ms)) + (c.command_gain_ms > c.command_uncertainty_ms ? "" : ", too little to be sure of") + ", as this command says")] : null,
      c.parts.length ? [el("h3", "", "Its parts"), barRows(c.parts.slice(0, 24).map((p) => [p.what, [[p.what, p.blame_ms, "FW"]], ms(p.blame_ms)]), c.blame_ms)] : null,
      c.evidence.length ? [el("h3", "", "Its ops, the largest first; each selects and zooms its place in the timeline" + (known(iteration) ? " (iteration " + iteration + ")" : "")), evidenceTable(c.evidence),
        el("h3", "", "The same ops in ui.perfetto.dev, with timeline.json.gz: a query (SQL)"), command(query(c.evidence))] : null,
    ].flat();
  }

  let before = 0;
  const rows = steps.map((s) => {
    const from = before, to = (before += s.blame_ms);
    const half = s.uncertainty_ms, interval = half ? [to - half, to + half] : null;
    const head = [el("span", "what", swatch(s.shade), s.title), bar([["", Math.min(from, to), null],
      [s.title, Math.abs(s.blame_ms), s.shade, s.blame_ms < 0 ? [["time", ms(s.blame_ms)], ["share", of(s.blame_ms)]] : null]], whole, interval, d.explained_ms),
      el("span", "sum", ms(s.blame_ms) + doubt(s) + " · " + of(s.blame_ms).replace(" ", "\u00a0"))];
    if (!s.body) return el("div", "cause", el("div", "summary", head));
    const row = el("details", "cause", el("summary", "", head));
    row.addEventListener("toggle", () => row.append(el("div", "", s.body())), { once: true });
    return row;
  });
  /* What differs from a diagnosis of before. */
  function against(a) {
    const column = (title, key) => ({ title, num: true, cell: (c) => (known(c[key]) ? c[key].toFixed(digits(c[key])) : ""), by: (c) => c[key] });
    const saved = a.text !== undefined, noise = a.is_noise ? ", which may be noise" : "";
    const title = saved ? a.text : "An iteration takes " + ms(Math.abs(a.more_ms)) + (a.more_ms < 0 ? " less" : " more") + " than in " + a.a + " (p = " + a.p + noise + ")";
    const differs = saved ? a.differs : a.differences.map((d) => d.what + ": " + d.b + " instead of " + d.a).join("; ");
    const change = saved ? [column("then, ms", "then_ms"), column("now, ms", "now_ms"), column("change, ms", "difference_ms")] : [column("change, ms", "blame_ms")];
    return [el("h3", "", title), differs ? el("p", "dim", differs) : null,
      table([{ title: "cause", cell: (c) => c.title }, ...change, column("±", "uncertainty_ms")], a.causes || [])];
  }

  const needs = d.abstained.filter((a) => a.needs);
  return card("Diagnosis", el("p", "said", d.verdict), bar(steps.map((s) => [s.title, s.blame_ms, s.shade]), whole, null, d.explained_ms), ...rows,
    el("div", "cause total", el("div", "summary", el("span", "what", "iteration"), el("span"), el("span", "sum", ms(d.iteration_ms)))),
    ...(d.against ? against(d.against) : []),
    needs.length ? el("h3", "", "What this recording can't tell") : null, needs.length ? facts(needs.map((a) => [a.title, a.needs]), "prose") : null);
}

/* The slowdown of each worker: stages below one another, data-parallel ranks side by side; the darkest is 1.5 or more. */
function stragglerMap(slowdowns) {
  const ranks = slowdowns[0].length, size = Math.max(3, Math.min(34, (ROOM - 64) / ranks)), top = 18;
  const root = picture(Math.max(240, 64 + ranks * size), top + slowdowns.length * size, "slowdown of each worker");
  root.append(svg("text", { x: 64, y: 12 }, "data-parallel ranks 0 to " + (ranks - 1)));
  slowdowns.forEach((row, stage) => {
    if (size >= 10 || stage === 0) root.append(svg("text", { x: 56, y: top + (stage + 0.5) * size + 4, "text-anchor": "end" }, "stage " + stage));
    row.forEach((s, rank) => root.append(titled(svg("rect", { x: 64 + rank * size, y: top + stage * size, width: size - 1, height: size - 1,
      style: "fill: var(--COMM); stroke: var(--line); fill-opacity: " + Math.max(0, Math.min(1, (s - 1) / 0.5)).toFixed(3) }),
      "stage " + stage + ", data-parallel rank " + rank, "slowdown S_w " + s.toFixed(3))));
  });
  return el("figure", "", el("figcaption", "dim", "S_w of each worker: white is 1, the darkest 1.5 or more"), root);
}

function stragglerFacts(m) {
  const types = Object.entries(m.S_t || {}).filter(([, s]) => s > 1.001).sort((a, b) => b[1] - a[1]).slice(0, 8);
  return [el("h3", "", "Stragglers, by the definitions of OSDI'25: ratios, which do not add up"), facts([["slowdown S", m.S.toFixed(3)],
    known(m.M_W) ? ["M_W: the slowest 3 % of workers, of what is lost", pct(100 * m.M_W, 1)] : null,
    known(m.M_S) ? ["M_S: the last stage, of what is lost", pct(100 * m.M_S, 1)] : null,
    ...types.map(([type, s]) => ["S_t of " + type, s.toFixed(3)])].filter(known)),
  (m.S_w || []).length && m.S_w[0].length ? stragglerMap(m.S_w) : null];
}

/* The field's own measures: POP's efficiencies, MFU by family of ops, who waits for whom. */
function measuresCard(m) {
  const part = (v) => (known(v) ? pct(100 * v, 1) : "unknown"), pop = m.pop || {}, waits = m.waiting || [];
  const column = (title, key) => ({ title, num: true, cell: (f) => (known(f[key]) ? String(Number(f[key].toPrecision(3))) : ""), by: (f) => f[key] });
  return card("Measures", known(pop.parallel_efficiency) ? facts([["parallel efficiency (POP), the product of these three", part(pop.parallel_efficiency)],
    ["load balance", part(pop.load_balance)], ["serialisation", part(pop.serialisation)], ["transfer", part(pop.transfer)]]) : null,
  facts([known(pop.launch) ? ["launch efficiency: the GPU's computing, of that and of its waiting for launches", part(pop.launch)] : null,
    ["MFU" + (m.device ? ", of " + m.device : ""), known(m.mfu) ? part(m.mfu) + ", peak by " + m.peak_source : m.mfu_needs ? "can't be told without " + m.mfu_needs : "unknown"]].filter(known)),
  m.families && m.families.length ? table([{ title: "ops", cell: (f) => f.family + ", " + f.precision }, column("GFLOP", "gflop"), column("busy, ms", "busy_ms"),
    column("TFLOP/s", "tflops_per_s"), column("GB/s", "gbytes_per_s"), column("limit, TFLOP/s", "limit_tflops_per_s"),
    { title: "limited by", cell: (f) => f.bound_by }], m.families) : null,
  ...(known(m.S) ? stragglerFacts(m) : []),
  waits.length ? el("h3", "", "Who waits for whom") : null,
  waits.length ? table([{ title: "rank", num: true, cell: (v) => String(v.rank), by: (v) => v.rank }, { title: "waits for", num: true, cell: (v) => String(v.for), by: (v) => v.for },
    { title: "ms an iteration", num: true, cell: (v) => v.ms.toFixed(digits(v.ms)), by: (v) => v.ms }], [...waits].sort((a, b) => b.ms - a.ms), { most: 16 }) : null);
}
