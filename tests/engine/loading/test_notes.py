"""Notes: what a build or a machine lacks is said with what mends it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from localspec.core import machine
from localspec.engine.loading.notes import missing_gpu
from localspec.llama import llama_library

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
