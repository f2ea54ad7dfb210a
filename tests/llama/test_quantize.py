"""Quantization in a child process: types, failures and Ctrl-C."""

import os
import time
from pathlib import Path

import pytest

from localspec.core.errors import DraftNotMade, UsageError
from localspec.llama.quantize import TYPES, require_type, write_quantized
from localspec.metadata.header import read_header
from tests.support.command import as_child
from tests.support.files.gguf_files import write_gguf
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import TinyFiles


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose rows are long enough for every type."""
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    return write_tiny_model(path, seed=1, embedding=256, heads=4, feed_forward=256)


@pytest.mark.llama
@pytest.mark.parametrize("name", TYPES)
def test_every_type_offered_is_written(wide: Path, tmp_path: Path, name: str) -> None:
    output = tmp_path / "small.gguf"
    write_quantized(wide, output, name)
    made = read_header(output)
    assert made.quantization == name
    assert {tensor.name for tensor in made.tensors} == {t.name for t in read_header(wide).tensors}


@pytest.mark.llama
def test_layers_go_and_the_others_get_their_numbers(tiny: TinyFiles, tmp_path: Path) -> None:
    output = tmp_path / "one.gguf"
    write_quantized(tiny.target, output, "q8_0", without=[0])
    made = read_header(output)
    assert made.block_count == 1
    assert {t.name.split(".")[1] for t in made.tensors if t.name.startswith("blk.")} == {"0"}


@pytest.mark.parametrize("name", ["IQ2_XS", "iq1_s", "Q2_K_S"])
def test_a_type_that_needs_a_matrix_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(UsageError, match="importance matrix"):
        require_type(name)


def test_an_unknown_type_is_told_the_known_ones() -> None:
    assert require_type("q4_k") == "Q4_K_M"
    with pytest.raises(UsageError, match="no type 'Q7'") as refused:
        require_type("Q7")
    assert "Q4_0" in refused.value.hint


@pytest.mark.llama
def test_a_file_that_llama_cpp_refuses_leaves_nothing(tmp_path: Path) -> None:
    broken = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"})
    with pytest.raises(DraftNotMade, match="llama.context_length"):
        write_quantized(broken, tmp_path / "out.gguf", "Q8_0")
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.llama
def test_a_file_that_makes_llama_cpp_abort_ends_the_child_only(tmp_path: Path) -> None:
    keys = {"general.architecture": "llama", "llama.context_length": 64, "llama.block_count": 5000}
    keys["llama.embedding_length"] = 64
    broken = write_gguf(tmp_path / "m.gguf", keys)
    with pytest.raises(DraftNotMade, match="GGML_ASSERT.*n_layer"):
        write_quantized(broken, tmp_path / "out.gguf", "Q8_0")
    assert not list(tmp_path.glob("*out*"))


def test_ctrl_c_ends_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "open(asked['output'], 'w').write('half')\n"
        f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
        "os.kill(os.getppid(), 2)\n"
        "time.sleep(600)"
    )
    as_child(monkeypatch, tmp_path, code)
    with pytest.raises(KeyboardInterrupt):
        write_quantized(tmp_path / "m.gguf", tmp_path / "out.gguf", "Q8_0")
    with pytest.raises(ProcessLookupError):
        for _ in range(1000):
            os.kill(int(pid_file.read_text()), 0)
            time.sleep(0.01)
