"""The program that the library runs in: frozen, embedded, with packages of its own."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from localspec.core import host
from localspec.core.errors import UsageError, WorkerLost
from localspec.core.paths import CHECKOUT
from localspec.core.worker import Worker, WorkerEnded, WorkerLimits, ask, command

RENDER = """
import datetime, sys
from localspec.chat.templates.renderer import SHARED
print(SHARED.fill("{{ 1 + 1 }}", {}, datetime.datetime(2026, 1, 1), "The template"))
"""


def copied(path: Path) -> str:
    """A program that is Python by another name: what an app is that embeds it."""
    path.symlink_to(sys.executable)
    return str(path)


@pytest.mark.parametrize("frozen", [True, False])
def test_an_app_is_never_started_as_if_it_were_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, frozen: bool
) -> None:
    monkeypatch.setattr(sys, "executable", sys.executable if frozen else copied(tmp_path / "app"))
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    monkeypatch.setattr(sys, "exec_prefix", str(tmp_path))
    for start in (command, lambda name: ask(name, {}, 60), lambda name: Worker(name, LIMITS, 100)):
        with pytest.raises(UsageError, match=r"no Python to start child") as raised:
            start("json.tool")
        assert "LOCALSPEC_PYTHON=" in raised.value.hint


LIMITS = WorkerLimits(1.0, 2**30)


@pytest.mark.parametrize("executable", ["", None, "app"])
def test_an_embedded_python_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, executable: str | None
) -> None:
    (tmp_path / "bin").mkdir()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = copied(tmp_path / "bin" / version)
    monkeypatch.setattr(sys, "executable", copied(tmp_path / "app") if executable else executable)
    monkeypatch.setattr(sys, "exec_prefix", str(tmp_path))
    assert host.interpreter() == python


def test_a_named_python_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setenv(host.VARIABLE, sys.executable)
    assert ask("localspec.chat.templates.sandbox", {}, 60).cause == "error"  # it ran
    monkeypatch.setenv(host.VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(UsageError, match="no such program"):
        command("json.tool")


def test_a_python_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "environment", lambda: {**os.environ, "PYTHONPATH": ""})
    monkeypatch.setenv(host.VARIABLE, sys._base_executable)  # type: ignore[attr-defined]
    with pytest.raises(WorkerLost, match="no package no_such") as raised:
        ask("no_such.child", {}, 60)
    assert "LOCALSPEC_PYTHON=" in raised.value.hint
    with pytest.raises(WorkerEnded) as ended:
        Worker("no_such.child", LIMITS, 100).ask({})
    with pytest.raises(WorkerLost, match="no package no_such"):
        ended.value.outside(LIMITS)


def test_children_find_packages_that_only_the_path_has(tmp_path: Path) -> None:
    """As after `pip install --target`, and in add-ons of other programs."""
    folders = [str(CHECKOUT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    script = tmp_path / "script.py"
    (tmp_path / "jinja2.py").write_text("raise SystemExit(7)")  # the script's folder does not count
    script.write_text(f"import sys\nsys.path[:0] = {folders}\n{RENDER}")
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = sys._base_executable  # type: ignore[attr-defined]
    done = subprocess.run(
        [python, str(script)], env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "2", done.stderr


@pytest.mark.parametrize(
    ("has_pip", "begin"), [(True, f"{sys.executable} -m pip"), (False, "uv pip")]
)
def test_packages_are_installed_where_this_python_finds_them(
    monkeypatch: pytest.MonkeyPatch, has_pip: bool, begin: str
) -> None:
    """Environments of uv have no pip; those of pipx have one that their Python finds."""
    monkeypatch.setattr(host, "find_spec", lambda name: name if has_pip else None)
    told = host.install_command("'.[serve]'")
    assert told.startswith(f"{begin} install") and told.endswith(" '.[serve]'")
    assert sys.executable in told
