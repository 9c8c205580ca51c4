// The clients: what each did in the last rounds, and one client in detail.

import { get } from "../api.js";
import { chartCard, legend, matrix, plot, roundAxis, shade } from "../web/charts.js";
import { dataTable, fill, h } from "../web/dom.js";
import { moment, money, OUTCOMES, short } from "../web/format.js";

const { Plot, d3 } = globalThis;
const units = (micro) => micro / 1e6;
const MARKS = { n: "–", m: "×", b: "!", r: "✕", v: "∅", u: "·" };

export function page({ go }) {
  const map = chartCard({
    title: "Clients and rounds", file: "outcomes", wide: true,
    hint: (data) => `The last ${data.outcomes.length} closed rounds. The stronger the colour, the larger the budget ρ.`,
    columns: (data) => [{ key: "client", label: "client", number: true }, ...data.outcomes.flatMap((round) => [
      { key: `outcome_${round.round_number}`, label: `round ${round.round_number}` },
      { key: `rho_${round.round_number}`, label: "ρ", number: true, format: short },
    ])],
    hasRows: (data) => data.outcomes.length > 0,
    rows(data) {
      const rows = new Map(data.clients.map((client) => [client.ordinal, { client: client.ordinal }]));
      for (const round of data.outcomes) {
        round.ordinals.forEach((ordinal, k) => {
          const row = rows.get(ordinal);
          if (!row) return;
          row[`outcome_${round.round_number}`] = OUTCOMES[round.outcomes[k]];
          row[`rho_${round.round_number}`] = round.rho[k];
        });
      }
      return data.outcomes.length ? [...rows.values()] : [];
    },
    draw(_, width, data) {
      const ys = data.clients.map((client) => client.ordinal);
      const place = new Map(ys.map((ordinal, j) => [ordinal, j]));
      const cells = data.outcomes.map((round) => {
        const column = new Array(ys.length);
        round.ordinals.forEach((ordinal, k) => { column[place.get(ordinal)] = [round.outcomes[k], round.rho[k], round.payment_micro[k]]; });
        return column;
      });
      const largest = d3.max(data.outcomes, (round) => d3.max(round.rho)) || 1;
      const bad = getComputedStyle(document.documentElement).getPropertyValue("--bad").trim();
      const soft = getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
      const shades = Array.from({ length: 65 }, (_, k) => shade(k / 64));
      return h("div", null, matrix(width, {
        xs: data.outcomes.map((round) => round.round_number), ys, xLabel: "round", yLabel: "client",
        cell(i, j) {
          const found = cells[i][j];
          if (!found) return null;
          const [letter, rho, paid] = found;
          const colour = letter === "d" ? shades[Math.round((64 * rho) / largest)] : letter === "r" || letter === "v" ? bad : letter === "o" ? null : soft;
          return { colour, mark: MARKS[letter], text: `${OUTCOMES[letter]}${rho ? `, ρ ${short(rho)}` : ""}${paid ? `, paid ${money(paid)}` : ""}` };
        },
        choose: (ordinal) => go(data.byOrdinal.get(ordinal)?.client_id),
      }), legend([["low", "small ρ"], ["high", "large ρ"], ["bad", "rejected or voided"], ["soft", "– declined, × missed, ! not delivered"]]));
    },
  });
  const list = h("section", { class: "card wide", "aria-labelledby": "client-list" }, h("header", null, h("h2", { id: "client-list" }, "All clients")));
  const holder = h("div");
  list.append(holder);
  return {
    node: h("div", { class: "grid" }, map.node, list),
    update(data) {
      map.update(data);
      setTimeout(() => fill(holder, clientTable(data, go)));
    },
  };
}

