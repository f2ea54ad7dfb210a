"""Text equality: rounding is proven, and a mistake is never called that."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.bench.comparison import Comparison
from localspec.bench.equality import DifferenceFinder
from localspec.bench.plan import Variant
from localspec.chat.answer import Answer
from localspec.chat.stats import SameText
from localspec.core.options.load_options import DraftTokens
from tests.support.answers import VARIED, made_answer
from tests.support.toy.bench import compare, drafted, plan, variant
from tests.support.toy.engine import ToyEngine
from tests.support.toy.models import ToyModel, ToyTree

LATE = [0.2] * 8 + [0.1] * 7 + [0.0]  # noise by width: passes of 8 and of 16 round differently


def test_one_text_has_no_difference() -> None:
    engine = ToyEngine()
    found = compare(engine, [engine.encode("abc")], plan(0, 4, "auto", repeats=2))
    assert found.differences == ()
    assert [row.text for row in found.figures()] == ["same"] * 3


def rounded(noise: Sequence[float], length: int = 4, **params: Any) -> tuple[ToyEngine, Comparison]:
    engine = ToyEngine(noise=noise, n_ctx=256)
    prompts = [engine.encode(text) for text in ("abc", "cab", "bead")]
    return engine, compare(engine, prompts, plan(0, length, max_tokens=60, **params))


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_rounding_is_proven_by_passes_of_eight(temperature: float) -> None:
    engine, found = rounded([0.05, 0.0], temperature=temperature)
    assert found.differences  # else the test shows nothing
    assert {each.proven_at for each in found.differences} == {8}
    assert drafted(found).text == "rounding" and found.figures()[0].text == "same"
    for each in found.differences:
        i = found.names.index(each.prompt)
        plain, other = (one.answers[0][i].tokens for one in found.sides)
        assert plain[: each.position] == other[: each.position]
        assert plain[each.position] != other[each.position]
        assert each.margin is not None and each.margin > 0
        assert each.draft_tokens == 4 and each.repeatable


def test_kernels_that_change_later_are_brought_to_one_width() -> None:
    _, found = rounded(LATE, 12)
    assert found.differences
    assert {each.proven_at for each in found.differences} == {16}


def test_trees_are_brought_to_the_width_of_the_widest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where kernels round otherwise up to a width that only a tree reaches: 4 and 8 rivals."""
    engine, tried = ToyEngine(n_ctx=256), []

    def answer(self: Variant, prompt: object) -> Answer:
        tried.append((self.length, engine.min_width))
        equal = self.length == 0 or engine.min_width >= 13
        return made_answer(1.0, VARIED if equal else [9, *VARIED[1:]])

    monkeypatch.setattr(Variant, "answer", answer)
    engine.target.tree = ToyTree(ToyModel())
    other, prompt = made_answer(1.0, [9, *VARIED[1:]]), engine.encode("abc")
    (difference,) = DifferenceFinder("x", prompt, VARIED).explain(variant(engine, 4), [other])
    assert difference.proven_at == 16
    assert [width for length, width in tried if length == 4] == [1, 8, 16]
    engine.target.n_ctx = 8  # too short for any of them
    (difference,) = DifferenceFinder("x", prompt, VARIED).explain(variant(engine, 4), [other])
    assert difference.proven_at is None


@pytest.mark.parametrize(
    "params",
    [
        {"dry_multiplier": 1.0, "presence_penalty": 0.5, "ignore_eos": True},
        {"typical_p": 0.8, "xtc_probability": 0.5, "dynatemp_range": 0.3},
        {"temperature": 0, "logit_bias": ("97-2",), "xtc_probability": 0.5},
    ],
)
def test_rounding_is_proven_with_every_sampler(params: dict[str, Any]) -> None:
    params = {"temperature": 0.8} | params
    _, found = rounded([0.2, 0.0], **params)
    assert found.differences  # else the test shows nothing
    assert {each.proven_at for each in found.differences} == {8}
    assert drafted(found).text == "rounding"
    engine = ToyEngine(n_ctx=256)
    exact = compare(engine, [engine.encode("abc")], plan(0, 4, "auto", max_tokens=60, **params))
    assert exact.differences == ()


def test_a_mistake_is_not_called_rounding() -> None:
    engine = ToyEngine(n_ctx=256)
    seen: list[int] = []
    honest = engine.target.decode

    def moody(tokens: Sequence[int], rows: int) -> object:
        seen.append(rows)
        logits = honest(tokens, rows)
        return -logits if rows > 1 else logits

    engine.target.decode = moody  # type: ignore[method-assign, assignment]
    found = compare(engine, [engine.encode("abc")], plan(0, 4))
    (difference,) = found.differences
    assert difference.proven_at is None
    assert drafted(found).text == "different"


