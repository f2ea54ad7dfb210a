"""The inventory: every model once, whole, under its tool's name, with the facts that are known."""

import hashlib
import os
from pathlib import Path

import pytest

from localspec.core.errors import FileProblem, UsageError
from localspec.hub.reference import parse_reference
from localspec.library.local_models import LocalModel, find_models, model_of, parse_source
from localspec.library.scan import SOURCES, Source
from localspec.metadata.header import read_header
from tests.support.library import zoo
from tests.support.library.model_folders import MODEL, OLLAMA, found, names, put_parts, some_model

# The zoo


def test_each_model_of_the_zoo_is_shown_once_by_its_tools_name(in_zoo: zoo.Zoo) -> None:
    models = find_models().models
    assert len(models) == 20
    shown: dict[str, list[str]] = {}
    for model in models:
        shown.setdefault(model.source, []).append(model.name)
    assert shown == {source: sorted(every, key=str.lower) for source, every in in_zoo.shown.items()}
    assert list(shown) == list(SOURCES[:-2])  # but for the bundled ones
    assert {m.name: m.also_in for m in models if m.also_in} == in_zoo.shared


def test_each_model_of_the_zoo_is_read_and_its_facts_are_true(in_zoo: zoo.Zoo) -> None:
    hashed = 0
    for model in find_models().models:
        header = read_header(model.path)
        assert (header.paths, header.n_bytes) == (model.parts, model.n_bytes), model.name
        assert model.path.is_absolute()
        if model.sha256:
            hashed += 1
            assert hashlib.sha256(model.path.read_bytes()).hexdigest() == model.sha256
    assert hashed == 2 + 5 + 1 + 3


def test_the_zoo_is_left_as_it_was(in_zoo: zoo.Zoo) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        every = in_zoo.folder.rglob("*")
        return {p: (p.lstat().st_mtime_ns, p.lstat().st_size) for p in every}

    before = state()
    find_models()
    assert state() == before


def test_what_is_left_out_of_the_zoo_is_said(in_zoo: zoo.Zoo) -> None:
    notes = "\n".join(find_models().notes)
    for name in ("pointer.gguf", "Big-Q8_0 (3 parts, lacks 2)", "gone-Q8_0.gguf"):
        assert name in notes
    for name in ("elsewhere.gguf", "broken/latest", ": other:latest."):
        assert name in notes
    # What is known not to be a model, or not yet one, deserves no words.
    for name in ("mmproj", "half", "nothing.gguf", "data.gguf"):
        assert name not in notes


def test_the_repository_is_known_by_a_folder_or_a_record(in_zoo: zoo.Zoo) -> None:
    repos = {model.name: model.repo for model in find_models().models}
    assert repos["zoo/tiny-GGUF/tiny-draft-F16.gguf"] == "zoo/tiny-GGUF"
    assert repos["Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf"] == "Qwen/Qwen3-8B-GGUF"
    assert (
        repos["hf.co/bartowski/Mistral-Small-24B-Instruct-2501-GGUF:Q4_K_M"]
        == "bartowski/Mistral-Small-24B-Instruct-2501-GGUF"
    )
    assert repos["llama3:8b"] is None
    # Known from the second place where the file lies.
    assert repos["Mistral-7B-Instruct-v0.3-Q4_K_M.gguf"] == (
        "bartowski/Mistral-7B-Instruct-v0.3-GGUF"
    )


# Which sources


def test_only_the_chosen_sources_are_searched(in_zoo: zoo.Zoo) -> None:
    inventory = find_models(["ollama"])
    assert {model.source for model in inventory.models} == {"ollama"}
    assert "llama3.2:1b" in names(inventory)  # now first found here
    assert inventory.folders == (in_zoo.folder / "ollama",)


def test_an_empty_inventory_says_where_it_looked(home: Path) -> None:
    inventory = find_models()
    assert (inventory.models, inventory.notes) == ((), ())
    assert home / ".ollama" / "models" in inventory.folders
    assert home / ".cache" / "huggingface" / "hub" in inventory.folders
    assert home / ".lmstudio" / "models" in inventory.folders


