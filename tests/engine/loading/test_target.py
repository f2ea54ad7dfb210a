"""A target takes snapshots of a recurrent state if something drafts for it, and else none."""

from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.engine.engine import Engine
from localspec.engine.loading.pair import load_target
from localspec.engine.loading.pair_file import ModelFile
from localspec.metadata.header import read_header
from tests.support.real_pair import options

pytestmark = pytest.mark.llama
Files = Callable[[str], Path]


def test_a_model_that_nothing_drafts_for_has_no_snapshots(architecture: Files) -> None:
    path = architecture("qwen35")
    with Engine.load(options(path)) as engine:
        assert engine.target.rollback.name == "fork"
    with Engine.load(options(path), options(path)) as engine:
        assert engine.target.rollback.name == "snapshots"


@pytest.mark.parametrize(("name", "way"), [("llama", "trim"), ("falcon-h1", "fork")])
def test_one_without_snapshots_rolls_back_in_another_way(
    architecture: Files, name: str, way: str
) -> None:
    path = architecture(name)
    model = load_target(ModelFile(read_header(path), options(path)), drafted=True)
    assert model.rollback.name == way
    model.close()
