"""Sidecars that draft (MTP heads, EAGLE-3, DFlash, DSpark): which of them belong to which model.

By their names and places; only a check of both headers is certain.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from localspec.core.errors import IncompatiblePair, LocalspecError
from localspec.core.formatting import one_line
from localspec.hub.client import RemoteModel
from localspec.library.local_models import Inventory, LocalModel
from localspec.library.scan import files_beside
from localspec.metadata.checks.heads import check_embedded
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.filenames import heads_kind, model_name, tag_of
from localspec.metadata.header import ModelHeader, read_header
from localspec.pairing import check_pair

SHOWN_REASONS = 3  # why sidecars do not fit, in one sentence each
MAX_NEAR = 1_000  # models of one folder that a sidecar's name is compared with
_FINEST = ("Q8_0", "F16", "BF16")  # heads are small: best quality first
_ORDER = ("mtp", "dspark", "dflash", "eagle3")  # llama.cpp's (`common_params_handle_models`)


def by_model(inventory: Inventory) -> tuple[list[list[LocalModel]], list[LocalModel]]:
    """For each model the sidecars that draft for it, and those without their model here.

    A sidecar is listed with the first model that it serves, of those next to it if there are any.
    """
    placed: list[list[LocalModel]] = [[] for _ in inventory.models]
    alone: list[LocalModel] = []
    names = [model_name(_file_name(model)) for model in inventory.models]
    same: dict[str, list[int]] = defaultdict(list)
    here: dict[Path | str, list[int]] = defaultdict(list)
    for i, model in enumerate(inventory.models):
        same[names[i]].append(i)
        for place in _places(model):
            here[place].append(i)
    for sidecar in inventory.sidecars:
        name = model_name(_file_name(sidecar))
        near = {i for place in _places(sidecar) for i in here[place][:MAX_NEAR]}
        # Next to its model the sidecar's name may lack the part that differs by conversion.
        served = [i for i in near if _begins(names[i], name)]
        served = served or (same[name] if name else [])
        (placed[min(served)] if served else alone).append(sidecar)
    return placed, alone


def sidecars_of(target: Path, *, mtp_only: bool = False) -> list[Path]:
    """Sidecars next to a target that may draft for it, by their names; those named for it first.

    MTP heads fit few targets. Others fit any of the same size, so they must be named for this one.
    """
    found = []
    for path in files_beside(target):
        kind, named = heads_kind(path.as_posix()), is_named_for(path, target)
        if kind == "mtp" or (kind is not None and named and not mtp_only):
            found.append((not named, _ORDER.index(kind), path))
    return [path for _, _, path in sorted(found)]


def is_named_for(sidecar: Path, target: Path) -> bool:
    """Whether the name of a sidecar is its target's, or the beginning of it."""
    return _begins(model_name(target.name), model_name(sidecar.name))


def sidecar_beside(target: ModelHeader, *, mtp_only: bool = False) -> Path:
    """The sidecar next to a target that fits it; raises IncompatiblePair with the reasons."""
    reasons = []
    for path in sidecars_of(target.path, mtp_only=mtp_only):
        reason = _unfit(target, path, mtp_only)
        if reason is None:
            return path
        reasons.append(reason)
    if len(reasons) > SHOWN_REASONS:
        reasons[SHOWN_REASONS:] = [f"{len(reasons) - SHOWN_REASONS} more next to it do not fit."]
    own = [finding.message for finding in check_embedded(target)]
    wanted = ", ".join(f"{kind}-*.gguf" for kind in (_ORDER[:1] if mtp_only else _ORDER))
    raise IncompatiblePair(
        " ".join([*own, *(reasons or [f"No sidecar of heads ({wanted}) lies next to it."])]),
        "Get a conversion that has its heads, or use another draft.",
    )


def _unfit(target: ModelHeader, path: Path, mtp_only: bool) -> str | None:
    """Why a file has no heads, or no MTP heads, for a target; None if it has."""
    try:
        header = read_header(path)
    except LocalspecError as problem:
        return problem.message
    kind, name = draft_kind(header), one_line(path.name)
    if kind.is_model or (mtp_only and kind.kind != "mtp"):
        return f"{name} holds no {'MTP ' * mtp_only}heads: it is {kind.words}."
    errors = check_pair(target, header).errors
    return f"{name}: {errors[0].message}" if errors else None


def ranked(name: str, heads: Sequence[RemoteModel]) -> list[RemoteModel]:
    """The heads that may draft for a model of this name (`sidecars_of`), the finest type first."""

    def rank(model: RemoteModel) -> tuple[bool, int, int]:
        path = model.files[0].path
        tag = (tag_of(path) or "").upper()
        coarseness = _FINEST.index(tag) if tag in _FINEST else len(_FINEST)
        return not is_named(model), _ORDER.index(heads_kind(path) or ""), coarseness

    def is_named(model: RemoteModel) -> bool:
        return _begins(name, model_name(model.files[0].path))

    return sorted((each for each in heads if is_mtp(each) or is_named(each)), key=rank)


def is_mtp(heads: RemoteModel) -> bool:
    """Whether heads on the Hub are MTP heads, by their name."""
    return heads_kind(heads.files[0].path) == "mtp"


def _begins(name: str, other: str) -> bool:
    return bool(other) and name.startswith(other)


def _places(model: LocalModel) -> list[Path | str]:
    """Places of other files of the same repository: its folder, and the repository itself."""
    folder = model.path.parent
    around = [folder, folder.parent] if folder.name.lower() == "mtp" else [folder]
    return [*around, *([model.repo.lower()] if model.repo else [])]


def _file_name(model: LocalModel) -> str:
    """A file's own name; that of a blob is its name in the tool."""
    return model.path.name if model.path.suffix.lower() == ".gguf" else model.name
