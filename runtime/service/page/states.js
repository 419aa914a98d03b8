// How states and pressures are shown: a word, a sign and a colour, so never by colour alone.

import { h } from "./dom.js";

const JOB = {
  starting: ["Starting", "◌", "busy"],
  running: ["Running", "●", "good"],
  stopping: ["Stopping", "◌", "busy"],
  waiting: ["Waiting for resources", "◌", "low"],
  finished: ["Finished", "✓", "idle"],
  stopped: ["Stopped", "■", "idle"],
  failed: ["Failed", "✕", "bad"],
  fenced: ["Replaced by another run", "✕", "bad"],
  unreachable: ["No answer", "?", "high"],
  lost: ["No sign of life", "✕", "bad"],
};

/** Of a region, the most urgent first. */
export const REGION = {
  suspended: ["Suspended", "‖", "bad"],
  restarting: ["Restarting", "↻", "busy"],
  skipped: ["Skipped", "⤼", "low"],
  high: ["High pressure", "▲", "high"],
  low: ["Low pressure", "△", "low"],
  ok: ["OK", "●", "good"],
  unknown: ["Not known", "?", "idle"],
  ended: ["Ended", "■", "idle"],
};

/** States of a job whose regions run. */
const RUNS = ["running", "stopping", "WAITING_FOR_RESOURCES"];

/** A job's state; an unknown one is shown by its own name. */
export const jobState = (job) =>
  job.waiting_for_resources || job.state === "WAITING_FOR_RESOURCES" ? "waiting" : job.state;

export const jobPill = (job) => pill(JOB[jobState(job)] ?? [job.state, "?", "idle"]);
export const regionPill = (state) =>
  pill(["high", "low", "ok"].includes(state) ? ["Running", "●", "good"] : REGION[state]);
export const jobStates = () => Object.entries(JOB).map(([state, [label]]) => [state, label]);

const PRESSURE = { OK: REGION.ok, LOW: ["LOW", "△", "low"], HIGH: ["HIGH", "▲", "high"] };

export const pressurePill = (pressure) =>
  pressure ? pill(PRESSURE[pressure.toUpperCase()] ?? [pressure, "?", "idle"]) : "–";

function pill([label, sign, tone]) {
  return h("span", { class: `pill ${tone}` }, h("span", { "aria-hidden": "true" }, sign), label);
}

/** The state of each region of a job: a key of `REGION`, by name. */
export function regionStates(job, skipped) {
  const known = new Map((job.status?.regions ?? []).map((region) => [region.region, region]));
  const names = known.size ? [...known.keys()] : job.graph.regions.map((each) => each.region);
  if (!known.size) return new Map(names.map((name) => [name, job.ended_ms ? "ended" : "unknown"]));
  const hasEnded = job.ended_ms !== null || !RUNS.includes(job.status.state);
  return new Map(names.map((name) => [name, stateOf(known.get(name), hasEnded, skipped.has(name))]));
}

function stateOf(region, hasEnded, isSkipped) {
  if (region?.suspended) return "suspended";
  if (hasEnded) return "ended";
  if (!region.is_open) return "restarting";
  if (isSkipped) return "skipped";
  return region.pressure === "high" || region.pressure === "low" ? region.pressure : "ok";
}
