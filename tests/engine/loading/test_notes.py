"""Notes: what a build or a machine lacks."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core import machine
from localspec.engine.engine import Engine
from localspec.engine.loading.notes import (
    missing_gpu,
    missing_kernels,
    refused_kernels,
)
from localspec.engine.loading.pair import usable_pair
from localspec.llama import llama_library
from tests.support.llama.row_kernels import FakeLibrary
from tests.support.real_pair import TinyFiles, options

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
