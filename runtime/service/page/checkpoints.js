// Checkpoints as a timeline of stages: zero is the barrier, the bars are the slowest region's.

import { h, s } from "./dom.js";
import { bytes, duration, number, plural, time } from "./format.js";

const STAGES = ["read", "function", "write", "flush", "acknowledge", "decide", "commit", "mark"];
const SHOWN = 12;
const [WIDTH, HEIGHT] = [400, 14];

export function checkpoints({ history, checkpoint }) {
  const newest = history.checkpoints.slice(-SHOWN).reverse();
  const bars = new Map(newest.map((each) => [each.checkpoint_id, stagesOf(each)]));
  const all = [...bars.values()].flat();
  const from = Math.min(0, ...all.map((each) => each.from));
  const to = Math.max(0.001, ...all.map((each) => each.to));
  return h("section", { class: "card", "data-key": "checkpoints", "aria-labelledby": "checkpoints-title" },
    h("div", { class: "row heading" },
      h("h2", { id: "checkpoints-title" }, "Checkpoints"),
      h("ul", { class: "legend" }, STAGES.map((stage) => h("li", null,
        h("span", { class: `swatch stage ${stage}`, "aria-hidden": "true" }), stage)))),
    newest.length === 0
      ? h("p", { class: "muted" }, "No checkpoint is on record.")
      : h("ol", { class: "timeline" },
          h("li", { class: "axis", "aria-hidden": "true" }, h("span"), axis(from, to), h("span")),
          newest.map((each) => row(each, bars.get(each.checkpoint_id), from, to, checkpoint))));
}

/** Seconds from the barrier of each stage; the slowest region's tasks end as it acknowledges. */
function stagesOf(found) {
  const regions = Object.values(found.regions ?? {});
  const slowest = regions.reduce((most, each) =>
    (each.acknowledged_s ?? 0) >= (most?.acknowledged_s ?? 0) ? each : most, null);
  const stages = [];
  const tasks = STAGES.slice(0, 4).map((stage) => [stage, slowest?.[`${stage}_s`] ?? 0]);
  const taskEnd = slowest?.acknowledged_s ?? 0;
  let at = taskEnd - tasks.reduce((sum, [, seconds]) => sum + seconds, 0);
  for (const [stage, seconds] of tasks) {
    if (seconds > 0) stages.push({ stage, from: at, to: at + seconds });
    at += seconds;
  }
  at = Math.max(0, taskEnd);
  const ends = ["acked_s", "decided_s", "committed_s", "marked_s"].map((name) => found[name]);
  ends.forEach((end, index) => {
    if (typeof end !== "number") return;
    if (end > at) stages.push({ stage: STAGES[4 + index], from: at, to: end });
    at = Math.max(at, end);
  });
  return stages;
}

function axis(from, to) {
  const zero = (-from / (to - from)) * 100;
  const label = (at, anchor, text) => s("text", { x: `${at}%`, y: 13, "text-anchor": anchor }, text);
  return s("svg", { class: "ends", width: "100%", height: 18 },
    zero > 25 && label(0, "start", `−${duration(-from)}`),
    zero < 75 && label(zero, zero > 10 ? "middle" : "start", "barrier"),
    label(100, "end", duration(to)));
}

function row(found, stages, from, to, chosen) {
  const isAborted = found.state === "aborted";
  const isOpen = found.checkpoint_id === chosen;
  const skipped = Object.entries(found.skipped ?? {});
  return h("li", { "data-key": String(found.checkpoint_id), class: isAborted ? "aborted" : null },
    h("button", { type: "button", class: "bar", "data-action": "checkpoint",
      "data-checkpoint": found.checkpoint_id, "aria-expanded": String(isOpen) },
      h("span", { class: "id" }, h("strong", null, number(found.checkpoint_id)),
        h("small", null, time(found.ms)),
        found.kind !== "checkpoint" && h("span", { class: "note" }, found.kind)),
      isAborted
        ? h("span", { class: "reason" }, "✕ Aborted: ", found.reason || "no reason given")
        : bar(stages, from, to),
      h("span", { class: "sum" }, !isAborted && h("strong", null, duration(stages.at(-1)?.to)),
        !isAborted && h("small", null, `${number(found.records)} records`),
        skipped.length > 0 && h("span", { class: "note low" }, `${number(skipped.length)} skipped`))),
    isOpen && details(found, stages, skipped));
}

function bar(stages, from, to) {
  const x = (seconds) => ((seconds - from) / (to - from)) * WIDTH;
  return s("svg", { class: "stages", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none",
    role: "img", "aria-label": stages.map((each) =>
      `${each.stage} ${duration(each.to - each.from)}`).join(", ") },
    stages[0]?.from > 0 && s("line", { class: "wait", x1: x(0), x2: x(stages[0].from), y1: HEIGHT / 2,
      y2: HEIGHT / 2 }, s("title", null, `before the tasks: ${duration(stages[0].from)}`)),
    stages.map((each) => s("rect", { class: `stage ${each.stage}`, x: x(each.from).toFixed(2), y: 2,
      width: Math.max(0.8, x(each.to) - x(each.from) - 0.8).toFixed(2), height: HEIGHT - 4 },
      s("title", null, `${each.stage}: ${duration(each.to - each.from)}`))),
    s("line", { class: "barrier", x1: x(0), x2: x(0), y1: 0, y2: HEIGHT }));
}

function details(found, stages, skipped) {
  const regions = Object.entries(found.regions ?? {});
  const columns = ["read", "function", "write", "flush", "acknowledged"];
  const times = stages.map((each) => `${each.stage} ${duration(each.to - each.from)}`);
  if (stages[0]?.from > 0) times.unshift(`before the tasks ${duration(stages[0].from)}`);
  return h("div", { class: "details" },
    h("p", null, `${found.kind}, requested by ${found.requested_by ?? "interval"}`,
      typeof found.bytes === "number" ? `, ${bytes(found.bytes)}` : "", ". ", times.join(" · ")),
    skipped.length > 0 && h("p", null, "Skipped: ",
      skipped.map(([name, why]) => `${name} (${why})`).join(", ")),
    regions.length > 0 && h("div", { class: "scroll short", tabindex: "0", role: "region",
      "aria-label": `Regions of checkpoint ${found.checkpoint_id}` },
      h("table", null,
        h("caption", { class: "unseen" }, plural(regions.length, "region", "regions")),
        h("thead", null, h("tr", null, h("th", { scope: "col" }, "Region"),
          columns.map((each) => h("th", { scope: "col", class: "number" }, each)))),
        h("tbody", null, regions.map(([name, each]) => h("tr", null,
          h("th", { scope: "row" }, name), columns.map((stage) =>
            h("td", { class: "number" }, duration(each[`${stage}_s`])))))))));
}
