"""The pairing rules as a table of cases, each edge from both sides."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from gguf_files import Tensor, Typed, model_keys, model_tensors, vocab_keys, words, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec import pairing
from localspec.metadata import ModelHeader, read_header
from localspec.pairing import (
    LENIENT,
    RULES,
    Finding,
    PairReport,
    check_model,
    check_pair,
    describe,
    report_json,
)

Make = Callable[..., ModelHeader]
N_WORDS = 300
DRAFT_SIZE = 4096


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Headers of small models, read from real files; keyword options go to `vocab_keys`."""
    numbers = count()

    def make(
        tokens: Sequence[str | bytes] | int = N_WORDS,
        *,
        keys: dict[str, object] | None = None,
        tensors: Sequence[Tensor] | None = None,
        parameters: int = DRAFT_SIZE,
        **options: object,
    ) -> ModelHeader:
        texts = words(tokens) if isinstance(tokens, int) else tokens
        content = {**model_keys(texts, **options), **(keys or {})}
        content = {key: value for key, value in content.items() if value is not None}
        whole = model_tensors(parameters) if tensors is None else tensors
        return read_header(write_gguf(tmp_path / f"{next(numbers)}.gguf", content, whole))

    return make


def check(target: ModelHeader, draft: ModelHeader, **options: object) -> PairReport:
    """`check_pair` for a target that is ten times its draft, unless it says otherwise."""
    if target.parameters == draft.parameters == DRAFT_SIZE:
        target = replace(target, parameters=10 * DRAFT_SIZE)
    return check_pair(target, draft, **options)  # type: ignore[arg-type]


def rules(findings: Sequence[Finding]) -> list[str]:
    return [f"{finding.level} {finding.rule}" for finding in findings]


def one(report: PairReport, rule: str) -> Finding:
    [finding] = [finding for finding in report.findings if finding.rule == rule]
    return finding


def changed(changes: dict[int, str | bytes], size: int = N_WORDS) -> list[str | bytes]:
    tokens: list[str | bytes] = list(words(size))
    for token_id, text in changes.items():
        tokens[token_id] = text
    return tokens


def test_a_good_pair_has_nothing_to_report(make: Make) -> None:
    report = check(make(), make())
    assert report == PairReport((), True, None)
    assert report.compatible and not report.errors and not report.warnings


# --- one row per rule about vocabularies: target, draft, findings, llama.cpp's rule ---

