"""scripts/build_bundle.sh against a made-up machine."""

import zipfile
from pathlib import Path

import pytest

from tests.support.programs.build_machine import Machine, only_linux

pytestmark = only_linux

EVERY_PROCESSOR = (
    "-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON "
    "-DCMAKE_INSTALL_BINDIR=llama_cpp/lib"
).split()


@pytest.fixture
def box(tmp_path: Path) -> Machine:
    """A machine with a compiler of C++, nvcc and glslc."""
    machine = Machine(tmp_path / "a box", "build_bundle.sh", "build_cuda.sh", "build_vulkan.sh")
    machine.program("bin/c++", "cat > /dev/null; echo 309")
    machine.program("bin/glslc", "")
    return machine


def test_llama_cpp_for_every_processor_and_all_that_localspec_needs(box: Machine) -> None:
    llama_cpp, rest = box.commands("a folder")
    assert "--wheel-dir" in llama_cpp and "a folder" in llama_cpp
    assert box.cmake_args("a folder") == EVERY_PROCESSOR
    project = f"{box.root}/project"
    assert rest[1:] == [
        *"-m pip wheel --wheel-dir".split(),
        *["a folder", "--find-links", "a folder"],
        *["--constraint", f"{project}/constraints.txt", f"{project}[serve]"],
    ]


def test_cmake_args_of_the_user_come_last(box: Machine) -> None:
    box.env["CMAKE_ARGS"] = "-DGGML_CPU_ALL_VARIANTS=OFF"
    assert box.cmake_args("out") == [*EVERY_PROCESSOR, "-DGGML_CPU_ALL_VARIANTS=OFF"]


def test_devices_add_what_their_own_scripts_say(box: Machine) -> None:
    assert box.cmake_args("out", "--vulkan") == ["-DGGML_VULKAN=ON", *EVERY_PROCESSOR]
    box.cards("8.6")
    both = box.cmake_args("--cuda", "out", "--vulkan")
    assert "-DGGML_CUDA=ON" in both
    assert both[-5:] == ["-DGGML_VULKAN=ON", *EVERY_PROCESSOR]


def test_options_of_the_devices_own_scripts(box: Machine) -> None:
    headers = f"{box.root}/new headers"
    found = [f"-DVulkan_INCLUDE_DIR={headers}", *EVERY_PROCESSOR]
    assert box.cmake_args("out", "--vulkan", "--include", headers) == ["-DGGML_VULKAN=ON", *found]
    box.cards("8.6")
    assert "-DCMAKE_CUDA_ARCHITECTURES=80" in box.cmake_args("out", "--cuda", "--arch", "80")
    both = box.cmake_args("out", "--cuda", "--arch", "80", "--vulkan", "--include", headers)
    assert "-DCMAKE_CUDA_ARCHITECTURES=80" in both
    assert both[-6:] == ["-DGGML_VULKAN=ON", *found]


@pytest.mark.parametrize("devices", [["--vulkan"], ["--vulkan", "--cuda"]])
def test_what_a_device_lacks_is_named(box: Machine, devices: list[str]) -> None:
    box.cards("8.6")
    (box.root / "bin/glslc").unlink()
    done = box.run("--dry-run", "out", *devices)
    assert done.returncode == 1 and "build_vulkan: No glslc" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["one", "two"],
        ["out", "--cuda", "--arch"],
        ["out", "--jobs"],
        ["out", "--arch", "80"],
        ["out", "--include", "folder"],
    ],
)
def test_a_wrong_use(box: Machine, arguments: list[str]) -> None:
    done = box.run("--dry-run", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "bash scripts/build_bundle.sh" in done.stderr


def test_help(box: Machine) -> None:
    done = box.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in "OUT --python --vulkan --include --cuda --arch --jobs --dry-run --no-index".split():
        assert word in done.stdout


@pytest.mark.parametrize(("library", "code"), [("libggml-cpu-x64.so", 0), ("libggml-cpu.so", 1)])
def test_the_wheel_is_looked_into(box: Machine, library: str, code: int) -> None:
    wheel = box.write("made/llama_cpp_python-9.8.7-py3-none-linux.whl", "")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llama_cpp/lib/{library}", bytes(3 << 20))
    done = box.run(str(wheel.parent))
    assert done.returncode == code and str(wheel.parent) in done.stdout + done.stderr
