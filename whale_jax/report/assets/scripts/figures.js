/* The paper's figures 2 and 3 from this run, and the co-adaptation matrix. */

const SPLITS = { validation: "validation", test: "test" };

/** Figure 2: accuracy against rollouts, phases marked. */
function accuracyChart(run) {
  const points = run.accuracy.points.map((point) => ({
    rollouts: point.rollouts,
    label: point.label,
    series: SPLITS[point.split] ?? point.split,
    k: point.k,
    tasks: point.tasks,
    accuracy: 100 * point.mean,
    low: 100 * point.ci95[0],
    high: 100 * point.ci95[1],
    value: `${percent(point.mean)} (${interval(point.ci95)})`,
  }));
  const training = run.accuracy.training.map((step) => ({
    rollouts: step.rollouts,
    step: step.step,
    accuracy: 100 * step.reward,
    accepted: step.accepted,
    series: "training reward, per step",
  }));
  if (!points.length && !training.length) return el("p", { class: "lead" }, "Nothing is trained or evaluated yet.");
  const series = ["validation", "test", "training reward, per step"].filter((name) =>
    [...points, ...training].some((one) => one.series === name),
  );
  const seriesColour = () => ({
    field: "series",
    type: "nominal",
    title: null,
    scale: {
      domain: series,
      range: series.map((name) => ({ validation: colour("ink"), test: colour("vermillion") })[name] ?? colour("faint")),
    },
  });
  const y = { field: "accuracy", type: "quantitative", title: "accuracy, %", scale: { zero: true } };
  return chart({
    title: "Accuracy against rollouts",
    note: "mean@k of each evaluated pair with its 95 % interval; shaded: what was trained then. Dots in grey: mean training reward of a step, under the harness of that time.",
    file: "accuracy",
    rows: [...points, ...training],
    spec: () => ({
      height: 320,
      layer: [
        phaseLayer(run.accuracy.phases),
        {
          data: { values: training },
          mark: { type: "point", size: 14 },
          encoding: {
            x: rolloutsAxis(),
            y,
            color: seriesColour(),
            tooltip: [
              { field: "step" },
              { field: "accuracy", title: "reward, %", format: ".1f" },
              { field: "accepted" },
            ],
          },
        },
        {
          data: { values: points },
          mark: { type: "rule", strokeWidth: 1.2 },
          encoding: { x: rolloutsAxis(), y: { ...y, field: "low" }, y2: { field: "high" }, color: seriesColour() },
        },
        {
          data: { values: points.filter((one) => one.series === "validation") },
          mark: { type: "line" },
          encoding: { x: rolloutsAxis(), y, color: seriesColour() },
        },
        {
          data: { values: points },
          mark: { type: "point", size: 60 },
          encoding: {
            x: rolloutsAxis(),
            y,
            color: seriesColour(),
            tooltip: [
              { field: "label", title: "pair" },
              { field: "series", title: "split" },
              { field: "value", title: "accuracy" },
              { field: "rollouts", format: "," },
              { field: "tasks" },
              { field: "k" },
            ],
          },
        },
      ],
    }),
  });
}

/** Figure 3: how the pairs behaved, one small chart per figure. */
function behaviourCharts(run) {
  const { meanings, points } = run.behaviour;
  const names = Object.keys(meanings);
  if (!names.length) return el("p", { class: "lead" }, "No evaluation has left its figures.");
  const charts = names.map((name) => {
    const mean = meanings[name].startsWith("mean");
    const rows = points
      .filter((point) => point.name === name)
      .map((point) => ({
        rollouts: point.rollouts,
        label: point.label,
        series: point.split,
        value: mean ? point.value : 100 * point.value,
      }));
    const series = ["validation", "test"].filter((split) => rows.some((row) => row.series === split));
    const encoding = () => ({
      x: rolloutsAxis("rollouts"),
      y: {
        field: "value",
        type: "quantitative",
        title: mean ? "mean" : "share, %",
        scale: fromZero(rows.map((row) => row.value)),
      },
      color: {
        field: "series",
        type: "nominal",
        title: null,
        legend: null,
        scale: { domain: series, range: series.map((split) => colour(split === "test" ? "vermillion" : "ink")) },
      },
      tooltip: [
        { field: "label", title: "pair" },
        { field: "series", title: "split" },
        { field: "value", format: mean ? ".2f" : ".1f" },
      ],
    });
    return chart({
      title: name.replaceAll("_", " "),
      note: meanings[name],
      file: `behaviour-${name}`,
      rows,
      spec: () => ({
        height: 150,
        layer: [
          {
            data: { values: rows.filter((row) => row.series === "validation") },
            mark: { type: "line", point: false },
            encoding: encoding(),
          },
          { data: { values: rows }, mark: { type: "point" }, encoding: encoding() },
        ],
      }),
    });
  });
  return el("div", { class: "grid" }, charts);
}

