"""Both standard streams as a test sees them, each a terminal or not, without colour variables."""

import re
from typing import TextIO

import pytest

COLOUR = re.compile(r"\x1b\[[0-9;]*\b(?:3\d|4\d|9\d|10\d)[;m]")


class Streams:
    """Both standard streams, each a terminal or not."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def make_terminals(self, patch: pytest.MonkeyPatch, *streams: TextIO) -> None:
        for stream in streams:
            patch.setattr(stream, "isatty", lambda: True)

    def read(self) -> tuple[str, str]:
        out, err = self._capsys.readouterr()
        return out, err


@pytest.fixture
def streams(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Streams:
    names = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM", "COLUMNS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return Streams(capsys)
