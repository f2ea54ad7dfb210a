"""Resumable downloads from the Hub into the models folder.

The stored bytes of a complete file are compared with the sha256 that the Hub listed. Only then does
the file get its name and a record of its origin.
"""

import glob
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from localspec.core.errors import DownloadProblem, FileProblem, HubProblem
from localspec.core.files import size_of
from localspec.core.formatting import one_line, size
from localspec.hub import client, partial_file
from localspec.hub.client import DroppedConnection, RangeIgnored, RemoteModel
from localspec.hub.provenance import Progress as Progress
from localspec.hub.provenance import (
    Provenance,
    read_record,
    recorded,
    require_named_bytes,
    sha256_of,
    write_record,
)
from localspec.hub.provenance import verify as verify
from localspec.hub.reference import Reference, RemoteFile, choose_files, is_safe, same_repo

Note = Callable[[str], None]

# Folders of localspec's own in the models folder, in which no repository may lie.
OWN_FOLDERS = ("pairs", "demo")
RETRIES = 5  # in a row that brought next to nothing
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0  # seconds between tries; it doubles
WAITING_PAUSE = 0.5  # seconds between tries to lock a partial file


def local_paths(reference: Reference, files: Sequence[RemoteFile], folder: Path) -> list[Path]:
    """Paths of files: `folder`/org/repo/path, or org/repo@revision/path for another than main.

    Of an owner whose name is that of a folder of localspec's own: `folder`/pairs@hub/repo/path.
    A folder of the repository that exists in another case is kept.

    Raises DownloadProblem for an unsafe name, such as one that is hidden or leads out of `folder`.
    """
    home = _homes(reference.repo, reference.revision, folder)[0].relative_to(folder).as_posix()
    paths = []
    for file in files:
        inside = f"{home}/{file.path}"
        if not is_safe(inside):
            raise DownloadProblem(
                f"The Hub lists a file that may not be stored under its name: {one_line(inside)}.",
                "Choose another file: no name may be hidden, or lead out of its folder.",
            )
        paths.append(folder.joinpath(*inside.split("/")))
    return paths


def _homes(repo: str, revision: str, folder: Path) -> list[Path]:
    """Folders of a repository below the models folder, in any case; the usual one if none exists.

    A revision keeps its case, as the Hub tells branches apart by it.
    """
    owner, name = repo.split("/")
    if owner.lower() in OWN_FOLDERS:
        owner += "@hub"  # which no owner is called
    at = "" if revision == "main" else f"@{revision.replace('/', '-')}"
    owners = [each for each in folder.glob("*") if same_repo(each.name, owner)] or [folder / owner]
    found = [
        place
        for each in owners
        for place in each.glob(f"*{glob.escape(at)}")
        if same_repo(place.name.removesuffix(at), name)
    ]
    usual = folder / owner / f"{name}{at}"
    return sorted(found, key=lambda place: place != usual) or [owners[0] / f"{name}{at}"]


def fetch(
    model: RemoteModel,
    folder: Path,
    on_progress: Progress,
    *,
    on_note: Note | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Path]:
    """All files of a model, complete and checked, part 1 first; fetches those that are missing.

    They lie below `folder`, or in the Hub's local cache if all of them are there. `on_progress`
    gets the bytes of all files together, and `on_note` sentences about waits, retries and checks.
    Raises DownloadProblem for local failures and HubProblem for the Hub's. After an error or
    Ctrl-C, the next call resumes the download.
    """
    paths = local_paths(model.reference, model.files, folder)
    downloads, before = [], 0
    for file, path in zip(model.files, paths, strict=True):
        note = on_note or (lambda sentence: None)
        downloads.append(_Download(model, file, path, before, on_progress, note, sleep))
        before += file.size
    if not all(download.is_complete() for download in downloads):
        if cached := _cached(model, downloads[0]):
            return cached
        partial_file.check_space(folder, sum(download.n_missing() for download in downloads))
    for download in downloads:
        download.run()
    return paths


