// Selection: how far the labels of each client are from the reference, and which clients were refused.

import { chartCard, legend, matrix, plot, shade } from "../web/charts.js";
import { dataTable, fill, h } from "../web/dom.js";
import { percent, short } from "../web/format.js";

const { Plot, d3 } = globalThis;

function reference(data) {
  const rule = data.view.spec.selection;
  const labels = data.view.spec.workload.labels;
  if (rule.reference === "given") { const sum = d3.sum(rule.reference_weights); return rule.reference_weights.map((weight) => weight / sum); }
  if (rule.reference === "pooled") {
    const counts = Array.from({ length: labels }, (_, k) => d3.sum(data.clients, (client) => client.label_counts?.[k] ?? 0));
    const sum = d3.sum(counts) || 1;
    return counts.map((one) => one / sum);
  }
  return Array.from({ length: labels }, () => 1 / labels);
}

export function page() {
  const refused = h("div");
  const distances = chartCard({
    title: "Label distance", file: "label-distance", wide: true,
    hint(data) {
      const rule = data.view.spec.selection;
      return rule.rule === "threshold" ? `Rule threshold: a client above ${rule.distance_threshold} is refused. L1 distance to the ${rule.reference} reference, 0 to 2.` : `Rule ${rule.rule}. L1 distance to the ${rule.reference} reference, 0 to 2.`;
    },
    rows: (data) => data.clients.filter((client) => client.label_distance !== null).map((client) => ({ client: client.ordinal, distance: client.label_distance, verdict: client.state === "refused" ? "refused" : client.filled_up ? "filled up" : "selected", size: client.size })),
    columns: [{ key: "client", label: "client", number: true }, { key: "distance", label: "distance", number: true, format: (value) => value.toFixed(3) }, { key: "verdict", label: "verdict" }, { key: "size", label: "records", number: true }],
    draw(rows, width, data) {
      const rule = data.view.spec.selection;
      return h("div", null, plot(width, {
        x: { label: "client", type: "linear", tickFormat: "d", ticks: Math.min(rows.length, 20), tickSize: 0, labelArrow: "none", inset: 8 }, y: { label: "distance", grid: true, zero: true, nice: true, ticks: 4, labelArrow: "none" },
        color: { domain: ["selected", "filled up", "refused"], range: ["var(--paid)", "var(--escrow)", "var(--bad)"] },
        marks: [
          rule.rule === "threshold" ? Plot.ruleY([rule.distance_threshold], { stroke: "var(--bad)", strokeDasharray: "4,3" }) : null,
          Plot.ruleX(rows, { x: "client", y1: 0, y2: "distance", stroke: "verdict", strokeOpacity: 0.35 }),
          Plot.dot(rows, { x: "client", y: "distance", fill: "verdict", r: rows.length > 200 ? 2 : 4 }),
        ],
      }), legend([["paid", "selected"], ["escrow", "filled up"], ["bad", "refused"]]));
    },
  });
  const histograms = chartCard({
    title: "Label histograms", file: "label-histograms", wide: true,
    hint: "The share of each label as the client reports it, after its own noise. First row: the reference.",
    columns: (data) => [{ key: "client", label: "client" }, ...Array.from({ length: data.view.spec.workload.labels }, (_, k) => ({ key: `label_${k}`, label: `label ${k}`, number: true, format: percent }))],
    rows(data) {
      const row = (client, shares) => ({ client, ...Object.fromEntries(shares.map((share, k) => [`label_${k}`, share])) });
      const known = data.clients.filter((client) => client.label_counts);
      if (!known.length) return [];
      return [row("reference", reference(data)), ...known.map((client) => row(client.ordinal, client.label_counts.map((one) => one / (client.size || 1))))];
    },
    draw(rows, width, data) {
      const labels = data.view.spec.workload.labels;
      const largest = d3.max(rows, (row) => d3.max(d3.range(labels), (k) => row[`label_${k}`])) || 1;
      return matrix(width, {
        xs: d3.range(labels), ys: rows.map((row) => (row.client === "reference" ? "ref." : row.client)), xLabel: "label", yLabel: "client",
        cell(i, j) { const share = rows[j][`label_${i}`]; return { colour: shade(share / largest), text: percent(share) }; },
      });
    },
  });
  const card = h("section", { class: "card wide", "aria-labelledby": "refused-title" }, h("header", null, h("h2", { id: "refused-title" }, "Refused")), refused);
  return {
    node: h("div", { class: "grid" }, distances.node, histograms.node, card),
    update(data) {
      distances.update(data);
      histograms.update(data);
      const rule = data.view.spec.selection;
      const rows = data.clients.filter((client) => client.state === "refused").map((client) => ({
        ...client,
        reason: rule.rule === "threshold" && client.label_distance !== null ? `distance ${client.label_distance.toFixed(3)} is above ${rule.distance_threshold}` : `by rule ${rule.rule}`,
      }));
      fill(refused, rows.length ? dataTable([{ key: "ordinal", label: "client", number: true }, { key: "size", label: "records", number: true }, { key: "label_distance", label: "distance", number: true, format: short }, { key: "reason", label: "why" }], rows, { label: "Refused clients" })
        : h("p", { class: "empty" }, data.view.state === "enrolling" ? "The selection has not happened yet." : "No client was refused."));
    },
  };
}
