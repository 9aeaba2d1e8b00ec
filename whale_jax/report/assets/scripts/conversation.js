/* One trajectory as a conversation: who wrote what, and on which of it the loss falls. */

const THINK_END = "</think>";
const CALL = /<tool_call>[\s\S]*?<\/tool_call>/g;

/** Sampled text with its thinking and its tool calls set apart; every character is kept. */
function sampledText(text) {
  const fragment = document.createDocumentFragment();
  const end = text.lastIndexOf(THINK_END);
  if (end >= 0) fragment.append(el("span", { class: "thinking" }, shown(text.slice(0, end + THINK_END.length))));
  const rest = end >= 0 ? text.slice(end + THINK_END.length) : text;
  let place = 0;
  for (const match of rest.matchAll(CALL)) {
    fragment.append(shown(rest.slice(place, match.index)), el("span", { class: "call" }, shown(match[0])));
    place = match.index + match[0].length;
  }
  fragment.append(shown(rest.slice(place)));
  return fragment;
}

function segmentNode([source, turn, tokens, finish, text, left]) {
  const kind = ["sampled", "harness", "tool", "prompt"].includes(source) ? source : "prompt";
  const notes = [
    turn === null ? null : `turn ${turn + 1}`,
    tokens === null ? null : many(tokens, "token"),
    finish === null ? null : finish === "stop" ? "ended by itself" : "cut by a limit",
  ].filter(Boolean);
  const host = el("div", { class: "text" });
  longText(host, text, kind === "sampled" ? sampledText : shown);
  if (left) host.append(el("span", { class: "escape" }, `${count(left)} more characters are not in this page`));
  const head = el(
    "div",
    { class: "head" },
    el("span", { class: "source" }, shown(source)),
    notes.map((note) => el("span", {}, note)),
    el("span", { class: "loss" }, kind === "sampled" ? "in the loss" : "masked"),
  );
  return el("div", { class: `segment ${kind}` }, head, host);
}

function verdictNode(row, trace) {
  const [word, kind] =
    row.reward === null ? ["unscored", "unscored"] : row.reward > 0.5 ? ["right", "right"] : ["wrong", "wrong"];
  const entries = [
    ["verdict", el("strong", { class: kind }, word)],
    ["answer", words(trace.answer ?? "none")],
    ["reason", words(trace.reason ?? "–")],
    ["ended", words(row.end)],
    ["returned", trace.returned ? `chat ${trace.returned[0] + 1}, turn ${trace.returned[1] + 1}` : "no valid reply"],
    ["effort", [many(row.turns, "turn"), many(row.tool_calls, "call"), many(row.tokens, "sampled token")].join(", ")],
  ];
  if (trace.error) entries.push(["error", words(trace.error)]);
  return el(
    "dl",
    { class: "facts verdict", id: "verdict" },
    entries.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
  );
}

/** Boards, move by move; arrow keys step. */
function boardsNode(frames) {
  if (!frames.length) return null;
  const image = el("img", { alt: "" });
  const items = frames.map((frame, place) =>
    el(
      "li",
      {},
      el("button", { type: "button", class: "link", on: { click: () => show(place) } }, shown(frame.caption)),
    ),
  );
  let at = 0;
  async function show(place) {
    at = Math.max(0, Math.min(frames.length - 1, place));
    const wanted = at;
    items.forEach((item, number) =>
      number === at
        ? item.firstChild.setAttribute("aria-current", "step")
        : item.firstChild.removeAttribute("aria-current"),
    );
    const svg = await boardText(frames[at].board);
    if (wanted !== at) return;
    // As an image, an SVG runs no program and loads nothing.
    image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
    image.alt = `chess board: ${frames[at].caption}`;
  }
  const step = (event) => {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    event.preventDefault();
    show(at + (event.key === "ArrowRight" ? 1 : -1));
  };
  show(0);
  return el(
    "div",
    { class: "boards", id: "boards", role: "group", "aria-label": "boards, move by move", on: { keydown: step } },
    image,
    el("div", {}, el("h3", {}, "Move by move"), el("ol", {}, items), el("p", { class: "count" }, "Arrow keys step.")),
  );
}

function conversationNode(row, trace) {
  const host = el("div", { class: "conversation", id: "conversation" });
  const mask = tick(
    "Show where the loss falls",
    trajectoryState.mask,
    (on) => {
      trajectoryState.mask = on;
      host.classList.toggle("masked", on);
    },
    "loss-mask",
  );
  host.classList.toggle("masked", trajectoryState.mask);
  trace.chats.forEach((chat, place) =>
    host.append(...(trace.chats.length > 1 ? [el("h3", {}, `Chat ${place + 1}`)] : []), ...chat.map(segmentNode)),
  );
  const legend = el(
    "div",
    { class: "legend" },
    el("span", { class: "sampled" }, "sampled by the policy"),
    el("span", { class: "harness" }, "written by the harness"),
    el("span", { class: "tool" }, "result of a tool"),
    el("span", {}, "chat format"),
  );
  return [verdictNode(row, trace), boardsNode(trace.frames), el("div", { class: "controls" }, mask), legend, host];
}
