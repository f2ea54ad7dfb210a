"""Page of a benchmark: every figure is a table too, names are escaped, nothing is fetched."""

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.bench.comparison import Comparison, together
from localspec.bench.report.page import render, render_tuning
from localspec.chat.stats import PassStats, SourceStats
from tests.support.answers import compared, difference, made_answer, made_comparison, side
from tests.support.programs.browser import CONTRASTS, chromium


def document(*comparisons: Comparison, file: str = "target.gguf", **changes: Any) -> dict[str, Any]:
    """What a report of these comparisons holds, as far as the page reads it."""
    return {
        "version": "1.0",
        "date": "2026-11-26T08:20:00Z",
        "complete": True,
        "target": {"file": file, "quantization": "Q4_0", "loras": [], "exact": False},
        "draft": {"file": "draft.gguf", "rope": {"scale": 2}},
        "memory": {"target": {"weights": 3 * 2**20}},
        "settings": {"draft_tokens": [0, 4], "sampling": {"temperature": 0}},
        "machine": {"cpu": "A processor", "devices": [{"name": "CPU", "description": "A CPU"}]},
        "tasks": [one.as_json() for one in comparisons],
        "overall": together(comparisons).as_json() if comparisons else None,
    } | changes


def measured(task: str = "code", prompts: int = 4) -> Comparison:
    """Plain, and a draft of 2 with passes and positions of its own, at 1.25x in each prompt."""
    plain, drafted = made_answer(1.0), made_answer(0.8, rounds=16, drafted=32, accepted=24)
    plain.stats.passes = {1: PassStats(40, 0.9)}
    plain.stats.verify_seconds = 0.9
    drafted.stats.passes = {1: PassStats(1, 0.0225), 3: PassStats(16, 0.54)}
    drafted.stats.outcomes = {(2, 2): 10, (2, 1): 4, (2, 0): 2}
    drafted.stats.sources = {"draft": SourceStats(16, 32, 24)}
    drafted.stats.draft_seconds, drafted.stats.verify_seconds = 0.16, 0.56
    return compared(side(0, [plain] * prompts), side(2, [drafted] * prompts), task=task)


