// An answer on the page: its text by origin, its thoughts, its figures.

// Why nothing is drafted, by the controller's status; as the terminal's meter says it.
const STATUS = {
  recently_slower: "recently slower than plain",
  verification_too_slow: "costs more than it can gain here",
  draft_too_often_wrong: "too often wrong",
  answer_too_short: "reading the prompt costs more than it would gain",
};
const ENDS = {
  stop: "",
  length: "stopped at a limit: tokens, time or context",
};
const ORIGINS = ["draft", "lookup", "history", "forced", "corrected", "plain"];
const OPENS_CODE = /^ {0,3}```[^`]*$/;
const CLOSES_CODE = /^ {0,3}```\s*$/;

/** An element with a class and a text; what a model or a user wrote is never read as HTML. */
export function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** The view of an answer: `add` its runs of text as they come, `show` its figures. */
export class AnswerView {
  constructor() {
    this.element = element("article", "turn assistant");
    this.thoughts = element("details", "thoughts");
    this.thoughts.append(element("summary", "", "Thoughts"));
    this.thoughts.hidden = true;
    this.meter = element("p", "meter");
    const body = element("div", "body");
    this.element.append(element("h2", "who", "Answer"), this.thoughts, body, this.meter);
    this.answered = new Text(body);
    this.thought = new Text(this.thoughts.appendChild(element("div", "body")));
  }

  /** Append a run: text, where it came from, whether it is a thought. */
  add({ text, origin, reasoning }) {
    if (reasoning) this.thoughts.hidden = false;
    (reasoning ? this.thought : this.answered).add(text, ORIGINS.includes(origin) ? origin : "plain");
  }

  show(figures) {
    this.meter.replaceChildren();
    for (const part of words(figures)) {
      if (this.meter.hasChildNodes()) this.meter.append(" · ");
      this.meter.append(element("span", "", part));
    }
  }
}

/** Text as it comes: blocks of text and of code, in them lines, in those a span for each origin. */
class Text {
  constructor(parent) {
    this.parent = parent;
    this.block = null;
    this.line = [];
  }

  add(text, origin) {
    for (const part of text.split(/(?<=\n)/)) {
      this.#append(part, origin);
      if (part.endsWith("\n")) this.#endLine();
    }
  }

  /** The indentation of a line has no origin to be seen. */
  #append(part, origin) {
    const begins = this.line.every((span) => span.className === "indent");
    const indent = begins ? part.match(/^[ \t]*/)[0] : "";
    if (indent) this.#extend(indent, "indent");
    if (indent.length < part.length) this.#extend(part.slice(indent.length), origin);
  }

  #extend(text, className) {
    this.block ??= this.parent.appendChild(element("div", "text"));
    if (this.line.at(-1)?.className !== className) {
      this.line.push(this.block.appendChild(element("span", className)));
    }
    this.line.at(-1).append(text);
  }

  /** Let a line of three backticks begin a block of code, or end it. */
  #endLine() {
    const line = this.line.map((span) => span.textContent).join("").trimEnd();
    const inCode = this.block.tagName === "PRE";
    if (inCode && CLOSES_CODE.test(line)) {
      this.block = null;
    } else if (!inCode && OPENS_CODE.test(line)) {
      const before = this.block;
      this.block = this.parent.appendChild(element("pre", ""));
      this.block.append(...this.line);
      if (!before.hasChildNodes()) before.remove();
    }
    this.line = [];
  }
}

/** The figures of an answer in the terminal meter's words; more of them once it has ended. */
function words(figures) {
  const { tokens, speed, gain, drafted, accepted, rounds, status, ended } = figures;
  if (speed === undefined) return [ended ?? "waiting for the first token"];
  const parts = [];
  if (drafted && gain) parts.push(`about ${gain.toFixed(2)}x plain`);
  if (drafted) parts.push(`${accepted} of ${drafted} drafted tokens accepted`);
  if (STATUS[status]) parts.push(off(status, drafted));
  else if (!drafted && status !== "off") parts.push("nothing drafted");
  const rate = `${speed.toFixed(1)} tok/s`;
  if (ended === undefined) return [rate, ...parts.slice(0, 1)];
  if (drafted && rounds) parts.push(`${(tokens / rounds).toFixed(2)} tokens/round`);
  return [`${tokens} tokens`, rate, ...parts, ...closing(figures)];
}

function off(status, drafted) {
  const what = status === "recently_slower" ? "drafting" : "the draft";
  return `${what} ${drafted ? "now " : ""}off (${STATUS[status]})`;
}

function closing({ prompt, cached, firstText, seed, ended }) {
  const parts = [`prompt ${prompt} tokens` + (cached ? `, ${cached} cached` : "")];
  if (firstText !== undefined) parts.push(`TTFT ${(firstText / 1000).toFixed(2)} s`);
  if (seed !== undefined) parts.push(`seed ${seed}`);
  const end = ENDS[ended] ?? ended;
  return end ? [...parts, end] : parts;
}

/** What a chunk says, added to the figures so far. */
export function noteFigures(figures, { timings, draft, choices = [] }) {
  if (timings) {
    figures.tokens = timings.predicted_n;
    figures.speed = timings.predicted_per_second;
    figures.drafted = timings.draft_n;
    figures.accepted = timings.draft_n_accepted;
    figures.rounds = timings.rounds;
    figures.gain = timings.draft_speedup;
    figures.prompt = timings.prompt_n;
    figures.cached = timings.cache_n;
  }
  if (draft) figures.status = draft.status;
  const { seed, finish_reason } = choices[0] ?? {};
  if (seed !== undefined) figures.seed = seed;
  if (finish_reason) figures.ended = finish_reason;
}
