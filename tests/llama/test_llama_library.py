"""Backend: llama.cpp's log kept and shown, its devices, its build, how its threads wait."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.core.errors import EngineError, UsageError
from localspec.llama import llama_library
from localspec.llama.llama_library import NativeLog
from tests.support.real_pair import TinyFiles, load_model

pytestmark = pytest.mark.llama

INFO, WARNING, ERROR, CONTINUED = 2, 3, 4, 5  # ggml_log_level


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=kept | environment
    )


def test_the_log_keeps_errors_and_joins_their_continuations() -> None:
    log = NativeLog()
    log.write(ERROR, "before the block\n")
    with log.watch() as errors:
        log.write(INFO, "all is well\n")
        log.write(CONTINUED, "still well\n")
        log.write(WARNING, "a context is long\n")
        log.write(ERROR, "load: no ")
        log.write(CONTINUED, "such tensor\n")
        log.write(ERROR, "and another\n")
        assert errors == []
    assert errors == ["load: no such tensor", "and another"]
    with log.watch() as errors:
        pass
    assert errors == []


def test_the_log_is_told_also_when_the_block_fails() -> None:
    log = NativeLog()
    with pytest.raises(ValueError), log.watch() as errors:
        log.write(ERROR, "the reason\n")
        raise ValueError
    assert errors == ["the reason"]


def test_the_log_of_a_model_of_many_layers_is_kept_whole() -> None:
    log = llama_library.NativeLog()
    with log.watch():
        for i in range(20_000):
            log.write(2, f"line {i}\n")
        assert len(log.lines()) == 20_000 and log.lines()[0] == "line 0\n"


def test_a_continuation_of_nothing_is_no_error() -> None:
    log = NativeLog()
    with log.watch() as errors:
        log.write(CONTINUED, "...")
    assert errors == []


def test_the_log_is_silent_unless_verbose(
    tiny: TinyFiles, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model(tiny.target).close()
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(llama_library.log, "verbose", True)
    load_model(tiny.target).close()
    out, err = capfd.readouterr()
    assert out == "" and "llama_model_loader" in err


def test_warnings_are_not_taken_for_the_reason(tiny: TinyFiles) -> None:
    # The context is stretched, which llama.cpp warns of first; flash attention is why it refuses.
    with pytest.raises(EngineError, match="(?i)flash"):
        load_model(tiny.target, ctx_size=2048, cache_type_v="q8_0", flash_attention="off")


@pytest.mark.parametrize(
    ("environment", "busy", "expected"),
    [
        ({}, False, llama_library.SPIN_COUNT),
        ({}, True, llama_library.SPIN_COUNT_BUSY),
        ({"GOMP_SPINCOUNT": "7"}, True, "7"),
        ({"OMP_WAIT_POLICY": "active"}, True, "None"),
    ],
)
def test_idle_threads_spin_briefly_unless_the_user_chose(
    environment: dict[str, str], busy: bool, expected: str
) -> None:
    code = (
        "import os; from localspec.llama import llama_library as backend; "
        f"backend.machine.is_busy = lambda: {busy}; "
        "assert 'GOMP_SPINCOUNT' not in os.environ or "
        "os.environ['GOMP_SPINCOUNT'] == '7'; backend.library(); "
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    done = python(code, **environment)
    assert (done.stdout.strip(), done.stderr) == (expected, "")


def test_a_missing_binding_is_an_error_with_a_way_out() -> None:
    code = """
import sys
from pathlib import Path
sys.modules["llama_cpp"] = None
from localspec.llama import llama_library as backend
from localspec.core.errors import EngineError
try:
    backend.library()
except EngineError as problem:
    print(problem.message, "|", problem.hint)
"""
    done = python(code)
    assert "llama-cpp-python cannot be loaded" in done.stdout, done.stderr
    assert "pip install --force-reinstall --no-deps --no-cache-dir" in done.stdout


def test_libraries_of_another_project_are_named(tmp_path: Path) -> None:
    code = """
from localspec.llama import llama_library as backend
from localspec.core.errors import EngineError
try:
    backend.library()
except EngineError as problem:
    print(problem.message, "|", problem.hint)
