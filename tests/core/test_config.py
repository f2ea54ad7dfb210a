"""Config: bounds are UsageErrors, flags win over the model's advice, `--draft` is read as meant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.config import (
    MAX_DRAFT_TOKENS,
    DraftOptions,
    DraftTokens,
    choose_draft,
    parse_draft_tokens,
)
from localspec.core.errors import UsageError
from localspec.core.sampling_params import (
    MAX_SEED,
    RECOMMENDED_KEYS,
    SamplingParams,
    change_sampling,
    choose_sampling,
    parse_logit_bias,
    sampling_fields,
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
        with pytest.raises(UsageError, match=f"^{field.replace('_', '-')} is") as raised:
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
    for field in RECOMMENDED_KEYS.values():
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
    params = SamplingParams(0.5, 3, 0.75, repeat_penalty=1.5, seed=9, acceptance="match")
    for name in sampling_fields():
        value = getattr(params, name)
        if isinstance(value, tuple):
            value = r"\n : \" *" if value else ""
        assert change_sampling(params, name, str(value)) == params


# -- drafts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("8", (8,)),
        ("0", (0,)),
        ("62", (62,)),
        ("off", (0,)),
        ("auto", ("auto",)),
        ("0,2,4", (0, 2, 4)),
        (" off , 3,auto ", (0, 3, "auto")),
        ("", None),
        (",", None),
        ("3,", None),
        ("-1", None),
        ("2.5", None),
        ("AUTO", None),
        ("draft.gguf", None),
        ("8.gguf", None),
        ("./8", None),
        ("3,draft.gguf", None),
        ("\u00b2", None),
    ],
)
def test_parse_lengths(text: str, lengths: tuple[DraftTokens, ...] | None) -> None:
    assert parse_draft_tokens(text) == lengths


@pytest.mark.parametrize("text", ["63", "1,63", "99999999"])
def test_a_draft_longer_than_we_verify_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=str(MAX_DRAFT_TOKENS)):
        parse_draft_tokens(text)
    with pytest.raises(UsageError):
        choose_draft([text], None, None)


@given(st.lists(st.one_of(st.integers(0, MAX_DRAFT_TOKENS), st.just("auto")), min_size=1))
def test_lengths_are_read_as_written(lengths: list[DraftTokens]) -> None:
    assert parse_draft_tokens(",".join(map(str, lengths))) == tuple(lengths)


SMALL, OTHER = "small.gguf", "other.gguf"


@pytest.mark.parametrize(
    ("either", "model", "lengths", "expected"),
    [
        ([], None, None, DraftOptions()),
        (["8"], None, None, DraftOptions(None, (8,))),
        (["auto"], None, None, DraftOptions(None, ("auto",))),
        (["off"], None, None, DraftOptions(None, (0,))),
        (["0,2"], None, None, DraftOptions(None, (0, 2))),
        (["small.gguf"], None, None, DraftOptions(SMALL)),
        (["small.gguf", "4"], None, None, DraftOptions(SMALL, (4,))),
        (["4", "small.gguf"], None, None, DraftOptions(SMALL, (4,))),
        (["off", "small.gguf"], None, None, DraftOptions(SMALL, (0,))),
        ([], SMALL, None, DraftOptions(SMALL)),
        ([], None, "4", DraftOptions(None, (4,))),
        ([], SMALL, "auto", DraftOptions(SMALL, ("auto",))),
        (["4"], SMALL, None, DraftOptions(SMALL, (4,))),
        (["small.gguf"], None, "4,off", DraftOptions(SMALL, (4, 0))),
    ],
)
def test_choose_draft(
    either: list[str], model: str | None, lengths: str | None, expected: DraftOptions
) -> None:
    before = list(either)
    assert choose_draft(either, model, lengths) == expected
    assert either == before


@pytest.mark.parametrize(
    ("either", "model", "lengths", "message"),
    [
        (["small.gguf", "other.gguf"], None, None, "Two draft models"),
        (["small.gguf"], OTHER, None, "Two draft models"),
        (["small.gguf", "4"], OTHER, None, "Two draft models"),
        (["4", "5"], None, None, "Two draft lengths"),
        (["4", "auto"], None, None, "Two draft lengths"),
        (["off"], None, "4", "Two draft lengths"),
        ([], None, "many", "no draft length"),
        (["small.gguf"], None, "", "no draft length"),
        ([], None, "small.gguf", "no draft length"),
    ],
)
def test_competing_drafts_are_refused(
    either: list[str], model: str | None, lengths: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        choose_draft(either, model, lengths)
    assert raised.value.hint


def test_one_length() -> None:
    assert DraftOptions().one_length("auto") == "auto"
    assert DraftOptions(None, (0,)).one_length("auto") == 0
    with pytest.raises(UsageError, match="not a list"):
        DraftOptions(None, (0, 4)).one_length("auto")


@pytest.mark.parametrize("text", ["-3", "1.5", "-1,5"])
def test_a_number_that_is_no_length_is_not_taken_for_a_file(text: str) -> None:
    with pytest.raises(UsageError, match="no draft length"):
        choose_draft([text], None, None)
