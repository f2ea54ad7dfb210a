"""What llama.cpp cannot run ends a child process, and is an error here."""

import subprocess
from pathlib import Path

import pytest

from localspec.core import child
from localspec.core.errors import EngineError, LocalspecError
from localspec.self_draft.proof import require_decodable
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama


def test_a_model_that_runs(tiny: TinyFiles) -> None:
    require_decodable(tiny.draft)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(LocalspecError, match="x.gguf"):
        require_decodable(path)


@pytest.mark.parametrize("ended", [-6, 1, subprocess.TimeoutExpired("python", 600.0)])
def test_a_child_that_fails(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, ended: int | Exception
) -> None:
    def ask(module: str, line: str, seconds: float) -> tuple[int, str]:
        if isinstance(ended, Exception):
            raise ended
        return ended, ""

    monkeypatch.setattr(child, "ask", ask)
    with pytest.raises(EngineError, match=tiny.draft.name):
        require_decodable(tiny.draft)