def downloaded(reference: Reference, folder: Path) -> list[Path] | None:
    """The files of a reference in `folder`, chosen as on the Hub; None if one is missing."""
    here: dict[str, tuple[Path, str]] = {}
    listing = []
    revisions = dict.fromkeys((reference.revision, "main"))  # a commit may have been main
    places = [place for each in revisions for place in _homes(reference.repo, each, folder)]
    for path, origin in (each for place in places for each in recorded(place)):
        known = reference.revision in (origin.revision, origin.commit)
        if same_repo(reference.repo, origin.repo) and known and size_of(path) == origin.size:
            here[origin.path] = (path, origin.commit)
            listing.append(RemoteFile(origin.path, origin.size, origin.sha256))
    try:
        chosen = [here[file.path] for file in choose_files(reference, listing)]
    except HubProblem:
        return None
    # Parts of different commits do not belong together, though their headers may agree.
    return [path for path, _ in chosen] if len({commit for _, commit in chosen}) == 1 else None


def interrupted(reference: Reference, folder: Path) -> list[Path]:
    """Places of the files of a reference whose download was interrupted, chosen as on the Hub."""
    here = {
        place.relative_to(home).as_posix(): place
        for home in _homes(reference.repo, reference.revision, folder)
        for path in home.rglob(".*.part")
        if (place := partial_file.place_of(path))
    }
    try:
        chosen = choose_files(reference, [RemoteFile(name, 0, None) for name in here])
    except HubProblem:
        return []
    return [here[file.path] for file in chosen]


def _cached(model: RemoteModel, download: "_Download") -> list[Path] | None:
    """The files in the Hub's local cache, if all are right and llama.cpp finds them together."""
    paths = [path for file in model.files if (path := client.cached(model, file))]
    names = [path.name for path in paths]
    named = names == [file.path.split("/")[-1] for file in model.files]
    together = len({path.parent for path in paths}) == 1 and named
    if len(paths) != len(model.files) or not (len(paths) == 1 or together):
        return None
    try:
        for path in paths:
            require_named_bytes(path, download.on_progress)
    except FileProblem as problem:
        download.note(problem.message)
        return None
    return paths


