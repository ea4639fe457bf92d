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

function svg(tag, attributes, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  e.append(...children.filter(known));
  return e;
}
