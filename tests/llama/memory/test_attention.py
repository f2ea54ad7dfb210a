"""Flash attention: the rule, and what a context without it computes and allocates."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.core.options.load_options import BATCH, LoadOptions
from localspec.llama.memory.attention import choose_attention, score_bytes, with_attention
from localspec.metadata.header import ModelHeader, read_header
from tests.support.real_pair import TinyFiles, load_model, random_ids

ANY = LoadOptions(Path("model.gguf"))


@pytest.fixture
def header(demo_files: tuple[Path, Path]) -> ModelHeader:
    return read_header(demo_files[0])


@pytest.mark.parametrize(
    ("changes", "ctx_size", "on_device", "flash", "reason"),
    [
        ({}, 8192, False, False, "on a CPU"),
        ({}, 513, False, False, "on a CPU"),
        ({}, 512, False, True, "at most 512"),
        ({"parallel": 2}, 512, False, False, "on a CPU"),
        ({}, 8192, True, True, "device"),
        ({"cache_type_v": "q8_0"}, 8192, False, True, "V cache"),
        ({"cache_type_k": "q8_0"}, 8192, False, False, "on a CPU"),
        ({"flash_attention": "on"}, 8192, False, True, "requested"),
        ({"flash_attention": "off"}, 64, True, False, "requested"),
    ],
)
def test_the_rule(
    header: ModelHeader,
    changes: dict[str, object],
    ctx_size: int,
    on_device: bool,
    flash: bool,
    reason: str,
) -> None:
    options = replace(ANY, **changes)  # type: ignore[arg-type]
    chosen = choose_attention(header, options, ctx_size, on_device=on_device)
    assert chosen.flash is flash and reason in chosen.reason
    decided = with_attention(header, options, ctx_size, on_device=on_device)
    assert decided.flash_attention == ("on" if flash else "off")


def test_row_kernels_turn_it_on(header: ModelHeader) -> None:
    chosen = choose_attention(header, ANY, 8192, on_device=False, row_kernels=True)
    assert chosen.flash and "row kernels" in str(chosen)
    decided = with_attention(header, ANY, 8192, on_device=False, row_kernels=True)
    assert decided.flash_attention == "on" and decided.ubatch_size == ANY.ubatch_size
    asked = replace(ANY, flash_attention="off")
    assert not choose_attention(header, asked, 8192, on_device=False, row_kernels=True).flash


@pytest.mark.parametrize(
    "keys",
    [
        {"attention.head_count_kv": (2, 1)},
        {"attention.value_length": 16, "attention.value_length_swa": 8},
        {"attention.kv_lora_rank": 8},
    ],
)
def test_values_of_different_widths_keep_it_on(
    header: ModelHeader, keys: dict[str, object]
) -> None:
    values = {**header.values, **{f"{header.architecture}.{key}": v for key, v in keys.items()}}
    changed = replace(header, values=values)  # type: ignore[arg-type]
    assert choose_attention(changed, ANY, 8192, on_device=False).flash


def test_scores_of_a_long_context_are_computed_in_smaller_batches(header: ModelHeader) -> None:
    for ctx_size in (1024, 2**15, 2**17, 2**24):
        decided = with_attention(header, ANY, ctx_size, on_device=False)
        assert BATCH.low <= decided.ubatch_size <= ANY.ubatch_size
        fits = score_bytes(header, decided.ubatch_size, ctx_size) <= 2**28
        assert fits or decided.ubatch_size == BATCH.low
    asked = replace(ANY, flash_attention="off")
    assert with_attention(header, asked, 2**24, on_device=False).ubatch_size == ANY.ubatch_size


@pytest.mark.llama
@pytest.mark.parametrize("ctx_size", [512, 1024])
def test_a_context_says_what_it_uses(tiny: TinyFiles, ctx_size: int) -> None:
    model = load_model(tiny.target, ctx_size=ctx_size, row_kernels=False)
    model.close()
    assert model.settings()["flash_attention"] == ("on" if ctx_size <= 512 else "off")


@pytest.mark.llama
def test_without_it_every_width_rounds_the_same(demo_files: tuple[Path, Path]) -> None:
    with closing(
        load_model(demo_files[0], ctx_size=1024, flash_attention="off", threads=2)
    ) as model:
        past, tokens = random_ids(600), random_ids(63)
        model.decode(past, 0)
        whole = model.decode(tokens, 63).copy()
        for width in (2, 3, 5, 8, 17, 32):
            model.truncate(len(past))
            np.testing.assert_array_equal(model.decode(tokens[:width], width), whole[:width])
