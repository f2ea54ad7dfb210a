// An answer on the page: its text by origin, its thoughts, its figures.

import { copyButton, element, MarkdownView } from "./render.js";

// Why nothing is drafted, by the controller's status; as the terminal's meter says it.
const STATUS = {
  recently_slower: "recently slower than plain",
  verification_too_slow: "verification too slow here",
  draft_too_often_wrong: "draft too often wrong",
  answer_too_short: "answer too short for its prompt",
};
const ENDS = {
  stop: "",
  length: "stopped at a limit: tokens, time or context",
};
const SOURCES = {
  draft: "draft model",
  lookup: "prompt lookup",
  history: "earlier answers",
  forced: "grammar",
};

/** The text of an answer's runs, or that of its thoughts. */
export function textOf(runs, reasoning = false) {
  return runs.filter((run) => Boolean(run.reasoning) === reasoning).map((run) => run.text).join("");
}

/** The view of an answer: `add` its runs of text as they come, `show` its figures. */
export class AnswerView {
  constructor(turn) {
    this.element = element("article", "turn assistant");
    this.thoughts = element("details", "thoughts");
    this.thoughts.append(element("summary", "", "Thoughts"));
    this.thoughts.hidden = true;
    const body = element("div", "body");
    this.meter = element("details", "meter");
    this.meter.append(element("summary"), element("p"));
    const foot = element("div", "foot");
    foot.append(this.meter, copyButton(() => textOf(turn.runs)));
    this.element.append(element("h2", "who", "Answer"), this.thoughts, body, foot);
    this.answered = new MarkdownView(body);
    this.thought = new MarkdownView(this.thoughts.appendChild(element("div", "body")));
    this.add(turn.runs);
    this.show(turn.figures);
  }

  /** Append runs: text, where it came from, whether it is a thought. */
  add(runs) {
    const [thoughts, answer] = [runs.filter((run) => run.reasoning), runs.filter((run) => !run.reasoning)];
    if (thoughts.length) this.thoughts.hidden = false;
    if (thoughts.length) this.thought.add(thoughts);
    if (answer.length) this.answered.add(answer);
  }

  show(figures) {
    const [summary, rest] = this.meter.children;
    summary.textContent = headline(figures).join(" · ");
    rest.textContent = details(figures).join(" · ");
    this.meter.hidden = !summary.textContent;
  }
}

/** Speed and gain, and why the answer ended early. */
function headline({ speed, speedup, drafted, ended }) {
  if (speed === undefined) return [ended ?? "waiting for the first token"].filter(Boolean);
  const parts = [`${speed.toFixed(1)} tok/s`];
  if (drafted && speedup) parts.push(`about ${speedup.toFixed(2)}x plain`);
  return [...parts, ENDS[ended] ?? ended].filter(Boolean);
}

/** The other figures, in the words of the terminal's meter. */
function details({ speed, tokens, drafted, accepted, rounds, sources, length, status, ended, ...rest }) {
  if (speed === undefined) return [];
  const parts = [`${tokens} tokens`];
  if (drafted) parts.push(`acceptance ${Math.round((100 * accepted) / drafted)}% of ${drafted} drafted`);
  if (drafted && rounds) parts.push(`${(tokens / rounds).toFixed(2)} tokens/round`);
  if (sources?.length) parts.push(`drafted by ${sources.map((name) => SOURCES[name]).join(", ")}`);
  if (ended === undefined) parts.push(`draft ${length || "off"}`);
  if (STATUS[status]) parts.push(`not drafting ${ended === undefined ? "now" : "at the end"}: ${STATUS[status]}`);
  return [...parts, ...closing(rest)];
}

function closing({ prompt, cached, firstText, seed }) {
  const parts = [`prompt ${prompt} tokens` + (cached ? `, ${cached} cached` : "")];
  if (firstText !== undefined) parts.push(`TTFT ${(firstText / 1000).toFixed(2)} s`);
  if (seed !== undefined) parts.push(`seed ${seed}`);
  return parts;
}

/** What a chunk says, added to the figures so far. */
export function noteFigures(figures, { timings, draft, choices = [] }) {
  if (timings) {
    figures.tokens = timings.predicted_n;
    figures.speed = timings.predicted_per_second;
    figures.speedup = timings.draft_speedup;
    figures.drafted = timings.draft_n;
    figures.accepted = timings.draft_n_accepted;
    figures.rounds = timings.rounds;
    figures.prompt = timings.prompt_n;
    figures.cached = timings.cache_n;
  }
  if (draft) [figures.length, figures.status] = [draft.tokens, draft.status];
  const { seed, finish_reason, origins = [] } = choices[0] ?? {};
  if (seed !== undefined) figures.seed = seed;
  if (finish_reason) figures.ended = finish_reason;
  const named = origins.map((run) => run.origin).filter((origin) => SOURCES[origin]);
  figures.sources = [...new Set([...(figures.sources ?? []), ...named])];
}
