"""Budget: llama.cpp asked in a child process, and plans for this machine."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from localspec.core.errors import NotEnoughMemory
from localspec.core.options.load_options import (
    KeyValue,
    LoadOptions,
    Lora,
    RopeOptions,
    Shares,
    load_options,
)
from localspec.llama import llama_library
from localspec.llama.memory import probe as memory_probe
from localspec.llama.memory.estimate import estimate_memory, estimate_run
from localspec.llama.memory.plan import FreeMemory
from localspec.llama.memory.probe import (
    announcement,
    free_memory,
    plan_here,
    would_allocate,
)
from localspec.llama.memory.use import MemoryUse
from localspec.metadata.header import ModelHeader, read_header
from tests.support.command import as_child
from tests.support.files.big_files import write_big_model
from tests.support.files.gguf_files import write_gguf
from tests.support.files.lora_files import write_lora
from tests.support.files.tiny_models import write_tiny_model
from tests.support.llama.row_kernels import FakeLibrary
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


def test_what_rpc_servers_have_is_no_memory_here(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"CPU": "CPU", "CUDA0": "GPU", "RPC0": llama_library.RPC_SERVER}
    made = [
        llama_library.Device(name, name, kind, 10 + i, 20, i)
        for i, (name, kind) in enumerate(kinds.items())
    ]
    monkeypatch.setattr(llama_library, "devices", lambda: made)
    free = free_memory()
    assert free.workers == (12,)
    assert free.gpus == ((11,) if sys.platform != "darwin" else ())
    assert free_memory("CUDA0").workers == ()


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


@pytest.mark.parametrize("given", [None, 8192])
def test_a_context_goes_before_copies_of_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int | None
) -> None:
    monkeypatch.setattr(memory_probe, "would_allocate", lambda *asked: None)
    path = write_tiny_model(tmp_path / "m.gguf", seed=1, layers=4, window=512, context_length=8192)
    header, load = read_header(path), options(path, ctx_size=given, row_kernels=False)
    full, least = (
        estimate_run(header, 8192, replace(load, window_copies=copies)).use.total
        for copies in (True, False)
    )
    for free, copies in ((4 * full, True), (full, True), ((full + least) // 2, False)):
        chosen = plan_here(header, load, free=FreeMemory(free))
        assert (chosen.ctx_size, chosen.window_copies, chosen.notes) == (8192, copies, ())
        assert chosen.use.total == (full if copies else least) <= free


@pytest.mark.llama
def test_row_kernels_need_no_room_for_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: object
) -> None:
    FakeLibrary().install(monkeypatch)
    target = big_target(tmp_path)
    chosen = [
        plan_here(target, options(target.path, ctx_size=8192, **changes), free=FreeMemory(64 * GIB))
        for changes in ({}, {"flash_attention": "on"}, {"row_kernels": False})
    ]
    computing = [each.use.compute for each in chosen]
    assert computing[0] == computing[1] < computing[2]


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
    assert "68.7 GB of RAM free" in line
    alone = FreeMemory(64 * GIB)
    line = announcement(plan_here(target, options(target.path), free=alone), alone)
    assert line is not None and len(line) < 80  # the first prompt is near


def test_a_context_that_cannot_fit_is_refused_without_asking(
    tmp_path: Path, asked: Sequence[tuple[Path, int | None]]
) -> None:
    target = big_target(tmp_path)
    for flash in ("auto", "off"):
        with pytest.raises(NotEnoughMemory) as caught:
            load = options(target.path, ctx_size=10**9, flash_attention=flash)
            plan_here(target, load, free=FreeMemory(64 * GIB))
        assert "1,000,000,000 tokens" in caught.value.message
        assert "The largest context that fits" in caught.value.hint
    huge = options(target.path, ctx_size=10**9)
    with pytest.raises(NotEnoughMemory):
        plan_here(target, options(target.path), target, huge, free=FreeMemory(64 * GIB))
    assert not asked
    # Where the estimate may be wrong by a factor of two, llama.cpp decides.
    with pytest.raises(NotEnoughMemory):
        plan_here(target, options(target.path, ctx_size=16384), free=FreeMemory(6 * GIB))
    assert asked == [(target.path, 16384)]


@pytest.mark.llama
def test_mapped_weights_may_wait_and_others_may_not(tmp_path: Path, asked: object) -> None:
    target = big_target(tmp_path)
    room = FreeMemory(estimate_memory(target, 512, options(target.path)).use.weights)
    assert plan_here(target, options(target.path, ctx_size=512), free=room).notes
    with pytest.raises(NotEnoughMemory):
        plan_here(target, options(target.path, ctx_size=512, mmap=False), free=room)


def test_the_trained_context_is_planned(tmp_path: Path) -> None:
    target = big_target(tmp_path)
    assert target.context_length is not None
    chosen = plan_here(target, options(target.path, ctx_size=0), free=FreeMemory(10**15))
    assert chosen.ctx_size == target.context_length != 0
    with pytest.raises(NotEnoughMemory):
        plan_here(target, options(target.path, ctx_size=0), free=FreeMemory(2**28))


def test_layers_are_planned_for_the_gpus_that_are_used(tmp_path: Path) -> None:
    target = big_target(tmp_path)
    free = FreeMemory(64 * GIB, (40 * GIB, 3 * GIB))

    def layers(**changes: object) -> int | None:
        load = options(target.path, ctx_size=512, **changes)
        return plan_here(target, load, free=free).gpu_layers

    every = len(estimate_memory(target, 512, options(target.path)).layers) + 1
    assert layers() == layers(split_mode="none") == every
    one = layers(split_mode="none", main_gpu=1)
    assert one is not None and one < every
    assert layers(tensor_split=Shares((1, 1))) is None  # placed by hand
    assert layers(split_mode="row") is None


@pytest.mark.llama
def test_every_option_reaches_the_child(tiny: TinyFiles, tmp_path: Path) -> None:
    path = write_lora(tmp_path / "a.gguf")
    load = options(
        tiny.target, ctx_size=1024, tensor_split=Shares((1, 2)), rope=RopeOptions("yarn", 1e4, 0.5),
        override_tensors=("attn_q=CPU",), loras=(Lora(path, 0.5),), ubatch_size=64,
        override_kv=(KeyValue("llama.context_length", 512), KeyValue("tokenizer.ggml.pre", "x")),
    )  # fmt: skip
    asked = json.loads(json.dumps(asdict(load), default=str))
    assert load_options(asked) == load
    small = would_allocate(tiny.target, replace(load, override_kv=()))
    large = would_allocate(tiny.target, options(tiny.target, ctx_size=1024))
    assert small is not None and large is not None and 0 < small.compute < large.compute


def test_the_child_can_tell_that_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still_open = "not select.select([0], [], [], 0.2)[0]"
    as_child(monkeypatch, tmp_path, f'print(json.dumps({{"weights": int({still_open})}}))')
    assert would_allocate(tmp_path / "m.gguf", LoadOptions(tmp_path)) == MemoryUse(weights=1)


def test_a_child_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_child(monkeypatch, tmp_path, "time.sleep(600)")
    monkeypatch.setattr(memory_probe, "_PATIENCE", 0.3)
    assert would_allocate(tmp_path / "m.gguf", LoadOptions(tmp_path)) is None


def child(code: str) -> subprocess.Popen[bytes]:
    """A process with the module of the child."""
    code = f"from localspec.llama.memory import probe\n{code}"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


@pytest.mark.llama
def test_the_childs_memory_is_bounded() -> None:
    if sys.platform != "linux" or free_memory().gpus:
        pytest.skip("bounded on Linux without a GPU")
    code = (
        "probe.limit_memory(probe._MOST_BYTES)\n"
        "import numpy\n"
        "numpy.empty(2**30, numpy.int8)\n"
        "try:\n"
        f"    numpy.empty({memory_probe._MOST_BYTES}, numpy.int8)\n"
        "except MemoryError:\n"
        "    raise SystemExit(7)"
    )
    with child(code) as bounded:
        bounded.communicate()
    assert bounded.returncode == 7
