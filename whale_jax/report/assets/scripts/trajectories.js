/* The list of trajectories, its filters, and the search through their texts. */

const PAGE = 50;
const trajectoryState = {
  text: "",
  inTexts: false,
  cycle: "all",
  candidate: "all",
  verdict: "all",
  end: "all",
  sort: { by: null, down: false },
  page: 0,
  mask: false,
  found: null,
  search: 0,
};

const VERDICTS = [
  ["all", "all"],
  ["right", "right"],
  ["wrong", "wrong"],
  ["unscored", "unscored"],
];
const verdictOf = (row) => (row.reward === null ? "unscored" : row.reward > 0.5 ? "right" : "wrong");

const trajectoryColumns = [
  {
    name: "Task",
    key: (row) => row.task,
    kind: "words",
    cell: (row) => el("a", { href: `#trajectories/${row.row}`, "data-row": row.row }, words(row.task)),
  },
  {
    name: "Candidate",
    key: (row) => row.cycle * 100000 + Number(row.candidate),
    cell: (row) => `${row.cycle + 1} / ${row.candidate}`,
  },
  { name: "Verdict", key: verdictOf, cell: (row) => el("span", { class: verdictOf(row) }, verdictOf(row)) },
  { name: "Ended", key: (row) => row.end, cell: (row) => words(row.end) },
  { name: "Turns", number: true, key: (row) => row.turns, cell: (row) => count(row.turns) },
  { name: "Calls", number: true, key: (row) => row.tool_calls, cell: (row) => count(row.tool_calls) },
  { name: "Tokens", number: true, key: (row) => row.tokens, cell: (row) => count(row.tokens) },
  { name: "Answer", kind: "words", key: (row) => row.answer, cell: (row) => words(row.answer ?? "–") },
];

function listed(rows) {
  const { text, cycle, candidate, verdict, end, found, inTexts } = trajectoryState;
  const needle = text.toLowerCase();
  return rows.filter((row) => {
    if (cycle !== "all" && row.cycle !== Number(cycle)) return false;
    if (candidate !== "all" && row.candidate !== candidate) return false;
    if (verdict !== "all" && verdictOf(row) !== verdict) return false;
    if (end !== "all" && row.end !== end) return false;
    if (!needle) return true;
    if (inTexts) return found?.has(row.row) ?? false;
    return [row.task, row.answer, row.reason].some((one) =>
      String(one ?? "")
        .toLowerCase()
        .includes(needle),
    );
  });
}

/** Looks for a text in every conversation, block by block; what is found is shown as it comes. */
async function searchTexts() {
  const mine = (trajectoryState.search += 1);
  const needle = trajectoryState.text.toLowerCase();
  const run = state.run;
  trajectoryState.found = new Set();
  if (!needle) return drawTrajectories();
  const blocksInAll = Math.ceil(rowsOf(run).length / core.trajectories.chunk);
  for (let place = 0; place < blocksInAll; place += 1) {
    const chunk = await unpack(`run-${run}-chunk-${place}`);
    if (mine !== trajectoryState.search || run !== state.run || !document.getElementById("trajectory-list")) return;
    chunk.forEach((trace, offset) => {
      if (trace.chats.some((chat) => chat.some((segment) => segment[4].toLowerCase().includes(needle))))
        trajectoryState.found.add(place * core.trajectories.chunk + offset);
    });
    if (place % 8 === 7 || place === blocksInAll - 1)
      drawTrajectories(
        place + 1 < blocksInAll ? `; looked through ${Math.round((100 * (place + 1)) / blocksInAll)} %` : "",
      );
  }
}

function drawTrajectories(progress = "") {
  const host = document.getElementById("trajectory-list");
  if (!host) return;
  const rows = rowsOf(state.run);
  const wanted = listed(rows);
  const ordered = trajectoryState.sort.by ? sorted(wanted, trajectoryColumns, trajectoryState.sort) : wanted;
  const pages = Math.ceil(ordered.length / PAGE);
  trajectoryState.page = Math.max(0, Math.min(trajectoryState.page, pages - 1));
  const visible = ordered.slice(trajectoryState.page * PAGE, (trajectoryState.page + 1) * PAGE);
  const go = (page) => {
    trajectoryState.page = page;
    drawTrajectories();
  };
  host.replaceChildren(
    el(
      "p",
      { class: "count", id: "trajectory-count" },
      `${count(wanted.length)} of ${count(rows.length)} trajectories${progress}`,
    ),
    table(trajectoryColumns, visible, { sort: trajectoryState.sort, changed: () => go(0), label: "Trajectories" }),
    pager(trajectoryState.page, pages, go) ?? "",
  );
}

