"""The page at /, in a real browser on a real socket."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from localspec.chat.conversation_store import read_conversation
from localspec.chat.stats import STATUS_WORDS, GenerationStats
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.core.origins import ORIGINS
from localspec.display.answer import meter
from localspec.engine.session.limits import Limits
from localspec.server import app
from localspec.server.api.replies import timings
from localspec.server.guard import Access
from localspec.server.service import Defaults
from localspec.speculative.loop import DraftStatus
from tests.support.programs.browser import CONTRASTS, PATIENCE, Page, chromium
from tests.support.served import Gate, ServedToy, Site, gated_toy, serving

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

FOLDER = Path(app.__file__).parent / "page"
SOURCE = "Show me the source of os.path.join."
HOSTILE = "<img src=x onerror=alert(1)> </div><script>document.title = 'ha'</script> &lt;b&gt;"
WORD = "x" * 400
Open = Callable[[Site], Page]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def load(browser: Chrome) -> Iterator[Open]:
    """Open a server's page; at the end nothing broke, and nobody else was asked for anything."""
    opened: list[Page] = []

    def load(site: Site) -> Page:
        opened.append(Page(browser, site.url + "/"))
        return opened[-1]

    yield load
    for page in opened:
        assert page.complaints() == []
        asked = {request["url"] for request in page.requests()}
        assert asked
        foreign = [url for url in asked if not url.startswith((page.url, "data:", "blob:"))]
        assert foreign == []


@pytest.fixture
def page(load: Open, toy_server: Site) -> Page:
    """The page over a toy pair."""
    return load(toy_server)


def let_until(gate: Gate, seen: Callable[[], bool], page: Page) -> None:
    """Let passes be made one by one until this is seen: what a pass brings is shown in groups."""

    def is_seen() -> bool:
        gate.let()
        return seen()

    page.wait(is_seen)


# -- what is served -------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/page/page.css", "/page/origins.css"])
def test_a_page_may_load_nothing_from_elsewhere(toy_server: Site, path: str) -> None:
    headers = toy_server.get(path).headers
    rules = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert rules.pop("img-src") == "'self' data:"
    assert rules.pop("require-trusted-types-for") == "'script'"
    assert {name for name, value in rules.items() if value == "'self'"} == {
        "script-src", "style-src", "connect-src",
    }  # fmt: skip
    assert {name for name, value in rules.items() if value == "'none'"} == {
        "default-src", "base-uri", "form-action", "frame-ancestors",
    }  # fmt: skip
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_nothing_is_made_of_html_and_nothing_is_in_line() -> None:
    scripts = "".join(path.read_text("utf-8") for path in FOLDER.glob("*.js"))
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval", scripts)
    html = (FOLDER / "index.html").read_text("utf-8")
    assert not re.findall(r"<style|<script>|\s(?:style|on\w+)=", html)


def test_files_of_others_are_those_of_their_packages() -> None:
    notes = (FOLDER / "vendor/README.md").read_text("utf-8")
    rows = dict(re.findall(r"\|`([\w.-]+\.js)`\|.*`(\w{64})`\|", notes))
    files = list((FOLDER / "vendor").glob("*.js"))
    assert {file.name: sha256(file.read_bytes()).hexdigest() for file in files} == rows
    for file in files:
        licence = file.with_name(file.name.replace(".min.js", ".LICENSE.txt"))
        assert "Copyright" in licence.read_text("utf-8")


def test_the_words_are_the_terminals() -> None:
    script = (FOLDER / "answer.js").read_text("utf-8")
    for status, words in STATUS_WORDS.items():
        assert not words or f'{status.value}: "{words}"' in script


def test_the_page_shows_every_origin(toy_server: Site) -> None:
    html, css = toy_server.get("/").text, toy_server.get("/page/origins.css").text
    rows = re.findall(r'<li class="(\w+)">([^<]+)</li>', html)
    assert rows == [(row.name, row.label) for row in ORIGINS.values()]
    assert re.findall(r"\.(\w+) \{ color: light-dark\(#\w{6}, #\w{6}\);", css) == [*ORIGINS][:-1]


# -- an answer ------------------------------------------------------------------------------


