"""Options of a pair as they were given, by name, and the options to load each model with."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from localspec.core.errors import UsageError
from localspec.core.options.load_options import DEFAULT_BATCH, LoadOptions, RopeOptions
from localspec.core.options.option import options

Given = Mapping[str, Any]


def picked(given: Given, group: type[Any]) -> dict[str, Any]:
    return {name: given[name] for name in options(group) if name in given}


def pair_load_options(
    given: Given, target_path: Path, draft_path: Path | None
) -> tuple[LoadOptions, LoadOptions | None]:
    """How to load the target, and the draft if there is one; raises UsageError."""
    rows = options(LoadOptions)
    given = {n: value for n, value in given.items() if n not in rows or not rows[n].is_auto(value)}
    _check_rpc(given)
    loras = (*given.get("loras", ()), *given.get("lora_scaled", ()))
    own = picked(given, LoadOptions) | _batches(given) | {"loras": loras, "rope": _rope(given)}
    own = {name: value for name, value in own.items() if not name.startswith("draft_")}
    target = LoadOptions(target_path, **own)
    return target, None if draft_path is None else _draft(given, draft_path, target)


def _draft(given: Given, path: Path, target: LoadOptions) -> LoadOptions:
    """The draft's options: those of the target, without its own ones, and with the draft's flags.

    Shares and numbers of GPUs count the devices of a model: they follow the target's if the
    draft's devices do. Rope, adapters, --exact and RPC servers belong to the target. Quantised
    caches of a draft lower its acceptance, so their default is F16 with any target.
    """
    of_target = LoadOptions(path)
    has_own_devices = "draft_device" in given or bool(target.rpc)
    names = ["ctx_size", "gpu_layers", "cpu_moe_layers", "override_tensors", "rope", "loras"]
    names += ["exact", "rpc", "trust_rpc_network", "cache_type_k", "cache_type_v"]
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
    """Tokens in a call of llama.cpp, and at once; if one is given, the other follows."""
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