CASES: dict[str, tuple[dict[str, object], dict[str, object], list[str], str | None]] = {
    "type": ({}, {"model": "llama"}, ["error vocab-type"], "vocab-type"),
    "type hides the rest": (
        {"add_bos": True},
        {"model": "llama", "tokens": 9},
        ["error vocab-type"],
        "vocab-type",
    ),
    "two names of one type": ({}, {"model": "whitespace"}, [], None),
    "add_bos": ({"add_bos": True}, {}, ["error add-bos"], "add-bos"),
    "add_bos before ids": (
        {"add_bos": True, "bos": 5},
        {"add_bos": False, "bos": 6},
        ["error add-bos"],
        "add-bos",
    ),
    "add_bos by default": (
        {"pre": "llama-bpe"},
        {"pre": "llama-bpe", "add_bos": True},
        [],
        None,
    ),
    "add_bos against default": (
        {"pre": "llama-bpe"},
        {"pre": "llama-bpe", "add_bos": False},
        ["error add-bos"],
        "add-bos",
    ),
    "bos id added": (
        {"add_bos": True, "bos": 5},
        {"add_bos": True, "bos": 6},
        ["error bos-id"],
        "bos-id",
    ),
    "bos id not added": ({"bos": 5}, {"bos": 6}, ["info bos-id-unused"], None),
    "bos id by default": ({"bos": 11, "add_bos": True}, {"add_bos": True}, [], None),
    "bos id against default": (
        {"bos": 12, "add_bos": True},
        {"add_bos": True},
        ["error bos-id"],
        "bos-id",
    ),
    "bos id outside is the default": (
        {"bos": N_WORDS, "add_bos": True},
        {"bos": 11, "add_bos": True},
        [],
        None,
    ),
    "add_eos": ({"add_eos": True}, {}, ["error add-eos"], "add-eos"),
    "eos id added": (
        {"add_eos": True, "eos": 5},
        {"add_eos": True, "eos": 6},
        ["error eos-id"],
        "eos-id",
    ),
    "eos id not added": ({"eos": 5}, {"eos": 6}, ["info eos-id-unused"], None),
    "bos before eos": (
        {"add_eos": True, "add_bos": True},
        {},
        ["error add-bos", "error add-eos"],
        "add-bos",
    ),
    "eos before size": (
        {"add_eos": True},
        {"tokens": 100},
        ["error add-eos", "error vocab-size"],
        "add-eos",
    ),
    "target 1 larger": ({}, {"tokens": 299}, ["info target-vocab-larger"], None),
    "draft 1 larger": ({"tokens": 299}, {}, ["warning draft-vocab-larger"], None),
    "target 100 larger": ({}, {"tokens": 200}, ["info target-vocab-larger"], None),
    "target 101 larger": (
        {},
        {"tokens": 199},
        ["info target-vocab-larger", "info vocab-size-old-limit"],
        None,
    ),
    "target 127 larger": (
        {},
        {"tokens": 173},
        ["info target-vocab-larger", "info vocab-size-old-limit"],
        None,
    ),
    "target 128 larger": (
        {},
        {"tokens": 172},
        ["info target-vocab-larger", "info vocab-size-old-limit"],
        None,
    ),
    "target 129 larger": ({}, {"tokens": 171}, ["error vocab-size"], "vocab-size"),
    "draft 127 larger": (
        {"tokens": 173},
        {},
        ["warning draft-vocab-larger", "info vocab-size-old-limit"],
        None,
    ),
    "draft 128 larger": (
        {"tokens": 172},
        {},
        ["warning draft-vocab-larger", "info vocab-size-old-limit"],
        None,
    ),
    "draft 129 larger": ({"tokens": 171}, {}, ["error vocab-size"], "vocab-size"),
    "size before texts": (
        {"tokens": changed({5: "x"})},
        {"tokens": 100},
        ["error vocab-size", "error token-text-normal"],
        "vocab-size",
    ),
    "id 4": ({"tokens": changed({4: "x"})}, {}, ["info first-ids"], None),
    "id 5": ({"tokens": changed({5: "x"})}, {}, ["error token-text-normal"], "token-text"),
    "ids 4 and 5": (
        {"tokens": changed({4: "x", 5: "y"})},
        {},
        ["error token-text-normal"],
        "token-text",
    ),
    "last common id": (
        {"tokens": changed({298: "x"})},
        {"tokens": 299},
        ["error token-text-normal", "info target-vocab-larger"],
        "token-text",
    ),
    "first id past the draft": (
        {"tokens": changed({299: "x"})},
        {"tokens": 299},
        ["info target-vocab-larger"],
        None,
    ),
    "texts equal as C strings": (
        {"tokens": changed({9: b"a\0b"})},
        {"tokens": changed({9: b"a\0c"})},
        [],
        None,
    ),
    "empty text and its stand-in": (
        {"tokens": changed({9: ""})},
        {"tokens": changed({9: "[EMPTY_9]"})},
        [],
        None,
    ),
    "control": (
        {"tokens": changed({9: "<a>"}), "types": [3] * N_WORDS},
        {"tokens": changed({9: "<b>"}), "types": [3] * N_WORDS},
        ["error token-text-control"],
        "token-text",
    ),
    "control against ordinary": (
        {"tokens": changed({9: "<a>"}), "types": [3] * N_WORDS},
        {"tokens": changed({9: "<b>"}), "types": [1] * N_WORDS},
        ["error token-text-normal"],
        "token-text",
    ),
    "user-defined": (
        {"tokens": changed({9: "<a>"}), "types": [3] * N_WORDS},
        {"tokens": changed({9: "<b>"}), "types": [4] * N_WORDS},
        ["error token-text-user-defined"],
        "token-text",
    ),
    "byte": (
        {"tokens": changed({9: "<0x00>"}), "types": [6] * N_WORDS},
        {"tokens": changed({9: "<0x01>"}), "types": [6] * N_WORDS},
        ["error token-text-byte"],
        "token-text",
    ),
    "unused by type": (
        {"tokens": changed({9: "<a>"}), "types": [5] * N_WORDS},
        {"tokens": changed({9: "<b>"}), "types": [3] * N_WORDS},
        ["error token-text-unused"],
        "token-text",
    ),
    "reserved by text": (
        {"tokens": changed({9: "<|reserved_special_token_2|>"}), "types": [3] * N_WORDS},
        {"tokens": changed({9: "<|finetune_right_pad_id|>"}), "types": [3] * N_WORDS},
        ["error token-text-unused"],
        "token-text",
    ),
    "the word reserved": (
        {"tokens": changed({9: "reserved"})},
        {"tokens": changed({9: "unused"})},
        ["error token-text-normal"],
        "token-text",
    ),
    "padding": (
        {"tokens": changed({9: "[PAD9]"}), "types": [5] * N_WORDS},
        {"tokens": changed({9: "<tool_response>"}), "types": [4] * N_WORDS},
        ["error token-text-padding"],
        "token-text",
    ),
    "same texts, other types": ({"types": [1] * N_WORDS}, {"types": [3] * N_WORDS}, [], None),
    "pre": ({"pre": "qwen2"}, {"pre": "smollm"}, ["warning pre-differs"], None),
    "pre under an alias": ({"pre": "qwen2"}, {"pre": "deepseek-r1-qwen"}, [], None),
    "pre under another alias": ({"pre": "qwen2"}, {"pre": "megrez"}, [], None),
    "pre llama3 group": ({"pre": "llama3"}, {"pre": "pixtral"}, [], None),
    "pre absent is default": ({"pre": None}, {"pre": "default"}, [], None),
    "pre is nothing to SentencePiece": (
        {"model": "llama", "pre": "qwen2"},
        {"model": "llama", "pre": "from the future"},
        [],
        None,
    ),
    "pre unknown": (
        {"pre": "from the future"},
        {},
        ["error unknown-pre", "warning pre-differs"],
        "unknown-pre",
    ),
    "eot": ({"eot": 7}, {"eot": 8}, ["info end-tokens"], None),
    "eot known to one": ({"eot": 7}, {}, [], None),
}


