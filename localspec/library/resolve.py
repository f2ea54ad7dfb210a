"""Resolves names to models on this disk: a path, a Hub reference, a listed name, a pair's name.

The meanings are tried in this order: an existing path, a reference, the name of a pair, also as
Ollama writes it, a name as `localspec list` shows it, whole, without ".gguf" or begun. Nothing is
fetched.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from localspec.core import paths
from localspec.core.errors import MissingFile, UnknownPair, UsageError
from localspec.core.formatting import one_line
from localspec.download import downloaded
from localspec.hub.reference import parse_reference
from localspec.library.local_models import (
    Inventory,
    LocalModel,
    current_folder,
    find_models,
    model_of,
)
from localspec.library.pairs import user_pairs
from localspec.library.pairs.catalog import MTP as MTP
from localspec.library.pairs.catalog import SHOWN_NAMES, PairSpec, load_catalog, near_names
from localspec.metadata.filenames import model_name

# In place of a draft, besides MTP:
FIND = "find"  # the best draft on this disk
SELF = "self"  # the draft that was made of the target itself
_SHORTEST_PREFIX = 3  # characters
_MOST_FILES = 1000  # of the current folder that are looked through for a name like a wrong one
_OLLAMA = re.compile(r"(?!hf:)[A-Za-z][\w.-]+:(?!.*\.gguf$)[\w.-]+", re.ASCII)  # llama3.1:8b


@dataclass(frozen=True, slots=True)
class NamedModels:
    """Models as they were named, each a path or a reference; of a pair its settings and name."""

    target: str
    draft: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    note: str = ""
    pair: str | None = None

    @property
    def models(self) -> list[str]:
        """The names of one model, or of both; the target's own heads are no other model."""
        return [self.target] if self.draft in (None, MTP, SELF) else [self.target, self.draft or ""]