@dataclass(frozen=True, slots=True)
class _Download:
    """Download of one file to `path`; `before`: bytes of the model's files before it."""

    model: RemoteModel
    file: RemoteFile
    path: Path
    before: int
    on_progress: Progress
    note: Note
    sleep: Callable[[float], None]

    @property
    def name(self) -> str:
        return one_line(self.path.name)

    @property
    def partial_path(self) -> Path:
        return partial_file.partial_path(self.path, self.file.sha256 or self.model.commit)

    def report(self, done: int) -> None:
        self.on_progress(self.name, self.before + done, self.model.size)

    def _report_check(self, done: int) -> None:
        """Report the progress of reading the stored file, apart from that of the transfer."""
        self.on_progress(f"checking {self.name}", done, self.file.size)

    def is_complete(self) -> bool:
        """Whether the file exists, by its record and its size."""
        origin = self._record()
        if origin is None or not self._has_size():
            return False
        if self.file.sha256 is None:
            return (origin.commit, origin.path) == (self.model.commit, self.file.path)
        return origin.sha256 == self.file.sha256

    def n_missing(self) -> int:
        """Bytes to download at most."""
        if self._has_size():
            return 0
        return max(0, self.file.size - (size_of(self.partial_path) or 0))

    def run(self) -> None:
        if not self.is_complete():
            with partial_file.locked_partial(
                self.partial_path, self.path, self.file.size, self._wait
            ) as partial:
                # Another process may have been quicker.
                if not self.is_complete() and not self._adopt():
                    sha256 = self._fill(partial)
                    # In this order a power cut leaves, at worst, a right file without record, which
                    # the next call reads and records. The other order could leave an older file
                    # with the record of this one.
                    partial.put_in_place()
                    self._write_record(sha256)
                    partial.remove_others()
        partial_file.remove_partial(self.partial_path)
        self.report(self.file.size)

    def _record(self) -> Provenance | None:
        try:
            return read_record(self.path)
        except ValueError:
            return None

    def _has_size(self) -> bool:
        return size_of(self.path) == self.file.size

    def _wait(self, looks: int) -> None:
        """Wait for another process that downloads the file, and report its progress."""
        if looks == 1:
            self.note(f"Another process is downloading {self.name}; waiting for it.")
        if came := size_of(self.partial_path):
            self.report(min(came, self.file.size))
        self.sleep(WAITING_PAUSE)

    def _adopt(self) -> bool:
        """Record a right file that is there without a record; DownloadProblem for another."""
        if not os.path.lexists(self.path):
            return False
        origin = self._record()
        if self._has_size() and (origin is None or self.file.sha256 is not None):
            self.note(f"{self.name} exists already; checking its sha256.")
            with partial_file.writing(self.path):
                changed = self.path.stat().st_ctime_ns
                found = sha256_of(self.path, self._report_check)
                changing = self.path.stat().st_ctime_ns != changed
            if self.file.sha256 in (None, found) and not changing:
                self._write_record(found)
                return True
        # A record outlives its file: a file of another size was put there by the user.
        if origin is None or size_of(self.path) != origin.size:
            raise DownloadProblem(
                f"{one_line(str(self.path))} is in the way: it differs from the file that the Hub "
                "lists, and localspec did not download it.",
                "Move it away, or set LOCALSPEC_MODELS to another folder.",
            )
        return False

    def _fill(self, partial: partial_file.PartialFile) -> str:
        """Complete the partial file, with a second attempt if its hash is wrong; its sha256."""
        if partial.done:
            here = f"{size(partial.done)} of {size(partial.size)} are here"
            self.note(f"Resuming {self.name}: {here}.")
        if self.file.sha256 is None:
            self.note(f"The Hub lists no sha256 of {self.name}, so it stays unverified.")
        for attempt in range(2):
            self._transfer(partial)
            found = partial.sha256(self._report_check)
            if self.file.sha256 in (None, found):
                return found
            wrong = f"its sha256 begins with {found[:12]}, not {str(self.file.sha256)[:12]}"
            partial.restart()
            if attempt == 0:
                self.note(f"{self.name} is damaged ({wrong}); downloading it once more.")
        partial.remove()
        raise DownloadProblem(
            f"{self.name} was damaged twice and was removed: {wrong}.",
            "Try again later; a proxy between you and the Hub may alter files.",
        )

    def _transfer(self, partial: partial_file.PartialFile) -> None:
        def retry(failure: DroppedConnection | RangeIgnored, failures: int) -> None:
            if isinstance(failure, RangeIgnored):
                self.note(f"The Hub sends {self.name} only from its beginning, once more.")
            else:
                self._pause(partial, failure, failures)

        pieces = client.stream_resuming(self.model, self.file, partial.done, self.file.size, retry)
        with closing(pieces):  # or its connection stays open
            for piece in pieces:
                partial.add(piece)
                self.report(partial.done)

    def _pause(
        self, partial: partial_file.PartialFile, dropped: DroppedConnection, failures: int
    ) -> None:
        """Wait before the next request; raises DownloadProblem after too many that failed."""
        stopped = f"{self.name} stopped at {size(partial.done)} of {size(partial.size)}"
        reason = dropped.message.rstrip(".")
        if failures > RETRIES:
            raise DownloadProblem(
                f"{stopped}, and {RETRIES} more tries brought next to nothing: {reason}.",
                "Run the same command again later: it resumes there.",
            )
        usual = FIRST_PAUSE * 2 ** max(0, failures - 1)
        wait = min(LONGEST_PAUSE, max(dropped.retry_after or 0.0, usual))
        self.note(f"{stopped}: {reason}; trying again in {wait:.0f} s.")
        self.sleep(wait)

    def _write_record(self, sha256: str) -> None:
        reference = self.model.reference
        origin = Provenance(
            repo=reference.repo,
            revision=reference.revision,
            commit=self.model.commit,
            path=self.file.path,
            size=self.file.size,
            sha256=sha256,
            checked="size" if self.file.sha256 is None else "sha256",
        )
        with partial_file.writing(self.path):
            write_record(self.path, origin)