@pytest.mark.parametrize("case", CASES)
def test_vocabulary_rules(make: Make, case: str) -> None:
    target, draft, expected, llama_cpp_rule = CASES[case]
    report = check(make(**target), make(**draft))
    assert rules(report.findings) == expected
    assert report.llama_cpp_rule == llama_cpp_rule
    assert report.llama_cpp_accepts == (llama_cpp_rule is None) == report.compatible


@pytest.mark.parametrize("case", CASES)
def test_lenient_warns_of_what_cannot_corrupt_text(make: Make, case: str) -> None:
    target, draft, expected, llama_cpp_rule = CASES[case]
    strict = check(make(**target), make(**draft))
    report = check(make(**target), make(**draft), lenient=True)
    assert report.llama_cpp_rule == llama_cpp_rule  # what llama.cpp says is no matter of taste
    assert {f.rule for f in report.errors} == {f.rule for f in strict.errors} - LENIENT
    assert {f.rule for f in report.findings} == {f.rule for f in strict.findings}
    assert {f.rule for f in report.warnings} == {f.rule for f in strict.warnings} | (
        {f.rule for f in strict.errors} & LENIENT
    )
    assert strict.harmless == report.compatible


def test_a_different_tokenizer_is_never_lenient() -> None:
    assert LENIENT < set(RULES)
    assert not LENIENT & {"vocab-type", "token-text-normal", "token-text-byte", "sidecar"}


def accepts(target: ModelHeader, draft: ModelHeader) -> bool:
    """llama.cpp's comparison, step by step, as an oracle for the findings."""
    a, b = target.vocab, draft.vocab
    assert a is not None and b is not None
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


