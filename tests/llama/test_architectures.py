"""Tiny files of every architecture that the other tests use: llama.cpp loads and runs them."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from localspec.llama import llama_library
from localspec.llama.model import LlamaModel
from tests.support.architectures.specs import (
    MODELS,
    N_VOCAB,
    REDUCED_VOCAB,
    SIDECARS,
    WIDTH,
    write_architecture,
)
from tests.support.architectures.writer import write_model
from tests.support.real_pair import load_model, random_ids

pytestmark = pytest.mark.llama
TOKENS, DISTINCT = 64, 8
HEADS = {name: model.keys.get("nextn_predict_layers", 0) for name, model in MODELS.items()}


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


def tensors(path: Path) -> dict[str, bytes]:
    return {tensor.name: tensor.data.tobytes() for tensor in GGUFReader(path).tensors}


def heads(path: Path) -> int:
    """How many NextN layers llama.cpp finds."""
    llama = llama_library.library()
    params = llama.llama_model_default_params()
    params.load_mtp = True
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    assert model, llama_library.log.lines()[-3:]
    count = int(llama.llama_model_n_layer_nextn(model))
    llama.llama_model_free(model)
    return count


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_many_different_tokens(architecture: Callable[[str], Path], name: str) -> None:
    with closing(load_model(architecture(name))) as model:
        assert len(set(greedy(model))) >= DISTINCT
        assert model.header.architecture == MODELS[name].name


@pytest.mark.parametrize("name", MODELS)
def test_flash_attention_changes_logits_by_rounding_only(
    architecture: Callable[[str], Path], name: str
) -> None:
    rows = []
    for flash in ("on", "off"):
        model = load_model(architecture(name), flash_attention=flash)
        rows.append(model.decode(random_ids(24), 4).copy())
        model.close()
    assert np.abs(rows[0] - rows[1]).max() <= 0.05 * np.abs(rows[0]).max()


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_finds_the_heads(architecture: Callable[[str], Path], name: str) -> None:
    assert heads(architecture(name)) == HEADS[name]


@pytest.mark.parametrize("name", SIDECARS)
def test_llama_cpp_loads_a_sidecar(architecture: Callable[[str], Path], name: str) -> None:
    assert heads(architecture(name)) == SIDECARS[name].keys.get("nextn_predict_layers", 0)


def test_a_family_shares_its_weights(architecture: Callable[[str], Path]) -> None:
    whole, trunk, sidecar = (
        tensors(architecture(name)) for name in ("qwen35-mtp", "qwen35", "mtp-qwen35")
    )
    assert whole == trunk | sidecar
    assert set(trunk) & set(sidecar) == {"token_embd.weight", "output.weight", "output_norm.weight"}


def test_a_reduced_head_names_the_target_token_of_each_of_its_rows(
    architecture: Callable[[str], Path],
) -> None:
    file = GGUFReader(architecture("eagle3-reduced"))
    by_name = {tensor.name: tensor.data for tensor in file.tensors}
    targets = by_name["d2t"]
    assert by_name["output.weight"].shape == (len(targets), WIDTH)
    assert REDUCED_VOCAB == len(set(targets.tolist())) < N_VOCAB
    assert max(targets) < N_VOCAB


def test_a_twin_says_some_of_the_same_tokens(
    architecture: Callable[[str], Path], tmp_path: Path
) -> None:
    model = load_model(architecture("qwen35"))
    twin = load_model(write_architecture(tmp_path / "twin.gguf", "qwen35", noise=0.02))
    try:
        text = greedy(model)
        assert 0.3 < np.mean(np.equal(greedy(twin, given=text), text)) < 0.95
    finally:
        model.close()
        twin.close()


def test_keys_that_make_no_model_are_told_apart(tmp_path: Path) -> None:
    keys = {k: v for k, v in MODELS["mamba"].keys.items() if k != "ssm.conv_kernel"}
    with pytest.raises(ValueError, match="ssm.conv_kernel"):
        write_model(tmp_path / "model.gguf", replace(MODELS["mamba"], keys=keys))
