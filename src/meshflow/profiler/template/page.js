const W = D.workers.length, R = D.rows.length;
const hidden = new Set();
const state = { row: 0, whole: false, sort: "time", down: true, grouped: false, all: false };

// ---- numbers: in microseconds, [row * workers + worker]; null where a worker has no such step -----

const at = (values, row, worker) => values[row * W + worker];
const wall = (row, worker) => at(D.walls, row, worker);
const longest = (row) => Math.max(0, ...D.workers.map((_, w) => wall(row, w) || 0));
const color = (part) => css("--" + part.color);
function own(row, worker) {
  let waits = 0;
  for (const part of D.parts) if (part.group === "communication") waits += at(part.values, row, worker) || 0;
  return wall(row, worker) - waits;
}
function means(worker) {
  const rows = [...Array(R).keys()].filter((r) => (R < 3 || r > 0) && wall(r, worker) !== null);
  const mean = (values) => rows.length ? rows.reduce((sum, r) => sum + at(values, r, worker), 0) / rows.length : 0;
  return { total: mean(D.walls), parts: D.parts.map((part) => mean(part.values)), steps: rows.length };
}

// ---- top of the page ------------------------------------------------------------------------------

function head() {
  $("title").textContent = D.name;
  const devices = [...new Set(D.workers.map((w) => w.devices).filter(Boolean))].join("; ");
  const workers = W === 1 ? D.workers[0].name : `${W} workers`;
  $("subtitle").textContent = [workers, devices, `${D.steps} step${D.steps === 1 ? "" : "s"}`].filter(Boolean).join(" · ");
  for (const v of D.verdicts) {
    $("verdicts").append(el("article", { class: "verdict " + v.kind }, el("h3", {}, v.title), el("p", {}, ...prose(v.text)), el("p", { class: "advice" }, ...prose(v.advice))));
  }
  for (const [name, why] of Object.entries(D.missing)) {
    $("verdicts").append(el("p", { class: "problem" }, `${name} is missing: ${why}`));
  }
  const all = D.workers.map((_, w) => means(w)).filter((m) => m.steps);
  const total = all.reduce((sum, m) => sum + m.total, 0) / Math.max(all.length, 1);
  const share = (group) => {
    let taken = 0;
    for (const m of all) D.parts.forEach((part, n) => { if (part.group === group) taken += m.parts[n]; });
    return percent(taken / Math.max(total * all.length, 1e-9));
  };
  const figures = [[time(total), "mean step"], [total ? digits(1e6 / total) : "–", "steps per second"], [share("compute"), "computing"], [share("input"), "waiting for input"]];
  if (W > 1 || D.parts.some((p) => p.group === "communication")) figures.push([share("communication"), "communication"]);
  figures.push([share("host"), "host"], [share("compile"), "compiling"]);
  for (const [value, what] of figures) $("figures").append(el("div", { class: "figure" }, el("b", {}, value), el("span", {}, what)));
}

function legend() {
  $("legend").replaceChildren(...D.parts.map((part) => el("button", {
    type: "button", "aria-pressed": String(!hidden.has(part.key)),
    onclick: () => { hidden.has(part.key) ? hidden.delete(part.key) : hidden.add(part.key); draw(); $("legend").children[D.parts.indexOf(part)].focus(); },
  }, el("i", { class: "dot", style: `background:${color(part)}` }), part.name)));
}

function bar(values, scale) {
  const line = el("div", { class: "bar", "aria-hidden": "true" });
  D.parts.forEach((part, n) => {
    if (hidden.has(part.key) || !values[n]) return;
    line.append(el("i", { style: `width:${100 * values[n] / scale}%;background:${color(part)}`, title: `${part.name}: ${time(values[n])}` }));
  });
  return line;
}

function lane(worker, note, drawn, total) {
  const who = el("div", { class: "who" }, D.workers[worker].name);
  if (note) who.append(el("small", {}, note));
  return el("div", { class: "lane" }, who, drawn, ...(total === undefined ? [] : [el("div", { class: "total" }, total)]));
}

