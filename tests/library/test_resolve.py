"""Resolving names: every meaning that a name has, and which one wins."""

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core import paths
from localspec.core.errors import UnknownPair, UsageError
from localspec.hub import client
from localspec.library.pairs import user_pairs
from localspec.library.pairs.catalog import find_pair
from localspec.library.resolve import FIND, MTP, NamedModels, Resolver
from localspec.metadata.header import read_header
from tests.support.files.gguf_files import gguf_bytes, model_keys, model_tensors, words
from tests.support.library import zoo

MODEL = gguf_bytes(model_keys(words(20)), model_tensors())
SETTINGS = {"draft_tokens": 3, "temperature": 0.5}
LISTED = [name for names in zoo.SHOWN.values() for name in names]


def choose(target: str | None, draft: str | None = None) -> NamedModels:
    return Resolver().choose(target, draft)


def is_pair(name: str) -> bool:
    return Resolver().is_pair(name)


def on_disk(name: str) -> Path | None:
    return Resolver().on_disk(name)


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr(client, "resolve", refuse)
    monkeypatch.setattr(client, "stream", refuse)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which paths are relative to."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def mine() -> None:
    user_pairs.add("mine", "/models/big.gguf", "hf:org/small-GGUF:Q8_0", SETTINGS)


# --- target and draft together ---


def test_models_stay_as_they_were_named() -> None:
    for target, draft in (
        ("big.gguf", None),
        ("hf:org/big-GGUF:Q4_K_M", "small.gguf"),
        ("org/big:Q4_K_M", FIND),
    ):
        assert choose(target, draft) == NamedModels(target, draft, {}, "")


def test_no_target_and_an_empty_name_are_told(here: Path) -> None:
    for names in (("", None), ("big.gguf", "")):
        with pytest.raises(UsageError, match="is empty"):
            choose(*names)
    with pytest.raises(UsageError, match="No target model was given") as caught:
        choose(None, "small.gguf")
    assert "--target" in caught.value.hint and "localspec demo" in caught.value.hint
    models_of("coder.gguf")
    (here / "own.gguf").write_bytes(MODEL)
    (here / "text.gguf").write_text("no model")  # which `localspec list` leaves out
    with pytest.raises(UsageError) as caught:
        choose(None)
    assert "a model on this disk (own.gguf, coder.gguf)" in caught.value.hint


@pytest.mark.usefixtures("mine")
def test_a_pairs_name_stands_for_both_models_and_its_settings() -> None:
    small = "hf:org/small-GGUF:Q8_0"
    assert choose("mine", None) == NamedModels("/models/big.gguf", small, SETTINGS, "", "mine")
    assert choose("Mine", None) == choose("mine", None)
    # Whatever else is named wins, and the settings stay.
    assert choose("mine", "other.gguf") == NamedModels(
        "/models/big.gguf", "other.gguf", SETTINGS, "", "mine"
    )
    assert choose("mine", FIND).draft == FIND
    # As a draft it is the pair's draft, without the settings, which were made for the pair.
    assert choose("other.gguf", "mine") == NamedModels("other.gguf", small, {}, "")
    assert choose("mine", "mine") == choose("mine", None)


def test_a_known_pair_is_named_likewise_unless_an_own_pair_hides_it() -> None:
    known = find_pair("qwen3-14b")
    choice = choose("qwen3-14b", None)
    target = str(known.target.reference)
    assert choice == NamedModels(target, known.draft_name, {}, "", "qwen3-14b")
    user_pairs.add("qwen3-14b", "/models/big.gguf", "/models/small.gguf", {})
    choice = choose("qwen3-14b", None)
    assert choice.target == "/models/big.gguf" and "is your own pair" in choice.note
    assert choose("qwen3-14b", "other.gguf").note == choice.note


