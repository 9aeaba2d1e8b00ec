/* The paper's pictures from this run: figures 2, 3 and 6, and the co-adaptation matrix. */

const SPLITS = { validation: "validation", test: "test" };

/** Figure 2: accuracy against rollouts, phases marked. */
function accuracyChart(run) {
  const points = run.accuracy.points.map((point) => ({
    rollouts: point.rollouts, label: point.label, series: SPLITS[point.split] ?? point.split, k: point.k, tasks: point.tasks,
    accuracy: 100 * point.mean, low: 100 * point.ci95[0], high: 100 * point.ci95[1],
    value: `${percent(point.mean)} (${interval(point.ci95)})`,
  }));
  const training = run.accuracy.training.map((step) => ({ rollouts: step.rollouts, step: step.step, accuracy: 100 * step.reward, accepted: step.accepted, series: "training reward, per step" }));
  if (!points.length && !training.length) return el("p", { class: "lead" }, "Nothing is trained or evaluated yet.");
  const series = ["validation", "test", "training reward, per step"].filter((name) => [...points, ...training].some((one) => one.series === name));
  const seriesColour = () => ({ field: "series", type: "nominal", title: null, scale: { domain: series, range: series.map((name) => ({ validation: colour("ink"), test: colour("vermillion") }[name] ?? colour("faint"))) } });
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
        { data: { values: training }, mark: { type: "point", size: 14 }, encoding: { x: rolloutsAxis(), y, color: seriesColour(), tooltip: [{ field: "step" }, { field: "accuracy", title: "reward, %", format: ".1f" }, { field: "accepted" }] } },
        { data: { values: points }, mark: { type: "rule", strokeWidth: 1.2 }, encoding: { x: rolloutsAxis(), y: { ...y, field: "low" }, y2: { field: "high" }, color: seriesColour() } },
        { data: { values: points.filter((one) => one.series === "validation") }, mark: { type: "line" }, encoding: { x: rolloutsAxis(), y, color: seriesColour() } },
        { data: { values: points }, mark: { type: "point", size: 60 }, encoding: { x: rolloutsAxis(), y, color: seriesColour(), tooltip: [{ field: "label", title: "pair" }, { field: "series", title: "split" }, { field: "value", title: "accuracy" }, { field: "rollouts", format: "," }, { field: "tasks" }, { field: "k" }] } },
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
    const rows = points.filter((point) => point.name === name).map((point) => ({ rollouts: point.rollouts, label: point.label, series: point.split, value: mean ? point.value : 100 * point.value }));
    const series = ["validation", "test"].filter((split) => rows.some((row) => row.series === split));
    const encoding = () => ({
      x: rolloutsAxis("rollouts"), y: { field: "value", type: "quantitative", title: mean ? "mean" : "share, %", scale: { zero: true } },
      color: { field: "series", type: "nominal", title: null, legend: null, scale: { domain: series, range: series.map((split) => colour(split === "test" ? "vermillion" : "ink")) } },
      tooltip: [{ field: "label", title: "pair" }, { field: "series", title: "split" }, { field: "value", format: mean ? ".2f" : ".1f" }],
    });
    return chart({
      title: name.replaceAll("_", " "), note: meanings[name], file: `behaviour-${name}`, rows,
      spec: () => ({ height: 150, layer: [{ data: { values: rows.filter((row) => row.series === "validation") }, mark: { type: "line", point: false }, encoding: encoding() }, { data: { values: rows }, mark: { type: "point" }, encoding: encoding() }] }),
    });
  });
  return el("div", { class: "grid" }, charts);
}

