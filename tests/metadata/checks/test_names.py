# ruff: noqa: F401, F811  (`make` is a fixture)
"""Files that llama.cpp does not load, as their names of architectures and tensors say."""

import pytest

from localspec.metadata.checks.names import ARCHITECTURES
from localspec.pairing import check_model, check_pair
from tests.support.files.architectures.specs import MODELS
from tests.support.files.gguf_files import Tensor, model_tensors
from tests.support.files.headers import Make, make, rules


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v.blk.0.attn_q.weight", "of vision or audio, which is no part of a text model"),
        ("mm.0.weight", "of vision or audio"),
        ("a.conv1d.0.weight", "of vision or audio"),
        ("model.layers.0.weight", "'model.layers.0.weight', which is no part"),
        ("blk.2.attn_q.weight", "but has only 2 layers"),
    ],
)
def test_tensors_that_no_text_model_has(make: Make, name: str, words: str) -> None:
    tensors = [*model_tensors(300), Tensor(name, (64, 64))]
    header = make(tensors=tensors, keys={"llama.block_count": 2})
    found = [each for each in check_model(header) if each.level == "error"]
    assert rules(found) == ["error unknown-tensor"] and words in found[0].message
    assert "Hub" in found[0].hint
    assert not check_pair(make(), header).llama_cpp_accepts


@pytest.mark.parametrize("name", ["mllama", "qwen25vl", "gptoss", "\x1b"])
def test_an_architecture_that_llama_cpp_does_not_know(make: Make, name: str) -> None:
    found = check_model(make(keys={"general.architecture": name}))
    assert "error unknown-architecture" in rules(found)
    assert all(each.message.isprintable() for each in found)


def test_all_architectures_of_the_tests_are_known() -> None:
    assert {spec.name for spec in MODELS.values()} <= ARCHITECTURES
