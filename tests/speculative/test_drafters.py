"""Drafters: what a model drafter proposes, what it reads, and where it keeps silent."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.drafters import MODEL, ModelDrafter
from localspec.speculative.sampling.sampler import Sampler
from tests.support.toy.models import GREEDY, ToyModel, WatchedList, never_stop

WARM = Sampler(SamplingParams(temperature=1, repeat_penalty=1.2, seed=5))


def drafter(model: ToyModel, sampler: Sampler = GREEDY, n_target_vocab: int = 16) -> ModelDrafter:
    return ModelDrafter(model, sampler, n_target_vocab, never_stop)


def continuation(
    model: ToyModel, context: Sequence[int], count: int, sampler: Sampler, n_shared: int
) -> list[int]:
    """What the model says next, row by row and without a cache."""
    text = list(context)
    for _ in range(count):
        text.append(sampler.sample(model.row(text)[:n_shared], len(text), text))
    return text[len(context) :]


def proposals(controller: ModelDrafter, context: Sequence[int], limit: int) -> list[int]:
    return [each.token for each in islice(controller.propose(list(context)), limit)]


contexts = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(
    st.lists(st.tuples(contexts, st.integers(0, 6), st.booleans()), min_size=1, max_size=5),
    st.sampled_from([10, 16, 30]),
    st.sampled_from([10, 16, 30]),
    st.sampled_from([GREEDY, WARM]),
)
def test_proposals_depend_on_the_context_alone(
    asked: list[tuple[list[int], int, bool]], n_vocab: int, n_target_vocab: int, sampler: Sampler
) -> None:
    model = ToyModel(n_vocab=n_vocab)
    controller = drafter(model, sampler, n_target_vocab)
    for context, limit, prepared in asked:
        if prepared:
            controller.read(context)
            assert list(model.tokens) == context[:-1]
            assert controller.unread(context) == 1
        proposed = proposals(controller, context, limit)
        shared = min(n_vocab, n_target_vocab)
        assert proposed == continuation(model, context, limit, sampler, shared)
        if proposed:
            assert list(model.tokens) == [*context, *proposed[:-1]]


def test_a_candidate_is_computed_when_it_is_asked_for() -> None:
    model = ToyModel()
    candidates = drafter(model).propose([1, 2, 3])
    assert model.calls == []
    next(candidates)
    assert model.calls == [(3, 1)]
    next(candidates)
    assert model.calls == [(3, 1), (1, 1)]


def test_tokens_ahead_are_read_in_the_same_pass() -> None:
    model, behind = ToyModel(), ToyModel()
    ahead = drafter(model).propose([1, 2, 3], [4, 5])
    expected = drafter(behind).propose([1, 2, 3, 4, 5])
    assert [next(ahead) for _ in range(3)] == [next(expected) for _ in range(3)]
    assert model.calls == [(5, 1), (1, 1), (1, 1)]
    proposing = drafter(model)
    assert proposing.unread([1, 2, 3, 4]) == 1  # what was ahead stays where it came true


def test_heads_do_not_go_on_behind_tokens_ahead() -> None:
    model = ToyModel()
    model.follows_target = True
    assert list(drafter(model).propose([1, 2, 3], [4])) == [] and model.calls == []


def test_confidence_is_the_lead_over_the_runner_up() -> None:
    model = ToyModel()
    first = next(drafter(model).propose([1, 2, 3]))
    second, best = sorted(model.row([1, 2, 3]))[-2:]
    assert first.confidence == pytest.approx(float(best - second))
    assert first.token == int(model.row([1, 2, 3]).argmax()) and first.group == MODEL


def test_confidence_is_the_drafts_own_if_it_gives_one() -> None:
    model = ToyModel()
    plain = [each.token for each in islice(drafter(model).propose([1, 2, 3]), 3)]
    model.confidences = [0.25, -1.5]
    proposed = list(islice(drafter(model).propose([1, 2, 3]), 3))
    assert [each.token for each in proposed] == plain
    assert [each.confidence for each in proposed] == [0.25] * 3  # of the first row each time
    reviewed = drafter(model).score_past_tokens([9, 8, 7, 6, 5], 2)
    assert [each.confidence for each, _ in reviewed] == [0.25, -1.5]


@pytest.mark.parametrize("sampler", [GREEDY, WARM])
@pytest.mark.parametrize("branches", [1, 2, 3])
def test_rivals_are_behind_the_candidate(sampler: Sampler, branches: int) -> None:
    alone = ModelDrafter(ToyModel(), sampler, 16, never_stop)
    beside = ModelDrafter(ToyModel(), sampler, 16, never_stop, branches)
    for one, each in zip(alone.propose([1, 2]), islice(beside.propose([1, 2]), 9), strict=False):
        assert each._replace(rivals=()) == one
        confidences = [rival.confidence for rival in each.rivals]
        assert [rival.group for rival in each.rivals] == [MODEL] * (branches - 1)
        assert confidences == sorted(confidences, reverse=True)
        assert all(rival.source == "draft" for rival in each.rivals)
        assert branches == 1 or confidences[0] == pytest.approx(-each.confidence)
    reviewed = beside.score_past_tokens([9, 8, 7, 6, 5, 4], 3)
    assert max(len(each.rivals) for each, _ in reviewed) == branches - 1  # truncation leaves fewer


def test_accepted_tokens_stay_in_the_cache() -> None:
    model = ToyModel()
    controller = drafter(model)
    draft = proposals(controller, [1, 2, 3], 4)
    model.calls.clear()
    # All four accepted and a bonus token: the fourth was never decoded, the bonus is pending.
    assert controller.unread([1, 2, 3, *draft, 7]) == 2
    proposals(controller, [1, 2, 3, *draft, 7], 1)
    assert model.calls == [(2, 1)]
    model.calls.clear()
    # Two accepted, then the target disagreed: only its own token is new.
    proposals(controller, [1, 2, 3, *draft[:2], (draft[2] + 1) % 16], 1)
    assert model.calls == [(1, 1)]


def test_a_step_for_its_time_leaves_the_cache_as_it_was() -> None:
    model = ToyModel()
    controller = drafter(model)
    controller.read([1, 2, 3, 4])
    model.calls.clear()
    assert controller.step([9, 8, 7]) == 3 == len(model.tokens)
    assert (model.calls, list(model.tokens)) == ([(1, 1)], [1, 2, 3])
    assert controller.step([9, model.n_vocab]) is None  # a token that the draft lacks
    full = ToyModel(n_ctx=10)
    full.decode([*range(10)], 0)
    assert drafter(full).step([1]) is None


def test_a_draft_ends_with_a_stop_token() -> None:
    plain = proposals(drafter(ToyModel()), [1, 2], 6)
    stop = plain[3]
    expected = plain[: plain.index(stop) + 1]
    stopping = ModelDrafter(ToyModel(), GREEDY, 16, lambda token: token == stop)
    assert proposals(stopping, [1, 2], 6) == expected


def test_ids_beyond_the_target_are_never_picked() -> None:
    # Ids 10 and up are by far the likeliest, yet the target has only ten.
    model = ToyModel(n_vocab=30, favoured=range(10, 30), n_ctx=256)
    assert max(proposals(drafter(model, GREEDY, 30), [1], 50)) >= 10
    assert max(proposals(drafter(model, GREEDY, 10), [1], 50)) < 10


@pytest.mark.parametrize("context", [[12], [1, 12, 2], [1, 2, 12], [12, 1, 2, 3]])
def test_an_id_that_the_draft_lacks_keeps_it_silent(context: list[int]) -> None:
    model = ToyModel(n_vocab=10)
    controller = drafter(model)
    controller.read(context)
    assert proposals(controller, context, 4) == []
    assert controller.score_past_tokens(context, 9) == []
    assert model.calls == []
    assert len(proposals(controller, [1, 2], 4)) == 4


# -- watching ------------------------------------------------------------------------------


@given(contexts, st.integers(1, 12), st.integers(1, 12), st.sampled_from([GREEDY, WARM]))
def test_a_review_says_what_would_have_been_proposed(
    context: list[int], read: int, longest: int, sampler: Sampler
) -> None:
    model = ToyModel()
    controller = drafter(model, sampler)
    controller.read(context[:read])
    reviewed = controller.score_past_tokens(context, longest)
    held = len(context[:read]) - 1
    assert len(reviewed) == min(longest, max(0, len(context) - 1 - held))
    for i, (candidate, came) in enumerate(reviewed):
        position = len(context) - len(reviewed) + i
        assert came == context[position]
        assert [candidate.token] == continuation(model, context[:position], 1, sampler, 16)
    if reviewed:
        assert list(model.tokens) == context[:-1]


@pytest.mark.parametrize(("known", "reads"), [(1, 37), (150, 36), (250, 150), (397, 3)])
def test_a_look_at_a_draft_does_not_cost_a_long_prompt(known: int, reads: int) -> None:
    model = ToyModel(n_ctx=1024)
    controller = drafter(model)
    context = [(i * i) % 16 for i in range(400)]
    controller.read(context[:known])
    model.calls.clear()
    assert reads < controller.to_review(context, 6) <= reads + 2
    reviewed = controller.score_past_tokens(context, 6)
    assert model.calls == [(reads, min(6, reads))]
    assert list(model.tokens[: known - 1]) == context[: known - 1]  # what was read is kept
    for i, (candidate, came) in enumerate(reversed(reviewed), start=1):
        assert came == context[-i]
        assert [candidate.token] == continuation(model, context[:-i], 1, GREEDY, 16)
    assert proposals(controller, context, 3) == continuation(model, context, 3, GREEDY, 16)
    assert list(model.tokens[:400]) == context  # the tail was a look, no more


# -- the window ----------------------------------------------------------------------------


@given(st.integers(10, 24), st.integers(0, 5), st.integers(1, 90))
def test_a_long_context_is_seen_through_a_window(n_ctx: int, seed: int, length: int) -> None:
    model = ToyModel(n_ctx=n_ctx, seed=seed)
    controller = drafter(model)
    text = [(i * i + seed) % 16 for i in range(length)]
    for end in range(1, length + 1):
        assert proposals(controller, text[:end], 1) == continuation(
            model, text[:end], 1, GREEDY, 16
        )
        held = list(model.tokens)
        assert held[0] == text[0] and len(held) <= n_ctx
        if end >= 4:  # the toy looks at three tokens
            assert held[1:] == text[end - len(held) + 1 : end]


def test_the_window_moves_seldom() -> None:
    model = ToyModel(n_ctx=64)
    controller = drafter(model)
    text = [i % 16 for i in range(600)]
    for end in range(1, 601):
        proposals(controller, text[:end], 1)
    read = sum(tokens for tokens, _ in model.calls)
    assert read < 600 * 2.5


def test_a_full_window_ends_a_draft() -> None:
    model = ToyModel(n_ctx=16)
    assert 8 <= len(proposals(drafter(model), [1, 2, 3], 99)) <= 16


# -- one growing context -------------------------------------------------------------------

asked = st.one_of(
    st.tuples(st.just("grow"), st.lists(st.integers(0, 15), min_size=1, max_size=12)),
    st.tuples(st.just("agree"), st.integers(1, 6)),
    st.tuples(st.just("cut"), st.integers(1, 40)),
    st.tuples(st.just("another"), st.lists(st.integers(0, 15), min_size=1, max_size=40)),
    st.tuples(st.just("propose"), st.integers(1, 5)),
    st.tuples(st.just("read"), st.just(0)),
    st.tuples(st.just("review"), st.integers(1, 9)),
)


@given(
    st.lists(asked, max_size=25),
    st.sampled_from([12, 24, 60, 512]),
    st.sampled_from([GREEDY, WARM]),
)
def test_what_is_kept_of_a_growing_context_changes_nothing(
    history: list[tuple[str, Any]], n_ctx: int, sampler: Sampler
) -> None:
    """Against a drafter that is shown a new list each time, which it compares from the start."""
    models = ToyModel(n_ctx=n_ctx), ToyModel(n_ctx=n_ctx)
    keeping, comparing = (drafter(model, sampler) for model in models)
    context, proposed = [1], list[int]()
    for kind, how in history:
        if kind == "grow":
            context += how
        elif kind == "agree":  # the target says what was proposed, and one token more
            context += [*proposed[:how], 7]
        elif kind == "cut":
            del context[how:]
        elif kind == "another":
            context = list(how)
        elif kind == "propose":
            found = list(islice(keeping.propose(context), how))
            again = islice(comparing.propose(list(context)), how)
            assert found == list(again)
            proposed = [each.token for each in found]
        elif kind == "read":
            keeping.read(context)
            comparing.read(list(context))
        else:
            reviewed = keeping.score_past_tokens(context, how)
            assert reviewed == comparing.score_past_tokens(list(context), how)
        assert keeping.unread(context) == comparing.unread(list(context))
        assert models[0].tokens == models[1].tokens and models[0].calls == models[1].calls


class WatchedModel(ToyModel):
    """A toy whose list of tokens counts what is looked at by others."""

    def __init__(self, n_ctx: int) -> None:
        super().__init__(n_ctx=n_ctx)
        self.watched = WatchedList()

    @property
    def tokens(self) -> list[int]:
        return self.watched

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        logits = super().decode(tokens, rows)
        self.watched.extend(tokens)
        return logits

    def truncate(self, length: int) -> None:
        super().truncate(length)
        del self.watched[length:]


@pytest.mark.parametrize("n_ctx", [400, 1024])
def test_a_growing_context_is_read_once(n_ctx: int) -> None:
    model = WatchedModel(n_ctx)
    controller = drafter(model, Sampler(SamplingParams(0.8, repeat_penalty=1.3, repeat_last_n=8)))
    context, touched = WatchedList((i * i) % 16 for i in range(500)), []
    for i in range(60):
        for _ in range(3):
            controller.unread(context)
        if i % 3 == 1:
            assert len(controller.score_past_tokens(context, 4)) > 1
        if i % 3:
            found = list(islice(controller.propose(context), 4))
            context += [*(each.token for each in found[: i % 4]), i % 16]
        else:  # a round that does not draft
            context += [1, 2, 3]
        touched.append(context.take_touched() + model.watched.take_touched())
    # Reading the prompt, comparing what was read, and the same for each move of the window.
    assert sum(each > 200 for each in touched) <= (2 if n_ctx == 1024 else 4)


def test_a_block_ends_a_proposal() -> None:
    model = ToyModel()
    endless = proposals(drafter(model), [1, 2, 3], 6)
    model.block_size = 4
    assert drafter(model).drafts_block and not drafter(ToyModel()).drafts_block
    assert proposals(drafter(model), [1, 2, 3], 6) == endless[:4]


def test_only_what_may_be_forgotten_is_marked() -> None:
    model = ToyModel()
    marks: list[int] = []
    model.checkpoint = lambda: marks.append(len(model.tokens))  # type: ignore[method-assign]
    proposals(drafter(model), [1, 2, 3], 1)
    assert marks == []
    proposals(drafter(model), [1, 2, 3], 4)
    assert marks == [3]


class Forgetful(ToyModel):
    """Forgets at each rollback what it read one by one, as a head forgets what it drafted."""

    def __init__(self) -> None:
        super().__init__()
        self.true = 0

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        self.true = self.true if rows == 1 and len(tokens) == 1 else len(self.tokens) + len(tokens)
        return super().decode(tokens, rows)

    def truncate(self, length: int) -> None:
        self.true = min(self.true, length)
        super().truncate(self.true)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=6))
def test_a_model_may_forget_more_than_it_is_told(rounds: list[tuple[int, int]]) -> None:
    model, context = Forgetful(), [1, 2, 3]
    controller = drafter(model)
    for limit, accepted in rounds:
        found = proposals(controller, context, limit)
        assert found == continuation(model, context, limit, GREEDY, 16)
        context = [*context, *found[:accepted], 5]
