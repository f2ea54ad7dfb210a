// What is asked for besides the messages, in a dialog; kept as long as the tab.

import { element } from "./elements.js";

const STORE = "localspec settings";
const MODEL = "localspec model";

export class Settings {
  constructor(dialog) {
    this.dialog = dialog;
    this.form = dialog.querySelector("form");
    const kept = JSON.parse(sessionStorage.getItem(STORE) ?? "{}");
    for (const [name, value] of Object.entries(kept)) {
      if (this.form.elements[name]) this.form.elements[name].value = value;
    }
    this.form.addEventListener("input", () => this.#keep());
    // When the event is heard, the fields still hold what they are about to lose.
    this.form.addEventListener("reset", () => setTimeout(() => this.#keep()));
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
    this.#keep();
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

  /** The server's longest answer in tokens; NaN without a limit. */
  get longest() {
    return parseInt(this.form.elements.max_tokens.placeholder);
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

  #keep() {
    sessionStorage.setItem(STORE, JSON.stringify(this.#values()));
  }
}

/** The choice among models, shown where the server has several: only these have a status. */
export class ModelChooser {
  constructor(select) {
    this.select = select;
    select.addEventListener("change", () => localStorage.setItem(MODEL, select.value));
  }

  show(entries) {
    const models = entries.filter((entry) => entry.status);
    const wanted = this.chosen || localStorage.getItem(MODEL);
    this.select.hidden = models.length < 2;
    this.select.replaceChildren(...models.map(option));
    const { id } = models.find((model) => model.id === wanted) ?? models.find(isLoaded) ?? models[0] ?? {};
    this.select.value = id ?? "";
    this.loaded = models.some((model) => model.id === this.chosen && isLoaded(model));
  }

  /** The model of the next answers; empty where there is no choice. */
  get chosen() {
    return this.select.hidden ? "" : this.select.value;
  }
}

const isLoaded = ({ status }) => status.value === "loaded";

function option({ id, status }) {
  const made = element("option", "", `${id} (${status.failed ? "failed" : status.value})`);
  made.value = id;
  return made;
}
