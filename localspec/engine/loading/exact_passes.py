"""Pass widths with identical rounding, found once for a model with its options on this machine.

With row kernels on a CPU it is measured, also without ``exact``, whether all widths do: then the
drafted text is the plain text, and `--exact` costs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from localspec.core.options.load_options import MAX_ROWS
from localspec.engine.loading.pair_file import PairFile, found_of, news
from localspec.llama import row_kernels
from localspec.llama.model import LlamaModel
from localspec.llama.parameters import uses_devices
from localspec.llama.pass_class import NATURAL, STEPS, PassClass, Rounding, all_alike, find_class
from localspec.metadata.header import ModelHeader

_LEAST_CTX = 128  # tokens: passes that are compared do not fit into less
_WORTH_TELLING = 2**28  # bytes of a model: smaller ones take only a few seconds


def use_exact_passes(
    model: LlamaModel,
    file: PairFile,
    say: Callable[[str], None] | None = None,
    *,
    trial: bool = True,
) -> PassClass:
    """Let a model with ``exact`` make only passes that round alike; returns their class.

    ``file`` is that of the model alone with ``exact``: all of it is the same with any draft, and
    without one. Without ``exact``, `NATURAL` passes. Without ``trial`` rounding that is not yet
    known stays so, unless ``exact`` needs it: that saves some 300 tokens.
    """
    model.rounding = _rounding(model, file, say, trial=trial or model.options.exact)
    passes = NATURAL
    if model.options.exact and not model.rounds_alike:
        passes = _found(model, file, say)
    model.use_class(passes)
    return passes


def exact_findings(header: ModelHeader) -> list[str]:
    """The results of earlier starts for a model on this disk, under any options, in sentences."""
    parts = list(found_of([header])) if header.path.is_file() else []
    rounding = {str(each) for known in parts for each in _valid_rounding(known).values()}
    classes = {str(each) for known in parts for each in _valid(known).values()}
    found = [f"With row kernels, {each}." for each in sorted(rounding)]
    return found + [f"With --exact, {each}." for each in sorted(classes)]


def _rounding(
    model: LlamaModel, file: PairFile, say: Callable[[str], None] | None, *, trial: bool
) -> Rounding | None:
    """The stored result; without one a ``trial`` is made now. None without row kernels."""
    options = model.options
    if not options.row_kernels or uses_devices(options) or not model.can_roll_back:
        return None
    if model.n_ctx < _LEAST_CTX:
        return None
    known = _valid_rounding(file.parts)
    if model.rollback.name not in known:
        if not trial:
            return None
        if (
            say is not None
            and sum(path.stat().st_size for path in model.header.paths) >= _WORTH_TELLING
        ):
            new = news([model.header], "rounding")
            say(f"{new}: checking that drafted text will be the same, for up to a minute.")
        known[model.rollback.name] = _probed(model)
        stored = {n: {"alike": each.alike, "left": each.left} for n, each in known.items()}
        file.update(rounding=stored)
    cells = model.window_cells
    tokens = max(1, cells - MAX_ROWS) if cells else 0  # a rejected draft reaches further
    return replace(known[model.rollback.name], tokens=tokens)


def _probed(model: LlamaModel) -> Rounding:
    """Compare passes; afterwards the kernels know which operations they did not compute."""
    kernels = row_kernels.find()
    assert kernels is not None  # they are in use
    kernels.reset()
    alike = all_alike(model)
    left = row_kernels.described(kernels.left(), model.header.tensors)
    return Rounding(alike, left)


def _valid_rounding(parts: Mapping[str, Any]) -> dict[str, Rounding]:
    """Valid stored results, by the name of the rollback strategy."""
    stored = _stored(parts, "rounding", {"alike": bool, "left": str})
    return {name: Rounding(**value) for name, value in stored.items()}


def _found(model: LlamaModel, file: PairFile, say: Callable[[str], None] | None) -> PassClass:
    """The stored class of a model, or else one that is found now and stored."""
    if not model.can_roll_back:  # all is read again if texts differ
        return PassClass(0, alone=True)
    placed = f"{model.rollback.name}, {model.options.gpu_layers} layers on devices"
    known = _valid(file.parts)
    if placed not in known:
        if say is not None:
            new = news([model.header], "passes")
            say(
                f"{new}: finding out for --exact which widths of pass round alike, which may take "
                "a minute."
            )
        known[placed] = find_class(model)
        file.update(passes={name: asdict(passes) for name, passes in known.items()})
    return known[placed]


def _valid(parts: Mapping[str, Any]) -> dict[str, PassClass]:
    """The stored classes by how the model is placed, without anything invalid."""
    stored = _stored(parts, "passes", {"step": int, "widest": int, "alone": bool})
    found = {name: PassClass(**value) for name, value in stored.items()}
    return {
        name: each
        for name, each in found.items()
        if each.step in (0, *STEPS) and max(1, each.step) <= each.widest <= 2**16
        if each.step or each.alone
    }


def _stored(parts: Mapping[str, Any], name: str, types: Mapping[str, type]) -> dict[str, Any]:
    """Stored results with values of these types alone."""
    stored = parts.get(name)
    return {
        key: value
        for key, value in (stored.items() if isinstance(stored, dict) else ())
        if isinstance(value, dict) and {k: type(each) for k, each in value.items()} == types
    }
