// A complete client in plain JavaScript (Node 20 or later, no packages, no SDK): softmax regression on its own records.
//
// usage: node examples/custom_client.mjs URL FILE_WITH_THE_ENROLMENT_CODE RECORDS.csv FOLDER_FOR_ITS_STATE
//
// RECORDS.csv holds one record per line: the scaled features, then the label. The noise comes from the operating
// system's entropy. After a restart with the same folder it continues as the same client and sends the same bytes.

import { createHash, randomBytes } from "node:crypto";
import { closeSync, existsSync, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, writeSync } from "node:fs";
import { join } from "node:path";

const PRIVACY_VALUE = 1.0; // the value of a unit of budget for the data owner
const HISTOGRAM_RHO = 0.1;
const LIFETIME_RHO = 2.0; // the budget of these records for the whole task
const LONGEST_RETRY_AFTER_S = 60;
const PROTOCOL_VERSION = "1.1";
const KNOWN_REQUIREMENTS = ["mechanism.gradient_once", "answer.rho"];

const [url, codeFile, recordsFile, folder] = process.argv.slice(2);
const address = new URL(url);
if (address.protocol !== "https:" && !["127.0.0.1", "localhost", "[::1]"].includes(address.hostname)) {
  throw new Error(`plain http to ${address.hostname} would send the token unencrypted; use https`);
}
const code = readFileSync(codeFile, "utf8").trim();
const task = `${address.href.replace(/\/$/, "")}/v1/tasks/${code.split(".")[0]}`;

// --- state that survives a crash ------------------------------------------------------------------------------------

mkdirSync(folder, { recursive: true, mode: 0o700 });

function keep(name, data) {
  const temporary = openSync(join(folder, `${name}.part`), "w", 0o600);
  for (let rest = Buffer.from(data); rest.length > 0; ) rest = rest.subarray(writeSync(temporary, rest));
  fsyncSync(temporary);
  closeSync(temporary);
  renameSync(join(folder, `${name}.part`), join(folder, name));
  const directory = openSync(folder, "r");
  fsyncSync(directory);
  closeSync(directory);
}

const kept = (name) => (existsSync(join(folder, name)) ? readFileSync(join(folder, name)) : null);
const state = JSON.parse(kept("state.json") ?? "null") ?? { key: randomBytes(24).toString("hex"), budgets: {} };
const save = () => keep("state.json", JSON.stringify(state));

// --- requests -------------------------------------------------------------------------------------------------------

const seconds = (s) => new Promise((resolve) => setTimeout(resolve, 1000 * s));

class Problem extends Error {
  constructor(status, code, detail) {
    super(`${status} ${code}: ${detail}`);
    Object.assign(this, { status, code });
  }
}

// All calls are idempotent: a client may repeat a call with the same content.
async function call(method, path, { body, headers = {}, waitS = 0, limit = 1 << 20 } = {}) {
  const authorization = { Authorization: `Bearer ${state.token ?? code}` }; // the code reads the task, the token the rest
  for (let attempt = 1; ; attempt++) {
    let pause = Math.min(2 ** (attempt - 1), 15) + Math.random();
    try {
      const signal = AbortSignal.timeout(1000 * (30 + waitS));
      const options = { method, body, signal, redirect: "error", headers: { ...authorization, ...headers } };
      const answer = await fetch(task + path, options);
      if (Number(answer.headers.get("content-length")) > limit) throw new Problem(answer.status, "too_long", path);
      if (answer.ok) return { status: answer.status, bytes: Buffer.from(await answer.arrayBuffer()) };
      const said = await answer.json().catch(() => ({}));
      const problem = new Problem(answer.status, said.code ?? "unknown", said.detail ?? path);
      if (![408, 429, 500, 502, 503, 504, 507].includes(answer.status) || attempt === 8) throw problem;
      const asked = Number.parseInt(answer.headers.get("retry-after"), 10);
      if (asked >= 0) pause = Math.min(asked, LONGEST_RETRY_AFTER_S) + Math.random();
    } catch (error) {
      if (error instanceof Problem || attempt === 8) throw error;
    }
    await seconds(pause);
  }
}

const json = (message) => ({ body: JSON.stringify(message), headers: { "Content-Type": "application/json" } });
const read = ({ bytes }) => JSON.parse(bytes.toString("utf8"));

