/* The page's data: blocks of base64 of gzip of JSON, unpacked when they are needed. */

const core = {};

/** The value of a block. */
async function unpack(name) {
  const block = document.getElementById(`data-${name}`);
  if (!block) throw new Error(`this page has no data called ${name}`);
  const bytes = Uint8Array.from(atob(block.textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const KEPT_BLOCKS = 40;
const blocks = new Map();

/** The value of a block, kept for a while. */
function block(name) {
  const known = blocks.get(name) ?? unpack(name);
  blocks.delete(name);
  blocks.set(name, known);
  if (blocks.size > KEPT_BLOCKS) blocks.delete(blocks.keys().next().value);
  return known;
}

/** The whole trajectory in a row of a run's list. */
async function trajectory(run, row) {
  const size = core.trajectories.chunk;
  const chunk = await block(`run-${run}-chunk-${Math.floor(row / size)}`);
  return chunk[row % size];
}

/** The SVG text of a board. */
async function boardText(number) {
  const chunk = await block(`boards-${Math.floor(number / core.trajectories.board_chunk)}`);
  return chunk[number % core.trajectories.board_chunk];
}

/** A run's list of trajectories as objects, made once. */
function rowsOf(run) {
  const listed = core.trajectories.runs[run];
  if (!listed.objects) {
    listed.objects = listed.rows.map((values, row) => {
      const object = { row };
      core.trajectories.columns.forEach((name, place) => (object[name] = values[place]));
      return object;
    });
  }
  return listed.objects;
}

/** Saves a file that the page made. */
function save(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** CSV (RFC 4180). A text that a spreadsheet would take for a formula gets an apostrophe. */
function csv(rows) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    let text = typeof value === "object" ? JSON.stringify(value) : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return (
    [names.map(cell), ...rows.map((row) => names.map((name) => cell(row[name])))]
      .map((line) => line.join(","))
      .join("\r\n") + "\r\n"
  );
}
