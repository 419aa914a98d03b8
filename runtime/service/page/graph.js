// The job graph as SVG: one lane for each region of a small job, else the operators once.

import { h, s } from "./dom.js";
import { number } from "./format.js";
import { REGION } from "./states.js";

const [HEIGHT, GAP_ALONG, GAP_ACROSS, PAD, TITLE] = [46, 32, 12, 14, 24];
const [WIDE, NARROW] = [148, 124];
const MOST_LANES = 4;
const KINDS = { source: "source", map_batches: "function", transform: "transform", sink: "sink" };

export function graph({ job, states }) {
  const { operators, edges, regions } = job.graph;
  if (!operators.length) return null;
  const isDown = window.matchMedia("(max-width: 760px)").matches;
  const isSmall = regions.length <= MOST_LANES && regions.every((each) => states.has(each.region));
  const lanes = isSmall
    ? regions.map((region) => ({ ...region, state: states.get(region.region) }))
    : [{ region: null, operators: operators.map((each) => each.id), state: null }];
  const parts = lanes.map((lane) => part(lane, operators, edges, isDown));
  const width = Math.max(...parts.map((each) => each.width));
  let y = 0;
  const placed = parts.map((each, at) => {
    const found = s("g", { transform: `translate(0 ${y})`, "data-key": lanes[at].region ?? "all" },
      frame(lanes[at], width, each.height), each.drawn);
    y += each.height + GAP_ACROSS;
    return found;
  });
  const height = y - GAP_ACROSS;
  return h("section", { class: "card", "data-key": "graph", "aria-labelledby": "graph-title" },
    h("h2", { id: "graph-title" }, "Graph"),
    h("div", { class: "scroll" },
      s("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
        "aria-label": said(operators, lanes) }, placed)));
}

const said = (operators, lanes) => {
  const flow = operators.map((each) => `${KINDS[each.kind] ?? each.kind} ${each.name}`);
  const found = lanes.filter((each) => each.region).map((each) =>
    `region ${each.region}: ${REGION[each.state][0]}`);
  return [...flow, ...found].join("; ");
};

/** The layer of each operator: after all of its upstream operators. */
function layersOf(operators) {
  const depth = new Map();
  for (const each of operators) {
    const above = each.upstream.filter((id) => depth.has(id)).map((id) => depth.get(id) + 1);
    depth.set(each.id, Math.max(0, ...above));
  }
  return depth;
}

/** Whether it needs the whole width of a wide window. */
export const isLong = ({ graph }) => Math.max(0, ...layersOf(graph.operators).values()) > 2;

function part(lane, operators, edges, isDown) {
  const mine = operators.filter((each) => lane.operators.includes(each.id));
  const depth = layersOf(mine);
  const layers = Math.max(...depth.values()) + 1;
  const filled = Array(layers).fill(0);
  const cells = mine.map((each) => ({ each, layer: depth.get(each.id), row: filled[depth.get(each.id)]++ }));
  const rows = Math.max(...filled);
  const wide = isDown ? NARROW : WIDE;
  const across = isDown ? wide + GAP_ACROSS : HEIGHT + GAP_ACROSS;
  const along = isDown ? HEIGHT + GAP_ALONG * 0.6 : wide + GAP_ALONG;
  const top = PAD + (lane.region ? TITLE : 0);
  const places = new Map(cells.map(({ each, layer, row }) => {
    const shift = row * across + ((rows - filled[layer]) * across) / 2;
    return [each.id, isDown ? [PAD + shift, top + layer * along] : [PAD + layer * along, top + shift]];
  }));
  const inside = edges.filter((each) => places.has(each.upstream) && places.has(each.downstream));
  const [length, breadth] = isDown
    ? [rows * across - GAP_ACROSS, (layers - 1) * along + HEIGHT]
    : [(layers - 1) * along + wide, rows * across - GAP_ACROSS];
  return {
    width: length + 2 * PAD,
    height: breadth + top + PAD,
    drawn: [
      inside.map((edge) => line(edge, places, isDown, wide)),
      cells.map(({ each }) => node(each, places.get(each.id), wide, !lane.region)),
    ],
  };
}

function line(edge, places, isDown, wide) {
  const [[ax, ay], [bx, by]] = [places.get(edge.upstream), places.get(edge.downstream)];
  const [x1, y1] = isDown ? [ax + wide / 2, ay + HEIGHT] : [ax + wide, ay + HEIGHT / 2];
  const [x2, y2] = isDown ? [bx + wide / 2, by] : [bx, by + HEIGHT / 2];
  const bend = isDown
    ? `C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`
    : `C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`;
  return s("path", { class: edge.distribution === "forward" ? "edge" : "edge moves",
    d: `M${x1} ${y1}${bend}` }, s("title", null, edge.distribution));
}

function node(operator, [x, y], wide, withCount) {
  const kind = KINDS[operator.kind] ?? operator.kind;
  const count = withCount && operator.parallelism ? ` × ${number(operator.parallelism)}` : "";
  return s("g", { transform: `translate(${x} ${y})` },
    s("title", null, `${operator.name} (${kind}${operator.uid ? `, uid ${operator.uid}` : ""})`),
    s("rect", { class: `node ${operator.kind}`, width: wide, height: HEIGHT,
      rx: operator.kind === "source" ? HEIGHT / 2 : 6 }),
    s("text", { class: "kind", x: wide / 2, y: 18 }, kind + count),
    s("text", { class: "name", x: wide / 2, y: 34 }, cut(operator.name, wide === WIDE ? 17 : 14)));
}

function frame(lane, width, height) {
  if (!lane.region) return null;
  const [label, sign, tone] = REGION[lane.state];
  return [
    s("rect", { class: `lane ${tone}`, x: 0.5, y: 0.5, width: width - 1, height: height - 1, rx: 10 }),
    s("text", { class: `title ${tone}`, x: PAD, y: 22 }, `${sign} ${cut(lane.region, 28)} · ${label}`),
  ];
}

/** Long names differ in their ends, so the middle is left out. */
function cut(text, most) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const half = Math.floor((most - 1) / 2);
  return `${letters.slice(0, most - 1 - half).join("")}…${letters.slice(-half).join("")}`;
}
