"""The command export as a user meets it: what stdout holds, what is refused, what is written."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.export.names import DIALECTS
from localspec.library.pairs.catalog import find_pair
from localspec.metadata.trimmed import vocabulary_digest
from tests.export.test_facts import learn
from tests.support.command import Command
from tests.support.fake_hub import FakeHub
from tests.support.files.head_files import header_of, target_bytes
from tests.support.files.trimmed_files import trimmed_keys, write_trimmed
from tests.support.library.exports import arguments, model, option
from tests.support.library.hub_pair import PAIR, Pair, told


def test_stdout_is_the_command_alone(localspec: Command, pair: Pair, tmp_path: Path) -> None:
    done = localspec("export", "-m", pair.target, "-md", pair.draft, "--to", "llama-server")
    assert done.code == 0
    (words,) = arguments(done.out, tmp_path, programs=["llama-server"])
    assert option(words, "-m") == str(pair.target) and option(words, "-md") == str(pair.draft)
    assert option(words, "-c") == "1024"  # what the target was trained for
    assert "# Draft length: the engine's default, since too little was learnt" in done.out


@pytest.mark.parametrize("engine", DIALECTS)
def test_every_engine(localspec: Command, pair: Pair, engine: str) -> None:
    repos = ["--target-repo", "org/Big", "--draft-repo", "org/Small"]
    flags = ["-m", str(pair.target), "-md", str(pair.draft), "--draft-tokens", "3"]
    done = localspec("export", "--to", engine, *flags, *repos)
    if engine == "ollama":
        assert done.code == 1 and done.out == ""
        assert "Error: Ollama cannot run this pair: " in done.err
    else:
        assert done.code == 0 and "3" in done.out
    ignored = "Ignored, since only vllm and sglang use it: --target-repo, --draft-repo." in done.err
    assert ignored is (engine not in ("vllm", "sglang"))


def test_a_learnt_length_is_used_and_a_given_one_wins(localspec: Command, tmp_path: Path) -> None:
    headers = [model(tmp_path, "big"), model(tmp_path, "small", 1)]
    learn(headers, 3)
    flags = ["-m", headers[0].path, "-md", headers[1].path, "--to", "llama-cli"]
    done = localspec("export", *flags)
    learnt = int(option(done.out.split(), "--spec-draft-n-max"))
    assert learnt > 1 and f"# Draft length: {learnt}, the best fixed one" in done.out
    given = localspec("export", *flags, "--draft", learnt + 1).out
    assert option(given.split(), "--spec-draft-n-max") == str(learnt + 1)


def test_what_a_pair_keeps(localspec: Command, pair: Pair) -> None:
    kept = ["--draft-tokens", "6", "--temp", "0.3", "--top-k", "7", "-c", "256", "-t", "2"]
    added = localspec("pair", "add", "mine", "-m", pair.target, "-md", pair.draft, *kept)
    assert added.code == 0
    words = localspec("export", "mine", "--to", "llama-server").out.split()
    expected = {"--spec-draft-n-max": "6", "--temp": "0.3", "--top-k": "7", "-c": "256", "-t": "2"}
    assert {flag: option(words, flag) for flag in expected} == expected
    assert option(
        localspec("export", "mine", "-c", 128, "--to", "llama-cli").out.split(), "-c"
    ) == ("128")


def test_own_heads_are_found(localspec: Command, tmp_path: Path) -> None:
    path = header_of(tmp_path, target_bytes(), "big.gguf").path
    for more in ([], ["--draft", "mtp"]):
        done = localspec("export", "-m", path, *more, "--to", "llama-server")
        assert option(done.out.split(), "--spec-type") == "draft-mtp"
        assert "-md" not in done.out.split()


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--draft", "off"], 2, "Draft length 0 drafts nothing"),
        (["--draft", "2,4"], 2, "takes one draft length, not a list"),
        (["-c", "7"], 2, "expected a whole number from 8 to"),
    ],
)
def test_wrong_usage(
    localspec: Command, pair: Pair, flags: list[str], code: int, words: str
) -> None:
    named = ["-m", str(pair.target), "-md", str(pair.draft), "--to", "vllm"]
    done = localspec("export", *named, *flags)
    assert done.code == code and done.out == "" and words in done.sentences


def test_an_unknown_engine_and_a_missing_one(localspec: Command, pair: Pair) -> None:
    done = localspec("export", "-m", pair.target, "--to", "word")
    assert done.code == 2 and "not one of llama-server, llama-cli" in done.sentences
    none = localspec("export", "-m", pair.target)
    assert none.code == 2 and "--to with one of: llama-server, llama-cli" in none.err


def test_what_is_no_pair(localspec: Command, pair: Pair, tmp_path: Path) -> None:
    done = localspec("export", "-m", pair.target, "-md", pair.other, "--to", "llama-server")
    assert done.code == 1
    message, hint = told(done)
    assert message.startswith("These models are no pair: Target and draft add different BOS ids")
    assert hint.endswith(shlex.join(["localspec", "check", str(pair.target), str(pair.other)]))
    alone = localspec("export", "-m", pair.target, "--to", "llama-server")
    assert alone.code == 1 and alone.out == ""
    found = localspec("export", "-m", pair.target, "--draft", "find", "--to", "llama-server")
    assert found.code == 2 and f"localspec suggest {shlex.quote(str(pair.target))}" in found.err


def test_a_lenient_pair_goes_only_where_the_vocabulary_is_translated(
    localspec: Command, pair: Pair
) -> None:
    named = ["-m", str(pair.target), "-md", str(pair.tuned)]
    assert localspec("export", *named, "--to", "ik_llama").code == 1
    done = localspec("export", *named, "--lenient", "--to", "ik_llama")
    assert done.code == 0 and "translates tokens" in done.err
    assert "1 control token differs: " in done.err
    refused = localspec("export", *named, "--lenient", "--to", "llama-server")
    assert refused.code == 1 and "llama.cpp refuses it by its rule" in refused.err


def test_a_file_is_written_once(localspec: Command, pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    flags = ["-m", str(pair.target), "-md", str(pair.draft), "--to", "llama-server"]
    done = localspec("export", *flags, "--output", path)
    assert (done.code, done.out) == (0, "") and f"Written: {path}" in done.err
    assert path.read_text() == localspec("export", *flags).out
    assert os.access(path, os.X_OK)
    path.write_text("mine")
    again = localspec("export", *flags, "--output", path)
    assert again.code == 1 and "exists already" in again.err and path.read_text() == "mine"
    nowhere = localspec("export", *flags, "--output", tmp_path / "no" / "serve.sh")
    assert nowhere.code == 1 and "cannot be written: No such file" in nowhere.err


def test_a_configuration_is_no_program(localspec: Command, pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    flags = ["-m", str(pair.target), "-md", str(pair.draft), "--to", "lmstudio"]
    assert localspec("export", *flags, "-o", path).code == 0
    assert json.loads(path.read_text())["load"] and not os.access(path, os.X_OK)


def test_models_on_the_hub_by_their_headers(
    localspec: Command, stocked: FakeHub, pair: Pair, tmp_path: Path
) -> None:
    done = localspec("export", "-m", PAIR[0], "-md", PAIR[1], "--to", "llama-server")
    assert done.code == 0
    (words,) = arguments(done.out, tmp_path, programs=["llama-server"])
    expected = {"--hf-repo": "org/big-GGUF", "--hf-file": "big-Q4_K_M.gguf"}
    expected |= {"--spec-draft-hf": "org/small-GGUF", "-md": "small-Q8_0.gguf"}
    assert {flag: option(words, flag) for flag in expected} == expected
    assert "only of local files" in done.out
    then = f"org/big-GGUF@{stocked.repos['org/big-GGUF'].commit}:Q4_K_M"
    old = localspec("export", "-m", then, "-md", PAIR[1], "--to", "llama-cli")
    assert old.code == 1 and "downloads only the current files of a repository, not hf:" in old.err
    local = localspec("export", "-m", PAIR[0], "-md", PAIR[1], "--to", "ik_llama")
    assert local.code == 1 and "Fetch it first: localspec download hf:org/big-GGUF/" in local.err


def test_a_known_pair_by_its_name(
    localspec: Command, stocked: FakeHub, pair: Pair, tmp_path: Path
) -> None:
    spec = find_pair("qwen3-14b")
    assert spec.draft is not None
    models = [(spec.target, pair.target), (spec.draft, pair.draft)]
    for known, path in models:
        stocked.add(known.repo, known.file or "", path.read_bytes())
        stocked.repos[known.repo].tags.append(f"base_model:quantized:{known.repo}-whole")
    done = localspec("export", spec.name, "--draft-tokens", "5", "--to", "llama-cli")
    (words,) = arguments(done.out, tmp_path, programs=["llama-cli"])
    assert [option(words, flag) for flag in ("--hf-repo", "--hf-file")] == [
        *(spec.target.repo, spec.target.file)
    ]
    assert [option(words, flag) for flag in ("--spec-draft-hf", "-md")] == [
        *(spec.draft.repo, spec.draft.file)
    ]
    assert option(words, "--spec-draft-n-max") == "5"
    served = localspec("export", spec.name, "--to", "vllm").out
    assert f"vllm serve {spec.target.repo}-whole" in served
    assert f'"model": "{spec.draft.repo}-whole"' in served


def test_the_hub_says_what_was_quantized(localspec: Command, stocked: FakeHub) -> None:
    flags = ["-m", PAIR[0], "-md", PAIR[1], "--to", "vllm"]
    unknown = localspec("export", *flags)
    assert unknown.code == 1 and "Name it with --target-repo ORG/NAME." in unknown.err
    stocked.repos["org/big-GGUF"].tags.append("base_model:quantized:org/Big")
    half = localspec("export", *flags)
    assert half.code == 1 and "Name it with --draft-repo ORG/NAME." in half.err
    done = localspec("export", *flags, "--draft-repo", "org/Small")
    assert done.code == 0 and "vllm serve org/Big " in done.out


def test_nothing_is_loaded(pair: Pair) -> None:
    code = (
        "import sys; sys.modules['llama_cpp'] = None\n"
        "from localspec.cli import main\n"
        f"sys.argv = ['localspec', 'export', '-m', {str(pair.target)!r}, '-md', "
        f"{str(pair.draft)!r}, '--to', 'llama-server']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "llama-server" in done.stdout


@pytest.mark.parametrize("engine", DIALECTS)
def test_a_draft_with_a_trimmed_vocabulary_is_for_this_program_alone(
    localspec: Command, tmp_path: Path, engine: str
) -> None:
    target = model(tmp_path, "big")
    assert target.vocab is not None
    keys = trimmed_keys(vocabulary_digest(target.vocab))
    draft = write_trimmed(tmp_path / "small.gguf", keys)
    done = localspec("export", "--to", engine, "-m", target.path, "-md", draft)
    if engine == "python":  # a script of this library
        assert done.code == 0 and str(draft) in done.out
    else:
        assert done.code == 1 and done.out == ""
        assert "Error: No other engine can run small.gguf: its vocabulary was trimmed" in done.err
