"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---- words --------------------------------------------------------------------------------------

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}
const digits = (x) => x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x >= 1 ? x.toFixed(2) : x.toPrecision(2);
function time(us) {
  if (us === null || us === undefined) return "–";
  if (us >= 1e6) return digits(us / 1e6) + " s";
  return us >= 1000 ? digits(us / 1000) + " ms" : us >= 0.1 ? digits(us) + " µs" : us > 0 ? "< 0.1 µs" : "0";
}
function amount(n, unit) {
  if (n < 1000 && Number.isInteger(n)) return `${n} ${unit}`;
  for (const prefix of ["", "k", "M", "G", "T"]) {
    if (n < 1000 || prefix === "T") return digits(n).replace(/\.?0+$/, n < 10 ? "" : "$&") + " " + prefix + unit;
    n /= 1000;
  }
}
const percent = (x) => x >= 0.1 || x < 0.0005 ? (100 * x).toFixed(0) + " %" : (100 * x).toFixed(1) + " %";
// `code` in texts becomes an element.
function prose(text) {
  return text.split("`").map((piece, n) => n % 2 ? el("code", {}, piece) : piece);
}

// ---- tables that are sorted by their heads -----------------------------------------------------------

function heads(table, columns, texts, state, again) {
  return columns.map(([key, name]) => el("th", { scope: "col", class: texts.has(key) ? "left" : null, "aria-sort": state.sort === key ? (state.down ? "descending" : "ascending") : null },
    el("button", { type: "button", "data-key": key, onclick: () => {
      state.down = state.sort === key ? !state.down : !texts.has(key); state.sort = key;
      again(); document.querySelector(`#${table} [data-key=${key}]`).focus();
    } }, name)));
}
function sorted(rows, texts, state) {
  const key = state.sort, sign = state.down ? -1 : 1;
  return [...rows].sort((a, b) => sign * (texts.has(key) ? String(a[key]).localeCompare(String(b[key])) : a[key] - b[key]));
}
const share = (x) => [el("span", { class: "share" }, el("i", { style: `width:${Math.min(100 * x, 100)}%` })), percent(x)];
