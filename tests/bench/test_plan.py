"""BenchPlan: the widest pass is known beforehand, filled up to a multiple of 8 tokens."""

import pytest

from localspec.core.options.load_options import DraftTokens
from localspec.engine.engine import Engine
from tests.support.toy.bench import plan, variant


@pytest.mark.parametrize(
    ("lengths", "width"),
    [((0,), 8), ((0, 7), 8), ((0, 8, 2), 16), ((0, "auto"), 64), ((0, 62), 64)],
)
def test_the_widest_pass(lengths: tuple[DraftTokens, ...], width: int) -> None:
    assert plan(*lengths).width == width


@pytest.mark.llama
def test_an_answer_from_empty_caches_and_one_behind_others(engine: Engine) -> None:
    prompt = engine.encode_text("the same prompt again")
    side = variant(engine, 0, max_tokens=4)
    found = [side.answer(prompt), side.answer_warm(prompt), side.answer(prompt)]
    cached = [answer.stats.cached_tokens for answer in found]
    assert cached[0] == cached[2] == 0 and cached[1] > 0
