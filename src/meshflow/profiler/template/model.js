const COLORS = ["--compute", "--comm0", "--input", "--compile", "--python", "--callback", "--checkpoint", "--idle"];
const state = { sort: "time", down: true, grouped: false, all: false, kind: "" };
const sum = (rows, key) => rows.reduce((total, one) => total + (one[key] || 0), 0);
const has = (key) => D.operators.some((o) => o[key] !== null);
const TOTALS = Object.fromEntries(["time", "first", "bytes"].map((key) => [key, sum(D.operators, key)]));

// ---- kinds --------------------------------------------------------------------------------------------

function byKind() {
  const kinds = new Map();
  for (const o of D.operators) {
    const one = kinds.get(o.kind) || { kind: o.kind, name: "", calls: 0, time: 0, first: null, bytes: null, operators: 0 };
    one.calls += o.calls; one.time += o.time; one.operators += 1;
    for (const key of ["first", "bytes"]) if (o[key] !== null) one[key] = (one[key] || 0) + o[key];
    kinds.set(o.kind, one);
  }
  return [...kinds.values()].sort((a, b) => b.time - a.time);
}
const KINDS = byKind();
// The kinds that take longest have colors of their own; the last color is for all others.
const place = new Map(KINDS.map((one, n) => [one.kind, Math.min(n, COLORS.length - 1)]));
const color = (kind) => `var(${COLORS[place.get(kind)]})`;

function lane(title, note, key, unit) {
  const total = TOTALS[key], line = el("div", { class: "bar", "aria-hidden": "true" });
  for (const one of KINDS) {
    if (one[key]) line.append(el("i", { style: `width:${100 * one[key] / total}%;background:${color(one.kind)};opacity:${state.kind && state.kind !== one.kind ? 0.2 : 1}`, title: `${one.kind}: ${unit(one[key])}` }));
  }
  return el("div", { class: "lane" }, el("div", { class: "who" }, title, ...(note ? [el("small", {}, note)] : [])), line, el("div", { class: "total" }, unit(total)));
}

function kinds() {
  $("kinds-hint").textContent = D.operators.length
    ? "Kinds of operators in one call, the slowest first. Choose one to show only its operators." : "This runtime does not report times of single operators.";
  $("legend").replaceChildren(...KINDS.map((one) => el("button", {
    type: "button", "aria-pressed": String(!state.kind || state.kind === one.kind),
    onclick: () => { state.kind = state.kind === one.kind ? "" : one.kind; draw(); $("legend").children[KINDS.indexOf(one)].focus(); },
  }, el("i", { class: "dot", style: `background:${color(one.kind)}` }), one.kind)));
  const lanes = [];
  if (TOTALS.time) lanes.push(lane("A later call", "", "time", time));
  if (has("first") && TOTALS.first) lanes.push(lane("The first call", "", "first", time));
  if (has("bytes") && TOTALS.bytes) lanes.push(lane("Memory", "", "bytes", (n) => amount(n, "B")));
  $("kinds").replaceChildren(...lanes);
}

// ---- operators ------------------------------------------------------------------------------------------

const COLUMNS = [["kind", "Operator"], ["name", "Name"], ["time", "Time"], ["share", "Share"], ["calls", "Calls"], ["each", "Each"], ["first", "First call"], ["bytes", "Memory"], ["part", "Of memory"]];
const TEXTS = new Set(["kind", "name"]);

function operators() {
  const columns = COLUMNS.filter(([key]) => (!state.grouped || key !== "name") && (key !== "first" || has("first")) && (!["bytes", "part"].includes(key) || has("bytes")));
  const wanted = $("filter").value.toLowerCase();
  const chosen = (state.grouped ? KINDS : D.operators)
    .filter((o) => (!state.kind || o.kind === state.kind) && `${o.kind} ${o.name}`.toLowerCase().includes(wanted))
    .map((o) => ({ ...o, share: TOTALS.time ? o.time / TOTALS.time : 0, each: o.calls ? o.time / o.calls : 0, part: TOTALS.bytes ? (o.bytes || 0) / TOTALS.bytes : 0 }));
  const found = sorted(chosen, TEXTS, state);
  const cell = {
    kind: (o) => el("td", { class: "left" }, el("span", { class: "part" }, el("i", { class: "dot", style: `background:${color(o.kind)}` }), o.kind), ...(o.operators > 1 ? [el("span", { class: "tag" }, `${o.operators} operators`)] : [])),
    name: (o) => el("td", { class: "left" }, el("span", { class: "name", title: o.name }, o.name)),
    time: (o) => el("td", {}, time(o.time)),
    share: (o) => el("td", {}, ...share(o.share)),
    calls: (o) => el("td", {}, o.calls.toLocaleString("en")),
    each: (o) => el("td", {}, time(o.each)),
    first: (o) => el("td", {}, time(o.first)),
    bytes: (o) => el("td", {}, o.bytes === null ? "–" : amount(o.bytes, "B")),
    part: (o) => el("td", {}, ...(o.bytes === null ? ["–"] : share(o.part))),
  };
  const rows = found.slice(0, state.all ? found.length : 20).map((one) => el("tr", {}, ...columns.map(([key]) => cell[key](one))));
  $("operators").replaceChildren(el("thead", {}, el("tr", {}, ...heads("operators", columns, TEXTS, state, operators))), el("tbody", {}, ...rows));
  $("all").hidden = found.length <= 20;
  $("all").textContent = state.all ? "Show 20" : `Show all ${found.length}`;
  $("operators-hint").textContent = found.length ? `Means of ${D.runs} calls after the first. The time of a loop includes its operators.` : "No matches.";
}

function head() {
  $("title").textContent = D.name;
  $("subtitle").textContent = [D.runtime, `${D.batch} row${D.batch === 1 ? "" : "s"} per call`, `${D.operators.length} operators`].join(" · ");
  const figures = [[time(D.call), "a call"], [Number((1e6 * D.batch / Math.max(D.call, 1e-3)).toPrecision(3)).toLocaleString("en"), "rows a second"], [time(D.first), "the first call"], [time(D.load), "loading"]];
  if (TOTALS.bytes) figures.push([amount(TOTALS.bytes, "B"), "memory of all operators"]);
  for (const [value, what] of figures) $("figures").append(el("div", { class: "figure" }, el("b", {}, value), el("span", {}, what)));
  if (D.note) $("figures").after(el("section", {}, el("p", { class: "problem" }, D.note)));
}

function draw() { kinds(); operators(); }

if (D.format !== 1) {
  document.querySelector("main").replaceChildren(el("p", { class: "problem" }, `This page was written by another version of Meshflow (${D.version}): regenerate it with meshflow profile model.`));
} else {
  head(); draw();
  $("filter").addEventListener("input", operators);
  $("grouped").addEventListener("click", () => {
    state.grouped = !state.grouped; $("grouped").setAttribute("aria-pressed", state.grouped);
    if (state.grouped && state.sort === "name") { state.sort = "time"; state.down = true; }
    operators();
  });
  $("all").addEventListener("click", () => { state.all = !state.all; operators(); });
  $("footer").textContent = `${D.file} · Meshflow ${D.version}. This file needs no network.`;
}
