"""Facts of a checked pair that an export needs, and the draft length that was learnt of it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localspec import __version__
from localspec.core.errors import IncompatiblePair
from localspec.core.formatting import one_line
from localspec.core.options.sampling_choice import choose_sampling
from localspec.core.options.sampling_params import RANDOM_SEED
from localspec.engine import profile_store
from localspec.export.names import Repositories
from localspec.hub.reference import Reference, parse_reference
from localspec.metadata.draft_kind import DraftKind, claimed_heads, draft_kind
from localspec.metadata.header import ModelHeader
from localspec.pairing import PairReport
from localspec.speculative.control.valuation import LONGEST_AUTO


@dataclass(frozen=True, slots=True)
class DraftLength:
    """Tokens drafted in a round (None: the engine's default), and the origin of the number.

    ``given`` is whether the user chose it.
    """

    tokens: int | None
    source: str
    given: bool = False


@dataclass(frozen=True, slots=True)
class PairFacts:
    """A checked pair as it is exported.

    ``draft`` is the target again if that drafts with heads of its own. ``ctx_size`` is in
    tokens. ``settings`` and ``sampling`` were given or saved with the pair, by the names of
    `PairSettings`.
    """

    target: ModelHeader
    draft: ModelHeader
    report: PairReport
    length: DraftLength
    ctx_size: int
    settings: Mapping[str, object] = field(default_factory=dict)
    sampling: Mapping[str, object] = field(default_factory=dict)
    repositories: Repositories = Repositories()

    @property
    def own_heads(self) -> bool:
        return self.target.paths == self.draft.paths

    @property
    def kind(self) -> DraftKind:
        if self.own_heads:
            return DraftKind("mtp", claimed_heads(self.target))
        return draft_kind(self.draft)

    @property
    def models(self) -> list[ModelHeader]:
        return [self.target] if self.own_heads else [self.target, self.draft]

    @property
    def all_settings(self) -> dict[str, object]:
        first = {"draft_tokens": self.length.tokens, "ctx_size": self.ctx_size}
        return {**first, **self.settings, **first}

    @property
    def whole_sampling(self) -> dict[str, object]:
        """The sampling saved with the pair, over the recommendation of the target's header."""
        chosen = choose_sampling(self.sampling, self.target.sampling)
        named = dict.fromkeys((*chosen.recommended, *self.sampling))
        if self.sampling.get("seed") == RANDOM_SEED:
            del named["seed"]
        values = {name: getattr(chosen.params, name) for name in named}
        # A header's numbers are 32 bits wide: 0.7, and not 0.699999988.
        return {n: float(f"{v:.7g}") if isinstance(v, float) else v for n, v in values.items()}

    @property
    def title(self) -> str:
        """Both models, for a comment: one line."""
        names = [one_line(header.path.name) for header in self.models]
        return " and ".join(names) + (" with its own heads" if self.own_heads else "")

    def heading(self, version: str) -> list[str]:
        """Comments for a file: its title, the version of an engine, and the draft length."""
        return [
            f"{self.title}, for {version}. Written by localspec {__version__}.",
            f"Draft length: {self.length.source}.",
        ]


@dataclass(frozen=True, slots=True)
class Exported:
    """Text that another engine takes, and notes for the user."""

    text: str
    notes: tuple[str, ...] = ()
    executable: bool = True


def on_hub(header: ModelHeader) -> Reference | None:
    """The reference of a model that was only read on the Hub; None for one on this disk."""
    if os.path.exists(header.path):
        return None
    return parse_reference(str(header.path))


def local_path(header: ModelHeader, engine: str) -> Path:
    """The absolute path of a model; raises IncompatiblePair for none on this disk, or no UTF-8."""
    reference = on_hub(header)
    if reference is not None:
        raise IncompatiblePair(
            f"{engine} takes files on this disk, and {reference} is on the Hub.",
            f"Fetch it first: localspec download {reference}",
        )
    path = header.path.absolute()
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise IncompatiblePair(
            f"{engine} cannot read {one_line(str(path))}: its path is not UTF-8.",
            "Link the file under a plain name, and export that.",
        ) from None
    return path


def learnt_length(target: ModelHeader, draft: ModelHeader) -> DraftLength:
    """The best fixed length by the figures that `auto` learnt last of this pair on this machine."""
    known = profile_store.latest([target, draft])
    block = draft_kind(draft).block_size > 0
    usual = None if known is None else known.usual_best(LONGEST_AUTO, drafts_block=block)
    if usual is None:
        return DraftLength(
            None,
            "the engine's default, since too little was learnt of this pair on this machine yet; "
            "find one with localspec bench, and give it with --draft-tokens N",
        )
    _, best = usual
    if best == 0:
        return DraftLength(
            None,
            "the engine's default, since by the figures of auto no fixed length is faster than "
            "plain decoding on this machine; see with localspec bench",
        )
    return DraftLength(
        best,
        f"{best}, the best fixed one by the costs and the acceptance that auto learnt on this "
        "machine; compare others with localspec bench",
    )
