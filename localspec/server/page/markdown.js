// Markdown as elements, also while it streams. Elements are made by name: text is never read as HTML.

import "./vendor/markdown-it.min.js";
import { coloured } from "./code.js";
import { copyButton, element } from "./elements.js";
import { addFormulas, fillFormula } from "./formulas.js";
import { appendOrigins, Marked } from "./marked.js";

const parser = newParser();

/** A text as it comes. Only its last two blocks, which may still change, are parsed again. */
export class MarkdownView {
  constructor(parent) {
    this.parent = parent;
    this.text = new Marked(); // of the last blocks
    this.last = [];
  }

  /** Append runs of text, each of one origin. */
  add(runs) {
    for (const run of runs) this.text = this.text.plus(run);
    const lines = this.text.lines();
    const tokens = nest(parser.parse(this.text.text, {}));
    this.last = update(this.parent, this.last, tokens, lines).slice(-2);
    const from = tokens.at(-2)?.map[0];
    if (from) this.text = this.text.slice(lines[from].at);
  }
}

// -- the parser -----------------------------------------------------------------------------

function newParser() {
  const made = globalThis.markdownit({ linkify: true });
  // What would change a block by a line that comes later, or what people do not mean by indenting a line.
  made.block.ruler.disable(["code", "lheading", "reference"]);
  // HTML stays as it is written, also its entities.
  made.inline.ruler.disable("entity");
  // These change texts after they were found in their source.
  made.core.ruler.disable(["linkify", "text_join"]);
  made.validateLink = isLink;
  made.normalizeLinkText = (text) => text;
  made.inline.State = class extends made.inline.State {
    // Without this, **a:**b and the like of languages without spaces would have no emphasis.
    scanDelims(start, splitsWords) {
      const found = super.scanDelims(start, splitsWords);
      if (!splitsWords) return found;
      const isText = (at) => /\S/.test(this.src[at] ?? " ");
      return { ...found, can_open: isText(start + found.length), can_close: start > 0 && isText(start - 1) };
    }
  };
  addFormulas(made);
  return made;
}

function isLink(url) {
  return /^(?:https?:\/\/|mailto:)./i.test(url) && URL.canParse(url);
}

/** A list of tokens as a tree: those that open something have `children`, none closes it. */
function nest(tokens) {
  const open = [{ children: [] }];
  for (const token of tokens) {
    if (token.nesting < 0) {
      open.pop();
      continue;
    }
    open.at(-1).children.push(token);
    if (token.nesting > 0) open.push(Object.assign(token, { children: [] }));
  }
  return open[0].children;
}

// -- blocks ---------------------------------------------------------------------------------

/** Makers of blocks: each returns an element, and the element inside it that has its content. */
const MAKERS = {
  fence: codeBlock,
  table_open: () => {
    const made = element("div", "table");
    made.tabIndex = 0;
    return [made, made.appendChild(element("table"))];
  },
  ordered_list_open: (token) => {
    const made = element("ol");
    made.start = Number(token.attrGet("start") ?? 1);
    return [made, made];
  },
  heading_open: ({ tag }) => alone(`h${Math.min(6, Number(tag[1]) + 2)}`),
};
const FILLERS = {
  fence: fillCode,
  formula: ({ inner }, token, lines) => fillFormula(inner, token, Marked.join(lines)),
  heading_open: fillText,
  paragraph_open: fillText,
  tr_open: fillRow,
};

function alone(name) {
  const made = element(name);
  return [made, made];
}

/** Show tokens in place of the last blocks of an element; returns the blocks. Equal ones stay as they are. */
function update(parent, blocks, tokens, lines, first = 0) {
  const updated = tokens.map((token, at) => {
    const from = token.map[0] - first;
    const own = lines.slice(from, token.map[1] - first);
    const { text, marks } = Marked.join(own);
    const kind = [token.type, token.tag, token.attrGet("start"), token.info].join();
    const source = [text, marks].join("\0");
    const block = blocks[at]?.kind === kind ? blocks[at] : newBlock(parent, blocks[at], kind, token);
    if (block.source === source) return block;
    const fill = FILLERS[token.type];
    if (fill) fill(block, token, own);
    else block.blocks = update(block.inner, block.blocks, token.children ?? [], own, token.map[0]);
    return Object.assign(block, { source });
  });
  for (const block of blocks.slice(tokens.length)) block.element.remove();
  return updated;
}

function newBlock(parent, former, kind, token) {
  const [made, inner] = MAKERS[token.type]?.(token) ?? alone(token.tag);
  if (former) former.element.replaceWith(made);
  else parent.append(made);
  return { kind, element: made, inner, blocks: [] };
}

function codeBlock({ info }) {
  const made = element("div", "code");
  const bar = made.appendChild(element("div", "bar"));
  const pre = made.appendChild(element("pre"));
  pre.tabIndex = 0; // to scroll it by keys
  bar.append(element("p", "language", info.trim()), copyButton(() => pre.textContent));
  return [made, pre.appendChild(element("code"))];
}

