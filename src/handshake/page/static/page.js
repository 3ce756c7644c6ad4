// The live page: listens to server-sent events and draws. All text from data goes through textContent.
import { LineChart, bytes, clock, count, histogram, html, planPicture, rates, ratio, seconds, sparkline, values } from "./charts.js";

const $ = (id) => document.getElementById(id);
const charts = new Map(), bars = histogramCard();
const RECENT = { local: 2.5, spark: 20 }; // seconds over which the rates of this moment are taken
const known = new Map(); // by the name of a query: its frames of the last seconds, its history, what is known about it
let frame = null, chosen = new URLSearchParams(location.hash.slice(1)).get("query"), range = 600, drawn = 0, asked = false;

// Events

function listen() {
  const rate = new URLSearchParams(location.search).get("rate");
  const source = new EventSource(`events${rate ? `?rate=${encodeURIComponent(rate)}` : ""}`);
  source.onmessage = (event) => {
    const errors = frame?.errors ?? [];
    frame = JSON.parse(event.data);
    frame.errors ??= errors; // details come when they are new
    link("on", "live");
    for (const [name, query] of Object.entries(frame.queries)) frame.queries[name] = remember(name, query);
    if (!asked) {
      asked = true;
      requestAnimationFrame(draw);
    }
  };
  source.onerror = () => {
    link("off", "reconnecting");
    for (const held of known.values()) held.history = null; // fetched again: points were missed
  };
}

function link(kind, text) {
  if ($("link").textContent !== text) $("link").textContent = text;
  $("link").className = `pill ${kind}`;
}

function remember(name, news) {
  let held = known.get(name);
  const query = { ...held?.query, ...news }; // figures come when they are new
  if (news.rows) query.streams = query.streams.map((stream, k) => ({ ...stream, rows: news.rows[k] }));
  if (!held) known.set(name, (held = { frames: [], history: null, about: null, since: query.since }));
  if (held.since !== query.since) Object.assign(held, { since: query.since, about: null, frames: [], loading: false });
  held.query = query;
  const rows = query.streams.map((stream) => stream.rows ?? 0);
  held.frames.push({ t: frame.t, rows, results: total(query.results) });
  const span = RECENT[query.engine] ?? 2.5;
  while (held.frames.length > 2 && held.frames[1].t < frame.t - span) held.frames.shift();
  if (held.history && frame.t - (held.history.t.at(-1) ?? 0) >= 1 && query.state !== "waiting") append(held.history, query);
  return query;
}

function append(history, query) {
  const point = { t: frame.t, results: total(query.results), late: late(query), shed: shed(query) };
  for (const stream of query.streams) Object.assign(point, { [`rows ${stream.name}`]: stream.rows, [`window ${stream.name}`]: stream.window_rows });
  for (const name of ["state_bytes", "imbalance", "lag_seconds", "batch_seconds"]) point[name] = query.figures[name] ?? null;
  Object.assign(point, recentLatency(history, query.latency));
  const length = history.t.length;
  for (const name of Object.keys(point)) history[name] ??= Array(length).fill(null);
  for (const [name, held] of Object.entries(history)) {
    if (!Array.isArray(held)) continue;
    held.push(point[name] ?? null);
    if (held.length > 3600) held.shift();
  }
}

function recentLatency(history, latency) {
  if (!latency) return {};
  const now = new Map(latency.buckets.map(([bound, n]) => [bound ?? Infinity, n]));
  const before = history.buckets ?? new Map();
  let fresh = [...now].map(([bound, n]) => [bound, n - (before.get(bound) ?? 0)]);
  if (fresh.some(([, n]) => n < 0)) fresh = [...now];
  Object.defineProperty(history, "buckets", { value: now, enumerable: false, writable: true, configurable: true });
  fresh.sort((a, b) => a[0] - b[0]);
  const all = fresh.reduce((sum, [, n]) => sum + n, 0);
  const percentile = (share) => {
    let seen = 0;
    for (const [bound, n] of fresh) if ((seen += n) >= share * all) return Number.isFinite(bound) ? bound : null;
    return null;
  };
  return all ? { p50: percentile(0.5), p99: percentile(0.99) } : {};
}

