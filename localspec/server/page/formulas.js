// Formulas: found by rules of markdown-it's parser, set as MathML by KaTeX.

import "./vendor/katex.min.js";
import { element } from "./elements.js";
import { appendOrigins } from "./marked.js";

const { katex } = globalThis;
// What a formula may cost: macros expanded, and the largest length in em.
const LIMITS = { maxExpand: 500, maxSize: 20 };

// Between dollars stands a formula, unless they are those of prices or of a shell's variables.
const SPANS = [
  /(?<opening>\$\$)(?<tex>[^$`]{1,2000})\$\$/uy,
  /(?<![\p{L}\p{N}\\$])\$(?![\s$]|\d[\d.,]*\s[^\\^_={}<>+*$]*\$)(?<tex>(?:\\[^]|[^\\$`\n]){1,1000})(?<!\s)\$(?![\p{L}\p{N}$])/uy,
  /\\\((?<tex>[^]{1,2000}?)\\\)/uy,
  /(?<opening>\\\[)(?=\s|[^\]]*(?:[\^_=]|\\[^\]]))(?<tex>[^]{1,2000}?)\\\](?!\()/uy, // else escaped brackets
];
// The first letter of an alphabet, and the letters that Unicode has elsewhere: no browser knows them by an attribute.
const ALPHABETS = {
  "double-struck": [0x1d538, "CℂHℍNℕPℙQℚRℝZℤ"],
  script: [0x1d49c, "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ"],
  fraktur: [0x1d504, "CℭHℌIℑRℜZℨ"],
};
const ENDS = { "$$": "$$", "\\[": "\\]" };

/** Let a parser find formulas: tokens of the type `formula`, with the TeX as content. */
export function addFormulas(parser) {
  parser.inline.ruler.before("escape", "formula", span);
  parser.block.ruler.before("fence", "formula", block, { alt: ["paragraph", "blockquote", "list"] });
}

function span(state, silent) {
  if (!/[$\\]/.test(state.src[state.pos])) return false;
  for (const pattern of SPANS) {
    pattern.lastIndex = state.pos;
    const match = pattern.exec(state.src);
    if (!match || pattern.lastIndex > state.posMax) continue;
    if (!silent) push(state, match.groups.tex, match[0], Boolean(match.groups.opening));
    state.pos = pattern.lastIndex;
    return true;
  }
  return false;
}

/** A formula in lines of its own, which has no blank one. What is not complete yet has no TeX. */
function block(state, from, endLine, silent) {
  const start = state.bMarks[from] + state.tShift[from];
  const end = ENDS[state.src.slice(start, start + 2)];
  if (!end) return false;
  let to = from;
  let tex = state.src.slice(start + 2, state.eMarks[from]);
  for (; !tex.includes(end); tex += `\n${state.getLines(to, to + 1, state.blkIndent, false)}`) {
    to += 1;
    if (to >= endLine) break;
    if (state.isEmpty(to) || state.sCount[to] < state.blkIndent) return false;
  }
  const length = tex.indexOf(end);
  if (length >= 0 && tex.slice(length + 2).trim()) return false;
  if (silent) return true;
  state.line = Math.min(to + 1, endLine);
  push(state, tex.slice(0, Math.max(0, length)), "", true).map = [from, state.line];
  return true;
}

function push(state, tex, markup, isDisplayed) {
  const token = state.push("formula", "span", 0);
  return Object.assign(token, { content: tex, markup, info: isDisplayed ? "displayed" : "" });
}

/** Fill an element with a formula and its source, which is seen in the colours of origins. */
export function fillFormula(made, { content: tex, info }, source) {
  made.className = `formula ${info}`.trim();
  const set = element("span", "set");
  made.replaceChildren();
  if (tex.trim() && isSet(set, tex, info)) made.append(set);
  appendOrigins(made.appendChild(element("code", "source")), source);
}

function isSet(parent, tex, info) {
  try {
    katex.render(tex, parent, { ...LIMITS, displayMode: Boolean(info), output: "mathml", strict: "ignore", trust: false });
    for (const letters of parent.querySelectorAll("[mathvariant]")) spell(letters);
    return true;
  } catch {
    return false; // no TeX
  }
}

function spell(letters) {
  const [first, others] = ALPHABETS[letters.getAttribute("mathvariant")] ?? [];
  if (first) letters.textContent = letters.textContent.replace(/[A-Za-z]/g, (letter) => {
    const place = letter.charCodeAt(0) - (letter < "a" ? 65 : 71);
    return others[others.indexOf(letter) + 1 || others.length] ?? String.fromCodePoint(first + place);
  });
}
