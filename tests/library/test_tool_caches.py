"""Tool caches: where each tool keeps its models, what it calls them; nothing misleads us."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core import paths
from localspec.library import tool_caches
from localspec.library.local_models import find_models
from localspec.library.resolve import Resolver
from tests.support.library import zoo
from tests.support.library.model_folders import MODEL, OLLAMA, found, names, some_model

# Records of downloads


@pytest.mark.parametrize(
    ("changes", "believed"),
    [
        ({}, True),
        ({"size": 3}, False),  # the file was replaced
        ({"sha256": "A" * 64, "repo": "no repository"}, False),
        ({"sha256": ["a"], "repo": {}}, False),
        ({"sha256": "a" * 63, "repo": "../etc"}, False),
        ({"sha256": None, "repo": "/etc"}, False),
    ],
)
def test_a_record_tells_hash_and_repository_if_it_can_be_believed(
    ours: Path, changes: dict[str, object], believed: bool
) -> None:
    record = zoo.put_record(zoo.put(ours / "a.gguf", MODEL), "org/name")
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    (model,) = find_models().models
    expected = (zoo.sha256(MODEL), "org/name") if believed else (None, None)
    assert (model.sha256, model.repo) == expected


def test_the_bundled_models_are_listed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_caches, "bundled_folder", paths.bundled_folder)
    names = [model.name for model in find_models(["bundled"]).models]
    assert names == ["demo/draft.gguf", "demo/hybrid.gguf", "demo/target.gguf"]
    assert Resolver().on_disk(names[0]) == paths.demo_pair()[1]


def test_a_download_without_a_hash_of_the_hub_is_unverified(ours: Path) -> None:
    record = zoo.put_record(zoo.put(ours / "a.gguf", MODEL), "org/name")
    assert not find_models().models[0].unverified
    record.write_text(json.dumps(json.loads(record.read_text()) | {"checked": "size"}))
    zoo.put(ours / "b.gguf", some_model(30))
    unverified = {model.name: model.unverified for model in find_models().models}
    assert unverified == {"a.gguf": True, "b.gguf": False}


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\xff", '{"size": 1e999}'])
def test_a_record_that_is_none_does_no_harm(ours: Path, text: str) -> None:
    zoo.put(ours / "a.gguf", MODEL)
    zoo.put(ours / ".a.gguf.origin.json", text.encode("latin-1"))
    assert found("localspec") == ["a.gguf"]


def test_without_a_home_our_own_models_are_found(
    ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo.put(ours / "a.gguf", MODEL)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a user without an entry
    assert [model.name for model in find_models().models] == ["a.gguf"]


# Hugging Face and llama.cpp


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, "home/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "x"}, "x/huggingface/hub"),
        ({"XDG_CACHE_HOME": "x", "HF_HOME": "h"}, "h/hub"),
        ({"HF_HOME": "h", "HUGGINGFACE_HUB_CACHE": "g"}, "g"),
        ({"HUGGINGFACE_HUB_CACHE": "g", "HF_HUB_CACHE": "c", "HF_HOME": "h"}, "c"),
        ({"HF_HUB_CACHE": "", "HF_HOME": "h"}, "h/hub"),
        ({"HF_HOME": "~/hf"}, "home/hf/hub"),
    ],
)
def test_the_hub_cache_is_where_its_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], place: str
) -> None:
    for name, value in variables.items():
        plain = value.startswith("~") or not value
        monkeypatch.setenv(name, value if plain else str(tmp_path / value))
    zoo.put_in_hub_cache(tmp_path / place, "org/name", "sub/m.gguf", MODEL)
    (model,) = find_models().models
    assert (model.name, model.sha256) == ("org/name/sub/m.gguf", zoo.sha256(MODEL))
    assert model.path.is_symlink()  # in place: parts find each other by these names


def test_a_cache_without_links_holds_plain_files(home: Path) -> None:
    root = home / ".cache" / "huggingface" / "hub"
    zoo.put(root / "models--org--a--b" / "snapshots" / zoo.COMMIT / "m.gguf", MODEL)
    folder = root / "models--o--r" / "snapshots" / zoo.COMMIT
    zoo.put(folder / ("a" * 64), some_model(21))
    (folder / "m.gguf").symlink_to("a" * 64)  # named by a hash, and no blob in a folder of blobs
    assert [(model.name, model.sha256, model.repo) for model in find_models().models] == [
        ("o/r/m.gguf", None, "o/r"),
        ("org/a--b/m.gguf", None, "org/a--b"),
    ]


def test_a_snapshot_leads_into_the_blobs_and_nowhere_else(home: Path, tmp_path: Path) -> None:
    root = home / ".cache" / "huggingface" / "hub"
    secret = zoo.put(tmp_path / "blobs" / ("a" * 64), MODEL)
    link = root / "models--o--r" / "snapshots" / zoo.COMMIT / "m.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(secret)
    (root / "models--o--s").symlink_to(root / "models--o--r")
    inventory = find_models()
    assert inventory.models == ()
    assert any(f"lead out of the folder: {link}." in note for note in inventory.notes)
    assert any("models--o--s" in note for note in inventory.notes)


def test_llama_cpp_shares_the_hub_cache_and_that_is_said_once(home: Path) -> None:
    zoo.put_in_hub_cache(home / ".cache" / "huggingface" / "hub", "o/r", "m.gguf", MODEL)
    zoo.put(home / ".cache" / "llama.cpp" / "o_r_old.gguf", some_model(21))
    assert [(m.source, m.also_in) for m in find_models().models] == [
        ("hugging face", ()),
        ("llama.cpp", ()),
    ]
    assert found("llama.cpp") == ["o/r/m.gguf", "o_r_old.gguf"]


def test_llama_cpp_keeps_everything_in_its_own_folder_if_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "c"))
    zoo.put(tmp_path / "c" / "o_r_m.gguf", MODEL)
    zoo.put(tmp_path / "c" / "below" / "n.gguf", some_model(21))  # flat: not looked at
    zoo.put_in_hub_cache(tmp_path / "c", "o/r", "m.gguf", some_model(22))
    assert found("llama.cpp") == ["o/r/m.gguf", "o_r_m.gguf"]


YML = "embedding: false\nmodel_path: {}\nname: x\n"
SUPPORT = "~/Library/Application Support"
JAN = "llamacpp/models"


OURS = f"~/.local/share/Jan/data/{JAN}"
PLACES: list[tuple[dict[str, str | int], list[str]]] = [
    ({"~/.lmstudio-home-pointer": "TMP/lms\n", "TMP/lms/models/o/r/m.gguf": 1}, ["o/r/m.gguf"]),
    ({"~/.cache/lm-studio/models/o/r/m.gguf": 1}, ["o/r/m.gguf"]),  # of an older version
    (
        {
            "~/.lmstudio/settings.json": json.dumps({"downloadsFolder": "TMP/big disk"}),
            "TMP/big disk/o/r/m.gguf": 1,
            "~/.lmstudio/models/loose.gguf": 2,
        },
        ["loose.gguf", "o/r/m.gguf"],
    ),
    (
        {
            "~/.local/share/Jan/settings.json": json.dumps({"data_folder": "TMP/jan"}),
            f"TMP/jan/{JAN}/a/b/model.yml": YML.format(f"{JAN}/a/b/model.gguf"),
            f"TMP/jan/{JAN}/a/b/model.gguf": 1,
        },
        ["a/b"],
    ),
    # Jan imported a file where it was, and one in two parts.
    (
        {f"{OURS}/mine/model.yml": YML.format('"TMP/my model.gguf"'), "TMP/my model.gguf": 1},
        ["mine"],
    ),
    (
        {
            f"{OURS}/s/model.yml": YML.format(f"{JAN}/s/m-00001-of-00002.gguf"),
            f"{OURS}/s/m-00001-of-00002.gguf": 1,
            f"{OURS}/s/m-00002-of-00002.gguf": 2,
        },
        ["s"],
    ),
    (
        {
            "~/Library/Caches/llama.cpp/a.gguf": 1,
            f"{SUPPORT}/nomic.ai/GPT4All/b.gguf": 2,
            f"{SUPPORT}/Jan/data/{JAN}/j/model.gguf": 3,
            f"{SUPPORT}/Jan/data/{JAN}/j/model.yml": YML.format(f"{JAN}/j/model.gguf"),
        },
        ["a.gguf", "j", "b.gguf"],
    ),
]


@pytest.mark.parametrize(("files", "shown"), PLACES)
def test_where_a_tool_keeps_its_models(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str | int],
    shown: list[str],
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin" if "Library" in str(files) else "linux")
    for name, held in files.items():
        path = Path(name.replace("~", str(home)).replace("TMP", str(tmp_path)))
        text = str(held).replace("TMP", str(tmp_path))
        zoo.put(path, some_model(20 + held) if isinstance(held, int) else text)
    models = find_models(["llama.cpp", "lm studio", "jan", "gpt4all"]).models
    assert [model.name for model in models] == shown
    assert sum(len(model.parts) for model in models) == str(files).count(".gguf': ")
    assert {model.repo for model in models if model.name.startswith("o/")} <= {"o/r"}


@pytest.mark.parametrize("pointer", ["relative/path", "", "/a\0b", "\xff\xfe", "x" * 2_000_000])
def test_a_pointer_that_names_no_folder_is_not_followed(home: Path, pointer: str) -> None:
    zoo.put(home / ".lmstudio-home-pointer", pointer.encode("latin-1"))
    zoo.put(home / ".lmstudio" / "models" / "o" / "r" / "m.gguf", MODEL)
    assert found("lm studio") == ([] if pointer.startswith("/") else ["o/r/m.gguf"])


# Ollama


@pytest.fixture
def ollama(home: Path) -> Path:
    return home / ".ollama" / "models"


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("registry.ollama.ai/library/llama3.2/1b", "llama3.2:1b"),
        ("ollama.com/library/llama3.2/latest", "llama3.2:latest"),
        ("registry.ollama.ai/mannix/llama3.1/8b", "mannix/llama3.1:8b"),
        ("hf.co/org/name-GGUF/Q4_K_M", "hf.co/org/name-GGUF:Q4_K_M"),
    ],
)
def test_ollama_models_have_the_names_that_ollama_gives_them(
    ollama: Path, place: str, name: str
) -> None:
    zoo.put_in_ollama(ollama, place, MODEL)
    (model,) = find_models().models
    assert (model.name, model.sha256, model.n_bytes) == (name, zoo.sha256(MODEL), len(MODEL))
    assert model.path == ollama / "blobs" / f"sha256-{zoo.sha256(MODEL)}"


def test_only_the_models_of_manifests_count(ollama: Path) -> None:
    for media in ("projector", "adapter", "params", "tensor"):
        zoo.put_in_ollama(ollama, f"{OLLAMA}/{media}/latest", MODEL, media)
    for place in (f"{OLLAMA}/m", f"{OLLAMA}/n/latest/x/y"):  # too high and too deep
        zoo.put_in_ollama(ollama, place, MODEL)
    assert find_models().models == ()
    assert find_models().notes == ()


def test_the_newer_entry_goes_before_the_older_manifest_unless_it_dangles(ollama: Path) -> None:
    entry = zoo.put_in_new_ollama(ollama, "ollama.com/library/m/latest", MODEL)
    zoo.put_in_ollama(ollama, f"{OLLAMA}/m/latest", some_model(21))
    assert [model.sha256 for model in find_models().models] == [zoo.sha256(MODEL)]
    entry.resolve().unlink()
    assert [model.sha256 for model in find_models().models] == [zoo.sha256(some_model(21))]
    (ollama / "manifests" / OLLAMA / "m" / "latest").unlink()
    assert find_models().models == ()


def test_a_list_may_hold_whole_manifests(ollama: Path) -> None:
    zoo.put_in_ollama(ollama, f"{OLLAMA}/n/latest", MODEL)
    document = {"manifests": [3, {"format": "gguf"} | zoo.ollama_manifest(MODEL)]}
    zoo.put(ollama / "manifests-v2" / OLLAMA / "m" / "latest", json.dumps(document))
    assert names(find_models()) == ["m:latest"]


DIGESTS: list[object] = [
    *("sha256:../../../outside", "sha256-" + "a" * 64 + "/../x", "md5:" + "a" * 64, "a" * 64, ""),
    *("sha256:" + "a" * 63, "sha256:" + "G" * 64, None, 7, ["sha256:" + "a" * 64]),
]


@pytest.mark.parametrize("digest", DIGESTS)
def test_only_digests_lead_to_blobs(ollama: Path, digest: object) -> None:
    zoo.put(ollama.parent / "outside", MODEL)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": digest}
    zoo.put(ollama / "manifests" / OLLAMA / "m" / "latest", json.dumps({"layers": [layer]}))
    assert find_models().models == ()


def test_links_of_ollama_stay_in_its_folder(ollama: Path, tmp_path: Path) -> None:
    manifest = zoo.put_in_ollama(ollama, f"{OLLAMA}/m/latest", MODEL)
    manifest.rename(tmp_path / "manifest")
    manifest.symlink_to(tmp_path / "manifest")
    blob = zoo.put_in_ollama(ollama, f"{OLLAMA}/n/latest", some_model(21))
    blob = ollama / "blobs" / f"sha256-{zoo.sha256(some_model(21))}"
    blob.rename(tmp_path / "blob")
    blob.symlink_to(tmp_path / "blob")
    inventory = find_models()
    assert inventory.models == ()
    assert all("lead out of the folder" in note for note in inventory.notes)
    assert str(manifest) in inventory.notes[0] and str(blob) in inventory.notes[0]


def test_ollama_is_where_its_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ollama: Path
) -> None:
    zoo.put_in_ollama(ollama, f"{OLLAMA}/home/latest", some_model(20))
    zoo.put_in_ollama(tmp_path / "home" / "service", f"{OLLAMA}/service/latest", some_model(21))
    zoo.put_in_ollama(tmp_path / "set", f"{OLLAMA}/set/latest", some_model(22))
    assert found("ollama") == ["home:latest", "service:latest"]
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "set"))
    assert found("ollama") == ["set:latest"]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, "\xff", " " * 2_000_000])
def test_a_broken_manifest_is_named_and_the_others_are_read(ollama: Path, text: str) -> None:
    zoo.put_in_ollama(ollama, f"{OLLAMA}/z/latest", MODEL)
    path = zoo.put(ollama / "manifests" / OLLAMA / "m" / "latest", text.encode("latin-1"))
    inventory = find_models()
    assert names(inventory) == ["z:latest"]
    assert inventory.notes == (f"Left out of ollama, manifests that make no sense: {path}.",)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(["layers", "manifests", "mediaType", "digest", "format", "size"]),
            below | st.just("application/vnd.ollama.image.model") | st.just("sha256:" + "a" * 64),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JUNK)
def test_no_manifest_breaks_the_search(
    tmp_path_factory: pytest.TempPathFactory, document: object
) -> None:
    root = tmp_path_factory.mktemp("ollama")
    zoo.put(root / "blobs" / f"sha256-{'a' * 64}", MODEL)
    zoo.put(root / "manifests" / OLLAMA / "m" / "latest", json.dumps(document))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OLLAMA_MODELS", str(root))
        assert found("ollama") in ([], ["m:latest"])


# Jan and GPT4All


@pytest.mark.parametrize(
    "model_path", ["../../../outside.gguf", "/dev/null", "", "llamacpp/models/x", "a\0.gguf", "~"]
)
def test_jan_leads_nowhere_it_should_not(home: Path, model_path: str) -> None:
    zoo.put(home / ".local" / "outside.gguf", MODEL)
    zoo.put(home / "outside.gguf", MODEL)
    data = home / ".local" / "share" / "Jan" / "data"
    zoo.put(data / JAN / "x" / "model.yml", YML.format(model_path))
    assert find_models().models == ()


@given(st.binary(max_size=60))
def test_no_settings_of_other_tools_break_the_search(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    home = tmp_path_factory.mktemp("home")
    for place in (
        ".lmstudio-home-pointer",
        ".lmstudio/settings.json",
        ".local/share/Jan/settings.json",
        ".local/share/Jan/data/llamacpp/models/x/model.yml",
        ".config/nomic.ai/GPT4All.ini",
    ):
        begin = b"modelPath=" if place.endswith("ini") else b""
        begin = b"model_path: " if place.endswith("yml") else begin
        zoo.put(home / place, begin + data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        find_models(["lm studio", "jan", "gpt4all"])
