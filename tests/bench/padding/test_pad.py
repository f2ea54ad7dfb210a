"""Padding keeps the function: real llama.cpp computes padded and unpadded models side by side."""

import shutil
import threading
from pathlib import Path
from typing import Any, get_args

import gguf
import numpy as np
import pytest

from localspec.bench.padding.encoder import Quantization
from localspec.bench.padding.layout import Layout, PaddedShape
from localspec.bench.padding.pad import (
    DEMO_DRAFT_SHAPE,
    DEMO_TARGET_SHAPE,
    PaddingSource,
    pad_model,
    padded_copy,
)
from localspec.core.errors import FileProblem, LocalspecError, NotAGGUF
from tests.support.files.gguf_files import write_with_gguf
from tests.support.files.tiny_models import HEAD_DIMENSION, read_all, write_tiny_model
from tests.support.real_pair import load_model

pytestmark = pytest.mark.llama

SOURCE_SHAPE = PaddedShape(embedding=64, heads=1, feed_forward=128, layers=2)
FOURFOLD = PaddedShape(embedding=256, heads=4, feed_forward=512, layers=4)
UNEVEN = PaddedShape(embedding=160, heads=3, feed_forward=224, layers=3)
QUANTIZATIONS = get_args(Quantization)
PROMPT = "The window rattled in the wind, and the cat"

# Where D is not 4 d, 16 d, ..., the norms' factor is no power of two and rounds; now and then a
# key, value or activation is then rounded to its next F16 or Q8_0 neighbour. The greatest
# difference seen, as a share of the largest logit: 0.0013 in F32, 0.0005 in F16, 0.012 in Q4_0,
# none in Q8_0.
ROUNDING = {"F32": 0.005, "F16": 0.005, "Q8_0": 0.04, "Q4_0": 0.04}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("padding") / "tiny.gguf"
    return write_tiny_model(path, seed=5, feed_forward=128)


def greedy(path: Path, count: int = 40) -> tuple[list[int], np.ndarray[Any, Any]]:
    """The greedy tokens after the prompt and all their logit rows, prompt row first."""
    model = load_model(path, ctx_size=256, gpu_layers=0)
    try:
        prompt = model.tokenize(PROMPT, add_special=True, parse_special=True)
        rows = [model.decode(prompt, 1)[0].copy()]
        tokens = [int(rows[-1].argmax())]
        while len(tokens) < count:
            rows.append(model.decode(tokens[-1:], 1)[0].copy())
            tokens.append(int(rows[-1].argmax()))
        return tokens, np.stack(rows)
    finally:
        model.close()


def padded_and_plain(
    source: Path, folder: Path, shape: PaddedShape, quantization: Quantization
) -> tuple[Path, Path]:
    padded, plain = folder / "padded.gguf", folder / "plain.gguf"
    pad_model(source, padded, shape, quantization)
    pad_model(source, plain, SOURCE_SHAPE, quantization)
    return padded, plain


def fields_of(path: Path) -> dict[str, Any]:
    return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_four_times_the_width_keeps_logits_to_the_last_bit(
    source: Path, tmp_path: Path, quantization: Quantization
) -> None:
    padded, plain = padded_and_plain(source, tmp_path, FOURFOLD, quantization)
    tokens, rows = greedy(padded)
    plain_tokens, plain_rows = greedy(plain)
    assert tokens == plain_tokens
    assert np.array_equal(rows, plain_rows)
    assert len(set(tokens)) > 10  # the text wanders, so it could have gone astray


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_any_other_width_keeps_text_and_logits_but_for_rounding(
    source: Path, tmp_path: Path, quantization: Quantization
) -> None:
    padded, plain = padded_and_plain(source, tmp_path, UNEVEN, quantization)
    tokens, rows = greedy(padded)
    plain_tokens, plain_rows = greedy(plain)
    assert tokens == plain_tokens
    difference = np.abs(rows - plain_rows).max() / np.abs(plain_rows).max()
    assert difference < ROUNDING[quantization]


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_every_stored_weight_is_the_sources_or_adds_nothing(
    source: Path, tmp_path: Path, quantization: Quantization
) -> None:
    padded, plain = padded_and_plain(source, tmp_path, UNEVEN, quantization)
    ours = {tensor.name: tensor for tensor in gguf.GGUFReader(padded).tensors}
    for tensor in gguf.GGUFReader(plain).tensors:
        name = tensor.name.replace("blk.1.", "blk.2.")  # the last layer stays last
        big = gguf.quants.dequantize(ours[name].data, ours[name].tensor_type)
        small = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if small.ndim == 1:
            assert ours[name].tensor_type.name == "F32"
            np.testing.assert_allclose(big[:64], small * np.sqrt(64 / 160), rtol=1e-6)
            assert np.all(big[64:] == 1)
            continue
        assert ours[name].tensor_type.name == quantization
        rows, columns = small.shape
        assert np.array_equal(big[:rows, :columns], small)
        assert not big[rows:].any() and not big[:, columns:].any()
    identity = {name: tensor.data for name, tensor in ours.items() if name.startswith("blk.1.")}
    for name, data in identity.items():
        values = gguf.quants.dequantize(data, ours[name].tensor_type)
        silent = name.endswith(("attn_output.weight", "ffn_down.weight"))
        assert np.any(values) != silent


