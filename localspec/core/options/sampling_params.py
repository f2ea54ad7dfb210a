"""Sampling parameters: how a token is chosen, with defaults and bounds."""

import math
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from localspec.core.errors import UsageError
from localspec.core.formatting import one_line
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.option import DRAFTING, Bounds, option, options, require_bounds

COLDEST = 1e-6  # below it division by the temperature only loses digits
MAX_SEED = 2**32 - 1  # llama.cpp's seeds are 32 bits wide
RANDOM_SEED = -1  # draw one
_MAX_COUNT = 2**31 - 1
_SHARE = Bounds(0, 1)
_MAX_BIAS = 1e6  # logits, in size
_MAX_BREAKERS, _MAX_BREAKER_BYTES = 64, 40  # llama.cpp cuts a breaker off at 40 bytes

AcceptanceRule = Literal["coupled", "match", "rejection"]


def unescaped(text: str) -> str:
    r"""The text with ``\n``, ``\t``, ``\r``, ``\"``, ``\'`` and ``\\`` read as escapes.

    As llama.cpp reads sequence breakers on its command line (`string_process_escapes`), but for
    ``\x``.
    """
    meant = {"n": "\n", "r": "\r", "t": "\t"}
    return re.sub(r"\\([nrt'\"\\])", lambda found: meant.get(found[1], found[1]), text)


