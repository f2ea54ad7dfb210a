# ruff: noqa: F811  (`hub` is a fixture)
"""Downloads: whatever breaks, in the end the file is right or absent, and what came is kept."""

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec import download
from localspec.core.errors import DownloadProblem, HubProblem
from localspec.download import downloaded, fetch, interrupted, local_paths
from localspec.hub import body, client
from localspec.hub.client import DroppedConnection, RangeIgnored, RemoteModel
from localspec.hub.provenance import (
    Provenance,
    read_record,
    record_path,
    verify,
    write_record,
)
from localspec.hub.reference import Reference, RemoteFile, parse_reference
from tests.fuzz import hub as fuzz_hub
from tests.support import interference
from tests.support.fake_hub import (  # noqa: F401
    GOOD_TOKEN,
    FakeHub,
    Fault,
    drop,
    flip,
    hub,
    stall,
    status,
    trickle,
    whole,
)

COMMIT = "c0ffee" + "0" * 34
DATA = random.Random(0).randbytes(1000)
MEGABYTE = random.Random(1).randbytes(1 << 20)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def listed(files: dict[str, bytes], *, told: bool = True, commit: str = COMMIT) -> RemoteModel:
    """A model as the Hub would list it; its hashes are left out unless `told`."""
    remote = [RemoteFile(n, len(data), sha256(data) if told else None) for n, data in files.items()]
    return RemoteModel(Reference("org/repo"), commit, tuple(remote), None)


ONE = listed({"model.gguf": DATA})


class ToyHub:
    """Stands in for `client.stream`: sends `files`, each answer ended as the next of `ends` says.

    An end is a number of bytes after which the connection breaks, or an exception to raise at once,
    or such a pair; behind the last one answers are whole. `starts` keeps what was asked for.
    """

    def __init__(
        self, files: dict[str, bytes], ends: Sequence["End"] = (), piece: int = 64
    ) -> None:
        self.files = files
        self.ends = list(ends)
        self.piece = piece
        self.starts: list[int] = []
        self.sent = 0

    def stream(
        self, model: RemoteModel, file: RemoteFile, start: int = 0, stop: int | None = None
    ) -> Iterator[bytes]:
        self.starts.append(start)
        end = self.ends.pop(0) if self.ends else None
        data = self.files[file.path][start:]
        if isinstance(end, BaseException):
            end = (0, end)
        length, error = end if isinstance(end, tuple) else (end, None)
        for at in range(0, len(data) if length is None else min(length, len(data)), self.piece):
            piece = data[at : at + self.piece][: None if length is None else length - at]
            self.sent += len(piece)
            yield piece
        if error is not None:
            raise error
        if length is not None:
            raise DroppedConnection("The connection broke.")


End = int | BaseException | tuple[int, BaseException] | None


class Heard(NamedTuple):
    """What a download told: progress, sentences and the seconds it wanted to wait."""

    progress: list[tuple[str, int, int]]
    notes: list[str]
    pauses: list[float]

    def fetch(self, model: RemoteModel, folder: Path) -> list[Path]:
        return fetch(
            model,
            folder,
            lambda *progress: self.progress.append(progress),
            on_note=self.notes.append,
            sleep=self.pauses.append,
        )


@pytest.fixture
def heard() -> Heard:
    return Heard([], [], [])


def serve(toy: ToyHub, patch: pytest.MonkeyPatch) -> ToyHub:
    """Put the toy in the Hub's place, without a local cache."""
    patch.setattr(client, "stream", toy.stream)
    patch.setattr(client, "cached", lambda model, file: None)
    patch.setattr(body, "LEAST_BYTES", 1)  # so a connection that brings a byte is a good one
    patch.setattr(os, "fsync", lambda descriptor: None)  # slow, and no power fails here
    return toy


