"""Drafts made out of targets of every architecture here, loaded and compared by real llama.cpp."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from localspec.core.errors import DraftNotMade, FileProblem, LocalspecError
from localspec.metadata.draft_kind import n_layers
from localspec.metadata.gguf_file import TensorInfo
from localspec.metadata.gguf_writer import NewTensor, copied, write_copy
from localspec.metadata.header import ModelHeader, read_header
from localspec.metadata.splits import read_part
from localspec.pairing import check_pair
from localspec.self_draft.make import (
    LAYERS_KEY,
    MOST_LAYERS,
    SOURCE_KEY,
    kept_tensors,
    make_draft,
    require_model,
    shortened_values,
)
from localspec.self_draft.recipe import KEEP, Recipe
from tests.support.files.architectures.specs import MODELS, NUMBERED
from tests.support.files.gguf_files import Tensor, model_keys, words, write_gguf
from tests.support.files.layers import logits, silenced
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama
Files = Callable[[str], Path]


def make(target: Path, layers: int, output: Path, kind: str = KEEP) -> Path:
    make_draft(read_header(target), Recipe(layers, kind), output)
    return output


def header(
    folder: Path,
    keys: dict[str, object],
    tensors: Sequence[str] = ("token_embd.weight",),
    architecture: str = "step35",
) -> ModelHeader:
    """A model of four layers, unless its keys say otherwise."""
    own = {f"{architecture}.{key}": value for key, value in ({"block_count": 4} | keys).items()}
    content = model_keys(words(300)) | {"general.architecture": architecture} | own
    return read_header(write_gguf(folder / "m.gguf", content, [Tensor(name) for name in tensors]))


def test_what_a_killed_process_left_goes_with_the_next_draft(
    tiny: TinyFiles, tmp_path: Path
) -> None:
    """The quantised file in between too."""
    output = tmp_path / "drafts" / "draft.gguf"
    output.parent.mkdir()
    killed = (
        "import os, signal, sys; from pathlib import Path; from localspec.self_draft import make\n"
        "from localspec.metadata.header import read_header\n"
        "make._copy = lambda *given: os.kill(os.getpid(), signal.SIGKILL)\n"
        "recipe = make.Recipe(1, 'Q8_0')\n"
        "make.make_draft(read_header(Path(sys.argv[1])), recipe, Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", killed, str(tiny.target), str(output)]
    assert subprocess.run(command).returncode == -9
    assert any(path.stat().st_size for path in output.parent.iterdir())
    make(tiny.target, 1, output)
    assert [*output.parent.iterdir()] == [output]


def test_only_tensors_of_later_layers_go(tmp_path: Path) -> None:
    names = ["token_embd.weight", *(f"blk.{i}.a.b.weight" for i in range(5)), "blk.x.weight"]
    assert kept_tensors(header(tmp_path, {}, names), 2) == {*names[:3], "blk.x.weight"}


CHANGES: list[tuple[dict[str, object], dict[str, object]]] = [
    (
        {
            "attention.head_count_kv": [1, 2, 3, 4],
            "flags": [True, False, True, False],
            "scales": [0.5, 1.5, 2.5, 3.5],
            "attention.compress_ratios": [4, 5, 6, 7, 8, 9],
        },
        {
            "attention.head_count_kv": (1, 2, 3),
            "flags": (True, False, True),
            "scales": (0.5, 1.5, 2.5),
            "attention.compress_ratios": (4, 5, 6),
        },
    ),
    (  # not by layer
        {
            "rope.dimension_sections": [1, 2, 3, 4],
            "target_layers": [1, 2, 3, 4],
            "names": ["a", "b", "c", "d"],
            "three": [1, 2, 3],
            "one": 4,
        },
        {},
    ),
    (  # heads go, and lists may count them
        {
            "block_count": 6,
            "nextn_predict_layers": 2,
            "own": [1, 2, 3, 4],
            "every": [1, 2, 3, 4, 5, 6],
        },
        {"nextn_predict_layers": 0, "own": (1, 2, 3), "every": (1, 2, 3)},
    ),
    (
        {"leading_dense_block_count": 2, "hash_layer_count": 4},
        {"leading_dense_block_count": 2, "hash_layer_count": 3},
    ),
]


@pytest.mark.parametrize(("keys", "changed"), CHANGES)
def test_values_by_layer_are_those_of_the_layers_that_stay(
    tmp_path: Path, keys: dict[str, object], changed: dict[str, object]
) -> None:
    values = shortened_values(header(tmp_path, keys), 3)
    assert values.pop("step35.block_count") == 3
    assert {key.removeprefix("step35."): value for key, value in values.items()} == changed


@pytest.mark.parametrize("count", [0, MOST_LAYERS + 1, 2**31])
def test_an_absurd_number_of_layers_is_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(DraftNotMade, match="layers"):
        require_model(header(tmp_path, {"block_count": count}))


@pytest.mark.parametrize("architecture", ["bert", "eagle3", "dream", "gemma4-assistant"])
def test_what_continues_no_text_makes_no_draft(tmp_path: Path, architecture: str) -> None:
    with pytest.raises(DraftNotMade, match="not a model that continues a text"):
        require_model(header(tmp_path, {}, architecture=architecture))


def split(model: Path, folder: Path) -> Path:
    """The same model in parts, the first of which is returned."""
    reader = GGUFReader(model)
    writer = GGUFWriter(folder / "parts.gguf", "llama", split_max_tensors=20)
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(folder.glob("parts-*"))


ALL_NEEDED = "gemma4"  # of its four layers here; the last one alone has full attention
# Four layers of smallthinker would have other windows.
NAMES = [name for name in MODELS | NUMBERED if name not in (ALL_NEEDED, "smallthinker")]
# One of each kind of tensors: attention, windows, experts, heads, states of five kinds.
QUANTIZED = ("llama", "gemma2", "qwen35moe-mtp", "jamba", "mamba2", "rwkv7", "kimi-linear", "lfm2")


@pytest.mark.parametrize("name", NAMES)
def test_the_first_half_says_what_the_target_says_with_the_other_half_silent(
    architecture: Files, tmp_path: Path, name: str, thorough: bool
) -> None:
    """Quantised it says nearly the same."""
    target = architecture(name)
    count = n_layers(read_header(target))
    whole = logits(make(target, count // 2, tmp_path / "draft.gguf"))
    same = silenced(target, range(count // 2, count), tmp_path / "silent.gguf")
    assert np.array_equal(whole, logits(same))
    if thorough or name in QUANTIZED:
        small = make(target, count // 2, tmp_path / "small.gguf", "Q8_0")
        difference = np.abs(logits(small) - whole)
        assert difference.max() > 0 and difference.mean() < 0.25 * np.abs(whole).mean()


@pytest.mark.parametrize(
    ("name", "layers"), [(ALL_NEEDED, 2), ("qwen35", 1), ("nemotron_h", 1), ("llama4", 3)]
)
def test_layers_that_llama_cpp_needs_cannot_go(
    architecture: Files, tmp_path: Path, name: str, layers: int
) -> None:
    """Without them it refuses the file, or aborts in its first pass, which is a child's."""
    with pytest.raises(DraftNotMade, match="does not run it"):
        make(architecture(name), layers, tmp_path / "draft.gguf")
    assert not list(tmp_path.glob("*draft*"))


