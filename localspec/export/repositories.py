"""Repositories of a model's original weights (safetensors), by its GGUF header."""

import re

from localspec.core.errors import IncompatiblePair, UsageError
from localspec.core.formatting import one_line
from localspec.export.facts import PairFacts, on_hub
from localspec.hub.client import quantized_from
from localspec.hub.reference import HUB_HOSTS, Reference
from localspec.metadata.draft_kind import ASSISTANTS, MTP_GRAPHS
from localspec.metadata.filenames import model_name
from localspec.metadata.header import ModelHeader

# Keys of a converter: the origin of the weights (`Metadata.set_gguf_meta_model`).
_SOURCES = ("general.source.repo_url", "general.source.url")
_BASE = "general.base_model.0.repo_url"
_ADDRESS = re.compile(rf"https?://(?:{'|'.join(map(re.escape, HUB_HOSTS))})/([^/]+/[^/?#]+)/?")

# Architectures (of GGUF) whose own heads vLLM 0.33 and SGLang 0.5.23 draft with.
_SERVED_HEADS = MTP_GRAPHS - {"cohere2moe"}


def original_repos(facts: PairFacts, engine: str) -> tuple[str, str | None]:
    """The repositories of the target and of the draft, None if the target's has the heads.

    MTP heads that stand alone as a GGUF file were taken out of the target's repository. Raises
    IncompatiblePair if one is not known, or if the engine has no such heads.
    """
    target, draft = facts.target, facts.draft
    with_target = facts.kind.kind == "mtp" and draft.architecture not in ASSISTANTS
    if with_target and target.architecture not in _SERVED_HEADS:
        raise IncompatiblePair(
            f"{engine} cannot draft with the heads of a {one_line(target.architecture)} model.",
            "llama.cpp can: --to llama-server",
        )
    repo = original_repo(target, facts.repositories.target_repo, "--target-repo")
    if with_target:
        return repo, None
    return repo, original_repo(draft, facts.repositories.draft_repo, "--draft-repo")


def original_repo(header: ModelHeader, given: str | None, option: str) -> str:
    """The repository to load instead of a GGUF file: the given one, or the one its header names.

    Of a model on the Hub, its page counts next. The header's base model counts only if it has
    the same name: of a fine-tuned model it is the one before that training.
    Raises IncompatiblePair if none is known, UsageError for a given name that no repository can
    have, and the errors of `quantized_from`.
    """
    if given is not None:
        _require_repo(given, option)
        return given
    reference = on_hub(header)
    named = next(filter(None, (_repo_at(header, key) for key in _SOURCES)), None)
    if named is None and reference is not None:
        named = quantized_from(reference)
    if named is not None:
        return named
    base = _repo_at(header, _BASE)
    ours = {model_name(header.path.name), model_name(header.name or "")} - {""}
    if base and model_name(base) in ours:
        return base
    shown = one_line(header.path.name)
    reason = f"names {base} as its base, which is another model" if base else "names none"
    raise IncompatiblePair(
        f"This engine loads safetensors, and the repository of those of {shown} is not known: its "
        f"header {reason}.",
        f"Name it with {option} ORG/NAME.",
    )


def _repo_at(header: ModelHeader, key: str) -> str | None:
    """The repository whose address a key holds; None for anything else."""
    value = header.values.get(key)
    found = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    try:
        return Reference(found[1]).repo if found else None
    except UsageError:
        return None


def _require_repo(name: str, option: str) -> None:
    try:
        Reference(name)
    except UsageError:
        raise UsageError(
            f"{option} {one_line(name[:200])!r} is no repository.", "Write it as ORG/NAME."
        ) from None