@pytest.mark.llama
def test_an_answer_is_the_apis_by_origin_with_its_figures(load: Open, server: Site) -> None:
    page = load(server)
    page.set(temperature=0, max_tokens=40, draft_tokens=4)
    page.ask(SOURCE)
    asked = [{"role": "user", "content": SOURCE}]
    same = {"messages": asked, "temperature": 0, "max_tokens": 40, "draft_tokens": 4}
    reply = server.ask(**same)
    content = reply["choices"][0]["message"]["content"]
    assert page.turns[0] == SOURCE
    # Code without its fences.
    assert page.all(".turn > .body pre")[0].get_property("textContent") in content
    assert page.all(".language")[0].text == "python"
    events = server.stream(**same, return_origins=True)
    assert all(event["draft"] == {"tokens": 4, "status": ""} for event in events)
    runs = [
        run for event in events for choice in event["choices"] for run in choice.get("origins", [])
    ]
    seen = [(c, run["origin"]) for run in runs for c in run["text"] if not c.isspace()]
    code = [pair for pair in seen if pair[0] != "`"]
    assert page.characters() == code[len("python") :]
    assert {origin for _, origin in seen} >= {"draft", "corrected"}
    timings = reply["timings"]
    kept, drafted = timings["draft_n_accepted"], timings["draft_n"]
    length = 40 / timings["rounds"]
    accepted = f"{kept} of {drafted} drafted tokens accepted"
    gain = r"about [\d.]+x plain"
    assert re.fullmatch(
        rf"[\d.]+ tok/s · ({gain} · )?{accepted} · stopped at --max-tokens",
        page.meters[-1],
    )
    assert re.fullmatch(rf"(answers here: {gain})?", page["gain"].text)
    assert not page.all(".meter p")[-1].is_displayed()
    assert re.fullmatch(
        rf"40 tokens · ({gain} · )?{accepted} · {length:.2f} tokens/round · "
        r"prompt 20 tokens(, \d+ cached)? · TTFT [\d.]+ s · seed \d+",
        page.figures,
    )
    page.all(".meter summary")[-1].click()
    assert page.all(".meter p")[-1].is_displayed()


@pytest.mark.llama
def test_without_a_draft_nothing_was_drafted(load: Open, server: Site) -> None:
    page = load(server)
    page.set(temperature=0, max_tokens=30, draft_tokens="off")
    page.ask(SOURCE)
    assert {origin for _, origin in page.characters()} == {"plain"}
    assert "drafted" not in page.meters[-1]
    assert page.bodies()[-1]["draft_tokens"] == "off"


def test_the_meter_is_live_and_stop_ends_the_answer(load: Open) -> None:
    engine, gate = gated_toy()
    with serving(engine, defaults=Defaults(GenerateOptions(SamplingParams(temperature=0)))) as site:
        page = load(site)
        page.send("hello")
        let_until(gate, lambda: len(page.turns[-1]) >= 2, page)
        assert re.fullmatch(r"[\d.]+ tok/s · nothing drafted", page.meters[-1])
        assert page.all(".foot .copy")[0].is_displayed()
        assert page.busy and not page["send"].is_displayed()
        page["stop"].send_keys(Keys.ENTER)
        page.wait(lambda: not page.busy)
        assert page.browser.switch_to.active_element == page["send"]
        said, passes = page.turns[-1], gate.passes
        assert page.meters[-1].endswith(" · stopped")
        gate.let(10_000)
        page.wait(lambda: site.service.session.running == 0)
        assert gate.passes < passes + 50
        assert page.turns == ["hello", said]
        assert page["send"].is_displayed() and not page["stop"].is_displayed()
        assert not page.notice


