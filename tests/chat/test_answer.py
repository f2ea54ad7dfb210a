"""An answer put together from its rounds, by Ctrl-C too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from localspec.chat.answer import Piece, collect
from localspec.core.generate_options import GenerateOptions
from localspec.core.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate
from tests.support.answers import text_of, tokens_of
from tests.support.toys import FakeClock, ToyEngine

GREEDY = SamplingParams(temperature=0)


def answered() -> list[Piece]:
    engine, params = ToyEngine(), SamplingParams(temperature=1.0, seed=4)
    return list(
        stream_generate(engine, engine.encode("abc"), GenerateOptions(params, 4), clock=FakeClock())
    )


def test_collect_passes_each_piece_on() -> None:
    pieces = answered()
    seen: list[Piece] = []
    collected = collect(iter(pieces), seen.append)
    assert seen == pieces
    assert collected.text == text_of(pieces) and collected.tokens == tokens_of(pieces)
    assert collected.stats is pieces[-1].stats
    assert collected.finish_reason == pieces[-1].finish_reason
    assert collect(iter(pieces)) == collected


@pytest.mark.parametrize("count", [1, 3])
def test_ctrl_c_while_a_piece_is_shown_keeps_it(count: int) -> None:
    pieces = answered()
    shown: list[Piece] = []

    def show(piece: Piece) -> None:
        shown.append(piece)
        if len(shown) == count:
            raise KeyboardInterrupt

    collected = collect(iter(pieces), show)
    assert collected.finish_reason == "cancelled" and shown[:count] == pieces[:count]
    assert collected.text == text_of(shown)  # with what was held back
    assert collected.tokens == tokens_of(shown[:count])


@pytest.mark.parametrize("stop", [["abcX"], []])
@pytest.mark.parametrize("inside", [True, False])
def test_ctrl_c_shows_what_was_held_back(stop: list[str], inside: bool) -> None:
    """Ctrl-C comes while the engine decodes, or while a piece is shown."""
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

    def show(piece: Piece) -> None:
        seen.append(piece)
        if not inside and len(seen) == len(said):
            raise KeyboardInterrupt

    engine.target.decode = dictated  # type: ignore[method-assign, assignment]
    pieces = stream_generate(
        engine, engine.encode("ab"), GenerateOptions(GREEDY, 0, stop=tuple(stop))
    )
    collected = collect(pieces, show)
    assert collected.finish_reason == "cancelled"
    assert collected.text == text_of(seen) == said.decode("utf-8", "replace")
    assert collected.tokens == [*said] and seen[-1].tokens == ()
