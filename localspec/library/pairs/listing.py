"""Rows of the list of pairs: the user's own, then known ones, each with size and presence."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.core.errors import UnknownPair
from localspec.hub.reference import Reference, parse_reference
from localspec.library.local_models import LocalModel, model_of
from localspec.library.pairs import user_pairs
from localspec.library.pairs.catalog import (
    CACHES,
    MTP,
    Gain,
    PairSpec,
    estimated,
    find_pair,
    load_catalog,
    of_family,
)
from localspec.llama.memory.probe import memory_for_models
from localspec.metadata.filenames import model_name, parts_of

if TYPE_CHECKING:
    from localspec.library.pairs.schema import UserPair


@dataclass(frozen=True, slots=True)
class PairRow:
    """A pair as a line of a list; ``spec`` is None for a pair of the user's.

    ``size`` is that of both files, ``memory`` with caches and buffers, in bytes.
    ``here`` says whether target and draft are on this disk, ``fits`` whether both fit into this
    machine's memory: None if the size or the memory is unknown.
    """

    name: str
    family: str
    own: bool
    target: str
    draft: str
    size: int | None
    memory: int | None
    here: tuple[bool, bool]
    fits: bool | None
    licenses: tuple[str, str]
    gain: Gain | None
    spec: PairSpec | None

    @property
    def experts(self) -> bool:
        return self.spec is not None and self.spec.experts

    def as_json(self) -> dict[str, object]:
        """Plain data, with everything that the catalogue says of a known pair."""
        row = {key: value for key, value in asdict(self).items() if key != "spec"}
        return row if self.spec is None else self.spec.as_json() | row


def pair_rows(
    local: Sequence[LocalModel], family: str | None = None, memory: int | None = None
) -> list[PairRow]:
    """The user's own pairs, then known ones, of a family; they are to fit into ``memory`` bytes."""
    own, known = user_pairs.names(), load_catalog()
    if family is not None:
        own = [name for name in own if family.lower() in name.lower()]
        try:
            known = of_family(family)
        except UnknownPair:
            if not own:
                raise
            known = ()
    memory = memory or memory_for_models(total=True)
    rows = [_row(user_pairs.load(name), None, local, memory) for name in own]
    return [*rows, *(_row(user_pairs.as_pair(spec), spec, local, memory) for spec in known)]


def pair_row(name: str, local: Sequence[LocalModel]) -> PairRow:
    """One pair by its name, the user's own first; raises UnknownPair."""
    pair, own = user_pairs.find(name), bool(user_pairs.spellings(name))
    is_bundled = not own and pair.name == user_pairs.BUNDLED
    spec = None if own or is_bundled else find_pair(name)
    row = _row(pair, spec, local, memory_for_models(total=True))
    return replace(row, family="bundled", own=False) if is_bundled else row


def recommended(
    rows: Sequence[PairRow], memory: int | None = None, *, shared: bool = False
) -> PairRow | None:
    """The known pair to try first with this memory: one on this disk, else the largest.

    It takes at most half of ``memory`` bytes, by default this machine's; pairs whose vocabularies
    are known to fit come first, and pairs that are expected to gain little are left out. If the
    memory is ``shared`` by RAM and a GPU, models with experts come first: few bytes cross over.
    """
    memory = memory or memory_for_models(total=True) or 0
    roomy = [
        row
        for row in rows
        if row.spec and row.memory and 2 * row.memory <= memory
        if row.gain is None or row.gain.standing != "expected"
    ]
    fitting = [row for row in roomy if row.spec and row.spec.vocab in ("reported", "made-for")]
    if shared:
        fitting = [row for row in fitting if row.experts] or fitting
    return max(fitting or roomy, key=lambda row: (all(row.here), row.size or 0), default=None)


def _row(
    pair: "UserPair", spec: PairSpec | None, local: Sequence[LocalModel], memory: int | None
) -> PairRow:
    target = _bytes_here(pair.target, local)
    # Prediction heads count as present if their target is.
    draft = _bytes_here(pair.draft, local) if pair.draft != MTP else None if target is None else 0
    here = None if target is None or draft is None else target + draft
    size = here if spec is None else round(spec.size_gb * 1e9)
    taken = round(1e9 * spec.memory_gb()) if spec else here and round(CACHES * here)
    licenses = (spec.target.license, spec.draft.license if spec.draft else "") if spec else ("", "")
    return PairRow(
        name=pair.name,
        family=spec.family if spec else "your own",
        own=spec is None,
        target=pair.target,
        draft=pair.draft,
        size=size,
        memory=taken,
        here=(target is not None, draft is not None),
        fits=None if taken is None or memory is None else taken <= memory,
        licenses=licenses,
        gain=(spec.gain or estimated(spec)) if spec else None,
        spec=spec,
    )


def _in_folder(reference: Reference, local: Sequence[LocalModel]) -> LocalModel | None:
    """The only file of the current folder that is this model, as `Resolver.choose` takes it."""
    wanted = Path(reference.file or "").name
    near = [
        each
        for each in local
        if each.source == "folder" and model_name(each.path.name) == model_name(wanted)
    ]
    exact = [each for each in near if each.path.name == wanted]
    return exact[0] if exact else near[0] if len(near) == 1 else None


def _bytes_here(name: str, local: Sequence[LocalModel]) -> int | None:
    """The size of the model that a name stands for, None if it is not on this disk."""
    reference = parse_reference(name)
    if reference is not None:
        model = model_of(reference, local) or _in_folder(reference, local)
        return None if model is None else model.n_bytes
    path = Path(name)
    known = next((model for model in local if model.path == path), None)
    try:
        return known.n_bytes if known else sum(part.stat().st_size for part in parts_of(path))
    except OSError:
        return None
