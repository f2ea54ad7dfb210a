"""The command rm: what it deletes, asks and refuses."""

import os
from pathlib import Path

import pytest

from localspec.core import paths
from localspec.display.terminal import console
from localspec.engine.loading.pair_file import path_of
from localspec.hub.provenance import record_path
from localspec.metadata.header import read_header
from tests.support.command import Command
from tests.support.library import zoo
from tests.support.library.hub_pair import PAIR, told
from tests.support.library.model_folders import some_model


def test_a_model_goes_with_all_that_belongs_to_it(fetched: list[Path], localspec: Command) -> None:
    big, small = fetched
    partial = big.with_name(f".{big.name}.{'0' * 16}.part")
    partial.write_bytes(bytes(2**20))
    assert localspec("pair", "add", "mine", "-m", PAIR[0], "-md", PAIR[1]).code == 0
    headers = [read_header(file) for file in fetched]
    known = [path_of(each, "0") for each in (headers, headers[:1], headers[1:])]
    for each in known:
        zoo.put(each, b"{}")
    done = localspec("rm", PAIR[0], "--yes")
    assert done.code == 0 and "big-Q4_K_M.gguf" in done.err and "Freed " in done.err
    assert "used by the pairs mine (yours)" in done.err
    assert not any(each.exists() for each in (big, record_path(big), partial, big.parent))
    assert [each.exists() for each in known] == [False, False, True]
    assert small.exists() and record_path(small).exists()
    assert told(localspec("rm", PAIR[0], "--yes"))[0].endswith("is not on this disk.")


def test_a_download_that_was_interrupted_is_removed_too(localspec: Command) -> None:
    partial = paths.models_folder() / "org" / "big" / f".big-Q8_0.gguf.{'0' * 16}.part"
    zoo.put(partial, bytes(2**20))
    assert localspec("rm", "org/big:Q8_0", "-y").err.endswith("Freed 1 MB.\n")
    assert not partial.parent.parent.exists() and paths.models_folder().exists()


@pytest.mark.parametrize(("answer", "code"), [(True, 0), (False, 1)])
def test_a_pair_is_deleted_when_the_user_agrees(
    fetched: list[Path],
    localspec: Command,
    monkeypatch: pytest.MonkeyPatch,
    answer: bool,
    code: int,
) -> None:
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr(console, "ask", ask)
    localspec("pair", "add", "mine", "-m", PAIR[0], "-md", PAIR[1])
    assert localspec("rm", "mine").code == code
    assert [each.exists() for each in fetched] == [not answer] * 2
    assert asked[0].startswith("Delete ")


def test_nothing_is_deleted_where_nobody_can_agree(fetched: list[Path], localspec: Command) -> None:
    done = localspec("rm", *PAIR, stdin="y\n")
    assert done.code == 2 and "--yes" in done.err
    assert all(each.exists() for each in fetched)


def test_a_link_goes_and_what_it_leads_to_stays(tmp_path: Path, localspec: Command) -> None:
    there = zoo.put(tmp_path / "there.gguf", some_model(3))
    link = zoo.put(paths.models_folder() / "here.gguf", b"")
    link.unlink()
    link.symlink_to(there)
    assert "a link, its file stays" in localspec("rm", str(link), "-y").err
    assert there.exists() and not os.path.lexists(link)


def test_models_of_others_are_left_alone(home: Path, localspec: Command) -> None:
    model = some_model(5)
    cached = zoo.put_in_hub_cache(
        home / ".cache" / "huggingface" / "hub", "org/a", "a-Q8_0.gguf", model
    )
    ollama = home / ".ollama" / "models"
    zoo.put_in_ollama(ollama, "registry.ollama.ai/library/b/7b", some_model(6))
    own = zoo.put(home / "c.gguf", some_model(7))
    bundled = paths.demo_pair()[0]
    for name, hint in (
        ("org/a/a-Q8_0.gguf", "Type: hf cache rm model/org/a"),
        ("b:7b", "Type: ollama rm b:7b"),
        (str(own), f"Delete it yourself: rm {own}"),
        (str(bundled), "It stays as long as localspec does."),
    ):
        done = localspec("rm", name, "--yes")
        assert done.code == 2 and done.err.endswith(f"{hint}\n"), done.err
    assert cached.exists() and own.exists() and bundled.exists()


def test_the_beginning_of_a_name_deletes_nothing(localspec: Command) -> None:
    model = paths.models_folder() / "coder.gguf"
    model.parent.mkdir(parents=True, exist_ok=True)
    model.write_bytes(b"GGUF")
    refused = localspec("rm", "--yes", "cod")
    assert refused.code == 1 and "On this disk: coder.gguf" in refused.err and model.exists()
    assert localspec("rm", "--yes", "coder").code == 0 and not model.exists()


def test_a_pair_in_the_current_folder_is_left_to_its_owner(
    localspec: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "qwen2.5-coder-0.5b-instruct-q4_0.gguf"]
    files = [zoo.put(tmp_path / name, some_model(i)) for i, name in enumerate(names)]
    monkeypatch.chdir(tmp_path)
    done = localspec("rm", "qwen2.5-coder-1.5b", "--yes")
    assert done.code == 2 and "is not in the models folder" in done.err
    assert f"Delete it yourself: rm {files[0]}" in done.err
    assert all(each.exists() for each in files)
