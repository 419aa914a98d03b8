// The page: fetches each second what the reader looks at, and shows it.

import { dropToken, get, hasToken, pathOf, saveToken } from "./api.js";
import { followPointer, showSample } from "./charts.js";
import { ask } from "./commands.js";
import { h, update } from "./dom.js";
import { duration } from "./format.js";
import { jobView } from "./job.js";
import { jobsView } from "./jobs.js";
import { applyTheme, switchTheme } from "./theme.js";

const EACH_MS = 1000;
const HISTORY_MS = 2000;
const OLD_S = 3;
const [CHECKPOINTS, SAMPLES] = [20, 720];
const POINTS = 600;
const EMPTY = { checkpoints: [], attempts: [], savepoints: [], runs: [], samples: [] };

const view = document.getElementById("view");
const connection = document.getElementById("connection");

const known = {
  list: null,
  uid: null,
  job: null,
  history: EMPTY,
  points: [],
  problem: null,
  answered: null,
  historyAt: -Infinity,
  skewMs: 0,
};
const chosen = { filter: { text: "", state: "" }, region: null, allRegions: false, checkpoint: null };

// --- what to show --------------------------------------------------------------------------------

/** The page of a job shows that job at once. */
const isOne = (list) => list?.service === "job" && list.jobs.length === 1;

