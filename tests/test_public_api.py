"""The library's public names: complete, lazy, and the same objects as in their modules."""

import subprocess
import sys

import pytest

import localspec
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate


def test_public_names_are_those_of_their_modules() -> None:
    assert localspec.SamplingParams is SamplingParams
    assert localspec.stream_generate is stream_generate
    for name in localspec.__all__:
        assert getattr(localspec, name).__name__ == name
        assert name in dir(localspec)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'engines'"):
        localspec.engines  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, localspec; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "localspec" in loaded
    assert not {"llama_cpp", "numpy", "localspec.engine.engine"} & loaded
