// All tasks, and what an admin does with them.

import { get, send } from "../api.js";
import { confirmed, dataTable, fill, h } from "../web/dom.js";
import { count, money, percent, words } from "../web/format.js";

export function page({ identity, fail }) {
  const list = h("div");
  const error = h("p", { class: "error", role: "alert" });
  const card = h("section", { class: "card wide", "aria-labelledby": "tasks-title" }, error, list);
  const creates = identity.role === "admin" && !identity.task_id ? creation(() => refresh()) : null;
  let accuracies = new Map();
  const known = new Set();
  let before = "";

  async function refresh() {
    try {
      const tasks = await get("/v1/tasks");
      await Promise.all(tasks.slice(-20).map(async (task) => {
        const key = `${task.task_id}/${task.settled_rounds}`;
        if (!task.settled_rounds || known.has(key)) return;
        // The newest model of a running task may still be evaluated: until then the accuracy before it counts.
        const [last, earlier] = (await get(`/v1/tasks/${task.task_id}/rounds?after=${Math.max(0, task.settled_rounds - 2)}&limit=2`))
          .filter((round) => round.round_number <= task.settled_rounds).toReversed();
        accuracies.set(key, last?.accuracy ?? earlier?.accuracy ?? null);
        if (last?.accuracy != null || task.state !== "training") known.add(key);
      }));
      const now = JSON.stringify([tasks, [...accuracies]]);
      if (now !== before) fill(list, tasks.length ? table(tasks.toReversed()) : h("p", { class: "empty" }, "There is no task yet."));
      before = now;
      fill(error);
    } catch (problem) { fail(problem, error); }
  }

  const table = (tasks) => dataTable([
    { label: "task", cell: (task) => h("a", { href: `#/t/${task.task_id}/market` }, task.name) },
    { label: "state", cell: (task) => h("span", { class: `pill ${task.paused ? "paused" : task.state}` }, task.paused ? "paused" : task.state, task.reason ? h("small", null, words(task.reason)) : null) },
    { label: "rounds", cell: (task) => [h("progress", { max: task.horizon, value: task.settled_rounds, "aria-label": `rounds of ${task.name}` }), ` ${count(task.settled_rounds)} of ${count(task.horizon)}`] },
    { label: "accuracy", number: true, cell: (task) => percent(accuracies.get(`${task.task_id}/${task.settled_rounds}`)) },
    { label: "paid", number: true, cell: (task) => money(task.paid_micro) },
    { label: "clients", number: true, cell: (task) => count(task.clients) },
    ...(identity.role === "admin" ? [{ label: "", cell: (task) => actions(task) }] : []),
  ], tasks, { label: "Tasks" });

  function actions(task) {
    const act = (label, method, path, text) => h("button", { type: "button", onclick: async () => {
      if (!(await confirmed(`${label} ${task.name}?`, text, label))) return;
      try { await send(method, `/v1/tasks/${task.task_id}${path}`); } catch (problem) { return fail(problem, error); }
      await refresh();
    } }, label, h("span", { class: "visually-hidden" }, ` ${task.name}`));
    const running = ["enrolling", "training"].includes(task.state);
    return h("div", { class: "row" },
      task.state === "enrolling" && !task.paused ? act("Start", "POST", "/start", "Clients are selected now, and the first round opens.") : null,
      running && !task.paused ? act("Pause", "POST", "/pause", "No new round opens. The open round goes on to its end.") : null,
      task.paused ? act("Resume", "POST", "/resume", "The next round opens at once, if none is open.") : null,
      running ? act("Stop", "POST", "/stop", "The task ends for good. Its open round is settled if it has enough updates.") : null,
      running ? null : act("Delete", "DELETE", "", "Everything that the task has stored is deleted. A signed tombstone stays."));
  }

  const timer = setInterval(refresh, 3000);
  refresh();
  return {
    node: h("div", { class: "grid" }, h("div", { class: "title wide-free" }, h("h1", { id: "tasks-title" }, "Tasks")), card, creates),
    update() {}, stop: () => clearInterval(timer),
  };
}

function creation(done) {
  const name = h("input", { name: "name", required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._:\\/\\-]*", maxlength: "200", autocomplete: "off" });
  const preset = h("select", { name: "preset" });
  const overrides = h("textarea", { name: "overrides", spellcheck: "false", placeholder: '{"game": {"horizon": 5}}' });
  const about = h("p", { class: "hint" });
  const error = h("p", { class: "error", role: "alert" });
  const codes = h("div", { "aria-live": "polite" });
  let presets = [];
  const describe = () => fill(about, presets.find((one) => one.name === preset.value)?.description ?? "");
  preset.addEventListener("change", describe);
  get("/v1/presets").then((found) => { presets = found; fill(preset, found.map((one) => h("option", { value: one.name }, one.name))); describe(); }).catch(() => {});

  async function submit(event) {
    event.preventDefault();
    fill(error); fill(codes);
    let parsed = {};
    try { parsed = overrides.value.trim() ? JSON.parse(overrides.value) : {}; } catch (problem) { return fill(error, `The overrides are not JSON: ${problem.message}`); }
    if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed)) return fill(error, "The overrides must be a JSON object.");
    try {
      const made = await send("POST", "/v1/tasks", { name: name.value, preset: preset.value, overrides: parsed });
      fill(codes, h("p", null, `Task ${made.task.name} takes clients now. Its enrolment codes are shown only once:`), h("pre", null, made.enrolment_codes.join("\n")));
      await done();
    } catch (problem) {
      fill(error, problem.message, (problem.problem?.errors ?? []).map((one) => h("div", null, `${one.path}: ${one.message}`)));
    }
  }
  return h("section", { class: "card wide", "aria-labelledby": "new-title" }, h("header", null, h("h2", { id: "new-title" }, "New task")),
    h("form", { onsubmit: submit }, h("label", null, "Name", name), h("label", null, "Preset", preset), about, h("label", null, "Overrides, as JSON in the structure of the spec", overrides),
      error, codes, h("div", { class: "row" }, h("button", { class: "primary" }, "Create task"))));
}
