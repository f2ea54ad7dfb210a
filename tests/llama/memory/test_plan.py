"""Fit: what is chosen where the user leaves it open, and refusals that name what would fit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core import paths
from localspec.core.errors import NotEnoughMemory
from localspec.llama.memory.estimate import MemoryEstimate
from localspec.llama.memory.plan import (
    FreeMemory,
    MemoryPlan,
    MemoryRequest,
    default_ctx_size,
    draft_ctx_size,
    plan,
)
from localspec.metadata.header import ModelHeader, read_header

MIB, GIB = 2**20, 2**30
TARGET, DRAFT = (read_header(path) for path in paths.demo_pair())
OPEN = MemoryRequest(None, None, None, None)


def big(ctx_size: int, draft_ctx: int) -> tuple[MemoryEstimate, MemoryEstimate | None]:
    """A target of 4 GiB that takes 128 KiB a token, and a draft of 512 MiB that takes 16."""
    target = MemoryEstimate(256 * MIB, (100 * MIB,) * 36, 240 * MIB, (ctx_size * 3641,) * 36, 0)
    draft = MemoryEstimate(64 * MIB, (37 * MIB,) * 12, MIB, (draft_ctx * 1365,) * 12, 0)
    return target, draft if draft_ctx else None


def chosen(
    request: MemoryRequest,
    free: FreeMemory,
    trained: int = 131072,
    draft: ModelHeader | None = None,
) -> MemoryPlan:
    return plan(replace(TARGET, context_length=trained), draft, request, free, big)


def test_plenty_of_memory_changes_nothing() -> None:
    result = chosen(OPEN, FreeMemory(64 * GIB))
    assert result.ctx_size == 8192 and result.notes == ()
    assert result.gpu_layers is None and result.on_gpu == 0
    assert chosen(OPEN, FreeMemory(None)).ctx_size == 8192  # nothing is known: nothing is lowered


def test_workers_take_layers_of_the_target_and_none_of_the_draft() -> None:
    workers = (4 * GIB, 4 * GIB)
    result = chosen(OPEN, FreeMemory(2 * GIB, (), workers), draft=DRAFT)
    assert (result.gpu_layers, result.draft_gpu_layers) == (37, None)
    target, draft = big(result.ctx_size, result.draft_ctx_size)
    assert draft is not None and result.on_gpu == target.on_gpu(37)
    assert result.in_ram == target.in_ram(37) + draft.use.total
    beside = chosen(OPEN, FreeMemory(2 * GIB, (2 * GIB,), workers), draft=DRAFT)
    assert (beside.gpu_layers, beside.draft_gpu_layers) == (37, 13)


def test_what_workers_do_not_hold_stays_here() -> None:
    free = FreeMemory(64 * GIB, (), (3 * GIB // 2,) * 2)
    result = chosen(OPEN, free)
    assert result.gpu_layers is not None and 0 < result.gpu_layers < 37
    with pytest.raises(NotEnoughMemory, match="on RPC servers, where 3.2 GB are free"):
        chosen(replace(OPEN, gpu_layers=99), free)


def test_a_default_context_shrinks_and_says_so() -> None:
    result = chosen(OPEN, FreeMemory(4 * GIB + 768 * MIB))
    assert 4096 <= result.ctx_size < 8192 and result.ctx_size % 256 == 0
    assert result.use.total <= 4 * GIB + 768 * MIB
    assert f"{result.ctx_size:,} tokens instead of 8,192" in result.notes[0]


def test_a_context_that_was_asked_for_is_not_lowered_but_refused() -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        chosen(replace(OPEN, ctx_size=131072), FreeMemory(8 * GIB))
    largest = int(caught.value.hint.split()[-1].rstrip("."))
    assert "131,072 tokens need 21" in caught.value.message
    assert chosen(replace(OPEN, ctx_size=largest), FreeMemory(8 * GIB)).ctx_size == largest
    with pytest.raises(NotEnoughMemory):
        chosen(replace(OPEN, ctx_size=largest + 256), FreeMemory(8 * GIB))


def test_weights_beyond_the_memory_are_told_not_refused() -> None:
    result = chosen(replace(OPEN, ctx_size=1024), FreeMemory(2 * GIB))
    assert "read from the disk again and again" in result.notes[0]


def test_caches_that_nothing_could_hold_are_refused_with_advice() -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        chosen(OPEN, FreeMemory(64 * MIB))
    assert "stronger quantisation" in caught.value.hint or "--ctx-size" in caught.value.hint


def test_a_limit_of_the_shell_is_named() -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        chosen(OPEN, FreeMemory(0, limited=True))
    assert "only 0 bytes are left of what this shell allows a process (ulimit -v)" in str(
        caught.value
    )
    assert caught.value.hint == "Raise the limit: ulimit -v unlimited."


def test_a_draft_context_that_cannot_be_is_named() -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        chosen(replace(OPEN, draft_ctx_size=10**9), FreeMemory(8 * GIB), draft=DRAFT)
    assert "1,000,000,000 tokens" in caught.value.message
    assert "--draft-ctx-size" in caught.value.hint


def test_the_draft_goes_to_the_gpu_first() -> None:
    result = chosen(OPEN, FreeMemory(64 * GIB, (3 * GIB,)), draft=DRAFT)
    assert result.draft_gpu_layers == 13  # 12 and the output
    assert result.gpu_layers is not None and 0 < result.gpu_layers < 37
    assert result.on_gpu <= 2 * GIB  # a GiB is left alone
    more = chosen(OPEN, FreeMemory(64 * GIB, (3 * GIB, 3 * GIB)), draft=DRAFT)
    assert more.gpu_layers is not None and more.gpu_layers > result.gpu_layers
    whole = chosen(OPEN, FreeMemory(64 * GIB, (80 * GIB,)), draft=DRAFT)
    assert (whole.gpu_layers, whole.draft_gpu_layers) == (37, 13)


def test_a_gpu_too_small_for_anything_is_left_alone() -> None:
    result = chosen(OPEN, FreeMemory(64 * GIB, (GIB,)), draft=DRAFT)
    assert (result.gpu_layers, result.draft_gpu_layers, result.on_gpu) == (0, 0, 0)


def test_layers_asked_for_beyond_the_gpu_are_refused() -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        chosen(replace(OPEN, gpu_layers=99), FreeMemory(64 * GIB, (2 * GIB,)))
    assert "--n-gpu-layers" in caught.value.hint
    assert "on the GPU, where 2.1 GB are free" in caught.value.message
    fine = chosen(replace(OPEN, gpu_layers=5), FreeMemory(64 * GIB, (2 * GIB,)))
    assert fine.gpu_layers == 5


@given(
    st.integers(1, 40 * 1024),
    st.lists(st.integers(0, 24 * 1024), max_size=2),
    st.booleans(),
    st.sampled_from([2048, 8192, 131072]),
)
def test_what_is_chosen_fits(ram: int, gpus: list[int], drafted: bool, trained: int) -> None:
    free = FreeMemory(ram * MIB, tuple(each * MIB for each in gpus))
    try:
        result = chosen(OPEN, free, trained, DRAFT if drafted else None)
    except NotEnoughMemory as problem:
        assert problem.hint
        return
    assert result.on_gpu <= free.gpu or not gpus
    assert 8 <= result.ctx_size <= default_ctx_size(replace(TARGET, context_length=trained))
    slow = any("again and again" in note for note in result.notes)
    assert slow == (result.in_ram > ram * MIB)


@pytest.mark.parametrize(
    "trained, target_ctx, expected",
    [(32768, 8192, 4096), (2048, 8192, 2048), (None, 2048, 2048), (4, 64, 8)],
)
def test_the_drafts_context(trained: int | None, target_ctx: int, expected: int) -> None:
    assert draft_ctx_size(replace(DRAFT, context_length=trained), target_ctx) == expected