@pytest.mark.parametrize(
    ("drafted", "gain", "status", "words"),
    [
        (150, 1.62, DraftStatus.DRAFTING, "about 1.6x plain · 84 of 150 drafted tokens accepted"),
        (150, 0.0, DraftStatus.DRAFTING, "84 of 150 drafted tokens accepted"),
        (0, 0.0, DraftStatus.DRAFTING, "nothing drafted"),
        (0, 0.0, DraftStatus.RECENTLY_SLOWER, "drafting off (recently slower than plain)"),
    ],
)
def test_the_meter_says_what_the_terminals_does(
    page: Page, drafted: int, gain: float, status: DraftStatus, words: str
) -> None:
    stats = GenerationStats(tokens=183, rounds=100, drafted=drafted, seconds=183 / 117.9)
    stats.accepted, stats.plain_seconds = min(84, drafted), gain * stats.seconds
    choice = {"delta": {}, "origins": [{"text": "é", "origin": "draft", "reasoning": False}]}
    draft = {"tokens": 0, "status": status.value}
    event = {"choices": [choice], "timings": timings(stats), "draft": draft}
    data = f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
    middle = data.index("é".encode()) + 1  # events come in whatever pieces the network makes
    page.run(
        "window.fetch = async () => new Response(new ReadableStream({start(stream) {"
        f"  for (const part of {[[*data[:middle]], [*data[middle:]]]})"
        "    stream.enqueue(new Uint8Array(part));"
        "}}))"
    )
    page.send("hello")
    page.wait(lambda: page.turns[-1] == "é")
    assert page.meters == [meter(stats, 999, status)] == [f"117.9 tok/s · {words}"]


def test_a_prompt_shows_how_much_of_it_is_read(page: Page) -> None:
    progress = {"total": 7909, "cache": 0, "processed": 2304, "time_ms": 1.0}
    figures = timings(GenerationStats(read_tokens=2304))
    event = {"choices": [{"delta": {}}], "prompt_progress": progress, "timings": figures}
    data = f"data: {json.dumps(event)}\n\n"
    page.run(
        "window.fetch = async () => new Response(new ReadableStream({"
        f"start: (stream) => stream.enqueue(new TextEncoder().encode({json.dumps(data)}))}}))"
    )
    page.send("hello")
    page.wait(lambda: page.meters == ["reading the prompt: 2,304 of 7,909 tokens"])


def test_the_prompts_progress_is_asked_for(page: Page) -> None:
    page.ask("hello")
    assert page.bodies()[-1]["return_progress"] is True


def test_the_page_follows_an_answer_unless_its_reader_is_elsewhere(load: Open) -> None:
    engine, gate = gated_toy()
    with serving(engine, defaults=Defaults(GenerateOptions(SamplingParams(temperature=0)))) as site:
        page = load(site)
        page.look(390, "light", 450)
        page.send(3 * WORD)
        let_until(gate, lambda: bool(page.turns[-1]), page)
        place = "return [scrollY, document.documentElement.scrollHeight - innerHeight]"
        at, end = page.run(place)
        assert at == end > 0
        page.run("scrollTo(0, 0)")
        said = page.turns[-1]
        let_until(gate, lambda: page.turns[-1] != said, page)
        assert page.run("return scrollY") == 0
        page.click("stop")
        gate.let(10_000)


def test_a_question_stopped_before_its_answer_can_be_sent_again(load: Open) -> None:
    engine, gate = gated_toy()
    with serving(engine) as site:
        page = load(site)
        page.send("hello")
        page.wait(lambda: page.meters and page.meters[0].startswith("reading the prompt: 0 of "))
        assert not page.all(".foot .copy")[0].is_displayed()
        page["question"].send_keys("and then")
        page.click("stop")
        page.wait(lambda: not page.busy)
        assert page.turns == []
        assert page["question"].get_property("value") == "hello\nand then"
        gate.let(10_000)
        page.ask("")
        assert page.turns[0] == "hello\nand then"
        assert page.turns[1]


@pytest.fixture(scope="module")
def recited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, list[str]]]:
    """A server over a model that thinks and answers in HTML, and the prompts it was given."""
    from localspec.core.options.load_options import LoadOptions
    from localspec.engine.engine import Engine
    from tests.support.chat import templates
    from tests.support.chat.reciting import reciting, write_reciter

    file = write_reciter(tmp_path_factory.mktemp("reciter") / "reciter.gguf", templates.HARMONY)
    said = (
        f"<|channel|>analysis<|message|>hm {HOSTILE}<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{HOSTILE}\n\n{WORD}"
    )
    with (
        reciting(said) as prompts,
        Engine.load(LoadOptions(file, threads=1)) as engine,
        serving(engine, defaults=Defaults(GenerateOptions(SamplingParams(temperature=0)))) as site,
    ):
        yield site, prompts


