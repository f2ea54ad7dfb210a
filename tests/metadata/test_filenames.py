"""Names of GGUF files: parts, sidecars and quantisations, as people and tools write them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.metadata.filenames import (
    PART_NAME,
    cut_from,
    how_to_join,
    is_sidecar,
    part_name,
    parts_of,
    stem_of,
    tag_of,
)


@pytest.mark.parametrize(
    "path",
    [
        "mmproj-model-f16.gguf", "X-BF16-MMPROJ.gguf", "model.imatrix.gguf", "mtp-x.gguf",
        "MTP/x.gguf", "/disk/org/repo/mtp/x.gguf", "org_repo_mtp-x.gguf", "eagle3-x-Q8_0.gguf",
        "X-DFlash.Q8_0.gguf", "sub/dspark-x.gguf",
    ],
)  # fmt: skip
def test_sidecars(path: str) -> None:
    assert is_sidecar(path)


@pytest.mark.parametrize(
    "path",
    [
        "Qwen3.6-35B-A3B-MTP-IQ4_XS.gguf",  # a whole model with its heads inside
        "x-mtp-Q8_0.gguf",
        "spark-7b.gguf",
        "eagle-7b.gguf",
        "mmproj/x.gguf",  # of folders only MTP tells
        "imatrix/x-IQ2_M.gguf",
        "mtp-models/x.gguf",
        "MTP/deeper/x.gguf",
        "mtp.gguf",
        "",
    ],
)
def test_what_is_no_sidecar(path: str) -> None:
    assert not is_sidecar(path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("x-Q4_K_M.gguf", "Q4_K_M"), ("x.q8_0.gguf", "q8_0"), ("IQ4_XS/x-IQ4_XS.gguf", "IQ4_XS"),
        ("gpt-oss-20b-mxfp4.gguf", "mxfp4"), ("x-bf16-00001-of-00002.gguf", "bf16"),
        ("model_q4_0.gguf", "q4_0"), ("x.gguf", None), ("Qwen3-8B.gguf", None),
        ("x-UD-Q4_K_XL.gguf", "Q4_K_XL"), ("x-f16.gguf", "f16"), ("x-F32.gguf", "F32"),
    ],
)  # fmt: skip
def test_the_tag_in_a_name(path: str, expected: str | None) -> None:
    assert tag_of(path) == expected


@given(st.text(min_size=1), st.integers(0, 99999), st.integers(0, 99999))
def test_the_name_of_a_part(stem: str, number: int, count: int) -> None:
    name = f"{stem}-{number:05d}-of-{count:05d}.gguf"
    assert part_name(stem, number, count) == name
    part = PART_NAME.fullmatch(name)
    assert part and (part[1], int(part[2]), int(part[3])) == (stem, number, count)
    assert stem_of(name) == stem


@pytest.mark.parametrize("name", ["x-1-of-3.gguf", "-00001-of-00002.gguf", "x-00001-of-00002.bin"])
def test_what_is_no_name_of_a_part(name: str) -> None:
    assert not PART_NAME.fullmatch(name)


def test_a_part_in_capitals() -> None:
    assert stem_of("X-00001-OF-00002.GGUF") == stem_of("X.GGUF") == "X"
    names = [path.name for path in parts_of(Path("a/X-00002-OF-00002.GGUF"))]
    assert names == ["X-00001-OF-00002.GGUF", "X-00002-OF-00002.GGUF"]


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("x.gguf.part1of2", "x.gguf"),
        ("x.Q8_0.GGUF.part10of12", "x.Q8_0.GGUF"),
        ("x.gguf-split-a", "x.gguf"),
        ("x.gguf.part-00", "x.gguf"),
        ("x.gguf.partaa", "x.gguf"),
        ("x.gguf.001", "x.gguf"),
        ("x.gguf", None),
        ("x-00001-of-00002.gguf", None),
        (".x.gguf.0123456789abcdef.part", None),  # a download of ours
        ("x.gguf.partial", None),
    ],
)
def test_parts_that_other_tools_cut(name: str, whole: str | None) -> None:
    assert cut_from(name) == whole


def test_parts_are_joined_by_their_numbers() -> None:
    names = [f"a b.gguf.part{number}of11" for number in (11, 2, 1)]
    parts = " ".join(f"'a b.gguf.part{number}of11'" for number in (1, 2, 11))
    assert how_to_join("a b.gguf", [*names, "c.gguf.part1of2"]) == f"`cat {parts} > 'a b.gguf'`"