GROUPED = PaddedShape(embedding=1024, heads=16, feed_forward=512, layers=3)


def write_grouped(path: Path, folder: Path) -> Path:
    """A tiny qwen2 as Qwen2.5: two key heads for four query heads, biases, an output matrix."""
    keys, tensors = read_all(
        write_tiny_model(folder / "llama.gguf", seed=7, embedding=256, heads=4, feed_forward=128)
    )
    keys = {key.replace("llama.", "qwen2."): value for key, value in keys.items()}
    keys |= {"general.architecture": "qwen2", "qwen2.attention.head_count_kv": 2}
    rng = np.random.default_rng(3)
    for name in [name for name in tensors if "attn_k." in name or "attn_v." in name]:
        tensors[name] = tensors[name][: 2 * HEAD_DIMENSION]
    for name in [name for name in tensors if name.split(".")[-2] in ("attn_q", "attn_k", "attn_v")]:
        bias = rng.standard_normal(len(tensors[name]), np.float32)
        tensors[name.replace("weight", "bias")] = bias
    tensors["output.weight"] = tensors["token_embd.weight"][::-1].copy()
    return write_with_gguf(path, keys, tensors)


@pytest.mark.parametrize("quantization", ["F16", "Q8_0"])
def test_grouped_heads_with_biases_keep_their_text(
    tmp_path: Path, quantization: Quantization
) -> None:
    """Each group of query heads grows by itself, so that each still has its own key head."""
    source = write_grouped(tmp_path / "grouped.gguf", tmp_path)
    small = PaddingSource.read(source)
    assert (small.layout.key_heads, small.layout.biases, small.layout.tied) == (2, True, False)
    padded, plain = tmp_path / "padded.gguf", tmp_path / "plain.gguf"
    pad_model(source, padded, GROUPED, quantization)
    pad_model(source, plain, small.shape, quantization)
    tokens, rows = greedy(padded)
    plain_tokens, plain_rows = greedy(plain)
    assert tokens == plain_tokens and len(set(tokens)) > 10
    assert np.abs(rows - plain_rows).max() / np.abs(plain_rows).max() < ROUNDING[quantization]


def test_f16_keeps_the_bits_of_its_source(source: Path, tmp_path: Path) -> None:
    pad_model(source, tmp_path / "padded.gguf", FOURFOLD, "F16")
    ours = {
        tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "padded.gguf").tensors
    }
    table = gguf.GGUFReader(source).tensors[0].data
    assert np.array_equal(ours["token_embd.weight"][:, :64].view(np.uint16), table.view(np.uint16))


def test_metadata_is_carried_over_but_for_what_padding_changes(
    source: Path, tmp_path: Path
) -> None:
    pad_model(source, tmp_path / "padded.gguf", UNEVEN, "Q4_0")
    before, after = fields_of(source), fields_of(tmp_path / "padded.gguf")
    changed = {key: after[key] for key in after if before.get(key) != after[key]}
    epsilon = changed.pop("llama.attention.layer_norm_rms_epsilon")
    assert epsilon == pytest.approx(1e-5 * 64 / 160, rel=1e-6)
    assert "padded" in changed.pop("general.description")
    assert {key: value for key, value in changed.items() if not key.startswith("GGUF.")} == {
        "general.name": "Tiny padded to 736K",
        "general.size_label": "736K",
        "general.file_type": 2,
        "general.quantization_version": 2,
        "llama.embedding_length": 160,
        "llama.feed_forward_length": 224,
        "llama.block_count": 3,
        "llama.attention.head_count": 3,
        "llama.attention.head_count_kv": 3,
    }
    assert before.keys() <= after.keys()


def test_the_sources_own_shape_only_converts(source: Path, tmp_path: Path) -> None:
    pad_model(source, tmp_path / "same.gguf", SOURCE_SHAPE, "F16")
    assert fields_of(tmp_path / "same.gguf")["general.name"] == "Tiny"
    same = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "same.gguf").tensors}
    for tensor in gguf.GGUFReader(source).tensors:
        assert np.array_equal(same[tensor.name], tensor.data)


