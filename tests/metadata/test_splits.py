"""Split models: the parts are found, belong together, and what is missing is named."""

from pathlib import Path

import pytest

from localspec.core.errors import NotAGGUF
from localspec.metadata import splits
from localspec.metadata.byte_reader import open_file
from localspec.metadata.header import StagedHeader, read_header
from tests.support.files.gguf_files import (
    I32,
    U16,
    Tensor,
    Typed,
    gguf_bytes,
    model_keys,
    model_tensors,
    words,
    write_gguf,
)
from tests.support.files.headers import Bytes, refusal, vocab_of

ARCH = {"general.architecture": "llama"}


def write_split(folder: Path, count: int = 3, stem: str = "m", promise: int = 3) -> list[Path]:
    paths = [folder / f"{stem}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1)]
    for number, path in enumerate(paths):
        split: dict[str, object] = {
            "split.no": Typed(U16, number),
            "split.count": Typed(U16, count),
        }
        if number == 0:
            split = model_keys(words(9)) | split | {"split.tensors.count": Typed(I32, promise)}
        write_gguf(path, split, [Tensor(f"t{number}", (8,))] if number or promise > 2 else [])
    return paths


def test_all_parts_are_counted(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    header = read_header(paths[0])
    assert header.paths == tuple(paths) and header.split_count == 3
    assert header.parameters == 24 and [t.name for t in header.tensors] == ["t0", "t1", "t2"]
    assert header.n_bytes == sum(path.stat().st_size for path in paths)
    assert len(vocab_of(header)) == 9


def test_parts_in_capitals(tmp_path: Path) -> None:
    paths = [path.rename(path.with_suffix(".GGUF")) for path in write_split(tmp_path)]
    assert read_header(paths[0]).paths == tuple(paths)
    assert "m-00001-of-00003.GGUF" in refusal(paths[1]).hint


def test_parts_that_another_tool_cut_are_joined_first(tmp_path: Path) -> None:
    whole = gguf_bytes(model_keys(words(9)), [Tensor("t", (8,))])
    for number in (1, 2):
        half = whole[: len(whole) // 2] if number == 1 else whole[len(whole) // 2 :]
        (tmp_path / f"m.gguf.part{number}of2").write_bytes(half)
    for number in (1, 2):
        error = refusal(tmp_path / f"m.gguf.part{number}of2")
        assert "part of a file that another tool cut" in error.message
        assert error.hint.endswith(": `cat m.gguf.part1of2 m.gguf.part2of2 > m.gguf`.")


def test_part_one_may_hold_no_tensors(tmp_path: Path) -> None:
    assert read_header(write_split(tmp_path, promise=2)[0]).parameters == 16


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    error = refusal(write_split(tmp_path)[1])
    assert "part 2 of 3" in error.message and "m-00001-of-00003.gguf" in error.hint


def test_missing_parts_are_listed(tmp_path: Path) -> None:
    paths = write_split(tmp_path, 9, promise=9)
    for path in paths[2:]:
        path.unlink()
    error = refusal(paths[0])
    assert "7 are missing" in error.message and "m-00003-of-00009.gguf" in error.message
    assert "m-00008-of-00009.gguf" not in error.message


def test_a_renamed_first_part(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    other = paths[0].rename(tmp_path / "model.gguf")
    assert "its name does not say so" in refusal(other).message


@pytest.mark.parametrize("count", [0, 1])
def test_a_split_into_one_is_no_split(tmp_path: Path, count: int) -> None:
    keys = ARCH | {"split.count": Typed(U16, count), "split.no": Typed(U16, 0)}
    assert read_header(write_gguf(tmp_path / "a.gguf", keys)).split_count == 1


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    paths[2].write_bytes(paths[1].read_bytes())
    assert "does not say that it is part 3" in refusal(paths[0]).message
    write_split(tmp_path, promise=4)
    assert "promises 4 tensors" in refusal(paths[0]).message
    keys = {"split.no": Typed(U16, 2), "split.count": Typed(U16, 3)}
    write_gguf(paths[2], keys, [Tensor("t1")])
    assert "'t1' twice" in refusal(paths[0]).message
    paths[2].write_bytes(b"GGUF")
    assert str(paths[2]) in refusal(paths[0]).message


def test_as_many_sources_as_the_model_has_parts() -> None:
    part = gguf_bytes(ARCH | {"split.count": 2, "split.no": 0}, model_tensors())
    alone = gguf_bytes(ARCH, model_tensors())
    for sources in ([Bytes(part)], [Bytes(alone), Bytes(alone)]):
        with pytest.raises(NotAGGUF) as caught:
            StagedHeader(sources).whole()
        assert "says that its model has" in caught.value.message


def test_a_part_is_refused_before_the_next_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = write_split(tmp_path, 9, promise=9)
    for other in others:  # as with links to one file, which took memory for each
        other.unlink()
        other.hardlink_to(first)
    read: list[Path] = []

    def opened(path: Path) -> object:
        read.append(path)
        return open_file(path)

    monkeypatch.setattr(splits, "open_file", opened)
    assert "does not say that it is part 2 of 9" in refusal(first).message
    assert read == [first, others[0]]


def test_of_later_parts_only_tensors_are_kept(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    more = {"split.no": Typed(U16, 1), "split.count": Typed(U16, 3), "much": "x" * 9999}
    write_gguf(paths[1], more | {"list": words(9)}, [Tensor("t1")])
    first, *others = splits.read_parts(paths[0])
    assert first.values and first.arrays and first.types
    for part in others:
        assert part.tensors
        assert not (part.values or part.arrays or part.announced or part.types)


def test_all_headers_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_split(tmp_path)
    sizes = [splits.read_part(path).n_header for path in paths]
    assert 0 < sizes[1] == sizes[2] < paths[1].stat().st_size
    monkeypatch.setattr(splits, "MAX_HEADER_BYTES", sum(sizes[1:]))
    assert read_header(paths[0]).split_count == 3
    monkeypatch.setattr(splits, "MAX_HEADER_BYTES", sum(sizes[1:]) - 1)
    error = refusal(paths[0])
    assert "headers over 0 MB" in error.message and str(paths[2]) in error.message


@pytest.mark.parametrize("count", [2, 4])
def test_parts_agree_on_how_many_they_are(tmp_path: Path, count: int) -> None:
    paths = write_split(tmp_path)
    keys = {"split.no": Typed(U16, 1), "split.count": Typed(U16, count)}
    write_gguf(paths[1], keys, [Tensor("t1")])
    assert "does not say that it is part 2 of 3" in refusal(paths[0]).message
