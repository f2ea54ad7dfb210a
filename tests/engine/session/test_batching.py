"""Shared passes: each text is what it is alone, and no slot waits for those that are done."""

import itertools
from contextlib import closing
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.core.errors import EngineError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate
from localspec.engine.session import batching
from localspec.engine.session.batching import WIDE
from localspec.engine.session.slot import Slot
from localspec.speculative.control.controllers import NoDraft
from localspec.speculative.loop import generate_rounds, prefill
from tests.support.toy.engine import ToyEngine
from tests.support.toy.models import GREEDY as GREEDY_PICK
from tests.support.toy.models import FakeClock, never_stop
from tests.support.toy.slots import shared, together

GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=1.0, seed=4)


@dataclass(frozen=True)
class Request:
    """An answer that is wanted, of which no more than so many rounds are looked at."""

    prompt: bytes
    length: DraftTokens = 4
    params: SamplingParams = WARM
    max_tokens: int = 20
    rounds: int = 1000


def said_by(slot: Slot, request: Request) -> list[int]:
    """The tokens of an answer; the slot's cache then holds just them."""
    said: list[int] = []
    responses = stream_generate(
        slot,
        list(request.prompt),
        GenerateOptions(request.params, request.length, max_tokens=request.max_tokens),
    )
    with closing(responses):
        for i, response in enumerate(responses, start=1):
            said += response.tokens
            assert slot.target.tokens == [*request.prompt, *said][:-1]
            if i == request.rounds:
                break
    return said


def alone(request: Request, quirk: float | None) -> list[int]:
    responses = stream_generate(
        ToyEngine(quirk=quirk),
        list(request.prompt),
        GenerateOptions(request.params, request.length, max_tokens=request.max_tokens),
    )
    return [token for response in responses for token in response.tokens]


requests = st.builds(
    Request,
    prompt=st.text("abc de", min_size=1, max_size=40).map(str.encode),
    length=st.sampled_from([0, 1, 4, 9, "auto"]),
    params=st.sampled_from([GREEDY, WARM, SamplingParams(seed=9, repeat_penalty=1.3)]),
    max_tokens=st.integers(1, 30),
    rounds=st.one_of(st.just(1000), st.integers(1, 4)),
)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(requests, max_size=3), min_size=1, max_size=5),
    st.sampled_from([None, 0.0, 0.3, 9.0]),
    st.sampled_from([33, 40, 64]),
    st.sampled_from([None, 2]),
    st.sampled_from([WIDE, 11]),
)
def test_each_text_is_what_it_is_alone(
    queues: list[list[Request]], quirk: float | None, rows: int, window: int | None, chunk: int
) -> None:
    """Whatever others ask, whenever they come and go, however few fit into a pass."""
    slots, passes, *_ = shared(len(queues), quirk=quirk, most_rows=rows, window=window)
    patch = pytest.MonkeyPatch()
    patch.setattr(batching, "WIDE", chunk)
    patch.setattr(batching, "_LEAST", chunk)
    said: dict[tuple[int, int], list[int]] = {}

    def work(slot: Slot, number: int) -> None:
        for i, request in enumerate(queues[number]):
            said[number, i] = said_by(slot, request)

    with patch.context():
        together(slots, passes, work)
    patch.undo()
    for number, queue in enumerate(queues):
        for i, request in enumerate(queue):
            found, whole = said[number, i], alone(request, quirk)
            assert found == whole[: len(found)]
            assert len(found) == len(whole) or request.rounds < 1000


@pytest.mark.parametrize("length", [0, 4])
def test_a_pass_carries_all_that_answer(length: DraftTokens) -> None:
    """Drafting goes in step, and each pass of the target has a round of every slot."""
    slots, passes, target, draft = shared(4, quirk=0.0)
    request = Request(b"abc", length, GREEDY, max_tokens=10)
    together(slots, passes, lambda slot, number: said_by(slot, request))
    rounds = [each for each in target.passes if each[0][2]]
    assert {len(each) for each in rounds} == {4}
    assert len(rounds) == (10 if length == 0 else 3)  # a first token, then five by five
    if length:
        assert draft is not None
        steps = [each for each in draft.passes if each[0][2]]
        assert {len(each) for each in steps} == {4} and len(steps) == 4 + 3


