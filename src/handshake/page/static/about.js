// The plan, the last results, and why two rows are a pair.
import { byId, html, text } from "./dom.js";
import { planPicture } from "./plan.js";

const NUMBER = /^-?[\d.]+(e[+-]?\d+)?$/i, JSON_NUMBER = /^-?\d+(\.\d+)?$/;
const ROWS = ["why-left", "why-right"].map(byId);

export function drawLast(last) {
  const { columns, rows } = last, shown = JSON.stringify(last), place = byId("last");
  byId("last-card").hidden = !columns;
  if (!columns || place.dataset.shown === shown) return;
  place.dataset.shown = shown;
  const numeric = columns.map((_, k) => rows.every((row) => row[k] === null || NUMBER.test(row[k])));
  const align = (k) => (numeric[k] ? "number" : "");
  const head = columns.map((name, k) => html("th", { scope: "col", class: align(k) }, name));
  const cell = (value, k) => html("td", { class: value === null ? "null" : align(k) }, value ?? "NULL");
  const body = rows.map((row) => html("tr", {}, ...row.map(cell)));
  place.replaceChildren(html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...body));
  text(byId("last-note"), "newest first");
}

export function drawAbout(about) {
  byId("plan-card").hidden = !about?.tree && !about?.text;
  byId("plan").replaceChildren(...(about?.tree ? [planPicture(about.tree)] : []));
  byId("plan").hidden = !about?.tree;
  byId("plan-text").hidden = !about?.text;
  text(byId("plan-text"), about?.text ?? "");
  byId("why-card").hidden = !about?.why;
  byId("why-answer").hidden = true;
  for (const field of ROWS) field.value = "";
}

// Begin with the rows of the last result.
export function fillWhy(about, last) {
  if (!about?.why || !last.rows || ROWS.some((field) => field.value)) return;
  about.why.forEach((names, side) => {
    const row = names.map((name, at) => [name, example(about.why, last, side, at)]);
    ROWS[side].value = JSON.stringify(Object.fromEntries(row));
  });
}

// The columns of a result are those of the left stream, then those of the right.
function example([left, right], { columns, rows }, side, at) {
  if (!rows.length || columns.length !== left.length + right.length) return null;
  const cell = rows[0][side * left.length + at];
  return cell !== null && JSON_NUMBER.test(cell) ? Number(cell) : cell;
}

export async function askWhy(name) {
  const asked = new URLSearchParams({ name, left: ROWS[0].value, right: ROWS[1].value });
  let found;
  try {
    const answer = await fetch(`why?${asked}`);
    found = await answer.json();
  } catch (error) {
    found = { error: `the page does not answer: ${error.message}` };
  }
  byId("why-answer").hidden = false;
  text(byId("why-answer"), found.text ?? found.error);
}
