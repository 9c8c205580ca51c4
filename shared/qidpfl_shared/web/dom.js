// Elements and text. Text is only ever set as text nodes, so that no name can become markup.

export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

// A table with a header row. A column is {key, label, format, number, class, cell}; `cell(row)` may return an element.
// With `first` only so many rows are made at first, and a button makes all of them.
export function dataTable(columns, rows, { caption, label, whole, first = Infinity } = {}) {
  const head = h("tr", null, columns.map((c) => h("th", { scope: "col", class: c.number ? "number" : null }, c.label)));
  const body = rows.slice(0, first).map((row) =>
    h("tr", null, columns.map((c) => h("td", { class: c.class ?? (c.number ? "number" : null) }, c.cell ? c.cell(row) : shown(c, row)))),
  );
  const table = h("table", null, caption ? h("caption", null, caption) : null, h("thead", null, head), h("tbody", null, body));
  const box = h("div", { class: whole ? "scroll whole" : "scroll", tabindex: "0", role: "region", "aria-label": label ?? caption ?? "table" }, table);
  if (rows.length > first) box.append(h("button", { type: "button", onclick: () => box.replaceWith(dataTable(columns, rows, { caption, label, whole })) }, `Show all ${rows.length} rows`));
  return box;
}

export function shown(column, row) {
  const value = row[column.key];
  if (value === null || value === undefined) return "–";
  return column.format ? column.format(value, row) : String(value);
}

// The numbers of the table, unformatted.
export function csvOf(columns, rows) {
  const quoted = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [columns.map((c) => quoted(c.key)), ...rows.map((row) => columns.map((c) => quoted(row[c.key])))];
  return lines.map((line) => line.join(",")).join("\n") + "\n";
}

export function save(name, data, type = "text/csv") {
  const url = URL.createObjectURL(data instanceof Blob ? data : new Blob([data], { type }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Asks before a change. Resolves to true if the operator confirms.
export function confirmed(title, text, action) {
  return new Promise((resolve) => {
    const done = (answer) => { dialog.close(); dialog.remove(); resolve(answer); };
    const dialog = h(
      "dialog", { "aria-labelledby": "confirm-title", oncancel: (event) => { event.preventDefault(); done(false); } },
      h("h2", { id: "confirm-title" }, title),
      h("p", null, text),
      h("div", { class: "row end" },
        h("button", { type: "button", onclick: () => done(false) }, "Cancel"),
        h("button", { type: "button", class: "primary", onclick: () => done(true) }, action)),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}