def unevenly(engine: ToyEngine, noise: float) -> None:
    """Let the target's rows depend on their place in a pass, as on GPUs, whatever its width."""
    honest = engine.target.decode

    def decode(tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        logits = honest(tokens, rows)
        places = np.arange(len(tokens) - rows, len(tokens)) > 0
        return logits + np.float32(noise) * places[:, None] * np.roll(logits, 1, axis=1)

    engine.target.decode = decode  # type: ignore[method-assign]


@pytest.mark.parametrize(("noise", "text"), [(0.05, "rounding"), (0.5, "different")])
def test_a_near_tie_is_rounding_where_equal_widths_differ(noise: float, text: SameText) -> None:
    engine = ToyEngine(n_ctx=256)
    unevenly(engine, noise)
    prompts = [engine.encode(text) for text in ("abc", "cab", "bead", "dead", "face")]
    found = compare(engine, prompts, plan(0, 4, max_tokens=60))
    assert found.differences and all(each.proven_at is None for each in found.differences)
    assert drafted(found).text == text
    if text == "rounding":
        assert all(0 < (each.apart or 0) < 1 for each in found.differences)


def test_the_margin_is_the_lead_of_the_plain_pick() -> None:
    engine, found = rounded([0.05, 0.0])
    first = found.differences[0]
    i = found.names.index(first.prompt)
    prompt = engine.encode(("abc", "cab", "bead")[i])
    plain = found.sides[0].answers[0][i].tokens
    engine.target.truncate(0)
    engine.target.decode([*prompt, *plain[: first.position]][:-1], 0)
    row = engine.target.decode([*prompt, *plain][len(prompt) + first.position - 1 :][:1], 1)[0]
    lead = row[plain[first.position]] - np.delete(row, plain[first.position]).max()
    assert first.margin == pytest.approx(float(lead)) and lead > 0


def fickle(engine: ToyEngine, at: int) -> None:
    """Let one pass of the target, and only this one, be wrong."""
    honest, calls = engine.target.decode, iter(range(10**6))

    def decode(tokens: Sequence[int], rows: int) -> object:
        logits = honest(tokens, rows)
        return -logits if rows and next(calls) == at else logits

    engine.target.decode = decode  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(("lengths", "at"), [((0, 4), 45), ((0,), 45), ((0, 4), 25)])
def test_what_cannot_be_repeated_is_not_called_rounding(
    lengths: tuple[DraftTokens, ...], at: int
) -> None:
    engine = ToyEngine(n_ctx=256)
    fickle(engine, at)
    found = compare(engine, [engine.encode("abc")], plan(*lengths, repeats=2))
    assert found.differences  # else the test shows nothing
    for each in found.differences:
        assert not each.repeatable and each.proven_at is None
    assert "different" in {row.text for row in found.figures()}


@pytest.mark.parametrize(("repeats", "again"), [(1, 2), (2, 0)])
def test_a_text_that_repeats_gave_again_is_not_generated_again(
    monkeypatch: pytest.MonkeyPatch, repeats: int, again: int
) -> None:
    engine, narrow = ToyEngine(noise=[0.05, 0.0], n_ctx=256), list[Variant]()
    answer = Variant.answer

    def counted(self: Variant, prompt: Sequence[int]) -> Answer:
        narrow.extend([self] * (engine.target.min_width == 1))
        return answer(self, prompt)

    monkeypatch.setattr(Variant, "answer", counted)
    found = compare(engine, [engine.encode("cab")], plan(0, 4, repeats=repeats, max_tokens=60))
    assert [each.proven_at for each in found.differences] == [8]
    assert len(narrow) == 2 + 2 * repeats + again  # after the warm-up


def test_auto_need_not_repeat_what_rounding_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, drafted_texts = ToyEngine(), iter([[1], [2], [3], [4]])

    def answer(self: Variant, prompt: object) -> Answer:
        narrow = engine.target.min_width == 1
        return made_answer(1.0, next(drafted_texts) if narrow and self.length == "auto" else VARIED)

    monkeypatch.setattr(Variant, "answer", answer)
    found = compare(engine, [engine.encode("abc")], plan(0, "auto", repeats=3))
    assert len(found.differences) == 3
    assert {(each.repeatable, each.proven_at) for each in found.differences} == {(True, 8)}


def test_with_passes_of_eight_from_the_start_these_prove_nothing() -> None:
    engine = ToyEngine(noise=LATE, n_ctx=256)
    engine.target.min_width = 8
    prompts = [engine.encode(text) for text in ("abc", "cab", "bead")]
    found = compare(engine, prompts, plan(0, 12, max_tokens=60))
    assert {each.proven_at for each in found.differences} == {16}


@pytest.mark.parametrize("repeat", [0, 1])
def test_a_difference_in_any_repeat_is_told(repeat: int) -> None:
    engine = ToyEngine()
    texts = [VARIED, VARIED]
    texts[repeat] = [*VARIED[:-1], 99]
    answers = [made_answer(1.0, text) for text in texts]
    finder = DifferenceFinder("code 1", engine.encode("abc"), VARIED)
    (found,) = finder.explain(variant(engine, 3), answers)
    assert (found.draft_tokens, found.position) == (3, len(VARIED) - 1)