@contextmanager
def folder_and(toy: ToyHub) -> Iterator[Path]:
    """For a test that is run many times: the toy in the Hub's place and a new models folder."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        serve(toy, patch)
        yield Path(name)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ToyHub:
    return serve(ToyHub({"model.gguf": DATA}), monkeypatch)


def part_of(folder: Path, data: bytes = DATA, name: str = "model.gguf") -> Path:
    return folder / "org" / "repo" / f".{name}.{sha256(data)[:16]}.part"


def leave_part(folder: Path, part: bytes) -> None:
    path = part_of(folder)
    path.parent.mkdir(parents=True)
    path.write_bytes(part)


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


WHOLE = ["org/repo/.model.gguf.origin.json", "org/repo/model.gguf"]


def assert_whole(folder: Path, data: bytes = DATA, name: str = "model.gguf") -> None:
    assert names(folder) == [f"org/repo/.{name}.origin.json", f"org/repo/{name}"]
    assert (folder / "org" / "repo" / name).read_bytes() == data
    assert [verdict.state for verdict in verify([folder])] == ["right"]


# --- where files go ---


def test_files_lie_by_repository_and_path(tmp_path: Path) -> None:
    files = [RemoteFile("a.gguf", 1, None), RemoteFile("sub/b.gguf", 1, None)]
    assert local_paths(Reference("org/repo"), files, tmp_path) == [
        tmp_path / "org" / "repo" / "a.gguf",
        tmp_path / "org" / "repo" / "sub" / "b.gguf",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "../b.gguf", "a/../../b.gguf", "/etc/b.gguf", "a//b.gguf", "./b.gguf", "", ".", "..",
        "a\\..\\b.gguf", "c:b.gguf", "a\0.gguf", "a\n.gguf", ".b.gguf", ".git/b.gguf",
        ".model.gguf.origin.json", "b" * 300 + ".gguf",
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(path: str, tmp_path: Path, toy: ToyHub) -> None:
    with pytest.raises(DownloadProblem) as refusal:
        local_paths(Reference("org/repo"), [RemoteFile(path, 1, None)], tmp_path)
    assert "\n" not in str(refusal.value) and refusal.value.hint
    with pytest.raises(DownloadProblem):
        fetch(listed({path: DATA}), tmp_path / "models", lambda *_: None)
    assert toy.starts == [] and not (tmp_path / "models").exists()


@given(path=st.text(st.sampled_from("ab./\\:\0~ "), max_size=12))
def test_no_name_leaves_the_folder(path: str) -> None:
    folder = Path("/models")
    try:
        (found,) = local_paths(Reference("org/repo"), [RemoteFile(path, 1, None)], folder)
    except DownloadProblem:
        return
    assert Path(os.path.normpath(found)) == found and found.is_relative_to("/models/org/repo")


@pytest.mark.parametrize("owner", ["pairs", "Pairs", "demo"])
def test_no_repository_lies_in_a_folder_of_our_own(
    owner: str, tmp_path: Path, toy: ToyHub, heard: Heard
) -> None:
    reference = Reference(f"{owner}/evil.toml")
    (path,) = heard.fetch(replace(ONE, reference=reference), tmp_path)
    assert path == tmp_path / f"{owner}@hub" / "evil.toml" / "model.gguf"
    assert downloaded(reference, tmp_path) == [path]
    assert parse_reference(f"{owner}@hub/evil.toml") is None  # nobody else is called so


# --- the ordinary way ---


def test_a_file_comes_whole_with_its_record(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    assert heard.fetch(ONE, tmp_path) == [tmp_path / "org" / "repo" / "model.gguf"]
    assert_whole(tmp_path)
    origin = Provenance("org/repo", "main", COMMIT, "model.gguf", len(DATA), sha256(DATA))
    assert read_record(tmp_path / "org" / "repo" / "model.gguf") == origin
    assert heard.progress[-1] == ("model.gguf", len(DATA), len(DATA))
    assert [done for _, done, _ in heard.progress] == sorted(d for _, d, _ in heard.progress)
    assert heard.notes == [] and heard.pauses == []


def test_what_is_there_is_not_fetched_again(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    heard.fetch(ONE, tmp_path)
    paths = heard.fetch(ONE, tmp_path)
    assert toy.starts == [0] and paths[0].read_bytes() == DATA
    other_commit = RemoteModel(Reference("org/repo"), "1" * 40, ONE.files, None)
    heard.fetch(other_commit, tmp_path)
    assert toy.starts == [0]


def test_an_empty_file(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    toy.files = {"model.gguf": b""}
    heard.fetch(listed(toy.files), tmp_path)
    assert_whole(tmp_path, b"")


SPLIT = {f"Q8/big-{n:05d}-of-00003.gguf": bytes([n]) * (100 * n) for n in (1, 2, 3)}


def test_all_parts_of_a_split_model_and_progress_over_all(
    tmp_path: Path, toy: ToyHub, heard: Heard
) -> None:
    toy.files, toy.ends = SPLIT, [None, (50, KeyboardInterrupt())]
    model = listed(SPLIT)
    with pytest.raises(KeyboardInterrupt):
        heard.fetch(model, tmp_path)
    paths = heard.fetch(model, tmp_path)
    assert [path.read_bytes() for path in paths] == list(SPLIT.values())
    assert toy.starts == [0, 0, 50, 0]
    checked = [told for told in heard.progress if told[0].startswith("checking ")]
    assert [(done, total) for _, done, total in checked] == [(n, n) for n in (100, 200, 300)]
    assert {total for _, _, total in set(heard.progress) - set(checked)} == {600}
    assert heard.progress[-1] == ("big-00003-of-00003.gguf", 600, 600)
    assert ("big-00002-of-00003.gguf", 150, 600) in heard.progress


def test_content_is_on_the_disk_before_name_and_record(
    tmp_path: Path, toy: ToyHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a record must not describe a file that is not there, or an older one."""
    path = tmp_path / "org" / "repo" / "model.gguf"
    steps: list[str] = []
    replace = os.replace

    def renamed(source: str, target: str) -> None:
        steps.append("renamed")
        assert not record_path(path).exists()  # the second one is its own
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda _: steps.append("synced"))
    monkeypatch.setattr(os, "replace", renamed)
    fetch(ONE, tmp_path, lambda *_: None)
    assert steps == ["synced", "renamed", "synced", "synced", "renamed"]
    assert_whole(tmp_path)


# --- interruptions ---


@given(
    data=st.binary(max_size=300),
    ends=st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=8),
    piece=st.integers(1, 100),
)
def test_wherever_it_is_cut_it_goes_on(
    data: bytes, ends: list[tuple[int, bool]], piece: int
) -> None:
    """Cut by a broken connection, or (True) with the process; no byte comes twice."""
    cuts: list[End] = [(n, KeyboardInterrupt()) if fatal else n for n, fatal in ends]
    toy, model = ToyHub({"model.gguf": data}, cuts, piece), listed({"model.gguf": data})
    with folder_and(toy) as folder:
        for _ in range(len(ends) + 1):
            try:
                Heard([], [], []).fetch(model, folder)
                break
            except (KeyboardInterrupt, DownloadProblem):
                assert not (folder / "org" / "repo" / "model.gguf").exists()
        assert_whole(folder, data)
    assert toy.sent <= len(data)


