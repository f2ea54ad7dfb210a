"""benchmarks/gpu/pieces.py: the commands rebuild the files, whatever is carried twice."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs.build_machine import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands for Linux")


def cut(folder: Path, *files: Path, size: str = "0.01") -> list[dict[str, Any]]:
    script = ROOT / "benchmarks/gpu/pieces.py"
    there = ["--pieces", "cut pieces", "--work", str(folder / "the work"), "--size", size]
    done = subprocess.run(
        [sys.executable, script, *files, *there], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads((folder / "cut pieces/plan.json").read_text())
    assert [each["command"] for each in found] == done.stdout.splitlines()[1::2]
    return found


def carry(folder: Path, piece: dict[str, Any]) -> bool:
    """Run the command of a piece; whether its sha256 is the expected one."""
    done = subprocess.run(
        ["bash", "-c", piece["command"]], cwd=folder, capture_output=True, text=True
    )
    return done.returncode == 0


def test_every_file_is_there_in_the_end(tmp_path: Path) -> None:
    large, exact = tmp_path / "large file.gguf", tmp_path / "exact"
    large.write_bytes(os.urandom(25_000))
    exact.write_bytes(os.urandom(10_485))
    wheels = [tmp_path / f"{name}.whl" for name in "abcd"]
    for wheel in wheels:
        wheel.write_bytes(os.urandom(1_000))
    pieces = cut(tmp_path, large, *wheels, exact)
    assert all((tmp_path / each["path"]).stat().st_size <= 10_486 for each in pieces)
    for number, piece in enumerate(pieces):
        assert carry(tmp_path, piece)
        if number % 2:
            assert carry(tmp_path, piece)  # once more, as after a broken transfer
    for file in (large, exact, *wheels):
        assert (tmp_path / "the work" / file.name).read_bytes() == file.read_bytes()


def test_pieces_come_in_any_order_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(25_000))
    first, second, third = cut(tmp_path, file)
    assert carry(tmp_path, third) and carry(tmp_path, first)
    place = tmp_path / second["path"]
    sound = place.read_bytes()
    place.write_bytes(sound[:-1] + b"x")
    assert not carry(tmp_path, second)
    place.write_bytes(sound)
    assert carry(tmp_path, second)
    assert (tmp_path / "the work" / file.name).read_bytes() == file.read_bytes()
