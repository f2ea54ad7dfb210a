"""Sampling parameters: defaults, bounds, a model's recommendation, reading them from text."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from localspec.core.config import DraftTokens
from localspec.core.errors import UsageError

_COLDEST = 1e-6  # below it division by the temperature only loses digits
MAX_SEED = 2**32 - 1  # llama.cpp's seeds are 32 bits wide

AcceptanceRule = Literal["coupled", "match", "rejection"]
ACCEPTANCE_RULES: tuple[AcceptanceRule, ...] = get_args(AcceptanceRule)

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
