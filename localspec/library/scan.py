"""Searches untrusted folders for GGUF files, within bounds, and notes the files left out.

A file is opened only to see whether it begins as GGUF does.
"""

import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from localspec.core.files import open_regular
from localspec.core.formatting import one_line
from localspec.metadata.filenames import heads_kind, is_sidecar

Source = Literal[
    "localspec",
    "hugging face",
    "llama.cpp",
    "lm studio",
    "ollama",
    "jan",
    "gpt4all",
    "bundled",
    "folder",
]
SOURCES: tuple[Source, ...] = get_args(Source)

MAX_DEPTH = 12  # folders below the one that is searched
MAX_FILES = 100_000  # per source
MAX_BESIDE = 10_000  # files in the folder of one model

# Why something is left out.
UNREADABLE = "not readable by this user (see its permissions)"
OUTSIDE = "links that lead out of the folder"
DANGLING = "links that lead nowhere (remove or repair them)"
LINKED = "links to folders, which are not followed (link to the files)"
NO_FILE = "links that lead to no regular file (link to a .gguf file)"
_NOT_GGUF = "not in GGUF format"
_TOO_DEEP = "folders too deep down"
_TOO_MANY = f"files after the first {MAX_FILES:,}"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this disk, or one part of it; `n_bytes` is the size of all its `parts` together.

    `source` is the first place of it, `also_in` the other places of the same content; `name` is
    ready to be shown. `sha256` (of part 1) and `repo` (on the Hub) are given only if known without
    reading the file. `identity` is the same for every path that leads to the file. `unverified`:
    the Hub listed no sha256 when the file was downloaded.
    """

    path: Path
    source: Source
    name: str
    n_bytes: int
    parts: tuple[Path, ...]
    sha256: str | None = None
    also_in: tuple[Source, ...] = ()
    repo: str | None = None
    identity: tuple[int, int] | str = field(default="", compare=False, repr=False)
    unverified: bool = False

    @property
    def is_sidecar(self) -> bool:
        """Whether it is a file of heads that draft for another model, by its name."""
        return heads_kind(self.path.as_posix()) is not None


class Scan:
    """The search of one source: how many more files it may read, and the ones left out.

    `searched` are its folders, as absolute paths.
    """

    def __init__(self, source: Source) -> None:
        self.source: Source = source
        self.searched: list[Path] = []
        self._left_out: dict[str, dict[str, None]] = {}
        self._budget = MAX_FILES

    def leave_out(self, why: str, what: object) -> None:
        self._left_out.setdefault(why, {})[one_line(str(what))] = None

    def notes(self) -> Iterator[str]:
        """A sentence for each reason, with the first things that were left out for it."""
        place = "the given folders" if self.source == "folder" else self.source
        for why, names in self._left_out.items():
            more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
            yield f"Left out of {place}, {why}: {', '.join(list(names)[:3])}{more}."

    def begin(self, folder: Path) -> Path:
        """The folder as an absolute path, remembered as searched."""
        self.searched.append(Path(os.path.abspath(folder)))
        return self.searched[-1]

    def entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """Entries of a folder by name, without hidden ones; none if the folder is gone."""
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
        shown = (entry for entry in found if not entry.name.startswith("."))
        return sorted(shown, key=lambda entry: entry.name)

    def files(self, root: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
        """Files and links below a folder; a link to a folder is not followed."""
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
        return filter(is_model_file, self.files(root, depth))

    def file(
        self,
        path: Path,
        name: str,
        within: Iterable[Path] | None,
        sha256: str | None = None,
        repo: str | None = None,
    ) -> LocalModel | None:
        """The file, if it lies in a folder of `within`, None for any, and begins as GGUF does."""
        try:
            real = os.path.realpath(path, strict=True)
            roots = None if within is None else map(os.path.realpath, within)
            if roots is not None and not any(Path(real).is_relative_to(root) for root in roots):
                self.leave_out(OUTSIDE, path)
                return None
            status, begins_well = _begin_of(real)
        except PermissionError:
            self.leave_out(UNREADABLE, path)
            return None
        except (OSError, ValueError):
            if os.path.islink(path):  # anything else was removed meanwhile
                self.leave_out(DANGLING, path)
            return None
        if not begins_well:
            if begins_well is not None:
                self.leave_out(_NOT_GGUF, name if path.parent.name == "blobs" else path)
            elif os.path.islink(path) and not stat.S_ISREG(status.st_mode):
                self.leave_out(NO_FILE, path)
            return None
        identity = (status.st_dev, status.st_ino) if status.st_ino else real
        return LocalModel(
            path, self.source, one_line(name), status.st_size, (path,), sha256, (), repo, identity
        )


def _begin_of(path: str) -> tuple[os.stat_result, bool | None]:
    """The status of a file, and whether it begins as GGUF; None if it is empty or no plain file."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return status, None
    with open_regular(path) as opened:
        return status, opened.read(4) == b"GGUF"


def files_beside(path: Path) -> list[Path]:
    """Other models and sidecars in a file's folder and its folder MTP, up to `MAX_BESIDE` each."""
    found: set[Path] = set()
    for folder in (path.parent, path.parent / "MTP", path.parent / "mtp"):
        try:
            entries = list(itertools.islice(folder.iterdir(), MAX_BESIDE))
        except OSError:
            continue
        found.update(filter(is_model_file, entries))
    return sorted(found - {path}) if path.is_file() else []


def is_model_file(path: Path) -> bool:
    """Whether a file is by its name a GGUF model, or a sidecar of heads that draft for one."""
    text = path.as_posix()
    wanted = heads_kind(text) is not None or not is_sidecar(text)
    return wanted and text.lower().endswith(".gguf")


def _is_folder(entry: os.DirEntry[str], behind_link: bool = False) -> bool:
    try:
        return entry.is_dir(follow_symlinks=behind_link)
    except OSError:
        return False