@pytest.mark.llama
def test_html_is_text_and_thoughts_are_folded(load: Open, recited: tuple[Site, list[str]]) -> None:
    site, prompts = recited
    page = load(site)
    page.set(system="Be <b>kind</b>.")
    page.ask(HOSTILE)
    assert page.turns == [HOSTILE, HOSTILE + WORD]
    thoughts = page.all(".thoughts .body")[0]
    assert not thoughts.is_displayed()
    page.all(".thoughts summary")[0].click()
    assert thoughts.text == f"hm {HOSTILE}"
    assert page.browser.title == "localspec"
    assert not page.all("#turns :is(img, script, b)")
    page.ask("More")
    first, second = page.bodies()
    assert [message["role"] for message in second["messages"]] == [
        "system", "user", "assistant", "user",
    ]  # fmt: skip
    assert second["messages"][2] == {
        "role": "assistant",
        "content": f"{HOSTILE}\n\n{WORD}",
        "reasoning_content": f"hm {HOSTILE}",
    }
    assert "Be <b>kind</b>." in prompts[-1] and first["messages"] == second["messages"][:2]


# -- what goes wrong ------------------------------------------------------------------------


def test_a_full_queue_is_said_and_nothing_lost(load: Open) -> None:
    engine, gate = gated_toy()
    with serving(engine, limits=Limits(waiting=0)) as site:
        page = load(site)
        with ThreadPoolExecutor() as other:
            first = other.submit(site.ask)
            assert gate.began.acquire(timeout=PATIENCE)
            page.send("hello")
            assert re.search(r"queue is full .* Ask again in \d+ s", page.wait(lambda: page.notice))
            assert page["question"].get_property("value") == "hello"
            assert page.turns == []
            gate.let(10_000)
            assert first.result()
        page.ask("")
        assert len(page.turns) == 2 and not page.notice


def test_a_lost_server_is_said_and_nothing_lost(load: Open) -> None:
    with serving(ServedToy()) as site:
        page = load(site)
        page.ask("hello")
        turns, meters = page.turns, page.meters
    tries: list[Callable[[], None]] = [lambda: page.send("more"), lambda: page.click("again")]
    for attempt in tries:
        attempt()
        sentence = page.wait(lambda: page.notice)
        assert sentence == "There is no connection to the server. Is localspec serve still running?"
        page.wait(lambda: not page.busy)
        assert (page.turns, page.meters) == (turns, meters)
        assert page["question"].get_property("value") == "more"


def test_an_answer_that_breaks_off_stays(load: Open) -> None:
    class Breaking(Gate):
        def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
            if self.passes > 5:
                raise RuntimeError("the secret of /home/somebody")
            return super().decode(tokens, rows)

    engine = ServedToy(quirk=None)
    engine.target = gate = Breaking()
    gate.let(5)
    with serving(engine, defaults=Defaults(GenerateOptions(SamplingParams(temperature=0)))) as site:
        page = load(site)
        page.send("hello")
        gate.let(5)
        assert "The server failed to answer" in page.wait(lambda: page.notice)
        assert page.turns[-1] and page.meters[-1].endswith(" · cut off")
        assert "secret" not in page.notice


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ("new Response('data: {}\\n\\n')", "The server ended before the answer was complete."),
        ("new Response('<html>', {status: 502})", "The server answered with status 502."),
        (
            "new Response('', {status: 429, headers: {'Retry-After': '7'}})",
            "The server answered with status 429. Ask again in 7 s.",
        ),
    ],
)
def test_replies_of_what_stands_between(page: Page, reply: str, sentence: str) -> None:
    page.run(f"window.fetch = async () => {reply}")
    page.send("hello")
    assert page.wait(lambda: page.notice) == sentence
    assert page["question"].get_property("value") == "hello"


