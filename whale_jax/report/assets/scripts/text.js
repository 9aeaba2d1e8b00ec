"use strict";

/* What a run left behind becomes text here, and nothing else: nodes are made by name, contents are text nodes. */

/**
 * An element. `attributes` are set as such, `class` included; those of `on` become listeners. Children are nodes or
 * texts; texts are never read as HTML. Links go to a place in the page alone.
 */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "href" && !String(value).startsWith("#")) {
      throw new Error("links of this page stay in it");
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, String(value));
    }
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/*
 * Characters that show nothing, or change how their neighbours show: controls but newline and tab, direction marks and
 * overrides, invisible spaces and fillers, halves of surrogate pairs, tags.
 */
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
    "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb]|\\p{Cs}|[\\u{e0000}-\\u{e0fff}]",
  "gu",
);

/** Text as nodes; what HIDDEN names is written out, so that it can be seen and does nothing. */
function shown(text) {
  const fragment = document.createDocumentFragment();
  let end = 0;
  for (const match of String(text).matchAll(HIDDEN)) {
    if (match.index > end) fragment.append(text.slice(end, match.index));
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    fragment.append(el("span", { class: "escape", title: "a character that does not show" }, `U+${code}`));
    end = match.index + match[0].length;
  }
  if (end < text.length) fragment.append(String(text).slice(end));
  return fragment;
}

/** A short text from a run, on its own line direction. */
function words(text) {
  return el("bdi", {}, shown(String(text ?? "")));
}

const FIRST_CHARACTERS = 12000;

/** Fills `host` with a text of any length: its beginning, and a button for the rest. `draw` makes nodes of a text. */
function longText(host, text, draw = shown) {
  if (text.length <= FIRST_CHARACTERS) {
    host.append(draw(text));
    return;
  }
  let end = FIRST_CHARACTERS;
  if (/[\ud800-\udbff]/.test(text[end - 1])) end -= 1;
  host.append(draw(text.slice(0, end)));
  const more = el("button", { type: "button", class: "more" }, `Show the other ${count(text.length - end)} characters`);
  more.addEventListener("click", () => {
    more.remove();
    host.append(draw(text.slice(end)));
  });
  host.append("\n", more);
}

const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US"));
const many = (number, thing) => `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
const percent = (share, digits = 1) =>
  share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`;
const signed = (points) => `${points < 0 ? "−" : "+"}${Math.abs(points).toFixed(1)}`;

/** A large number in a few characters. */
function short(value) {
  if (value === null || value === undefined) return "–";
  const units = [
    [1e18, "E"],
    [1e15, "P"],
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e4, "k"],
  ];
  for (const [size, unit] of units) {
    if (value >= size) return `${(value / (unit === "k" ? 1e3 : size)).toPrecision(3)} ${unit}`;
  }
  return count(value);
}

/** Seconds for people. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${seconds.toFixed(0)} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(1)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

/** "16.7 to 23.7" of an interval of shares. */
const interval = (ci) => `${(100 * ci[0]).toFixed(1)} to ${(100 * ci[1]).toFixed(1)}`;
