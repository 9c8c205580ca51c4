// What the pages know of one task. Each part is read when a page needs it, and only extended afterwards.

import { get } from "./api.js";
import { short } from "./web/format.js";

const ROUNDS = 1000;
const COSTS = 100;
// The first page is small, so that a task with many clients shows its first chart at once.
const FIRST_ACCOUNTS = 25;
const ACCOUNTS = 200;
const MANY_CLIENTS = 200;
const FIRST_OUTCOMES = 10;
const FORECAST_MS = 30000;
const MODEL_MS = 10000;
export const WINDOW = 40;

// What each page shows: `needs` before its first chart, `later` after it, `live` while a round is open. `first` is
// read once, and is a beginning of what comes later.
export const PARTS = {
  market: { first: ["progress"], needs: ["rounds", "progress"], later: ["forecast", "costs", "lastResult"], live: ["progress"] },
  clients: { first: ["progress"], needs: ["clients", "outcomes"], later: ["olderOutcomes", "accounts"], live: [] },
  privacy: { first: ["progress", "firstAccounts"], needs: [], later: ["accounts"], live: [] },
  selection: { first: ["progress"], needs: ["clients"], later: [], live: [] },
  events: { first: ["progress"], needs: [], later: [], live: [] },
};

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
    this.costs = [];
    this.lastResult = null;
  }

  // What a page needs at first. It may have been asked for already, before the page was there.
  start({ name, clientId }) {
    const begun = this.begunFor === `${name}/${clientId}` ? this.begun : null;
    this.begunFor = null;
    const { first, needs } = PARTS[name];
    return begun ?? this.load(clientId ? ["progress", "clients"] : [...new Set([...first, ...needs])]);
  }

  begin(shown) {
    this.begun = this.start(shown);
    this.begunFor = `${shown.name}/${shown.clientId}`;
    return this.begun;
  }

  // The task and the parts at the same time. A part that depends on the task waits for `viewed`.
  async load(needs) {
    this.viewed = get(this.path).then((view) => { this.view = view; });
    await Promise.all([this.viewed, this.read(needs)]);
    return this;
  }

  // What has changed. A closed round is in its own list: only other events change the task itself.
  async refresh(needs, viewToo) {
    await (viewToo || this.view.state === "enrolling" ? this.load(needs) : this.read(needs));
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

  // The number of settled rounds, from the newest of what is loaded.
  get settledRounds() {
    return Math.max(this.view.settled_rounds, this.rounds.findLast((round) => round.state === "settled")?.round_number ?? 0);
  }

  // Cost and regret are computed for each answer: a live page asks only now and then, and never twice for a round.
  async load_costs(more = () => {}) {
    await this.viewed;
    if (this.costs.length && this.view.state === "training" && performance.now() - this.costsAt < MODEL_MS) return;
    this.costsAt = performance.now();
    for (;;) {
      const page = await get(`${this.path}/costs?after=${this.costs.at(-1)?.round_number ?? 0}&limit=${COSTS}`);
      this.costs = this.costs.concat(page);
      if (page.length < COSTS) return;
      more();
    }
  }

  async load_clients() {
    this.clients = await get(`${this.path}/clients`);
    this.byOrdinal = new Map(this.clients.map((client) => [client.ordinal, client]));
  }

  async load_firstAccounts() {
    const { accounts } = await get(`${this.path}/accounts?after=-1&limit=${FIRST_ACCOUNTS}`);
    this.firstAccounts = accounts;
    if (accounts.length > this.accounts.length) this.accounts = accounts;
  }

  // Continues after the first ones, if they have just been read.
  async load_accounts(more = () => {}) {
    let found = this.firstAccounts ?? [];
    this.firstAccounts = null;
    for (;;) {
      const { accounts } = await get(`${this.path}/accounts?after=${found.length ? found.at(-1).ordinal : -1}&limit=${ACCOUNTS}`);
      found = found.concat(accounts);
      const last = accounts.length < ACCOUNTS;
      if (found.length > this.accounts.length || last) this.accounts = found;
      if (last) return;
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

  // The last rounds only: a matrix with more columns cannot be read. With many clients first the newest of them.
  async load_outcomes() {
    await this.viewed;
    const first = this.view.clients > MANY_CLIENTS ? FIRST_OUTCOMES : WINDOW;
    const after = this.outcomes.length ? this.outcomes.at(-1).round_number : Math.max(0, this.settledRounds + 1 - first);
    const page = await get(`${this.path}/outcomes?after=${after}&limit=${WINDOW + 1}`);
    this.outcomes = this.outcomes.concat(page).slice(-WINDOW);
  }

  async load_olderOutcomes() {
    const first = this.outcomes[0]?.round_number ?? 1;
    const missing = Math.min(WINDOW - this.outcomes.length, first - 1);
    if (missing <= 0) return;
    const page = await get(`${this.path}/outcomes?after=${first - 1 - missing}&limit=${missing}`);
    if (this.outcomes[0]?.round_number === first) this.outcomes = page.concat(this.outcomes);
  }

  async load_lastResult() {
    const number = this.settledRounds;
    if (!number || this.lastResult?.round_number === number) return;
    if (this.lastResult && this.view.state === "training" && performance.now() - this.lastResultAt < MODEL_MS) return;
    this.lastResultAt = performance.now();
    this.lastResult = await get(`${this.path}/rounds/${number}`);
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
