"""Passes that round alike, found once for a model with its options on this machine."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from localspec.core import machine
from localspec.core.files import read_at_most, save_json
from localspec.engine.profile_store import files_of, profile_path
from localspec.llama import llama_library
from localspec.llama.model import LlamaModel
from localspec.llama.pass_class import STEPS, PassClass, find_class
from localspec.metadata.header import ModelHeader

_SUFFIX = ".passes"
_MAX_BYTES = 2**12
_LONGEST = 1024  # tokens: contexts that are longer round alike
# Options of a model on which no kernel depends.
_FREE = frozenset(("path", "ctx_size", "mlock", "mmap", "parallel", "branches", "load_heads"))


def use_exact_passes(model: LlamaModel, say: Callable[[str], None] | None = None) -> PassClass:
    """Let a model make passes that round alike only; returns their class.

    The class is the same with any draft, and without one.
    """
    passes = _found(model, say)
    model.use_class(passes)
    return passes


def _found(model: LlamaModel, say: Callable[[str], None] | None) -> PassClass:
    """The stored class of a model, or else one that is found now and stored."""
    if not model.can_roll_back:  # all is read again wherever texts differ
        return PassClass(0, alone=True)
    path = _path(model)
    if (known := _read(path)) is not None:
        return known
    if say is not None:
        say(
            "New on this machine: finding out for --exact which widths of pass round alike, "
            "which may take a minute."
        )
    passes = find_class(model)
    save_json(path, asdict(passes))
    return passes


def known_classes(header: ModelHeader) -> list[PassClass]:
    """Classes that were found of a model under any options."""
    found = (_read(path) for path in files_of(header) if path.suffix == _SUFFIX)
    return sorted({each for each in found if each is not None}, key=str)


def _path(model: LlamaModel) -> Path:
    options = {name: value for name, value in asdict(model.options).items() if name not in _FREE}
    circumstances = {
        "cpu": machine.cpu_name(),
        "llama_cpp": llama_library.identity(),
        "devices": [device.description for device in llama_library.devices()],
        "threads": model.threads,
        "ctx_size": min(model.n_ctx, _LONGEST),
        "rollback": model.rollback.name,
        "options": options,
    }
    return profile_path([model.header], circumstances).with_suffix(_SUFFIX)


def _read(path: Path) -> PassClass | None:
    """The stored class; None where no valid file was saved."""
    try:
        document = json.loads(read_at_most(path, _MAX_BYTES).decode())
        step, widest, alone = document["step"], document["widest"], document["alone"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    valid = type(step) is int and type(widest) is int and type(alone) is bool
    if not valid or step not in (0, *STEPS) or not max(1, step) <= widest <= 2**16:
        return None
    return PassClass(step, widest, alone) if step or alone else None
