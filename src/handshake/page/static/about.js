// The plan, the last results, and why rows join.
import { byId, html, text } from "./dom.js";
import { planPicture } from "./plan.js";

const NUMBER = /^-?[\d.]+(e[+-]?\d+)?$/i, JSON_NUMBER = /^-?\d+(\.\d+)?$/;
const rowFields = () => [...byId("why-rows").querySelectorAll("textarea")];

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
  byId("why-rows").replaceChildren(...(about?.why ?? []).map(rowField));
}

function rowField({ name }) {
  const field = html("textarea", { rows: 2, spellcheck: false, placeholder: '{"id": 17}' });
  return html("label", {}, `Row of ${name}`, field);
}

// Begin with the rows of the last result.
export function fillWhy(about, last) {
  const fields = rowFields();
  if (!about?.why || !last.rows || fields.some((field) => field.value)) return;
  let first = 0;
  const total = about.why.reduce((sum, { columns }) => sum + columns.length, 0);
  about.why.forEach(({ columns }, stream) => {
    const row = columns.map((name, at) => [name, example(last, first + at, total)]);
    fields[stream].value = JSON.stringify(Object.fromEntries(row));
    first += columns.length;
  });
}

// The columns of a result are those of all streams in order, then a rank or a value; other results are no example.
function example({ columns, rows }, at, total) {
  if (!rows.length || columns.length < total || columns.length > total + 2) return null;
  const cell = rows[0][at];
  return cell !== null && JSON_NUMBER.test(cell) ? Number(cell) : cell;
}

export async function askWhy(name) {
  const asked = new URLSearchParams([["name", name], ...rowFields().map((field) => ["row", field.value])]);
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
