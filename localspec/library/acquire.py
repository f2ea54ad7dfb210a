"""What is named but not here, fetched: judged by its header first, with licence and size told.

This room owns the order of things before a download: look on the disk, ask the Hub, read headers,
refuse a pair that cannot work, ask about what is large. The transfer is `download`'s.
"""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from localspec.core import paths
from localspec.core.errors import DownloadProblem, FileProblem, IncompatiblePair, UsageError
from localspec.core.formatting import one_line, size
from localspec.download import fetch
from localspec.hub.client import RemoteModel, resolve
from localspec.hub.provenance import Progress, sha256_of
from localspec.hub.reference import parse_reference
from localspec.hub.remote_header import PairCheck, compare, read_remote
from localspec.library import user_pairs
from localspec.library.pair_schema import FileHash
from localspec.library.resolve import choose, is_pair, on_disk
from localspec.metadata.header import ModelHeader, read_header
from localspec.pairing import check_model

_HUB_PATH = re.compile(r"[\w.-]+/[\w.-]+/.+\.gguf", re.IGNORECASE)
LARGE = 10 * 10**9  # bytes; above it a download waits for a yes


@dataclass(frozen=True, slots=True)
class DownloadUI:
    """How to speak with the user: a sentence, a question, a bar for bytes."""

    say: Callable[[str], None]
    agree: Callable[[str], bool]
    transfer: Callable[[], AbstractContextManager[Progress]]


def header_of(name: str, voice: DownloadUI) -> ModelHeader:
    """The header of a model on the disk or on the Hub, of which nothing else is read."""
    if is_pair(name):
        raise UsageError(
            f"{name} is the name of a pair, which has two models.",
            "Name one of them: " + " or ".join(models_of([name])),
        )
    place = _place(name, voice)
    if isinstance(place, Path):
        return read_header(place)
    header, n_bytes = read_remote(place)
    voice.say(f"Read {n_bytes:,} of {place.size:,} bytes of {place.reference}.")
    return header


def judge(
    target: str,
    draft: str,
    voice: DownloadUI,
    *,
    lenient: bool = False,
    weights_needed: bool = True,
) -> PairCheck:
    """The verdict on a pair, wherever its models are, from as little of them as it takes."""
    choice = choose(target, draft)
    places = _place(choice.target, voice), _place(choice.draft or draft, voice)
    verdict = compare(*places, lenient=lenient, weights_needed=weights_needed)
    total = sum(place.size for place in places if isinstance(place, RemoteModel))
    if total:
        voice.say(f"Read {verdict.bytes_read:,} of {total:,} bytes on the Hub.")
    return verdict


def ensure_local(names: Sequence[str], voice: DownloadUI, *, lenient: bool = False) -> list[Path]:
    """The files (part 1 of a split one) that names stand for, fetched where they are missing.

    Two names are a pair, judged before anything is fetched: raises IncompatiblePair. Raises
    FileProblem for what is no model, DownloadProblem when the user does not agree to a large
    download.
    """
    places = [_existing(name, _place(name, voice)) for name in names]
    missing = [place for place in places if isinstance(place, RemoteModel)]
    if missing:
        if len(places) == 2:
            _require_compatible(places[0], places[1], lenient)
        else:
            _require_model(missing)
        _tell_and_ask(missing, voice)
    with voice.transfer() as on_progress:
        return [
            place
            if isinstance(place, Path)
            else fetch(place, paths.models_folder(), on_progress, on_note=voice.say)[0]
            for place in places
        ]


def groups_of(names: Sequence[str]) -> list[tuple[list[str], bool]]:
    """Models to fetch, those of a pair together, each with whether the pair is a lenient one.

    Two models without a pair's name are taken for a pair.
    """
    choices = [choose(name, None) for name in names]
    pairs = [
        (choice.models, bool(choice.settings.get("lenient"))) for choice in choices if choice.draft
    ]
    loose = [choice.target for choice in choices if not choice.draft]
    singles = [loose] if len(loose) == 2 and not pairs else [[name] for name in loose]
    return [*pairs, *((each, False) for each in singles)]


