// Regions: a coloured grid of all, and a list of those that need attention.

import { h } from "./dom.js";
import { duration, moment, number, plural } from "./format.js";
import { REGION, pressurePill, regionPill } from "./states.js";
import { cell } from "./tables.js";

const ORDER = Object.keys(REGION);
const FEW = 8;

export function regions(view) {
  const { job, states, region, allRegions } = view;
  const known = new Map((job.status?.regions ?? []).map((each) => [each.region, each]));
  const names = [...states.keys()];
  const urgent = names.filter((name) => !["ok", "low", "ended", "unknown"].includes(states.get(name)));
  const isLong = names.length > FEW;
  const listed = !isLong || allRegions ? names
    : [...new Set([...urgent.slice(0, FEW), ...names.filter((name) => name === region)])];
  return h("section", { class: "card", "data-key": "regions", "aria-labelledby": "regions-title" },
    h("div", { class: "row heading" },
      h("h2", { id: "regions-title" }, "Regions"), legend(states)),
    isLong && grid(names, states, region),
    listed.length > 0 && table(listed, known, view),
    isLong && listed.length === 0 && h("p", { class: "muted" },
      "No region needs attention. Choose one in the grid to see its numbers."),
    isLong && h("button", { type: "button", class: "quiet", "data-action": "all-regions",
      "aria-pressed": String(allRegions) },
      allRegions ? "Show only those that need attention" : `Show all ${number(names.length)} regions`));
}

function legend(states) {
  const counts = new Map();
  for (const state of states.values()) counts.set(state, (counts.get(state) ?? 0) + 1);
  return h("ul", { class: "legend" }, ORDER.filter((state) => counts.has(state)).map((state) =>
    h("li", { "data-key": state }, h("span", { class: `swatch ${REGION[state][2]}`, "aria-hidden": "true" },
      REGION[state][1]), `${REGION[state][0]}: ${number(counts.get(state))}`)));
}

/** One stop for the tab key; arrow keys move inside (see page.js). */
function grid(names, states, chosen) {
  const focused = names.includes(chosen) ? chosen : names[0];
  return h("div", { class: "grid", role: "group", "aria-label": "Regions; arrow keys move", "data-arrows": true },
    names.map((name, at) => {
      const [label, sign, tone] = REGION[states.get(name)];
      return h("button", { type: "button", class: `cell ${tone}`, "data-key": name,
        "data-action": "region", "data-region": name, tabindex: name === focused ? "0" : "-1",
        "aria-pressed": String(name === chosen), "aria-label": `${name}: ${label}`,
        title: `${name}: ${label}` },
        h("span", { "aria-hidden": "true" }, sign), h("small", null, numberIn(name) ?? at));
    }));
}

const numberIn = (name) => name.match(/-(\d+)$/)?.[1];

function table(names, known, view) {
  const columns = ["Region", "State", "Pressure", "Lag", "Snapshot", "Attempts", "Last cause"];
  return h("table", { class: "cards" },
    h("thead", null, h("tr", null, columns.map((each) =>
      h("th", { scope: "col", class: each === "Lag" ? "number" : null }, each)),
      view.canCommand && h("th", { scope: "col" }, h("span", { class: "unseen" }, "Commands")))),
    h("tbody", null, names.map((name) => row(name, known.get(name), view))));
}

function row(name, region, { states, skipped, canCommand, region: chosen }) {
  const state = states.get(name);
  const waits = region?.begins_ms && !region.is_open && !region.suspended
    ? `next attempt at ${moment(region.begins_ms)}` : null;
  return h("tr", { "data-key": name, class: name === chosen ? "chosen" : null },
    h("th", { scope: "row", class: "wrap" }, name),
    cell("State", [regionPill(state), waits && h("small", null, waits),
      region?.suspended && h("small", null, `since ${moment(region.suspended.since_ms)}`)]),
    cell("Pressure", [pressurePill(region?.pressure),
      region?.has_alarm && h("span", { class: "note bad" }, "for too long")]),
    cell("Lag", [number(region?.lag_records), region?.lost_records > 0 && h("small",
      { class: "note bad" }, `${number(region.lost_records)} deleted by retention`)], "number"),
    cell("Snapshot", region?.snapshot_age_s == null ? "–" : `${duration(region.snapshot_age_s)} old`),
    cell("Attempts", region ? plural(region.ended, "failure", "failures") : "–"),
    cell("Last cause",
      region?.suspended?.why ?? skipped.get(name) ?? region?.attempts.at(-1)?.why ?? "–", "wrap cause"),
    canCommand && h("td", null, ["suspended", "skipped"].includes(state) && h("button",
      { type: "button", "data-action": "restart", "data-region": name }, "Restart …")));
}
