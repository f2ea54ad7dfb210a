"""The loop: drafting never changes the text, and nothing is overrun, lost or decoded twice."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative import loop
from localspec.speculative.control.controllers import Adaptive, FixedLength, NoDraft
from localspec.speculative.control.pair_profile import PairProfile
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.loop import Controller, Proposal, Round, generate_rounds, prefill
from localspec.speculative.prefix import common_prefix
from localspec.speculative.prompt_lookup import PromptLookup
from localspec.speculative.sampling.sampler import Sampler
from tests.support.toy.models import (
    GREEDY,
    FakeClock,
    ReplayingToy,
    ToyModel,
    ToyTree,
    WatchedList,
    emitted,
    never_stop,
    start_answer,
    toy_profile,
)

params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.2, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    repeat_penalty=st.sampled_from([1.0, 0.7, 1.3]),
    repeat_last_n=st.sampled_from([-1, 0, 2, 64]),
    seed=st.integers(0, 2**32 - 1),
)
# What rarely runs: one or several at a time.
RARE: list[dict[str, Any]] = [
    {"presence_penalty": 1.5},
    {"presence_penalty": -0.5, "frequency_penalty": 0.7},
    {"dry_multiplier": 2.0, "dry_allowed_length": 1},
    {"dry_multiplier": 2.0, "dry_allowed_length": 0, "dry_penalty_last_n": 3},
    {"top_n_sigma": 0.7},
    {"typical_p": 0.4},
    {"xtc_probability": 0.5},
    {"xtc_probability": 1.0, "xtc_threshold": 0.3},
    {"dynatemp_range": 0.6, "dynatemp_exp": 1.5},
    {"logit_bias": ("2-inf", "3+2", "1-0.5")},
]
all_params = st.builds(
    lambda params, chosen: replace(params, **{k: v for each in chosen for k, v in each.items()}),
    params_strategy,
    st.lists(st.sampled_from(RARE), max_size=3),
)


class Guesser(Controller):
    """Proposes ids that have nothing to do with the text, now and then fewer than allowed.

    Now and then its pass is filled up as well.
    """

    def __init__(self, ids: Callable[[int], int], length: int, fewer: int = 0) -> None:
        self._ids = ids
        self._fewer = fewer
        self.length = length

    def propose(self, context: Sequence[int], limit: int) -> Proposal:
        count = max(0, min(limit, self.length) - self._fewer * (len(context) % 2))
        ids = tuple(self._ids(len(context) + i) for i in range(count))
        filling = min(limit - count, len(context) % 3)
        return Proposal(ids, ("guess",) * count, filling=filling)


def experienced(rng: random.Random) -> PairProfile:
    """Costs and acceptances as they may be, sensible or not."""
    known = PairProfile(reading=rng.choice([0.0, 0.1, 5.0]), fills=rng.random() < 0.5)
    known.change = rng.choice([0.0, 0.5, 9.0])
    for width in (1, 2, 5, 16):
        known.verify.observe(width, 0, rng.uniform(0.5, 4.0))
        known.draft.observe(width, 0, rng.choice([0.01, 0.3, 2.0]))
    for _ in range(rng.choice([0, 20])):
        for group in ("draft model, greedy", "lookup 3+, greedy", "lookup 5+, greedy"):
            known.of(group).observe(rng.uniform(-3, 9), rng.random() < 0.7)
    return known


@dataclass(frozen=True)
class Scene:
    """A pair, a prompt and how to continue it. A quirk of None is a guesser, not a model."""

    n_vocab: int
    draft_vocab: int
    n_ctx: int
    draft_n_ctx: int
    seed: int
    quirk: float | None
    prompt: tuple[int, ...]
    max_tokens: int
    length: int | str
    stops: frozenset[int]
    params: SamplingParams
    branches: int  # 1: the target verifies no trees
    paths: int

    def target(self) -> ToyModel:
        target = ToyModel(n_vocab=self.n_vocab, n_ctx=self.n_ctx, seed=self.seed)
        target.gives_prompt_row = self.seed % 2 == 1
        if self.branches > 1:
            target.tree = ToyTree(target, self.branches, self.paths)
        return target

    def draft(self, target: ToyModel) -> tuple[Controller, ToyModel | None]:
        rng = random.Random(self.seed)
        length = self.length if isinstance(self.length, int) else 4
        if self.quirk is None:
            n_vocab, seed = self.n_vocab, self.seed
            return Guesser(lambda i: (i * i + seed) % n_vocab, length, fewer=seed % 3), None
        model = ToyModel(
            n_vocab=self.draft_vocab, n_ctx=self.draft_n_ctx, seed=self.seed, quirk=self.quirk
        )
        # Whatever a draft is chosen by, the text is the target's: here by its likeliest token too.
        params = self.params.draft_greedy if self.seed % 3 == 0 else self.params
        drafter = ModelDrafter(model, Sampler(params), target.n_vocab, self.is_stop, self.branches)
        if self.length == "auto":
            index = rng.choice([None, PromptLookup()])
            known, clock = experienced(rng), self._clock(rng)
            return Adaptive(known, clock, drafter, index), model
        if self.length == "lookup":
            return Adaptive(experienced(rng), self._clock(rng), None, PromptLookup()), None
        return FixedLength(drafter, length, float, target.tree), model

    def _clock(self, rng: random.Random) -> Callable[[], float]:
        return lambda: rng.random() if self.seed % 2 else 0.0

    def is_stop(self, token: int) -> bool:
        return token in self.stops

    def start(
        self, target: ToyModel, drafter: Controller, prompt: Sequence[int] | None = None
    ) -> Iterator[Round]:
        """Prefill and rounds on a target that may hold anything."""
        return start_answer(
            target, drafter, list(self.prompt if prompt is None else prompt), self.max_tokens,
            sampler=Sampler(self.params), is_stop=self.is_stop,
        )  # fmt: skip

    def expected(self, prompt: Sequence[int] | None = None) -> tuple[list[int], str | None]:
        """The tokens and the finish reason by the obvious loop, one token at a time."""
        context = list(self.prompt if prompt is None else prompt)
        start, model, sampler = len(context), self.target(), Sampler(self.params)
        reason = None
        while reason is None and len(context) < min(start + self.max_tokens, self.n_ctx):
            context.append(sampler.sample(model.row(context), len(context), context))
            if self.is_stop(context[-1]):
                reason = "stop"
            elif len(context) == start + self.max_tokens:
                reason = "length"
            elif len(context) == self.n_ctx:
                reason = "context"
        return context[start:], reason


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    n_vocab = draw(st.integers(4, 20))
    prompt = draw(st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=9))
    return Scene(
        n_vocab=n_vocab,
        draft_vocab=n_vocab + draw(st.sampled_from([0, 0, 0, -3, 7])),
        n_ctx=len(prompt) + draw(st.integers(1, 40)),
        draft_n_ctx=draw(st.one_of(st.just(64), st.integers(1, 40))),
        seed=draw(st.integers(0, 99)),
        quirk=draw(st.sampled_from([0.0, 0.1, 0.4, 1.0, 9.0, None])),
        prompt=tuple(prompt),
        max_tokens=draw(st.integers(1, 45)),
        length=draw(st.one_of(st.integers(0, 9), st.sampled_from(["auto", "lookup"]))),
        stops=draw(st.frozensets(st.integers(0, n_vocab - 1), max_size=1)),
        params=draw(all_params),
        branches=draw(st.sampled_from([1, 1, 2, 3])),
        paths=draw(st.integers(1, 9)),
    )


@given(scenes())
def test_drafting_never_changes_the_text(scene: Scene) -> None:
    target = scene.target()
    rounds, context = [], list(scene.prompt)
    for each in scene.start(target, scene.draft(target)[0]):
        rounds.append(each)
        context += each.tokens
        assert list(target.tokens) == context[:-1]  # at every yield
    tokens, reason = scene.expected()
    assert emitted(rounds) == tokens
    assert rounds[-1].finish_reason == reason
    assert all(each.finish_reason is None for each in rounds[:-1])
    for each in rounds:
        stopped_early = each.finish_reason == "stop" and len(each.tokens) == each.accepted
        assert len(each.tokens) == each.accepted + (0 if stopped_early else 1) > 0
        assert 0 <= each.accepted <= each.drafted <= 32
        assert len(each.sources) == each.drafted < each.width or each.drafted == 0


@given(scenes())
def test_no_token_of_the_text_is_decoded_twice(scene: Scene) -> None:
    target = scene.target()
    drafter, draft = scene.draft(target)
    text = [*scene.prompt, *emitted(scene.start(target, drafter))]
    # A draft that drafted farther than was verified may have to decode a token again as pending;
    # one whose window moves reads what stays in view again.
    again = scene.length == "auto" or scene.draft_n_ctx < scene.n_ctx + 8
    models = [target] if again else [target, draft]
    for model in models:
        if model is not None:
            assert max(model.decoded[tuple(text[:end])] for end in range(1, len(text) + 1)) <= 1


@given(scenes(), st.integers(0, 6), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_abandoned_and_continued_equals_from_scratch(
    scene: Scene, heard: int, more: list[int]
) -> None:
    target = scene.target()
    drafter, _ = scene.draft(target)
    rounds = scene.start(target, drafter)
    context = [*scene.prompt, *emitted(islice(rounds, heard))]
    rounds.close()  # type: ignore[attr-defined]
    longer = [*context, *more]
    if len(longer) < scene.n_ctx:
        expected, _ = scene.expected(longer)
        assert emitted(scene.start(target, drafter, longer)) == expected


@given(scenes(), st.data())
def test_an_edited_prompt_reuses_what_is_equal(scene: Scene, data: st.DataObject) -> None:
    target = scene.target()
    drafter, _ = scene.draft(target)
    text = [*scene.prompt, *emitted(scene.start(target, drafter))]
    cut = data.draw(st.integers(0, min(len(text), scene.n_ctx - 2)))
    edited = [*text[:cut], 1]
    held = common_prefix(target.tokens, edited)
    report = prefill(target, edited, float)
    assert report.cached == min(held, cut)
    assert report.tokens + report.cached + 1 == len(edited)
    expected, _ = scene.expected(edited)
    assert emitted(scene.start(target, drafter, edited)) == expected


@given(scenes(), st.integers(1, 9))
def test_a_perfect_draft_is_always_accepted(scene: Scene, length: int) -> None:
    target = scene.target()
    # With room for all of the text and some drafts, so that it sees what the target sees.
    twin = ToyModel(n_vocab=scene.n_vocab, n_ctx=scene.n_ctx + 8, seed=scene.seed)
    drafter = ModelDrafter(twin, Sampler(scene.params), target.n_vocab, scene.is_stop)
    rounds = list(scene.start(target, FixedLength(drafter, length, float)))
    assert all(each.accepted == each.drafted for each in rounds)
    assert all(each.drafted == length for each in rounds[1:-1])


def run(*asked: Any, stops: Sequence[int] = (), **more: Any) -> list[Round]:
    """A greedy answer."""
    return list(start_answer(*asked, is_stop=stops.__contains__, **more))


def fixed(model: ToyModel, length: int = 4, clock: Callable[[], float] = float) -> FixedLength:
    return FixedLength(ModelDrafter(model, GREEDY, 16, never_stop), length, clock)


@pytest.mark.parametrize(("quirk", "low", "high"), [(0.0, 1, 1), (0.1, 0.6, 0.99), (9, 0, 0.3)])
def test_acceptance_follows_the_quality_of_the_draft(quirk: float, low: float, high: float) -> None:
    rounds = run(ToyModel(n_ctx=512), fixed(ToyModel(n_ctx=512, quirk=quirk)), [1], 400)
    rate = sum(each.accepted for each in rounds) / sum(each.drafted for each in rounds)
    assert low <= rate <= high


def test_the_first_round_does_not_wait_for_the_draft() -> None:
    draft = ToyModel()
    rounds = start_answer(ToyModel(), fixed(draft), [1, 2, 3], 9)
    assert next(rounds).drafted == 0
    assert draft.calls == []
    assert next(rounds).drafted == 4


@pytest.mark.parametrize("length", range(1, 9))
def test_nothing_follows_a_stop_token_inside_a_draft(length: int) -> None:
    plain = emitted(run(ToyModel(), NoDraft(), [1, 2]))
    stop = plain[5]
    expected = plain[: plain.index(stop) + 1]
    target = ToyModel()
    # A guesser that knows the text proposes past the stop token; a model drafter would not.
    text = [1, 2, *plain]
    rounds = run(target, Guesser(lambda i: text[i], length), [1, 2], stops=[stop])
    assert emitted(rounds) == expected
    assert rounds[-1].finish_reason == "stop"
    assert list(target.tokens) == [1, 2, *expected][:-1]
    assert all(each.accepted == each.drafted for each in rounds)


def test_a_wrong_draft_where_the_target_stops_counts_as_drafted() -> None:
    plain = emitted(run(ToyModel(seed=1), NoDraft(), [1, 2]))
    stop = plain[1]
    assert stop != plain[0]
    guesser = Guesser(lambda i: (stop + 1) % 16, 3)
    rounds = run(ToyModel(seed=1), guesser, [1, 2], stops=[stop])
    assert [(r.tokens, r.drafted, r.accepted) for r in rounds] == [
        ((plain[0],), 0, 0),
        ((stop,), 3, 0),
    ]


def test_ids_that_the_target_lacks_are_cut() -> None:
    plain = emitted(run(ToyModel(), NoDraft(), [1], max_tokens=12))
    text = [1, *plain]

    def ids(i: int) -> int:
        return (16, -1)[i % 2] if i % 3 == 2 else text[i]

    rounds = run(ToyModel(), Guesser(ids, 4), [1], max_tokens=12)
    assert emitted(rounds) == plain
    assert all(each.accepted == each.drafted < 4 for each in rounds)
    assert sum(each.drafted for each in rounds) > 0


def test_a_draft_is_never_longer_than_what_may_still_be_emitted() -> None:
    draft = ToyModel()
    rounds = run(ToyModel(), fixed(draft, 9), [1, 2], max_tokens=6)
    # One token, then four drafted and the bonus token.
    assert [len(each.tokens) for each in rounds] == [1, 5]
    assert rounds[1].drafted == 4


def test_seconds_are_told_apart() -> None:
    clock = FakeClock()
    target = ToyModel(clock=clock, seconds=100)
    draft = ToyModel(clock=clock, seconds=1, seconds_per_token=0.125)
    prompt = [1, 2, 3, 4, 5]
    report = prefill(target, prompt, clock)
    assert (report.seconds, report.tokens, report.cached) == (100, 4, 0)
    rounds = run(target, fixed(draft, 4, clock), prompt, 11, clock=clock)
    assert all(each.verify_seconds == 100 for each in rounds)
    assert all(each.seconds == each.draft_seconds + each.verify_seconds for each in rounds)
    # The draft reads five tokens of prompt once: the sixth is pending.
    assert [each.draft_prompt_seconds for each in rounds] == [0, 1.625, 0]
    # Four decodes a round; the one after an all-accepted draft reads two tokens.
    assert [each.draft_seconds for each in rounds] == [0, 4.5, 4.625]
    total = sum(each.seconds + each.draft_prompt_seconds for each in rounds)
    assert clock() == report.seconds + total


@pytest.mark.parametrize("kind", ["plain", "fixed", "auto", "auto, cheap draft"])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_no_round_walks_over_the_text(
    monkeypatch: pytest.MonkeyPatch, kind: str, penalty: float
) -> None:
    step = 1.0 if kind == "auto, cheap draft" else 20.0
    clock = FakeClock()
    target = ToyModel(n_ctx=1024, clock=clock, seconds=10.0)
    draft = ToyModel(n_ctx=1024, quirk=0.3, clock=clock, seconds=step)
    sampler = Sampler(SamplingParams(0.8, repeat_penalty=penalty, repeat_last_n=8, seed=1))
    drafter = ModelDrafter(draft, sampler, 16, never_stop)
    known = PairProfile(reading=0.01)
    for width in (1, 33):
        known.verify.observe(width, 0, 10.0)
        known.draft.observe(width, 0, step)
    controllers = {"plain": NoDraft(), "fixed": FixedLength(drafter, 4, clock)}
    controller = controllers.get(kind) or Adaptive(known, clock, drafter, PromptLookup())
    prompt, made = [(i * i + i // 7) % 16 for i in range(600)], list[WatchedList]()

    def watched(tokens: Sequence[int]) -> WatchedList:
        made.append(WatchedList(tokens))
        return made[-1]

    monkeypatch.setattr(loop, "list", watched, raising=False)
    rounds = start_answer(target, controller, prompt, 300, sampler=sampler, clock=clock)
    touched = [made[-1].take_touched() for _ in rounds]
    # The index and the draft read the prompt when they first need it, and compare it once.
    assert len(touched) > 20
    assert sum(each > 300 for each in touched) <= {"plain": 0, "fixed": 2}.get(kind, 4)


def read(model: ToyModel, prompt: list[int]) -> int:
    """How many tokens a prefill decodes, the last one left out."""
    return prefill(model, prompt, float).tokens


def test_only_what_is_missing_is_read() -> None:
    model = ToyModel()
    assert read(model, [1, 2, 3, 4]) == 3
    assert read(model, [1, 2, 3, 4]) == 0
    assert read(model, [1, 2, 9, 9, 9]) == 2
    assert list(model.tokens) == [1, 2, 9, 9]
    assert read(model, [1, 2]) == 0
    assert list(model.tokens) == [1]
    assert model.calls == [(3, 0), (2, 0)]


def test_the_first_token_is_picked_behind_the_last_chunk_of_the_prompt() -> None:
    clock = FakeClock()
    model = ToyModel(clock=clock, seconds=100)
    model.gives_prompt_row = True
    report = prefill(model, [1, 2, 3, 4], clock)
    assert (report.seconds, report.tokens, report.cached) == (100, 3, 0)
    observed: list[Round] = []
    controller = Guesser(lambda i: 0, 2)
    controller.observe = observed.append  # type: ignore[method-assign, assignment]
    rounds = generate_rounds(
        model, controller, GREEDY, [1, 2, 3, 4], max_tokens=3, is_stop=never_stop, clock=clock,
        row=report.row,
    )  # fmt: skip
    first = next(rounds)
    assert first.tokens == (int(model.row([1, 2, 3, 4]).argmax()),)
    assert (first.width, first.seconds, first.past, observed) == (0, 0, 4, [first])
    assert list(model.tokens) == [1, 2, 3, 4]
    second = next(rounds)
    assert (second.drafted, second.width, observed) == (1, 2, [first, second])
    assert model.calls == [(4, 1), (2, 2)]


def test_a_prompt_of_which_only_the_last_token_is_unread_leaves_it_to_the_first_round() -> None:
    model = ToyModel()
    model.gives_prompt_row = True
    for _ in range(2):
        row = prefill(model, [1, 2, 3, 4], float).row
    assert row is None and list(model.tokens) == [1, 2, 3]
    assert prefill(model, [7], float).row is None
    assert model.calls == [(4, 1)]


# -- targets whose state goes back further than asked ----------------------------------------


@given(st.integers(0, 5), st.integers(0, 8), st.integers(1, 40))
def test_what_is_read_again_changes_no_text(length: int, quirk: int, max_tokens: int) -> None:
    said, rounds = [], []
    for target in (ToyModel(n_ctx=64), ReplayingToy(n_ctx=64)):
        rounds = run(target, fixed(ToyModel(quirk=quirk / 4), length), [1, 2, 3], max_tokens)
        said.append(emitted(rounds))
    assert said[0] == said[1]
    widths = [width for width, rows in target.calls if rows]
    assert [outcome.width for outcome in rounds] == widths
    for before, outcome in zip(rounds, rounds[1:], strict=False):
        assert outcome.replayed == before.pending
        assert outcome.width >= outcome.replayed + 1


def test_a_prompt_is_whole_before_its_answer() -> None:
    target = ReplayingToy()
    target.decode([1, 2, 3, 4, 5], 5)
    target.truncate(4)
    assert target.pending == 4
    assert read(target, [1, 2, 3, 4, 9]) == 4
    assert target.pending == 0 and target.tokens == [1, 2, 3, 4]


@pytest.mark.parametrize("follows_target", [False, True])
def test_a_draft_that_reads_along_drafts_in_the_first_round(follows_target: bool) -> None:
    target, draft = ToyModel(), ToyModel()
    draft.follows_target = follows_target
    drafter = ModelDrafter(draft, GREEDY, 16, never_stop)
    for controller in (
        FixedLength(drafter, 3, FakeClock()),
        Adaptive(toy_profile(), FakeClock(), drafter),
    ):
        rounds = start_answer(target, controller, [1, 2, 3], 9)
        assert controller.drafts_at_once == follows_target
        assert (next(rounds).drafted > 0) == follows_target
        target.truncate(2)
    assert not NoDraft().drafts_at_once
