"""Acquiring models: what is judged, told and asked before a download, and when none is needed."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localspec import download
from localspec.core import paths
from localspec.core.errors import (
    FileProblem,
    IncompatiblePair,
    UsageError,
)
from localspec.core.formatting import size
from localspec.hub.provenance import Progress, read_record
from localspec.hub.remote_header import FIRST_BYTES
from localspec.library import acquire
from localspec.library.acquire import (
    DownloadUI,
    ensure_local,
    file_hashes,
    header_of,
    judge,
)
from localspec.library.pairs import user_pairs
from localspec.library.resolve import MTP, Resolver
from tests.support.fake_hub import FakeHub
from tests.support.files.gguf_files import gguf_bytes, model_keys, model_tensors, words
from tests.support.files.head_files import dflash_bytes, mtp_bytes, target_bytes
from tests.support.library import zoo


def model(parameters: int, n_tokens: int = 300, control: str = "<end>") -> bytes:
    """A whole file, whose header takes a few kilobytes; its last token is a control token."""
    tokens = [*words(n_tokens - 1), control]
    keys = model_keys(tokens, types=[1] * (n_tokens - 1) + [3])
    return gguf_bytes(keys, model_tensors(parameters))


BIG, SMALL = model(200_000), model(40_000)  # 800 kB and 160 kB
MORE = model_keys([*words(299), "<end>", *words(500)[300:]], types=[1] * 299 + [3] + [1] * 200)
OTHER = gguf_bytes(MORE, model_tensors(40_000))  # another size of vocabulary
TUNED = model(40_000, control="<stop>")  # refused, but harmless
NO_MODEL = gguf_bytes({"general.type": "mmproj", "general.architecture": "clip"}, model_tensors())


class Listener:
    """Hears what a DownloadUI says, answers its questions, and counts what is transferred."""

    def __init__(self, answer: bool = False) -> None:
        self.sentences: list[str] = []
        self.questions: list[str] = []
        self.transferred: dict[str, tuple[int, int]] = {}
        self._answer = answer
        self.ui = DownloadUI(self.sentences.append, self._agree, self._transfer)

    def _agree(self, question: str) -> bool:
        self.questions.append(question)
        return self._answer

    @contextmanager
    def _transfer(self) -> Iterator[Progress]:
        yield lambda name, done, total: self.transferred.update({name: (done, total)})


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def stocked(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    hub.add("org/big-GGUF", "big-Q4_K_M.gguf", BIG, licence="mit")
    hub.add("org/small-GGUF", "small-Q8_0.gguf", SMALL, licence="apache-2.0")
    hub.add("org/other-GGUF", "other-Q8_0.gguf", OTHER)
    hub.add("org/tuned-GGUF", "tuned-Q8_0.gguf", TUNED)
    hub.add("org/eyes-GGUF", "eyes-F16.gguf", NO_MODEL)
    hub.add("org/junk-GGUF", "junk-Q8_0.gguf", b"words " * 1000)
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.0)
    return hub


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A folder with models that no tool knows of."""
    for name, data in (("big", BIG), ("small", SMALL), ("other", OTHER)):
        zoo.put(tmp_path / "local" / f"{name}.gguf", data)
    return tmp_path / "local"


def stored() -> list[str]:
    """Everything below the models folder."""
    return sorted(path.name for path in paths.models_folder().rglob("*") if path.is_file())


# --- headers and verdicts ---


def test_the_header_of_a_file_here_asks_nobody(
    stocked: FakeHub, listener: Listener, local: Path
) -> None:
    assert header_of(str(local / "big.gguf"), Resolver(), listener.ui).parameters == 200_000
    assert (listener.sentences, stocked.requests) == ([], [])
    with pytest.raises(FileProblem, match="There is no file"):
        header_of(str(local / "nosuch.gguf"), Resolver(), listener.ui)


