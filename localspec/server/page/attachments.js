// Text files that begin the next question.

import { element } from "./elements.js";

const LARGEST = 4 * 2 ** 20; // bytes, as of /read in the terminal

/** A list of {name, text} shown in `list`; `tell` is called with a sentence about a file that cannot be read. */
export class Attachments {
  constructor(list, tell) {
    this.list = list;
    this.tell = tell;
    this.files = [];
  }

  async add(files) {
    for (const file of files) {
      const text = await read(file).catch((error) => this.tell(`${file.name} was not attached: ${error.message}.`));
      if (text !== undefined) this.show([...this.files, { name: file.name, text }]);
    }
  }

  show(files) {
    this.files = files;
    this.list.replaceChildren(...files.map((file) => {
      const row = element("li", "", `${file.name} (${size(file)}) `);
      const button = element("button", "", "Remove");
      button.type = "button";
      button.setAttribute("aria-label", `Remove ${file.name}`);
      button.addEventListener("click", () => this.show(this.files.filter((other) => other !== file)));
      row.append(button);
      return row;
    }));
  }
}

/** A file of a question: its name, and its text when that is opened. */
export function fileView(file) {
  const made = element("details", "file");
  made.append(element("summary", "", `${file.name} (${size(file)})`), element("pre", "", file.text));
  return made;
}

const size = ({ text }) => (text.length < 1000 ? `${text.length} characters` : `${Math.round(text.length / 1000)}k characters`);

async function read(file) {
  if (file.size > LARGEST) throw new Error("it is larger than 4 MB");
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch {} // the same refusal
  throw new Error("it is not text in UTF-8");
}
