"""Generation: the same answer for any draft, ended by stop strings, bounds and stop tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.answer import Piece, collect
from localspec.chat.reasoning import tagged
from localspec.chat.stats import GenerationStats
from localspec.core.errors import GrammarError, PromptTooLong, UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate
from localspec.engine.text_stream import OutputFormat, Prompt
from localspec.speculative.control.controllers import Adaptive, FixedLength, NoDraft
from localspec.speculative.control.pair_profile import LossBudget
from localspec.speculative.loop import Round
from localspec.speculative.prompt_lookup import PromptLookup
from tests.support.answers import text_of, tokens_of
from tests.support.toy.engine import STOP_TOKEN, ToyEngine
from tests.support.toy.models import FakeClock, ToyTree

GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=1.0, seed=4)


def stream(
    engine: ToyEngine,
    prompt: str | Sequence[int] = "abc",
    params: SamplingParams = WARM,
    length: DraftTokens = 4,
    *,
    clock: FakeClock | None = None,
    on_prompt: Callable[[], None] | None = None,
    **more: Any,
) -> Iterator[Piece]:
    ids = engine.encode(prompt) if isinstance(prompt, str) else prompt
    options = GenerateOptions(params, length, **more)
    return stream_generate(engine, ids, options, on_prompt=on_prompt, clock=clock or FakeClock())


def answer(*asked: Any, **more: Any) -> list[Piece]:
    return list(stream(*asked, **more))


lengths = st.one_of(st.integers(0, 9), st.just("auto"))
engines = st.tuples(st.integers(0, 30), st.sampled_from([None, 0.0, 0.1, 0.5, 9.0]))
stop_strings = st.lists(
    st.text("abc de\n\u00e9\u20ac\ufffd", min_size=1, max_size=3), max_size=2
).map(tuple)


@given(
    engines,
    st.sampled_from([GREEDY, WARM, SamplingParams(seed=9, repeat_penalty=1.3)]),
    lengths,
    stop_strings,
    st.one_of(st.none(), st.integers(1, 60)),
)
def test_an_answer_does_not_depend_on_the_draft(
    made: tuple[int, float | None],
    params: SamplingParams,
    length: DraftTokens,
    stop: tuple[str, ...],
    max_tokens: int | None,
) -> None:
    seed, quirk = made
    plain = answer(
        ToyEngine(seed=seed, quirk=None, n_ctx=60), "abc", params, 0,
        max_tokens=max_tokens, stop=stop,
    )  # fmt: skip
    drafted = answer(
        ToyEngine(seed=seed, quirk=quirk, n_ctx=60, draft_n_ctx=40), "abc", params, length,
        max_tokens=max_tokens, stop=stop,
    )  # fmt: skip
    assert tokens_of(drafted) == tokens_of(plain)
    assert text_of(drafted) == text_of(plain)
    assert drafted[-1].finish_reason == plain[-1].finish_reason
    assert all(response.finish_reason is None for response in drafted[:-1])


@pytest.mark.parametrize("length", [0, 1, 2, 4, 9, "auto"])
def test_a_dead_end_is_met_behind_the_same_tokens(length: DraftTokens) -> None:
    """The third slot of the grammar is empty; a round that was drafted beyond it tells the rest."""
    prompt, grammar, said = list(b"abc"), "a|b|", b""
    engine = ToyEngine(quirk=0.0)
    with pytest.raises(GrammarError, match="at position 5"):
        for response in stream(engine, prompt, WARM, length, grammar=grammar):
            said += response.text.encode()
    assert said == b"ab"
    ended = collect(stream(engine, prompt, WARM, length, grammar=grammar, stop=("b",)))
    assert (ended.text, ended.finish_reason, ended.tokens) == ("a", "stop", [*b"ab"])


@given(st.integers(0, 30), lengths, stop_strings)
def test_text_is_that_of_the_tokens_up_to_the_stop_string(
    seed: int, length: DraftTokens, stop: tuple[str, ...]
) -> None:
    responses = answer(ToyEngine(seed=seed), length=length, stop=stop)
    tokens, text = tokens_of(responses), text_of(responses)
    assert STOP_TOKEN not in tokens[:-1]
    decoded = bytes(token for token in tokens if token != STOP_TOKEN).decode("utf-8", "replace")
    assert decoded.startswith(text)
    assert not any(s in text for s in stop)
    if any(s in decoded for s in stop):
        assert responses[-1].finish_reason == "stop"
        assert any(decoded[len(text) :].startswith(s) for s in stop)
    else:
        assert text == decoded
        reason = "stop" if tokens[-1] == STOP_TOKEN else "context"
        assert responses[-1].finish_reason == reason


@given(st.integers(0, 30), lengths)
def test_tokens_end_with_the_one_that_completed_the_stop_string(
    seed: int, length: DraftTokens
) -> None:
    whole = tokens_of(answer(ToyEngine(seed=seed)))
    text = bytes(token for token in whole if token != STOP_TOKEN).decode("utf-8", "replace")
    stop = text[10:12]
    if len(stop) == 2 and "\ufffd" not in stop:
        tokens = tokens_of(answer(ToyEngine(seed=seed), length=length, stop=(stop,)))
        assert bytes(tokens).endswith(stop.encode())
        assert tokens == whole[: len(tokens)]


@pytest.mark.parametrize("length", [0, 4, "auto"])
def test_the_next_turn_continues_from_a_cut_answer(length: DraftTokens) -> None:
    engine = ToyEngine()
    first = answer(engine, "abc", length=length, stop=("a", "b"))
    assert first[-1].finish_reason == "stop"
    longer = [*engine.encode("abc"), *tokens_of(first), *engine.encode("de")]
    second = answer(engine, longer, length=length, max_tokens=20)
    scratch = answer(ToyEngine(quirk=None), longer, length=0, max_tokens=20)
    assert tokens_of(second) == tokens_of(scratch)
    assert second[0].stats.cached_tokens >= len(longer) - 4


@pytest.mark.parametrize(
    ("prompt", "n_ctx", "max_tokens", "count", "reason"),
    [
        ("abc", 128, 1, 1, "length"),
        ("abc", 128, 20, 20, "length"),
        ("abc", 30, None, 27, "context"),
        ("abc", 30, 27, 27, "length"),
        ("abc", 30, 28, 27, "context"),
        ("abc", 4, None, 1, "context"),
        ("abc", 30, -1, 27, "context"),
        ("abc", 30, -2, 27, "context"),
        ("abc", 30, 0, 0, "length"),
    ],
)
@pytest.mark.parametrize("length", [0, 5])
def test_where_an_answer_ends(
    prompt: str, n_ctx: int, max_tokens: int | None, count: int, reason: str, length: int
) -> None:
    # At temperature 0 this toy never says its stop token.
    engine = ToyEngine(n_ctx=n_ctx, draft_n_ctx=128)
    responses = answer(engine, prompt, GREEDY, length, max_tokens=max_tokens)
    assert (len(tokens_of(responses)), responses[-1].finish_reason) == (count, reason)


def test_an_answer_of_no_tokens_reads_the_prompt() -> None:
    engine = ToyEngine()
    (response,) = answer(engine, "abcd", max_tokens=0)
    assert (response.text, response.tokens, response.finish_reason) == ("", (), "length")
    assert engine.target.tokens == engine.encode("abc")  # the last one stays pending
    assert response.stats.prompt_tokens == 4
    assert collect(iter([response])).finish_reason == "length"


def test_no_less_than_without_bound() -> None:
    engine = ToyEngine()
    with pytest.raises(UsageError, match="max_tokens is -3") as raised:
        answer(engine, max_tokens=-3)
    assert "from -2" in str(raised.value) and engine.target.calls == []


def test_a_stop_token_ends_the_answer_and_is_no_text() -> None:
    for seed in range(200):
        responses = answer(ToyEngine(seed=seed), params=SamplingParams(2.0, 0, 1, 0, seed=seed))
        tokens = tokens_of(responses)
        if tokens[-1] == STOP_TOKEN:
            assert responses[-1].finish_reason == "stop"
            assert text_of(responses) == bytes(tokens[:-1]).decode("utf-8", "replace")
            return
    pytest.fail("no toy said its stop token")


@pytest.mark.parametrize(("prompt", "n_ctx"), [("", 8), ("a" * 8, 8), ("a" * 9, 8)])
def test_a_prompt_must_leave_room(prompt: str, n_ctx: int) -> None:
    engine = ToyEngine(n_ctx=n_ctx)
    with pytest.raises(PromptTooLong) as raised:
        answer(engine, prompt)
    assert raised.value.hint
    assert engine.target.calls == []


def test_a_draft_length_of_zero_leaves_the_draft_alone() -> None:
    engine = ToyEngine()
    responses = answer(engine, length=0, max_tokens=9)
    assert engine.draft is not None
    assert engine.draft.calls == []
    assert responses[-1].stats.acceptance_rate is None


def test_stats_of_a_piece_are_those_up_to_it() -> None:
    clock = FakeClock()
    engine = ToyEngine(quirk=0.0, clock=clock)
    pieces = stream(engine, "abcd", WARM, 3, max_tokens=9, clock=clock)
    first = next(pieces)
    assert (first.stats.tokens, first.stats.prompt_tokens, first.stats.rounds) == (1, 4, 1)
    assert first.stats.ttft_s == 20  # two decodes of the target: prompt and first round
    stats = list(pieces)[-1].stats
    assert first.stats.tokens == 1
    assert (stats.tokens, stats.rounds, stats.drafted, stats.accepted) == (9, 3, 6, 6)
    assert stats.accepted_at == [0, 0, 0, 2]
    assert (stats.verify_seconds, stats.draft_seconds, stats.draft_prompt_seconds) == (30, 6, 1)
    assert clock() == stats.prompt_seconds + stats.draft_prompt_seconds + stats.seconds


@pytest.mark.parametrize("length", [0, 3])
def test_an_answer_of_several_lines_ends_in_time(length: int) -> None:
    def told(seconds: float | None, **more: Any) -> tuple[str, Piece]:
        clock = FakeClock()
        engine = ToyEngine(quirk=0.0, clock=clock)
        pieces = answer(engine, "abcd", WARM, length, clock=clock, max_seconds=seconds, **more)
        return bytes(tokens_of(pieces)).decode("latin-1"), pieces[-1]

    whole, _ = told(None, max_tokens=200)
    first_line = whole.index("\n") + 1
    text, last = told(0, max_tokens=200)
    assert whole.startswith(text) and last.finish_reason == "length"
    assert first_line < len(text) <= first_line + 2 + 2 * length
    assert told(1e9, max_tokens=200)[0] == whole
    assert told(0, max_tokens=first_line - 1)[0] == whole[: first_line - 1]


def test_who_asks_hears_of_the_prompt_before_the_answer() -> None:
    clock = FakeClock()
    engine, heard = ToyEngine(quirk=0.0, clock=clock), list[list[int]]()

    def hear() -> None:
        heard.append(list(engine.target.tokens))
        clock.advance(100)

    pieces = answer(engine, "abcd", WARM, 3, max_tokens=9, on_prompt=hear, clock=clock)
    stats = pieces[-1].stats
    assert heard == [[*b"abc"]]
    assert stats.ttft_s == 20 and stats.prompt_seconds + stats.seconds < 100  # not its time


class SlowEngine(ToyEngine):
    """It takes half a second to look a token up, and a quarter to ask whether it ends the text."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(quirk=0.0, clock=clock)
        self._clock = clock

    def piece(self, token: int) -> bytes:
        self._clock.advance(0.5)
        return super().piece(token)

    def is_stop(self, token: int) -> bool:
        self._clock.advance(0.25)
        return super().is_stop(token)


