// What the pages know of one task. Each part is read when a page needs it, and only extended afterwards.

import { get } from "./api.js";

const ROUNDS = 1000;
export const WINDOW = 60;

export class TaskData {
  constructor(taskId) {
    this.path = `/v1/tasks/${taskId}`;
    this.taskId = taskId;
    this.rounds = [];
    this.outcomes = [];
    this.events = [];
    this.clients = [];
    this.accounts = [];
    this.statement = null;
    this.progress = null;
    this.forecast = null;
    this.lastResult = null;
  }

  async load(needs) {
    this.view = await get(this.path);
    await Promise.all(needs.map((need) => this[`load_${need}`]()));
    return this;
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

  async load_accounts() {
    const page = await get(`${this.path}/accounts?limit=1000`);
    this.accounts = page.accounts;
    this.statement = page.statement;
  }

  async load_forecast() {
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
