// Charts: lines over time, sparklines and the histogram of latencies, as SVG elements.
import { html, svg } from "./dom.js";
import { clock, seconds } from "./numbers.js";

function niceTop(top) {
  if (!(top > 0)) return 1;
  const scale = 10 ** Math.floor(Math.log10(top));
  return [1, 1.5, 2, 3, 4, 5, 8, 10, 12].find((m) => m * scale >= top * 1.02) * scale;
}

// The text at the ends of an axis stays inside of it.
function anchorOf(at, first, last) {
  return at === first ? "start" : at === last ? "end" : "middle";
}

// Lines over time

export class LineChart {
  constructor(title, note, format) {
    this.format = format;
    this.legend = html("ul", { class: "legend" });
    this.body = html("div", { class: "chart", role: "img" });
    this.note = html("small", {}, note);
    this.title = title;
    const head = html("h3", {}, title, this.note);
    this.card = html("section", { class: "card" }, head, this.legend, this.body);
    this.tip = html("div", { class: "tip", hidden: "" });
    this.body.append(this.tip);
    this.body.addEventListener("pointermove", (event) => this.point(event));
    this.body.addEventListener("pointerleave", () => { this.at = null; this.hover(); });
  }

  draw(series, from, to) {
    const width = Math.max(this.body.clientWidth, 200), height = 150, foot = 20, margin = 52;
    const shown = series.filter((each) => each.points.some((p) => p[1] !== null));
    const top = niceTop(Math.max(0, ...shown.flatMap((each) => each.points.map((p) => p[1] ?? 0))));
    const x = (t) => margin + ((t - from) / (to - from)) * (width - margin - 4);
    const y = (v) => 6 + (1 - v / top) * (height - foot - 6);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    for (const part of [0, 0.5, 1]) {
      const line = Math.round(y(part * top)) + 0.5;
      root.append(svg("line", { class: "grid-line", x1: margin, x2: width - 4, y1: line, y2: line }));
      root.append(svg("text", { x: margin - 8, y: line + 4, "text-anchor": "end" }, this.format(part * top)));
    }
    const ticks = width < 420 ? 2 : 4;
    for (let k = 0; k <= ticks; k++) {
      const t = from + ((to - from) * k) / ticks, anchor = anchorOf(k, 0, ticks);
      root.append(svg("text", { x: x(t), y: height - 4, "text-anchor": anchor }, clock(t, to - from <= 600)));
    }
    for (const each of shown) {
      const path = linePath(each.points, x, y);
      if (shown.length === 1) {
        root.append(svg("path", { class: `area f-${each.color}`, d: areaPath(each.points, x, y, y(0)) }));
      }
      root.append(svg("path", { class: `series c-${each.color}`, d: path }));
    }
    this.cursor = svg("line", { class: "cursor", y1: 4, y2: height - foot, visibility: "hidden" });
    root.append(this.cursor);
    const entry = (each) => html("li", { class: `t-${each.color}` }, html("span", {}, each.name));
    this.legend.replaceChildren(...shown.map(entry));
    this.body.querySelector("svg")?.remove();
    this.body.prepend(root);
    const now = shown.map((each) => `${each.name} ${this.format(latest(each.points))}`).join(", ");
    this.body.setAttribute("aria-label", `${this.title}: ${now || "no figures yet"}`);
    Object.assign(this, { shown, x, from, to, width, margin });
    this.hover();
  }

  point(event) {
    const box = this.body.getBoundingClientRect();
    const inside = (event.clientX - box.left - this.margin) / (this.width - this.margin - 4);
    this.at = inside < 0 || inside > 1 ? null : inside;
    this.hover();
  }

  hover() {
    const aimed = this.at !== null && this.at !== undefined && this.shown?.length;
    const near = aimed ? this.from + this.at * (this.to - this.from) : null;
    this.tip.hidden = near === null;
    this.cursor?.setAttribute("visibility", near === null ? "hidden" : "visible");
    if (near === null) return;
    const lines = [];
    let t = near;
    for (const each of this.shown) {
      const away = (p) => Math.abs(p[0] - near);
      const found = each.points.reduce((best, p) => (away(p) < away(best) ? p : best));
      t = found[0];
      lines.push(`${each.name}  ${this.format(found[1])}`);
    }
    this.tip.textContent = [clock(t), ...lines].join("\n");
    const at = this.x(t);
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
    const wide = this.tip.offsetWidth + 12;
    this.tip.style.left = `${at + wide > this.width ? at - wide : at + 12}px`;
  }
}

