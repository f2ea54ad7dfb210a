// Markdown to a tree of plain objects. HTML in it is text.

const FENCE = /^( *)(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const DEEPEST = 12; // lists and quotes within each other

/** A text, and in `marks` one character for each of it: where it came from. */
export class Marked {
  constructor(text = "", marks = "") {
    this.text = text;
    this.marks = marks;
  }

  plus(text, mark) {
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
    let from = 0;
    return this.text.split("\n").map((line) => {
      from += line.length + 1;
      return this.slice(from - line.length - 1, from - 1);
    });
  }

  static join(lines) {
    const all = (name, mark) => lines.map((line) => line[name]).join(mark);
    return new Marked(all("text", "\n"), all("marks", " "));
  }
}

// -- blocks -----------------------------------------------------------------------------------

/**
 * The blocks of some lines; `from` is the index of a block's first line. All but the last are the
 * same whatever lines follow, and no block depends on those before it.
 */
export function blocks(lines, depth = 0) {
  const found = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const read = special(lines, at, depth) ?? (() => paragraph(lines, at, depth));
    const { next, ...block } = read();
    found.push({ ...block, from: at });
    at = next;
  }
  return found;
}

const isBlank = (line) => !line.text.trim();
const indentOf = (line) => line.text.match(/^[ \t]*/)[0].length;

/** A function that reads the block that begins here, null for a paragraph; `next` follows it. */
function special(lines, at, depth) {
  const { text } = lines[at];
  let match;
  if ((match = FENCE.exec(text))) return () => code(lines, at, match);
  if ((match = HEADING.exec(text))) return () => heading(lines[at], at, match[1].length);
  if (RULE.test(text)) return () => ({ kind: "rule", next: at + 1 });
  if (isTable(lines, at)) return () => table(lines, at);
  if (depth >= DEEPEST) return null;
  if (QUOTE.test(text)) return () => quote(lines, at, depth);
  if ((match = ITEM.exec(text))) return () => item(lines, at, depth, match);
  return null;
}

function paragraph(lines, at, depth) {
  let next = at + 1;
  while (next < lines.length && !isBlank(lines[next]) && !special(lines, next, depth)) next += 1;
  return { kind: "paragraph", content: inline(Marked.join(lines.slice(at, next)).trim()), next };
}

/** Without an end of its own, code goes on to the end. */
function code(lines, at, [, indent, fence, language]) {
  const closes = (line) => {
    const text = line.text.trim();
    return text.length >= fence.length && text === fence[0].repeat(text.length);
  };
  const length = lines.slice(at + 1).findIndex(closes);
  const end = length < 0 ? lines.length : at + 1 + length;
  const content = lines
    .slice(at + 1, end)
    .map((line) => line.slice(Math.min(indentOf(line), indent.length)));
  return { kind: "code", language: language.trim(), text: Marked.join(content), next: end + 1 };
}

function heading(line, at, level) {
  const title = line.slice(line.text.indexOf("#") + level).trim();
  const closing = /(?:^|[ \t])#+$/.exec(title.text)?.[0].length ?? 0;
  const content = inline(title.slice(0, title.text.length - closing).trim());
  return { kind: "heading", level, content, next: at + 1 };
}

function quote(lines, at, depth) {
  let next = at;
  while (next < lines.length && QUOTE.test(lines[next].text)) next += 1;
  const quoted = lines.slice(at, next).map((line) => line.slice(QUOTE.exec(line.text)[0].length));
  return { kind: "quote", blocks: blocks(quoted, depth + 1), next };
}