def test_a_pair_whose_heads_are_in_its_target_has_one_model_to_fetch() -> None:
    known = find_pair("qwen3.6-27b-mtp")
    choice = choose("qwen3.6-27b-mtp", None)
    assert (choice.target, choice.draft) == (str(known.target.reference), MTP)
    assert choice.models == [choice.target]
    assert Resolver().groups_of(["qwen3.6-27b-mtp"]) == [([choice.target, MTP], False)]
    assert choose("other.gguf", MTP) == NamedModels("other.gguf", MTP, {}, "")


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("llama3.1:8b", "llama3.1-8b"),
        ("Qwen3:14b", "qwen3-14b"),
        ("qwen2.5-coder:32b-instruct-q4_K_M", "qwen2.5-coder-32b"),
        ("qwen3.6:27b-mtp-q4_0", "qwen3.6-27b-mtp"),
    ],
)
def test_ollamas_names_are_those_of_known_pairs(
    name: str, pair: str, here: Path, home: Path
) -> None:
    named = choose(name, None)
    assert named == replace(choose(pair, None), note=f"{name}: the pair {pair}.")
    (here / name).write_bytes(MODEL)
    assert choose(name, None) == NamedModels(name)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("nosuch", None), "There is no file and no pair named 'nosuch'"),
        (("qwen3-14", None), "near it: qwen3-14b"),
        (("qwen3:14", None), "near it: qwen3-14b"),
        (("big.gguf", "nosuch"), "There is no file and no pair named 'nosuch'"),
    ],
)
def test_a_name_that_nothing_has(names: tuple[str, str | None], words: str) -> None:
    with pytest.raises(UnknownPair) as caught:
        choose(*names)
    assert words in caught.value.message and caught.value.message.endswith(".")
    assert "localspec pairs" in caught.value.hint and "localspec list" in caught.value.hint


def test_where_a_near_pair_is_here_none_to_fetch_is_named(here: Path) -> None:
    for name in ("1.5b", "0.5b"):
        (here / f"qwen2.5-coder-{name}-instruct-q4_k_m.gguf").write_bytes(MODEL)
    with pytest.raises(UnknownPair, match=r"Pairs on this disk: qwen2\.5-coder-1\.5b\.") as caught:
        choose("qwen-coder")
    assert "Pairs near it" not in caught.value.message


# --- what is a pair's name ---


PAIR_NAMES: list[str] = ["mine", "Qwen3-14b", "nosuch", "a.b", "7b", "llama3:8b"]
OTHER_NAMES: list[str] = [
    *("mine.gguf", "./mine", "folder/mine", "/mine", "", "find", "auto", "7", "mine/", "m i"),
    *(
        "org/repo",
        "org/repo:Q8_0",
        "hf:org/repo",
        "llama3:8b.gguf",
        "hf:repo",
        "m\x1bine",
        "m" * 65,
    ),
]


def test_what_can_only_be_a_pair(subtests: pytest.Subtests) -> None:
    for name in (*PAIR_NAMES, *OTHER_NAMES):
        with subtests.test(name):
            assert is_pair(name) == (name in PAIR_NAMES)


@pytest.mark.usefixtures("mine")
def test_an_existing_path_comes_before_a_pair(here: Path) -> None:
    assert is_pair("mine")
    (here / "mine").write_bytes(MODEL)
    assert not is_pair("mine")
    assert choose("mine", None) == NamedModels("mine")
    assert on_disk("mine") == Path("mine")


