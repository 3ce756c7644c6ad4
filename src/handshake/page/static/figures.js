// The figures of this moment as tiles, and the history as charts.
import { LineChart, histogram, sparkline, words } from "./charts.js";
import { byId, html, text } from "./dom.js";
import { bytes, count, percent, ratio, seconds } from "./numbers.js";
import { allRows, late, shed, total } from "./query.js";
import { rates, sumSeries, values } from "./series.js";

const charts = new Map(), bars = histogramCard();
const BATCHES = 6; // seconds between two points of a rate on Spark: micro-batches count many rows at once

// The charts begin with the history, if it is shorter than the range that was asked for.
function span({ history }, now, range) {
  const first = history?.t?.[0] ?? now;
  return [Math.max(now - range, Math.min(first, now - 60)), now];
}

// Draws series of the history of a query, `width` points wide.
function seriesOf({ query, history }, [from, to], width) {
  const least = query.engine === "spark" ? BATCHES : 0;
  return (key, kind) => (history?.[key] ? kind(history.t, history[key], from, to, width, least) : []);
}

// Tiles

export function drawTiles(known, now, range, withLines) {
  const place = byId("tiles"), found = tiles(known, seriesOf(known, span(known, now, range), 120));
  const changed = found.some(({ name }, k) => place.children[k]?.dataset.name !== name);
  if (changed || place.children.length !== found.length) place.replaceChildren(...found.map(emptyTile));
  found.forEach(({ value, note, line, color, mood }, k) => {
    const [, shown, small, chart] = place.children[k].children;
    text(shown, value);
    shown.className = `big ${mood ?? ""}`;
    text(small, note);
    if (withLines) chart.replaceChildren(sparkline(line(), color));
  });
}

function emptyTile({ name }) {
  const parts = [html("h3", {}, name), html("div", { class: "big" }), html("p", {}), html("div", {})];
  return html("div", { class: "tile", "data-name": name }, ...parts);
}

function tiles(known, series) {
  const { query } = known, { figures, latency } = query, found = [];
  const tile = (name, value, note, line, color, mood) => found.push({ name, value, note, line, color, mood });
  const taken = total(query.streams.map((s) => s.rows ?? 0)), lost = late(query);
  const streams = () => query.streams.map((s) => series(`rows ${s.name}`, rates));
  const rows = () => sumSeries(streams().filter((points) => points.length));
  const results = () => series("results", rates), soFar = (n) => `${count(n)} so far`;
  tile("Rows in", `${count(known.rate(allRows))}/s`, soFar(taken), rows, "left");
  tile("Results", `${count(known.rate((m) => m.results))}/s`, soFar(total(query.results)), results, "out");
  if (latency?.results) {
    tile("Latency", seconds(latency.p50), `p99 ${seconds(latency.p99)}`, () => series("p99", values), "out");
  }
  batchTile(figures, tile, series, soFar);
  const lateNote = `${percent(lost, taken)} of all`, lateMood = lost > 0.01 * taken ? "warn" : "";
  tile("Late rows", count(lost), lateNote, () => series("late", rates), "right", lateMood);
  if (query.engine === "local" && query.algorithm !== "query") shedTile(query, taken, tile, series);
  if (figures.state_bytes !== undefined) {
    const { chunks, basic_windows: windows } = figures;
    const held = chunks === undefined ? `${count(windows)} basic windows` : `${count(chunks)} files`;
    tile("State", bytes(figures.state_bytes), held, () => series("state_bytes", values), "left");
  }
  if (query.parts.length > 1) {
    const work = `of work ${ratio(figures.load_imbalance)}`;
    const mood = figures.imbalance > 3 && query.engine === "spark" ? "warn" : "";
    tile("Imbalance", ratio(figures.imbalance), work, () => series("imbalance", values), "left", mood);
  }
  if (figures.closed_windows !== undefined) {
    tile("Windows closed", count(figures.closed_windows), "", () => [], "left");
  }
  return found;
}

function batchTile({ lag_seconds: lag, batch_seconds: batch, batches }, tile, series, soFar) {
  if (lag !== undefined) {
    const note = `batches take ${seconds(batch)}`, mood = lag > 60 ? "warn" : "";
    tile("Lag", seconds(lag), note, () => series("lag_seconds", values), "out", mood);
  } else if (batch !== undefined) {
    tile("Micro-batch", seconds(batch), soFar(batches), () => series("batch_seconds", values), "out");
  }
}

function shedTile(query, taken, tile, series) {
  const dropped = shed(query), waiting = `${count(query.figures.waiting_rows ?? 0)} wait at the gate`;
  const note = dropped ? `${percent(dropped, taken + dropped)} of all` : waiting;
  tile("Shed rows", count(dropped), note, () => series("shed", rates), "right", dropped ? "bad" : "");
}

// Charts

export function drawCharts(known, now, range) {
  if (!known.history?.t) return;
  const { query } = known, [from, to] = span(known, now, range), place = byId("charts");
  const wanted = chartsOf(known, seriesOf(known, [from, to], 560));
  for (const { title, note, format } of wanted) {
    if (!charts.has(title)) charts.set(title, new LineChart(title, note, format));
  }
  const cards = wanted.map(({ title }) => charts.get(title).card);
  if (query.latency?.results) cards.splice(3, 0, bars.card);
  const changed = cards.some((card, k) => place.children[k] !== card);
  if (changed || place.children.length !== cards.length) place.replaceChildren(...cards);
  for (const { title, lines } of wanted) charts.get(title).draw(lines, from, to);
  if (query.latency?.results) drawHistogram(query.latency);
}

function chartsOf({ query, history }, series) {
  const side = (k) => ["left", "right", "third", "fourth"][k % 4];
  const line = (name, key, kind, color) => ({ name, color, points: series(key, kind) });
  const chart = (title, note, format, ...lines) => ({ title, note, format, lines });
  const named = query.streams.filter((s) => history[`rows ${s.name}`]);
  const streams = named.map((s, k) => line(s.name, `rows ${s.name}`, rates, side(k)));
  const results = line("results", "results", rates, "out");
  const found = [chart("Rates", "rows and results per second", count, ...streams, results)];
  const held = query.streams.filter((s) => s.window_rows !== null);
  const windows = held.map((s, k) => line(s.name, `window ${s.name}`, values, side(k)));
  if (windows.length) found.push(chart("Windows", "rows held", count, ...windows));
  if (query.latency) {
    const lines = [line("p50", "p50", values, "left"), line("p99", "p99", values, "right")];
    found.push(chart("Latency", "of the results of each second", seconds, ...lines));
  }
  if (query.engine === "spark") {
    const lag = line("lag", "lag_seconds", values, "out");
    const batch = line("micro-batch", "batch_seconds", values, "muted");
    found.push(chart("Lag", "age of the newest row, and duration of micro-batches", seconds, lag, batch));
  }
  if (query.figures.state_bytes !== undefined) {
    found.push(chart("State", "of windows and indexes", bytes, line("state", "state_bytes", values, "left")));
  }
  const lost = [line("late", "late", rates, "right"), line("shed", "shed", rates, "muted")];
  found.push(chart("Late and shed", "rows per second that are in no result", count, ...lost));
  return found;
}

function histogramCard() {
  const note = html("small", {}), legend = html("p", { class: "legend" });
  const body = html("div", { class: "chart" });
  const head = html("h3", {}, "Histogram of latencies", note);
  return { note, legend, body, card: html("section", { class: "card" }, head, legend, body) };
}

function drawHistogram(latency) {
  text(bars.note, `${count(latency.results)} results since the start`);
  text(bars.legend, words(latency));
  histogram(bars.body, latency);
}