def test_one_that_is_done_is_not_waited_for() -> None:
    slots, passes, target, _ = shared(3)
    lengths = [3, 9, 20]
    said: dict[int, int] = {}

    def work(slot: Slot, number: int) -> None:
        said[number] = len(said_by(slot, Request(b"abc", 0, GREEDY, lengths[number])))

    together(slots, passes, work)
    assert said == {0: 3, 1: 9, 2: 20}
    rounds = [{sequence for sequence, _, _ in each} for each in target.passes if each[0][2]]
    assert rounds == [*[{0, 1, 2}] * 3, *[{1, 2}] * 6, *[{2}] * 11]


@pytest.mark.parametrize("length", [0, 4])
def test_a_long_prompt_is_read_in_the_passes_of_others(length: DraftTokens) -> None:
    """Of target and draft, a chunk in each round."""
    slots, passes, target, draft = shared(2, n_ctx=1024, clock=FakeClock(), seconds=(0.0, 0.0))
    assert draft is not None
    long = b"abc de" * 120

    def work(slot: Slot, number: int) -> None:
        said_by(slot, Request(long if number else b"abc", length, GREEDY, 60))

    together(slots, passes, work)
    for context in [target, draft] if length else [target]:
        mixed = [each for each in context.passes if len(each) == 2 and each[1][1] > 20]
        assert len(mixed) in (5, 6) and [sequence for sequence, *_ in mixed[1]] == [0, 1]
        read = sum(width for _, (_, width, _) in mixed)
        assert len(long) - WIDE <= read <= len(long)  # at most one chunk alone
        assert {own + width for (_, own, _), (_, width, _) in mixed[:-1]} == {WIDE}


def test_a_prompt_of_the_draft_takes_turns_with_rounds_of_those_that_do_not_draft() -> None:
    slots, passes, target, draft = shared(2, n_ctx=1024)
    assert draft is not None
    order: list[str] = []

    def work(slot: Slot, number: int) -> None:
        assert slot.draft is not None
        if number:
            slot.draft.decode([1] * 500, 0)
            order.append("read")
        for _ in range(0 if number else 9):
            slot.target.decode([1], 1)
            order.append("round")

    together(slots, passes, work)
    assert [sum(width for _, width, _ in each) for each in draft.passes] == [128, 128, 128, 116]
    assert order[3:6] == ["round", "read", "round"] or order[4:7] == ["round", "read", "round"]


def pauses(
    seconds: tuple[float, float],
    token_seconds: tuple[float, float],
    length: DraftTokens = 0,
    prompt_share: float | None = None,
) -> tuple[list[float], float]:
    """The times between the rounds of an answer while the prompt of another client is read.

    Of 900 tokens, by the draft too where there is one. Also the seconds that this takes.
    """
    clock = FakeClock()
    slots, passes, *_ = shared(
        2,
        quirk=0.0 if length else None,
        n_ctx=2048,
        clock=clock,
        seconds=seconds,
        token_seconds=token_seconds,
        prompt_share=prompt_share,
    )
    shown: list[float] = []
    read: list[float] = []

    def answer(slot: Slot) -> None:
        options = GenerateOptions(GREEDY, length, max_tokens=1900)
        with closing(stream_generate(slot, list(b"abc"), options, clock=clock)) as responses:
            for _ in responses:
                shown.append(clock())
                if read:
                    break

    def work(slot: Slot, number: int) -> None:
        if not number:
            answer(slot)
            return
        while len(shown) < 4:
            batching.pause()
        for model in (slot.target, slot.draft):
            if model is not None:
                model.decode(list(b"abc de" * 150), 0)
        read.append(clock())

    together(slots, passes, work)
    return [after - before for before, after in itertools.pairwise(shown)], read[0] - shown[3]


def test_the_time_for_prompts_of_others_is_known() -> None:
    """Not that for the slot's own, by the draft too, nor that before and after its answer."""
    clock = FakeClock()
    slots, passes, *_ = shared(
        2, quirk=0.0, n_ctx=2048, clock=clock, seconds=(0.0, 0.0), token_seconds=(0.01, 0.01)
    )
    known = list[list[float]]()

    def work(slot: Slot, number: int) -> None:
        if number:
            while not known or not known[0]:
                batching.pause()
            slot.target.decode(list(b"abc de" * 50), 0)
            return
        options = GenerateOptions(GREEDY, 4, max_tokens=100)
        for prompt in (b"x" * 200, b"y" * 200):
            known.append([])
            with closing(stream_generate(slot, list(prompt), options, clock=clock)) as pieces:
                known[-1].extend(piece.stats.others_prompts_seconds for piece in pieces)

    together(slots, passes, work)
    assert known[0][0] == 0 and known[0][-1] == pytest.approx(3.0)  # 300 tokens
    assert known[1][-1] == pytest.approx(0.0)


