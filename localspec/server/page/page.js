// The page: the open conversation, questions sent, answers shown as they come.

import { AnswerView, noteFigures } from "./answer.js";
import { answer, Failure, readModels, readProps, readQueue } from "./api.js";
import { Attachments, fileView } from "./attachments.js";
import * as conversations from "./conversations.js";
import { element } from "./elements.js";
import { ModelChooser, Settings } from "./settings.js";

const CURRENT = "localspec conversation"; // the id of the one that is open in this tab
const KEY = "localspec key";
const ORIGINS_SHOWN = "localspec origins shown";
const PATIENCE = 1000; // ms without a word, after which the queue is shown

const $ = (id) => document.getElementById(id);
const settings = new Settings($("settings"));
const models = new ModelChooser($("models"));
const attachments = new Attachments($("attached"), tell);
let conversation = conversations.read(sessionStorage.getItem(CURRENT)) ?? conversations.newConversation();
let running = null; // the AbortController of the answer that is on its way
let context = 0; // the tokens that fit into the context of a conversation
let edited = null; // {at, draft}: the place of the question that is edited, and the one typed before it

// -- conversations --------------------------------------------------------------------------

function store() {
  const problem = conversation.turns.length ? conversations.write(conversation) : "";
  if (problem) tell(problem);
  sessionStorage.setItem(CURRENT, conversation.id);
}

function open(other) {
  if (running) return;
  edit(null);
  conversation = other;
  sessionStorage.setItem(CURRENT, other.id);
  tell("");
  redraw();
  toEnd();
  $("question").focus();
}

function remove(other) {
  if (running || !confirm(`Delete the conversation “${conversations.title(other)}”?`)) return;
  conversations.remove(other.id);
  if (other.id === conversation.id) open(conversations.newConversation());
  else list();
}

function rename() {
  const name = prompt("Name of the conversation", conversations.title(conversation));
  if (running || name === null) return;
  conversation.name = name.trim();
  store();
  list();
}

