"""Drafts made out of targets of every architecture here, loaded and compared by real llama.cpp."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from localspec.core.errors import DraftNotMade, FileProblem, LocalspecError
from localspec.metadata.header import read_header
from localspec.pairing import check_pair
from localspec.self_draft.recipe import KEEP, Recipe
from localspec.self_draft.writing.layers import Removable, removable
from localspec.self_draft.writing.make import LAYERS_KEY, SOURCE_KEY, make_draft
from localspec.self_draft.writing.writer import write_copy
from tests.support.architectures.specs import MODELS, NUMBERED
from tests.support.layers import logits, silenced
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama
Files = Callable[[str], Path]


def make(target: Path, layers: Sequence[int], output: Path, kind: str = KEEP) -> Path:
    make_draft(read_header(target), Recipe(tuple(layers), kind), output)
    return output


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


# Periods of layers; the others have none.
GROUPS = {name: 2 for name in MODELS if name.startswith(("qwen35", "qwen3next"))} | {
    "gemma2": 2,
    "gemma3": 6,
    "cohere2": 4,
    "olmo2": 4,
    "gpt-oss": 2,
    "smollm3": 4,
    "llama4": 4,
}
# Layers of a kind that is needed, where the first half or the middle has none.
NEEDED = {"gemma4": {3}, "nemotron_h": {1}, "nemotron_h_moe": {1}, "nemotron_h_moe-mtp": {1}}
WHOLE = ["smallthinker"]  # of which no layer may go
NAMES = [name for name in MODELS | NUMBERED if name not in WHOLE]


def first_half(found: Removable) -> list[int]:
    """Or as many of the first layers as are needed."""
    counts = range(found.n_layers // 2, found.n_layers + 1)
    return next(list(range(n)) for n in counts if found.problem(range(n)) is None)


def without_the_middle(found: Removable) -> list[int]:
    """Without a group from the middle, or from the first place behind it that allows it."""
    for start in range(max(1, (found.n_layers - found.group) // 2), found.n_layers):
        gone = range(start, start + found.group)
        kept = [i for i in range(found.n_layers) if i not in gone]
        if found.problem(kept) is None:
            return kept
    raise AssertionError("nothing but the end may go")


@pytest.mark.parametrize("name", NAMES)
def test_what_may_go_is_known(architecture: Files, name: str) -> None:
    found = removable(read_header(architecture(name)))
    assert (found.may_go, found.group) == ("any", GROUPS.get(name, 1))
    assert found.n_layers == (8 if name in NUMBERED else 4)
    if name in NEEDED:
        assert NEEDED[name] in found.needed


@pytest.mark.parametrize("name", WHOLE)
def test_of_others_no_layer_may_go(architecture: Files, tmp_path: Path, name: str) -> None:
    header = read_header(architecture(name))
    assert removable(header).may_go == "none"
    with pytest.raises(DraftNotMade, match="cannot be left out"):
        make_draft(header, Recipe((0, 1)), tmp_path / "draft.gguf")
    whole = make(architecture(name), range(header.block_count or 0), tmp_path / "whole.gguf")
    assert np.array_equal(logits(whole), logits(architecture(name)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("choose", [first_half, without_the_middle])
def test_it_says_what_the_target_says_with_the_missing_layers_silent(
    architecture: Files, tmp_path: Path, name: str, choose: Callable[[Removable], list[int]]
) -> None:
    target = architecture(name)
    found = removable(read_header(target))
    kept = choose(found)
    draft = make(target, kept, tmp_path / "draft.gguf")
    gone = set(range(found.n_layers)) - set(kept)
    assert np.array_equal(logits(draft), logits(silenced(target, gone, tmp_path / "silent.gguf")))


@pytest.mark.parametrize("name", NAMES)
def test_a_quantized_half_decodes(architecture: Files, tmp_path: Path, name: str) -> None:
    target = architecture(name)
    half = first_half(removable(read_header(target)))
    small = make(target, half, tmp_path / "small.gguf", "Q8_0")
    whole = logits(make(target, half, tmp_path / "whole.gguf"))
    difference = logits(small) - whole
    assert np.abs(difference).max() > 0
    assert np.abs(difference).mean() < 0.25 * np.abs(whole).mean()


@pytest.mark.parametrize("name", [name for name in GROUPS if GROUPS[name] > 1] + WHOLE)
def test_layers_that_may_not_go_would_have_changed_the_others(
    architecture: Files, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no architecture is in the tables without need."""
    monkeypatch.setattr("localspec.self_draft.writing.make.require_removable", lambda *_: None)
    target = architecture(name)
    count = removable(read_header(target)).n_layers
    kept = list(range(4)) if name in WHOLE else [0, *range(2, count)]
    try:
        draft = make(target, kept, tmp_path / "draft.gguf")
    except DraftNotMade:
        return
    gone = set(range(count)) - set(kept)
    same = silenced(target, gone, tmp_path / "silent.gguf")
    assert np.abs(logits(draft) - logits(same)).max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "qwen35-mtp", "nemotron_h", "step35-mtp3", "apertus"])
