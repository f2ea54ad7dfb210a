"""The localspec command, run in this process with both streams captured."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from localspec import cli


@dataclass(frozen=True)
class Done:
    """A finished command: exit code and both streams."""

    code: int | str | None
    out: str
    err: str

    @property
    def sentences(self) -> str:
        """stderr without the frames and line breaks of a usage error."""
        return " ".join(re.sub("[│╭╮╰╯─]", " ", self.err).split())


Command = Callable[..., Done]


@pytest.fixture
def localspec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process; without ``stdin`` it is a terminal nobody types at."""

    def call(*arguments: str | Path, stdin: str | None = None) -> Done:
        stream = io.StringIO(stdin or "")
        stream.isatty = lambda: stdin is None  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stdin", stream)
        monkeypatch.setattr(sys, "argv", ["localspec", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return Done(caught.value.code or 0, out, err)

    return call
