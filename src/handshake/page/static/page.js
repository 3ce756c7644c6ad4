// The live page: listens to server-sent events, and draws the query that is chosen.
import { askWhy, drawAbout, drawLast, fillWhy } from "./about.js";
import { byId, html, text } from "./dom.js";
import { drawCharts, drawTiles } from "./figures.js";
import { drawFlow } from "./flow.js";
import { clock, count, seconds } from "./numbers.js";
import { Known, allRows } from "./query.js";

const known = new Map(); // by the name of a query
let now = 0, errors = [], chosen = askedFor(), range = 600;
let drawn = 0, about = null, waiting = false; // when charts were drawn, the plan that is shown, a frame waits

// Events

function listen() {
  const rate = new URLSearchParams(location.search).get("rate");
  const source = new EventSource(`events${rate ? `?rate=${encodeURIComponent(rate)}` : ""}`);
  source.onmessage = (event) => {
    link("on", "live");
    take(JSON.parse(event.data));
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  };
  source.onerror = () => {
    link("off", "reconnecting");
    for (const each of known.values()) each.history = null; // points were missed: it is fetched again
  };
}

function take(frame) {
  now = frame.t;
  errors = frame.errors ?? errors; // they come when they are new
  for (const name of known.keys()) if (!(name in frame.queries)) known.delete(name);
  for (const [name, news] of Object.entries(frame.queries)) {
    if (!known.has(name)) known.set(name, new Known());
    known.get(name).take(now, news);
  }
}

function link(kind, words) {
  text(byId("link"), words);
  byId("link").className = `pill ${kind}`;
}

// The query that is shown

function askedFor() {
  return new URLSearchParams(location.hash.slice(1)).get("query");
}

function choose(name) {
  if (name === chosen || !known.has(name)) return;
  chosen = name;
  history.replaceState(null, "", `#query=${encodeURIComponent(name)}`);
  for (const part of ["flow", "tiles", "charts"]) byId(part).replaceChildren();
  redraw();
}

function redraw() {
  drawn = 0;
  if (now) draw();
}

async function load(name) {
  if (await known.get(name).load(name)) drawn = 0;
}

// Drawing

function draw() {
  waiting = false;
  const names = [...known.keys()];
  byId("empty").hidden = names.length > 0;
  byId("main").hidden = names.length === 0;
  drawErrors();
  if (!names.length) return;
  if (!known.has(chosen)) chosen = names[0];
  drawTabs(names);
  const shown = known.get(chosen), charts = now - drawn >= 1;
  if (!shown.history || !shown.about) load(chosen);
  drawTitle(shown.query);
  drawFlow(chosen, shown);
  drawTiles(shown, now, range, charts);
  if (shown.about !== about) drawAbout((about = shown.about));
  if (!charts) return;
  drawn = now;
  drawCharts(shown, now, range);
  drawLast(shown.query.last);
  fillWhy(about, shown.query.last);
}

function drawTabs(names) {
  const tabs = byId("tabs");
  if (names.length < 2) return tabs.replaceChildren();
  const changed = names.some((name, k) => tabs.children[k]?.dataset.name !== name);
  if (changed || tabs.children.length !== names.length) tabs.replaceChildren(...names.map(tabOf));
  for (const tab of tabs.children) {
    const { name } = tab.dataset, each = known.get(name), { state } = each.query;
    tab.firstChild.className = `dot ${state}`;
    text(tab.lastChild, state === "running" ? `${count(each.rate(allRows))} rows/s` : state);
    tab.setAttribute("aria-pressed", String(name === chosen));
  }
}

function tabOf(name) {
  const parts = [html("i", { class: "dot" }), html("b", {}, name), html("span", {})];
  const tab = html("button", { type: "button", "data-name": name }, ...parts);
  tab.addEventListener("click", () => choose(name));
  return tab;
}

function drawTitle({ engine, algorithm, state, since, error }) {
  text(byId("name"), chosen);
  const where = engine === "spark" ? "on Spark" : "in process";
  const arranged = algorithm && !["segments", "query", "batch"].includes(algorithm);
  const how = arranged ? `, ${algorithm.replace("_", " ")}` : "";
  text(byId("facts"), `${state} · ${where}${how} · since ${clock(since)} (${seconds(now - since)})`);
  text(byId("error"), error);
  byId("error").hidden = !error;
  document.title = `${chosen} · Handshake live`;
}

function drawErrors() {
  byId("errors-card").hidden = !errors.length;
  const place = byId("errors"), shown = String(errors.length && errors.at(-1).t);
  if (place.dataset.shown === shown) return;
  place.dataset.shown = shown;
  const line = ({ t, query, error }) => html("li", {}, html("time", {}, clock(t)), `${query}: ${error}`);
  place.replaceChildren(...errors.toReversed().map(line));
}

// Controls

const ranges = document.querySelectorAll("[data-range]");
for (const button of ranges) {
  button.addEventListener("click", () => {
    range = Number(button.dataset.range);
    for (const each of ranges) each.setAttribute("aria-pressed", String(each === button));
    redraw();
  });
}
addEventListener("resize", () => { drawn = 0; });
addEventListener("hashchange", () => choose(askedFor()));
byId("why-ask").addEventListener("click", () => askWhy(chosen));
listen();
