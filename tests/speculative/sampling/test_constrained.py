"""ConstrainedSampler: llama.cpp's order of picking, masks that are lazy and exact, and drafts."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.chat.answer import collect
from localspec.core.errors import GrammarError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import AcceptanceRule, SamplingParams
from localspec.engine.generate import make_sampler, stream_generate
from localspec.speculative.loop import Drafted, Logits
from localspec.speculative.prompt_lookup import PromptLookup
from localspec.speculative.sampling.constrained import ConstrainedLookup, ConstrainedSampler
from localspec.speculative.sampling.logit_changes import NO_RULES
from localspec.speculative.sampling.rejection import RejectionSampler
from localspec.speculative.sampling.sampler import Sampler
from tests.support.toy.engine import STOP_TOKEN, SlotConstraint, ToyEngine

GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=0.8, seed=5)
WIDE = SamplingParams(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=2)
REPEATS = SamplingParams(temperature=0.8, repeat_penalty=1.4, seed=9)
PARAMS = (GREEDY, WARM, WIDE, REPEATS, replace(REPEATS, temperature=0))


class Only:
    """A Constraint that always allows the same tokens, and forces what is left."""

    def __init__(self, tokens: Sequence[int], forced: Sequence[int] = ()) -> None:
        self._tokens = list(tokens)
        self._forced = list(forced)

    def mask(self, position: int, history: Sequence[int]) -> NDArray[np.bool]:
        return np.isin(np.arange(9000), self._tokens)

    def allows(self, token: int, position: int, history: Sequence[int]) -> bool:
        return token in self._tokens

    def forced(self, position: int, history: Sequence[int]) -> list[int]:
        return self._forced


def masked(logits: Logits, tokens: Sequence[int]) -> Logits:
    row = np.full_like(logits, -np.inf)
    row[list(tokens)] = logits[list(tokens)]
    return row


def reference(
    params: SamplingParams, logits: Logits, tokens: Sequence[int], history: Sequence[int]
) -> int:
    """`common_sampler_sample`: pick; if that is refused, mask all of the row and pick again."""
    sampler = Sampler(params)
    token = sampler.sample(logits, len(history), history)
    if token in tokens:
        return token
    return sampler.sample(masked(logits, tokens), len(history), history)


rows = st.lists(st.integers(-18, 18), min_size=2, max_size=24).map(
    lambda thirds: np.array(thirds, np.float32) / np.float32(3)
)


@given(rows, st.sampled_from(PARAMS), st.integers(0, 99), st.data())
def test_a_pick_is_that_of_llama_cpp(
    logits: Logits, params: SamplingParams, seed: int, data: st.DataObject
) -> None:
    tokens = data.draw(st.sets(st.integers(0, len(logits) - 1), min_size=1))
    history = data.draw(st.lists(st.integers(0, 30), max_size=8))
    params = replace(params, seed=seed)
    sampler = ConstrainedSampler(Sampler(params), Only(list(tokens)))
    expected = reference(params, logits, list(tokens), history)
    assert sampler.sample(logits, len(history), history) == expected
    assert sampler.verify(logits, len(history), history, Drafted(1)) == expected
    assert sampler.choose(logits, len(history), history).token == expected
    assert sampler.shortfall(logits, len(history), history, expected) == 0
    margin = sampler.margin(logits, len(history), history)
    assert margin is None or margin >= 0
    for token in set(range(len(logits))) - {expected}:
        short = sampler.shortfall(logits, len(history), history, token)
        assert short >= 0 and (token in tokens or short == math.inf)


@pytest.mark.parametrize("params", [GREEDY, WARM, replace(WARM, acceptance="rejection")])
def test_a_dead_end_is_told(params: SamplingParams) -> None:
    logits = np.zeros(300, np.float32)
    logits[7] = -np.inf
    for nothing in ([], [7]):
        with pytest.raises(GrammarError, match="that can follow at position 3"):
            ConstrainedSampler(Sampler(params), Only(nothing)).sample(logits, 3, [])
    proposing = ConstrainedSampler(Sampler(params), Only([]), proposes=True)
    assert proposing.choose(logits, 3, []).token == Sampler(params).sample(logits, 3, [])


class Banning(Sampler):
    """A sampler with rules of its own: it never picks token 7."""

    def sample(self, logits: Logits, position: int, history: Sequence[int]) -> int:
        row = logits.copy()
        row[7] = -np.inf
        return super().sample(row, position, history)


@pytest.mark.parametrize("params", [GREEDY, WARM])
def test_what_the_sampler_itself_refuses_is_a_dead_end(params: SamplingParams) -> None:
    logits = np.arange(20, dtype=np.float32)
    with pytest.raises(GrammarError, match="none of the tokens that can follow"):
        ConstrainedSampler(Banning(params), Only([7])).sample(logits, 3, [])
    proposing = ConstrainedSampler(Banning(params), Only([7]), proposes=True)
    assert proposing.sample(logits, 3, []) == Sampler(params).sample(logits, 3, [])


@given(rows, st.integers(0, 99), st.data())
def test_rejection_tests_masked_distributions(
    logits: Logits, seed: int, data: st.DataObject
) -> None:
    tokens = list(data.draw(st.sets(st.integers(0, len(logits) - 1), min_size=1)))
    params = SamplingParams(temperature=1, seed=seed, acceptance="rejection")
    sampler = ConstrainedSampler(RejectionSampler(params), Only(tokens))
    plain, row = RejectionSampler(params), masked(logits, tokens)
    drafted = sampler.choose(np.roll(logits, 1), 4, [])
    assert drafted.distribution is not None
    assert set(drafted.distribution.ids.tolist()) <= set(tokens)
    verified = sampler.verify(logits, 4, [], Drafted(drafted.token, drafted.distribution))
    assert verified == plain.verify(row, 4, [], Drafted(drafted.token, drafted.distribution))
    assert sampler.sample(logits, 4, []) == plain.sample(row, 4, [])


def test_prompt_lookup_ends_at_what_is_refused() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    for tokens, expected in (([4, 5, 6], [4, 5, 6]), ([4, 6], [4]), ([5], [])):
        index = ConstrainedLookup(PromptLookup(), Only(tokens))
        index.update(text)
        assert [candidate.token for candidate in index.continuation(text)] == expected
    index = ConstrainedLookup(PromptLookup(), SlotConstraint([b"\4\1", b"\5\1", b"\7\1"], 11, 0))
    index.update(text)
    assert [candidate.token for candidate in index.continuation(text)] == [4, 5]
    assert [candidate.token for candidate in index.continuation(text, [4])] == [5]


def test_what_is_forced_comes_before_prompt_lookup() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    index = ConstrainedLookup(PromptLookup(), Only([4, 5, 6], forced=[4, 5]))
    index.update(text)
    found = list(index.continuation(text))
    assert [each.token for each in found] == [4, 5, 6]
    assert [each.source for each in found] == ["forced", "forced", "lookup"]
    alone = ConstrainedLookup(None, Only([4, 5, 6], forced=[4, 5]))
    alone.update(text)
    assert [each.token for each in alone.continuation(text)] == [4, 5]


# -- texts of toy models ---------------------------------------------------------------------


def answer(
    length: DraftTokens, params: SamplingParams, grammar: str = "ab|c|de \n", **options: object
) -> tuple[list[int], int]:
    """Tokens of one answer in a grammar of slots, and how many drafted ones were accepted."""
    engine = ToyEngine(**options)  # type: ignore[arg-type]
    stream = stream_generate(
        engine,
        engine.encode("abc dede"),
        GenerateOptions(params, length, max_tokens=60, grammar=grammar),
    )
    found = collect(stream)
    assert found.finish_reason in ("stop", "length", "context")
    return found.tokens, found.stats.accepted


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("seed", range(3))
def test_the_text_is_the_same_with_any_draft(params: SamplingParams, seed: int) -> None:
    params, accepted = replace(params, seed=seed), 0
    plain, _ = answer(0, params, seed=seed)
    slots = ["ab", "c", "de \n"]
    assert STOP_TOKEN not in plain or len(plain) % 3 == 1
    assert all(chr(token) in slots[i % 3] for i, token in enumerate(plain) if token != STOP_TOKEN)
    for length in (1, 4, 9, "auto"):
        for quirk in (0.3, 9.0, None):
            drafted = answer(length, params, seed=seed, quirk=quirk)
            assert drafted[0] == plain
            accepted += drafted[1]
    assert accepted > 0


@pytest.mark.parametrize("rule", ["coupled", "match", "rejection"])
def test_every_rule_of_acceptance_obeys(rule: AcceptanceRule) -> None:
    accepted = 0
    for seed in range(10):
        params = SamplingParams(temperature=1, seed=seed, acceptance=rule)
        tokens, agreed = answer(4, params, seed=seed)
        accepted += agreed
        if tokens[-1] == STOP_TOKEN:
            tokens.pop()
        assert all(chr(t) in ("ab", "c", "de \n")[i % 3] for i, t in enumerate(tokens))
    assert accepted > 0


def test_a_draft_that_obeys_is_accepted_more() -> None:
    """Where the grammar leaves little, the draft's own wishes are mostly refused."""
    obeying = wild = 0
    for seed in range(20):
        params = replace(WARM, seed=seed)
        obeying += answer(4, params, seed=seed)[1]
        engine = ToyEngine(seed=seed)
        constraint = engine.constraint("ab|c|de \n", 8)
        sampler = make_sampler(params, NO_RULES, constraint)
        prompt = engine.encode("abc dede")
        text, _ = answer(0, params, seed=seed)
        assert engine.draft is not None
        for i in range(len(text)):
            context = [*prompt, *text[:i]]
            row = engine.draft.row(context)
            wild += Sampler(params).sample(row, len(context), context) == text[i]
            obeying += sampler.sample(row, len(context), context) == text[i]
    assert obeying > 1.2 * wild


@given(rows, st.sampled_from(PARAMS), st.integers(0, 99), st.integers(1, 2), st.data())
def test_runners_up_obey(
    logits: Logits, params: SamplingParams, seed: int, count: int, data: st.DataObject
) -> None:
    tokens = data.draw(st.sets(st.integers(0, len(logits) - 1), min_size=1))
    params = replace(params, seed=seed)
    sampler = ConstrainedSampler(Sampler(params), Only(list(tokens)))
    chosen = sampler.choose(logits, 3, [1, 2, 3], count)
    others = [each.token for each in chosen.runners_up]
    assert {chosen.token, *others} <= tokens and len(others) <= count
    assert chosen.token == sampler.sample(logits, 3, [1, 2, 3]) and chosen.token not in others
    free = Sampler(params).choose(logits, 3, [1, 2, 3], count)
    if free.token in tokens:
        assert list(chosen.runners_up) == [each for each in free.runners_up if each.token in tokens]
    else:  # of the row without what is refused, all are allowed
        row = masked(logits, list(tokens))
        assert chosen.runners_up == Sampler(params).choose(row, 3, [1, 2, 3], count).runners_up
