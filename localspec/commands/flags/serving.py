"""Flags for where a server listens, who may ask, and how much."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.core.config import PARALLEL
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import read_text

if TYPE_CHECKING:
    from localspec.server.guard import Access
    from localspec.server.queue.limits import Limits

_PANEL = "Server"
_MOST_KEY_BYTES = 2**16
_LONGEST = 7 * 86_400.0  # seconds


@dataclass(frozen=True, slots=True)
class ServingFlags:
    """Where a server listens, who may ask, and how much."""

    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address to listen on; other machines reach all but 127.0.0.1, which therefore "
            "need --api-key.",
            rich_help_panel=_PANEL,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65_535, help="Port; 0: a free one.", rich_help_panel=_PANEL
        ),
    ] = 8080
    alias: Annotated[
        str | None,
        typer.Option(
            "--alias",
            "-a",
            metavar="NAME",
            help="The model's name in requests and replies; several, parted by commas. Default: "
            "that of its file.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="LOCALSPEC_API_KEY",
            show_envvar=True,
            help="Answer only who sends this key; several, parted by commas.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file", help="Read keys from this file, one a line.", rich_help_panel=_PANEL
        ),
    ] = None
    cors_origins: Annotated[
        list[str],
        typer.Option(
            "--cors-origins",
            "--cors",
            metavar="ORIGIN",
            help="Let web pages of this origin ask, such as http://localhost:3000; several, parted "
            "by commas. Default: none but the server's own.",
            rich_help_panel=_PANEL,
        ),
    ] = field(default_factory=list)
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            metavar="N",
            min=-1,
            help="Most tokens of an answer where a request says none. Default: -1, the context.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    parallel: Annotated[
        int,
        typer.Option(
            "--parallel",
            "-np",
            metavar="N",
            min=1,
            max=int(PARALLEL.high),
            help="Answers at the same time, which share the passes of the models; each has a "
            "context of --ctx-size.",
            rich_help_panel=_PANEL,
        ),
    ] = 1
    max_queue: Annotated[
        int,
        typer.Option(
            "--max-queue",
            metavar="N",
            min=1,
            max=100_000,
            help="Most answers that may wait; more are refused (429).",
            rich_help_panel=_PANEL,
        ),
    ] = 64
    queue_timeout: Annotated[
        float,
        typer.Option(
            "--queue-timeout",
            metavar="SECONDS",
            min=1,
            max=_LONGEST,
            help="Longest wait for the engine.",
            rich_help_panel=_PANEL,
        ),
    ] = 600.0
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=1,
            max=_LONGEST,
            help="Longest time for an answer.",
            rich_help_panel=_PANEL,
        ),
    ] = 3600.0
    cache_ram: Annotated[
        int | None,
        typer.Option(
            "--cache-ram",
            "-cram",
            metavar="MIB",
            min=0,
            max=2**24,
            help="Most memory for what was read of earlier prompts, so that a conversation taken "
            "up again is not read again; 0: none. Default: a quarter of the memory that is free "
            "once the models are loaded, at most 8192.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    max_body: Annotated[
        int,
        typer.Option(
            "--max-body",
            metavar="MIB",
            min=1,
            max=1024,
            help="Largest request, in MiB.",
            rich_help_panel=_PANEL,
        ),
    ] = 16

    def access(self) -> "Access":
        """Who may ask; raises UsageError for a server that strangers could use, FileProblem."""
        from localspec.server.guard import Access

        keys = _parted(self.api_key or "")
        if self.api_key is not None and not keys:
            raise UsageError("--api-key has no key.", "Give it one, or leave it out.")
        if self.api_key_file is not None:
            keys += self._keys(self.api_key_file)
        origins = tuple(name for text in self.cors_origins for name in _parted(text))
        access = Access(self.host, keys, origins)
        access.check()
        return access

    def limits(self) -> "Limits":
        """How much may be asked for."""
        from localspec.server.queue.limits import Limits

        return Limits(self.max_queue, self.queue_timeout, self.timeout)

    def names(self) -> tuple[str, ...]:
        """The names that were given to the model."""
        return _parted(self.alias or "")

    @staticmethod
    def _keys(file: Path) -> tuple[str, ...]:
        lines = read_text(file, _MOST_KEY_BYTES, what="The file of keys ").splitlines()
        keys = tuple(line.strip() for line in lines if line.strip() and line[0] != "#")
        if not keys:
            raise FileProblem(f"There is no key in {file}.", "Write one a line.")
        return keys


def _parted(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
