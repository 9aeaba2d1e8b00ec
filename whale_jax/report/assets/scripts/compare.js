/* Several runs: the paper's figure 4, table 2 and table 3. */

function curvesChart(lines) {
  const rows = lines.flatMap((line) =>
    line.curve.map(([rollouts, mean]) => ({
      run: line.name,
      method: line.method,
      domain: line.domain,
      seed: line.seed,
      rollouts,
      accuracy: 100 * mean,
    })),
  );
  const domains = [...new Set(rows.map((row) => row.domain))];
  return domains.map((domain) =>
    chart({
      title: `Validation accuracy against rollouts: ${domain}`,
      note: "One line per run; a colour and a dash per method.",
      file: `runs-${domain}`,
      rows: rows.filter((row) => row.domain === domain),
      spec: () => ({
        height: 320,
        data: { values: rows.filter((row) => row.domain === domain) },
        mark: { type: "line", point: { size: 30 }, opacity: 0.85 },
        encoding: {
          x: rolloutsAxis(),
          y: { field: "accuracy", type: "quantitative", title: "validation accuracy, %", scale: { zero: true } },
          color: {
            field: "method",
            type: "nominal",
            sort: null,
            title: null,
            legend: { symbolType: "stroke", symbolSize: 300 },
          },
          strokeDash: { field: "method", type: "nominal", sort: null, title: null },
          detail: { field: "run" },
          tooltip: [
            { field: "run" },
            { field: "method" },
            { field: "seed" },
            { field: "rollouts", format: "," },
            { field: "accuracy", format: ".1f" },
          ],
        },
      }),
    }),
  );
}

const overSeeds = (score) => (score ? `${percent(score.mean)}${score.ci95 ? ` (${interval(score.ci95)})` : ""}` : "–");

/** "The reference is …", once per domain. */
function references(schedules) {
  const lines = new Map(schedules.map((row) => [row.domain, row.reference]));
  return el(
    "p",
    { class: "count" },
    [...lines].map(([domain, reference]) => [words(domain), ": the reference is ", words(reference), ". "]),
  );
}

function savedTable(columns, rows, file, label) {
  const flat = () =>
    rows.map((row) =>
      Object.fromEntries(
        Object.entries(row).flatMap(([name, value]) =>
          value && typeof value === "object" && !Array.isArray(value)
            ? Object.entries(value).map(([inner, one]) => [`${name}_${inner}`, one])
            : [[name, value]],
        ),
      ),
    );
  return el(
    "div",
    { "data-table": file },
    table(columns, rows, { label }),
    el(
      "div",
      { class: "saves" },
      el("button", { type: "button", on: { click: () => save(`${file}.csv`, csv(flat()), "text/csv") } }, "CSV"),
    ),
  );
}

function compareView(comparison) {
  const runs = [
    {
      name: "Run",
      cell: (line) =>
        el("button", { type: "button", class: "link", on: { click: () => chooseRun(line.run) } }, shown(line.name)),
    },
    { name: "Domain", cell: (line) => words(line.domain) },
    { name: "Method", cell: (line) => words(line.method) },
    { name: "Seed", number: true, cell: (line) => String(line.seed) },
    {
      name: "Validation",
      number: true,
      cell: (line) => `${percent(line.scores.validation.initial)} → ${percent(line.scores.validation.returned)}`,
    },
    {
      name: "Test",
      number: true,
      cell: (line) =>
        line.scores.test.returned === null
          ? "sealed"
          : `${percent(line.scores.test.initial)} → ${percent(line.scores.test.returned)}`,
    },
    { name: "Rollouts", number: true, cell: (line) => count(line.rollouts) },
    { name: "", cell: (line) => (line.finished ? "" : "goes on") },
  ];
  const methods = [
    { name: "Domain", cell: (row) => words(row.domain) },
    { name: "Method", cell: (row) => words(row.method) },
    { name: "Split", cell: (row) => row.split },
    { name: "Seeds", number: true, cell: (row) => String(row.returned.seeds) },
    { name: "Initial", number: true, cell: (row) => overSeeds(row.initial) },
    { name: "Returned", number: true, cell: (row) => overSeeds(row.returned) },
  ];
  const number = (value, digits = 2) => (value === null ? "–" : value.toFixed(digits).replace(/\.?0+$/, ""));
  const schedules = [
    { name: "Domain", cell: (row) => words(row.domain) },
    { name: "Method", cell: (row) => words(row.method) },
    { name: "Runs", number: true, cell: (row) => String(row.runs) },
    { name: "Cycles", number: true, cell: (row) => number(row.cycles, 1) },
    { name: "Epochs per phase", number: true, cell: (row) => number(row.epochs, 3) },
    { name: "Iterations per phase", number: true, cell: (row) => number(row.iterations, 1) },
    { name: "Rollouts", number: true, cell: (row) => count(row.rollouts) },
    { name: "Validation", number: true, cell: (row) => overSeeds(row.validation) },
    {
      name: "Reaches it after",
      number: true,
      cell: (row) =>
        row.passed === null
          ? "never"
          : `${percent(row.passed, 0)}${row.passed_runs < row.runs ? ` (${row.passed_runs} of ${row.runs} runs)` : ""}`,
    },
  ];
  return [
    el("section", {}, curvesChart(comparison.runs)),
    comparison.branches.length ? el("section", {}, el("h2", {}, "Branches"), branchesView(comparison)) : null,
    el("section", {}, el("h2", {}, "Runs"), savedTable(runs, comparison.runs, "runs", "Runs")),
    el(
      "section",
      {},
      el("h2", {}, "Methods"),
      el(
        "p",
        { class: "lead" },
        "The paper's table 2: score of the returned pair, mean over seeds with Student's 95 % interval where there are several. Finished runs alone.",
      ),
      savedTable(methods, comparison.methods, "methods", "Methods"),
    ),
    el(
      "section",
      {},
      el("h2", {}, "Schedules"),
      el(
        "p",
        { class: "lead" },
        "The paper's table 3: what each really spent (medians per phase), and after which share of a reference's rollouts it first reached the reference's final validation accuracy.",
      ),
      references(comparison.schedules),
      savedTable(schedules, comparison.schedules, "schedules", "Schedules"),
    ),
  ];
}
