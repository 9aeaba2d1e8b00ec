/* Tables, fields and paging that several sections use. */

/** A table. Columns: {name, cell(row), number?, key?(row) → value to sort by}. `sort`: {by, down}, changed in place. */
function table(columns, rows, { sort = null, changed = null, row: decorate = null, foot = null, label = null } = {}) {
  const head = columns.map((column) => {
    const attributes = { scope: "col", class: column.number ? "number" : null };
    if (!sort || !column.key) return el("th", attributes, column.name);
    if (sort.by === column.name) attributes["aria-sort"] = sort.down ? "descending" : "ascending";
    const flip = () => {
      sort.down = sort.by === column.name ? !sort.down : Boolean(column.number);
      sort.by = column.name;
      changed();
    };
    return el("th", attributes, el("button", { type: "button", on: { click: flip } }, column.name));
  });
  const body = rows.map((row) => {
    const line = el(
      "tr",
      {},
      columns.map((column) => el("td", { class: column.number ? "number" : (column.kind ?? null) }, column.cell(row))),
    );
    if (decorate) decorate(line, row);
    return line;
  });
  const parts = [el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)];
  if (foot)
    parts.push(
      el(
        "tfoot",
        {},
        el(
          "tr",
          {},
          columns.map((column, place) => el("td", { class: column.number ? "number" : null }, foot[place] ?? "")),
        ),
      ),
    );
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label ?? "table" },
    el("table", {}, parts),
  );
}

/** Rows in the order that `sort` asks for; what has no value comes last. */
function sorted(rows, columns, sort) {
  const column = columns.find((one) => one.name === sort.by && one.key);
  if (!column) return rows;
  const filled = (value) => value !== null && value !== undefined && value !== "";
  return [...rows].sort((one, other) => {
    const [a, b] = [column.key(one), column.key(other)];
    if (!filled(a) || !filled(b)) return Number(filled(b)) - Number(filled(a));
    const order = a < b ? -1 : a > b ? 1 : 0;
    return sort.down ? -order : order;
  });
}

/** A labelled choice. Options: [value, label]. */
function choice(label, options, value, changed, id = null) {
  const select = el(
    "select",
    { id, on: { change: () => changed(select.value) } },
    options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)),
  );
  return el("label", {}, `${label} `, select);
}

/** A labelled tick. */
function tick(label, value, changed, id = null) {
  const input = el("input", { type: "checkbox", id, checked: value, on: { change: () => changed(input.checked) } });
  return el("label", {}, input, ` ${label}`);
}

/** A search field that tells after the typing pauses. */
function searchField(placeholder, value, changed, id = null) {
  let timer = 0;
  const input = el("input", {
    type: "search",
    id,
    placeholder,
    "aria-label": placeholder,
    value,
    on: {
      input: () => {
        clearTimeout(timer);
        timer = setTimeout(() => changed(input.value), 150);
      },
    },
  });
  return input;
}

/** "Page 1 of 3" with buttons; nothing for a single page. */
function pager(page, pages, go) {
  if (pages <= 1) return null;
  const step = (by, text) =>
    el(
      "button",
      { type: "button", disabled: page + by < 0 || page + by >= pages, on: { click: () => go(page + by) } },
      text,
    );
  return el(
    "div",
    { class: "controls" },
    step(-1, "‹ Previous"),
    el("span", {}, `Page ${page + 1} of ${pages}`),
    step(1, "Next ›"),
  );
}