/** Code as spans by origin. What was shown before and stays the same is not made again: code is long. */
function fillCode(block, { content, info }, lines) {
  const source = marked(content.replace(/\n$/, ""), lines.slice(1));
  const { inner, code = new Marked() } = block;
  const goesOn = source.text.startsWith(code.text) && source.marks.startsWith(code.marks);
  const shown = goesOn ? block.shown ?? [] : [];
  const parts = codeParts(source.text, info.trim().split(/[\s{:,]/)[0]);
  const isSame = ({ from, to, kind }, at) => shown[at]?.from === from && shown[at].to === to && shown[at].kind === kind;
  const changed = parts.findIndex((part, at) => !isSame(part, at));
  const kept = changed < 0 ? parts.length : changed;
  const nodes = kept ? shown[kept - 1].nodes : 0;
  while (inner.childNodes.length > nodes) inner.lastChild.remove();
  block.code = source;
  block.shown = [...shown.slice(0, kept), ...parts.slice(kept).map((part) => {
    const parent = part.kind ? inner.appendChild(element("span", part.kind)) : inner;
    appendOrigins(parent, source.slice(part.from, part.to));
    return { ...part, nodes: inner.childNodes.length };
  })];
}

/** The parts of code: comments, strings, numbers and keywords, and lines of what is between them. */
function codeParts(text, language) {
  const parts = [];
  const addLines = (from, to) => {
    for (const { index, 0: line } of text.slice(from, to).matchAll(/[^\n]*\n|[^\n]+/g)) {
      parts.push({ from: from + index, to: from + index + line.length });
    }
  };
  let done = 0;
  for (const part of coloured(text, language)) {
    addLines(done, part.from);
    parts.push(part);
    done = part.to;
  }
  addLines(done, text.length);
  return parts;
}

/** Lines of a block's content, each the end of a line of its source, with the marks of these. */
function marked(content, lines) {
  return Marked.join(content.split("\n").map((text, at) => {
    const from = Math.max(0, lines[at]?.text.lastIndexOf(text) ?? 0);
    return new Marked(text, lines[at]?.marks.slice(from, from + text.length) ?? "");
  }));
}

function fillText({ inner }, { children: [{ content, children }] }, lines) {
  inner.replaceChildren();
  appendSpans(inner, nest(children), marked(content, lines));
}

function fillRow({ inner: row }, { children }, [line]) {
  let at = 0;
  row.replaceChildren(...children.map((cell) => {
    const [{ content, children: tokens }] = cell.children;
    at = Math.max(at, line.text.indexOf(content.replaceAll("|", "\\|"), at));
    const made = element(cell.tag, /right|center/.exec(cell.attrGet("style"))?.[0]);
    appendSpans(made, nest(tokens), new Marked(content, line.slice(at).marks));
    at += content.length;
    return made;
  }));
}

// -- spans ----------------------------------------------------------------------------------

const NAMES = { strong_open: "strong", em_open: "em", s_open: "del" };

/** Append the spans of a text, each where it is found in the source; returns where the last ends. */
function appendSpans(parent, tokens, source, from = 0) {
  let at = from;
  const append = (to, text, written = text) => {
    const found = source.text.indexOf(written, at);
    const start = found < 0 ? at : found + written.length - text.length;
    appendOrigins(to, new Marked(text, source.marks.slice(start, start + text.length)));
    at = start + text.length;
  };
  for (const token of tokens) {
    const { type, content, markup } = token;
    if (type === "text") append(parent, content);
    else if (type === "text_special") append(parent, content, markup);
    else if (type === "code_inline") append(parent.appendChild(element("code")), content);
    else if (type === "formula") at = appendFormula(parent, token, source, at);
    else if (type === "link_open") at = appendLink(parent, token, token.attrGet("href"), source, at);
    else if (type === "image") at = appendLink(parent, token, token.attrGet("src"), source, at);
    else if (NAMES[type]) at = appendSpans(parent.appendChild(element(NAMES[type])), token.children, source, at);
    else append(parent, "\n");
  }
  return at;
}

function appendFormula(parent, token, source, from) {
  const at = source.text.indexOf(token.markup, from);
  const end = at + token.markup.length;
  fillFormula(parent.appendChild(element("span")), token, source.slice(at, end));
  return end;
}

/** Append a link; of an image, whose address nothing is loaded from, too. */
function appendLink(parent, token, href, source, from) {
  const isOne = isLink(href) && !parent.closest("a");
  const made = parent.appendChild(element(isOne ? "a" : "span"));
  if (isOne) Object.assign(made, { href, title: href, rel: "noopener noreferrer", target: "_blank" });
  const end = appendSpans(made, nest(token.children), source, from);
  return token.markup ? end : Math.max(end, source.text.indexOf("](", end) + 2);
}
