/* The page's frame: sections, the run that is looked at, the theme. */

const state = { run: 0, view: "glance" };
const currentRun = () => core.runs[state.run];

function views() {
  const all = [
    ["glance", "At a glance"],
    ["figures", "Figures"],
    ["compare", "Runs compared"],
    ["archive", "Archive"],
    ["trajectories", "Trajectories"],
    ["settings", "Settings"],
  ];
  return all.filter(([name]) => name !== "compare" || core.runs.length > 1);
}

function chooseRun(number) {
  state.run = number;
  archiveState.chosen = [];
  Object.assign(archiveState, { cycle: "all" });
  Object.assign(trajectoryState, { page: 0, found: null, cycle: "all", candidate: "all", end: "all" });
  document.getElementById("run").value = String(number);
  const view = state.view === "compare" ? "glance" : state.view;
  if (location.hash === `#${view}`) draw();
  else location.hash = `#${view}`;
}

function drawFrame() {
  const run = currentRun();
  document.getElementById("title").replaceChildren(shown(run.name));
  const line = `${run.settings.domain} · ${run.method} · seed ${run.settings.seed} · ${count(run.commits)} commits${run.finished ? "" : " · goes on"}`;
  document.getElementById("subtitle").replaceChildren(shown(line));
  document
    .getElementById("nav")
    .replaceChildren(
      ...views().map(([name, label]) =>
        el("a", { href: `#${name}`, "aria-current": name === state.view ? "page" : null }, label),
      ),
    );
}

function draw() {
  const [view, ...rest] = location.hash.slice(1).split("/");
  const known = views().some(([name]) => name === view);
  if (!known && location.hash === "#main") {
    document.getElementById("main").focus();
    return;
  }
  state.view = known ? view : "glance";
  const run = currentRun();
  const makers = {
    glance: () => glanceView(run),
    figures: () => figuresView(run),
    compare: () => compareView(core.comparison),
    archive: () => archiveView(run, rest.join("/")),
    trajectories: () => trajectoriesView(run, rest[0]),
    settings: () => settingsView(run),
  };
  document.getElementById("tooltip").hidden = true;
  drawFrame();
  document.getElementById("main").replaceChildren(...makers[state.view]().flat().filter(Boolean));
  if (rest.length) scrollTo({ top: document.getElementById("main").offsetTop - 16 });
}

const THEMES = ["auto", "light", "dark"];
let theme = "auto";

function applyTheme() {
  const dark = theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  redrawCharts();
}

function startControls() {
  const select = document.getElementById("run");
  select.replaceChildren(...core.runs.map((run, number) => el("option", { value: number }, shown(run.name))));
  select.addEventListener("change", () => chooseRun(Number(select.value)));
  document.getElementById("run-label").hidden = core.runs.length === 1;
  document.getElementById("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    applyTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  addEventListener("hashchange", draw);
}

async function start() {
  Object.assign(core, await unpack("core"));
  startControls();
  if (core.runs.length > 1 && !location.hash) history.replaceState(null, "", "#compare");
  applyTheme();
  draw();
  document.documentElement.dataset.ready = "";
}

start().catch((error) =>
  document
    .getElementById("main")
    .replaceChildren(el("p", { class: "failure" }, `The report cannot be shown: ${error.message}`)),
);
