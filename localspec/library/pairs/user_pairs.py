"""The user's own pairs: two models and their settings under a name, in one small TOML file each.

No model is opened, judged or deleted here. The known pairs are in `catalog`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.core import paths
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import appearing_when_complete, file_problem, read_at_most
from localspec.core.formatting import one_line
from localspec.library.pairs.catalog import MTP, PairSpec, find_pair, unknown_pair

if TYPE_CHECKING:
    from localspec.library.pairs.schema import FileHash, UserPair

MAX_BYTES = 2**20
MAX_NAME = 64
BUNDLED = "demo"  # the pair that comes with the program
SHOWN_CHARACTERS = 80  # of a name
SHOWN_REASON = 600  # characters, enough for the names of all settings
_NAME = re.compile(rf"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")
DRAFT_WORDS = ("auto", "off", "find", "self", MTP)  # words that --draft takes besides a model
_NAME_RULE = (
    f"A name has up to {MAX_NAME} letters, digits, dots, dashes and underscores, begins with a "
    f"letter or digit, is no number and none of {', '.join(DRAFT_WORDS)}, and does not end in "
    ".gguf."
)


def folder() -> Path:
    return paths.models_folder() / "pairs"


def is_name(text: str) -> bool:
    """Whether a pair may have this name: nothing that reads as a file or as a draft length."""
    lower = text.lower()
    return bool(_NAME.fullmatch(text)) and lower not in DRAFT_WORDS and not lower.endswith(".gguf")


def add(
    name: str,
    target: str,
    draft: str,
    settings: Mapping[str, object],
    hashes: "Iterable[FileHash]" = (),
) -> Path:
    """Store a pair, and return its file. Models are absolute paths or Hub references.

    The draft may be "mtp", the target's prediction heads. Settings that are None are left out.
    Raises UsageError for a name that is taken or invalid, and for a model or a setting that cannot
    be stored; FileProblem when nothing can be written.
    """
    from localspec.library.pairs.schema import as_toml, parse_pair

    require_free(name)
    document = {
        "target": target,
        "draft": draft,
        "settings": {key: value for key, value in settings.items() if value is not None},
        "files": tuple(hashes),
    }
    try:
        data = as_toml(parse_pair(name, document)).encode()
        if len(data) > MAX_BYTES:
            raise ValueError(f"its file would be larger than {MAX_BYTES} bytes")
    except ValueError as error:
        hint = "See the flags that a pair stores: localspec pair add --help"
        raise UsageError(f"The pair {name} cannot be stored: {_reason(error)}.", hint) from error
    return _write(_path(name), data)


def require_free(name: str) -> None:
    """Raise UsageError for a name that no pair may have, or that one of the user's has already."""
    if not is_name(name):
        raise UsageError(
            f"A pair cannot be named '{one_line(name[:SHOWN_CHARACTERS])}'.", _NAME_RULE
        )
    for taken in spellings(name):
        raise UsageError(
            f"You already have a pair named {taken}.",
            f"Show it: localspec pair show {taken}, or remove it: localspec pair remove {taken}",
        )


def load(name: str) -> "UserPair":
    """The user's pair of this name, in any case; raises UnknownPair, FileProblem."""
    import tomllib

    from localspec.library.pairs.schema import parse_pair

    name = _stored(name)
    path = _path(name)
    try:
        return parse_pair(name, tomllib.loads(read_at_most(path, MAX_BYTES).decode("utf-8-sig")))
    except (OSError, ValueError, RecursionError) as error:
        raise FileProblem(
            f"The pair file {path} cannot be used: {_reason(error)}.",
            f"Edit it, or remove the pair: localspec pair remove {name}",
        ) from error


def names() -> list[str]:
    """Names of the user's pairs, sorted. Raises FileProblem when their folder cannot be read."""
    what = f"The folder of your pairs, {folder()}, cannot be read"
    with file_problem(what, "Set LOCALSPEC_MODELS to a folder that you may read."):
        try:
            found = [path.stem for path in folder().iterdir() if path.suffix == ".toml"]
        except FileNotFoundError:
            return []
    return sorted(filter(is_name, found))


def remove(name: str) -> None:
    """Remove a pair, and none of its models. Raises UnknownPair, or FileProblem."""
    path = _path(_stored(name))
    with file_problem(f"The pair file {path} cannot be removed", "Remove it by hand."):
        path.unlink()


def find(name: str) -> "UserPair":
    """The pair of this name: the user's own before a known one; raises UnknownPair, FileProblem."""
    if spellings(name):
        return load(name)
    return _bundled() if name.lower() == BUNDLED else as_pair(find_pair(name, [*names(), BUNDLED]))


def _bundled() -> "UserPair":
    from localspec.library.pairs.schema import UserPair

    target, draft = map(str, paths.demo_pair())
    return UserPair(name=BUNDLED, target=target, draft=draft)


def as_pair(known: PairSpec) -> "UserPair":
    """A known pair in the form of a user's, without settings."""
    from localspec.library.pairs.schema import UserPair

    target = str(known.target.reference)
    return UserPair(name=known.name, target=target, draft=known.draft_name)


def stored_hashes(wanted: Sequence[str] | None) -> dict[Path, str]:
    """The sha256 of local files as stored when their pairs were added; None: of all pairs."""
    folded = None if wanted is None else {name.lower() for name in wanted}
    own = [name for name in names() if folded is None or name.lower() in folded]
    return {Path(file.path): file.sha256 for name in own for file in load(name).files}


def spellings(name: str) -> list[str]:
    """The user's pairs of this name: the same spelling, or else others, since disks differ."""
    own = names()
    return [name] if name in own else [each for each in own if each.lower() == name.lower()]


def _path(name: str) -> Path:
    return folder() / f"{name}.toml"


def _write(path: Path, data: bytes) -> Path:
    hint = "Set LOCALSPEC_MODELS to a folder that you may write to."
    with file_problem(f"The pair file {path} cannot be written", hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        with appearing_when_complete(path) as partial:
            partial.write_bytes(data)
    return path


def _stored(name: str) -> str:
    """The name as it is stored, which is never a path to another folder."""
    for each in spellings(name):
        return each
    raise unknown_pair(name, names())


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "the system gives no reason"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return one_line(str(error)[:SHOWN_REASON])
