"""ModelInfo: the facts of a file in words, and what speaks against it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.library.model_info import model_info
from localspec.metadata.header import read_header
from tests.support.files.head_files import (
    dflash_bytes,
    eagle3_bytes,
    header_of,
    mtp_bytes,
    target_bytes,
)
from tests.support.files.trimmed_files import trimmed_keys, write_trimmed
from tests.support.real_pair import TinyFiles


def facts(path: Path) -> dict[str, str]:
    return dict(model_info(read_header(path)).facts)


def test_the_bundled_target(demo_files: tuple[Path, Path]) -> None:
    found, header = facts(demo_files[0]), read_header(demo_files[0])
    assert found["file"] == str(demo_files[0])
    assert found["architecture"] == "llama"
    assert found["parameters"] == f"8.9M ({header.parameters:,} in the file)"
    assert found["quantisation"].startswith("F16, 1")
    assert found["context"] == "2,048 tokens"
    assert found["tokenizer"].startswith("4,096 tokens, BPE (gpt2, ")
    assert "bos 0 '<|endoftext|>'" in found["special tokens"]
    assert found["chat template"].endswith(" characters")
    assert found["as a target"] == "for drafts of at most 4.5M parameters"
    assert found["as a draft"] == "for targets of at least 18M parameters"


def test_the_memory_it_would_take(demo_files: tuple[Path, Path]) -> None:
    shown = model_info(read_header(demo_files[0]))
    words = dict(shown.facts)["memory"]
    assert words.startswith("about ") and "for 2,048 tokens of context: weights 18 MB" in words
    assert shown.as_json()["memory"] == shown.memory.as_json()
    assert shown.memory.total > 17 * 2**20
    for free, end in ((1 << 30, "; 1.1 GB are free here"), (1 << 20, ", which is too little")):
        assert dict(model_info(read_header(demo_files[0]), free).facts)["memory"].endswith(end)


def test_a_recurrent_model_drafts_and_is_drafted_for(tiny: TinyFiles) -> None:
    found = facts(tiny.recurrent)
    assert found["architecture"] == "mamba"
    assert found["as a target"].startswith("for drafts of at most ")
    assert found["as a draft"].startswith("for targets of at least ")


def test_heads_in_a_model(tmp_path: Path) -> None:
    shown = model_info(header_of(tmp_path, target_bytes()))
    words = dict(shown.facts)["heads"]
    assert words.startswith("1 prediction head of its own, used unless another draft is named: ")
    assert words.endswith(" MB more")
    assert shown.runs and shown.as_json()["own_heads"] == 1
    without = model_info(header_of(tmp_path, target_bytes(held=0)))
    assert "heads" not in dict(without.facts) and without.as_json()["own_heads"] == 0
    assert without.runs and "conversion left them out" in without.findings[0].message


HEADS: dict[str, tuple[bytes, dict[str, str]]] = {
    "mtp": (
        mtp_bytes("step35", heads=3),
        {
            "heads": "3 multi-token prediction heads (draft-mtp)",
            "reads": "of its target hidden states 64 wide",
        },
    ),
    "eagle3": (
        eagle3_bytes(mapped=[1, 2]),
        {
            "heads": "an EAGLE-3 head (draft-eagle3)",
            "reads": "of its target hidden states 64 wide, the inputs of layers 1, 2, 3",
            "chooses": "among 2 tokens of the vocabulary",
        },
    ),
    "dflash": (
        dflash_bytes(),
        {
            "heads": "a DFlash head (draft-dflash)",
            "reads": "of its target hidden states 64 wide, the inputs of layers 0, 2",
            "drafts": "blocks of 8 tokens in one pass",
        },
    ),
}


@pytest.mark.parametrize("kind", HEADS)
def test_heads_alone(kind: str, tmp_path: Path) -> None:
    data, expected = HEADS[kind]
    shown = model_info(header_of(tmp_path, data))
    found = dict(shown.facts)
    assert {label: found[label] for label in expected} == expected
    assert found["as a draft"] == "only for the model that it was made for"
    assert "as a target" not in found
    document = json.loads(json.dumps(shown.as_json()))
    assert shown.usable and document["runs"] is False
    assert document["as_draft"]["spec_type"] == f"draft-{kind}"


def test_everything_a_header_may_say(tiny: TinyFiles) -> None:
    header = replace(
        read_header(tiny.target), split_count=3, name="A \x1b[31mname", expert_count=8,
        sliding_window=512, license="mit", sampling={"temp": 0.6, "top_k": 20},
        values={"general.base_model.0.name": "Base", "general.base_model.0.repo_url": "there"},
    )  # fmt: skip
    found = dict(model_info(header).facts)
    assert found["file"].endswith("target.gguf in 3 parts")
    assert "\x1b" not in found["name"]
    assert found["architecture"] == "llama, 8 experts"
    assert found["context"] == "1,024 tokens, most layers see 512 tokens back"
    assert found["recommends"] == "temp 0.6, top_k 20"
    assert (found["licence"], found["base model"]) == ("mit", "Base, there")


@pytest.mark.parametrize("change", [{"context_length": None, "block_count": None}, {"vocab": None}])
def test_what_is_not_said_is_left_out(tiny: TinyFiles, change: dict[str, object]) -> None:
    header = replace(read_header(tiny.target), name=None, **change)  # type: ignore[arg-type]
    found = dict(model_info(header).facts)
    assert "name" not in found
    assert ("context" in found) == ("context_length" not in change)
    assert ("tokenizer" in found) == ("vocab" not in change)
    assert model_info(header).runs == ("vocab" not in change)


def test_plain_data(tiny: TinyFiles) -> None:
    document = json.loads(json.dumps(model_info(read_header(tiny.target)).as_json()))
    assert document["runs"] is True and document["architecture"] == "llama"
    assert document["facts"]["licence"] == "not stated"
    assert {finding["level"] for finding in document["findings"]} <= {"info", "warning"}


def test_a_draft_with_a_trimmed_vocabulary(tmp_path: Path) -> None:
    path = write_trimmed(tmp_path / "trimmed.gguf", trimmed_keys())
    info = model_info(read_header(path))
    found = dict(info.facts)
    assert info.usable and not info.runs
    assert found["tokenizer"] == "none: it reads the tokens of its target"
    assert found["proposes"] == "4 of 40 tokens; only localspec can run such a draft"
    assert found["as a draft"] == "only for a model with the tokens that it was made for"
    assert "as a target" not in found
    behind = info.header.n_bytes - 4 * 8 * 40  # the embeddings are no weights of the model
    assert f"{8 * behind / info.header.parameters:.1f} bits" in found["quantisation"]
    assert info.as_json()["as_draft"]["reduced_vocabulary"] == 4  # type: ignore[index]