_sampling = partial(option, panel="Sampling", stored=True)
_usual = partial(_sampling, everyday=True, request=True)
_share = partial(_sampling, bounds=_SHARE)
_penalty = partial(option, panel="Penalties and biases", stored=True)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from the target's logits. Defaults are llama.cpp's.

    Each step is switched off by the value that its help names; XTC also by a threshold above 0.5.
    ``logit_bias`` holds texts as llama.cpp's flag takes them, ID+BIAS, ID-BIAS or ID-inf. Of
    ``dry_sequence_breakers``, texts of up to 40 bytes, "none" drops those before it.

    ``acceptance`` is the rule for drafted tokens: "coupled": target and draft draw with the same
    noise; "match": the draft's likeliest token must be the one that the target draws; "rejection":
    the p/q test, by which the text for a seed depends on the draft. Each preserves the target's
    distribution of texts. Raises UsageError for a value outside its range.
    """

    temperature: float = _usual(
        0.8,
        "--temp --temperature",
        "Temperature; 0: greedy.",
        bounds=Bounds(0, 100),
        gguf_key="temp",
    )
    top_k: int = _usual(
        40,
        "--top-k",
        "Keep the K likeliest; 0: off.",
        bounds=Bounds(-_MAX_COUNT, _MAX_COUNT),
        request=Bounds(-1, _MAX_COUNT),
        gguf_key="top_k",
    )
    top_p: float = _usual(
        0.95,
        "--top-p",
        "Keep the likeliest tokens up to this total probability; 1: off.",
        bounds=_SHARE,
        gguf_key="top_p",
    )
    min_p: float = _usual(
        0.05,
        "--min-p",
        "Drop tokens below this share of the best token's probability; 0: off.",
        bounds=_SHARE,
        gguf_key="min_p",
    )
    typical_p: float = _share(
        1.0,
        "--typical-p --typical",
        "Keep the tokens whose surprise is closest to the entropy, up to this total probability; "
        "1: off.",
        request=True,
    )
    top_n_sigma: float = _sampling(
        -1.0,
        "--top-n-sigma --top-nsigma",
        "Keep tokens within this many standard deviations of the best logit; 0 or less: off.",
        bounds=Bounds(-1, 1000),
    )
    xtc_probability: float = _share(
        0.0,
        "--xtc-probability",
        "Probability that XTC removes all tokens above its threshold but the least likely; 0: off.",
        gguf_key="xtc_probability",
    )
    xtc_threshold: float = _share(
        0.1,
        "--xtc-threshold",
        "Probability from which XTC may remove a token; above 0.5: off.",
        gguf_key="xtc_threshold",
    )
    dynatemp_range: float = _sampling(
        0.0,
        "--dynatemp-range",
        "Dynamic temperature: up to this much lower or higher, by the entropy; 0: off.",
        bounds=Bounds(0, 100),
    )
    dynatemp_exp: float = _sampling(
        1.0,
        "--dynatemp-exp",
        "Exponent of the entropy in dynamic temperature.",
        bounds=Bounds(0, 100),
    )
    repeat_penalty: float = _penalty(
        1.0,
        "--repeat-penalty",
        "Divide the logits of recent tokens by this; 1: off.",
        bounds=Bounds(0.01, 100),
        request=True,
        gguf_key="penalty_repeat",
    )
    repeat_last_n: int = _penalty(
        64,
        "--repeat-last-n",
        "Recent tokens that the penalties count; -1: the whole context.",
        bounds=Bounds(-1, _MAX_COUNT),
        request=True,
        gguf_key="penalty_last_n",
    )
    presence_penalty: float = _penalty(
        0.0,
        "--presence-penalty",
        "Subtract this from the logits of recent tokens; 0: off.",
        bounds=Bounds(-1000, 1000),
        request=Bounds(-2, 2),
    )
    frequency_penalty: float = _penalty(
        0.0,
        "--frequency-penalty",
        "Subtract this for each time a recent token occurred; 0: off.",
        bounds=Bounds(-1000, 1000),
        request=Bounds(-2, 2),
    )
    dry_multiplier: float = _penalty(
        0.0,
        "--dry-multiplier",
        "Factor of DRY, which penalizes tokens that would extend a repetition; 0: off.",
        bounds=Bounds(0, 1000),
    )
    dry_base: float = _penalty(
        1.75,
        "--dry-base",
        "DRY grows by this factor with each repeated token.",
        bounds=Bounds(1, 1000),
    )
    dry_allowed_length: int = _penalty(
        2,
        "--dry-allowed-length",
        "Longest repetition, in tokens, that DRY allows.",
        bounds=Bounds(0, _MAX_COUNT),
    )
    dry_penalty_last_n: int = _penalty(
        64,
        "--dry-penalty-last-n",
        "Recent tokens in which DRY looks for repetitions; 0: off.",
        bounds=Bounds(0, _MAX_COUNT),
    )
    dry_sequence_breakers: tuple[str, ...] = _penalty(
        ("\n", ":", '"', "*"),
        "--dry-sequence-breaker",
        "Text that ends a repetition for DRY; may be repeated; none: no breakers. Default: "
        "newline, colon, quote and asterisk.",
        metavar="TEXT",
        parse=unescaped,
    )
    logit_bias: tuple[str, ...] = _penalty(
        (),
        "--logit-bias -l",
        "Add to the logit of a token: 15043+1, 15043-1 or 15043-inf; may be repeated.",
        metavar="ID+BIAS|ID-BIAS",
    )
    ignore_eos: bool = _penalty(
        False, "--ignore-eos", "Never pick a token that ends the answer.", request=True
    )
    seed: int = _usual(
        0,
        "--seed -s",
        "Random seed; the output does not depend on the draft length. Default, and -1: random.",
        bounds=Bounds(0, MAX_SEED),
        asked=Bounds(RANDOM_SEED, MAX_SEED),
    )
    acceptance: AcceptanceRule = option(
        "coupled",
        "--acceptance",
        "How drafted tokens are accepted. coupled: target and draft sample with the same noise. "
        "match: the draft's likeliest token must be the one that the target samples. rejection: "
        "the p/q test; needs a fixed draft length, and the text for a seed depends on the draft. "
        "All rules keep the target's distribution.",
        panel=DRAFTING,
        stored=True,
        llama_cpp=False,
    )

    def __post_init__(self) -> None:
        require_bounds(self)
        _require_breakers(self.dry_sequence_breakers)
        for text in self.logit_bias:
            parse_logit_bias(text)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, whatever the seed.

        At temperature 0 as well, typical-p and XTC may leave the likeliest out, and dynamic
        temperature may be above 0, as in llama.cpp.
        """
        cold = self.temperature < COLDEST and self.dynatemp_range == 0
        return cold and self.typical_p == 1 and not self.excludes_top

    @property
    def text_independent_of_draft(self) -> bool:
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
        """The same for a draft that proposes the likeliest token that truncation leaves."""
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
    """The draft length if none is named: auto, unless the rule of acceptance forbids it."""
    return "auto" if params.text_independent_of_draft else 4


def require_fixed_length(length: DraftTokens, params: SamplingParams) -> None:
    """Raise UsageError for a length that would bias the text under this rule of acceptance.

    auto verifies a token or not depending on the draft's confidence in it; the p/q test needs
    tokens that were drawn from q alone.
    """
    if length == "auto" and not params.text_independent_of_draft:
        raise UsageError(
            "With --acceptance rejection the draft length must be fixed: auto looks at the drafted "
            "tokens, which would change the odds.",
            "Give one: --draft 4, or /draft 4 in chat; or use another rule of acceptance.",
        )


def sampling_fields() -> tuple[str, ...]:
    return tuple(options(SamplingParams))
