"""Choice of sampling: flags win over the model's advice, and a setting is read as it was typed."""

from dataclasses import replace
from typing import Any

import pytest

from localspec.core.errors import UsageError
from localspec.core.options.sampling_choice import (
    change_sampling,
    choose_sampling,
    written,
)
from localspec.core.options.sampling_params import MAX_SEED, SamplingParams, sampling_fields

NAN, INF = float("nan"), float("inf")

# -- choose_sampling: flag over recommendation over default ------------------------------------


@pytest.mark.parametrize(
    ("given_flags", "recommended", "expected", "from_model"),
    [
        ({}, {}, {}, ()),
        ({"temperature": 0.1}, {}, {"temperature": 0.1}, ()),
        ({}, {"temp": 0.6}, {"temperature": 0.6}, ("temperature",)),
        ({"temperature": 0.1}, {"temp": 0.6}, {"temperature": 0.1}, ()),
        ({"temperature": 0}, {"temp": 0.6}, {"temperature": 0}, ()),
        ({"temperature": None}, {"temp": 0.6}, {"temperature": 0.6}, ("temperature",)),
        (
            {"top_k": 5, "min_p": None},
            {"top_k": 20, "top_p": 0.8, "min_p": 0},
            {"top_k": 5, "top_p": 0.8, "min_p": 0},
            ("top_p", "min_p"),
        ),
        ({}, {"penalty_repeat": 1.05}, {"repeat_penalty": 1.05}, ("repeat_penalty",)),
        ({}, {"penalty_last_n": -1}, {"repeat_last_n": -1}, ("repeat_last_n",)),
        ({}, {"xtc_probability": 0.5}, {"xtc_probability": 0.5}, ("xtc_probability",)),
        ({}, {"temp": "0.5"}, {"temperature": 0.5}, ("temperature",)),  # as llama.cpp reads texts
    ],
)
def test_choose_sampling(
    given_flags: dict[str, float | None],
    recommended: dict[str, float],
    expected: dict[str, float],
    from_model: tuple[str, ...],
) -> None:
    params, chosen, ignored = choose_sampling({**given_flags, "seed": 7}, recommended)
    assert params == SamplingParams(seed=7, **expected)  # type: ignore[arg-type]
    assert chosen == from_model
    assert ignored == ()


@pytest.mark.parametrize(
    ("recommended", "ignored"),
    [
        ({"top_p": 7, "top_k": 20}, ("top_p 7",)),  # absurd
        ({"temp": NAN}, ("temp nan",)),
        ({"top_k": INF}, ("top_k inf",)),
        ({"temp": "hot"}, ("temp hot",)),
        ({"new\x1b": 3}, ("new\\x1b 3",)),
        ({"mirostat": 2, "mirostat_tau": 5.5}, ("mirostat 2", "mirostat_tau 5.5")),
        ({"mirostat": 0, "mirostat_tau": 5.5}, ()),  # switched off, as here
        ({"mirostat_eta": 0.1}, ()),
        ({"sequence": "top_k;temperature"}, ("sequence top_k;temperature",)),
        ({"sequence": "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"}, ()),
    ],
)
def test_a_recommendation_that_cannot_be_followed_is_named(
    recommended: dict[str, float | str], ignored: tuple[str, ...]
) -> None:
    chosen = choose_sampling({"seed": 7}, recommended)
    assert chosen.ignored == ignored
    assert chosen.params == replace(SamplingParams(seed=7), top_k=chosen.params.top_k)


def test_a_flag_stands_above_a_recommendation_that_cannot_be_followed() -> None:
    assert choose_sampling({"top_p": 0.5}, {"top_p": 7}).ignored == ()


def test_advice_keeps_the_type_of_its_field() -> None:
    params, _, _ = choose_sampling({"seed": 1}, {"top_k": 20.0, "penalty_last_n": 8.0, "temp": 1})
    for field in ("top_k", "repeat_last_n", "temperature"):
        assert type(getattr(params, field)) is type(getattr(SamplingParams(), field))


def test_a_flag_outside_its_range_is_an_error() -> None:
    with pytest.raises(UsageError):
        choose_sampling({"top_p": 2}, {})


def test_a_seed_is_drawn_when_none_is_given() -> None:
    seeds = {choose_sampling({"seed": None}, {})[0].seed for _ in range(20)}
    assert len(seeds) > 10
    assert choose_sampling({"seed": 0}, {})[0].seed == 0


def test_seed_minus_1_draws_one() -> None:
    seeds = {choose_sampling({"seed": -1}, {}).params.seed for _ in range(20)}
    seeds |= {change_sampling(SamplingParams(), "seed", "-1").seed for _ in range(20)}
    assert len(seeds) > 20 and min(seeds) >= 0


# -- change_sampling: one setting from what was typed -------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("temperature", "0.25", {"temperature": 0.25}),
        ("temperature", "0", {"temperature": 0.0}),
        ("top_k", "5", {"top_k": 5}),
        ("top-k", " 5 ", {"top_k": 5}),
        ("repeat-last-n", "-1", {"repeat_last_n": -1}),
        ("seed", str(MAX_SEED), {"seed": MAX_SEED}),
        ("xtc-probability", "0.5", {"xtc_probability": 0.5}),
        ("ignore-eos", "on", {"ignore_eos": True}),
        ("logit-bias", "5+1 7-inf", {"logit_bias": ("5+1", "7-inf")}),
        ("logit-bias", "", {"logit_bias": ()}),
        ("dry-sequence-breakers", r"\n ;", {"dry_sequence_breakers": ("\n", ";")}),
    ],
)
def test_change_sampling(name: str, text: str, expected: dict[str, Any]) -> None:
    before = SamplingParams(top_p=0.5, seed=3)
    changed = change_sampling(before, name, text)
    assert changed == SamplingParams(**({"top_p": 0.5, "seed": 3} | expected))
    (field,) = expected
    assert type(getattr(changed, field)) is type(getattr(SamplingParams(), field))
    assert before == SamplingParams(top_p=0.5, seed=3)


def test_a_temperature_given_as_an_integer_can_be_changed() -> None:
    assert change_sampling(SamplingParams(temperature=0), "temperature", "0.7").temperature == 0.7


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("warmth", "1", "no setting 'warmth'"),
        ("", "1", "no setting"),
        ("greedy", "1", "no setting"),
        ("--seed", "1", "no setting"),
        ("temperature", "", "no value"),
        ("temperature", "hot", "no value"),
        ("top_k", "1.5", "no value"),
        ("top_k", "9" * 5000, "no value"),
        ("temperature", "nan", "^temperature is nan"),
        ("temperature", "1e999", "^temperature is inf"),
        ("seed", "-2", "^seed is -2"),
        ("ignore_eos", "maybe", "no value"),
        ("logit_bias", "5", "no logit bias"),
    ],
)
def test_a_change_that_does_not_fit(name: str, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        change_sampling(SamplingParams(), name, text)
    assert raised.value.hint


def test_every_setting_can_be_changed_to_what_it_is() -> None:
    params = SamplingParams(
        0.5, 3, 0.75, repeat_penalty=1.5, seed=9, acceptance="match", ignore_eos=True,
        logit_bias=("5+1", "6-inf"), dry_sequence_breakers=("\n", "\\n", '"', "\t\r"),
    )  # fmt: skip
    for name in sampling_fields():
        assert change_sampling(params, name, written(params, name)) == params
    assert written(params, "ignore_eos") == "on"
    assert written(params, "logit_bias") == "5+1 6-inf"