async function load(name) {
  const held = known.get(name);
  if (held.loading) return;
  held.loading = true;
  try {
    const answer = await fetch(`query?name=${encodeURIComponent(name)}`);
    if (answer.ok) {
      const found = await answer.json();
      held.history = found.history;
      held.about = found.about;
      drawn = 0;
      if (name === chosen) drawAbout(held.about);
    }
  } catch { /* the events say that the connection is lost */ }
  held.loading = false;
}

// Figures

const total = (results) => Object.values(results).reduce((sum, n) => sum + n, 0);
const late = (query) => (query.figures.late_rows ?? 0) + query.streams.reduce((sum, s) => sum + (s.late ?? 0), 0);
const shed = (query) => query.streams.reduce((sum, s) => sum + (s.shed ?? 0), 0);

function rateNow(held, pick) {
  const first = held.frames[0], last = held.frames.at(-1);
  if (!first || last.t - first.t < 0.05) return null;
  return Math.max(pick(last) - pick(first), 0) / (last.t - first.t);
}

// Drawing

function draw() {
  asked = false;
  const names = Object.keys(frame.queries);
  $("empty").hidden = names.length > 0;
  $("main").hidden = names.length === 0;
  drawErrors();
  if (!names.length) return;
  if (!names.includes(chosen)) chosen = names[0];
  drawTabs(names);
  const query = frame.queries[chosen], held = known.get(chosen);
  if (!held.history || !held.about) load(chosen);
  drawTitle(query, held);
  drawFlow(query, held);
  drawTiles(query, held);
  if (frame.t - drawn >= 1) {
    drawn = frame.t;
    drawCharts(query, held);
    drawLast(query);
    fillWhy(held.about);
  }
}

function drawTabs(names) {
  const tabs = $("tabs");
  if (names.length < 2) return tabs.replaceChildren();
  if (tabs.children.length !== names.length || [...tabs.children].some((tab, k) => tab.dataset.name !== names[k])) {
    tabs.replaceChildren(...names.map((name) => {
      const tab = html("button", { type: "button", "data-name": name }, html("i", { class: "dot" }), html("b", {}, name), html("span", {}));
      tab.addEventListener("click", () => choose(name));
      return tab;
    }));
  }
  for (const tab of tabs.children) {
    const query = frame.queries[tab.dataset.name], rate = rateNow(known.get(tab.dataset.name), (f) => f.rows.reduce((a, b) => a + b, 0));
    tab.firstChild.className = `dot ${query.state}`;
    text(tab.lastChild, query.state === "running" ? `${count(rate)} rows/s` : query.state);
    tab.setAttribute("aria-pressed", String(tab.dataset.name === chosen));
  }
}

function choose(name) {
  chosen = name;
  history.replaceState(null, "", `#query=${encodeURIComponent(name)}`);
  const held = known.get(name);
  held.history = null;
  $("flow").replaceChildren();
  $("tiles").replaceChildren();
  $("charts").replaceChildren();
  drawAbout(held.about ?? { tree: null, text: "", windows: {}, why: null });
  drawn = 0;
  draw();
}

function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

function drawTitle(query, held) {
  text($("name"), chosen);
  const where = query.engine === "spark" ? "on Spark" : "in process";
  const how = query.algorithm && !["segments", "query", "batch"].includes(query.algorithm) ? `, ${query.algorithm.replace("_", " ")}` : "";
  text($("facts"), `${query.state} · ${where}${how} · since ${clock(held.since)} (${seconds(frame.t - held.since)})`);
  text($("error"), query.error);
  $("error").hidden = !query.error;
  document.title = `${chosen} · Handshake live`;
}

