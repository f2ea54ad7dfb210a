"""A hybrid with an MTP head keeps its function too: llama.cpp computes both, trunk and head."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import gguf
import numpy as np
import pytest

from localspec.bench.padding.encoder import Quantization
from localspec.bench.padding.layout import PaddedShape
from localspec.bench.padding.pad import DEMO_HYBRID_SHAPE, pad_model
from localspec.bench.padding.source import PaddingSource
from localspec.core import paths
from localspec.metadata.header import read_header

pytestmark = pytest.mark.llama

OWN = PaddedShape(embedding=320, heads=5, feed_forward=512, layers=6)
UNEVEN = PaddedShape(embedding=480, heads=7, feed_forward=608, layers=9)
IDS = np.random.default_rng(3).integers(3, 4096, 70).tolist()

# The greatest difference seen, as a share of the largest logit: 5e-7 in F32, 0.0005 in F16, 0.017
# in Q4_0, none in Q8_0; see test_pad.py. With another epsilon in the norms of heads it is 3e-4 in
# F32.
ROUNDING = {"F32": 1e-5, "F16": 0.005, "Q8_0": 0.04, "Q4_0": 0.06}


@pytest.fixture(scope="module")
def source() -> Path:
    return paths.demo_hybrid()


@pytest.mark.parametrize("quantization", get_args(Quantization))
def test_trunk_and_head_say_the_same_but_for_rounding(
    source: Path, tmp_path: Path, quantization: Quantization
) -> None:
    from scripts.train_demo_models.hybrid.file_logits import file_logits

    logits = []
    for name, shape in (("padded", UNEVEN), ("plain", OWN)):
        pad_model(source, tmp_path / name, shape, quantization)
        logits.append(file_logits(tmp_path / name, IDS))
    for padded, plain in zip(*logits, strict=True):
        difference = np.abs(padded - plain).max() / np.abs(plain).max()
        print(quantization, difference)
        assert difference < ROUNDING[quantization]
        assert len(set(plain.argmax(-1))) > 10  # it does not always say the same token


def test_more_tokens_say_nothing(source: Path, tmp_path: Path) -> None:
    """Unused ones have the logit 0, below that of what is likely."""
    from scripts.train_demo_models.hybrid.file_logits import file_logits

    for name, shape in (("padded", replace(OWN, vocabulary=5000)), ("plain", OWN)):
        pad_model(source, tmp_path / name, shape, "F16")
    vocab, own = (read_header(tmp_path / name).vocab for name in ("padded", "plain"))
    assert vocab is not None and own is not None and vocab.texts()[:4096] == own.texts()
    assert (len(vocab), vocab.tokens[4999], vocab.token_type(4999)) == (5000, b"<|unused_4999|>", 5)
    many, few = (file_logits(tmp_path / name, IDS) for name in ("padded", "plain"))
    for padded, plain in zip(many, few, strict=True):
        np.testing.assert_allclose(padded[..., :4096], plain, atol=0.005 * np.abs(plain).max())
        assert not padded[..., 4096:].any() and (plain.max(-1) > 0).all()


def test_parts_and_periods_stay_where_they_belong(source: Path, tmp_path: Path) -> None:
    pad_model(source, tmp_path / "padded.gguf", UNEVEN, "F16")
    small, large = (
        {t.name: t.data for t in gguf.GGUFReader(path).tensors}
        for path in (source, tmp_path / "padded.gguf")
    )
    inner, outer = 5 * 64, 7 * 64
    for part in range(3):  # queries, keys, values
        ours = large["blk.0.attn_qkv.weight"][part * outer : (part + 1) * outer]
        theirs = small["blk.0.attn_qkv.weight"][part * inner : (part + 1) * inner]
        assert np.array_equal(ours[:inner, :320], theirs)
        assert not ours[inner:].any() and not ours[:, 320:].any()
        channels = large["blk.0.ssm_conv1d.weight"][part * outer :][:inner]
        expected = small["blk.0.ssm_conv1d.weight"][part * inner :][:inner]
        assert np.array_equal(channels, expected)
    join, original = (m[f"blk.{i}.nextn.eh_proj.weight"] for m, i in ((large, 9), (small, 6)))
    for part in range(2):  # embedding, hidden state
        ours = join[:320, part * 480 : part * 480 + 320]
        assert np.array_equal(ours, original[:, part * 320 : (part + 1) * 320])
    for full, own in ((2, 2), (8, 5)):  # full attention; layers 3 to 5 are identities
        norm = f"blk.{own}.attn_q_norm.weight"
        assert np.array_equal(large[f"blk.{full}.attn_q_norm.weight"], small[norm])
    for layer in (3, 4):
        assert not large[f"blk.{layer}.ssm_out.weight"].any()
        assert large[f"blk.{layer}.attn_qkv.weight"].any()
    assert not large["blk.5.attn_output.weight"].any()


def test_the_header_tells_the_new_sizes(source: Path, tmp_path: Path) -> None:
    pad_model(source, tmp_path / "padded.gguf", UNEVEN, "Q4_0")
    reader = gguf.GGUFReader(tmp_path / "padded.gguf")
    fields = {key: field.contents() for key, field in reader.fields.items()}
    sizes = {
        "embedding_length": 480,
        "block_count": 10,
        "nextn_predict_layers": 1,
        "full_attention_interval": 3,
        "attention.head_count": 7,
        "attention.head_count_kv": 7,
        "attention.key_length": 64,
        "ssm.time_step_rank": 7,
        "ssm.group_count": 7,
        "ssm.inner_size": 448,
        "ssm.state_size": 64,
    }
    assert {key: fields[f"qwen35.{key}"] for key in sizes} == sizes
    layout = PaddingSource.read(source).layout
    assert sum(t.n_elements for t in reader.tensors) == layout.parameters(UNEVEN)
    assert layout.parameters(DEMO_HYBRID_SHAPE) == pytest.approx(281e6, rel=0.01)