// --- privacy --------------------------------------------------------------------------------------------------------

function uniform() {
  // 53 random bits, in (0, 1]: never 0, whose logarithm is infinite.
  const bits = randomBytes(8).readBigUInt64LE() >> 11n;
  return (Number(bits) + 1) / 2 ** 53;
}

// Noise in floating point is not exactly Gaussian, so this example is not exactly as private as the proof says. A real
// client draws discrete noise on a grid, like qidpfl_shared/core/privacy/discrete_gaussian.py.
function gaussian() {
  return Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
}

// Add noise of 1/sqrt(rho) to every count, then find the nearest non-negative integers whose sum is the size.
function privateHistogram(counts, rho) {
  const size = counts.reduce((sum, count) => sum + count, 0);
  const noisy = counts.map((count) => count + gaussian() / Math.sqrt(rho));
  const above = (level) => noisy.reduce((sum, value) => sum + Math.max(0, value - level), 0);
  let [low, high] = [Math.min(...noisy) - size, Math.max(...noisy)];
  for (let step = 0; step < 200; step++) {
    const middle = (low + high) / 2;
    [low, high] = above(middle) > size ? [middle, high] : [low, middle];
  }
  const exact = noisy.map((value) => Math.max(0, value - high));
  const whole = exact.map(Math.floor);
  const order = exact.map((_, label) => label).sort((a, b) => exact[b] - whole[b] - (exact[a] - whole[a]));
  let left = size - whole.reduce((sum, count) => sum + count, 0);
  for (const label of order) whole[label] += left-- > 0 ? 1 : 0;
  return whole;
}

// --- learning -------------------------------------------------------------------------------------------------------

const records = readFileSync(recordsFile, "utf8").trim().split("\n").map((line) => {
  const values = line.split(",").map(Number);
  return { features: values.slice(0, -1), label: values.at(-1) };
});
const inputs = records[0].features.length;

// The mean of the clipped gradients of softmax regression. The layout is weight[label][feature], then bias[label].
function meanGradient(model, labels, clipNorm) {
  const mean = new Float64Array(model.length);
  for (const { features, label } of records) {
    const scores = Array.from({ length: labels }, (_, k) =>
      features.reduce((sum, value, j) => sum + value * model[k * inputs + j], model[labels * inputs + k]),
    );
    const top = Math.max(...scores);
    const odds = scores.map((score) => Math.exp(score - top));
    const total = odds.reduce((sum, odd) => sum + odd, 0);
    const errors = odds.map((odd, k) => odd / total - (k === label ? 1 : 0));
    const norm = Math.hypot(...errors) * Math.hypot(1, ...features);
    const scale = Math.min(1, clipNorm / norm) / records.length;
    errors.forEach((error, k) => {
      features.forEach((value, j) => (mean[k * inputs + j] += scale * error * value));
      mean[labels * inputs + k] += scale * error;
    });
  }
  return mean;
}

async function noisedUpdate(offer, spec, rho) {
  const { bytes } = await call("GET", `/models/${offer.model_version}`, { limit: 4 * offer.dimension });
  if (createHash("sha256").update(bytes).digest("hex") !== offer.model_digest) throw new Error("the model is not the announced one");
  const model = Float64Array.from({ length: offer.dimension }, (_, i) => bytes.readFloatLE(4 * i));
  const clipNorm = spec.privacy.mechanism.clip_norm;
  // Replacing one record changes the mean by at most 2C/n.
  const noiseStd = (2 * clipNorm) / records.length / Math.sqrt(2 * rho);
  const update = Buffer.alloc(4 * offer.dimension);
  meanGradient(model, spec.workload.labels, clipNorm).forEach((value, i) => {
    update.writeFloatLE(value + noiseStd * gaussian(), 4 * i);
  });
  return update;
}

// --- the task -------------------------------------------------------------------------------------------------------