function latest(points) {
  for (let k = points.length - 1; k >= 0; k--) if (points[k][1] !== null) return points[k][1];
  return null;
}

function linePath(points, x, y) {
  let pen = "M", path = "";
  for (const [t, v] of points) {
    if (v === null) { pen = "M"; continue; }
    path += `${pen}${x(t).toFixed(1)} ${y(v).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

function areaPath(points, x, y, floor) {
  let path = "", run = [];
  const close = () => {
    const line = run.map(([t, v]) => `L${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join("");
    const ends = run.length > 1 ? [run[0], run.at(-1)].map(([t]) => `${x(t).toFixed(1)} ${floor}`) : null;
    if (ends) path += `M${ends[0]}${line}L${ends[1]}Z`;
    run = [];
  };
  for (const p of points) p[1] === null ? close() : run.push(p);
  close();
  return path;
}

export function sparkline(points, color) {
  const root = svg("svg", { viewBox: "0 0 120 26", preserveAspectRatio: "none", "aria-hidden": "true" });
  const held = points.filter((p) => p[1] !== null);
  if (held.length > 1) {
    const top = Math.max(...held.map((p) => p[1])) || 1;
    const from = points[0][0], span = points.at(-1)[0] - from || 1;
    const path = linePath(points, (t) => ((t - from) / span) * 120, (v) => 24 - (v / top) * 21);
    root.append(svg("path", { class: `series c-${color}`, d: path, "vector-effect": "non-scaling-stroke" }));
  } else {
    root.append(svg("line", { class: "grid-line", x1: 0, x2: 120, y1: 24, y2: 24 }));
  }
  return root;
}

// The histogram of latencies: bars over a logarithmic axis, ten per power of ten

const toBar = (latency) => Math.log10(Math.max(latency, 1e-6) / 1e-6) * 10;
const fromBar = (at) => 1e-6 * 10 ** (at / 10);
const LABEL = 66; // pixels of a label of the axis, with a space

function barsOf(buckets) {
  const bars = new Map();
  for (const [bound, n] of buckets) {
    const at = bound === null ? 90 : Math.ceil(toBar(bound) - 1e-6);
    bars.set(at, (bars.get(at) ?? 0) + n);
  }
  return bars;
}

export function histogram(place, latency) {
  const width = Math.max(place.clientWidth, 200), height = 150, foot = 22;
  const bars = barsOf(latency.buckets), places = [...bars.keys()];
  const low = Math.floor((Math.min(...places) - 2) / 10) * 10;
  const high = Math.max(Math.ceil((Math.max(...places) + 1) / 10) * 10, low + 10);
  const top = Math.max(...bars.values()), x = (at) => 6 + ((at - low) / (high - low)) * (width - 12);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
  const apart = Math.ceil(LABEL / (x(10) - x(0))) * 10;
  for (let at = low; at <= high; at += 10) {
    root.append(svg("line", { class: "grid-line", x1: x(at), x2: x(at), y1: 14, y2: height - foot }));
    if ((at - low) % apart) continue;
    const anchor = anchorOf(at, low, high);
    root.append(svg("text", { x: x(at), y: height - 5, "text-anchor": anchor }, seconds(fromBar(at))));
  }
  for (const [at, n] of bars) {
    const tall = Math.max((n / top) * (height - foot - 18), 1.5), wide = Math.max(x(1) - x(0) - 2, 1);
    const box = { x: x(at - 1) + 1, y: height - foot - tall, width: wide, height: tall, rx: 2 };
    const bar = svg("rect", { class: "f-out", ...box });
    bar.append(svg("title", {}, `up to ${seconds(fromBar(at))}: ${n.toLocaleString("en-US")} results`));
    root.append(bar);
  }
  for (const [name, anchor] of [["p50", "end"], ["p99", "start"]]) {
    const at = x(toBar(latency[name]));
    root.append(svg("line", { class: "cursor", x1: at, x2: at, y1: 12, y2: height - foot }));
    root.append(svg("text", { x: at, y: 9, "text-anchor": anchor }, name));
  }
  place.replaceChildren(root);
  place.setAttribute("role", "img");
  const results = latency.results.toLocaleString("en-US");
  place.setAttribute("aria-label", `Latency of ${results} results: ${words(latency)}`);
}

export function words(latency) {
  const [half, most] = [seconds(latency.p50), seconds(latency.p99)];
  return `half within ${half}, 99 % within ${most}, longest ${seconds(latency.longest)}`;
}
