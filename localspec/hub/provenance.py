"""Provenance of downloaded files: a hidden JSON record next to each, and offline verification.

A file in a cache is compared with the sha256 that is its name there.
"""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from localspec.core import files
from localspec.core.errors import FileProblem, UsageError
from localspec.core.formatting import one_line
from localspec.core.paths import cache_folder
from localspec.hub.reference import Reference, is_safe
from localspec.metadata.filenames import parts_of

Progress = Callable[[str, int, int], None]  # file name, bytes done, bytes in all
State = Literal["right", "wrong", "missing", "no record", "damaged record", "unreadable"]

MAX_RECORD_BYTES = 64 << 10
PIECE_BYTES = 1 << 20
SHOWN_DIGITS = 12  # of a hash, in a sentence
SHA256 = re.compile(r"[0-9a-f]{64}")

_TEXTS = ("repo", "revision", "commit", "path", "sha256")
_RECORD_NAME = re.compile(r"\.(.+)\.origin\.json", re.DOTALL)
_BLOB_NAME = re.compile(rf"(?:sha256-)?({SHA256.pattern})")  # the Hub's cache, Ollama's


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a downloaded file: `size` in bytes, `sha256` in lower-case hex.

    `checked`: the facts that the Hub listed. If only the "size", the hash is that of the stored
    bytes, and the file is unverified.
    """

    repo: str
    revision: str
    commit: str
    path: str
    size: int
    sha256: str
    checked: Literal["sha256", "size"] = "sha256"

    def __str__(self) -> str:
        """The reference that names this file."""
        file = self.path if self.path.lower().endswith(".gguf") else None
        return str(Reference(self.repo, file, None, self.revision))


@dataclass(frozen=True, slots=True)
class Verification:
    """Result for one file: `state`, a sentence, and the next command if it is not right.

    `expected` and `found` are sha256 in hex, or None if unknown.
    """

    path: Path
    state: State
    message: str
    hint: str = ""
    origin: Provenance | None = None
    expected: str | None = None
    found: str | None = None


def record_path(path: Path) -> Path:
    return path.parent / f".{path.name}.origin.json"  # with_name knows no name for the root


def read_record(path: Path) -> Provenance | None:
    """The record of a file, None without one; raises ValueError for a damaged one."""
    record = record_path(path)
    try:
        document = json.loads(files.read_at_most(record, MAX_RECORD_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, RecursionError) as error:
        raise ValueError(f"it cannot be read: {files.reason_of(error)}") from error
    return _origin(document)


def write_record(path: Path, origin: Provenance) -> None:
    """Write the record of a file, atomically and synced to the disk; raises OSError."""
    record = record_path(path)
    with files.appearing_when_complete(record, itself=True) as partial, partial.open("w") as file:
        file.write(json.dumps(asdict(origin), indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())


def recorded(folder: Path) -> Iterator[tuple[Path, Provenance]]:
    """Files below `folder` that have a valid record, even those that no longer exist."""
    for path in _with_record(folder):
        try:
            origin = read_record(path)
        except ValueError:
            continue
        if origin is not None:
            yield path, origin


def known_sha256(path: Path) -> str | None:
    """The sha256 in a file's record or in its name in a cache; None if it has neither."""
    try:
        origin = read_record(path)
    except ValueError:
        return None
    return origin.sha256 if origin else _named_sha256(path)


def _named_sha256(path: Path) -> str | None:
    named = _BLOB_NAME.fullmatch(Path(os.path.realpath(path)).name)
    return named[1] if named else None


def require_named_bytes(path: Path, on_progress: Progress) -> None:
    """Compare a file whose name in a cache is its sha256 with that name, once for each version.

    Raises FileProblem for other bytes, or if it cannot be read. A file with a record was compared
    when it came.
    """
    expected = None if os.path.lexists(record_path(path)) else _named_sha256(path)
    if expected is None:
        return
    compared = cache_folder() / "compared.json"
    with files.file_problem(f"{one_line(str(path))} cannot be read", "Look at its permissions."):
        blob = path.stat()
        key = f"{expected} {blob.st_size} {blob.st_mtime_ns} {blob.st_ino}"
        if key not in files.read_keys(compared):
            verdict = _compare(path, expected, None, on_progress)
            if verdict.state == "wrong":
                raise FileProblem(verdict.message, verdict.hint)
            files.add_keys(compared, key)


def sha256_of(path: Path, report: Callable[[int], None]) -> str:
    """The sha256 of a regular file in lower-case hex; `report` gets the bytes read."""
    with files.open_regular(path) as file:
        return hash_of(file, report)


