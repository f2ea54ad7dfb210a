"""Bench: sides take turns from empty caches, and what is complete outlives an interruption."""

import itertools
from collections.abc import Sequence
from typing import Any, cast

import pytest

from localspec.bench.comparison import Comparison
from localspec.bench.plan import BenchPlan, Variant
from localspec.bench.run import both_answers, run_bench
from localspec.chat.answer import Answer
from localspec.core.errors import EngineError, PromptTooLong
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.llama import llama_library
from localspec.llama.memory.plan import FreeMemory
from localspec.speculative.prompt_lookup import PromptLookup
from tests.support.answers import made_answer
from tests.support.real_pair import GREEDY
from tests.support.toy.bench import compare, plan, variant
from tests.support.toy.engine import ToyEngine
from tests.support.toy.models import FakeClock


def test_every_side_takes_turns_with_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, DraftTokens, int]] = []

    def answer(self: Variant, prompt: Sequence[int]) -> Answer:
        calls.append((prompt[0], self.length, self.plan.max_tokens))
        return made_answer(1.0, [*prompt, 5])

    monkeypatch.setattr(Variant, "answer", answer)
    heard: list[tuple[str, int, int, bool]] = []
    toy: Any = ToyEngine()
    found = list(
        run_bench(
            toy, {"a": [[7], [8]], "b": [[9]]}, plan(0, 4, "auto", repeats=3, max_tokens=50),
            lambda task, done, total, answer: heard.append((task, done, total, answer is None)),
        )
    )  # fmt: skip
    warm, rest = calls[:3], calls[3:]
    assert warm == [(7, 0, 16), (7, 4, 16), (7, "auto", 16)]
    there: list[DraftTokens] = [0, 4, "auto"]
    assert rest == [
        (prompt, length, 50)
        for prompt in (7, 8, 9)
        for _ in range(3)
        for length in (0, 4, 0, "auto")
    ]
    expected = [("a", 24)] * 25 + [("b", 12)] * 13
    assert [(task, total) for task, _, total, _ in heard] == expected
    assert [done for _, done, _, _ in heard] == [*range(25), *range(13)]
    assert all(is_first == (done == 0) for _, done, _, is_first in heard)
    assert [comparison.task for comparison in found] == ["a", "b"]
    assert [comparison.names for comparison in found] == [("a 1", "a 2"), ("b 1",)]
    for comparison, prompts in zip(found, ([7, 8], [9]), strict=True):
        assert [one.draft_tokens for one in comparison.sides] == there
        for one in comparison.sides:
            answers = 3 if one.draft_tokens else 6
            assert [[each.tokens[0] for each in row] for row in one.answers] == [prompts] * answers


def test_what_does_not_fit_is_told_before_anything_is_measured() -> None:
    engine: Any = ToyEngine(n_ctx=64)
    fits = {"a": [[97]], "b": [[97] * 38]}  # 38 + 19 that are decoded + 7 more in a pass of 8
    assert len(list(run_bench(engine, fits, plan(0, 4)))) == 2
    engine.target.calls.clear()
    with pytest.raises(PromptTooLong, match="has 39 tokens.* of 65 tokens, and there are 64"):
        next(run_bench(engine, {"a": [[97]], "b": [[97] * 39]}, plan(0, 4)))
    assert engine.target.calls == []


def test_every_answer_starts_from_empty_caches() -> None:
    engine = ToyEngine(clock=FakeClock())
    prompt = engine.encode("abcabc")
    for _ in range(2):
        answer = variant(engine, 3, max_tokens=9).answer(prompt)
        assert answer.stats.cached_tokens == 0
        assert answer.stats.prompt_tokens == len(prompt)


def test_every_answer_begins_prompt_lookup_anew() -> None:
    class Recorded(PromptLookup):
        """Keeps what it was told to hold."""

        def update(self, context: list[int]) -> None:
            held.append(list(context))
            super().update(context)

    held: list[list[int]] = []
    engine = ToyEngine(clock=FakeClock())
    engine.prompt_lookup = Recorded()
    prompt = engine.encode("abcabc")
    for _ in range(2):
        held.clear()
        variant(engine, "auto", max_tokens=9).answer(prompt)
        assert held[:2] == [[], prompt]


