// The frame: token, routes, the live feed of the open task, and the theme.

import { ApiError, dropToken, Feed, get, setToken, takeToken } from "./api.js";
import { PARTS, TaskData } from "./data.js";
import { address, firstData, firstIdentity } from "./first.js";
import { fill, h } from "./web/dom.js";
import { words } from "./web/format.js";
import { applyTheme, onSystemTheme, themeButton } from "./web/theme.js";
import * as clients from "./pages/clients.js";
import * as events from "./pages/events.js";
import * as market from "./pages/market.js";
import * as privacy from "./pages/privacy.js";
import * as selection from "./pages/selection.js";
import * as tasks from "./pages/tasks.js";

const PAGES = { market, clients, privacy, selection, events };
const REFRESH_MS = 3000;
const ANSWERS_MS = 3000;
const main = document.getElementById("main");
const top_ = document.getElementById("top");
const facts = h("p");
const status = h("span", { class: "pill", "data-state": "" });
let identity = null;
let task = null;
let shown = null;
let turns = 0;

function announce(text) { fill(document.getElementById("announce"), text); }

function setStatus(word) {
  status.className = `pill ${word}`;
  status.dataset.state = word;
  fill(status, { live: "Live", reconnecting: "Reconnecting", polling: "Polling", ended: "Ended", denied: "No access", "": "" }[word] ?? word);
}

