"""Records beside downloaded files, and what they prove without a network."""

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.hub.provenance import (
    MAX_RECORD_BYTES,
    Provenance,
    Verification,
    read_record,
    record_path,
    recorded,
    sha256_of,
    verify,
    write_record,
)

DATA = b"GGUF" + bytes(range(256)) * 20
COMMIT = "c0ffee" + "0" * 34


def origin_of(data: bytes, path: str = "model.gguf", **others: Any) -> Provenance:
    sha256 = hashlib.sha256(data).hexdigest()
    return Provenance("org/repo", "main", COMMIT, path, len(data), sha256, **others)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A downloaded file with its record."""
    path = tmp_path / "org" / "repo" / "model.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    write_record(path, origin_of(DATA))
    return path


def judged(path: Path) -> Verification:
    (verdict,) = verify([path])
    assert verdict.message.endswith(".") and "\n" not in verdict.message
    assert verdict.state == "right" or verdict.hint
    return verdict


def test_a_record_is_hidden_json_beside_the_file(path: Path) -> None:
    record = path.with_name(".model.gguf.origin.json")
    assert record_path(path) == record
    document = json.loads(record.read_text())
    assert document == {
        "repo": "org/repo", "revision": "main", "commit": COMMIT, "path": "model.gguf",
        "size": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest(), "checked": "sha256",
    }  # fmt: skip
    assert sorted(p.name for p in path.parent.iterdir()) == [record.name, path.name]


def test_no_record(tmp_path: Path) -> None:
    assert read_record(tmp_path / "model.gguf") is None
    assert read_record(tmp_path / "no folder" / "model.gguf") is None


def test_a_record_may_lack_what_was_checked(path: Path) -> None:
    document = json.loads(record_path(path).read_text())
    del document["checked"]
    record_path(path).write_text(json.dumps(document))
    assert read_record(path) == origin_of(DATA)


def changed(**values: object) -> Callable[[dict[str, object]], str]:
    return lambda document: json.dumps({**document, **values})


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: "",
        lambda document: json.dumps(document)[:-20],
        lambda document: "[" * 50_000,
        lambda document: "[]",
        lambda document: "\x00" * 100,
        lambda document: json.dumps(document) + " " * MAX_RECORD_BYTES,
        changed(repo=None),
        changed(repo="../../etc"),
        changed(revision="a/../b"),
        changed(path="../model.gguf"),
        changed(path=""),
        changed(commit=7),
        changed(size=-1),
        changed(size=True),
        changed(size="12"),
        changed(sha256="0" * 63),
        changed(sha256="Z" * 64),
        changed(checked="nothing"),
    ],
)
def test_a_damaged_record_has_its_sentence(
    path: Path, damage: Callable[[dict[str, object]], str]
) -> None:
    record = record_path(path)
    record.write_text(damage(json.loads(record.read_text())))
    with pytest.raises(ValueError, match="."):
        read_record(path)
    verdict = judged(path)
    assert verdict.state == "damaged record" and "is damaged" in verdict.message
    assert list(recorded(path.parent)) == []


@given(data=st.binary(max_size=200))
def test_bytes_in_place_of_a_record_are_a_record_or_an_error(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    record_path(path).write_bytes(data)
    try:
        assert read_record(path) is None
    except ValueError as error:
        assert str(error)


def test_a_record_that_is_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    record_path(path).mkdir()
    with pytest.raises(ValueError, match="cannot be read"):
        read_record(path)


def test_a_fifo_is_not_waited_for(path: Path) -> None:
    record_path(path).unlink()
    os.mkfifo(record_path(path))
    with pytest.raises(ValueError, match="not a regular file"):
        read_record(path)
    assert judged(path).state == "damaged record"
    write_record(path, origin_of(DATA))
    assert judged(path).state == "right"
    record_path(path).unlink()
    path.unlink()
    os.mkfifo(path)
    (verdict,) = verify([path], kept={path: "a" * 64})
    assert verdict.state == "unreadable" and "not a regular file" in verdict.message


def full_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_link_in_place_of_a_record_is_replaced(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("my own")
    record_path(path).unlink()
    record_path(path).symlink_to(mine)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full_disk)
        write_record(path, origin_of(DATA))
    assert record_path(path).readlink() == mine and [*path.parent.glob(".*-*")] == []
    write_record(path, origin_of(DATA))
    assert mine.read_text() == "my own" and read_record(path) == origin_of(DATA)


def test_right(path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    (verdict,) = verify([path], lambda *progress: heard.append(progress))
    sha256 = hashlib.sha256(DATA).hexdigest()
    assert verdict.state == "right" and verdict.expected == verdict.found == sha256
    assert sha256[:12] in verdict.message
    assert heard[-1] == ("model.gguf", len(DATA), len(DATA))


def test_right_as_far_as_anyone_knows(path: Path) -> None:
    write_record(path, origin_of(DATA, checked="size"))
    verdict = judged(path)
    assert verdict.state == "right" and "the Hub listed no hash" in verdict.message


def test_a_flipped_bit_is_wrong_and_tells_both_hashes(path: Path) -> None:
    damaged = bytearray(DATA)
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    verdict = judged(path)
    found = hashlib.sha256(damaged).hexdigest()
    assert (verdict.state, verdict.found) == ("wrong", found)
    assert found[:12] in verdict.message and str(verdict.expected)[:12] in verdict.message
    assert f"rm {path} && localspec download hf:org/repo/model.gguf" in verdict.hint


def test_another_size_is_wrong_without_reading(path: Path) -> None:
    path.write_bytes(DATA[:-1])
    verdict = judged(path)
    assert (verdict.state, verdict.found) == ("wrong", None)
    assert f"{len(DATA) - 1:,}" in verdict.message and f"{len(DATA):,}" in verdict.message


def test_missing(path: Path) -> None:
    path.unlink()
    verdict = judged(path)
    assert verdict.state == "missing" and verdict.origin == origin_of(DATA)
    assert "localspec download hf:org/repo/model.gguf" in verdict.hint
    assert judged(path.with_name("never.gguf")).state == "missing"


def test_the_hint_names_the_revision(path: Path) -> None:
    path.unlink()
    origin = Provenance("org/repo", "refs/pr/1", COMMIT, "a b.gguf", 1, "0" * 64)
    write_record(path, origin)
    assert "'hf:org/repo@refs%2Fpr%2F1/a b.gguf'" in judged(path).hint


def test_a_file_of_unknown_origin(tmp_path: Path) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(DATA)
    assert judged(path).state == "no record"


def test_a_file_in_a_cache_is_known_by_its_name(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / hashlib.sha256(DATA).hexdigest()
    link = tmp_path / "snapshots" / "model.gguf"
    for file in (blob, link):
        file.parent.mkdir()
    blob.write_bytes(DATA)
    link.symlink_to(blob)
    assert judged(link).state == "right"
    blob.write_bytes(DATA[:-1] + b"!")
    verdict = judged(link)
    assert verdict.state == "wrong" and f"rm {blob}" in verdict.hint


def test_a_file_that_cannot_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("localspec.hub.provenance.sha256_of", refuse)
    verdict = judged(path)
    assert verdict.state == "unreadable" and "Permission denied" in verdict.message


def test_a_folder_stands_for_what_was_downloaded_into_it(path: Path, tmp_path: Path) -> None:
    (tmp_path / "own.gguf").write_bytes(DATA)
    other = tmp_path / "also" / "other.gguf"
    other.parent.mkdir()
    write_record(other, origin_of(DATA, "other.gguf"))
    states = {verdict.path: verdict.state for verdict in verify([tmp_path])}
    assert states == {other: "missing", path: "right"}
    assert dict(recorded(tmp_path)) == {other: origin_of(DATA, "other.gguf"), path: origin_of(DATA)}


def test_one_part_stands_for_all(tmp_path: Path) -> None:
    parts = [tmp_path / f"big-{n:05d}-of-00003.gguf" for n in (1, 2, 3)]
    for part in parts[:2]:
        part.write_bytes(DATA)
        write_record(part, origin_of(DATA, part.name))
    verdicts = list(verify([parts[1]]))
    assert [verdict.path for verdict in verdicts] == parts
    assert [verdict.state for verdict in verdicts] == ["right", "right", "missing"]


def test_names_of_strangers_are_shown_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m\nb.gguf"
    path.write_bytes(DATA)
    assert "\x1b" not in judged(path).message
    record_path(path).write_text('{"repo": "\\u001b[31m"}')
    assert "\x1b" not in judged(path).message


@given(data=st.binary(max_size=100))
def test_hashes_are_those_of_hashlib(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "hashed"
    path.write_bytes(data)
    assert sha256_of(path, lambda done: None) == hashlib.sha256(data).hexdigest()
