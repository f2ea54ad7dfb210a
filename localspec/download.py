"""Resumable downloads from the Hub into the models folder, and verification by sha256.

A partial file is kept; a complete one is compared with the hash that the Hub listed, and only then
gets its name and a record of where it came from.
"""

import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.core.errors import DownloadProblem, HubProblem
from localspec.core.formatting import one_line, size
from localspec.hub import client
from localspec.hub.client import DroppedConnection, RangeIgnored, RemoteModel
from localspec.hub.partial_file import (
    PartialFile,
    TooLong,
    check_space,
    locked_partial,
    partial_path,
    remove_partial,
    size_of,
    writing,
)
from localspec.hub.provenance import (
    SHA256,
    Provenance,
    read_record,
    recorded,
    sha256_of,
    write_record,
)
from localspec.hub.provenance import Progress as Progress
from localspec.hub.provenance import verify as verify
from localspec.hub.reference import Reference, RemoteFile, choose_files, is_safe

Note = Callable[[str], None]

RETRIES = 5  # in a row without a new byte
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0  # seconds between tries; it doubles
WAITING_PAUSE = 0.5  # seconds between looks at a partial file that another process has


def local_paths(reference: Reference, files: Sequence[RemoteFile], folder: Path) -> list[Path]:
    """Where the files of a repository belong: `folder`/org/repo/path in the repository.

    Of a revision other than main, `folder`/org/repo@revision/path. Raises DownloadProblem for a
    name that is no plain path, such as one that leads out of `folder`; hidden names are ours.
    """
    paths = []
    for file in files:
        inside = f"{_home(reference)}/{file.path}"
        if not is_safe(inside):
            raise DownloadProblem(
                f"The Hub lists a file that may not be stored under its name: {one_line(inside)}.",
                "Choose another file: no name may be hidden, or lead out of its folder.",
            )
        paths.append(folder.joinpath(*inside.split("/")))
    return paths


def _home(reference: Reference) -> str:
    """The folder of a repository below the models folder."""
    if reference.revision == "main":
        return reference.repo
    return f"{reference.repo}@{reference.revision.replace('/', '-')}"


def fetch(
    model: RemoteModel,
    folder: Path,
    on_progress: Progress,
    *,
    on_note: Note | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Path]:
    """All files of a model, complete and checked, part 1 first; what is there is not fetched.

    They are those below `folder`, or those of the Hub's local cache where all of them are there.
    `on_progress` counts the bytes of all files together; `on_note` hears, in sentences, of waits,
    retries and checks. Raises DownloadProblem for what went wrong here, HubProblem for what the Hub
    refused; in both cases, and after Ctrl-C, what came is kept and the next call goes on from it.
    """
    _check_listing(model)
    paths = local_paths(model.reference, model.files, folder)
    downloads, before = [], 0
    for file, path in zip(model.files, paths, strict=True):
        note = on_note or (lambda sentence: None)
        downloads.append(_Download(model, file, path, before, on_progress, note, sleep))
        before += file.size
    if not all(download.is_complete() for download in downloads):
        if cached := _cached(model):
            return cached
        check_space(folder, sum(download.n_missing() for download in downloads))
    for download in downloads:
        download.run()
    return paths


def downloaded(reference: Reference, folder: Path) -> list[Path] | None:
    """The files that a reference names, found in `folder` without the Hub; None if one lacks.

    They are chosen among what was downloaded by the rules that choose among what the Hub lists.
    """
    here: dict[str, tuple[Path, str]] = {}
    listing = []
    homes = dict.fromkeys((_home(reference), reference.repo))  # a commit may have come as main
    places = [folder.joinpath(*home.split("/")) for home in homes]
    for path, origin in (each for place in places for each in recorded(place)):
        known = reference.revision in (origin.revision, origin.commit)
        if origin.repo == reference.repo and known and size_of(path) == origin.size:
            here[origin.path] = (path, origin.commit)
            listing.append(RemoteFile(origin.path, origin.size, origin.sha256))
    try:
        chosen = [here[file.path] for file in choose_files(reference, listing)]
    except HubProblem:
        return None
    # Parts of different commits are no model, though their headers may agree.
    return [path for path, _ in chosen] if len({commit for _, commit in chosen}) == 1 else None


def _check_listing(model: RemoteModel) -> None:
    for file in model.files:
        if file.size < 0 or not (file.sha256 is None or SHA256.fullmatch(file.sha256)):
            raise DownloadProblem(
                f"The Hub lists {one_line(file.path)} with an impossible size or hash.",
                "Try again later, or choose another repository.",
            )


def _cached(model: RemoteModel) -> list[Path] | None:
    """The files in the Hub's local cache, if all are there and llama.cpp finds them together."""
    paths = [path for file in model.files if (path := client.cached(model, file))]
    names = [path.name for path in paths]
    named = names == [file.path.split("/")[-1] for file in model.files]
    together = len({path.parent for path in paths}) == 1 and named
    return paths if len(paths) == len(model.files) and (len(paths) == 1 or together) else None


