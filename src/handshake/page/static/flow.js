// The streams, the join cores and the results of a query, and what flows between them.
import { byId, html, text } from "./dom.js";
import { count } from "./numbers.js";
import { allRows, total } from "./query.js";

export function drawFlow(name, known) {
  const { query, about } = known, rate = (pick) => known.rate(pick);
  const place = byId("flow"), sides = query.streams.filter((s) => s.name !== "both");
  const two = sides.length === 2, running = query.state === "running";
  place.hidden = !query.streams.length; // nothing is known yet
  const parts = [name, sides.map((s) => s.name), query.parts.length, Object.keys(query.results)];
  const shape = parts.join("|");
  if (place.dataset.shape !== shape || !place.children.length) build(place, query, sides, two);
  place.dataset.shape = shape;
  const pipes = place.querySelectorAll(".pipe:not(.out)");
  if (!two && pipes[0]) run(pipes[0], rate(allRows), running);
  sides.forEach((stream, k) => {
    const at = query.streams.indexOf(stream), own = stream.rows === null ? null : rate((m) => m.rows[at]);
    drawStream(place.querySelectorAll(".stream")[k], stream, own, about?.windows?.[stream.name]);
    if (two) run(pipes[k], own, running);
  });
  drawCores(place.querySelector(".cores"), query);
  const out = rate((moment) => moment.results);
  run(place.querySelector(".pipe.out"), out, running);
  drawResults(place.querySelector(".out-box"), query, out);
}

function drawStream(box, stream, rate, window) {
  big(box.children[1], count(rate), "rows/s");
  text(box.children[2], stream.rows === null ? "" : `${count(stream.rows)} rows so far`);
  const holds = stream.window_rows === null ? "" : `${count(stream.window_rows)} in the window`;
  text(box.children[3], holds + (window ? ` of ${window}` : ""));
}

function drawResults(box, query, rate) {
  big(box.children[0], count(rate), "results/s");
  const named = Object.entries(query.results).map(([name, n]) => `${name} ${count(n)}`);
  const all = `${count(total(query.results))} results so far`;
  text(box.children[1], named.length > 1 ? named.join(", ") : all);
}

function big(node, value, unit) {
  if (node.dataset.shown === value + unit) return;
  node.dataset.shown = value + unit;
  node.replaceChildren(value, html("small", {}, unit));
}

function run(pipe, rate, running) {
  const moving = rate > 0 && running;
  pipe.style.setProperty("--play", moving ? "running" : "paused");
  pipe.style.setProperty("--shown", moving ? "0.9" : "0.25");
  const speed = moving ? (2.4 / (1 + Math.log10(1 + rate))).toFixed(1) : "1";
  if (pipe.dataset.speed !== speed) pipe.style.setProperty("--speed", `${(pipe.dataset.speed = speed)}s`);
}

function build(place, query, sides, two) {
  place.classList.toggle("many", !two);
  const streams = sides.map((side, k) => streamBox(side.name, k === 1 && two ? "right" : "left"));
  const box = html("div", { class: "out-box" }, html("div", { class: "big" }), html("span", {}));
  const pipe = (side) => html("div", { class: `pipe ${side}` });
  const middle = html("div", { class: "middle" }, coreBoxes(query, two), pipe("out"), box);
  if (two) place.replaceChildren(streams[0], pipe("left"), middle, pipe("right"), streams[1]);
  else place.replaceChildren(html("div", { class: "stack" }, ...streams), pipe("left"), middle);
}

function streamBox(name, side) {
  const parts = [html("b", {}, name), html("div", { class: "big" }), html("span", {}), html("span", {})];
  return html("div", { class: `stream ${side}` }, ...parts);
}

function coreBoxes(query, two) {
  const dense = query.parts.length > 12, kind = query.engine === "spark" ? "segment" : "core";
  const sides = two ? ["left", "right"] : ["plain"];
  const bar = (side) => html("div", { class: `bar ${side}` });
  const cores = query.parts.map((_, k) => {
    const name = html("b", {}, dense ? `${k}` : `${kind} ${k}`, html("i", {}));
    return html("div", { class: "core" }, name, ...sides.map(bar), html("span", {}));
  });
  if (!cores.length) {
    const name = html("b", {}, query.engine === "spark" ? "Spark" : "operators");
    cores.push(html("div", { class: "core plain" }, name, html("span", {})));
  }
  return html("div", { class: `cores${dense ? " dense" : ""}` }, ...cores);
}

// A part is its results, its comparisons, the rows of its windows, and how many rows wait for it.
function drawCores(place, query) {
  const windows = query.figures.closed_windows;
  if (!query.parts.length) {
    text(place.querySelector("span"), windows === undefined ? "" : `${count(windows)} windows closed`);
  }
  const work = total(query.parts.map((part) => part[1]));
  const busiest = Math.max(1, ...query.parts.map((part) => part[1]));
  const most = Math.max(1, ...query.parts.flatMap((part) => part[2]));
  query.parts.forEach(([results, pairs, held, queue], k) => {
    const core = place.children[k], bars = core.querySelectorAll(".bar");
    const shares = held.length ? held.map((rows) => rows / most) : [pairs / busiest];
    shares.forEach((share, side) => bars[side]?.style.setProperty("--share", `${100 * share}%`));
    text(core.querySelector("i"), work ? `${Math.round((100 * pairs) / work)} %` : "");
    const rows = held.length ? `${count(held[0])} + ${count(held[1])} rows` : `${count(pairs)} pairs`;
    text(core.querySelector("span"), rows + (queue ? `, ${queue} wait` : ""));
    const share = work ? ((100 * pairs) / work).toFixed(1) : 0, whole = (n) => n.toLocaleString("en-US");
    core.title = `${whole(results)} results, ${whole(pairs)} comparisons: ${share} % of all`;
  });
}
