# ruff: noqa: F401, F811  (`make` is a fixture)
"""The pairing rules as a table of cases, each edge from both sides."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec import pairing
from localspec.metadata.findings import LENIENT, RULES, VOCABULARY
from localspec.metadata.header import ModelHeader, StagedHeader, read_header
from localspec.metadata.trimmed import vocabulary_digest
from localspec.pairing import (
    MIN_RATIO,
    Finding,
    PairReport,
    _is_reserved,
    certain_refusal,
    check_model,
    check_pair,
    check_usable,
    refused,
    report_json,
)
from tests.support.files.gguf_files import (
    Tensor,
    Typed,
    gguf_bytes,
    model_keys,
    model_tensors,
    vocab_keys,
    words,
    write_gguf,
)
from tests.support.files.headers import (
    DRAFT_SIZE,
    N_WORDS,
    Bytes,
    Make,
    changed,
    make,
    rules,
    vocab_of,
)
from tests.support.files.trimmed_files import trimmed_keys, write_trimmed


def check(target: ModelHeader, draft: ModelHeader, **options: object) -> PairReport:
    """`check_pair` for a target that is ten times its draft, unless it says otherwise."""
    if target.parameters == draft.parameters == DRAFT_SIZE:
        target = replace(target, parameters=10 * DRAFT_SIZE)
    return check_pair(target, draft, **options)  # type: ignore[arg-type]


def one(report: PairReport, rule: str) -> Finding:
    [finding] = [finding for finding in report.findings if finding.rule == rule]
    return finding


def names(findings: Sequence[Finding]) -> set[str]:
    return {finding.rule for finding in findings}


def test_a_good_pair_has_nothing_to_report(make: Make) -> None:
    report = check(make(), make())
    assert report == PairReport((), True, None)
    assert report.compatible and not report.errors and not report.warnings


# --- rows of target, draft and findings, of which llama.cpp's rule is the first error ---

CASES: dict[str, tuple[dict[str, object], dict[str, object], list[str]]] = {
    "type": ({}, {"model": "llama"}, ["error vocab-type"]),
    "type hides the rest": (
        {"add_bos": True},
        {"model": "llama", "tokens": 9},
        ["error vocab-type"],
    ),
    "two names of one type": ({}, {"model": "whitespace"}, []),
    "add_bos": ({"add_bos": True}, {}, ["error add-bos"]),
    "add_bos before ids": (
        {"add_bos": True, "bos": 5},
        {"add_bos": False, "bos": 6},
        ["error add-bos"],
    ),
    "add_bos by default": ({"pre": "llama-bpe"}, {"pre": "llama-bpe", "add_bos": True}, []),
    "add_bos against default": (
        {"pre": "llama-bpe"},
        {"pre": "llama-bpe", "add_bos": False},
        ["error add-bos"],
    ),
    "bos id added": ({"add_bos": True, "bos": 5}, {"add_bos": True, "bos": 6}, ["error bos-id"]),
    "bos id not added": ({"bos": 5}, {"bos": 6}, ["info bos-id-unused"]),
    "bos id by default": ({"bos": 11, "add_bos": True}, {"add_bos": True}, []),
    "bos id against default": ({"bos": 12, "add_bos": True}, {"add_bos": True}, ["error bos-id"]),
    "bos id outside is the default": (
        {"bos": N_WORDS, "add_bos": True},
        {"bos": 11, "add_bos": True},
        [],
    ),
    "add_eos": ({"add_eos": True}, {}, ["error add-eos"]),
    "eos id added": ({"add_eos": True, "eos": 5}, {"add_eos": True, "eos": 6}, ["error eos-id"]),
    "eos id not added": ({"eos": 5}, {"eos": 6}, ["info eos-id-unused"]),
    "bos before eos": ({"add_eos": True, "add_bos": True}, {}, ["error add-bos", "error add-eos"]),
    "eos before size": ({"add_eos": True}, {"tokens": 100}, ["error add-eos", "error vocab-size"]),
    "target 1 larger": ({}, {"tokens": 299}, ["info target-vocab-larger"]),
    "draft 1 larger": ({"tokens": 299}, {}, ["warning draft-vocab-larger"]),
    "target 100 larger": ({}, {"tokens": 200}, ["info target-vocab-larger"]),
    "target 101 larger": (
        {},
        {"tokens": 199},
        ["info target-vocab-larger", "info vocab-size-old-limit"],
    ),
    "target 127 larger": (
        {},
        {"tokens": 173},
        ["info target-vocab-larger", "info vocab-size-old-limit"],
    ),
    "target 128 larger": (
        {},
        {"tokens": 172},
        ["info target-vocab-larger", "info vocab-size-old-limit"],
    ),
    "target 129 larger": ({}, {"tokens": 171}, ["error vocab-size"]),
    "draft 127 larger": (
        {"tokens": 173},
        {},
        ["warning draft-vocab-larger", "info vocab-size-old-limit"],
    ),
    "draft 128 larger": (
        {"tokens": 172},
        {},
        ["warning draft-vocab-larger", "info vocab-size-old-limit"],
    ),
    "draft 129 larger": ({"tokens": 171}, {}, ["error vocab-size"]),
    "size before texts": (
        {"tokens": changed({5: "x"})},
        {"tokens": 100},
        ["error vocab-size", "error token-text-normal"],
    ),
    "id 4": ({"tokens": changed({4: "x"})}, {}, ["info first-ids"]),
    "id 5": ({"tokens": changed({5: "x"})}, {}, ["error token-text-normal"]),
    "ids 4 and 5": ({"tokens": changed({4: "x", 5: "y"})}, {}, ["error token-text-normal"]),
    "last common id": (
        {"tokens": changed({298: "x"})},
        {"tokens": 299},
        ["error token-text-normal", "info target-vocab-larger"],
    ),
    "first id past the draft": (
        {"tokens": changed({299: "x"})},
        {"tokens": 299},
        ["info target-vocab-larger"],
    ),
    "texts equal as C strings": (
        {"tokens": changed({9: b"a\0b"})},
        {"tokens": changed({9: b"a\0c"})},
        [],
    ),
    "empty text and its stand-in": (
        {"tokens": changed({9: ""})},
        {"tokens": changed({9: "[EMPTY_9]"})},
        [],
    ),
    "control": (
        {"tokens": changed({9: "<a>"}), "types": [3] * N_WORDS},
        {"tokens": changed({9: "<b>"}), "types": [3] * N_WORDS},
        ["error token-text-control"],
    ),
    "control against ordinary": (
        {"tokens": changed({9: "<a>"}), "types": [3] * N_WORDS},
        {"tokens": changed({9: "<b>"}), "types": [1] * N_WORDS},
        ["error token-text-normal"],
    ),
    "user-defined": (
        {"tokens": changed({9: "<a>"}), "types": [3] * N_WORDS},
        {"tokens": changed({9: "<b>"}), "types": [4] * N_WORDS},
        ["error token-text-user-defined"],
    ),
    "byte": (
        {"tokens": changed({9: "<0x00>"}), "types": [6] * N_WORDS},
        {"tokens": changed({9: "<0x01>"}), "types": [6] * N_WORDS},
        ["error token-text-byte"],
    ),
    "unused by type": (
        {"tokens": changed({9: "<a>"}), "types": [5] * N_WORDS},
        {"tokens": changed({9: "<b>"}), "types": [3] * N_WORDS},
        ["error token-text-unused"],
    ),
    "reserved by text": (
        {"tokens": changed({9: "<|reserved_special_token_2|>"}), "types": [3] * N_WORDS},
        {"tokens": changed({9: "<|finetune_right_pad_id|>"}), "types": [3] * N_WORDS},
        ["error token-text-unused"],
    ),
    "the word reserved": (
        {"tokens": changed({9: "reserved"})},
        {"tokens": changed({9: "unused"})},
        ["error token-text-normal"],
    ),
    "padding": (
        {"tokens": changed({9: "[PAD9]"}), "types": [5] * N_WORDS},
        {"tokens": changed({9: "<tool_response>"}), "types": [4] * N_WORDS},
        ["error token-text-padding"],
    ),
    "same texts, other types": ({"types": [1] * N_WORDS}, {"types": [3] * N_WORDS}, []),
    "no bos id to add": (
        {"add_bos": True, "pre": "glm4"},
        {"add_bos": True, "pre": "glm4"},
        ["error no-bos-id"],
    ),
    "no bos id, and none is added": ({"pre": "glm4"}, {"pre": "glm4"}, []),
    "no bos id to add, before the type": (
        {"add_bos": True, "pre": "glm4"},
        {"model": "llama"},
        ["error no-bos-id", "error vocab-type"],
    ),
    "no bos id for the draft": (
        {"add_bos": True},
        {"add_bos": True, "pre": "glm4"},
        ["error bos-id", "warning pre-differs"],
    ),
    "gemma4 forces bos, but has none": (
        {"model": "gemma4"},
        {"model": "gemma4"},
        ["error no-bos-id"],
    ),
    "no eos id to add": (
        {"model": "gemma4", "bos": 3, "add_eos": True},
        {"model": "gemma4", "bos": 3, "add_eos": True},
        ["error no-eos-id"],
    ),
    "k-mers without their mark": (
        {"tokens": changed({5: "<oov>", 6: "ACGT", 7: "ACGA"})},
        {"tokens": changed({5: "<oov>", 6: "ACGT\ue000", 7: "ACGA\ue000"}), "model": "hybriddna"},
        [],
    ),
    "a mark before the k-mers": (
        {"tokens": changed({5: "ACGT", 6: "<oov>"})},
        {"tokens": changed({5: "ACGT\ue000", 6: "<oov>"}), "model": "hybriddna"},
        ["error token-text-normal"],
    ),
    "pre": ({"pre": "qwen2"}, {"pre": "smollm"}, ["warning pre-differs"]),
    "pre under an alias": ({"pre": "qwen2"}, {"pre": "deepseek-r1-qwen"}, []),
    "pre under another alias": ({"pre": "qwen2"}, {"pre": "megrez"}, []),
    "pre llama3 group": ({"pre": "llama3"}, {"pre": "pixtral"}, []),
    "pre absent is default": ({"pre": None}, {"pre": "default"}, []),
    "pre is nothing to SentencePiece": (
        {"model": "llama", "pre": "qwen2"},
        {"model": "llama", "pre": "from the future"},
        [],
    ),
    "pre unknown": ({"pre": "from the future"}, {}, ["error unknown-pre", "warning pre-differs"]),
    "eot": ({"eot": 7}, {"eot": 8}, ["info end-tokens"]),
    "eot known to one": ({"eot": 7}, {}, []),
}


def first_error(findings: list[str]) -> str | None:
    """Its rule in llama.cpp, which has one for all texts."""
    errors = [found.removeprefix("error ") for found in findings if found.startswith("error ")]
    return next(("token-text" if "token-text" in rule else rule for rule in errors), None)


def by_text(findings: list[str]) -> list[str]:
    """The findings on a draft, which drafts by text if it differs in more than may be lenient."""
    found = [each.split(" ", 1) for each in findings]
    other = {rule for level, rule in found if level == "error" and rule in VOCABULARY}
    if other <= LENIENT:
        return findings
    kept = [(level, rule) for level, rule in found if level == "error" and rule not in VOCABULARY]
    changed = [("info", rule) for level, rule in found if level == "error" and rule in VOCABULARY]
    return [" ".join(each) for each in [*kept, ("warning", "other-vocabulary"), *changed]]


def test_vocabulary_rules(make: Make) -> None:
    found, expected = {}, {}
    for case, (target, draft, findings) in CASES.items():
        report = check(make(**target), make(**draft))
        verdicts = report.llama_cpp_accepts, report.compatible
        found[case] = (rules(report.findings), report.llama_cpp_rule, *verdicts)
        rule, shown = first_error(findings), by_text(findings)
        expected[case] = (shown, rule, rule is None, first_error(shown) is None)
    assert found == expected


def test_lenient_warns_of_what_cannot_corrupt_text(make: Make) -> None:
    found, expected = {}, {}
    for case, (target, draft, findings) in CASES.items():
        strict = check(make(**target), make(**draft))
        report = check(make(**target), make(**draft), lenient=True)
        found[case] = {
            "llama.cpp": report.llama_cpp_rule,
            "errors": names(report.errors),
            "warnings": names(report.warnings),
            "all": names(report.findings),
            "compatible": report.compatible,
        }
        expected[case] = {
            "llama.cpp": first_error(findings),
            "errors": names(strict.errors) - LENIENT,
            "warnings": names(strict.warnings) | (names(strict.errors) & LENIENT),
            "all": names(strict.findings),
            "compatible": strict.harmless,
        }
    assert found == expected


def test_a_draft_with_a_size_but_no_tokenizer_is_of_another_type(make: Make) -> None:
    """llama.cpp loads such a file, and never gives it text."""
    nameless = make(model="none", keys={"llama.vocab_size": N_WORDS})
    report = check(make(), nameless)
    assert rules(report.findings) == ["error vocab-type"] and report.llama_cpp_rule == "vocab-type"
    for target in (nameless, make(model="none")):
        report = check(target, nameless)
        assert rules(report.findings) == ["error no-vocabulary"]
    assert rules(check_model(nameless)) == ["error no-vocabulary"]
    for size in (0, "300"):
        report = check(make(), make(model="none", keys={"llama.vocab_size": size}))
        assert rules(report.findings) == ["error no-vocabulary"]


def test_both_directions_of_a_size_difference_say_what_happens(make: Make) -> None:
    for pair in ((make(300), make(299)), (make(299), make(300))):
        [finding] = check(*pair).findings
        assert finding.hint.endswith("llama.cpp's own tools fail.")


def test_a_model_of_another_vocabulary_drafts_by_text(make: Make) -> None:
    for draft in (make(changed({5: "x"})), make(model="llama"), make(changed({5: "x"}, 100))):
        report = check(make(), draft)
        assert report.compatible and report.by_text and not report.llama_cpp_accepts
        assert pairing.drafts_by_text(make(), draft)
        (warning,) = report.warnings
        assert warning.message == "The draft has another vocabulary."
        assert warning.hint.startswith("It drafts by text")
    for draft in (make(), make(100), make(add_bos=True)):  # which share their ids
        assert not check(make(), draft, lenient=True).by_text
        assert not pairing.drafts_by_text(make(), draft)


def test_a_different_tokenizer_is_never_lenient() -> None:
    assert LENIENT < set(RULES)
    assert not LENIENT & {"vocab-type", "token-text-normal", "token-text-byte", "sidecar"}
    assert not LENIENT & {"no-bos-id", "no-eos-id", "byte-number", "embedding-size"}


def accepts(target: ModelHeader, draft: ModelHeader) -> bool:
    """llama.cpp's comparison, step by step, as an oracle for the findings."""
    a, b = target.vocab, draft.vocab
    assert a is not None and b is not None
    if (a.add_bos and a.bos_id is None) or (a.add_eos and a.eos_id is None):
        return False  # the target's first prompt ends the process
    if a.type != b.type:
        return False
    if a.add_bos != b.add_bos or (a.add_bos and a.bos_id != b.bos_id):
        return False
    if a.add_eos != b.add_eos or (a.add_eos and a.eos_id != b.eos_id):
        return False
    if abs(len(a) - len(b)) > 128:
        return False
    shorter = min(len(a), len(b))
    return all(a.tokens[i] == b.tokens[i] for i in range(5, shorter))


