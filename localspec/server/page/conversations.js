// Conversations stored in this browser.

// An answer of a file that is imported has no origins.
const PLAIN = "plain";

const PREFIX = "localspec conversation ";

/**
 * A conversation has turns: questions {text, files}, answers {runs, figures}; a renamed one a name. A turn may have
 * `versions`: {at, ends}, what may stand from it on, of which the one at place `at` (null there) is in the conversation.
 */
export function newConversation() {
  return { id: `${Date.now()}-${Math.random().toString(36).slice(2)}`, turns: [] };
}

/** All of them, the newest first; damaged ones are left out. */
export function stored() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX)).sort().reverse();
  return keys.map((key) => read(key.slice(PREFIX.length))).filter(Boolean);
}

/** Null where it is not there, or damaged. */
export function read(id) {
  try {
    const found = JSON.parse(localStorage.getItem(PREFIX + id));
    return found && { ...(Array.isArray(found) ? { turns: found } : found), id };
  } catch {
    return null;
  }
}

/** Returns a sentence where it cannot be stored, else "". */
export function write({ id, ...rest }) {
  try {
    localStorage.setItem(PREFIX + id, JSON.stringify(rest));
    return "";
  } catch {
    return "The browser's storage is full: this conversation will be lost with this page. Delete others.";
  }
}

export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

/** The name of a conversation, or its first words. */
export function title({ name, turns }) {
  const words = (name || turns[0]?.text || turns[0]?.files?.[0].name || "").trim().replace(/\s+/g, " ");
  return words.length > 40 ? `${words.slice(0, 39)}…` : words;
}

/** Whether the name or a turn of a conversation has these words. */
export function has(conversation, words) {
  const texts = [conversation.name ?? "", ...messages(conversation).map((message) => message.content)];
  return texts.some((text) => text.toLowerCase().includes(words.trim().toLowerCase()));
}

/** Times plain decoding, of the answers whose gain is known together; NaN if there is none. */
export function gain({ turns }) {
  const known = turns.map((turn) => turn.figures ?? {}).filter(({ speed, gain }) => speed && gain);
  const seconds = ({ tokens, speed }) => tokens / speed;
  const sum = (of) => known.reduce((total, each) => total + of(each), 0);
  return sum((each) => seconds(each) * each.gain) / sum(seconds);
}

/** A conversation as Markdown, for people. */
export function markdown(conversation) {
  const turns = messages(conversation).map(({ role, content }) => `## ${role === "user" ? "You" : "Answer"}\n\n${content}\n`);
  return [`# ${title(conversation)}\n`, ...turns].join("\n");
}

/** Append runs of text, those of one origin as one. */
export function extend(runs, more) {
  for (const run of more) {
    const last = runs.at(-1);
    if (last?.origin === run.origin && last.reasoning === run.reasoning) last.text += run.text;
    else runs.push({ ...run });
  }
}

/** The versions of a turn that takes the place of the turns `end`. */
export function versionsAfter([{ versions, ...first }, ...rest]) {
  const ends = versions?.ends.map((end) => end ?? [first, ...rest]) ?? [[first, ...rest]];
  return { at: ends.length, ends: [...ends, null] };
}

/** The turns with the version `at` of the turn at this place, and of all that follow it. */
export function withVersion(turns, place, at) {
  const { ends } = versionsAfter(turns.slice(place));
  const [first, ...rest] = ends[at];
  const others = ends.slice(0, -1).map((end, each) => (each === at ? null : end));
  return [...turns.slice(0, place), { ...first, versions: { at, ends: others } }, ...rest];
}

/** The turns without the question at this place and its answer, or without an answer alone. */
export function without(turns, place) {
  return turns.toSpliced(place, !turns[place].runs && turns[place + 1]?.runs ? 2 : 1);
}

/** A conversation of a file as the page or /save writes it, with its system message; throws if it is none. */
export function imported(text) {
  const { messages, system } = parsed(text);
  const turns = messages.map(({ role, content, reasoning_content: thoughts }) => {
    if (typeof content !== "string") throw new Error("a message has no text");
    if (role === "user") return { text: content };
    if (role !== "assistant") throw new Error(`a message has the role ${role}`);
    const runs = thoughts ? [{ text: thoughts, origin: PLAIN, reasoning: true }] : [];
    return { runs: [...runs, { text: content, origin: PLAIN }], figures: { ended: "stop" } };
  });
  if (!turns.length || turns[0].runs) throw new Error("it does not begin with a question");
  return { system: system || "", conversation: { ...newConversation(), turns } };
}

function parsed(text) {
  try {
    const found = JSON.parse(text);
    if (Array.isArray(found.messages)) return found;
  } catch {} // the same refusal
  throw new Error("it is no conversation saved as JSON");
}

/** The text of an answer, or that of its thoughts. */
export function textOf({ runs }, reasoning = false) {
  return runs.filter((run) => Boolean(run.reasoning) === reasoning).map((run) => run.text).join("");
}

/** The turns as a request carries them. */
export function messages({ turns }) {
  return turns.map((turn) => {
    if (!turn.runs) return { role: "user", content: contentOf(turn) };
    const thoughts = textOf(turn, true);
    const said = { role: "assistant", content: textOf(turn) };
    return thoughts ? { ...said, reasoning_content: thoughts } : said;
  });
}

/** The text of a question after those of its files, as /read makes it in the terminal. */
function contentOf({ text, files = [] }) {
  return files.map((file) => `${file.name}:\n\n${file.text.trimEnd()}\n\n`).join("") + text;
}
