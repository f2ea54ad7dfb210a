"""Heads that draft: what a file must hold, and which target they fit, each edge from both sides."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.metadata.checks.heads import (
    FINAL_LAYER_TAPS,
    LAYER_TAPS,
    NEXTN_TAPS,
    check_embedded,
    check_heads_of,
    heads_problem,
)
from localspec.metadata.draft_kind import ASSISTANTS, MTP_CHAINS, MTP_GRAPHS, draft_kind
from localspec.metadata.findings import Finding
from localspec.metadata.header import ModelHeader
from localspec.pairing import check_model, check_own_heads, check_pair
from tests.support.files.gguf_files import Tensor, words
from tests.support.files.head_files import (
    LAYERS,
    N_TOKENS,
    WIDTH,
    assistant_bytes,
    dflash2_bytes,
    dflash_bytes,
    dspark_bytes,
    eagle3_bytes,
    header_of,
    mtp_bytes,
    target_bytes,
)

MAP = list(range(0, N_TOKENS, 3))
EMBEDDING = Tensor("token_embd.weight", (2 * WIDTH, N_TOKENS))
OUTPUT = Tensor("output.weight", (2 * WIDTH, N_TOKENS))
GEMMA = {"attention.key_length": 32, "attention.key_length_swa": 16}


def errors(folder: Path, target: bytes, draft: bytes) -> list[Finding]:
    sides = header_of(folder, target, "target.gguf"), header_of(folder, draft, "heads.gguf")
    report = check_pair(*sides)
    assert report.llama_cpp_accepts is (not report.errors)
    for finding in report.errors:
        assert finding.message.endswith(".") and finding.message.isprintable() and finding.hint
    return list(report.errors)


FIT: dict[str, tuple[bytes, bytes]] = {
    "heads of a model without any": (target_bytes(heads=0), mtp_bytes()),
    "heads of a model with its own": (target_bytes(), mtp_bytes()),
    "heads in a chain": (target_bytes("step35", heads=0), mtp_bytes("step35", heads=3)),
    "heads numbered from 0": (target_bytes(heads=0), mtp_bytes(first=0)),
    "wide heads": (
        target_bytes("deepseek4", keys={"hyper_connection.count": 4}),
        mtp_bytes("deepseek4", keys={"hyper_connection.count": 4}),
    ),
    "an assistant": (target_bytes("gemma4", heads=0, keys=GEMMA), assistant_bytes(keys=GEMMA)),
    "eagle3": (target_bytes("llama", heads=0), eagle3_bytes()),
    "eagle3, first layer": (target_bytes("llama", heads=0), eagle3_bytes(layers=(0, 1, 3))),
    "eagle3 behind the last layer": (target_bytes(), eagle3_bytes(layers=(1, 2, LAYERS))),
    "eagle3 with a map": (target_bytes("llama", heads=0), eagle3_bytes(mapped=MAP)),
    "eagle3 with all that it reads": (
        target_bytes("llama", heads=0),
        eagle3_bytes(tensors=[EMBEDDING, OUTPUT], keys={"embedding_length": 2 * WIDTH}),
    ),
    "dflash": (target_bytes("gpt-oss", heads=0), dflash_bytes()),
    "dflash behind the last layer": (
        target_bytes("nemotron_h", heads=0),
        dflash_bytes(layers=(0, LAYERS)),
    ),
    "dspark": (target_bytes("llama", heads=0), dspark_bytes()),
    "dflash2": (target_bytes("llama", heads=0), dflash2_bytes()),
    "blocks of two": (target_bytes("llama", heads=0), dflash_bytes(keys={"block_size": 2})),
}
FIT_NOT: dict[str, tuple[bytes, bytes, str, str]] = {
    "heads of another architecture": (
        target_bytes("qwen35moe"),
        mtp_bytes(),
        "heads-architecture",
        "for a target of the architecture qwen35, not qwen35moe",
    ),
    "an assistant of another": (
        target_bytes("gemma3", heads=0),
        assistant_bytes(),
        "heads-architecture",
        "architecture gemma4, not gemma3",
    ),
    "heads of a deeper model": (
        target_bytes(heads=0),
        mtp_bytes(first=LAYERS + 1),
        "heads-layers",
        "follow 5 layers, but the target has 4",
    ),
    "heads of a wider model": (
        target_bytes(keys={"embedding_length": 32}),
        mtp_bytes(),
        "heads-width",
        "hidden states are 32 wide, the heads read 64",
    ),
    "an assistant of a wider model": (
        target_bytes("gemma4", heads=0, keys={"embedding_length": 32}),
        assistant_bytes(),
        "heads-width",
        "are 32 wide, the heads read 64",
    ),
    "an assistant of other keys": (
        target_bytes("gemma4", heads=0, keys=GEMMA | {"attention.key_length_swa": 32}),
        assistant_bytes(keys=GEMMA),
        "heads-width",
        "keys are 32 wide, the heads read 16",
    ),
    "an assistant of other heads of keys": (
        target_bytes("gemma4", heads=0, keys={"attention.head_count_kv": [2, 2, 4, 4]}),
        assistant_bytes(keys={"attention.head_count_kv": 3}),
        "heads-width",
        "heads read 3 keys of a layer, which no layer has",
    ),
    "heads of other experts": (
        target_bytes(keys={"expert_count": 4, "expert_used_count": 2}),
        mtp_bytes(keys={"expert_count": 8, "expert_used_count": 2}),
        "heads-width",
        "expert_count is 4 for the target but 8 for the heads",
    ),
    "heads that rotate less": (
        target_bytes(keys={"rope.dimension_count": 16}),
        mtp_bytes(),
        "heads-width",
        "rope.dimension_count is 16 for the target but not given for the heads",
    ),
    "heads of other tokens": (
        target_bytes(),
        mtp_bytes(tokens=[*words(N_TOKENS - 1), "other"]),
        "token-text-normal",
        "1 ordinary token differs: 299",
    ),
    "one token less": (
        target_bytes(),
        eagle3_bytes(tokens=words(N_TOKENS - 1)),
        "heads-vocabulary",
        "are for 299 tokens, the target has 300",
    ),
    "a layer too many": (
        target_bytes("llama", heads=0),
        eagle3_bytes(layers=(1, 2, LAYERS + 1)),
        "heads-layers",
        "reads layer 5 of its target, which has 4",
    ),
    "a head is no layer": (
        target_bytes(),
        dflash_bytes(layers=(0, LAYERS + 1)),
        "heads-layers",
        "reads layer 5 of its target, which has 4",
    ),
    "a layer below none": (
        target_bytes("llama", heads=0),
        dflash_bytes(layers=(-1, 2)),
        "heads-layers",
        "reads layer -1",
    ),
    "a target without taps": (
        target_bytes("gemma3", heads=0),
        eagle3_bytes(),
        "heads-unsupported",
        "does not hand out the hidden states of gemma3, which this draft reads",
    ),
    "a target without taps for dflash": (
        target_bytes("qwen4exp", heads=0),
        dflash_bytes(),
        "heads-unsupported",
        "hidden states of qwen4exp",
    ),
    "no tap behind the last layer": (
        target_bytes("llama", heads=0),
        eagle3_bytes(layers=(1, 2, LAYERS)),
        "heads-unsupported",
        "hidden states of llama after its last layer",
    ),
    "no tap behind the last layer for dflash": (
        target_bytes(),
        dflash_bytes(layers=(0, LAYERS)),
        "heads-unsupported",
        "hidden states of qwen35 after its last layer",
    ),
    "eagle3 of a wider model": (
        target_bytes("llama", heads=0),
        eagle3_bytes(keys={"target_hidden_size": 2 * WIDTH}),
        "heads-width",
        "are 64 wide, the heads read 128",
    ),
    "dflash of a wider model": (
        target_bytes("llama", heads=0),
        dflash_bytes(keys={"embedding_length": 2 * WIDTH}),
        "heads-width",
        "are 64 wide, the heads read 128",
    ),
    "an embedding of another width": (
        target_bytes("llama", heads=0),
        eagle3_bytes(tensors=[OUTPUT], keys={"embedding_length": 2 * WIDTH}),
        "heads-width",
        "128 wide and has no token_embd.weight of its own; the target's is 64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FIT)
def test_heads_that_fit(case: str, tmp_path: Path) -> None:
    assert errors(tmp_path, *FIT[case]) == []


@pytest.mark.parametrize("case", FIT_NOT)
def test_heads_that_do_not_fit(case: str, tmp_path: Path) -> None:
    target, draft, rule, says = FIT_NOT[case]
    [found] = errors(tmp_path, target, draft)
    assert found.rule == rule and says in found.message


# --- files that llama.cpp would not survive, or cannot use ---

BROKEN: dict[str, tuple[bytes, str, str]] = {
    "heads without tensors": (
        mtp_bytes(held=0, tensors=[Tensor("blk.4.attn_norm.weight", (WIDTH,))]),
        "heads-missing",
        "claims 1 prediction head, but holds the tensors of 0",
    ),
    "a head without one of its norms": (
        mtp_bytes(tensors=[Tensor("blk.4.nextn.enorm.weight", (0,))]),
        "heads-missing",
        "claims 1 prediction head, but holds the tensors of 0",
    ),
    "a head too few": (
        mtp_bytes("step35", heads=3, held=2),
        "heads-missing",
        "claims 3 prediction heads, but holds the tensors of 2",
    ),
    "several where one is run": (
        mtp_bytes(heads=2),
        "heads-unsupported",
        "2 prediction heads, and llama.cpp runs only one of qwen35",
    ),
    "heads of an architecture without": (
        mtp_bytes("glm5-next"),
        "heads-unsupported",
        "cannot run the prediction heads of glm5-next",
    ),
    "more heads than layers": (
        mtp_bytes(keys={"nextn_predict_layers": 6}),
        "heads-unsupported",
        "6 prediction heads, and llama.cpp runs only one of qwen35",
    ),
    "an assistant of unknown width": (
        assistant_bytes(keys={"embedding_length_out": None}),
        "heads-header",
        "does not say how wide",
    ),
    "two layers read": (eagle3_bytes(layers=(1, 2)), "heads-header", "names 2 layers"),
    "layers that are no list": (eagle3_bytes(layers=3), "heads-header", "names 0 layers"),
    "eagle3 of two layers": (
        eagle3_bytes(keys={"block_count": 2}), "heads-header", "has 2 layers, where"
    ),
    "eagle3 of unknown width": (
        eagle3_bytes(keys={"target_hidden_size": None}), "heads-header", "does not say how wide"
    ),
    "keys and values": (
        eagle3_bytes(keys={"attention.key_length": 16, "attention.value_length": 32}),
        "heads-header",
        "keys and values of different lengths",
    ),
    "no layers": (dflash_bytes(layers=()), "heads-header", "names no layers"),
    "a block of one": (dflash_bytes(keys={"block_size": 1}), "heads-header", "blocks of 1 tokens"),
    "a huge block": (
        dflash_bytes(keys={"block_size": 2**31}), "heads-header", "blocks of 2,147,483,648 tokens"
    ),
    "no mask": (
        dflash_bytes(keys={"tokenizer.ggml.mask_token_id": None}), "heads-header", "no mask token"
    ),
    "a mask beyond the vocabulary": (
        dflash_bytes(keys={"tokenizer.ggml.mask_token_id": N_TOKENS}),
        "heads-header",
        "no mask token of its vocabulary",
    ),
    "a dspark without a block size": (
        dspark_bytes(keys={"block_size": None}), "heads-header", "blocks of 0 tokens"
    ),
    "a huge block of dspark": (
        dspark_bytes(keys={"block_size": 33}), "heads-header", "33 tokens, expected 2 to 32"
    ),
    "a selector among none": (
        dflash2_bytes(keys={"selector_top_k": None}), "heads-header", "selects among 0 tokens"
    ),
    "a selector among too many": (
        dflash2_bytes(keys={"selector_top_k": N_TOKENS + 1}), "heads-header", "among 301 tokens"
    ),
    "both variants": (
        dspark_bytes(tensors=[Tensor("selector_hidden.weight", (8, 8))]),
        "heads-header",
        "both a DSpark and a DFlash2 head",
    ),
    "a map without an output matrix": (
        eagle3_bytes(mapped=MAP, tensors=[Tensor("output.weight", (0,))]),
        "heads-header",
        "maps 100 tokens, but has no output matrix",
    ),
    "a map for another output matrix": (
        eagle3_bytes(mapped=MAP, tensors=[Tensor("output.weight", (WIDTH, 99))]),
        "heads-header",
        "maps 100 tokens, but has no output matrix for so many",
    ),
    "a map of small numbers": (
        eagle3_bytes(tensors=[Tensor("d2t", (9,), 26)]), "heads-header", "an invalid map"
    ),
    "a map out of the vocabulary": (
        eagle3_bytes(mapped=[0, N_TOKENS]), "heads-header", "maps to the token 300, of 300"
    ),
    "a map below the vocabulary": (
        eagle3_bytes(mapped=[0, -1]), "heads-header", "maps to the token 18,446,744,073,709,551,615"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_files_of_heads_that_cannot_be_used(case: str, tmp_path: Path) -> None:
    data, rule, says = BROKEN[case]
    header = header_of(tmp_path, data)
    architecture = ASSISTANTS.get(header.architecture, header.architecture)
    target = target_bytes("llama" if architecture in ("eagle3", "dflash") else architecture)
    found = [each for each in errors(tmp_path, target, data) if each.rule == rule]
    assert len(found) == 1 and says in found[0].message, found


def test_a_map_of_a_remote_file_is_not_read(tmp_path: Path) -> None:
    header = header_of(tmp_path, eagle3_bytes(mapped=[0, N_TOKENS]))
    header.path.unlink()
    target = header_of(tmp_path, target_bytes("llama", heads=0), "target.gguf")
    assert check_pair(target, header).compatible


# --- heads inside their model ---


def test_a_model_drafts_for_itself(tmp_path: Path) -> None:
    for data in (target_bytes(), target_bytes("step35", heads=3)):
        header = header_of(tmp_path, data)
        assert heads_problem(header) is None and not list(check_embedded(header))
        report = check_own_heads(header)
        assert report.compatible and report.llama_cpp_accepts and report.findings == ()


OWN: dict[str, tuple[bytes, str, str]] = {
    "none": (
        target_bytes(heads=0), "heads-missing", "own.gguf has no prediction heads of its own."
    ),
    "left out": (
        target_bytes(held=0),
        "heads-missing",
        "own.gguf names 1 prediction head, but its conversion left them out.",
    ),
    "one too few": (
        target_bytes("mimo2", heads=3, held=2),
        "heads-missing",
        "own.gguf claims 3 prediction heads, but holds the tensors of 2.",
    ),
    "too many": (
        target_bytes(heads=2),
        "heads-unsupported",
        "own.gguf has 2 prediction heads, and llama.cpp runs only one of qwen35.",
    ),
    "unknown to llama.cpp": (
        target_bytes("exaone-moe"),
        "heads-unsupported",
        "llama.cpp cannot run the prediction heads of exaone-moe, which own.gguf has.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OWN)
def test_a_model_that_cannot_draft_for_itself(case: str, tmp_path: Path) -> None:
    data, rule, message = OWN[case]
    header = header_of(tmp_path, data, "own.gguf")
    [found] = check_own_heads(header).errors
    assert (found.rule, found.message) == (rule, message)
    # It runs all the same, with another draft or none.
    info = [each for each in check_model(header) if each.rule == "heads-left-out"]
    assert [each.message for each in info] == ([] if case == "none" else [message])
    assert all(each.level == "info" for each in check_model(header))


def test_heads_are_no_target(tmp_path: Path) -> None:
    model = header_of(tmp_path, target_bytes(heads=0), "model.gguf")
    for data in (mtp_bytes(), assistant_bytes(), eagle3_bytes(), dflash_bytes()):
        heads = header_of(tmp_path, data)
        [found] = [each for each in check_model(heads) if each.level == "error"]
        assert found.rule == "sidecar" and "--draft" in found.hint
        assert "sidecar" in {each.rule for each in check_pair(heads, model).errors}


# --- the lists ---


def test_the_lists_hold_together() -> None:
    assert MTP_CHAINS < MTP_GRAPHS < NEXTN_TAPS and FINAL_LAYER_TAPS < LAYER_TAPS
    assert set(ASSISTANTS.values()) <= NEXTN_TAPS
    for name in LAYER_TAPS | NEXTN_TAPS:
        assert re.fullmatch(r"[a-z0-9_-]+", name)


SIZES = st.one_of(st.none(), st.sampled_from([0, 1, WIDTH, 2**31, 2**32 - 1]))
_NEAR = [-1, 0, 1, 2, LAYERS - 1, LAYERS, LAYERS + 1, 2**31 - 1]


@given(SIZES, SIZES, st.lists(st.sampled_from(_NEAR), max_size=4), st.booleans())
def test_whatever_fits_is_within_the_targets_bounds(
    tmp_path_factory: pytest.TempPathFactory,
    width: int | None,
    block_size: int | None,
    layers: list[int],
    final: bool,
) -> None:
    folder = tmp_path_factory.mktemp("heads")
    target: ModelHeader = header_of(folder, target_bytes(), "target.gguf")
    layers = [*layers, LAYERS] if final else layers
    for data in (
        eagle3_bytes(layers=tuple(layers), keys={"target_hidden_size": width}),
        dflash_bytes(
            layers=tuple(layers), keys={"embedding_length": width, "block_size": block_size}
        ),
    ):
        draft = header_of(folder, data)
        report, kind = check_pair(target, draft), draft_kind(draft)
        if report.compatible:
            assert kind.target_layers and all(0 <= i <= LAYERS for i in kind.target_layers)
            assert kind.target_width in (None, WIDTH)
            assert list(check_heads_of(target, draft)) == []
