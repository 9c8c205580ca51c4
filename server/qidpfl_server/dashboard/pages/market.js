// The market: what rounds cost, what they gave, and which clients the open round waits for.

import { bars, chartCard, drawInTurn, figures, legend, plot, roundAxis } from "../web/charts.js";
import { fill, h } from "../web/dom.js";
import { count, duration, money, percent, short, words } from "../web/format.js";

const { Plot } = globalThis;

const units = (micro) => micro / 1e6;
const ANSWERS = ["awaited", "declared", "joined", "delivered", "declined", "missed", "left", "not_invited"];

export function page() {
  const summary = h("div");
  const answers = h("div");
  const left = h("strong");
  const open = h("section", { class: "card wide", "aria-labelledby": "open-round" },
    h("header", null, h("h2", { id: "open-round" }, "Open round"), h("span", { class: "hint" }, left)), answers);
  const cards = [rewards(), accuracy(), loss(), cost(), budgets(), participation(), regretByRound(), regret()];
  const draw = drawInTurn(cards);
  const grid = h("div", { class: "grid" }, open, cards.map((card) => card.node));
  let data = null;
  const timer = setInterval(() => data && countdown(), 1000);

  function countdown() {
    const round = data.progress?.round;
    if (!round) return fill(left, data.progress?.paused ? "paused: no new round opens" : "no round is open");
    const passed = (performance.now() - data.progressAt) / 1000;
    const declare = round.declare_in_s - passed;
    const deliver = round.deliver_in_s - passed;
    fill(left, declare > 0 ? `${duration(declare)} to declare, ${duration(deliver)} to deliver` : deliver > 0 ? `${duration(deliver)} to deliver` : "closing");
  }

  return {
    nodes: [summary, grid],
    update(next, part) {
      data = next;
      fill(summary, totals(next));
      fill(answers, openRound(next));
      countdown();
      if (part !== "live") draw(next);
    },
    stop: () => clearInterval(timer),
  };
}

function totals(data) {
  const settled = data.settled;
  const last = settled.at(-1);
  const sum = (key) => settled.reduce((total, round) => total + round[key], 0);
  const paid = sum("paid_micro") + sum("escrow_micro");
  const round = data.progress?.round;
  const evaluated = settled.findLast((one) => one.accuracy !== null);
  const market = data.view.spec.game.market ?? "contest";
  return figures([
    ["Round", `${settled.length + (round ? 1 : 0)} of ${data.view.horizon}`, round?.attempt > 1 ? `attempt ${round.attempt}` : data.progress?.paused ? "paused" : `${settled.length} settled`],
    ["Reward", money(round?.reward_micro ?? last?.reward_micro ?? 0), `of the ${round ? "open" : "last"} round, paid by ${market}`],
    ["Paid", money(paid), `of at most ${money(data.view.spec.bounds.reward_total_micro)}`],
    ["Kept", money(sum("kept_micro")), "rewards not paid out"],
    ["Accuracy", percent(evaluated?.accuracy), evaluated?.loss !== null && evaluated ? `loss ${short(evaluated.loss)}` : null],
    ["Clients", count(data.view.clients), round ? `${count(round.clients.filter((one) => one.answer === "awaited" || one.answer === "declared" || one.answer === "joined").length)} awaited` : null],
  ]);
}

function openRound(data) {
  const round = data.progress?.round;
  if (!round) return h("p", { class: "hint" }, data.progress?.paused ? "The task is paused. The next round opens when an admin resumes it." : data.view.reason ? `The task has ended: ${words(data.view.reason)}.` : "No round is open.");
  const groups = ANSWERS.map((answer) => [answer, round.clients.filter((one) => one.answer === answer)]).filter(([, of]) => of.length);
  return [
    h("p", { class: "hint" }, `Round ${round.round_number}, reward ${money(round.reward_micro)}. `, groups.map(([answer, of]) => `${count(of.length)} ${answer.replace("_", " ")}`).join(", "), ". Budgets are shown after the round."),
    h("ul", { class: "chips" }, round.clients.slice(0, 200).map((one) => h("li", { class: one.answer }, `${one.ordinal} ${one.answer.replace("_", " ")}`))),
  ];
}

const rowsOf = (data) => data.settled.map((round) => ({
  round: round.round_number, reward: units(round.reward_micro), paid: units(round.paid_micro), escrow: units(round.escrow_micro), kept: units(round.kept_micro),
  updates: round.updates, invited: round.invited, planned: round.total, declared: round.declared_total, accuracy: round.accuracy, loss: round.loss,
}));
const number = (key, label, format = short) => ({ key, label, number: true, format });

