"""Pair files: one for the same models, options and machine; damaged parts are ignored."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core import machine
from localspec.engine.loading.pair_file import (
    ModelFile,
    PairFile,
    files_of,
    found_of,
    open_pair_file,
)
from localspec.llama import llama_library
from localspec.metadata.header import read_header
from tests.support.real_pair import TinyFiles, options

pytestmark = pytest.mark.llama


def model(path: Path, **changes: object) -> ModelFile:
    return ModelFile(read_header(path), options(path, **changes))


def test_another_file_or_option_has_another_file(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = model(tiny.target), model(tiny.draft)
    here = open_pair_file(target, draft).path
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(tiny.target.read_bytes())
    same = [model(moved), model(tiny.target, branches=3), model(tiny.target, mlock=True)]
    assert {open_pair_file(each, draft).path for each in same} == {here}
    others = [
        open_pair_file(model(tiny.target, threads=7), draft),
        open_pair_file(target, model(tiny.draft, gpu_layers=1)),
        open_pair_file(model(tiny.target, ctx_size=64), draft),
        open_pair_file(draft, target),
        open_pair_file(target),
    ]
    moved.write_bytes(tiny.target.read_bytes() + b"\0")
    others.append(open_pair_file(model(moved), draft))
    for module, name in ((machine, "cpu_name"), (llama_library, "identity")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda: "other")
            others.append(open_pair_file(target, draft))
    assert len({here, *(file.path for file in others)}) == 1 + len(others)
    long = [model(tiny.target, ctx_size=size) for size in (4096, 8192)]
    assert len({open_pair_file(each).path for each in long}) == 1


def test_a_file_written_again_is_tried_again_and_keeps_what_was_learnt(
    tiny: TinyFiles, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny.target.read_bytes())
    file = open_pair_file(model(copy))
    file.update(tried=[1], profile={"reading": 1})
    assert open_pair_file(model(copy)).parts["tried"] == [1]
    os.utime(copy, (1, 1))
    again = open_pair_file(model(copy)).parts
    assert again["tried"] == [] and again["profile"] == {"reading": 1}


def test_other_layers_on_a_device_have_other_costs() -> None:
    file = PairFile()
    file.update(profile={})
    for layers, moved in (([None, None], False), ([4, None], True), ([4, None], False)):
        file.place(layers)
        assert file.has_moved == moved
    file.is_new = True  # measured with the layers of this start
    file.place([5, None])
    assert not file.has_moved


def test_damage_is_told_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pairs" / "x.json"
    assert PairFile(path).problem is None
    path.parent.mkdir()
    for damage in ("", "{", "3", "[1]", "[" * 99_999, "9" * 2**21):
        path.write_text(damage)
        file = PairFile(path)
        assert file.problem is not None and file.parts == {}
    file.update(tried=[])
    assert json.loads(path.read_text()) == {"tried": []} and PairFile(path).problem is None


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = PairFile(tmp_path / "file" / "x.json")
    file.update(tried=[1])
    assert file.parts == {"tried": [1]}


def test_files_of_a_model_are_found(tiny: TinyFiles) -> None:
    target, draft = model(tiny.target), model(tiny.draft)
    pair, alone = open_pair_file(target, draft), open_pair_file(target)
    for file in (pair, alone):
        file.update(tried=[])
    assert files_of(draft.header) == [pair.path]
    assert files_of(target.header) == sorted([pair.path, alone.path])
    other = replace(target.options, threads=9)
    newest = open_pair_file(ModelFile(target.header, other), draft)
    newest.update(tried=[2])
    os.utime(pair.path, (1, 1))
    found = [parts["tried"] for parts in found_of([target.header, draft.header])]
    assert found == [[2], []]
