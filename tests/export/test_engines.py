"""The list of engines: the same on the command line and here."""

from __future__ import annotations

from localspec.commands import export
from localspec.export.engines import ENGINES


def test_the_command_line_knows_every_engine() -> None:
    assert tuple(ENGINES) == export.ENGINES
