"""Stored self-drafts: one for each target in the cache folder, with its verdict.

A target is recognised by its `fingerprint`. Should a draft belong to another target all the same,
its tokens are only rejected more often. A verdict holds only on the machine where it was measured.
"""

import hashlib
import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.core import files, machine, paths
from localspec.core.errors import IncompatiblePair
from localspec.llama import llama_library
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft.recipe import Recipe
from localspec.self_draft.verdict import DraftVerdict

FORMAT = 2  # raise it when a key changes its name or meaning
_MAX_BYTES = 2**16
_WORK, _WORK_SUFFIX = "making", ".d"  # the name of a work folder, in part
_SHOWN_DIGITS = 16  # of a digest, in a file's name


@dataclass(frozen=True, slots=True)
class StoredDraft:
    """The self-draft of a target.

    ``path`` is its file, None if it does not pay; ``verdict`` is None if it was not measured.
    """

    path: Path | None
    recipe: Recipe
    verdict: DraftVerdict | None


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


def find(target: ModelHeader) -> StoredDraft | None:
    """The draft of a target on this machine; None if it is missing, damaged or stale."""
    try:
        return _read(target, _document_path(target))
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def require_stored(target: Path, say: Callable[[str], None] = lambda said: None) -> Path | None:
    """The file of a target's self-draft, None if it does not pay; raises IncompatiblePair."""
    found = find(read_header(target))
    if found is None:
        raise IncompatiblePair(
            f"No draft was made of {target} on this machine, or it is out of date.",
            f"Make one: localspec draft make {shlex.quote(str(target))}",
        )
    say(_note(found))
    return found.path


def _note(stored: StoredDraft) -> str:
    """One line on a stored draft, with its figure."""
    verdict = stored.verdict
    if verdict is None:
        return f"Draft: {stored.path}, made of the target; whether it pays was not measured."
    figure = f"{verdict.speedup:.2f}x plain, prompt lookup alone {verdict.lookup_speedup:.2f}x"
    if stored.path is None:
        return (
            f"A draft made of this target does not pay here ({figure}): it is not used. With other "
            "flags it may: localspec draft make measures again."
        )
    return f"Draft: {stored.path}, made of the target ({figure})."


def store_draft(
    target: ModelHeader, recipe: Recipe, draft: Path, verdict: DraftVerdict | None
) -> StoredDraft:
    """Move the file of a draft into the store, unless it does not pay, and save its verdict.

    The recipe names the file, and the document is written last: if two processes store a draft at
    once, one of them is found whole, or neither and a draft is made again. Raises FileProblem if
    nothing can be written.
    """
    document = _document_path(target)
    path = None if verdict is not None and not verdict.pays else _file(document, recipe)
    content = {
        "format": FORMAT,
        "machine": _machine(),
        "recipe": recipe.as_json(),
        "verdict": None if verdict is None else verdict.as_json(),
        "file": None if path is None else {"name": path.name, "bytes": draft.stat().st_size},
    }
    with files.file_problem(
        f"The self-draft cannot be stored in {document.parent}",
        "Set LOCALSPEC_CACHE to a folder with room, or give --output FILE.",
    ):
        if path is not None:
            draft.replace(path)
        with files.appearing_when_complete(document) as partial:
            partial.write_text(json.dumps(content) + "\n")
    for other in _drafts(document):
        if other != path:
            with suppress(OSError):
                other.unlink()
    return StoredDraft(path, recipe, verdict)


def _read(target: ModelHeader, path: Path) -> StoredDraft:
    """Parse a document; raises ValueError, LookupError or TypeError if it is unusable."""
    document = json.loads(files.read_at_most(path, _MAX_BYTES).decode())
    if document["format"] != FORMAT or document["machine"] != _machine():
        raise ValueError("it is of another version or machine")
    recipe = _recipe(target, document["recipe"])
    verdict = None if document["verdict"] is None else DraftVerdict.from_json(document["verdict"])
    if verdict is not None and not verdict.pays:
        return StoredDraft(None, recipe, verdict)  # whichever file there may be
    draft = _file(path, recipe)
    if draft.stat().st_size != document["file"]["bytes"]:
        raise ValueError("the draft is another one")
    return StoredDraft(draft, recipe, verdict)


def _recipe(target: ModelHeader, document: Mapping[str, Any]) -> Recipe:
    count, vocab = len(document["layers"]), document["vocab"]
    heads = bool(document["heads"])
    recipe = Recipe(count, str(document["type"]), None if vocab is None else int(vocab), heads)
    fits = count == 0 if heads else 0 < count <= (target.block_count or 0)
    if document["layers"] != list(recipe.indices) or not fits:
        raise ValueError("these are not its first layers")
    return recipe


def _document_path(target: ModelHeader) -> Path:
    return folder() / f"{files.fingerprint(target.paths)[:_SHOWN_DIGITS]}.json"


def _file(document: Path, recipe: Recipe) -> Path:
    words = (recipe.indices, recipe.type, recipe.vocab, recipe.heads)
    digest = hashlib.sha256(repr(words).encode()).hexdigest()
    return document.with_name(f"{document.stem}-{digest[:_SHOWN_DIGITS]}.gguf")


def files_of(target: ModelHeader) -> list[Path]:
    """The document and the drafts of a target, if there are any; raises OSError."""
    document = _document_path(target)
    return [*_drafts(document), *([document] if document.exists() else [])]


def _drafts(document: Path) -> list[Path]:
    return list(document.parent.glob(f"{document.stem}-*.gguf"))


def _machine() -> dict[str, object]:
    devices = [device.name for device in llama_library.devices()]
    return {"cpu": machine.cpu_name(), "devices": devices}
