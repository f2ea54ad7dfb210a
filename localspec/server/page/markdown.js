// Markdown as elements, also while it streams. Text is never read as HTML.

import { coloured } from "./code.js";

const origins = ["plain"]; // met so far
const FIRST = 33; // code of the mark of the first: no white space
const DEEPEST = 8; // lists, quotes or spans within each other

/** An element with a class and a text; what a model or a user wrote is never read as HTML. */
export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** A button that copies what `text` returns, and says whether it did. */
export function copyButton(text) {
  const button = element("button", "copy", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    // Without TLS, a page of another machine has no clipboard.
    const copied = navigator.clipboard?.writeText(text()) ?? Promise.reject();
    button.textContent = await copied.then(() => "Copied", () => "Not copied");
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

/** A text, and in `marks` a character for each of its own, which stands for its origin. */
class Marked {
  constructor(text = "", marks = "") {
    this.text = text;
    this.marks = marks;
  }

  plus({ text, origin = "plain" }) {
    if (!origins.includes(origin)) origins.push(origin);
    const mark = String.fromCharCode(FIRST + origins.indexOf(origin));
    return new Marked(this.text + text, this.marks + mark.repeat(text.length));
  }

  slice(from, to) {
    return new Marked(this.text.slice(from, to), this.marks.slice(from, to));
  }

  trim() {
    const from = this.text.length - this.text.trimStart().length;
    return this.slice(from, Math.max(from, this.text.trimEnd().length));
  }

  lines() {
    return [...this.text.matchAll(/^.*$/gm)].map(({ index, 0: line }) => this.slice(index, index + line.length));
  }

  static join(lines) {
    const all = (name, mark) => lines.map((line) => line[name]).join(mark);
    return new Marked(all("text", "\n"), all("marks", " "));
  }
}

/** A text as it comes. Only its last two blocks, which may still change, are made again. */
export class MarkdownView {
  constructor(parent) {
    this.parent = parent;
    this.text = new Marked(); // of the last blocks
    this.last = []; // their elements
  }

  /** Append runs of text, each of one origin. */
  add(runs) {
    for (const run of runs) this.text = this.text.plus(run);
    for (const node of this.last) remove(node, this.parent);
    const lines = this.text.lines();
    const last = appendBlocks(this.parent, lines).slice(-2);
    this.last = last.map(({ node }) => node);
    if (last.length) this.text = Marked.join(lines.slice(last[0].from));
  }
}

/** Remove a block, and the list that it leaves empty. */
function remove(node, parent) {
  const list = node.parentNode;
  node.remove();
  if (list !== parent && !list.hasChildNodes()) list.remove();
}

// -- blocks: each maker returns an element and the line after it ----------------------------

const BLOCKS = [
  [/^( *)(`{3,}|~{3,})([^`]*)$/, code],
  [/^ {0,3}(#{1,6})(?:[ \t]+|$)/, heading],
  [/^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/, (match, lines, at) => [element("hr"), at + 1]],
  [/^ {0,3}> ?/, quote],
  [/^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/, item],
  [/\|/, table],
];

/** Append the blocks of some lines; returns their elements, each with its first line. */
function appendBlocks(parent, lines, depth = 0) {
  const made = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const make = special(lines, at, depth) ?? (() => paragraph(lines, at, depth));
    const [node, next] = make();
    append(parent, node);
    made.push({ node, from: at });
    at = next;
  }
  return made;
}

const isBlank = (line) => !line.text.trim();
const indentOf = (line) => line.text.match(/^[ \t]*/)[0].length;

/** Append a block; an item goes into the list before it, or begins one. */
function append(parent, node) {
  if (node.tagName !== "LI") return parent.append(node);
  const name = node.value ? "OL" : "UL";
  const before = parent.lastElementChild;
  (before?.tagName === name ? before : parent.appendChild(element(name))).append(node);
}

/** The maker of a block that is no paragraph. */
function special(lines, at, depth) {
  for (const [pattern, make] of BLOCKS) {
    const match = pattern.exec(lines[at].text);
    if (!match || (depth >= DEEPEST && (make === quote || make === item))) continue;
    if (make !== table || isTable(lines, at)) return () => make(match, lines, at, depth);
  }
}

function paragraph(lines, at, depth) {
  let next = at + 1;
  while (next < lines.length && !isBlank(lines[next]) && !special(lines, next, depth)) next += 1;
  return [withSpans(element("p"), Marked.join(lines.slice(at, next)).trim()), next];
}

/** Without an end of its own, code goes on to the end. */
function code([, { length: indent }, fence, language], lines, at) {
  const closes = ({ text }) => text.trim().length >= fence.length && !text.trim().replaceAll(fence[0], "");
  const length = lines.slice(at + 1).findIndex(closes);
  const end = length < 0 ? lines.length : at + 1 + length;
  const content = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indentOf(line), indent)));
  const made = element("div", "code");
  const bar = made.appendChild(element("div", "bar"));
  const pre = made.appendChild(element("pre"));
  pre.tabIndex = 0; // to scroll it by keys
  appendCode(pre.appendChild(element("code")), Marked.join(content), language.trim());
  bar.append(element("p", "language", language.trim()), copyButton(() => pre.textContent));
  return [made, end + 1];
}

