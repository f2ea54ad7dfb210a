// The page: the open conversation, questions sent, answers shown as they come.

import { AnswerView, noteFigures } from "./answer.js";
import { answer, Failure, readModels, readProps } from "./api.js";
import * as conversations from "./conversations.js";
import { ModelChooser } from "./models.js";
import { element } from "./render.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";

const CURRENT = "localspec current"; // the conversation that is open in this tab
const KEY = "localspec key";
const ORIGINS_HIDDEN = "localspec origins hidden";
const LARGEST_FILE = 16 * 1024 * 1024;

const $ = (id) => document.getElementById(id);
const settings = new Settings($("settings"));
const models = new ModelChooser($("models"));
const store = new conversations.Conversations(localStorage);
const sidebar = new Sidebar($("list"), store, {
  open,
  forget,
  rename,
  get current() {
    return conversation;
  },
});
let conversation = store.read(sessionStorage.getItem(CURRENT)) ?? conversations.newConversation();
let running = null; // the AbortController of the answer that is on its way

// -- conversations --------------------------------------------------------------------------

function keep() {
  if (!conversation.turns.length) return;
  conversation.name ||= conversations.firstWords(conversation);
  conversation.system = settings.system;
  const problem = store.write(conversation);
  if (problem && $("notice").hidden) tell(problem);
}

/** Show another conversation. */
function change(to) {
  conversation = to;
  sessionStorage.setItem(CURRENT, to.id);
  tell("");
  redraw();
  toEnd();
  $("question").focus();
}

function open(id) {
  const found = store.read(id);
  if (running) return;
  if (!found) return tell("This conversation cannot be read.");
  settings.system = found.system;
  change(found);
}

function begin() {
  if (!running) change(conversations.newConversation());
}

function rename(name) {
  conversation.name = name;
  keep();
  refresh();
}

function forget() {
  store.delete(conversation.id);
  begin();
}

async function importFile(file) {
  const text = file.size > LARGEST_FILE ? "" : await file.text();
  const found = conversations.fromFile(text, file.name.replace(/\.json$/, ""));
  if (running) return;
  if (!found) return tell(`${file.name} holds no conversation: choose a file that Export or /save wrote.`);
  settings.system = found.system;
  change(found);
  keep();
  refresh();
}

/** Follow what another tab stored. */
function follow({ key }) {
  const id = conversations.Conversations.idOf(key);
  if (id === null || running) return;
  if (id !== conversation.id) return refresh();
  conversation = store.read(id) ?? conversation;
  redraw();
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
  const view = turn.runs ? new AnswerView(turn) : { element: question(turn) };
  $("turns").append(view.element);
  return view;
}

function question({ role, text }) {
  const made = element("article", `turn ${role}`);
  const who = role === "user" ? "You" : "System message";
  made.append(element("h2", "who", who), element("div", "body text", text));
  return made;
}

function refresh() {
  const pressed = $("composer").querySelector("button:focus");
  const { turns } = conversation;
  $("empty").hidden = turns.length > 0;
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  $("again").hidden = Boolean(running) || !turns.length;
  for (const id of ["new", "import", "models"]) $(id).disabled = Boolean(running);
  sidebar.show(Boolean(running));
  $("turns").setAttribute("aria-busy", String(Boolean(running)));
  if (pressed?.hidden) $(running ? "stop" : "send").focus();
}

function redraw() {
  $("turns").replaceChildren();
  for (const turn of conversation.turns) append(turn);
  refresh();
}

function showList(shown) {
  $("conversations").hidden = !shown;
  $("show-list").setAttribute("aria-expanded", String(shown));
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
  turns.push({ role: "user", text });
  append(turns.at(-1));
  if (await reply()) return;
  turns.pop(); // back to where it can be sent again
  $("question").value = [text, $("question").value].filter(Boolean).join("\n");
  redraw();
}

async function askAgain() {
  const { turns } = conversation;
  if (running || !turns.length || !settings.check()) return;
  const former = turns.at(-1).runs ? [turns.pop()] : [];
  redraw();
  if (await reply()) return;
  turns.push(...former);
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
  const turn = { role: "assistant", runs: [], figures: {} };
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
  if (came) keep();
  refresh();
  if (models.chosen) showModels().catch(() => {}); // their states
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

async function showModels() {
  models.show(await readModels(sessionStorage.getItem(KEY)));
}

async function meet() {
  try {
    await showModels();
    if (models.chosen && !models.loaded) return tell("");
    const props = await readProps(sessionStorage.getItem(KEY), models.chosen);
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
$("new").addEventListener("click", begin);
$("models").addEventListener("change", meet);
$("show-list").addEventListener("click", () => showList($("conversations").hidden));
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async () => {
  for (const file of $("file").files) await importFile(file);
  $("file").value = "";
});
$("open-settings").addEventListener("click", () => settings.open());
$("show-origins").checked = !localStorage.getItem(ORIGINS_HIDDEN);
$("show-origins").addEventListener("change", showOrigins);
addEventListener("pagehide", () => {
  if (!running) return;
  conversation.turns.at(-1).figures.ended = "cut off when this page was left";
  keep();
});

addEventListener("storage", follow);

showList(matchMedia("(min-width: 72rem)").matches);
showOrigins();
redraw();
toEnd();
$("question").focus();
meet();
