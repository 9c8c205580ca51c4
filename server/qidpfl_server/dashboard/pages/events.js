// Events: the live feed with a filter, and the exports.

import { getBlob } from "../api.js";
import { csvOf, fill, h, save } from "../web/dom.js";
import { moment, time } from "../web/format.js";

const SHOWN = 300;
const COLUMNS = ["id", "at", "kind", "round_number", "detail"].map((key) => ({ key }));

export function page({ data, earlier }) {
  const list = h("ol", { class: "feed", "aria-label": "Events, newest first" });
  const note = h("p", { class: "hint" });
  const filter = h("input", { type: "search", placeholder: "Filter, for example round.settled", "aria-label": "Filter events", oninput: () => draw() });
  const error = h("p", { class: "error", role: "alert" });
  const matching = () => {
    const text = filter.value.trim().toLowerCase();
    return data.events.filter((event) => `${event.kind} ${event.round_number ?? ""} ${event.detail ?? ""}`.toLowerCase().includes(text));
  };
  function draw() {
    const found = matching();
    fill(note, `${found.length} of ${data.events.length} events that are loaded, newest first.`);
    fill(list, found.slice(-SHOWN).reverse().map((event) => h("li", null,
      h("time", { datetime: event.at, title: moment(event.at) }, time(event.at)), h("span", null, event.kind),
      h("span", { class: "round" }, event.round_number ? `round ${event.round_number}` : ""), h("span", { class: "detail" }, event.detail ?? ""))));
  }
  const download = (table, format) => h("button", { type: "button", onclick: async () => {
    fill(error);
    try { save(`${table}.${format}`, await getBlob(`${data.path}/export/${table}?format=${format}`)); } catch (problem) { fill(error, problem.message); }
  } }, `${table} ${format.toUpperCase()}`);
  const feed = h("section", { class: "card wide", "aria-labelledby": "feed-title" },
    h("header", null, h("h2", { id: "feed-title" }, "Live feed"), h("button", { type: "button", class: "quiet", onclick: () => save("events.csv", csvOf(COLUMNS, matching())) }, "CSV")),
    h("div", { class: "row" }, filter, h("button", { type: "button", onclick: earlier }, "Load earlier events")), note, list);
  const exports = h("section", { class: "card wide", "aria-labelledby": "export-title" },
    h("header", null, h("h2", { id: "export-title" }, "Export and audit")),
    h("p", { class: "hint" }, "Tables up to the last closed round. The audit recomputes every model and payment on the coordinator's machine:"),
    h("pre", null, "qidpfl-server audit"),
    h("div", { class: "row" }, ["rounds", "clients", "budgets", "payments", "ledgers"].flatMap((table) => ["csv", "json"].map((format) => download(table, format)))), error);
  return { node: h("div", { class: "grid" }, feed, exports), update: draw, event: draw };
}
