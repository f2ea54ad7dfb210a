"""Weights: a split model whose parts have names in capitals, which llama.cpp would not look for."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.support.files.gguf_files import I32, U16, Typed, write_with_gguf
from tests.support.files.tiny_models import read_all
from tests.support.real_pair import TinyFiles, load_model

pytestmark = pytest.mark.llama


def test_parts_in_capitals_load(tiny: TinyFiles, tmp_path: Path) -> None:
    keys, tensors = read_all(tiny.draft)
    names = list(tensors)
    for number, part in enumerate((names[:4], names[4:])):
        split = {
            "split.no": Typed(U16, number),
            "split.count": Typed(U16, 2),
            "split.tensors.count": Typed(I32, len(names)),
        }
        own = keys if number == 0 else {"general.architecture": keys["general.architecture"]}
        path = tmp_path / f"m-{number + 1:05d}-of-00002.GGUF"
        write_with_gguf(path, {**own, **split}, {name: tensors[name] for name in part})
    rows = []
    for file in (tiny.draft, tmp_path / "m-00001-of-00002.GGUF"):
        with closing(load_model(file)) as model:
            rows.append(model.decode([1, 2, 3], 1)[-1].copy())
    assert np.array_equal(*rows)
