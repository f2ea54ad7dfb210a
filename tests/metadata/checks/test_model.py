# ruff: noqa: F401, F811  (`make` is a fixture)
"""What is wrong with one file alone: each edge from both sides."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localspec.core.errors import NotAGGUF
from localspec.metadata.checks.model import BYTE
from localspec.metadata.gguf_file import MAX_TAIL_BYTES
from localspec.metadata.header import ModelHeader, read_header
from localspec.pairing import check_model, check_pair, check_usable
from tests.support.files.architectures.specs import MODELS, NUMBERED, SIDECARS
from tests.support.files.gguf_files import Tensor, model_keys, model_tensors, words, write_gguf
from tests.support.files.headers import DRAFT_SIZE, N_WORDS, Make, changed, make, rules


def byte_at(*ids: int) -> list[int]:
    """Types of tokens: bytes at these ids, all others ordinary."""
    return [BYTE if token_id in ids else 1 for token_id in range(N_WORDS)]


FILES: dict[str, tuple[dict[str, object], str, str]] = {
    "mmproj by type": ({"keys": {"general.type": "mmproj"}}, "sidecar", "vision or audio"),
    "mmproj by architecture": (
        {"keys": {"general.architecture": "clip"}},
        "sidecar",
        "vision or audio",
    ),
    "imatrix": ({"keys": {"general.type": "imatrix"}}, "sidecar", "imatrix"),
    "adapter": ({"keys": {"general.type": "adapter"}}, "sidecar", "LoRA"),
    "unknown kind": ({"keys": {"general.type": "pet\n"}}, "sidecar", r"type 'pet\n'"),
    "no weights": ({"tensors": []}, "vocabulary-only", "no weights"),
    "no tokenizer": ({"keys": {"tokenizer.ggml.model": None}}, "no-tokenizer", "no tokenizer"),
    "no tokens": ({"tokens": 0}, "no-tokenizer", "without tokens"),
    "tokenizer none": ({"model": "none"}, "no-vocabulary", "'none'"),
    "tokenizer no_vocab": ({"model": "no_vocab"}, "no-vocabulary", "'no_vocab'"),
    "tokenizer unknown": ({"model": "x\t"}, "unknown-tokenizer", r"'x\t'"),
    "pre unknown": ({"pre": "x\t"}, "unknown-pre", r"'x\t'"),
    "no merges": ({"merges": None}, "no-merges", "without merges"),
    "duplicates": (
        {"tokens": changed({7: "word3", 8: "word4"})},
        "duplicate-tokens",
        "2 token texts more than once, such as 'word3' as ids 3 and 7",
    ),
    "duplicate C strings": ({"tokens": changed({7: b"a\0x", 8: b"a"})}, "duplicate-tokens", "'a'"),
    "a byte without its number": (
        {"tokens": changed({7: "<0"}, model="llama"), "model": "llama", "types": byte_at(7)},
        "byte-number",
        "1 byte token without a number, such as '<0' as id 7",
    ),
    "a byte without its number in BPE": (
        {"tokens": changed({7: b"ab\0c"}), "types": byte_at(7, 8)},
        "byte-number",
        "'ab' as id 7",
    ),
    "a row too many": (
        {"tensors": [Tensor("token_embd.weight", (8, N_WORDS + 1))]},
        "embedding-size",
        "embedding of 301 rows for 300 tokens",
    ),
    "a row too few": (
        {"tensors": [Tensor("token_embd.weight", (8, N_WORDS - 1))]},
        "embedding-size",
        "embedding of 299 rows for 300 tokens",
    ),
    "duplicate stand-in": (
        {"tokens": changed({7: "", 8: "[EMPTY_7]"})},
        "duplicate-tokens",
        "'[EMPTY_7]'",
    ),
}


def test_files_that_are_no_models(make: Make) -> None:
    for case, (options, rule, says) in FILES.items():
        header = make(**options)
        errors = [f for f in check_model(header) if f.level == "error"]
        assert [f.rule for f in errors] == [rule], case
        message, hint = errors[0].message, errors[0].hint
        assert says in message and message.isprintable() and hint, (case, message)
        for pair in ((header, make()), (make(), header)):
            report = check_pair(*pair)
            assert f"error {rule}" in rules(report.errors), case
            assert not report.llama_cpp_accepts and report.llama_cpp_rule == rule, case


def test_files_that_look_like_the_above_and_are_models(make: Make) -> None:
    byte = byte_at(7)
    for header in (
        make(keys={"general.type": "model"}),
        make(changed({7: "", 8: ""})),
        make(merges=None, pre="kimi-k2"),
        make(merges=None, model="llama"),
        make(model="llama", keys={"tokenizer.ggml.merges": [1, 2]}),
        make(changed({7: "<0x"}, model="llama"), model="llama", types=byte),
        make(changed({7: "x"}, model="rwkv"), model="rwkv", types=byte),
        make(tensors=[Tensor("token_embd.weight", (8, N_WORDS))]),
        make(tensors=[Tensor("token_embd.weight", (8, N_WORDS, 1))]),
    ):
        assert check_model(header) == []


def test_models_that_do_not_continue_text(make: Make) -> None:
    cases: tuple[tuple[dict[str, object], str], ...] = (
        ({"general.architecture": "dream"}, "diffusion"),
        ({"general.architecture": "bert"}, "encoder"),
        ({"llama.attention.causal": False}, "encoder"),
        ({"llama.pooling_type": 3}, "text embedding"),
    )
    for keys, says in cases:
        [finding] = check_model(make(keys=keys))
        assert finding.rule == "not-autoregressive" and says in finding.message, keys
        report = check_pair(make(), make(keys={"bert.context_length": 4096} | keys))
        assert rules(report.errors) == ["error not-autoregressive"], keys
        assert report.llama_cpp_accepts  # its comparison looks at vocabularies only


def test_a_base_model_may_lack_a_template(make: Make) -> None:
    findings = check_model(make(keys={"tokenizer.chat_template": None}))
    assert rules(findings) == ["warning no-chat-template"]


@pytest.mark.parametrize(
    ("mark", "kind", "found"),
    [
        ("<start_of_turn>", 1, True),
        ("<｜User｜>", 1, True),
        ("[INST]", 5, True),
        ("<start_of_turn>", 3, False),
        ("<tool_call>", 4, False),
        ("<end_of_turn>", 1, False),  # a control token to llama.cpp all the same
        ("<b>", 1, False),
    ],
)
def test_marks_of_a_template_that_prompts_would_split(
    make: Make, mark: str, kind: int, found: bool
) -> None:
    keys = {"tokenizer.chat_template": f"{{{{ '{mark}user' }}}}"}
    types = [kind if token_id == 40 else 1 for token_id in range(N_WORDS)]
    findings = check_model(make(changed({40: mark}), types=types, keys=keys))
    assert rules(findings) == ["warning split-marks"] * found
    if found:
        assert f"as ordinary tokens: '{mark}'" in findings[0].message
    assert check_model(make(changed({40: mark}), types=types)) == []  # not in its template


def test_chatml_of_a_model_without_a_template_may_be_split(make: Make) -> None:
    keys = {"tokenizer.chat_template": None}
    findings = check_model(make(changed({40: "<|im_start|>"}), keys=keys))
    assert rules(findings) == ["warning no-chat-template", "warning split-marks"]


def test_tokenizers_may_be_compared_without_weights(make: Make) -> None:
    report = check_pair(make(tensors=[]), make(tensors=[]), weights_needed=False)
    assert rules(report.findings) == ["info vocabulary-only"] * 2
    assert report.compatible and report.llama_cpp_accepts


def test_a_sidecar_without_a_vocabulary(make: Make, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "imatrix.gguf", {"general.type": "imatrix"})
    assert rules(check_pair(make(), read_header(path)).errors) == ["error sidecar"]


PROMPTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"pre": "glm4", "add_bos": True}, ["error no-bos-id"]),
    ({"pre": "glm4", "add_bos": True, "bos": 5}, []),
    ({"pre": "glm4", "add_bos": True, "bos": N_WORDS}, ["error no-bos-id"]),
    ({"pre": "glm4"}, []),
    ({"model": "gemma4"}, ["error no-bos-id"]),
    ({"model": "gemma4", "bos": 5}, []),
    ({"model": "gemma4", "bos": 5, "add_eos": True}, ["error no-eos-id"]),
    ({"model": "gemma4", "bos": 5, "add_eos": True, "eos": 6}, []),
    ({"model": "llama", "tokens": 1}, ["error no-bos-id", "error no-byte-tokens"]),
    (
        {"model": "llama", "tokens": 2, "add_eos": True},
        ["error no-eos-id", "error no-byte-tokens"],
    ),
    ({"model": "t5", "add_bos": True}, ["error no-bos-id"]),
    ({"model": "t5", "tokens": 1}, ["error no-eos-id"]),
    # WPM begins with BOS even where the file says that it does not, and never ends with EOS.
    ({"model": "bert", "tokens": 101, "add_bos": False}, ["error no-bos-id"]),
    ({"model": "bert", "add_eos": True}, []),
    # These add nothing.
    ({"model": "rwkv", "add_bos": True, "add_eos": True}, []),
    ({"model": "plamo2", "tokens": 1, "add_bos": True, "add_eos": True}, []),
]


def test_a_prompt_gets_no_token_that_the_model_lacks(make: Make) -> None:
    for options, expected in PROMPTS:
        header = make(**options)
        assert rules(check_model(header)) == expected, options
        found = [f for f in rules(check_pair(header, header).errors) if f in expected]
        assert found == expected, options  # once: only the target is given a prompt


def test_only_the_prompt_of_the_target_matters(make: Make) -> None:
    report = check_pair(make(), make(pre="glm4", add_bos=True), lenient=True)
    assert report.compatible and "warning add-bos" in rules(report.warnings)
    report = check_pair(make(pre="glm4", add_bos=True), make(), lenient=True)
    assert rules(report.errors) == ["error no-bos-id"]


def test_the_rows_of_another_model_are_no_matter(make: Make) -> None:
    """A head, or a part of a split model, may have an embedding of its own."""
    tensors = [Tensor("token_embd.weight", (8, 5))]
    header = make(keys={"general.architecture": "eagle3"}, tensors=tensors)
    assert rules(check_model(header)) == ["error sidecar"]
    nameless = make(model="none", keys={"llama.vocab_size": 5}, tensors=tensors)
    assert "embedding-size" not in {finding.rule for finding in check_model(nameless)}


@pytest.mark.llama
@pytest.mark.parametrize("name", MODELS | SIDECARS | NUMBERED)
def test_files_that_run_are_accepted(architecture: Callable[[str], Path], name: str) -> None:
    header = read_header(architecture(name))
    assert not [finding for finding in check_usable(header) if finding.level == "error"]


def test_a_file_may_not_go_on_behind_its_tensors(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "long.gguf", model_keys(words(300)), model_tensors())
    size = path.stat().st_size
    os.truncate(path, size + MAX_TAIL_BYTES)
    read_header(path)
    os.truncate(path, size + (40 << 30))
    with pytest.raises(NotAGGUF, match="but its tensors end at byte"):
        read_header(path)
