"""Footprints: estimates from headers against what llama.cpp allocates, and where the bytes lie."""

import platform
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from localspec.core.options.load_options import LoadOptions, Lora
from localspec.llama.heads.opening import open_head
from localspec.llama.memory.estimate import (
    MemoryEstimate,
    estimate_memory,
    estimate_run,
    tensor_bytes,
)
from localspec.llama.memory.layer_cache import ANCHORS, SNAPSHOTS, sliding_layers
from localspec.llama.memory.plan import in_slots
from localspec.llama.memory.probe import plan_here, would_allocate
from localspec.llama.memory.use import MemoryUse
from localspec.llama.model import LlamaModel
from localspec.llama.quantize import write_quantized
from localspec.metadata.header import ModelHeader, read_header
from tests.support.files.architectures.specs import MODELS
from tests.support.files.architectures.writer import write_model
from tests.support.files.big_files import write_big_model
from tests.support.files.gguf_files import Tensor
from tests.support.files.head_files import (
    assistant_bytes,
    eagle3_bytes,
    header_of,
    mtp_bytes,
    target_bytes,
)
from tests.support.files.lora_files import QUERY, write_lora
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import TinyFiles, options

# An estimate knows of no row kernels: where they are in use, flash attention is on (see `probe`).
options = partial(options, row_kernels=False)

BIG = {
    "llama": dict(n_vocab=128256, width=4096, layers=32, heads=32, kv_heads=8, feed_forward=14336),
    "gemma2": dict(
        n_vocab=256000, width=4608, layers=46, heads=32, kv_heads=16, feed_forward=36864,
        tied=True, window=4096,
    ),
}  # fmt: skip


def assert_within(share: float, found: MemoryUse, exact: MemoryUse) -> None:
    assert found.kv == pytest.approx(exact.kv, rel=share)
    assert found.weights == pytest.approx(exact.weights, rel=share)
    assert found.total == pytest.approx(exact.total, rel=share)


def load_model(path: Path, **changes: object) -> LlamaModel:
    return LlamaModel(read_header(path), options(path, **changes))


@pytest.mark.llama
@pytest.mark.parametrize("ctx_size", [200, 1024, 4096])
@pytest.mark.parametrize(("part", "branches"), [(0, 1), (1, 1), (0, 2)])
def test_the_demo_pair_takes_what_is_estimated(
    demo_files: tuple[Path, Path], part: int, branches: int, ctx_size: int
) -> None:
    header = read_header(demo_files[part])
    model = load_model(demo_files[part], ctx_size=ctx_size, branches=branches)
    model.close()
    use = estimate_memory(header, ctx_size, options(header.path, branches=branches)).use
    assert_within(0.05, use, model.memory)
    assert use.compute == pytest.approx(model.memory.compute, rel=0.01)


@pytest.mark.llama
@pytest.mark.parametrize("ctx_size", [1024, 2048, 8192])
@pytest.mark.parametrize("flash", ["auto", "on", "off"])
def test_scores_count_without_flash_attention(
    demo_files: tuple[Path, Path], flash: str, ctx_size: int
) -> None:
    load = options(demo_files[0], ctx_size=ctx_size, flash_attention=flash)
    asked = would_allocate(demo_files[0], load)
    use = estimate_memory(read_header(demo_files[0]), ctx_size, load).use
    assert asked is not None and use.compute == pytest.approx(asked.compute, rel=0.03)


@pytest.mark.llama
@pytest.mark.parametrize("cache_type", ["f32", "q8_0"])
def test_cache_types_count(demo_files: tuple[Path, Path], cache_type: str) -> None:
    changes = {"ctx_size": 1024, "cache_type_k": cache_type, "cache_type_v": cache_type}
    model = load_model(demo_files[0], **changes)
    model.close()
    use = estimate_memory(model.header, 1024, options(demo_files[0], **changes)).use
    assert use.kv == pytest.approx(model.memory.kv, rel=0.01)


