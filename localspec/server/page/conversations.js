// Conversations stored in this browser.

const PREFIX = "localspec conversation ";

/** A conversation has turns; a question is {text}, an answer {runs, figures}. */
export function newConversation() {
  return { id: `${Date.now()}-${Math.random().toString(36).slice(2)}`, turns: [] };
}

/** All of them, the newest first, each as {id, turns}; damaged ones are left out. */
export function stored() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX)).sort().reverse();
  return keys.map((key) => read(key.slice(PREFIX.length))).filter(Boolean);
}

/** Null where it is not there, or damaged. */
export function read(id) {
  try {
    const turns = JSON.parse(localStorage.getItem(PREFIX + id));
    return turns && { id, turns };
  } catch {
    return null;
  }
}

/** Returns a sentence where it cannot be stored, else "". */
export function write({ id, turns }) {
  try {
    localStorage.setItem(PREFIX + id, JSON.stringify(turns));
    return "";
  } catch {
    return "The browser's storage is full: this conversation will be lost with this page. Delete others.";
  }
}

export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

/** The first words of a conversation. */
export function title({ turns }) {
  const words = (turns[0]?.text ?? "").trim().replace(/\s+/g, " ");
  return words.length > 40 ? `${words.slice(0, 39)}…` : words;
}

/** Append runs of text, those of one origin as one. */
export function extend(runs, more) {
  for (const run of more) {
    const last = runs.at(-1);
    if (last?.origin === run.origin && last.reasoning === run.reasoning) last.text += run.text;
    else runs.push({ ...run });
  }
}

/** The text of an answer, or that of its thoughts. */
export function textOf({ runs }, reasoning = false) {
  return runs.filter((run) => Boolean(run.reasoning) === reasoning).map((run) => run.text).join("");
}

/** The turns as a request carries them. */
export function messages({ turns }) {
  return turns.map((turn) => {
    if (!turn.runs) return { role: "user", content: turn.text };
    const thoughts = textOf(turn, true);
    const said = { role: "assistant", content: textOf(turn) };
    return thoughts ? { ...said, reasoning_content: thoughts } : said;
  });
}