function meanStep() {
  const all = D.workers.map((_, w) => means(w));
  const scale = Math.max(1e-9, ...all.map((m) => m.total));
  $("mean-hint").textContent = R > 2 ? "Excludes the first step, in which programs are compiled. Work that overlaps with computing adds no time and is not shown." : "Work that overlaps with computing adds no time and is not shown.";
  $("mean").replaceChildren(...all.map((m, w) => lane(w, D.straggler && D.straggler.worker === w ? (D.together ? "delays others" : "the slowest") : "", bar(m.parts, scale), m.steps ? time(m.total) : "no steps")));
}

// ---- the chart of steps ---------------------------------------------------------------------------

const canvases = D.workers.map(() => el("canvas", { "aria-hidden": "true" }));

function ceiling() {
  const walls = [...Array(R).keys()].map(longest).sort((a, b) => a - b);
  if (!R) return 1;
  return state.whole ? walls[R - 1] : Math.min(walls[R - 1], 1.25 * walls[Math.floor(0.95 * (R - 1))]) || 1;
}

function drawLane(worker, top) {
  const canvas = canvases[worker], ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const colors = D.parts.map(color), each = width / R, gap = each > 5 ? 1 : 0, base = height - 1;
  const columns = Math.min(R, Math.max(1, Math.floor(width)));
  for (let column = 0; column < columns; column++) {
    // Of several steps in one column the longest is seen.
    let row = Math.floor(column * R / columns);
    const next = Math.floor((column + 1) * R / columns);
    for (let other = row + 1; other < next; other++) if ((wall(other, worker) || 0) > (wall(row, worker) || 0)) row = other;
    if (wall(row, worker) === null) continue;
    const x = column * width / columns, w = Math.max(width / columns - gap, 0.5);
    let y = base;
    D.parts.forEach((part, n) => {
      if (hidden.has(part.key)) return;
      const h = at(part.values, row, worker) / top * (height - 8);
      pen.fillStyle = colors[n];
      pen.fillRect(x, Math.max(y - h, 0), w, Math.min(h, y));
      y -= h;
    });
    if (y < 0) { pen.fillStyle = css("--card"); pen.fillRect(x, 3, w, 2); }
  }
  const x = (state.row + 0.5) * each;
  pen.strokeStyle = css("--ink"); pen.lineWidth = each > 8 ? 2 : 1;
  if (each > 8) pen.strokeRect(state.row * each + 0.5, 1, each - gap - 1, height - 2);
  else { pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height); pen.stroke(); }
}

function drawSteps() {
  const top = ceiling();
  D.workers.forEach((_, w) => drawLane(w, top));
  $("axis").replaceChildren(el("div", {}, el("span", {}, R ? D.rows[0] : ""), el("span", {}, `height: ${time(top)}`), el("span", {}, R ? D.rows[R - 1] : "")));
}

function stepsHint() {
  const several = D.bin > 1 ? `Each column is the mean of ${D.bin} steps. ` : "";
  return several + "One row for each worker. Choose a step: tap it, or use the arrow keys, Page Up and Down, Home and End.";
}

function choose(row, focus) {
  if (!R) return;
  state.row = Math.max(0, Math.min(R - 1, row));
  const slider = $("steps");
  slider.setAttribute("aria-valuenow", state.row);
  slider.setAttribute("aria-valuetext", `${D.rows[state.row]}, ${time(longest(state.row))}`);
  history.replaceState(null, "", "#step=" + state.row);
  drawSteps(); chosen();
  if (focus) slider.focus();
}