@pytest.mark.llama
def test_a_sliding_window_keeps_less(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", seed=1, layers=4, window=64, context_length=4096)
    model = load_model(path, ctx_size=4096)
    model.close()
    use = estimate_memory(model.header, 4096, options(path)).use
    assert use.kv == pytest.approx(model.memory.kv, rel=0.01)
    everything = estimate_memory(
        replace(model.header, sliding_window=None), 4096, options(path)
    ).use
    assert everything.kv > 2 * use.kv


@pytest.mark.llama
def test_exact_keeps_whole_windows(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", seed=1, layers=4, window=64, context_length=4096)
    model = load_model(path, ctx_size=4096, exact=True)
    model.close()
    whole, windows = (
        estimate_memory(model.header, 4096, options(path, exact=exact)).use.kv
        for exact in (True, False)
    )
    assert whole == pytest.approx(model.memory.kv, rel=0.01) and whole > 2 * windows


@pytest.mark.llama
@pytest.mark.parametrize("own_cells", [False, True])
@pytest.mark.parametrize("window", [0, 64])
def test_several_texts_have_a_context_each(tmp_path: Path, window: int, own_cells: bool) -> None:
    path = tmp_path / "m.gguf"
    write_tiny_model(path, seed=1, layers=4, window=window, context_length=4096)
    load = options(path, ctx_size=1024, parallel=3, own_cells=own_cells)
    model = LlamaModel(read_header(path), load)
    model.close()
    found, once = (
        estimate_memory(model.header, 1024, each).use for each in (load, replace(load, parallel=1))
    )
    assert found.kv == pytest.approx(model.memory.kv, rel=0.01)
    tripled = found.kv == 3 * once.kv
    assert tripled if own_cells or not window else once.kv < found.kv < 3 * once.kv
    asked = would_allocate(path, load)
    assert asked is not None and asked.kv == model.memory.kv


@pytest.mark.llama
@pytest.mark.parametrize("window", [0, 64])
def test_texts_that_share_a_context_take_the_memory_of_one(tmp_path: Path, window: int) -> None:
    path = tmp_path / "m.gguf"
    write_tiny_model(path, seed=1, layers=4, window=window, context_length=4096)
    header, apart = read_header(path), options(path, parallel=3)
    load = in_slots(header, replace(apart, kv_unified=True), 4096)
    model = LlamaModel(header, load)
    model.close()
    found, thrice = (estimate_memory(header, 4096, each).use for each in (load, apart))
    assert found.kv == pytest.approx(model.memory.kv, rel=0.01)
    asked = would_allocate(path, load)
    assert asked is not None and asked.kv == model.memory.kv
    assert found.kv < (0.4 if not window else 0.6) * thrice.kv
    planned = plan_here(header, replace(load, shared_ctx=None)).use.kv
    assert planned == estimate_run(header, 4096, load).use.kv < plan_here(header, apart).use.kv


@pytest.mark.llama
def test_a_recurrent_state_does_not_grow(tiny: TinyFiles) -> None:
    model = load_model(tiny.recurrent)
    model.close()
    small, large = (
        estimate_memory(model.header, n, options(tiny.recurrent), sequences=2).use
        for n in (256, 4096)
    )
    assert small.kv == large.kv == pytest.approx(model.memory.kv, abs=2**14)  # it tells 0.01 MiB


@pytest.mark.llama
@pytest.mark.parametrize("architecture", BIG)
def test_headers_of_big_models(tmp_path: Path, architecture: str) -> None:
    path = write_big_model(tmp_path / "big.gguf", architecture, **BIG[architecture])  # type: ignore[arg-type]
    load = options(path, ctx_size=8192, mmap=False)  # a plan without weights maps none either
    exact = would_allocate(path, load)
    assert exact is not None and exact.total > 5 * 2**30
    assert_within(0.05, estimate_memory(read_header(path), 8192, load).use, exact)


def test_exact_takes_one_more_cell(demo_files: tuple[Path, Path]) -> None:
    header = read_header(demo_files[0])
    plain, exact = (
        estimate_memory(header, 1024, options(header.path, exact=flag)).use.kv
        for flag in (False, True)
    )
    assert exact == plain * 1280 // 1024  # rounded up to 256 cells


@pytest.mark.parametrize(
    "architecture, pattern, expected",
    [
        ("gemma3", None, [True] * 5 + [False] + [True] * 2),
        ("gemma2", None, [True, False] * 4),
        ("gemma3", 4, [True, True, True, False] * 2),
        ("gemma4", (True, False) * 4, [True, False] * 4),
        ("smallthinker", None, [False, True, True, True] * 2),
        ("phi3", None, [False] * 8),
        ("unheard-of", None, [False] * 8),
    ],
)
def test_layers_that_slide(
    tiny: TinyFiles, architecture: str, pattern: object, expected: list[bool]
) -> None:
    key = f"{architecture}.attention.sliding_window_pattern"
    header = replace(
        read_header(tiny.target),
        architecture=architecture,
        sliding_window=64,
        values={} if pattern is None else {key: pattern},  # type: ignore[dict-item]
    )
    assert sliding_layers(header, 8) == expected


def test_layers_move_to_the_gpu_from_the_end() -> None:
    model = MemoryEstimate(100, (10, 20, 30), 7, (1, 2, 3), 5)
    assert model.use == MemoryUse(167, 6, 5)
    assert [model.on_gpu(n) for n in range(6)] == [0, 12, 45, 67, 78, 78]
    assert [model.in_ram(n) for n in range(5)] == [178, 171, 138, 116, 105]


def test_a_tied_output_is_a_copy_on_the_gpu() -> None:
    model = MemoryEstimate(100, (10,), 0, (1,), 5, copied=100)
    assert model.use.weights == 110
    assert model.on_gpu(1) == 105 and model.in_ram(2) == 105


def test_estimates_can_be_scaled() -> None:
    model = MemoryEstimate(100, (10, 10), 7, (4, 8), 5).scaled(0.5, 2)
    assert (model.kv, model.compute, model.layers) == ((2, 4), 10, (10, 10))


def test_every_tensor_counts_once(demo_files: tuple[Path, Path]) -> None:
    for path in demo_files:
        header = read_header(path)
        model = estimate_memory(header, 512, options(path))
        assert model.use.weights == tensor_bytes(header)


@pytest.mark.llama
@pytest.mark.parametrize("batches", [(512, 512), (512, 128), (2048, 1024), (1024, 2048)])
def test_batch_sizes_count(
    demo_files: tuple[Path, Path], tmp_path: Path, batches: tuple[int, int]
) -> None:
    slides = write_tiny_model(tmp_path / "slides.gguf", seed=1, window=64, context_length=8192)
    changes = {"ctx_size": 4096, "batch_size": batches[0], "ubatch_size": batches[1]}
    for path, counted in ((slides, "kv"), (demo_files[0], "compute")):
        model = load_model(path, **changes)
        model.close()
        use = estimate_memory(model.header, 4096, options(path, **changes)).use
        exact = getattr(model.memory, counted)
        assert getattr(use, counted) == pytest.approx(exact, rel=0.05), counted


@pytest.mark.llama
def test_adapters_count(tiny: TinyFiles, tmp_path: Path) -> None:
    big = write_tiny_model(tmp_path / "big.gguf", seed=1, embedding=2048, heads=32)
    path = write_lora(tmp_path / "a.gguf", names=[QUERY], shape=(2048, 2048), rank=256)
    plain = load_model(big)
    adapted = load_model(big, loras=(Lora(path),))
    for model in (plain, adapted):
        model.close()
    loads = options(big), options(big, loras=(Lora(path),))
    without, with_it = (estimate_memory(plain.header, 512, load).use.weights for load in loads)
    assert with_it - without == pytest.approx(
        adapted.memory.weights - plain.memory.weights, rel=0.02
    )
    assert with_it - without > 2**22


HYBRID = {
    "ssm.inner_size": 128, "ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2,
}  # fmt: skip
STATE = 4 * (3 * (128 + 2 * 2 * 32) + 32 * 128)  # bytes, as llama.cpp logs it for these sizes
CELL = 2 * 2 * 64  # bytes of a token's keys and values, 64 wide


def hybrid(path: Path, heads: int = 1) -> ModelHeader:
    """A model whose first two layers are recurrent, the others not, with NextN layers behind."""
    attention = [2, 3, *range(4, 4 + heads)]
    tensors = [
        *(Tensor(f"blk.{i}.ssm_conv1d.weight", (4, 256)) for i in range(2)),
        *(Tensor(f"blk.{i}.attn_{name}.weight", (64, 64)) for i in attention for name in "kv"),
    ]
    return header_of(path, target_bytes(heads=heads, tensors=tensors, keys=HYBRID))


@pytest.mark.parametrize("sequences, snapshots, states", [(1, 0, 1), (3, 0, 3), (2, 2, 6)])
def test_each_sequence_and_snapshot_has_a_state(
    tmp_path: Path, sequences: int, snapshots: int, states: int
) -> None:
    header = hybrid(tmp_path)
    found = estimate_memory(
        header, 512, LoadOptions(header.path), sequences=sequences, snapshots=snapshots
    )
    # The attention's cells are shared by all sequences; without a context the heads have none.
    assert found.kv == (states * STATE, states * STATE, 512 * CELL, 512 * CELL, 0)


def test_a_window_is_kept_for_each_sequence(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", seed=1, layers=4, window=512, context_length=8192)
    header, load = read_header(path), LoadOptions(path)
    one, three = (estimate_memory(header, 8192, load, sequences=n).kv[0] for n in (1, 3))
    assert one / three == (512 + 512) / (3 * 512 + 512)


def test_heads_that_are_used_have_weights_and_a_context(tmp_path: Path) -> None:
    header = hybrid(tmp_path)
    load = LoadOptions(header.path)
    without, with_heads = (estimate_memory(header, 512, load, heads=each) for each in (None, load))
    held = sum(t.n_bytes for t in header.tensors if t.name.startswith("blk.4."))
    assert with_heads.layers[4] == held and without.layers[4] == 0
    assert with_heads.kv[4] == (512 + 256) * CELL and without.kv[4] == 0
    assert with_heads.compute > 1.5 * without.compute
    assert with_heads.use.weights == tensor_bytes(header)
    of_target = replace(load, cache_type_k="f32", cache_type_v="f32")
    quantized = estimate_memory(header, 512, of_target, heads=load)
    assert quantized.kv[4] == with_heads.kv[4] and quantized.kv[2] == 2 * without.kv[2]
    plain = hybrid(tmp_path, heads=0)
    assert estimate_memory(plain, 512, load, heads=load) == estimate_memory(plain, 512, load)


def test_a_run_has_states_to_return_to(tmp_path: Path) -> None:
    header = hybrid(tmp_path)
    run = estimate_run(header, 512, LoadOptions(header.path))
    each = 1 + SNAPSHOTS
    assert run.kv == (each * STATE, each * STATE, 512 * CELL, 512 * CELL, 0)
    assert run.anchors == (1 + ANCHORS) * 2 * STATE
    assert run.use.kv == sum(run.kv) + run.anchors
    on_gpu = run.in_ram(len(run.layers) + 1)
    assert on_gpu - replace(run, anchors=0).in_ram(len(run.layers) + 1) == run.anchors
    assert run.use.total == run.in_ram(0)
    with_heads = estimate_run(header, 512, LoadOptions(header.path, load_heads=True))
    assert with_heads.kv[4] == (512 + 256) * CELL


@pytest.mark.parametrize(("window", "ctx_size", "copies"), [(512, 8192, 4), (512, 2048, 0)])
def test_a_run_has_windows_to_return_to(
    tmp_path: Path, window: int, ctx_size: int, copies: int
) -> None:
    """None where the whole context fits into the cells of sliding layers."""
    path = write_tiny_model(tmp_path / "m.gguf", seed=1, layers=4, window=window)
    header = replace(read_header(path), sliding_window=window if copies else ctx_size)
    load = LoadOptions(path, parallel=2, flash_attention="on")
    run = estimate_run(header, ctx_size, load)
    each = run.kv[0] * window // (2 * window + load.ubatch_size)  # of one layer and sequence
    assert run.anchors == min(2 * copies * 3 * each, sum(run.kv))
    assert estimate_run(header, ctx_size, replace(load, exact=True)).anchors == 0


WIDER = {
    "embedding_length": 256,
    "ssm.inner_size": 512,
    "ssm.state_size": 128,
    "ssm.group_count": 4,
    "ssm.time_step_rank": 4,
}


@pytest.mark.llama
@pytest.mark.parametrize(
    ("name", "strategy", "states", "parallel"),
    [
        ("qwen35-mtp", "fork", {"sequences": 2}, 1),
        ("qwen35-mtp", "snapshots", {"snapshots": SNAPSHOTS}, 1),
        ("qwen35-mtp", "snapshots", {"snapshots": SNAPSHOTS}, 3),
        ("mamba2", "fork", {"sequences": 2}, 1),
        ("mamba2", "fork", {"sequences": 6}, 3),
        ("nemotron_h", "snapshots", {"snapshots": SNAPSHOTS}, 1),
    ],
)
def test_recurrent_models_and_heads_take_what_is_estimated(
    tmp_path: Path, name: str, strategy: str, states: dict[str, int], parallel: int
) -> None:
    wider = replace(MODELS[name], keys={**MODELS[name].keys, **WIDER})
    path = write_model(tmp_path / "wider.gguf", wider)
    header, heads = read_header(path), name.endswith("-mtp")
    load = options(path, ctx_size=1024, load_heads=heads, parallel=parallel)
    model = LlamaModel(header, load, strategies=(strategy,))
    assert model.rollback.name == strategy
    allocated = model.memory
    if heads:
        head = open_head(model, None, load)
        allocated += head.memory
        head.close()
    model.close()
    drafting = load if heads else None
    use = estimate_memory(header, 1024, load, heads=drafting, **states).use
    assert_within(0.2, use, allocated)


def test_heads_alone(tmp_path: Path) -> None:
    attention = [Tensor(f"blk.4.attn_{name}.weight", (64, 64)) for name in "kv"]
    header = header_of(tmp_path, mtp_bytes(tensors=attention))
    found = estimate_memory(header, 512, LoadOptions(header.path))
    assert found.kv == (0, 0, 0, 0, (512 + 256) * CELL) and found.use.weights == tensor_bytes(
        header
    )
    borrowed = header_of(tmp_path, assistant_bytes())
    assert set(estimate_memory(borrowed, 512, LoadOptions(borrowed.path)).kv) == {0}
    eagle = header_of(
        tmp_path,
        eagle3_bytes(tensors=[Tensor(f"blk.0.attn_{name}.weight", (128, 64)) for name in "kv"]),
    )
    assert estimate_memory(eagle, 512, LoadOptions(eagle.path)).kv == ((512 + 256) * CELL,)


@pytest.mark.llama
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other types are repacked elsewhere")
@pytest.mark.parametrize(("quantization", "share"), [("Q4_0", 0.4), ("Q8_0", 0)])
def test_weights_that_llama_cpp_repacks_count(
    demo_files: tuple[Path, Path], tmp_path: Path, quantization: str, share: float
) -> None:
    path = tmp_path / "quantized.gguf"
    write_quantized(demo_files[0], path, quantization)
    for row_kernels in (False, True):
        load = options(path, ctx_size=512, row_kernels=row_kernels)
        model = LlamaModel(read_header(path), load)
        model.close()
        use = estimate_memory(model.header, 512, load).use
        assert use.weights == pytest.approx(model.memory.weights, rel=0.02)
        repacked = use.weights / tensor_bytes(model.header) - 1
        assert repacked > share if share and not row_kernels else repacked == 0
