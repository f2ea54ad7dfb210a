"""What a file is as a draft, from its header alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.metadata.draft_kind import (
    DraftKind,
    claimed_heads,
    draft_kind,
    has_heads,
    held_heads,
    n_layers,
)
from localspec.metadata.header import ModelHeader, StagedHeader
from tests.support.files.gguf_files import F32, Tensor, Typed
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
from tests.support.files.headers import Bytes

DFLASH = DraftKind(
    "dflash", target_layers=(0, 2), target_width=WIDTH, block_size=8, mask_token=N_TOKENS - 1
)
MARKOV = Tensor("markov_w1.weight", (8, 8))
KINDS: dict[str, tuple[bytes, DraftKind]] = {
    "a model": (target_bytes(heads=0), DraftKind()),
    "a model with heads of its own": (target_bytes(), DraftKind()),
    "heads": (mtp_bytes(), DraftKind("mtp", 1, target_width=WIDTH)),
    "three heads": (mtp_bytes("step35", heads=3), DraftKind("mtp", 3, target_width=WIDTH)),
    "heads numbered from 0": (mtp_bytes(first=0), DraftKind("mtp", 1, target_width=WIDTH)),
    "wide heads": (
        mtp_bytes("deepseek4", keys={"hyper_connection.count": 4}),
        DraftKind("mtp", 1, target_width=4 * WIDTH),
    ),
    "an assistant": (assistant_bytes(), DraftKind("mtp", 1, target_width=WIDTH)),
    "eagle3": (
        eagle3_bytes(layers=(1, 2, 4)),
        DraftKind("eagle3", target_layers=(1, 2, 4), target_width=WIDTH),
    ),
    "eagle3 with a map": (
        eagle3_bytes(mapped=[0, 5, 7]),
        DraftKind(
            "eagle3", target_layers=(1, 2, 3), target_width=WIDTH, reduced_vocabulary=3
        ),
    ),
    "dflash": (
        dflash_bytes(),
        DFLASH,
    ),
    "dflash, nothing said": (
        dflash_bytes(
            layers=None, keys={"block_size": None, "tokenizer.ggml.mask_token_id": None}
        ),
        DraftKind("dflash", target_width=WIDTH, block_size=16),
    ),
    "dspark": (
        dflash_bytes(tensors=[MARKOV], keys={"attention.causal": True}),
        replace(
            DFLASH,
            causal=True,
            variant="DSpark",
            anchored=True,
        ),
    ),
    "dspark with a bonus token": (
        dspark_bytes(keys={"sample_from_anchor": False}),
        replace(
            DFLASH,
            variant="DSpark",
            has_confidence=True,
        ),
    ),
    "dflash2": (
        dflash2_bytes(keys={"sample_from_anchor": True}),  # of DSpark only
        replace(
            DFLASH,
            variant="DFlash2",
            selected=4,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KINDS)
def test_kinds(case: str, tmp_path: Path) -> None:
    data, expected = KINDS[case]
    assert draft_kind(header_of(tmp_path, data)) == expected


def test_names_of_llama_cpp(tmp_path: Path) -> None:
    found = [draft_kind(header_of(tmp_path, data)).spec_type for data, _ in KINDS.values()]
    assert found == [
        *("draft-simple", "draft-simple", *["draft-mtp"] * 5),
        *("draft-eagle3", "draft-eagle3", "draft-dflash", "draft-dflash", "draft-dspark"),
        *("draft-dspark", "draft-dflash"),
    ]


def test_heads_of_a_model(tmp_path: Path) -> None:
    def counted(data: bytes) -> tuple[int, int, int, bool]:
        header = header_of(tmp_path, data)
        return claimed_heads(header), held_heads(header), n_layers(header), has_heads(header)

    assert counted(target_bytes()) == (1, 1, LAYERS, True)
    assert counted(target_bytes(heads=0)) == (0, 0, LAYERS, False)
    assert counted(target_bytes(held=0)) == (1, 0, LAYERS, False)
    assert counted(target_bytes("step35", heads=3)) == (3, 3, LAYERS, True)
    assert counted(target_bytes("step35", heads=3, held=2)) == (3, 2, LAYERS, False)
    assert counted(target_bytes(heads=2)) == (2, 2, LAYERS, False)  # llama.cpp asserts one
    assert counted(target_bytes("llama")) == (1, 1, LAYERS, False)
    assert counted(mtp_bytes()) == (1, 1, LAYERS, False)  # no model of its own


def test_a_header_that_is_still_coming_tells_by_its_architecture() -> None:
    def at_the_start(data: bytes) -> str:
        return draft_kind(StagedHeader([Bytes(data)]).start()).kind

    assert at_the_start(eagle3_bytes()) == "eagle3" and at_the_start(dflash_bytes()) == "dflash"
    assert at_the_start(assistant_bytes()) == "mtp"
    assert at_the_start(mtp_bytes()) == "model"  # the tensors come last


ODD = st.one_of(
    st.none(),
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.just(Typed(F32, 1.5)),
    st.just("word"),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5),
    st.just([1] * 1025),  # more than is kept
)


@given(ODD, ODD, ODD, ODD)
def test_any_value_of_any_key_is_borne(
    layers: object, size: object, hidden: object, n: object
) -> None:
    def header(data: bytes) -> ModelHeader:
        return StagedHeader([Bytes(data)]).whole()

    changes = {"block_size": size, "hyper_connection.count": n, "target_hidden_size": hidden}
    for data in (
        dflash_bytes(layers=layers, keys=changes),
        eagle3_bytes(layers=layers, keys=changes),
    ):
        kind = draft_kind(header(data))
        assert all(type(each) is int for each in kind.target_layers)
        assert len(kind.target_layers) <= 1024
        assert kind.block_size >= 0 and (kind.target_width is None or kind.target_width >= 0)
    for data in (
        target_bytes(keys={"nextn_predict_layers": n}),
        mtp_bytes(keys={"nextn_predict_layers": n}),
    ):
        found = header(data)
        assert 0 <= held_heads(found) <= 1 and draft_kind(found).kind in ("model", "mtp")