MODELS = st.fixed_dictionaries(
    {
        "size": st.sampled_from([20, 21, 148, 149]),
        "model": st.sampled_from(["gpt2", "gpt2", "gpt2", "llama"]),
        "pre": st.sampled_from(["qwen2", "qwen2", "llama-bpe", "glm4"]),
        "bos": st.sampled_from([None, None, 3, 11, 20]),
        "eos": st.sampled_from([None, None, 3, 11]),
        "add_bos": st.sampled_from([None, None, True, False]),
        "add_eos": st.sampled_from([None, None, True]),
        "changes": st.dictionaries(st.integers(0, 19), st.just("other"), max_size=1),
    }
)


@settings(deadline=None, max_examples=2 * settings().max_examples, derandomize=True)
@given(MODELS, MODELS)
def test_any_pair_is_judged_as_llama_cpp_would(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, object], second: dict[str, object]
) -> None:
    folder, headers = tmp_path_factory.getbasetemp(), []
    for options in (dict(first), dict(second)):
        tokens = changed(options.pop("changes"), options.pop("size"))  # type: ignore[arg-type]
        path = write_gguf(folder / "any.gguf", model_keys(tokens, **options), model_tensors(64))
        headers.append(read_header(path))
    report = check_pair(*headers)
    errors = {error.rule for error in report.errors} - {"no-byte-tokens"}  # of prompts, not pairs
    assert report.llama_cpp_accepts == accepts(*headers) == (not errors and not report.by_text)
    # Only the warning about the larger draft depends on who is who, and whose prompt it is.
    swapped = check_pair(*reversed(headers))
    assert swapped.llama_cpp_accepts == report.llama_cpp_accepts
    if "no-bos-id" not in (swapped.llama_cpp_rule, report.llama_cpp_rule):
        assert swapped.llama_cpp_rule == report.llama_cpp_rule