def test_warnings_are_said(page: Page) -> None:
    data = 'data: {"warnings": ["One.", "Two."]}\n\ndata: [DONE]\n\n'
    page.run(f"window.fetch = async () => new Response({json.dumps(data)})")
    page.ask("hello")
    assert page.notice == "One. Two."


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(load: Open) -> None:
    with serving(ServedToy(), access=Access(keys=("the key",))) as site:
        page = load(site)
        assert page.notice == "This server wants a key: enter it below."
        page["key"].send_keys("wrong\n")
        page.wait(lambda: page.notice == "This key is not the server's.")
        assert page["key"].is_displayed()
        page["key"].send_keys("the key\n")
        page.wait(lambda: page["model"].text)
        assert not page["key"].is_displayed() and not page.notice
        page.ask("hello")
        assert page.turns[1]
        stored = page.run("return JSON.stringify({...localStorage}) + document.cookie")
        assert "the key" not in stored
        page.load()
        assert page["model"].text and not page["key"].is_displayed()


# -- the conversation -----------------------------------------------------------------------


def test_conversations_outlive_the_page_until_they_are_deleted(page: Page) -> None:
    page.ask("hello")
    page.ask("more")
    told = page.bodies()[-1]["messages"]
    assert [message["content"] for message in told] == [*page.turns[:2], "more"]
    seen = page.turns, page.meters, page.characters()
    page.click("new")
    assert page.turns == []
    page.ask("other")
    page.load()
    assert page.turns[0] == "other"
    assert page.press("hello")
    assert (page.turns, page.meters, page.characters()) == seen
    assert page.press("Delete conversation")
    page.browser.switch_to.alert.accept()
    assert page.turns == [] and page.press() == ["other"]


def test_an_edited_question_is_asked_in_place_of_itself(page: Page) -> None:
    page.ask("one")
    page.ask("two")
    page["question"].send_keys("unsent")
    page.all(".edit")[1].click()
    assert page["question"].get_property("value") == "two"
    assert len(page.all(".replaced")) == 2
    page.click("cancel")
    assert page["question"].get_property("value") == "unsent" and not page.all(".replaced")
    page.all(".edit")[1].click()
    page.ask(" more")
    assert page["question"].get_property("value") == "unsent"
    assert page.turns[0::2] == ["one", "two more"] and page.press() == ["one"]
    assert [m["content"] for m in page.bodies()[-1]["messages"]] == [*page.turns[:2], "two more"]


def test_editing_an_earlier_question_loses_none(page: Page) -> None:
    page.ask("one")
    page.ask("two")
    page.all(".edit")[0].click()
    page.ask(" more")
    assert page.turns[0::2] == ["one more"] and page.press() == ["one more"]
    assert page.all(".versions")[0].text.split() == ["‹", "2/2", "›"]
    page.all(".versions button")[0].click()
    assert page.turns[0::2] == ["one", "two"]


def test_an_edited_question_that_is_refused_changes_nothing(page: Page) -> None:
    page.ask("one")
    turns = page.turns
    page.run("window.fetch = async () => new Response('', {status: 502})")
    page.all(".edit")[0].click()
    page.send(" more")
    page.wait(lambda: page.notice)
    assert page.turns == turns and page["question"].get_property("value") == "one more"
    assert page["cancel"].is_displayed()


def test_a_conversation_is_renamed_found_and_exported(page: Page, tmp_path: Path) -> None:
    page.ask("hello")
    answer = page.turns[1]
    assert page.press("Rename")
    page.browser.switch_to.alert.send_keys("A b/c")
    page.browser.switch_to.alert.accept()
    page.load()
    page.click("new")
    page.ask("other")
    assert page.press() == ["other", "A b/c"]
    page["search"].send_keys("a B/")
    assert page.press() == ["A b/c"]
    page["search"].clear()
    page["search"].send_keys("hello")
    assert page.press() == ["A b/c"]
    page.press("A b/c")
    folder = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.browser.execute_cdp_cmd("Browser.setDownloadBehavior", folder)
    page.press("Markdown")
    page.press("JSON")
    paths = [tmp_path / "A-b-c.md", tmp_path / "A-b-c.json"]
    page.wait(lambda: all(path.exists() for path in paths))
    assert paths[0].read_text() == f"# A b/c\n\n## You\n\nhello\n\n## Answer\n\n{answer}\n"
    messages = read_conversation(paths[1]).messages
    assert [message["content"] for message in messages] == ["hello", answer]