def test_all_layers_as_they_are_say_the_same(
    architecture: Files, tmp_path: Path, name: str
) -> None:
    target = architecture(name)
    count = removable(read_header(target)).n_layers
    draft = make(target, range(count), tmp_path / "draft.gguf")
    assert np.array_equal(logits(draft), logits(target))


def test_heads_are_dropped(architecture: Files, tmp_path: Path) -> None:
    draft = read_header(make(architecture("step35-mtp3"), range(2), tmp_path / "draft.gguf"))
    assert draft.get("nextn_predict_layers") == 0
    assert draft.get("leading_dense_block_count") == 1
    assert draft.get("attention.sliding_window_pattern") == (True, True)
    assert not [tensor for tensor in draft.tensors if "nextn" in tensor.name]


@pytest.mark.parametrize("kind", [KEEP, "Q8_0", "Q4_0"])
def test_the_bundled_target_becomes_a_draft_of_itself(
    demo_files: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    target = read_header(demo_files[0])
    told: list[tuple[int, int]] = []
    output = tmp_path / "draft.gguf"
    make_draft(target, Recipe((0, 1, 2), kind), output, lambda *told_now: told.append(told_now))
    draft = read_header(output)
    words = "the first 3 of 6 layers" + ("" if kind == KEEP else f" in {kind}")
    assert draft.name == f"{target.name} draft: {words}"
    assert draft.values[LAYERS_KEY] == (0, 1, 2)
    assert draft.values[SOURCE_KEY] == target.name
    assert draft.quantization == (target.quantization if kind == KEEP else kind)
    assert told == [(n, len(draft.tensors)) for n in range(1, len(draft.tensors) + 1)]
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
    make_draft(parts, Recipe((0, 1, 5), kind), draft)
    assert not [key for key in read_header(draft).values if key.startswith("split.")]
    whole = make(demo_files[0], (0, 1, 5), tmp_path / "whole.gguf", kind)
    assert np.array_equal(logits(draft), logits(whole))


def test_a_draft_replaces_a_draft_and_nothing_else(tiny: TinyFiles, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(tiny.target.read_bytes())
    draft = make(target, (0, 1), tmp_path / "draft.gguf")
    make(target, (0,), draft)
    assert read_header(draft).block_count == 1
    for other in (b"", b"a letter", tiny.draft.read_bytes()):
        place = tmp_path / "other.gguf"
        place.write_bytes(other)
        with pytest.raises(FileProblem, match="no draft made by localspec"):
            make(target, (0,), place)
        assert place.read_bytes() == other
    link = tmp_path / "link.gguf"
    link.hardlink_to(target)
    with pytest.raises(FileProblem, match="the target itself"):
        make(target, (0,), link)
    assert target.read_bytes() == tiny.target.read_bytes()


def test_no_file_is_left_of_what_did_not_come_to_its_end(tiny: TinyFiles, tmp_path: Path) -> None:
    def press(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for kind in (KEEP, "Q4_0"):
        with pytest.raises(KeyboardInterrupt):
            make_draft(read_header(tiny.target), Recipe((0,), kind), tmp_path / "draft.gguf", press)
    assert not list(tmp_path.glob("*draft*"))


def test_a_full_disk_is_told_beforehand(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    for kind in (KEEP, "Q4_0"):
        with pytest.raises(LocalspecError, match="The draft needs"):
            make(tiny.target, (0,), tmp_path / "draft.gguf", kind)


def test_what_cannot_be_written_is_told(tiny: TinyFiles, tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="no folder"):
        make(tiny.target, (0,), tmp_path / "nowhere" / "draft.gguf")
    with pytest.raises(FileProblem, match="no draft made by localspec"):
        make(tiny.target, (0,), tmp_path)


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
    whole = read_header(tiny.target)
    write_copy(whole.paths, damaged, {t.name: t.name for t in whole.tensors}, values)
    try:
        make(damaged, (0,), tmp_path / "draft.gguf", kind)
    except LocalspecError:
        assert not list(tmp_path.glob("*draft*"))
    else:  # what llama.cpp does not mind
        assert np.isfinite(logits(tmp_path / "draft.gguf")).all()


def test_a_draft_that_does_not_load_is_removed_and_the_reason_told(
    architecture: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.self_draft.writing.make.new_values", lambda header, layers: {})
    with pytest.raises(DraftNotMade, match="does not run it: .*blk.2"):
        make(architecture("llama"), (0, 1), tmp_path / "draft.gguf")
    assert not list(tmp_path.glob("*draft*"))


@pytest.mark.parametrize("name", ["glm4moe", "step35", "qwen3next"])
def test_without_its_first_layers_a_mixture_has_fewer_dense_ones(
    architecture: Files, tmp_path: Path, name: str
) -> None:
    target = architecture(name)
    group = removable(read_header(target)).group
    draft = make(target, range(group, 4), tmp_path / "draft.gguf")
    assert read_header(draft).get("leading_dense_block_count") == 0
    same = silenced(target, range(group), tmp_path / "silent.gguf")
    assert np.array_equal(logits(draft), logits(same))