def test_a_header_says_which_name_of_a_pair_to_use(listener: Listener) -> None:
    user_pairs.add("mine", "/big.gguf", "hf:org/small-GGUF", {})
    with pytest.raises(UsageError) as caught:
        header_of("mine", Resolver(), listener.ui)
    assert caught.value.hint == "Name one of them: /big.gguf or hf:org/small-GGUF"


# --- fetching ---


def test_a_file_of_the_same_name_is_pointed_at(
    stocked: FakeHub, listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "big-Q4_K_M.gguf").write_bytes(BIG)
    header_of("hf:org/big-GGUF/big-Q4_K_M.gguf", Resolver(), listener.ui)
    assert "to use it, name it: big-Q4_K_M.gguf" in listener.sentences[1]
    header_of("hf:org/small-GGUF/small-Q8_0.gguf", Resolver(), listener.ui)
    assert not any("small" in each and "name it" in each for each in listener.sentences)


def test_a_pair_is_told_of_fetched_and_recorded(stocked: FakeHub, listener: Listener) -> None:
    files = ensure_local(["org/big-GGUF:Q4_K_M", "org/small-GGUF"], Resolver(), listener.ui)
    folder = paths.models_folder() / "org"
    assert files == [
        folder / "big-GGUF" / "big-Q4_K_M.gguf",
        folder / "small-GGUF" / "small-Q8_0.gguf",
    ]
    assert [path.read_bytes() for path in files] == [BIG, SMALL]
    for path, data in zip(files, (BIG, SMALL), strict=True):
        record = read_record(path)
        assert record is not None and record.sha256 == hashlib.sha256(data).hexdigest()
    assert listener.sentences == [
        "Asking the Hub for hf:org/big-GGUF:Q4_K_M.",
        "Asking the Hub for hf:org/small-GGUF.",
        f"hf:org/big-GGUF:Q4_K_M: {size(len(BIG))}, licence mit.",
        f"hf:org/small-GGUF: {size(len(SMALL))}, licence apache-2.0.",
    ]
    assert listener.questions == []
    assert listener.transferred == {
        f"{what}{path.name}": (len(data), len(data))
        for path, data in zip(files, (BIG, SMALL), strict=True)
        for what in ("", "checking ")
    }
    assert sum(stocked.served.values()) <= len(BIG) + len(SMALL) + 2 * FIRST_BYTES


def test_what_is_here_is_not_asked_for(stocked: FakeHub, listener: Listener, local: Path) -> None:
    names = ["org/big-GGUF:Q4_K_M", "org/small-GGUF"]
    files = ensure_local(names, Resolver(), listener.ui)
    stocked.stop()
    again = Listener()
    assert ensure_local(names, Resolver(), again.ui) == files
    assert ensure_local([str(local / "big.gguf"), names[1]], Resolver(), again.ui) == [
        local / "big.gguf",
        files[1],
    ]
    assert again.sentences == []


def test_what_the_hubs_own_cache_has_is_used_there(
    stocked: FakeHub, listener: Listener, tmp_path: Path
) -> None:
    cache = tmp_path / "huggingface" / "hub"
    link = zoo.put_in_hub_cache(cache, "org/small-GGUF", "small-Q8_0.gguf", SMALL)
    assert ensure_local(["org/small-GGUF"], Resolver(), listener.ui) == [link]
    assert (stocked.requests, listener.sentences, stored()) == ([], [], [])