/** An item holds the lines that are indented more than its mark, blank ones between included. */
function item(lines, at, depth, [mark, { length: indent }, name]) {
  const content = [lines[at].slice(mark.length)];
  let next = at + 1;
  for (let line = next; line < lines.length; line += 1) {
    const deeper = indentOf(lines[line]) >= indent + 2;
    const goesOn = next === line && !special(lines, line, depth);
    if (!isBlank(lines[line]) && !deeper && !goesOn) break;
    if (isBlank(lines[line])) continue;
    content.push(...lines.slice(next, line)); // the blank ones
    content.push(lines[line].slice(Math.min(indentOf(lines[line]), mark.length)));
    next = line + 1;
  }
  const number = parseInt(name, 10);
  return { kind: "item", number, blocks: blocks(content, depth + 1), next };
}

function isTable(lines, at) {
  if (!lines[at].text.includes("|") || !lines[at + 1]?.text.includes("-")) return false;
  const rules = cells(lines[at + 1]);
  if (!rules.every((cell) => /^:?-+:?$/.test(cell.text))) return false;
  return rules.length === cells(lines[at]).length;
}

function table(lines, at) {
  let next = at + 2;
  while (next < lines.length && lines[next].text.includes("|")) next += 1;
  const rows = [lines[at], ...lines.slice(at + 2, next)];
  return { kind: "table", rows: rows.map((row) => cells(row).map(inline)), next };
}

/** The cells of a row, parted by `|` but not by `\|`. */
function cells(line) {
  const row = line.trim();
  const bars = [...row.text.matchAll(/(?<!\\)\|/g)].map((bar) => bar.index);
  const starts = [0, ...bars.map((bar) => bar + 1)];
  const found = starts.map((start, i) => row.slice(start, bars[i] ?? row.text.length).trim());
  if (found.length > 1 && !found.at(-1).text) found.pop();
  if (found.length > 1 && !found[0].text) found.shift();
  return found;
}

// -- inline -----------------------------------------------------------------------------------

