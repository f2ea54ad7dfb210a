"""Costs of a target in other types, by copies of a few of its layers: nothing is downloaded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from localspec.bench.tuning.candidates import PairFiles
from localspec.bench.tuning.prediction import OF_TARGET, Costs, Passes
from localspec.bench.tuning.trial import Pass, Trials
from localspec.bench.tuning.turns import Turns
from localspec.core.errors import LocalspecError
from localspec.core.files import UNWRITABLE, file_problem
from localspec.metadata.draft_kind import n_layers, whole_number
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft import store
from localspec.self_draft.make import LEADING, write_layers
from localspec.self_draft.recipe import KEEP, Recipe

_TURNS = 12  # of passes of copies, which are short: noise counts several times in all layers
COMMON = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0")


@dataclass(frozen=True, slots=True)
class TypeCosts:
    """A type of the target: the size of its file in bytes, and its costs over those now.

    ``ratio`` is None, with the ``reason``, if it could not be measured. ``path`` is a file of this
    type on this disk.
    """

    type: str
    n_bytes: int = 0
    ratio: Costs | None = None
    path: Path | None = None
    reason: str = ""


def type_costs(pair: PairFiles, here: Mapping[str, Path]) -> dict[str, Callable[[], TypeCosts]]:
    """What measures the costs of `COMMON` types and of files ``here``, by type.

    They are measured in turn with the target's own.

    Copies have few layers and more; the difference is that of layers, from which follows the cost
    of all, within some 17 %. A file that is here lends its own layers, others are made by llama.cpp
    of the target's.
    """
    target = read_header(pair.target.path)
    alone = replace(pair, draft=None, others=())
    names = [name for name in dict.fromkeys((*COMMON, *here)) if name != target.quantization]
    return {name: partial(_type, alone, target, name, here.get(name)) for name in names}


def _type(alone: PairFiles, target: ModelHeader, name: str, path: Path | None) -> TypeCosts:
    try:
        source = target if path is None else read_header(path)
        found = _measured(alone, target, source, name if path is None else KEEP)
        return replace(found, type=name, path=path)
    except LocalspecError as problem:
        return TypeCosts(name, path=path, reason=problem.message)


def _measured(alone: PairFiles, target: ModelHeader, source: ModelHeader, kind: str) -> TypeCosts:
    """The target next to ``source`` with its layers in another type."""
    few, more = _depths(target)

    def whole(shallow: float, deep: float) -> float:
        """All layers; noise may make more of them faster than few, but none takes less than 0."""
        layer = max(0.0, deep - shallow) / max(1, more - few)
        return shallow + layer * (n_layers(target) - few)

    unwritten = "Copies of a few layers could not be written"
    with store.work_folder() as folder, file_problem(unwritten, UNWRITABLE):
        own = _copies(target, KEEP, (few, more), folder / "own")
        others = _copies(source, kind, (few, more), folder / "other")
        size = round(whole(*(path.stat().st_size for path in others)))
        trials, sides = Trials(alone, room=4), [{"target": str(path)} for path in (*own, *others)]
        try:
            measured = Turns(alone, trials).passes(sides, _TURNS, OF_TARGET)
        finally:
            trials.close(lambda trial: trial.kill())

    def seconds(copies: Sequence[Passes], part: Pass) -> float:
        return whole(*(min(each[part]) for each in copies))

    ratio = {part: seconds(measured[2:], part) / seconds(measured[:2], part) for part in OF_TARGET}
    return TypeCosts(kind, size, ratio)


def _copies(
    source: ModelHeader, kind: str, depths: tuple[int, int], folder: Path
) -> tuple[Path, Path]:
    """Copies of few layers and of more; the shallow one is cut out of the deep one."""
    folder.mkdir()
    few, more, between = (folder / f"{name}.gguf" for name in ("few", "more", "between"))
    write_layers(source, Recipe(depths[1], kind), between, more)
    write_layers(read_header(more), Recipe(depths[0]), between, few)
    return few, more


def _depths(target: ModelHeader) -> tuple[int, int]:
    """Numbers of layers with which every kind of layer is in the difference.

    Hybrids have full attention once in a period; the first layers may be unlike the others.
    """
    leading = max(whole_number(target, key) or 0 for key in LEADING)
    period = max(2, whole_number(target, "full_attention_interval") or 0)
    every = n_layers(target)
    few = max(1, min(leading + period, every - 1))
    return few, max(few, min(leading + 4 * period, every))
