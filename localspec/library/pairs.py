"""What is here and what is known, side by side: drafts for a target, pairs and whether they fit.

This room joins the models on the disk with headers, memory and the catalogue. It ranks nothing
itself (`suggest` does), fetches nothing and draws nothing.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from localspec.core import machine
from localspec.core.errors import LocalspecError, UnknownPair
from localspec.engine import profile_store
from localspec.engine.memory_probe import free_memory
from localspec.hub.reference import parse_reference
from localspec.library import user_pairs
from localspec.library.catalog import Gain, PairSpec, describe, load_catalog, of_family
from localspec.library.local_models import LocalModel, find_models, model_of
from localspec.library.scan import names_a_model
from localspec.library.suggest import Suggestions, suggest
from localspec.metadata.filenames import parts_of
from localspec.metadata.header import ModelHeader, read_header
from localspec.speculative.valuation import LONGEST_AUTO

MAX_BESIDE = 10_000  # files in a target's folder
_CACHES = 1.15  # of the size of the files: what contexts and buffers add, roughly


@dataclass(frozen=True, slots=True)
class PairRow:
    """A pair as a line of a list: ``size`` in bytes, what is ``here`` (target, draft), what fits.

    ``fits`` is None where the size or the free memory is not known.
    """

    name: str
    family: str
    own: bool
    target: str
    draft: str
    size: int | None
    here: tuple[bool, bool]
    fits: bool | None
    licenses: tuple[str, str]
    gain: Gain | None
    spec: PairSpec | None

    def as_json(self) -> dict[str, object]:
        """Plain data, with all that the catalogue says of a pair of its own."""
        row = {key: value for key, value in asdict(self).items() if key != "spec"}
        return row if self.spec is None else describe(self.spec) | row


@dataclass(frozen=True, slots=True)
class _Here:
    """What pairs are compared with: the models on this disk, and the room for models in bytes."""

    models: Sequence[LocalModel]
    room: int | None

    def fits(self, n_bytes: int | None) -> bool | None:
        if n_bytes is None or self.room is None:
            return None
        return _CACHES * n_bytes <= self.room


def drafts_for(
    target: ModelHeader, folders: Sequence[Path] = (), *, lenient: bool = False
) -> Suggestions:
    """Every draft for ``target`` on this disk, and known pairs of it.

    Looked through are the models that `library` lists, the folders given, and the target's own.
    """
    listed = {
        os.path.realpath(model.path): (
            model.path,
            str(model.path) if model.source == "folder" else model.name,
        )
        for model in find_models(extra=folders).models
    }
    for path in _beside(target.path):
        listed.setdefault(os.path.realpath(path), (path, str(path)))
    found = []
    for path, name in listed.values():
        try:
            found.append((name, read_header(path)))
        except LocalspecError:
            continue  # a broken file is no draft; `list` and `inspect` tell of it
    return suggest(target, found, load_catalog(), memory_for_models(), _measured, lenient=lenient)


def _beside(path: Path) -> list[Path]:
    """Models in the folder of a file on this disk; not below it."""
    if not os.path.isfile(path):
        return []
    return sorted(
        other for other in islice(path.parent.iterdir(), MAX_BESIDE) if names_a_model(other)
    )


def memory_for_models(*, total: bool = False) -> int | None:
    """Bytes for models: RAM that is free, or all of it, and what GPUs have; None where unknown."""
    memory = machine.memory()
    if memory is None:
        return None
    on_gpus = free_memory().gpu if machine.has_nvidia_gpu() else 0
    return memory[1 if total else 0] + on_gpus


def pair_rows(family: str | None = None) -> list[PairRow]:
    """The user's own pairs, then the known ones, perhaps of one family only.

    Raises UnknownPair for a family that no pair is of.
    """
    here = _Here(find_models().models, memory_for_models(total=True))
    own = [_own_row(name, here) for name in user_pairs.names()]
    if family is None:
        return [*own, *(_known_row(pair, here) for pair in load_catalog())]
    own = [row for row in own if family.lower() in row.name.lower()]
    try:
        known = of_family(family)
    except UnknownPair:
        if not own:
            raise
        known = ()
    return [*own, *(_known_row(pair, here) for pair in known)]


def pair_row(name: str) -> PairRow:
    """One pair by its name, an own one first; raises UnknownPair."""
    here = _Here(find_models().models, memory_for_models(total=True))
    named = user_pairs.find(name)
    if any(own.lower() == named.name.lower() for own in user_pairs.names()):
        return _own_row(named.name, here)
    return next(_known_row(pair, here) for pair in load_catalog() if pair.name == named.name)


def _own_row(name: str, here: _Here) -> PairRow:
    pair = user_pairs.load(name)
    files = [_find(model, here.models) for model in (pair.target, pair.draft)]
    sizes = [None if file is None else file[1] for file in files]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    return PairRow(
        name=name,
        family="your own",
        own=True,
        target=pair.target,
        draft=pair.draft,
        size=total,
        here=(files[0] is not None, files[1] is not None),
        fits=here.fits(total),
        licenses=("", ""),
        gain=None,
        spec=None,
    )


def _known_row(pair: PairSpec, here: _Here) -> PairRow:
    names = str(pair.target.reference), str(pair.draft.reference)
    size = round(pair.size_gb * 1e9)
    return PairRow(
        name=pair.name,
        family=pair.family,
        own=False,
        target=names[0],
        draft=names[1],
        size=size,
        here=(_find(names[0], here.models) is not None, _find(names[1], here.models) is not None),
        fits=here.fits(size),
        licenses=(pair.target.license, pair.draft.license),
        gain=pair.gain,
        spec=pair,
    )


def _find(name: str, local: Sequence[LocalModel]) -> tuple[Path, int] | None:
    """The file that a name stands for, with its bytes, if it is on this disk."""
    reference = parse_reference(name)
    if reference is not None:
        model = model_of(reference, local)
        return None if model is None else (model.path, model.n_bytes)
    path = Path(name)
    known = next((model for model in local if model.path == path), None)
    try:
        return path, known.n_bytes if known else sum(part.stat().st_size for part in parts_of(path))
    except OSError:
        return None


def _measured(target: ModelHeader, draft: ModelHeader) -> float | None:
    known = profile_store.latest([target, draft])
    usual = None if known is None else known.usual_gain(LONGEST_AUTO)
    return None if usual is None else usual[0]