function rewards() {
  return chartCard({
    title: "Where each reward went", file: "rewards", rows: rowsOf,
    hint: "Paid to clients, held in escrow until the end, and kept by the operator.",
    columns: [number("round", "round", String), number("reward", "reward"), number("paid", "paid"), number("escrow", "escrow"), number("kept", "kept"), number("updates", "updates", String), number("invited", "invited", String)],
    draw: (rows, width) => h("div", null, bars(rows, width, ["paid", "escrow", "kept"], {
      y: { label: "units", grid: true, nice: true, ticks: 4, labelArrow: "none", tickSize: 0 },
      color: { domain: ["paid", "escrow", "kept"], range: ["var(--paid)", "var(--escrow)", "var(--kept)"] },
    }), legend([["paid", "paid"], ["escrow", "escrow"], ["", "kept"]])),
  });
}

// The band is the prediction of a fitted curve, plus and minus its error; only where the curve was fitted.
const forecastMarks = (rows) => {
  const banded = rows.filter((row) => row.forecast !== null);
  return banded.length < 2 ? [] : [
    Plot.areaY(banded, { x: "round", y1: (d) => d.forecast - d.error, y2: (d) => d.forecast + d.error, fill: "var(--second)", fillOpacity: 0.14 }),
    Plot.lineY(banded, { x: "round", y: "forecast", stroke: "var(--second)", strokeDasharray: "3,3" }),
  ];
};

const measured = (rows, y) => [
  Plot.lineY(rows, { x: "round", y, stroke: "var(--paid)", strokeWidth: 1.8 }),
  rows.length <= 80 ? Plot.dot(rows, { x: "round", y, fill: "var(--paid)", r: 2.5 }) : null,
];

const withForecast = (rows) => legend([["paid", "measured"], ...(rows.some((row) => row.forecast !== null) ? [["second", "forecast and its error"]] : [])]);

function accuracy() {
  const curve = (data) => (data.forecast?.status === "fitted" ? data.forecast : null);
  return chartCard({
    title: "Accuracy", file: "accuracy",
    hint: (data) => (curve(data) ? `Of the model after each round. Forecast from the declared budget of the round by the paper's curve, ± ${short(100 * curve(data).rmse)} points (root mean square error).` : "Of the model after each round. The budgets vary too little for a forecast."),
    rows: (data) => rowsOf(data).filter((row) => row.accuracy !== null).map((row) => ({ ...row, forecast: predicted(curve(data), row.declared, (f, decay) => f.ceiling - f.drop * decay), error: curve(data)?.rmse ?? null })),
    columns: [number("round", "round", String), number("accuracy", "accuracy", percent), number("forecast", "forecast", percent), number("error", "±", percent)],
    draw: (rows, width) => h("div", null, plot(width, {
      x: roundAxis(rows, width), y: { label: "accuracy, %", grid: true, percent: true, nice: true, ticks: 4, labelArrow: "none", tickSize: 0 },
      marks: [...forecastMarks(rows), ...measured(rows, "accuracy")],
    }), withForecast(rows)),
  });
}

function predicted(curve, total, value) {
  if (!curve || !total || total < curve.total_min || total > curve.total_max) return null;
  return value(curve, Math.exp(-curve.rate * total));
}

function loss() {
  const curve = (data) => data.forecast?.loss ?? null;
  return chartCard({
    title: "Loss", file: "loss",
    hint: (data) => (curve(data) ? `On the held-out records. Forecast by a curve of the same form as for the accuracy, ± ${short(curve(data).rmse)}; the paper has none for the loss.` : "On the held-out records, after each round. The budgets vary too little for a forecast."),
    rows: (data) => rowsOf(data).filter((row) => row.loss !== null).map((row) => ({ ...row, forecast: predicted(curve(data), row.declared, (f, decay) => f.floor + f.rise * decay), error: curve(data)?.rmse ?? null })),
    columns: [number("round", "round", String), number("loss", "loss"), number("forecast", "forecast"), number("error", "±")],
    draw: (rows, width) => h("div", null, plot(width, {
      x: roundAxis(rows, width), y: { label: "loss", grid: true, nice: true, ticks: 4, labelArrow: "none", tickSize: 0 },
      marks: [...forecastMarks(rows), ...measured(rows, "loss")],
    }), withForecast(rows)),
  });
}

function budgets() {
  return chartCard({
    title: "Budgets: planned and declared", file: "budgets", hint: "Sum of ρ at the equilibrium, and what clients declared.",
    rows: (data) => rowsOf(data).filter((row) => row.declared !== null),
    columns: [number("round", "round", String), number("planned", "planned ρ"), number("declared", "declared ρ")],
    draw: (rows, width) => h("div", null, plot(width, {
      x: roundAxis(rows, width), y: { label: "ρ", grid: true, zero: true, nice: true, ticks: 4, labelArrow: "none", tickSize: 0 },
      marks: [
        Plot.lineY(rows, { x: "round", y: "planned", stroke: "var(--kept)", strokeWidth: 1.8 }),
        Plot.lineY(rows, { x: "round", y: "declared", stroke: "var(--paid)", strokeWidth: 1.8 }),
        rows.length <= 80 ? Plot.dot(rows, { x: "round", y: "declared", fill: "var(--paid)", r: 2.5 }) : null,
      ],
    }), legend([["", "planned"], ["paid", "declared"]])),
  });
}