function drawFlow(query, held) {
  const place = $("flow"), sides = query.streams.filter((s) => s.name !== "both"), two = sides.length === 2;
  place.hidden = !query.streams.length; // nothing is known yet
  const shape = `${chosen}|${sides.map((s) => s.name)}|${query.parts.length}|${Object.keys(query.results)}`;
  if (place.dataset.shape !== shape || !place.children.length) buildFlow(place, query, sides, two, shape);
  const windows = held.about?.windows ?? {};
  sides.forEach((stream, k) => {
    const box = place.querySelectorAll(".stream")[k], rate = stream.rows === null ? null : rateNow(held, (f) => f.rows[query.streams.indexOf(stream)]);
    big(box.children[1], count(rate), "rows/s");
    text(box.children[2], stream.rows === null ? "" : `${count(stream.rows)} rows so far`);
    const holds = stream.window_rows === null ? "" : `${count(stream.window_rows)} in the window`;
    text(box.children[3], holds + (windows[stream.name] ? ` of ${windows[stream.name]}` : ""));
    const pipe = place.querySelectorAll(".pipe:not(.out)")[two ? k : 0];
    if (pipe && (two || k === 0)) run(pipe, two ? rate : rateNow(held, (f) => f.rows.reduce((a, b) => a + b, 0)));
  });
  drawCores(place.querySelector(".cores"), query);
  const out = rateNow(held, (f) => f.results);
  run(place.querySelector(".pipe.out"), out);
  const box = place.querySelector(".out-box");
  big(box.children[0], count(out), "results/s");
  const named = Object.entries(query.results);
  text(box.children[1], named.length > 1 ? named.map(([name, n]) => `${name} ${count(n)}`).join(", ") : `${count(total(query.results))} results so far`);
}

function big(node, value, unit) {
  if (node.dataset.shown === value + unit) return;
  node.dataset.shown = value + unit;
  node.replaceChildren(value, html("small", {}, unit));
}

function run(pipe, rate) {
  const moving = rate > 0 && frame.queries[chosen].state === "running";
  pipe.style.setProperty("--play", moving ? "running" : "paused");
  pipe.style.setProperty("--shown", moving ? "0.9" : "0.25");
  const speed = moving ? (2.4 / (1 + Math.log10(1 + rate))).toFixed(1) : "1";
  if (pipe.dataset.speed !== speed) pipe.style.setProperty("--speed", `${(pipe.dataset.speed = speed)}s`);
}

function buildFlow(place, query, sides, two, shape) {
  place.dataset.shape = shape;
  place.classList.toggle("many", !two);
  const streams = sides.map((s, k) => html("div", { class: `stream ${k === 1 && two ? "right" : "left"}` }, html("b", {}, s.name), html("div", { class: "big" }), html("span", {}), html("span", {})));
  const cores = html("div", { class: `cores${query.parts.length > 12 ? " dense" : ""}` });
  if (!query.parts.length) cores.append(html("div", { class: "core plain" }, html("b", {}, query.engine === "spark" ? "Spark" : "operators"), html("span", {})));
  query.parts.forEach((_, k) => cores.append(html("div", { class: "core" },
    html("b", {}, query.parts.length > 12 ? `${k}` : `${query.engine === "spark" ? "segment" : "core"} ${k}`, html("i", {})),
    ...(two ? [html("div", { class: "bar left" }), html("div", { class: "bar right" })] : [html("div", { class: "bar plain" })]), html("span", {}))));
  const middle = html("div", { class: "middle" }, cores, html("div", { class: "pipe out" }), html("div", { class: "out-box" }, html("div", { class: "big" }), html("span", {})));
  if (two) place.replaceChildren(streams[0], html("div", { class: "pipe left" }), middle, html("div", { class: "pipe right" }), streams[1]);
  else place.replaceChildren(html("div", { class: "stack" }, ...streams), html("div", { class: "pipe left" }), middle);
}