function chosen() {
  const row = state.row, scale = Math.max(1e-9, longest(row));
  const present = D.workers.map((_, w) => w).filter((w) => wall(row, w) !== null);
  let late = -1;
  if (D.together && present.length > 1) late = present.reduce((a, b) => own(row, b) > own(row, a) ? b : a);
  const lines = present.map((w) => lane(w, w === late ? "the last" : "", bar(D.parts.map((p) => at(p.values, row, w)), scale), time(wall(row, w))));
  const heads = [el("th", { scope: "col" }, "Part"), ...present.map((w) => el("th", { scope: "col" }, D.workers[w].name))];
  const rows = D.parts.filter((p) => present.some((w) => at(p.values, row, w) > 0)).map((part) => {
    const values = present.map((w) => at(part.values, row, w)), most = Math.max(...values), least = Math.min(...values);
    const cells = present.map((w, n) => el("td", { class: present.length > 1 && values[n] === most && most - least > 0.05 * scale && part.key !== "waiting" ? "most" : null },
      `${time(values[n])}  ·  ${percent(values[n] / Math.max(wall(row, w), 1e-9))}`));
    return el("tr", {}, el("td", {}, el("span", { class: "part" }, el("i", { class: "dot", style: `background:${color(part)}` }), part.name)), ...cells);
  });
  rows.push(el("tr", {}, el("td", {}, "Step"), ...present.map((w) => el("td", {}, time(wall(row, w))))));
  const note = D.compiled[row] ? el("p", { class: "hint" }, "Compiled: " + D.compiled[row]) : "";
  $("chosen").replaceChildren(el("h3", {}, D.rows[row]), note, ...lines,
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Parts of the chosen step" }, el("table", { id: "parts" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows))));
}

function steps() {
  const slider = $("steps");
  slider.replaceChildren(...canvases.map((canvas, w) => lane(w, "", canvas)));
  slider.setAttribute("aria-valuemax", Math.max(R - 1, 0));
  $("steps-hint").textContent = R ? stepsHint() : "No steps were recorded.";
  for (const canvas of canvases) {
    const pick = (event) => choose(Math.floor(event.offsetX / canvas.clientWidth * R));
    canvas.addEventListener("pointerdown", pick);
    canvas.addEventListener("pointermove", (event) => { if (event.buttons) pick(event); });
  }
  const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity };
  slider.addEventListener("keydown", (event) => {
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(state.row + moves[event.key]);
  });
  $("slowest").addEventListener("click", () => {
    const rows = [...Array(R).keys()].filter((r) => R < 3 || r > 0);
    choose(rows.reduce((a, b) => longest(b) > longest(a) ? b : a, rows[0] || 0), true);
  });
  $("scale").addEventListener("click", () => {
    state.whole = !state.whole; $("scale").setAttribute("aria-pressed", state.whole); drawSteps();
  });
}

// ---- tables ---------------------------------------------------------------------------------------

const COLUMNS = [["what", "Operation"], ["layer", "Layer"], ["time", "Time"], ["share", "Share"], ["count", "Calls"], ["mean", "Each"], ["flops", "Operations"], ["rate", "Rate"], ["peak", "Of peak"]];
const TEXTS = new Set(["what", "layer"]);

function shownOperations() {
  let found = D.operations;
  if (state.grouped) {
    const layers = new Map();
    for (const one of found) {
      const key = one.layer || one.kind || "(no layer)";
      const sum = layers.get(key) || { what: "", layer: key, time: 0, share: 0, count: 0, flops: 0, work: 0, known: 0 };
      sum.time += one.time; sum.share += one.share; sum.count += one.count; sum.work += one.work; sum.known += one.work ? one.time : 0;
      layers.set(key, sum);
    }
    found = [...layers.values()].map((s) => {
      const rate = s.work && s.known ? s.work / s.known * 1e6 : 0;
      return { ...s, mean: s.time / s.count, flops: s.count ? s.work / s.count : 0, rate, peak: D.peak ? rate / D.peak : 0 };
    });
  }
  const wanted = $("filter").value.toLowerCase();
  if (wanted) found = found.filter((o) => `${o.what} ${o.name} ${o.layer} ${o.program || ""}`.toLowerCase().includes(wanted));
  return sorted(found, TEXTS, state);
}

