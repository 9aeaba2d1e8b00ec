/* One candidate in full, and two of them side by side. */

/** Links to a candidate's trajectories on some tasks. */
function taskLinks(candidate, tasks, kind) {
  if (!tasks.length) return el("p", { class: "count" }, "none");
  const rows = rowsOf(state.run);
  return el(
    "div",
    { class: "tasks", "data-tasks": kind },
    tasks.map((task) => {
      const row = rows.find(
        (one) => one.cycle === candidate.cycle && one.candidate === candidate.id && one.task === task,
      );
      return row ? el("a", { href: `#trajectories/${row.row}` }, words(task)) : words(task);
    }),
  );
}

function candidateFacts(candidate) {
  const score = candidate.score;
  const entries = [
    ["hypothesis", words(candidate.hypothesis || "none")],
    ["axis", words(candidate.axis || "–")],
    ["edits", words(candidate.edits.join(", ") || "–")],
    [
      "from",
      candidate.id === "000"
        ? "the incoming harness of the phase"
        : el(
            "span",
            {},
            words(candidate.proposer),
            `, iteration ${candidate.iteration}, slot ${candidate.slot ?? "–"}, parent ${candidate.parent ?? "–"}`,
          ),
    ],
    [
      "score",
      score
        ? `${percent(score.mean)} (95 % interval ${interval(score.ci95)}), ${count(candidate.scored)} of ${count(candidate.episodes)} episodes scored`
        : "none: never rolled out",
    ],
  ];
  if (candidate.versus)
    entries.push([
      "against its parent",
      `${signed(100 * candidate.versus.mean)} points (95 % interval ${signed(100 * candidate.versus.ci95[0])} to ${signed(100 * candidate.versus.ci95[1])}), paired`,
    ]);
  if (candidate.trial) {
    const { comparison, accepted } = candidate.trial;
    entries.push([
      "confirmation",
      `${percent(comparison.before)} → ${percent(comparison.after)} in fresh rollouts: ${accepted ? "accepted" : "not accepted"}`,
    ]);
  }
  if (score)
    entries.push(
      ["mean turns", candidate.turns.toFixed(2)],
      [
        "ended",
        Object.entries(candidate.ends)
          .map(([end, number]) => `${end} ${count(number)}`)
          .join(", "),
      ],
    );
  if (candidate.answer_share !== null)
    entries.push([
      "answer in harness text",
      `${percent(candidate.answer_share)} of episodes${candidate.incumbent_share === null ? "" : `, ${percent(candidate.incumbent_share)} in its incumbent's`}${candidate.flagged ? ": flagged" : ""}`,
    ]);
  entries.push(["SHA-256", candidate.hash]);
  return el(
    "dl",
    { class: "facts" },
    entries.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
  );
}

function candidatePanel(candidate) {
  const parent = parentOf(candidate);
  const turned = changes(candidate);
  const source = el("pre", { class: "segment" }, el("code", { class: "text" }));
  longText(source.firstChild, candidate.source);
  return el(
    "div",
    { class: "panel", id: "candidate" },
    el(
      "div",
      { class: "head" },
      el("h3", {}, `Cycle ${candidate.cycle + 1}, candidate ${candidate.id} `, tags(candidate)),
      el("a", { href: "#archive" }, "Close"),
    ),
    candidateFacts(candidate),
    candidate.errors.length
      ? el(
          "div",
          { id: "candidate-errors" },
          el("h3", {}, "Validation errors"),
          el(
            "ul",
            {},
            candidate.errors.map((error) => el("li", {}, words(error))),
          ),
        )
      : null,
    candidate.detail ? el("p", {}, words(candidate.detail)) : null,
    turned
      ? [
          el("h3", {}, `Fixed ${count(turned.fixed.length)}`),
          taskLinks(candidate, turned.fixed, "fixed"),
          el("h3", {}, `Broke ${count(turned.broke.length)}`),
          taskLinks(candidate, turned.broke, "broke"),
        ]
      : null,
    parent ? [el("h3", {}, `Changes to ${parent.id}`), diffView(parent.source, candidate.source)] : null,
    el("details", {}, el("summary", {}, "The whole source"), source),
  );
}

/** Two candidates of one run; tasks are compared where they are of the same phase, whose episodes share their keys. */
function pairPanel(one, other) {
  const name = (candidate) => `${candidate.cycle + 1} / ${candidate.id}`;
  const same = one.archive === other.archive && one.score && other.score;
  const turned = same ? broken(one, other) : null;
  return el(
    "div",
    { class: "panel", id: "pair" },
    el("h3", {}, `${name(one)} and ${name(other)}`),
    el(
      "div",
      { class: "side" },
      [one, other].map((candidate) =>
        el("div", {}, el("h3", {}, `${name(candidate)} `, tags(candidate)), candidateFacts(candidate)),
      ),
    ),
    turned
      ? [
          el("h3", {}, `Right in ${name(other)} alone: ${count(turned.fixed.length)}`),
          taskLinks(other, turned.fixed, "fixed"),
          el("h3", {}, `Right in ${name(one)} alone: ${count(turned.broke.length)}`),
          taskLinks(other, turned.broke, "broke"),
        ]
      : el("p", { class: "count" }, "They are not compared by task: they were not scored in the same phase."),
    el("h3", {}, `From ${name(one)} to ${name(other)}`),
    diffView(one.source, other.source),
  );
}
