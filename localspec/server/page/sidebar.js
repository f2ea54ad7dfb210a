// The list of conversations: open, rename, export, delete; the current one has the buttons.

import { toFile } from "./conversations.js";
import { element } from "./render.js";

export class Sidebar {
  /** `page` has `open(id)`, `current`, `rename(name)` and `forget()`. */
  constructor(list, store, page) {
    this.list = list;
    this.store = store;
    this.page = page;
  }

  show(disabled) {
    const rows = this.store.list().map((entry) => this.#row(entry));
    this.list.replaceChildren(...rows);
    for (const button of this.list.querySelectorAll("button")) button.disabled = disabled;
  }

  #row({ id, name, changed }) {
    const row = element("li");
    const open = row.appendChild(button(name || "(no name)", () => this.page.open(id)));
    open.title = `${name}, ${new Date(changed).toLocaleString()}`;
    if (id !== this.page.current.id) return row;
    open.setAttribute("aria-current", "true");
    row.append(
      button("Rename", () => this.#rename(name)),
      button("Export", () => download(this.page.current)),
      button("Delete", () => confirm(`Delete “${name}”?`) && this.page.forget()),
    );
    return row;
  }

  #rename(name) {
    const given = prompt("Name of the conversation", name)?.trim();
    if (given) this.page.rename(given.slice(0, 200));
    this.list.querySelector("[aria-current]")?.focus();
  }
}

function button(text, click) {
  const made = element("button", "", text);
  made.type = "button";
  made.addEventListener("click", click);
  return made;
}

function download(conversation) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([toFile(conversation)], { type: "application/json" }));
  link.download = `${conversation.name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "chat"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