def test_wrong_bytes_in_the_hubs_own_cache_are_found_once(
    stocked: FakeHub, listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "huggingface" / "hub"
    link = zoo.put_in_hub_cache(cache, "Org/SMALL-gguf", "small-Q8_0.gguf", SMALL)
    assert ensure_local(["org/small-GGUF"], Resolver(), listener.ui) == [link]
    link.resolve().write_bytes(SMALL[:-1] + b"x")
    with pytest.raises(FileProblem, match="is wrong: its sha256 begins with") as caught:
        ensure_local(["org/small-GGUF"], Resolver(), listener.ui)
    assert f"rm {link.resolve()}" in caught.value.hint
    link.resolve().write_bytes(SMALL)
    ensure_local(["org/small-GGUF"], Resolver(), listener.ui)
    monkeypatch.setattr("localspec.hub.provenance.sha256_of", None)
    assert ensure_local(["org/small-GGUF"], Resolver(), listener.ui) == [link]


def test_a_missing_half_is_fetched(stocked: FakeHub, listener: Listener, local: Path) -> None:
    files = ensure_local([str(local / "big.gguf"), "org/small-GGUF"], Resolver(), listener.ui)
    assert files[0] == local / "big.gguf" and files[1].read_bytes() == SMALL
    assert len(listener.sentences) == 2 and "big" not in " ".join(listener.sentences)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["org/big-GGUF", "org/other-GGUF"],
            "hf:org/other-GGUF cannot draft for hf:org/big-GGUF, so nothing was fetched: The "
            "vocabularies differ by 200 ids",
        ),
        (
            ["LOCAL/big.gguf", "org/other-GGUF"],
            "hf:org/other-GGUF cannot draft for LOCAL/big.gguf, so nothing was fetched: The "
            "vocabularies differ by 200 ids",
        ),
        (["org/big-GGUF", "org/eyes-GGUF"], "The draft is not a model but the vision or audio"),
    ],
)
def test_a_pair_that_cannot_work_is_refused_by_its_headers(
    stocked: FakeHub, listener: Listener, local: Path, names: list[str], words: str
) -> None:
    given = [name.replace("LOCAL", str(local)) for name in names]
    with pytest.raises(IncompatiblePair) as caught:
        ensure_local(given, Resolver(), listener.ui)
    message, hint = caught.value.message, caught.value.hint
    assert words.replace("LOCAL", str(local)) in message and message.endswith(".")
    assert f"localspec check {given[0].replace('org/big', 'hf:org/big')} " in hint
    assert sum(stocked.served.values()) <= 2 * FIRST_BYTES
    assert stored() == []


def test_lenient_fetches_what_cannot_corrupt_text(stocked: FakeHub, listener: Listener) -> None:
    names = ["org/big-GGUF", "org/tuned-GGUF"]
    with pytest.raises(IncompatiblePair):
        ensure_local(names, Resolver(), listener.ui)
    assert stored() == []
    assert ensure_local(names, Resolver(), listener.ui, lenient=True)[1].read_bytes() == TUNED


def test_several_single_models(stocked: FakeHub, listener: Listener) -> None:
    names = ["org/big-GGUF", "org/other-GGUF", "org/small-GGUF"]  # no pair, so no verdict
    files = ensure_local(names, Resolver(), listener.ui)
    assert [path.read_bytes() for path in files] == [BIG, OTHER, SMALL]
    with pytest.raises(FileProblem):
        ensure_local(["org/tuned-GGUF", "org/other-GGUF", "org/eyes-GGUF"], Resolver(), listener.ui)
    assert "tuned-Q8_0.gguf" not in stored()


# --- names ---


def test_a_pairs_name_stands_for_two_models() -> None:
    user_pairs.add("mine", "/big.gguf", "hf:org/small-GGUF", {})
    assert Resolver().choose("mine").models == ["/big.gguf", "hf:org/small-GGUF"]
    assert Resolver().choose("org/repo:Q8_0").models == ["org/repo:Q8_0"]
    assert Resolver().choose("qwen3-14b").models[0].startswith("hf:Qwen/Qwen3-14B-GGUF")


def test_files_of_what_is_here(stocked: FakeHub, listener: Listener, local: Path) -> None:
    user_pairs.add("mine", str(local / "big.gguf"), "hf:org/small-GGUF", {})
    with pytest.raises(FileProblem) as caught:
        Resolver().files_of("mine")
    assert caught.value.message == "hf:org/small-GGUF is not on this disk."
    assert caught.value.hint == "Fetch it: localspec download hf:org/small-GGUF"
    (small,) = ensure_local(["org/small-GGUF"], Resolver(), listener.ui)
    assert Resolver().files_of("mine") == [local / "big.gguf", small]
    assert Resolver().files_of("org/small-GGUF:q8_0") == [small]
    assert Resolver().files_of(str(local / "other.gguf")) == [local / "other.gguf"]


