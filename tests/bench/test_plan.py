"""BenchPlan: the widest pass is known beforehand."""

import pytest

from localspec.core.options.load_options import DraftTokens
from tests.support.toy.bench import plan


@pytest.mark.parametrize(
    ("lengths", "width"), [((0,), 2), ((0, 1), 2), ((0, 4, 2), 5), ((0, "auto"), 63), ((0, 62), 63)]
)
def test_the_widest_pass(lengths: tuple[DraftTokens, ...], width: int) -> None:
    assert plan(*lengths).width == width
