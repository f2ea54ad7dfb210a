"""Drafts made out of targets of every architecture here, loaded and compared by real llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from localspec.core.errors import DraftNotMade
from localspec.metadata.header import read_header
from localspec.self_draft.layers import Removable, removable
from localspec.self_draft.make import make_draft
from localspec.self_draft.recipe import KEEP, Recipe
from tests.support.architectures.specs import MODELS, NUMBERED
from tests.support.layers import logits, silenced

pytestmark = pytest.mark.llama
Files = Callable[[str], Path]


def make(target: Path, layers: Sequence[int], output: Path, kind: str = KEEP) -> Path:
    make_draft(read_header(target), Recipe(tuple(layers), kind), output)
    return output


# Periods of layers; the others have none.
GROUPS = {name: 2 for name in MODELS if name.startswith(("qwen35", "qwen3next"))} | {
    "gemma2": 2,
    "gemma3": 6,
    "cohere2": 4,
    "olmo2": 4,
    "gpt-oss": 2,
    "smollm3": 4,
    "llama4": 4,
}
# Layers of a kind that is needed, where the first half or the middle has none.
NEEDED = {"gemma4": {3}, "nemotron_h": {1}, "nemotron_h_moe": {1}, "nemotron_h_moe-mtp": {1}}
WHOLE = ["smallthinker"]  # of which no layer may go
NAMES = [name for name in MODELS | NUMBERED if name not in WHOLE]


def first_half(found: Removable) -> list[int]:
    """Or as many of the first layers as are needed."""
    counts = range(found.n_layers // 2, found.n_layers + 1)
    return next(list(range(n)) for n in counts if found.problem(range(n)) is None)


def without_the_middle(found: Removable) -> list[int]:
    """Without a group from the middle, or from the first place behind it that allows it."""
    for start in range(max(1, (found.n_layers - found.group) // 2), found.n_layers):
        gone = range(start, start + found.group)
        kept = [i for i in range(found.n_layers) if i not in gone]
        if found.problem(kept) is None:
            return kept
    raise AssertionError("nothing but the end may go")


@pytest.mark.parametrize("name", NAMES)
def test_what_may_go_is_known(architecture: Files, name: str) -> None:
    found = removable(read_header(architecture(name)))
    assert (found.may_go, found.group) == ("any", GROUPS.get(name, 1))
    assert found.n_layers == (8 if name in NUMBERED else 4)
    if name in NEEDED:
        assert NEEDED[name] in found.needed


@pytest.mark.parametrize("name", WHOLE)
def test_of_others_no_layer_may_go(architecture: Files, tmp_path: Path, name: str) -> None:
    header = read_header(architecture(name))
    assert removable(header).may_go == "none"
    with pytest.raises(DraftNotMade, match="cannot be left out"):
        make_draft(header, Recipe((0, 1)), tmp_path / "draft.gguf")
    whole = make(architecture(name), range(header.block_count or 0), tmp_path / "whole.gguf")
    assert np.array_equal(logits(whole), logits(architecture(name)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("choose", [first_half, without_the_middle])
def test_it_says_what_the_target_says_with_the_missing_layers_silent(
    architecture: Files, tmp_path: Path, name: str, choose: Callable[[Removable], list[int]]
) -> None:
    target = architecture(name)
    found = removable(read_header(target))
    kept = choose(found)
    draft = make(target, kept, tmp_path / "draft.gguf")
    gone = set(range(found.n_layers)) - set(kept)
    assert np.array_equal(logits(draft), logits(silenced(target, gone, tmp_path / "silent.gguf")))


@pytest.mark.parametrize("name", NAMES)
def test_a_quantized_half_decodes(architecture: Files, tmp_path: Path, name: str) -> None:
    target = architecture(name)
    half = first_half(removable(read_header(target)))
    small = make(target, half, tmp_path / "small.gguf", "Q8_0")
    whole = logits(make(target, half, tmp_path / "whole.gguf"))
    difference = logits(small) - whole
    assert np.abs(difference).max() > 0
    assert np.abs(difference).mean() < 0.25 * np.abs(whole).mean()
