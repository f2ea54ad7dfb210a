"""The localspec command, run in this process with both streams captured."""

import functools
import io
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main

from localspec import cli
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import TinyFiles

HELLO = "Say the thing"
# Typer reads all signatures again for every call, which is most of what a test would take.
_built = functools.cache(typer.main.get_command)


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
    monkeypatch.setattr(typer.main, "get_command", _built)

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


def plainly(arguments: Sequence[str | Path]) -> Sequence[str]:
    """Flags for plain decoding, unless the arguments say something of drafting."""
    said = {"--draft", "-md", "--draft-model", "--draft-tokens", "--prompt-lookup"} & {
        *map(str, arguments)
    }
    return () if said else ("--draft", "off")


@pytest.fixture
def run(localspec: Command, tiny: TinyFiles) -> Command:
    """`localspec run` on the tiny target, one thread, eight tokens, plain by default."""

    def call(*arguments: str | Path, stdin: str | None = None) -> Done:
        flags = ("-m", tiny.target, "-t", "1", "-n", "8", "--stats", *plainly(arguments))
        return localspec("run", *flags, *arguments, stdin=stdin)

    return call


def process(*arguments: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    """`python -m localspec` as a process of its own."""
    keywords = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL} | more
    return subprocess.run([sys.executable, "-m", "localspec", *arguments], **keywords)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def chat(localspec: Command, tiny: TinyFiles) -> Command:
    """`localspec chat`, like `run`, with messages piped in."""

    def call(*arguments: str | Path, stdin: str = HELLO + "\n") -> Done:
        flags = ("-m", tiny.target, "-t", "1", "-n", "8", "--stats", *plainly(arguments))
        return localspec("chat", *flags, *arguments, stdin=stdin)

    return call


def as_child(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> None:
    """Let the children of this process be a program of these lines, behind what it is ``asked``."""
    program = folder / "python"
    start = "import json, os, select, sys, time\nasked = json.loads(sys.stdin.readline())\n"
    program.write_text(f"#!{sys.executable}\n{start}{code}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))


def endless(tiny: TinyFiles) -> list[str]:
    """A command that talks for many seconds."""
    settings = ["-t", "1", "-c", "60000", "--temp", "0.8", "--seed", "1", "--draft", "off"]
    settings += ["--stats", "--raw", "ab"]
    return [sys.executable, "-m", "localspec", "run", "-m", str(tiny.target), *settings]


@pytest.fixture(scope="module")
def bad_files(tiny: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad files")
    (folder / "cut.gguf").write_bytes(tiny.target.read_bytes()[:9000])
    (folder / "text.gguf").write_text("words " * 100)
    (folder / "empty.txt").write_text(" \n")
    (folder / "latin1.txt").write_bytes("größer".encode("latin-1"))
    (folder / "folder.gguf").mkdir()
    write_tiny_model(folder / "other.gguf", seed=0, add_bos=False)
    return folder
