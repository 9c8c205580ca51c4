// What the pages know of one task. Each part is read when a page needs it, and only extended afterwards.

import { get } from "./api.js";
import { short } from "./format.js";

const ROUNDS = 1000;
const ACCOUNTS = 100;
const FORECAST_MS = 30000;
export const WINDOW = 40;

export class TaskData {
  constructor(taskId) {
    this.path = `/v1/tasks/${taskId}`;
    this.taskId = taskId;
    this.rounds = [];
    this.outcomes = [];
    this.events = [];
    this.clients = [];
    this.accounts = [];
    this.progress = null;
    this.forecast = null;
    this.lastResult = null;
  }

  async load(needs) {
    this.view = await get(this.path);
    await this.read(needs);
    return this;
  }

  async read(needs, more) {
    await Promise.all(needs.map((need) => this[`load_${need}`](more)));
  }

  async load_progress() {
    this.progress = await get(`${this.path}/progress`);
    this.progressAt = performance.now();
  }

  get settled() {
    return this.rounds.filter((round) => round.state === "settled");
  }

  async load_rounds() {
    let known = this.rounds.filter((round) => round.state === "settled");
    // The last round may get its scores after its settlement: read it again.
    known.pop();
    for (;;) {
      const page = await get(`${this.path}/rounds?after=${known.length ? known.at(-1).round_number : 0}&limit=${ROUNDS}`);
      known = known.concat(page);
      if (page.length < ROUNDS) break;
    }
    this.rounds = known;
  }

  async load_clients() {
    this.clients = await get(`${this.path}/clients`);
    this.byOrdinal = new Map(this.clients.map((client) => [client.ordinal, client]));
  }

  // In pages, so that a page with many clients shows the first of them at once.
  async load_accounts(more = () => {}) {
    let found = [];
    for (;;) {
      const { accounts } = await get(`${this.path}/accounts?after=${found.length ? found.at(-1).ordinal : -1}&limit=${ACCOUNTS}`);
      found = found.concat(accounts);
      if (found.length > this.accounts.length || accounts.length < ACCOUNTS) this.accounts = found;
      if (accounts.length < ACCOUNTS) return;
      more();
    }
  }

  // The guarantee for every record: the largest account, because a record belongs to one client.
  get statement() {
    if (!this.accounts.length) return null;
    if (this.accounts.some((one) => one.spent_rho === null)) return "No privacy guarantee: at least one release is unprotected.";
    const largest = this.accounts.reduce((most, one) => (one.spent_rho > most.spent_rho ? one : most));
    const weaker = this.accounts.filter((one) => one.guarantee === "heuristic").length;
    return `Every record: ${short(largest.spent_rho)}-zCDP, that is (${short(largest.epsilon)}, ${largest.delta})-DP${weaker ? `; ${weaker} clients have releases that guarantee less than declared` : ""}.`;
  }

  // The coordinator fits a curve for each answer: a live page asks only now and then.
  async load_forecast() {
    if (this.forecast && performance.now() - this.forecastAt < FORECAST_MS) return;
    this.forecastAt = performance.now();
    this.forecast = await get(`${this.path}/forecast`);
  }

  // The last rounds only: a matrix with more columns cannot be read.
  async load_outcomes() {
    const last = this.view.settled_rounds + 1;
    const after = Math.max(last - WINDOW, this.outcomes.length ? this.outcomes.at(-1).round_number : 0, 0);
    const page = await get(`${this.path}/outcomes?after=${after}&limit=${WINDOW + 1}`);
    this.outcomes = this.outcomes.concat(page).slice(-WINDOW);
  }

  async load_lastResult() {
    const number = this.view.settled_rounds;
    if (number && this.lastResult?.round_number !== number) this.lastResult = await get(`${this.path}/rounds/${number}`);
  }

  add(event) {
    if (this.events.length && event.id <= this.events.at(-1).id) return false;
    this.events.push(event);
    if (this.events.length > 5000) this.events.shift();
    return true;
  }

  name(ordinal) {
    return `client ${ordinal}`;
  }
}
