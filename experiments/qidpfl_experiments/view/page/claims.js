// Claims: the verdict on each under each condition, and the measured effects with their intervals.

import { chartCard, legend, plot } from "./web/charts.js";
import { dataTable, h } from "./web/dom.js";
import { short } from "./web/format.js";

const { Plot } = globalThis;
const signed = (value) => (value > 0 ? `+${short(value)}` : short(value).replace("-", "−"));
const COLOURS = { domain: ["holds", "trivially true", "does not hold", "not decided"], range: ["var(--good)", "var(--good)", "var(--bad)", "var(--muted)"] };

export const verdict = (word) => h("span", { class: `verdict ${word.replaceAll(" ", "-")}` }, word);

export function claimsPage(results) {
  const outcomes = new Map(results.conditions.flatMap((condition) => condition.outcomes.map((outcome) => [`${outcome.claim}/${condition.name}`, outcome])));
  const overview = h("section", { class: "card wide", "aria-labelledby": "claims-title" },
    h("header", null, h("h2", { id: "claims-title" }, "Claims and verdicts")),
    h("p", { class: "hint" }, "A claim holds if every comparison of it does. Trivially true: it follows from the definitions of the methods."),
    results.claims.length ? dataTable([
      { label: "claim", class: "says", cell: (row) => row.says },
      ...results.conditions.map((condition) => ({ label: condition.title, cell: (row) => { const found = outcomes.get(`${row.claim}/${condition.name}`); return found ? verdict(found.verdict) : "not run"; } })),
      { key: "source", label: "source" }, { key: "where", label: "where" },
    ], results.claims, { label: "Claims and verdicts", whole: true }) : h("p", { class: "empty" }, "No comparison of a claim was run."));
  const cards = results.conditions.flatMap((condition) => ["points", "%"].map((unit) => effects(condition, unit)));
  return {
    node: h("div", { class: "grid" }, overview, cards.map((card) => card.node)),
    update() { cards.forEach((card) => card.update(results)); },
  };
}

// A claim with several comparisons has a place for each: named by what differs between them.
function placeOf(outcome, finding) {
  const differs = ["second", "first", "metric"].find((key) => new Set(outcome.findings.map((one) => one[key])).size > 1);
  return differs ? `${outcome.claim}: ${finding[differs]}` : outcome.claim;
}

// Points of accuracy and percent of money have axes of their own.
function effects(condition, unit) {
  const number = (key, label) => ({ key, label, number: true, format: signed });
  return chartCard({
    title: `${unit === "points" ? "Effects on accuracy" : "Effects on money"}: ${condition.title}`, file: `${condition.name}-effects-${unit === "points" ? "accuracy" : "money"}`, wide: true,
    hint: unit === "points" ? "First method minus second, in points, on the same seeds. Bars are 95 % intervals." : "First method compared with the second, in percent, on the same seeds. Bars are 95 % intervals.",
    rows: () => condition.outcomes.flatMap((outcome) => outcome.findings.filter((one) => one.unit === unit).map((one) => ({ ...one, claim: outcome.claim, place: placeOf(outcome, one) }))),
    columns: [{ key: "claim", label: "claim" }, { key: "compares", label: "compares" }, number("effect", "effect"), number("low", "from"), number("high", "to"), { key: "unit", label: "unit" },
      { key: "needed", label: "needed" }, { key: "verdict", label: "verdict" }, { key: "seeds", label: "seeds", number: true }, { key: "remarks", label: "remarks" }],
    draw(rows, width) {
      const narrow = width < 560;
      return h("div", null, plot(width, {
        height: (narrow ? 40 : 24) * rows.length + 54, marginLeft: narrow ? 12 : 270, marginTop: 10, marginRight: 18,
        x: { label: unit === "points" ? "points" : "%", grid: true, nice: true, ticks: Math.max(3, Math.min(7, width / 90)), labelArrow: "none", labelAnchor: "right" },
        y: { domain: rows.map((row) => row.place), label: null, tickSize: 0, axis: narrow ? null : "left", padding: narrow ? 0.6 : 0.3 }, color: COLOURS,
        marks: [
          Plot.ruleX([0], { stroke: "var(--muted)" }),
          Plot.ruleY(rows.filter((row) => row.low !== null), { y: "place", x1: "low", x2: "high", stroke: "verdict", strokeWidth: 3, strokeOpacity: 0.45 }),
          Plot.dot(rows, { y: "place", x: "effect", fill: "verdict", symbol: "verdict", r: 4.5 }),
          narrow ? Plot.text(rows, { y: "place", frameAnchor: "left", text: "place", dy: -14, textAnchor: "start", fill: "var(--ink)" }) : null,
        ],
        symbol: { domain: COLOURS.domain, range: ["circle", "diamond", "square", "triangle"] },
      }), legend([["good", "holds (●), trivially true (◆)"], ["bad", "does not hold (■)"], ["muted", "not decided (▲)"]]));
    },
  });
}
