// Elements of HTML and SVG. All text from data goes through textContent.
const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

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

export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}
