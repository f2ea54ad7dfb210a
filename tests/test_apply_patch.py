"""scripts/apply_patch.py: a patch fits exactly, or nothing is changed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs.build_machine import ROOT

PATCH = """\
--- a/src/one.cpp
+++ b/src/one.cpp
@@ -1,3 +1,4 @@
 first
-second
+changed
+added
 
@@ -9,2 +10,1 @@
-last
 end
--- a/two.h
+++ b/two.h
@@ -1 +1,2 @@
 only
+more
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/one.cpp").write_text("before\nfirst\nsecond\n\nother\nlast\nend\n")
    (tmp_path / "two.h").write_text("only\n")
    return tmp_path


def apply(folder: Path, patch: str = PATCH) -> subprocess.CompletedProcess[str]:
    (folder / "x.patch").write_text(patch)
    return subprocess.run(
        [sys.executable, ROOT / "scripts/apply_patch.py", folder / "x.patch", folder],
        capture_output=True,
        text=True,
    )


def test_every_hunk_is_applied_wherever_it_is(sources: Path) -> None:
    done = apply(sources)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "patched src/one.cpp\npatched two.h\n"
    assert (sources / "src/one.cpp").read_text() == "before\nfirst\nchanged\nadded\n\nother\nend\n"
    assert (sources / "two.h").read_text() == "only\nmore\n"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("src/one.cpp", "first\nsecond?\n\nlast\nend\n", "src/one.cpp has 0 places"),
        ("src/one.cpp", "first\nsecond\n\nlast\nend\nlast\nend\n", "src/one.cpp has 2 places"),
        ("two.h", "another\n", "two.h has 0 places for the change 'more'"),
        ("two.h", None, "there is no two.h"),
    ],
)
def test_a_patch_that_does_not_fit_changes_nothing(
    sources: Path, name: str, text: str | None, reason: str
) -> None:
    if text is None:
        (sources / name).unlink()
    else:
        (sources / name).write_text(text)
    before = {path: path.read_text() for path in sources.rglob("*") if path.is_file()}
    done = apply(sources)
    assert done.returncode == 1 and reason in done.stderr
    assert {path: path.read_text() for path in before} == before


def test_a_patch_is_applied_once(sources: Path) -> None:
    apply(sources)
    assert apply(sources).returncode == 1
    assert "changes nothing" in apply(sources, "").stderr


def test_our_patch_names_files_of_the_pinned_sources() -> None:
    patch = (ROOT / "scripts/kept_graphs.patch").read_text()
    names = [line[6:] for line in patch.splitlines() if line.startswith("+++ b/")]
    assert names == [f"vendor/llama.cpp/src/llama-context.{end}" for end in ("cpp", "h")]
