// Throughput and lag over time: one line each, on one time axis.

import { h, s } from "./dom.js";
import { compact, hour, number, perSecond, time } from "./format.js";

const [WIDE, NARROW, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [560, 320, 172, 46, 12, 8, 22];
const narrow = window.matchMedia("(max-width: 760px)");
const widthNow = () => (narrow.matches ? NARROW : WIDE);

export function charts({ job, history, points }) {
  const recorded = history.samples.filter(([ms]) => ms >= (job.started_ms ?? 0));
  const last = recorded.at(-1)?.[0] ?? 0;
  const samples = [...recorded, ...points.filter(([ms]) => ms > last)];
  return h("section", { class: "card", "data-key": "charts", "aria-labelledby": "charts-title" },
    h("h2", { id: "charts-title" }, "Throughput and lag"),
    h("div", { class: "pair" },
      chart("throughput", "Committed records per second", samples.map(([ms, rate]) => [ms, rate]), perSecond),
      chart("lag", "Records not read yet", samples.map(([ms, , lag]) => [ms, lag]), number)));
}

function chart(key, title, samples, format) {
  const known = samples.filter(([, value]) => typeof value === "number");
  const now = known.length ? format(known.at(-1)[1]) : "–";
  return h("figure", { class: "chart", "data-key": key },
    h("figcaption", null, title, h("output", { class: "readout" }, now)),
    known.length < 2
      ? h("p", { class: "muted" }, "Not enough samples yet.")
      : drawn(key, title, known, format));
}

function drawn(key, title, samples, format) {
  const width = widthNow();
  const [from, to] = [samples[0][0], samples.at(-1)[0]];
  const most = roundUp(Math.max(...samples.map(([, value]) => value)));
  const x = (ms) => LEFT + ((ms - from) / Math.max(1, to - from)) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
  const places = samples.map(([ms, value]) => [x(ms), y(value), ms, value]);
  const path = places.map(([px, py], at) => `${at ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
  const base = HEIGHT - BOTTOM;
  shown.set(key, { width, format, places });
  return s("svg", { class: "line", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img",
    "aria-label": summary(title, samples, format) },
    [0, most / 2, most].map((value) => [
      s("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      s("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, compact(value)),
    ]),
    [from, (from + to) / 2, to].map((ms, at) => s("text", { class: "tick", x: x(ms), y: HEIGHT - 6,
      "text-anchor": ["start", "middle", "end"][at] }, (to - from > 3.6e6 ? hour : time)(ms))),
    s("path", { class: "area", d: `${path}L${x(to).toFixed(1)} ${base}L${x(from).toFixed(1)} ${base}Z` }),
    s("path", { class: "curve", d: path }),
    s("g", { class: "cursor", visibility: "hidden" },
      s("line", { y1: TOP, y2: base }), s("circle", { r: 4 })));
}

function summary(title, samples, format) {
  const found = samples.map(([, value]) => value);
  return `${title}: now ${format(found.at(-1))}, least ${format(Math.min(...found))}, ` +
    `most ${format(Math.max(...found))}`;
}

/** The next 1, 2, 2.5, 5 or 10 times a power of ten; at least 1. */
function roundUp(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 2.5, 5, 10].find((each) => value <= each * power);
}

const shown = new Map();
let pointer = null;

/** Show the sample that is nearest to the pointer, until it leaves. */
export function followPointer(event) {
  const figure = event?.target.closest?.("svg.line")?.parentElement;
  if (pointer && pointer.figure !== figure) showPlace(pointer.figure, null);
  pointer = figure ? { figure, x: event.clientX } : null;
  showSample();
}

/** Also after each update of the page, which hides it. */
export function showSample() {
  if (!pointer?.figure.querySelector("svg")) return;
  const { width, places } = shown.get(pointer.figure.dataset.key);
  const box = pointer.figure.querySelector("svg").getBoundingClientRect();
  const at = ((pointer.x - box.left) / box.width) * width;
  showPlace(pointer.figure, places.reduce((best, one) =>
    Math.abs(one[0] - at) <= Math.abs(best[0] - at) ? one : best));
}

function showPlace(figure, place) {
  const cursor = figure.querySelector(".cursor");
  if (!cursor) return;
  const { format, places } = shown.get(figure.dataset.key);
  const [x, y, ms, value] = place ?? places.at(-1);
  for (const name of ["x1", "x2"]) cursor.firstChild.setAttribute(name, x);
  cursor.lastChild.setAttribute("cx", x);
  cursor.lastChild.setAttribute("cy", y);
  cursor.setAttribute("visibility", place ? "visible" : "hidden");
  figure.querySelector(".readout").textContent =
    place ? `${format(value)} at ${time(ms)}` : format(value);
}
