// One job: what is wrong with it first, then its numbers, then everything else.

import { charts } from "./charts.js";
import { checkpoints } from "./checkpoints.js";
import { jobCommands } from "./commands.js";
import { h } from "./dom.js";
import { duration, moment, number, perSecond, plural } from "./format.js";
import { graph, isLong } from "./graph.js";
import { regions } from "./regions.js";
import { jobPill, pressurePill, regionStates } from "./states.js";
import { attempts, counters, eventTime, runs, savepoints, settings, transactions } from "./tables.js";

/** `shown`: `{job, history, points, canCommand, region, allRegions, checkpoint, nowMs, hasList, lostS}`. */
export function jobView(shown) {
  const { job, history } = shown;
  const skipped = new Map(Object.entries(newestDecided(history)?.skipped ?? {}));
  const states = regionStates(job, skipped);
  const view = { ...shown, skipped, states };
  return h("div", { class: "stack", "data-key": `job ${job.job_uid}` },
    header(view), alerts(view), tiles(view),
    h("div", { class: isLong(job) ? "columns" : "columns first" }, graph(view), charts(view)),
    regions(view), checkpoints(view),
    h("div", { class: "columns two" },
      h("div", { class: "column" }, eventTime(view), attempts(view), counters(view), settings(view)),
      h("div", { class: "column" }, transactions(view), savepoints(view), runs(view))));
}

const newestDecided = (history) =>
  history.checkpoints.findLast((each) => each.state !== "aborted");

function header({ job, canCommand, hasList }) {
  return h("div", { class: "row heading", "data-key": "header" },
    h("div", null,
      hasList && h("a", { class: "back", href: "#/" }, "← All jobs"),
      h("h1", null, job.name, " ", jobPill(job)),
      h("p", { class: "muted wrap" }, h("span", null, "Checkpoints in ", h("code", null, job.checkpoint_uri)),
        job.host && h("span", null, " · driver on ", job.host))),
    canCommand && jobCommands(job));
}

const PROBLEMS = {
  failed: "The job failed. ",
  fenced: "Another run took over. ",
  lost: "The job was killed, or its host cannot be reached. ",
  unreachable: "The job runs, and does not answer this service. ",
};

function alerts({ job, states, canCommand, lostS }) {
  const waiting = job.waiting_for_resources;
  const suspended = [...states].filter(([, state]) => state === "suspended");
  return h("div", { class: "alerts", "data-key": "alerts" },
    lostS !== null && h("p", { class: "alert low", "data-key": "lost" },
      h("strong", null, "No answer. "), "The job may have ended, or its host cannot be reached. ",
      `This is its state of ${duration(Math.max(1, Math.round(lostS)))} ago.`),
    job.error && h("p", { class: "alert bad", "data-key": "error" },
      h("strong", null, PROBLEMS[job.state] ?? "The job reports a problem. "), job.error),
    waiting && h("p", { class: "alert low", "data-key": "waiting" },
      h("strong", null, "Waiting for resources. "),
      `It needs ${number(waiting.needed)}, and ${number(waiting.present)} are present, `,
      `since ${moment(waiting.since_ms)}.`),
    suspended.length > 0 && h("p", { class: "alert bad", "data-key": "suspended" },
      h("strong", null, `${plural(suspended.length, "region is", "regions are")} suspended. `),
      "Their records wait. Remove the cause, then restart them",
      !canCommand && [" with ", h("code", null, `sluice job restart ${job.checkpoint_uri}`)], "."));
}

function tiles({ job, nowMs }) {
  const isOver = job.ended_ms !== null;
  const until = job.ended_ms ?? nowMs;
  const age = job.started_ms === null ? null : (until - job.started_ms) / 1000;
  const pending = job.status?.pending.find((each) => each.age_s !== null);
  const facts = [
    ["Throughput", isOver ? "–" : perSecond(job.records_per_s), "committed records"],
    ["Lag", number(job.lag_records), "records not read yet"],
    ["Pressure", isOver ? "–" : pressurePill(job.pressure), "of the slowest region"],
    ["Checkpoint", number(job.last_committed), pending
      ? `next one for ${duration(pending.age_s)}` : "last committed"],
    ["Regions", number(job.regions),
      job.suspended ? `${number(job.suspended)} suspended` : "none suspended"],
    [isOver ? "Ran for" : "Running for", duration(age), `since ${moment(job.started_ms)}`],
  ];
  return h("dl", { class: "tiles", "data-key": "tiles" }, facts.map(([label, value, note]) =>
    h("div", { class: "tile" }, h("dt", null, label), h("dd", null, value),
      h("dd", { class: "muted" }, note))));
}
