"""Draws docs/serve/page.png: the server's page with an answer, in Chromium (chromium-driver).

localspec serve -m models/demo/target.gguf -md models/demo/draft.gguf --alias demo
python scripts/draw_page.py [URL] [--question TEXT] [--width 400] [--scheme dark] [--plain]

Or a page in a file, as `run --trace` and `bench --report` write them:

python scripts/draw_page.py FILE.html -o docs/use/trace.png [--focus N]
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

PICTURE = Path(__file__).parents[1] / "docs" / "serve" / "page.png"
QUESTION = "How is random.choice implemented?"
FLAGS = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
    "disable-background-networking", "disable-component-update", "hide-scrollbars",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--focus", type=int, help="of a file: the N-th place of Tab")
    parser.add_argument("--width", type=int, default=900)
    parser.add_argument("--height", type=int, default=700)
    parser.add_argument("--scheme", choices=["light", "dark"], default="light")
    parser.add_argument("--plain", action="store_true", help="leave the colours by origin off")
    parser.add_argument("-o", "--output", type=Path, default=PICTURE)
    given = parser.parse_args()
    options, driver = webdriver.ChromeOptions(), shutil.which("chromedriver")
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        browser = webdriver.Chrome(options, Service(driver))
        try:
            draw(browser, given)
        finally:
            browser.quit()


def draw(browser: webdriver.Chrome, given: argparse.Namespace) -> None:
    """Write a picture of a file, or of a server's page after the answer to the question."""
    size = {"width": given.width, "height": given.height, "deviceScaleFactor": 1, "mobile": False}
    scheme = {"name": "prefers-color-scheme", "value": given.scheme}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    if Path(given.url).is_file():
        browser.get(Path(given.url).absolute().as_uri())
        if given.focus:
            browser.find_elements(By.CSS_SELECTOR, "[tabindex]")[given.focus - 1].click()
        given.output.write_bytes(browser.get_screenshot_as_png())
        return
    browser.get(given.url)
    wait = WebDriverWait(browser, 600)
    wait.until(lambda _: browser.find_element(By.ID, "model").text)
    if not given.plain:
        browser.find_element(By.ID, "show-origins").click()
    browser.find_element(By.ID, "question").send_keys(given.question + "\n")
    turns = browser.find_element(By.ID, "turns")
    wait.until(lambda _: turns.get_attribute("aria-busy") == "false")
    given.output.write_bytes(browser.get_screenshot_as_png())


if __name__ == "__main__":
    main()