# --- messages ---


def test_messages_show_values_and_defaults(make: Make) -> None:
    report = check(make(pre="llama-bpe"), make(pre="llama-bpe", add_bos=False))
    message = one(report, "add-bos").message
    assert message == "add_bos is true (default) for the target but false for the draft."
    report = check(make(add_bos=True), make(add_bos=True, bos=7))
    assert "11 (default) and 7" in one(report, "bos-id").message
    report = check(make(), make(pre="glm4"))
    assert "11 (default) and none (default)" in one(report, "bos-id-unused").message


def test_differences_are_counted_and_five_are_shown(make: Make) -> None:
    other = changed({token_id: f"other{token_id}" for token_id in range(3, 17)})
    message = one(check(make(), make(other)), "token-text-normal").message
    assert message.startswith("12 ordinary tokens differ: 5: 'word5' against 'other5'; 6: ")
    assert message.endswith("9: 'word9' against 'other9'; ….")


def test_each_class_is_counted_apart(make: Make) -> None:
    types = [3 if token_id < 20 else 1 for token_id in range(N_WORDS)]
    other = changed({7: "[PAD7]", 8: "<x>", 9: "<y>", 30: "z"})
    report = check(make(types=types), make(other, types=types))
    assert rules(report.findings) == [
        "warning other-vocabulary",
        "info token-text-normal",
        "info token-text-control",
        "info token-text-padding",
    ]
    assert one(report, "token-text-control").message.startswith("2 control tokens differ: 8: ")
    assert one(report, "token-text-normal").message.startswith("1 ordinary token differs: 30: ")
    assert report.llama_cpp_rule == "token-text"


