"""The commands check and inspect: the verdict on a pair, the facts of a file."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.command import HELLO, Command
from tests.support.files.tiny_models import copy_with
from tests.support.real_pair import TinyFiles, retuned


@pytest.mark.llama
def test_check_says_yes(localspec: Command, tiny: TinyFiles) -> None:
    done = localspec("check", tiny.target, tiny.draft)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("target  target.gguf: llama, ")
    assert done.out.endswith("compatible; llama.cpp's own rule accepts this pair\n")
    t, d = str(tiny.target), str(tiny.draft)
    for spelling in (
        ["--target", t, "--draft", d],
        ["-m", t, "-md", d],
        ["--draft-model", d, "--target", t],
        ["--draft", d, t],
        ["--target", t, d],
    ):
        assert localspec("check", *spelling).out == done.out


@pytest.mark.llama
def test_check_tells_what_llama_cpp_ends_by(
    localspec: Command, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tensors = {"output_norm.weight": np.full(64, np.nan, np.float32)}
    broken = copy_with(tiny.target, tmp_path / "broken.gguf", tensors=tensors)
    for pair in ((tiny.target, broken), (broken, tiny.draft)):
        done = localspec("check", *pair)
        assert done.code == 1 and "not compatible; llama.cpp's own rule accepts" in done.out
        (error,) = [line for line in done.out.splitlines() if line.startswith("error")]
        assert "returned logits that are not numbers" in error and str(broken) in error


@pytest.mark.llama
def test_check_names_what_differs_first(
    localspec: Command, tiny: TinyFiles, tmp_path: Path
) -> None:
    data = tiny.draft.read_bytes()
    assert data.count("\u0120the".encode()) == 1
    other = tmp_path / "other.gguf"
    other.write_bytes(data.replace("\u0120the".encode(), "\u0120tho".encode()))
    done = localspec("check", tiny.target, other)
    assert (done.code, done.err) == (0, "")
    verdict = done.out.splitlines()[-1]
    assert verdict == "compatible by text; llama.cpp's own rule refuses (token-text) this pair"
    (error,) = [line for line in done.out.splitlines() if "ordinary token differs" in line]
    assert "260" in error and "the" in error and "tho" in error

    report = json.loads(localspec("check", tiny.target, other, "--json").out)
    assert report["compatible"] is True
    assert report["llama_cpp"]["accepts"] is False
    assert report["llama_cpp"]["rule"] == "token-text"
    warning, finding = [each for each in report["findings"] if each["level"] != "license"][:2]
    assert warning["rule"] == "other-vocabulary" and warning["level"] == "warning"
    assert finding.keys() == {"level", "rule", "message", "hint"}
    (finding,) = [each for each in report["findings"] if each["rule"] == "token-text-normal"]
    assert finding["level"] == "info" and "260" in finding["message"]
    for role, path in (("target", tiny.target), ("draft", other)):
        facts = report[role]
        assert facts["path"] == str(path) and facts["n_vocab"] == 272
        assert facts["architecture"] == "llama"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "two models, not 0"),
        (["T"], 2, "two models, not 1"),
        (["T", "D", "--draft", "D"], 2, "two models, not 3"),
        (["T", "D", "D"], 2, "unexpected extra argument"),
        (["T", "BAD/none.gguf"], 2, "There is no file"),
        (["BAD/cut.gguf", "D"], 2, "cut short"),
        (["T", "BAD/text.gguf"], 2, "text file"),
        (["BAD/folder.gguf", "D"], 2, "directory"),
    ],
)
def test_check_of_bad_input(
    localspec: Command,
    tiny: TinyFiles,
    bad_files: Path,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    names = {"T": str(tiny.target), "D": str(tiny.draft)}
    given = [names.get(text, text.replace("BAD", str(bad_files))) for text in arguments]
    done = localspec("check", *given)
    assert (done.code, done.out) == (code, "")
    assert words in done.sentences and "Traceback" not in done.err


@pytest.mark.llama
def test_lenient_in_check_and_run(localspec: Command, run: Command, tiny: TinyFiles) -> None:
    other = retuned(tiny.draft)
    strict = localspec("check", tiny.target, other)
    assert strict.code == 1 and "\nnot compatible; " in strict.out
    lenient = localspec("check", "--lenient", tiny.target, other)
    assert lenient.code == 0 and "control token" in lenient.out
    assert "llama.cpp's own rule refuses (token-text)" in lenient.out
    refused = run(HELLO, "-md", other, "--draft", "4")
    assert refused.code == 1 and "--lenient runs the pair" in refused.err
    assert run(HELLO, "-md", other, "--draft", "4", "--lenient").code == 0


def test_inspect_shows_a_file(localspec: Command, tiny: TinyFiles, tmp_path: Path) -> None:
    done = localspec("inspect", tiny.target)
    assert done.code == 0 and done.err == ""
    lines = done.out.splitlines()
    assert lines[0].startswith("file ") and any(line.startswith("as a draft") for line in lines)
    facts = json.loads(localspec("inspect", tiny.target, "--json").out)["facts"]
    assert facts["architecture"] == "llama"
    pair = localspec("inspect", "demo")
    assert pair.code == 0 and pair.out.count("architecture") == 2
    assert re.search(r"^both models +about .* for 2,048 tokens of context", pair.out, re.M)
    document = json.loads(localspec("inspect", "demo", "--json").out)
    least = sum(each["memory"]["total"] for each in document["models"])
    assert document["together"]["2048"] >= 0.9 * least
    nothing = tmp_path / "nothing.gguf"
    nothing.write_bytes(b"GGUF")
    refused = localspec("inspect", nothing)
    assert refused.code == 1 and refused.out == "" and "Traceback" not in refused.err