/** Figure 6: what phases really took, and the signals that stopped them. */
function budgetCharts(run) {
  const { weights, search, window: smoothing } = run.budgets;
  const parts = [];
  const unit = weights.every((phase) => phase.epochs !== null) ? "epochs" : "steps";
  const bars = [
    ...weights.map((phase) => ({ cycle: phase.cycle + 1, amount: phase[unit], reason: phase.reason, kind: "weight" })),
    ...search.map((phase) => ({ cycle: phase.cycle + 1, amount: phase.iterations, reason: phase.reason, kind: "search" })),
  ];
  const bar = (kind, title, axis) => chart({
    title, note: "", file: `budget-${kind}`, rows: bars.filter((one) => one.kind === kind),
    spec: () => ({
      height: 150, data: { values: bars.filter((one) => one.kind === kind) }, mark: { type: "bar", color: colour(kind === "weight" ? "weights" : "search"), width: { band: 0.5 } },
      encoding: { x: { field: "cycle", type: "ordinal", title: "cycle", axis: { labelAngle: 0 } }, y: { field: "amount", type: "quantitative", title: axis }, tooltip: [{ field: "cycle" }, { field: "amount", title: axis, format: ".3~f" }, { field: "reason", title: "ended" }] },
    }),
  });
  if (weights.length) parts.push(bar("weight", "Weight phases", unit));
  if (search.length) parts.push(bar("search", "Search phases", "iterations"));
  const signals = [];
  if (weights.length) signals.push(weightSignal(weights, smoothing));
  if (search.length) signals.push(searchSignal(search));
  const columns = [
    { name: "Phase", cell: (phase) => `cycle ${phase.cycle + 1}, ${phase.kind}` },
    { name: "Steps or iterations", number: true, cell: (phase) => count(phase.kind === "weights" ? phase.steps : phase.iterations) },
    { name: "Epochs", number: true, cell: (phase) => (phase.epochs === null || phase.epochs === undefined ? "–" : phase.epochs.toFixed(3)) },
    { name: "Ended because", kind: "words", cell: (phase) => words(phase.reason) },
  ];
  const phases = [...weights.map((phase) => ({ ...phase, kind: "weights" })), ...search.map((phase) => ({ ...phase, kind: "search" }))].sort((one, other) => one.cycle - other.cycle);
  return el("div", {}, el("div", { class: "pair" }, parts), el("div", { class: "pair" }, signals), table(columns, phases, { label: "Realised budgets" }));
}

function weightSignal(phases, smoothing) {
  const rows = phases.flatMap((phase) => phase.signal.map((one) => ({ step: one.step, cycle: phase.cycle + 1, reward: 100 * one.reward, smoothed: 100 * one.smoothed, best: 100 * one.best })));
  const ends = phases.filter((phase) => phase.reason !== "goes on").map((phase) => ({ step: phase.signal.at(-1).step + 0.5, reason: phase.reason }));
  const x = { field: "step", type: "quantitative", title: "training step", axis: { tickMinStep: 1, format: ",d" }, scale: { nice: false } };
  const y = (field) => ({ field, type: "quantitative", title: "mean reward, %", scale: { zero: true } });
  return chart({
    title: "What the weight phases looked at",
    note: smoothing ? `Dots: mean reward of a step. Line: mean of the last ${smoothing} steps of the phase, the signal of the patience rule; its best so far in orange. A phase ends at a dashed line.` : "Dots: mean reward of a step; the best so far in orange. This schedule has no patience: a phase ends at a dashed line by its length or a budget.",
    file: "weight-signal", rows,
    spec: () => ({
      height: 200, data: { values: rows },
      layer: [
        { data: { values: ends }, mark: { type: "rule", strokeDash: [4, 3] }, encoding: { x, tooltip: [{ field: "reason", title: "ended" }] } },
        { mark: { type: "point", size: 14, color: colour("faint") }, encoding: { x, y: y("reward"), tooltip: [{ field: "step" }, { field: "cycle" }, { field: "reward", format: ".1f" }, { field: "smoothed", format: ".1f" }] } },
        { mark: { type: "line", interpolate: "step-after", strokeWidth: 1.2, color: colour("search") }, encoding: { x, y: y("best"), detail: { field: "cycle" } } },
        ...(smoothing ? [{ mark: { type: "line", color: colour("weights") }, encoding: { x, y: y("smoothed"), detail: { field: "cycle" } } }] : []),
      ],
    }),
  });
}