@pytest.mark.parametrize("length", [0, 3, "auto"])
def test_seconds_are_all_but_the_consumers_own(
    monkeypatch: pytest.MonkeyPatch, length: DraftTokens
) -> None:
    clock = FakeClock()
    for controller in (NoDraft, FixedLength, Adaptive):
        monkeypatch.setattr(controller, "observe", lambda self, outcome: clock.advance(0.125))
    monkeypatch.setattr(PromptLookup, "update", lambda self, context: clock.advance(0.0625))
    count = GenerationStats.add

    def add(stats: GenerationStats, outcome: Round, seconds: float) -> None:
        count(stats, outcome, seconds)
        clock.advance(0.03125)

    monkeypatch.setattr(GenerationStats, "add", add)
    engine = SlowEngine(clock)
    responses = stream(engine, "abcd", WARM, length, max_tokens=20, clock=clock)
    stats = collect(responses, lambda response: clock.advance(100.0)).stats
    assert stats.rounds > 2
    counted = stats.prompt_seconds + stats.draft_prompt_seconds + stats.seconds
    assert clock() == counted + 100.0 * stats.rounds + 0.03125  # the last count
    # What the figures of the rounds leave out: learning, the tokens' text, and counting.
    rest = stats.seconds - stats.draft_seconds - stats.verify_seconds
    counting = 0.03125 * (stats.rounds - 1)
    assert rest == 0.125 * stats.rounds + 0.5 * stats.tokens + counting
    assert stats.prompt_seconds == 10 + (0.0625 if length == "auto" else 0)
    assert stats.slowest_round < stats.seconds and stats.ttft_s is not None
    assert stats.ttft_s == stats.prompt_seconds + 10 + 0.25 + 0.125 + 0.5


