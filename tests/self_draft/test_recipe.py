"""Recipes in words."""

from __future__ import annotations

import pytest

from localspec.self_draft.recipe import Recipe

SAID = [
    (Recipe(tuple(range(8))), "all 8 layers"),
    (Recipe(tuple(range(8)), "Q4_0"), "all 8 layers in Q4_0"),
    (Recipe((0, 1, 2), "Q2_K"), "the first 3 of 8 layers in Q2_K"),
    (Recipe((0, 1, 3, 7)), "4 of 8 layers, without 2, 4-6"),
    (Recipe((2, 3, 4, 5, 6)), "5 of 8 layers, without 0-1, 7"),
    (Recipe((0,), vocab=32768), "the first 1 of 8 layers, 32,768 output rows"),
]


@pytest.mark.parametrize(("recipe", "words"), SAID)
def test_what_is_kept_is_told(recipe: Recipe, words: str) -> None:
    assert recipe.describe(8) == words
