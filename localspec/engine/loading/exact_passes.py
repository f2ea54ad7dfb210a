"""Passes that round alike, found once for a model with its options on this machine."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from localspec.engine.loading.pair_file import PairFile, found_of
from localspec.llama.model import LlamaModel
from localspec.llama.pass_class import STEPS, PassClass, find_class
from localspec.metadata.header import ModelHeader


def use_exact_passes(
    model: LlamaModel, file: PairFile, say: Callable[[str], None] | None = None
) -> PassClass:
    """Let a model make passes that round alike only; returns their class.

    ``file`` is that of the model alone: the class is the same with any draft, and without one.
    """
    passes = _found(model, file, say)
    model.use_class(passes)
    return passes


def known_classes(header: ModelHeader) -> list[PassClass]:
    """Classes that were found of a model under any options."""
    found = (passes for parts in found_of([header]) for passes in _valid(parts).values())
    return sorted(set(found), key=str)


def _found(model: LlamaModel, file: PairFile, say: Callable[[str], None] | None) -> PassClass:
    """The stored class of a model, or else one that is found now and stored."""
    if not model.can_roll_back:  # all is read again wherever texts differ
        return PassClass(0, alone=True)
    placed = f"{model.rollback.name}, {model.options.gpu_layers} layers on devices"
    known = _valid(file.parts)
    if placed not in known:
        if say is not None:
            say(
                "New on this machine: finding out for --exact which widths of pass round alike, "
                "which may take a minute."
            )
        known[placed] = find_class(model)
        file.update(passes={name: asdict(passes) for name, passes in known.items()})
    return known[placed]


def _valid(parts: Mapping[str, Any]) -> dict[str, PassClass]:
    """The stored classes by how the model is placed, without anything invalid."""
    stored = parts.get("passes")
    found = stored.items() if isinstance(stored, dict) else ()
    read = ((name, _class_of(value)) for name, value in found)
    return {name: passes for name, passes in read if passes is not None}


def _class_of(stored: Any) -> PassClass | None:
    try:
        step, widest, alone = stored["step"], stored["widest"], stored["alone"]
    except (TypeError, KeyError):
        return None
    valid = type(step) is int and type(widest) is int and type(alone) is bool
    if not valid or step not in (0, *STEPS) or not max(1, step) <= widest <= 2**16:
        return None
    return PassClass(step, widest, alone) if step or alone else None
