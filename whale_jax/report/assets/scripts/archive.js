/* The archive: every candidate of every search phase. */

const archiveState = { text: "", cycle: "all", state: "all", sort: { by: "Candidate", down: false }, chosen: [] };

/** The candidates of all search phases of a run, each with its archive. */
function candidatesOf(run) {
  run.candidates ??= run.archives.flatMap((archive) =>
    archive.candidates.map((candidate) =>
      Object.assign(candidate, { archive, cycle: archive.cycle, key: `${archive.cycle}/${candidate.id}` }),
    ),
  );
  return run.candidates;
}

function tags(candidate) {
  const one = (name, kind, title) => el("span", { class: `tag ${kind}`, title }, name);
  return [
    candidate.best ? one("best", "best", "the archive's best: it moved on") : null,
    candidate.accepted && !candidate.best ? one("accepted", "accepted", "was the best for a while") : null,
    candidate.flagged
      ? one(
          "flagged",
          "flagged",
          "holds the right answer in text that the harness wrote, more often than its incumbent",
        )
      : null,
    candidate.score ? null : one("invalid", "invalid", "did not pass validation and was never rolled out"),
    candidate.id === "000" ? one("incoming", "plain", "the harness that the phase began with") : null,
  ];
}

/** Tasks that one candidate gets right and the other does not, both ways; over tasks that both have a score on. */
function broken(before, after) {
  const out = { broke: [], fixed: [] };
  before.archive.tasks.forEach((task, place) => {
    const [was, is] = [before.rewards[place], after.rewards[place]];
    if (was === null || is === null || was === is) return;
    (is < was ? out.broke : out.fixed).push(task);
  });
  return out;
}

const parentOf = (candidate) => candidate.archive.candidates.find((one) => one.id === candidate.parent) ?? null;

const archiveColumns = [
  {
    name: "",
    cell: (candidate) =>
      el("input", {
        type: "checkbox",
        "aria-label": `compare ${candidate.id} of cycle ${candidate.cycle + 1}`,
        checked: archiveState.chosen.includes(candidate.key),
        on: { change: (event) => chooseCandidate(candidate.key, event.target.checked) },
      }),
  },
  {
    name: "Candidate",
    key: (candidate) => candidate.cycle * 100000 + Number(candidate.id),
    cell: (candidate) =>
      el(
        "button",
        {
          type: "button",
          class: "link",
          "data-candidate": candidate.key,
          on: { click: () => openCandidate(candidate.key) },
        },
        `${candidate.cycle + 1} / ${candidate.id}`,
      ),
  },
  { name: "Parent", key: (candidate) => candidate.parent, cell: (candidate) => candidate.parent ?? "–" },
  {
    name: "Score",
    number: true,
    key: (candidate) => candidate.score?.mean ?? null,
    cell: (candidate) =>
      candidate.score
        ? [percent(candidate.score.mean), el("span", { class: "interval" }, ` ${interval(candidate.score.ci95)}`)]
        : "none",
  },
  {
    name: "Against parent",
    number: true,
    key: (candidate) => candidate.versus?.mean ?? null,
    cell: (candidate) => (candidate.versus ? signed(100 * candidate.versus.mean) : "–"),
  },
  {
    name: "Fixed",
    number: true,
    key: (candidate) => changes(candidate)?.fixed.length ?? null,
    cell: (candidate) => count(changes(candidate)?.fixed.length),
  },
  {
    name: "Broke",
    number: true,
    key: (candidate) => changes(candidate)?.broke.length ?? null,
    cell: (candidate) => count(changes(candidate)?.broke.length),
  },
  {
    name: "Turns",
    number: true,
    key: (candidate) => candidate.turns ?? null,
    cell: (candidate) => (candidate.turns === undefined ? "–" : candidate.turns.toFixed(1)),
  },
  { name: "State", cell: (candidate) => el("span", {}, tags(candidate)) },
  {
    name: "Hypothesis",
    kind: "words",
    key: (candidate) => candidate.hypothesis,
    cell: (candidate) =>
      words(candidate.hypothesis.length > 240 ? `${candidate.hypothesis.slice(0, 240)}…` : candidate.hypothesis),
  },
];

function changes(candidate) {
  const parent = parentOf(candidate);
  return candidate.score && parent?.score ? broken(parent, candidate) : null;
}

function chooseCandidate(key, chosen) {
  const kept = archiveState.chosen.filter((one) => one !== key);
  archiveState.chosen = chosen ? [...kept, key].slice(-2) : kept;
  drawArchive();
}

function openCandidate(key) {
  location.hash = `#archive/${key}`;
}

const STATES = [
  ["all", "all"],
  ["scored", "scored"],
  ["invalid", "invalid"],
  ["flagged", "flagged"],
  ["accepted", "accepted or best"],
];

function matches(candidate) {
  const { text, cycle, state } = archiveState;
  if (cycle !== "all" && candidate.cycle !== Number(cycle)) return false;
  if (state === "scored" && !candidate.score) return false;
  if (state === "invalid" && candidate.score) return false;
  if (state === "flagged" && !candidate.flagged) return false;
  if (state === "accepted" && !candidate.accepted && !candidate.best) return false;
  const needle = text.toLowerCase();
  return (
    !needle ||
    [
      candidate.id,
      candidate.hypothesis,
      candidate.axis,
      candidate.proposer,
      candidate.source,
      ...candidate.edits,
      ...candidate.errors,
    ].some((one) => String(one).toLowerCase().includes(needle))
  );
}