@settings(deadline=None, max_examples=200, derandomize=True)
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
    assert report.llama_cpp_accepts == accepts(*headers) == report.compatible
    # Only the warning about the larger draft depends on who is who.
    swapped = check_pair(*reversed(headers))
    assert swapped.llama_cpp_accepts == report.llama_cpp_accepts
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
        "error token-text-normal",
        "error token-text-control",
        "error token-text-padding",
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


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        (3000, 1000, []),
        (2999, 1000, ["warning small-ratio"]),
        (1001, 1000, ["warning small-ratio"]),
        (1000, 1000, ["warning draft-not-smaller"]),
        (1000, 1001, ["warning draft-not-smaller"]),
    ],
)
def test_parameters(make: Make, target: int, draft: int, expected: list[str]) -> None:
    report = check_pair(make(parameters=target), make(parameters=draft))
    assert rules(report.findings) == expected
    if draft > target:
        finding = one(report, "draft-not-smaller")
        assert finding.hint == "Are the roles swapped?" and "1.0k" in finding.message


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        (4096, 4096, []),
        (4096, 4095, ["info draft-context"]),
        (4095, 4096, []),
        (4096, None, []),
        (None, 2048, []),
    ],
)
def test_contexts(make: Make, target: int | None, draft: int | None, expected: list[str]) -> None:
    headers = [make(keys={"llama.context_length": length}) for length in (target, draft)]
    assert rules(check(*headers).findings) == expected


PARTICULARS: dict[str, tuple[dict[str, object], dict[str, object], list[str]]] = {
    "hybrid target": (
        {"general.architecture": "qwen35"},
        {},
        ["warning target-cannot-roll-back"],
    ),
    "recurrent draft": (
        {},
        {"general.architecture": "mamba"},
        ["warning draft-cannot-roll-back"],
    ),
    "window": ({"llama.attention.sliding_window": 512}, {}, ["info sliding-window"]),
    "no window": ({"llama.attention.sliding_window": 0}, {}, []),
    "experts": ({"llama.expert_count": 8}, {}, ["info mixture-of-experts"]),
    "no experts": ({"llama.expert_count": 0}, {"llama.expert_count": 8}, []),
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
    "coarse draft": ({}, {"general.file_type": 15}, ["info draft-quantization"]),
    "coarse target": ({"general.file_type": 15}, {}, []),
    "fine draft": ({}, {"general.file_type": 32}, []),
    "odd width": (
        {},
        {"general.file_type": 18, "llama.embedding_length": 896},
        ["info draft-quantization", "info quantization-width"],
    ),
    "odd width, plain blocks": ({}, {"llama.embedding_length": 896}, []),
}


@pytest.mark.parametrize("case", PARTICULARS)
def test_particulars(make: Make, case: str) -> None:
    target, draft, expected = PARTICULARS[case]
    length = {"qwen35.context_length": 4096, "mamba.context_length": 4096}
    report = check(make(keys=length | target), make(keys=length | draft))
    assert rules(report.findings) == expected
    assert report.compatible and report.llama_cpp_accepts


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


# --- files that are no models ---

HEAD = [Tensor("blk.4.nextn.eh_proj.weight", (DRAFT_SIZE,))]
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
    "eagle3": ({"keys": {"general.architecture": "eagle3"}}, "sidecar", "EAGLE-3"),
    "dflash": ({"keys": {"general.architecture": "dflash"}}, "sidecar", "DFlash"),
    "gemma4 head": (
        {"keys": {"general.architecture": "gemma4-assistant"}},
        "sidecar",
        "multi-token",
    ),
    "mtp head": (
        {"keys": {"llama.nextn_predict_layers": 1}, "tensors": HEAD},
        "sidecar",
        "multi-token",
    ),
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
    "duplicate stand-in": (
        {"tokens": changed({7: "", 8: "[EMPTY_7]"})},
        "duplicate-tokens",
        "'[EMPTY_7]'",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_are_no_models(make: Make, case: str) -> None:
    options, rule, says = FILES[case]
    header = make(**options)
    [finding] = [f for f in check_model(header) if f.level == "error"]
    assert finding.rule == rule and says in finding.message and finding.hint
    assert finding.message.isprintable()
    for pair in ((header, make()), (make(), header)):
        report = check(*pair)
        assert f"error {rule}" in rules(report.errors)
        assert not report.llama_cpp_accepts and report.llama_cpp_rule == rule


def test_files_that_look_like_the_above_and_are_models(make: Make) -> None:
    with_head = [*model_tensors(), *HEAD]
    for header in (
        make(keys={"llama.nextn_predict_layers": 1}, tensors=with_head),
        make(keys={"general.type": "model"}),
        make(changed({7: "", 8: ""})),
        make(merges=None, pre="kimi-k2"),
        make(merges=None, model="llama"),
    ):
        assert check_model(header) == []


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"general.architecture": "dream"}, "diffusion"),
        ({"general.architecture": "bert"}, "encoder"),
        ({"llama.attention.causal": False}, "encoder"),
        ({"llama.pooling_type": 3}, "text embedding"),
    ],
)
def test_models_that_do_not_continue_text(make: Make, keys: dict[str, object], says: str) -> None:
    [finding] = check_model(make(keys=keys))
    assert finding.rule == "not-autoregressive" and says in finding.message
    report = check(make(), make(keys={"bert.context_length": 4096} | keys))
    assert rules(report.errors) == ["error not-autoregressive"]
    assert report.llama_cpp_accepts  # its comparison looks at vocabularies only


