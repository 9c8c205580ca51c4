// One condition: the methods side by side, with the intervals of their means over the seeds.

import { chartCard, legend, plot } from "./web/charts.js";
import { dataTable, h } from "./web/dom.js";
import { percent, short } from "./web/format.js";

const { Plot, d3 } = globalThis;
const INTERVAL = "Dots are means over the seeds; bars are 95 % intervals (Student). One seed has no interval.";
const number = (key, label, format = short) => ({ key, label, number: true, format });
const interval = (key, label, format) => [number(key, label, format), number(`${key}_low`, "from", format), number(`${key}_high`, "to", format)];

// Room for the longest name on the left.
const margin = (rows, width) => Math.min(width / 2, 14 + 6.3 * d3.max(rows, (row) => row.title.length));

export function conditionPage(condition, methods) {
  const named = (row) => ({ ...row, title: methods.title(row.method) });
  const cards = [
    compared("Accuracy after the last round", "accuracy", "accuracy, %", { format: percent, scale: 100 }),
    compared("Server cost", "cost", "cost", { hint: "Discounted rewards plus the bound on the loss, by the paper's model: computed, not measured. Methods without noise have none." }),
    compared("Reward", "reward", "units", { zero: true }),
    compared("Privacy: ε of the worst client", "epsilon", "ε", { zero: true, hint: "After all releases. Methods without noise guarantee nothing and have no ε." }),
    byRound("Accuracy by round", "accuracy", "accuracy, %", { format: percent, scale: 100 }),
    byRound("Reward by round", "reward", "units", {}),
    byRound("Server cost by round", "cost", "cost", {}),
    duration(), distances(), calibration(),
  ];
  const table = h("section", { class: "card wide", "aria-labelledby": "summary-title" });

  function compared(title, key, label, { format = short, scale = 1, zero = false, hint = INTERVAL }) {
    return chartCard({
      title, file: `${condition.name}-${key}`, hint,
      rows: () => methods.of(condition.summary).map(named).filter((row) => row[key] !== null),
      columns: [{ key: "title", label: "method" }, ...interval(key, key === "epsilon" ? "ε" : key, format), number("seeds", "seeds", String)],
      draw(rows, width) {
        const x = (field) => (row) => (row[field] === null ? NaN : scale * row[field]);
        return plot(width, {
          height: 24 * rows.length + 52, marginLeft: margin(rows, width), marginTop: 8, marginRight: 18,
          x: { label, grid: true, nice: true, zero, ticks: Math.max(3, Math.min(6, width / 90)), labelArrow: "none", labelAnchor: "right" },
          y: { domain: rows.map((row) => row.title), label: null, tickSize: 0, padding: 0.3 },
          marks: [
            Plot.ruleY(rows.filter((row) => row[`${key}_low`] !== null), { y: "title", x1: x(`${key}_low`), x2: x(`${key}_high`), stroke: (row) => methods.colour(row.method), strokeWidth: 3, strokeOpacity: 0.45 }),
            Plot.dot(rows, { y: "title", x: x(key), fill: (row) => methods.colour(row.method), r: 4.5 }),
          ],
        });
      },
    });
  }

  function byRound(title, key, label, { format = short, scale = 1 }) {
    return chartCard({
      title, file: `${condition.name}-${key}-by-round`, wide: key === "accuracy",
      hint: "Means over the seeds. The band is the 95 % interval.",
      rows: () => methods.of(condition.rounds).map(named).filter((row) => row[key] !== null),
      columns: [{ key: "title", label: "method" }, number("round", "round", String), ...interval(key, key, format)],
      draw(rows, width) {
        const groups = d3.groups(rows, (row) => row.method);
        const y = (field) => (row) => scale * row[field];
        const last = d3.max(rows, (row) => row.round);
        return plot(width, {
          height: key === "accuracy" ? 320 : 240, marginRight: 16,
          x: { label: "round", tickFormat: "d", ticks: d3.ticks(1, last, Math.min(last, width / 70)).filter(Number.isInteger), tickSize: 0, labelArrow: "none", labelAnchor: "right" },
          y: { label, grid: true, nice: true, ticks: 5, tickSize: 0, labelArrow: "none" },
          marks: groups.flatMap(([name, of]) => [
            Plot.areaY(of.filter((row) => row[`${key}_low`] !== null), { x: "round", y1: y(`${key}_low`), y2: y(`${key}_high`), fill: methods.colour(name), fillOpacity: 0.1 }),
            Plot.lineY(of, { x: "round", y: y(key), stroke: methods.colour(name), strokeDasharray: methods.dash(name), strokeWidth: name === "qi-dpfl" ? 2.6 : 1.7 }),
            last === 1 ? Plot.dot(of, { x: "round", y: y(key), fill: methods.colour(name) }) : null,
          ]),
        });
      },
    });
  }

  function duration() {
    const parts = condition.parts;
    const range = ["var(--paid)", "var(--escrow)", "var(--second)", "var(--kept)"];
    return chartCard({
      title: "Time of a round", file: `${condition.name}-time`, hint: "Mean seconds by part.",
      rows: () => methods.of(condition.times).map(named),
      columns: [{ key: "title", label: "method" }, number("whole", "seconds"), ...parts.map((part) => number(part, part))],
      draw(rows, width) {
        const stacked = rows.flatMap((row) => parts.map((part) => ({ title: row.title, part, value: row[part] })));
        return h("div", null, plot(width, {
          height: 24 * rows.length + 52, marginLeft: margin(rows, width), marginTop: 8, marginRight: 18,
          x: { label: "seconds", grid: true, nice: true, ticks: 5, labelArrow: "none", labelAnchor: "right" }, y: { domain: rows.map((row) => row.title), label: null, tickSize: 0, padding: 0.3 },
          color: { domain: parts, range },
          marks: [Plot.barX(stacked, Plot.stackX({ y: "title", x: "value", fill: "part", order: parts }))],
        }), legend(parts.map((part, k) => [["paid", "escrow", "second", ""][k], part])));
      },
    });
  }

  function distances() {
    return chartCard({
      title: "Label distances and selection", file: `${condition.name}-distances`, hint: "Clients of QI-DPFL in all seeds: L1 distance to the reference, 0 to 2.",
      rows: () => condition.distances.map((row) => ({ ...row, verdict: row.selected ? "selected" : "refused" })),
      columns: [number("seed", "seed", String), number("client", "client", String), number("distance", "distance"), { key: "verdict", label: "verdict" }, number("earned", "earned")],
      draw: (rows, width) => h("div", null, plot(width, {
        x: { label: "seed", type: "point", tickFormat: "d", tickSize: 0, padding: 0.5 }, y: { label: "distance", grid: true, zero: true, nice: true, ticks: 4, labelArrow: "none" },
        color: { domain: ["selected", "refused"], range: ["var(--paid)", "var(--bad)"] },
        marks: [Plot.dot(rows, { x: "seed", y: "distance", stroke: "verdict", symbol: (row) => (row.selected ? "circle" : "times"), r: 3.5 })],
      }), legend([["paid", "selected (○)"], ["bad", "refused (×)"]])),
    });
  }

  function calibration() {
    const [fit] = condition.fits;
    return chartCard({
      title: "Calibration: accuracy and total budget", file: `${condition.name}-calibration`,
      hint: fit?.status === "fitted" ? `Curve: fit with a root mean square error of ${short(fit.rmse)}. ${fit.reward_min === null ? "" : `Admissible rewards: ${short(fit.reward_min)} to ${short(fit.reward_max)}.`}` : "The runs do not determine a curve.",
      rows: () => condition.calibration,
      columns: [number("reward", "reward"), number("total", "total ρ"), number("accuracy", "accuracy", percent)],
      draw(rows, width) {
        const curve = fit?.status === "fitted" ? d3.range(61).map((k) => { const total = fit.total_min * (fit.total_max / fit.total_min) ** (k / 60); return { total, accuracy: fit.ceiling - fit.drop * Math.exp(-fit.rate * total) }; }) : [];
        return plot(width, {
          x: { type: "log", label: "total ρ", ticks: 4, tickFormat: "~g", labelArrow: "none", labelAnchor: "right" }, y: { label: "accuracy, %", grid: true, percent: true, nice: true, ticks: 4, labelArrow: "none" },
          marks: [Plot.lineY(curve, { x: "total", y: "accuracy", stroke: "var(--second)", strokeDasharray: "4,3" }), Plot.dot(rows, { x: "total", y: "accuracy", fill: "var(--paid)", r: 4 })],
        });
      },
    });
  }

  const mean = (row, key, format) => (row[key] === null ? "–" : row[`${key}_low`] === null ? format(row[key]) : `${format(row[key])} (${format(row[`${key}_low`])} … ${format(row[`${key}_high`])})`);
  return {
    node: h("div", { class: "grid" }, table, cards.map((card) => card.node)),
    update() {
      const rows = methods.of(condition.summary).map(named);
      const cell = (key, label, format = short) => ({ label, number: true, cell: (row) => mean(row, key, format) });
      table.replaceChildren(h("header", null, h("h2", { id: "summary-title" }, "Methods side by side")), h("p", { class: "hint" }, "Means over the seeds with their 95 % intervals."),
        rows.length ? dataTable([{ key: "title", label: "method" }, { key: "seeds", label: "seeds", number: true }, cell("accuracy", "accuracy", percent), cell("mean_accuracy", "mean over rounds", percent),
          cell("reward", "reward"), cell("cost", "server cost"), cell("epsilon", "ε"), cell("epsilon_at_equal_money", "ε for QI-DPFL's money"), cell("money_at_equal_epsilon", "money for QI-DPFL's ε"), { key: "guarantee", label: "guarantee" }, { label: "kept", number: true, cell: (row) => `${short(row.selected)} of ${row.clients}` }], rows, { label: "Methods side by side", whole: true })
          : h("p", { class: "empty" }, condition.summary.length ? "No method is chosen." : "No cell has finished under this condition."));
      cards.forEach((card) => card.update(condition));
    },
  };
}
