"""Sampling parameters: bounds are UsageErrors, what is switched off, how a bias is read."""

from typing import Any

import pytest

from localspec.core.errors import UsageError
from localspec.core.options.sampling_params import (
    MAX_SEED,
    SamplingParams,
    parse_logit_bias,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ("temperature", [0, 0.01, 100], [-0.1, 100.5, NAN, INF, -INF]),
        ("top_k", [-1, 0, 1, 10**6], [2**31, NAN]),
        ("top_p", [0, 0.5, 1], [-0.01, 1.01, NAN, INF]),
        ("min_p", [0, 0.5, 1], [-0.01, 1.01, NAN, INF]),
        ("repeat_penalty", [0.01, 1, 100], [0, -1, 101, NAN]),
        ("typical_p", [0, 0.5, 1], [-0.01, 1.01, NAN]),
        ("top_n_sigma", [-1, 0, 1.5], [-2, INF, NAN]),
        ("xtc_probability", [0, 0.5, 1], [-0.01, 1.01, NAN]),
        ("xtc_threshold", [0, 0.5, 1], [-0.01, 1.01, NAN]),
        ("dynatemp_range", [0, 0.5, 100], [-0.01, INF, NAN]),
        ("dynatemp_exp", [0, 0.5, 100], [-0.01, INF, NAN]),
        ("repeat_last_n", [-1, 0, 64], [-2, 2**31]),
        ("presence_penalty", [-2, 0, 2], [-INF, INF, NAN]),
        ("frequency_penalty", [-2, 0, 2], [-INF, INF, NAN]),
        ("dry_multiplier", [0, 0.8], [-0.1, INF, NAN]),
        ("dry_base", [1, 1.75], [0.99, INF, NAN]),
        ("dry_allowed_length", [0, 2, 64], [-1, 2**31]),
        ("dry_penalty_last_n", [0, 64], [-1, 2**31]),
        ("seed", [0, MAX_SEED], [-1, MAX_SEED + 1]),
    ],
)
def test_ranges(field: str, inside: list[float], outside: list[float]) -> None:
    for value in inside:
        assert getattr(SamplingParams(**{field: value}), field) == value  # type: ignore[arg-type]
    for value in outside:
        with pytest.raises(UsageError, match=f"^{field} is") as raised:
            SamplingParams(**{field: value})  # type: ignore[arg-type]
        assert raised.value.hint
        assert raised.value.exit_code == 2


def test_what_is_switched_off() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=0.01).greedy
    assert not SamplingParams().penalises
    assert SamplingParams(repeat_penalty=1.1).penalises
    assert not SamplingParams(repeat_penalty=1.1, repeat_last_n=0).penalises
    assert SamplingParams(presence_penalty=-1).penalises
    assert SamplingParams(frequency_penalty=0.1).penalises
    assert not SamplingParams().dry and SamplingParams(dry_multiplier=0.8).dry
    assert not SamplingParams(dry_multiplier=0.8, dry_penalty_last_n=0).dry
    assert SamplingParams(xtc_probability=0.1).excludes_top
    assert not SamplingParams(xtc_probability=0.1, xtc_threshold=0.51).excludes_top


@pytest.mark.parametrize(
    ("changes", "greedy"),
    [
        ({"top_n_sigma": 1.0, "dry_multiplier": 1.0}, True),  # the likeliest survives these
        ({"typical_p": 0.5}, False),
        ({"xtc_probability": 0.5}, False),
        ({"dynatemp_range": 0.5}, False),
    ],
)
def test_what_temperature_0_leaves_to_the_seed(changes: dict[str, Any], greedy: bool) -> None:
    assert SamplingParams(temperature=0, **changes).greedy is greedy
    assert not SamplingParams(temperature=0.5, **changes).greedy


@pytest.mark.parametrize(
    ("text", "expected"),
    [("15043+1", (15043, 1.0)), ("0-2.5", (0, -2.5)), ("7-inf", (7, -INF)), ("7+1e2", (7, 100.0))],
)
def test_a_logit_bias_is_read_as_llama_cpp_does(text: str, expected: tuple[int, float]) -> None:
    assert parse_logit_bias(text) == expected
    assert SamplingParams(logit_bias=(text,)).logit_bias == (text,)


@pytest.mark.parametrize(
    "text", ["", "5", "5+", "+1", "-5+1", "5=1", "5+x", "5+inf", "5+nan", "5-1e9", "x+1", "5 \x1b"]
)
def test_a_logit_bias_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="is no logit bias") as raised:
        SamplingParams(logit_bias=(text,))
    assert raised.value.message.isprintable() and "ID+BIAS" in raised.value.hint


@pytest.mark.parametrize("breakers", [("",), ("x" * 41,), ("é" * 21,), ("x",) * 65])
def test_sequence_breakers_are_bounded(breakers: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="sequence breaker"):
        SamplingParams(dry_sequence_breakers=breakers)
