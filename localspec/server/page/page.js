// The page: the open conversation, questions sent, answers shown as they come.

import { AnswerView, noteFigures } from "./answer.js";
import { answer, Failure, readModels, readProps } from "./api.js";
import * as conversations from "./conversations.js";
import { element } from "./markdown.js";
import { ModelChooser, Settings } from "./settings.js";

const CURRENT = "localspec conversation"; // the id of the one that is open in this tab
const KEY = "localspec key";
const ORIGINS_HIDDEN = "localspec origins hidden";

const $ = (id) => document.getElementById(id);
const settings = new Settings($("settings"));
const models = new ModelChooser($("models"));
let conversation = conversations.read(sessionStorage.getItem(CURRENT)) ?? conversations.newConversation();
let running = null; // the AbortController of the answer that is on its way

// -- conversations --------------------------------------------------------------------------

function store() {
  const problem = conversation.turns.length ? conversations.write(conversation) : "";
  if (problem) tell(problem);
  sessionStorage.setItem(CURRENT, conversation.id);
}

function open(other) {
  if (running) return;
  conversation = other;
  sessionStorage.setItem(CURRENT, other.id);
  tell("");
  redraw();
  toEnd();
  $("question").focus();
}

function remove(other) {
  if (running || !confirm(`Delete “${conversations.title(other)}”?`)) return;
  conversations.remove(other.id);
  if (other.id === conversation.id) open(conversations.newConversation());
  else list();
}

function list() {
  $("list").replaceChildren(...conversations.stored().map((stored) => {
    const row = element("li");
    const name = conversations.title(stored);
    const [opens, removes] = [element("button", "", name), element("button", "", "Delete")];
    if (stored.id === conversation.id) opens.setAttribute("aria-current", "true");
    opens.addEventListener("click", () => open(conversations.read(stored.id) ?? stored));
    removes.setAttribute("aria-label", `Delete ${name}`);
    removes.addEventListener("click", () => remove(stored));
    opens.disabled = removes.disabled = Boolean(running);
    row.append(opens, removes);
    return row;
  }));
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
  const view = turn.runs ? new AnswerView(turn) : { element: question(turn.text) };
  $("turns").append(view.element);
  return view;
}

function question(text) {
  const made = element("article", "turn user");
  made.append(element("h2", "who", "You"), element("div", "body text", text));
  return made;
}

function refresh() {
  const { turns } = conversation;
  const pressed = $("composer").querySelector("button:focus");
  $("empty").hidden = turns.length > 0;
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  $("again").hidden = Boolean(running) || !turns.at(-1)?.runs;
  $("new").disabled = $("models").disabled = Boolean(running);
  list();
  $("turns").setAttribute("aria-busy", String(Boolean(running)));
  if (pressed?.hidden) $(running ? "stop" : "send").focus();
}

function redraw() {
  $("turns").replaceChildren();
  for (const turn of conversation.turns) append(turn);
  refresh();
}

function showOrigins() {
  document.body.classList.toggle("uncoloured", !$("show-origins").checked);
  localStorage.setItem(ORIGINS_HIDDEN, $("show-origins").checked ? "" : "yes");
}

// -- asking ---------------------------------------------------------------------------------

async function ask() {
  const text = $("question").value;
  if (running || !text.trim() || !settings.check()) return;
  $("question").value = "";
  const { turns } = conversation;
  turns.push({ text });
  append(turns.at(-1));
  if (await reply()) return;
  turns.pop(); // back to where it can be sent again
  $("question").value = [text, $("question").value].filter(Boolean).join("\n");
  redraw();
}

async function askAgain() {
  const { turns } = conversation;
  if (running || !turns.at(-1)?.runs || !settings.check()) return;
  const former = turns.pop();
  redraw();
  if (await reply()) return;
  turns.push(former);
  redraw();
}

/** Answer the last question; false where not a word came, of which the page then says why. */
async function reply() {
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  const request = {
    messages: [...system, ...conversations.messages(conversation)],
    ...settings.request,
    ...(models.chosen && { model: models.chosen }),
    return_origins: true,
    timings_per_token: true,
  };
  const turn = { runs: [], figures: {} };
  running = new AbortController();
  conversation.turns.push(turn);
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
  else conversation.turns.pop();
  $("status").textContent = failure ?? "The answer is complete";
  if (came) store();
  refresh();
  if (models.chosen) showServer().catch(() => {}); // the states changed
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
    conversations.extend(turn.runs, runs);
    following(() => {
      view.add(runs);
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

async function showServer() {
  const key = sessionStorage.getItem(KEY);
  models.show(await readModels(key));
  $("model").textContent = models.chosen ? "is loaded when it is asked" : "";
  if (models.chosen && !models.loaded) return;
  const props = await readProps(key, models.chosen);
  const model = props.model ?? props.model_alias;
  $("model").textContent = model + (props.draft ? `, draft ${props.draft}` : "");
  settings.showDefaults(props.default_generation_settings);
}

async function meet() {
  try {
    await showServer();
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
$("new").addEventListener("click", () => open(conversations.newConversation()));
$("models").addEventListener("change", meet);
$("open-settings").addEventListener("click", () => settings.open());
$("show-origins").checked = !localStorage.getItem(ORIGINS_HIDDEN);
$("show-origins").addEventListener("change", showOrigins);
addEventListener("pagehide", () => {
  if (!running) return;
  conversation.turns.at(-1).figures.ended = "cut off when this page was left";
  store();
});
addEventListener("storage", () => refresh()); // another tab's conversations

$("conversations").open = matchMedia("(min-width: 72rem)").matches;
showOrigins();
redraw();
toEnd();
$("question").focus();
meet();
