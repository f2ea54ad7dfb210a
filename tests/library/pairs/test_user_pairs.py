"""The user's pairs: what was stored comes back, and what cannot be stored is refused."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from localspec.core.errors import FileProblem, UnknownPair, UsageError
from localspec.library.pairs import user_pairs
from localspec.library.pairs.catalog import find_pair
from localspec.library.pairs.schema import FileHash, Setting, UserPair
from localspec.library.pairs.user_pairs import is_name

TARGET, DRAFT = "/models/big.gguf", "hf:org/small-GGUF/small-Q8_0.gguf"
SHA = "0123456789abcdef" * 4


def write(text: str, name: str = "mine") -> Path:
    path = user_pairs.folder() / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", "surrogateescape")
    return path


def test_what_was_kept_comes_back() -> None:
    settings: dict[str, Setting | None] = {
        "draft_tokens": 4, "ctx_size": 4096, "temperature": 0.5, "cache_type_k": "q8_0",
        "lenient": True, "top_k": None,
    }  # fmt: skip
    hashes = [FileHash(TARGET, SHA, 2**40), FileHash("/models/part 2 \U0001f600.gguf", SHA, 0)]
    path = user_pairs.add("mine", TARGET, DRAFT, settings, hashes)
    assert path == user_pairs.folder() / "mine.toml"
    kept = {key: value for key, value in settings.items() if value is not None}
    assert user_pairs.load("mine") == UserPair("mine", TARGET, DRAFT, kept, tuple(hashes))
    assert json.loads(json.dumps(asdict(user_pairs.load("mine"))))["files"][0]["size"] == 2**40
    assert user_pairs.names() == ["mine"]
    assert [each.name for each in path.parent.iterdir()] == ["mine.toml"]


def test_a_file_that_a_person_wrote() -> None:
    write('\ufefftarget="/a"# mine\r\ndraft = """hf:org/repo:Q4_K_M"""\n[settings]\nseed = 0x10')
    pair = user_pairs.load("mine")
    assert (pair.target, pair.draft, pair.settings) == ("/a", "hf:org/repo:Q4_K_M", {"seed": 16})


NAMES: list[str] = ["a", "qwen", "r1-qwen_32b.v2", "8b", "A" * 64, "gguf", "1e5"]


def test_names(subtests: pytest.Subtests) -> None:
    for name in NAMES:
        with subtests.test(name):
            assert is_name(name)
            user_pairs.add(name, TARGET, DRAFT, {})
            assert user_pairs.load(name).name == name


NO_NAMES: list[str] = [
    *("", "4", "1.5", "-3", "auto", "OFF", "find", ".", "..", ".hidden", "-m", "_x", "a b", "a/b"),
    *("../a", "a\n", "ä", "a\0", "x.gguf", "x.GGUF", "A" * 65, "hf:a", "0,2", "١a"),
]


def test_what_is_no_name(subtests: pytest.Subtests) -> None:
    for name in NO_NAMES:
        with subtests.test(name):
            assert not is_name(name)
            with pytest.raises(UsageError, match="cannot be named") as caught:
                user_pairs.add(name, TARGET, DRAFT, {})
            assert caught.value.message.isprintable()
            assert "letters" in caught.value.hint
            for use in (user_pairs.load, user_pairs.remove, user_pairs.find):
                with pytest.raises(UnknownPair):
                    use(name)
            assert not user_pairs.folder().exists()


def test_a_name_is_given_once() -> None:
    path = user_pairs.add("Mine", TARGET, DRAFT, {})
    before = path.read_bytes()
    for name in ("Mine", "mine"):  # some disks do not tell them apart
        with pytest.raises(UsageError, match="already have a pair named Mine"):
            user_pairs.add(name, "/other", DRAFT, {})
    assert path.read_bytes() == before
    assert user_pairs.load("MINE").name == "Mine"


def test_removing_forgets_the_pair_and_keeps_the_models(tmp_path: Path) -> None:
    model = tmp_path / "big.gguf"
    model.touch()
    user_pairs.add("mine", str(model), str(model), {})
    write("[", "damaged")
    user_pairs.remove("mine")
    user_pairs.remove("damaged")
    for name in ("4", "auto", ".x", "a b"):  # which no pair may have
        write("", name)
    (user_pairs.folder() / "readme.txt").touch()
    assert user_pairs.names() == []
    assert model.exists()
    with pytest.raises(UnknownPair, match="no pair named 'mine'"):
        user_pairs.remove("mine")


@pytest.mark.parametrize(
    ("target", "draft", "settings", "sentence"),
    [
        (TARGET, DRAFT, {"ctx_size": 4}, "ctx_size: expected a whole number from 8 to 2147483647."),
        (TARGET, DRAFT, {"temperature": 101}, "temperature: expected a number from 0 to 100."),
        (TARGET, DRAFT, {"\x1b": 8}, "there is no key settings.\\x1b; known are"),
        ("", DRAFT, {}, "target: expected an absolute path"),
        (TARGET, "/a\udcff.gguf", {}, "draft: expected an absolute path in UTF-8"),
        (TARGET, "hf:org", {}, "draft: expected an absolute path"),
    ],
)
def test_what_cannot_be_stored(
    target: str, draft: str, settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        user_pairs.add("mine", target, draft, settings)
    assert sentence in caught.value.message
    assert "pair mine" in caught.value.message and caught.value.hint
    assert caught.value.message.isprintable() and caught.value.message.endswith(".")
    assert user_pairs.names() == []


MODELS = f'target = "{TARGET}"\ndraft = "{DRAFT}"\n'


WRONG_FILES: list[tuple[str, str]] = [
    ("", "target is missing: expected an absolute path"),
    (f"{MODELS}speed = 3", "there is no key speed; known are target, draft"),
    (f"{MODELS}{MODELS}", "Cannot overwrite a value"),
    ("target = [" * 200_000, "larger than 1048576 bytes"),
    ("a = " + "[" * 50_000, "cannot be used"),
    ("x" * 2**20, "Expected '='"),
    ("'\x1b[2J' = '", "line 1"),
    ("target = '\udcff'", "it is not UTF-8 text"),
]


def test_a_wrong_file_is_told(subtests: pytest.Subtests) -> None:
    for text, sentence in WRONG_FILES:
        with subtests.test(sentence):
            path = write(text)
            with pytest.raises(FileProblem) as caught:
                user_pairs.load("mine")
            message = caught.value.message
            assert sentence in message
            assert str(path) in message and message.endswith(".")
            assert message.isprintable() and len(message) < 900
            assert "localspec pair remove mine" in caught.value.hint


def test_a_folder_in_place_of_a_file_and_a_file_in_place_of_the_folder() -> None:
    (user_pairs.folder() / "mine.toml").mkdir(parents=True)
    for use, does in ((user_pairs.load, "used"), (user_pairs.remove, "removed")):
        with pytest.raises(FileProblem, match=f"cannot be {does}"):
            use("mine")
    (user_pairs.folder() / "mine.toml").rmdir()
    user_pairs.folder().rmdir()
    user_pairs.folder().touch()
    with pytest.raises(FileProblem, match="cannot be read: Not a directory"):
        user_pairs.names()


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_MODELS", str(tmp_path / "models"))
    (tmp_path / "models").symlink_to(tmp_path / "gone" / "models")
    with pytest.raises(FileProblem, match="cannot be written") as caught:
        user_pairs.add("mine", TARGET, DRAFT, {})
    assert "LOCALSPEC_MODELS" in caught.value.hint


def test_a_pair_of_too_many_files_is_not_kept() -> None:
    with pytest.raises(UsageError, match="larger than"):
        user_pairs.add("mine", TARGET, DRAFT, {}, [FileHash("/" + "a" * 4000, SHA, 1)] * 300)


def test_an_own_pair_wins_over_the_catalogue() -> None:
    known = user_pairs.find("Qwen3-14B")
    assert (known.name, known.settings) == ("qwen3-14b", {})
    assert known.target == str(find_pair("qwen3-14b").target.reference)
    user_pairs.add("Qwen3-14B", TARGET, DRAFT, {"draft_tokens": "off"})
    own = user_pairs.find("qwen3-14b")
    assert (own.name, own.target, own.settings) == ("Qwen3-14B", TARGET, {"draft_tokens": "off"})


def test_an_own_pair_that_is_damaged_does_not_give_way() -> None:
    write("[", "qwen3-14b")
    with pytest.raises(FileProblem, match="qwen3-14b.toml cannot be used"):
        user_pairs.find("qwen3-14b")


def test_near_names_are_of_both_lists() -> None:
    user_pairs.add("smollm-mine", TARGET, DRAFT, {})
    with pytest.raises(UnknownPair, match=r"near it: demo\."):
        user_pairs.find("dmeo")
    with pytest.raises(UnknownPair, match="near it: smollm-mine, smollm2-1.7b"):
        user_pairs.find("smollm")
    with pytest.raises(UnknownPair, match=r"near it: smollm-mine\."):
        user_pairs.load("smollm")
