"""Each engine's names of drafts, settings and sampling parameters: `dialects.toml`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.core.errors import IncompatiblePair
from localspec.core.files import read_toml
from localspec.core.options.option import option, options
from localspec.core.options.sampling_params import SamplingParams, sampling_fields

if TYPE_CHECKING:  # the command line imports this
    from localspec.metadata.draft_kind import DraftKind

_PANEL = "Serving on GPUs (vllm, sglang)"
Names = Mapping[str, str]  # ours, of `PairSettings` and SamplingParams, to the engine's


@dataclass(frozen=True, slots=True)
class Repositories:
    """Repositories of the original weights for engines on GPUs; None: as the headers name them."""

    target_repo: str | None = option(
        None,
        "--target-repo",
        "Repository of the target's safetensors. Default: the one that its header names.",
        metavar="ORG/NAME",
        panel=_PANEL,
    )
    draft_repo: str | None = option(
        None, "--draft-repo", "The same for the draft.", metavar="ORG/NAME", panel=_PANEL
    )


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names of one engine; ``label`` is its own in a sentence.

    ``drafts`` are its names of llama.cpp's --spec-type, None if they are the same.
    with ``vocabulary_rule`` it refuses the pairs that llama.cpp's own check refuses,
    with ``on_gpus`` it serves the original weights (safetensors) on GPUs.
    """

    label: str
    version: str
    drafts: Names | None
    settings: Names
    sampling: Names
    vocabulary_rule: bool = False
    on_gpus: bool = False

    def draft(self, kind: "DraftKind") -> str:
        """Its name of a kind of draft; raises IncompatiblePair for one that it cannot run."""
        if self.drafts is None:
            return kind.spec_type
        if kind.spec_type in self.drafts and not kind.selected:  # only llama.cpp knows DFlash2
            return self.drafts[kind.spec_type]
        words = "an ordinary draft model" if kind.is_model else kind.words
        raise IncompatiblePair(
            f"{self.label} cannot run this pair: it cannot draft with {words} ({kind.spec_type}).",
            "llama.cpp can: --to llama-server",
        )


LM_STUDIO_SPEC = "llama.speculativeDecoding."
OWN = "python"  # a script that uses this library

_SAMPLING = {  # of ours, that dialects begin with
    "none": {},
    "flags": {n: row.flags[0] for n, row in options(SamplingParams).items() if row.llama_cpp},
    "fields": {name: name for name in sampling_fields()},
}


def _same(names: Iterable[str]) -> dict[str, str]:
    return {name: name for name in names}


def _dialect(table: Mapping[str, Any]) -> Dialect:
    """A table of `dialects.toml`."""
    sampling = _SAMPLING[table.get("sampling_from", "none")]
    sampling = sampling | _same(table.get("same_sampling", ())) | table.get("sampling", {})
    return Dialect(
        table["label"],
        table["version"],
        table.get("drafts"),
        _same(table.get("same_settings", ())) | table.get("settings", {}),
        {ours: name for ours, name in sampling.items() if name},
        table.get("vocabulary_rule", False),
        table.get("on_gpus", False),
    )


_TABLES = read_toml(Path(__file__).parent / "dialects.toml")
DIALECTS = {
    name: _dialect(_TABLES.get(table.get("like"), {}) | table) for name, table in _TABLES.items()
}
