"""Recipes in words."""

import pytest

from localspec.self_draft.recipe import Recipe

SAID = [
    (Recipe(8), "all 8 layers"),
    (Recipe(8, "Q4_0"), "all 8 layers in Q4_0"),
    (Recipe(3, "Q2_K"), "the first 3 of 8 layers in Q2_K"),
    (Recipe(1, vocab=32768), "the first 1 of 8 layers, 32,768 output rows"),
]


@pytest.mark.parametrize(("recipe", "words"), SAID)
def test_a_recipe_is_described(recipe: Recipe, words: str) -> None:
    assert recipe.describe(8) == words
