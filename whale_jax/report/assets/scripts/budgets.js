/* The paper's figure 6: what phases really took, and the signals that stopped them. */

/** Bars, signals and a table of both kinds of phases. */
function budgetCharts(run) {
  const { weights, search, window: smoothing } = run.budgets;
  const parts = [];
  const unit = weights.every((phase) => phase.epochs !== null) ? "epochs" : "steps";
  const bars = [
    ...weights.map((phase) => ({ cycle: phase.cycle + 1, amount: phase[unit], reason: phase.reason, kind: "weight" })),
    ...search.map((phase) => ({
      cycle: phase.cycle + 1,
      amount: phase.iterations,
      reason: phase.reason,
      kind: "search",
    })),
  ];
  const bar = (kind, title, axis) =>
    chart({
      title,
      note: "",
      file: `budget-${kind}`,
      rows: bars.filter((one) => one.kind === kind),
      spec: () => ({
        height: 150,
        data: { values: bars.filter((one) => one.kind === kind) },
        mark: { type: "bar", color: colour(kind === "weight" ? "weights" : "search"), width: { band: 0.5 } },
        encoding: {
          x: { field: "cycle", type: "ordinal", title: "cycle", axis: { labelAngle: 0 } },
          y: { field: "amount", type: "quantitative", title: axis },
          tooltip: [
            { field: "cycle" },
            { field: "amount", title: axis, format: ".3~f" },
            { field: "reason", title: "ended" },
          ],
        },
      }),
    });
  if (weights.length) parts.push(bar("weight", "Weight phases", unit));
  if (search.length) parts.push(bar("search", "Search phases", "iterations"));
  const signals = [];
  if (weights.length) signals.push(weightSignal(weights, smoothing));
  if (search.length) signals.push(searchSignal(search));
  const columns = [
    { name: "Phase", cell: (phase) => `cycle ${phase.cycle + 1}, ${phase.kind}` },
    {
      name: "Steps or iterations",
      number: true,
      cell: (phase) => count(phase.kind === "weights" ? phase.steps : phase.iterations),
    },
    {
      name: "Epochs",
      number: true,
      cell: (phase) => (phase.epochs === null || phase.epochs === undefined ? "–" : phase.epochs.toFixed(3)),
    },
    { name: "Ended because", kind: "words", cell: (phase) => words(phase.reason) },
  ];
  const phases = [
    ...weights.map((phase) => ({ ...phase, kind: "weights" })),
    ...search.map((phase) => ({ ...phase, kind: "search" })),
  ].sort((one, other) => one.cycle - other.cycle);
  return el(
    "div",
    {},
    el("div", { class: "pair" }, parts),
    el("div", { class: "pair" }, signals),
    table(columns, phases, { label: "Realised budgets" }),
  );
}

function weightSignal(phases, smoothing) {
  const rows = phases.flatMap((phase) =>
    phase.signal.map((one) => ({
      step: one.step,
      cycle: phase.cycle + 1,
      reward: 100 * one.reward,
      smoothed: 100 * one.smoothed,
      best: 100 * one.best,
    })),
  );
  const ends = phases
    .filter((phase) => phase.reason !== "goes on")
    .map((phase) => ({ step: phase.signal.at(-1).step + 0.5, reason: phase.reason }));
  const x = {
    field: "step",
    type: "quantitative",
    title: "training step",
    axis: { tickMinStep: 1, format: ",d" },
    scale: { nice: false },
  };
  const y = (field) => ({
    field,
    type: "quantitative",
    title: "mean reward, %",
    scale: fromZero(rows.map((row) => row.reward)),
  });
  return chart({
    title: "What the weight phases looked at",
    note: smoothing
      ? `Dots: mean reward of a step. Line: mean of the last ${smoothing} steps of the phase, the signal of the patience rule; its best so far in orange. A phase ends at a dashed line.`
      : "Dots: mean reward of a step; the best so far in orange. This schedule has no patience: a phase ends at a dashed line by its length or a budget.",
    file: "weight-signal",
    rows,
    spec: () => ({
      height: 200,
      data: { values: rows },
      layer: [
        {
          data: { values: ends },
          mark: { type: "rule", strokeDash: [4, 3] },
          encoding: { x, tooltip: [{ field: "reason", title: "ended" }] },
        },
        {
          mark: { type: "point", size: 14, color: colour("faint") },
          encoding: {
            x,
            y: y("reward"),
            tooltip: [
              { field: "step" },
              { field: "cycle" },
              { field: "reward", format: ".1f" },
              { field: "smoothed", format: ".1f" },
            ],
          },
        },
        {
          mark: { type: "line", interpolate: "step-after", strokeWidth: 1.2, color: colour("search") },
          encoding: { x, y: y("best"), detail: { field: "cycle" } },
        },
        ...(smoothing
          ? [
              {
                mark: { type: "line", color: colour("weights") },
                encoding: { x, y: y("smoothed"), detail: { field: "cycle" } },
              },
            ]
          : []),
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
  const x = {
    field: "place",
    type: "quantitative",
    title: "search iteration, all cycles",
    axis: { tickMinStep: 1 },
    scale: { nice: false },
  };
  const y = (field) => ({
    field,
    type: "quantitative",
    title: "success rate, %",
    scale: fromZero(rows.map((row) => row.best ?? row.score)),
  });
  return chart({
    title: "What the search phases looked at",
    note: "Dots: candidates. Line: the best score in the archive, which the patience rule looks at. Search scores are too high for having been chosen by.",
    file: "search-signal",
    rows,
    spec: () => ({
      height: 200,
      layer: [
        {
          data: { values: ends },
          mark: { type: "rule", strokeDash: [4, 3] },
          encoding: { x, tooltip: [{ field: "reason", title: "ended" }] },
        },
        {
          data: { values: rows.filter((row) => row.score !== undefined) },
          mark: { type: "point", size: 18, color: colour("faint") },
          encoding: {
            x,
            y: y("score"),
            tooltip: [{ field: "cycle" }, { field: "iteration" }, { field: "score", format: ".1f" }],
          },
        },
        {
          data: { values: rows.filter((row) => row.best !== undefined) },
          mark: {
            type: "line",
            interpolate: "step-after",
            color: colour("search"),
            point: { color: colour("search") },
          },
          encoding: {
            x,
            y: y("best"),
            detail: { field: "cycle" },
            tooltip: [{ field: "cycle" }, { field: "iteration" }, { field: "best", format: ".1f" }],
          },
        },
      ],
    }),
  });
}
