"""Types of a target by copies of a few of its layers, measured by llama.cpp."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.bench.tuning import types
from localspec.bench.tuning.candidates import PairFiles
from localspec.bench.tuning.prediction import OF_TARGET
from localspec.bench.tuning.trial import Pass
from localspec.bench.tuning.types import type_costs
from localspec.core.errors import DraftNotMade
from localspec.core.options.load_options import LoadOptions
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft import store
from localspec.self_draft.make import write_layers
from localspec.self_draft.recipe import KEEP, Recipe
from tests.support.files.tiny_models import write_tiny_model

pytestmark = pytest.mark.llama
GIVEN = {"threads": 1, "ctx_size": 256}


def pair_of(path: Path) -> PairFiles:
    target = LoadOptions(path, threads=1, ctx_size=256)
    return PairFiles(GIVEN, target, target, {}, (path,))


def tiny(path: Path, layers: int, **changes: Any) -> Path:
    return write_tiny_model(path, seed=1, layers=layers, context_length=256, **changes)


@pytest.mark.parametrize(("layer", "ratio"), [(3.0, 56 / 22), (-0.1, 19.8 / 22)])
def test_costs_of_all_layers_follow_from_those_of_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: float, ratio: float
) -> None:
    """A layer takes 1 s now and ``layer`` in the other type, all else 10 s and 20 s.

    Where noise makes more layers cheaper, those that are left out cost nothing.
    """
    written = dict[Path, tuple[int, str]]()

    def write(source: ModelHeader, recipe: Recipe, between: Path, output: Path) -> None:
        write_layers(source, replace(recipe, type=KEEP), between, output)
        before = written.get(source.path, (0, KEEP))[1]
        written[output] = recipe.layers, before if recipe.type == KEEP else recipe.type

    class Fake:
        def __init__(self, pair: PairFiles, values: dict[str, str]) -> None:
            self.layers, self.kind = written[Path(values["target"])]
            assert pair.draft is None

        def seconds(self, kind: Pass) -> float:
            assert kind.model == "target"
            other = self.kind == "Q8_0"
            return (20.0 if other else 10.0) + self.layers * (layer if other else 1.0)

        kill = close = lambda self: None

    target = tiny(tmp_path / "target.gguf", 12)
    monkeypatch.setattr(types, "write_layers", write)
    monkeypatch.setattr(types, "COMMON", ("Q8_0",))
    monkeypatch.setattr("localspec.bench.tuning.trial.Trial", Fake)
    (measure,) = type_costs(pair_of(target), {}).values()
    found = measure()
    assert {*written.values()} == {(2, KEEP), (8, KEEP), (2, "Q8_0"), (8, "Q8_0")}
    assert found.type == "Q8_0" and found.ratio is not None
    assert found.ratio == pytest.approx(dict.fromkeys(OF_TARGET, ratio))  # the draft is the same


@pytest.mark.parametrize("layers", [1, 3, 9])
def test_each_type_is_measured_by_llama_cpp_and_nothing_stays(tmp_path: Path, layers: int) -> None:
    target = tiny(tmp_path / "target.gguf", layers)
    wider = tiny(tmp_path / "wider.gguf", layers, matrix_type=np.float32)
    kinds = {read_header(path).quantization: path for path in (target, wider)}
    assert len(kinds) == 2
    wanted = type_costs(pair_of(target), kinds)
    found = {kind: measure() for kind, measure in wanted.items()}
    assert all(each.type == kind for kind, each in found.items())
    (other,) = [found[kind] for kind, path in kinds.items() if path == wider]
    assert other.path == wider and other.ratio is not None and other.reason == ""
    assert other.n_bytes == pytest.approx(wider.stat().st_size, rel=0.05)
    assert read_header(target).quantization not in found
    made = found["Q8_0"]
    assert made.ratio is not None and min(made.ratio.values()) > 0 and made.path is None
    assert made.n_bytes < other.n_bytes
    assert not [each for each in store.folder().iterdir() if "making" in each.name]


def test_a_type_that_cannot_be_made_is_named_and_the_next_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = write_layers

    def write(target: ModelHeader, recipe: Recipe, *files: Path) -> None:
        if recipe.type == "Q6_K":
            raise DraftNotMade("llama.cpp cannot write it.", "")
        real(target, recipe, *files)

    monkeypatch.setattr(types, "write_layers", write)
    monkeypatch.setattr(types, "COMMON", ("Q6_K", "Q8_0"))
    pair = pair_of(tiny(tmp_path / "target.gguf", 3))
    wanted = type_costs(pair, {"Q4_0": tmp_path / "gone.gguf"})
    failed, made, gone = (measure() for measure in wanted.values())
    assert failed.ratio is None and failed.reason == "llama.cpp cannot write it."
    assert made.ratio is not None
    assert gone.ratio is None and "gone.gguf" in gone.reason  # deleted since it was listed


def test_first_layers_and_periods_are_left_out_of_the_difference(tmp_path: Path) -> None:
    header = read_header(tiny(tmp_path / "target.gguf", 40))
    assert types._depths(header) == (2, 8)
    start = header.architecture
    changed = {f"{start}.leading_dense_block_count": 3, f"{start}.full_attention_interval": 4}
    hybrid = replace(header, values={**header.values, **changed})
    assert types._depths(hybrid) == (7, 19)
