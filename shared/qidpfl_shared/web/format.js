// Numbers and words as the pages show them.

const decimal = (digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const two = decimal(2);
const whole = new Intl.NumberFormat("en");

export const count = (value) => whole.format(value);
export const money = (micro) => two.format(micro / 1e6);
export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
export const short = (value) => (value === null || value === undefined ? "–" : Number(value).toPrecision(3).replace(/\.?0+$/, "").replace(/\.?0+e/, "e"));
export const time = (text) => (text ? new Date(text).toLocaleTimeString("en-GB") : "–");
export const moment = (text) => (text ? new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" }) : "–");

export function duration(seconds) {
  const left = Math.max(0, Math.round(seconds));
  if (left < 60) return `${left} s`;
  if (left < 3600) return `${Math.floor(left / 60)} min ${String(left % 60).padStart(2, "0")} s`;
  return `${Math.floor(left / 3600)} h ${String(Math.floor((left % 3600) / 60)).padStart(2, "0")} min`;
}

export const OUTCOMES = {
  d: "delivered", r: "rejected", v: "voided", u: "not settled", b: "declared, not delivered", n: "declined", m: "missed", o: "not invited",
};
export const GUARANTEES = {
  proven: "proven: every release keeps what it declares",
  heuristic: "heuristic: some releases guarantee less than they declare",
  none: "none: at least one release is unprotected",
};
