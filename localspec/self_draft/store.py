"""Stored self-drafts: one file for each target, in the cache folder.

A target is recognised by its `fingerprint`. Should a draft belong to another target all the same,
its tokens are only rejected more often.
"""

import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from localspec.core import files, paths
from localspec.core.errors import IncompatiblePair
from localspec.metadata.header import ModelHeader, read_header

_WORK, _WORK_SUFFIX = "making", ".d"  # the name of a work folder, in part
_SHOWN_DIGITS = 16  # of a digest, in a file's name


def folder() -> Path:
    return paths.cache_folder() / "self-drafts"


@contextmanager
def work_folder() -> Iterator[Path]:
    """A temporary folder in the store, in use as long as a file of its name is locked."""
    what = f"Nothing can be written in {folder()}"
    hint = "Set LOCALSPEC_CACHE to a folder with room."
    with ExitStack() as removed:
        with files.file_problem(what, hint):
            folder().mkdir(parents=True, exist_ok=True)
            _remove_abandoned()
            file = removed.enter_context(files.temporary_beside(folder() / _WORK))
            made = file.with_name(file.name + _WORK_SUFFIX)
            made.mkdir()
        removed.callback(shutil.rmtree, made, ignore_errors=True)
        yield made


def _remove_abandoned() -> None:
    """Remove the work folders without a locked file."""
    files.remove_abandoned(folder() / _WORK)
    for found in folder().glob(f".{_WORK}*"):
        file = found.name.removesuffix(_WORK_SUFFIX)
        if found.is_dir() and (file == found.name or not (folder() / file).exists()):
            shutil.rmtree(found, ignore_errors=True)


def find(target: ModelHeader) -> Path | None:
    """The draft that was made of a target; None without one."""
    path = _path(target)
    return path if path.is_file() else None


def require_stored(target: Path, say: Callable[[str], None] = lambda said: None) -> Path:
    """The file of a target's self-draft; raises IncompatiblePair without one."""
    found = find(read_header(target))
    if found is None:
        raise IncompatiblePair(
            f"No draft was made of {target} on this machine.",
            f"Make one: localspec draft make {shlex.quote(str(target))}",
        )
    say(f"Draft: {found}, made of the target.")
    return found


def store_draft(target: ModelHeader, draft: Path) -> Path:
    """Move the file of a draft into the store, in place of an earlier one; raises FileProblem."""
    path = _path(target)
    with files.file_problem(
        f"The self-draft cannot be stored in {path.parent}",
        "Set LOCALSPEC_CACHE to a folder with room, or give --output FILE.",
    ):
        draft.replace(path)
    return path


def files_of(target: ModelHeader) -> list[Path]:
    """What was stored for a target, by earlier versions too; raises OSError."""
    return sorted(folder().glob(f"{_path(target).stem}*"))


def _path(target: ModelHeader) -> Path:
    return folder() / f"{files.fingerprint(target.paths)[:_SHOWN_DIGITS]}.gguf"
