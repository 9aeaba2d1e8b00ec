/* What changed between two texts, line by line. */

const LARGEST_TABLE = 4e6;

/** Lines as [kind, text]: " " in both, "-" in the first alone, "+" in the second alone; a longest common subsequence. */
function diffLines(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const [one, other] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  const same = (lines) => lines.map((line) => [" ", line]);
  return [...same(a.slice(0, start)), ...middle(one, other), ...same(end ? a.slice(-end) : [])];
}

function middle(a, b) {
  if (a.length * b.length > LARGEST_TABLE) return [...a.map((line) => ["-", line]), ...b.map((line) => ["+", line])];
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i * width + j] =
        a[i] === b[j]
          ? common[(i + 1) * width + j + 1] + 1
          : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push([" ", a[i]]);
      i += 1;
      j += 1;
    } else if (i < a.length && (j === b.length || common[(i + 1) * width + j] >= common[i * width + j + 1])) {
      lines.push(["-", a[i]]);
      i += 1;
    } else {
      lines.push(["+", b[j]]);
      j += 1;
    }
  }
  return lines;
}

const CONTEXT = 3;
const LONGEST_LINE = 4000;

/** The changes with a little of what stands around them. */
function diffView(before, after) {
  const lines = diffLines(before, after);
  if (lines.every(([kind]) => kind === " ")) return el("p", { class: "lead" }, "The two are the same.");
  const near = new Set();
  lines.forEach(([kind], place) => {
    if (kind !== " ") for (let at = place - CONTEXT; at <= place + CONTEXT; at += 1) near.add(at);
  });
  const host = el("div", { class: "diff", tabindex: "0", role: "region", "aria-label": "changes" });
  let skipped = 0;
  lines.forEach(([kind, text], place) => {
    if (!near.has(place)) {
      skipped += 1;
      return;
    }
    if (skipped)
      host.append(el("div", { class: "gap" }, el("span", {}, "⋯"), el("span", {}, `${count(skipped)} lines`)));
    skipped = 0;
    const cut =
      text.length > LONGEST_LINE
        ? `${text.slice(0, LONGEST_LINE)} … ${count(text.length - LONGEST_LINE)} more characters`
        : text;
    host.append(
      el(
        "div",
        { class: { "+": "added", "-": "removed" }[kind] ?? null },
        el("span", {}, kind === "-" ? "−" : kind),
        el("span", {}, shown(cut)),
      ),
    );
  });
  return host;
}