function participation() {
  return chartCard({
    title: "Updates", file: "updates", hint: "How many invited clients delivered.",
    rows: rowsOf,
    columns: [number("round", "round", String), number("invited", "invited", String), number("updates", "updates", String)],
    draw: (rows, width) => h("div", null, bars(rows.map((row) => ({ ...row, missing: Math.max(0, row.invited - row.updates) })), width, ["updates", "missing"], {
      y: { label: "clients", grid: true, zero: true, nice: true, ticks: 4, labelArrow: "none", tickSize: 0 },
      color: { domain: ["updates", "missing"], range: ["var(--paid)", "var(--kept)"] },
    }), legend([["paid", "delivered"], ["", "invited, did not deliver"]])),
  });
}

function cost() {
  return chartCard({
    title: "Server cost", file: "server-cost",
    hint: "By the paper's model: a bound on the loss, and the discounted reward. Computed from declared budgets, not measured.",
    rows: (data) => data.costs.filter((one) => one.cost !== null).map((one) => ({ round: one.round_number, cost: one.cost, reward: one.reward_cost, loss: one.cost - one.reward_cost })),
    columns: [number("round", "round", String), number("cost", "cost"), number("loss", "bound on the loss"), number("reward", "discounted reward")],
    draw: (rows, width) => h("div", null, bars(rows, width, ["reward", "loss"], {
      y: { label: "cost", grid: true, nice: true, ticks: 4, labelArrow: "none", tickSize: 0 },
      color: { domain: ["reward", "loss"], range: ["var(--paid)", "var(--second)"] },
    }), legend([["paid", "discounted reward"], ["second", "bound on the loss"]])),
  });
}

// At least one micro-unit, the smallest payment: less than that is rounding, and must not fill the chart.
const regretDomain = (rows) => [0, Math.max(1e-6, 1.05 * Math.max(0, ...rows.map((row) => row.regret)))];

function regretByRound() {
  return chartCard({
    title: "Largest regret by round", file: "regret-by-round",
    hint: "The most that one bidder could have gained by another budget; 0 at the equilibrium.",
    rows: (data) => data.costs.filter((one) => one.regret !== null).map((one) => ({ round: one.round_number, regret: one.regret })),
    columns: [number("round", "round", String), number("regret", "regret")],
    draw: (rows, width) => plot(width, {
      x: roundAxis(rows, width), y: { label: "units", grid: true, domain: regretDomain(rows), ticks: 4, labelArrow: "none", tickSize: 0, tickFormat: "~g" },
      marks: [Plot.ruleY([0], { stroke: "var(--line)" }), Plot.lineY(rows, { x: "round", y: "regret", stroke: "var(--paid)", strokeWidth: 1.8 }), rows.length <= 80 ? Plot.dot(rows, { x: "round", y: "regret", fill: "var(--paid)", r: 2.5 }) : null],
    }),
  });
}

// One label for points that lie so close together that their own labels would cover each other.
function pointLabels(rows, width) {
  const budgets = rows.map((row) => row.rho);
  const [across, up] = [(70 / width) * (Math.max(...budgets) - Math.min(...budgets)), 0.12 * regretDomain(rows)[1]];
  const labels = [];
  for (const row of rows) {
    const near = labels.find((one) => Math.abs(one.rho - row.rho) <= across && Math.abs(one.regret - row.regret) <= up);
    if (near) near.clients.push(row.client); else labels.push({ ...row, clients: [row.client] });
  }
  return labels.map((one) => ({ ...one, label: one.clients.slice(0, 3).join(", ") + (one.clients.length > 3 ? " …" : "") }));
}

function regret() {
  return chartCard({
    title: "Regret in the last round", file: "regret",
    hint: "What each bidder could have gained by another budget; 0 at the equilibrium.",
    rows: (data) => (data.lastResult?.clients ?? []).filter((one) => one.regret !== null).map((one) => ({ client: one.ordinal, rho: one.rho, payment: units(one.payment_micro), regret: one.regret })),
    columns: [number("client", "client", String), number("rho", "ρ"), number("payment", "payment"), number("regret", "regret")],
    draw: (rows, width) => plot(width, {
      x: { label: "ρ", nice: true, ticks: 4, labelArrow: "none", tickFormat: "~g" }, y: { label: "regret", grid: true, domain: regretDomain(rows), nice: true, ticks: 4, labelArrow: "none", tickFormat: "~g" },
      marks: [Plot.ruleY([0], { stroke: "var(--line)" }), Plot.dot(rows, { x: "rho", y: "regret", stroke: "var(--paid)", fill: "var(--paid)", fillOpacity: 0.25, r: 4 }), rows.length <= 20 ? Plot.text(pointLabels(rows, width), { x: "rho", y: "regret", text: "label", dy: -10 }) : null],
    }),
  });
}
