"""The trace: a page that holds the answer, its rounds and nothing else."""

from html.parser import HTMLParser
from math import log
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.answer import Piece, TextPart
from localspec.chat.stats import GenerationStats
from localspec.core.errors import FileProblem
from localspec.core.origins import ORIGINS
from localspec.display.trace import page, write_trace
from localspec.speculative.sampling.logprobs import TokenLogprob

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)


class Reader(HTMLParser):
    """The tags of a page, the text of its answer and the facts of its rounds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.inside: list[str] = []
        self.answer, self.facts = "", list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("span", "div"):
            self.inside.append(dict(attributes).get("class") or "")
            if self.inside[-1] == "facts":
                self.facts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("span", "div"):
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if "facts" in self.inside:
            self.facts[-1] += data
        elif "answer" in self.inside:
            self.answer += data


def piece(text: str, rejected: str = "", drafted: int = 0, accepted: int = 0) -> Piece:
    """A round of one token, whose statistics are sums up to here."""
    stats = GenerationStats(drafted=drafted, accepted=accepted)
    part = TextPart(text, "corrected" if rejected else "draft")
    known = (TokenLogprob(1, log(0.25), ()),)
    return Piece((part,), (1,), stats, None, 1, rejected=rejected, logprobs=known)


@given(st.lists(st.tuples(texts, st.just("") | texts), max_size=5))
def test_any_text_is_shown_and_none_is_markup(rounds: list[tuple[str, str]]) -> None:
    plain = Reader(page([piece("a") for _ in rounds], "1 token"))
    shown = Reader(page([piece(*each) for each in rounds], "1 token"))
    assert shown.answer == "".join(text for text, _ in rounds)
    extra = sum(bool(rejected) for _, rejected in rounds)  # a line more in the box
    assert sorted(shown.tags) == sorted([*plain.tags, *["br"] * extra])


def test_a_round_has_its_facts() -> None:
    rounds = [piece("one", "two", drafted=3), piece("three", drafted=5, accepted=1)]
    text = page(rounds, "9 tok/s")
    first, second = Reader(text).facts
    assert first.startswith("Round 1: 0 of 3 drafted tokens accepted")
    assert "'one': corrected, 25.0% by the target" in first and "proposed 'two'" in first
    assert second.startswith("Round 2: 1 of 2 drafted") and "proposed" not in second
    assert all(f'<li class="{name}">' in text for name in ORIGINS) and "9 tok/s" in text


def test_it_looks_as_the_other_reports() -> None:
    text = page([piece("a")], "1 token")
    assert "--ground: #ffffff" in text and '<div class="wide"' in text


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="cannot be written: No such file") as caught:
        write_trace(tmp_path / "none" / "a.html", [piece("a")], "")
    assert caught.value.hint
