"""Two ways to roll back on real models: the cheaper is used, and measured only once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localspec.engine.engine import Engine
from localspec.engine.loading.pair_file import Model, PairFile
from localspec.engine.loading.rollback_choice import load_target
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from tests.support.real_pair import options

pytestmark = pytest.mark.llama
Files = Callable[[str], Path]


@pytest.fixture
def path(architecture: Files) -> Path:
    return architecture("qwen35")


@contextmanager
def started(
    path: Path, file: PairFile, say: Callable[[str], None] | None = None
) -> Iterator[LlamaModel]:
    model = load_target(Model(read_header(path), options(path)), file, say)
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
    said, file = list[str](), PairFile()
    for _ in range(2):
        with started(path, file, said.append) as model:
            assert model.rollback.name == better and model.tokens == []
        costs[better] = 9.0  # not looked at again
    assert len(said) == 1 and "two strategies to roll rejected tokens back" in said[0]
    assert file.parts["rollback"][better] == 0.5


def test_a_model_that_nothing_drafts_for_has_no_snapshots(path: Path) -> None:
    file = PairFile()
    model = load_target(Model(read_header(path), options(path)), file, drafted=False)
    assert model.rollback.name == "fork" and not file.parts
    model.close()
    with Engine.load(options(path)) as engine:
        assert engine.target.rollback.name == "fork" and "rollback" not in engine.file.parts
    with Engine.load(options(path), options(path)) as engine:
        assert set(engine.file.parts["rollback"]) == {"fork", "snapshots"}


@pytest.mark.parametrize("damage", [None, "", [1], {}, {"fork": "x"}, 3])
def test_damaged_figures_are_measured_again(path: Path, damage: object) -> None:
    file = PairFile()
    file.update(rollback=damage)
    with started(path, file) as model:
        assert model.rollback.name in ("fork", "snapshots")
    assert set(file.parts["rollback"]) == {"fork", "snapshots"}


@pytest.mark.parametrize(("name", "way"), [("llama", "trim"), ("falcon-h1", "fork")])
def test_where_there_is_one_way_nothing_is_measured(
    architecture: Files, name: str, way: str
) -> None:
    file = PairFile()
    with started(architecture(name), file) as model:
        assert model.rollback.name == way
    assert not file.parts