@dataclass(frozen=True, slots=True)
class _Download:
    """One file on its way to `path`; `before` bytes of the model come in files before it."""

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
        return partial_path(self.path, self.file.sha256 or self.model.commit)

    def report(self, done: int) -> None:
        self.on_progress(self.name, self.before + done, self.model.size)

    def is_complete(self) -> bool:
        """Whether the file is there, by its record and its size."""
        origin = self._record()
        if origin is None or not self._has_size():
            return False
        if self.file.sha256 is None:
            return (origin.commit, origin.path) == (self.model.commit, self.file.path)
        return origin.sha256 == self.file.sha256

    def n_missing(self) -> int:
        """Bytes that may have to come."""
        if self._has_size():
            return 0
        return max(0, self.file.size - (size_of(self.partial_path) or 0))

    def run(self) -> None:
        if not self.is_complete():
            with locked_partial(
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
        remove_partial(self.partial_path)
        self.report(self.file.size)

    def _record(self) -> Provenance | None:
        try:
            return read_record(self.path)
        except ValueError:
            return None

    def _has_size(self) -> bool:
        return size_of(self.path) == self.file.size

    def _wait(self, looks: int) -> None:
        """Let another process go on with the file, and show how far it is."""
        if looks == 1:
            self.note(f"Another process is downloading {self.name}; waiting for it.")
        if came := size_of(self.partial_path):
            self.report(min(came, self.file.size))
        self.sleep(WAITING_PAUSE)

    def _adopt(self) -> bool:
        """Whether the file is there without a fitting record, which it then gets.

        Raises DownloadProblem for a file that was not downloaded: it is not ours to replace.
        """
        if not os.path.lexists(self.path):
            return False
        origin = self._record()
        if self._has_size() and (origin is None or self.file.sha256 is not None):
            self.note(f"{self.name} is there already; reading it, to see whether it is right.")
            with writing(self.path):
                found = sha256_of(self.path, self.report)
            if self.file.sha256 in (None, found):
                self._write_record(found)
                return True
        # A record outlives its file: what has another size now was put there by somebody.
        if origin is None or size_of(self.path) != origin.size:
            raise DownloadProblem(
                f"{one_line(str(self.path))} is in the way: it is not the file that the Hub lists, "
                "nor as localspec downloaded it.",
                "Move it away, or set LOCALSPEC_MODELS to another folder.",
            )
        return False

    def _fill(self, partial: PartialFile) -> str:
        """Complete the partial file, from nothing once more if it came wrong; return its sha256."""
        if came := size_of(self.partial_path):
            here = f"{size(came)} of {size(partial.size)} are here"
            self.note(f"Going on with {self.name}: {here}, and are read first.")
        partial.recover(self.report)
        for attempt in range(2):
            try:
                self._transfer(partial)
                found = partial.digest.hexdigest()
                if self.file.sha256 in (None, found):
                    return found
                wrong = f"its sha256 begins with {found[:12]}, not {str(self.file.sha256)[:12]}"
            except TooLong:
                wrong = f"it is longer than {partial.size:,} bytes"
            partial.restart()
            if attempt == 0:
                self.note(f"{self.name} came wrong ({wrong}); fetching it once more from nothing.")
        partial.remove()
        raise DownloadProblem(
            f"{self.name} came wrong twice and was removed: {wrong}.",
            "Try again later; if a proxy stands between you and the Hub, it may alter files.",
        )

    def _transfer(self, partial: PartialFile) -> None:
        """Go on until all bytes are there, over dropped connections, as long as more come."""
        failures, ranges = 0, True
        while partial.done < partial.size:
            before, asked = partial.done, None
            reason = "the connection ended early"
            try:
                self._take(partial, partial.done if ranges else 0)
            except RangeIgnored:
                if not ranges:
                    raise
                ranges = False
                self.note(f"The Hub sends {self.name} only from its beginning, once more.")
                continue
            except DroppedConnection as dropped:
                reason, asked = dropped.message.rstrip("."), dropped.retry_after
            failures = failures + 1 if partial.done == before else 0
            if partial.done < partial.size:
                self._pause(partial, failures, reason, asked or 0.0)

    def _pause(self, partial: PartialFile, failures: int, reason: str, asked: float) -> None:
        """Wait before another try; raises DownloadProblem after too many that brought nothing."""
        stopped = f"{self.name} stopped at {size(partial.done)} of {size(partial.size)}"
        if failures > RETRIES:
            raise DownloadProblem(
                f"{stopped}, and {RETRIES} more tries brought nothing: {reason}.",
                "Run the same command again later: it goes on from there.",
            )
        wait = min(LONGEST_PAUSE, max(asked, FIRST_PAUSE * 2 ** max(0, failures - 1)))
        self.note(f"{stopped}: {reason}; trying again in {wait:.0f} s.")
        self.sleep(wait)

    def _take(self, partial: PartialFile, start: int) -> None:
        """One answer of the Hub, from `start`; what is here already is passed over."""
        pieces = client.stream(self.model, self.file, start)
        known = partial.done - start
        try:
            for piece in pieces:
                partial.add(piece[known:])
                known -= min(known, len(piece))
                self.report(partial.done)
        finally:
            if isinstance(pieces, Generator):  # or its connection stays open
                pieces.close()

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
        with writing(self.path):
            write_record(self.path, origin)
