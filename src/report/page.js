/* page.js: what the scripts of all pages are made with. C embeds a command's JSON and these scripts in one file
   (page.c), and the scripts draw everything else. Names come from traces: they are only ever set as text.

   const { report } = pageData();                      the JSON that the page embeds
   card("Title", child, ...)                           a section; null children are left out everywhere
   facts([["name", "value"], ...])                     names and values, a line each
   verdict([{ title, text }, ...])                     lines of sentences, the first one large, the last one to do next
   table([{ title, cell: (item) => text or element, num: true, by: (item) => number or text }, ...], items, { most: 50 })
                                                       `by` makes a column sortable by its title; .show(items) shows others
   bar([["name", milliseconds, "FW", tip rows], ...], whole, [low, high])
                                                       parts as long as their share of the whole, which is printed on them
                                                       unless they have rows of their own for the tooltip; a shade of null
                                                       is a gap, as in a waterfall; the interval is drawn as a line
   barRows([[label, parts, sum, interval], ...], whole)    bars below one another, with what stands at their left and right
   legend([["FW", "forward"], ...]), swatch("FW")      shades are the colours of report.css; "WAIT" is hatched
   command(["dpro", "replay", ...])                    to be copied, words quoted as a shell needs it; or a whole text
   toggle(text, pressed, onChange), action(text, onClick), choice("label", ["text", ...], onChange)
   withTip(element, title, [["name", "value"], ...])   a tooltip; in pictures titled(element, line, ...)
   picture(width, height, label), svg(tag, attributes, ...), ticks(max), ROOM      pictures as wide as there is room
   ms, ns, pct, signed, share, bytes, plural           numbers for people */
"use strict";

const known = (v) => v !== null && v !== undefined;
const digits = (ms) => (Math.abs(ms) >= 99.95 ? 1 : Math.abs(ms) >= 0.995 || ms === 0 ? 2 : 3);
const minus = (text) => text.replace("-", "−");
const ms = (v) => (known(v) ? minus(v.toFixed(digits(v))) + " ms" : "unknown");
const ns = (v) => (Math.abs(v) >= 1e6 ? ms(v / 1e6) : Math.abs(v) >= 1e3 ? (v / 1e3).toFixed(2) + " µs" : v + " ns");
const pct = (v, places) => minus(v.toFixed(known(places) ? places : Math.abs(v) < 9.95 ? 1 : 0)) + " %";
const signed = (v, places) => (Math.abs(v) < 0.05 ? "" : v > 0 ? "+" : "−") + pct(Math.abs(v), places);
const share = (part, whole) => (whole > 0 ? (100 * part) / whole : 0);
const plural = (n, word) => n + " " + word + (n === 1 ? "" : "s");
const color = (shade) => "var(--" + shade + ")";

function bytes(n) {
  if (!known(n)) return "size not recorded";
  if (n < 1000) return n + " B";
  const [size, unit] = [[1e3, "kB"], [1e6, "MB"], [1e9, "GB"], [1e12, "TB"]].find(([size], i) => n < size * (i ? 1e4 : 1e3) || i === 3);
  return (n / size).toFixed(1) + " " + unit;
}

/* What memory is for, bottom to top, as it is stacked. */
const MEMORY_COLOR = {
  parameter: "BW", optimizer_state: "UPDATE", gradient: "COMM", bucket: "BUCKET", communication: "INPUT",
  input: "BATCH", activation: "FW", temporary: "COPY", workspace: "LAUNCH", other: "IDLE",
};
const memoryWords = (category) => category.replace("_", " ");

/* ---- elements ---- */

const pageData = () => JSON.parse(document.getElementById("data").textContent);

function el(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children.flat().filter(known)); /* strings become text nodes */
  return e;
}

function svg(tag, attributes, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  e.append(...children.filter(known));
  return e;
}

const card = (title, ...children) => el("section", "card", title ? el("h2", "", title) : null, ...children);
const facts = (pairs, className) => el("dl", className ? "facts " + className : "facts", pairs.flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)]));

function verdict(lines) {
  const list = el("dl", "verdict");
  lines.forEach(({ title, text }, i) => {
    const name = i === 0 ? "first" : i === lines.length - 1 && title.startsWith("Next") ? "next" : "";
    list.append(el("dt", name, title), el("dd", name, text));
  });
  return card(null, list);
}

/* Text that may be cut where a name has a dot or an underline, and not within a number. */
function cuttable(text) {
  return text.split(/(?<=[._/])(?!(?<=\d\.)\d)/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));
}

/* A long name of which both ends stay visible. */
function middle(text) {
  text = text.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g, " ");
  const tail = text.length > 40 ? 18 : 0;
  return el("span", "mid", el("span", "head", text.slice(0, text.length - tail)), el("span", "tail", tail ? text.slice(-tail) : ""));
}

function swatch(shade) {
  const s = el("span", "swatch" + (shade === "WAIT" ? " hatched" : ""));
  s.style.backgroundColor = color(shade);
  return s;
}

const legend = (shades, className) => el("div", className ? "legend " + className : "legend", shades.map(([shade, text]) => el("span", "", swatch(shade), text)));

/* ---- tooltips ---- */

const tip = el("div");
tip.id = "tip";

function showTip(event, title, rows) {
  const list = el("table", "", rows.map(([k, v]) => el("tr", "", el("td", "", k), el("td", "", v))));
  tip.replaceChildren(el("div", "name", title.length > 300 ? title.slice(0, 300) + "…" : title), list);
  if (!tip.isConnected) document.body.append(tip);
  tip.style.display = "block";
  const box = tip.getBoundingClientRect(), below = event.clientY + 16;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, window.innerWidth - box.width - 8)) + "px";
  tip.style.top = Math.max(4, below + box.height > window.innerHeight ? event.clientY - box.height - 10 : below) + "px";
}

