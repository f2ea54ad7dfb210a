"""scripts/build_cuda.sh against a made-up machine: fake nvcc, nvidia-smi, toolkit and packages."""

import shlex
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.support.programs.build_machine import ROOT, TARGET, Machine, only_linux

pytestmark = only_linux


@pytest.fixture
def box(tmp_path: Path) -> Machine:
    """A machine that has everything, with one card of an RTX 30."""
    machine = Machine(tmp_path / "a box", "build_cuda.sh")
    machine.cards("8.6")
    return machine


# -- the command ---------------------------------------------------------------------------


def test_pip_rebuilds_the_pinned_version(box: Machine) -> None:
    *_, install, rest = box.commands()
    pip = install.index("-m")
    assert install[pip - 1 : pip + 3] == [
        box.env["VIRTUAL_ENV"] + "/bin/python3",
        *"-m pip install".split(),
    ]
    assert install[pip + 3 :] == [
        "--force-reinstall",
        "--no-deps",
        "--no-cache-dir",
        "--no-binary",
        "llama-cpp-python",
        "FOLDER/llama_cpp_python-9.8.7",
    ]
    assert rest[1:] == "-m pip install llama-cpp-python==9.8.7".split()


def test_the_version_is_the_one_of_pyproject(box: Machine) -> None:
    box.pin("1.2.3")
    assert box.build()[-1].endswith("llama_cpp_python-1.2.3")
    assert box.build("--unpatched")[-1] == "llama-cpp-python==1.2.3"
    box.write("project/pyproject.toml", "dependencies = []\n")
    assert "pins no llama-cpp-python" in box.refused()


def test_the_real_pyproject_pins_it(box: Machine) -> None:
    shutil.copy(ROOT / "pyproject.toml", box.root / "project")
    assert box.build("--unpatched")[-1].startswith("llama-cpp-python==0.")


def test_a_wheel_is_built_and_nothing_installed(box: Machine) -> None:
    *_, wheel = box.commands("--wheel-dir", "my wheels")
    assert wheel[wheel.index("pip") :][1:4] == ["wheel", "--wheel-dir", "my wheels"]
    assert "install" not in wheel


def test_a_dry_run_runs_nothing(box: Machine) -> None:
    box.python(f'case "$*" in *--version) exit 0 ;; esac; echo > {shlex.quote(str(box.root))}/ran')
    box.commands()
    assert not (box.root / "ran").exists()
    box.run()
    assert (box.root / "ran").exists()


def test_another_python(box: Machine) -> None:
    del box.env["VIRTUAL_ENV"]
    assert "--python" in box.refused()
    python = str(box.root / "venv/bin/python3")
    assert all(python in words for words in box.commands("--python", python))


def test_a_python_without_pip(box: Machine) -> None:
    box.python("exit 1")
    assert "-m ensurepip" in box.refused()


def test_cmake_args_of_the_user_come_last(box: Machine) -> None:
    box.env["CMAKE_ARGS"] = "-DGGML_NATIVE=OFF -DX='a b'"
    found = box.cmake_args()
    assert found[-2:] == ["-DGGML_NATIVE=OFF", "-DX=a b"]
    assert found[0] == "-DGGML_CUDA=ON"


@pytest.mark.parametrize(
    ("cores", "free", "jobs"), [("8", 40, "8"), ("8", 7, "3"), ("8", 1, "1"), ("1", 40, "1")]
)
def test_jobs_are_bounded_by_cores_and_memory(
    box: Machine, cores: str, free: int, jobs: str
) -> None:
    box.program("bin/nproc", f"echo {cores}")
    box.write("meminfo", f"MemAvailable:   {free * 2**20} kB\n")
    assert f"CMAKE_BUILD_PARALLEL_LEVEL={jobs}" in box.build()
    assert "CMAKE_BUILD_PARALLEL_LEVEL=5" in box.build("--jobs", "5")


# -- the patch -----------------------------------------------------------------------------


