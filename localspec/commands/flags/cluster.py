"""Flags for engines that serve a pair from its original weights on GPUs."""

import re
from dataclasses import dataclass, fields
from typing import Annotated

import typer

from localspec.commands.flags.groups import parsed_by

_PANEL = "Serving on GPUs (vllm, sglang)"
_UNITS = {"M": 2**20, "G": 2**30, "T": 2**40}
_MOST = 4096  # GPUs of a machine, and machines


def _bytes(text: str) -> int:
    """Read ``24GiB``, ``24G`` or ``80GB`` (which GPUs are sold by, and means GiB)."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) ?([MGT])(?:i?B)?", text, re.IGNORECASE)
    if found is None or not float(found[1]):
        raise ValueError("expected a size such as 24GiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


@dataclass(frozen=True, slots=True)
class ClusterFlags:
    """Which repositories hold the weights, and how many GPUs there are."""

    target_repo: Annotated[
        str | None,
        typer.Option(
            "--target-repo",
            metavar="ORG/NAME",
            help="Repository of the target's safetensors. Default: the one its header names.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    draft_repo: Annotated[
        str | None,
        typer.Option(
            "--draft-repo",
            metavar="ORG/NAME",
            help="The same for the draft.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    gpus: Annotated[
        int,
        typer.Option(
            "--gpus", min=1, max=_MOST, help="GPUs of each machine.", rich_help_panel=_PANEL
        ),
    ] = 1
    machines: Annotated[
        int,
        typer.Option("--machines", min=1, max=_MOST, help="Machines.", rich_help_panel=_PANEL),
    ] = 1
    gpu_memory: Annotated[
        int | None,
        typer.Option(
            "--gpu-memory",
            metavar="SIZE",
            parser=parsed_by(_bytes),
            help="Memory of each GPU, such as 24GiB: whether the pair fits is checked.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def given(self) -> list[str]:
        """The flags that say something else than the default."""
        return [
            f"--{field.name.replace('_', '-')}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