SPELLINGS: list[tuple[str, Source]] = [
    ("ollama", "ollama"),
    ("LM-Studio", "lm studio"),
    ("lmstudio", "lm studio"),
    ("huggingface", "hugging face"),
    ("Hugging Face", "hugging face"),
    ("llama-cpp", "llama.cpp"),
]


def test_a_source_may_be_spelt_as_people_do(subtests: pytest.Subtests) -> None:
    for text, source in SPELLINGS:
        with subtests.test(text):
            assert parse_source(text) == source


NO_SOURCES: list[str] = ["", "folder", "vllm", "a\nb"]


def test_an_unknown_source_is_refused_with_the_known_ones(subtests: pytest.Subtests) -> None:
    for text in NO_SOURCES:
        with subtests.test(text):
            with pytest.raises(UsageError, match="No source of models is called") as caught:
                parse_source(text)
            assert "hugging-face" in caught.value.hint and "\n" not in caught.value.message
            named = caught.value.hint.removeprefix("There are: ").removesuffix(".").split(", ")
            assert [parse_source(name) for name in named] == list(SOURCES[:-1])


def test_a_given_folder_is_searched_as_well(ours: Path, tmp_path: Path) -> None:
    zoo.put(ours / "a.gguf", some_model(20))
    zoo.put(tmp_path / "mine" / "below" / "b.gguf", some_model(21))
    zoo.put(tmp_path / "mine" / "c.gguf", some_model(20))
    inventory = find_models(extra=[tmp_path / "mine"])
    assert [(m.source, m.name) for m in inventory.models] == [
        ("localspec", "a.gguf"),
        ("folder", "below/b.gguf"),
        ("folder", "c.gguf"),  # the same content, but nobody knows without reading it
    ]
    assert names(find_models([], [tmp_path / "mine"])) == ["below/b.gguf", "c.gguf"]


@pytest.mark.parametrize("name", ["absent", "a.gguf", "nul\0l"])
def test_a_given_folder_that_is_none_is_a_problem(tmp_path: Path, name: str) -> None:
    zoo.put(tmp_path / "a.gguf", MODEL)
    with pytest.raises(FileProblem, match="is not a folder"):
        find_models(extra=[tmp_path / name])


# Split models


def test_parts_are_one_model_with_their_sizes_added(ours: Path) -> None:
    put_parts(ours / "x", [2, 1, 3], 3)
    put_parts(ours / "below" / "x", [1, 2], 2)
    models = {model.name: model for model in find_models().models}
    assert list(models) == ["below/x-00001-of-00002.gguf", "x-00001-of-00003.gguf"]
    model = models["x-00001-of-00003.gguf"]
    assert [part.name[2:7] for part in model.parts] == ["00001", "00002", "00003"]
    assert model.path == model.parts[0]
    assert model.n_bytes == sum(part.stat().st_size for part in model.parts)


@pytest.mark.parametrize(
    ("numbers", "count", "lacks"),
    [
        ([1, 3], 3, "(3 parts, lacks 2)"),
        ([2], 2, "(2 parts, lacks 1)"),
        ([1, 2, 3], 2, "(2 parts, and some too many)"),
        ([0, 1], 2, "(2 parts, lacks 2)"),
        ([1], 99999, "(99999 parts, lacks 2, 3, 4, 5, 6, …)"),
    ],
)
def test_parts_that_do_not_make_a_model_are_left_out(
    ours: Path, numbers: list[int], count: int, lacks: str
) -> None:
    put_parts(ours / "x", numbers, count)
    inventory = find_models()
    assert inventory.models == ()
    assert lacks in inventory.notes[0] and str(ours / "x") in inventory.notes[0]


# The same model in several places


def test_a_hard_link_and_a_link_are_the_same_model(ours: Path, home: Path) -> None:
    zoo.put(ours / "b.gguf", MODEL)
    (ours / "c.gguf").symlink_to("b.gguf")
    other = home / ".lmstudio" / "models" / "org" / "repo" / "other.gguf"
    other.parent.mkdir(parents=True)
    os.link(ours / "b.gguf", other)
    (model,) = find_models().models
    assert (model.name, model.also_in, model.repo) == ("b.gguf", ("lm studio",), "org/repo")