function operations() {
  const columns = COLUMNS.filter(([key]) => (!state.grouped || key !== "what") && (key !== "peak" || D.peak));
  const cell = {
    what: (o) => el("td", { class: "left" }, el("span", { class: "name", title: `${o.name} of ${o.program}` }, o.what), ...(o.name === o.what ? [] : [el("code", {}, o.name)]), ...(o.backward ? [el("span", { class: "tag" }, "backward")] : [])),
    layer: (o) => el("td", { class: "left" }, el("span", { class: "name", title: o.layer }, o.layer || "–")),
    time: (o) => el("td", {}, time(o.time)),
    share: (o) => el("td", {}, ...share(o.share)),
    count: (o) => el("td", {}, o.count.toLocaleString("en")),
    mean: (o) => el("td", {}, time(o.mean)),
    flops: (o) => el("td", {}, o.flops ? amount(o.flops, "") : "–"),
    rate: (o) => el("td", {}, o.rate ? amount(o.rate, "FLOP/s") : "–"),
    peak: (o) => el("td", {}, o.peak ? percent(o.peak) : "–"),
  };
  const found = shownOperations();
  const rows = found.slice(0, state.all ? found.length : 20).map((one) => el("tr", {}, ...columns.map(([key]) => cell[key](one))));
  $("operations").replaceChildren(el("thead", {}, el("tr", {}, ...heads("operations", columns, TEXTS, state, operations))), el("tbody", {}, ...rows));
  $("all").hidden = found.length <= 20;
  $("all").textContent = state.all ? "Show the longest 20" : `Show all ${found.length}`;
  const peak = D.peak ? ` Peak of a device: ${amount(D.peak, "FLOP/s")} (${D.peakOf}).` : "";
  $("operations-hint").textContent = (found.length ? "Times are sums over all devices." : "No matches.") + peak;
}

function traffic() {
  if (!D.traffic.length) { $("traffic-section").remove(); return; }
  theory();
  const heads = ["Collective", "Mesh dimension", "Devices", "Calls", "Bytes a step", "Sent a step", "Time a step", "Rate"];
  const rows = D.traffic.map((t) => el("tr", {}, el("td", {}, t.kind), el("td", { class: "left" }, t.axes.join(", ") || "–"), el("td", {}, t.group || "–"), el("td", {}, digits(t.count)),
    el("td", {}, t.bytes ? amount(t.bytes, "B") : "–"), el("td", {}, t.sent ? amount(t.sent, "B") : "–"), el("td", {}, time(t.time)), el("td", {}, t.sent && t.time ? amount(t.sent / t.time * 1e6, "B/s") : "–")));
  $("traffic").append(el("thead", {}, el("tr", {}, ...heads.map((h, n) => el("th", { scope: "col", class: n === 1 ? "left" : null }, h)))), el("tbody", {}, ...rows));
}

// What formulas say of a step, and what its collectives sent.
function theory() {
  if (!D.theory.length && !D.noTheory) { $("theory-section").remove(); return; }
  $("theory-hint").textContent = D.theory.length
    ? "Expected traffic of each device in one step, by the formulas of MeshStrategy's planner. Traffic without a formula, such as sums of losses and metrics, is listed under others."
    : `No comparison with formulas: ${D.noTheory}.`;
  if (!D.theory.length) return;
  const heads = ["For", "Mesh dimension", "By", "By theory", "Sent a step", "Of theory"];
  const rows = D.theory.map((t) => el("tr", {}, el("td", {}, t.purpose), el("td", { class: "left" }, t.axes.join(", ")), el("td", { class: "left" }, t.kinds.join(", ")),
    el("td", {}, t.expected === null ? "–" : amount(t.expected, "B")), el("td", {}, amount(t.counted, "B")), el("td", {}, t.expected ? percent(t.counted / t.expected) : "–")));
  $("theory").append(el("thead", {}, el("tr", {}, ...heads.map((h, n) => el("th", { scope: "col", class: n === 1 || n === 2 ? "left" : null }, h)))), el("tbody", {}, ...rows));
}