/** Download a text as a file named after the conversation. */
function download(text, ending) {
  const link = element("a");
  const words = conversations.title(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = `${words || "conversation"}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function importFile(file) {
  try {
    const { system, conversation: made } = conversations.imported(await file.text());
    if (running) return;
    settings.system ||= system;
    open(made);
    store();
    list();
  } catch (error) {
    tell(`${file.name} was not imported: ${error.message}.`);
  }
}

function list() {
  const found = conversations.stored().filter((stored) => conversations.has(stored, $("search").value));
  $("list").replaceChildren(...found.map((stored) => {
    const row = element("li");
    const isOpen = stored.id === conversation.id;
    const opens = button(conversations.title(stored), () => open(conversations.read(stored.id) ?? stored));
    if (isOpen) opens.setAttribute("aria-current", "true");
    row.append(opens, ...(isOpen ? actions() : []));
    return row;
  }));
  if (!found.length && $("search").value) $("list").append(element("li", "", "None has these words."));
}

/** What can be done with the open conversation. */
function actions() {
  const system = settings.system || null;
  const document = () => JSON.stringify({ system, messages: conversations.messages(conversation) }, null, 1);
  return [
    button("Rename", rename),
    button("Markdown", () => download(conversations.markdown(conversation), "md"), "Save as Markdown"),
    button("JSON", () => download(document(), "json"), "Save as JSON, which /load of localspec chat reads"),
    button("Delete conversation", () => remove(conversation)),
  ];
}

function button(name, pressed, title = "") {
  const made = element("button", "", name);
  made.type = "button";
  made.title = title;
  made.disabled = Boolean(running);
  made.addEventListener("click", pressed);
  return made;
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
  const view = turn.runs ? new AnswerView(turn) : question(turn);
  if (turn.versions) view.foot.prepend(versions(turn));
  if (!turn.runs) view.foot.append(changing("Delete", () => forget(turn), "Delete the question and its answer"));
  $("turns").append(view.element);
  return view;
}

/** A button of a turn, which waits for the answer that is on its way. */
function changing(name, pressed, title) {
  const made = button(name, () => running || pressed(), title);
  made.className = `act ${name.toLowerCase()}`;
  return made;
}

/** Which version of a turn is shown, with buttons for the others. */
function versions(turn) {
  const { at, ends } = turn.versions;
  const step = (by, name, title) => {
    const made = changing(name, () => show(turn, at + by), title);
    made.noOther = !(at + by in ends);
    return made;
  };
  const made = element("span", "versions");
  made.append(step(-1, "‹", "Former version"), `${at + 1}/${ends.length}`, step(1, "›", "Next version"));
  return made;
}

function show(turn, at) {
  change(conversations.withVersion(conversation.turns, conversation.turns.indexOf(turn), at));
}

/** Delete a question; with the only one the conversation. */
function forget(turn) {
  const left = conversations.without(conversation.turns, conversation.turns.indexOf(turn));
  if (!left.length) remove(conversation);
  else if (confirm(`Delete the question “${conversations.title({ turns: [turn] })}” and its answer?`)) change(left);
}

function change(turns) {
  edit(null);
  conversation = { ...conversation, turns };
  store();
  following(redraw);
}

function question(turn) {
  const made = element("article", "turn user");
  const files = (turn.files ?? []).map(fileView);
  const foot = element("div", "foot");
  foot.append(changing("Edit", () => edit(turn)));
  made.append(element("h2", "who", "You"), ...files, element("div", "body text", turn.text), foot);
  return { element: made, foot };
}

function refresh() {
  const { turns } = conversation;
  const pressed = $("composer").querySelector("button:focus");
  $("empty").hidden = turns.length > 0;
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  $("again").hidden = Boolean(running || edited) || !turns.at(-1)?.runs;
  $("cancel").hidden = !edited;
  $("new").disabled = $("models").disabled = Boolean(running);
  [...$("turns").children].forEach((turn, at) => turn.classList.toggle("replaced", at >= edited?.at));
  for (const act of $("turns").querySelectorAll(".act")) act.disabled = Boolean(running || act.noOther);
  const gain = conversations.gain(conversation);
  $("gain").textContent = gain ? `answers here: about ${gain.toFixed(1)}x plain` : "";
  showContext();
  list();
  $("turns").setAttribute("aria-busy", String(Boolean(running)));
  if (pressed?.hidden) $(running ? "stop" : "send").focus();
}

/** How full the context is, by the figures of the last answer. */
function showContext() {
  const { prompt = 0, cached = 0, tokens = 0 } = conversation.turns.findLast((turn) => turn.runs)?.figures ?? {};
  const used = prompt + cached + tokens;
  const gauge = $("context");
  gauge.hidden = !(used && context);
  Object.assign(gauge, { max: context, high: 0.75 * context, value: used });
  const [held, room] = [used, context].map((count) => count.toLocaleString("en"));
  $("held").textContent = gauge.hidden ? "" : `${held} / ${room}`;
  $("held").title = gauge.title = `The context holds ${held} of ${room} tokens`;
}

function redraw() {
  $("turns").replaceChildren();
  for (const turn of conversation.turns) append(turn);
  refresh();
}

function showOrigins() {
  document.body.classList.toggle("uncoloured", !$("show-origins").checked);
  localStorage.setItem(ORIGINS_SHOWN, $("show-origins").checked ? "yes" : "");
}

// -- asking ---------------------------------------------------------------------------------

async function ask() {
  const text = $("question").value;
  const { files } = attachments;
  if (running || !(text.trim() || files.length) || !settings.check()) return;
  const former = [conversation, edited];
  const turn = files.length ? { text, files } : { text };
  if (edited) turn.versions = cut();
  write(edited?.draft);
  edited = null;
  const { turns } = conversation;
  turns.push(turn);
  append(turn);
  if (await reply()) return;
  turns.pop(); // back to where it can be sent again
  [conversation, edited] = former;
  const typed = { text: $("question").value, files: attachments.files };
  if (edited) edited.draft = typed;
  write(edited ? { text, files } : {
    text: [text, typed.text].filter(Boolean).join("\n"),
    files: [...files, ...typed.files],
  });
  redraw();
}

/** Put a question into its field. */
function write({ text, files = [] } = { text: "" }) {
  $("question").value = text;
  fit();
  attachments.show(files);
}

/** Give the field its lines, where the browser does not by its style. */
function fit() {
  $("question").rows = Math.max(2, Math.min(12, $("question").value.split("\n").length));
}

/** Take a question into the field, to be sent in place of itself and all that follows; null ends that. */
function edit(turn) {
  if (running || !(turn || edited)) return;
  const draft = edited?.draft ?? { text: $("question").value, files: attachments.files };
  edited = turn && { at: conversation.turns.indexOf(turn), draft };
  write(turn ?? draft);
  refresh();
  $("question").focus();
}

/** Go on before the edited question; returns the versions of its place, with all that followed it. */
function cut() {
  const { turns } = conversation;
  conversation = { ...conversation, turns: turns.slice(0, edited.at) };
  redraw();
  return conversations.versionsAfter(turns.slice(edited.at));
}

async function askAgain() {
  const { turns } = conversation;
  if (running || !turns.at(-1)?.runs || !settings.check()) return;
  const former = turns.pop();
  redraw();
  if (await reply(conversations.versionsAfter([former]))) return;
  turns.push(former);
  redraw();
}

/** Answer the last question; false where not a word came, of which the page then says why. */
async function reply(versions) {
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  const request = {
    messages: [...system, ...conversations.messages(conversation)],
    ...settings.request,
    ...(models.chosen && { model: models.chosen }),
    return_origins: true,
    return_progress: true,
    timings_per_token: true,
  };
  const turn = { runs: [], figures: models.chosen && !models.loaded ? { loading: models.chosen } : {} };
  if (versions) turn.versions = versions;
  running = new AbortController();
  conversation.turns.push(turn);
  const view = append(turn);
  tell("");
  $("status").textContent = "Answering";
  refresh();
  toEnd();
  let failure = null;
  const queue = setTimeout(() => showQueue(turn, view), PATIENCE);
  try {
    await receive(request, turn, view);
  } catch (error) {
    failure = failed(error, turn);
  }
  clearTimeout(queue);
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

/** While the answer waits, show how many requests come before it. */
async function showQueue(turn, view) {
  const begun = () => !running || turn.runs.length || turn.figures.progress || turn.figures.loading;
  while (!begun()) {
    const requests = await readQueue(sessionStorage.getItem(KEY)).catch(() => 0);
    if (begun()) return;
    turn.figures.before = Math.max(0, requests - 1);
    view.show(turn.figures);
    await new Promise((go) => setTimeout(go, PATIENCE));
  }
}

async function receive(request, turn, view) {
  const sent = performance.now();
  const limits = { longest: request.max_tokens ?? settings.longest, context };
  for await (const chunk of answer(request, sessionStorage.getItem(KEY), running.signal)) {
    noteFigures(turn.figures, chunk, limits);
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
  complain(error);
  return error.message;
}

// -- the server -----------------------------------------------------------------------------

/** Say why the server did not answer, and ask for a key if it needs one. */
function complain(error) {
  const isWrong = error.status === 401 && sessionStorage.getItem(KEY);
  if (error.status !== 401) return tell(error.message);
  tell(isWrong ? "This key is not the server's." : "This server wants a key: enter it below.");
  sessionStorage.removeItem(KEY);
  $("key-form").hidden = false;
  $("key").focus();
}

async function showServer() {
  const key = sessionStorage.getItem(KEY);
  models.show(await readModels(key));
  $("model").textContent = models.chosen ? "is loaded when it is asked" : "";
  context = 0;
  showContext();
  if (models.chosen && !models.loaded) return;
  const props = await readProps(key, models.chosen);
  const model = props.model ?? props.model_alias;
  $("model").textContent = model + (props.draft ? `, draft ${props.draft}` : "");
  settings.showDefaults(props.default_generation_settings);
  context = props.default_generation_settings.n_ctx;
  showContext();
}

async function meet() {
  try {
    await showServer();
    tell("");
  } catch (error) {
    complain(error);
  }
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
$("question").addEventListener("input", fit);
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || $("settings").open) return;
  if (running) running.abort();
  else edit(null);
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value.trim());
  $("key").value = "";
  $("key-form").hidden = true;
  $("question").focus();
  meet();
});
// What is opened is seen; these events do not bubble.
$("turns").addEventListener("toggle", ({ target }) => target.open && target.scrollIntoView({ block: "nearest" }), true);
$("files").addEventListener("change", async () => {
  await attachments.add([...$("files").files]);
  $("files").value = "";
});
$("composer").addEventListener("dragover", (event) => event.preventDefault());
$("composer").addEventListener("drop", (event) => {
  event.preventDefault();
  attachments.add([...event.dataTransfer.files]);
});
$("import").addEventListener("click", () => $("imported").click());
$("imported").addEventListener("change", async () => {
  await importFile($("imported").files[0]);
  $("imported").value = "";
});
$("search").addEventListener("input", list);
$("attach").addEventListener("click", () => $("files").click());
$("cancel").addEventListener("click", () => edit(null));
$("again").addEventListener("click", askAgain);
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => open(conversations.newConversation()));
$("models").addEventListener("change", meet);
$("open-settings").addEventListener("click", () => settings.open());
$("show-origins").checked = Boolean(localStorage.getItem(ORIGINS_SHOWN));
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
