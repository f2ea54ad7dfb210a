"""What each engine can run, as the page about them says, and what is refused."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core.errors import IncompatiblePair
from localspec.export.engines import export_pair
from localspec.export.names import DIALECTS
from tests.support.library.exports import Facts

PAGE = Path(__file__).parents[2] / "docs" / "serve" / "export.md"
COLUMNS = ("model", "own heads", "mtp", "eagle3", "dflash", "dspark", "dflash2")


def page() -> dict[str, list[bool]]:
    """What the table of the page says of each engine and kind: all words but "no" are a yes."""
    said: dict[str, list[bool]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = line.strip("|").split("|")
        names = re.findall(r"`([\w-]+)`", cells[0])
        if set(names) & set(DIALECTS) and len(cells) == 2 + len(COLUMNS):
            said |= {name: [cell != "no" for cell in cells[1:-1]] for name in names}
    return said


@pytest.mark.parametrize("name", DIALECTS)
def test_the_page_says_what_each_can_run(facts: Facts, name: str) -> None:
    repos = {"target_repo": "org/Big", "draft_repo": "org/Small"}
    runs = []
    for kind in COLUMNS:
        try:
            export_pair(name, facts(kind, **repos))
        except IncompatiblePair as problem:
            assert problem.message.endswith(".") and problem.hint
            runs.append(False)
        else:
            runs.append(True)
    assert runs == page()[name]


@pytest.mark.parametrize("name", [name for name, each in DIALECTS.items() if each.vocabulary_rule])
def test_what_llama_cpp_refuses_is_refused(facts: Facts, name: str) -> None:
    known = facts()
    report = replace(known.report, llama_cpp_accepts=False, llama_cpp_rule="bos-id")
    with pytest.raises(IncompatiblePair, match="refuses it by its rule bos-id"):
        export_pair(name, replace(known, report=report))


def test_a_draft_that_an_engine_does_not_know_is_named(facts: Facts) -> None:
    for kind, words in (("model", "an ordinary draft model"), ("eagle3", "an EAGLE-3 head")):
        with pytest.raises(IncompatiblePair, match=f"Ollama cannot .* cannot draft with {words}"):
            export_pair("ollama", facts(kind))
