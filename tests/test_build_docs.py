"""The site: built as its script does, where Zensical is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("zensical") is None, reason="Zensical is not installed")
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = ["bash", "scripts/build_docs.sh", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = (ROOT / "docs").rglob("*.md")
    built = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in pages}
    site = tmp_path / "site"
    assert built <= {page.relative_to(site) for page in site.rglob("*.html")}
