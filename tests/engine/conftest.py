"""Models that tests of several caches share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.engine.engine import Engine
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import TinyFiles, options


@pytest.fixture(params=["sliding", "recurrent"])
def forgetful(request: pytest.FixtureRequest, tiny: TinyFiles, tmp_path: Path) -> Iterator[Engine]:
    """A model that cannot return to any earlier token."""
    path = tiny.recurrent
    if request.param == "sliding":
        path = write_tiny_model(
            tmp_path / "sliding.gguf", seed=2, layers=4, window=16, context_length=4096
        )
    with Engine.load(options(path, ctx_size=2048, ubatch_size=64)) as engine:
        yield engine
