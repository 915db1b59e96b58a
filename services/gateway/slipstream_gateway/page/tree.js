// The tree of a round as SVG: a column for each depth, a row for each leaf, what was kept in colour.

const ROW = 30;
const GAP = 22;
const CHARACTER = 7.3;
const LONGEST = 14;

/** Fill `element` with a round: a sentence about it and its tree. */
export function drawRound(element, round, index, origin) {
  element.replaceChildren();
  const about = document.createElement("p");
  about.textContent = sentence(round, index, origin);
  element.append(about);
  if (round.nodes.length) element.append(tree(round));
}

function sentence(round, index, origin) {
  const kept = round.nodes.filter((node) => node.kept).length;
  const times = `draft ${ms(round.draft_s)}, target ${ms(round.verify_s)}`;
  if (!round.nodes.length) {
    return `From the ${origin}. ${index ? "A plain round" : "The prompt's own round"}: nothing was drafted (target ${ms(round.verify_s)}).`;
  }
  return `From the ${origin}. Round ${index}: ${round.nodes.length} drafted, ${kept} kept, ${round.tokens.length} tokens (${times}).`;
}

function ms(seconds) {
  return `${(seconds * 1000).toFixed(1)} ms`;
}

function tree(round) {
  const nodes = round.nodes.map((node) => ({ ...node, label: label(node.text), children: [], depth: 0, row: 0 }));
  const roots = [];
  for (const node of nodes) {
    const parent = nodes[node.parent];
    node.depth = parent ? parent.depth + 1 : 0;
    (parent?.children ?? roots).push(node);
  }
  let rows = 0;
  const settle = (node) => {
    node.children.forEach(settle);
    node.row = node.children.length ? node.children[0].row : rows++;
  };
  roots.forEach(settle);
  const lefts = columns(nodes);
  const svg = make("svg", { viewBox: `0 0 ${lefts.at(-1)} ${rows * ROW}`, width: lefts.at(-1), height: rows * ROW });
  for (const node of nodes) {
    node.x = lefts[node.depth];
    node.y = node.row * ROW + ROW / 2;
    node.width = node.label.length * CHARACTER + 12;
  }
  for (const node of nodes) svg.append(branch(node, nodes[node.parent]));
  for (const node of nodes) svg.append(box(node));
  return svg;
}

/** Left edge of each depth's column, and the width of all. */
function columns(nodes) {
  const widths = [];
  for (const node of nodes) widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.label.length * CHARACTER + 12);
  const lefts = [GAP];
  widths.forEach((width, depth) => lefts.push(lefts[depth] + width + GAP));
  lefts[lefts.length - 1] -= GAP - 2;
  return lefts;
}

function branch(node, parent) {
  const from = parent ? [parent.x + parent.width, parent.y] : [2, ROW / 2];
  const middle = (from[0] + node.x) / 2;
  const d = `M${from} C${middle},${from[1]} ${middle},${node.y} ${node.x},${node.y}`;
  return make("path", { d, class: `${node.origin} ${node.kept ? "kept" : ""}` });
}

function box(node) {
  const group = make("g", { class: `${node.origin} ${node.kept ? "" : "rejected"}` });
  group.append(make("rect", { x: node.x, y: node.y - 11, width: node.width, height: 22, rx: 5 }));
  const text = make("text", { x: node.x + 6, y: node.y + 4 });
  text.textContent = node.label;
  group.append(text);
  return group;
}

function label(text) {
  const shown = text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "·") || "∅";
  return shown.length > LONGEST ? `${shown.slice(0, LONGEST - 1)}…` : shown;
}

function make(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
