"""Tiny files of every architecture that the other tests use: llama.cpp loads and runs them."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.llama.model import LlamaModel
from tests.support.files.architectures.specs import (
    MODELS,
)
from tests.support.files.architectures.writer import write_model
from tests.support.real_pair import load_model, random_ids

pytestmark = pytest.mark.llama
TOKENS, DISTINCT = 64, 8


def greedy(model: LlamaModel, given: Sequence[int] = ()) -> list[int]:
    """The likeliest next tokens after a random prompt, one by one, and after each of ``given``."""
    *prompt, last = random_ids(24)
    model.truncate(0)
    model.decode(prompt, 0)
    said: list[int] = []
    for i in range(TOKENS):
        row = model.decode([last], 1)[-1]
        assert np.isfinite(row).all()
        said.append(int(row.argmax()))
        last = given[i] if given else said[-1]
    return said


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_many_different_tokens(architecture: Callable[[str], Path], name: str) -> None:
    with closing(load_model(architecture(name))) as model:
        assert len(set(greedy(model))) >= DISTINCT
        assert model.header.architecture == MODELS[name].name


def test_keys_that_make_no_model_are_told_apart(tmp_path: Path) -> None:
    keys = {k: v for k, v in MODELS["mamba"].keys.items() if k != "ssm.conv_kernel"}
    with pytest.raises(ValueError, match="ssm.conv_kernel"):
        write_model(tmp_path / "model.gguf", replace(MODELS["mamba"], keys=keys))
