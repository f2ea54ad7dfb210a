// The choice among models, shown where the server has several.

import { element } from "./render.js";

const STORE = "localspec model";

export class ModelChooser {
  constructor(select) {
    this.select = select;
    select.addEventListener("change", () => localStorage.setItem(STORE, select.value));
  }

  /** One model has many names, but only several models have a status each. */
  show(entries) {
    const models = entries.filter((entry) => entry.status).map(({ id, status }) => [id, status.value ?? status]);
    this.select.hidden = models.length < 2;
    const wanted = this.chosen || localStorage.getItem(STORE);
    const options = models.map(([id, state]) => {
      const option = element("option", "", state === "loaded" ? id : `${id} (${state})`);
      option.value = id;
      return option;
    });
    this.select.replaceChildren(...options);
    const preferred = [wanted, models.find(([, state]) => state === "loaded")?.[0], models[0]?.[0]];
    this.select.value = preferred.find((id) => models.some(([known]) => known === id)) ?? "";
    this.loaded = new Map(models).get(this.chosen) === "loaded";
  }

  /** The model of the next answers; empty where there is no choice. */
  get chosen() {
    return this.select.hidden ? "" : this.select.value;
  }
}