@given(cut=st.integers(0, 1000), damage=st.integers(0, 999))
def test_a_damaged_part_never_gets_through(cut: int, damage: int) -> None:
    part = bytearray(DATA[:cut])
    if damage < cut:
        part[damage] ^= 1
    toy = ToyHub({"model.gguf": DATA}, piece=500)
    with folder_and(toy) as folder:
        leave_part(folder, bytes(part))
        Heard([], [], []).fetch(ONE, folder)
        assert_whole(folder)
    assert toy.starts in ([cut], [cut, 0], [0], [])


def test_ctrl_c_keeps_what_came(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    toy.ends = [(300, KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        heard.fetch(ONE, tmp_path)
    assert part_of(tmp_path).read_bytes() == DATA[:300]
    heard.progress.clear()
    heard.fetch(ONE, tmp_path)
    assert toy.starts == [0, 300] and toy.sent == len(DATA)
    assert heard.progress[0] == ("model.gguf", 364, 1000)
    assert any("Resuming" in note and "300 bytes of 1 kB" in note for note in heard.notes)
    assert_whole(tmp_path)


def test_pauses_double_while_nothing_comes(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    toy.ends = [100, *[0] * 6]
    with pytest.raises(DownloadProblem) as problem:
        heard.fetch(ONE, tmp_path)
    assert heard.pauses == [1, 1, 2, 4, 8, 16]
    assert "stopped at 100 bytes of 1 kB" in problem.value.message
    assert "The connection broke" in problem.value.message and problem.value.message.endswith(".")
    assert part_of(tmp_path).read_bytes() == DATA[:100]
    heard.fetch(ONE, tmp_path)
    assert_whole(tmp_path)


def test_any_new_byte_starts_the_count_again(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    toy.ends = [0, 0, 0, 1] * 10
    heard.fetch(ONE, tmp_path)
    assert len(toy.starts) == 41 and max(heard.pauses) == 4
    assert_whole(tmp_path)


def test_the_hub_says_how_long_to_wait(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    toy.ends = [
        DroppedConnection("Busy.", retry_after=after) for after in (30.0, 0.0, 9999.0, None)
    ]
    heard.fetch(ONE, tmp_path)
    assert heard.pauses == [30, 2, 300, 8]
    assert "again in 30 s" in heard.notes[0]


def test_an_answer_that_ends_early_without_a_word(
    tmp_path: Path, toy: ToyHub, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(model: RemoteModel, file: RemoteFile, start: int, stop: int) -> Iterator[bytes]:
        yield DATA[start : start + 400]

    monkeypatch.setattr(client, "stream", short)
    heard.fetch(ONE, tmp_path)
    assert_whole(tmp_path)
    assert heard.pauses == [1, 1]


def test_a_drop_behind_the_last_byte_is_no_matter(tmp_path: Path, toy: ToyHub) -> None:
    heard = Heard([], [], [])
    toy.ends = [(1000, DroppedConnection("The connection broke."))]
    heard.fetch(ONE, tmp_path)
    assert_whole(tmp_path)
    assert heard.pauses == []


def test_a_refusal_passes_through_and_keeps_the_part(tmp_path: Path, toy: ToyHub) -> None:
    toy.ends = [(100, HubProblem("No."))]
    with pytest.raises(HubProblem, match="No"):
        fetch(ONE, tmp_path, lambda *_: None)
    assert part_of(tmp_path).stat().st_size == 100


def test_a_complete_part_needs_no_hub(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    leave_part(tmp_path, DATA)
    heard.fetch(ONE, tmp_path)
    assert toy.starts == []
    assert_whole(tmp_path)


def test_a_server_without_ranges(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    """It starts at 0 again; what was there is passed over, and stays if that fails as well."""
    toy.ends = [300, RangeIgnored("Whole file."), (200, DroppedConnection("Broke.")), 700]
    heard.fetch(ONE, tmp_path)
    assert toy.starts == [0, 300, 0, 0, 0]
    assert heard.pauses == [1, 1, 1]
    assert any("only from its beginning" in note for note in heard.notes)
    assert_whole(tmp_path)


# --- wrong bytes ---


def test_wrong_bytes_are_fetched_once_more(
    tmp_path: Path, toy: ToyHub, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ToyHub({"model.gguf": DATA[:-1] + b"!"})
    streams = iter([wrong.stream, toy.stream])
    monkeypatch.setattr(client, "stream", lambda *asked: next(streams)(*asked))
    heard.fetch(ONE, tmp_path)
    assert wrong.starts == toy.starts == [0]
    assert any("is damaged" in note and "once more" in note for note in heard.notes)
    assert_whole(tmp_path)


@pytest.mark.parametrize("data", [DATA[:-1] + b"!", DATA + b"more"])
def test_bytes_that_stay_wrong_leave_nothing(
    data: bytes, tmp_path: Path, toy: ToyHub, heard: Heard
) -> None:
    toy.files = {"model.gguf": data}
    with pytest.raises(DownloadProblem) as problem:
        heard.fetch(ONE, tmp_path)
    assert "was damaged twice" in problem.value.message and problem.value.hint
    assert toy.starts == [0, 0] and names(tmp_path) == []


def test_without_a_hash_the_size_is_what_counts(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    model = listed({"model.gguf": DATA}, told=False)
    toy.ends = [(500, KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        heard.fetch(model, tmp_path)
    (path,) = heard.fetch(model, tmp_path)
    heard.fetch(model, tmp_path)
    assert toy.starts == [0, 500]
    origin = read_record(path)
    assert origin is not None and (origin.sha256, origin.checked) == (sha256(DATA), "size")
    newer = listed({"model.gguf": DATA[::-1]}, told=False, commit="1" * 40)
    toy.files = {"model.gguf": DATA[::-1]}
    heard.fetch(newer, tmp_path)
    assert_whole(tmp_path, DATA[::-1])


# --- what lies there already ---


def test_a_right_file_without_record_gets_one(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    path = tmp_path / "org" / "repo" / "model.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    record_path(path).write_text("damaged")
    heard.fetch(ONE, tmp_path)
    assert toy.starts == [] and any("checking its sha256" in note for note in heard.notes)
    assert_whole(tmp_path)


@pytest.mark.parametrize("data", [b"my own", DATA[::-1]])
def test_a_file_of_the_users_own_is_not_replaced(
    data: bytes, tmp_path: Path, toy: ToyHub, heard: Heard
) -> None:
    path = tmp_path / "org" / "repo" / "model.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with pytest.raises(DownloadProblem, match="in the way"):
        heard.fetch(ONE, tmp_path)
    assert path.read_bytes() == data and toy.starts == []


def test_a_folder_in_the_way(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    (tmp_path / "org" / "repo" / "model.gguf").mkdir(parents=True)
    with pytest.raises(DownloadProblem, match="in the way"):
        heard.fetch(ONE, tmp_path)
    assert toy.starts == []


@pytest.mark.parametrize("old", [b"an older version", DATA[::-1]])
def test_an_older_version_gives_way_when_the_new_one_is_right(
    old: bytes, tmp_path: Path, toy: ToyHub, heard: Heard
) -> None:
    toy.files = {"model.gguf": old}
    heard.fetch(listed({"model.gguf": old}), tmp_path)
    leftover = part_of(tmp_path, b"yet another version")
    leftover.write_bytes(b"yet an")
    toy.files, toy.ends = {"model.gguf": DATA}, [(500, KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        heard.fetch(ONE, tmp_path)
    path = tmp_path / "org" / "repo" / "model.gguf"
    assert path.read_bytes() == old and leftover.exists()
    assert next(verify([path])).state == "right"
    heard.fetch(ONE, tmp_path)
    assert_whole(tmp_path)  # the leftover is gone as well


@pytest.mark.parametrize("other", [DATA[:-1], DATA + b"more", b"a model of somebody's own"])
def test_what_took_the_place_of_a_download_is_not_replaced(
    tmp_path: Path, toy: ToyHub, heard: Heard, other: bytes
) -> None:
    (path,) = heard.fetch(ONE, tmp_path)
    path.write_bytes(other)
    with pytest.raises(DownloadProblem, match="is in the way"):
        heard.fetch(ONE, tmp_path)
    assert path.read_bytes() == other
    path.unlink()
    heard.fetch(ONE, tmp_path)
    assert_whole(tmp_path)


def in_cache(
    monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, bytes]
) -> dict[str, Path]:
    """Put files into what `client.cached` looks at."""
    paths = {name: folder / name for name in files}
    for name, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[name])
    monkeypatch.setattr(client, "cached", lambda model, file: paths.get(file.path))
    return paths


def test_a_cached_file_is_used_in_place(
    tmp_path: Path, toy: ToyHub, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = in_cache(monkeypatch, tmp_path / "cache", {"model.gguf": DATA})
    assert heard.fetch(ONE, tmp_path / "models") == [paths["model.gguf"]]
    assert toy.starts == [] and not (tmp_path / "models").exists()


def test_parts_of_a_split_model_stay_together(
    tmp_path: Path, toy: ToyHub, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp looks for the other parts beside the first one."""
    toy.files, model = SPLIT, listed(SPLIT)
    models, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    first, *others = SPLIT
    in_cache(monkeypatch, tmp_path / "cache", {first: SPLIT[first]})
    assert heard.fetch(model, models) == local_paths(Reference("org/repo"), model.files, models)
    cached = in_cache(monkeypatch, tmp_path / "cache", SPLIT)
    assert heard.fetch(model, models)[0].is_relative_to(models)
    assert heard.fetch(model, elsewhere) == list(cached.values())
    cached[others[0]] = tmp_path / "another place" / Path(others[0]).name
    assert heard.fetch(model, elsewhere) == local_paths(
        Reference("org/repo"), model.files, elsewhere
    )


def test_what_was_downloaded_is_found_without_the_hub(
    tmp_path: Path, toy: ToyHub, heard: Heard
) -> None:
    toy.files = {"a-Q8_0.gguf": DATA, "a-Q4_K_M.gguf": DATA[::-1], **SPLIT}
    for name in ("a-Q8_0.gguf", "Q8/big-00001-of-00003.gguf"):
        heard.fetch(listed({name: toy.files[name]}), tmp_path)

    def found(name: str) -> list[Path] | None:
        reference = parse_reference(name)
        assert reference is not None
        return downloaded(reference, tmp_path)

    path = tmp_path / "org" / "repo" / "a-Q8_0.gguf"
    for name in ("hf:org/repo:q8_0", "hf:org/repo/a-Q8_0.gguf", f"hf:org/repo@{COMMIT}:Q8_0"):
        assert found(name) == [path]
    for name in ("hf:org/repo:Q4_K_M", "hf:org/other", "hf:org/repo@v2:Q8_0"):
        assert found(name) is None
    assert found("hf:org/repo/Q8/big-00001-of-00003.gguf") is None  # two parts are missing
    heard.fetch(listed(SPLIT), tmp_path)
    paths = found("hf:org/repo/Q8/big-00001-of-00003.gguf")
    assert paths is not None and [p.read_bytes() for p in paths] == list(SPLIT.values())
    path.write_bytes(b"cut")
    assert found("hf:org/repo:q8_0") is None


# --- disks and folders ---


def test_room_is_checked_before_the_first_byte(
    tmp_path: Path, toy: ToyHub, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_part(tmp_path, DATA[:300])
    free = [600]
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": free[0]})())
    with pytest.raises(DownloadProblem) as problem:
        heard.fetch(ONE, tmp_path)
    assert "lacks 100 bytes: 700 bytes" in problem.value.message
    assert toy.starts == []
    free[0] = 700
    heard.fetch(ONE, tmp_path)
    free[0] = 0
    heard.fetch(ONE, tmp_path)
    assert toy.starts == [300]


def test_room_for_all_parts_in_a_folder_that_is_not_there_yet(
    tmp_path: Path, toy: ToyHub, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 500})())
    with pytest.raises(DownloadProblem, match="lacks 100 bytes"):
        heard.fetch(listed(SPLIT), tmp_path / "not" / "yet")
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("step", ["mkdir", "open", "replace", "record"])
def test_whatever_cannot_be_stored_is_a_sentence(
    step: str, tmp_path: Path, toy: ToyHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    place = {
        "mkdir": (Path, "mkdir"), "open": (os, "open"), "replace": (os, "replace"),
        "record": (download, "write_record"),
    }[step]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(*place, fail)
        with pytest.raises(DownloadProblem, match="disk became full"):
            fetch(ONE, tmp_path, lambda *_: None)
    fetch(ONE, tmp_path, lambda *_: None)
    assert_whole(tmp_path)


def test_a_file_where_the_models_folder_should_be(tmp_path: Path, toy: ToyHub) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(DownloadProblem, match="cannot be stored"):
        fetch(ONE, tmp_path / "models", lambda *_: None)


# --- two at once ---


def two_at_once(toy: ToyHub, folder: Path, heard: Heard) -> None:
    """Download in a thread, up to the toy's first end, and here until both are finished."""
    begun, go_on = threading.Event(), threading.Event()
    first, toys = toy.ends.pop(0), toy.stream

    def halting(model: RemoteModel, file: RemoteFile, start: int, stop: int) -> Iterator[bytes]:
        if threading.current_thread() is not other:
            yield from toys(model, file, start, stop)
            return
        toy.starts.append(start)
        yield DATA[:300]
        begun.set()
        assert go_on.wait(60)
        if isinstance(first, BaseException):
            raise first
        yield DATA[300:]

    def download_there() -> None:
        with suppress(HubProblem):
            fetch(ONE, folder, lambda *_: None)

    def sleep(seconds: float) -> None:
        heard.pauses.append(seconds)
        go_on.set()
        time.sleep(0.001)

    other = threading.Thread(target=download_there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "stream", halting)
        other.start()
        assert begun.wait(60)
        fetch(
            ONE, folder, lambda *told: heard.progress.append(told), on_note=heard.notes.append,
            sleep=sleep,
        )  # fmt: skip
        other.join()


def test_the_second_one_waits_and_finds_it(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    toy.ends = [None]
    two_at_once(toy, tmp_path, heard)
    assert toy.starts == [0]
    assert any("Another process" in note for note in heard.notes) and heard.pauses
    assert ("model.gguf", 300, 1000) in heard.progress  # how far the other one was
    assert_whole(tmp_path)


def test_the_second_one_goes_on_where_the_first_one_failed(
    tmp_path: Path, toy: ToyHub, heard: Heard
) -> None:
    toy.ends = [HubProblem("No.")]
    two_at_once(toy, tmp_path, heard)
    assert toy.starts == [0, 300]
    assert_whole(tmp_path)


# --- against a Hub on loopback ---


def on_hub(hub: FakeHub, name: str = "big.gguf", data: bytes = MEGABYTE) -> RemoteModel:
    hub.add("org/repo", name, data)
    reference = parse_reference(f"hf:org/repo/{name}")
    assert reference is not None
    return client.resolve(reference)


def starts(hub: FakeHub) -> list[int]:
    """Where the requests for content began."""
    asked = [request.range for request in hub.asked("/resolve/")]
    return [int(wanted.removeprefix("bytes=").split("-")[0]) for wanted in asked if wanted]


def test_a_hub_that_breaks_off_at_random_places(hub: FakeHub, tmp_path: Path, heard: Heard) -> None:
    places = random.Random(2)
    hub.faults = [drop(places.randrange(200_000)) for _ in range(10)]
    heard.fetch(on_hub(hub), tmp_path / "models")
    assert_whole(tmp_path / "models", MEGABYTE, "big.gguf")
    assert starts(hub) == sorted(starts(hub)) and len(starts(hub)) > 5
    assert len(heard.pauses) == len(starts(hub)) - 1


def test_a_hub_that_stalls(
    hub: FakeHub, tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0.2")
    hub.faults = [stall(0), stall(100_000)]

    def sleep(seconds: float) -> None:
        heard.pauses.append(seconds)
        if all(fault.hits for fault in hub.faults):  # and what is only slow may take its time
            monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "60")

    fetch(on_hub(hub), tmp_path / "models", lambda *_: None, sleep=sleep)
    assert_whole(tmp_path / "models", MEGABYTE, "big.gguf")
    assert len(heard.pauses) >= 2


FAULTS: dict[str, list[Fault]] = {
    "too short by a byte": [Fault("short")],
    "claims a byte more": [Fault("long")],
    "a flipped bit": [flip(500_000)],
    "a flipped bit behind a drop": [drop(300_000), flip(100_000), flip(500_000)],
    "no ranges": [drop(300_000), whole(), drop(100_000)],
    "busy": [status(429, retry_after="7"), status(503), status(500), status(502)],
    "busy in between": [
        fault for code in (503, 429, 504) for fault in (drop(20_000), status(code))
    ],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("redirecting", [False, True], ids=["itself", "content host"])
def test_what_another_try_mends(
    faults: list[Fault], redirecting: bool, hub: FakeHub, tmp_path: Path, heard: Heard
) -> None:
    hub.redirecting = redirecting
    hub.faults = [replace(fault, path="/cdn/" if redirecting else "") for fault in faults]
    heard.fetch(on_hub(hub), tmp_path / "models")
    assert_whole(tmp_path / "models", MEGABYTE, "big.gguf")
    if faults[0].retry_after:
        assert heard.pauses[0] == 7


REFUSALS: dict[str, Fault] = {
    "a wrong token": status(401),
    "gated": Fault("status", status=403, code="GatedRepo"),
    "forbidden": status(403),
    "gone": Fault("status", status=404, code="EntryNotFound"),
    "past the end": status(416),
    "another range": Fault("other range"),
    "compressed": Fault("gzip"),
}


@pytest.mark.parametrize("fault", REFUSALS.values(), ids=REFUSALS)
def test_what_another_try_does_not_mend(
    fault: Fault, hub: FakeHub, tmp_path: Path, heard: Heard
) -> None:
    """It is told at once, what came before is kept, and later it goes on from there."""
    models = tmp_path / "models"
    hub.faults = [drop(300_000), replace(fault)]
    model = on_hub(hub)
    with pytest.raises(HubProblem) as problem:
        heard.fetch(model, models)
    assert problem.value.message.endswith(".") and problem.value.hint
    assert len(heard.pauses) == 1
    part = part_of(models, MEGABYTE, "big.gguf")
    assert part.read_bytes() == MEGABYTE[:300_000] and names(models) == [
        str(part.relative_to(models))
    ]
    heard.fetch(model, models)
    assert starts(hub) == [0, 300_000, 300_000]
    assert_whole(models, MEGABYTE, "big.gguf")


def test_a_login_page_in_place_of_the_file(hub: FakeHub, tmp_path: Path, heard: Heard) -> None:
    """It looks like a Hub without ranges, and must not cost what is there."""
    models = tmp_path / "models"
    hub.faults = [drop(300_000), Fault("html", times=2)]
    model = on_hub(hub)
    with pytest.raises(HubProblem):
        heard.fetch(model, models)
    heard.fetch(model, models)
    assert starts(hub) == [0, 300_000, 0, 300_000]
    assert_whole(models, MEGABYTE, "big.gguf")


def test_a_hub_that_lies_for_good(hub: FakeHub, tmp_path: Path, heard: Heard) -> None:
    hub.faults = [flip(500_000, times=None)]
    with pytest.raises(DownloadProblem, match="was damaged twice"):
        heard.fetch(on_hub(hub), tmp_path / "models")
    assert names(tmp_path / "models") == []


def test_a_hub_that_goes_away(hub: FakeHub, tmp_path: Path) -> None:
    models, model = tmp_path / "models", on_hub(hub)
    hub.faults = [drop(300_000)]

    def sleep(seconds: float) -> None:
        hub.stop()

    with pytest.raises(DownloadProblem, match="stopped at 300 kB of 1 MB"):
        fetch(model, models, lambda *_: None, sleep=sleep)
    assert part_of(models, MEGABYTE, "big.gguf").stat().st_size == 300_000


# --- interference while it downloads ---


@pytest.mark.parametrize("interfere", interference.ALL)
def test_nothing_wrong_is_recorded_as_right(
    interfere: Callable[[Path], None], hub: FakeHub, tmp_path: Path, heard: Heard
) -> None:
    models, model = tmp_path / "models", on_hub(hub)
    part, interferences = part_of(models, MEGABYTE, "big.gguf"), iter([interfere])

    def progress(name: str, done: int, total: int) -> None:
        if done > 500_000:
            next(interferences, lambda path: None)(part)

    if interfere in (interference.flip, interference.cut, interference.grow):
        fetch(model, models, progress, on_note=heard.notes.append)
        assert_whole(models, MEGABYTE, "big.gguf")
    else:
        with pytest.raises(DownloadProblem, match="changed or replaced the partial file"):
            fetch(model, models, progress)
        assert not any(path.suffix == ".gguf" for path in models.rglob("*"))
        assert not (mine := part.with_name("mine")).exists() or mine.read_bytes() == b"my own"
    assert any("is damaged" in note for note in heard.notes) is (
        interfere in (interference.flip, interference.cut)
    )


def test_random_hubs_and_random_interference() -> None:
    assert sum(fuzz_hub.run(seed=100, count=20).values()) == 20


def test_a_hub_at_a_byte_a_second(
    hub: FakeHub, tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After six requests it is given up; what came is there for the next time."""
    model = on_hub(hub)
    with monkeypatch.context() as patch, pytest.raises(DownloadProblem) as problem:
        patch.setattr(body, "LEAST_SECONDS", 0.05)
        hub.faults = [trickle()]
        heard.fetch(model, tmp_path / "models")
    assert heard.pauses == [1, 2, 4, 8, 16]
    assert "5 more tries brought" in problem.value.message and "sent only" in problem.value.message
    assert "it resumes there" in problem.value.hint
    came = part_of(tmp_path / "models", MEGABYTE, "big.gguf").stat().st_size
    assert came > 0
    hub.faults = []
    heard.fetch(model, tmp_path / "models")
    assert starts(hub)[-1] == came
    assert_whole(tmp_path / "models", MEGABYTE, "big.gguf")


def test_a_file_without_a_hash_on_the_hub(hub: FakeHub, tmp_path: Path, heard: Heard) -> None:
    hub.add("org/repo", "small.gguf", DATA).lfs = False
    model = client.resolve(Reference("org/repo"))
    assert model.files[0].sha256 is None
    (path,) = heard.fetch(model, tmp_path / "models")
    origin = read_record(path)
    assert origin is not None and (origin.sha256, origin.checked) == (sha256(DATA), "size")
    assert heard.notes == ["The Hub lists no sha256 of small.gguf, so it stays unverified."]


def test_a_private_file_with_a_token(
    hub: FakeHub, tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    hub.redirecting = True
    hub.add("org/repo", "big.gguf", MEGABYTE)
    hub.repos["org/repo"].private = True
    heard.fetch(on_hub(hub), tmp_path / "models")
    assert_whole(tmp_path / "models", MEGABYTE, "big.gguf")


# --- killed ---

# Forks a child for each line that it reads: to download, and to kill itself where that line says.
NURSERY = """
import os, signal, sys, time
from pathlib import Path

import httpx2  # this and what it imports late: once, not in every child
from huggingface_hub import HfApi, get_session, hf_hub_url, try_to_load_from_cache

from localspec import download
from localspec.hub import client as hub
from localspec.hub.reference import parse_reference

os.fsync = lambda descriptor: None
hub.ANSWER_SECONDS = hub.CONNECT_SECONDS = hub.STALL_SECONDS = 60.0

def work(limit):
    def progress(name, done, total):
        if done >= limit >= 0:
            os.kill(os.getpid(), signal.SIGKILL)
    model = hub.resolve(parse_reference(sys.argv[1]))
    download.fetch(model, Path(sys.argv[2]), progress, sleep=lambda seconds: time.sleep(0.01))

for line in sys.stdin:
    children = []
    for limit in map(int, line.split()):
        child = os.fork()
        if child == 0:
            work(limit)
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(*codes, flush=True)
"""


class Nursery:
    """Processes that download big.gguf; -1 lets one live, else it is killed at so many bytes."""

    def __init__(self, models: Path) -> None:
        self.models = models
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", NURSERY, "hf:org/repo/big.gguf", models],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *limits: int) -> list[int]:
        assert self._process.stdin and self._process.stdout
        print(*limits, file=self._process.stdin, flush=True)
        return [int(code) for code in self._process.stdout.readline().split()]

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def nursery(hub: FakeHub, tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "models")
    yield nursery
    nursery.close()


def test_a_process_killed_again_and_again(hub: FakeHub, nursery: Nursery) -> None:
    on_hub(hub)
    places = random.Random(3)
    path = nursery.models / "org" / "repo" / "big.gguf"
    part = part_of(nursery.models, MEGABYTE, "big.gguf")
    for kills in range(12):
        came = part.stat().st_size if kills else 0
        # Among the bytes that are read again, among new ones, or at the last one.
        limit = came // 2 if kills % 5 == 4 else came + places.randrange(150_000)
        assert nursery.run(min(limit, len(MEGABYTE))) == [-signal.SIGKILL]
        assert not path.exists() and part.stat().st_size >= came
    assert nursery.run(-1) == [0]
    assert_whole(nursery.models, MEGABYTE, "big.gguf")
    assert len(set(starts(hub))) > 5


def test_two_processes_download_it_once(hub: FakeHub, nursery: Nursery) -> None:
    on_hub(hub)
    assert nursery.run(-1, -1, -1) == [0, 0, 0]
    assert_whole(nursery.models, MEGABYTE, "big.gguf")
    assert hub.served["org/repo/big.gguf"] == len(MEGABYTE)


def test_one_of_two_is_killed(hub: FakeHub, nursery: Nursery) -> None:
    on_hub(hub)
    assert nursery.run(500_000, -1) == [-signal.SIGKILL, 0]
    assert (nursery.models / "org" / "repo" / "big.gguf").read_bytes() == MEGABYTE
    # One that is killed while it looks at the other's file leaves an empty partial file.
    assert nursery.run(-1) == [0]
    assert_whole(nursery.models, MEGABYTE, "big.gguf")


# Downloads over and over into folders in several states, killed at every so many-th line of ours,
# and says what it finds afterwards.
CRASHES = """
import os, signal, sys
from pathlib import Path

from localspec import download
from localspec.hub import client as hub
from localspec.hub import provenance as origin
from localspec.hub import partial_file as part
from localspec.core import files
from localspec.hub.reference import Reference, RemoteFile

OLD, NEW, COMMIT = b"the older version", b"the newer version", "c0ffee" + "0" * 34
ours = {module.__file__ for module in (download, files, origin, part, hub)}
answer = [NEW]
hub.cached = lambda model, file: None
hub.stream = lambda model, file, start, stop: (bytes([b]) for b in answer[0][start:][:6])
os.fsync = lambda descriptor: None

def fetch(folder, data):
    file = RemoteFile("m.gguf", len(data), origin.hashlib.sha256(data).hexdigest())
    model = hub.RemoteModel(Reference("org/repo"), COMMIT, (file,), None)
    return download.fetch(model, folder, lambda *told: None, sleep=lambda seconds: None)[0]

def prepare(state, folder):
    path = folder / "org" / "repo" / "m.gguf"
    if state == "older version":
        answer[0] = OLD
        fetch(folder, OLD)
        answer[0] = NEW
    path.parent.mkdir(parents=True, exist_ok=True)
    if state == "damaged part":
        digest = origin.hashlib.sha256(NEW).hexdigest()[:16]
        path.with_name(f".m.gguf.{digest}.part").write_bytes(b"the older")
    if state == "no record":
        path.write_bytes(NEW)
    return path

def run(folder, last):
    lines = 0
    def count(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename not in ours:
            return None
        lines += event == "line"
        if lines == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return count
    sys.settrace(count)
    fetch(folder, NEW)
    sys.settrace(None)

base, first, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for state in ("nothing", "older version", "damaged part", "no record"):
    last, code = first, -signal.SIGKILL
    while code:
        folder = base / f"{state} {last}"
        path = prepare(state, folder)
        child = os.fork()
        if child == 0:
            run(folder, last)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        there = path.read_bytes() if path.exists() else None
        assert there in {"nothing": (None, NEW), "damaged part": (None, NEW),
                         "older version": (OLD, NEW), "no record": (NEW,)}[state], there
        known = origin.read_record(path)
        if known is not None and known.sha256 == origin.hashlib.sha256(NEW).hexdigest():
            assert there == NEW
        assert fetch(folder, NEW).read_bytes() == NEW
        assert [verdict.state for verdict in origin.verify([folder])] == ["right"]
        left = {name for name in os.listdir(path.parent) if ".origin.json." not in name}
        assert left == {"m.gguf", ".m.gguf.origin.json"}, left
        last += step
    print(state, last // step)
"""


def test_killed_at_any_line(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", CRASHES, tmp_path, "1", "19"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    kills = {state: int(n) for state, n in (k.rsplit(" ", 1) for k in ended.stdout.splitlines())}
    assert len(kills) == 4 and min(kills.values()) >= 5 and sum(kills.values()) > 80


def test_revisions_are_kept_apart(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    other = replace(ONE, reference=Reference("org/repo", revision="refs/pr/3"))
    (main,), (branch,) = heard.fetch(ONE, tmp_path), heard.fetch(other, tmp_path)
    assert branch.parent.name == "repo@refs-pr-3" and main.parent.name == "repo"
    assert downloaded(other.reference, tmp_path) == [branch]
    assert downloaded(ONE.reference, tmp_path) == [main]


def test_a_repository_in_another_case_is_the_same(
    tmp_path: Path, toy: ToyHub, heard: Heard
) -> None:
    (path,) = heard.fetch(ONE, tmp_path)
    other = replace(ONE, reference=Reference("Org/REPO"))
    assert heard.fetch(other, tmp_path) == [path] and toy.starts == [0]
    assert downloaded(other.reference, tmp_path) == [path]
    for revision in ("V1", "v1"):  # two branches
        branch = replace(ONE, reference=Reference("ORG/repo", revision=revision))
        (there,) = heard.fetch(branch, tmp_path)
        assert there == tmp_path / "org" / f"repo@{revision}" / path.name
    path.unlink()
    leave = part_of(tmp_path)
    leave.write_bytes(DATA[:9])
    assert interrupted(Reference("ORG/Repo"), tmp_path) == [path]


def test_wrong_bytes_in_a_cache_are_not_used(
    tmp_path: Path, toy: ToyHub, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = tmp_path / "blobs" / sha256(DATA)
    blob.parent.mkdir()
    blob.write_bytes(DATA[::-1])
    link = tmp_path / "cache" / "model.gguf"
    link.parent.mkdir()
    link.symlink_to(blob)
    monkeypatch.setattr(client, "cached", lambda model, file: link)
    assert heard.fetch(ONE, tmp_path / "models")[0].read_bytes() == DATA
    assert f"{link} is wrong: its sha256 begins with" in heard.notes[0]


def test_parts_of_two_commits_are_no_model(tmp_path: Path, toy: ToyHub, heard: Heard) -> None:
    paths = [tmp_path / "org" / "repo" / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for path, commit in zip(paths, ("a" * 40, "b" * 40), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(DATA)
        sha256 = hashlib.sha256(DATA).hexdigest()
        write_record(path, Provenance("org/repo", "main", commit, path.name, len(DATA), sha256))
    assert downloaded(Reference("org/repo"), tmp_path) is None
    record = read_record(paths[0])
    assert record is not None
    write_record(paths[1], replace(record, path=paths[1].name))
    assert downloaded(Reference("org/repo"), tmp_path) == paths