"""
    (tmp_path / "old").mkdir()
    shutil.copy(llama_library.libraries() / "libggml-base.so", tmp_path / "old" / "libllama.so")
    for name in "old", "gone":  # of another version, and none at all
        done = python(code, LLAMA_CPP_LIB_PATH=str(tmp_path / name))
        assert "llama-cpp-python cannot be loaded" in done.stdout, done.stderr
        assert f"| LLAMA_CPP_LIB_PATH names libraries in {tmp_path / name}: unset" in done.stdout


def test_an_empty_variable_is_as_if_unset(tmp_path: Path) -> None:
    code = "from localspec.llama import llama_library as l; l.library(); print(l.libraries())"
    done = python(code, LLAMA_CPP_LIB_PATH="")
    assert done.stdout.strip() == str(llama_library.libraries()), done.stderr


def test_devices_have_names_kinds_and_memory() -> None:
    devices = llama_library.devices()
    (cpu,) = [device for device in devices if device.kind == "CPU"]
    assert cpu.name == "CPU" and cpu.description and not cpu.is_gpu
    assert 0 < cpu.free <= cpu.total


@pytest.mark.parametrize("names", ["none", "cpu", "None", "CPU"])
def test_no_device_but_the_cpu(names: str) -> None:
    assert llama_library.choose_devices(names) == []


@pytest.mark.parametrize("names", ["CUDA99", "", "none,CUDA99", "CPU,CPU"])
def test_an_unknown_device_is_a_usage_error(names: str) -> None:
    with pytest.raises(UsageError, match="There is no device") as caught:
        llama_library.choose_devices(names)
    assert caught.value.exit_code == 2
    assert re.match(r"This build (knows: .*none|has no GPU: leave --device out)", caught.value.hint)


def test_devices_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        llama_library.Device(name, name, kind, 1, 2, handle)
        for handle, (name, kind) in enumerate([("CPU", "CPU"), ("CUDA0", "GPU"), ("CUDA1", "GPU")])
    ]
    monkeypatch.setattr(llama_library, "devices", lambda: made)
    assert llama_library.choose_devices("cuda1, CUDA0") == [made[2], made[1]]
    with pytest.raises(UsageError) as caught:
        llama_library.choose_devices("cuda2")
    assert caught.value.hint == "This build knows: CUDA0, CUDA1, none."


def test_buffer_types_include_the_cpus() -> None:
    assert llama_library.buffer_types()["CPU"]


def test_the_build_is_told() -> None:
    import llama_cpp

    build = llama_library.build()
    assert build.bindings == llama_cpp.__version__
    assert build.llama_cpp and "CPU" in build.features
    assert build.gpu_offload == any(device.is_gpu for device in llama_library.devices())


def test_models_use_the_extra_buffer_types_of_the_build_but_amx() -> None:
    found = python(
        "from localspec.llama import llama_library as l, parameters\n"
        "from localspec.core.options.load_options import LoadOptions\n"
        "before = l.extra_buffer_types()\n"
        "parameters.model_parameters(LoadOptions('x.gguf'))\n"
        "print(*before, '|', *l.extra_buffer_types())"
    )
    before, after = found.stdout.strip().split("|")
    assert after.split() == [name for name in before.split() if name != "AMX"]


class Backends:
    """libggml with backends that are libraries of their own."""

    def __init__(self, *found: bytes) -> None:
        self.found, self.asked, self.loaded = found, list[bytes](), 0

        def count() -> int:
            return self.loaded

        def load(folder: bytes) -> None:
            self.asked.append(folder)
            self.loaded = len(self.found)

        self.ggml_backend_reg_count, self.ggml_backend_load_all_from_path = count, load


def test_backends_are_loaded_from_llama_cpps_own_folder_alone() -> None:
    ggml = Backends(b"CPU")
    llama_library._load_backends(ggml)
    llama_library._load_backends(ggml)
    assert ggml.asked == [os.fsencode(llama_library.libraries())]
    assert (llama_library.libraries() / "libllama.so").exists() or sys.platform != "linux"


def test_no_backend_for_this_processor() -> None:
    with pytest.raises(EngineError, match="no backend for this processor"):
        llama_library._load_backends(Backends())


@pytest.mark.skipif(sys.platform != "linux", reason="names of libraries on Linux")
def test_backends_that_are_not_loaded_have_a_reason(tmp_path: Path) -> None:
    assert llama_library.backends(tmp_path / "none") == {}
    llama_library.library()
    for name in "base", "cpu-x64", "cpu-haswell", "cuda":
        shutil.copy(llama_library.libraries() / "libggml-base.so", tmp_path / f"libggml-{name}.so")
    (tmp_path / "libggml-vulkan.so").write_bytes(b"no library")
    ctypes.CDLL(str(tmp_path / "libggml-cpu-haswell.so"))
    found = llama_library.backends(tmp_path)
    assert list(found) == ["cpu-haswell", "cuda", "vulkan"]
    assert found["cpu-haswell"] is None and found["cuda"] == "it finds no device"
    assert "libggml-vulkan.so" in str(found["vulkan"])
    assert llama_library.backends(tmp_path) == found


@pytest.mark.skipif(sys.platform != "linux", reason="names of libraries and /proc of Linux")
def test_another_folder_of_libraries_is_used_alone(tmp_path: Path) -> None:
    shutil.copytree(llama_library.libraries(), tmp_path / "lib", symlinks=True)
    found = python(
        "from localspec.llama import llama_library as l\n"
        "print(l.libraries(), len(l.devices()), l.build().llama_cpp)\n"
        "print({line.split()[-1] for line in open('/proc/self/maps') if 'libggml' in line"
        " or 'libllama' in line})",
        LLAMA_CPP_LIB_PATH=str(tmp_path / "lib"),
    )
    assert found.returncode == 0, found.stderr
    used, files = found.stdout.splitlines()
    assert used.startswith(str(tmp_path / "lib")) and str(tmp_path / "lib/libggml.so") in files
    assert str(llama_library.libraries()) not in files