function drawCores(place, query) {
  if (!query.parts.length) text(place.querySelector("span"), query.figures.closed_windows === undefined ? "" : `${count(query.figures.closed_windows)} windows closed`);
  const most = Math.max(1, ...query.parts.flatMap((part) => part[2])), work = query.parts.reduce((sum, part) => sum + part[1], 0);
  const busiest = Math.max(1, ...query.parts.map((part) => part[1]));
  query.parts.forEach((part, k) => {
    const core = place.children[k], bars = core.querySelectorAll(".bar");
    text(core.querySelector("i"), work ? `${Math.round((100 * part[1]) / work)} %` : "");
    if (part[2].length) part[2].forEach((rows, side) => bars[side]?.style.setProperty("--share", `${(100 * rows) / most}%`));
    else bars[0].style.setProperty("--share", `${(100 * part[1]) / busiest}%`);
    const rows = part[2].length ? `${count(part[2][0])} + ${count(part[2][1])} rows` : `${count(part[1])} pairs`;
    text(core.querySelector("span"), rows + (part[3] ? `, ${part[3]} wait` : ""));
    core.title = `${part[0].toLocaleString("en-US")} results, ${part[1].toLocaleString("en-US")} comparisons: ${work ? ((100 * part[1]) / work).toFixed(1) : 0} % of all`;
  });
}

function tiles(query, held) {
  const figures = query.figures, history = held.history, [from, to] = span(held.history), smooth = query.engine === "spark" ? 6 : 0;
  const line = (name, kind, color) => () => history?.t && history[name] ? sparkline(kind(history.t, history[name], from, to, 120, smooth), color) : sparkline([], color);
  const rows = rateNow(held, (f) => f.rows.reduce((a, b) => a + b, 0)), results = rateNow(held, (f) => f.results);
  const taken = query.streams.reduce((sum, s) => sum + (s.rows ?? 0), 0), lost = late(query), dropped = shed(query);
  const allRows = () => history?.t ? sparkline(sumPoints(query.streams.filter((s) => history[`rows ${s.name}`]).map((s) => rates(history.t, history[`rows ${s.name}`], from, to, 120, smooth))), "left") : sparkline([], "left");
  const found = [
    ["Rows in", `${count(rows)}/s`, `${count(taken)} so far`, allRows],
    ["Results", `${count(results)}/s`, `${count(total(query.results))} so far`, line("results", rates, "out")],
  ];
  if (query.latency?.results) found.push(["Latency", seconds(query.latency.p50), `p99 ${seconds(query.latency.p99)}`, line("p99", values, "out")]);
  if (figures.lag_seconds !== undefined) found.push(["Lag", seconds(figures.lag_seconds), `batches take ${seconds(figures.batch_seconds)}`, line("lag_seconds", values, "out"), figures.lag_seconds > 60 ? "warn" : ""]);
  else if (figures.batch_seconds !== undefined) found.push(["Micro-batch", seconds(figures.batch_seconds), `${count(figures.batches)} so far`, line("batch_seconds", values, "out")]);
  found.push(["Late rows", count(lost), `${share(lost, taken)} of all`, line("late", rates, "right"), lost > 0.01 * taken ? "warn" : ""]);
  if (query.engine === "local" && query.algorithm !== "query") found.push(["Shed rows", count(dropped), dropped ? `${share(dropped, taken + dropped)} of all` : `${count(figures.waiting_rows ?? 0)} wait at the gate`, line("shed", rates, "right"), dropped ? "bad" : ""]);
  if (figures.state_bytes !== undefined) found.push(["State", bytes(figures.state_bytes), figures.chunks === undefined ? `${count(figures.basic_windows)} basic windows` : `${count(figures.chunks)} files`, line("state_bytes", values, "left")]);
  if (query.parts.length > 1) found.push(["Imbalance", ratio(figures.imbalance), `of work ${ratio(figures.load_imbalance)}`, line("imbalance", values, "left"), figures.imbalance > 3 && query.engine === "spark" ? "warn" : ""]);
  if (figures.closed_windows !== undefined) found.push(["Windows closed", count(figures.closed_windows), "", () => sparkline([], "left")]);
  return found;
}