@pytest.mark.parametrize("end", ["", "d", "\u00e9"])
def test_the_next_turn_adds_only_what_is_new_to_the_index(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    engine, added = ToyEngine(n_ctx=400), list[int]()
    append = PromptLookup._append

    def count(index: PromptLookup, tokens: list[int]) -> None:
        added.append(len(tokens))
        append(index, tokens)

    monkeypatch.setattr(PromptLookup, "_append", count)
    prompt = engine.encode("ab cd e" * 20)
    first = tokens_of(answer(engine, prompt, length="auto", max_tokens=40))
    assert added[0] == len(prompt) and sum(added) <= len(prompt) + len(first)
    added.clear()
    following = [*prompt, *first[: len(first) - len(end)], *engine.encode(end + "de")]
    second = tokens_of(answer(engine, following, length="auto", max_tokens=40))
    assert sum(added) <= len(engine.encode(end + "de")) + len(second) + 8  # a last round's tokens
    fresh = answer(ToyEngine(n_ctx=400), following, length="auto", max_tokens=40)
    assert second == tokens_of(fresh)


@pytest.mark.parametrize("length", [0, 4, "auto"])
@pytest.mark.parametrize("quirk", [None, 0.3])
def test_without_suffix_the_index_is_left_alone(length: DraftTokens, quirk: float | None) -> None:
    def text(engine: ToyEngine, prompt_lookup: bool) -> str:
        return text_of(answer(engine, "abc" * 4, WARM, length, prompt_lookup=prompt_lookup))

    engine = ToyEngine(quirk=quirk)
    engine.prompt_lookup = object()  # type: ignore[assignment]  # any use of it would fail
    assert text(engine, prompt_lookup=False) == text(ToyEngine(quirk=quirk), prompt_lookup=True)
    if length == "auto":
        with pytest.raises(AttributeError):
            text(engine, prompt_lookup=True)
    else:
        text(engine, prompt_lookup=True)


def test_nothing_is_looked_up_for_a_target_that_cannot_roll_back() -> None:
    engine = ToyEngine(quirk=None)
    engine.prompt_lookup = object()  # type: ignore[assignment]  # any use of it would fail
    with pytest.raises(AttributeError):
        answer(engine, "abcabc", GREEDY, "auto")
    engine.can_roll_back = False
    assert answer(engine, "abcabc", GREEDY, "auto")[-1].stats.drafted == 0


def test_nothing_behind_a_stop_string_counts_as_drafted() -> None:
    whole = text_of(answer(ToyEngine(seed=3, quirk=0.0), length=9, max_tokens=40))
    stop = whole[10:13]
    for length in (1, 4, 9):
        engine = ToyEngine(seed=3, quirk=0.0)
        last = answer(engine, length=length, max_tokens=40, stop=(stop,))[-1]
        assert last.finish_reason == "stop"
        stats = last.stats
        assert stats.accepted <= stats.drafted and stats.tokens <= stats.accepted + stats.rounds
        assert stats.accepted <= stats.tokens


def test_responses_tell_how_far_the_next_round_drafts() -> None:
    assert {r.draft_tokens for r in answer(ToyEngine(), length=5, max_tokens=20)} == {5}
    assert {r.draft_tokens for r in answer(ToyEngine(), length=0, max_tokens=20)} == {0}
    clock = FakeClock()
    engine = ToyEngine(quirk=0.0, clock=clock)
    perfect = stream(engine, "abcd", WARM, "auto", max_tokens=100, clock=clock)
    assert max(r.draft_tokens for r in perfect) > 6


def test_an_error_shows_what_was_held_back() -> None:
    shown: list[str] = []
    pieces = stream(ToyEngine(), "abc", WARM, 4, grammar="a|b|", stop=("bc",))
    with pytest.raises(GrammarError):
        collect(pieces, lambda response: shown.append(response.text))
    assert "".join(shown) == "ab"


def test_each_answer_begins_with_what_earlier_ones_owe(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[LossBudget] = []
    monkeypatch.setattr(LossBudget, "begin_answer", lambda budget: begun.append(budget))
    engine = ToyEngine()
    for count in (1, 2):
        answer(engine, length="auto")
        assert begun == [engine.loss_budget] * count


@given(st.integers(0, 30), st.sampled_from([0.0, 0.1, 0.5, 9.0]), lengths)
def test_pieces_know_where_their_tokens_came_from(
    seed: int, quirk: float, length: DraftTokens
) -> None:
    for response in answer(ToyEngine(seed=seed, quirk=quirk), length=length):
        origins = [piece.origin for piece in response.parts]
        assert "".join(piece.text for piece in response.parts) == response.text
        if length == 0:
            assert set(origins) <= {"plain"}
        # What was accepted comes first; behind it is one token of the target's own.
        kinds = [origin in ("corrected", "plain") for origin in origins]
        assert kinds == sorted(kinds)
        assert not {"corrected", "plain"} <= set(origins)


@pytest.mark.parametrize(
    ("quirk", "expected"), [(0.0, {"draft", "plain"}), (9.0, {"corrected", "plain"})]
)
def test_a_draft_that_is_right_or_wrong(quirk: float, expected: set[str]) -> None:
    responses = answer(ToyEngine(quirk=quirk), length=3, max_tokens=60, logprobs=0)
    assert {piece.origin for response in responses for piece in response.parts} == expected
    accepted = responses[-1].stats.accepted
    drafted_pieces = [p for r in responses for p in r.parts if p.origin == "draft"]
    assert len(drafted_pieces) <= accepted  # not every byte is a character
    assert bool(drafted_pieces) == (quirk == 0)
    assert any(response.rejected for response in responses) == (quirk > 0)
    for response in responses:
        corrected = [part.text for part in response.parts if part.origin == "corrected"]
        assert not corrected or response.rejected not in {"", *corrected} - {"\ufffd"}
        assert [part.place for part in response.parts] == sorted(p.place for p in response.parts)
        assert all(part.place < len(response.tokens) for part in response.parts)


# -- trees and thoughts --------------------------------------------------------------------


def treed(engine: ToyEngine, branches: int = 3) -> ToyEngine:
    """The same engine, whose target verifies trees."""
    engine.target.tree = ToyTree(engine.target, branches)
    return engine


@given(
    st.integers(0, 30),
    st.sampled_from([GREEDY, WARM, replace(WARM, acceptance="match")]),
    lengths,
    st.integers(2, 3),
    stop_strings,
)
def test_an_answer_does_not_depend_on_trees(
    seed: int, params: SamplingParams, length: DraftTokens, branches: int, stop: tuple[str, ...]
) -> None:
    plain = answer(ToyEngine(quirk=None, seed=seed), "abca", params, 0, max_tokens=40, stop=stop)
    engine = treed(ToyEngine(quirk=1.0, seed=seed), branches)
    grown = answer(engine, "abca", params, length, max_tokens=40, stop=stop)
    assert (tokens_of(grown), text_of(grown)) == (tokens_of(plain), text_of(plain))
    stats = grown[-1].stats
    assert stats.branched <= stats.accepted <= stats.drafted
    assert sum(source.accepted for source in stats.sources.values()) == stats.accepted


def test_a_token_that_nobody_guessed_at_is_plain_in_trees_too() -> None:
    """A draft that is the target: its path is accepted whole, and the rivals beside it are not."""
    engine = treed(ToyEngine(quirk=0.0, n_ctx=200))
    responses = answer(engine, "abca", GREEDY, 2, max_tokens=30)
    assert responses[-1].stats.drafted > 2 * responses[-1].stats.accepted
    assert {p.origin for each in responses for p in each.parts} == {"draft", "plain"}


def test_the_test_by_p_and_q_takes_chains() -> None:
    engine = treed(ToyEngine(quirk=0.3))
    answer(engine, "abca", replace(WARM, acceptance="rejection"), 3, max_tokens=30)
    assert engine.target.tree is not None and engine.target.tree.passes == []


@pytest.mark.parametrize(("length", "trees"), [(4, True), ("auto", False)])
def test_a_fixed_length_verifies_trees_and_auto_chains(length: DraftTokens, trees: bool) -> None:
    engine = treed(ToyEngine(quirk=1.0))
    assert engine.target.tree is not None
    stats = answer(engine, "abca", GREEDY, length, max_tokens=30)[-1].stats
    assert bool(engine.target.tree.passes) is trees and stats.drafted
    assert trees or stats.branched == 0


def reading(engine: ToyEngine, state: str) -> Prompt:
    """A prompt behind which a "d" ends the thoughts; the toys write one soon."""
    return Prompt(engine.encode("abc"), OutputFormat(engine.piece, tagged("<", "d"), state))


def test_what_a_grammar_forms_is_the_answer_and_no_thoughts() -> None:
    engine = ToyEngine(quirk=None)
    prompt = reading(engine, "thoughts")
    said = collect(stream(engine, prompt, WARM, 0, max_tokens=9, grammar="abc|e"))
    assert said.reasoning == "" and len(said.text) >= 2


@given(st.integers(0, 30), lengths, st.sampled_from([None, 0.0, 0.3, 9.0]), stop_strings)
def test_thoughts_are_the_same_with_any_draft(
    seed: int, length: DraftTokens, quirk: float | None, stop: tuple[str, ...]
) -> None:
    engines = ToyEngine(seed=seed, quirk=None), ToyEngine(seed=seed, quirk=quirk)
    plain, drafted = (
        answer(engine, reading(engine, "thoughts"), length=each, stop=stop)
        for engine, each in zip(engines, (0, length), strict=True)
    )
    assert thoughts_of(plain) == thoughts_of(drafted)
    assert text_of(plain) == text_of(drafted) and tokens_of(plain) == tokens_of(drafted)


@given(
    st.integers(0, 30),
    lengths,
    st.sampled_from([None, 0.0, 0.3, 9.0]),
    st.sampled_from([GREEDY, WARM, SamplingParams(seed=9, repeat_penalty=1.3)]),
    st.tuples(st.integers(0, 12), st.sampled_from(["", "a\u20ac"]), st.booleans()),
)
def test_thoughts_of_a_budget_are_the_same_with_any_draft(
    seed: int,
    length: DraftTokens,
    quirk: float | None,
    params: SamplingParams,
    limit: tuple[int, str, bool],
) -> None:
    most, message, in_trees = limit
    more = {"reasoning_budget": most, "reasoning_budget_message": message}

    def said(length: DraftTokens, quirk: float | None, **more: Any) -> list[int]:
        engine = ToyEngine(seed=seed, quirk=quirk)
        if in_trees and quirk is not None:
            treed(engine)
        output = OutputFormat(
            engine.piece, tagged("<", "de"), "thoughts", ids_of=lambda text, _: engine.encode(text)
        )
        prompt = Prompt(engine.encode("abc"), output)
        return tokens_of(answer(engine, prompt, params, length, **more))

    free, plain = said(0, None), said(0, None, **more)
    assert said(length, quirk, **more) == plain
    same = next((n for n, (a, b) in enumerate(zip(free, plain, strict=False)) if a != b), most)
    assert same >= most
    mark = bytes(plain[:-1]).find(b"de")
    assert mark < most + len("\u20ac".encode()) + len((message + "d").encode())


def thoughts_of(responses: Sequence[Piece]) -> str:
    return "".join(response.reasoning for response in responses)


def test_thoughts_and_answer_are_collected_apart() -> None:
    engine = ToyEngine(quirk=None)
    whole = text_of(answer(engine, "abc", length=0))
    said = collect(stream(engine, reading(engine, "thoughts"), WARM, 0))
    thoughts, _, rest = whole.partition("d")
    assert rest and (said.reasoning, said.text) == (thoughts.strip(), rest.lstrip())
    document = said.as_json()
    assert (document["reasoning"], document["text"]) == (said.reasoning, said.text)


def test_control_tokens_that_are_marks_are_read_by_the_prompts_own_pieces() -> None:
    engine = ToyEngine(quirk=None)
    prompt = Prompt(engine.encode("abc"), OutputFormat(lambda token: b"[%d]" % token))
    told = answer(engine, prompt, length=0, max_tokens=4)
    assert text_of(told) == "".join(f"[{token}]" for token in tokens_of(told))


def test_a_prompt_brings_stop_strings_of_its_own() -> None:
    engine = ToyEngine(quirk=None)
    whole = text_of(answer(engine, "abc", length=0))
    prompt = Prompt(engine.encode("abc"), OutputFormat(engine.piece, stop=(whole[5:7],)))
    ended = answer(engine, prompt, length=0, stop=("never said",))
    assert text_of(ended) == whole[: whole.index(whole[5:7])]
    assert ended[-1].finish_reason == "stop"


def test_a_conversation_of_short_answers_comes_to_draft() -> None:
    clock = FakeClock()
    engine = ToyEngine(quirk=0.05, n_ctx=2048, clock=clock)
    known = engine.profile.learnt(clock)
    known.reading = 1.0  # seconds: 500 for the prompt, 10 for a token by plain decoding
    prompt, drafted = engine.encode("abc de" * 83), []
    for _ in range(16):
        responses = answer(
            engine, prompt, GREEDY, "auto", prompt_lookup=False, max_tokens=20, clock=clock
        )
        prompt = [*prompt, *tokens_of(responses), *b"abc"]
        drafted.append(responses[-1].stats.drafted > 0)
    assert drafted[0] is False and drafted[-1] is True


def test_a_prompt_is_read_again_where_no_cache_is_wanted() -> None:
    engine = ToyEngine()
    answer(engine, "abc de", max_tokens=4)
    again = answer(engine, "abc de", max_tokens=4)
    without = answer(engine, "abc de", max_tokens=4, cache_prompt=False)
    assert again[-1].stats.cached_tokens == 5 and without[-1].stats.cached_tokens == 0
    assert tokens_of(again) == tokens_of(without)