function head(page) {
  const buttons = [
    themeButton(route),
    identity ? h("button", { type: "button", class: "quiet", onclick: () => { dropToken(); identity = null; route(); } }, "Sign out") : null,
  ];
  fill(top_,
    h("div", { class: "bar" }, h("a", { class: "brand", href: "#/" }, "QI-DPFL"), task && page ? h("span", { class: "crumb", title: task.data.view?.name ?? "" }, task.data.view?.name ?? "") : null, h("span", { class: "space" }), task && page ? status : null, buttons),
    task && page ? h("nav", { class: "tabs", "aria-label": "Pages of the task" }, [h("a", { href: "#/" }, "tasks"), Object.keys(PAGES).map((name) => h("a", { href: `#/t/${task.data.taskId}/${name}`, "aria-current": name === page ? "page" : null }, name))]) : null);
  // On a narrow screen the tabs scroll: the open one must be seen.
  top_.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function login(message) {
  const field = h("input", { type: "password", name: "token", autocomplete: "off", required: true });
  close();
  head(null);
  fill(main, h("section", { class: "card login", "aria-labelledby": "login-title" },
    h("h1", { id: "login-title" }, "QI-DPFL dashboard"),
    h("p", { class: "hint" }, "The token of a viewer or an admin. It stays in this tab and is sent to this coordinator only. The coordinator's state folder has it in viewer.token."),
    h("form", { onsubmit: (event) => { event.preventDefault(); setToken(field.value.trim()); identity = null; route(); } },
      h("label", null, "Token", field), h("p", { class: "error", role: "alert" }, message ?? ""), h("button", { class: "primary" }, "Open"))));
  document.title = "QI-DPFL";
  field.focus();
}

function fail(error, place) {
  if (error instanceof ApiError && error.status === 401) { dropToken(); identity = null; return login("This token is not valid here, or it was revoked."); }
  fill(place, error instanceof ApiError ? error.message : "The coordinator does not answer. Trying again.");
}

function close(keepTask = false) {
  shown?.stop?.();
  shown = null;
  if (!keepTask && task) { task.feed?.stop(); clearTimeout(task.timer); task = null; }
}

// Shows what the address names. A later address replaces an earlier one that is still being read.
async function route() {
  const turn = (turns += 1);
  applyTheme();
  if (!takeToken()) return login();
  const place = address();
  try {
    const asked = identity ?? firstIdentity() ?? get("/v1/me");
    if (!place) {
      identity = await asked;
      return turn === turns ? overview() : null;
    }
    // At the same time: a page of a task shows the same to every operator.
    const opened = openTask(place);
    opened.catch(() => {});
    const isNew = !identity;
    identity = await asked;
    await opened;
    if (isNew && turn === turns) head(place.name);
  } catch (error) {
    if (turn !== turns) return;
    if (error instanceof ApiError && error.status === 401) { dropToken(); identity = null; return login("This token is not valid here, or it was revoked."); }
    if (error instanceof ApiError && error.status === 403 && !identity) { dropToken(); return login("This is not the token of a viewer or an admin."); }
    const note = h("p", { class: "error", role: "alert" });
    fill(main, h("section", { class: "card" }, note));
    fail(error, note);
    if (!(error instanceof ApiError)) {
      console.error(error);
      setTimeout(route, 2000);
    }
  }
}

function overview() {
  close();
  head(null);
  document.title = "Tasks · QI-DPFL";
  shown = tasks.page({ identity, fail });
  fill(main, shown.node);
}

function factsOf({ view }) {
  return `${view.preset ?? "own task"}, ${view.state}${view.reason ? `: ${words(view.reason)}` : ""}`;
}

async function openTask({ taskId, name, clientId }) {
  if (task?.data.taskId !== taskId) {
    close();
    task = { data: firstData(taskId) ?? new TaskData(taskId), feed: null, timer: 0, pending: null, page: name };
  } else close(true);
  const opened = task;
  const { data } = opened;
  opened.page = name;
  const module = PAGES[name];
  await data.start({ name, clientId });
  if (task !== opened || opened.page !== name) return;
  document.title = `${data.view.name} · ${name} · QI-DPFL`;
  head(name);
  const go = (id) => { if (id) location.hash = `#/t/${taskId}/clients/${id}`; };
  shown = clientId ? clients.detail({ data, clientId }) : module.page({ data, go, earlier: () => follow(opened, 0) });
  fill(facts, factsOf(data));
  fill(main, clientId ? null : h("div", { class: "title" }, h("h1", null, data.view.name), facts), shown.nodes ?? shown.node);
  const page = shown;
  await page.update(data);
  const again = () => (shown === page ? page.update(data) : null);
  if (!clientId) data.read(PARTS[name].later, again).then(again).catch((error) => console.warn(error));
  if (!opened.feed) follow(opened, Math.max(0, data.progress.last_event - 300));
}

function follow(opened, after) {
  opened.feed?.stop();
  const { data } = opened;
  data.events = [];
  const known = data.progress.last_event;
  opened.feed = new Feed(data.taskId, {
    after,
    onEvent: (event) => {
      if (!data.add(event)) return;
      if (task === opened) shown?.event?.(data);
      if (event.id > known) {
        opened.viewToo ||= !event.kind.startsWith("round.");
        refresh(opened, "all");
      }
      if (event.id > known && event.kind === "round.settled") announce(`Round ${event.round_number} is settled.`);
    },
    onChange: (all) => { opened.viewToo ||= Boolean(all); refresh(opened, all ? "all" : "live"); },
    onState: (word) => {
      if (task !== opened) return;
      if (word === "denied") { dropToken(); identity = null; return login("This token is not valid here any more."); }
      if (word === "live" && status.dataset.state === "reconnecting") { opened.viewToo = true; refresh(opened, "all"); }
      setStatus(word);
    },
  });
}

// Changes that arrive together are read together.
function refresh(opened, part) {
  opened.pending = part === "all" || opened.pending === "all" ? "all" : "live";
  if (opened.timer) return;
  opened.timer = setTimeout(async () => {
    // A page that is not seen reads nothing until it is.
    while (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
    const wanted = opened.pending;
    opened.pending = null;
    if (task === opened && shown) {
      const parts = PARTS[opened.page];
      const needs = wanted === "all" ? [...parts.needs, ...parts.later] : parts.live;
      const page = shown;
      try {
        const viewToo = opened.viewToo;
        opened.viewToo = false;
        opened.refreshedAt = performance.now();
        if (wanted === "all") await opened.data.refresh(needs, viewToo);
        else await Promise.all(needs.map((need) => opened.data[`load_${need}`]()));
        if (task === opened) fill(facts, factsOf(opened.data));
        if (shown === page && (wanted === "all" || needs.length)) await page.update(opened.data, wanted);
      } catch (error) {
        opened.viewToo = true;
        // The feed reconnects and asks for another refresh.
        if (error instanceof ApiError && error.status === 401) fail(error, main);
        else if (!(error instanceof ApiError)) console.warn(error);
      }
    }
    opened.timer = 0;
    if (opened.pending) refresh(opened, opened.pending);
  }, REFRESH_MS);
}

// Answers to the open round have no event: a visible page that shows them asks for them.
setInterval(() => {
  if (task && shown && !document.hidden && performance.now() - (task.refreshedAt ?? 0) > ANSWERS_MS && PARTS[task.page].live.length && task.data.progress?.round && status.dataset.state === "live") refresh(task, "live");
}, ANSWERS_MS);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { route().then(() => main.focus({ preventScroll: true })); });
onSystemTheme(route);
route();
