"""Searches untrusted folders for GGUF files, within bounds, and notes what was left out.

A file is opened only to see that it begins as GGUF does.
"""

import itertools
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.core.files import read_at_most
from localspec.core.formatting import one_line
from localspec.metadata.filenames import heads_kind, is_sidecar

MAX_DEPTH = 12  # folders below the one that is searched
MAX_FILES = 100_000  # per source
MAX_BESIDE = 10_000  # files in the folder of one model
MAX_NOTE_BYTES = 1 << 20  # of a manifest, a record or a settings file

# Why something is left out.
UNREADABLE = "not readable by this user"
OUTSIDE = "links that lead out of the folder"
DANGLING = "links that lead nowhere"
LINKED = "links to folders, which are not followed"
_NOT_GGUF = "not in GGUF format"
_TOO_DEEP = "folders too deep down"
_TOO_MANY = f"what comes after {MAX_FILES:,} files"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One GGUF file; `identity` is the same for every path that leads to it, `n_bytes` its size.

    `name` is ready to be shown. `sha256` and `repo` (on the Hub) are what its surroundings tell.
    """

    path: Path
    name: str
    n_bytes: int
    identity: tuple[int, int] | str
    sha256: str | None
    repo: str | None


class Scan:
    """One source being searched: how much more may be read, and what was left out.

    `place` is how its notes call it; `searched` are its folders, as absolute paths.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.searched: list[Path] = []
        self._left_out: dict[str, dict[str, None]] = {}
        self._budget = MAX_FILES

    def leave_out(self, why: str, what: object) -> None:
        self._left_out.setdefault(why, {})[one_line(str(what))] = None

    def notes(self) -> Iterator[str]:
        """A sentence for each reason, with the first things that were left out for it."""
        for why, names in self._left_out.items():
            more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
            yield f"Left out of {self.place}, {why}: {', '.join(list(names)[:3])}{more}."

    def begin(self, folder: Path) -> Path:
        """The folder as an absolute path, remembered as searched."""
        self.searched.append(Path(os.path.abspath(folder)))
        return self.searched[-1]

    def entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """What a folder holds, in order of names, without hidden entries; nothing if it is gone."""
        if not self._budget:
            return []
        try:
            with os.scandir(folder) as entries:
                found = list(itertools.islice(entries, self._budget + 1))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError):
            self.leave_out(UNREADABLE, folder)
            return []
        if len(found) > self._budget:
            self.leave_out(_TOO_MANY, folder)
            found.pop()
        self._budget -= len(found)
        return sorted(
            (entry for entry in found if not entry.name.startswith(".")), key=lambda e: e.name
        )

    def files(self, root: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
        """Files and links below a folder; a folder behind a link is not entered."""
        pending = [(root, depth)]
        while pending:
            folder, left = pending.pop()
            below = []
            for entry in self.entries(folder):
                if _is_folder(entry):
                    below.append((folder / entry.name, left - 1))
                elif _is_folder(entry, behind_link=True):
                    self.leave_out(LINKED, folder / entry.name)
                else:
                    yield folder / entry.name
            if left:
                pending += reversed(below)
            elif below and depth == MAX_DEPTH:
                self.leave_out(_TOO_DEEP, below[0][0])

    def gguf_files(self, root: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
        """Those whose names are of models, or of heads that draft for one."""
        return (
            path for path in self.files(root, depth) if names_a_model(path) or names_heads(path)
        )

    def file(
        self,
        path: Path,
        name: str,
        within: Iterable[Path],
        sha256: str | None = None,
        repo: str | None = None,
    ) -> FoundFile | None:
        """The file, if it lies in a folder of `within` and begins as GGUF does."""
        try:
            real = os.path.realpath(path, strict=True)
            if not any(Path(real).is_relative_to(os.path.realpath(folder)) for folder in within):
                self.leave_out(OUTSIDE, path)
                return None
            status = os.stat(real)
            # Opening a pipe would wait for a writer.
            if not stat.S_ISREG(status.st_mode) or not status.st_size:
                return None
            with open(real, "rb") as opened:
                begins_well = opened.read(4) == b"GGUF"
        except PermissionError:
            self.leave_out(UNREADABLE, path)
            return None
        except (OSError, ValueError):
            if os.path.islink(path):  # what is no link vanished meanwhile
                self.leave_out(DANGLING, path)
            return None
        if not begins_well:
            self.leave_out(_NOT_GGUF, name if path.parent.name == "blobs" else path)
            return None
        identity = (status.st_dev, status.st_ino) if status.st_ino else real
        return FoundFile(path, one_line(name), status.st_size, identity, sha256, repo)


def entries_of(folder: Path) -> list[Path]:
    """What lies in one folder, `MAX_BESIDE` at most; nothing in one that cannot be read."""
    try:
        return list(itertools.islice(folder.iterdir(), MAX_BESIDE))
    except OSError:
        return []


def names_a_model(path: Path) -> bool:
    """Whether a file is a model by its name: GGUF, and no sidecar."""
    return path.name.lower().endswith(".gguf") and not is_sidecar(path.as_posix())


def names_heads(path: Path) -> bool:
    """Whether a file is by its name a sidecar that drafts for a model."""
    return path.name.lower().endswith(".gguf") and heads_kind(path.as_posix()) is not None


def read_text(path: Path) -> str:
    """A small file as text; nothing for one that is absent, unreadable, large or no file."""
    try:
        return read_at_most(path, MAX_NOTE_BYTES).decode() if path.is_file() else ""
    except (OSError, ValueError):
        return ""


def read_json(path: Path) -> Mapping[str, Any]:
    """The object in a small JSON file; an empty one where there is none."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_folder(entry: os.DirEntry[str], behind_link: bool = False) -> bool:
    try:
        return entry.is_dir(follow_symlinks=behind_link)
    except OSError:
        return False
