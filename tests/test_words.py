"""Plain words: no docstring, comment, help, message or page has words that a reader must decode."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "localspec").rglob("*.py"))

# Each stands for a plainer word: after, next to or compared with, reported, again, if, ...
UNPLAIN = re.compile(
    r"\b(behind|beside|told|nobody|whom|anew|makes? nothing of|of which|as far as can be)\b", re.I
)
FENCE = re.compile(r"^(`{3,}).*?^\1$", re.M | re.S)


def unplain(text: str) -> Iterator[str]:
    """Each line with such a word, by its number."""
    for number, line in enumerate(text.splitlines(), 1):
        if UNPLAIN.search(line):
            yield f"{number}: {line.strip()}"


@pytest.mark.parametrize("word", ["It stands behind it.", "Nobody knows.", "the last of which"])
def test_words_that_must_be_decoded_are_found(word: str) -> None:
    assert [*unplain(word)] == [f"1: {word}"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_are_written_in_plain_words(path: Path) -> None:
    assert [*unplain(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_written_in_plain_words(path: Path) -> None:
    assert [*unplain(FENCE.sub("", path.read_text(encoding="utf-8")))] == []