def test_nothing_raw_reaches_the_terminal(make: Make) -> None:
    ours = changed({5: b"\x1b[2J\x07", 6: "a\nb", 7: b"\xff\xfe", 8: "\u202e", 9: "y" * 500})
    theirs = changed({5: b"\x9b", 6: "a\\nb", 7: "é", 8: "x", 9: "z" * 500})
    nasty = {"general.architecture": "\x1b", "general.license": "\x1b[31m\nfree"}
    report = check(make(ours), make(theirs, keys=nasty))
    for finding in report.findings:
        assert finding.message.isprintable() and finding.hint.isprintable()
        assert len(finding.message) < 500
    message = one(report, "token-text-normal").message
    assert r"'\x1b[2J\x07' against '\x9b'" in message
    assert r"'a\nb' against 'a\\nb'" in message
    assert r"'\xff\xfe' against 'é'" in message
    assert r"'\u202e'" in message


def test_sizes_are_named(make: Make) -> None:
    message = one(check(make(300), make(171)), "vocab-size").message
    assert "differ by 129 ids, over 128" in message and "300" in message and "171" in message


# --- whether the pair is of use ---


def test_parameters(make: Make) -> None:
    for target, draft, expected in (
        (2000, 1000, []),
        (1999, 1000, ["warning small-ratio"]),
        (1001, 1000, ["warning small-ratio"]),
        (1000, 1000, ["warning draft-not-smaller"]),
        (1000, 1001, ["warning draft-not-smaller"]),
    ):
        report = check_pair(make(parameters=target), make(parameters=draft))
        assert rules(report.findings) == expected, (target, draft)
    finding = one(report, "draft-not-smaller")
    assert finding.hint == "Are the roles swapped?" and "1.0k" in finding.message
    large = make(parameters=1999)
    quantized = replace(make(parameters=1000), n_bytes=large.n_bytes // MIN_RATIO)
    assert rules(check_pair(large, quantized).findings) == []  # a step reads few bytes


def test_contexts(make: Make) -> None:
    for target, draft, expected in (
        (4096, 4096, []),
        (4096, 4095, ["info draft-context"]),
        (4095, 4096, []),
        (4096, None, []),
        (None, 2048, []),
    ):
        headers = [make(keys={"llama.context_length": length}) for length in (target, draft)]
        assert rules(check(*headers).findings) == expected, (target, draft)


EXPERTS: dict[str, object] = {"llama.expert_count": 8, "llama.expert_used_count": 2}
PARTICULARS: dict[str, tuple[dict[str, object], dict[str, object], list[str]]] = {
    "hybrid target": ({"general.architecture": "qwen35"}, {}, []),
    "recurrent draft": ({}, {"general.architecture": "mamba"}, []),
    "window": ({"llama.attention.sliding_window": 512}, {}, ["info sliding-window"]),
    "no window": ({"llama.attention.sliding_window": 0}, {}, []),
    "experts": (EXPERTS, {}, ["info mixture-of-experts"]),
    "no experts": ({"llama.expert_count": 0}, EXPERTS, []),
    "template of target missing": (
        {"tokenizer.chat_template": None},
        {"tokenizer.chat_template": None},
        ["warning no-chat-template"],
    ),
    "template of draft missing": ({}, {"tokenizer.chat_template": None}, []),
    "templates differ": ({}, {"tokenizer.chat_template": "x"}, ["info chat-template"]),
    "license": ({"general.license": "mit"}, {}, ["info license"]),
    "license of EXAONE": ({}, {"general.license": "exaone"}, ["warning license"]),
    "license NC": ({"general.license": "cc-by-nc-4.0"}, {}, ["warning license"]),
    "license not NC": ({"general.license": "ncsa"}, {}, ["info license"]),
    "coarse draft": ({}, {"general.file_type": 10}, ["info draft-quantization"]),
    "draft in 4 bits": ({}, {"general.file_type": 2}, []),
    "coarse target": ({"general.file_type": 15}, {}, []),
    "fine draft": ({}, {"general.file_type": 32}, []),
    "odd width": (
        {},
        {"general.file_type": 18, "llama.embedding_length": 896},
        ["info quantization-width"],
    ),
    "odd width, plain blocks": ({}, {"llama.embedding_length": 896}, []),
}


def test_particulars(make: Make) -> None:
    found, expected = {}, {}
    length = {"qwen35.context_length": 4096, "mamba.context_length": 4096}
    for case, (target, draft, findings) in PARTICULARS.items():
        report = check(make(keys=length | target), make(keys=length | draft))
        found[case] = (rules(report.findings), report.compatible, report.llama_cpp_accepts)
        expected[case] = (findings, True, True)
    assert found == expected


def test_tied_embedding(make: Make) -> None:
    tied = make(tensors=model_tensors(DRAFT_SIZE * 2)[:2])
    assert rules(check_pair(make(parameters=10 * DRAFT_SIZE), tied).findings) == [
        "info tied-embedding"
    ]


def test_worst_findings_come_first(make: Make) -> None:
    target = make(eot=7, pre="tekken")
    report = check(target, make(eot=8))
    assert [finding.level for finding in report.findings] == ["error", "warning", "info"]
    assert rules(report.errors) == ["error add-bos"]
    assert rules(report.warnings) == ["warning pre-differs"]


# --- JSON ---


def test_report_as_json(make: Make) -> None:
    target, draft = make(310), make(pre="tekken", keys={"general.name": None})
    report = check_pair(target, draft)
    data: dict[str, Any] = report_json(report, target, draft)
    assert json.loads(json.dumps(data)) == data
    assert set(data) == {"compatible", "llama_cpp", "findings", "target", "draft", "spec_type"}
    assert data["compatible"] is False
    assert data["llama_cpp"] == {
        "accepts": False,
        "rule": "add-bos",
        "version": pairing.RULE_VERSION,
    }
    assert [set(f) for f in data["findings"]] == [
        {"level", "rule", "message", "hint"} for _ in report.findings
    ]
    assert data["target"] == {
        "path": str(target.path),
        "name": "Tiny",
        "architecture": "llama",
        "parameters": DRAFT_SIZE,
        "quantization": "Q8_0",
        "n_vocab": 310,
        "tokenizer_model": "gpt2",
        "tokenizer_pre": "qwen2",
        "context_length": 4096,
    }
    assert data["draft"]["name"] is None and data["spec_type"] == "draft-simple"


def test_every_rule_has_a_hint_and_is_known_to_the_table() -> None:
    for rule, (level, hint) in RULES.items():
        assert rule == rule.lower() and " " not in rule
        assert level in ("error", "warning", "info") and hint.endswith(".")


def test_defaults_do_not_depend_on_typed_keys(make: Make) -> None:
    explicit = vocab_keys(words(N_WORDS), pre="llama-bpe", bos=11, eos=11, add_bos=True)
    report = check(make(keys=explicit), make(pre="llama-bpe"))
    assert report.compatible and report.findings == ()
    odd = make(keys={"tokenizer.ggml.bos_token_id": Typed(4, 11)})
    assert check(odd, make()).findings == ()


# --- what is certain before a header is read to its end ---


TEXTS = st.sampled_from(["same", "[PAD7]", "<|reserved_7|>", "a", "b", ""])


@st.composite
def contents(draw: st.DrawFn) -> dict[str, object]:
    """The keys of a file in any order, a few of them missing or unusual."""
    size = draw(st.sampled_from([0, 8, 9, 140]))
    tokens: list[str | bytes] = list(words(size))
    for token_id in range(3, min(size, 8)):
        tokens[token_id] = f"{draw(TEXTS)}-{token_id}" if draw(st.booleans()) else f"={token_id}"
    odd = draw(st.integers(0, 3)) == 3
    kinds = ["llama"]
    if odd:
        kinds += ["clip", "eagle3", "dflash", "gemma4-assistant", "bert", "dream"]
    types = ["model", "mmproj", "adapter", "odd"] if odd else ["model"]
    keys: dict[str, object] = {
        "general.architecture": draw(st.sampled_from(kinds)),
        "general.type": draw(st.sampled_from(types)),
        **vocab_keys(
            tokens,
            model=draw(st.sampled_from(["gpt2", "llama", "none", "what"] if odd else ["gpt2"])),
            types=draw(st.one_of(st.none(), st.lists(st.integers(1, 6), min_size=140))),
            add_bos=draw(st.booleans()),
        ),
        "llama.nextn_predict_layers": draw(st.integers(0, 1)) if odd else 0,
    }
    names = draw(st.permutations(sorted(keys))) if odd else list(keys)
    missing = draw(st.sets(st.sampled_from(sorted(keys)), max_size=2 * odd))
    missing -= {"general.architecture"}
    return {name: keys[name] for name in names if name not in missing}


@settings(max_examples=2 * settings().max_examples)
@given(contents(), contents(), st.booleans())
def test_what_is_certain_early_is_found_in_the_end(
    target: dict[str, object], draft: dict[str, object], lenient: bool
) -> None:
    data = [gguf_bytes(keys, model_tensors()) for keys in (target, draft)]
    full = [StagedHeader([Bytes(item)]).whole() for item in data]
    report = check_pair(*full, lenient=lenient)
    staged = [StagedHeader([Bytes(item)]) for item in data]
    seen: set[Finding] = set()
    for stage in (StagedHeader.start, StagedHeader.vocabulary):
        starts = [stage(side) for side in staged]
        for first, second in ((starts[0], starts[1]), (full[0], starts[1]), (starts[0], full[1])):
            found = certain_refusal(first, second, lenient=lenient)
            assert set(found) <= set(report.errors)
            if found:
                assert not report.compatible and not report.llama_cpp_accepts
                early = refused(found)
                assert not early.compatible and early.errors == found
            seen |= set(found)
        assert set(certain_refusal(*starts, lenient=lenient)) <= seen
    assert seen <= set(certain_refusal(*full, lenient=lenient)) <= set(report.errors)


def stages(**options: object) -> tuple[ModelHeader, ModelHeader]:
    """What is known of a model before its tokens, and after them."""
    tokens = options.pop("tokens", words(N_WORDS))
    keys = model_keys(tokens, **{"types": [1] * N_WORDS, **options})  # type: ignore[arg-type]
    staged = StagedHeader([Bytes(gguf_bytes(keys, model_tensors()))])
    return staged.start(), staged.vocabulary()


def early_rules(target: ModelHeader, draft: ModelHeader, lenient: bool = False) -> list[str]:
    return [finding.rule for finding in certain_refusal(target, draft, lenient=lenient)]


def test_what_each_stage_makes_certain() -> None:
    target, draft = stages(), stages(model="llama")
    assert early_rules(target[0], draft[0]) == []  # it may draft by text
    assert early_rules(target[0], replace(draft[0], architecture="eagle3"))[-1] == "vocab-type"
    draft = stages(tokens=words(N_WORDS - 129))
    assert early_rules(target[0], draft[0]) == []  # as its texts may be others
    assert early_rules(target[1], draft[1]) == ["vocab-size"]
    assert early_rules(target[1], draft[1], lenient=True) == []
    assert early_rules(target[0], stages(tokens=words(N_WORDS - 128))[1]) == []
    draft = stages(tokens=changed({5: "x", 6: "[PAD6]"}))
    assert early_rules(target[0], draft[0]) == early_rules(target[0], draft[1]) == []
    assert early_rules(target[1], draft[1]) == []
    draft = stages(tokens=changed({6: "[PAD6]"}))
    assert early_rules(target[1], draft[1]) == ["token-text-padding"]
    assert early_rules(target[1], draft[1], lenient=True) == []
    assert refused(certain_refusal(target[1], draft[1])).llama_cpp_rule == "token-text"
    assert early_rules(target[1], stages(tokens=changed({4: "x"}), add_bos=True)[1]) == []


def test_reserved_tokens_are_known_by_their_text() -> None:
    for text in (b"<|reserved_special_token_3|>", b"[UNUSED_7]", b"<Reserved>"):
        assert _is_reserved(text) is True, text
    for text in (b"reserved", b"<|reserved", b"<|keep|>", b""):
        assert _is_reserved(text) is False, text
    assert _is_reserved(b"<" + b"reserved" * 200_000) is False  # long texts are judged at once


# --- drafts with a trimmed vocabulary ---


def trimmed(folder: Path, target: ModelHeader, digest: str | None = None) -> ModelHeader:
    keys = trimmed_keys(digest or vocabulary_digest(vocab_of(target)))
    return read_header(write_trimmed(folder / "trimmed.gguf", keys))


def test_a_trimmed_draft_is_for_a_target_with_its_tokens(make: Make, tmp_path: Path) -> None:
    target = make()
    report = check(target, trimmed(tmp_path, target))
    assert report.compatible and not report.warnings
    assert one(report, "trimmed-vocabulary").message == "The draft can propose 4 of 40 tokens."
    assert not report.llama_cpp_accepts and report.llama_cpp_rule == "vocab-type"


@pytest.mark.parametrize("lenient", [False, True])
def test_a_trimmed_draft_is_for_no_other_target(make: Make, tmp_path: Path, lenient: bool) -> None:
    target = make()
    for other in (make(changed({7: "different"})), make(N_WORDS - 1)):
        report = check(other, trimmed(tmp_path, target), lenient=lenient)
        assert [finding.rule for finding in report.errors] == ["trimmed-for-another"]
        assert "draft make" in report.errors[0].hint and not report.harmless


def test_a_trimmed_draft_is_no_target(make: Make, tmp_path: Path) -> None:
    draft = trimmed(tmp_path, make())
    for findings in (check_model(draft), check_pair(draft, make()).errors):
        assert "trimmed vocabulary" in next(f for f in findings if f.level == "error").message
    assert not [finding for finding in check_usable(draft) if finding.level == "error"]


def test_nothing_is_certain_of_a_trimmed_draft_before_its_end(make: Make, tmp_path: Path) -> None:
    target = make()
    draft = trimmed(tmp_path, target)
    staged = StagedHeader([Bytes(draft.path.read_bytes())])
    for header in (staged.start(), staged.vocabulary()):
        assert header.trimmed is None and not certain_refusal(target, header)
    whole = staged.whole()
    assert whole.trimmed is not None and check(target, whole).compatible