def test_the_sources_are_patched_before_they_are_built(box: Machine) -> None:
    download, unpack, patch, *_ = box.commands()
    assert download[1:4] == ["-m", "pip", "download"] and download[-1] == "llama-cpp-python==9.8.7"
    assert unpack[1:] == ["-m", "tarfile", "-e", "FOLDER/llama_cpp_python-9.8.7.tar.gz", "FOLDER"]
    scripts = box.root / "project/scripts"
    assert patch[1:] == [
        str(scripts / "apply_patch.py"),
        str(scripts / "kept_graphs.patch"),
        "FOLDER/llama_cpp_python-9.8.7",
    ]
    install, _ = box.commands("--unpatched")
    assert "install" in install


def test_a_patch_that_does_not_fit_builds_nothing(box: Machine) -> None:
    built = f'case "$*" in *install*) echo > {shlex.quote(str(box.root))}/built ;; esac'
    box.python(built, patch="echo does not fit >&2; exit 1")
    done = box.run()
    assert done.returncode == 1 and not (box.root / "built").exists()
    assert done.stderr.endswith("Build without the patch: --unpatched\n")
    assert "does not fit" in done.stderr
    box.run("--unpatched")
    assert (box.root / "built").exists()


# -- architectures -------------------------------------------------------------------------


def architectures(machine: Machine, *arguments: str) -> str:
    return {k: v for k, _, v in (a.partition("=") for a in machine.cmake_args(*arguments))}[
        "-DCMAKE_CUDA_ARCHITECTURES"
    ]


def test_architectures_of_this_machine(box: Machine) -> None:
    assert architectures(box) == "86"
    box.cards("9.0", "8.6", "9.0", "[N/A]")
    assert architectures(box) == "86;90"


@pytest.mark.parametrize(
    ("given", "built"), [("86", "86"), ("8.6", "86"), ("80;90", "80;90"), ("8.0;12.0", "80;120")]
)
def test_architectures_asked_for(box: Machine, given: str, built: str) -> None:
    box.cards("7.5")
    assert architectures(box, "--arch", given) == built


def test_no_card_and_no_architecture(box: Machine) -> None:
    box.cards()
    said = box.refused()
    for example in "--arch", "75 Turing", "86 RTX 30", "90 H100":
        assert example in said
    assert architectures(box, "--arch", "90") == "90"


def test_an_architecture_that_nvcc_does_not_know(box: Machine) -> None:
    said = box.refused("--arch", "86;61")
    assert "61" in said and "75 80 86 90 120." in said
    box.nvcc("13.0", "61 86")
    assert architectures(box, "--arch", "86;61") == "86;61"


# -- nvcc ----------------------------------------------------------------------------------


def test_nvcc_is_found_where_it_may_be(box: Machine) -> None:
    def compiler() -> str:
        (found,) = [a for a in box.cmake_args() if a.startswith("-DCMAKE_CUDA_COMPILER=")]
        return found.partition("=")[2]

    usual = box.toolkit / "bin/nvcc"
    assert compiler() == str(usual)
    for name, variable in (
        ("bin/nvcc", None),
        ("path/bin/nvcc", "CUDA_PATH"),
        ("home/bin/nvcc", "CUDA_HOME"),
        ("named/nvcc-13", "CUDACXX"),
    ):
        path = box.program(name, f'exec {shlex.quote(str(usual))} "$@"')
        if variable:
            box.env[variable] = str(path if variable == "CUDACXX" else path.parents[1])
        assert compiler() == str(path)
    assert f"-DCUDAToolkit_ROOT={box.toolkit}" in box.cmake_args()


def test_no_nvcc(box: Machine) -> None:
    (box.toolkit / "bin/nvcc").unlink()
    assert "No nvcc" in box.refused() and "CUDA_HOME=" in box.refused()
    box.env["CUDACXX"] = "/nowhere/nvcc"
    assert "CUDACXX says /nowhere/nvcc" in box.refused()


def test_an_nvcc_that_does_not_answer(box: Machine) -> None:
    box.program("usr/cuda-13.0/bin/nvcc", "exit 1")
    assert "does not tell its release" in box.refused()


# -- cuBLAS --------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["lib64", f"targets/{TARGET}-linux/lib"])
def test_cublas_of_the_toolkit(box: Machine, folder: str) -> None:
    box.without_cublas()
    box.cublas(box.toolkit / folder, "13")
    box.cublas(box.site / "nvidia/cu13/lib", "13")
    found = box.cmake_args()
    assert f"-DCUDA_cublas_LIBRARY={box.toolkit}/{folder}/libcublas.so.13" in found
    assert f"-DCUDA_cublasLt_LIBRARY={box.toolkit}/{folder}/libcublasLt.so.13" in found
    assert not [a for a in found if a.startswith("-DCMAKE_CUDA_FLAGS")]


