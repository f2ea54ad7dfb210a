"""Repositories of the original weights: what a header may be believed, and what must be asked."""

from pathlib import Path

import pytest

from localspec.core.errors import IncompatiblePair, UsageError
from localspec.export.repositories import original_repo, original_repos
from tests.support.files.head_files import header_of, mtp_bytes, target_bytes
from tests.support.library.exports import facts_of, model

BASE = "general.base_model.0.repo_url"
HUB = "https://huggingface.co/"


def test_the_given_one_wins(tmp_path: Path) -> None:
    header = model(tmp_path, "big", keys={"general.source.repo_url": f"{HUB}org/Big"})
    assert original_repo(header, "other/Big", "--target-repo") == "other/Big"
    assert original_repo(header, None, "--target-repo") == "org/Big"


@pytest.mark.parametrize("name", ["org", "org/", "a/b/c", "../etc", "org/x y", "", "https://x/y"])
def test_a_given_one_must_be_a_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="^--draft-repo .* is no repository"):
        original_repo(model(tmp_path, "big"), name, "--draft-repo")


@pytest.mark.parametrize("file", ["Qwen3-14B-Q4_K_M", "renamed"])
def test_a_base_of_the_same_name_is_the_model_itself(tmp_path: Path, file: str) -> None:
    keys = {BASE: f"{HUB}Qwen/Qwen3-14B", "general.name": "Qwen3 14B"}
    header = model(tmp_path, file, keys=keys)
    assert original_repo(header, None, "--target-repo") == "Qwen/Qwen3-14B"


def test_a_base_of_another_name_is_another_model(tmp_path: Path) -> None:
    keys = {BASE: f"{HUB}Qwen/Qwen3-14B-Base", "general.name": "Qwen3 14B"}
    with pytest.raises(IncompatiblePair) as caught:
        original_repo(model(tmp_path, "Qwen3-14B-Q4_K_M", keys=keys), None, "--target-repo")
    assert "names Qwen/Qwen3-14B-Base as its base, which is another model" in caught.value.message
    assert caught.value.hint == "Name it with --target-repo ORG/NAME."


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/org/Tiny",
        f"{HUB}org/Tiny'; rm -rf ~",
        f"{HUB}org/Ti\nny",
        f"{HUB}org",
        f"{HUB}../..",
        "org/Tiny",
        7,
    ],
)
def test_an_address_that_is_none(tmp_path: Path, address: object) -> None:
    header = model(tmp_path, "Tiny", keys={BASE: address})
    with pytest.raises(IncompatiblePair, match="its header names none"):
        original_repo(header, None, "--target-repo")


def test_heads_are_in_the_targets_repository(tmp_path: Path) -> None:
    target = header_of(tmp_path, target_bytes(heads=0), "big.gguf")
    draft = header_of(tmp_path, mtp_bytes(), "mtp-big.gguf")
    known = facts_of(target, draft, target_repo="org/Big")
    assert original_repos(known, "vLLM") == ("org/Big", None)


def test_heads_that_no_engine_serves(tmp_path: Path) -> None:
    target = header_of(tmp_path, target_bytes("cohere2moe"), "big.gguf")
    with pytest.raises(IncompatiblePair, match="vLLM cannot draft with the heads of a cohere2moe"):
        original_repos(facts_of(target, target_repo="org/Big"), "vLLM")