function searchSignal(phases) {
  let place = 0;
  const rows = [];
  const ends = [];
  for (const phase of phases) {
    for (const one of phase.signal) {
      const base = { place, cycle: phase.cycle + 1, iteration: one.iteration };
      rows.push({ ...base, best: 100 * one.best });
      rows.push(...one.candidates.map((score) => ({ ...base, score: 100 * score })));
      place += 1;
    }
    if (phase.reason !== "goes on") ends.push({ place: place - 0.5, reason: phase.reason });
  }
  const x = { field: "place", type: "quantitative", title: "search iteration, all cycles", axis: { tickMinStep: 1 }, scale: { nice: false } };
  const y = (field) => ({ field, type: "quantitative", title: "success rate, %", scale: { zero: true } });
  return chart({
    title: "What the search phases looked at",
    note: "Dots: candidates. Line: the best score in the archive, which the patience rule looks at. Search scores are too high for having been chosen by.",
    file: "search-signal", rows,
    spec: () => ({
      height: 200,
      layer: [
        { data: { values: ends }, mark: { type: "rule", strokeDash: [4, 3] }, encoding: { x, tooltip: [{ field: "reason", title: "ended" }] } },
        { data: { values: rows.filter((row) => row.score !== undefined) }, mark: { type: "point", size: 18, color: colour("faint") }, encoding: { x, y: y("score"), tooltip: [{ field: "cycle" }, { field: "iteration" }, { field: "score", format: ".1f" }] } },
        { data: { values: rows.filter((row) => row.best !== undefined) }, mark: { type: "line", interpolate: "step-after", color: colour("search"), point: { color: colour("search") } }, encoding: { x, y: y("best"), detail: { field: "cycle" }, tooltip: [{ field: "cycle" }, { field: "iteration" }, { field: "best", format: ".1f" }] } },
      ],
    }),
  });
}

/** Every weights of the run under every harness of it. */
function matrixChart(matrix) {
  const rows = matrix.cells.map((cell) => ({
    weights: cell.weights, harness: cell.harness, accuracy: cell.mean === null ? null : 100 * cell.mean, interval: interval(cell.ci95),
    minus_initial: cell.minus_initial?.mean === null || !cell.minus_initial ? null : 100 * cell.minus_initial.mean, minus_interval: cell.minus_initial ? interval(cell.minus_initial.ci95) : "",
  }));
  const high = Math.max(...rows.map((row) => row.accuracy ?? 0));
  const encoding = () => ({
    x: { field: "weights", type: "nominal", sort: matrix.weights, title: "weights after", axis: { labelAngle: 0, orient: "top", labelLimit: 160 } },
    y: { field: "harness", type: "nominal", sort: matrix.harnesses, title: "harness after", axis: { labelLimit: 160 } },
    tooltip: [{ field: "weights" }, { field: "harness" }, { field: "accuracy", title: "accuracy, %", format: ".1f" }, { field: "interval", title: "95 % interval" }, { field: "minus_initial", title: "minus the initial pair", format: "+.1f" }, { field: "minus_interval", title: "95 % interval" }],
  });
  return chart({
    title: `Co-adaptation on ${matrix.split}, mean@${matrix.k}`,
    note: `Every weights of the run under every harness of it, on the same ${count(matrix.tasks)} tasks and keys. If the two help each other, the diagonal gains more than its row and column by themselves.`,
    file: `matrix-${matrix.split}`, rows,
    spec: () => ({
      height: Math.max(120, 56 * matrix.harnesses.length), data: { values: rows },
      layer: [
        { mark: { type: "rect" }, encoding: { ...encoding(), color: { field: "accuracy", type: "quantitative", title: "accuracy, %", scale: { scheme: "blues", domainMin: 0 } } } },
        { mark: { type: "text", fontSize: 13 }, encoding: { ...encoding(), text: { field: "accuracy", type: "quantitative", format: ".1f" }, color: { condition: { test: `datum.accuracy > ${0.55 * high}`, value: "white" }, value: "#1c1e21" } } },
      ],
    }),
  });
}

function figuresView(run) {
  const parts = [
    el("section", {}, accuracyChart(run)),
    el("section", {}, el("h2", {}, "How the pairs behaved"), el("p", { class: "lead" }, "What was measured beside the score at every evaluation; validation as a line, test in red."), behaviourCharts(run)),
  ];
  if (run.budgets.weights.length || run.budgets.search.length) {
    parts.push(el("section", {}, el("h2", {}, "Realised budgets"), el("p", { class: "lead" }, "How long each phase lasted, and the signal that its schedule looked at."), budgetCharts(run)));
  }
  if (run.matrices.length) parts.push(el("section", {}, el("h2", {}, "Weights and harnesses, each with each"), run.matrices.map(matrixChart)));
  return parts;
}
