// Charts with a table behind each: the same rows, and a button that saves them as CSV.

import { csvOf, dataTable, fill, h, save } from "./dom.js";

const { Plot, d3 } = globalThis;
let numbers = 0;

// A card is {title, hint, columns, rows(data), draw(rows, width, data), file}. `draw` returns an element or null.
// With `hasRows(data)` the rows are made for the table only, and `draw` gets none.
export function chartCard({ title, hint, columns, rows, hasRows, draw, file, wide }) {
  const id = `chart-${(numbers += 1)}`;
  const figure = h("div", { class: "figure" });
  const holder = h("div");
  const note = h("p", { class: "hint" });
  const details = h("details", { ontoggle: () => table() }, h("summary", null, "Table", h("span", { class: "visually-hidden" }, ` of ${title}`)), holder);
  const button = h("button", { type: "button", class: "quiet", onclick: () => save(`${file}.csv`, csvOf(named(), all())) }, "CSV", h("span", { class: "visually-hidden" }, ` of ${title}`));
  const node = h("section", { class: wide ? "card wide" : "card", "aria-labelledby": id },
    h("header", null, h("h2", { id }, title), button), note, figure, details);
  let current = null;
  let data = null;
  let width = 0;
  const all = () => (current ??= data ? rows(data) : []);
  const named = () => (typeof columns === "function" ? columns(data) : columns);

  function table() {
    if (details.open) fill(holder, dataTable(named(), all(), { label: `Table of ${title}` }));
    else fill(holder);
  }
  function redraw() {
    width = figure.clientWidth;
    if (!data || width < 10) return;
    const drawn = (hasRows ? hasRows(data) : all().length) ? draw(hasRows ? null : all(), width, data) : null;
    fill(figure, drawn ?? h("p", { class: "empty" }, "Nothing to show yet."));
  }
  new ResizeObserver(() => { if (Math.abs(figure.clientWidth - width) > 3) redraw(); }).observe(figure);
  return {
    node,
    update(next) {
      data = next;
      current = null;
      fill(note, typeof hint === "function" ? hint(next) : hint);
      redraw();
      table();
    },
  };
}

// Draws cards one after the other, so that the first is seen before the last is drawn. A later call replaces this one.
export function drawInTurn(cards) {
  let turn = 0;
  return async (data) => {
    const own = (turn += 1);
    for (const card of cards) {
      if (own !== turn) return;
      card.update(data);
      await new Promise((resolve) => setTimeout(resolve));
    }
  };
}

// A plot in the style of the page. Its own style element would need inline styles: style.css has its rules.
export function plot(width, options) {
  const drawn = Plot.plot({
    width, height: 220, marginLeft: 46, marginRight: 12, marginTop: 26, marginBottom: 32, className: "plot", ...options,
  });
  drawn.querySelectorAll("style").forEach((style) => style.remove());
  drawn.setAttribute("aria-hidden", "true");
  return drawn;
}

export function legend(items) {
  return h("ul", { class: "legend" }, items.map(([kind, text]) => h("li", null, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), text)));
}

export const roundAxis = (rows, width) => ({
  label: "round", type: "linear", domain: [Math.min(...rows.map((r) => r.round)) - 0.5, Math.max(...rows.map((r) => r.round)) + 0.5],
  ticks: ticks(rows, width), tickFormat: "d", tickSize: 0, labelAnchor: "right", labelArrow: "none",
});

// Bars by round, stacked; with many rounds one area of steps for each kind instead of a bar for each round.
export function bars(rows, width, kinds, options) {
  const stacked = rows.flatMap((row) => kinds.map((kind) => ({ round: row.round, kind, value: row[kind] })));
  const stack = { y: "value", fill: "kind", order: kinds };
  const mark = rows.length > 120
    ? Plot.areaY(stacked, Plot.stackY({ ...stack, x: "round", z: "kind", curve: "step" }))
    : Plot.rectY(stacked.filter((one) => one.value > 0), Plot.stackY({ ...stack, x1: (one) => one.round - 0.4, x2: (one) => one.round + 0.4 }));
  return plot(width, { x: roundAxis(rows, width), ...options, marks: [mark, Plot.ruleY([0], { stroke: "var(--line)" })] });
}

