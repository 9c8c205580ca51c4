// The look of the methods, which of them are shown, and the control that chooses them.

import { h } from "./web/dom.js";

const { d3 } = globalThis;
const KEY = "qidpfl.methods";
const SVG = "http://www.w3.org/2000/svg";
const LOOKS = {
  "fedavg": ["black", "5,3"], "fedavg-select": ["blue", null], "fedavg-dp": ["sky", "5,3"], "qi-dpfl": ["vermilion", null],
  "max": ["green", "5,3"], "max-select": ["green", null], "random": ["orange", "5,3"], "random-select": ["orange", null],
  "blind": ["grey", "5,3"], "blind-dp": ["grey", "1,3"], "fedavg-dp-optimal": ["sky", "1,3"], "qi-dpfl-union": ["purple", null],
};
const OWN = [null, "5,3", "1,3", "8,3,2,3"];

export class Methods {
  constructor(known) {
    this.known = known;
    this.byName = new Map(known.map((method) => [method.name, method]));
    const own = known.filter((method) => !LOOKS[method.name]).map((method) => method.name);
    this.looks = new Map(known.map(({ name }) => [name, LOOKS[name] ?? ["own", OWN[own.indexOf(name) % OWN.length]]]));
    const stored = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
    this.chosen = new Set(stored?.filter((name) => this.byName.has(name)) ?? known.map((method) => method.name));
  }

  title = (name) => this.byName.get(name)?.title ?? name;
  colour = (name) => `var(--${this.looks.get(name)?.[0] ?? "own"})`;
  dash = (name) => this.looks.get(name)?.[1] ?? null;

  // The rows of the chosen methods, in the order of the methods.
  of(rows) {
    const place = new Map(this.known.map((method, k) => [method.name, k]));
    return d3.sort(rows.filter((row) => this.chosen.has(row.method)), (row) => place.get(row.method));
  }

  chooser(changed) {
    const choose = (names) => { this.chosen = new Set(names); this.store(); changed(); };
    const set = (label, test) => h("button", { type: "button", class: "quiet", onclick: () => choose(this.known.filter(test).map((one) => one.name)) }, label);
    return h("fieldset", { class: "card wide" }, h("legend", { class: "visually-hidden" }, "Methods shown"),
      h("div", { class: "row" }, h("strong", null, "Methods"), set("All", () => true), set("Paper", (one) => one.role === "paper"), set("None", () => false)),
      h("div", { class: "choices" }, this.known.map((method) => h("label", { title: method.about },
        h("input", { type: "checkbox", name: method.name, checked: this.chosen.has(method.name), onchange: (event) => {
          if (event.target.checked) this.chosen.add(method.name); else this.chosen.delete(method.name);
          this.store();
          changed(true);
        } }), this.line(method.name), method.title))));
  }

  line(name) {
    const drawn = document.createElementNS(SVG, "svg");
    drawn.setAttribute("class", "line");
    drawn.setAttribute("viewBox", "0 0 22 8");
    drawn.setAttribute("aria-hidden", "true");
    const path = document.createElementNS(SVG, "path");
    for (const [key, value] of Object.entries({ d: "M0 4H22", stroke: this.colour(name), "stroke-width": 2.5, "stroke-dasharray": this.dash(name) ?? "none" })) path.setAttribute(key, value);
    drawn.append(path);
    return drawn;
  }

  store() {
    sessionStorage.setItem(KEY, JSON.stringify([...this.chosen]));
  }
}
