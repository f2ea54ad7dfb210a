"""Fetches models that are named but missing; their headers are checked before any weights come.

The transfer itself is in `localspec.download`.
"""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.core import paths
from localspec.core.errors import (
    DownloadProblem,
    FileProblem,
    IncompatiblePair,
    LocalspecError,
    MissingFile,
    UsageError,
)
from localspec.core.files import did_you_mean
from localspec.core.formatting import one_line, size
from localspec.core.options.load_options import LoadOptions
from localspec.download import fetch
from localspec.hub.client import RemoteModel, heads_beside, resolve
from localspec.hub.provenance import Progress, require_named_bytes, sha256_of
from localspec.hub.reference import Reference, parse_reference
from localspec.hub.remote_header import PairCheck, compare, read_remote
from localspec.library.resolve import MTP, SELF, Resolver
from localspec.library.sidecars import is_mtp, ranked, sidecar_beside
from localspec.metadata.checks.heads import check_embedded
from localspec.metadata.draft_kind import draft_kind, has_heads
from localspec.metadata.filenames import HEADS, heads_kind, model_name, parts_of
from localspec.metadata.findings import make_finding
from localspec.metadata.header import ModelHeader, read_header
from localspec.pairing import check_pair, check_usable

if TYPE_CHECKING:
    from localspec.library.pairs.schema import FileHash

_HUB_PATH = re.compile(r"[\w.-]+/[\w.-]+/.+\.gguf", re.IGNORECASE)
LARGE = 10 * 10**9  # bytes; above it a download asks first

Place = Path | RemoteModel  # the place of a model: on this disk, or on the Hub


@dataclass(frozen=True, slots=True)
class DownloadUI:
    """Messages to the user: a sentence, a question, a progress bar for bytes."""

    say: Callable[[str], None]
    agree: Callable[[str], bool]
    transfer: Callable[[], AbstractContextManager[Progress]]


def header_of(name: str, resolver: Resolver, ui: DownloadUI) -> ModelHeader:
    """The header of a model on the disk or on the Hub; nothing else of it is read."""
    if resolver.is_pair(name):
        raise UsageError(
            f"{name} is the name of a pair, which has two models.",
            "Name one of them: " + " or ".join(resolver.choose(name).models),
        )
    place = _place(name, resolver, ui)
    if isinstance(place, Path):
        return read_header(place)
    header, n_bytes = read_remote(place)
    ui.say(f"Read {n_bytes:,} of {place.size:,} bytes of {place.reference}.")
    return header


def judge(
    target: str,
    draft: str,
    resolver: Resolver,
    ui: DownloadUI,
    *,
    lenient: bool = False,
    weights_needed: bool = True,
) -> PairCheck:
    """Check a pair, here or on the Hub, and read no more than the verdict takes; none of SELF."""
    named = resolver.choose(target, draft)
    if named.draft == SELF:
        raise UsageError(
            "A draft made of the target itself always fits it; whether it pays is measured.",
            f"Type: localspec draft make {shlex.quote(named.target)}",
        )
    first = _place(named.target, resolver, ui)
    if named.draft == MTP:
        second = _heads_for(first, named.target, ui)
    else:
        second = _place(named.draft or draft, resolver, ui)
    check = compare(first, second, lenient=lenient, weights_needed=weights_needed)
    total = sum(place.size for place in {first, second} if isinstance(place, RemoteModel))
    if total:
        ui.say(f"Read {check.bytes_read:,} of {total:,} bytes on the Hub.")
    return check


def proven(check: PairCheck) -> PairCheck:
    """The same, with a finding if llama.cpp does not run the pair's files on this disk."""
    from localspec.engine.loading.pair import usable_pair

    own = check.target is check.draft
    target, draft = (
        LoadOptions(header.path, load_heads=own)
        if header.path.is_file() and header.tensors
        else None
        for header in (check.target, check.draft)
    )
    try:
        if target is not None:
            usable_pair(target, draft, lenient=True)
        elif draft is not None and draft_kind(check.draft).is_model:
            usable_pair(draft, None)
    except LocalspecError as problem:
        finding = make_finding("does-not-run", problem.message, problem.hint)
        report = replace(check.report, findings=(finding, *check.report.findings))
        return replace(check, report=report)
    return check


