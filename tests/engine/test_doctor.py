"""Doctor: facts about the machine and the build; what fails becomes advice."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from localspec import __version__
from localspec.core import machine, paths, worker
from localspec.core.errors import EngineError
from localspec.core.worker import Ended
from localspec.engine import doctor
from localspec.engine.doctor import examine
from localspec.engine.loading import exact_passes, first_use
from localspec.engine.loading.notes import missing_kernels
from localspec.llama import llama_library
from tests.support.llama.row_kernels import FakeLibrary
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama


def test_facts_are_there_and_the_demo_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_passes, "_WORTH_TELLING", 0)
    said: list[str] = []
    result = examine(said.append)
    assert any("for up to a minute" in sentence for sentence in said)
    assert result.healthy
    facts = result.facts
    assert list(facts)[:5] == ["localspec", "python", "system", "cpu", "physical_cores"]
    assert facts["localspec"] == __version__
    assert facts["llama_cpp_python"] == llama_library.build().bindings
    assert facts["cache_folder"] == str(paths.cache_folder())
    assert facts["prediction_heads"] is True
    assert facts["rpc"] is llama_library.library().llama_supports_rpc()
    devices = facts["devices"]
    assert isinstance(devices, list) and devices[0]["name"] == "CPU"
    assert str(facts["demo"]).startswith("runs: ") and "drafted accepted" in str(facts["demo"])
    kernels = facts["row_kernels"] != "not in this build"
    words = "a draft changes no text" if kernels else "without --exact, drafted texts may differ"
    assert str(facts["exact"]).startswith(words)
    assert json.loads(json.dumps(asdict(result)))["healthy"] is True


def test_a_missing_demo_pair_becomes_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PACKAGE", Path("/nowhere/localspec"))
    monkeypatch.setattr(paths, "CHECKOUT", Path("/nowhere"))
    result = examine()
    assert not result.healthy
    assert str(result.facts["demo"]).startswith("fails: The bundled demo model")
    assert any("Reinstall localspec" in sentence for sentence in result.advice)
    assert result.facts["llama_cpp_python"]  # the rest was asked all the same


def test_a_damaged_demo_pair_becomes_advice(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "draft.gguf"
    damaged.write_bytes(tiny.draft.read_bytes()[:5000])
    monkeypatch.setattr(paths, "demo_pair", lambda: (tiny.target, damaged))
    result = examine()
    assert not result.healthy
    assert "cut short" in str(result.facts["demo"])
    assert result.advice


def test_a_library_that_cannot_be_loaded_becomes_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise EngineError("llama-cpp-python cannot be loaded: boom", "Reinstall it.")

    monkeypatch.setattr(llama_library, "build", broken)
    result = examine()
    assert not result.healthy
    assert result.facts["demo"] == "fails: llama-cpp-python cannot be loaded: boom"
    assert result.advice[-1] == "Reinstall it."
    assert "llama_cpp" not in result.facts


def test_a_crash_on_a_device_becomes_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_use, "uses_devices", lambda options: options.device != "none")

    def ask(module: str, question: Any, patience: float) -> Ended:
        on_cpu = all(each["device"] == "none" for each in question["models"])
        return Ended(0 if on_cpu else -11, "{}", "")

    monkeypatch.setattr(worker, "ask", ask)
    result = examine()
    assert not result.healthy and "ends by SIGSEGV" in str(result.facts["demo"])
    assert any("--device none" in sentence for sentence in result.advice)


def test_little_memory_and_an_unused_gpu_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "missing_kernels", lambda: [])
    monkeypatch.setattr(doctor, "_try_demo", lambda result: "runs")
    monkeypatch.setattr(machine, "memory", lambda: (2**30, 2**34))
    monkeypatch.setattr(doctor, "missing_gpu", lambda any_maker: ["Build it for the GPU."])
    result = examine()
    assert result.healthy
    assert "Less than 2 GB" in result.advice[0]
    assert result.advice[1] == "Build it for the GPU."
    monkeypatch.setattr(machine, "memory", lambda: None)
    assert "memory_total" not in examine().facts


def test_missing_kernels_can_be_built(no_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_try_demo", lambda result: "runs")
    result = examine()
    assert result.healthy and result.facts["row_kernels"] == "not in this build"
    assert [each for each in result.advice if "row kernels" in each] == missing_kernels()


@pytest.mark.parametrize(
    ("form", "wrong", "fact"),
    [
        ("AVX2", -1, "AVX2"),
        ("", -1, "none for the kind of processor that this build is for"),
        ("AVX2", 12, "AVX2, refused"),
    ],
)
def test_kernels_are_named_and_wrong_ones_are_a_failure(
    form: str, wrong: int, fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeLibrary(form, wrong=wrong).install(monkeypatch)
    monkeypatch.setattr(doctor, "_try_demo", lambda result: "runs")
    monkeypatch.setattr(doctor, "_exact", lambda say: "found")
    result = examine()
    assert result.facts["row_kernels"] == fact and result.healthy == (wrong < 0)
    assert sum("in Q4_K is wrong" in each for each in result.advice) == (wrong == 12)
    assert ("row kernels" in str(result.facts["flash_attention"])) == (fact == "AVX2")


def test_a_build_without_hidden_states_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise EngineError("This build cannot read hidden states.", "Install another.")

    monkeypatch.setattr(doctor, "unstable", missing)
    result = examine()
    assert result.healthy and result.facts["prediction_heads"] is False
    assert "This build cannot read hidden states. Install another." in result.advice