function ticks(rows, width) {
  const first = Math.min(...rows.map((r) => r.round));
  const last = Math.max(...rows.map((r) => r.round));
  return d3.ticks(first, last, Math.min(last - first, width / 60)).filter(Number.isInteger).concat(first === last ? [first] : []);
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A matrix on a canvas: thousands of cells as one element. `cell(x, y)` is {colour, mark, text}.
export function matrix(width, { xs, ys, cell, xLabel, yLabel, choose }) {
  const scale = Math.min(globalThis.devicePixelRatio || 1, 2);
  const left = 64;
  const top = 22;
  const step = Math.max(2, Math.min(44, (width - left - 8) / xs.length));
  const row = ys.length > 60 ? Math.max(2, Math.min(8, 900 / ys.length)) : 20;
  const height = top + row * ys.length + 6;
  const canvas = h("canvas", { class: "matrix", width: Math.round(width * scale), height: Math.round(height * scale), "aria-hidden": "true" });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const [surface, muted] = [css("--surface"), css("--muted")];
  const gap = step > 6 && row > 6 ? 1.5 : 0;
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = muted;
  pen.textBaseline = "middle";
  const everyX = Math.max(1, Math.ceil(34 / step));
  xs.forEach((x, i) => { if (i % everyX === 0) { pen.textAlign = "center"; pen.fillText(String(x), left + step * (i + 0.5), 10); } });
  const everyY = Math.max(1, Math.ceil(14 / row));
  ys.forEach((y, j) => { if (j % everyY === 0) { pen.textAlign = "right"; pen.fillText(String(y), left - 8, top + row * (j + 0.5)); } });
  pen.textAlign = "left";
  pen.fillText(yLabel, 0, 10);
  ys.forEach((y, j) => xs.forEach((x, i) => {
    const found = cell(i, j);
    if (!found) return;
    const [px, py, w, hgt] = [left + step * i + gap / 2, top + row * j + gap / 2, step - gap, row - gap];
    if (found.colour) { pen.fillStyle = found.colour; pen.fillRect(px, py, w, hgt); }
    if (found.mark && w > 5 && hgt > 5) {
      pen.fillStyle = found.colour ? surface : muted;
      pen.textAlign = "center";
      pen.fillText(found.mark, px + w / 2, py + hgt / 2 + 0.5);
    }
  }));
  const tip = h("div", { class: "tip", hidden: true });
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const i = Math.floor((event.clientX - box.left - left) / step);
    const j = Math.floor((event.clientY - box.top - top) / row);
    return i >= 0 && i < xs.length && j >= 0 && j < ys.length ? [i, j] : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const place = at(event);
    const found = place && cell(...place);
    tip.hidden = !found;
    if (!found) return;
    fill(tip, `${yLabel} ${ys[place[1]]}, ${xLabel} ${xs[place[0]]}: ${found.text}`);
    tip.style.left = `${Math.min(event.offsetX + 12, width - 200)}px`;
    tip.style.top = `${event.offsetY + 14}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  if (choose) canvas.addEventListener("click", (event) => { const place = at(event); if (place) choose(ys[place[1]]); });
  return h("div", { class: "matrix-box" }, canvas, tip);
}

export function shade(share) {
  return d3.interpolateRgb(css("--shade-low"), css("--shade-high"))(Math.max(0, Math.min(1, share)));
}

export function figures(items) {
  return h("dl", { class: "figures" }, items.map(([label, value, more]) =>
    h("div", null, h("dt", null, label), h("dd", null, value, more ? h("small", null, more) : null))));
}