class _Page(HTMLParser):
    """Tags, attributes, the texts of cells and all text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self._cell = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._cell &= tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell:
            self.rows[-1][-1] += data.strip().replace("\u00a0", " ")


def row(page: _Page, *cells: str) -> list[str]:
    """The only row that begins with these cells, without the places of bars."""
    found = [each for each in page.rows if each[: len(cells)] == [*cells]]
    assert len(found) == 1
    return [cell for cell in found[0] if cell]


def test_figures_are_tables_too() -> None:
    page = _Page(render(document(measured("code"), measured("maths"))))
    assert row(page, "all", "off")[2:4] == ["1.00x", "–"]
    drafted = [each for each in page.rows if each[0] == "2" and "1.25 to 1.25" in each]
    assert len(drafted) == 3  # all, code, maths
    assert [cell for cell in drafted[0] if cell] == [
        "2", "1.25x", "1.25 to 1.25", "50.0", "75%", "2.50", "1.00 s", "same",
    ]  # fmt: skip
    assert ["2", "", "2.50", "2.00"] in page.rows  # tokens of a round, and its cost
    assert ["2", "88%", "62%"] in page.rows  # 14 and 10 of 16 were accepted
    assert row(page, "2", "none: estimated")[0] == "2"
    assert row(page, "3", "128") == ["3", "128", "33.8 ms", "1.50", "1.54x"]
    assert ["2", "", "4.00 ms", "14.00 ms", "2.00 ms"] in page.rows  # draft, verify, rest
    assert "a step of the draft takes 5.00 ms" in " ".join(page.text.lower().split())
    assert "Fastest here: --draft 2, 1.25x" in page.text


def test_columns_of_a_table_have_names_of_their_own() -> None:
    page = _Page(render(document(measured())))
    heads = [cells for cells in page.rows if "Draft" in cells and "1" not in cells]
    assert len(heads) == 3
    for cells in heads:
        names = [re.sub(r"(?<=[a-z])[\d.].*", "", cell) for cell in cells]  # without ticks
        assert len({*names}) == len(names)


def test_only_what_decides_is_in_view() -> None:
    text = render(document(measured()))
    in_view = text[: text.index("<details>")]
    for heading in ("Speed", "Is the text the same?"):
        assert f">{heading}</h2>" in in_view
    for heading in ("Tokens of a round", "Cost of a pass", "Where the time goes"):
        assert f"<h2>{heading}</h2>" in text and heading not in in_view


def test_texts_that_differ_are_told_with_their_place() -> None:
    found = made_comparison(prompts=4, differences=[difference(), difference(proven_at=None)])
    page = _Page(render(document(found)))
    assert "ANOTHER TEXT, and not by rounding" in page.text
    assert page.text.count("another text from token 8 on, the two likeliest tokens 0.1 logits") == 2


def test_facts_of_machine_and_settings() -> None:
    page = _Page(render(document(measured(), complete=False)))
    for words in ("A processor", "devices.1.name", "sampling.temperature", "rope.scale", "3 MB"):
        assert words in page.text
    assert "loras" not in page.text  # not set
    assert "stopped early" in page.text


@pytest.mark.parametrize("comparisons", [(), (made_comparison(loops=1),)])
def test_nothing_to_show(comparisons: tuple[Comparison, ...]) -> None:
    page = _Page(render(document(*comparisons, draft=None)))
    assert "No prompt was measured" in page.text and "svg" not in page.tags
    assert "without a draft model" in page.text and "A processor" in page.text


def test_figures_without_costs_and_positions() -> None:
    page = _Page(render(document(made_comparison())))
    assert "1.36x" in page.text and "Cost of a pass" not in page.text


def test_nothing_is_fetched_or_run() -> None:
    html = render(document(measured()))
    page = _Page(html)
    assert not {"script", "img", "link", "iframe", "a", "form"} & {*page.tags}
    assert not {
        name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")
    }
    assert "default-src 'none'" in html and "url(" not in html and "@import" not in html


def test_pictures_have_words_and_places_that_can_be_drawn() -> None:
    html = render(document(measured()))
    hidden = re.sub(r'<(td|ul)[^>]* aria-hidden="true">.*?</\1>', "", html, flags=re.DOTALL)
    pictures = re.findall(r"<svg class[^>]*>", hidden)
    assert len(pictures) == 2 and all('role="img" aria-label="' in each for each in pictures)
    places = [float(each) for each in re.findall(r'="(-?[\d.]+)%"', html)]
    assert len(places) > 50 and all(0 <= each <= 100 for each in places)


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(codec=None), min_size=1), st.text(min_size=1))
def test_names_change_no_tag(task: str, file: str) -> None:
    hostile = _Page(render(document(measured(task), file=file)))
    harmless = _Page(render(document(measured("a"), file="b")))
    assert hostile.tags == harmless.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in harmless.attributes]


def test_hostile_names_are_shown_as_text() -> None:
    name = "<script>alert(1)</script>\"'&amp;\u202e\x1b[2J\udcff"
    html = render(document(measured(name), file=name))
    shown = "<script>alert(1)</script>\"'&amp;\\u202e\\x1b[2J\\udcff"
    assert _Page(html).text.count(shown) >= 3 and not re.search("[\u202e\x1b\udcff]", html)


def tuning() -> str:
    """The page of a tuning with long names."""
    row = {
        "shown": "draft_model=a-model-of-7B-q4_k_m.gguf threads=1", "generation_tps": 184.6,
        "speedup": 1.4, "speedup_interval": [1.2, 1.7], "predicted_speedup": 2.5,
        "ttft_s": 0.1, "memory": 10**8, "remark": "not tried for lack of time",
    }  # fmt: skip
    return render_tuning(
        {
            "model": "demo", "sentence": "Kept for demo.", "date": "2026-11-29", "cpu": "A CPU",
            "busy": "", "command": f"localspec tune --report {'/a-folder' * 20}",
            "measured": [row, row], "tried": [row, row],
            "types": [row | {"type": "Q4_0", "size": 10**9, "path": "/m/q4.gguf", "draft": "d"}],
        }
    )  # fmt: skip


_BROKEN = """
return [...document.querySelectorAll("dt")]
  .filter((e) => e.checkVisibility() && e.offsetHeight > 30).map((e) => e.textContent);
"""  # names that take two lines


@pytest.mark.parametrize("page", ["bench", "tune"])
def test_it_is_readable_at_any_width_in_both_schemes(page: str, tmp_path: Path) -> None:
    html = tuning() if page == "tune" else render(document(measured("code"), measured("maths")))
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    with chromium(tmp_path / "profile") as browser:
        browser.get(path.as_uri())
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
            contrasts = browser.execute_script(CONTRASTS)
            assert len(contrasts) >= 8 and min(contrasts.values()) >= 4.5
        for width in (1200, 380):
            size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            assert browser.execute_script("return document.body.scrollWidth") <= width
            assert browser.execute_script(_BROKEN) == []
            wide = browser.find_element("class name", "wide")
            assert "gradient" in wide.value_of_css_property("background-image")
        assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


def test_a_page_says_how_it_was_measured() -> None:
    """The command, the other work of the machine, and the prompts, which are folded."""
    asked = [{"name": "code 1", "task": "code", "messages": [{"role": "user", "content": "<b>?"}]}]
    busy = "Other programs use 1.5 of 2 cores: figures are uncertain."
    html = render(
        document(measured(), command="localspec bench demo", other_work=busy, prompts=asked)
    )
    assert "<code>localspec bench demo</code>" in html and busy in html and "&lt;b&gt;?" in html