function clientTable(data, go) {
  const accounts = new Map(data.accounts.map((account) => [account.client_id, account]));
  const seen = new Map();
  for (const round of data.outcomes) round.ordinals.forEach((ordinal, k) => { if (round.outcomes[k] === "d") seen.set(ordinal, (seen.get(ordinal) ?? 0) + 1); });
  const rows = data.clients.map((client) => ({ ...client, ...(accounts.get(client.client_id) ?? {}), delivered: seen.get(client.ordinal) ?? 0 }));
  const columns = [
    { key: "ordinal", label: "client", number: true, cell: (row) => h("a", { href: link(data, row.client_id), onclick: (event) => { event.preventDefault(); go(row.client_id); } }, row.ordinal) },
    { key: "state", label: "standing", cell: (row) => (row.set_aside ? "set aside" : row.state) + (row.flagged ? ", flagged" : "") },
    { key: "size", label: "records", number: true },
    { key: "privacy_value", label: "privacy value", number: true, format: short },
    { key: "delivered", label: `delivered (last ${data.outcomes.length})`, number: true },
    { key: "spent_rho", label: "spent ρ", number: true, format: short },
    { key: "earned_micro", label: "paid", number: true, format: money },
    { key: "utility", label: "utility", number: true, format: short },
    { key: "client_id", label: "id", cell: (row) => h("code", null, row.client_id) },
  ];
  return rows.length ? dataTable(columns, rows, { label: "All clients", first: 100 }) : h("p", { class: "empty" }, "No client has enrolled yet.");
}

const link = (data, clientId) => `#/t/${data.taskId}/clients/${clientId}`;

export function detail({ data, clientId }) {
  const title = h("div", { class: "title wide-free" });
  const ledger = h("div");
  const history = chartCard({
    title: "Budget and payment by round", file: "client-rounds", wide: true,
    hint: "Bars: declared ρ. Line: payment.",
    rows: (own) => own.rounds.map((row) => ({ ...row, round: row.round_number, outcome: OUTCOMES[row.outcome], payment: units(row.payment_micro + row.escrow_micro) })),
    columns: [
      { key: "round", label: "round", number: true }, { key: "standing", label: "standing" }, { key: "outcome", label: "outcome" },
      { key: "rho", label: "ρ", number: true, format: short }, { key: "payment", label: "payment", number: true, format: (value) => value.toFixed(6) },
      { key: "utility", label: "utility", number: true, format: short }, { key: "verdict", label: "noise audit" }, { key: "alignment", label: "alignment", number: true, format: short },
      { key: "received_at", label: "received", format: moment }, { key: "digest", label: "digest of the update" },
    ],
    draw: (rows, width) => {
      const most = d3.max(rows, (row) => row.rho) || 1;
      const paid = d3.max(rows, (row) => row.payment) || 1;
      return h("div", null, plot(width, {
        x: roundAxis(rows, width), y: { label: "ρ", grid: true, zero: true, ticks: 4, labelArrow: "none", domain: [0, most * 1.1] },
        marks: [
          Plot.rectY(rows, { x1: (d) => d.round - 0.35, x2: (d) => d.round + 0.35, y1: 0, y2: "rho", fill: "var(--paid)" }),
          Plot.lineY(rows, { x: "round", y: (d) => (d.payment / paid) * most, stroke: "var(--escrow)", strokeWidth: 1.8 }),
          Plot.ruleY([0], { stroke: "var(--line)" }),
        ],
      }), legend([["paid", "ρ"], ["escrow", `payment (highest ${paid.toFixed(2)})`]]));
    },
  });
  const card = h("section", { class: "card wide", "aria-labelledby": "ledger-title" }, h("header", null, h("h2", { id: "ledger-title" }, "Ledger")), ledger);
  return {
    node: h("div", { class: "grid" }, title, history.node, card),
    async update() {
      const path = `${data.path}/clients/${clientId}`;
      const [rounds, account] = await Promise.all([get(`${path}/rounds`), get(`${path}/ledger`)]);
      const client = data.clients.find((one) => one.client_id === clientId);
      fill(title, h("h1", null, `Client ${client?.ordinal ?? ""}`), h("p", null, client ? `${client.state}, ${client.size ?? "no"} records, privacy value ${short(client.privacy_value)}` : ""), h("a", { href: `#/t/${data.taskId}/clients` }, "All clients"));
      history.update({ rounds });
      fill(ledger,
        h("p", { class: "hint" }, account.epsilon === null ? "At least one release is unprotected." : `Spent ρ ${short(account.spent_rho)}, that is ε ${short(account.epsilon)} at δ ${account.delta}. Earned ${money(account.earned_micro)}.`),
        dataTable([
          { key: "release", label: "release" }, { key: "mechanism", label: "mechanism" }, { key: "state", label: "state" },
          { key: "rho", label: "declared ρ", number: true, format: short }, { key: "proven_rho", label: "proven ρ", number: true, format: short },
          { key: "payment_micro", label: "payment", number: true, format: money }, { key: "digest", label: "digest" },
        ], account.entries, { label: "Ledger" }));
    },
  };
}
