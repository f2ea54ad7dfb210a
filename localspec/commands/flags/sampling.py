"""Flags for how a token is chosen."""

from dataclasses import dataclass, fields
from typing import Annotated

import typer

from localspec.commands.flags.groups import choice
from localspec.core.sampling_params import ACCEPTANCE_RULES

_SAMPLING = "Sampling"


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """How a token is chosen; None leaves it to the model's recommendation or the default."""

    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            "--temp",
            help="Temperature; 0 is greedy. Default 0.8.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            help="Keep the K likeliest tokens; 0: off. Default 40.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            help="Keep the likeliest tokens of this total probability; 1: off. Default 0.95.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            "--min-p",
            help="Keep tokens of at least this share of the best one's probability; 0: off. "
            "Default 0.05.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        typer.Option(
            "--repeat-penalty",
            help="Penalty of recent tokens; 1: off. Default 1.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        typer.Option(
            "--repeat-last-n",
            help="Tokens the penalty looks back; -1: all. Default 64.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            "-s",
            help="Its text is the same with any draft length, except with --acceptance rejection. "
            "Default: random.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    acceptance: Annotated[
        str | None,
        typer.Option(
            "--acceptance",
            parser=choice(*ACCEPTANCE_RULES),
            metavar="|".join(ACCEPTANCE_RULES),
            help="Which drafted tokens are accepted. coupled, the default: target and draft sample "
            "with the same noise. match: the draft's likeliest, if the target samples it. "
            "rejection: the p/q test; the text for a seed then depends on the draft, whose length "
            "must be a number. All rules keep the target's distribution.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None

    def given(self) -> dict[str, float | int | str | None]:
        """Flag values by the names of SamplingParams, None where a flag was left out."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