class Resolver:
    """Resolves names for one command: the disk is searched at most once.

    ``folders`` are searched too for `inventory`. No name is looked up in them, since other commands
    would not find it. Without ``prefixes`` the beginning of a name stands for no model.
    """

    def __init__(self, folders: Sequence[Path] = (), *, prefixes: bool = True) -> None:
        self._folders = folders
        self._prefixes = prefixes

    @cached_property
    def inventory(self) -> Inventory:
        return find_models(extra=self._folders)

    def choose(
        self, target: str | None, draft: str | None = None, *, folder: bool = True
    ) -> NamedModels:
        """The models of a command, also by a pair's name; raises UsageError, UnknownPair.

        Files of the current ``folder`` count as those of a known pair.
        """
        if target is None:
            here = [one_line(name) for name in self._listed_names()][:SHOWN_NAMES]
            listed = f" or a model on this disk ({', '.join(here)})" if here else ""
            raise UsageError(
                "No target model was given.",
                f"Name a GGUF file{listed} with --target, keep one for all commands with "
                "localspec config set target MODEL, or try the bundled pair: localspec demo",
            )
        if "" in (target, draft):
            raise UsageError(
                "The name of a model is empty.",
                "Name a GGUF file. An unset shell variable expands to nothing.",
            )
        named = self._pair(target) if self.is_pair(target) else NamedModels(target)
        named = self._found_in_folder(named) if folder else named
        named = replace(named, draft=draft or named.draft)
        if named.draft not in (None, FIND, MTP, SELF) and self.is_pair(named.draft or ""):
            named = replace(named, draft=self._pair(named.draft or "").draft)
        return named

    def groups_of(self, names: Sequence[str]) -> list[tuple[list[str], bool]]:
        """Models to fetch, two of a pair together, each with whether the pair is a lenient one."""
        chosen = [self.choose(name, folder=False) for name in names]
        pairs = [
            ([each.target, each.draft], bool(each.settings.get("lenient")))
            for each in chosen
            if each.draft
        ]
        loose = [each.target for each in chosen if not each.draft]
        singles = [loose] if len(loose) == 2 and not pairs else [[name] for name in loose]
        return [*pairs, *((each, False) for each in singles)]

    def is_pair(self, name: str) -> bool:
        """Whether a name can only be a pair's: not a file, not a reference, not a listed model.

        A pair's name wins over a folder or a listed model with the same name.
        """
        if _OLLAMA.fullmatch(name):
            return not os.path.exists(name) and self._listed(name) is None
        if not user_pairs.is_name(name) or os.path.isfile(name):
            return False
        if parse_reference(name) is not None:
            return False
        return bool(user_pairs.spellings(name)) or is_known(name) or self._listed(name) is None

    def on_disk(self, name: str) -> Path | None:
        """The file (part 1 of a split one) that a name stands for; None for one still to fetch.

        A path is returned unchanged: opening it reports the error.
        """
        reference = parse_reference(name)
        if reference is None:
            return Path(name) if os.path.exists(name) else self._listed(name) or Path(name)
        files = downloaded(reference, paths.models_folder())
        if files:
            return files[0]
        model = model_of(reference, self._nameable())
        return self._listed(name) if model is None else model.path

    def files_of(self, name: str, *, folder: bool = False) -> list[Path]:
        """The files here of a path, a reference or a pair's name; raises MissingFile.

        Files of the current ``folder`` count as in `choose`.
        """
        found = []
        for model in self.choose(name, folder=folder).models:
            path = self.on_disk(model)
            if path is None:
                raise MissingFile(
                    f"{one_line(model)} is not on this disk.",
                    f"Fetch it: localspec download {model}",
                )
            found.append(path)
        return found

    def canonical_name(self, name: str) -> str:
        """The name that means the same model in any folder: a reference, an absolute path, MTP."""
        if name == MTP:
            return name
        reference, here = parse_reference(name), self.on_disk(name)
        if reference is None or (here is not None and here == self._listed(name)):
            return str((here or Path(name)).absolute())
        return str(reference)

    def _listed(self, name: str) -> Path | None:
        """The model that `localspec list` shows under this name, in any case.

        Else the only one whose file has this name without its folder or ".gguf", as `serve` shows
        it; else the only one whose name, or file's name, begins so.
        """
        models, wanted = self._nameable(), name.lower()
        whole = [model for model in models if model.name.lower() == wanted]
        if whole:
            return min(whole, key=lambda model: model.name != name).path
        if parse_reference(name) is not None:
            return None
        stem = wanted.removesuffix(".gguf")
        called = {model.path for model in models if _stem(model) == stem}
        begun = {
            model.path
            for model in models
            if self._prefixes
            and len(wanted) >= _SHORTEST_PREFIX
            and (_stem(model).startswith(wanted) or model.name.lower().startswith(wanted))
        }
        (path,) = next((found for found in (called, begun) if len(found) == 1), {None})
        return path

    def _pair(self, name: str) -> NamedModels:
        """The models of a pair. Raises UnknownPair with similar names, those on this disk first."""
        try:
            pair = user_pairs.find(_known_as(name))
        except UnknownPair as error:
            message = error.message.replace("There is no pair", "There is no file and no pair")
            none = message.removesuffix(".").partition("; near it: ")[0]
            here, others = [*user_pairs.names(), user_pairs.BUNDLED], list[str]()
            for each in load_catalog():
                (others if self._is_missing(each) else here).append(each.name)
            on_disk = {
                "Pairs on this disk": near_names(name, here),
                "On this disk": near_names(name, self._listed_names()),
            }
            # Pairs to fetch are no help where one that is here was meant.
            near = on_disk if any(on_disk.values()) else {"Pairs near it": near_names(name, others)}
            raise UnknownPair(
                " ".join([f"{none}.", *(f"{key}: {each}." for key, each in near.items() if each)]),
                "See pairs with: localspec pairs, and the models on this disk with: localspec list",
            ) from None
        hidden = user_pairs.spellings(name) and is_known(name)
        note = f"{pair.name} is your own pair; the known pair of that name is not used."
        note = note if hidden else f"{name}: the pair {pair.name}." if ":" in name else ""
        return NamedModels(pair.target, pair.draft, dict(pair.settings), note, pair.name)

    def _is_missing(self, pair: PairSpec) -> bool:
        """Whether a file of a known pair would be fetched."""
        named = NamedModels(str(pair.target.reference), pair.draft_name, pair=pair.name)
        return not all(map(self.on_disk, self._found_in_folder(named).models))

    def _found_in_folder(self, named: NamedModels) -> NamedModels:
        """A known pair with the models of the current folder that would be fetched else."""
        if named.pair is None or user_pairs.spellings(named.pair):
            return named
        target, draft = self._in_folder(named.target), self._in_folder(named.draft or MTP)
        found = [each for each in (target, draft) if each not in (named.target, named.draft, MTP)]
        if not found:
            return named
        note = f"{named.note} {named.pair} with this folder's {' and '.join(found)}.".strip()
        return replace(named, target=target, draft=draft, note=note)

    def _in_folder(self, name: str) -> str:
        """The only file of the current folder that is this model of the Hub, if it is not fetched.

        Its name may differ in the quantisation; else it would be fetched although it is here.
        """
        reference = parse_reference(name)
        if reference is None or reference.file is None or self.on_disk(name) is not None:
            return name
        wanted = Path(reference.file).name
        near = [each for each in _folder_files() if model_name(each) == model_name(wanted)]
        return wanted if wanted in near else near[0] if len(near) == 1 else name

    def _listed_names(self) -> list[str]:
        """The names that `localspec list` shows, those of the current folder first."""
        own = {model.name for model in find_models((), current_folder()).models}
        here = (name for name in _folder_files() if name in own)
        return [*here, *(model.name for model in self._nameable())]

    def _nameable(self) -> list[LocalModel]:
        return [model for model in self.inventory.files if model.source != "folder"]


def _stem(model: LocalModel) -> str:
    """The name of a model's file, in small letters, without its folder and its ending."""
    return model.name.lower().rpartition("/")[2].removesuffix(".gguf")


def _folder_files() -> list[str]:
    """Names of models in the current folder."""
    return sorted(each.name for each in islice(Path().glob("*.gguf"), _MOST_FILES))


def is_known(name: str) -> bool:
    """Whether a known pair, not one of the user's own, has this name."""
    name = name.lower()
    return name == user_pairs.BUNDLED or any(pair.name == name for pair in load_catalog())


def _known_as(name: str) -> str:
    """The pair that has the model which Ollama calls ``name``: llama3.1:8b-instruct-q4_0."""
    plain = name.removesuffix(":latest").replace(":", "-")
    longest = sorted((pair.name for pair in load_catalog()), key=len, reverse=True)
    model = (each for each in longest if f"{plain.lower()}-".startswith(f"{each}-"))
    return next(model, plain) if ":" in name else name
