// The page of results: claims, then one tab for each condition, and what was run.

import { figures } from "./web/charts.js";
import { dataTable, fill, h } from "./web/dom.js";
import { count } from "./web/format.js";
import { applyTheme, onSystemTheme, themeButton } from "./web/theme.js";
import { claimsPage } from "./claims.js";
import { conditionPage } from "./condition.js";
import { Methods } from "./methods.js";

const main = document.getElementById("main");
let results = null;
let methods = null;

async function load() {
  const answer = await fetch("/results.json", { cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.text()).trim());
  results = await answer.json();
  methods = new Methods(results.methods);
}

function head(current) {
  const tab = (name, text) => h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, text);
  fill(document.getElementById("top"),
    h("div", { class: "bar" }, h("a", { class: "brand", href: "#/" }, "QI-DPFL"), h("span", { class: "crumb", title: results?.folder ?? "" }, results?.folder ?? ""), h("span", { class: "space" }), themeButton(show)),
    results ? h("nav", { class: "tabs", "aria-label": "Parts of the results" }, tab("claims", "claims"), results.conditions.map((one) => tab(one.name, one.partition)), tab("about", "about")) : null);
}

function show() {
  applyTheme();
  const asked = decodeURIComponent(location.hash.slice(2)) || "claims";
  const condition = results.conditions.find((one) => one.name === asked);
  const current = condition || asked === "about" ? asked : "claims";
  head(current);
  document.title = `${condition?.title ?? current} · ${results.title}`;
  const page = condition ? conditionPage(condition, methods) : current === "about" ? aboutPage() : claimsPage(results);
  const again = (keep) => { if (keep) page.update(); else show(); };
  fill(main, h("div", { class: "title" }, h("h1", null, results.title), h("p", null, condition ? condition.title : results.scale_note || "at the scale of the paper")),
    current === "claims" ? totals() : null, condition ? methods.chooser(again) : null, page.node);
  page.update();
}

function totals() {
  return figures([...Object.entries(results.verdicts).map(([word, number]) => [word, count(number), "claims × conditions"]), ["methods", count(results.methods.length), null], ["failed runs", count(results.failures.length), null]]);
}

function aboutPage() {
  const card = (title, id, ...parts) => h("section", { class: "card wide", "aria-labelledby": id }, h("header", null, h("h2", { id }, title)), parts);
  const pairs = (rows, label) => dataTable([{ key: "name", label: "name" }, { label: "value", class: "wrap", cell: (row) => row.value }], rows, { label });
  return {
    node: h("div", { class: "grid" },
      card("What limits these numbers", "remarks-title", h("ul", { class: "remarks" }, results.remarks.map((text) => h("li", null, text)))),
      card("Failed runs", "failures-title", results.failures.length ? dataTable(["dataset", "partition", "run", "seed", "state", "reason"].map((key) => ({ key, label: key })), results.failures, { label: "Failed runs" }) : h("p", { class: "hint" }, "None.")),
      card("Methods", "methods-title", dataTable([{ key: "title", label: "method" }, { key: "name", label: "name" }, { key: "role", label: "role" }, { label: "about", class: "wrap", cell: (row) => row.about }], results.methods, { label: "Methods" })),
      card("Command", "command-title", h("pre", null, results.command || "No run of this folder has ended yet.")),
      card("Settings", "settings-title", pairs(results.settings, "Settings")),
      card("Versions", "versions-title", pairs(results.versions, "Versions"))),
    update() {},
  };
}

function failed(error) {
  head(null);
  fill(main, h("section", { class: "card" }, h("p", { class: "error", role: "alert" }, error instanceof TypeError ? "The command does not answer any more. Start it again." : error.message), h("button", { type: "button", onclick: start }, "Try again")));
}

async function start() {
  applyTheme();
  try { await load(); show(); } catch (error) { failed(error); }
}

document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { if (results) { show(); main.focus({ preventScroll: true }); } });
onSystemTheme(() => { if (results) show(); });
start();
