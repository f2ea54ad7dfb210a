"""The influence of layers, read from llama.cpp while it computes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from localspec.core import paths
from localspec.llama import influence, llama_library
from localspec.llama.influence import block_influence
from tests.support.layers import silenced
from tests.support.real_pair import TinyFiles, load_model, random_ids
from tests.support.tiny_models import write_tiny_model

pytestmark = pytest.mark.llama


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "deep.gguf", seed=1, layers=6, matrix_type=np.float32)


def test_layers_that_change_nothing_have_no_influence(deep: Path) -> None:
    with closing(load_model(silenced(deep, {2, 4}, deep.with_name("silent.gguf")))) as model:
        found = block_influence(model, [random_ids(80), random_ids(10, seed=1)])
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert found[2] == pytest.approx(0, abs=1e-5) and found[4] == pytest.approx(0, abs=1e-5)
    assert min(found[1], found[3], found[5]) > 0.01


def test_each_token_counts_once_however_texts_are_cut(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(deep)
    long, short = random_ids(70), random_ids(7, seed=1)
    try:
        both = block_influence(model, [long, short])
        monkeypatch.setattr(influence, "_AT_ONCE", 5)
        first, second = (block_influence(model, [text]) for text in (long, short))
    finally:
        model.close()
    for layer in both:
        expected = (70 * first[layer] + 7 * second[layer]) / 77
        assert both[layer] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("exact", [False, True])
def test_what_the_model_holds_is_left_alone(tiny: TinyFiles, exact: bool) -> None:
    with closing(load_model(tiny.target, exact=exact)) as model:
        before = model.decode(random_ids(9), 1).copy()
        assert block_influence(model, [random_ids(20, seed=1)])
        assert model.tokens == random_ids(9)
        model.truncate(8)
        assert np.allclose(model.decode(random_ids(9)[8:], 1), before, atol=1e-4)


def test_a_hybrid_tells_of_its_layers_but_not_of_its_heads() -> None:
    with closing(load_model(paths.demo_hybrid())) as model:
        assert sorted(block_influence(model, [random_ids(40)])) == [1, 2, 3, 4, 5]


def test_an_architecture_without_names_tells_nothing(tiny: TinyFiles) -> None:
    model = load_model(tiny.target)
    library = llama_library.ggml()
    real = library.ggml_get_name
    library.ggml_get_name = lambda tensor: real(tensor).replace(b"l_out", b"other")
    try:
        assert block_influence(model, [random_ids(5)]) == {}
    finally:
        library.ggml_get_name = real
        model.close()
