"""Budget: llama.cpp asked in a child process, and plans for this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from localspec.core.errors import NotEnoughMemory
from localspec.engine.memory import probe as memory_probe
from localspec.engine.memory.estimate import estimate_memory
from localspec.engine.memory.plan import FreeMemory
from localspec.engine.memory.probe import announcement, free_memory, plan_here, would_allocate
from localspec.engine.memory.use import MemoryUse
from localspec.metadata.header import ModelHeader, read_header
from tests.support.big_files import write_big_model
from tests.support.gguf_files import write_gguf
from tests.support.real_pair import TinyFiles, load_model, options

GIB = 2**30


@pytest.mark.llama
def test_llama_cpp_plans_what_it_then_allocates(demo_files: tuple[Path, Path]) -> None:
    planned = would_allocate(demo_files[0], options(demo_files[0], ctx_size=1024))
    model = load_model(demo_files[0], ctx_size=1024)
    model.close()
    assert planned is not None
    assert planned.kv == model.memory.kv
    assert planned.compute == model.memory.compute
    assert planned.weights == pytest.approx(model.memory.weights, rel=0.05)


def test_a_file_that_llama_cpp_cannot_plan_gives_nothing(tmp_path: Path) -> None:
    broken = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"})
    assert would_allocate(broken, options(broken, ctx_size=64)) is None
    assert would_allocate(tmp_path / "none.gguf", options(broken, ctx_size=64)) is None


@pytest.mark.llama
def test_free_memory_is_told() -> None:
    free = free_memory()
    assert free.ram is None or free.ram > 0
    assert free_memory("none").gpus == ()


def test_a_plan_leaves_a_small_pair_alone(tiny: TinyFiles) -> None:
    target, draft = read_header(tiny.target), read_header(tiny.draft)
    chosen = plan_here(
        target, options(tiny.target), draft, options(tiny.draft), FreeMemory(8 * GIB)
    )
    assert (chosen.ctx_size, chosen.draft_ctx_size) == (1024, 1024)
    assert chosen.notes == () and announcement(chosen, FreeMemory(8 * GIB)) is None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int | None]]:
    """What llama.cpp is asked; it answers twice the estimate for caches."""
    calls: list[tuple[Path, int | None]] = []

    def answer(path: Path, load: object) -> MemoryUse:
        calls.append((path, load.ctx_size))  # type: ignore[attr-defined]
        use = estimate_memory(read_header(path), load.ctx_size, load).use  # type: ignore[arg-type, attr-defined]
        return MemoryUse(use.weights, 2 * use.kv, use.compute)

    monkeypatch.setattr(memory_probe, "would_allocate", answer)
    return calls


def big_target(folder: Path) -> ModelHeader:
    return read_header(
        write_big_model(
            folder / "big.gguf", "llama", n_vocab=32000, width=4096, layers=32, heads=32,
            kv_heads=32, feed_forward=11008,
        )
    )  # fmt: skip


def test_llama_cpp_is_asked_only_where_it_is_tight(
    tmp_path: Path, asked: Sequence[tuple[Path, int | None]]
) -> None:
    target = big_target(tmp_path)
    load = options(target.path, ctx_size=4096)
    assert plan_here(target, load, free=FreeMemory(64 * GIB)).use.kv == 2 * GIB
    assert not asked
    assert plan_here(target, load, free=FreeMemory(8 * GIB)).use.kv == 4 * GIB
    assert asked == [(target.path, 4096)]


def test_the_hint_of_a_refusal_holds(tmp_path: Path, asked: object) -> None:
    target = big_target(tmp_path)
    with pytest.raises(NotEnoughMemory) as caught:
        plan_here(target, options(target.path, ctx_size=8192), free=FreeMemory(6 * GIB))
    largest = int(caught.value.hint.split()[-1].rstrip("."))
    again = options(target.path, ctx_size=largest)
    assert plan_here(target, again, free=FreeMemory(6 * GIB)).ctx_size == largest


def test_who_places_tensors_by_hand_is_left_alone(tmp_path: Path) -> None:
    target = big_target(tmp_path)
    load = options(target.path, ctx_size=512, cpu_moe_layers=3)
    chosen = plan_here(target, load, free=FreeMemory(64 * GIB, (2 * GIB,)))
    assert chosen.gpu_layers is None and chosen.on_gpu == 0


def test_a_long_load_is_announced(tmp_path: Path) -> None:
    target = big_target(tmp_path)
    free = FreeMemory(64 * GIB, (24 * GIB,))
    chosen = plan_here(target, options(target.path), free=free)
    line = announcement(chosen, free)
    assert line is not None and "on the GPU" in line and "8,192 tokens" in line
    assert "64.0 GiB of RAM free" in line