/** Every weights of the run under every harness of it. */
function matrixChart(matrix) {
  const rows = matrix.cells.map((cell) => ({
    weights: cell.weights,
    harness: cell.harness,
    accuracy: cell.mean === null ? null : 100 * cell.mean,
    interval: interval(cell.ci95),
    minus_initial: cell.minus_initial?.mean === null || !cell.minus_initial ? null : 100 * cell.minus_initial.mean,
    minus_interval: cell.minus_initial ? interval(cell.minus_initial.ci95) : "",
  }));
  const high = Math.max(...rows.map((row) => row.accuracy ?? 0));
  const encoding = () => ({
    x: {
      field: "weights",
      type: "nominal",
      sort: matrix.weights,
      title: "weights after",
      axis: { labelAngle: 0, orient: "top", labelLimit: 160 },
    },
    y: { field: "harness", type: "nominal", sort: matrix.harnesses, title: "harness after", axis: { labelLimit: 160 } },
    tooltip: [
      { field: "weights" },
      { field: "harness" },
      { field: "accuracy", title: "accuracy, %", format: ".1f" },
      { field: "interval", title: "95 % interval" },
      { field: "minus_initial", title: "minus the initial pair", format: "+.1f" },
      { field: "minus_interval", title: "95 % interval" },
    ],
  });
  return chart({
    title: `Co-adaptation on ${matrix.split}, mean@${matrix.k}`,
    note: `Every weights of the run under every harness of it, on the same ${count(matrix.tasks)} tasks and keys. If the two help each other, the diagonal gains more than its row and column by themselves.`,
    file: `matrix-${matrix.split}`,
    rows,
    spec: () => ({
      height: Math.max(120, 56 * matrix.harnesses.length),
      data: { values: rows },
      layer: [
        {
          mark: { type: "rect" },
          encoding: {
            ...encoding(),
            color: {
              field: "accuracy",
              type: "quantitative",
              title: "accuracy, %",
              scale: { scheme: "blues", domainMin: 0 },
            },
          },
        },
        {
          mark: { type: "text", fontSize: 13 },
          encoding: {
            ...encoding(),
            text: { field: "accuracy", type: "quantitative", format: ".1f" },
            color: { condition: { test: `datum.accuracy > ${0.55 * high}`, value: "white" }, value: "#1c1e21" },
          },
        },
      ],
    }),
  });
}

function figuresView(run) {
  const parts = [
    el("section", {}, accuracyChart(run)),
    el(
      "section",
      {},
      el("h2", {}, "How the pairs behaved"),
      el(
        "p",
        { class: "lead" },
        "What was measured beside the score at every evaluation; validation as a line, test in red.",
      ),
      behaviourCharts(run),
    ),
  ];
  if (run.budgets.weights.length || run.budgets.search.length) {
    parts.push(
      el(
        "section",
        {},
        el("h2", {}, "Realised budgets"),
        el("p", { class: "lead" }, "How long each phase lasted, and the signal that its schedule looked at."),
        budgetCharts(run),
      ),
    );
  }
  if (run.matrices.length)
    parts.push(el("section", {}, el("h2", {}, "Weights and harnesses, each with each"), run.matrices.map(matrixChart)));
  return parts;
}