/** Append code as spans by origin, those of comments, strings, numbers and keywords in one element. */
function appendCode(parent, source, language) {
  let done = 0;
  for (const { from, to, kind } of coloured(source.text, language.split(/[\s{:,]/)[0])) {
    appendOrigins(parent, source.slice(done, from));
    appendOrigins(parent.appendChild(element("span", kind)), source.slice(from, to));
    done = to;
  }
  appendOrigins(parent, source.slice(done));
}

function heading([mark, { length: level }], lines, at) {
  const title = lines[at].slice(mark.length).trim();
  const closing = /(?:^|[ \t])#+$/.exec(title.text)?.index ?? title.text.length;
  return [withSpans(element(`h${Math.min(6, level + 2)}`), title.slice(0, closing).trim()), at + 1];
}

function quote(match, lines, at, depth) {
  const prefix = (line) => /^ {0,3}> ?/.exec(line?.text ?? "")?.[0].length;
  const quoted = [];
  while (prefix(lines[at])) quoted.push(lines[at].slice(prefix(lines[at++])));
  const made = element("blockquote");
  appendBlocks(made, quoted, depth + 1);
  return [made, at];
}

/** An item has the lines that are indented more than its mark, blank ones between included. */
function item([mark, { length: indent }, name], lines, at, depth) {
  let next = at + 1;
  for (let line = next; line < lines.length; line += 1) {
    if (isBlank(lines[line])) continue;
    const goesOn = next === line && !special(lines, line, depth);
    if (indentOf(lines[line]) < indent + 2 && !goesOn) break;
    next = line + 1;
  }
  const rest = lines.slice(at + 1, next).map((line) => line.slice(Math.min(indentOf(line), mark.length)));
  const made = element("li");
  if (/\d/.test(name)) made.value = parseInt(name, 10) || 1;
  appendBlocks(made, [lines[at].slice(mark.length), ...rest], depth + 1);
  return [made, next];
}

function isTable(lines, at) {
  if (!lines[at + 1]?.text.includes("-")) return false;
  const rules = cells(lines[at + 1]);
  return rules.every((cell) => /^:?-+:?$/.test(cell.text)) && rules.length === cells(lines[at]).length;
}

function table(match, lines, at) {
  const made = element("div", "table");
  made.tabIndex = 0;
  const rows = made.appendChild(element("table"));
  const addRow = (line, name) => {
    const row = rows.appendChild(element("tr"));
    for (const cell of cells(line)) row.append(withSpans(element(name), cell));
  };
  addRow(lines[at], "th");
  for (at += 2; lines[at]?.text.includes("|"); at += 1) addRow(lines[at], "td");
  return [made, at];
}

/** The cells of a row, separated by `|` but not by `\|`. */
function cells(line) {
  const row = line.trim();
  const found = [...row.text.matchAll(/(?:\\[^]|[^\\|])*(?:\||\\?$)/g)].map(({ index, 0: cell }) =>
    row.slice(index, index + cell.replace(/\|$/, "").length).trim());
  found.pop(); // the empty match at the end
  if (found.length > 1 && !found[0].text) found.shift();
  return found;
}

// -- spans ----------------------------------------------------------------------------------

// What a span may have in it. No two alternatives begin alike, so a failed match takes linear time.
const INSIDE = "((?:`[^`\\n]{0,200}`|\\\\[^]|[^`\\\\]){1,1000}?)";
const WORD = "[\\p{L}\\p{N}_]";
const SPANS = [
  [/\\([#$&*+\-.<>_`|~])/uy, null],
  [/(?<!`)(`+)(?!`)(?<inside>[^]{1,1000}?)(?<!`)\1(?!`)/uy, "code"],
  [`\\*\\*(?=\\S)${INSIDE}(?<=\\S)\\*\\*(?!\\*)`, "strong"],
  [`(?<!${WORD})__(?=\\S)${INSIDE}(?<=\\S)__(?!${WORD})`, "strong"],
  [`\\*(?=[^\\s*])${INSIDE}(?<![\\s*])\\*(?!\\*)`, "em"],
  [`(?<!${WORD})_(?=[^\\s_])${INSIDE}(?<![\\s_])_(?!${WORD})`, "em"],
  [`~~(?=\\S)${INSIDE}(?<=\\S)~~`, "del"],
  [/!?\[([^[\]]{1,1000})\]\((https?:\/\/(?:\([^\s()<>]{0,500}\)|[^\s()<>]){1,2000})(?:\s+"[^"\n]{0,500}")?\)/iuy, "a"],
  [/(?<![\p{L}\p{N}_])(https?:\/\/(?:\([^\s()<>"'`]{0,500}\)|[^\s()<>"'`[\]|]){1,2000})(?<![.,;:!?*_~}])/iuy, "a"],
].map(([pattern, name]) => [new RegExp(pattern, "diuy"), name]);

/** Append a text with its spans of code, emphasis and links; returns the parent. */
function withSpans(parent, source, depth = 0) {
  const { text } = source;
  let done = 0;
  for (let at = 0; at < text.length && depth < DEEPEST; ) {
    const [match, name] = spanAt(text, at) ?? [];
    if (!match || (name === "a" && isInLink(parent))) {
      at += 1;
      continue;
    }
    appendOrigins(parent, source.slice(done, at));
    const inside = source.slice(...(match.indices.groups?.inside ?? match.indices[1]));
    if (name) parent.append(span(name, inside, match, depth));
    else appendOrigins(parent, inside);
    done = at = at + match[0].length;
  }
  appendOrigins(parent, source.slice(done));
  return parent;
}

function spanAt(text, at) {
  if (!/[\\`*_~![h]/i.test(text[at])) return;
  for (const [pattern, name] of SPANS) {
    pattern.lastIndex = at;
    const match = pattern.exec(text);
    if (match && (name !== "a" || URL.canParse(match[2] ?? match[1]))) return [match, name];
  }
}

function span(name, inside, match, depth) {
  const made = element(name);
  if (name === "code") {
    appendOrigins(made, inside);
    return made;
  }
  if (name === "a") {
    made.href = made.title = match[2] ?? match[1];
    made.rel = "noopener noreferrer";
    made.target = "_blank";
  }
  return withSpans(made, inside, depth + 1);
}

function isInLink(node) {
  return Boolean(node) && (node.tagName === "A" || isInLink(node.parentNode));
}

/** Append a text as spans by origin. Indentation shows none. */
function appendOrigins(parent, { text, marks }) {
  for (const { index, 0: part } of text.matchAll(/^[ \t]+|[^\n]+\n*|\n+/gm)) {
    const end = index + part.length;
    for (let from = index, to; from < end; from = to) {
      for (to = from + 1; to < end && (marks[to] === marks[from] || text[to] === "\n"); ) to += 1;
      const piece = text.slice(from, to);
      parent.append(element("span", piece.trim() ? origins[marks.charCodeAt(from) - FIRST] : "indent", piece));
    }
  }
}
