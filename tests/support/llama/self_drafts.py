"""A target whose last layers are silent, so that drafts of its first agree with it."""

from pathlib import Path

import pytest

from tests.support.files.layers import silenced
from tests.support.files.tiny_models import write_tiny_model

SILENT = (2, 4, 5)  # of six layers


@pytest.fixture(scope="session")
def silent_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers in F16, three of them silent, and room for the built-in prompts, byte by byte."""
    folder = tmp_path_factory.mktemp("self-drafts")
    whole = write_tiny_model(folder / "whole.gguf", seed=1, layers=6, context_length=2048)
    return silenced(whole, SILENT, folder / "silent.gguf")
