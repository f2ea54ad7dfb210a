"""Rows of the list of pairs: the user's own and known ones, what is here of each, what fits."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from localspec.core.errors import UnknownPair
from localspec.hub.reference import parse_reference
from localspec.library import user_pairs
from localspec.library.catalog import MTP, Gain, PairSpec, load_catalog, of_family
from localspec.library.local_models import LocalModel, model_of
from localspec.llama.memory.probe import memory_for_models
from localspec.metadata.filenames import parts_of

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
        return row if self.spec is None else self.spec.as_json() | row


@dataclass(frozen=True, slots=True)
class _Machine:
    """What pairs are compared with: the models on this disk, and the memory for models in bytes."""

    models: Sequence[LocalModel]
    memory: int | None

    def fits(self, n_bytes: int | None) -> bool | None:
        if n_bytes is None or self.memory is None:
            return None
        return _CACHES * n_bytes <= self.memory


def pair_rows(local: Sequence[LocalModel], family: str | None = None) -> list[PairRow]:
    """The user's own pairs, then the known ones, perhaps of one family only.

    ``local`` are the models on this disk. Raises UnknownPair for a family that no pair is of.
    """
    here = _Machine(local, memory_for_models(total=True))
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


def pair_row(name: str, local: Sequence[LocalModel]) -> PairRow:
    """One pair by its name, an own one first; raises UnknownPair."""
    here = _Machine(local, memory_for_models(total=True))
    named = user_pairs.find(name)
    if any(own.lower() == named.name.lower() for own in user_pairs.names()):
        return _own_row(named.name, here)
    return next(_known_row(pair, here) for pair in load_catalog() if pair.name == named.name)


def _own_row(name: str, here: _Machine) -> PairRow:
    pair = user_pairs.load(name)
    names = pair.target, pair.draft
    files = [_find(model, here.models) for model in names if model != MTP]
    sizes = [None if file is None else file[1] for file in files]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    return PairRow(
        name=name,
        family="your own",
        own=True,
        target=pair.target,
        draft=pair.draft,
        size=total,
        here=_here(names, here.models),
        fits=here.fits(total),
        licenses=("", ""),
        gain=None,
        spec=None,
    )


def _known_row(pair: PairSpec, here: _Machine) -> PairRow:
    names = str(pair.target.reference), pair.draft_name
    size = round(pair.size_gb * 1e9)
    return PairRow(
        name=pair.name,
        family=pair.family,
        own=False,
        target=names[0],
        draft=names[1],
        size=size,
        here=_here(names, here.models),
        fits=here.fits(size),
        licenses=(pair.target.license, pair.draft.license if pair.draft else ""),
        gain=pair.gain,
        spec=pair,
    )


def _here(names: tuple[str, str], local: Sequence[LocalModel]) -> tuple[bool, bool]:
    """Which of a pair are on this disk; heads of a target are where it is."""
    target, draft = (_find(name, local) is not None for name in names)
    return target, target if names[1] == MTP else draft


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
