"""An answer put together from its rounds, by Ctrl-C too."""

from collections.abc import Sequence

import pytest

from localspec.chat.answer import Piece, collect
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate
from tests.support.answers import text_of, tokens_of
from tests.support.toy.engine import ToyEngine
from tests.support.toy.models import FakeClock

GREEDY = SamplingParams(temperature=0)


def answered() -> list[Piece]:
    engine, params = ToyEngine(), SamplingParams(temperature=1.0, seed=4)
    return list(
        stream_generate(engine, engine.encode("abc"), GenerateOptions(params, 4), clock=FakeClock())
    )


def test_collect_passes_each_response_on() -> None:
    responses = answered()
    seen: list[Piece] = []
    collected = collect(iter(responses), seen.append)
    assert seen == responses
    assert collected.text == text_of(responses) and collected.tokens == tokens_of(responses)
    assert collected.stats == responses[-1].stats != responses[0].stats
    assert collected.finish_reason == responses[-1].finish_reason
    assert collect(iter(responses)) == collected


@pytest.mark.parametrize("count", [1, 3])
def test_ctrl_c_while_a_response_is_shown_keeps_it(count: int) -> None:
    responses = answered()
    shown: list[Piece] = []

    def show(response: Piece) -> None:
        shown.append(response)
        if len(shown) == count:
            raise KeyboardInterrupt

    collected = collect(iter(responses), show)
    assert collected.finish_reason == "cancelled" and shown[:count] == responses[:count]
    assert collected.text == text_of(shown)  # with what was held back
    assert collected.tokens == tokens_of(shown[:count])


@pytest.mark.parametrize("stop", [["abcX"], []])
@pytest.mark.parametrize("inside", [True, False])
def test_ctrl_c_shows_what_was_held_back(stop: list[str], inside: bool) -> None:
    """Ctrl-C comes while the engine decodes, or while a response is shown."""
    said = b"d abc" if stop else "d \u20ac".encode()[:-1]
    engine = ToyEngine(quirk=None, n_ctx=64)
    seen: list[Piece] = []
    decode, left = engine.target.decode, iter([*said])

    def dictated(tokens: Sequence[int], rows: int) -> object:
        logits = decode(tokens, rows).copy()
        if rows:
            token = next(left, None)
            if token is None:
                raise KeyboardInterrupt
            logits[-1, token] = 99
        return logits

    def show(response: Piece) -> None:
        seen.append(response)
        if not inside and len(seen) == len(said):
            raise KeyboardInterrupt

    engine.target.decode = dictated  # type: ignore[method-assign, assignment]
    responses = stream_generate(
        engine, engine.encode("ab"), GenerateOptions(GREEDY, 0, stop=tuple(stop))
    )
    collected = collect(responses, show)
    assert collected.finish_reason == "cancelled"
    assert collected.text == text_of(seen) == said.decode("utf-8", "replace")
    assert collected.tokens == [*said] and seen[-1].tokens == ()
