// As much of a browser as the page needs: elements, events, storage. Nothing is laid out.

class Storage {
  getItem(key) {
    return this[key] ?? null;
  }
  removeItem(key) {
    delete this[key];
  }
  setItem(key, value) {
    if (value.length > 5_000_000) throw new Error("QuotaExceededError");
    this[key] = String(value);
  }
}

class Node extends EventTarget {
  parentNode = null;
  childNodes = [];
  get children() {
    return this.childNodes.filter((node) => node instanceof Element);
  }
  get firstElementChild() {
    return this.children[0] ?? null;
  }
  get lastElementChild() {
    return this.children.at(-1) ?? null;
  }
  get lastChild() {
    return this.childNodes.at(-1) ?? null;
  }
  hasChildNodes = () => this.childNodes.length > 0;
  append(...nodes) {
    for (const node of nodes) this.appendChild(node instanceof Node ? node : new Text(node));
  }
  prepend(...nodes) {
    this.replaceChildren(...nodes, ...this.childNodes);
  }
  appendChild(node) {
    node.remove();
    node.parentNode = this;
    this.childNodes.push(node);
    return node;
  }
  replaceChildren(...nodes) {
    for (const node of [...this.childNodes]) node.remove();
    this.append(...nodes);
  }
  replaceWith(node) {
    const { parentNode: parent } = this;
    parent.replaceChildren(...parent.childNodes.map((child) => (child === this ? node : child)));
  }
  closest(name) {
    return this.tagName === name.toUpperCase() ? this : (this.parentNode?.closest?.(name) ?? null);
  }
  remove() {
    const siblings = this.parentNode?.childNodes ?? [];
    if (siblings.includes(this)) siblings.splice(siblings.indexOf(this), 1);
    this.parentNode = null;
  }
  get textContent() {
    return this.childNodes.map((node) => node.textContent).join("");
  }
  set textContent(text) {
    this.replaceChildren(...(text ? [text] : []));
  }
  *[Symbol.iterator]() {
    for (const child of this.children) yield* [child, ...child];
  }
  /** Selectors of one step: a name, an id, a class, an attribute, :focus. */
  querySelectorAll(selector) {
    const [, name, id, kind, attribute, focus] =
      /^(\w+)?(?:#([\w-]+))?(?:\.(\w+))?(?:\[([\w-]+).*\])?(:focus)?$/.exec(selector);
    return [...this].filter(
      (e) =>
        (!name || e.tagName === name.toUpperCase()) && (!id || e.id === id) &&
        (!kind || e.className.split(" ").includes(kind)) && (!attribute || attribute in e.attributes) &&
        (!focus || document.activeElement === e),
    );
  }
  querySelector = (selector) => this.querySelectorAll(selector)[0] ?? null;
}

class Text extends Node {
  constructor(data) {
    super();
    this.data = String(data);
  }
  get textContent() {
    return this.data;
  }
}

const VOID = new Set(["META", "LINK", "INPUT", "BR", "HR", "OPTION"]);

class Element extends Node {
  constructor(name, attributes = {}) {
    super();
    this.tagName = name.toUpperCase();
    this.attributes = attributes;
    Object.assign(this, { className: "", value: "", id: "", name: "", href: "" }, attributes);
    for (const flag of ["hidden", "disabled", "checked", "open"]) this[flag] = flag in attributes;
  }
  style = {};
  setAttribute = (name, value) => void (this.attributes[name] = value);
  getAttribute = (name) => this.attributes[name] ?? null;
  classList = {
    toggle: (name, on) => {
      const others = this.className.split(" ").filter((other) => other && other !== name);
      this.className = [...others, ...(on ? [name] : [])].join(" ");
    },
  };
  get elements() {
    const fields = [...this].filter((e) => /^(INPUT|TEXTAREA|BUTTON)$/.test(e.tagName));
    return Object.assign(fields, Object.fromEntries(fields.map((e) => [e.name || e.id, e])));
  }
  focus = () => void (document.activeElement = this);
  click = () => void (this.disabled || this.dispatchEvent(new Event("click")));
  select() {}
  checkValidity = () => true;
  showModal = () => void (this.open = true);
  /** [name, attributes that matter, children], a text as it is. */
  tree() {
    const seen = { class: this.className, href: this.href, rel: this.rel, start: this.start };
    const attributes = Object.fromEntries(Object.entries(seen).filter(([, value]) => value));
    const children = this.childNodes.map((node) => (node instanceof Text ? node.data : node.tree()));
    return [this.tagName.toLowerCase(), attributes, ...children];
  }
}

/** Read a page whose tags are all closed, but for those that need not be. */
function parse(html) {
  const root = new Element("document");
  let parent = root;
  for (const [, end, name, given, text] of html.matchAll(/<(\/?)(\w+)((?:\s+[\w-]+(?:="[^"]*")?)*)>|([^<]+)/g)) {
    if (text?.trim()) parent.append(text);
    else if (end) parent = parent.parentNode;
    else if (name) {
      const pairs = [...given.matchAll(/([\w-]+)(?:="([^"]*)")?/g)].map(([, key, value = ""]) => [key, value]);
      const made = parent.appendChild(new Element(name, Object.fromEntries(pairs)));
      if (!VOID.has(made.tagName)) parent = made;
    }
  }
  return root;
}

/** Make the globals of a browser that shows a page of a server. */
export function browse(html = "<body></body>", url = "http://127.0.0.1") {
  const root = parse(html);
  const { fetch } = globalThis;
  const body = root.querySelector("body");
  const copied = [];
  const made = {
    document: Object.assign(root, {
      body, documentElement: { scrollHeight: 0 }, activeElement: body,
      compatMode: "CSS1Compat",
      createElement: (name) => new Element(name),
      createElementNS: (_, name) => new Element(name),
      createTextNode: (text) => new Text(text),
      getElementById: (id) => root.querySelector(`#${id}`),
    }),
    window: { scrollTo() {}, innerHeight: 800, scrollY: 0 },
    matchMedia: () => ({ matches: false }),
    localStorage: new Storage(), sessionStorage: new Storage(),
    navigator: { clipboard: { writeText: async (text) => void copied.push(text) } }, copied,
    FormData: class extends Map {
      constructor(form) {
        super(form.elements.filter((e) => e.name).map((e) => [e.name, e.value]));
      }
    },
    fetch: (path, options) => fetch(new URL(path, `${url}/`), options),
    events: new EventTarget(), confirm: () => true, prompt: (_, name) => name,
  };
  made.addEventListener = made.events.addEventListener.bind(made.events);
  for (const [name, value] of Object.entries(made)) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
  }
}