def test_text_files_begin_a_question(page: Page, tmp_path: Path) -> None:
    good, other, binary = tmp_path / "<b>.py", tmp_path / "b.txt", tmp_path / "c.bin"
    good.write_text("print(1)\n\n")
    other.write_text("other")
    binary.write_bytes(b"\xff\0")
    page["files"].send_keys(f"{good}\n{other}\n{binary}")
    assert page.wait(lambda: page.notice) == "c.bin was not attached: it is not text in UTF-8."
    assert [row.text for row in page.all("#attached li")] == [
        "<b>.py (10 characters) Remove",
        "b.txt (5 characters) Remove",
    ]
    page.all("#attached button")[1].click()
    page.ask("What is it?")
    (message,) = page.bodies()[-1]["messages"]
    assert message["content"] == "<b>.py:\n\nprint(1)\n\nWhat is it?"
    assert page.turns[0] == "What is it?" and not page["attached"].text
    page.load()
    page.all(".file summary")[0].click()
    assert page.all(".file pre")[0].text == "print(1)"
    page.all(".edit")[0].click()
    assert "<b>.py" in page["attached"].text


def test_a_chosen_model_is_asked(page: Page) -> None:
    models = [{"id": name, "status": {"value": "unloaded"}} for name in ("one", "two")]
    page.run(
        "const real = fetch;"
        "window.fetch = (path, options) => path === 'v1/models'"
        f" ? Promise.resolve(Response.json({{data: {json.dumps(models)}}})) : real(path, options)"
    )
    page.run("document.getElementById('models').dispatchEvent(new Event('change'))")
    page.wait(lambda: page["models"].is_displayed())
    page["models"].send_keys("two")
    page.run("window.after = fetch; window.fetch = (...asked) => new Promise((done) => (window.go ="
             " () => done(after(...asked))))")  # fmt: skip
    page.send("hello")
    page.wait(lambda: page.meters == ["loading two"])
    page.run("go()")
    page.wait(lambda: not page.busy)
    assert page.bodies()[-1]["model"] == "two"
    assert page["models"].text.split("\n") == ["one (unloaded)", "two (unloaded)"]


def test_code_and_answers_are_copied(page: Page) -> None:
    text = "Some **code**:\n\n```python\ndef f():\n    pass\n```\n"
    page.open_answer(text)
    assert page.all("strong")[0].text == "code" and page.all(".language")[0].text == "python"
    page.run("navigator.clipboard.writeText = async (text) => void (window.copied = text)")
    for button, expected in zip(page.all(".copy"), ["def f():\n    pass", text], strict=True):
        button.click()
        assert page.run("return copied") == expected


def test_the_last_answer_can_be_given_again(page: Page) -> None:
    page.set(temperature=1)
    page.ask("hello")
    page.click("again")
    page.wait(lambda: not page.busy)
    first, second = page.bodies()
    assert first["messages"] == second["messages"]
    assert len(page.turns) == 2


def test_settings_are_sent_and_kept(page: Page) -> None:
    given = {
        "draft_tokens": 2, "max_tokens": 5, "temperature": 0.5, "top_k": 7, "top_p": 0.9,
        "min_p": 0.1, "seed": 42,
    }  # fmt: skip
    shown = {name: page[name].get_attribute("placeholder") for name in given}
    assert shown == {
        "draft_tokens": "auto", "max_tokens": "8", "temperature": "0", "top_k": "40",
        "top_p": "0.95", "min_p": "0.05", "seed": "random",
    }  # fmt: skip
    page.ask("hello")
    assert not given.keys() & page.bodies()[-1].keys()
    page.set(**given, system="Be kind.")
    page.load()
    page.ask("hello")
    sent = page.bodies()[-1]
    assert {name: sent[name] for name in given} == given
    assert sent["messages"][0] == {"role": "system", "content": "Be kind."}
    assert page.figures.startswith("5 tokens · ") and page.figures.endswith(" · seed 42")
    assert page.meters[-1].endswith(" · stopped at --max-tokens")
    page.click("open-settings")
    page.all("#settings button[type=reset]")[0].click()
    page.all("#settings button.main")[0].click()
    page.ask("more")
    assert page.meters[-1].endswith(" · stopped at --max-tokens")  # the server's, of 8
    assert not given.keys() & page.bodies()[-1].keys()
    assert page.bodies()[-1]["messages"][0]["role"] == "user"