def hash_of(file: BinaryIO, report: Callable[[int], None]) -> str:
    """The sha256 of an open file as long as it is now, from its beginning; raises OSError."""
    digest, done = hashlib.sha256(), file.seek(0)
    size = os.fstat(file.fileno()).st_size  # another program may append to it for ever
    while piece := file.read(min(PIECE_BYTES, size - done)):
        digest.update(piece)
        done += len(piece)
        report(done)
    return digest.hexdigest()


def verify(
    paths: Iterable[Path],
    on_progress: Progress | None = None,
    kept: Mapping[Path, str] | None = None,
) -> Iterator[Verification]:
    """Compare files with their records, all below a folder, all parts; ``kept``: other hashes."""
    for path in paths:
        if os.path.isdir(path):
            for below in _with_record(path):
                yield _judge(below, on_progress, None)
        else:
            for part in parts_of(path):
                yield _judge(part, on_progress, (kept or {}).get(part))


def _origin(document: object) -> Provenance:
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    texts: dict[str, Any] = {name: document.get(name) for name in _TEXTS}
    for name, value in texts.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f"it names no {name}")
    size, checked = document.get("size"), document.get("checked", "sha256")
    if type(size) is not int or size < 0:
        raise ValueError("it holds no valid size")
    if checked not in ("sha256", "size"):
        raise ValueError("it does not state what was checked")
    origin = Provenance(**texts, size=size, checked=checked)
    if not SHA256.fullmatch(origin.sha256):
        raise ValueError("it holds no valid sha256")
    if not is_safe(origin.path):
        raise ValueError("its path leads out of the repository")
    try:
        Reference(origin.repo, None, None, origin.revision)
    except UsageError as error:
        raise ValueError(f"it names no model: {error.message.rstrip('.')}") from error
    return origin


def _with_record(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if found := _RECORD_NAME.fullmatch(name):
                yield Path(place) / found[1]


def _judge(path: Path, on_progress: Progress | None, kept: str | None) -> Verification:
    shown = one_line(str(path))
    try:
        origin = read_record(path)
    except ValueError as error:
        sentence = f"The record of {shown} is damaged: {one_line(str(error))}."
        hint = "Download it again: if the file is right, only its record is rewritten."
        return Verification(path, "damaged record", sentence, hint)
    if not os.path.exists(path):
        came = f"; it came from {origin}" if origin else ""
        hint = f"Get it again: {_download(origin)}" if origin else "Check the spelling of its name."
        return Verification(path, "missing", f"{shown} does not exist{came}.", hint, origin)
    expected = origin.sha256 if origin else kept or _named_sha256(path)
    if expected is None:
        sentence = f"{shown} has no record of a download, so it cannot be verified."
        hint = "Only downloads by localspec, and files in a cache that names them by hash, can be."
        return Verification(path, "no record", sentence, hint)
    try:
        return _compare(path, expected, origin, on_progress)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        sentence = f"{shown} cannot be read: {one_line(reason)}."
        return Verification(
            path, "unreadable", sentence, "Look at its permissions.", origin, expected
        )


def _compare(
    path: Path, expected: str, origin: Provenance | None, on_progress: Progress | None
) -> Verification:
    shown, size = one_line(str(path)), path.stat().st_size
    # Of a link into a cache, the file that it leads to is wrong.
    remove = f"rm {shlex.quote(one_line(os.path.realpath(path)))}"
    again = (
        f"Remove and get it again: {remove} && {_download(origin)}"
        if origin
        else f"Get it again from its source, or remove it: {remove}"
    )
    if origin and size != origin.size:
        sentence = f"{shown} is wrong: it has {size:,} bytes, but {origin.size:,} were downloaded."
        return Verification(path, "wrong", sentence, again, origin, expected)

    progress = on_progress or (lambda name, done, total: None)
    found = sha256_of(path, lambda done: progress(one_line(path.name), done, size))
    short = found[:SHOWN_DIGITS]
    if found != expected:
        sentence = (
            f"{shown} is wrong: its sha256 begins with {short}, not {expected[:SHOWN_DIGITS]}."
        )
        return Verification(path, "wrong", sentence, again, origin, expected, found)
    unchecked = origin is not None and origin.checked == "size"
    unlisted = "; the Hub listed no hash" if unchecked else ""
    sentence = f"{shown} is right (sha256 {short}{unlisted})."
    return Verification(path, "right", sentence, "", origin, expected, found)


def _download(origin: Provenance) -> str:
    return f"localspec download {shlex.quote(str(origin))}"