def test_shapes_count_the_parameters_of_the_files(source: Path, tmp_path: Path) -> None:
    pad_model(source, tmp_path / "padded.gguf", UNEVEN, "Q8_0")
    tensors = gguf.GGUFReader(tmp_path / "padded.gguf").tensors
    layout, demo = PaddingSource.read(source).layout, Layout("llama", 4096, 64)
    assert sum(tensor.n_elements for tensor in tensors) == layout.parameters(UNEVEN)
    assert demo.parameters(DEMO_TARGET_SHAPE) == pytest.approx(283e6, rel=0.01)
    assert demo.parameters(DEMO_DRAFT_SHAPE) == pytest.approx(20e6, rel=0.03)


def test_progress_reaches_the_total(source: Path, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    pad_model(source, tmp_path / "p.gguf", UNEVEN, "Q4_0", lambda *pair: heard.append(pair))
    written = [done for done, _ in heard]
    assert written == sorted(written) and len({total for _, total in heard}) == 1
    tensors = gguf.GGUFReader(tmp_path / "p.gguf").tensors
    assert heard[-1] == (heard[-1][1], sum(tensor.n_bytes for tensor in tensors))


def test_an_interrupted_build_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def interrupt(written: int, total: int) -> None:
        if written > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        padded_copy(source, tmp_path / "cache", UNEVEN, "F16", interrupt)
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_builders_at_once_both_end_right(source: Path, tmp_path: Path) -> None:
    both_writing = threading.Barrier(2, timeout=30)
    paths: list[Path] = []

    def build() -> None:
        first = iter([True])

        def wait(written: int, total: int) -> None:
            if next(first, False):
                both_writing.wait()

        paths.append(padded_copy(source, tmp_path / "cache", UNEVEN, "F16", wait))

    builders = [threading.Thread(target=build) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert len(paths) == 2 and list((tmp_path / "cache").iterdir()) == paths[:1]
    pad_model(source, tmp_path / "alone.gguf", UNEVEN, "F16")
    assert paths[0].read_bytes() == (tmp_path / "alone.gguf").read_bytes()


def test_a_damaged_copy_and_old_leftovers_do_not_stay(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "tiny.gguf", seed=1, feed_forward=128)
    cache = tmp_path / "cache"
    copy = padded_copy(source, cache, UNEVEN, "Q8_0")
    whole = copy.read_bytes()
    copy.write_bytes(whole[: len(whole) // 2])
    abandoned = cache / f".{copy.name}.99999999-0123abcd"  # no process has this id
    abandoned.write_bytes(b"")
    assert padded_copy(source, cache, UNEVEN, "Q8_0").read_bytes() == whole
    assert not abandoned.exists()


def test_a_cached_copy_is_kept_and_a_replaced_source_builds_anew(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "tiny.gguf", seed=1, feed_forward=128)
    first = padded_copy(source, tmp_path / "cache", UNEVEN, "Q8_0")
    built = first.stat()
    assert padded_copy(source, tmp_path / "cache", UNEVEN, "Q8_0") == first
    assert first.stat().st_mtime_ns == built.st_mtime_ns
    names = {
        padded_copy(source, tmp_path / "cache", UNEVEN, "Q4_0").name,
        padded_copy(source, tmp_path / "cache", FOURFOLD, "Q8_0").name,
        first.name,
    }
    write_tiny_model(source, seed=2, feed_forward=128)
    names.add(padded_copy(source, tmp_path / "cache", UNEVEN, "Q8_0").name)
    assert len(names) == 4
    assert {path.name for path in (tmp_path / "cache").iterdir()} == names - {first.name}
    assert all(name.startswith("tiny-e") for name in names)


def test_unreadable_sources_and_full_disks_are_told(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileProblem, match="No such file"):
        padded_copy(tmp_path / "none.gguf", tmp_path, FOURFOLD, "F16")
    with pytest.raises(FileProblem, match="There is no file"):
        pad_model(tmp_path / "none.gguf", tmp_path / "out.gguf", FOURFOLD, "F16")
    whole = source.read_bytes()
    for damaged in (b"", b"not a model at all", whole[:40], whole[: len(whole) // 2]):
        (tmp_path / "bad.gguf").write_bytes(damaged)
        with pytest.raises(NotAGGUF):
            pad_model(tmp_path / "bad.gguf", tmp_path / "out.gguf", FOURFOLD, "F16")
    with pytest.raises(LocalspecError, match="could not be written"):
        pad_model(source, tmp_path / "no folder" / "out.gguf", FOURFOLD, "F16")
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(LocalspecError, match=r"needs \d+ MB, and .* has 1 MB left"):
        pad_model(source, tmp_path / "out.gguf", FOURFOLD, "F16")