def test_what_is_no_setting_is_shown_and_not_sent(page: Page) -> None:
    page.click("open-settings")
    page["draft_tokens"].send_keys("63")
    page["draft_tokens"].send_keys(Keys.ESCAPE)
    page.wait(lambda: not page["settings"].is_displayed())
    page.send("hello")
    assert page["settings"].is_displayed()
    assert page.bodies() == []
    page["draft_tokens"].send_keys(Keys.BACKSPACE, Keys.ENTER)
    page.wait(lambda: not page["settings"].is_displayed())
    page.ask("")
    assert page.bodies()[-1]["draft_tokens"] == 6


def test_the_field_grows_with_its_text(page: Page) -> None:
    page.look(800, "light", 800)
    page.click("question")
    heights = []
    for lines in (1, 10, 100):
        page["question"].clear()
        page.run(f"document.execCommand('insertText', false, {json.dumps('x' + chr(10) * lines)})")
        heights.append(page["question"].rect["height"])
    low, high, most = heights
    assert 40 < low < 100 < high < most <= 320  # of a window of 800
    assert page["question"].get_property("rows") == 12  # for browsers without the style


def test_keys_are_enough(page: Page) -> None:
    page["question"].send_keys("one", Keys.SHIFT + Keys.ENTER, Keys.NULL, "two", Keys.ENTER)
    page.wait(lambda: len(page.turns) == 2 and not page.busy)
    assert page.turns[0] == "one\ntwo"
    reached = set()
    for _ in range(20):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(page.browser.switch_to.active_element.get_attribute("id"))
    assert reached >= {"new", "open-settings", "show-origins", "question", "again", "send"}
    named = page.run(
        "return [...document.querySelectorAll('input, textarea')]"
        ".filter(e => !e.ariaLabel && !e.labels[0]?.textContent.trim()).map(e => e.id)"
    )
    assert named == []


# -- how it looks ---------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(page: Page, scheme: str) -> None:
    page.click("show-origins")
    page.set(draft_tokens=3)
    page.ask(f"hello {WORD}")
    page.run("for (const e of document.querySelectorAll('[hidden]')) e.hidden = false")
    page.run("document.getElementById('notice').textContent = 'A sentence.'")
    for width in (320, 400, 1280):
        page.look(width, scheme)
        for dialog in (False, True):
            if dialog:
                page.click("open-settings")
            assert page.run("return document.documentElement.scrollWidth <= innerWidth")
            outside = page.run(
                "return [...document.querySelectorAll('body *')].filter(e => e.checkVisibility()"
                " && e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML)"
            )
            assert outside == []
            contrasts = page.run(CONTRASTS)
            assert contrasts.keys() >= {
                "LI  draft", "LI  lookup", "LI  history", "LI  forced", "LI  corrected",
                "P notice ", "INPUT seed ",
            } - ({"INPUT seed "} if not dialog else set())  # fmt: skip
            assert {name: c for name, c in contrasts.items() if c < 4.5} == {}
        page.all("#settings button.main")[0].click()
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_origins_differ_in_more_than_colour_and_can_be_hidden(page: Page) -> None:
    page.set(draft_tokens=3)
    page.ask("hello")

    def looks() -> dict[str, tuple[str, str]]:
        found = {}
        for name in ORIGINS:
            item = page.browser.find_element(By.CSS_SELECTOR, f"#legend .{name}")
            line = item.value_of_css_property("text-decoration-line")
            style = item.value_of_css_property("text-decoration-style")
            found[name] = (line, style if line != "none" else "")
        return found

    assert not page["show-origins"].is_selected()
    page.click("show-origins")
    assert len(set(looks().values())) == 4
    page.load()
    assert page["show-origins"].is_selected()
    page.click("show-origins")
    spans = page.all(".turn > .body span")
    assert {span.value_of_css_property("text-decoration-line") for span in spans} == {"none"}
    assert not page.all("#legend ul")[0].is_displayed()


