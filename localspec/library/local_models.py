"""Inventory of GGUF models on this disk, ours and other tools', each content once.

The folders of the tools are in `tool_caches`; no header is read, and nothing is moved.
"""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.core.errors import FileProblem, HubProblem, UsageError
from localspec.core.formatting import one_line
from localspec.hub.reference import Reference, RemoteFile, choose_files, same_repo
from localspec.library.scan import SOURCES, Scan, Source
from localspec.library.scan import LocalModel as LocalModel
from localspec.library.tool_caches import Files, files_of
from localspec.metadata.filenames import MAX_PARTS, PART_NAME

_MISSING = "split models that miss parts"


@dataclass(frozen=True, slots=True)
class Inventory:
    """Models by source and name; notes on the files left out; all folders searched.

    ``sidecars`` are files of heads that draft for a model, recognised by their names.
    """

    models: tuple[LocalModel, ...]
    notes: tuple[str, ...]
    folders: tuple[Path, ...]
    sidecars: tuple[LocalModel, ...] = ()

    @property
    def files(self) -> tuple[LocalModel, ...]:
        """Everything that may be named: models, then sidecars."""
        return self.models + self.sidecars


def parse_source(text: str) -> Source:
    """The source with this name, without case, blanks and punctuation; raises UsageError."""

    def letters(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())

    known = {letters(source): source for source in SOURCES[:-1]}
    if letters(text) in known:
        return known[letters(text)]
    named = ", ".join(source.replace(" ", "-") for source in SOURCES[:-1])
    raise UsageError(f"No source of models is called '{one_line(text)}'.", f"There are: {named}.")


def find_models(sources: Collection[Source] | None = None, extra: Sequence[Path] = ()) -> Inventory:
    """The models of all or some sources and of `extra` folders, each content once; FileProblem."""
    for folder in extra:
        if not os.path.isdir(folder):
            raise FileProblem(
                f"{one_line(str(folder))} is not a folder.", "Give a folder that holds .gguf files."
            )
    chosen = SOURCES if sources is None else (*sources, "folder")
    scans = [Scan(source) for source in SOURCES if source in chosen]
    found = [files for scan in scans for files in _models(scan, files_of(scan, chosen, extra))]
    listed = _each_once(found)
    return Inventory(
        tuple(model for model in listed if not model.is_sidecar),
        tuple(note for scan in scans for note in scan.notes()),
        tuple(dict.fromkeys(folder for scan in scans for folder in scan.searched)),
        tuple(model for model in listed if model.is_sidecar),
    )


def current_folder() -> list[Path]:
    """The current folder, if it holds a GGUF file: those below it may be named by their paths."""
    return [Path()] if any(Path().glob("*.gguf")) else []


def _models(scan: Scan, found: Files) -> Iterator[tuple[LocalModel, ...]]:
    """The files of each model: one, or all the parts of a split one in order."""
    split: dict[tuple[Path, str, int], dict[int, LocalModel]] = {}
    for file in filter(None, found):
        part = PART_NAME.fullmatch(file.path.name)
        if part and int(part[3]):
            parts = split.setdefault((file.path.parent, part[1], int(part[3])), {})
            parts[int(part[2])] = file
        else:
            yield (file,)
    for (folder, stem, count), parts in split.items():
        missing = [n for n in range(1, min(count, MAX_PARTS) + 1) if n not in parts]
        if missing or len(parts) != count:
            numbers = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
            lacks = f"lacks {numbers}" if missing else "and some too many"
            scan.leave_out(_MISSING, f"{folder / stem} ({count} parts, {lacks})")
        else:
            yield tuple(parts[n] for n in sorted(parts))


def model_of(reference: Reference, local: Sequence[LocalModel]) -> LocalModel | None:
    """The model on this disk that a reference to the Hub names; None if none or several fit."""
    here: dict[str, LocalModel] = {}
    listing = []
    for model in local:
        if not same_repo(reference.repo, model.repo) or reference.revision != "main":
            continue
        for part in model.parts:
            inside = _inside(model, part)
            if here.setdefault(inside, model) is model:  # of two versions the first one found
                listing.append(RemoteFile(inside, 0, None))
    try:
        return here[choose_files(reference, listing)[0].path]
    except HubProblem:
        return None


def _inside(model: LocalModel, part: Path) -> str:
    """A part's path inside its repository, derived from the model's name."""
    inside = model.name.removeprefix(f"{model.repo}/")
    if part.suffix.lower() != ".gguf":  # a blob, named by its hash
        return f"{inside.replace(':', '-')}.gguf".rpartition("/")[2]
    folder = inside.rpartition("/")[0]
    return f"{folder}/{part.name}" if folder and folder != model.repo else part.name


def _each_once(found: list[tuple[LocalModel, ...]]) -> list[LocalModel]:
    """One model for each content, recognised by its files or by their sizes and SHA-256."""
    hashes = {file.identity: file.sha256 for files in found for file in files if file.sha256}
    models: list[LocalModel] = []
    known: dict[object, int] = {}
    for files in found:
        keys: list[object] = [tuple(file.identity for file in files)]
        if all(file.identity in hashes for file in files):
            keys.append(tuple((file.n_bytes, hashes[file.identity]) for file in files))
        at = next((known[key] for key in keys if key in known), len(models))
        known |= dict.fromkeys(keys, at)
        if at == len(models):
            n_bytes, parts = sum(f.n_bytes for f in files), tuple(f.path for f in files)
            sha256 = hashes.get(files[0].identity)
            first = replace(files[0], n_bytes=n_bytes, parts=parts, sha256=sha256)
            models.append(replace(first, unverified=any(file.unverified for file in files)))
            continue
        first = models[at]
        others = (*first.also_in, *({files[0].source} - {first.source, *first.also_in}))
        models[at] = replace(first, also_in=others, repo=first.repo or files[0].repo)
    return sorted(models, key=lambda m: (SOURCES.index(m.source), m.name.lower(), str(m.path)))