@pytest.mark.usefixtures("mine")
def test_a_pairs_name_comes_before_one_of_the_list(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jan = home / "jan"
    zoo.put(jan / "llamacpp" / "models" / "mine" / "model.gguf", MODEL)
    yml = jan / "llamacpp" / "models" / "mine" / "model.yml"
    zoo.put(yml, "model_path: llamacpp/models/mine/model.gguf\n")
    monkeypatch.setenv("JAN_DATA_FOLDER", str(jan))
    assert is_pair("mine")
    assert on_disk("mine") == yml.with_name("model.gguf")


# --- a path ---


def test_a_path_is_handed_back_as_it_is(here: Path) -> None:
    (here / "org").mkdir()
    (here / "org" / "repo").write_bytes(MODEL)
    assert on_disk("org/repo") == Path("org/repo")  # not the repository
    assert on_disk("org") == Path("org")  # whoever opens it tells that it is a folder
    assert on_disk("nosuch.gguf") == Path("nosuch.gguf")
    assert on_disk("org/repo/nosuch.gguf") == Path("org/repo/nosuch.gguf")
    assert on_disk("hf:org/repo") is None  # the repository, whatever lies here


def test_a_canonical_name_means_the_same_in_any_folder(here: Path) -> None:
    (here / "org").mkdir()
    (here / "org" / "repo").touch()
    for name, canonical in (
        ("sub/../big.gguf", str(here / "sub" / ".." / "big.gguf")),
        ("org/repo", str(here / "org" / "repo")),
        ("org/small:q4_k_m", "hf:org/small:q4_k_m"),
        ("https://huggingface.co/org/repo/blob/main/a/b.gguf", "hf:org/repo/a/b.gguf"),
        (MTP, MTP),
    ):
        assert Resolver().canonical_name(name) == canonical


# --- a name of the list ---


def test_every_name_of_the_list_is_found(in_zoo: zoo.Zoo, subtests: pytest.Subtests) -> None:
    for name in LISTED:
        with subtests.test(name):
            found = on_disk(name)
            assert found is not None and found.is_absolute()
            assert found.is_relative_to(in_zoo.folder) and read_header(found).n_bytes > 0
            assert not is_pair(name)


def models_of(*names: str) -> dict[str, Path]:
    """Small models in the models folder."""
    found = {name: paths.models_folder() / name for name in names}
    for path in found.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(MODEL)
    return found


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("coder-7b-Q4_0", "org/repo/coder-7b-Q4_0.gguf"),  # as `serve` shows it
        ("CODER-7B-q4_0.gguf", "org/repo/coder-7b-Q4_0.gguf"),
        ("coder", "org/repo/coder-7b-Q4_0.gguf"),
        ("llama", "llama.gguf"),  # another begins so too
        ("llama-b", "llama-big.gguf"),
        ("org/repo/cod", "org/repo/coder-7b-Q4_0.gguf"),
    ],
)
def test_a_name_need_not_be_whole(name: str, file: str, here: Path, home: Path) -> None:
    files = models_of("org/repo/coder-7b-Q4_0.gguf", "llama.gguf", "llama-big.gguf")
    assert on_disk(name) == files[file]
    assert "/" in name or choose(name, None) == NamedModels(name)


@pytest.mark.parametrize("name", ["lla", "ll", "co"])
def test_the_beginning_of_several_names_is_none(name: str, here: Path, home: Path) -> None:
    models_of("coder.gguf", "llama.gguf", "llama-big.gguf")
    with pytest.raises(UnknownPair, match=r"There is no file and no pair .* On this disk: "):
        choose(name, None)


