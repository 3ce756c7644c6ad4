// The plan as a picture: results at the top, inputs at the bottom.
import { svg } from "./dom.js";

const LINE = 17, GAP = 18, DROP = 34;
const SMALLEST = 0.75; // to fit its card the picture shrinks so far; then it scrolls
const sum = (numbers) => numbers.reduce((all, n) => all + n, 0);

export function planPicture(tree) {
  const top = measure(tree, 0, { count: 0 }), heights = heightsOf(top);
  const ys = heights.map((_, depth) => 2 + sum(heights.slice(0, depth)) + DROP * depth);
  const width = top.span + 4, height = ys.at(-1) + heights.at(-1) + 4;
  const edges = svg("g"), nodes = svg("g");
  draw(top, 2, ys, edges, nodes);
  const size = { width, height, viewBox: `0 0 ${width} ${height}` };
  const named = { class: "plan", role: "img", "aria-label": `Plan: ${tree.label}` };
  const picture = svg("svg", { ...size, ...named }, edges, nodes);
  picture.style.minWidth = `${SMALLEST * width}px`;
  return picture;
}

// The size of each box and the width of everything below it; leaves are numbered from the left.
function measure(node, depth, leaves) {
  const lines = wrap(node.label, node.children.length ? 44 : 26, 4);
  const leaf = node.children.length ? null : leaves.count++;
  const children = node.children.map((child) => measure(child, depth + 1, leaves));
  const width = Math.max(...lines.map((each) => each.length)) * 7.1 + 26, height = lines.length * LINE + 14;
  const below = sum(children.map((child) => child.span)) + GAP * Math.max(children.length - 1, 0);
  return { lines, leaf, children, width, height, depth, below, span: Math.max(width, below) };
}

function heightsOf(top) {
  const heights = [];
  const walk = (node) => {
    heights[node.depth] = Math.max(heights[node.depth] ?? 0, node.height);
    node.children.forEach(walk);
  };
  walk(top);
  return heights;
}

function draw(node, left, ys, edges, nodes) {
  const x = left + node.span / 2, y = ys[node.depth], foot = y + node.height;
  const kind = node.leaf !== null ? `leaf-${node.leaf % 4}` : node.depth === 0 ? "root" : "";
  const rect = svg("rect", { x: x - node.width / 2, y, width: node.width, height: node.height, rx: 8 });
  const line = (text, k) => svg("text", { x, y: y + 20 + k * LINE, "text-anchor": "middle" }, text);
  nodes.append(svg("g", { class: `plan-node ${kind}` }, rect, ...node.lines.map(line)));
  let at = left + (node.span - node.below) / 2;
  for (const child of node.children) {
    const cx = at + child.span / 2, cy = ys[child.depth], middle = (foot + cy) / 2;
    const curve = `M${cx} ${cy}C${cx} ${middle} ${x} ${middle} ${x} ${foot}`;
    edges.append(svg("path", { class: "plan-edge", d: curve }));
    draw(child, at, ys, edges, nodes);
    at += child.span + GAP;
  }
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
