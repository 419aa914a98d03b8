// The tables of a job: attempts, transactions, counters, savepoints, runs and settings.

import { h } from "./dom.js";
import { bytes, duration, moment, number } from "./format.js";

const MOST = 12;

/** A cell; a phone leaves out what is empty. */
export function cell(label, content, kind = null) {
  const names = [kind, [content].flat().every((each) => !each || each === "–") && "empty"];
  return h("td", { "data-label": label, class: names.filter(Boolean).join(" ") || null }, content);
}

function section(key, title, note, content) {
  return h("section", { class: "card", "data-key": key, "aria-labelledby": `${key}-title` },
    h("h2", { id: `${key}-title` }, title), content ?? h("p", { class: "muted" }, note));
}

/** `columns`: `[title, isNumber]`; rows are arrays of cells, the first one names the row. */
function table(columns, rows) {
  return h("table", { class: "cards" },
    h("thead", null, h("tr", null, columns.map(([title, isNumber]) =>
      h("th", { scope: "col", class: isNumber ? "number" : null }, title)))),
    h("tbody", null, rows.map((cells) => h("tr", null, cells.map((found, at) => at === 0
      ? h("th", { scope: "row", class: "wrap" }, found)
      : cell(columns[at][0], found, columns[at][1] ? "number" : "wrap"))))));
}

export function attempts({ job, history }) {
  const own = (job.status?.regions ?? []).flatMap((region) =>
    region.attempts.map((each) => ({ ...each, region: region.region })));
  const found = (history.attempts.length ? history.attempts : own)
    .filter((each) => each.ended_ms != null)
    .sort((one, other) => other.ended_ms - one.ended_ms).slice(0, MOST);
  return section("attempts", "Ended attempts", "No attempt of a region has ended.", found.length > 0 &&
    table([["Region"], ["Cause"]], found.map((each) => [
      [each.region, h("small", null, `attempt ${each.attempt_id}, ended ${moment(each.ended_ms)}`,
        each.host && `, on ${each.host}`)],
      each.why || "–"])) || null);
}

export function transactions({ job }) {
  const found = [...job.transactions].sort((one, other) => share(other) - share(one)).slice(0, MOST);
  return section("transactions", "Open transactions", "No transaction is open.", found.length > 0 &&
    table([["Region and sink"], ["Age"], ["Share of its timeout"]], found.map((each) => [
      [each.region, h("small", null, each.sink)], duration(each.age_s), meter(each)])) || null);
}

const share = ({ age_s, timeout_s }) => (timeout_s ? age_s / timeout_s : 0);

function meter(each) {
  if (!each.timeout_s) return "no timeout";
  const found = share(each);
  const tone = found >= 0.8 ? "bad" : found >= 0.5 ? "high" : "good";
  const text = `${number(found * 100)} % of ${duration(each.timeout_s)}`;
  return h("span", { class: `meter ${tone}` },
    h("progress", { max: "1", value: Math.min(1, found).toFixed(3), "aria-label": text }), text,
    found >= 0.5 && h("span", { class: `note ${tone}` }, found >= 0.8 ? "may expire" : "old"));
}

const RECORDS = { read: "records read", skipped: "records skipped", dead_lettered: "dead letters" };

/** Of jobs whose sources have a time. */
export function eventTime({ job, nowMs }) {
  const found = job.status?.time;
  if (!found) return null;
  const late = job.status.regions.reduce((sum, each) => sum + each.late_rows, 0);
  const named = (splits) => [number(splits.length),
    splits.length > 0 && h("small", null, splits.slice(0, MOST).join(", "))];
  return section("event-time", "Event time", "", table([["Fact"], ["Value"]], [
    ["Watermark", againstClock(found.watermark_ms, nowMs)],
    ["Slowest split", found.slowest === null ? "all are idle"
      : [found.slowest, h("small", null, `region ${found.slowest_region}`),
        h("small", null, againstClock(found.slowest_ms, nowMs))]],
    ["Idle splits", named(found.idle)],
    ["Paused splits", named(found.paused)],
    ["Late rows", number(late)]]));
}

/** One record far in the future would end windows too early. */
function againstClock(ms, nowMs) {
  if (ms === null) return "none yet";
  const ahead = (ms - nowMs) / 1000;
  return [moment(ms), ahead > 0
    ? h("small", { class: "note bad" }, `${duration(ahead)} ahead of the clock`)
    : h("small", null, `${duration(-ahead)} ago`)];
}

export function counters({ job }) {
  const rows = (totals, named) => Object.entries(totals).flatMap(([operator, counts]) =>
    Object.entries(counts).map(([name, total]) => [operator, named(name), number(total)]));
  const found = [...rows(job.function_records, (name) => RECORDS[name] ?? name),
    ...rows(job.counters, (name) => h("code", null, name))];
  return section("counters", "Counters and dead letters", "No function counts records.",
    found.length > 0 && table([["Function"], ["Counter"], ["Total", true]], found) || null);
}

export function savepoints({ job, history }) {
  const found = (job.savepoints.length ? job.savepoints : history.savepoints).toReversed();
  return section("savepoints", "Savepoints", "No savepoint of this job is known.", found.length > 0 &&
    table([["Savepoint"], ["State"], ["Size", true]], found.slice(0, MOST).map((each) => [
      [each.uri ?? "–", h("small", null, each.kind ?? "savepoint")],
      [each.state, each.error && h("small", { class: "note bad" }, each.error)],
      bytes(each.bytes)])) || null);
}

export function runs({ history }) {
  const found = history.runs.toReversed().slice(0, MOST);
  return section("runs", "Runs", "This is the first run.", found.length > 0 &&
    table([["Started"], ["Ended"], ["State"]], found.map((each) => [
      moment(each.started_ms), moment(each.ended_ms),
      [each.state ?? "–", (each.error || each.cause) && h("small", null, each.error || each.cause)],
    ])) || null);
}

export function settings({ job }) {
  const found = Object.entries(job.settings).sort(([one], [other]) => (one < other ? -1 : 1));
  return section("settings", "Settings", "No settings are on record.", found.length > 0 &&
    h("details", null, h("summary", null, `${number(found.length)} settings, secrets redacted`),
      table([["Setting"], ["Value"]], found.map(([name, value]) => [name, h("code", null, value)]))) || null);
}
