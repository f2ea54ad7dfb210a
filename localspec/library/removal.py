"""Deleting a model of the models folder: the bytes that it frees, the pairs that use it."""

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.core import paths
from localspec.core.errors import LocalspecError, MissingFile, UsageError
from localspec.core.files import file_problem
from localspec.core.formatting import one_line
from localspec.download import interrupted
from localspec.hub.partial_file import partials_of
from localspec.hub.provenance import record_path
from localspec.hub.reference import parse_reference
from localspec.library.pairs import user_pairs
from localspec.library.pairs.catalog import load_catalog
from localspec.library.resolve import Resolver
from localspec.library.scan import LocalModel
from localspec.metadata.filenames import parts_of


@dataclass(frozen=True, slots=True)
class Removal:
    """A model's files: all parts, records, partial downloads; and the names of pairs that use it.

    ``elsewhere`` are other tools that have the same content.
    """

    path: Path
    files: tuple[Path, ...]
    pairs: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return one_line(os.path.relpath(self.path, paths.models_folder()))

    @property
    def n_bytes(self) -> int:
        """Bytes that are freed; deleting a link frees none of its target."""
        return sum(file.lstat().st_size for file in self.files)

    def delete(self) -> None:
        """Delete the files, and folders that are empty then; raises FileProblem."""
        for file in self.files:
            what = f"{one_line(str(file))} cannot be deleted"
            with file_problem(what, "Look at the permissions of its folder."):
                file.unlink(missing_ok=True)
        top = paths.models_folder()
        for folder in self.path.parents:
            if folder == top or not folder.is_relative_to(top):
                break
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def removals_of(name: str, resolver: Resolver) -> Iterator[Removal]:
    """The removals of a name's models; raises MissingFile, UsageError for a file of others."""
    for model in resolver.choose(name, folder=False).models:
        reference = parse_reference(model)
        path = resolver.on_disk(model)
        places = [] if path is None else parts_of(Path(os.path.abspath(path)))
        if not places and reference is not None:
            places = interrupted(reference, paths.models_folder())
        nearby = [(place, record_path(place), *partials_of(place)) for place in places]
        files = [file for each in nearby for file in each if os.path.lexists(file)]
        if not files:
            for each in resolver.choose(name).models:
                if os.path.isfile(each):  # in the current folder, where other commands use it
                    _require_ours(Path(os.path.abspath(each)), None)
            raise MissingFile(f"{one_line(model)} is not on this disk.", "See: localspec list")
        listed = next((each for each in resolver.inventory.files if places[0] in each.parts), None)
        _require_ours(places[0], listed)
        users = tuple(_pairs_with(places[0], resolver))
        yield Removal(places[0], tuple(files), users, listed.also_in if listed else ())


def _require_ours(path: Path, listed: LocalModel | None) -> None:
    """Raise UsageError for a bundled model, and for one outside the models folder."""
    folder, shown = paths.models_folder(), one_line(str(path))
    if paths.is_bundled(path):
        raise UsageError(f"{shown} comes with localspec.", "It stays as long as localspec does.")
    if Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(folder)):
        return
    if listed is None or listed.source in ("localspec", "folder"):
        hint = f"Delete it yourself: rm {shlex.quote(shown)}"
        raise UsageError(f"{shown} is not in the models folder, {folder}.", hint)
    raise UsageError(f"{listed.name} belongs to {listed.source}.", _how_to_remove(listed))


def _how_to_remove(model: LocalModel) -> str:
    if model.source == "ollama":
        return f"Type: ollama rm {shlex.quote(model.name)}"
    if model.source == "hugging face" and model.repo:
        return f"Type: hf cache rm {shlex.quote(f'model/{model.repo}')}"
    return f"Remove it there; the file is {one_line(str(model.path))}."


def _pairs_with(path: Path, resolver: Resolver) -> Iterator[str]:
    """The user's pairs and known ones that have a model with this file."""
    for name in user_pairs.names():
        with suppress(LocalspecError):  # of a damaged pair
            pair = user_pairs.load(name)
            if path in map(resolver.on_disk, (pair.target, pair.draft)):
                yield f"{name} (yours)"
    for spec in load_catalog():
        models = [spec.target.reference, *([spec.draft.reference] if spec.draft else [])]
        if path in [resolver.on_disk(str(each)) for each in models]:
            yield spec.name