function trajectoryControls(run) {
  const rows = rowsOf(state.run);
  const distinct = (name) => [...new Set(rows.map((row) => row[name]))].sort();
  const set = (name) => (value) => {
    trajectoryState[name] = value;
    trajectoryState.page = 0;
    if (name === "text" || name === "inTexts") trajectoryState.found = null;
    if (trajectoryState.inTexts && (name === "text" || name === "inTexts")) searchTexts();
    else drawTrajectories();
  };
  const options = (name, label = (value) => value) => [
    ["all", "all"],
    ...distinct(name).map((value) => [String(value), label(value)]),
  ];
  return el(
    "div",
    { class: "controls" },
    searchField("Search tasks, answers, reasons", trajectoryState.text, set("text"), "trajectory-search"),
    tick("in the conversations too", trajectoryState.inTexts, set("inTexts"), "trajectory-texts"),
    choice(
      "Phase",
      options("cycle", (cycle) => `cycle ${cycle + 1}`),
      trajectoryState.cycle,
      set("cycle"),
      "trajectory-cycle",
    ),
    choice("Candidate", options("candidate"), trajectoryState.candidate, set("candidate"), "trajectory-candidate"),
    choice("Verdict", VERDICTS, trajectoryState.verdict, set("verdict"), "trajectory-verdict"),
    choice("Ended", options("end"), trajectoryState.end, set("end"), "trajectory-end"),
    el(
      "button",
      {
        type: "button",
        on: {
          click: () => save("trajectories.csv", csv(listed(rows).map(({ row, ...values }) => values)), "text/csv"),
        },
      },
      "CSV",
    ),
  );
}

function trajectoriesView(run, place) {
  const listing = core.trajectories.runs[state.run];
  const rows = rowsOf(state.run);
  const row = place === undefined ? undefined : rows[Number(place)];
  const left = listing.found - rows.length;
  const parts = [];
  if (row) parts.push(trajectorySection(row, rows));
  if (left > 0)
    parts.push(
      el(
        "p",
        { class: "lead" },
        `${count(rows.length)} of the run's ${count(listing.found)} trajectories are in this page: the same tasks of every candidate.`,
      ),
    );
  parts.push(...listing.notes.map((note) => el("p", { class: "lead" }, words(note))));
  if (!rows.length)
    return [
      ...parts,
      el("p", { class: "lead" }, "There are no trajectories here: a run keeps those of its search phases."),
    ];
  queueMicrotask(() =>
    trajectoryState.inTexts && trajectoryState.text && !trajectoryState.found ? searchTexts() : drawTrajectories(),
  );
  return [...parts, el("section", {}, trajectoryControls(run), el("div", { id: "trajectory-list" }))];
}

function trajectorySection(row, rows) {
  const body = el("div", {});
  trajectory(state.run, row.row).then(
    (trace) => body.append(...conversationNode(row, trace).filter(Boolean)),
    (error) => body.append(el("p", { class: "failure" }, `This trajectory cannot be unpacked: ${error.message}`)),
  );
  const step = (by, text) => (rows[row.row + by] ? el("a", { href: `#trajectories/${row.row + by}` }, text) : null);
  const others = rows.filter((one) => one.task === row.task && one.cycle === row.cycle && one.row !== row.row);
  return el(
    "section",
    { class: "panel", id: "trajectory" },
    el(
      "div",
      { class: "head" },
      el("h3", {}, words(row.task), ` under ${row.cycle + 1} / ${row.candidate}`),
      el("span", {}, step(-1, "‹ Previous"), " ", step(1, "Next ›"), " ", el("a", { href: "#trajectories" }, "Close")),
    ),
    others.length
      ? el(
          "p",
          { class: "count" },
          "The same task under ",
          others
            .slice(0, 40)
            .map((one) => [
              el(
                "a",
                { href: `#trajectories/${one.row}`, class: verdictOf(one), title: verdictOf(one) },
                `${one.candidate} ${{ right: "✓", wrong: "✗", unscored: "?" }[verdictOf(one)]}`,
              ),
              " ",
            ]),
        )
      : null,
    body,
  );
}
