// Light and dark: the choice of the system, or that of the reader for this tab.

import { h } from "./dom.js";

const KEY = "qidpfl.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const current = () => sessionStorage.getItem(KEY) ?? (system.matches ? "dark" : "light");

export function applyTheme() {
  document.documentElement.dataset.theme = current();
}

// A button for the other theme. Colours of a canvas are fixed when it is drawn: `redraw` draws the page again.
export function themeButton(redraw) {
  const other = current() === "dark" ? "light" : "dark";
  return h("button", { type: "button", class: "quiet", onclick: () => { sessionStorage.setItem(KEY, other); applyTheme(); redraw(); } }, other === "dark" ? "Dark" : "Light");
}

export function onSystemTheme(redraw) {
  system.addEventListener("change", () => { if (!sessionStorage.getItem(KEY)) redraw(); });
}
