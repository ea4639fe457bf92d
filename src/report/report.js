/* report.js: builds the page from the embedded data. Names come from traces: they are only ever set
   as text, never as markup. */
"use strict";

(function () {
  const data = pageData(), { report } = data;
  const model = decodeData(data);
  const PARTS = [
    ["forward_ms", "forward", "FW"], ["backward_ms", "backward", "BW"], ["update_ms", "update", "UPDATE"],
    ["input_ms", "input", "INPUT"], ["exposed_communication_ms", "exposed communication", "COMM"],
    ["wait_for_peers_ms", "waiting for peers", "WAIT"], ["idle_ms", "idle", "IDLE"],
  ];
  if (!report.trace.phases_known) PARTS[0][1] = "unknown phase";
  const KIND_WORDS = {
    FW: report.trace.phases_known ? "forward computation" : "computation of unknown phase", BW: "backward computation", UPDATE: "optimizer update", INPUT: "input",
    SEND: "sending", RECV: "receiving", PUSH: "pushing to servers", PULL: "pulling from servers",
    REDUCE: "adding up received parts", COPY: "memory copies", COLLECTIVE: "collective transfers",
    LAUNCH: "CPU launch and sync calls", GAP: "gaps between ops",
  };

  /* ---- the top of the page ---- */

  function header() {
    const trace = report.trace, present = trace.ranks_present.length, lacking = trace.ranks_without_gpu.length;
    const what = [trace.framework, present + " of " + plural(trace.world_size, "rank") + (lacking ? ", " + lacking + " without the GPU's work" : ""),
      plural(trace.iterations, "measured iteration")];
    return el("header", "", el("h1", "", report.what_if ? "What-if replay" : "Replay"),
      el("span", "dim", what.join(" · ")), el("span", "grow"), el("span", "dim", "dpro " + report.version));
  }

  function tile(label, value, unit, note, tone) {
    return el("div", "tile", el("div", "label", label),
      el("div", "value " + (tone || ""), value, unit ? el("span", "unit", " " + unit) : null), el("div", "note", note));
  }

  function tiles() {
    const p = report.predicted, m = report.measured, v = report.validation;
    const number = (x) => (known(x) ? x.toFixed(digits(x)) : "–");
    const tone = (e) => (Math.abs(e) < 5 ? "good" : Math.abs(e) < 10 ? "warn" : "bad");
    const unchecked = report.trace.iterations > 1 ? "not asked for" : "too few iterations to check";
    const job = report.job || { iteration_ms: null, source: "as recorded" }, from = {
      "steps without the profiler": "by " + plural(job.from, "step") + " without the profiler",
      "transport logs without the profiler": "by the transport logs",
      "replay without the profiler": "replayed without the profiler",
      "as recorded": "nothing is known of it without the profiler" };
    const without = job.source !== "as recorded";
    const list = [
      report.what_if ? tile("Iteration with the change", number(p.changed_ms), "ms", number(job.iteration_ms) + " ms as it is")
        : tile(without ? "Iteration without dpro" : "Iteration as recorded", number(job.iteration_ms), "ms",
          (job.high_ms > job.low_ms ? number(job.low_ms) + " to " + ms(job.high_ms) + ", " : "") + from[job.source]),
      tile("Recorded, with the profiler", number(m.iteration_ms), known(m.iteration_ms) ? "ms" : "",
        !report.trace.iterations ? "nothing measured" : (report.trace.iterations === 1 ? "the only iteration" : "mean of " + report.trace.iterations) + (known(m.std_ms) ? ", median " + ms(m.median_ms) + ", σ " + ms(m.std_ms) : "")),
    ];
    if (report.what_if) {
      const more = p.changed_ms - job.iteration_ms;
      list.push(tile("What it changes", signed(share(more, job.iteration_ms)), "", ms(Math.abs(more)) + (more <= 0 ? " faster" : " slower")));
    } else {
      list.push(tile("Replay's error", known(report.error_pct) ? signed(report.error_pct) : "–", "",
        known(report.daydream.error_pct) ? "Daydream " + signed(report.daydream.error_pct) : "the replay against what was recorded",
        known(report.error_pct) ? tone(report.error_pct) : ""));
    }
    const left = known(v.mean_abs_error_pct);
    list.push(tile("Left-out error", left ? pct(v.mean_abs_error_pct) : "–", "",
      left ? "worst " + pct(v.max_abs_error_pct) + " of " + v.predictions + " predictions" : unchecked,
      left ? tone(v.mean_abs_error_pct) : ""));
    return el("div", "tiles", list);
  }

  /* Iterations side by side. Which of them the reader looks at is told to onChoose: its place, or -1 for their mean. */
  function iterationsCard(onChoose) {
    const slow = report.slow_iterations, times = report.measured.per_iteration_ms, numbers = report.measured.iterations;
    if (times.length < 2 || numbers.length !== times.length || report.what_if) return null;
    const most = Math.max(...times), odd = new Set(slow.iterations.map((row) => row.at));
    const drawn = numbers.indexOf(report.critical_path.iteration), about = el("div", "about");
    const nameOf = (i) => "iteration " + numbers[i] + ": " + ms(times[i]) + (odd.has(i) ? ", slow" : "") + (i === drawn ? ", drawn" : "");
    /* Bars that bear their number and time: each where there is room, else the drawn one, slow ones, and some of the others. */
    const apart = Math.ceil((times.length * 80) / (document.documentElement.clientWidth - 46)), edge = apart >> 1, labelled = [];
    for (const i of [drawn, ...odd, ...times.keys()])
      if (i >= edge && i < times.length - edge && labelled.every((k) => Math.abs(k - i) >= apart)) labelled.push(i);
    const bars = times.map((time, i) => {
      const bar = el("span", (odd.has(i) ? "slow" : "") + (i === drawn ? " drawn" : ""),
        labelled.includes(i) ? el("span", "bears", el("strong", "", String(numbers[i])), el("span", "", ms(time))) : null);
      bar.style.height = Math.max(share(time, most), 1) + "%";
      bar.addEventListener("click", () => choose(i));
      return withTip(bar, nameOf(i), [["measured", ms(time)]]);
    });
    const list = choice("iteration", ["mean of all", ...times.map((_, i) => nameOf(i))], (at) => choose(at - 1));

    function choose(i) {
      list.selectedIndex = i + 1;
      bars.forEach((bar, k) => bar.classList.toggle("chosen", k === i));
      about.replaceChildren();
      onChoose(i);
      if (i < 0) return;
      const late = report.lateness.ranks.filter((r) => r.waited_for_ms.length === times.length && r.waited_for_ms[i] >= 0.01 * times[i])
        .sort((a, b) => b.waited_for_ms[i] - a.waited_for_ms[i]).slice(0, 4);
      about.append(el("p", "", nameOf(i) + ", as measured; the mean of all is " + ms(report.measured.iteration_ms) +
        (late.length ? "; ranks waited " + late.map((r) => ms(r.waited_for_ms[i]) + " for rank " + r.rank).join(", ") : "")));
      if (i !== drawn) about.append(el("p", "dim", "The timeline and the critical path are those of iteration " + numbers[drawn] + ". To draw this one:"),
        command(["dpro", "replay", "--iteration", String(numbers[i]), "-o", "FOLDER", "TRACE"]));
    }
    return el("section", "card", el("div", "bar-tools", el("h2", "", known(slow.text) ? "Iterations, some of them slow" : "Iterations"),
      el("span", "grow"), list), el("div", "iterations", bars), about,
      known(slow.text) ? el("p", "", slow.text) : null);
  }

  /* ---- the timeline ---- */

  function describe(op, track, i) {
    const device = model.opDevice[op] >= 0 ? model.devices[model.opDevice[op]] : null;
    const kind = model.kinds[model.opKind[op]], rows = [];
    rows.push(["kind", track && track.waiting[i] >= 0 ? "waiting for peers" : kind + ", " + (KIND_WORDS[kind] || "")]);
    const last = track ? timeline.view().waitsFor(track, i) : -1, late = last >= 0 ? model.devices[model.opDevice[last]] : null;
    if (late) rows.push(["waits for", processName(model, late[0])]);
    if (device) rows.push(["rank, device", processName(model, device[0]) + ", " + device[2]]);
    if (track) rows.push([track.isPath ? "on the path" : track.replayed ? "replayed" : "measured", ns(track.end[i] - track.start[i]) + " from " + ns(track.start[i])]);
    if (track && track.isPath && track.gap[i]) rows.push(["gap on the path", ns(track.gap[i])]);
    else if (model.opGap[op]) rows.push(["gap before", ns(model.opGap[op])]);
    if (model.opBytes[op]) rows.push(["bytes", bytes(model.opBytes[op])]);
    if (model.opModule[op]) rows.push(["module", moduleName(model, op)]);
    if (model.opTensor[op]) rows.push(["tensor", model.strings[model.opTensor[op] - 1]]);
    if (model.critical[op]) rows.push(["critical", "yes"]);
    return rows;
  }

  function timelineCard() {
    const canvas = el("canvas"), panel = el("div"), range = el("div"), found = el("span", "found dim");
    canvas.tabIndex = 0;
    canvas.setAttribute("aria-label", "timeline of the measured and the replayed iteration");
    let view = null, matches = [], at = -1;

    function onSelect(op) {
      panel.replaceChildren();
      panel.className = op >= 0 ? "selected" : "";
      if (op < 0) return;
      const items = describe(op, null, 0);
      const r = model.replayedTrack[op], m = model.measuredTrack[op];
      for (const [name, track, i] of [["measured", m, model.measuredAt[op]], ["replayed", r, model.replayedAt[op]]]) {
        if (track < 0) continue;
        const t = model.tracks[track];
        items.push([name, ns(t.end[i] - t.start[i]) + " from " + ns(t.start[i])]);
      }
      panel.append(el("div", "name", model.strings[model.opName[op]]),
        ...items.map(([k, v]) => el("div", "", el("span", "label", k), v)));
    }

    function onMeasure(measured) {
      if (!measured) return range.replaceChildren();
      const [from, to] = measured;
      range.replaceChildren(el("h3", "", "Measured: " + ns(Math.round(to - from)) + ", from " + ns(Math.round(from)) + " to " + ns(Math.round(to)) +
        (report.predicted.iteration_ms > 0 ? ", " + pct(share((to - from) / 1e6, report.predicted.iteration_ms)) + " of the iteration" : "")),
      rangeTable(model, from, to), action("clear", () => view.measure(null)));
    }

    function step(by) {
      if (!matches.length) return;
      at = (at + by + matches.length) % matches.length;
      found.textContent = at + 1 + " of " + matches.length;
      view.goTo(matches[at]);
    }

    function search(text) {
      const wanted = text.trim().toLowerCase();
      matches = [];
      at = -1;
      if (!wanted) { found.textContent = ""; view.setMatch(null); return; }
      const hits = model.strings.map((s) => s.toLowerCase().includes(wanted));
      const match = new Uint8Array(model.nOps);
      const startOf = (op) => (model.replayedTrack[op] >= 0 ? model.tracks[model.replayedTrack[op]].start[model.replayedAt[op]]
        : model.tracks[model.measuredTrack[op]].start[model.measuredAt[op]]);
      for (let op = 0; op < model.nOps; op++) {
        if (!hits[model.opName[op]] && !(model.opTensor[op] && hits[model.opTensor[op] - 1])) continue;
        match[op] = 1;
        if (model.replayedTrack[op] >= 0 || model.measuredTrack[op] >= 0) matches.push(op);
      }
      matches.sort((a, b) => startOf(a) - startOf(b) || a - b);
      found.textContent = matches.length ? plural(matches.length, "match").replace("matchs", "matches") : "no match";
      view.setMatch(match);
    }

    const box = el("input");
    box.type = "search";
    box.placeholder = "search ops  ( / )";
    box.addEventListener("input", () => search(box.value));
    box.addEventListener("keydown", (e) => {
      if (e.key === "Enter") step(e.shiftKey ? -1 : 1);
      else if (e.key === "Escape") { box.value = ""; search(""); canvas.focus(); }
    });
    document.addEventListener("keydown", (e) => {
      if (e.key === "/" && e.target.tagName !== "INPUT") { e.preventDefault(); box.focus(); }
    });

    const join = (...buttons) => el("span", "join", buttons);
    const set = (key) => (on) => { view.show[key] = on; view.relayout(); };
    const many = report.ranks.length > 1;
    const numbered = known(report.critical_path.iteration) && report.trace.iterations > 1;
    const tools = el("div", "bar-tools", el("h2", "", "Timeline" + (numbered ? " of iteration " + report.critical_path.iteration : "")),
      join(toggle("measured", true, set("measured")), toggle("replayed", true, set("replayed"))),
      toggle("critical path only", false, set("criticalOnly")),
      model.tracks.some((t) => t.waiting.some((c) => c >= 0)) ? toggle("who waits for whom", false, set("arrows")) : null,
      many ? join(action("open all", () => view.openAll(true)), action("close all", () => view.openAll(false))) : null,
      action("fit", () => view.fitAll()), toggle("measure", false, (on) => { view.measuring = on; }), el("span", "grow"), box,
      join(action("‹", () => step(-1)), action("›", () => step(1))), found);

    const kbd = (k) => el("kbd", "", k);
    const shades = new Set(model.opKind.map((k) => KIND_COLOR[model.kinds[k]] || "LAUNCH"));
    if (model.tracks.some((t) => t.waiting.some((w) => w >= 0))) shades.add("WAIT");
    const key = el("div", "legend",
      [["FW", PARTS[0][1]], ["BW", "backward"], ["UPDATE", "update"], ["INPUT", "input"], ["COMM", "communication"],
        ["WAIT", "waiting for peers"], ["COPY", "copy, reduce"], ["LAUNCH", "launch, sync"]]
        .filter(([name]) => shades.has(name)).map(([name, text]) => el("span", "", swatch(name), text)),
      el("span", "", el("span", "swatch mark"), "on the critical path"), el("span", "grow"),
      el("span", "", "wheel zooms, drag pans, ", kbd("w"), " ", kbd("a"), " ", kbd("s"), " ", kbd("d"), ", ", kbd("f"),
        " or double click fits, ", kbd("shift"), "+wheel scrolls, ", kbd("shift"), "+drag measures a range, ", kbd("m"), " what is in view"));

    const [shown, drawn, shortest] = data.drawn;
    const cut = shown < drawn ? el("p", "dim", "Of " + drawn + " ops the " + shown + " that are critical or longer than " + ns(shortest) +
      " are in this page; timeline.json.gz beside it has all (open it at ui.perfetto.dev).") : null;
    const holder = el("div", "", canvas);
    const section = card(null, tools, holder, range, panel, key, cut);

    /* An op, by its id in the graph. */
    function show(id) {
      const at = lowerBound(model.opId, id);
      if (model.opId[at] !== id || !view.goTo(at, true)) return false;
      section.scrollIntoView({ behavior: "smooth" });
      canvas.focus({ preventScroll: true });
      return true;
    }

    function start() {
      view = new Timeline(canvas, model, {
        iterationNs: report.predicted.iteration_ms > 0 ? report.predicted.iteration_ms * 1e6 : -1,
        onSelect,
        onMeasure,
        onHover: (hit, e) => {
          if (!hit) return hideTip();
          showTip(e, view.nameOf(hit.track, hit.i), describe(hit.track.op[hit.i], hit.track, hit.i));
        },
      });
    }
    return { card: section, start, view: () => view, show, find: (text) => { box.value = text; search(text); step(1); section.scrollIntoView({ behavior: "smooth" }); } };
  }

  /* ---- bars ---- */

  /* Of the mean iteration, or of the one at a place. */
  function breakdown(at) {
    const MOST = 512, ofOne = at >= 0 ? data.iterations[at] : null;
    const ranks = !ofOne ? report.ranks : report.ranks.map((r, k) => {
      const one = { rank: r.rank, iteration_ms: 0 };
      PARTS.forEach(([key], p) => { one.iteration_ms += one[key] = ofOne[k * PARTS.length + p] / 1000; });
      return known(r.idle_ms) ? one : { ...one, idle_ms: null };
    });
    const longest = Math.max(...ranks.map((r) => r.iteration_ms), 0);
    const used = PARTS.filter(([key]) => ranks.some((r) => r[key] > 0));
    return card(at >= 0 ? "Where each rank's iteration " + report.measured.iterations[at] + " goes, as replayed" :
      "Where each rank's predicted iteration goes", legend(used.map(([, name, shade]) => [shade, name]), "above"),
      barRows(ranks.slice(0, MOST).map((r) => ["rank " + r.rank, used.map(([key, name, shade]) => [name, r[key], shade]), ms(r.iteration_ms)]), longest),
      at >= 0 ? el("p", "dim", "Replayed with the durations that ops had in it: " + ms(longest) + "; it was measured as " + ms(report.measured.per_iteration_ms[at]) + ".") : null,
      report.micro_batches > 1 ? el("p", "dim", report.micro_batches + " micro-batches an iteration: as many forward and backward passes before an update.") : null,
      ranks.some((r) => !known(r.idle_ms)) ? el("p", "dim", "Where no computation was recorded, hidden communication and idle time are unknown.") : null,
      ranks.length > MOST ? el("p", "dim", "The first " + MOST + " of " + ranks.length + " ranks; replay.json has all.") : null);
  }

  function pathBars() {
    const path = report.critical_path, whole = path.length_ms;
    const title = "Critical path" + (known(path.iteration) && report.trace.iterations > 1 ? " (iteration " + path.iteration + ", replayed)" : "") + ": " + ms(whole);
    if (!(whole > 0)) return card(title, el("p", "dim", "Empty: no op takes time on it."));
    /* the bars are as long as the longest; shares are printed beside them */
    const rows = (list) => barRows(list.map(([name, v, shade]) => {
      const part = pct(share(v, whole));
      return [name, [[name, v, shade, [["time", ms(v)], ["share", part]]]], ms(v) + " · " + part];
    }), list[0][1]);
    const longest = (of) => Object.entries(of).filter(([, v]) => v > 0).sort((a, b) => b[1] - a[1] || a[0] - b[0]);
    const kinds = longest(path.by_kind_ms), ranks = report.ranks.length > 1 ? longest(path.by_rank_ms) : [];
    return card(title, el("h3", "", "by kind"),
      rows(kinds.map(([kind, v]) => [KIND_WORDS[kind] || kind, v, kind === "GAP" ? "IDLE" : KIND_COLOR[kind] || "LAUNCH"])),
      ranks.length ? [el("h3", "", "by rank" + (ranks.length > 16 ? ", the first 16 of " + ranks.length : "")),
        rows(ranks.slice(0, 16).map(([rank, v]) => ["rank " + rank, v, "FW"]))] : null);
  }

  function topOps(find) {
    const path = report.critical_path;
    return card("Top critical ops", path.top_ops.length ? table([
      { title: "op", className: "op", cell: (op) => withTip(action(middle(op.name), () => find(op.name)), op.name, [["click", "find in the timeline"]]) },
      { title: "kind", className: "kind", cell: (op) => [swatch(KIND_COLOR[op.kind] || "LAUNCH"), op.kind] },
      { title: "where", num: true, cell: (op) => (op.ranks > 1 ? op.ranks + " ranks" : op.process || "rank " + op.rank) },
      { title: "count", num: true, cell: (op) => String(op.count) },
      { title: "ms", num: true, cell: (op) => op.ms.toFixed(3) },
      { title: "share", num: true, cell: (op) => pct(share(op.ms, path.length_ms)) }], path.top_ops.slice(0, 25)) : el("p", "dim", "None."));
  }

  /* ---- how far to trust it ---- */

  function validationChart() {
    const values = report.measured.per_iteration_ms, p = report.predicted.iteration_ms;
    if (!values.length || !known(p)) return el("p", "dim", "Nothing was measured.");
    const W = Math.max(280, Math.min(620, document.documentElement.clientWidth - 46)), H = 210, left = 56, right = 106, top = 12, bottom = 30;
    const all = report.what_if ? values : values.concat(p);
    let lo = Math.min(...all, p), hi = Math.max(...all, p);
    const pad = Math.max((hi - lo) * 0.15, hi * 0.01);
    lo = Math.max(0, lo - pad);
    hi += pad;
    const x = (i) => left + (values.length === 1 ? 0.5 : (i + 0.5) / values.length) * (W - left - right);
    const y = (v) => top + (1 - (v - lo) / (hi - lo)) * (H - top - bottom);
    const root = svg("svg", { viewBox: "0 0 " + W + " " + H, role: "img" });
    const step = [1, 2, 5, 10].map((m) => m * Math.pow(10, Math.floor(Math.log10((hi - lo) / 4)))).find((s) => s >= (hi - lo) / 5);
    const places = Math.max(0, Math.min(4, -Math.floor(Math.log10(step) + 1e-9)));
    for (let k = Math.ceil(lo / step); k * step <= hi; k++) {
      root.append(svg("line", { x1: left, x2: W - right, y1: y(k * step), y2: y(k * step), style: "stroke: var(--soft)" }),
        svg("text", { x: left - 8, y: y(k * step) + 4, "text-anchor": "end" }, (k * step).toFixed(places)));
    }
    const v = report.validation;
    if (known(v.mean_abs_error_pct) && !report.what_if) {
      const d = (p * v.mean_abs_error_pct) / 100, y0 = Math.max(top, y(p + d)), y1 = Math.min(H - bottom, y(p - d));
      root.append(svg("rect", { x: left, y: y0, width: W - left - right, height: Math.max(1, y1 - y0), style: "fill: var(--COMM); opacity: 0.13" }));
    }
    const mean = report.measured.iteration_ms;
    root.append(
      svg("line", { x1: left, x2: W - right, y1: y(mean), y2: y(mean), style: "stroke: var(--BW); stroke-dasharray: 5 4" }),
      svg("line", { x1: left, x2: W - right, y1: y(p), y2: y(p), style: "stroke: var(--COMM); stroke-width: 2" }));
    let yMean = y(mean) + 4, yPredicted = y(p) + 4;
    if (Math.abs(yMean - yPredicted) < 13) {
      const centre = (yMean + yPredicted) / 2, up = mean >= p ? -7 : 7;
      yMean = centre + up;
      yPredicted = centre - up;
    }
    root.append(svg("text", { x: W - right + 6, y: yMean, style: "fill: var(--BW)" }, "measured mean"),
      svg("text", { x: W - right + 6, y: yPredicted, style: "fill: var(--COMM)" }, "predicted"));
    const numbers = report.measured.iterations, numberOf = (i) => (numbers.length === values.length ? numbers[i] : i + 1);
    const every = Math.ceil(values.length / Math.max(2, Math.floor((W - left - right) / 38)));
    values.forEach((value, i) => {
      const dot = svg("circle", { cx: x(i), cy: y(value), r: values.length > 60 ? 2 : 4.5, style: "fill: var(--BW); stroke: var(--card)" });
      root.append(withTip(dot, "iteration " + numberOf(i), [["measured", ms(value)], ["predicted", ms(p)], ["difference", signed(share(p - value, value))]]));
      if (i % every === 0) root.append(svg("text", { x: x(i), y: H - bottom + 16, "text-anchor": "middle" }, numberOf(i)));
    });
    root.append(svg("text", { x: left - 8, y: H - bottom + 16, "text-anchor": "end" }, "ms"));
    return root;
  }

  function validation() {
    const v = report.validation, list = [], fact = (name, value) => list.push([name, value]);
    if (known(v.mean_abs_error_pct)) {
      fact("method", v.method + ", " + plural(v.predictions, "prediction"));
      fact("error of left-out iterations, mean", pct(v.mean_abs_error_pct));
      fact("error of left-out iterations, worst", pct(v.max_abs_error_pct));
      fact("bias (signed mean)", signed(v.mean_error_pct));
      fact("the measured iterations' own spread", pct(v.measured_std_pct));
    } else fact("self-validation", report.trace.iterations > 1 ? "not asked for" : "none: too few iterations; record 10 or more");
    if (known(report.daydream.iteration_ms))
      fact("Daydream (one rank, no waiting for peers)", ms(report.daydream.iteration_ms) + (known(report.daydream.error_pct) ? ", " + signed(report.daydream.error_pct) : ""));
    if (known(report.profiler.op_ns))
      fact("the profiler's cost, not part of the prediction", ms(report.profiler.iteration_ms) + " (" + (report.profiler.op_ns / 1000).toFixed(2) + " µs an op)");
    const c = report.contradiction;
    if (c.contradicts) {
      fact("the replay contradicts the measurement, whose mean is known to ± " + ms(c.measured_known_to_ms), "it is " + signed(report.error_pct) + " off");
    }
    const u = report.unprofiled;
    if (known(u.iteration_ms)) {
      fact("without the profiler, mean of " + plural(u.steps, "step"), ms(u.iteration_ms) + (known(u.error_pct) ? ", the replay is " + signed(u.error_pct) + " off" : ""));
      if (known(u.profiler_overhead_pct)) fact("what the profiler adds to these steps", signed(u.profiler_overhead_pct));
    }
    const wire = report.unprofiled_iterations;
    if (known(wire.iteration_ms))
      fact("without the profiler, mean of " + plural(wire.iterations, "iteration") + " outside of the profile, by the transport logs", ms(wire.iteration_ms) + " (spread " + ms(wire.std_ms) + ")");
    if (known(wire.asking_ms)) fact("collecting the profiles of all tasks", ms(wire.asking_ms));
    if (known(wire.predicted_ms))
      fact("so the profiler cost", ms(wire.profiler_ms) + (known(wire.standard_error_ms) ? " (standard error " + ms(wire.standard_error_ms) + ")" : ""));
    if (wire.profiler_ms > 0) fact("expected without it", ms(wire.predicted_ms));
    return card("How sure: measured iterations against the replay", el("figure", "", validationChart()), facts(list));
  }

  /* What the replay rests on. */
  function assumptions() {
    const n = report.trace.iterations, ranks = report.ranks.length, world = report.trace.world_size, { profiler, horovod } = report;
    const wire = report.unprofiled_iterations.profiler_ms > 0, seeing = report.trace.gpu_recorded && report.trace.ranks_without_gpu.length;
    return [
      n === 0 ? "Nothing was measured: op durations come from the trace." : n === 1 ? "Durations are those of the only measured iteration." :
        "Each of the " + n + " measured iterations is replayed with its own durations, so the prediction is near their mean when the graph is right; " +
        "the left-out error is the check.",
      "A device (CPU thread, GPU stream, link direction) runs one op at a time, the one that became ready first.",
      "A collective starts transferring when its last rank arrives; the time before that is waiting for peers, not communication.",
      "Gaps between an op being ready and starting that no dependency explains are kept as they were measured.",
      world > ranks ? ranks + " of " + world + " ranks are in the trace" + (seeing ? " with their GPU's work" : "") +
        "; the others are assumed to arrive at each collective as late as when it was measured." :
        ranks === 1 && report.collectives.length ? "Only one rank is in the trace; its peers are assumed to arrive as late as when it was measured." :
        "Every rank of the job is in the trace (" + ranks + ").",
      profiler.op_ns > 0 ? "Recording an op cost the thread that ran it " + (profiler.op_ns / 1000).toFixed(2) +
        " µs, half before its start and half after its end; this is subtracted." :
        profiler.scaled ? "Tracing made iterations longer, and which ops is not recorded: all times are scaled to the steps without it." :
        "The profiler's own cost is part of the durations and gaps" + (wire ? "; the transport logs of iterations without it show its total." : "."),
      report.clock.method === "none" ? "The ranks' clocks are used as recorded." :
        "The hosts' clocks were aligned by their own communication (" + report.clock.method + ").",
      horovod ? "Horovod's thread is known from rank 0's timeline. Other ranks are assumed to move the same bytes, at the times of their transport " +
        "logs, or at rank 0's times where they have none. " + horovod.rounds_fused_alike + " of " + horovod.rounds + " rounds were fused as in the " +
        "graph; in the others the time of a group is divided among its tensors." : null].filter(known);
  }

  function notes() {
    const list = (texts) => el("ul", "", texts.map((text) => el("li", "", text))), n = report.warnings.length;
    return card(null, n ? [el("h2", "", plural(n, "warning")), list(report.warnings), el("h3")] : null,
      el("h2", "", "What this assumes"), list(assumptions()));
  }

  /* How far a clock was off as recorded, and, on a scale of its own, what the facts leave around the correction. */
  function clockPicture(clock) {
    const W = 620, H = 150, top = 20, bottom = 24, gap = 76, left = 64, half = (W - left - gap - 10) / 2;
    const points = clock.points, last = Math.max(1, points[points.length - 1][0]);
    const root = svg("svg", { viewBox: "0 0 " + W + " " + H, role: "img" });
    const panel = (x0, title, lo, hi, draw) => {
      const pad = (hi - lo) * 0.08 || 1;
      const x = (t) => x0 + (t / last) * half, y = (v) => top + (1 - (v - lo + pad) / (hi - lo + 2 * pad)) * (H - top - bottom);
      root.append(svg("text", { x: x0, y: 12 }, title));
      for (const v of new Set(lo < 0 && hi > 0 ? [lo, 0, hi] : [lo, hi]))
        root.append(svg("line", { x1: x0, x2: x0 + half, y1: y(v), y2: y(v), style: "stroke: var(--soft)" }),
          svg("text", { x: x0 - 6, y: y(v) + 4, "text-anchor": "end" }, ns(v)));
      root.append(svg("text", { x: x0 + half, y: H - 6, "text-anchor": "end" }, (last / 1e9).toFixed(2) + " s"));
      draw(x, y);
    };
    const line = (x, y, of) => points.map((p) => x(p[0]) + "," + y(of(p))).join(" ");
    const before = points.map((p) => p[1]);
    panel(left, "as recorded: off by", Math.min(0, ...before), Math.max(0, ...before), (x, y) =>
      root.append(svg("polyline", { points: line(x, y, (p) => p[1]), style: "fill: none; stroke: var(--COMM); stroke-width: 2" })));
    /* the tightest bounds tell most: wide ones are cut off */
    const sides = points.flatMap((p) => [p[2], p[3]]).filter(known).map(Math.abs).sort((a, b) => a - b);
    const most = sides.length ? 2 * sides[Math.floor(sides.length * 0.75)] : 1000;
    const cut = (v, open) => Math.max(-most, Math.min(most, known(v) ? v : open));
    panel(left + half + gap, "aligned; grey is ruled out", -most, most, (x, y) => {
      for (const [k, open] of [[2, -most], [3, most]]) {
        const edge = k === 2 ? y(-most) : y(most);
        root.append(svg("polygon", { points: x(0) + "," + edge + " " + line(x, y, (p) => cut(p[k], open)) + " " + x(last) + "," + edge, style: "fill: var(--IDLE)" }));
      }
      root.append(svg("line", { x1: x(0), x2: x(last), y1: y(0), y2: y(0), style: "stroke: var(--UPDATE); stroke-width: 2" }));
    });
    return el("figure", "wide", el("figcaption", "dim", clock.host), root);
  }

  function clocks() {
    const clock = report.clock, hosts = clock.hosts, number = (v, places, unknown) => (known(v) ? v.toFixed(places) : unknown);
    if (clock.method === "none" || hosts.length < 2) return null;
    return [el("h2", "", "Clocks"), table([{ title: "host", cell: (h) => h.host }, { title: "tied by", cell: (h) => h.method },
      { title: "offset, ms", num: true, cell: (h) => number(h.offset_ms, 3, "unknown") },
      { title: "drift, ppm", num: true, cell: (h) => number(h.drift_ppm, 2, "–") },
      { title: "uncertainty", num: true, cell: (h) => (known(h.uncertainty_ms) ? ms(h.uncertainty_ms) : "–") }], hosts),
      clock.pairs ? el("p", "dim", plural(clock.pairs, "pair") + " of what came before what: " + clock.violations_before + " violated as recorded, " +
        clock.violations_after + " as aligned.") : null, ...data.clocks.slice(0, 8).map(clockPicture), el("h3")];
  }

  function clockAndFiles() {
    const t = report.transport, sent = report.collectives.filter((c) => known(c.pattern)), files = report.trace.files;
    return card(null, clocks(), known(t) && t.calls > 0 ? [el("h2", "", "Transport"), facts([
      [plural(t.connections + t.one_sided_connections, "connection") + ", " + plural(t.calls, "socket call"), bytes(t.sent_bytes) + " sent"],
      ["seen at one end only", t.connections ? bytes(t.unpaired_bytes) : "all: one end was recorded"],
      ...(t.collectives ? [["collectives matched with their messages", t.collectives_tied + " of " + t.collectives]] : []),
      ["records lost", String(t.records_lost)]]), el("h3")] : null,
      sent.length ? [el("h2", "", "Collectives, read from their messages"), facts(sent.map((c) => [
        c.count + " " + c.kind + ", " + plural(c.ranks, "rank") + ", " + bytes(c.bytes) + (known(c.bytes) ? " a rank" : ""),
        c.pattern + ", " + plural(c.messages, "message")])), el("h3")] : null,
      el("details", "", el("summary", "", plural(files.length, "trace file")), el("ul", "", files.slice(0, 512).map((f) =>
        el("li", "", f.path + " (" + f.kind + (f.rank >= 0 ? ", rank " + f.rank : "") + ", " + bytes(f.bytes) + (f.truncated ? ", cut off" : "") + ")")))));
  }

  const timeline = timelineCard();
  const memory = memoryCard(report, data);
  const diagnosis = data.diagnosis ? diagnosisCard(data.diagnosis, timeline.show, report.critical_path.iteration) : null;
  let parts = breakdown(-1);
  const iterations = iterationsCard((at) => {
    const now = breakdown(data.iterations.length ? at : -1);
    parts.replaceWith(now);
    parts = now;
  });
  document.body.append(el("main", "", header(), diagnosis, verdict(report.verdict), tiles(), iterations, timeline.card, memory ? memory.card : null, dimensionsCard(report), opsCard(model, timeline.find),
    data.diagnosis && data.diagnosis.measures ? measuresCard(data.diagnosis.measures) : null,
    el("div", "grid", el("div", "stack", parts, topOps(timeline.find), notes()),
      el("div", "stack", pathBars(), validation(), clockAndFiles()))));
  timeline.start();
  if (memory) memory.start(timeline.view());
})();
