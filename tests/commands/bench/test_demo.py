"""The command demo: the padded pair, as a table and as JSON."""

import json
import re

import pytest

from localspec.bench.padding.layout import PaddedShape
from localspec.core import paths
from tests.support.command import Command
from tests.support.real_pair import TinyFiles, interrupt

pytestmark = pytest.mark.llama


@pytest.fixture
def small_demo(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.bench.demo import padded_pair

    shapes = (PaddedShape(128, 2, 128, 3), PaddedShape(128, 2, 96, 2))
    monkeypatch.setattr(paths, "demo_pair", lambda: (tiny.target, tiny.draft))
    monkeypatch.setattr(padded_pair, "__defaults__", (shapes,))


@pytest.mark.usefixtures("small_demo")
def test_demo(localspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.core.machine.other_work", lambda: None)
    monkeypatch.setattr("localspec.core.machine.is_busy", lambda: False)
    flags = ("--repeats", "1", "-n", "4", "-t", "1", "--draft", "2")
    done = localspec("demo", *flags)
    assert done.code == 0
    assert "Draft length 2" in done.err and "This takes about a minute" in done.err
    assert re.search(
        r"You saw drafting give the same text (up to rounding )?at [\d.]+x the speed .* F16\.",
        done.err,
    )
    assert f"stay in {paths.cache_folder() / 'demo'}: delete its " in done.err
    assert "0 bytes" not in done.err and "Fastest here" not in done.out  # one verdict
    assert done.err.splitlines()[-1].startswith("Next, with a real model: localspec ")
    assert "F16: the 87k target" in done.out and "Q4_0" not in done.out
    done = localspec("demo", *flags, "--json", "--all")
    assert (done.code, done.err) == (0, "")
    pairs = json.loads(done.out)["pairs"]
    assert [pair["quantization"] for pair in pairs] == ["F16", "Q4_0"]
    assert all(pair["sides"][1]["text"] in ("same", "rounding") for pair in pairs)
    for nonsense in (
        ("--draft", "0"),
        ("--repeats", "0"),
        ("-n", "257"),
        ("-t", "none"),
        ("-t", "100000"),
    ):
        assert localspec("demo", *nonsense).code == 2
    assert "shows drafting" in localspec("demo", "--draft", "off").err


@pytest.mark.usefixtures("small_demo")
def test_ctrl_c_ends_the_demo(localspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, 20)
    done = localspec("demo", "--repeats", "1", "-n", "4", "-t", "1", "--json")
    assert (done.code, done.out) == (130, "") and "Traceback" not in done.err
