"""The user's own pairs: two models and their settings under a name, in one small TOML file each.

No model is opened, judged or deleted here. Pairs that everybody has are in `catalog`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.core import paths
from localspec.core.errors import FileProblem, UnknownPair, UsageError
from localspec.core.files import appearing_when_complete, read_at_most
from localspec.core.formatting import one_line
from localspec.hub.reference import parse_reference
from localspec.library.catalog import MTP, find_pair, load_catalog, unknown_pair

if TYPE_CHECKING:
    from localspec.library.pair_schema import FileHash, Setting, UserPair

MAX_BYTES = 2**20
MAX_NAME = 64
BUNDLED = "demo"  # the pair that comes with the program
SHOWN_CHARACTERS = 80  # of a name
SHOWN_REASON = 600  # characters, enough for the names of all settings
_NAME = re.compile(rf"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")
_KEYWORDS = ("auto", "off", "find", "self", MTP)  # what --draft takes besides a model
_NAME_RULE = (
    f"A name has up to {MAX_NAME} letters, digits, dots, dashes and underscores, begins with a "
    f"letter or digit, is no number and none of {', '.join(_KEYWORDS)}, and does not end in .gguf."
)


@dataclass(frozen=True, slots=True)
class NamedPair:
    """What a pair's name stands for, wherever the pair is kept; `note` is worth telling."""

    name: str
    target: str
    draft: str
    settings: "Mapping[str, Setting]"
    note: str


def folder() -> Path:
    """Where the pairs are kept, beside the models."""
    return paths.models_folder() / "pairs"


def is_name(text: str) -> bool:
    """Whether a pair may have this name: nothing that reads as a file or as a draft length."""
    lower = text.lower()
    return bool(_NAME.fullmatch(text)) and lower not in _KEYWORDS and not lower.endswith(".gguf")


def add(
    name: str,
    target: str,
    draft: str,
    settings: Mapping[str, object],
    hashes: "Iterable[FileHash]" = (),
) -> Path:
    """Keep a pair, and return its file. Models are paths, made absolute, or Hub references.

    The draft may be "mtp", the target's prediction heads.
    Settings that are None are left out. Raises UsageError for a name that is taken or none, and
    for a setting that is unknown or out of its bounds; FileProblem when nothing can be written.
    """
    from localspec.library.pair_schema import as_toml, parse_pair

    require_free(name)
    document = {
        "target": _place(target),
        "draft": draft if draft == MTP else _place(draft),
        "settings": {key: value for key, value in settings.items() if value is not None},
        "files": tuple(hashes),
    }
    try:
        data = as_toml(parse_pair(name, document)).encode()
        if len(data) > MAX_BYTES:
            raise ValueError(f"its file would be larger than {MAX_BYTES} bytes")
    except ValueError as error:
        hint = "See what is taken: localspec pair add --help"
        raise UsageError(f"The pair {name} cannot be kept: {_reason(error)}.", hint) from error
    return _write(_path(name), data)


def require_free(name: str) -> None:
    """Raise UsageError for a name that no pair may have, or that one of the user's has already."""
    if not is_name(name):
        raise UsageError(
            f"A pair cannot be named '{one_line(name[:SHOWN_CHARACTERS])}'.", _NAME_RULE
        )
    for taken in _spellings(name):
        raise UsageError(
            f"You already have a pair named {taken}.",
            f"See it with: localspec pair show {taken}, or drop it: localspec pair remove {taken}",
        )


def load(name: str) -> "UserPair":
    """The user's pair of this name, in any case.

    Raises UnknownPair when there is none, FileProblem naming file and key when its file is wrong.
    """
    import tomllib

    from localspec.library.pair_schema import parse_pair

    name = _stored(name)
    path = _path(name)
    try:
        return parse_pair(name, tomllib.loads(read_at_most(path, MAX_BYTES).decode("utf-8-sig")))
    except (OSError, ValueError, RecursionError) as error:
        raise FileProblem(
            f"The pair file {path} cannot be used: {_reason(error)}.",
            f"Edit it, or drop the pair: localspec pair remove {name}",
        ) from error


def names() -> list[str]:
    """Names of the user's pairs, sorted. Raises FileProblem when their folder cannot be read."""
    try:
        found = [path.stem for path in folder().iterdir() if path.suffix == ".toml"]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileProblem(
            f"The folder of your pairs, {folder()}, cannot be read: {_reason(error)}.",
            "Set LOCALSPEC_MODELS to a folder that you may read.",
        ) from error
    return sorted(filter(is_name, found))


def remove(name: str) -> None:
    """Forget a pair; models stay where they are. Raises UnknownPair, or FileProblem."""
    path = _path(_stored(name))
    try:
        path.unlink()
    except OSError as error:
        raise FileProblem(
            f"The pair file {path} cannot be removed: {_reason(error)}.", "Remove it by hand."
        ) from error


def find(name: str) -> NamedPair:
    """The pair of this name: the user's own before the catalogue's.

    Raises UnknownPair with names near it, and FileProblem when the user's own is damaged.
    """
    own = names()
    if _spellings(name):
        pair = load(name)
        hidden = any(pair.name.lower() == known.name for known in load_catalog())
        note = f"{pair.name} is your own pair; the catalogue's of that name is not used."
        return NamedPair(pair.name, pair.target, pair.draft, pair.settings, note if hidden else "")
    if name.lower() == BUNDLED:
        target, draft = map(str, paths.demo_pair())
        return NamedPair(BUNDLED, target, draft, {}, "")
    try:
        spec = find_pair(name)
    except UnknownPair:
        raise unknown_pair(name, [*own, *(known.name for known in load_catalog())]) from None
    return NamedPair(spec.name, str(spec.target.reference), spec.draft_name, {}, "")


def kept_hashes(wanted: Sequence[str] | None) -> dict[Path, str]:
    """The sha256 of local files that were kept when their pairs were added; None: of all pairs."""
    folded = None if wanted is None else {name.lower() for name in wanted}
    own = [name for name in names() if folded is None or name.lower() in folded]
    return {Path(file.path): file.sha256 for name in own for file in load(name).files}


def _path(name: str) -> Path:
    return folder() / f"{name}.toml"


def _spellings(name: str) -> list[str]:
    """The user's pairs of this name: the same spelling, or else others, since disks differ."""
    own = names()
    return [name] if name in own else [each for each in own if each.lower() == name.lower()]


def _stored(name: str) -> str:
    """The name as it is stored, which no text from outside can lead elsewhere."""
    for each in _spellings(name):
        return each
    raise unknown_pair(name, names())


def _write(path: Path, data: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with appearing_when_complete(path) as partial:
            partial.write_bytes(data)
    except OSError as error:
        raise FileProblem(
            f"The pair file {path} cannot be written: {_reason(error)}.",
            "Set LOCALSPEC_MODELS to a folder where you may write.",
        ) from error
    return path


def _place(model: str) -> str:
    """A model as the file keeps it: the same from any folder. Raises UsageError."""
    reference = parse_reference(model)
    if reference is not None:
        return str(reference)
    return str(Path(model).absolute()) if model else model


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "the system does not say why"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    return one_line(str(error)[:SHOWN_REASON])
