"""Passes that round alike, found once for a model with its options on this machine.

With row kernels they are found without being asked for: where passes of all widths round alike, the
drafted text is the plain text, and `--exact` costs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from localspec.engine.loading.pair_file import PairFile, found_of
from localspec.llama import row_kernels
from localspec.llama.model import LlamaModel
from localspec.llama.parameters import uses_devices
from localspec.llama.pass_class import NATURAL, STEPS, PassClass, find_class
from localspec.metadata.header import ModelHeader


def use_exact_passes(
    model: LlamaModel, file: PairFile, say: Callable[[str], None] | None = None
) -> PassClass:
    """Find out which passes of a model round alike; with ``exact``, let it make only these.

    Returns the class that it uses from now on. ``file`` is that of the model alone with ``exact``:
    the class is the same with any draft, and without one. Without ``exact`` only the row kernels on
    a CPU are asked, as all else is known to differ.
    """
    if model.options.exact or _may_be_alike(model):
        model.rounding = _found(model, file, say)
    passes = model.rounding if model.options.exact and model.rounding is not None else NATURAL
    model.use_class(passes)
    return passes


def _may_be_alike(model: LlamaModel) -> bool:
    """Whether the row kernels compute all of a model that could be rolled back."""
    options = model.options
    return options.row_kernels and model.can_roll_back and not uses_devices(options)


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
            say("New here: finding out which widths of pass round alike, which may take a minute.")
        known[placed] = _search(model)
        file.update(passes={name: asdict(passes) for name, passes in known.items()})
    return known[placed]


def _search(model: LlamaModel) -> PassClass:
    """The class, with the operations that row kernels in use left to llama.cpp's own code."""
    kernels = row_kernels.find() if model.options.row_kernels else None
    if kernels is None:
        return find_class(model)
    kernels.reset()
    found = find_class(model)
    return replace(found, left=row_kernels.described(kernels.left(), model.header.tensors))


def _valid(parts: Mapping[str, Any]) -> dict[str, PassClass]:
    """The stored classes by how the model is placed, without anything invalid."""
    stored = parts.get("passes")
    found = stored.items() if isinstance(stored, dict) else ()
    read = ((name, _class_of(value)) for name, value in found)
    return {name: passes for name, passes in read if passes is not None}


def _class_of(stored: Any) -> PassClass | None:
    try:
        step, widest, alone = stored["step"], stored["widest"], stored["alone"]
        left = stored["left"]
    except (TypeError, KeyError):
        return None
    valid = type(step) is int and type(widest) is int and type(alone) is bool
    valid = valid and type(left) is str
    if not valid or step not in (0, *STEPS) or not max(1, step) <= widest <= 2**16:
        return None
    return PassClass(step, widest, alone, left) if step or alone else None
