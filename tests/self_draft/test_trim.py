"""Trimming files: what is copied, what is proved, what is refused, and nothing left behind."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from localspec.core.errors import FileProblem, IncompatiblePair
from localspec.llama import llama_library
from localspec.metadata.gguf_file import TensorInfo
from localspec.metadata.header import ModelHeader, read_header
from localspec.metadata.trimmed import EMBEDDING
from localspec.metadata.vocab import Vocab
from localspec.self_draft import trim
from localspec.self_draft.trim import require_trimmable, trim_vocabulary
from tests.support.files.architectures.specs import MODELS, N_VOCAB
from tests.support.files.tiny_models import copy_with
from tests.support.real_pair import TinyFiles, retuned

pytestmark = pytest.mark.llama

KEPT = range(0, N_VOCAB, 4)
TRIMMABLE = [name for name in MODELS if not name.startswith("glm4moe") and "-mtp" not in name]


@pytest.fixture
def pair(tiny: TinyFiles) -> tuple[ModelHeader, ModelHeader]:
    """A draft and its target."""
    return read_header(tiny.draft), read_header(tiny.target)


def test_what_is_written(pair: tuple[ModelHeader, ModelHeader], tmp_path: Path) -> None:
    path = tmp_path / "trimmed.gguf"
    trim_vocabulary(*pair, KEPT, path)
    header = read_header(path)
    assert header.trimmed is not None and header.trimmed.ids.tolist() == list(KEPT)
    assert header.trimmed.size == N_VOCAB and header.vocab is not None
    assert header.vocab.type == "NONE" and header.chat_template is None
    assert header.name == pair[0].name and header.context_length == pair[0].context_length
    old, new = ({t.name: t.data for t in GGUFReader(each).tensors} for each in (pair[0].path, path))
    table = old.pop("token_embd.weight")
    np.testing.assert_array_equal(new.pop("token_embd.weight"), table[list(KEPT)])
    assert old.keys() == new.keys()
    assert all(old[name].tobytes() == new[name].tobytes() for name in old)
    assert path.read_bytes()[-header.trimmed.table_bytes :] == table.tobytes()


@pytest.mark.parametrize("name", TRIMMABLE)
def test_architectures_of_today(
    architecture: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    header = read_header(architecture(name))
    trim_vocabulary(header, header, KEPT, tmp_path / "a.gguf")
    trimmed = read_header(tmp_path / "a.gguf").trimmed
    assert trimmed is not None and trimmed.table is not None
    assert trimmed.table.scale == (8.0 if name == "gemma4" else 1.0)  # the root of its width


def test_what_differs_is_refused_and_not_kept(
    pair: tuple[ModelHeader, ModelHeader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scale in (1.5, float("nan")):
        monkeypatch.setattr(trim, "_scale", lambda source, scale=scale: scale)
        with pytest.raises((IncompatiblePair, FileProblem)):
            trim_vocabulary(*pair, KEPT, tmp_path / "a.gguf")
        assert not list(tmp_path.glob("*.gguf")) and not list(tmp_path.glob(".a*"))


def test_interrupted_it_leaves_nothing(
    pair: tuple[ModelHeader, ModelHeader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(source: ModelHeader, trimmed: ModelHeader) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(trim, "_error", press)
    with pytest.raises(KeyboardInterrupt):
        trim_vocabulary(*pair, KEPT, tmp_path / "a.gguf")
    assert not list(tmp_path.glob("*.gguf")) and not list(tmp_path.glob(".a*"))


def test_ids_that_cannot_be_kept(pair: tuple[ModelHeader, ModelHeader], tmp_path: Path) -> None:
    for ids in ([], [-1, 5], [5, N_VOCAB], range(N_VOCAB)):
        with pytest.raises(IncompatiblePair, match="cannot be kept"):
            trim_vocabulary(*pair, ids, tmp_path / "a.gguf")
    trim_vocabulary(*pair, [9, 5, 5], tmp_path / "a.gguf")
    trimmed = read_header(tmp_path / "a.gguf").trimmed
    assert trimmed is not None and trimmed.ids.tolist() == [5, 9]


def test_a_draft_of_another_vocabulary(
    pair: tuple[ModelHeader, ModelHeader], tmp_path: Path
) -> None:
    other = tmp_path / "draft.gguf"
    other.write_bytes(pair[0].path.read_bytes())
    with pytest.raises(IncompatiblePair, match="cannot draft for"):
        trim_vocabulary(read_header(retuned(other)), pair[1], KEPT, tmp_path / "a.gguf")


def test_the_ids_are_below_both_vocabularies(
    pair: tuple[ModelHeader, ModelHeader], tmp_path: Path
) -> None:
    """A target may have fewer tokens than its draft, which then reads some that never come."""
    draft, target = pair
    assert isinstance(target.vocab, Vocab)
    shorter = replace(target.vocab, tokens=target.vocab.tokens[:-2])
    tensors = tuple(
        replace(each, shape=(each.shape[0], len(shorter))) if each.name == EMBEDDING else each
        for each in target.tensors
    )
    fewer = replace(target, vocab=shorter, tensors=tensors)
    with pytest.raises(IncompatiblePair, match="cannot be kept"):
        trim_vocabulary(draft, fewer, [1, N_VOCAB - 1], tmp_path / "a.gguf")


def with_tensor(
    header: ModelHeader, name: str, shape: tuple[int, ...], n_bytes: int = 4
) -> ModelHeader:
    """The header with another tensor in it."""
    return replace(header, tensors=(*header.tensors, TensorInfo(name, shape, 0, "F32", 0, n_bytes)))


def test_a_number_in_a_tensor_is_no_row(pair: tuple[ModelHeader, ModelHeader]) -> None:
    require_trimmable(with_tensor(pair[0], "output.scale", ()), pair[1], 5)


def test_what_has_no_trimmable_vocabulary(
    pair: tuple[ModelHeader, ModelHeader],
    architecture: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    draft, target = pair
    trim_vocabulary(draft, target, KEPT, tmp_path / "once.gguf")
    once = read_header(tmp_path / "once.gguf")
    glm = read_header(architecture("glm4moe"))
    copied = copy_with(
        draft.path,
        tmp_path / "layers.gguf",
        tensors={"per_layer_token_embd.weight": np.zeros((N_VOCAB, 32), np.float32)},
    )
    keys = {key.replace("llama.", "graniteswitch."): value for key, value in draft.values.items()}
    graniteswitch = replace(draft, architecture="graniteswitch", values=keys)
    cases = [
        (once, target, "draft with a trimmed vocabulary"),
        (glm, glm, "ids of tokens only"),
        (graniteswitch, target, "ids of tokens only"),
        (with_tensor(draft, "output.weight", (64, 5)), target, "output.weight has no row for each"),
        (with_tensor(draft, "output.bias", (N_VOCAB,), 1), target, "output.bias has no row"),
        (replace(draft, split_count=2), target, "split into several"),
        (read_header(copied), target, "per_layer_token_embd.weight has a row for each"),
    ]
    for source, big, words in cases:
        with pytest.raises(IncompatiblePair, match=words):
            trim_vocabulary(source, big, KEPT, tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()


def test_a_folder_that_is_not_there(pair: tuple[ModelHeader, ModelHeader], tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="cannot be written"):
        trim_vocabulary(*pair, KEPT, tmp_path / "nowhere" / "a.gguf")


def test_llama_cpp_knows_the_architectures_of_the_tables() -> None:
    """A misspelled name would let a model through that is to be refused."""
    texts = Path(llama_library.library()._lib._name).read_bytes()
    names = trim._NEED_IDS | trim._SCALED
    assert [name for name in sorted(names) if name.encode() + b"\0" not in texts] == []
