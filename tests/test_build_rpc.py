"""scripts/build_rpc.sh against a made-up machine: fake compiler and packages."""

import shlex
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.programs.build_machine import Machine, only_linux

pytestmark = only_linux

SERVER = "ggml-rpc-server"
COMPILES = 'for last; do :; done; echo "#!{shell}" > "$last"; chmod +x "$last"'
PIP = """case "$*" in
*"show --files"*) echo llama_cpp/lib/{library}.so ;;
*download*) for word; do
  [ "$before" != --dest ] || cat {archive} > "$word/llama_cpp_python-9.8.7.tar.gz"; before=$word
done ;;
esac"""


@pytest.fixture
def box(tmp_path: Path) -> Machine:
    """A machine that has everything."""
    machine = Machine(tmp_path / "a box", "build_rpc.sh")
    (machine.root / "bin/chmod").symlink_to(str(shutil.which("chmod")))
    machine.env["TMPDIR"] = str(machine.root)
    machine.program("bin/c++", COMPILES.format(shell=shutil.which("bash")))
    folders = {"platlib": str(machine.site), "scripts": str(machine.root / "venv/bin")}
    machine.write("site/sysconfig.py", f"get_path = {folders}.__getitem__")
    with tarfile.open(machine.root / "bindings.tar.gz", "w:gz"):
        pass
    pip(machine, "libggml-rpc")
    return machine


def pip(machine: Machine, library: str) -> None:
    """A pip that installs this library, and whose download is an archive with nothing in it."""
    archive = shlex.quote(str(machine.root / "bindings.tar.gz"))
    machine.python(PIP.format(library=library, archive=archive))


def test_bindings_and_server_are_of_the_pinned_version(box: Machine) -> None:
    install, _, download, unpack, compiled = box.commands()
    assert box.cmake_args() == ["-DGGML_RPC=ON"]
    assert install[-3:] == ["--no-binary", "llama-cpp-python", "llama-cpp-python==9.8.7"]
    assert "--force-reinstall" in install
    assert download[-1] == "llama-cpp-python==9.8.7" and "download" in download
    assert unpack[-2].endswith("llama_cpp_python-9.8.7.tar.gz")
    assert compiled[0] == f"{box.root}/bin/c++"
    assert compiled[-1].endswith(f"/bin/{SERVER}")


def test_the_server_finds_its_libraries_from_where_it_lies(box: Machine) -> None:
    (compiled,) = [words for words in box.commands() if words[0].endswith("c++")]
    assert "-Wl,-rpath,$ORIGIN/../../site/llama_cpp/lib" in compiled
    assert f"-L{box.site}/llama_cpp/lib" in compiled


def test_cmake_args_of_the_user_come_last(box: Machine) -> None:
    box.env["CMAKE_ARGS"] = "-DGGML_NATIVE=OFF -DX='a b'"
    assert box.cmake_args() == ["-DGGML_RPC=ON", "-DGGML_NATIVE=OFF", "-DX=a b"]


def test_a_wheel_is_built_and_nothing_installed(box: Machine) -> None:
    (wheel,) = box.commands("--wheel-dir", "my wheels")
    assert wheel[wheel.index("pip") :][1:4] == ["wheel", "--wheel-dir", "my wheels"]


def test_the_server_alone(box: Machine) -> None:
    assert "has no RPC" in box.refused("--server-only")
    box.write("site/llama_cpp/lib/libggml-rpc.so", "")
    download, _, compiled = box.commands("--server-only")
    assert "download" in download and compiled[-1].endswith(SERVER)


def test_a_compiler_is_needed(box: Machine) -> None:
    box.env["CXX"] = "g++-99"
    assert "No C++ compiler g++-99" in box.refused()
    box.program("bin/g++-99", "")
    assert box.commands()[-1][0] == f"{box.root}/bin/g++-99"


@pytest.mark.parametrize(
    "arguments",
    [["--arch", "86"], ["--jobs", "0"], ["--wheel-dir"], ["--server-only", "--wheel-dir", "x"]],
)
def test_a_wrong_option(box: Machine, arguments: list[str]) -> None:
    done = box.run("--dry-run", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[0] in done.stderr and "bash scripts/build_rpc.sh --help" in done.stderr


def test_help(box: Machine) -> None:
    done = box.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in f"--python --jobs --wheel-dir --server-only --dry-run {SERVER} build_cuda".split():
        assert word in done.stdout


@pytest.mark.parametrize(("library", "code"), [("libggml-rpc.so", 0), ("libggml-cpu.so", 1)])
def test_the_wheel_is_looked_into(box: Machine, library: str, code: int) -> None:
    wheel = box.write("made/llama_cpp_python-9.8.7-py3-none-linux.whl", "")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llama_cpp/lib/{library}", bytes(3 << 20))
    done = box.run("--wheel-dir", str(wheel.parent))
    assert done.returncode == code and str(wheel) in done.stdout + done.stderr


def test_an_installation_without_rpc(box: Machine) -> None:
    pip(box, "libggml-cpu")
    done = box.run()
    assert done.returncode == 1 and "no libggml-rpc.so" in done.stderr


def test_the_server_is_started_to_see_whether_it_can(box: Machine) -> None:
    done = box.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"Built: {box.root}/venv/bin/{SERVER}\n")
    assert not list(box.root.glob("tmp.*"))  # what was fetched is gone
    box.program("bin/c++", COMPILES.format(shell="/nowhere/bash"))
    done = box.run()
    assert done.returncode == 1 and "does not start" in done.stderr
