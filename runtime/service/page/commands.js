// Commands: each one asks before it acts, and says what it will do.

import { pathOf, post } from "./api.js";
import { h } from "./dom.js";

export function jobCommands(job) {
  if (job.ended_ms !== null) return null;
  const suspended = job.suspended > 0;
  return h("div", { class: "row commands" },
    suspended && h("button", { type: "button", "data-action": "restart" }, "Restart suspended …"),
    h("button", { type: "button", "data-action": "savepoint" }, "Savepoint …"),
    h("button", { type: "button", class: "danger", "data-action": "stop" }, "Stop …"));
}

/** What each command asks, and what it sends. */
const COMMANDS = {
  restart: ({ job, region }) => ({
    title: region ? `Restart region ${region}?` : "Restart all suspended regions?",
    text: "It reads again from its last checkpoint. No record is lost or doubled.",
    label: "Restart",
    fields: [],
    send: () => post(pathOf(job.job_uid, "restart"), { regions: region ? [region] : [] }),
  }),
  savepoint: ({ job }) => ({
    title: `Take a savepoint of ${job.name}?`,
    text: "The job continues. The savepoint needs nothing outside its directory and never expires.",
    label: "Take the savepoint",
    fields: [target()],
    send: (form) => post(pathOf(job.job_uid, "savepoints"), { kind: "savepoint", to: form.get("to") || null }),
  }),
  stop: ({ job }) => ({
    title: `Stop ${job.name}?`,
    text: "The job commits its last checkpoint and ends. A later start resumes there.",
    label: "Stop the job",
    fields: [
      check("drain", "First read all records that are there now"),
      check("savepoint", "Take a savepoint at the end"),
      target(),
    ],
    send: (form) => post(pathOf(job.job_uid, "stop"), { drain: form.has("drain"),
      savepoint: form.has("savepoint"), to: form.get("to") || null }),
  }),
};

const check = (name, text) =>
  h("label", { class: "check" }, h("input", { type: "checkbox", name }), text);
const target = () => h("label", null, "Directory of savepoints (empty: next to the checkpoints) ",
  h("input", { type: "text", name: "to", autocomplete: "off", spellcheck: "false" }));

/** Ask, and act on a yes; `onDone(text)` announces the result. */
export function ask(action, about, onDone) {
  const dialog = document.getElementById("dialog");
  const { title, text, label, fields, send } = COMMANDS[action](about);
  const problem = h("p", { class: "alert bad", role: "alert", hidden: true });
  const act = h("button", { type: "submit", class: action === "stop" ? "danger" : "primary" }, label);
  const cancel = h("button", { type: "button", autofocus: true }, "Cancel");
  const form = h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title),
    h("p", null, text), fields, problem, h("div", { class: "row end" }, cancel, act));
  cancel.addEventListener("click", () => dialog.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    act.disabled = true;
    try {
      await send(new FormData(form));
      dialog.close();
      onDone(`${label}: requested.`);
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
      act.disabled = false;
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
}
