"""Options of loading and drafting: defaults, bounds, how they are read from text."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from localspec.core.errors import UsageError

# A verification of 64 tokens or more takes another path through llama.cpp's CPU flash attention,
# which rounds differently; up to 63, drafted tokens and the pending one, all widths agree.
MAX_DRAFT_TOKENS = 62
DEFAULT_CTX_SIZE = 8192
MAX_THREADS = 512  # GGML_MAX_N_THREADS; llama.cpp aborts beyond it

DraftTokens = int | Literal["auto"]  # 0 is "off"
FlashAttention = Literal["auto", "on", "off"]
CacheType = Literal["f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
CACHE_TYPES: tuple[CacheType, ...] = get_args(CacheType)


class Bounds(NamedTuple):
    """The least and the largest value that a setting may have."""

    low: int
    high: int


# Of the command line and of the file of a pair.
DRAFT_TOKENS = Bounds(0, MAX_DRAFT_TOKENS)
CTX_SIZE = Bounds(8, 2**31 - 1)
LAYERS = Bounds(0, 2**31 - 1)
THREADS = Bounds(1, MAX_THREADS)

_ODD_NUMBER = re.compile(r"-[\d.,]+|\d*\.\d+")  # meant as a length, and never a file


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How one model is loaded. None means "decide from the file and the machine".

    Sizes are in tokens, threads in operating-system threads. ``exact`` makes every decode at least
    two tokens wide, because llama.cpp's one-token kernels may round differently from all others.
    """

    path: Path
    ctx_size: int | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    threads_batch: int | None = None
    device: str | None = None
    cpu_moe_layers: int = 0
    override_tensors: tuple[str, ...] = ()
    mlock: bool = False
    flash_attention: FlashAttention = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    exact: bool = False


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Which draft model, as it was named, and how many tokens it proposes in a round (0: none)."""

    model: str | None = None
    lengths: tuple[DraftTokens, ...] = ()

    def one_length(self, default: DraftTokens) -> DraftTokens:
        """The single length asked for; raises UsageError where a list was given."""
        if len(self.lengths) > 1:
            raise UsageError(
                "This command takes one draft length, not a list.", "Give one number, auto or off."
            )
        return self.lengths[0] if self.lengths else default


def parse_draft_tokens(text: str) -> tuple[DraftTokens, ...] | None:
    """Read ``8``, ``auto``, ``off`` or a list such as ``0,2,4``; None when it is none of these."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part in ("auto", "off") or part.isdecimal() for part in parts):
        return None
    lengths: list[DraftTokens] = []
    for part in parts:
        length: DraftTokens = "auto" if part == "auto" else 0 if part == "off" else int(part[:9])
        if length != "auto" and (length > MAX_DRAFT_TOKENS or len(part) > 9):
            raise UsageError(
                f"A draft of {part[:99]} tokens exceeds what we verify, {MAX_DRAFT_TOKENS}.",
                "Draft lengths that pay are between 1 and 16; try --draft 4.",
            )
        lengths.append(length)
    return tuple(lengths)


def choose_draft(either: list[str], model: str | None, lengths: str | None) -> DraftOptions:
    """Sort the values of ``--draft`` into a model and a length, beside the explicit flags.

    A value that reads as a length (``8``, ``auto``, ``off``, ``0,2,4``) is one; anything else
    names a model. Raises UsageError when two values compete for the same meaning.
    """
    models = [] if model is None else [model]
    texts = [] if lengths is None else [lengths]
    for value in either:
        if _ODD_NUMBER.fullmatch(value):
            raise UsageError(
                f"{value} is no draft length.",
                f"Expected a number from 0 to {MAX_DRAFT_TOKENS}, auto, off, or a GGUF file.",
            )
        (texts.append(value) if parse_draft_tokens(value) else models.append(value))
    if len(models) > 1:
        raise UsageError(
            f"Two draft models were given: {models[0]} and {models[1]}.", "Name one draft model."
        )
    if len(texts) > 1:
        raise UsageError(
            f"Two draft lengths were given: {texts[0]} and {texts[1]}.", "Give one draft length."
        )
    parsed = parse_draft_tokens(texts[0]) if texts else ()
    if parsed is None:
        raise UsageError(
            f"--draft-tokens {texts[0]!r} is no draft length.",
            f"Expected a number from 0 to {MAX_DRAFT_TOKENS}, auto or off.",
        )
    return DraftOptions(models[0] if models else None, parsed)