def test_cublas_where_nvcc_links_from(box: Machine) -> None:
    box.without_cublas()
    box.cublas(box.root / "distribution/lib", "13")
    nvcc = box.toolkit / "bin/nvcc"
    says = f'#$ LIBRARIES=  "-L{box.root}/distribution/lib/stubs" "-L{box.root}/distribution/lib"'
    nvcc.write_text(nvcc.read_text().replace("*) echo", f"*) echo {shlex.quote(says)} >&2; echo"))
    box.write("distribution/lib/stubs/libcuda.so", "")
    found = dict(a.split("=", 1) for a in box.cmake_args())
    libraries = f"{box.root}/distribution/lib"
    assert found["-DCUDA_cublas_LIBRARY"] == f"{libraries}/libcublas.so.13"
    assert found["-DCUDA_cuda_driver_LIBRARY"] == f"{libraries}/stubs/libcuda.so"
    # A stub must never be found at run time.
    (rpath,) = shlex.split(found["-DCMAKE_SHARED_LINKER_FLAGS"])
    assert rpath.endswith(f"/cu13/lib:{libraries}")


@pytest.mark.parametrize(
    ("release", "folder", "beside"),
    [
        ("13.0", "cu13", ["cu13/lib"]),
        ("12.8", "cublas", ["cublas/lib", "cuda_runtime/lib"]),
    ],
)
def test_cublas_of_pip(box: Machine, release: str, folder: str, beside: list[str]) -> None:
    major = release.partition(".")[0]
    box.without_cublas()
    (box.toolkit / "lib64").mkdir()
    box.nvcc(release)
    box.cublas(box.site / f"nvidia/{folder}/lib", major)
    found = dict(a.split("=", 1) for a in box.cmake_args())
    packages = f"{box.site}/nvidia/{folder}"
    assert found["-DCUDA_cublas_LIBRARY"] == f"{packages}/lib/libcublas.so.{major}"
    assert found["-DCUDA_cublasLt_LIBRARY"] == f"{packages}/lib/libcublasLt.so.{major}"
    # What follows is text for one more shell, the one that runs the compiler.
    assert shlex.split(found["-DCMAKE_CUDA_FLAGS"]) == [f"-isystem={packages}/include"]
    rpath = [f"$ORIGIN/../../nvidia/{name}" for name in beside] + [f"{box.toolkit}/lib64"]
    assert shlex.split(found["-DCMAKE_SHARED_LINKER_FLAGS"]) == ["-Wl,-rpath," + ":".join(rpath)]


@pytest.mark.parametrize(
    ("release", "package"), [("13.0", "nvidia-cublas==13.*"), ("12.8", "nvidia-cublas-cu12")]
)
def test_no_cublas(box: Machine, release: str, package: str) -> None:
    box.without_cublas()
    box.nvcc(release)
    said, advice = box.refused().splitlines()
    assert "No cuBLAS" in said
    python = f"{box.root}/venv/bin/python3"
    assert shlex.split(advice.removeprefix("Run: ")) == [python, "-m", "pip", "install", package]


def test_cublas_of_another_major_version(box: Machine) -> None:
    box.without_cublas()
    box.cublas(box.site / "nvidia/cublas/lib", "12")
    said = box.refused()
    assert "nvidia/cublas/lib/libcublas.so.12 is not of nvcc's version 13" in said
    assert "nvidia-cublas==13.*" in said


@pytest.mark.parametrize("gone", ["include/cublas_v2.h", "lib64/libcublasLt.so.13"])
def test_half_a_cublas(box: Machine, gone: str) -> None:
    (box.toolkit / gone).unlink()
    assert "libcublas.so.13" in box.refused()


# -- the driver ----------------------------------------------------------------------------


def driver(machine: Machine) -> list[str]:
    wanted = "-DCUDA_cuda_driver_LIBRARY=", "-DGGML_CUDA_NO_VMM="
    return [a for a in machine.cmake_args() if a.startswith(wanted)]


