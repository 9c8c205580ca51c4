// Privacy: what each client has spent of its lifetime budget, and what that guarantees.

import { chartCard, legend, plot } from "../web/charts.js";
import { dataTable, fill, h } from "../web/dom.js";
import { GUARANTEES, money, short } from "../web/format.js";

const { Plot } = globalThis;

export function page() {
  const statement = h("p", { class: "guarantee" });
  const words = h("p", { class: "hint" });
  const table = h("div");
  const spent = chartCard({
    title: "Spent and left", file: "privacy", wide: true,
    hint: "Proven privacy loss of closed rounds in zCDP, and what is left of each client's own lifetime limit.",
    rows: (data) => data.accounts.map((one) => ({ client: one.ordinal, spent: one.spent_rho, left: one.left_rho, lifetime: one.lifetime_rho, epsilon: one.epsilon, delta: one.delta, guarantee: one.guarantee })),
    columns: [
      { key: "client", label: "client", number: true }, { key: "spent", label: "spent ρ", number: true, format: short }, { key: "left", label: "left ρ", number: true, format: short },
      { key: "lifetime", label: "lifetime ρ", number: true, format: short }, { key: "epsilon", label: "ε", number: true, format: short }, { key: "delta", label: "δ", number: true }, { key: "guarantee", label: "guarantee" },
    ],
    draw(rows, width) {
      const finite = rows.filter((row) => row.spent !== null);
      const many = rows.length > 60;
      const parts = finite.flatMap((row) => [{ client: row.client, kind: "spent", value: row.spent }, ...(row.left === null ? [] : [{ client: row.client, kind: "left", value: row.left }])]);
      const colour = { domain: ["spent", "left"], range: ["var(--paid)", "var(--kept)"] };
      const drawn = many
        ? plot(width, { height: 260, color: colour, x: { label: "client", type: "linear", tickFormat: "d", tickSize: 0, labelArrow: "none" }, y: { label: "ρ", grid: true, ticks: 4, labelArrow: "none" },
            marks: [Plot.rectY(parts, Plot.stackY({ x1: (d) => d.client - 0.5, x2: (d) => d.client + 0.5, y: "value", fill: "kind", order: ["spent", "left"] }))] })
        : plot(width, { height: 24 * finite.length + 56, color: colour, x: { label: "ρ", grid: true, ticks: 5, labelArrow: "none" }, y: { label: "client", type: "band", tickSize: 0, padding: 0.3 },
            marks: [Plot.barX(parts, Plot.stackX({ y: "client", x: "value", fill: "kind", order: ["spent", "left"] })), Plot.ruleX([0], { stroke: "var(--line)" })] });
      return h("div", null, drawn, legend(parts.some((one) => one.kind === "left") ? [["paid", "spent"], ["", "left"]] : [["paid", "spent; no client has a limit"]]));
    },
  });
  const card = h("section", { class: "card wide", "aria-labelledby": "guarantee-title" }, h("header", null, h("h2", { id: "guarantee-title" }, "Guarantee of the whole task")), statement, words);
  const list = h("section", { class: "card wide", "aria-labelledby": "accounts-title" }, h("header", null, h("h2", { id: "accounts-title" }, "Accounts")), table);
  return {
    node: h("div", { class: "grid" }, card, spent.node, list),
    update(data) {
      const privacy = data.view.spec.privacy;
      fill(statement, data.statement ?? "No client has released anything yet.");
      fill(words, `Mechanism ${privacy.mechanism.name}, ${privacy.noise ? "with noise" : "noise off"}. The open round is not counted: it would show a budget. A record belongs to one client, so the largest account is the guarantee of all.`);
      spent.update(data);
      fill(table, data.accounts.length ? dataTable([
        { key: "ordinal", label: "client", number: true },
        { key: "spent_rho", label: "spent ρ", number: true, format: short },
        { key: "answering", label: "reserved", format: (value) => (value ? "in the open round" : "–") },
        { key: "left_rho", label: "left ρ", number: true, cell: (row) => (row.left_rho === null ? "no limit" : short(row.left_rho)) },
        { key: "epsilon", label: "ε", number: true, format: short },
        { key: "delta", label: "at δ", number: true },
        { key: "guarantee", label: "guarantee", format: (value) => GUARANTEES[value] },
        { key: "earned_micro", label: "earned", number: true, format: money },
      ], data.accounts, { label: "Accounts" }) : h("p", { class: "empty" }, "No client has enrolled yet."));
    },
  };
}