def test_hashes_of_all_files_that_are_here(
    animals: zoo.Zoo, stocked: FakeHub, listener: Listener, local: Path
) -> None:
    folder = Path(animals.environment["LOCALSPEC_MODELS"])
    parts = sorted(folder.rglob("Qwen2.5-14B*.gguf"))
    told: list[tuple[str, int, int]] = []
    for draft in ("org/small-GGUF", "org/other-GGUF"):  # on the Hub, read whole and in part
        check = judge(str(local / "big.gguf"), draft, Resolver(), listener.ui)
        (alone,) = file_hashes(check, lambda *progress: None)
        assert alone.path == str(local / "big.gguf")
    check = judge(str(parts[0]), str(local / "small.gguf"), Resolver(), listener.ui)
    hashes = file_hashes(check, lambda *progress: told.append(progress))
    assert [Path(each.path) for each in hashes] == [*parts, local / "small.gguf"]
    for each in hashes:
        data = Path(each.path).read_bytes()
        assert (each.sha256, each.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert told[-1] == ("small.gguf", len(SMALL), len(SMALL))
    own = zoo.put(local / "own.gguf", WITH_HEADS)  # once, though it is target and draft
    check = judge(str(own), MTP, Resolver(), listener.ui)
    assert [each.size for each in file_hashes(check, lambda *progress: None)] == [len(WITH_HEADS)]


# --- prediction heads in place of a draft ---


WITH_HEADS, WITHOUT, LEFT_OUT = (
    target_bytes(),
    target_bytes(heads=0),
    target_bytes(held=0),
)


@pytest.fixture
def heads_on_hub(stocked: FakeHub) -> FakeHub:
    stocked.add("org/own-GGUF", "own-Q4_K_M.gguf", WITH_HEADS)
    stocked.add("org/beside-GGUF", "beside-Q4_K_M.gguf", WITHOUT)
    stocked.add("org/beside-GGUF", "mtp-beside-Q4_0.gguf", mtp_bytes())
    stocked.add("org/beside-GGUF", "MTP/beside-Q8_0.gguf", mtp_bytes())
    stocked.add("org/beside-GGUF", "dflash-beside-Q8_0.gguf", dflash_bytes())
    stocked.add("org/left-GGUF", "left-Q4_K_M.gguf", LEFT_OUT)
    stocked.add("org/wide-GGUF", "wide-Q4_K_M.gguf", WITHOUT)
    stocked.add("org/wide-GGUF", "mtp-wide.gguf", mtp_bytes(keys={"embedding_length": 128}))
    return stocked


@pytest.mark.parametrize(
    ("repo", "files", "said"),
    [
        (
            "org/own-GGUF",
            ["own-Q4_K_M.gguf"] * 2,
            "The prediction heads are in the target's own file.",
        ),
        (
            "org/beside-GGUF",
            ["beside-Q4_K_M.gguf", "beside-Q8_0.gguf"],
            "Asking the Hub for heads in org/beside-GGUF.",
        ),
    ],
)
def test_heads_are_fetched_with_their_target(
    heads_on_hub: FakeHub, listener: Listener, repo: str, files: list[str], said: str
) -> None:
    found = ensure_local([repo, MTP], Resolver(), listener.ui)
    assert [path.name for path in found] == files
    assert found[0].read_bytes() == (WITH_HEADS if "own" in repo else WITHOUT)
    assert listener.sentences.count(said) == 1
    heads_on_hub.stop()  # from now on they are found in or beside the target
    for name in (repo, str(found[0])):
        assert ensure_local([name, MTP], Resolver(), listener.ui) == found


def test_heads_that_are_nowhere_are_told_before_anything_is_fetched(
    heads_on_hub: FakeHub, listener: Listener
) -> None:
    with pytest.raises(IncompatiblePair) as caught:
        ensure_local(["org/left-GGUF", MTP], Resolver(), listener.ui)
    assert caught.value.message == (
        "left-Q4_K_M.gguf names 1 prediction head, but its conversion left them out. "
        "org/left-GGUF holds no sidecar of heads (mtp-*.gguf) either."
    )
    with pytest.raises(IncompatiblePair, match="are 64 wide, the heads read 128"):
        ensure_local(["org/wide-GGUF", MTP], Resolver(), listener.ui)
    assert stored() == []


@pytest.mark.parametrize("names", [[MTP], [MTP, MTP], [MTP, "org/own-GGUF"]])
def test_heads_of_no_target_are_refused(
    heads_on_hub: FakeHub, listener: Listener, names: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        ensure_local(names, Resolver(), listener.ui)
    assert caught.value.message.startswith("mtp is not a model")
    assert caught.value.hint == "Name one target, then mtp."
    assert heads_on_hub.requests == []


def test_heads_beside_a_target_on_this_disk(
    heads_on_hub: FakeHub, listener: Listener, tmp_path: Path
) -> None:
    target = zoo.put(tmp_path / "Big.gguf", WITHOUT)
    with pytest.raises(IncompatiblePair, match=r"No sidecar of heads \(mtp-\*.gguf\) lies next to"):
        ensure_local([str(target), MTP], Resolver(), listener.ui)
    heads = zoo.put(tmp_path / "mtp-Big.gguf", mtp_bytes())
    assert ensure_local([str(target), MTP], Resolver(), listener.ui) == [target, heads]
    assert heads_on_hub.requests == []


def test_heads_alone_can_be_fetched(heads_on_hub: FakeHub, listener: Listener) -> None:
    name = "hf:org/beside-GGUF/dflash-beside-Q8_0.gguf"
    [path] = ensure_local([name], Resolver(), listener.ui)
    assert path.read_bytes() == dflash_bytes()
    heads_on_hub.add("org/bad-GGUF", "dflash-bad.gguf", dflash_bytes(layers=()))
    with pytest.raises(FileProblem, match="names no layers of its target"):
        ensure_local(["hf:org/bad-GGUF/dflash-bad.gguf"], Resolver(), listener.ui)


@pytest.mark.parametrize(
    ("target", "draft", "compatible"),
    [
        ("org/own-GGUF", MTP, True),
        ("org/own-GGUF", "org/own-GGUF", True),
        ("org/beside-GGUF", MTP, True),
        ("org/left-GGUF", "org/left-GGUF", False),
        ("org/beside-GGUF", "hf:org/beside-GGUF/dflash-beside-Q8_0.gguf", True),
    ],
)
def test_heads_are_judged_by_headers(
    heads_on_hub: FakeHub, listener: Listener, target: str, draft: str, compatible: bool
) -> None:
    check = judge(target, draft, Resolver(), listener.ui)
    assert check.report.compatible is compatible and stored() == []
    one_file = draft == target or (draft == MTP and "own" in target)
    assert (check.target is check.draft) is one_file


def test_heads_in_the_repository_of_a_model_that_is_not_here(
    heads_on_hub: FakeHub, listener: Listener, tmp_path: Path
) -> None:
    found = acquire.heads_on_hub("org/beside-GGUF", Resolver(), listener.ui)
    assert [str(each.reference) for each in found] == [
        "hf:org/beside-GGUF/mtp-beside-Q4_0.gguf",
        "hf:org/beside-GGUF/MTP/beside-Q8_0.gguf",
        "hf:org/beside-GGUF/dflash-beside-Q8_0.gguf",
    ]
    asked = len(heads_on_hub.requests)
    here = zoo.put(tmp_path / "x.gguf", WITHOUT)
    assert acquire.heads_on_hub(str(here), Resolver(), listener.ui) == []
    assert len(heads_on_hub.requests) == asked