const share = (part, whole) => (part && whole ? `${((100 * part) / whole).toFixed(part && part < 0.01 * whole ? 2 : 1)} %` : "0 %");

function sumPoints(series) {
  if (!series.length) return [];
  return series[0].map(([t, v], k) => [t, v === null ? null : series.reduce((sum, each) => sum + (each[k]?.[1] ?? 0), 0)]);
}

function drawTiles(query, held) {
  const place = $("tiles"), found = tiles(query, held);
  if (place.children.length !== found.length || found.some(([name], k) => place.children[k].dataset.name !== name)) {
    place.replaceChildren(...found.map(([name]) => html("div", { class: "tile", "data-name": name }, html("h3", {}, name), html("div", { class: "big" }), html("p", {}), html("div", {}))));
  }
  found.forEach(([, value, note, line, mood], k) => {
    const [, shown, small, chart] = place.children[k].children;
    text(shown, value);
    shown.className = `big ${mood ?? ""}`;
    text(small, note);
    if (frame.t - drawn >= 1) chart.replaceChildren(line());
  });
}

// The charts begin with the history, if it is shorter than the range that was asked for.
function span(history) {
  const first = history?.t?.[0] ?? frame.t;
  return [Math.max(frame.t - range, Math.min(first, frame.t - 60)), frame.t];
}

function drawCharts(query, held) {
  const history = held.history;
  if (!history?.t) return;
  const [from, to] = span(history), width = 560, smooth = query.engine === "spark" ? 6 : 0, colors = ["left", "right", "out", "muted"];
  const named = query.streams.filter((s) => history[`rows ${s.name}`]);
  const series = (name, key, kind, color) => ({ name, color, points: history[key] ? kind(history.t, history[key], from, to, width, smooth) : [] });
  const wanted = [
    ["Rates", "rows and results per second", count, [...named.map((s, k) => series(s.name, `rows ${s.name}`, rates, colors[k % 2 ? 1 : 0])), series("results", "results", rates, "out")]],
  ];
  const windows = query.streams.filter((s) => s.window_rows !== null);
  if (windows.length) wanted.push(["Windows", "rows held", count, windows.map((s, k) => series(s.name, `window ${s.name}`, values, colors[k % 2 ? 1 : 0]))]);
  if (query.latency) wanted.push(["Latency", "of the results of each moment", seconds, [series("p50", "p50", values, "left"), series("p99", "p99", values, "right")]]);
  if (query.engine === "spark") wanted.push(["Lag", "age of the newest row, and duration of micro-batches", seconds, [series("lag", "lag_seconds", values, "out"), series("micro-batch", "batch_seconds", values, "muted")]]);
  if (query.figures.state_bytes !== undefined) wanted.push(["State", "of windows and indexes", bytes, [series("state", "state_bytes", values, "left")]]);
  wanted.push(["Late and shed", "rows per second that are in no result", count, [series("late", "late", rates, "right"), series("shed", "shed", rates, "muted")]]);
  const cards = wanted.map(([title, note, format]) => {
    if (!charts.has(title)) charts.set(title, new LineChart(title, note, format));
    return charts.get(title).card;
  });
  if (query.latency?.results) cards.splice(3, 0, bars.card);
  const place = $("charts");
  if (place.children.length !== cards.length || cards.some((card, k) => place.children[k] !== card)) place.replaceChildren(...cards);
  for (const [title, , , each] of wanted) charts.get(title).draw(each, from, to);
  if (query.latency?.results) drawHistogram(query.latency);
}

