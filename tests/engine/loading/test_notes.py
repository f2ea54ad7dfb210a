"""Notes: what a build or a machine lacks, and why a target verifies chains only."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core import machine
from localspec.engine.engine import Engine
from localspec.engine.loading.notes import (
    missing_gpu,
    missing_kernels,
    no_trees_reason,
    refused_kernels,
)
from localspec.engine.loading.pair import usable_pair
from localspec.llama import llama_library
from localspec.metadata.header import read_header
from tests.support.files.tiny_models import write_tiny_model
from tests.support.llama.row_kernels import FakeLibrary
from tests.support.real_pair import GREEDY, TinyFiles, fresh, options, random_ids

pytestmark = pytest.mark.llama


def test_an_unused_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    build = llama_library.Build("1.2.3", "0.5", "CPU", gpu_offload=False)
    monkeypatch.setattr(llama_library, "build", lambda: build)
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)
    (note,) = missing_gpu()
    command = note.partition("folder: ")[2]
    script, option, python = shlex.split(command)[1:]
    assert Path(__file__).parents[3].joinpath(script).is_file()
    assert (option, python) == ("--python", sys.executable)
    assert script.endswith("build_cuda.sh") and "by NVIDIA" in note
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(machine, "gpu_makers", lambda: ["AMD", "Intel"])
    assert missing_gpu() == []  # an integrated one may be little faster: doctor alone tells
    (note,) = missing_gpu(any_maker=True)
    assert "by AMD and Intel" in note and "build_vulkan.sh" in note
    monkeypatch.setattr(machine, "gpu_makers", lambda: [])
    assert missing_gpu(any_maker=True) == []


def test_missing_kernels_are_built_by_one_command(
    no_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = llama_library.Build("0.3.36", "0.5", "CPU", gpu_offload=False)
    monkeypatch.setattr(llama_library, "build", lambda: build)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    (note,) = missing_kernels()
    include, python, *arguments = shlex.split(note.partition("folder: ")[2])
    script = include.partition("$PWD/")[2].strip('"')
    assert Path(__file__).parents[3].joinpath(script).is_file() and python == sys.executable
    assert arguments[-2:] == ["llama-cpp-python", "llama-cpp-python==0.3.36"]
    monkeypatch.setattr(llama_library, "build", lambda: replace(build, gpu_offload=True))
    assert "build_cuda.sh" in missing_kernels()[0]
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert missing_kernels() == []


def test_refused_kernels_are_noted(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLibrary(wrong=12).install(monkeypatch)
    with Engine.load(options(tiny.target), trial=False) as engine:
        (note,) = engine.notes
        assert "row kernels of this build are not used" in note
        assert not engine.target.options.row_kernels
    assert refused_kernels(options(tiny.target, row_kernels=False)) == []


def test_a_backend_that_is_not_loaded_is_named(
    monkeypatch: pytest.MonkeyPatch, tiny: TinyFiles
) -> None:
    """In place of the advice to build one: there is one, which lacks something."""
    found = {"cpu-haswell": None, "vulkan": "libvulkan.so.1 is missing"}
    build = llama_library.Build("1.2.3", "0.5", "CPU", gpu_offload=False)
    monkeypatch.setattr(llama_library, "build", lambda: build)
    monkeypatch.setattr(llama_library, "backends", lambda folder: found)
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)
    told = "llama.cpp's vulkan backend is not loaded: libvulkan.so.1 is missing. "
    assert missing_gpu() == [told + "Its driver may be missing."]
    on_gpu = options(tiny.target, gpu_layers=9)
    notes = usable_pair(on_gpu, None, lenient=False, trial=False).notes
    assert [note for note in notes if told in note] == missing_gpu()
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    notes = usable_pair(on_gpu, None, lenient=False, trial=False).notes
    assert notes[-2].endswith("--n-gpu-layers.") and told in notes[-1]


def test_reasons(tiny: TinyFiles) -> None:
    plain, recurrent = read_header(tiny.target), read_header(tiny.recurrent)

    def reason(target: object = plain, draft: object = plain, **changes: object) -> str:
        asked = options(tiny.target, **{"branches": 2} | changes)
        return no_trees_reason(target, draft, asked) or ""  # type: ignore[arg-type]

    assert reason() == reason(draft=recurrent) == ""
    assert "only a draft model" in reason(draft=None)
    assert "recurrent" in reason(recurrent)
    assert "--parallel" in reason(parallel=2)
    assert "heads" in reason(draft=None, load_heads=True)
    assert "--exact" in reason(exact=True)
    assert reason(recurrent, branches=1) == ""  # which nobody need be told


def test_who_asks_for_trees_where_none_are_can_be_told_why(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sliding = write_tiny_model(tmp_path / "sliding.gguf", seed=1, layers=4, window=32)
    for path, word in ((tiny.target, ""), (tiny.recurrent, "recurrent"), (sliding, "sliding")):
        with Engine.load(options(path, branches=2), options(tiny.draft)) as engine:
            assert (engine.target.tree is None) == bool(word)
            assert word in (engine.no_trees_reason or "") and bool(word) == bool(
                engine.no_trees_reason
            )
            assert engine.no_trees_reason not in engine.notes  # most asked for nothing
    monkeypatch.setattr(llama_library.library(), "llama_memory_seq_rm", lambda *given: False)
    with Engine.load(options(tiny.target, branches=2), options(tiny.draft)) as engine:
        assert engine.target.tree is None and "cannot roll it back" in (
            engine.no_trees_reason or ""
        )


def test_without_a_draft_the_context_is_one_of_chains(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target, branches=3)) as engine:
        assert engine.target.tree is None and "draft" in (engine.no_trees_reason or "")
        assert llama_library.library().llama_n_seq_max(engine.target.context) == 1


def test_heads_beside_a_target_keep_its_chain(architecture: Callable[[str], Path]) -> None:
    target, heads = architecture("llama"), architecture("eagle3")
    with Engine.load(options(target, branches=3), options(heads)) as engine:
        assert engine.target.tree is None and "heads" in (engine.no_trees_reason or "")
        assert llama_library.library().llama_n_seq_max(engine.target.context) == 1


def test_only_the_target_gets_trees_and_its_profile_is_the_same(tiny: TinyFiles) -> None:
    """What passes cost was learnt of chains, which cost what they did."""
    pair = options(tiny.target), options(tiny.draft, branches=3)
    with Engine.load(*pair) as chains:
        prompt = random_ids(30)
        said, profile = fresh(chains, prompt, GREEDY, 4).tokens, chains.profile.path
        memory = chains.target.memory.kv
    with Engine.load(replace(pair[0], branches=3), pair[1]) as engine:
        assert engine.target.tree is not None
        assert engine.draft is not None and engine.draft.tree is None
        assert engine.target.memory.kv == memory
        assert fresh(engine, prompt, GREEDY, 4).tokens == said
        assert engine.profile.path == profile
        told = [side["branches"] for side in engine.settings().values()]  # type: ignore[index]
        assert told == [3, 1]