def test_formulas_are_set_and_by_origin_their_source(page: Page) -> None:
    block = "$$\n\\color{red} \\rule{9999em}{1em} \\mathbb{R}\n$$\n"
    page.open_answer(f"So $\\frac{{a}}{{2}}$ costs $5 or $10:\n\n{block}")
    math, sources = page.all("math"), page.all(".formula .source")
    over, under = page.all("mfrac > *")
    assert over.rect["y"] < under.rect["y"] and len(math) == 2
    assert not any(source.is_displayed() for source in sources)
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    page.click("show-origins")
    assert [source.text.split("\n")[0] for source in sources] == ["$\\frac{a}{2}$", "$$"]
    assert not any(formula.is_displayed() for formula in math)


def test_an_answer_without_origins_is_shown_as_usual(page: Page) -> None:
    page.click("show-origins")
    page.open_answer("So $\\frac{a}{2}$:\n\n```python\ndef f():\n    pass\n```\n", "plain")
    assert page["show-origins"].is_selected()
    assert page.all("math")[0].is_displayed()
    assert not page.all(".formula .source")[0].is_displayed()
    keyword, code = page.all("pre code .keyword")[0], page.all("pre code")[0]
    assert keyword.value_of_css_property("color") != code.value_of_css_property("color")


def test_long_names_leave_the_head_low(page: Page) -> None:
    page.ask("hello")
    page.look(900, "light")
    page.run(f"document.getElementById('model').textContent = '{'a-model-of-7B' * 7}'")
    assert page.run("return document.querySelector('header').offsetHeight") < 90


def test_head_and_field_are_in_view_where_there_is_room(page: Page) -> None:
    page.open_answer("a\n\n" * 100)
    for height, places in ((600, [0, 600]), (380, [0, 0])):
        page.look(400, "light", height)
        page.run("scrollTo(0, 900)")
        top, bottom = page.run(
            "const place = (e) => document.querySelector(e).getBoundingClientRect();"
            "return [place('header').top, place('footer').bottom]"
        )
        assert ([top, bottom] == places) == (height == 600)


def test_settings_end_with_their_buttons_in_view(page: Page) -> None:
    page.look(380, "light", 600)
    page.click("open-settings")
    dialog, close = page["settings"].rect, page.all("#settings button.main")[0].rect
    dialog_scrolls = "const e = document.getElementById('settings');"
    assert page.run(dialog_scrolls + "return e.scrollHeight > e.clientHeight")
    assert close["y"] + close["height"] < dialog["y"] + dialog["height"]
    page.all("#settings button.main")[0].click()


def test_figures_that_are_opened_are_seen_next_to_the_versions(page: Page) -> None:
    page.look(400, "light", 600)
    page.ask("hello")
    for _ in range(2):
        page.click("again")
        page.wait(lambda: not page.busy)
    page.all(".meter summary")[-1].click()
    place = "const place = (e) => document.querySelector(e).getBoundingClientRect();"
    page.wait(lambda: page.run(place + "return place('.meter p').bottom < place('footer').top"))
    assert page.run(place + "return place('.versions').height") < 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_code_is_coloured_where_origins_are_not(page: Page, scheme: str) -> None:
    text = "```python\n# <b>one</b>\ndef f():\n    return 'a' + 1\n```\n"
    page.open_answer(text)
    page.look(400, scheme)
    kinds = ["comment", "keyword", "keyword", "string", "number"]
    assert [span.get_attribute("class") for span in page.all("pre code > span:has(span)")] == kinds

    def colours() -> set[str]:
        leaves = page.all("pre code span:not(:has(span)):not(.indent)")
        return {leaf.value_of_css_property("color") for leaf in leaves if leaf.text.strip()}

    assert len(colours()) == 5
    contrasts = page.run(CONTRASTS)
    assert {name: value for name, value in contrasts.items() if value < 4.5} == {}
    page.click("show-origins")
    assert len(colours()) == 1
