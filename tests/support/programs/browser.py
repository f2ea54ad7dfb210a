"""The server's page in a headless Chromium that can reach nothing but this machine."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 60.0  # seconds, for what should take a fraction of one
Found = TypeVar("Found")

# The contrast of each text with its ground, as WCAG 2 has it; texts that nobody sees left out.
CONTRASTS = """
const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const rgba = (colour) => colour.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) =>
  0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const colour = rgba(getComputedStyle(e).backgroundColor);
    if (colour.length === 3) return colour;
  }
  throw "no ground";
};
const found = {};
for (const e of document.querySelectorAll("body *")) {
  const text = e.placeholder ? e : [...e.childNodes].find((n) => n.nodeType === 3 && n.data.trim());
  if (!text || !e.checkVisibility() || e.disabled) continue;
  const colour = rgba(getComputedStyle(e, e.placeholder ? "::placeholder" : null).color);
  const [low, high] = [luminance(colour), luminance(ground(e))].sort((a, b) => a - b);
  const name = `${e.tagName} ${e.id} ${e.className}`;
  found[name] = Math.min(found[name] ?? 99, (high + 0.05) / (low + 0.05));
}
return found;
"""


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """A browser with an empty profile; skips the test where none is installed."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("headless=new", "disable-dev-shm-usage", "disable-gpu", "no-first-run"):
        options.add_argument(f"--{flag}")
    options.add_argument("--window-size=800,1600")  # what is clicked is not under the page's head
    options.add_argument(f"--user-data-dir={profile}")
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # which root cannot have
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options, Service(driver))
    try:
        yield browser
    finally:
        browser.quit()


class Page:
    """The page of a server in a tab of its own, used as a person would."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self.browser = browser
        self.url = url
        former = browser.current_window_handle
        browser.switch_to.new_window("tab")
        mine = browser.current_window_handle
        browser.switch_to.window(former)
        browser.close()
        browser.switch_to.window(mine)
        self.events: list[dict[str, Any]] = []
        self._log("performance")
        self._log("browser")
        self.load()
        self.run("localStorage.clear()")  # of an earlier tab
        self.load()

    def load(self) -> None:
        """Load it, again if it was."""
        self.browser.get(self.url)
        self.wait(lambda: self["model"].text or self["key"].is_displayed())

    def open_answer(self, text: str, origin: str = "draft") -> None:
        """Show a conversation with this answer."""
        turns = [{"text": "hello"}, {"runs": [{"text": text, "origin": origin}], "figures": {}}]
        self.run(f"localStorage['localspec conversation 1'] = {json.dumps(json.dumps(turns))}")
        self.run("sessionStorage['localspec conversation'] = '1'")
        self.load()

    def __getitem__(self, name: str) -> WebElement:
        return self.browser.find_element(By.ID, name)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str) -> Any:
        """The result of JavaScript, which the page's own policy would not let in."""
        return self.browser.execute_script(script)

    def wait(self, found: Callable[[], Found]) -> Found:
        """Until it is true."""
        return WebDriverWait(self.browser, PATIENCE, poll_frequency=0.05).until(lambda _: found())

    def look(self, width: int, scheme: str, height: int = 800) -> None:
        """Change the size of the window, in pixels, and "light" or "dark"."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    # -- what a person does ------------------------------------------------------------------

    def click(self, name: str) -> None:
        self[name].click()

    def press(self, name: str = "") -> list[str]:
        """Press this button of the list of conversations; the names of those that are listed."""
        self.run("document.getElementById('conversations').open = true")
        buttons = self.all("#list button")
        listed = [each.text for each in self.all("#list li button:first-child")]
        for button in [button for button in buttons if button.text == name][:1]:
            button.click()
        return listed

    def send(self, text: str) -> None:
        self["question"].send_keys(text + "\n")

    def ask(self, text: str) -> None:
        """Send a question, and wait for the end of its answer."""
        self.send(text)
        self.wait(lambda: not self.busy)

    def set(self, **values: object) -> None:
        """Write into fields of the settings; "" empties one."""
        self.click("open-settings")
        for name, value in values.items():
            self[name].clear()
            self[name].send_keys(str(value))
        self.all("#settings button.main")[0].click()

    # -- what a person sees ------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self["turns"].get_attribute("aria-busy") == "true"

    @property
    def notice(self) -> str:
        return self["notice"].text

    @property
    def meters(self) -> list[str]:
        """The figures under each answer."""
        return [meter.text for meter in self.all(".meter summary")]

    @property
    def figures(self) -> str:
        """All figures of the last answer, which are behind those under it."""
        return str(self.all(".meter p")[-1].get_property("textContent"))

    @property
    def turns(self) -> list[str]:
        """Questions and answers, without thoughts and the bars over code."""
        texts: list[str] = self.run(
            "return [...document.querySelectorAll('.turn > .body')].map(e => {"
            "  const copy = e.cloneNode(true);"
            "  copy.querySelectorAll('.bar').forEach(bar => bar.remove());"
            "  return copy.textContent;"
            "})"
        )
        return texts

    def characters(self) -> list[tuple[str, str]]:
        """Those of the last answer that can be seen, each with the origin that it shows."""
        spans: list[tuple[str, str]] = self.run(
            "return [...[...document.querySelectorAll('.turn > .body')].at(-1)"
            ".querySelectorAll('span:not(:has(span))')].map(e => [e.textContent, e.className])"
        )
        return [(c, origin) for text, origin in spans for c in text if not c.isspace()]

    # -- what nobody sees --------------------------------------------------------------------

    def complaints(self) -> list[str]:
        """What the browser's console says, refused requests left out."""
        entries = self._log("browser")
        return [str(entry["message"]) for entry in entries if entry["source"] != "network"]

    def requests(self) -> list[dict[str, Any]]:
        """All requests of the page since it was first loaded, as DevTools tells of them."""
        told = [json.loads(entry["message"]) for entry in self._log("performance")]
        self.events += [event["message"] for event in told]
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"] for event in sent]

    def bodies(self) -> list[dict[str, Any]]:
        """What was sent to be answered."""
        return [json.loads(r["postData"]) for r in self.requests() if "postData" in r]

    def _log(self, kind: str) -> list[dict[str, Any]]:
        """What was logged since it was last asked for, in all tabs."""
        entries: list[dict[str, Any]] = self.browser.get_log(kind)  # type: ignore[no-untyped-call]
        return entries