const LONGEST = 20000; // characters whose markup is looked for
const MOST_OPEN = 32; // marks
const TOKEN = /`+|\*+|_+|~~|!?\[|\]|\\[\n#$&*+\-.<>_`|~]|https?:\/\/[^\s<>"'`|[\]]{1,2000}/g;
const DESTINATION = /\(<?([^\s()<>]{1,2000}(?:\([^\s()<>]{0,2000}\)[^\s()<>]{0,2000})?)>?(?:\s+"[^"\n]{0,500}")?\)/y;
const WORD = /[\p{L}\p{N}_]/u;

/** The inline nodes of a text: text, code, strong, em, del, link. */
export function inline(source) {
  return source.text.length > LONGEST ? [textNode(source)] : new Inline(source).nodes();
}

const textNode = (text) => ({ kind: "text", text });

/** One pass over a text. Each open mark has a frame, with the nodes since it. */
class Inline {
  constructor(source) {
    this.source = source;
    this.frames = [{ nodes: [] }];
    this.ticks = new Map(); // places of backticks, by how many there are
    for (const { index, 0: { length } } of source.text.matchAll(/`+/g)) {
      this.ticks.set(length, this.ticks.get(length) ?? []).get(length).push(index);
    }
    this.at = 0;
  }

  nodes() {
    const { text } = this.source;
    const token = new RegExp(TOKEN);
    for (let match; (match = token.exec(text)); token.lastIndex = this.at) {
      this.put(this.at, match.index);
      this.at = match.index;
      this.take(match[0]);
    }
    this.put(this.at, text.length);
    while (this.frames.length > 1) this.fold();
    return this.frames[0].nodes;
  }

  put(from, to) {
    if (from < to) this.add(textNode(this.source.slice(from, to)));
  }

  add(...nodes) {
    for (const node of nodes) this.frames.at(-1).nodes.push(node);
  }

  take(token) {
    if (token[0] === "\\") this.put(this.at + 1, (this.at += 2));
    else if (token[0] === "`") this.code(token.length);
    else if (token.startsWith("http")) this.address(token);
    else if (token.endsWith("[")) this.open("[", token.length);
    else if (token === "]") this.link();
    else this.emphasis(token);
  }

  /** The innermost open mark was none: what is left of it is text. */
  fold() {
    const { from, length, nodes } = this.frames.pop();
    if (length) this.add(textNode(this.source.slice(from, from + length)));
    this.add(...nodes);
  }

  open(mark, length) {
    if (this.frames.length > MOST_OPEN) this.put(this.at, this.at + length);
    else this.frames.push({ mark, from: this.at, length, nodes: [] });
    this.at += length;
  }

  /** The index of the innermost open mark of a kind, -1 without any. */
  opened(mark) {
    return this.frames.findLastIndex((frame) => frame.mark === mark);
  }

  code(length) {
    const from = this.at + length;
    const ends = this.ticks.get(length) ?? []; // none where an escape took one of the run
    while (ends[0] < from) ends.shift();
    if (!ends.length) {
      this.put(this.at, from);
      this.at = from;
      return;
    }
    const inside = this.source.slice(from, ends[0]);
    const padded = /^ .*[^ ].* $/s.test(inside.text);
    this.add({ kind: "code", text: padded ? inside.slice(1, -1) : inside });
    this.at = ends[0] + length;
  }

  emphasis(run) {
    const { text } = this.source;
    const [before, after] = [text[this.at - 1] ?? " ", text[this.at + run.length] ?? " "];
    const inWord = run[0] === "_" && WORD.test(before) && WORD.test(after);
    let rest = run.length;
    if (!inWord && /\S/.test(before)) rest = this.close(run[0], rest);
    const from = this.at;
    this.at += run.length - rest;
    if (rest && rest < 4 && !inWord && /\S/.test(after)) return this.open(run[0], rest);
    this.at = from + run.length;
    this.put(this.at - rest, this.at);
  }

  /** End what marks of this kind have begun; returns how many of `rest` are left. */
  close(mark, rest) {
    for (let index; rest && (index = this.opened(mark)) > 0; ) {
      while (this.frames.length > index + 1) this.fold();
      const frame = this.frames.at(-1);
      const size = Math.min(2, rest, frame.length);
      const kind = mark === "~" ? "del" : size === 2 ? "strong" : "em";
      const made = { kind, children: frame.nodes };
      [frame.nodes, frame.length] = [[made], frame.length - size];
      if (!frame.length) this.fold();
      rest -= size;
    }
    return rest;
  }

  /** An address that stands for itself, without the marks that end a sentence. */
  address(url) {
    while (/[.,;:!?*_~)}]/.test(url.at(-1)) && !(url.endsWith(")") && url.includes("("))) {
      url = url.slice(0, -1);
    }
    const text = this.source.slice(this.at, this.at + url.length);
    const alone = !WORD.test(this.source.text[this.at - 1] ?? " ") && safe(url);
    this.add(alone ? { kind: "link", href: url, children: [textNode(text)] } : textNode(text));
    this.at += url.length;
  }

  /** A link, or an image, of which only the link is shown; any but http and https stay text. */
  link() {
    const index = this.opened("[");
    DESTINATION.lastIndex = this.at + 1;
    const match = index > 0 ? DESTINATION.exec(this.source.text) : null;
    if (!match || !safe(match[1])) {
      while (index > 0 && this.frames.length > index) this.fold();
      this.put(this.at, this.at + 1);
      this.at += 1;
      return;
    }
    while (this.frames.length > index + 1) this.fold();
    const inside = unlinked(this.frames.pop().nodes);
    const start = this.at + match[0].indexOf(match[1]) + 1;
    const bare = textNode(this.source.slice(start, start + match[1].length));
    this.add({ kind: "link", href: match[1], children: inside.length ? inside : [bare] });
    this.at += 1 + match[0].length;
  }
}

function safe(url) {
  return /^https?:\/\/[^/]/i.test(url) && URL.canParse(url);
}

/** Nodes without the links in them, which no link may hold. */
function unlinked(nodes) {
  return nodes.flatMap((node) => {
    if (node.kind === "link") return unlinked(node.children);
    return node.children ? [{ ...node, children: unlinked(node.children) }] : [node];
  });
}