def file_hashes(check: PairCheck, on_progress: Progress) -> "list[FileHash]":
    """Size and sha256 of all files of a checked pair that are on this disk, parts included."""
    files = dict.fromkeys((*check.target.paths, *check.draft.paths))
    # The path of a header on the Hub is its reference, which is no file.
    return [_hashed(path, on_progress) for path in files if path.is_file()]


def ensure_local(
    names: Sequence[str], resolver: Resolver, ui: DownloadUI, *, lenient: bool = False
) -> list[Path]:
    """The files (part 1 of a split one) that names stand for, fetched if they are missing.

    Two names are a pair, checked before anything is fetched: raises IncompatiblePair. The second
    may be MTP, prediction heads: its file is the target's own if it holds them. Raises FileProblem
    for a file that is no model, or whose bytes are not those of its name in a cache, UsageError for
    MTP without a target, DownloadProblem when the user declines a large download.
    """
    if names[0] == MTP:
        raise UsageError(
            f"{MTP} is not a model: it stands for the prediction heads of a target.",
            f"Name one target, then {MTP}.",
        )
    places = [_place(name, resolver, ui) for name in names if name != MTP]
    if MTP in names:
        places.append(_heads_for(places[0], names[0], ui))
    unique = dict.fromkeys(places)
    missing = [place for place in unique if isinstance(place, RemoteModel)]
    if missing:
        if len(unique) == 2:
            _require_compatible(*unique, lenient=lenient)
        else:
            for place in missing:
                for finding in check_usable(read_remote(place)[0]):
                    if finding.level == "error":
                        raise FileProblem(f"{place.reference}: {finding.message}", finding.hint)
        if MTP in names and len(unique) == 1:
            ui.say("The prediction heads are in the target's own file.")
        _tell_and_ask(missing, ui)
    with ui.transfer() as on_progress:
        files = {place: _fetched(place, ui, on_progress) for place in unique}
    return [files[place] for place in places]


def fetch_groups(names: Sequence[str], resolver: Resolver, ui: DownloadUI) -> list[Path]:
    """The files of pairs and single models, each once; heads for a new single one are named."""
    files = list[Path]()
    for group, lenient in resolver.groups_of(names):
        is_new = len(group) == 1 and resolver.on_disk(group[0]) is None
        files += ensure_local(group, resolver, ui, lenient=lenient)
        if is_new:
            tell_of_heads(group[0], files[-1], ui)
    return list(dict.fromkeys(files))  # heads may be in their target's file


def _fetched(place: Place, ui: DownloadUI, on_progress: Progress) -> Path:
    if isinstance(place, Path):
        if os.path.isdir(place):
            read_header(place)  # raises: a folder is no model
        for part in parts_of(place):
            require_named_bytes(part, on_progress)
        return place
    return fetch(place, paths.models_folder(), on_progress, on_note=ui.say)[0]


def heads_on_hub(name: str, resolver: Resolver, ui: DownloadUI) -> list[RemoteModel]:
    """Sidecars of heads, known by their names, in the repository of a model that is not here."""
    reference = parse_reference(name)
    here = reference is None or resolver.on_disk(name) is not None
    return [] if here or reference is None else _ask_for_heads(reference, ui)


def fitting_heads(name: str, target: ModelHeader, ui: DownloadUI) -> RemoteModel | None:
    """The best heads for a target in its repository on the Hub, by both headers; None without."""
    reference = parse_reference(name)
    if reference is None or has_heads(target) or not draft_kind(target).is_model:
        return None
    try:
        for heads in ranked(model_name(target.path.name), _ask_for_heads(reference, ui)):
            if check_pair(target, read_remote(heads)[0]).compatible:
                return heads
    except LocalspecError as problem:
        ui.say(f"Whether {reference.repo} has heads is not known: {problem.message}")
    return None


