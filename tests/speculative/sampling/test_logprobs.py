"""Log probabilities: the softmax of raw rows, one entry for each token, whatever was drafted."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.answer import Piece
from localspec.core.errors import EngineError, UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate
from localspec.speculative.loop import Logits
from localspec.speculative.sampling.logprobs import RecordingSampler, TokenLogprob
from localspec.speculative.sampling.sampler import Sampler
from tests.support.answers import text_of, tokens_of
from tests.support.toy.engine import ToyEngine
from tests.support.toy.models import FakeClock, ToyTree

GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=1.0, seed=4)
# What changes logits before the pick, and so must not be seen.
CHANGED = SamplingParams(
    temperature=0.7, seed=2, repeat_penalty=1.5, top_k=3, logit_bias=("97+3", "98-9")
)
PARAMS = (GREEDY, WARM, CHANGED)


def answer(
    params: SamplingParams,
    length: DraftTokens,
    logprobs: int | None,
    *,
    quirk: float | None = 0.3,
    grammar: str | None = None,
    stop: Sequence[str] = (),
    branches: int = 1,
) -> list[Piece]:
    engine = ToyEngine(quirk=quirk, n_ctx=48)
    engine.target.tree = ToyTree(engine.target, branches) if branches > 1 else None
    options = GenerateOptions(params, length, grammar=grammar, stop=tuple(stop), logprobs=logprobs)
    return list(stream_generate(engine, engine.encode("abc"), options, clock=FakeClock()))


def told(responses: Sequence[Piece]) -> list[TokenLogprob]:
    return [entry for response in responses for entry in response.logprobs]


def reference(row: Logits) -> list[float]:
    """The log of the softmax, by the textbook."""
    weights = [math.exp(float(logit)) for logit in row]
    return [math.log(weight / math.fsum(weights)) if weight else -math.inf for weight in weights]


lengths = st.one_of(st.integers(0, 9), st.just("auto"))


@given(
    st.sampled_from(PARAMS),
    lengths,
    st.sampled_from([None, 0.0, 0.3, 9.0]),
    st.booleans(),
    st.integers(1, 3),
)
def test_they_do_not_depend_on_the_draft_nor_change_the_text(
    params: SamplingParams,
    length: DraftTokens,
    quirk: float | None,
    constrained: bool,
    branches: int,
) -> None:
    grammar = "abc|de\n|abd e" if constrained else None
    silent = answer(params, 0, None, grammar=grammar)
    plain = answer(params, 0, 5, grammar=grammar)
    drafted = answer(params, length, 5, quirk=quirk, grammar=grammar, branches=branches)
    assert told(silent) == []
    assert tokens_of(drafted) == tokens_of(plain) == tokens_of(silent)
    assert told(drafted) == told(plain)
    assert [len(each.logprobs) for each in drafted] == [len(each.tokens) for each in drafted]


@given(st.sampled_from(PARAMS), st.integers(0, 20))
def test_they_are_those_of_the_raw_row(params: SamplingParams, top: int) -> None:
    responses = answer(params, 4, top)
    context, model = list(b"abc"), ToyEngine(n_ctx=48).target
    for token, entry in zip(tokens_of(responses), told(responses), strict=True):
        expected = reference(model.row(context))
        assert entry.token == token
        assert entry.logprob == pytest.approx(expected[token], abs=1e-5)
        likeliest = sorted(range(len(expected)), key=lambda each: -expected[each])[:top]
        assert [each for each, _ in entry.top] == likeliest
        assert [value for _, value in entry.top] == pytest.approx(
            [expected[each] for each in likeliest], abs=1e-5
        )
        assert sum(math.exp(value) for _, value in entry.top) <= 1 + 1e-9
        context.append(token)


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("length", [0, 3, 9])
def test_a_stop_string_cuts_both_alike(length: int, branches: int) -> None:
    whole = answer(WARM, length, 2, branches=branches)
    stop = text_of(whole)[7:9]
    cut = answer(WARM, length, 2, stop=[stop], branches=branches)
    assert len(tokens_of(cut)) < len(tokens_of(whole))
    assert [entry.token for entry in told(cut)] == tokens_of(cut)
    assert told(cut) == told(whole)[: len(told(cut))]


@given(
    st.lists(st.one_of(st.just(-math.inf), st.floats(-90, 90, width=32)), min_size=1, max_size=40)
)
def test_a_masked_token_is_never_listed(logits: list[float]) -> None:
    row = np.array(logits, np.float32)
    picker = RecordingSampler(Sampler(GREEDY), 20)
    if row.max() == -math.inf:
        with pytest.raises(EngineError):
            picker.sample(row, 0, ())
        assert picker.take() == ()
        return
    token = picker.sample(row, 0, ())
    (entry,) = picker.take()
    assert entry.top[0] == (token, entry.logprob)
    assert all(math.isfinite(value) for _, value in entry.top)
    assert len(entry.top) == min(20, int(np.count_nonzero(row > -np.inf)))
    assert picker.take() == ()


@pytest.mark.parametrize("top", [-1, 101])
def test_how_many_are_told_is_bounded(top: int) -> None:
    with pytest.raises(UsageError, match=f"logprobs is {top}, expected a value from 0 to 100"):
        answer(GREEDY, 0, top)