// RFC 8785: sorted keys, no spaces, numbers as ECMAScript writes them.
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`);
  return `{${members.join(",")}}`;
}

function checkVersion(spec, digest) {
  const unknown = (spec.requires ?? []).filter((name) => !KNOWN_REQUIREMENTS.includes(name));
  if (unknown.length > 0) {
    const versions = `the task has protocol ${spec.protocol_version}, this client ${PROTOCOL_VERSION}`;
    throw new Error(`the task requires ${unknown.join(", ")}: ${versions}`);
  }
  // Tasks of release 0.1.0 have no version and another digest.
  const mine = createHash("sha256").update(canonical(spec)).digest("hex");
  if (spec.protocol_version && mine !== digest) throw new Error("the spec does not have its digest");
}

async function enrol() {
  const { spec, spec_digest } = read(await call("GET", ""));
  checkVersion(spec, spec_digest); // before it enrols
  if (!state.token) {
    save(); // store the key first, so that a retry enrols the same client
    const answer = read(await call("POST", "/clients", json({ enrolment_code: code, enrolment_key: state.key })));
    Object.assign(state, { token: answer.token, specDigest: answer.spec_digest });
    save();
  }
  if (spec_digest !== state.specDigest) throw new Error("the task has changed");
  const parameters = (inputs + 1) * spec.workload.labels;
  const known = spec.layout.tensors.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0) === parameters;
  if (!known || !spec.privacy.noise || spec.privacy.mechanism.name !== "gradient_once") {
    throw new Error("this client supports only softmax regression on its features with gradient_once");
  }
  return spec;
}

async function profile(spec) {
  if (!state.profile) {
    const counts = Array(spec.workload.labels).fill(0);
    for (const { label } of records) counts[label] += 1;
    state.profile = {
      label_counts: privateHistogram(counts, HISTOGRAM_RHO),
      size: records.length,
      privacy_value: PRIVACY_VALUE,
      histogram_rho: HISTOGRAM_RHO,
      lifetime_rho: LIFETIME_RHO,
    };
    save(); // new noise would be a second release
  }
  await call("PUT", "/clients/me/profile", json(state.profile));
}

function check(offer, spec) {
  const { name, clip_norm } = spec.privacy.mechanism;
  const parameters = (inputs + 1) * spec.workload.labels;
  if (offer.mechanism !== name || offer.clip_norm !== clip_norm || offer.dimension !== parameters || !offer.noise) {
    throw new Error("the announcement contradicts the task");
  }
}

async function runRound(offer, spec) {
  const round = offer.round_number;
  const name = `update.${round}`;
  if (state.budgets[round] === undefined) {
    const share = 1 - (spec.game.privacy_weight * PRIVACY_VALUE * offer.total) / (offer.reward_micro / 1e6);
    const spent = Object.values(state.budgets).reduce((sum, rho) => sum + rho, HISTOGRAM_RHO);
    const rho = Math.min(offer.total * share, offer.rho_max, LIFETIME_RHO - spent);
    if (!(rho >= spec.bounds.rho_min)) {
      const reason = share > 0 ? "owner_limit" : "priced_out"; // a code without amounts
      await call("PUT", `/rounds/${round}/budget`, json({ decline: true, reason }));
      return;
    }
    state.budgets[round] = rho;
    save(); // charge the budget before sending it
  }
  await call("PUT", `/rounds/${round}/budget`, json({ rho: state.budgets[round] }));
  if (!kept(name)) keep(name, await noisedUpdate(offer, spec, state.budgets[round]));
  const update = kept(name); // a retry sends the same bytes
  const digest = createHash("sha256").update(update).digest("base64");
  const headers = { "Content-Type": "application/octet-stream", "Content-Digest": `sha-256=:${digest}:` };
  await call("PUT", `/rounds/${round}/update`, { body: update, headers });
}

const spec = await enrol();
await profile(spec);
for (let seen = "0.0"; ; ) {
  const answer = await call("GET", `/rounds/current?after=${seen}&wait=30`, { waitS: 30 });
  if (answer.status === 204) continue;
  const { task_state, round } = read(answer);
  if (["finished", "failed", "stopped"].includes(task_state)) break;
  if (!round) continue;
  seen = `${round.round_number}.${round.attempt}`;
  if (round.standing !== "invited") continue;
  check(round, spec);
  await runRound(round, spec).catch((error) => {
    if (!["round_closed", "not_invited"].includes(error.code)) throw error;
  });
}
console.log(JSON.stringify(read(await call("GET", "/clients/me/ledger"))));