def test_without_libcuda_ggml_does_without(box: Machine) -> None:
    assert driver(box) == ["-DGGML_CUDA_NO_VMM=ON"]


def test_the_stub_stands_in_for_the_driver(box: Machine) -> None:
    stub = box.write(str(box.toolkit / "lib64/stubs/libcuda.so"), "")
    assert driver(box) == [f"-DCUDA_cuda_driver_LIBRARY={stub}"]


def test_the_driver_of_this_machine(box: Machine) -> None:
    box.write(str(box.toolkit / "lib64/stubs/libcuda.so"), "")
    box.program(
        "bin/ldconfig",
        'printf "\\tlibcuda.so.1 (%s) => %s/libcuda.so.1\\n" libc6 /lib32 libc6,x86-64 /lib64',
    )
    assert driver(box) == ["-DCUDA_cuda_driver_LIBRARY=/lib64/libcuda.so.1"]


# -- options -------------------------------------------------------------------------------


def test_help(box: Machine) -> None:
    done = box.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in "--python --arch --jobs --wheel-dir --dry-run --help rpath $CUDACXX".split():
        assert word in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--fast"],
        ["extra"],
        ["--arch"],
        ["--arch", "sm_90"],
        ["--arch", ";"],
        ["--jobs", "0"],
        ["--jobs", "many"],
        ["--python", ""],
    ],
)
def test_a_wrong_option(box: Machine, arguments: list[str]) -> None:
    done = box.run("--dry-run", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[-1] in done.stderr and "--help" in done.stderr


# -- what came of it -----------------------------------------------------------------------

SHOWS_CUDA = 'case "$*" in *"show --files"*) echo llama_cpp/lib/libggml-cuda.so ;; esac'
NO_LIBCUDA = "OSError: libcuda.so.1: cannot open shared object file"


def test_an_installation_is_tried(box: Machine) -> None:
    box.python(SHOWS_CUDA, "True")
    done = box.run()
    assert done.returncode == 0 and "can use the GPU" in done.stdout
    for imports in "False", NO_LIBCUDA:
        box.python(SHOWS_CUDA, imports)
        done = box.run()
        assert done.returncode == 1 and imports in done.stderr


def test_libraries_that_crash_are_no_success(box: Machine) -> None:
    box.python(SHOWS_CUDA, 'load_tensors"; kill -SEGV $$; echo "')
    done = box.run()
    assert done.returncode == 1 and "dies by signal 11 when it loads a model" in done.stderr
    assert "CUDAHOSTCXX=" in done.stderr and "can use the GPU" not in done.stdout


@pytest.mark.parametrize("imports", ["False", NO_LIBCUDA])
def test_without_a_driver_it_cannot_be_tried(box: Machine, imports: str) -> None:
    box.cards()
    box.python(SHOWS_CUDA, imports)
    done = box.run("--arch", "86")
    assert done.returncode == 0 and "no NVIDIA driver" in done.stdout
    box.python(SHOWS_CUDA, "ImportError: no numpy")
    done = box.run("--arch", "86")
    assert done.returncode == 1 and "no numpy" in done.stderr


def test_an_installation_without_cuda(box: Machine) -> None:
    box.python("echo llama_cpp/lib/libggml-cpu.so")
    done = box.run()
    assert done.returncode == 1 and "no libggml-cuda.so" in done.stderr


def test_a_build_that_fails(box: Machine) -> None:
    box.python('case "$*" in *--version) ;; *) echo broken >&2; exit 3 ;; esac')
    done = box.run()
    assert done.returncode == 1
    assert "broken\nbuild_cuda: That command failed" in done.stderr


@pytest.mark.parametrize(("library", "code"), [("libggml-cuda.so", 0), ("libggml-cpu.so", 1)])
def test_the_wheel_is_looked_into(box: Machine, library: str, code: int) -> None:
    wheel = box.write("made/llama_cpp_python-9.8.7-py3-none-linux.whl", "")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llama_cpp/lib/{library}", bytes(3 << 20))
    done = box.run("--wheel-dir", str(wheel.parent))
    assert done.returncode == code
    assert str(wheel) in done.stdout + done.stderr
    if code == 0:
        assert "3 MB" in done.stdout
