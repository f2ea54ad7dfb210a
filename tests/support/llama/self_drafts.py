"""A target whose last layers are silent, so that drafts of its first agree with it; a verdict."""

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.self_draft.verdict import DraftVerdict
from tests.support.files.layers import silenced
from tests.support.files.tiny_models import write_tiny_model

SILENT = (2, 4, 5)  # of six layers

PAYS = DraftVerdict(
    speedup=1.5,
    speedup_interval=(1.4, 1.6),
    lookup_speedup=1.1,
    over_lookup=1.36,
    over_lookup_interval=(1.2, 1.5),
    acceptance_rate=0.75,
    mean_accepted_length=2.5,
    draft_memory=2**20,
    text="same",
    ceiling=2.5,
    prompts=14,
    looping=1,
)
LOSES = replace(PAYS, speedup=0.9, speedup_interval=(0.8, 0.95), over_lookup=0.82)


@pytest.fixture(scope="session")
def silent_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers in F16, three of them silent, and room for the built-in prompts, byte by byte."""
    folder = tmp_path_factory.mktemp("self-drafts")
    whole = write_tiny_model(folder / "whole.gguf", seed=1, layers=6, context_length=2048)
    return silenced(whole, SILENT, folder / "silent.gguf")
