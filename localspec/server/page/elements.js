// Elements that the page's files make.

/** An element with a class and a text; what a model or a user wrote is never read as HTML. */
export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** A button that copies what `text` returns, and says whether it did. */
export function copyButton(text) {
  const button = element("button", "copy", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    // Without TLS, a page of another machine has no clipboard.
    const copied = navigator.clipboard?.writeText(text()) ?? Promise.reject();
    button.textContent = await copied.then(() => "Copied", () => "Not copied");
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}
