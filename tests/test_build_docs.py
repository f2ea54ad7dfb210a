"""The site: built as its script does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = ["bash", "scripts/build_docs.sh", str(tmp_path / "site")]
    programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | programs
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = (ROOT / "docs").rglob("*.md")
    built = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in pages}
    site = tmp_path / "site"
    assert built <= {page.relative_to(site) for page in site.rglob("*.html")}