@pytest.mark.parametrize("name", ["llama", "qwen35-mtp", "nemotron_h", "step35-mtp3", "apertus"])
def test_all_layers_as_they_are_say_the_same(
    architecture: Files, tmp_path: Path, name: str
) -> None:
    target = architecture(name)
    draft = make(target, n_layers(read_header(target)), tmp_path / "draft.gguf")
    assert np.array_equal(logits(draft), logits(target))


def test_heads_are_dropped(architecture: Files, tmp_path: Path) -> None:
    draft = read_header(make(architecture("step35-mtp3"), 2, tmp_path / "draft.gguf"))
    assert draft.get("nextn_predict_layers") == 0
    assert draft.get("leading_dense_block_count") == 1
    assert draft.get("attention.sliding_window_pattern") == (True, True)
    assert not [tensor for tensor in draft.tensors if "nextn" in tensor.name]


@pytest.mark.parametrize("kind", [KEEP, "Q8_0", "Q4_0"])
def test_the_bundled_target_becomes_a_draft_of_itself(
    demo_files: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    target = read_header(demo_files[0])
    draft = read_header(make(demo_files[0], 3, tmp_path / "draft.gguf", kind))
    words = "the first 3 of 6 layers" + ("" if kind == KEEP else f" in {kind}")
    assert draft.name == f"{target.name} draft: {words}"
    assert draft.values[LAYERS_KEY] == (0, 1, 2)
    assert draft.values[SOURCE_KEY] == target.name
    assert draft.quantization == (target.quantization if kind == KEEP else kind)
    assert check_pair(target, draft).compatible
    assert draft.chat_template == target.chat_template
    tokenizer = {key for key in target.values if key.startswith("tokenizer.")}
    assert all(draft.values[key] == target.values[key] for key in tokenizer)
    assert sorted(path.name for path in tmp_path.glob("*draft*")) == ["draft.gguf"]


@pytest.mark.parametrize("kind", [KEEP, "Q8_0"])
def test_a_split_target_gives_one_file(
    demo_files: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    parts = read_header(split(demo_files[0], tmp_path))
    assert parts.split_count == 3
    draft = tmp_path / "draft.gguf"
    make_draft(parts, Recipe(3, kind), draft)
    assert not [key for key in read_header(draft).values if key.startswith("split.")]
    whole = make(demo_files[0], 3, tmp_path / "whole.gguf", kind)
    assert np.array_equal(logits(draft), logits(whole))


def test_a_draft_replaces_a_draft_and_nothing_else(tiny: TinyFiles, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(tiny.target.read_bytes())
    draft = make(target, 2, tmp_path / "draft.gguf")
    make(target, 1, draft)
    assert read_header(draft).block_count == 1
    for other in (b"", b"a letter", tiny.draft.read_bytes()):
        place = tmp_path / "other.gguf"
        place.write_bytes(other)
        with pytest.raises(FileProblem, match="not a draft made by localspec"):
            make(target, 1, place)
        assert place.read_bytes() == other
    link = tmp_path / "link.gguf"
    link.hardlink_to(target)
    with pytest.raises(FileProblem, match="the target itself"):
        make(target, 1, link)
    assert target.read_bytes() == tiny.target.read_bytes()


@pytest.mark.parametrize("kind", [KEEP, "Q4_0"])
def test_no_file_is_left_of_what_was_interrupted(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def press(part: object, tensor: TensorInfo) -> NewTensor:
        def pieces() -> Iterator[bytes]:
            yield bytes(4)
            raise KeyboardInterrupt

        return NewTensor(tensor, pieces())

    monkeypatch.setattr("localspec.self_draft.make.copied", press)
    with pytest.raises(KeyboardInterrupt):
        make(tiny.target, 1, tmp_path / "draft.gguf", kind)
    assert not list(tmp_path.glob("*draft*"))


def test_a_full_disk_is_told_beforehand(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    for kind in (KEEP, "Q4_0"):
        with pytest.raises(LocalspecError, match="The draft needs"):
            make(tiny.target, 1, tmp_path / "draft.gguf", kind)


def test_what_cannot_be_written_is_told(tiny: TinyFiles, tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="no folder"):
        make(tiny.target, 1, tmp_path / "nowhere" / "draft.gguf")
    with pytest.raises(FileProblem, match="not a draft made by localspec"):
        make(tiny.target, 1, tmp_path)


@pytest.mark.parametrize("kind", [KEEP, "Q8_0"])
@pytest.mark.parametrize(
    "keys",
    [
        {"block_count": 500},
        {"attention.head_count_kv": [2] * 7},
        {"feed_forward_length": [96] * 3},
        {"feed_forward_length": [0, 1]},
        {"leading_dense_block_count": 2**31},
        {"embedding_length": 0},
        {"rope.dimension_sections": [0, 0]},
    ],
)
def test_a_damaged_target_gives_an_error_and_no_file(
    tiny: TinyFiles, tmp_path: Path, keys: dict[str, Any], kind: str
) -> None:
    damaged = tmp_path / "damaged.gguf"
    values = {f"llama.{k}": tuple(v) if isinstance(v, list) else v for k, v in keys.items()}
    whole = read_part(tiny.target)
    write_copy(damaged, whole, values, [copied(whole, tensor) for tensor in whole.tensors])
    try:
        make(damaged, 1, tmp_path / "draft.gguf", kind)
    except LocalspecError:
        assert not list(tmp_path.glob("*draft*"))
    else:  # what llama.cpp does not mind
        assert np.isfinite(logits(tmp_path / "draft.gguf")).all()


def test_a_draft_that_does_not_load_is_removed_and_the_reason_told(
    architecture: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.self_draft.make.shortened_values", lambda header, layers: {})
    with pytest.raises(DraftNotMade, match="does not run it: .*blk.2"):
        make(architecture("llama"), 2, tmp_path / "draft.gguf")
    assert not list(tmp_path.glob("*draft*"))


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (Recipe(8), "all 8 layers"),
        (Recipe(8, "Q4_0"), "all 8 layers in Q4_0"),
        (Recipe(3, "Q2_K"), "the first 3 of 8 layers in Q2_K"),
        (Recipe(1, vocab=32768), "the first 1 of 8 layers, 32,768 output rows"),
    ],
)
def test_a_recipe_is_described(recipe: Recipe, words: str) -> None:
    assert recipe.describe(8) == words
