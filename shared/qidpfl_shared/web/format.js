// Numbers and words as the pages show them.

const decimal = (digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const two = decimal(2);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (value) => whole.format(value);
export const money = (micro) => two.format(micro / 1e6);
export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
// Three significant digits; whole numbers from 1,000 on, and powers of ten for very small and very large numbers.
export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9 || (size && size < 1e-4)) return Number(value).toExponential(2).replace(/\.?0+e/, "e");
  return size >= 1000 ? whole.format(value) : three.format(value);
}
export const words = (name) => name.replaceAll("_", " ");
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
