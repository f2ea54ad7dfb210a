"""Drafters: what a model drafter proposes, what it reads, and where it keeps silent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from conftest import ToyModel, never_stop
from hypothesis import given
from hypothesis import strategies as st

from localspec.config import SamplingParams
from localspec.sampling import Sampler
from localspec.speculative.drafters import ModelDrafter, NoDraft

GREEDY = Sampler(SamplingParams(temperature=0))
WARM = Sampler(SamplingParams(temperature=1, repeat_penalty=1.2, seed=5))


def drafter(model: ToyModel, picker: Sampler = GREEDY, n_target_vocab: int = 16) -> ModelDrafter:
    return ModelDrafter(model, picker, n_target_vocab, never_stop)


def continuation(
    model: ToyModel, context: Sequence[int], count: int, picker: Sampler, n_shared: int
) -> list[int]:
    """What the model says next, row by row and without a cache."""
    text = list(context)
    for _ in range(count):
        text.append(picker.pick(model.row(text)[:n_shared], len(text), text))
    return text[len(context) :]


def test_no_draft_proposes_nothing() -> None:
    silent = NoDraft()
    silent.catch_up([1, 2, 3])
    assert silent.propose([1, 2, 3], 5) == []


contexts = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(
    st.lists(st.tuples(contexts, st.integers(0, 6), st.booleans()), min_size=1, max_size=5),
    st.sampled_from([10, 16, 30]),
    st.sampled_from([10, 16, 30]),
    st.sampled_from([GREEDY, WARM]),
)
def test_proposals_depend_on_the_context_alone(
    asked: list[tuple[list[int], int, bool]], n_vocab: int, n_target_vocab: int, picker: Sampler
) -> None:
    model = ToyModel(n_vocab=n_vocab)
    proposer = drafter(model, picker, n_target_vocab)
    for context, limit, prepared in asked:
        if prepared:
            proposer.catch_up(context)
            assert list(model.tokens) == context[:-1]
        proposed = proposer.propose(context, limit)
        shared = min(n_vocab, n_target_vocab)
        assert proposed == continuation(model, context, limit, picker, shared)
        if proposed:
            assert list(model.tokens) == [*context, *proposed[:-1]]


def test_the_last_token_of_a_draft_is_read_from_logits_only() -> None:
    model = ToyModel()
    drafter(model).propose([1, 2, 3], 4)
    assert model.calls == [(3, 1), (1, 1), (1, 1), (1, 1)]


def test_accepted_tokens_stay_in_the_cache() -> None:
    model = ToyModel()
    proposer = drafter(model)
    draft = proposer.propose([1, 2, 3], 4)
    model.calls.clear()
    # All four accepted and a bonus token: the fourth was never decoded, the bonus is pending.
    proposer.propose([1, 2, 3, *draft, 7], 1)
    assert model.calls == [(2, 1)]
    model.calls.clear()
    # Two accepted, then the target disagreed: only its own token is new.
    proposer.propose([1, 2, 3, *draft[:2], (draft[2] + 1) % 16], 1)
    assert model.calls == [(1, 1)]


def test_a_draft_ends_with_a_stop_token() -> None:
    model = ToyModel()
    plain = drafter(model).propose([1, 2], 6)
    stop = plain[3]
    expected = plain[: plain.index(stop) + 1]
    stopping = ModelDrafter(ToyModel(), GREEDY, 16, lambda token: token == stop)
    assert stopping.propose([1, 2], 6) == expected


def test_ids_beyond_the_target_are_never_picked() -> None:
    # Ids 10 and up are by far the likeliest, yet the target has only ten.
    model = ToyModel(n_vocab=30, favoured=range(10, 30), n_ctx=256)
    assert max(drafter(model, GREEDY, 30).propose([1], 50)) >= 10
    assert max(drafter(model, GREEDY, 10).propose([1], 50)) < 10


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ([1] * 3, 5),
        ([1] * 5, 3),
        ([1] * 7, 1),
        ([1] * 8, 0),
        ([1] * 9, 0),
        ([1] * 80, 0),
    ],
)
def test_a_short_context_limits_the_draft(context: list[int], expected: int) -> None:
    model = ToyModel(n_ctx=8)
    proposer = drafter(model)
    proposer.catch_up(context)
    assert len(proposer.propose(context, 9)) == expected
    if len(context) > 8:
        assert model.calls == []


@pytest.mark.parametrize("context", [[12], [1, 12, 2], [1, 2, 12], [12, 1, 2, 3]])
def test_an_id_that_the_draft_lacks_keeps_it_silent(context: list[int]) -> None:
    model = ToyModel(n_vocab=10)
    proposer = drafter(model)
    proposer.catch_up(context)
    assert proposer.propose(context, 4) == []
    assert model.calls == []
    assert len(proposer.propose([1, 2], 4)) == 4


@pytest.mark.parametrize("limit", [0, -1])
def test_no_limit_no_work(limit: int) -> None:
    model = ToyModel()
    assert drafter(model).propose([1, 2], limit) == []
    assert model.calls == []
