"""From what was typed to files on this disk: a path, a pair's name, a reference to the Hub.

This room owns what a model may be called, and in which order its meanings are tried: an existing
path, a reference, a name as `localspec list` shows it, the name of a pair. It fetches nothing.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localspec.core import paths
from localspec.core.errors import UnknownPair, UsageError
from localspec.download import downloaded
from localspec.hub.reference import parse_reference
from localspec.library import user_pairs
from localspec.library.catalog import load_catalog
from localspec.library.local_models import find_models, model_of

FIND = "find"  # in place of a draft: the best one on this disk


@dataclass(frozen=True, slots=True)
class NamedModels:
    """Models as they were named, each a path or a reference, and what came with a pair's name."""

    target: str
    draft: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    note: str = ""

    @property
    def models(self) -> list[str]:
        """The names of one model, or of both."""
        return [self.target] if self.draft is None else [self.target, self.draft]


def choose(target: str | None, draft: str | None) -> NamedModels:
    """What the names of a command line mean together: a pair's name names both models.

    Raises UsageError without a target, UnknownPair for a name that nothing has.
    """
    if target is None:
        raise UsageError(
            "No target model was given.",
            "Name a GGUF file with --target, or see the bundled pair at work: localspec demo",
        )
    wanted = NamedModels(target, draft)
    if is_pair(target):
        wanted = _pair(target)
        if draft is not None:
            wanted = NamedModels(wanted.target, draft, wanted.settings, wanted.note)
    if wanted.draft is not None and wanted.draft != FIND and is_pair(wanted.draft):
        drafted = _pair(wanted.draft).draft
        wanted = NamedModels(wanted.target, drafted, wanted.settings, wanted.note)
    return wanted


def is_pair(name: str) -> bool:
    """Whether a name can only be a pair's: nothing on the disk has it, and it is no reference."""
    if not user_pairs.is_name(name) or os.path.isfile(name):
        return False
    # A known pair's name wins over a folder or a listed model that happens to be called so.
    return parse_reference(name) is None and (_is_known(name) or _listed(name) is None)


def _is_known(name: str) -> bool:
    known = {each.lower() for each in user_pairs.names()}
    return name.lower() in known or any(pair.name == name.lower() for pair in load_catalog())


def on_disk(name: str) -> Path | None:
    """The file (part 1 of a split one) that a name stands for; None for what was not fetched yet.

    A path is handed back as it is: whoever opens it tells what is wrong with it.
    """
    reference = parse_reference(name)
    if reference is None:
        return Path(name) if os.path.exists(name) else _listed(name) or Path(name)
    files = downloaded(reference, paths.models_folder())
    if files:
        return files[0]
    model = model_of(reference, find_models().models)
    return _listed(name) if model is None else model.path


def canonical_name(name: str) -> str:
    """A name that means the same model tomorrow: a reference, or an absolute path."""
    reference, here = parse_reference(name), on_disk(name)
    if reference is None or (here is not None and here == _listed(name)):
        return str((here or Path(name)).absolute())
    return str(reference)


def _listed(name: str) -> Path | None:
    """The model that the list of this disk shows under this name."""
    return next((model.path for model in find_models().models if model.name == name), None)


def _pair(name: str) -> NamedModels:
    try:
        found = user_pairs.find(name)
    except UnknownPair as error:
        raise UnknownPair(
            error.message.replace("There is no pair", "There is no file and no pair"),
            "See pairs with: localspec pairs, and the models on this disk with: localspec list",
        ) from None
    return NamedModels(found.target, found.draft, dict(found.settings), found.note)
