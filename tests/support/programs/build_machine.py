"""A made-up machine for the build scripts: fake compilers, nvidia-smi, toolkit and packages."""

import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = (
    "awk bash cat cut dirname du env find grep mktemp nproc rm sed sort tail tr uname wc".split()
)
TARGET = {"aarch64": "sbsa"}.get(platform.machine(), platform.machine())

only_linux = pytest.mark.skipif(
    sys.platform != "linux" or not all(map(shutil.which, TOOLS)), reason="a script for Linux"
)


class Machine:
    """A folder that is all the script can see: the project, programs, a toolkit, site-packages.

    The script reads ``/usr/local`` and ``/proc/meminfo`` by name, so its copy here has other names.
    """

    def __init__(self, root: Path, script: str, *called: str) -> None:
        self.root, self.script = root, script
        self.toolkit, self.site = root / "usr/cuda-13.0", root / "site"
        self.env: dict[str, str] = {"PATH": str(root / "bin"), "PYTHONPATH": str(self.site)}
        for file in (script, "build_common.sh", *called):
            source = (ROOT / "scripts" / file).read_text("utf-8")
            for name, here in ("/usr/local/cuda*", "usr/cuda*"), ("/proc/meminfo", "meminfo"):
                source = source.replace(f" {name}", f" {shlex.quote(str(root))}/{here}")
            self.write(f"project/scripts/{file}", source)
        self.pin("9.8.7")
        self.write("meminfo", "MemTotal: 99999999 kB\nMemAvailable: 50000000 kB\n")
        for tool in TOOLS:
            self.write(f"bin/{tool}", "").unlink()
            (root / f"bin/{tool}").symlink_to(str(shutil.which(tool)))
        self.program("bin/nproc", "echo 4")
        self.program("bin/ldconfig", "")
        self.cards()
        self.python("exit 0")
        self.nvcc("13.0")
        self.cublas(self.toolkit / "lib64", "13")

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a program may still be read as it was before
        path.write_text(text, "utf-8")
        return path

    def program(self, name: str, body: str) -> Path:
        path = self.write(name, f"#!{shutil.which('bash')}\n{body}\n")
        path.chmod(0o755)
        return path

    def pin(self, version: str) -> None:
        self.write(
            "project/pyproject.toml", f'dependencies = [\n "llama-cpp-python=={version}",\n]'
        )

    def python(
        self, pip: str, imports: str = "True", *, unpack: str = "exit 0", patch: str = "exit 0"
    ) -> None:
        """A Python without its own site-packages, whose pip and llama_cpp are made up."""
        self.env["VIRTUAL_ENV"] = str(self.root / "venv")
        self.program(
            "venv/bin/python3",
            f'case "$*" in\n"-m pip"*) {pip} ;;\n"-c import llama_cpp"*) echo "{imports}" ;;\n'
            f'"-m tarfile"*) {unpack} ;;\n*apply_patch.py*) {patch} ;;\n'
            f'*) exec {shlex.quote(sys.executable)} -S "$@" ;;\nesac',
        )

    def nvcc(self, release: str, architectures: str = "75 80 86 90 120") -> None:
        self.program(
            "usr/cuda-13.0/bin/nvcc",
            f'case "$1" in\n--version) echo "Cuda tools, release {release}, V{release}.1" ;;\n'
            f'--list-gpu-arch) printf "compute_%s\\n" {architectures} ;;\n'
            f"*) echo '#$ TOP={self.toolkit}/bin/..' >&2; exit 1 ;;\nesac",
        )

    def cards(self, *capabilities: str) -> None:
        lines = " ".join(map(shlex.quote, capabilities))
        self.program(
            "bin/nvidia-smi", f'printf "%s\\n" {lines}' if lines else "echo Failed; exit 9"
        )

    def cublas(self, libraries: Path, version: str) -> Path:
        """cuBLAS in a folder of libraries, its header where the folder's neighbour has it."""
        for name in "libcublas", "libcublasLt":
            self.write(str(libraries / f"{name}.so.{version}"), "")
        return self.write(str(libraries.parent / "include/cublas_v2.h"), "")

    def without_cublas(self) -> None:
        shutil.rmtree(self.toolkit / "lib64")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.root / "project/scripts" / self.script), *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def commands(self, *arguments: str) -> list[list[str]]:
        """The commands of a dry run, as a shell would split them."""
        done = self.run("--dry-run", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return [shlex.split(line) for line in done.stdout.split("\n\n")[1:]]

    def build(self, *arguments: str) -> list[str]:
        """The command of a dry run that builds llama.cpp."""
        (found,) = [words for words in self.commands(*arguments) if words[0] == "env"]
        return found

    def cmake_args(self, *arguments: str) -> list[str]:
        """What cmake would get behind `llama_only.cmake`, as pip's builder splits it."""
        (found,) = [w for w in self.build(*arguments) if w.startswith("CMAKE_ARGS=")]
        first, *others = shlex.split(found.removeprefix("CMAKE_ARGS="))
        project = self.root / "project"
        assert first == f"-DCMAKE_PROJECT_INCLUDE={project}/scripts/llama_only.cmake"
        return others

    def refused(self, *arguments: str) -> str:
        """What the script says as it gives up: a sentence and what to do next."""
        done = self.run("--dry-run", *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        said = done.stderr.splitlines()
        assert len(said) == 2 and said[0].startswith(f"{self.script[:-3]}: ")
        return done.stderr
