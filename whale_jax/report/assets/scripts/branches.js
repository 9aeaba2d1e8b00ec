/* Branches: runs that left another one at a commit, as a tree over rollouts, with their paired differences. */

/** Runs in the order of a tree drawn from the top: each run, then what branches from it. */
function treeOrder(comparison) {
  const parents = new Map(comparison.branches.map((branch) => [branch.run, branch.parent]));
  const order = [];
  const visit = (run) => {
    if (order.includes(run)) return;
    order.push(run);
    comparison.branches.filter((branch) => branch.parent === run).forEach((branch) => visit(branch.run));
  };
  comparison.branches.forEach((branch) => {
    let root = branch.run;
    const seen = new Set();
    while (typeof parents.get(root) === "number" && !seen.has(root)) {
      seen.add(root);
      root = parents.get(root);
    }
    visit(root);
  });
  return order;
}

function treeChart(comparison) {
  const row = new Map(treeOrder(comparison).map((run, place) => [run, place]));
  const branchOf = new Map(comparison.branches.map((branch) => [branch.run, branch]));
  const stems = [...row].map(([run, place]) => {
    const line = comparison.runs[run];
    const start = branchOf.get(run)?.rollouts ?? 0;
    return {
      place,
      run: line.name,
      method: line.method,
      start,
      end: Math.max(start, line.rollouts),
      label: `${line.name} (${line.method})`,
    };
  });
  const forks = comparison.branches
    .filter((branch) => branch.parent !== null)
    .map((branch) => ({ rollouts: branch.rollouts, place: row.get(branch.parent), to: row.get(branch.run) }));
  const points = stems.flatMap((stem) =>
    comparison.runs[[...row.keys()][stem.place]].curve
      .filter(([rollouts]) => rollouts >= stem.start)
      .map(([rollouts, mean]) => ({ place: stem.place, run: stem.run, rollouts, accuracy: percent(mean) })),
  );
  const y = {
    field: "place",
    type: "quantitative",
    axis: null,
    scale: { reverse: true, nice: false, zero: false, padding: 24 },
  };
  const x = (field) => ({ ...rolloutsAxis(), field });
  return chart({
    title: "Where the branches left",
    note: "A line per run from the commit where it left its parent; dots are evaluations.",
    file: "branches",
    rows: stems,
    spec: () => ({
      height: Math.max(90, 62 * stems.length),
      layer: [
        {
          data: { values: forks },
          mark: { type: "rule", strokeWidth: 1.5, color: colour("faint") },
          encoding: { x: x("rollouts"), y, y2: { field: "to" } },
        },
        {
          data: { values: stems },
          mark: { type: "rule", strokeWidth: 2.5, color: colour("blue") },
          encoding: {
            x: x("start"),
            x2: { field: "end" },
            y,
            tooltip: [
              { field: "run" },
              { field: "method" },
              { field: "start", format: "," },
              { field: "end", format: "," },
            ],
          },
        },
        {
          data: { values: points },
          mark: { type: "point", color: colour("blue") },
          encoding: {
            x: x("rollouts"),
            y,
            tooltip: [{ field: "run" }, { field: "rollouts", format: "," }, { field: "accuracy", title: "validation" }],
          },
        },
        {
          data: { values: stems },
          mark: { type: "text", align: "left", dx: 4, dy: -10, limit: 420 },
          encoding: { x: x("start"), y, text: { field: "label" } },
        },
      ],
    }),
  });
}

function branchesView(comparison) {
  const difference = (branch, split) => {
    const one = branch.minus_parent[split];
    return one && one.mean !== null
      ? `${signed(100 * one.mean)} (${signed(100 * one.ci95[0])} to ${signed(100 * one.ci95[1])})`
      : "–";
  };
  const columns = [
    { name: "Branch", cell: (branch) => words(comparison.runs[branch.run].name) },
    {
      name: "From",
      cell: (branch) => [words(branch.from), ` @ ${branch.entry}`, branch.parent === null ? " (not in this page)" : ""],
    },
    { name: "At, rollouts", number: true, cell: (branch) => count(branch.rollouts) },
    {
      name: "Changed",
      kind: "words",
      cell: (branch) =>
        words(
          Object.entries(branch.changed)
            .map(([name, [was, is]]) => `${name}: ${was} → ${is}`)
            .join(", ") || "–",
        ),
    },
    { name: "Minus its parent, validation", number: true, cell: (branch) => difference(branch, "validation") },
    { name: "Minus its parent, test", number: true, cell: (branch) => difference(branch, "test") },
  ];
  return el(
    "div",
    {},
    treeChart(comparison),
    el(
      "p",
      { class: "lead" },
      "Differences in points between the pairs that the two returned, paired over the same tasks and sampling keys, with 95 % intervals.",
    ),
    savedTable(columns, comparison.branches, "branches-table", "Branches"),
  );
}