SLOW = (0.03, 0.02), (0.03, 0.01)  # as a model of 1.5B with a draft on two cores
QUICK = (0.004, 0.002), (0.004, 0.001)


@pytest.mark.parametrize(
    ("costs", "length"),
    [(SLOW, 0), (SLOW, 4), (QUICK, 0), (QUICK, 4), (((0.2, 0.1), (0.01, 0.0)), 0)],
)
def test_a_prompt_of_another_client_stops_no_answer_for_half_a_second(
    costs: tuple[tuple[float, float], tuple[float, float]], length: DraftTokens
) -> None:
    seconds, token_seconds = zip(*costs, strict=True)
    gaps, _ = pauses(seconds, token_seconds, length)
    assert max(gaps) < 0.5


@pytest.mark.parametrize("costs", [SLOW, QUICK])
def test_a_prompt_takes_little_longer_than_in_wide_passes(
    costs: tuple[tuple[float, float], tuple[float, float]],
) -> None:
    (seconds, token_seconds) = zip(*costs, strict=True)
    _, narrow = pauses(seconds, token_seconds)
    gaps, wide = pauses(seconds, token_seconds, prompt_share=1.0)
    assert narrow < 1.3 * wide
    assert max(gaps) == pytest.approx(seconds[0] + WIDE * token_seconds[0])


def test_where_a_token_takes_long_a_prompt_is_read_token_by_token() -> None:
    gaps, _ = pauses((0.4, 0.0), (0.3, 0.0))
    assert max(gaps) == pytest.approx(0.4 + 2 * 0.3)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("length", [0, 4])
def test_prompts_get_the_share_of_the_time_that_was_asked_for(
    share: float, length: DraftTokens
) -> None:
    gaps, _ = pauses((0.0, 0.0), (0.1, 0.01), length, share)
    reading = max(0.1, gaps[1] * share / (1 - share))  # one token is read at least
    assert max(gaps) - gaps[1] == pytest.approx(reading, abs=0.11)


def test_prompts_do_not_starve_where_drafts_take_long() -> None:
    """A third of the time is theirs."""
    gaps, seconds = pauses((0.0, 0.2), (0.1, 0.01), 4)
    assert max(gaps) == pytest.approx(1.5 * gaps[1], rel=0.1)
    assert seconds < 4 * 900 * (0.1 + 0.01)


def test_a_pass_with_a_prompt_teaches_no_costs() -> None:
    clock = FakeClock()
    slots, passes, target, _ = shared(2, n_ctx=1024, clock=clock, seconds=(1.0, 1.0))

    def work(slot: Slot, number: int) -> None:
        prompt = b"abc de" * 120 if number else b"abc"
        responses = stream_generate(
            slot, [*prompt], GenerateOptions(GREEDY, "auto", max_tokens=30), clock=clock
        )
        assert sum(len(each.tokens) for each in responses) == 30

    together(slots, passes, work)
    known = slots[0].profile.learnt(clock)
    assert any(len(each) == 2 and each[1][2] == 0 for each in target.passes)
    for costs in (known.verify, known.draft):
        assert min(costs.seconds(width, 40) for width in range(1, 40)) > 0.99


def test_a_refused_prompt_leaves_the_rounds_in_its_pass() -> None:
    slots, passes, target, _ = shared(2, n_ctx=1024, refused=[ord("x")])

    def work(slot: Slot, number: int) -> None:
        if number:
            with pytest.raises(EngineError):
                said_by(slot, Request(b"abc" * 100 + b"x" + b"abc" * 100))
        else:
            assert said_by(slot, Request(b"abc")) == alone(Request(b"abc"), 0.3)

    together(slots, passes, work)


def test_alone_a_prompt_is_read_in_steps() -> None:
    slots, _, target, _ = shared(2, n_ctx=1024)
    said_by(slots[1], Request(b"abc de" * 100, 0, GREEDY, 1))
    assert [read for ((_, read, _),) in target.passes] == [64] * 8 + [88]


