"""BenchPlan: the widest pass is known beforehand, filled up to a multiple of 8 tokens."""

import pytest

from localspec.core.options.load_options import DraftTokens
from tests.support.toy.bench import plan


@pytest.mark.parametrize(
    ("lengths", "width"),
    [((0,), 8), ((0, 7), 8), ((0, 8, 2), 16), ((0, "auto"), 64), ((0, 62), 64)],
)
def test_the_widest_pass(lengths: tuple[DraftTokens, ...], width: int) -> None:
    assert plan(*lengths).width == width
