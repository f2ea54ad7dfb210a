"""Real weights: Qwen2.5-Coder in the folder that ``--real`` names, loaded once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.core.options.load_options import LoadOptions
from localspec.engine.engine import Engine
from localspec.server.service import Defaults
from tests.support.served import Site, serving

NAMES = (
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
)


@pytest.fixture(scope="session")
def real_files(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """Target and draft."""
    folder: Path | None = request.config.getoption("--real")
    if folder is None:
        pytest.skip("needs real weights: bash scripts/test.sh --real FOLDER")
    target, draft = (folder / name for name in NAMES)
    for path in (target, draft):
        if not path.is_file():
            pytest.skip(f"{path} does not exist")
    return target, draft


@pytest.fixture(scope="session")
def real_engine(real_files: tuple[Path, Path]) -> Iterator[Engine]:
    with Engine.load(*(LoadOptions(path, ctx_size=2048) for path in real_files)) as engine:
        yield engine


@pytest.fixture
def real_site(real_engine: Engine) -> Iterator[Site]:
    with serving(real_engine, defaults=Defaults()) as site:
        yield site
