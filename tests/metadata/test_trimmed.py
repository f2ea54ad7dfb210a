"""The keys of a trimmed vocabulary: read as they are, refused wherever they do not agree."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.metadata.checks.model import check_file
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.header import read_header
from localspec.metadata.trimmed import EmbeddingTable, vocabulary_digest
from tests.support.files.gguf_files import (
    ARRAY,
    I32,
    STRING,
    U32,
    U64,
    Typed,
    vocab_keys,
    write_gguf,
)
from tests.support.files.headers import refusal, vocab_of
from tests.support.files.trimmed_files import DIGEST, IDS, SIZE, WIDTH, trimmed_keys, write_trimmed

I8 = 24  # a ggml type


def test_what_a_file_says(tmp_path: Path) -> None:
    header = read_header(write_trimmed(tmp_path / "a.gguf", trimmed_keys()))
    trimmed = header.trimmed
    assert trimmed is not None
    assert trimmed.ids.tolist() == list(IDS) and trimmed.size == SIZE
    offset = header.n_bytes - SIZE * 4 * WIDTH
    assert trimmed.table == EmbeddingTable(1.0, WIDTH, 0, 4 * WIDTH, offset)
    assert trimmed.table_bytes == SIZE * 4 * WIDTH
    assert trimmed.digest == DIGEST and trimmed.read_as is None
    assert header.n_tokens == SIZE and header.as_json()["n_vocab"] == SIZE
    kind = draft_kind(header)
    assert kind.is_model and kind.is_trimmed and kind.only_drafts
    assert kind.reduced_vocabulary == len(IDS)


def read_as(rows: Sequence[int], each: int = U32) -> dict[str, object]:
    """Keys of heads, of which each token is read by one of these rows."""
    return trimmed_keys() | {"localspec.vocab.read_as": Typed(ARRAY, list(rows), each)}


def test_heads_read_other_tokens_instead(tmp_path: Path) -> None:
    rows = [IDS.index(token) if token in IDS else token % len(IDS) for token in range(SIZE)]
    header = read_header(write_trimmed(tmp_path / "a.gguf", read_as(rows), behind=0))
    assert header.trimmed is not None and header.trimmed.read_as is not None
    assert header.trimmed.read_as.tolist() == rows
    assert header.trimmed.table is None and header.trimmed.table_bytes == 0
    kept_elsewhere = [(row + 1) % len(IDS) for row in rows]
    for wrong in (rows[:-1], [*rows, 0], [*rows[:4], len(IDS), *rows[5:]], kept_elsewhere, []):
        path = write_trimmed(tmp_path / "b.gguf", read_as(wrong), behind=0)
        assert "a row for each token" in refusal(path).message
    assert "u32" in refusal(write_trimmed(tmp_path / "b.gguf", read_as(rows, I32))).message
    behind = write_trimmed(tmp_path / "b.gguf", read_as(rows))
    assert "after its tensors" in refusal(behind).message


def test_long_lists_of_ids_are_kept(tmp_path: Path) -> None:
    ids, size = range(1, 6000, 2), 6000
    path = write_trimmed(
        tmp_path / "a.gguf",
        trimmed_keys(ids=ids, size=size),
        rows=len(ids),
        behind=4 * WIDTH * size,
    )
    trimmed = read_header(path).trimmed
    assert trimmed is not None and trimmed.ids.tolist() == list(ids)


def test_other_files_have_none(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"general.architecture": "llama"} | vocab_keys(["a"]))
    assert read_header(path).trimmed is None


def ids(*numbers: int, each: int = U32) -> Typed:
    return Typed(ARRAY, list(numbers), each)


WRONG_KEYS: dict[str, tuple[dict[str, object], str]] = {
    "id out of range": ({"ids": ids(0, 2, 3, SIZE)}, "ids below 40"),
    "id beyond all": ({"ids": ids(0, 2, 3, 2**32 - 1)}, "ids below 40"),
    "ids with signs": ({"ids": ids(-1, 2, 3, 4, each=I32)}, "list of u32"),
    "not ascending": ({"ids": ids(0, 3, 2, 39)}, "ascending"),
    "an id twice": ({"ids": ids(0, 2, 2, 39)}, "ascending"),
    "ids that are wide": ({"ids": ids(*IDS, each=U64)}, "list of u32"),
    "ids that are texts": ({"ids": Typed(ARRAY, ["a"], STRING)}, "list of u32"),
    "ids that are a number": ({"ids": 7}, "list of u32"),
    "no ids": ({"ids": ids()}, "lists no ids"),
    "more ids than rows": ({"ids": ids(0, 2, 3, 4, 39)}, "5 rows"),
    "size 0": ({"size": 0}, "number of 1 to"),
    "size beyond all": ({"size": 2**31}, "number of 1 to"),
    "size as text": ({"size": "many"}, "non-negative integer"),
    "larger than the file": ({"size": SIZE + 1}, "41 tokens take"),
    "scale NaN": ({"scale": math.nan}, "number above 0"),
    "scale infinite": ({"scale": math.inf}, "number above 0"),
    "scale 0": ({"scale": 0.0}, "number above 0"),
    "scale as text": ({"scale": "1"}, "number above 0"),
    "no digest": ({"sha256": "abc"}, "sha256"),
    "digest as number": ({"sha256": 5}, "text"),
    **{f"without {name}": ({name: None}, name) for name in ("ids", "size", "scale", "sha256")},
}


@pytest.mark.parametrize("case", WRONG_KEYS)
def test_keys_that_are_wrong(tmp_path: Path, case: str) -> None:
    changes, words = WRONG_KEYS[case]
    keys = trimmed_keys() | {f"localspec.vocab.{key}": value for key, value in changes.items()}
    keys = {key: value for key, value in keys.items() if value is not None}
    assert words in refusal(write_trimmed(tmp_path / "a.gguf", keys)).message


@pytest.mark.parametrize("missing", [-4 * WIDTH * SIZE, -1, 1, 4 * WIDTH])
def test_embeddings_that_are_cut_short_or_too_long(tmp_path: Path, missing: int) -> None:
    behind = 4 * WIDTH * SIZE + missing
    path = write_trimmed(tmp_path / "a.gguf", trimmed_keys(), behind=behind)
    assert "after its tensors" in refusal(path).message


def test_rows_that_do_not_agree(tmp_path: Path) -> None:
    fewer = write_trimmed(tmp_path / "a.gguf", trimmed_keys(), rows=3)
    assert "4 rows" in refusal(fewer).message
    no_weights = write_trimmed(tmp_path / "b.gguf", trimmed_keys(), type_id=I8, behind=WIDTH * SIZE)
    assert "type I8" in refusal(no_weights).message
    keys = trimmed_keys() | {"llama.vocab_size": 5}
    assert "vocab_size" in refusal(write_trimmed(tmp_path / "c.gguf", keys)).message


def test_a_tokenizer_beside_it(tmp_path: Path) -> None:
    keys = trimmed_keys() | vocab_keys(["a", "b", "c", "d"])
    path = write_trimmed(tmp_path / "a.gguf", keys)
    assert "also a tokenizer" in refusal(path).message


def test_a_part_of_a_split_model(tmp_path: Path) -> None:
    for number in (1, 2):
        split: dict[str, object] = {"split.no": Typed(2, number - 1), "split.count": Typed(2, 2)}
        keys: dict[str, object] = {"general.architecture": "llama"}
        if number == 1:
            keys |= trimmed_keys()
        path = tmp_path / f"a-0000{number}-of-00002.gguf"
        write_trimmed(path, keys | split)
        if number == 2:
            path.write_bytes(path.read_bytes().replace(b"token_embd", b"other_embd"))
    assert "is split, and" in refusal(tmp_path / "a-00001-of-00002.gguf").message


@given(st.data())
def test_any_ids_are_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    found = data.draw(st.lists(st.integers(0, SIZE + 1), min_size=1, max_size=6))
    path = tmp_path_factory.mktemp("ids") / "a.gguf"
    write_trimmed(path, trimmed_keys(ids=found), rows=len(found))
    sane = found == sorted(set(found)) and max(found) < SIZE
    if sane:
        trimmed = read_header(path).trimmed
        assert trimmed is not None and trimmed.ids.tolist() == found
    else:
        refusal(path)


def test_it_only_drafts(tmp_path: Path) -> None:
    header = read_header(write_trimmed(tmp_path / "a.gguf", trimmed_keys()))
    for role in ("target", "file"):
        [finding] = [each for each in check_file(header, role, "error") if each.level == "error"]
        assert finding.rule == "sidecar" and "trimmed vocabulary" in finding.message
    assert not list(check_file(header, "draft", "error"))


def test_the_digest_is_of_the_texts_and_their_places(tmp_path: Path) -> None:
    def digest(*texts: str) -> str:
        keys = {"general.architecture": "llama"} | vocab_keys(texts)
        return vocabulary_digest(vocab_of(read_header(write_gguf(tmp_path / "a.gguf", keys))))

    assert digest("a", "b") == digest("a", "b")
    assert len({digest("a", "b"), digest("b", "a"), digest("ab"), digest("a", "b", "c")}) == 4
