"""Child processes of this program: how they are run, and how they end."""

import subprocess
import sys
from pathlib import Path

import pytest

from localspec.core.child import command


def test_a_child_ends_with_the_one_that_asked() -> None:
    code = "import time; from localspec.core.child import end_with_parent as end; end()"
    code += "; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as orphan:
        assert orphan.stdin is not None
        orphan.stdin.close()
        assert orphan.wait(60) == 1


def test_a_module_of_the_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "tool.py").write_text("raise SystemExit(7)")
    (tmp_path / "json" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert subprocess.run(command("json.tool"), input=b"{}", capture_output=True).returncode == 0
