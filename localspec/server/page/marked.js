// Text that knows where each of its characters came from.

import { element } from "./elements.js";

const origins = ["plain"]; // met so far
const FIRST = 33; // code of the mark of the first: no white space

/** A text, and in `marks` a character for each of its own, which stands for its origin; a line begins `at` a place. */
export class Marked {
  constructor(text = "", marks = "", at = 0) {
    this.text = text;
    this.marks = marks;
    this.at = at;
  }

  plus({ text, origin = "plain" }) {
    if (!origins.includes(origin)) origins.push(origin);
    const mark = String.fromCharCode(FIRST + origins.indexOf(origin));
    return new Marked(this.text + text.replaceAll("\0", "\ufffd"), this.marks + mark.repeat(text.length));
  }

  slice(from, to) {
    return new Marked(this.text.slice(from, to), this.marks.slice(from, to), from);
  }

  /** The lines, as Markdown counts them. */
  lines() {
    return [...this.text.matchAll(/([^\r\n]*)(?:\r\n?|\n|$)/g)].map(({ index, 1: line }) => this.slice(index, index + line.length));
  }

  static join(lines) {
    const all = (name, mark) => lines.map((line) => line[name]).join(mark);
    return new Marked(all("text", "\n"), all("marks", " "));
  }
}

/** Append a text as spans by origin. Indentation shows none. */
export function appendOrigins(parent, { text, marks }) {
  for (const { index, 0: part } of text.matchAll(/^[ \t]+|[^\n]+\n*|\n+/gm)) {
    const end = index + part.length;
    for (let from = index, to; from < end; from = to) {
      for (to = from + 1; to < end && (marks[to] === marks[from] || text[to] === "\n"); ) to += 1;
      const piece = text.slice(from, to);
      parent.append(element("span", piece.trim() ? origins[marks.charCodeAt(from) - FIRST] : "indent", piece));
    }
  }
}
