"""Two ways to roll back on real models: the cheaper is used, and measured only once."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localspec.core import paths
from localspec.engine.engine import Engine
from localspec.engine.loading.rollback_choice import load_target
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from tests.support.real_pair import options

pytestmark = pytest.mark.llama
Files = Callable[[str], Path]


@pytest.fixture
def path(architecture: Files) -> Path:
    return architecture("qwen35")


def kept() -> list[Path]:
    return [*(paths.cache_folder() / "profiles").glob("*.rollback")]


@contextmanager
def started(path: Path, say: Callable[[str], None] | None = None) -> Iterator[LlamaModel]:
    model = load_target(read_header(path), options(path), say)
    yield model
    model.close()


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds of a round by the way, instead of measured ones."""
    known = {"snapshots": 1.0, "fork": 2.0}
    monkeypatch.setattr(
        "localspec.engine.loading.rollback_choice._round_seconds",
        lambda model, clock: known[model.rollback.name],
    )
    return known


@pytest.mark.parametrize("better", ["fork", "snapshots"])
def test_the_cheaper_way_is_used_and_kept(path: Path, costs: dict[str, float], better: str) -> None:
    costs[better] = 0.5
    said: list[str] = []
    for _ in range(2):
        with started(path, said.append) as model:
            assert model.rollback.name == better and model.tokens == []
        costs[better] = 9.0  # not looked at again
    assert len(said) == 1 and "two strategies to roll rejected tokens back" in said[0]
    (file,) = kept()
    assert json.loads(file.read_text())[better] == 0.5


def test_a_model_that_nothing_drafts_for_has_no_snapshots(path: Path) -> None:
    model = load_target(read_header(path), options(path), drafted=False)
    assert model.rollback.name == "fork" and kept() == []
    model.close()
    with Engine.load(options(path)) as engine:
        assert engine.target.rollback.name == "fork" and kept() == []
    with Engine.load(options(path), options(path)):
        assert len(kept()) == 1


@pytest.mark.parametrize("damage", ["", "[1]", "{}", '{"fork": "x"}', "[" * 4000, "1e999"])
def test_damaged_figures_are_measured_again(path: Path, damage: str) -> None:
    with started(path) as model:
        chosen = model.rollback.name
    (file,) = kept()
    file.write_text(damage)
    with started(path) as model:
        assert model.rollback.name in ("fork", "snapshots") and chosen
    assert set(json.loads(file.read_text())) == {"fork", "snapshots"}


@pytest.mark.parametrize(("name", "way"), [("llama", "trim"), ("falcon-h1", "fork")])
def test_where_there_is_one_way_nothing_is_measured(
    architecture: Files, name: str, way: str
) -> None:
    with started(architecture(name)) as model:
        assert model.rollback.name == way
    assert kept() == []
