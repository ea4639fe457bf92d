/* page.js: what the scripts of all pages are made with. */
"use strict";

const known = (v) => v !== null && v !== undefined;
const digits = (ms) => (Math.abs(ms) >= 99.95 ? 1 : Math.abs(ms) >= 0.995 || ms === 0 ? 2 : 3);
const ms = (v) => (known(v) ? v.toFixed(digits(v)) + " ms" : "unknown");
const plural = (n, word) => n + " " + word + (n === 1 ? "" : "s");

function el(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children.flat().filter(known)); /* strings become text nodes */
  return e;
}

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
  new MutationObserver(() => { look(); for (const child of box.children) observer.observe(child); }).observe(box, { childList: true });
  return box;
}

/* A command as a shell reads it, to be copied. */
function command(words) {
  const text = words.map((w) => (/^[\w.\/:@%+=,~-]+$/.test(w) ? w : "'" + w.replace(/'/g, "'\\''") + "'")).join(" ");
  const code = el("code", "", text), button = el("button", "", "copy");
  button.type = "button";
  button.addEventListener("click", async () => {
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

/* Text that may be cut where a name has a dot or an underline. */
function cuttable(text) {
  return text.split(/(?<=[._/])/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));
}

function svg(tag, attributes, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  e.append(...children.filter(known));
  return e;
}