def test_a_base_model_may_lack_a_template(make: Make) -> None:
    findings = check_model(make(keys={"tokenizer.chat_template": None}))
    assert rules(findings) == ["warning no-chat-template"]


def test_tokenizers_may_be_compared_without_weights(make: Make) -> None:
    report = check(make(tensors=[]), make(tensors=[]), weights_needed=False)
    assert rules(report.findings) == ["info vocabulary-only"] * 2
    assert report.compatible and report.llama_cpp_accepts


def test_a_sidecar_without_a_vocabulary(make: Make, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "imatrix.gguf", {"general.type": "imatrix"})
    assert rules(check(make(), read_header(path)).errors) == ["error sidecar"]


# --- JSON ---


def test_report_as_json(make: Make) -> None:
    target, draft = make(310), make(pre="tekken", keys={"general.name": None})
    report = check_pair(target, draft)
    data = report_json(report, target, draft)
    assert json.loads(json.dumps(data)) == data
    assert set(data) == {"compatible", "llama_cpp", "findings", "target", "draft"}
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
    assert data["draft"]["name"] is None


@pytest.mark.parametrize(
    ("options", "n_vocab", "model"), [({"model": "none"}, 0, "none"), ({"tokens": 0}, 0, "gpt2")]
)
def test_describe_an_empty_vocabulary(
    make: Make, options: dict[str, object], n_vocab: int, model: str
) -> None:
    facts = describe(make(**options))
    assert (facts["n_vocab"], facts["tokenizer_model"]) == (n_vocab, model)


def test_describe_no_vocabulary(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "a.gguf", {"general.architecture": "clip"}))
    assert describe(header)["n_vocab"] is None


def test_every_rule_has_a_hint_and_is_known_to_the_table() -> None:
    for rule, (level, hint) in pairing.RULES.items():
        assert rule == rule.lower() and " " not in rule
        assert level in ("error", "warning", "info") and hint.endswith(".")


def test_defaults_do_not_depend_on_typed_keys(make: Make) -> None:
    explicit = vocab_keys(words(N_WORDS), pre="llama-bpe", bos=11, eos=11, add_bos=True)
    report = check(make(keys=explicit), make(pre="llama-bpe"))
    assert report.compatible and report.findings == ()
    odd = make(keys={"tokenizer.ggml.bos_token_id": Typed(4, 11)})
    assert check(odd, make()).findings == ()


@pytest.mark.parametrize(
    "keys",
    [
        {"llama.block_count": 0},
        {"llama.block_count": 513},
        {"llama.attention.layer_norm_rms_epsilon": float("nan")},
        {"llama.attention.layer_norm_rms_epsilon": -1.0},
    ],
)
def test_values_that_would_abort_llama_cpp_are_refused(make: Make, keys: dict[str, object]) -> None:
    assert "error absurd-header" in rules(check_model(make(keys=keys)))
    assert "error absurd-header" in rules(check_pair(make(keys=keys), make()).errors)
