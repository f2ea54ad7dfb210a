"""BenchPlan: answers are counted beforehand, and the widest pass is known."""

from __future__ import annotations

import pytest

from localspec.core.config import DraftTokens
from tests.support.bench_toys import plan


def test_answers_are_counted_beforehand() -> None:
    assert plan(0, 2, 4, repeats=3).answers(7) == 63


@pytest.mark.parametrize(
    ("lengths", "width"), [((0,), 2), ((0, 1), 2), ((0, 4, 2), 5), ((0, "auto"), 63), ((0, 62), 63)]
)
def test_the_widest_pass(lengths: tuple[DraftTokens, ...], width: int) -> None:
    assert plan(*lengths).width == width
