// The conversation: questions sent, answers shown as they come, both kept as long as the tab.

import { AnswerView, element, noteFigures } from "./answer.js";
import { answer, Failure, readProps } from "./api.js";
import { Settings } from "./settings.js";

const TURNS = "localspec turns";
const KEY = "localspec key";
const ORIGINS_HIDDEN = "localspec origins hidden";

const $ = (id) => document.getElementById(id);
const settings = new Settings($("settings"));
// A question is {text}; an answer {runs, figures}, a run being what `AnswerView.add` takes.
let turns = JSON.parse(sessionStorage.getItem(TURNS) ?? "[]");
let running = null; // the AbortController of the answer that is on its way

// -- what is kept ---------------------------------------------------------------------------

function keep() {
  try {
    sessionStorage.setItem(TURNS, JSON.stringify(turns));
  } catch {
    tell("The conversation is too long to be kept: it is lost when this page is loaded again.");
  }
}

const textOf = (turn, reasoning) =>
  turn.runs.filter((run) => run.reasoning === reasoning).map((run) => run.text).join("");

/** The conversation as a request carries it. */
function messages() {
  const told = turns.map((turn) => {
    if (!turn.runs) return { role: "user", content: turn.text };
    const thoughts = textOf(turn, true);
    const said = { role: "assistant", content: textOf(turn, false) };
    return thoughts ? { ...said, reasoning_content: thoughts } : said;
  });
  return settings.system ? [{ role: "system", content: settings.system }, ...told] : told;
}

// -- what is seen ---------------------------------------------------------------------------

function tell(sentence) {
  $("notice").textContent = sentence;
  $("notice").hidden = !sentence;
}

function toEnd() {
  window.scrollTo(0, document.documentElement.scrollHeight);
}

/** Change the page, and stay at its end if that is where the reader is. */
function following(change) {
  const { scrollHeight } = document.documentElement;
  const atEnd = window.innerHeight + window.scrollY >= scrollHeight - 80;
  change();
  if (atEnd) toEnd();
}

function append(turn) {
  const view = turn.runs ? new AnswerView() : { element: question(turn.text) };
  for (const run of turn.runs ?? []) view.add(run);
  if (turn.figures) view.show(turn.figures);
  $("turns").append(view.element);
  return view;
}

function question(text) {
  const made = element("article", "turn user");
  made.append(element("h2", "who", "You"), element("div", "body text", text));
  return made;
}

function refresh() {
  const pressed = $("composer").querySelector("button:focus");
  $("empty").hidden = turns.length > 0;
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  $("again").hidden = Boolean(running) || !turns.at(-1)?.runs;
  $("clear").disabled = Boolean(running) || !turns.length;
  $("turns").setAttribute("aria-busy", String(Boolean(running)));
  if (pressed?.hidden) $(running ? "stop" : "send").focus();
}

function redraw() {
  $("turns").replaceChildren();
  for (const turn of turns) append(turn);
  refresh();
}

function showOrigins() {
  document.body.classList.toggle("uncoloured", !$("show-origins").checked);
  sessionStorage.setItem(ORIGINS_HIDDEN, $("show-origins").checked ? "" : "yes");
}

// -- asking ---------------------------------------------------------------------------------

async function ask() {
  const text = $("question").value;
  if (running || !text.trim() || !settings.check()) return;
  $("question").value = "";
  turns.push({ text });
  append(turns.at(-1));
  if (await reply()) return;
  turns.pop(); // back to where it can be sent again
  $("question").value = [text, $("question").value].filter(Boolean).join("\n");
  redraw();
}

async function askAgain() {
  if (running || !turns.at(-1)?.runs || !settings.check()) return;
  const former = turns.pop();
  redraw();
  if (await reply()) return;
  turns.push(former);
  redraw();
}

/** Answer the last question; false where not a word came, of which the page then says why. */
async function reply() {
  const request = {
    messages: messages(),
    ...settings.request,
    return_origins: true,
    timings_per_token: true,
  };
  const turn = { runs: [], figures: {} };
  running = new AbortController();
  turns.push(turn);
  const view = append(turn);
  tell("");
  $("status").textContent = "Answering";
  refresh();
  toEnd();
  let failure = null;
  try {
    await receive(request, turn, view);
  } catch (error) {
    failure = failed(error, turn);
  }
  running.abort(); // where the page broke off, the server need not go on
  running = null;
  const came = !failure || turn.runs.length > 0;
  if (came) following(() => view.show(turn.figures));
  else turns.pop();
  $("status").textContent = failure ?? "The answer is complete";
  refresh();
  keep();
  return came;
}

async function receive(request, turn, view) {
  const sent = performance.now();
  for await (const chunk of answer(request, sessionStorage.getItem(KEY), running.signal)) {
    noteFigures(turn.figures, chunk);
    if (chunk.warnings) tell(chunk.warnings.join(" "));
    const choice = chunk.choices?.[0];
    const runs = choice?.origins ?? [];
    if (runs.length) turn.figures.firstText ??= performance.now() - sent;
    turn.runs.push(...runs);
    following(() => {
      runs.forEach((run) => view.add(run));
      view.show(turn.figures);
    });
  }
}

/** Note why an answer ended early, and say it. */
function failed(error, turn) {
  if (error.name === "AbortError") {
    turn.figures.ended = "stopped";
    return "Stopped";
  }
  turn.figures.ended = "cut off";
  if (!(error instanceof Failure)) console.error(error);
  tell(error.message);
  if (error.status === 401) askForKey();
  return error.message;
}

// -- the server -----------------------------------------------------------------------------

function askForKey() {
  sessionStorage.removeItem(KEY);
  $("key-form").hidden = false;
  $("key").focus();
}

async function meet() {
  try {
    const props = await readProps(sessionStorage.getItem(KEY));
    const model = props.model ?? props.model_alias;
    $("model").textContent = model + (props.draft ? `, draft ${props.draft}` : "");
    settings.showDefaults(props.default_generation_settings);
    tell("");
  } catch (error) {
    tell(error.message);
    if (error.status === 401) askForKey();
  }
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value.trim());
  $("key").value = "";
  $("key-form").hidden = true;
  $("question").focus();
  meet();
});
$("again").addEventListener("click", askAgain);
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  if (!confirm("Forget this conversation?")) return;
  turns = [];
  keep();
  redraw();
  $("question").focus();
});
$("open-settings").addEventListener("click", () => settings.open());
$("show-origins").checked = !sessionStorage.getItem(ORIGINS_HIDDEN);
$("show-origins").addEventListener("change", showOrigins);
addEventListener("pagehide", () => {
  if (running) turns.at(-1).figures.ended = "cut off when this page was left";
  keep();
});

showOrigins();
redraw();
toEnd();
$("question").focus();
meet();