def tell_of_heads(name: str, target: Path, ui: DownloadUI) -> bool:
    """Name the command that fetches the heads in a target's repository; whether there are any."""
    heads = fitting_heads(name, read_header(target), ui)
    if heads is not None:
        kind = HEADS[heads_kind(heads.files[0].path) or MTP]
        ui.say(
            f"{heads.reference.repo} has {kind} for it ({size(heads.size)}): localspec download "
            f"{shlex.quote(str(heads.reference))} fetches them, and they draft from then on."
        )
    return heads is not None


def _ask_for_heads(reference: Reference, ui: DownloadUI) -> list[RemoteModel]:
    ui.say(f"Asking the Hub for heads in {reference.repo}.")
    return heads_beside(reference)


def _heads_for(target: Place, name: str, ui: DownloadUI) -> Place:
    """The place of heads in, next to or in the repository of a target; raises IncompatiblePair."""
    header = read_header(target) if isinstance(target, Path) else read_remote(target)[0]
    reference = parse_reference(name)
    if has_heads(header):
        return target
    if isinstance(target, Path):
        try:
            return sidecar_beside(header, mtp_only=True)
        except IncompatiblePair:
            if reference is None:
                raise
    assert reference is not None
    named = ranked(model_name(header.path.name), _ask_for_heads(reference, ui))
    found = next(filter(is_mtp, named), None)
    if found is None:
        reason = next(check_embedded(header))
        raise IncompatiblePair(
            f"{reason.message} {reference.repo} holds no sidecar of heads (mtp-*.gguf) either.",
            "Choose a repository that has them, or use another draft.",
        )
    return found


def _hashed(path: Path, on_progress: Progress) -> "FileHash":
    from localspec.library.pairs.schema import FileHash

    n_bytes = path.stat().st_size

    def report(done: int) -> None:
        on_progress(path.name, done, n_bytes)

    return FileHash(str(path.absolute()), sha256_of(path, report), n_bytes)


def _place(name: str, resolver: Resolver, ui: DownloadUI) -> Place:
    """The place of a model: on the disk, else on the Hub. Raises MissingFile for a missing path."""
    here, reference = resolver.on_disk(name), parse_reference(name)
    if here is None and reference is not None:
        ui.say(f"Asking the Hub for {reference}.")
        if reference.file and os.path.isfile(same := Path(reference.file).name):
            ui.say(f"The current folder has a file of this name; to use it, name it: {same}")
        return resolve(reference)
    here = here or Path(name)
    if not os.path.lexists(here):
        hint = "Check the path: expected a .gguf file."
        if _HUB_PATH.fullmatch(name):
            hint = f"Check the path, or name a file on the Hub: hf:{name}"
        raise MissingFile(
            f"There is no file {one_line(str(here))}.", did_you_mean(here).rstrip() or hint
        )
    return here


def _require_compatible(target: Place, draft: Place, *, lenient: bool) -> None:
    check = compare(target, draft, lenient=lenient)
    if check.report.compatible:
        return
    first = check.report.errors[0]
    names = [
        str(place) if isinstance(place, Path) else str(place.reference) for place in (target, draft)
    ]
    raise IncompatiblePair(
        f"{names[1]} cannot draft for {names[0]}, so nothing was fetched: {first.message}",
        f"{first.hint} All findings: localspec check {shlex.join(names)}. To have both anyway, "
        "download them one by one.",
    )


def _tell_and_ask(models: Sequence[RemoteModel], ui: DownloadUI) -> None:
    for model in models:
        licence = one_line(model.license or "not stated")
        ui.say(f"{model.reference}: {size(model.size)}, licence {licence}.")
    total = sum(model.size for model in models)
    if total > LARGE and not ui.agree(f"Fetch {size(total)}?"):
        names = shlex.join(str(model.reference) for model in models)
        raise DownloadProblem(
            "Nothing was fetched.",
            f"Agree with --yes, or fetch it first: localspec download --yes {names}",
        )
