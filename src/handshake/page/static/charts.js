// Drawing: numbers as text, lines over time, histograms, sparklines and plan trees, all as SVG elements.
const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function html(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Numbers

export function count(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  const size = Math.abs(n);
  if (size < 10 && !Number.isInteger(n)) return n.toFixed(1);
  if (size < 10000) return Math.round(n).toLocaleString("en-US");
  for (const [unit, scale] of [["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12]]) {
    const shown = n / scale;
    if (Math.abs(shown) < 999.5) return `${Math.abs(shown) < 99.5 ? shown.toFixed(1) : Math.round(shown)} ${unit}`;
  }
  return n.toExponential(2);
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1000) return `${Math.round(n)} B`;
  for (const [unit, scale] of [["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]]) {
    const shown = n / scale;
    if (shown < 999.5 || unit === "TB") return `${shown < 99.5 ? shown.toFixed(1) : Math.round(shown)} ${unit}`;
  }
}

export function seconds(s) {
  if (s === null || s === undefined) return "–";
  const size = Math.abs(s);
  if (size < 1e-3) return `${(s * 1e6).toFixed(0)} µs`;
  if (size < 1) return `${(s * 1e3).toFixed(size < 0.01 ? 1 : 0)} ms`;
  if (size < 120) return `${s.toFixed(1)} s`;
  if (size < 7200) return `${(s / 60).toFixed(1)} min`;
  return size < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} d`;
}

export function ratio(x) {
  return x === null || x === undefined ? "–" : x.toFixed(2);
}

export function clock(t, withSeconds = true) {
  return new Date(t * 1000).toLocaleTimeString([], {
    hour: "2-digit", minute: "2-digit", hour12: false, ...(withSeconds ? { second: "2-digit" } : {}),
  });
}

// Series: points of a history, at most one per two pixels

export function rates(times, counts, from, to, width, least = 0) {
  return sample(times, from, to, width, least, (a, b) => {
    if (counts[a] === null || counts[b] === null || counts[a] === undefined) return null;
    const change = counts[b] - counts[a];
    return (change < 0 ? counts[b] : change) / Math.max(times[b] - times[a], 1e-3); // a fall is a restart
  });
}

export function values(times, held, from, to, width) {
  return sample(times, from, to, width, 0, (a, b) => {
    let best = null;
    for (let k = a + 1; k <= b; k++) if (held[k] !== null && held[k] !== undefined && (best === null || held[k] > best)) best = held[k];
    return best;
  });
}

// `least` seconds between two points: micro-batches count many rows at once.
function sample(times, from, to, width, least, value) {
  const step = Math.max((to - from) / Math.max(width / 2, 20), least), points = [];
  let last = times.findIndex((t) => t >= from - step);
  if (last < 0) return points;
  for (let k = last + 1; k < times.length; k++) {
    const apart = times[k] - times[k - 1] > Math.max(5, 3 * step); // nothing was seen in between
    if (apart) {
      points.push([times[k - 1], null]);
      last = k;
    } else if (times[k] - times[last] >= step || k === times.length - 1) {
      points.push([times[k], value(last, k)]);
      last = k;
    }
  }
  return points;
}

function niceTop(top) {
  if (!(top > 0)) return 1;
  const scale = 10 ** Math.floor(Math.log10(top));
  return [1, 1.5, 2, 3, 4, 5, 8, 10, 12].find((m) => m * scale >= top * 1.02) * scale;
}

// Lines over time

export class LineChart {
  constructor(title, note, format) {
    this.format = format;
    this.legend = html("ul", { class: "legend" });
    this.body = html("div", { class: "chart", role: "img" });
    this.note = html("small", {}, note);
    this.title = title;
    this.card = html("section", { class: "card" }, html("h3", {}, title, this.note), this.legend, this.body);
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
      const t = from + ((to - from) * k) / ticks, anchor = k === 0 ? "start" : k === ticks ? "end" : "middle";
      root.append(svg("text", { x: x(t), y: height - 4, "text-anchor": anchor }, clock(t, to - from <= 600)));
    }
    for (const each of shown) {
      const path = linePath(each.points, x, y);
      if (shown.length === 1) root.append(svg("path", { class: `area f-${each.color}`, d: areaPath(each.points, x, y, y(0)) }));
      root.append(svg("path", { class: `series c-${each.color}`, d: path }));
    }
    this.cursor = svg("line", { class: "cursor", y1: 4, y2: height - foot, visibility: "hidden" });
    root.append(this.cursor);
    this.legend.replaceChildren(...shown.map((each) => html("li", { class: `t-${each.color}` }, html("span", {}, each.name))));
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
    const near = this.at === null || this.at === undefined || !this.shown?.length ? null : this.from + this.at * (this.to - this.from);
    this.tip.hidden = near === null;
    this.cursor?.setAttribute("visibility", near === null ? "hidden" : "visible");
    if (near === null) return;
    const lines = [];
    let t = near;
    for (const each of this.shown) {
      const found = each.points.reduce((best, p) => (Math.abs(p[0] - near) < Math.abs(best[0] - near) ? p : best));
      t = found[0];
      lines.push(`${each.name}  ${this.format(found[1])}`);
    }
    this.tip.textContent = [clock(t), ...lines].join("\n");
    const at = this.x(t);
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
    this.tip.style.left = `${at + 12 + this.tip.offsetWidth > this.width ? at - 12 - this.tip.offsetWidth : at + 12}px`;
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
    if (run.length > 1) path += `M${x(run[0][0]).toFixed(1)} ${floor}` + run.map(([t, v]) => `L${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join("") + `L${x(run.at(-1)[0]).toFixed(1)} ${floor}Z`;
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
    const top = Math.max(...held.map((p) => p[1])) || 1, from = points[0][0], span = points.at(-1)[0] - from || 1;
    const path = linePath(points, (t) => ((t - from) / span) * 120, (v) => 24 - (v / top) * 21);
    root.append(svg("path", { class: `series c-${color}`, d: path, "vector-effect": "non-scaling-stroke" }));
  } else root.append(svg("line", { class: "grid-line", x1: 0, x2: 120, y1: 24, y2: 24 }));
  return root;
}

// The histogram of latencies: bars over a logarithmic axis

export function histogram(place, latency) {
  const width = Math.max(place.clientWidth, 200), height = 150, foot = 22;
  const bars = new Map();
  for (const [bound, n] of latency.buckets) {
    const at = bound === null ? 90 : Math.ceil(Math.log10(bound / 1e-6) * 10 - 1e-6); // ten bars per power of ten
    bars.set(at, (bars.get(at) ?? 0) + n);
  }
  const places = [...bars.keys()];
  const low = Math.floor((Math.min(...places) - 2) / 10) * 10, high = Math.max(Math.ceil((Math.max(...places) + 1) / 10) * 10, low + 10);
  const top = Math.max(...bars.values()), x = (at) => 6 + ((at - low) / (high - low)) * (width - 12);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
  for (let at = low; at <= high; at += 10) {
    root.append(svg("line", { class: "grid-line", x1: x(at), x2: x(at), y1: 14, y2: height - foot }));
    const anchor = at === low ? "start" : at === high ? "end" : "middle";
    root.append(svg("text", { x: x(at), y: height - 5, "text-anchor": anchor }, seconds(1e-6 * 10 ** (at / 10))));
  }
  for (const [at, n] of bars) {
    const tall = Math.max((n / top) * (height - foot - 18), 1.5);
    const bar = svg("rect", { class: "f-out", x: x(at - 1) + 1, y: height - foot - tall, width: Math.max(x(1) - x(0) - 2, 1), height: tall, rx: 2 });
    bar.append(svg("title", {}, `up to ${seconds(1e-6 * 10 ** (at / 10))}: ${n.toLocaleString("en-US")} results`));
    root.append(bar);
  }
  let k = 0;
  for (const [name, value] of [["p50", latency.p50], ["p99", latency.p99]]) {
    const at = x(Math.log10(Math.max(value, 1e-6) / 1e-6) * 10);
    root.append(svg("line", { class: "cursor", x1: at, x2: at, y1: 12, y2: height - foot }));
    root.append(svg("text", { x: at, y: 9, "text-anchor": k++ ? "start" : "end" }, name));
  }
  place.replaceChildren(root);
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", `Latency of ${latency.results.toLocaleString("en-US")} results: half within ${seconds(latency.p50)}, 99 % within ${seconds(latency.p99)}, longest ${seconds(latency.longest)}`);
}

// The plan: results at the top, inputs at the bottom

export function planPicture(tree) {
  const line = 17, gap = 18, drop = 34;
  let leaves = 0, deepest = 0;
  const place = (node, depth) => {
    const lines = wrap(node.label, node.children.length ? 44 : 26, 4);
    const width = Math.max(...lines.map((each) => each.length)) * 7.1 + 26, height = lines.length * line + 14;
    const children = node.children.map((child) => place(child, depth + 1));
    const below = children.reduce((sum, child) => sum + child.span, 0) + gap * Math.max(children.length - 1, 0);
    deepest = Math.max(deepest, depth);
    return { lines, width, height, children, span: Math.max(width, below), below, depth, leaf: children.length ? null : leaves++ };
  };
  const top = place(tree, 0), heights = Array(deepest + 1).fill(0);
  const measure = (node) => { heights[node.depth] = Math.max(heights[node.depth], node.height); node.children.forEach(measure); };
  measure(top);
  const ys = heights.map((_, depth) => heights.slice(0, depth).reduce((sum, h) => sum + h + drop, 2));
  const width = top.span + 4, height = ys.at(-1) + heights.at(-1) + 4;
  const edges = svg("g"), nodes = svg("g");
  const draw = (node, left) => {
    const cx = left + node.span / 2, y = ys[node.depth];
    const kind = node.leaf !== null ? ` leaf-${node.leaf % 2}` : node.depth === 0 ? " root" : "";
    const box = svg("g", { class: `plan-node${kind}` }, svg("rect", { x: cx - node.width / 2, y, width: node.width, height: node.height, rx: 8 }));
    node.lines.forEach((text, k) => box.append(svg("text", { x: cx, y: y + 20 + k * line, "text-anchor": "middle" }, text)));
    nodes.append(box);
    let at = left + (node.span - node.below) / 2;
    for (const child of node.children) {
      const px = at + child.span / 2, py = ys[child.depth], middle = (y + node.height + py) / 2;
      edges.append(svg("path", { class: "plan-edge", d: `M${px} ${py}C${px} ${middle} ${cx} ${middle} ${cx} ${y + node.height}` }));
      draw(child, at);
      at += child.span + gap;
    }
  };
  draw(top, 2);
  return svg("svg", { class: "plan", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Plan: ${tree.label}` }, edges, nodes);
}

function wrap(text, length, most) {
  const lines = [];
  for (const word of text.split(/\s+/)) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + word.length < length) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word.length > length + 12 ? `${word.slice(0, length + 11)}…` : word);
  }
  return lines.length > most ? [...lines.slice(0, most - 1), `${lines[most - 1]} …`] : lines;
}
