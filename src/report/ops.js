/* ops.js: all ops of the drawn iteration in a table, by module and name, and what goes on in a range of the timeline
   that the reader measures. Names come from traces: they are only ever set as text. */
"use strict";

const moduleName = (model, op) => (model.opModule[op] ? model.strings[model.opModule[op] - 1] || "the model itself" : "");

/* What an op took: replayed, else measured. Waiting for peers is not part of it. */
function opTime(model, op) {
  const replayed = model.replayedTrack[op] >= 0, track = model.tracks[replayed ? model.replayedTrack[op] : model.measuredTrack[op]];
  const i = replayed ? model.replayedAt[op] : model.measuredAt[op];
  return track ? track.end[i] - track.start[i] : 0;
}

/* Sums over the ops that `key` calls the same. */
function opGroups(model, key) {
  const groups = new Map();
  for (let op = 0; op < model.nOps; op++) {
    const name = key(op);
    if (!groups.has(name)) groups.set(name, { module: moduleName(model, op), name: model.strings[model.opName[op]], kind: model.kinds[model.opKind[op]],
      count: 0, ns: 0, most: 0, critical: 0, bytes: 0, ranks: new Set(), names: new Set() });
    const group = groups.get(name), took = opTime(model, op), device = model.opDevice[op];
    group.count++;
    group.ns += took;
    group.most = Math.max(group.most, took);
    group.bytes += model.opBytes[op];
    group.critical += model.critical[op] ? took : 0;
    group.names.add(model.opName[op]);
    if (device >= 0) group.ranks.add(model.devices[device][0]);
  }
  return [...groups.values()].filter((group) => group.ns > 0).sort((a, b) => b.ns - a.ns);
}

/* The card; find(name) shows an op in the timeline. */
function opsCard(model, find) {
  const modules = model.opModule.some((m) => m > 0), shown = el("div"), filter = el("input"), said = el("span", "dim");
  const shades = (op) => model.opName[op] + " " + model.opKind[op];
  const ways = [["by module and op", (op) => model.opModule[op] + " " + shades(op)], ["by module", (op) => moduleName(model, op)], ["by op", shades]];
  let groups = [], list = null;

  const milliseconds = (title, of) => ({ title, num: true, by: of, cell: (group) => (of(group) / 1e6).toFixed(3) });
  const columns = (way) => [
    modules && way < 2 ? { title: "module", className: "op", by: (g) => g.module, cell: (g) => middle(g.module || "no module") } : null,
    way !== 1 ? { title: "op", className: "op", by: (g) => g.name, cell: (g) => withTip(action(middle(g.name), () => find(g.name)), g.name, [["click", "find in the timeline"]]) } : null,
    way !== 1 ? { title: "kind", className: "kind", by: (g) => g.kind, cell: (g) => [swatch(KIND_COLOR[g.kind] || "LAUNCH"), g.kind] }
      : { title: "ops of", num: true, by: (g) => g.names.size, cell: (g) => plural(g.names.size, "name") },
    { title: "ranks", num: true, by: (g) => g.ranks.size, cell: (g) => String(g.ranks.size) },
    { title: "count", num: true, by: (g) => g.count, cell: (g) => String(g.count) },
    milliseconds("ms", (g) => g.ns), milliseconds("longest", (g) => g.most), milliseconds("critical", (g) => g.critical),
    model.opBytes.some((n) => n > 0) ? { title: "bytes", num: true, by: (g) => g.bytes, cell: (g) => (g.bytes ? bytes(g.bytes) : "") } : null].filter(known);

  function filtered() {
    const wanted = filter.value.trim().toLowerCase();
    const found = groups.filter((g) => !wanted || g.name.toLowerCase().includes(wanted) || g.module.toLowerCase().includes(wanted));
    said.textContent = found.length + " of " + groups.length;
    return found;
  }

  function show(way) {
    groups = opGroups(model, ways[way][1]);
    list = table(columns(way), filtered(), { most: 25 });
    shown.replaceChildren(list);
  }

  filter.type = "search";
  filter.placeholder = modules ? "filter by op or module" : "filter by op";
  filter.setAttribute("aria-label", filter.placeholder);
  filter.addEventListener("input", () => list.show(filtered()));
  show(modules ? 0 : 2);
  return card(null, el("div", "bar-tools", el("h2", "", "All ops"), modules ? choice("group ops", ways.map(([name]) => name), show) : null,
    el("span", "grow"), filter, said), shown,
  el("p", "dim", "Sums over all ranks of the drawn iteration, as replayed; waiting for peers is left out." +
    (modules ? "" : " Which module an op is of is not in this recording: 'dpro profile' marks modules' calls.")));
}

/* What goes on from `from` to `to`: by kind, how long ops of it last in there on all devices, as measured and as replayed. */
function rangeTable(model, from, to) {
  const rows = new Map();
  for (const track of model.tracks)
    for (let i = upperBound(track.lastEnd, from); i < track.start.length && track.start[i] < to; i++) {
      const ns = Math.min(track.end[i], to) - Math.max(track.start[i], from), kind = track.waiting[i] >= 0 ? "WAIT" : model.kinds[model.opKind[track.op[i]]];
      if (!(ns > 0)) continue;
      if (!rows.has(kind)) rows.set(kind, { kind, measured: 0, replayed: 0, count: 0 });
      const row = rows.get(kind);
      row[track.replayed ? "replayed" : "measured"] += ns;
      row.count += track.replayed ? 1 : 0;
    }
  return table([{ title: "in it, over all devices", cell: (row) => [swatch(row.kind === "WAIT" ? "WAIT" : KIND_COLOR[row.kind] || "LAUNCH"), row.kind] },
    { title: "measured", num: true, by: (row) => row.measured, cell: (row) => ns(Math.round(row.measured)) },
    { title: "replayed", num: true, by: (row) => row.replayed, cell: (row) => ns(Math.round(row.replayed)) },
    { title: "ops", num: true, by: (row) => row.count, cell: (row) => String(row.count) }],
  [...rows.values()].sort((a, b) => b.replayed - a.replayed));
}