function scoresChart(run) {
  const rows = candidatesOf(run)
    .filter((one) => one.score)
    .map((one) => ({
      candidate: `${one.cycle + 1} / ${one.id}`,
      score: 100 * one.score.mean,
      low: 100 * one.score.ci95[0],
      high: 100 * one.score.ci95[1],
      interval: interval(one.score.ci95),
      state: one.flagged ? "flagged" : one.best ? "best of its phase" : "candidate",
    }));
  const states = ["candidate", "best of its phase", "flagged"].filter((name) => rows.some((row) => row.state === name));
  const tint = () => ({
    field: "state",
    type: "nominal",
    title: null,
    scale: {
      domain: states,
      range: states.map((name) =>
        colour({ candidate: "faint", "best of its phase": "green", flagged: "vermillion" }[name]),
      ),
    },
  });
  const x = {
    field: "candidate",
    type: "nominal",
    sort: null,
    title: "cycle / candidate",
    axis: { labelAngle: rows.length > 12 ? -60 : 0, labelOverlap: true },
  };
  const y = { field: "score", type: "quantitative", title: "success rate on D_harness, %", scale: { zero: true } };
  return chart({
    title: "Search scores",
    note: "With 95 % intervals over tasks. The best of them is too high for having been chosen; all candidates of a phase ran the same tasks with the same keys.",
    file: "search-scores",
    rows,
    spec: () => ({
      height: 200,
      data: { values: rows },
      layer: [
        { mark: { type: "rule" }, encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" }, color: tint() } },
        {
          mark: { type: "point" },
          encoding: {
            x,
            y,
            color: tint(),
            shape: {
              ...tint(),
              scale: {
                domain: states,
                range: states.map(
                  (name) => ({ candidate: "circle", "best of its phase": "diamond", flagged: "triangle-up" })[name],
                ),
              },
            },
            tooltip: [
              { field: "candidate" },
              { field: "score", format: ".1f" },
              { field: "interval", title: "95 % interval" },
              { field: "state" },
            ],
          },
        },
      ],
    }),
  });
}

/** Draws the list anew, and what is open below it. */
function drawArchive() {
  const run = currentRun();
  const all = candidatesOf(run);
  const rows = sorted(all.filter(matches), archiveColumns, archiveState.sort);
  const list = table(archiveColumns, rows, {
    sort: archiveState.sort,
    changed: drawArchive,
    label: "Candidates",
    row: (line, candidate) => line.classList.toggle("chosen", archiveState.chosen.includes(candidate.key)),
  });
  const pair = archiveState.chosen.map((key) => all.find((one) => one.key === key)).filter(Boolean);
  const say =
    pair.length === 2 ? "The two that are ticked, side by side, stand below." : "Tick two to see them side by side.";
  document
    .getElementById("archive-list")
    .replaceChildren(
      el(
        "p",
        { class: "count", id: "archive-count" },
        `${count(rows.length)} of ${count(all.length)} candidates. ${say}`,
      ),
      list,
    );
  document.getElementById("archive-pair").replaceChildren(...(pair.length === 2 ? [pairPanel(...pair)] : []));
}

function archiveCsv(run) {
  return csv(
    candidatesOf(run).map((one) => ({
      cycle: one.cycle + 1,
      candidate: one.id,
      parent: one.parent,
      iteration: one.iteration,
      proposer: one.proposer,
      axis: one.axis,
      hypothesis: one.hypothesis,
      edits: one.edits.join("; "),
      score: one.score?.mean,
      low: one.score?.ci95[0],
      high: one.score?.ci95[1],
      scored: one.scored,
      episodes: one.episodes,
      against_parent: one.versus?.mean,
      fixed: changes(one)?.fixed.length,
      broke: changes(one)?.broke.length,
      turns: one.turns,
      best: one.best,
      accepted: one.accepted,
      flagged: one.flagged,
      errors: one.errors.join("; "),
    })),
  );
}

function archiveView(run, key) {
  const all = candidatesOf(run);
  if (!all.length) return [el("p", { class: "lead" }, "This run has searched nothing yet.")];
  const set = (name) => (value) => {
    archiveState[name] = value;
    drawArchive();
  };
  const cycles = run.archives.map((archive) => [String(archive.cycle), `cycle ${archive.cycle + 1}`]);
  const controls = el(
    "div",
    { class: "controls" },
    searchField("Search hypotheses, sources, errors", archiveState.text, set("text"), "archive-search"),
    choice("Phase", [["all", "all"], ...cycles], archiveState.cycle, set("cycle"), "archive-cycle"),
    choice("Show", STATES, archiveState.state, set("state"), "archive-state"),
    el("button", { type: "button", on: { click: () => save("archive.csv", archiveCsv(run), "text/csv") } }, "CSV"),
  );
  const opened = all.find((one) => one.key === key);
  const missing = run.archives.flatMap((archive) => [
    ...archive.empty.map((slot) =>
      el(
        "li",
        {},
        `cycle ${archive.cycle + 1}, iteration ${slot.iteration}: a slot stayed empty: `,
        words(slot.detail),
      ),
    ),
    ...archive.sessions.map((session) =>
      el(
        "li",
        {},
        `cycle ${archive.cycle + 1}, iteration ${session.iteration}: the proposer's session: `,
        words(session.error),
      ),
    ),
  ]);
  queueMicrotask(drawArchive);
  return [
    el("section", { id: "archive-open" }, opened ? candidatePanel(opened) : null),
    el("section", {}, controls, el("div", { id: "archive-list" }), el("div", { id: "archive-pair" })),
    all.some((one) => one.score) ? el("section", {}, scoresChart(run)) : null,
    missing.length ? el("section", {}, el("h2", {}, "What did not become a candidate"), el("ul", {}, missing)) : null,
  ];
}
