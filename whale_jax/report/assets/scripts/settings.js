/* What a run was told, and what it ran on. */

function facts(object) {
  return el(
    "dl",
    { class: "facts" },
    Object.entries(object).flatMap(([name, value]) => [
      el("dt", {}, shown(name)),
      el("dd", {}, words(value === null ? "unset" : typeof value === "object" ? JSON.stringify(value) : String(value))),
    ]),
  );
}

/** The licences of the charting library, a copy of which is in every page. */
function licences() {
  const host = el("pre", { class: "segment" }, el("code", { class: "text" }));
  block("licences").then((text) => host.firstChild.append(shown(text)));
  return el("details", {}, el("summary", {}, "Licences of the charting library in this page"), host);
}

function settingsView(run) {
  return [
    el("section", {}, el("h2", {}, "Settings"), facts(run.settings)),
    el("section", {}, el("h2", {}, "Inputs, by SHA-256"), facts(run.inputs)),
    el("section", {}, el("h2", {}, "Environment"), facts(run.environment)),
    el("section", {}, licences()),
  ];
}
