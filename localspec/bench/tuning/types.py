"""Costs of a target in other types, by copies of a few of its layers: nothing is downloaded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.bench.tuning.candidates import PairFiles
from localspec.bench.tuning.prediction import Costs, by_part, costs, ratio
from localspec.bench.tuning.trial import Trials
from localspec.bench.tuning.turns import Turns
from localspec.core.errors import LocalspecError
from localspec.core.files import UNWRITABLE, file_problem
from localspec.metadata.draft_kind import n_layers, whole_number
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft import store
from localspec.self_draft.make import LEADING, write_layers
from localspec.self_draft.recipe import KEEP, Recipe

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


def type_costs(pair: PairFiles, here: Mapping[str, Path]) -> Iterator[TypeCosts]:
    """The costs of `COMMON` types and of files ``here``, by type, in turn with the target's own.

    Copies have few layers and more; the difference is that of layers, from which follows the cost
    of all. A file that is here lends its own layers, others are made by llama.cpp of the target's.
    """
    target = read_header(pair.target.path)
    alone = replace(pair, draft=None, others=())
    for name in dict.fromkeys((*COMMON, *here)):
        if name != target.quantization:
            path = here.get(name)
            source = target if path is None else read_header(path)
            try:
                found = _measured(alone, target, source, name if path is None else KEEP)
                yield replace(found, type=name, path=path)
            except LocalspecError as problem:
                yield TypeCosts(name, path=path, reason=problem.message)


def _measured(alone: PairFiles, target: ModelHeader, source: ModelHeader, kind: str) -> TypeCosts:
    """The target next to ``source`` with its layers in another type."""
    depths, layers, sizes = _depths(target), n_layers(target), list[int]()
    measured: list[list[Costs]] = []
    trials = Trials(alone, room=2)
    unwritten = "Copies of a few layers could not be written"
    with store.work_folder() as folder, file_problem(unwritten, UNWRITABLE):
        try:
            for depth in depths:
                files = folder / f"{depth}-now.gguf", folder / f"{depth}-other.gguf"
                between = folder / "between.gguf"
                write_layers(target, Recipe(depth), between, files[0])
                write_layers(source, Recipe(depth, kind), between, files[1])
                sizes.append(files[1].stat().st_size)
                sides = [{"target": str(file)} for file in files]
                measured.append([costs(each) for each in Turns(alone, trials).passes(sides)])
        finally:
            trials.close(lambda trial: trial.kill())

    def whole(few: float, more: float) -> float:
        layer = max(0.0, more - few) / max(1, depths[1] - depths[0])  # noise takes no time away
        return few + layer * (layers - depths[0])

    now, other = (by_part(whole, few, more) for few, more in zip(*measured, strict=True))
    found = replace(ratio(now, other), step=1.0, draft_reading=1.0)
    return TypeCosts(kind, round(whole(*sizes)), found)


def _depths(target: ModelHeader) -> tuple[int, int]:
    """Numbers of layers with which every kind of layer is in the difference.

    Hybrids have full attention once in a period; the first layers may be unlike the others.
    """
    leading = max(whole_number(target, key) or 0 for key in LEADING)
    period = max(2, whole_number(target, "full_attention_interval") or 0)
    every = n_layers(target)
    few = max(1, min(leading + period, every - 1))
    return few, max(few, min(leading + 3 * period, every))
