// Markdown as elements, also while it comes. No text becomes HTML.

import { highlight } from "./highlight.js";
import { blocks, Marked } from "./markdown.js";

/** Where a token came from; the index is its mark in a `Marked`. */
export const ORIGINS = ["draft", "lookup", "history", "forced", "corrected", "plain"];

/** An element with a class and a text; what a model or a user wrote is never read as HTML. */
export function element(name, className, text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

/** A text as it comes. Only its last blocks, which may still change, are made again. */
export class MarkdownView {
  constructor(parent) {
    this.parent = parent;
    this.text = new Marked(); // what may still change
    this.shown = []; // its blocks, each {kind, from, element}
  }

  /** Append runs of text, each of one origin. */
  add(runs) {
    for (const { text, origin } of runs) {
      this.text = this.text.plus(text, String(Math.max(0, ORIGINS.indexOf(origin))));
    }
    const lines = this.text.lines();
    this.#show(blocks(lines));
    if (runs.some(({ text }) => text.includes("\n"))) this.#settle(lines);
  }

  #show(found) {
    const [former, last] = [this.shown.at(-1), found.at(-1)];
    if (found.length === 1 && this.shown.length === 1 && isSameCode(former, last)) {
      fillCode(former.element, last); // a selection in it stays
      return;
    }
    for (const { element } of this.shown) remove(element, this.parent);
    this.shown = found.map((block) => ({ ...block, element: append(this.parent, block) }));
  }

  /** Forget the blocks that no further line can change. */
  #settle(lines) {
    const from = blocks(lines.slice(0, -1)).at(-1)?.from ?? 0;
    this.shown = this.shown.filter((block) => block.from >= from);
    for (const block of this.shown) block.from -= from;
    this.text = Marked.join(lines.slice(from));
  }
}

function isSameCode(former, block) {
  return former.kind === "code" && block.kind === "code" && former.language === block.language;
}

/** Remove a block, and the list that it leaves empty. */
function remove(element, parent) {
  const list = element.parentNode;
  element.remove();
  if (list !== parent && !list.hasChildNodes()) list.remove();
}

// -- blocks -----------------------------------------------------------------------------------

const MAKERS = {
  paragraph: ({ content }) => withInline(element("p"), content),
  heading: ({ content, level }) => withInline(element(`h${Math.min(6, level + 2)}`), content),
  rule: () => element("hr"),
  quote: ({ blocks }) => withBlocks(element("blockquote"), blocks),
  code: codeBlock,
  table: tableBlock,
};

/** Append a block; an item goes into the list before it, or begins one. */
function append(parent, block) {
  if (block.kind !== "item") return parent.appendChild(MAKERS[block.kind](block));
  const name = Number.isNaN(block.number) ? "UL" : "OL";
  const before = parent.lastElementChild;
  const list = before?.tagName === name ? before : parent.appendChild(element(name));
  const made = withBlocks(element("li"), block.blocks);
  if (name === "OL") made.value = block.number;
  return list.appendChild(made);
}

function withBlocks(parent, blocks) {
  for (const block of blocks) append(parent, block);
  return parent;
}

function codeBlock(block) {
  const made = element("div", "code");
  const code = element("code");
  const bar = element("div", "bar");
  bar.append(element("p", "language", block.language), copyButton(() => code.textContent));
  const pre = element("pre");
  pre.tabIndex = 0; // to scroll it by keys
  pre.append(code);
  made.append(bar, pre);
  fillCode(made, block);
  return made;
}

function tableBlock({ rows }) {
  const made = element("div", "table");
  made.tabIndex = 0;
  const table = made.appendChild(element("table"));
  for (const [i, row] of rows.entries()) {
    const line = table.appendChild(element("tr"));
    for (const cell of row) line.append(withInline(element(i ? "td" : "th"), cell));
  }
  return made;
}

/** Show a code in its element, and leave what is there already. */
function fillCode(made, { text, language }) {
  const code = made.lastElementChild.firstElementChild;
  const spans = [...code.children];
  const pieces = [...parts(text, highlight(text.text, language))];
  const same = (piece, i) => spans[i]?.textContent === piece[0] && spans[i].className === piece[1];
  const changed = pieces.findIndex((piece, i) => !same(piece, i));
  const from = changed < 0 ? pieces.length : changed;
  for (const span of spans.slice(from)) span.remove();
  code.append(...pieces.slice(from).map(([text, name]) => element("span", name, text)));
}

// -- inline -----------------------------------------------------------------------------------

function withInline(parent, nodes) {
  for (const node of nodes) parent.append(...INLINE[node.kind](node));
  return parent;
}

const spans = (text) => [...parts(text)].map(([text, name]) => element("span", name, text));
const wrapped = ({ kind, children }) => [withInline(element(kind), children)];
const INLINE = {
  text: ({ text }) => spans(text),
  code: ({ text }) => {
    const made = element("code");
    made.append(...spans(text));
    return [made];
  },
  strong: wrapped,
  em: wrapped,
  del: wrapped,
  link: ({ href, children }) => {
    const made = withInline(element("a"), children);
    made.href = made.title = href;
    made.rel = "noopener noreferrer";
    made.target = "_blank";
    return [made];
  },
};

/** Parts of a text, each with its classes: origin, kind of code. Indents have no origin. */
function* parts({ text, marks }, kinds = []) {
  const cuts = new Set([0, text.length]);
  for (let i = 1, mark = marks[0]; i < text.length; i += 1) {
    if (marks[i] === mark || text[i] === "\n") continue;
    mark = marks[i];
    cuts.add(i);
  }
  for (const [from, to] of kinds) cuts.add(from).add(to);
  for (const { index, 0: indent } of text.matchAll(/^[ \t]+/gm)) {
    cuts.add(index).add(index + indent.length);
  }
  const ends = [...cuts].sort((a, b) => a - b);
  let kind = 0;
  for (let i = 0; i + 1 < ends.length; i += 1) {
    const [from, to] = [ends[i], ends[i + 1]];
    while (kinds[kind]?.[1] <= from) kind += 1;
    const part = text.slice(from, to);
    const name = kinds[kind]?.[0] <= from ? ` ${kinds[kind][2]}` : "";
    yield [part, (part.trim() ? ORIGINS[marks[from]] ?? "plain" : "indent") + name];
  }
}

// -- copying ----------------------------------------------------------------------------------

/** A button that copies what `text` returns, and says whether it did. */
export function copyButton(text) {
  const button = element("button", "copy", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

/** Copy; a page of another machine without TLS has only the older way. */
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = document.body.appendChild(element("textarea"));
  field.value = text;
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}