def test_a_hash_that_one_name_tells_holds_for_the_others(home: Path) -> None:
    """LM Studio's file is Ollama's blob, and Ollama's blob has the hash of the Hub's."""
    blob = home / ".ollama" / "models" / "blobs" / f"sha256-{zoo.sha256(MODEL)}"
    zoo.put_in_ollama(home / ".ollama" / "models", f"{OLLAMA}/m/latest", MODEL)
    zoo.put_in_hub_cache(home / ".cache" / "huggingface" / "hub", "o/r", "m.gguf", MODEL)
    linked = home / ".lmstudio" / "models" / "o" / "r" / "m.gguf"
    linked.parent.mkdir(parents=True)
    os.link(blob, linked)
    (model,) = find_models().models
    assert (model.source, model.also_in) == ("hugging face", ("lm studio", "ollama"))


def test_two_tags_and_two_revisions_of_one_file_are_one_model(home: Path) -> None:
    zoo.put_in_ollama(home / ".ollama" / "models", f"{OLLAMA}/m/latest", MODEL)
    zoo.put_in_ollama(home / ".ollama" / "models", f"{OLLAMA}/m/1b", MODEL)
    link = zoo.put_in_hub_cache(home / ".cache/huggingface/hub", "o/r", "m.gguf", some_model(21))
    older = link.parents[1] / ("f" * 40) / "m.gguf"
    older.parent.mkdir()
    older.symlink_to(os.readlink(link))
    assert [(m.name, m.also_in) for m in find_models().models] == [("o/r/m.gguf", ()), ("m:1b", ())]


def test_files_of_one_size_are_not_taken_for_one_another(ours: Path) -> None:
    other = MODEL[:-1] + b"\x01"
    for name, data in (("a.gguf", MODEL), ("b.gguf", other)):
        zoo.put_record(zoo.put(ours / name, data), "o/r")
    assert found("localspec") == ["a.gguf", "b.gguf"]


# A reference among the models of this disk


def local(repo: str | None, *files: str, folder: Path) -> LocalModel:
    paths = tuple(zoo.put(folder / (repo or "none") / file, MODEL) for file in files)
    name = f"{repo}/{files[0]}" if repo else files[0]
    return LocalModel(paths[0], "localspec", name, len(MODEL), paths, repo=repo)


def test_a_reference_means_the_same_here_as_on_the_hub(tmp_path: Path) -> None:
    models = [
        local("org/repo", "model-Q8_0.gguf", folder=tmp_path),
        local("org/repo", "model-Q4_K_M.gguf", folder=tmp_path),
        local(
            "org/repo",
            "BF16/model-BF16-00001-of-00002.gguf",
            "BF16/model-BF16-00002-of-00002.gguf",
            folder=tmp_path,
        ),
        local("org/other", "model-F16.gguf", folder=tmp_path),
        local(None, "model-F32.gguf", folder=tmp_path),
    ]

    def meant(name: str) -> str | None:
        reference = parse_reference(name)
        assert reference is not None
        found = model_of(reference, models)
        return None if found is None else found.path.name

    assert meant("org/repo:q8_0") == "model-Q8_0.gguf"
    assert meant("org/repo") == "model-Q4_K_M.gguf"
    assert meant("org/other") == "model-F16.gguf"
    assert meant("hf:org/repo/BF16/model-BF16-00001-of-00002.gguf") == (
        "model-BF16-00001-of-00002.gguf"
    )
    assert meant("hf:org/repo/bf16/model-bf16-00002-of-00002.gguf") == (
        "model-BF16-00001-of-00002.gguf"
    )
    for name in ("org/repo:F32", "org/repo:F16", "org/nosuch", "hf:org/repo@dev", "org/other:Q8_0"):
        assert meant(name) is None


def test_a_reference_that_fits_two_models_means_none(tmp_path: Path) -> None:
    reference = parse_reference("org/repo:Q8_0")
    assert reference is not None
    models = [local("org/repo", f"{size}-Q8_0.gguf", folder=tmp_path) for size in ("big", "small")]
    assert model_of(reference, models) is None
    assert model_of(reference, models[:1]) == models[0]
    assert model_of(reference, []) is None
