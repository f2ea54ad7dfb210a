"""What is here and what is known, side by side: drafts for a target, pairs and whether they fit.

This room joins the models on the disk with headers, memory and the catalogue. It ranks nothing
itself (`suggest` does), fetches nothing and draws nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from localspec import machine, pairbook, profiles
from localspec.catalog import Gain, PairSpec, describe, load_catalog, of_family
from localspec.errors import LocalspecError, UnknownPair
from localspec.file_names import parts_of
from localspec.library import LocalModel, find_models, model_of
from localspec.metadata import ModelHeader, read_header
from localspec.reference import parse_reference
from localspec.speculative.control import LONGEST_AUTO
from localspec.suggest import Suggestions, suggest

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


def drafts_for(target: ModelHeader, folders: Sequence[Path] = ()) -> Suggestions:
    """Every draft on this disk for ``target``, in the folders given too, and known pairs of it."""
    found = []
    for model in find_models(extra=folders).models:
        try:
            found.append((model.name, read_header(model.path)))
        except LocalspecError:
            continue  # a broken file is no draft; `list` and `inspect` tell of it
    memory = machine.memory()
    free = None if memory is None else memory[0]
    return suggest(target, found, load_catalog(), free, _measured)


def pair_rows(family: str | None = None) -> list[PairRow]:
    """The user's own pairs, then the known ones, perhaps of one family only.

    Raises UnknownPair for a family that no pair is of.
    """
    local = find_models().models
    own = [_own_row(name, local) for name in pairbook.names()]
    if family is None:
        return [*own, *(_known_row(pair, local) for pair in load_catalog())]
    own = [row for row in own if family.lower() in row.name.lower()]
    try:
        known = of_family(family)
    except UnknownPair:
        if not own:
            raise
        known = ()
    return [*own, *(_known_row(pair, local) for pair in known)]


def pair_row(name: str) -> PairRow:
    """One pair by its name, an own one first; raises UnknownPair."""
    local = find_models().models
    named = pairbook.find(name)
    if any(own.lower() == named.name.lower() for own in pairbook.names()):
        return _own_row(named.name, local)
    return next(_known_row(pair, local) for pair in load_catalog() if pair.name == named.name)


def _own_row(name: str, local: Sequence[LocalModel]) -> PairRow:
    pair = pairbook.load(name)
    files = [_find(model, local) for model in (pair.target, pair.draft)]
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
        fits=_fits(total),
        licenses=("", ""),
        gain=None,
        spec=None,
    )


def _known_row(pair: PairSpec, local: Sequence[LocalModel]) -> PairRow:
    names = str(pair.target.reference), str(pair.draft.reference)
    size = round(pair.size_gb * 1e9)
    return PairRow(
        name=pair.name,
        family=pair.family,
        own=False,
        target=names[0],
        draft=names[1],
        size=size,
        here=(_find(names[0], local) is not None, _find(names[1], local) is not None),
        fits=_fits(size),
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


def _fits(n_bytes: int | None) -> bool | None:
    memory = machine.memory()
    return None if n_bytes is None or memory is None else _CACHES * n_bytes <= memory[1]


def _measured(target: ModelHeader, draft: ModelHeader) -> float | None:
    known = profiles.latest([target, draft])
    usual = None if known is None else known.usual_gain(LONGEST_AUTO)
    return None if usual is None else usual[0]
