// An answer on the page: its text by origin, its thoughts, its figures.

import { textOf } from "./conversations.js";
import { copyButton, element } from "./elements.js";
import { MarkdownView } from "./markdown.js";

// Why nothing is drafted, by the controller's status; as the terminal's meter says it.
const STATUS = {
  recently_slower: "recently slower than plain",
  verification_too_slow: "costs more than it can gain here",
  draft_too_often_wrong: "expected to be right too seldom for its cost",
  draft_not_numbers: "its logits are not numbers",
  answer_too_short: "reading the prompt costs more than it would gain",
};

/** The view of an answer: `add` its runs of text as they come, `show` its figures. */
export class AnswerView {
  constructor(turn) {
    this.element = element("article", "turn assistant");
    this.thoughts = element("details", "thoughts");
    this.thoughts.append(element("summary", "", "Thoughts"));
    this.thoughts.hidden = true;
    this.meter = element("details", "meter");
    this.meter.append(element("summary"), element("p"));
    const body = element("div", "body");
    this.foot = element("div", "foot");
    this.foot.append(this.meter, copyButton(() => textOf(turn)));
    this.element.append(element("h2", "who", "Answer"), this.thoughts, body, this.foot);
    this.answered = new MarkdownView(body);
    this.thought = new MarkdownView(this.thoughts.appendChild(element("div", "body")));
    this.add(turn.runs);
    this.show(turn.figures);
  }

  /** Append runs: text, where it came from, whether it is a thought. */
  add(runs) {
    const thoughts = runs.filter((run) => run.reasoning);
    if (thoughts.length) this.thoughts.hidden = false;
    this.hasOrigins ||= runs.some(({ origin }) => (origin ?? "plain") !== "plain");
    this.element.classList.toggle("uncoloured", !this.hasOrigins);
    this.thought.add(thoughts);
    this.answered.add(runs.filter((run) => !run.reasoning));
  }

  /** Show the figures in short; what is behind them is opened. */
  show(figures) {
    const [short, full] = this.meter.children;
    short.textContent = words(figures).join(" · ");
    full.textContent = figures.ended === undefined ? "" : closing(figures).join(" · ");
    this.meter.classList.toggle("short", !full.textContent);
  }
}

/** The figures of an answer in the terminal meter's words: speed, gain, acceptance, why it ended. */
function words(figures) {
  const { speed, ended } = figures;
  const end = ended === "stop" ? "" : ended;
  if (speed === undefined) return [end ?? waiting(figures)];
  return [`${speed.toFixed(1)} tok/s`, ...drafting(figures).slice(0, figures.gain ? 2 : 1), ...(end ? [end] : [])];
}

function waiting({ loading, progress, before }) {
  if (loading) return `loading ${loading}`;
  if (before && !progress) return `${before} request${before === 1 ? "" : "s"} before yours`;
  if (!progress) return "waiting for the first token";
  const [read, total] = [progress.processed, progress.total].map((count) => count.toLocaleString("en"));
  return `reading the prompt: ${read} of ${total} tokens`;
}

function drafting({ gain, drafted, accepted, status }) {
  const parts = [];
  if (drafted && gain) parts.push(`about ${gain.toFixed(1)}x plain`);
  if (drafted) parts.push(`${accepted} of ${drafted} drafted tokens accepted`);
  if (STATUS[status]) parts.push(off(status, drafted));
  else if (!drafted && status !== "off") parts.push("nothing drafted");
  return parts;
}

function off(status, drafted) {
  const what = status === "recently_slower" ? "drafting" : "the draft";
  return `${what} off${drafted ? " in the last round" : ""} (${STATUS[status]})`;
}

/** All figures but the speed. */
function closing(figures) {
  const { tokens, drafted, rounds, prompt, cached, firstText, seed } = figures;
  if (tokens === undefined) return [];
  const parts = [`${tokens} tokens`, ...drafting(figures)];
  if (drafted && rounds) parts.push(`${(tokens / rounds).toFixed(2)} tokens/round`);
  parts.push(`prompt ${prompt} tokens` + (cached ? `, ${cached} cached` : ""));
  if (firstText !== undefined) parts.push(`TTFT ${(firstText / 1000).toFixed(2)} s`);
  if (seed !== undefined) parts.push(`seed ${seed}`);
  return parts;
}

/** What ended an answer at its limit, as the terminal says it; `longest` and `context` are NaN or 0 if not known. */
function limit({ tokens, prompt, cached }, { longest, context }) {
  if (tokens >= longest) return "stopped at --max-tokens";
  if (context && prompt + cached + tokens >= context) return "stopped at the end of the context (--ctx-size)";
  return "stopped at a limit: tokens, time or context";
}

/** What a chunk says, added to the figures so far. */
export function noteFigures(figures, { timings, draft, prompt_progress: progress, choices = [] }, limits) {
  delete figures.loading;
  delete figures.before;
  figures.progress = progress;
  if (timings && !progress) {
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
  if (finish_reason) figures.ended = finish_reason === "length" ? limit(figures, limits) : finish_reason;
}
