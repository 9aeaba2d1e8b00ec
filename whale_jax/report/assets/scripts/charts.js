/* Charts by Vega-Lite. Colours are those of the page, so a chart is drawn again when the theme changes. */

const drawn = new Set();

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/* Okabe and Ito's colours, which readers with any colour vision tell apart; the first is the page's ink. */
const categories = () => [
  colour("blue"),
  colour("vermillion"),
  colour("green"),
  colour("purple"),
  colour("search"),
  colour("ink"),
  colour("faint"),
];

function chartConfig() {
  const [ink, muted, rule] = ["ink", "muted", "rule"].map(colour);
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: null,
    font,
    view: { stroke: null },
    axis: {
      labelColor: muted,
      titleColor: muted,
      gridColor: rule,
      domainColor: colour("faint"),
      tickColor: colour("faint"),
      labelFontSize: 11,
      titleFontSize: 11,
      titleFontWeight: 400,
      titlePadding: 8,
      gridOpacity: 0.7,
      tickSize: 4,
    },
    axisX: { grid: false },
    legend: {
      labelColor: ink,
      titleColor: muted,
      labelFontSize: 11,
      titleFontSize: 11,
      titleFontWeight: 400,
      orient: "top",
      symbolStrokeWidth: 2,
      labelLimit: 320,
    },
    range: { category: categories() },
    point: { size: 45, filled: true, opacity: 1 },
    line: { strokeWidth: 2 },
    text: { color: ink, fontSize: 11 },
    rule: { color: muted },
  };
}

function tooltip(handler, event, item, value) {
  const box = document.getElementById("tooltip");
  if (!value || typeof value !== "object") {
    box.hidden = true;
    return;
  }
  box.replaceChildren(
    ...Object.entries(value).map(([name, text]) =>
      el("div", {}, el("span", {}, shown(name)), el("span", {}, shown(String(text)))),
    ),
  );
  box.hidden = false;
  const left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8);
  box.style.left = `${Math.max(8, left)}px`;
  box.style.top = `${Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8)}px`;
}

/**
 * A figure with its chart and ways to save it.
 * @param title what it shows; @param note one line below; @param file name of saved files, without ending
 * @param spec () → Vega-Lite; @param rows numbers for the CSV
 */
function chart({ title, note = "", file, spec, rows }) {
  const place = el("div", { class: "chart" });
  const one = { place, spec, description: title, view: null };
  const saves = el(
    "div",
    { class: "saves" },
    el(
      "button",
      { type: "button", on: { click: async () => save(`${file}.png`, await await png(one), "image/png") } },
      "PNG",
    ),
    el(
      "button",
      { type: "button", on: { click: async () => save(`${file}.svg`, await one.view.toSVG(), "image/svg+xml") } },
      "SVG",
    ),
    el("button", { type: "button", on: { click: () => save(`${file}.csv`, csv(rows), "text/csv") } }, "CSV"),
  );
  const figure = el(
    "figure",
    { "data-chart": file },
    el("figcaption", {}, el("h3", {}, shown(title)), note ? el("p", {}, shown(note)) : null),
    place,
    saves,
  );
  drawn.add(one);
  queueMicrotask(() => drawChart(one));
  return figure;
}

async function png(one) {
  const canvas = await one.view.toCanvas(3);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

async function drawChart(one) {
  if (!one.place.isConnected) {
    drawn.delete(one);
    one.view?.finalize();
    return;
  }
  const own = one.spec();
  // A layer about nothing has no extent, which Vega warns of.
  if (own.layer) own.layer = own.layer.filter((layer) => layer.data === undefined || layer.data.values.length > 0);
  const spec = {
    width: "container",
    autosize: { type: "fit-x", contains: "padding" },
    config: chartConfig(),
    description: one.description,
    ...own,
  };
  const runtime = charts.parse(charts.compile(spec).spec, null, { ast: true });
  one.view?.finalize();
  one.place.replaceChildren();
  one.view = new charts.View(runtime, {
    expr: charts.expressionInterpreter,
    renderer: "svg",
    container: one.place,
    hover: true,
    logLevel: charts.Warn,
  }).tooltip(tooltip);
  await one.view.runAsync();
  one.place.dataset.ready = "";
}

/** Draws every chart on the page again, in the colours of the theme. */
function redrawCharts() {
  for (const one of drawn) drawChart(one);
}

/** A scale from zero; where everything is zero, one that still has a unit to show. */
const fromZero = (values) => (values.some((value) => value > 0) ? { zero: true } : { domain: [0, 1] });

/** Encodings that several charts share. */
const rolloutsAxis = (title = "training and search rollouts") => ({
  field: "rollouts",
  type: "quantitative",
  title,
  axis: { format: ",d", tickCount: 7 },
  scale: { nice: false, zero: true },
});
const PHASE_NAMES = { weight: "weight phase", search: "search phase", probe: "probe" };

/** Shaded spans behind a chart over rollouts. */
function phaseLayer(phases) {
  const values = phases.map((phase) => ({
    ...phase,
    phase: PHASE_NAMES[phase.kind] ?? phase.kind,
    cycle: phase.cycle + 1,
  }));
  return {
    data: { values },
    mark: { type: "rect", opacity: 0.14 },
    encoding: {
      x: {
        field: "start",
        type: "quantitative",
        title: "training and search rollouts",
        axis: { format: ",d", tickCount: 7 },
      },
      x2: { field: "end" },
      fill: {
        field: "phase",
        type: "nominal",
        title: null,
        scale: {
          domain: Object.values(PHASE_NAMES).filter((name) => values.some((one) => one.phase === name)),
          range: Object.keys(PHASE_NAMES)
            .filter((kind) => values.some((one) => one.kind === kind))
            .map((kind) => colour({ weight: "weights", search: "search", probe: "probe" }[kind])),
        },
      },
      tooltip: [
        { field: "phase", title: "phase" },
        { field: "cycle", title: "cycle" },
      ],
    },
  };
}