def models_of(names: Sequence[str]) -> list[str]:
    """Models that names stand for; a pair's name stands for two."""
    return [model for name in names for model in choose(name, None).models]


def files_of(name: str) -> list[Path]:
    """The files on this disk that a path, a reference or a pair's name stands for.

    Raises FileProblem for what was not fetched.
    """
    found = []
    for model in models_of([name]):
        path = on_disk(model)
        if path is None:
            raise FileProblem(
                f"{one_line(model)} is not on this disk.", f"Fetch it: localspec download {model}"
            )
        found.append(path)
    return found


def kept_hashes(names: Sequence[str] | None) -> dict[Path, str]:
    """The sha256 of local files that were kept when their pairs were added; None: of all pairs."""
    wanted = None if names is None else {name.lower() for name in names}
    own = [name for name in user_pairs.names() if wanted is None or name.lower() in wanted]
    pairs = [user_pairs.load(name) for name in own]
    return {Path(file.path): file.sha256 for pair in pairs for file in pair.files}


def file_hashes(models: Sequence[str], on_progress: Progress) -> list[FileHash]:
    """Size and sha256 of every file of the models that are on this disk."""
    here = [path for model in models if (path := on_disk(model)) is not None]
    return [
        _hashed(part, on_progress) for path in here for part in (path, *read_header(path).paths[1:])
    ]


def _hashed(path: Path, on_progress: Progress) -> FileHash:
    n_bytes = path.stat().st_size

    def report(done: int) -> None:
        on_progress(path.name, done, n_bytes)

    return FileHash(str(path.absolute()), sha256_of(path, report), n_bytes)


def _place(name: str, voice: DownloadUI) -> Path | RemoteModel:
    """Where a model is: on the disk, else on the Hub."""
    here, reference = on_disk(name), parse_reference(name)
    if here is not None or reference is None:
        return here or Path(name)
    voice.say(f"Asking the Hub for {reference}.")
    return resolve(reference)


def _existing(name: str, place: Path | RemoteModel) -> Path | RemoteModel:
    if isinstance(place, Path) and not os.path.lexists(place):
        hint = "Check the path: expected a .gguf file."
        if _HUB_PATH.fullmatch(name):
            hint = f"Check the path, or name a file on the Hub: hf:{name}"
        raise FileProblem(f"There is no file {one_line(str(place))}.", hint)
    return place


def _require_compatible(
    target: Path | RemoteModel, draft: Path | RemoteModel, lenient: bool
) -> None:
    verdict = compare(target, draft, lenient=lenient)
    if verdict.report.compatible:
        return
    first = verdict.report.errors[0]
    names = [
        str(place) if isinstance(place, Path) else str(place.reference) for place in (target, draft)
    ]
    raise IncompatiblePair(
        f"{names[1]} cannot draft for {names[0]}, so nothing was fetched: {first.message}",
        f"{first.hint} All findings: localspec check {shlex.join(names)}. What is no pair can be "
        "fetched one by one.",
    )


def _require_model(places: Sequence[RemoteModel]) -> None:
    for place in places:
        for finding in check_model(read_remote(place)[0]):
            if finding.level == "error":
                raise FileProblem(f"{place.reference}: {finding.message}", finding.hint)


def _tell_and_ask(models: Sequence[RemoteModel], voice: DownloadUI) -> None:
    for model in models:
        license = one_line(model.license or "not stated")
        voice.say(f"{model.reference}: {size(model.size)}, licence {license}.")
    total = sum(model.size for model in models)
    if total > LARGE and not voice.agree(f"Fetch {size(total)}?"):
        names = shlex.join(str(model.reference) for model in models)
        raise DownloadProblem(
            "Nothing was fetched.", f"Fetch it with: localspec download --yes {names}"
        )
