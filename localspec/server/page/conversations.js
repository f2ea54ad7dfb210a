// Conversations kept in this browser, and as files in the form of the chat's /save.

import { textOf } from "./answer.js";

const PREFIX = "localspec conversation ";
const MOST = 200;
const ROLES = ["system", "user", "assistant"];

/**
 * A conversation without turns. A turn is {role, text}; an answer {role, runs, figures}, a run
 * being a text with its origin.
 */
export function newConversation(system = "") {
  const id = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
  return { id, name: "", system, turns: [] };
}

/** The first words of a conversation. */
export function firstWords({ turns }) {
  const words = (turns[0]?.text ?? "").trim().split(/\s+/).slice(0, 8).join(" ");
  return words.length > 50 ? `${words.slice(0, 49)}…` : words;
}

/** Append runs, those of one origin as one. */
export function extend(runs, more) {
  for (const { text, origin, reasoning } of more) {
    const last = runs.at(-1);
    if (last && last.origin === origin && last.reasoning === reasoning) last.text += text;
    else runs.push({ text, origin, reasoning });
  }
}

/**
 * The conversations of a storage, such as localStorage: written in one step, also while the page is
 * left. An entry is a line with its name and time, and a line with the rest.
 */
export class Conversations {
  constructor(storage) {
    this.storage = storage;
  }

  /** Each as {id, name, changed}, the last changed first. */
  list() {
    const keys = Array.from({ length: this.storage.length }, (_, i) => this.storage.key(i));
    const found = keys.filter((key) => key.startsWith(PREFIX)).flatMap((key) => {
      const head = parsed(this.storage.getItem(key).split("\n", 1)[0]);
      return head ? [{ ...head, id: key.slice(PREFIX.length) }] : [];
    });
    return found.sort((a, b) => b.changed - a.changed);
  }

  /** Null where it is not there, or damaged. */
  read(id) {
    const [head, rest] = (this.storage.getItem(PREFIX + id) ?? "").split("\n");
    return parsed(head) && parsed(rest) && { id, name: parsed(head).name, ...parsed(rest) };
  }

  /** Returns a sentence where it cannot be kept, else "". */
  write({ id, name, system, turns }) {
    const known = this.storage.getItem(PREFIX + id) !== null;
    if (!known && this.list().length >= MOST) return lost(`${MOST} conversations are stored`);
    const entry = [{ name, changed: Date.now() }, { system, turns }].map((part) => JSON.stringify(part));
    try {
      this.storage.setItem(PREFIX + id, entry.join("\n"));
    } catch {
      return lost("The browser's storage is full");
    }
    return "";
  }

  delete(id) {
    this.storage.removeItem(PREFIX + id);
  }

  /** The id of the conversation that a key of the storage holds, null for another key. */
  static idOf(key) {
    return key?.startsWith(PREFIX) ? key.slice(PREFIX.length) : null;
  }
}

const lost = (why) =>
  `${why}, so this conversation will be lost with this page: export it, or delete others.`;

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// -- messages ---------------------------------------------------------------------------------

/** The turns as a request carries them. */
export function messages({ turns }) {
  return turns.map(({ role, text, runs }) => {
    if (!runs) return { role, content: text };
    const thoughts = textOf(runs, true);
    const said = { role, content: textOf(runs) };
    return thoughts ? { ...said, reasoning_content: thoughts } : said;
  });
}

/** The file of a conversation, as /save writes it. */
export function toFile(conversation) {
  const document = { system: conversation.system || null, messages: messages(conversation) };
  return JSON.stringify(document, null, 1) + "\n";
}

/** The conversation of such a file, null for another file. */
export function fromFile(text, name) {
  const { system = null, messages } = parsed(text) ?? {};
  const isText = (value) => typeof value === "string";
  if (!Array.isArray(messages) || !(system === null || isText(system))) return null;
  const isMessage = (entry) =>
    ROLES.includes(entry?.role) && isText(entry.content) && isText(entry.reasoning_content ?? "");
  if (!messages.every(isMessage)) return null;
  return { ...newConversation(system ?? ""), name, turns: messages.map(turnOf) };
}

function turnOf({ role, content, reasoning_content = "" }) {
  if (role !== "assistant") return { role, text: content };
  const runs = [];
  if (reasoning_content) extend(runs, [{ text: reasoning_content, origin: "plain", reasoning: true }]);
  extend(runs, [{ text: content, origin: "plain", reasoning: false }]);
  return { role, runs, figures: { ended: "" } };
}
