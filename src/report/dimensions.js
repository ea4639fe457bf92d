/* dimensions.js: how the job is parallel: what each dimension costs, and
   who sends how much to whom. Names come from traces: they are only ever set as text. */
"use strict";

const DIMENSION_COLOR = { dp: "BW", fsdp: "FW", cp: "INPUT", ep: "COPY", tp: "COMM", pp: "UPDATE" };

const dimensionShade = (name) => DIMENSION_COLOR[name] || "LAUNCH";

/* "dp 2 x tp 4, and over these ep 4" */
function dimensionNames(dimensions) {
  const named = (over) => dimensions.filter((d) => d.lies_over === over).map((d) => d.name + " " + d.size);
  return [named(false).join(" × "), ...named(true)].filter((s) => s).join(", and over these ");
}

/* Rows are senders, columns receivers; a field has a bar of the colour of each dimension. */
function trafficMatrix(report) {
  const MOST = 64;
  const all = [...new Set(report.traffic.flatMap((t) => [t.from, t.to]))].sort((a, b) => a - b);
  const ranks = all.slice(0, MOST), place = new Map(ranks.map((r, i) => [r, i]));
  const size = Math.max(9, Math.min(34, Math.floor(520 / ranks.length))), left = 52, top = 34;
  const W = left + size * ranks.length + 8, H = top + size * ranks.length + 8;
  const most = Math.max(...report.traffic.map((t) => t.bytes));
  const root = svg("svg", { viewBox: "0 0 " + W + " " + H, role: "img", style: "width: " + W + "px" });
  const every = Math.ceil(26 / size);
  root.append(svg("text", { x: left, y: 12 }, "to rank"), svg("text", { x: 0, y: top - 8 }, "from"));
  ranks.forEach((r, i) => {
    root.append(svg("line", { x1: left, x2: W - 8, y1: top + i * size, y2: top + i * size, style: "stroke: var(--soft)" }),
      svg("line", { x1: left + i * size, x2: left + i * size, y1: top, y2: H - 8, style: "stroke: var(--soft)" }));
    if (i % every) return;
    root.append(svg("text", { x: left + (i + 0.5) * size, y: top - 8, "text-anchor": "middle" }, r),
      svg("text", { x: left - 8, y: top + (i + 0.5) * size + 4, "text-anchor": "end" }, r));
  });
  const fields = new Map();
  for (const t of report.traffic) {
    if (!place.has(t.from) || !place.has(t.to)) continue;
    const key = t.from + " " + t.to;
    if (!fields.has(key)) fields.set(key, []);
    fields.get(key).push(t);
  }
  for (const list of fields.values())
    list.forEach((t, i) => {
      /* the area is what is sent, the smallest is still seen */
      const side = (size - 2) * Math.max(0.18, Math.sqrt(t.bytes / most)), width = side / list.length;
      const x = left + place.get(t.to) * size + (size - side) / 2 + i * width;
      const y = top + place.get(t.from) * size + (size - side) / 2;
      const box = svg("rect", { x, y, width, height: side, style: "fill: " + color(dimensionShade(t.dimension)) });
      root.append(withTip(box, "rank " + t.from + " to rank " + t.to, [["dimension", t.dimension || "none, or several"],
        ["an iteration", bytes(t.bytes)], ["known from", t.assumed ? "sizes, as a ring or a direct exchange" : "its messages"]]));
    });
  const note = all.length > MOST ? el("p", "dim", "The first " + MOST + " of " + all.length + " ranks; replay.json has more.") : null;
  return el("div", "", el("h3", "", "Who sends how much to whom in an iteration; areas are bytes"), el("figure", "", root), note);
}

function dimensionsCard(report) {
  const dimensions = report.dimensions;
  if (!dimensions.length && !report.dimensions_note) return null;
  const times = dimensions.concat(report.between_dimensions ? [Object.assign({ name: "between" }, report.between_dimensions)] : []);
  const hidden = (d) => Math.max(0, d.communication_ms - d.exposed_communication_ms);
  const whole = Math.max(...times.map((d) => d.exposed_communication_ms + d.wait_for_peers_ms + hidden(d)), 0);
  return card("Parallelism: " + (dimensionNames(dimensions) || "not known"),
    report.dimensions_note ? el("p", "", report.dimensions_note) : null,
    facts(dimensions.map((d) => [[swatch(dimensionShade(d.name)), d.name + " " + d.size], d.evidence]), "dimensions"),
    whole > 0 ? [el("h3", "", "What each costs a rank: exposed communication, waiting for peers, and what is hidden"), barRows(times.map((d) => [d.name,
      [["exposed communication", d.exposed_communication_ms, "COMM"], ["waiting for peers", d.wait_for_peers_ms, "WAIT"],
        ["hidden communication", hidden(d), "IDLE"]],
      ms(d.exposed_communication_ms + d.wait_for_peers_ms) + " of " + ms(report.predicted.iteration_ms) + (d.bytes ? ", " + bytes(d.bytes) : "")]), whole)] : null,
    report.traffic.length ? trafficMatrix(report) : null);
}
