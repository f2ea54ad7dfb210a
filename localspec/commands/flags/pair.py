"""Flags for a pair, its drafting, sampling and loading; what a pair stores of them."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from localspec.commands.flags.groups import Given, flag_for
from localspec.core.config import (
    DEFAULT_BATCH,
    ROPE_SCALE,
    LoadOptions,
    Lora,
    RopeOptions,
    parse_lora,
)
from localspec.core.errors import UsageError
from localspec.core.model_options import ModelOptions, PairOptions
from localspec.core.option import AUTO, option, options
from localspec.core.sampling_params import SamplingParams

NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="A pair's name, or the target instead of --target."),
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


def picked(given: Given, group: type[Any]) -> dict[str, Any]:
    """What was given of the options of a dataclass."""
    return {name: given[name] for name in options(group) if name in given}


def pair_load_options(
    given: Given, target_path: Path, draft_path: Path | None
) -> tuple[LoadOptions, LoadOptions | None]:
    """How to load the target from its file, and the draft if there is one.

    Raises UsageError for options that contradict each other.
    """
    given = {name: value for name, value in given.items() if value != AUTO}
    _check_rpc(given)
    loras = (*given.get("loras", ()), *given.get("lora_scaled", ()))
    own = picked(given, LoadOptions) | _batches(given) | {"loras": loras, "rope": _rope(given)}
    own = {name: value for name, value in own.items() if not name.startswith("draft_")}
    target = LoadOptions(target_path, **own)
    return target, None if draft_path is None else _draft(given, draft_path, target)


def _draft(given: Given, path: Path, target: LoadOptions) -> LoadOptions:
    """The draft is loaded as the target but for what has flags of its own, or is the target's.

    Shares and numbers of GPUs count the devices of a model: they follow the target's where the
    draft's devices do. Rope, adapters, --exact and RPC servers belong to the target.
    """
    of_target = LoadOptions(path)
    has_own_devices = "draft_device" in given or bool(target.rpc)
    names = ["ctx_size", "gpu_layers", "cpu_moe_layers", "override_tensors", "rope", "loras"]
    names += ["exact", "rpc", "trust_rpc_network"]
    if has_own_devices:
        names += ["device", "tensor_split", "main_gpu", "split_mode"]
    changes: dict[str, Any] = {name: getattr(of_target, name) for name in names}
    if "draft_threads" in given:
        changes["threads_batch"] = given["draft_threads"]
    changes |= {
        name.removeprefix("draft_"): given[name]
        for name in options(LoadOptions)
        if name.startswith("draft_") and name in given
    }
    return replace(target, path=path, **changes)


def _batches(given: Given) -> dict[str, int]:
    """Tokens in a call of llama.cpp, and at once; where one is given, the other follows."""
    batch, ubatch = given.get("batch_size"), given.get("ubatch_size")
    if batch is not None and ubatch is not None and ubatch > batch:
        raise UsageError(
            f"--ubatch-size {ubatch} is more than --batch-size {batch}.",
            "Leave one of them out, or give a larger --batch-size.",
        )
    batch = batch or max(ubatch or 0, DEFAULT_BATCH)
    return {"batch_size": batch, "ubatch_size": ubatch or min(batch, DEFAULT_BATCH)}


def _check_rpc(given: Given) -> None:
    """Raise UsageError for flags that do not go with --rpc, or do nothing without it."""
    if "rpc" not in given:
        if given.get("trust_rpc_network"):
            raise UsageError(
                "--trust-rpc-network has no effect without --rpc.", "Add --rpc HOST:PORT."
            )
    elif (mode := given.get("split_mode", "layer")) != "layer":
        raise UsageError(
            f"--rpc spreads whole layers, which --split-mode {mode} does not.",
            "Leave --split-mode out.",
        )


def _rope(given: Given) -> RopeOptions:
    rope = picked(given, RopeOptions)
    if "rope_scale" in given:
        if "rope_freq_scale" in rope:
            raise UsageError(
                "--rope-scale and --rope-freq-scale are two names of one value.", "Give one."
            )
        rope["rope_freq_scale"] = 1 / given["rope_scale"]
    return RopeOptions(**rope)


def kept_settings(given: Given) -> dict[str, object]:
    """What was given of the options that a pair's file may hold, auto left out."""
    lengths = PairOptions(**picked(given, PairOptions)).draft_options()
    settings: dict[str, object] = {}
    if lengths.lengths:
        settings["draft_tokens"] = lengths.one_length("auto") or "off"
    for name, value in given.items():
        if PAIR_ROWS[name].kept and value != AUTO:
            settings[name] = list(value) if isinstance(value, tuple) else value
    return settings


def unkept_flags(given: Given) -> list[str]:
    """Flags that were given and cannot be stored with a pair: they belong to a machine or a run."""
    unkept = []
    for name, value in given.items():
        row = PAIR_ROWS[name]
        if name in _ELSEWHERE or value in (row.default, AUTO):
            continue
        if not row.kept:
            unkept.append(flag_for(row, value))
        elif (bounds := row.asked or row.bounds) and not bounds.low <= value <= bounds.high:
            unkept.append(f"{flag_for(row, value)} {value}")
    return unkept
