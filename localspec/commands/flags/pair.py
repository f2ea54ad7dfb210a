"""Flags for a pair, its drafting, sampling and loading; those that a pair stores."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from localspec.commands.flags.completion import models
from localspec.commands.flags.rows import Given, flag_for
from localspec.core.options.load_options import (
    ROPE_SCALE,
    LoadOptions,
    Lora,
    RopeOptions,
    parse_lora,
)
from localspec.core.options.model_options import ModelOptions, PairOptions
from localspec.core.options.option import option, options
from localspec.core.options.sampling_params import SamplingParams
from localspec.library.pairs.options import picked


def model_argument(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text, autocompletion=models)


NameArgument = Annotated[
    str | None, model_argument("MODEL", "A pair's name, or the target instead of --target.")
]
NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        help="Pairs or targets; NAME=MODEL: called so. Default: --target, or all on this disk.",
    ),
]
_adapting = partial(option, panel="Rope and adapters")


@dataclass(frozen=True, slots=True)
class OtherForms:
    """Flags that set an option of `LoadOptions` in another form."""

    rope_scale: float | None = _adapting(
        None,
        "--rope-scale",
        "Stretch the target's context N times; 1 divided by --rope-freq-scale.",
        bounds=ROPE_SCALE,
    )
    lora_scaled: tuple[Lora, ...] = _adapting(
        (),
        "--lora-scaled",
        "A LoRA adapter with its weight; may be repeated.",
        metavar="FILE:SCALE",
        parse=parse_lora,
    )


_LOADING = (LoadOptions, RopeOptions, OtherForms)
PAIR_ROWS = options(ModelOptions, SamplingParams, *_LOADING)
PairFlags = Annotated[Given, ModelOptions, SamplingParams, *_LOADING]
LoadingFlags = Annotated[Given, *_LOADING]
# Options of a pair that are stored in another form, or only show more.
_ELSEWHERE = ("target", "draft", "draft_model", "draft_tokens", "verbose")


def stored_settings(given: Given) -> dict[str, object]:
    """The given options that a pair's file may hold, auto left out."""
    lengths = PairOptions(**picked(given, PairOptions)).draft_options()
    settings: dict[str, object] = {}
    if lengths.lengths:
        settings["draft_tokens"] = lengths.one_length("auto") or "off"
    for name, value in given.items():
        if PAIR_ROWS[name].stored and not PAIR_ROWS[name].is_auto(value):
            settings[name] = list(value) if isinstance(value, tuple) else value
    return settings


def unstored_flags(given: Given) -> list[str]:
    """Flags that were given and cannot be stored with a pair: they belong to a machine or a run."""
    unstored = []
    for name, value in given.items():
        row = PAIR_ROWS[name]
        if name in _ELSEWHERE or value == row.default or row.is_auto(value):
            continue
        if not row.stored:
            unstored.append(flag_for(row, value))
        elif (bounds := row.asked or row.bounds) and not bounds.low <= value <= bounds.high:
            unstored.append(f"{flag_for(row, value)} {value}")
    return unstored
