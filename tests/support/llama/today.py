"""What is tested together: tiny targets, the ways they roll back, and what drafts for them.

The names are those of `tests.support.files.architectures.specs`; `docs/choose/models.md` has the
same as a table.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from localspec.speculative.drafters import Candidate, ModelDrafter
from tests.support.files.architectures.specs import MODELS

FORK, BOTH, TRIM = ("fork",), ("snapshots", "fork"), ("trim",)
WAYS = {
    "qwen35": BOTH,
    "qwen35moe": BOTH,
    "nemotron_h": BOTH,
    "nemotron_h_moe": BOTH,
    "lfm2": BOTH,
    "qwen3next": FORK,
    "falcon-h1": FORK,
    "granitehybrid": FORK,
    "jamba": FORK,
    "kimi-linear": FORK,
    "mamba": FORK,
    "mamba2": FORK,
    "rwkv7": FORK,
    "glm4moe": TRIM,
    "gemma4": TRIM,
    "llama": TRIM,
    "step35": TRIM,
}
STATEFUL = [name for name, ways in WAYS.items() if ways != TRIM]
TWIN = "a twin"  # of the target, with some other weights: it is right more often than not


class Pair(NamedTuple):
    """A target, and what drafts for it: None for heads in its own file."""

    target: str
    draft: str | None

    @property
    def architecture(self) -> str:
        """Of the target."""
        return MODELS[self.target].name


# A model that drafts, of the target's architecture and of another kind of memory.
WITH_MODEL = [
    *(Pair(name, TWIN) for name in WAYS),
    Pair("qwen35", "llama"),
    Pair("llama", "mamba2"),
    Pair("rwkv7", "lfm2"),
]
WITH_MTP = [
    Pair("qwen35-mtp", None),
    Pair("qwen35", "mtp-qwen35"),
    Pair("qwen35moe-mtp", None),
    Pair("qwen3next-mtp", None),
    Pair("nemotron_h_moe-mtp", None),
    Pair("glm4moe-mtp", None),
    Pair("step35-mtp3", None),
    Pair("step35", "mtp-step35"),
    Pair("gemma4", "gemma4-assistant"),
]
_TAPPED = "llama qwen35 qwen35moe qwen3next nemotron_h nemotron_h_moe lfm2 gemma4".split()
WITH_EAGLE3 = [*(Pair(name, "eagle3") for name in _TAPPED), Pair("llama", "eagle3-reduced")]
WITH_DFLASH = [
    *(Pair(name, "dflash") for name in _TAPPED),
    *(
        Pair("llama", draft)
        for draft in ("dspark", "dspark-reduced", "dspark-deepseek4", "dflash2")
    ),
    *(Pair("qwen35", draft) for draft in ("dspark-bonus", "dflash2-causal")),
]


def table() -> list[str]:
    """A row in Markdown for each architecture: its ways to roll back, and what drafts for it."""

    def targets(pairs: list[Pair]) -> set[str]:
        return {pair.architecture for pair in pairs}

    def mtp(name: str) -> str:
        mine = [pair.draft for pair in WITH_MTP if pair.architecture == name]
        kinds = {None: "own", "gemma4-assistant": "assistant"}
        return ", ".join(dict.fromkeys(kinds.get(draft, "sidecar") for draft in mine)) or "–"

    def said(there: bool) -> str:
        return "yes" if there else "–"

    modelled, eagle3, dflash = (targets(each) for each in (WITH_MODEL, WITH_EAGLE3, WITH_DFLASH))
    return [
        f"|{name}|{', '.join(ways)}|yes|{said(name in modelled)}|{mtp(name)}|"
        f"{said(name in eagle3)}|{said(name in dflash)}|"
        for name, ways in WAYS.items()
    ]


class HalfRight(ModelDrafter):
    """Says what will come most of the time, since random heads never do."""

    coming: Sequence[int] = ()

    def propose(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        """As the model does, with other tokens."""
        dice, place = Random(len(context)), len(context) + len(ahead)
        for i, candidate in enumerate(super().propose(context, ahead), place):
            told = i < len(self.coming) and dice.random() < 0.7
            yield candidate._replace(token=self.coming[i]) if told else candidate
