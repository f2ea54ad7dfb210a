"""Bytes in order: paths that are no files, limits, and sources of all kinds."""

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import FileProblem, NotAGGUF
from localspec.metadata import byte_reader
from localspec.metadata.byte_reader import ByteReader
from localspec.metadata.header import StagedHeader, read_header
from tests.support.files.gguf_files import gguf_bytes, write_gguf
from tests.support.files.headers import Bytes, refusal

ARCH = {"general.architecture": "llama"}


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert "There is no file" in refusal(tmp_path / "missing.gguf").message
    assert "is a directory" in refusal(tmp_path).message
    assert "null byte" in refusal(Path("a\0b.gguf")).message
    assert r"\x1b" in refusal(tmp_path / "\x1b[31m.gguf").message
    assert "cannot be read" in refusal(tmp_path / ("n" * 300)).message


def test_safetensors_are_converted_by_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "My Model"
    folder.mkdir()
    weights = folder / "model-00001-of-00002.safetensors"
    weights.write_bytes(b"{}")
    for path in (folder, weights):
        with pytest.raises(FileProblem) as caught:
            read_header(path)
        assert caught.value.message.startswith(f"{path} ") and "GGUF" in caught.value.message
        command = caught.value.hint.split("`")[1]
        expected = ["python", "convert_hf_to_gguf.py", str(folder), "--outfile", "My Model.gguf"]
        assert shlex.split(command) == expected
    monkeypatch.chdir(folder)
    for path in (Path("."), Path(weights.name)):
        with pytest.raises(FileProblem) as caught:
            read_header(path)
        assert "convert_hf_to_gguf.py . --outfile model.gguf`" in caught.value.hint
    (folder / "model.gguf").write_bytes(b"")
    assert refusal(folder).message == f"{folder} is a directory."


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in refusal(tmp_path / "pipe.gguf").message


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "a.gguf", ARCH)

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(
        byte_reader, "open_regular", deny
    )  # the tests may run as root, whom nothing stops
    assert "may not be read" in refusal(path).message


def test_the_whole_header_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "a.gguf", ARCH | {"a": "x" * (2 << 20)})
    assert read_header(path).architecture == "llama"
    monkeypatch.setattr(byte_reader, "MAX_HEADER_BYTES", 1 << 20)
    assert "header over 1 MB" in refusal(path).message


def test_a_source_that_ends_too_early() -> None:
    whole = gguf_bytes(ARCH | {"text": "x" * 5000})
    source = Bytes(whole[:2000], name="hf:org/a\nb.gguf")
    source.n_bytes = len(whole)
    with pytest.raises(NotAGGUF) as caught:
        StagedHeader([source]).whole()
    assert caught.value.message.startswith("hf:org/a\\nb.gguf ended while key ")


@given(
    st.lists(st.binary(max_size=40), max_size=20),
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
)
def test_pieces_of_any_size_give_the_same_bytes(wanted: list[bytes], extra: list[int]) -> None:
    """However a source cuts its bytes, they come in order, none twice and none too many."""
    data = b"".join(wanted)
    at = ByteReader(Bytes(data, tuple(extra)))
    end = 0
    for piece in wanted:
        assert at.take(len(piece)) == piece
        end += len(piece)
        assert at.offset == end
    with pytest.raises(NotAGGUF, match="cut short"):
        at.take(1)


@given(st.integers(0, 2**64 - 1), st.integers(0, 50), st.integers(1, 20))
def test_a_count_is_within_its_limit_and_the_file(claimed: int, room: int, each: int) -> None:
    at = ByteReader(Bytes(claimed.to_bytes(8, "little") + bytes(room)))
    if claimed > 30 or claimed * each > room:
        with pytest.raises(NotAGGUF):
            at.count("things", 30, each)
    else:
        assert at.count("things", 30, each) == claimed


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(0, 60))
def test_texts_in_a_row_are_those_read_one_by_one(texts: list[bytes], piece: int) -> None:
    data = b"".join(len(text).to_bytes(8, "little") + text for text in texts) + b"end"
    together, skipping = (ByteReader(Bytes(data, (piece,))) for _ in range(2))
    assert together.strings(len(texts)) == texts
    skipping.skip_strings(len(texts))
    assert together.take(3) == skipping.take(3) == b"end"
