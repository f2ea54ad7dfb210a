"""Sampling parameters: how a token is chosen, with defaults and bounds."""

import math
import re
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from localspec.core.config import DraftTokens
from localspec.core.errors import UsageError
from localspec.core.formatting import one_line

COLDEST = 1e-6  # below it division by the temperature only loses digits
MAX_SEED = 2**32 - 1  # llama.cpp's seeds are 32 bits wide
_MAX_COUNT = 2**31 - 1
_MAX_BIAS = 1e6  # logits, in size
_MAX_BREAKERS, _MAX_BREAKER_BYTES = 64, 40  # llama.cpp cuts a breaker off at 40 bytes

AcceptanceRule = Literal["coupled", "match", "rejection"]
ACCEPTANCE_RULES: tuple[AcceptanceRule, ...] = get_args(AcceptanceRule)

# Least and largest value of each number.
_BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_k": (-_MAX_COUNT, _MAX_COUNT),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "top_n_sigma": (-1, 1000),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "dynatemp_range": (0, 100),
    "dynatemp_exp": (0, 100),
    "repeat_penalty": (0.01, 100),
    "repeat_last_n": (-1, _MAX_COUNT),
    "presence_penalty": (-1000, 1000),
    "frequency_penalty": (-1000, 1000),
    "dry_multiplier": (0, 1000),
    "dry_base": (1, 1000),
    "dry_allowed_length": (0, _MAX_COUNT),
    "dry_penalty_last_n": (0, _MAX_COUNT),
    "seed": (0, MAX_SEED),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from the target's logits. Defaults are llama.cpp's.

    Draw: ``temperature`` 0 is greedy. With ``dynatemp_range`` above 0 the temperature is up to so
    much lower or higher, by the entropy to the power of ``dynatemp_exp``.

    Truncation: ``top_k`` 0 or below, ``top_p`` 1, ``min_p`` 0, ``typical_p`` 1, ``top_n_sigma`` 0
    or below, and ``xtc_probability`` 0 or ``xtc_threshold`` above 0.5 each switch their step off.

    Penalties: ``repeat_penalty`` 1, ``presence_penalty`` 0 and ``frequency_penalty`` 0 are off;
    they look back ``repeat_last_n`` tokens, -1 meaning the whole context. ``dry_multiplier`` 0
    switches DRY off; it looks back ``dry_penalty_last_n`` tokens for repetitions longer than
    ``dry_allowed_length`` that do not reach across ``dry_sequence_breakers``, texts of up to 40
    bytes of which "none" drops those before it.

    Bias: ``logit_bias`` holds texts as llama.cpp's flag takes them, ID+BIAS, ID-BIAS or ID-inf;
    ``ignore_eos`` keeps tokens that would end the answer from being picked.

    ``acceptance`` is the rule for drafted tokens: "coupled", where target and draft draw with the
    same noise; "match", where the draft's likeliest token must be the one the target draws;
    "rejection", the p/q test, by which the text for a seed depends on the draft. Each leaves the
    distribution of the text the target's own. Raises UsageError for a value outside its range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exp: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    logit_bias: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int = 0
    acceptance: AcceptanceRule = "coupled"

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if not low <= value <= high:  # also for NaN
                raise UsageError(
                    f"{name.replace('_', '-')} is {value}, expected a value from {low} to {high}.",
                    f"The default is {getattr(SamplingParams(), name)}.",
                )
        _require_breakers(self.dry_sequence_breakers)
        for text in self.logit_bias:
            parse_logit_bias(text)
        if self.acceptance not in ACCEPTANCE_RULES:
            raise UsageError(
                f"{self.acceptance!r} is no rule of acceptance.",
                f"Rules are: {', '.join(ACCEPTANCE_RULES)}.",
            )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, whatever the seed.

        At temperature 0 as well, typical-p and XTC may leave the likeliest out, and dynamic
        temperature may be above 0, as in llama.cpp.
        """
        cold = self.temperature < COLDEST and self.dynatemp_range == 0
        return cold and self.typical_p == 1 and not self.excludes_top

    @property
    def seed_decides(self) -> bool:
        """Whether the seed gives one text with any draft or none."""
        return self.greedy or self.acceptance != "rejection"

    @property
    def penalises(self) -> bool:
        """Whether tokens that occurred change their logits, DRY left out."""
        factors = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        return factors != (1, 0, 0) and self.repeat_last_n != 0

    @property
    def dry(self) -> bool:
        """Whether tokens that would extend a repetition are penalised."""
        return self.dry_multiplier != 0 and self.dry_penalty_last_n != 0

    @property
    def excludes_top(self) -> bool:
        """Whether XTC may leave out the likeliest tokens."""
        return self.xtc_probability > 0 and self.xtc_threshold <= 0.5

    @property
    def draft_greedy(self) -> "SamplingParams":
        """The same for a draft that proposes the likeliest token of what truncation leaves."""
        return replace(self, temperature=0.0, dynatemp_range=0.0)


def _require_breakers(breakers: tuple[str, ...]) -> None:
    for text in breakers:
        if not 1 <= len(text.encode("utf-8", "surrogatepass")) <= _MAX_BREAKER_BYTES:
            raise UsageError(
                f"A sequence breaker has {len(text)} characters.",
                f"Expected 1 to {_MAX_BREAKER_BYTES} bytes; none drops all breakers.",
            )
    if len(breakers) > _MAX_BREAKERS:
        raise UsageError(
            f"There are {len(breakers)} sequence breakers.", f"Give {_MAX_BREAKERS} at most."
        )


def parse_logit_bias(text: str) -> tuple[int, float]:
    """Token id and bias of ``15043+1``, ``15043-1`` or ``15043-inf``; else raises UsageError."""
    found = re.fullmatch(r"(\d{1,9})([+-].{1,20})", text)
    try:
        bias = float(found[2]) if found else math.nan
    except ValueError:
        bias = math.nan
    if found is None or not (abs(bias) <= _MAX_BIAS or bias == -math.inf):
        raise UsageError(
            f"{one_line(text[:40])} is no logit bias.",
            "Expected ID+BIAS, ID-BIAS or ID-inf, such as 15043+1.",
        )
    return int(found[1]), bias


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


def sampling_fields() -> tuple[str, ...]:
    """Names of the sampling parameters."""
    return tuple(field.name for field in fields(SamplingParams))
