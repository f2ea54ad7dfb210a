"""Provenance of downloaded files: a hidden JSON record beside each, and verification by sha256.

A file in a cache is compared with the hash that is its name there. No network is needed.
"""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from localspec.core.errors import UsageError
from localspec.core.files import appearing_when_complete, read_at_most
from localspec.core.formatting import one_line
from localspec.hub.reference import Reference, is_safe
from localspec.metadata.filenames import parts_of

Progress = Callable[[str, int, int], None]  # file name, bytes done, bytes in all
State = Literal["right", "wrong", "missing", "no record", "damaged record", "unreadable"]

MAX_RECORD_BYTES = 64 << 10
PIECE_BYTES = 1 << 20
SHOWN_DIGITS = 12  # of a hash, in a sentence
SHA256 = re.compile(r"[0-9a-f]{64}")

_RECORD_NAME = re.compile(r"\.(.+)\.origin\.json", re.DOTALL)
_BLOB_NAME = re.compile(rf"(?:sha256-)?({SHA256.pattern})")  # the Hub's cache, Ollama's


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a file was when it was downloaded: `size` in bytes, `sha256` in lower-case hex.

    `checked` says what the Hub told beforehand: "sha256", or only the "size"; then the hash is that
    of the bytes that came.
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
class Verdict:
    """What became of one file: `state`, a sentence, and what to type next where it is not right.

    `expected` and `found` are sha256 in hex, None where there is none or nothing was hashed.
    """

    path: Path
    state: State
    message: str
    hint: str = ""
    origin: Provenance | None = None
    expected: str | None = None
    found: str | None = None


def record_path(path: Path) -> Path:
    """Where the record of the file at `path` lies."""
    return path.with_name(f".{path.name}.origin.json")


def read_record(path: Path) -> Provenance | None:
    """The record of the file at `path`, None without one; raises ValueError for a damaged one."""
    try:
        document = json.loads(read_at_most(record_path(path), MAX_RECORD_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, RecursionError) as error:
        raise ValueError(f"it cannot be read: {error}") from error
    return _origin(document)


def write_record(path: Path, origin: Provenance) -> None:
    """Put the record beside the file at `path`, whole and on the disk; raises OSError."""
    with appearing_when_complete(record_path(path)) as partial, partial.open("w") as file:
        file.write(json.dumps(asdict(origin), indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())


def recorded(folder: Path) -> Iterator[tuple[Path, Provenance]]:
    """Files below `folder` that have a sound record, whether or not they are still there."""
    for path in _with_record(folder):
        try:
            origin = read_record(path)
        except ValueError:
            continue
        if origin is not None:
            yield path, origin


def sha256_of(path: Path, report: Callable[[int], None]) -> str:
    """The hash of a file in lower-case hex; `report` hears of the bytes read; raises OSError."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            done += len(piece)
            report(done)
    return digest.hexdigest()


def verify(
    paths: Iterable[Path],
    on_progress: Progress | None = None,
    kept: Mapping[Path, str] | None = None,
) -> Iterator[Verdict]:
    """Compare files with what was recorded when they came; nothing is asked of the Hub.

    A folder stands for every file below it that has a record, a part of a split model for all its
    parts. ``kept`` holds hashes that somebody else recorded, by path. Each file is hashed when its
    verdict is asked for.
    """
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
    repo, revision, path = (_text(document, name) for name in ("repo", "revision", "path"))
    commit, sha256 = _text(document, "commit"), _text(document, "sha256")
    if not SHA256.fullmatch(sha256):
        raise ValueError("it holds no valid sha256")
    size, checked = document.get("size"), document.get("checked", "sha256")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError("it holds no valid size")
    if checked not in ("sha256", "size"):
        raise ValueError("it does not say what was checked")
    try:
        Reference(repo, None, None, revision)
    except UsageError as error:
        raise ValueError(f"it names no model: {error.message.rstrip('.')}") from error
    if not is_safe(path):
        raise ValueError("its path leads out of the repository")
    return Provenance(repo, revision, commit, path, size, sha256, checked)


def _text(document: dict[str, object], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"it names no {name}")
    return value


def _with_record(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if found := _RECORD_NAME.fullmatch(name):
                yield Path(place) / found[1]


def _judge(path: Path, on_progress: Progress | None, kept: str | None) -> Verdict:
    shown = one_line(str(path))
    try:
        origin = read_record(path)
    except ValueError as error:
        sentence = f"The record of {shown} is damaged: {one_line(str(error))}."
        hint = "Download it again: a file that is whole stays, and only its record is written anew."
        return Verdict(path, "damaged record", sentence, hint)
    if not os.path.exists(path):
        came = f"; it came from {origin}" if origin else ""
        hint = f"Get it again: {_download(origin)}" if origin else "Check the spelling of its name."
        return Verdict(path, "missing", f"{shown} is not there{came}.", hint, origin)
    named = _BLOB_NAME.fullmatch(Path(os.path.realpath(path)).name)
    expected = origin.sha256 if origin else kept or (named[1] if named else None)
    if expected is None:
        sentence = f"{shown} has no record of a download, so nothing tells what it should be."
        hint = "What localspec downloads, and what lies in a cache under its hash, can be verified."
        return Verdict(path, "no record", sentence, hint)
    try:
        return _compare(path, expected, origin, on_progress)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        sentence = f"{shown} cannot be read: {one_line(reason)}."
        return Verdict(path, "unreadable", sentence, "Look at its permissions.", origin, expected)


def _compare(
    path: Path, expected: str, origin: Provenance | None, on_progress: Progress | None
) -> Verdict:
    shown, size = one_line(str(path)), path.stat().st_size
    # A link into a cache is no copy: what is wrong is what it leads to.
    remove = f"rm {shlex.quote(one_line(os.path.realpath(path)))}"
    again = (
        f"Remove and get it again: {remove} && {_download(origin)}"
        if origin
        else f"Get it again from where it came, or drop it: {remove}"
    )
    if origin and size != origin.size:
        sentence = f"{shown} is wrong: it has {size:,} bytes, but {origin.size:,} were downloaded."
        return Verdict(path, "wrong", sentence, again, origin, expected)

    def report(done: int) -> None:
        if on_progress is not None:
            on_progress(one_line(path.name), done, size)

    found = sha256_of(path, report)
    short = found[:SHOWN_DIGITS]
    if found != expected:
        sentence = (
            f"{shown} is wrong: its sha256 begins with {short}, not {expected[:SHOWN_DIGITS]}."
        )
        return Verdict(path, "wrong", sentence, again, origin, expected, found)
    unchecked = origin is not None and origin.checked == "size"
    untold = "; the Hub named no hash of it" if unchecked else ""
    sentence = f"{shown} is right (sha256 {short}{untold})."
    return Verdict(path, "right", sentence, "", origin, expected, found)


def _download(origin: Provenance) -> str:
    return f"localspec download {shlex.quote(str(origin))}"
