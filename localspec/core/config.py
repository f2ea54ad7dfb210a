"""Parameters of sampling, loading and drafting: defaults, bounds, how they are read from text."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from localspec.core.errors import UsageError

# A verification of 64 tokens or more takes another path through llama.cpp's CPU flash attention,
# which rounds differently; up to 63, drafted tokens and the pending one, all widths agree.
MAX_DRAFT_TOKENS = 62
DEFAULT_CTX_SIZE = 8192
MAX_THREADS = 512  # GGML_MAX_N_THREADS; llama.cpp aborts beyond it
_COLDEST = 1e-6  # below it division by the temperature only loses digits
MAX_SEED = 2**32 - 1  # llama.cpp's seeds are 32 bits wide

DraftTokens = int | Literal["auto"]  # 0 is "off"
AcceptanceRule = Literal["coupled", "match", "rejection"]
ACCEPTANCE_RULES: tuple[AcceptanceRule, ...] = get_args(AcceptanceRule)
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

# GGUF keys below `general.sampling.` that llama.cpp reads, and our names for them.
RECOMMENDED_KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from the target's logits. Defaults are llama.cpp's.

    ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and ``repeat_penalty`` 1 each switch their step off;
    ``temperature`` 0 is greedy. ``repeat_last_n`` is in tokens, -1 meaning the whole context.
    ``acceptance`` is the rule for drafted tokens: "coupled", where target and draft draw with the
    same noise; "match", where the draft's likeliest token must be the one the target draws;
    "rejection", the p/q test, by which the text for a seed depends on the draft. Each leaves the
    distribution of the text the target's own. Raises UsageError for a value outside its range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0
    acceptance: AcceptanceRule = "coupled"

    def __post_init__(self) -> None:
        _require("temperature", self.temperature, 0, 100)
        _require("top-k", self.top_k, 0, 2**31 - 1)
        _require("top-p", self.top_p, 0, 1)
        _require("min-p", self.min_p, 0, 1)
        _require("repeat-penalty", self.repeat_penalty, 0.01, 100)
        _require("repeat-last-n", self.repeat_last_n, -1, 2**31 - 1)
        _require("seed", self.seed, 0, MAX_SEED)
        if self.acceptance not in ACCEPTANCE_RULES:
            raise UsageError(
                f"{self.acceptance!r} is no rule of acceptance.",
                f"Rules are: {', '.join(ACCEPTANCE_RULES)}.",
            )

    @property
    def greedy(self) -> bool:
        return self.temperature < _COLDEST

    @property
    def seed_decides(self) -> bool:
        """Whether the seed gives one text with any draft or none."""
        return self.greedy or self.acceptance != "rejection"

    @property
    def penalises(self) -> bool:
        return self.repeat_penalty != 1 and self.repeat_last_n != 0


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also false for NaN
        raise UsageError(
            f"{name} is {value}, expected a value from {low} to {high}.",
            f"The default is {getattr(SamplingParams(), name.replace('-', '_'))}.",
        )


def default_length(params: SamplingParams) -> DraftTokens:
    """The draft length where none is named: auto, unless the rule of acceptance forbids it."""
    return "auto" if params.seed_decides else 4


def require_fixed_length(length: DraftTokens, params: SamplingParams) -> None:
    """Raise UsageError for a length that would bias the text under this rule of acceptance.

    auto verifies a token or not by how sure the draft was of it; the p/q test needs tokens that
    were drawn from q alone.
    """
    if length == "auto" and not params.seed_decides:
        raise UsageError(
            "With --acceptance rejection the draft length must be fixed: auto looks at what was "
            "drafted, which would change the odds.",
            "Give one: --draft 4, or /draft 4 in chat; or keep to another rule of acceptance.",
        )


def choose_sampling(
    given: Mapping[str, float | int | str | None], recommended: Mapping[str, float | int]
) -> tuple[SamplingParams, tuple[str, ...]]:
    """Merge flags over the model's own recommendation over llama.cpp's defaults.

    ``given`` maps our field names to a value or None; ``recommended`` maps the keys of
    RECOMMENDED_KEYS as read from the file. Returns the parameters and the names of the fields
    that the model's recommendation decided. A recommendation outside its range is ignored, since
    the file is a stranger's. Without a seed a random one is chosen. Raises UsageError for a flag
    outside its range.
    """
    params = SamplingParams(seed=secrets.randbelow(MAX_SEED + 1))
    from_model = []
    for key, name in RECOMMENDED_KEYS.items():
        if key in recommended and given.get(name) is None:
            try:
                params = _with(params, name, recommended[key])
            except UsageError:
                continue
            from_model.append(name)
    for name, value in given.items():
        if value is not None:
            params = _with(params, name, value)
    return params, tuple(from_model)


def change_sampling(params: SamplingParams, name: str, text: str) -> SamplingParams:
    """The parameters with one of them read from text; ``top-k`` and ``top_k`` are the same.

    Raises UsageError for a name that is none, or a value that does not fit it.
    """
    field = name.replace("-", "_")
    if field not in sampling_fields():
        raise UsageError(
            f"There is no setting {name!r}.", f"Settings are: {', '.join(sampling_fields())}."
        )
    kind = type(getattr(SamplingParams(), field))  # 0 may stand for 0.0 in the ones given
    try:
        value = kind(text)
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise UsageError(f"{text!r} is no value for {name}.", f"Expected {expected}.") from None
    return _with(params, field, value)


def sampling_fields() -> tuple[str, ...]:
    """Names of the sampling parameters."""
    return tuple(field.name for field in fields(SamplingParams))


def _with(params: SamplingParams, name: str, value: float | int | str) -> SamplingParams:
    typed = type(getattr(SamplingParams(), name))(value)
    changes: dict[str, Any] = {name: typed}
    return replace(params, **changes)


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