def test_files_of_the_current_folder_are_near_names(
    here: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "my-model-q4_0.gguf").write_bytes(MODEL)
    monkeypatch.chdir(folder)
    with pytest.raises(UnknownPair, match=r"On this disk: my-model-q4_0\.gguf\."):
        choose("my-model", None)
    (folder / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf").write_bytes(MODEL)
    models_of("qwen2.5-coder-7b.gguf")
    with pytest.raises(UnknownPair) as caught:
        choose("qwen2.5-codr", None)  # the beginning of a name, misspelt
    assert caught.value.message.startswith(
        "There is no file and no pair named 'qwen2.5-codr'. On this disk: "
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf, qwen2.5-coder-7b.gguf."
    )


def test_near_names_on_this_disk_are_told(here: Path, home: Path) -> None:
    models_of("coder.gguf")
    with pytest.raises(UnknownPair, match=r"On this disk: coder\.gguf\."):
        choose("coderr", None)


# --- a reference ---


SMALL = "Qwen2.5-0.5B-Instruct-Q8_0.gguf"
REFERENCES: list[tuple[str, str | None]] = [
    ("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf"),
    ("hf:Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf"),
    ("Qwen/Qwen3-8B-GGUF:q4_k_m", "Qwen3-8B-Q4_K_M.gguf"),
    ("hf:Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q4_K_M.gguf"),
    ("https://huggingface.co/Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf"),
    ("Qwen/Qwen3-0.6B-GGUF:Q8_0", "Qwen3-0.6B-Q8_0.gguf"),  # llama.cpp's cache
    ("lmstudio-community/Qwen2.5-0.5B-Instruct-GGUF:Q8_0", SMALL),
    # Ours by its name, in LM Studio's folder under that of its repository.
    ("bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf"),
    ("hf:zoo/tiny-GGUF/tiny-draft-F16.gguf", "tiny-draft-F16.gguf"),  # by its record
    ("qwen/QWEN3-8b-gguf:Q4_K_M", "Qwen3-8B-Q4_K_M.gguf"),  # the Hub ignores case
    ("hf:ZOO/Tiny-gguf/tiny-draft-F16.gguf", "tiny-draft-F16.gguf"),
    ("Qwen/Qwen3-8B-GGUF:Q8_0", None),  # only another quantisation is here
    ("Qwen/Qwen3-8B-GGUF@dev:Q4_K_M", None),  # nobody knows of which revision this one is
    ("hf:Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q8_0.gguf", None),
    ("Qwen/Qwen3-80B-GGUF", None),
    ("zoo/tiny-GGUF:F16", None),  # two models have this quantisation
    ("gone/gone-GGUF", None),
    ("hf:ggml-org/gemma-3-27b-it-GGUF/mmproj-model-f16.gguf", None),
]


def test_a_reference_is_found_on_the_disk_or_must_be_fetched(
    in_zoo: zoo.Zoo, subtests: pytest.Subtests
) -> None:
    for name, file in REFERENCES:
        with subtests.test(name):
            found = on_disk(name)
            assert (found and found.name) == file


def test_a_download_is_found_by_its_revision_and_its_commit() -> None:
    folder = paths.models_folder() / "org" / "repo"
    zoo.put_record(zoo.put(folder / "model-Q8_0.gguf", MODEL), "org/repo")
    for name in ("org/repo", "org/repo:q8_0", f"hf:org/repo@{zoo.COMMIT}"):
        assert on_disk(name) == folder / "model-Q8_0.gguf"
    assert on_disk("hf:org/repo@other") is None
    (folder / "model-Q8_0.gguf").write_bytes(MODEL[:-1])  # no longer what its record says
    assert on_disk("hf:org/repo@main") is None


def test_a_malformed_reference_is_told() -> None:
    for name in ("hf:bad", "https://example.org/x", "hf:org/repo/../../x.gguf"):
        with pytest.raises(UsageError):
            on_disk(name)
        assert not is_pair(name)
        assert choose(name, None).target == name


def test_files_of_the_current_folder_are_a_known_pairs(here: Path) -> None:
    target, draft = (here / f"qwen2.5-coder-{n}b-instruct-q4_0.gguf" for n in ("1.5", "0.5"))
    spec = find_pair("qwen2.5-coder-1.5b")
    target.write_bytes(MODEL)
    named = choose("qwen2.5-coder-1.5b")
    assert (named.target, named.draft) == (target.name, spec.draft_name)
    assert target.name in named.note
    draft.write_bytes(MODEL)
    assert choose("qwen2.5-coder-1.5b").models == [target.name, draft.name]
    (here / "qwen2.5-coder-1.5b-instruct-q8_0.gguf").write_bytes(MODEL)  # which one is meant?
    assert choose("qwen2.5-coder-1.5b").target == str(spec.target.reference)
    ((models, _),) = Resolver().groups_of(["qwen2.5-coder-1.5b"])
    assert models == [str(spec.target.reference), spec.draft_name]
