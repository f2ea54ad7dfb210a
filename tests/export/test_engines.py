# ruff: noqa: F401, F811  (fixtures are imported)
"""The list of engines: the same on the command line, here, and on the page about them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from localspec.commands import export
from localspec.core.errors import IncompatiblePair
from localspec.export.engines import ENGINES
from tests.support.exports import Facts, facts

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
COLUMNS = ("model", "own heads", "mtp", "eagle3", "dflash")


def test_the_command_line_knows_every_engine() -> None:
    assert tuple(ENGINES) == export.ENGINES


def page() -> dict[str, list[bool]]:
    """What the table of the page says of each engine and kind: all words but "no" are a yes."""
    said: dict[str, list[bool]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = line.strip("|").split("|")
        names = re.findall(r"`([\w-]+)`", cells[0])
        if set(names) & set(ENGINES) and len(cells) == 2 + len(COLUMNS):
            said |= {name: [cell != "no" for cell in cells[1:-1]] for name in names}
    return said


@pytest.mark.parametrize("name", ENGINES)
def test_the_page_says_what_each_can_run(facts: Facts, name: str) -> None:
    repos = {"target_repo": "org/Big", "draft_repo": "org/Small"}
    runs = []
    for kind in COLUMNS:
        try:
            ENGINES[name](facts(kind, **repos))
        except IncompatiblePair as problem:
            assert problem.message.endswith(".") and problem.hint
            runs.append(False)
        else:
            runs.append(True)
    assert runs == page()[name]
