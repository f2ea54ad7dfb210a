// The fields of a request besides its messages, in a dialog; stored in this browser.

const STORE = "localspec settings";

export class Settings {
  constructor(dialog) {
    this.dialog = dialog;
    this.form = dialog.querySelector("form");
    const stored = JSON.parse(localStorage.getItem(STORE) ?? "{}");
    for (const [name, value] of Object.entries(stored)) {
      if (this.form.elements[name]) this.form.elements[name].value = value;
    }
    this.form.addEventListener("input", () => this.#store());
    // When the event is heard, the fields still hold what they are about to lose.
    this.form.addEventListener("reset", () => setTimeout(() => this.#store()));
  }

  /** Whether all fields hold something that can be sent; shows the first that does not. */
  check() {
    if (this.form.checkValidity()) return true;
    this.open();
    this.form.reportValidity();
    return false;
  }

  open() {
    if (!this.dialog.open) this.dialog.showModal();
  }

  /** The system message; empty for none. */
  get system() {
    return this.form.elements.system.value.trim();
  }

  set system(text) {
    this.form.elements.system.value = text;
    this.#store();
  }

  /** The fields of a request that are not left to the server. */
  get request() {
    const { system, ...given } = this.#values();
    const numbers = Object.entries(given).map(([name, value]) => [
      name,
      /^(auto|off)$/.test(value) ? value : Number(value),
    ]);
    return Object.fromEntries(numbers);
  }

  /** Show what holds for the fields that are empty. */
  showDefaults({ params, draft_tokens, max_tokens }) {
    const defaults = {
      ...params,
      seed: params.seed ?? "random",
      draft_tokens: draft_tokens || "off",
      max_tokens: max_tokens ?? "no limit",
    };
    for (const field of this.form.elements) {
      if (field.name in defaults) field.placeholder = defaults[field.name];
    }
  }

  #values() {
    const entries = [...new FormData(this.form)].filter(([, value]) => value.trim());
    return Object.fromEntries(entries);
  }

  #store() {
    localStorage.setItem(STORE, JSON.stringify(this.#values()));
  }
}