function tables() {
  $("tables").replaceChildren(...D.tables.map((t) => el("section", {}, el("h2", {}, `${t.title} (reported by ${t.worker || "this process"})`),
    el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, ...t.rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row", class: "left" }, name.replaceAll("_", " ")),
      el("td", {}, name.startsWith("bytes") ? amount(value, "B") : Number.isInteger(value) ? value.toLocaleString("en") : digits(value))))))))));
}

// ---- memory, traces -------------------------------------------------------------------------------

function memory() {
  const series = [];
  D.workers.forEach((worker, w) => {
    const onDevice = worker.memory.some((m) => m[2] > 0);
    if (worker.memory.length > 1) series.push({ name: worker.name + (onDevice ? ", devices" : ", process"), points: worker.memory.map((m) => [m[0], onDevice ? m[2] : m[1]]), w });
  });
  if (!series.length) { $("memory-section").remove(); return; }
  const colors = ["--compute", "--comm0", "--input", "--compile", "--callback", "--checkpoint", "--python", "--idle"];
  const end = Math.max(...series.map((s) => s.points[s.points.length - 1][0])), most = 1.1 * Math.max(...series.flatMap((s) => s.points.map((p) => p[1])));
  const box = $("memory"), width = Math.max(box.clientWidth, 200), height = 180, left = 64, bottom = 22;
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", series.map((s) => `${s.name}: at most ${amount(Math.max(...s.points.map((p) => p[1])), "B")}`).join("; "));
  const add = (tag, attributes, text) => {
    const made = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text) made.textContent = text;
    svg.append(made);
  };
  const X = (t) => left + t / Math.max(end, 1e-9) * (width - left - 8), Y = (v) => 8 + (1 - v / most) * (height - bottom - 8);
  for (let n = 0; n <= 3; n++) {
    const y = Y(most * n / 3);
    add("line", { x1: left, x2: width - 8, y1: y, y2: y, class: "grid" });
    add("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, amount(most * n / 3, "B"));
  }
  add("text", { x: left, y: height - 4 }, "0");
  add("text", { x: width - 8, y: height - 4, "text-anchor": "end" }, time(end));
  for (const s of series) add("path", { class: "line", style: `stroke:var(${colors[s.w % 8]})`, d: "M" + s.points.map((p) => `${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`).join("L") });
  box.replaceChildren(svg, el("div", { class: "names" }, ...series.map((s) => el("span", { class: "part" }, el("i", { class: "dot", style: `background:var(${colors[s.w % 8]});margin-right:6px` }), `${s.name}, at most ${amount(Math.max(...s.points.map((p) => p[1])), "B")}`))));
}

function traces() {
  const found = D.workers.filter((w) => w.trace);
  if (!found.length) { $("traces-section").remove(); return; }
  $("traces").append(...found.map((w) => el("li", {}, el("a", { href: w.trace.split("/").map(encodeURIComponent).join("/"), download: "" }, `${w.name}: ${w.trace.split("/").pop()}`))));
}

function draw() { legend(); meanStep(); drawSteps(); if (R) chosen(); }

if (D.format !== 1) {
  document.querySelector("main").replaceChildren(el("p", { class: "problem" }, `This page was written by another version of Meshflow (${D.version}): regenerate it with meshflow profile view.`));
} else {
  head(); steps(); operations(); traffic(); tables(); memory(); traces(); draw();
  const asked = /^#step=(\d+)$/.exec(location.hash);
  choose(asked ? Number(asked[1]) : (R > 2 ? 1 : 0));
  $("filter").addEventListener("input", operations);
  $("grouped").addEventListener("click", () => {
    state.grouped = !state.grouped; $("grouped").setAttribute("aria-pressed", state.grouped);
    if (state.grouped && state.sort === "what") { state.sort = "time"; state.down = true; }
    operations();
  });
  $("all").addEventListener("click", () => { state.all = !state.all; operations(); });
  window.addEventListener("resize", () => { drawSteps(); if (D.workers.some((w) => w.memory.length > 1)) memory(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  $("footer").textContent = `Meshflow ${D.version}. This file needs no network.`;
}