def test_what_does_not_fit_into_a_pass_goes_into_the_next() -> None:
    """And nobody is passed over twice."""
    slots, passes, target, _ = shared(5, most_rows=3)
    together(slots, passes, lambda slot, n: said_by(slot, Request(b"abc", 0, WARM, 6)))
    rounds = [[sequence for sequence, _, _ in each] for each in target.passes if each[0][2]]
    order = [sequence for each in rounds for sequence in each]
    assert max(map(len, rounds)) == 3 and sorted(order) == sorted([*range(5)] * 6)
    assert all(abs(order[: i + 1].count(0) - order[: i + 1].count(4)) <= 1 for i in range(30))


def test_who_asks_for_what_fails_is_alone_with_the_error() -> None:
    """The others go on as if nothing had happened, and so does the slot with its next answer."""
    slots, passes, target, _ = shared(3, refused=[ord("x")])
    expected = alone(Request(b"abc"), 0.3)
    failed: list[str] = []

    def work(slot: Slot, number: int) -> None:
        if number == 1:
            with pytest.raises(EngineError) as caught:
                said_by(slot, Request(b"abx"))
            failed.append(str(caught.value))
            assert slot.target.tokens == []
        assert said_by(slot, Request(b"abc")) == expected

    together(slots, passes, work)
    assert len(failed) == 1


def test_an_answer_that_is_given_up_leaves_the_others_running() -> None:
    slots, passes, _, _ = shared(2)

    def work(slot: Slot, number: int) -> None:
        if number == 1:
            raise KeyError("given up")
        assert said_by(slot, Request(b"abc")) == alone(Request(b"abc"), 0.3)

    with pytest.raises(KeyError):
        together(slots, passes, work)


def test_waiting_for_others_is_counted_apart() -> None:
    """Two slots draft beside each other for a second a step; one of them for two steps more."""
    clock = FakeClock()
    slots, passes, _, _ = shared(2, clock=clock)
    waited: dict[int, float] = {}
    batch_share: dict[int, list[tuple[int, int]]] = {0: [], 1: []}

    def work(slot: Slot, number: int) -> None:
        assert slot.draft is not None
        for token in range(2 + 2 * number):
            slot.draft.decode([token], 1)
            batch_share[number].append(slot.draft.batch_share[:2])
        slot.target.decode([*range(1 + number)], 1 + number)
        batch_share[number].append(slot.target.batch_share[:2])
        waited[number] = slot.target.batch_share.waited

    together(slots, passes, work)
    assert batch_share == {0: [(2, 1), (2, 1), (2, 2)], 1: [(2, 1), (2, 1), (1, 0), (1, 0), (2, 1)]}
    assert waited == {0: 2.0, 1: 0.0}


def test_reading_is_charged_by_its_tokens() -> None:
    clock = FakeClock()
    slots, passes, target, _ = shared(2, clock=clock, seconds=(8.0, 1.0))
    waited: dict[int, float] = {}

    def work(slot: Slot, number: int) -> None:
        slot.target.decode([1] * (3 if number else 1), 0)
        waited[number] = slot.target.batch_share.waited

    together(slots, passes, work)
    assert len(target.passes) == 1
    assert waited == {0: 6.0, 1: 2.0}


def test_a_window_that_moved_on_is_read_again() -> None:
    slots, _, target, _ = shared(1, window=2)
    model = slots[0].target
    model.decode([1, 2, 3, 4, 5], 1)
    model.truncate(4)
    assert (model.tokens, model.pending) == ([1, 2, 3, 4], 0)
    model.decode([6, 7, 8], 3)
    model.truncate(4)
    assert (model.tokens, model.pending) == ([1, 2, 3, 4], 4)
    model.decode([9], 1)
    assert target.passes[-1] == [(0, 5, 1)] and model.pending == 0
    assert model.tokens == target.models[0].tokens == [1, 2, 3, 4, 9]


def test_a_model_may_be_read_outside_an_answer() -> None:
    slots, _, target, _ = shared(2)
    slots[0].target.decode([1], 1)
    assert target.passes == [[(0, 1, 1)]]


