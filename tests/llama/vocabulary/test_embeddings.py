"""Embeddings that a file holds behind its tensors, as llama.cpp gets them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core.errors import EngineError
from localspec.llama.vocabulary.embeddings import _F32, _to_float
from localspec.llama.vocabulary.trimmed import TrimmedModel
from localspec.metadata.gguf_file import GGML_TYPES
from localspec.metadata.header import ModelHeader, read_header
from localspec.metadata.trimmed import _UNREADABLE
from localspec.self_draft.trim import trim_vocabulary
from tests.support.real_pair import TinyFiles, options

pytestmark = pytest.mark.llama


@pytest.fixture
def trimmed(tiny: TinyFiles, tmp_path: Path) -> ModelHeader:
    """A draft with a trimmed vocabulary."""
    path = tmp_path / "trimmed.gguf"
    trim_vocabulary(read_header(tiny.draft), read_header(tiny.target), range(64), path)
    return read_header(path)


def test_ggml_reads_every_type_that_is_let_in() -> None:
    """Where it has no function for one, calling that would end the process."""
    there = {each.name for each in GGML_TYPES.values() if _to_float(each.type_id)}
    assert there == {each.name for each in GGML_TYPES.values()} - _UNREADABLE - {
        GGML_TYPES[_F32].name
    }


def test_a_file_that_became_shorter_is_refused(trimmed: ModelHeader) -> None:
    os.truncate(trimmed.path, trimmed.n_bytes - 1)
    with pytest.raises(EngineError, match="cannot be read"):
        TrimmedModel(trimmed, options(trimmed.path))


def test_rows_that_are_too_wide_are_refused(trimmed: ModelHeader) -> None:
    """They would be written beyond the end of an array."""
    assert trimmed.trimmed is not None
    wide = replace(trimmed.trimmed, width=trimmed.trimmed.width + 32)
    with pytest.raises(EngineError, match="wide"):
        TrimmedModel(replace(trimmed, trimmed=wide), options(trimmed.path))
