/* A run at a glance: what came out, what it cost, what to know beside it. */

function resultCard(split, pair, difference, label) {
  const { initial, latest } = pair;
  if (!initial || !latest) return null;
  const same = initial === latest || label === "initial";
  return el(
    "div",
    { class: "result" },
    el(
      "p",
      { class: "what" },
      `${split === "test" ? "Test" : "Validation"}, mean@${latest.k} over ${count(latest.tasks)} tasks`,
    ),
    el("p", { class: "figure" }, el("span", { class: "from" }, `${percent(initial.mean)} → `), percent(latest.mean)),
    el(
      "p",
      { class: "difference" },
      difference
        ? `${signed(100 * difference.mean)} points, 95 % interval ${signed(100 * difference.ci95[0])} to ${signed(100 * difference.ci95[1])}`
        : same
          ? "the initial pair itself"
          : "no paired difference",
    ),
  );
}

function resultsChart(run) {
  const rows = [];
  for (const [split, pair] of Object.entries(run.glance.pairs)) {
    for (const [which, figures] of Object.entries(pair)) {
      if (!figures) continue;
      const name = which === "initial" ? "initial" : run.finished ? "returned" : "best so far";
      rows.push({
        split,
        pair: name,
        accuracy: 100 * figures.mean,
        low: 100 * figures.ci95[0],
        high: 100 * figures.ci95[1],
        interval: interval(figures.ci95),
      });
    }
  }
  const names = [...new Set(rows.map((row) => row.pair))];
  const tint = () => ({
    field: "pair",
    type: "nominal",
    title: null,
    scale: { domain: names, range: [colour("faint"), colour("blue")] },
  });
  const x = { field: "accuracy", type: "quantitative", title: "accuracy, %", scale: { zero: true } };
  const y = { field: "split", type: "nominal", title: null, sort: ["validation", "test"] };
  const offset = { field: "pair", sort: names };
  return chart({
    title: "Initial and returned pair",
    note: "Each with its own 95 % interval; the differences above are paired and therefore sharper.",
    file: "pairs",
    rows,
    spec: () => ({
      height: 44 * new Set(rows.map((row) => row.split)).size,
      data: { values: rows },
      layer: [
        {
          mark: { type: "rule", strokeWidth: 2 },
          encoding: { x: { ...x, field: "low" }, x2: { field: "high" }, y, yOffset: offset, color: tint() },
        },
        {
          mark: { type: "point", size: 70 },
          encoding: {
            x,
            y,
            yOffset: offset,
            color: tint(),
            tooltip: [
              { field: "pair" },
              { field: "split" },
              { field: "accuracy", format: ".1f" },
              { field: "interval", title: "95 % interval" },
            ],
          },
        },
      ],
    }),
  });
}

function costs(run) {
  const { account, seconds, other_share: other } = run.glance;
  const total = account.total;
  const proposer = total.proposer ?? {};
  const known = (name) => (name in proposer ? proposer[name] : 0);
  const proposerTokens =
    known("input_tokens") === null || known("output_tokens") === null
      ? null
      : known("input_tokens") + known("output_tokens");
  const share = total.seconds ? total.idle_seconds / total.seconds : null;
  const wall = total.seconds ?? seconds;
  const item = (name, value, detail = "") =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value, detail ? el("small", {}, ` ${detail}`) : null));
  return el(
    "dl",
    { class: "costs" },
    item("rollouts", count(total.rollouts), "evaluations included"),
    item("tokens sampled", short(total.sampled_tokens)),
    item("tokens computed", short(total.computed_tokens)),
    item("FLOPs", total.flops === null ? "–" : short(total.flops)),
    item("proposer tokens", proposerTokens === null ? "not known" : short(proposerTokens)),
    item("proposer cost", known("dollars") === null ? "not known" : `$${known("dollars").toFixed(2)}`),
    item("wall time", duration(wall), account.jobs > 1 ? `${account.jobs} jobs` : ""),
    item("accelerator idle", share === null ? "–" : percent(share, 0)),
    item("neither episodes nor training", other === null ? "–" : percent(other, 0), "of the wall time"),
  );
}

function accountTable(run) {
  const { phases, total } = run.glance.account;
  const idle = (spent) => (spent.seconds ? percent(spent.idle_seconds / spent.seconds, 0) : "–");
  const dollars = (spent) =>
    spent.proposer.dollars === undefined
      ? "–"
      : spent.proposer.dollars === null
        ? "?"
        : spent.proposer.dollars.toFixed(2);
  const columns = [
    { name: "Phase", cell: (spent) => spent.phase },
    { name: "Rollouts", number: true, cell: (spent) => count(spent.rollouts) },
    { name: "Tokens sampled", number: true, cell: (spent) => short(spent.sampled_tokens) },
    { name: "Tokens computed", number: true, cell: (spent) => short(spent.computed_tokens) },
    { name: "FLOPs", number: true, cell: (spent) => short(spent.flops) },
    { name: "Proposer, $", number: true, cell: dollars },
    { name: "Time", number: true, cell: (spent) => duration(spent.seconds) },
    { name: "Idle", number: true, cell: idle },
  ];
  const all = { ...total, phase: "total" };
  const saveRows = () =>
    save(
      "account.csv",
      csv(
        [...phases, all].map(({ proposer, ...spent }) => ({
          ...spent,
          ...Object.fromEntries(Object.entries(proposer).map(([name, value]) => [`proposer_${name}`, value])),
        })),
      ),
      "text/csv",
    );
  return el(
    "div",
    {},
    table(columns, phases, { foot: columns.map((column) => column.cell(all)), label: "What each phase cost" }),
    el("div", { class: "saves" }, el("button", { type: "button", on: { click: saveRows } }, "CSV")),
  );
}

function warningList(run) {
  const list = run.glance.warnings;
  if (!list.length) return el("p", { class: "lead", id: "no-warnings" }, "Nothing to warn of.");
  return el(
    "ul",
    { class: "warnings", id: "warnings" },
    list.map((one) =>
      el(
        "li",
        {},
        el("span", { class: `level ${one.level}` }, one.level),
        el("span", {}, words(one.text), one.detail ? el("span", { class: "detail" }, shown(one.detail)) : null),
      ),
    ),
  );
}

function glanceView(run) {
  const { pairs, differences, label } = run.glance;
  const cards = ["validation", "test"]
    .map((split) => resultCard(split, pairs[split], differences[split], label))
    .filter(Boolean);
  const state = run.finished
    ? `The returned pair is “${label}”, picked on ${run.settings.select_on ?? "validation"}.`
    : `The run goes on; the best pair so far is “${label}”.`;
  return [
    el(
      "section",
      {},
      el("p", { class: "lead", id: "state" }, shown(state)),
      cards.length ? el("div", { class: "results" }, cards) : el("p", { class: "lead" }, "Nothing is evaluated yet."),
      cards.length ? resultsChart(run) : null,
    ),
    el("section", {}, el("h2", {}, "What to know beside it"), warningList(run)),
    el("section", {}, accuracyChart(run)),
    el("section", {}, el("h2", {}, "What it cost"), costs(run), accountTable(run)),
  ];
}
