// The list of jobs, with a filter.

import { h } from "./dom.js";
import { moment, number, perSecond } from "./format.js";
import { jobPill, jobState, jobStates, pressurePill } from "./states.js";
import { cell } from "./tables.js";

/** `filter`: `{text, state}`. */
export function jobsView(list, filter) {
  const jobs = list.jobs.filter((job) => matches(job, filter)).sort(newestFirst);
  return h("div", { class: "stack", "data-key": "jobs" },
    h("div", { class: "row heading" }, h("h1", null, "Jobs"), filters(filter)),
    list.registry_error && h("p", { class: "alert low" }, h("strong", null, "The registry cannot be read. "),
      list.registry_error),
    list.jobs.length === 0
      ? list.service === "job"
        ? h("p", { class: "message" }, "No query with a sink of Sluice runs in this process.")
        : h("p", { class: "message" }, "No job has registered here yet. Start one with ",
            h("code", null, "Job(registry=…)"), ", and it appears on this page.")
      : jobs.length === 0
        ? h("p", { class: "message" }, "No job matches the filter.")
        : table(jobs));
}

const isOver = (job) => job.ended_ms !== null;
const newestFirst = (one, other) =>
  isOver(one) - isOver(other) || (other.started_ms ?? 0) - (one.started_ms ?? 0);

function matches(job, { text, state }) {
  const words = `${job.name} ${job.job_uid} ${job.checkpoint_uri} ${job.host}`.toLowerCase();
  return words.includes(text.trim().toLowerCase()) && (!state || jobState(job) === state);
}

function filters({ state }) {
  return h("form", { class: "row filters", "data-action": "none", role: "search" },
    h("label", null, "Name ", h("input", { type: "search", name: "text", "data-filter": true,
      placeholder: "any", autocomplete: "off" })),
    h("label", null, "State ", h("select", { name: "state", "data-filter": true },
      h("option", { value: "" }, "any"),
      jobStates().map(([value, label]) =>
        h("option", { value, selected: value === state }, label)))));
}

function table(jobs) {
  const columns = ["Job", "State", "Throughput", "Lag", "Pressure", "Regions", "Started", "Ended"];
  return h("div", { class: "card" },
    h("table", { class: "cards" },
      h("thead", null, h("tr", null, columns.map((each, at) =>
        h("th", { scope: "col", class: at === 2 || at === 3 ? "number" : null }, each)))),
      h("tbody", null, jobs.map(row))));
}

function row(job) {
  const suspended = job.suspended ? `${number(job.suspended)} suspended` : null;
  return h("tr", { "data-key": job.job_uid || job.name },
    h("th", { scope: "row" }, name(job), h("small", null, job.checkpoint_uri)),
    cell("State", jobPill(job)),
    cell("Throughput", isOver(job) ? "–" : perSecond(job.records_per_s), "number"),
    cell("Lag", number(job.lag_records), "number"),
    cell("Pressure", isOver(job) ? "–" : pressurePill(job.pressure)),
    cell("Regions", [number(job.regions), suspended && h("span", { class: "note bad" }, suspended)]),
    cell("Started", moment(job.started_ms)), cell("Ended", moment(job.ended_ms)));
}

const name = (job) =>
  job.job_uid ? h("a", { href: `#/jobs/${encodeURIComponent(job.job_uid)}` }, job.name) : job.name;