function hideTip() { tip.style.display = "none"; }

function withTip(element, title, rows) {
  element.addEventListener("pointermove", (e) => showTip(e, title, rows));
  element.addEventListener("pointerleave", hideTip);
  return element;
}

/* ---- what can be pressed ---- */

function action(text, onClick) {
  const b = el("button", "", text);
  b.type = "button";
  b.addEventListener("click", onClick);
  return b;
}

function toggle(text, pressed, onChange) {
  const b = action(text, () => {
    const now = b.getAttribute("aria-pressed") !== "true";
    b.setAttribute("aria-pressed", now);
    onChange(now);
  });
  b.setAttribute("aria-pressed", pressed);
  return b;
}

/* Tells onChange the place of what is chosen. */
function choice(label, texts, onChange) {
  const list = el("select", "", texts.map((text) => el("option", "", text)));
  list.setAttribute("aria-label", label);
  list.addEventListener("change", () => onChange(list.selectedIndex));
  return list;
}

/* A command as a shell reads it, to be copied. */
function command(words) {
  const text = typeof words === "string" ? words : words.map((w) => (/^[\w.\/:@%+=,~-]+$/.test(w) ? w : "'" + w.replace(/'/g, "'\\''") + "'")).join(" ");
  const code = el("code", "", text), button = action("copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch (e) { /* not allowed here: selected, for the keyboard to copy */
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
  });
  return el("div", "command", code, button);
}

/* ---- tables and bars ---- */

/* A box for a table, with a line under it while a part of the table is out of sight. */
function scrolling(...children) {
  const box = el("div", "scroll", ...children);
  const look = () => {
    const more = box.scrollWidth > box.clientWidth + 1;
    box.classList.toggle("more", more);
    if (more) box.tabIndex = 0; /* for the keyboard */
    else box.removeAttribute("tabindex");
  };
  const observer = new ResizeObserver(look);
  observer.observe(box);
  for (const child of children) observer.observe(child);
  box.look = () => queueMicrotask(look); /* once it is in the page */
  box.look();
  return box;
}

function table(columns, items, { most = 512, className = "" } = {}) {
  const body = el("tbody"), more = action("", () => { shown += most; draw(); });
  let shown = most, sorted = null, down = true;
  const heads = columns.map((c) => {
    const head = el("th", c.num ? "num" : "", c.by ? action(c.title, () => {
      down = sorted === c ? !down : !!c.num; /* numbers: the largest first */
      sorted = c;
      draw();
    }) : c.title);
    return head;
  });

  function draw() {
    const sign = down ? -1 : 1, by = sorted && sorted.by;
    const list = by ? [...items].sort((a, b) => { const x = by(a), y = by(b); return x < y ? -sign : x > y ? sign : 0; }) : items;
    columns.forEach((c, i) => { if (c.by) heads[i].setAttribute("aria-sort", c !== sorted ? "none" : down ? "descending" : "ascending"); });
    body.replaceChildren(...list.slice(0, shown).map((item) => el("tr", "",
      columns.map((c) => el("td", c.num ? "num" : c.className || "", c.cell(item))))));
    more.hidden = list.length <= shown;
    inner.look();
    more.textContent = more.hidden ? "" : "show " + Math.min(most, list.length - shown) + " more of " + list.length;
  }

  const inner = scrolling(el("table", className, el("thead", "", el("tr", "", heads)), body)), box = el("div", "", inner, more);
  draw();
  box.show = (now) => { items = now; shown = most; draw(); };
  return box;
}

function bar(parts, whole, interval, base = whole) {
  const line = el("div", "bar"), least = innerWidth < 600 ? 14 : 7; // percent that a number has room in
  for (const [name, value, shade, rows] of parts) {
    if (!(value > 0)) continue;
    const width = share(value, whole), said = share(value, base);
    const s = el("span", shade === "WAIT" ? "hatched" : "", shade && !rows && width >= least ? said.toFixed(0) + " %" : "");
    s.style.width = width + "%";
    if (shade) {
      s.style.backgroundColor = color(shade);
      s.style.color = color(shade + "-ink");
      withTip(s, name, rows || [["time", ms(value)], ["share", pct(said)]]);
    }
    line.append(s);
  }
  if (!interval) return line;
  const [from, to] = interval.map((v) => Math.max(0, Math.min(100, share(v, whole)))), doubt = el("span", "doubt");
  doubt.style.left = from + "%";
  doubt.style.width = to - from + "%";
  return el("div", "doubted", line, doubt);
}

function barRows(rows, whole) {
  return el("div", "rows" + (rows.length > 16 ? " long" : ""), rows.flatMap(([label, parts, sum, interval]) =>
    [el("span", "what", label), bar(parts, whole, interval), el("span", "sum", sum)]));
}

/* ---- pictures ---- */

/* A picture is drawn as wide as the page has room for, so that its text keeps its size. */
const ROOM = Math.max(280, Math.min(700, document.documentElement.clientWidth - 46)), NARROW = ROOM < 500;

function picture(width, height, label) {
  const s = svg("svg", { viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": label });
  s.style.maxWidth = width + "px";
  return s;
}

function titled(element, ...lines) {
  element.append(svg("title", {}, lines.join("\n")));
  return element;
}

/* Round values from 0 to max, at most six. */
function ticks(max) {
  const raw = max / (NARROW ? 3 : 5), power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].find((s) => s * power >= raw) * power, list = [];
  for (let i = 0; i * step <= max * 1.0001; i++) list.push(i * step);
  return list;
}