function wantedUid() {
  const found = window.location.hash.match(/^#\/jobs\/(.+)$/);
  if (found) return decodeURIComponent(found[1]);
  return isOne(known.list) ? known.list.jobs[0].job_uid || null : null;
}

async function refresh() {
  try {
    if (!known.list || !wantedUid() || known.list.service === "job") await refreshList();
    const uid = wantedUid();
    if (uid !== known.uid) forget(uid);
    if (uid) await refreshJob(uid);
    known.problem = null;
    known.answered = performance.now();
  } catch (error) {
    known.problem = error;
  }
  render();
}

async function refreshList() {
  known.list = await get("v1/jobs");
  known.skewMs = known.list.now_ms - Date.now();
}

async function refreshJob(uid) {
  const isDue = performance.now() - known.historyAt > HISTORY_MS;
  const [job, history] = await Promise.all([
    get(pathOf(uid)),
    isDue ? get(pathOf(uid, `history?checkpoints=${CHECKPOINTS}&samples=${SAMPLES}`)) : null,
  ]);
  if (uid !== wantedUid()) return;
  known.job = job;
  known.points = [...known.points, [nowMs(), job.records_per_s, job.lag_records]].slice(-POINTS);
  if (history) {
    known.history = history;
    known.historyAt = performance.now();
  }
}

function forget(uid) {
  Object.assign(known, { uid, job: null, history: EMPTY, points: [], historyAt: -Infinity });
  Object.assign(chosen, { region: null, allRegions: false, checkpoint: null });
}

const nowMs = () => Date.now() + known.skewMs;
const ageS = () => (performance.now() - known.answered) / 1000;

// --- showing it ----------------------------------------------------------------------------------

function render() {
  let shown;
  try {
    shown = content();
  } catch (error) {
    console.error(error);
    shown = message("This page cannot show the answer.", `Its service may have another version: ${error}`);
  }
  update(view, h("main", { id: "view", tabindex: "-1" }, shown));
  if (known.job && !performance.getEntriesByName("shown").length) performance.mark("shown");
  document.title = [known.uid && known.job?.name, "Sluice"].filter(Boolean).join(" · ");
  showConnection();
  showSample();
}

function content() {
  const { problem, list, uid, job } = known;
  if (problem?.kind === "login") return login();
  if (problem?.kind === "gone") {
    return message("This job is not known here.", problem.message, h("a", { href: "#/" }, "All jobs"));
  }
  if (problem && !(uid ? job : list)) return message("No answer.", problem.message);
  if (uid && job) {
    return jobView({ ...chosen, job, history: known.history, points: known.points, nowMs: nowMs(),
      canCommand: (list?.can_command ?? false) && !problem, hasList: !isOne(list),
      lostS: problem ? ageS() : null });
  }
  return list && !uid ? jobsView(list, chosen.filter) : h("p", { class: "message" }, "Loading …");
}

function message(title, text, more) {
  return h("div", { class: "message", role: "alert" }, h("h1", null, title), h("p", null, text), more);
}

function login() {
  return h("form", { class: "card login", "data-action": "none", "data-key": "login" },
    h("h1", null, "Log in"),
    h("p", null, "This service needs its token: the content of the file that ",
      h("code", null, "--token-file"), " names. It stays in this tab."),
    h("label", null, "Token ", h("input", { type: "password", name: "token", required: true,
      autocomplete: "off", "aria-describedby": "login-problem" })),
    h("p", { id: "login-problem", class: "note bad" },
      hasToken() ? "The service refused this token." : ""),
    h("button", { type: "submit", class: "primary" }, "Log in"));
}

function showConnection() {
  const isLost = known.problem?.kind === "lost";
  view.classList.toggle("stale", isLost && known.answered !== null);
  connection.classList.toggle("bad", isLost);
  const text = known.answered === null ? "" : isLost
    ? `Connection lost: this is ${duration(Math.max(1, Math.round(ageS())))} old`
    : ageS() > OLD_S ? `Updated ${duration(Math.round(ageS()))} ago` : "Live";
  if (connection.textContent !== text) connection.textContent = text;
}

// --- what the reader does ------------------------------------------------------------------------

const TOLD_MS = 8000;
let told = null;

function announce(text) {
  document.getElementById("announcement").textContent = text;
  window.clearTimeout(told);
  if (text) told = window.setTimeout(announce, TOLD_MS, "");
}

const ACTIONS = {
  theme: switchTheme,
  skip: () => view.focus(),
  region: ({ region }) => (chosen.region = chosen.region === region ? null : region),
  "all-regions": () => (chosen.allRegions = !chosen.allRegions),
  checkpoint: ({ checkpoint }) => {
    chosen.checkpoint = chosen.checkpoint === Number(checkpoint) ? null : Number(checkpoint);
  },
};
for (const action of ["restart", "savepoint", "stop"]) {
  ACTIONS[action] = ({ region }) => ask(action, { job: known.job, region }, announce);
}

document.addEventListener("click", (event) => {
  const found = event.target.closest("[data-action]");
  const action = found && ACTIONS[found.dataset.action];
  if (!action) return;
  if (found.dataset.action === "skip") event.preventDefault();
  action(found.dataset);
  render();
});

document.addEventListener("input", ({ target }) => {
  if (!("filter" in target.dataset)) return;
  chosen.filter = { ...chosen.filter, [target.name]: target.value };
  render();
});

document.addEventListener("submit", (event) => {
  if (event.target.dataset.action !== "none") return;
  event.preventDefault();
  const token = new FormData(event.target).get("token");
  if (!token) return;
  dropToken();
  saveToken(token.trim());
  refreshNow();
});

const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: "up", ArrowDown: "down" };

document.addEventListener("keydown", (event) => {
  const cell = event.target.closest("[data-arrows] > button");
  const step = STEPS[event.key];
  if (!cell || step === undefined) return;
  const cells = [...cell.parentElement.children];
  const columns = cells.filter((each) => each.offsetTop === cells[0].offsetTop).length;
  const by = { up: -columns, down: columns }[step] ?? step;
  const next = cells[cells.indexOf(cell) + by];
  if (!next) return;
  event.preventDefault();
  next.focus();
});

document.addEventListener("pointermove", followPointer);
document.documentElement.addEventListener("pointerleave", () => followPointer(null));
window.addEventListener("hashchange", refreshNow);

// --- each second ---------------------------------------------------------------------------------

let timer = null;

async function refreshNow() {
  window.clearTimeout(timer);
  if (document.hidden) return; // until it is visible again
  const began = performance.now();
  await refresh();
  window.clearTimeout(timer);
  if (known.problem?.kind === "login") return; // until there is another token
  timer = window.setTimeout(refreshNow, Math.max(100, EACH_MS - (performance.now() - began)));
}

window.setInterval(showConnection, EACH_MS);
document.addEventListener("visibilitychange", refreshNow);
applyTheme();
refreshNow();