function histogramCard() {
  const note = html("small", {}), legend = html("p", { class: "legend" }), body = html("div", { class: "chart" });
  return { note, legend, body, card: html("section", { class: "card" }, html("h3", {}, "Histogram of latencies", note), legend, body) };
}

function drawHistogram(latency) {
  text(bars.note, `${count(latency.results)} results since the start`);
  text(bars.legend, `half within ${seconds(latency.p50)}, 99 % within ${seconds(latency.p99)}, longest ${seconds(latency.longest)}`);
  histogram(bars.body, latency);
}

function drawLast(query) {
  const { columns, rows } = query.last, shown = JSON.stringify(query.last);
  $("last-card").hidden = !columns;
  if (!columns || $("last").dataset.shown === shown) return;
  $("last").dataset.shown = shown;
  const numeric = columns.map((_, k) => rows.every((row) => row[k] === null || /^-?[\d.]+(e[+-]?\d+)?$/i.test(row[k])));
  const head = html("tr", {}, ...columns.map((name, k) => html("th", { scope: "col", class: numeric[k] ? "number" : "" }, name)));
  const body = rows.map((row) => html("tr", {}, ...row.map((cell, k) => html("td", { class: cell === null ? "null" : numeric[k] ? "number" : "" }, cell ?? "NULL"))));
  $("last").replaceChildren(html("thead", {}, head), html("tbody", {}, ...body));
  text($("last-note"), "newest first");
}

function drawAbout(about) {
  $("plan-card").hidden = !about.tree && !about.text;
  $("plan").replaceChildren(...(about.tree ? [planPicture(about.tree)] : []));
  $("plan").hidden = !about.tree;
  $("plan-text").hidden = !about.text;
  text($("plan-text"), about.text);
  $("why-card").hidden = !about.why;
  $("why-answer").hidden = true;
  $("why-left").value = $("why-right").value = "";
  fillWhy(about);
}

function fillWhy(about) {
  if (about?.why && !$("why-left").value && !$("why-right").value && frame.queries[chosen].last.rows) {
    for (const [k, id] of [[0, "why-left"], [1, "why-right"]]) {
      $(id).value = JSON.stringify(Object.fromEntries(about.why[k].map((name, at) => [name, example(about.why, k, at)])));
    }
  }
}

// A value of the last result, to begin with: its columns are those of the left stream, then those of the right.
function example(columns, side, at) {
  const { columns: names, rows } = frame.queries[chosen].last ?? {};
  if (!rows?.length || names.length !== columns[0].length + columns[1].length) return null;
  const cell = rows[0][side * columns[0].length + at];
  return cell !== null && /^-?\d+(\.\d+)?$/.test(cell) ? Number(cell) : cell;
}

async function askWhy() {
  const asked = new URLSearchParams({ name: chosen, left: $("why-left").value, right: $("why-right").value });
  const answer = await fetch(`why?${asked}`), found = await answer.json();
  $("why-answer").hidden = false;
  text($("why-answer"), found.text ?? found.error);
}

function drawErrors() {
  $("errors-card").hidden = !frame.errors.length;
  const shown = String(frame.errors.length && frame.errors.at(-1).t);
  if ($("errors").dataset.shown === shown) return;
  $("errors").dataset.shown = shown;
  $("errors").replaceChildren(...frame.errors.toReversed().map((each) => html("li", {}, html("time", {}, clock(each.t)), `${each.query}: ${each.error}`)));
}

for (const button of document.querySelectorAll("[data-range]")) {
  button.addEventListener("click", () => {
    range = Number(button.dataset.range);
    for (const each of document.querySelectorAll("[data-range]")) each.setAttribute("aria-pressed", String(each === button));
    drawn = 0;
    if (frame) draw();
  });
}
addEventListener("resize", () => { drawn = 0; });
$("why-ask").addEventListener("click", askWhy);
listen();
