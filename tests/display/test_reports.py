"""Reports: verdict and findings of a pair, facts of the machine, a fact a line."""

from pathlib import Path

import pytest

from localspec.display import reports
from localspec.engine.doctor import DoctorReport
from localspec.metadata.header import read_header
from localspec.pairing import check_pair
from tests.support.programs.streams import Streams
from tests.support.real_pair import TinyFiles


def test_a_pair_report_in_words(
    tiny: TinyFiles, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    target, draft = read_header(tiny.target), read_header(tiny.draft)
    report = check_pair(target, draft)
    reports.pair_report(report, target, draft)
    out, err = streams.read()
    lines = out.splitlines()
    assert err == "" and len(lines) == 3 + len(report.findings)
    assert lines[0] == "target  target.gguf: llama, 87k parameters, F16, 272 tokens, context 1024"
    for line, finding in zip(lines[2:], report.findings, strict=False):
        assert line == f"{finding.level:<8}{finding.message} {finding.hint}"
    assert lines[-1] == "compatible; llama.cpp's own rule accepts this pair"


def test_an_examination_in_words(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    device = {"name": "CUDA0", "description": "A card", "kind": "GPU", "free": 2**30}
    facts: dict[str, object] = {
        "memory_total": 2**34,
        "models_folder": "/a folder/\x1b[2J",
        "gpu_offload": True,
        "devices": [
            device | {"name": "CPU", "description": "AVX2", "kind": "CPU", "total": 2**30},
            device | {"total": 3 * 2**30},
        ],
    }
    reports.doctor_report(DoctorReport(facts, ["Close [all] other programs and windows, please."]))
    assert streams.read()[0].splitlines() == [
        "memory total   17.2 GB",
        r"models folder  /a folder/\x1b[2J",
        "gpu offload    True",
        "device         CPU: AVX2 (CPU)",
        "device         CUDA0: A card (GPU, 1.1 GB of 3.2 GB free)",
        "advice: Close [all] other programs and windows, please.",
    ]


def test_a_path_is_shown_by_its_name(tmp_path: Path, tiny: TinyFiles, streams: Streams) -> None:
    odd = tmp_path / "[red]a:bug:[.gguf"
    odd.write_bytes(tiny.target.read_bytes())
    header = read_header(odd)
    reports.pair_report(check_pair(header, header), header, header)
    assert "target  [red]a:bug:[.gguf: llama" in streams.read()[0]
