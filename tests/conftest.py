"""Shared fixtures, and a home without belongings for every test."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from localspec.core import worker
from localspec.library import tool_caches
from tests.support.command import bad_files, chat, localspec, run  # noqa: F401  fixtures
from tests.support.files.architectures.specs import architecture  # noqa: F401  a fixture
from tests.support.first_use import Remembered
from tests.support.library.model_folders import animals, in_zoo  # noqa: F401  fixtures
from tests.support.llama.row_kernels import kernels, no_kernels  # noqa: F401  fixtures
from tests.support.llama.self_drafts import silent_target  # noqa: F401  a fixture
from tests.support.programs.streams import streams  # noqa: F401  a fixture
from tests.support.real_pair import (  # noqa: F401  fixtures
    _tiny_engine,
    demo_files,
    engine,
    floats,
    tiny,
)

# A shell makes its background jobs, and their children, ignore Ctrl-C; the tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# "repeatable" and "thorough" give every run the same examples; look for new ones with
# `pytest --hypothesis-profile=search`.
settings.register_profile("repeatable", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=100, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000, database=None)
settings.load_profile("repeatable")

# What leads to the Hub, and to models of other tools.
FOREIGN = (
    "XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME HF_ENDPOINT HF_HOME HF_HUB_CACHE "
    "HUGGINGFACE_HUB_CACHE HF_HUB_OFFLINE HF_TOKEN LLAMA_CACHE LMSTUDIO_HOME OLLAMA_MODELS "
    "JAN_DATA_FOLDER LOCALSPEC_CONFIG"
).split()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--real", type=Path, help="folder with real weights, for tests marked real")
    parser.addoption("--thorough", action="store_true", help="more random histories and examples")


def pytest_configure(config: pytest.Config) -> None:
    """Where tests with llama.cpp are left out, none of the others may load it."""
    if config.option.thorough:
        settings.load_profile("thorough")
    if config.option.markexpr == "not llama":
        sys.modules["llama_cpp"] = None  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases that are like others, unless --thorough has them."""
    if not config.option.thorough:
        items[:] = [item for item in items if item.get_closest_marker("thorough") is None]


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether a test may take long for cases that are like others."""
    return bool(request.config.option.thorough)


@pytest.fixture(scope="session")
def first_uses() -> Iterator[Remembered]:
    """How the children of first uses ended: tests use each file once, and measure nothing there."""
    found = Remembered(worker.ask)
    yield found
    found.forker.close()


@pytest.fixture(scope="session", autouse=True)
def shared_home(first_uses: Remembered, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For fixtures of modules, which are made before a test has a home."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("LOCALSPEC_CACHE", str(folder / "found"))
        patch.setattr(worker, "ask", first_uses.ask)
        yield


@pytest.fixture
def shared_cache(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes know what earlier ones found: the first use of a file takes one of its own."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path_factory.getbasetemp() / "shared"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, first_uses: Remembered, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own: no test reads or writes the user's."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "found"))
    monkeypatch.setenv("LOCALSPEC_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(worker, "ask", first_uses.ask)
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tool_caches, "OLLAMA_SERVICE", folder / "service")
    monkeypatch.setattr(tool_caches, "bundled_folder", lambda: folder / "bundled")
    return folder
