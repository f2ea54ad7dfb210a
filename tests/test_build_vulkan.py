"""scripts/build_vulkan.sh against a made-up machine: fake compilers and headers."""

import zipfile
from pathlib import Path

import pytest

from tests.support.programs.build_machine import Machine, only_linux

pytestmark = only_linux

# The compiler tells which headers there are, and refuses what old ones lack.
COMPILER = 'cat > /dev/null; case "$*" in *-E*) echo "{version}" ;; *) exit {code} ;; esac'


@pytest.fixture
def box(tmp_path: Path) -> Machine:
    """A machine that has everything, with new headers."""
    machine = Machine(tmp_path / "a box", "build_vulkan.sh")
    machine.program("bin/glslc", "")
    machine.program("bin/c++", COMPILER.format(version=309, code=0))
    return machine


def test_the_pinned_version_is_built_with_vulkan(box: Machine) -> None:
    install, rest = box.commands()
    assert install[-3:] == ["--no-binary", "llama-cpp-python", "llama-cpp-python==9.8.7"]
    assert box.cmake_args() == ["-DGGML_VULKAN=ON"]
    assert rest[1:] == "-m pip install llama-cpp-python==9.8.7".split()


def test_headers_of_another_folder(box: Machine) -> None:
    folder = "/new headers/usr/include"
    assert box.cmake_args("--include", folder)[1] == f"-DVulkan_INCLUDE_DIR={folder}"
    box.env["VULKAN_SDK"] = str(box.root / "sdk")
    assert "No glslc" in box.refused()
    box.program("sdk/bin/glslc", "")
    assert box.cmake_args()[1] == f"-DVulkan_INCLUDE_DIR={box.root}/sdk/include"


def test_cmake_args_of_the_user_come_last(box: Machine) -> None:
    box.env["CMAKE_ARGS"] = "-DGGML_NATIVE=OFF"
    assert box.cmake_args() == ["-DGGML_VULKAN=ON", "-DGGML_NATIVE=OFF"]


def test_what_is_missing_is_named(box: Machine) -> None:
    box.program("bin/c++", COMPILER.format(version=239, code=1))
    assert "version 239" in box.refused() and "--include" in box.refused()
    box.program("bin/c++", "exit 1")
    assert "No Vulkan headers" in box.refused()
    (box.root / "bin/glslc").unlink()
    assert "No glslc" in box.refused() and "apt-get install glslc" in box.refused()
    (box.root / "bin/c++").unlink()
    assert "No C++ compiler" in box.refused()


@pytest.mark.parametrize("arguments", [["--arch", "86"], ["--jobs", "0"], ["--include"]])
def test_a_wrong_option(box: Machine, arguments: list[str]) -> None:
    done = box.run("--dry-run", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[0] in done.stderr and "bash scripts/build_vulkan.sh --help" in done.stderr


def test_help(box: Machine) -> None:
    done = box.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in "--python --include --jobs --wheel-dir --dry-run spirv-headers Fedora".split():
        assert word in done.stdout


@pytest.mark.parametrize(("library", "code"), [("libggml-vulkan.so", 0), ("libggml-cpu.so", 1)])
def test_the_wheel_is_looked_into(box: Machine, library: str, code: int) -> None:
    wheel = box.write("made/llama_cpp_python-9.8.7-py3-none-linux.whl", "")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llama_cpp/lib/{library}", bytes(3 << 20))
    done = box.run("--wheel-dir", str(wheel.parent))
    assert done.returncode == code and str(wheel) in done.stdout + done.stderr