def test_a_prompt_that_fails_leaves_nothing_of_it() -> None:
    """Though chunks before the one that failed were read."""
    slots, _, target, _ = shared(2, n_ctx=2048, refused=[ord("x")])
    model = slots[0].target
    model.decode([1, 2], 0)
    with pytest.raises(EngineError):
        model.decode([*b"abc" * 400, ord("x")], 0)
    assert len(target.passes) == 1 + 1200 // 64 + 1
    assert model.tokens == target.models[0].tokens == [1, 2]


def test_what_a_failed_pass_drove_out_of_a_window_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots, _, target, _ = shared(1, refused=[ord("x")])
    model = slots[0].target
    model.decode([1, 2], 0)

    def emptied(sequence: int, length: int) -> int:
        target.models[sequence].truncate(0)
        return 0

    with monkeypatch.context() as patch, pytest.raises(EngineError):
        patch.setattr(target, "rewind", emptied)
        model.decode([ord("x")], 1)
    assert (model.tokens, model.pending) == ([1, 2], 2)
    model.decode([3], 1)
    assert target.models[0].tokens == [1, 2, 3]


def test_a_state_is_of_all_tokens() -> None:
    """Also of those that a window made pending."""
    slots, _, target, _ = shared(2, window=1)
    first, second = slots[0].target, slots[1].target
    first.decode([1, 2, 3, 4], 1)
    first.truncate(2)
    assert first.pending == 2
    assert second.restore([1, 2], first.state()) and target.models[1].tokens == [1, 2]


def test_costs_are_learnt_of_passes_not_of_waiting() -> None:
    """One answer drafts nine tokens a round, for which the other one waits."""
    clock = FakeClock()
    slots, passes, target, _ = shared(2, quirk=0.0, clock=clock, seconds=(10.0, 1.0))
    lengths: tuple[DraftTokens, ...] = (9, "auto")
    told: dict[int, set[int]] = {}

    def work(slot: Slot, number: int) -> None:
        length = lengths[number]
        *_, last = stream_generate(
            slot, [*b"abc"], GenerateOptions(GREEDY, length, max_tokens=40), clock=clock
        )
        told[number] = set(last.stats.passes)

    together(slots, passes, work)
    known = slots[1].profile.learnt(clock)
    rounds = target.passes[1:]  # the first one reads both prompts
    for number in (0, 1):
        own = [each for each in rounds if number in {sequence for sequence, _, _ in each}]
        assert told[number] == {sum(width for _, width, _ in each) for each in own}
    widths = told[0] | told[1]
    assert len(widths) > 1
    assert [known.verify.seconds(width, 40) for width in widths] == pytest.approx(
        [10.0] * len(widths)
    )
    assert known.draft.seconds(2, 40) == pytest.approx(1.0)


@pytest.mark.parametrize("count", [1, 4])
def test_plain_decoding_is_estimated_for_all_answers_together(count: int) -> None:
    clock = FakeClock()
    slots, passes, _, _ = shared(count, quirk=0.0, clock=clock, seconds=(10.0, 1.0))
    for width in range(1, 69):
        slots[0].profile.learnt(clock).verify.observe(width, 0, 10.0)
    plain: list[float] = []

    def work(slot: Slot, number: int) -> None:
        responses = stream_generate(
            slot, list(b"abc"), GenerateOptions(GREEDY, "auto", max_tokens=64), clock=clock
        )
        *_, last = responses
        plain.append(last.stats.plain_seconds)

    together(slots, passes, work)
    assert plain == pytest.approx([63 * 10.0] * count)  # the first token comes with the prompt


@pytest.mark.parametrize("length", [4, 100])  # a short prompt is read as a round is
def test_a_prompt_that_is_read_in_company_tells_who_shares_the_next_pass(length: int) -> None:
    """Else each new answer reads its prompt with the draft for a gain that only a lone one has."""
    clock = FakeClock()
    slots, passes, _, _ = shared(3, quirk=0.0)
    firsts = list[tuple[int, int, int]]()

    def work(slot: Slot, number: int) -> None:
        model, prompt = slot.target, [*b"abcd" * 40][:length]
        report = prefill(model, prompt, clock)
        rounds = generate_rounds(
            model, NoDraft(), GREEDY_PICK, prompt, max_tokens=20, is_stop=never_stop, clock=clock,
            row=report.row,
        )  # fmt: skip
        first, *_ = rounds
        firsts.append((first.width, first.sequences, first.others))

    together(slots, passes, work)
    assert firsts == [(0, 3, 2)] * 3
