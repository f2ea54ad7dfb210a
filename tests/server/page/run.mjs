// Runs lines of JSON {script}, each the body of a function of what a page's folder has, and answers.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { browse } from "./dom.mjs";

const folder = pathToFileURL(`${process.argv[2]}/`);
const load = (name) => import(new URL(name, folder));
const html = readFileSync(new URL("index.html", folder), "utf-8");
const Run = Object.getPrototypeOf(async () => {}).constructor;

browse();
// In a browser these files make their names global; node takes them for modules.
for (const [name, file] of [["markdownit", "markdown-it"], ["katex", "katex"]]) {
  globalThis[name] = createRequire(folder)(`./vendor/${file}.min.js`);
}
for await (const line of createInterface({ input: process.stdin })) {
  const { script, given } = JSON.parse(line);
  const reply = await new Run("load", "browse", "html", "given", script)(load, browse, html, given).then(
    (result) => ({ result }), (error) => ({ error: error.stack }),
  );
  process.stdout.write(JSON.stringify(reply) + "\n");
}
