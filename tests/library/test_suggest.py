"""Suggest: which drafts are offered first, with which reasons, and why others are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.library.catalog import load_catalog
from localspec.library.suggest import is_target_of, rule_of_thumb, suggest
from localspec.metadata.header import ModelHeader, read_header
from tests.support.gguf_files import model_keys, model_tensors, words, write_gguf

WORDS = words(300)


def never(target: ModelHeader, draft: ModelHeader) -> float | None:
    return None


def model(
    folder: Path, name: str, parameters: int, tokens: Sequence[str] = WORDS, **keys: object
) -> ModelHeader:
    vocab = {key: keys.pop(key) for key in ("model", "pre", "merges", "types") if key in keys}
    every = model_keys(tokens, **vocab) | {"general.name": name, **keys}
    return read_header(write_gguf(folder / f"{name}.gguf", every, model_tensors(parameters)))


@pytest.fixture
def target(tmp_path: Path) -> ModelHeader:
    return model(tmp_path, "Big", 1 << 20)


def names(found: Sequence[object]) -> list[str]:
    return [each.name for each in found]  # type: ignore[attr-defined]


def test_compatible_drafts_come_first_and_refused_ones_say_why(
    tmp_path: Path, target: ModelHeader
) -> None:
    other = [*WORDS[:100], "different", *WORDS[101:]]
    candidates = [
        ("good", model(tmp_path, "good", 1 << 15)),
        ("large", model(tmp_path, "large", 1 << 19)),
        ("other", model(tmp_path, "other", 1 << 15, other)),
        ("control", model(tmp_path, "control", 1 << 15, other, types=[3] * 300)),
        ("sentencepiece", model(tmp_path, "sentencepiece", 1 << 15, model="llama", merges=None)),
        ("bigger", model(tmp_path, "bigger", 1 << 21)),
        ("itself", target),
    ]
    target = replace(target, vocab=replace(target.vocab, token_types=None))  # type: ignore[type-var]
    found = suggest(target, candidates, (), None, never)
    assert names(found.drafts) == ["good", "large"]
    assert found.drafts[0].reasons[0] == "32 times smaller"
    assert found.drafts[1].reasons[:2] == ("2.0 times smaller", "too large to gain much")
    assert set(names(found.refused)) == {"other", "control", "sentencepiece"}
    assert names(found.refused)[-1] == "sentencepiece"
    assert "'word100' against 'different'" in found.refused[0].reason


def test_a_kindred_draft_is_preferred(tmp_path: Path) -> None:
    big = model(tmp_path, "Big", 1 << 20, **{"general.basename": "Owl-3"})
    plain = model(tmp_path, "plain", 1 << 15)
    kin = model(tmp_path, "kin", 1 << 15, **{"general.base_model.0.name": "Owl 3 0.6B Base"})
    found = suggest(big, [("plain", plain), ("kin", kin)], (), None, never)
    assert names(found.drafts) == ["kin", "plain"]
    assert any(reason.startswith("of the same family, Owl") for reason in found.drafts[0].reasons)


def test_what_was_measured_decides(tmp_path: Path, target: ModelHeader) -> None:
    slow, fast = model(tmp_path, "slow", 1 << 15), model(tmp_path, "fast", 1 << 18)
    speeds = {slow.path: 1.0, fast.path: 9.0}
    found = suggest(
        target, [("slow", slow), ("fast", fast)], (), None, lambda _, draft: speeds[draft.path]
    )
    assert names(found.drafts) == ["fast", "slow"]
    assert found.drafts[0].reasons[-1] == "measured here: 9.00x plain"


def test_what_does_not_fit_comes_last(tmp_path: Path, target: ModelHeader) -> None:
    draft = model(tmp_path, "draft", 1 << 15)
    (fits,) = suggest(target, [("draft", draft)], (), 1 << 40, never).drafts
    (short,) = suggest(target, [("draft", draft)], (), 1 << 20, never).drafts
    assert short.worth < fits.worth
    assert any("1 MiB are free" in reason for reason in short.reasons)


def test_a_recurrent_draft_is_no_use(tmp_path: Path, target: ModelHeader) -> None:
    draft = replace(model(tmp_path, "draft", 1 << 15), architecture="mamba")
    found = suggest(target, [("draft", draft)], (), None, never)
    assert not found.drafts or "cannot drop rejected tokens" in " ".join(found.drafts[0].reasons)


@pytest.mark.parametrize(
    "file, name, known",
    [
        ("Meta-Llama-3.1-8B-Instruct-Q8_0.gguf", None, "llama3.1-8b"),
        ("x.gguf", "Meta Llama 3.1 8B Instruct", "llama3.1-8b"),
        ("Meta-Llama-3.1-8B-Instruct-IQ4_XS-00001-of-00002.gguf", None, "llama3.1-8b"),
        ("Llama-3.2-1B-Instruct-Q8_0.gguf", None, None),
        ("model.gguf", "", None),
    ],
)
def test_known_pairs_are_found_by_their_target(
    target: ModelHeader, file: str, name: str | None, known: str | None
) -> None:
    mine = replace(target, path=Path(file), name=name)
    found = [pair.name for pair in load_catalog() if is_target_of(pair, mine)]
    assert (known in found) if known else found == []
    assert [pair.name for pair in suggest(mine, [], load_catalog(), None, never).known] == found


@given(st.floats(0.001, 2), st.floats(1, 1000))
def test_the_rule_of_thumb_is_sane(cost: float, ratio: float) -> None:
    assert 1 <= rule_of_thumb(cost, ratio) < 8
    assert rule_of_thumb(cost / 2, ratio) >= rule_of_thumb(cost, ratio)
    assert rule_of_thumb(cost, ratio * 2) <= rule_of_thumb(cost, ratio)
