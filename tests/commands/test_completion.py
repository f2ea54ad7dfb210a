"""Names that bash completes: with colons, at which it splits words, and with blanks."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.core.paths import CHECKOUT

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["zw"], ["zwen:0.6b.gguf", "zwen:4b.gguf"]),
        (["zwen", ":"], ["0.6b.gguf", "4b.gguf"]),
        (["zwen", ":", "0"], ["0.6b.gguf"]),
        (["my"], [r"my\ own\ model.gguf"]),
        ([r"my\ o"], [r"my\ own\ model.gguf"]),
        (["'my o"], ["my own model.gguf"]),
        (["'zwen:4"], ["zwen:4b.gguf"]),
        (["zwen", ":", "4b.gguf", "--no-sa"], ["--no-save"]),
    ],
)
def test_bash(tmp_path: Path, words: list[str], completed: list[str]) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in "zwen:0.6b.gguf", "zwen:4b.gguf", "my own model.gguf":
        shutil.copy(CHECKOUT / "models/demo/draft.gguf", models / name)
    program = tmp_path / "localspec"
    program.write_text(f"#!{sys.executable}\nfrom localspec.cli import main\nmain()\n")
    program.chmod(0o755)
    typed = ["localspec", "chat", *words]
    script = (
        "source <(_LOCALSPEC_COMPLETE=source_bash localspec)\n"
        f"COMP_WORDS=({shlex.join(typed)}) COMP_CWORD={len(typed) - 1}\n"
        "_localspec_completion localspec\n"
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        env={
            **os.environ,
            "PATH": path,
            "LOCALSPEC_MODELS": str(models),
            "PYTHONPATH": str(CHECKOUT),
        },
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == completed, done.stderr
