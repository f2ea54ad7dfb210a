"""Folders of models for the tests of the library."""

import sys
from pathlib import Path

import pytest

from localspec.library.local_models import Inventory, LocalModel, find_models
from localspec.library.scan import Source
from localspec.metadata.header import ModelHeader, read_header
from tests.support.files.gguf_files import gguf_bytes, model_keys, model_tensors, words
from tests.support.library import zoo

MODEL = gguf_bytes(model_keys(words(20)), model_tensors())
OLLAMA = "registry.ollama.ai/library"


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> zoo.Zoo:
    return zoo.build_zoo(tmp_path_factory.mktemp("zoo"))


@pytest.fixture
def in_zoo(animals: zoo.Zoo, monkeypatch: pytest.MonkeyPatch) -> zoo.Zoo:
    for name, value in animals.environment.items():
        monkeypatch.setenv(name, value)
    return animals


@pytest.fixture(autouse=True)
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other tools keep their models; the fixture `home` hides those of this machine."""
    monkeypatch.setattr(sys, "platform", "linux")


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """Our models folder, as set by the fixture `home`."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def names(inventory: Inventory) -> list[str]:
    return [model.name for model in inventory.models]


def models_here(*folders: Path) -> tuple[LocalModel, ...]:
    """Those on this disk, and in the folders given."""
    return find_models(extra=folders).models


def zoo_header(name: str) -> ModelHeader:
    """The header of a model of the zoo, by a part of its name."""
    (path,) = [model.path for model in find_models().models if name in model.name]
    return read_header(path)


def found(*sources: Source) -> list[str]:
    return names(find_models(sources))


def some_model(tokens: int) -> bytes:
    """A model that differs from those with another number of tokens."""
    return gguf_bytes(model_keys(words(tokens)), model_tensors())


def put_parts(stem: Path, numbers: list[int], count: int) -> None:
    for number in numbers:
        zoo.put(stem.with_name(f"{stem.name}-{number:05d}-of-{count:05d}.gguf"), some_model(number))