@pytest.mark.llama
def test_ctrl_c_ends_the_whole_measurement(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    prompt = engine.encode_text("the thing")
    monkeypatch.setattr(llama_library.library(), "llama_decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(engine, [prompt], plan(0, 3))


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), EngineError("Out of memory.", "Buy.")])
@pytest.mark.parametrize(
    ("answers", "kept"),
    [(7, []), (8, [["a 1"]]), (13, [["a 1"]]), (14, [["a 1", "a 2"]]), (19, [["a 1", "a 2"]])],
)
def test_what_is_complete_outlives_an_interruption(
    monkeypatch: pytest.MonkeyPatch, problem: BaseException, answers: int, kept: list[list[str]]
) -> None:
    # Two for warming up, then six to each of three prompts.
    left = iter(range(answers))

    def answer(*arguments: object) -> Answer:
        if next(left, None) is None:
            raise problem
        return made_answer(1.0)

    monkeypatch.setattr(Variant, "answer", answer)
    found, prompts = list[Comparison](), list[Comparison]()
    tasks, toy = {"a": [[7], [8]], "b": [[9]]}, cast(Engine, ToyEngine())
    with pytest.raises(type(problem)):
        for comparison in run_bench(toy, tasks, plan(0, 4, repeats=3), on_prompt=prompts.append):
            found.append(comparison)
    assert [list(comparison.names) for comparison in found] == kept
    assert [list(each.names) for each in prompts] == [names[:1] for names in kept[:1]]
    for comparison in found:
        assert all(len(side.answers) == 3 for side in comparison.sides)
        assert comparison.figures()


def test_a_task_ends_when_enough_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variant, "answer", lambda *_: made_answer(1.0))
    tasks, toy = {"a": [[7], [8], [9]], "b": [[9]]}, cast(Engine, ToyEngine())

    def is_enough(comparison: Comparison) -> bool:
        return len(comparison.names) == 2

    found = run_bench(toy, tasks, plan(0, 4), is_enough=is_enough)
    assert [comparison.names for comparison in found] == [("a 1", "a 2"), ("b 1",)]


@pytest.mark.llama
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=0.8, seed=5)])
def test_a_real_pair_says_the_same(engine: Engine, params: SamplingParams) -> None:
    prompts = [engine.encode_text(text) for text in ("the thing", "another thing")]
    found = compare(engine, prompts, BenchPlan(params, (0, 3), repeats=2, max_tokens=20))
    plain, other = found.figures()
    assert all(each.repeatable and each.proven_at for each in found.differences)
    assert plain.drafted == 0 and other.drafted > 0
    assert plain.mean_accepted_length == 1.0 < other.mean_accepted_length
    assert len(other.speedup_by_repeat) == 2
    assert engine.target.min_width == 1


@pytest.mark.llama
def test_rounds_of_plain_and_drafted_answers_come_in_turn(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, contexts = llama_library.library().llama_decode, list[int]()

    def recorded(context: Any, batch: Any) -> int:
        contexts.append(context)
        return int(decode(context, batch))

    prompt = engine.encode_text("the thing")
    with engine.plain(print) as second:
        sides = Variant("0", second, plan(0, 3), 0), Variant("3", engine, plan(0, 3), 3)
        own = second.target.context
        monkeypatch.setattr(llama_library.library(), "llama_decode", recorded)
        plain, drafted = both_answers(*sides, prompt)
    assert plain.tokens == drafted.tokens == variant(engine, 0).answer(prompt).tokens
    assert plain.stats.drafted == 0 < drafted.stats.drafted
    turns = [mine for mine, _ in itertools.groupby(context == own for context in contexts)]
    assert len(turns) >= 2 * drafted.stats.rounds


@pytest.mark.llama
def test_without_room_for_a_second_context_one_answer_follows_the_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.engine.engine.free_memory", lambda *_: FreeMemory(2**10))
    notes, prompts = list[str](), [engine.encode_text("the thing")]
    (found,) = run_bench(engine, {"a": prompts}, plan(0, 3), say=notes.append)
    (note,) = notes
    assert note.startswith("A second context takes ") and "1 kB are free" in note
    assert note.endswith("So drafted and plain answers come one after the other.")
    plain, drafted = ([each.tokens for each in side.answers[0]] for side in found.sides)
    assert plain == drafted


@pytest.mark.llama
@pytest.mark.parametrize("fails", [0, 1])
def test_an_error_of_one_answer_ends_both(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    def failing(*_: object) -> None:
        raise EngineError("Out of memory.", "Buy.")

    prompt = engine.encode_text("the thing")
    with engine.plain(print) as second:
        sides = Variant("0", second, plan(0, 3), 0), Variant("3", engine, plan(0, 3), 3)
        before = both_answers(*sides, prompt)
        with monkeypatch.context() as patch:
            patch.setattr(sides[fails].engine.target, "decode", failing)
            with pytest.raises(EngineError, match="Out of memory"):
                both_answers(*sides, prompt)
        after = both_answers(*sides, prompt)
    assert [each.tokens for each in after] == [each.tokens for each in before]
