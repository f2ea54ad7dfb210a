"""What drafts for a target where nothing was named, and what is said of it."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from localspec.core import paths
from localspec.core.errors import HubProblem, IncompatiblePair
from localspec.core.options.load_options import DraftTokens
from localspec.library.acquire import DownloadUI, ensure_local
from localspec.library.pairs.files import PairFiles, PairFinder
from localspec.library.resolve import Resolver
from tests.support.fake_hub import FakeHub
from tests.support.files.head_files import (
    dflash_bytes,
    dspark_bytes,
    eagle3_bytes,
    mtp_bytes,
    target_bytes,
)
from tests.support.files.tiny_models import write_tiny_model
from tests.support.library import zoo

pytestmark = pytest.mark.llama


def found(
    target: Path | str,
    lengths: Sequence[DraftTokens] = (),
    parallel: int = 1,
    draft: str | None = None,
) -> tuple[PairFiles, list[str]]:
    """What drafts for the target, and the sentences about it."""
    said: list[str] = []
    return finder(said, parallel).find(str(target), draft, lengths), said


def finder(said: list[str], parallel: int = 1) -> PairFinder:
    """What looks, and adds sentences to ``said``."""
    return PairFinder(Resolver(), listening(said), lambda path: path, parallel=parallel)


def listening(said: list[str]) -> DownloadUI:
    return DownloadUI(said.append, lambda question: False, lambda: nullcontext(lambda *_: None))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return zoo.put(tmp_path / "Big-Q4_K_M.gguf", target_bytes(heads=0))


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("mtp-Big.gguf", mtp_bytes(), "MTP"),
        ("MTP/Big-Q8_0.gguf", mtp_bytes(), "MTP"),
        ("Big-DFlash.Q8_0.gguf", dflash_bytes(), "DFlash"),
        ("dspark-Big.gguf", dspark_bytes(), "DSpark"),
        ("eagle3-Big.gguf", eagle3_bytes(), "EAGLE-3"),
    ],
)
def test_a_sidecar_drafts(target: Path, name: str, data: bytes, kind: str) -> None:
    sidecar = zoo.put(target.parent / name, data)
    note = f"Draft: the prediction heads of {sidecar.name} ({kind}), next to the target."
    assert found(target) == (PairFiles(target, sidecar), [note])
    assert found(target, (4,)) == (PairFiles(target, sidecar), [note])
    assert found(target, (0,)) == (PairFiles(target), [])


def test_heads_inside_come_before_a_sidecar(tmp_path: Path) -> None:
    target = zoo.put(tmp_path / "Big.gguf", target_bytes())
    zoo.put(tmp_path / "dflash-Big.gguf", dflash_bytes())
    files, said = found(target)
    assert files == PairFiles(target, target, own_heads=True)
    assert said == ["Draft: the model's own prediction heads (MTP)."]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("dflash-Big.gguf", dflash_bytes(keys={"embedding_length": 128}), "64 wide"),
        ("eagle3-Big.gguf", target_bytes(heads=0), "holds no heads: it is a model"),
        (
            "dspark-Big.gguf",
            dspark_bytes(keys={"block_size": None}),
            "blocks of 0 tokens",
        ),
    ],
)
def test_a_sidecar_that_does_not_fit_is_named(
    target: Path, name: str, data: bytes, reason: str
) -> None:
    zoo.put(target.parent / name, data)
    files, (note,) = found(target)
    assert files == PairFiles(target)
    assert note.startswith("No heads are used. ") and f"{name}" in note and reason in note


def test_several_slots_draft_with_heads_only_where_they_are_named(target: Path) -> None:
    zoo.put(target.parent / "mtp-Big.gguf", mtp_bytes())
    files, (note,) = found(target, parallel=2)
    assert files == PairFiles(target)
    assert note.startswith("No heads are used. ") and "--draft /" in note
    assert found(target, parallel=2, draft="mtp")[0].draft == target.parent / "mtp-Big.gguf"
    own = zoo.put(target.parent / "Own.gguf", target_bytes())
    assert "--draft mtp" in found(own, parallel=2)[1][0]
    for draft in ("mtp", "find"):
        assert found(own, parallel=2, draft=draft)[0] == PairFiles(own, own, own_heads=True)


def test_a_draft_next_to_the_target_is_named_before_one_of_the_catalogue(tmp_path: Path) -> None:
    target = write_tiny_model(tmp_path / "Qwen3-8B-Q4_K_M.gguf", seed=1, layers=8)
    draft = write_tiny_model(tmp_path / "small.gguf", seed=1, layers=1)
    files, (note,) = found(target)
    assert files == PairFiles(target)
    assert note == f"No draft model is used. {draft} fits: --draft {draft} uses it."


def test_a_known_draft_is_named_where_none_is_here(tmp_path: Path) -> None:
    known = zoo.put(tmp_path / "Qwen3-8B-Q4_K_M.gguf", target_bytes(heads=0))
    files, (note,) = found(known)
    assert files == PairFiles(known)
    assert note == (
        "No draft model is used. The pair qwen3-8b-dflash has one (1.1 GB): "
        "--draft hf:ggml-org/Qwen3-8B-GGUF/dflash-Qwen3-8B-Q8_0.gguf fetches it."
    )
    assert found(known, (0,)) == (PairFiles(known), [])
    other = zoo.put(tmp_path / "none.gguf", target_bytes(heads=0, keys={"vocab_size": 3}))
    assert found(other) == (PairFiles(other), [])


def test_a_draft_in_the_folder_is_named_where_another_one_is_to_be_fetched(
    hub: FakeHub, target: Path
) -> None:
    heads = zoo.put(target.parent / "dflash-Big.gguf", dflash_bytes())
    said: list[str] = []
    with pytest.raises(HubProblem):
        finder(said).find(str(target), "hf:org/small-GGUF/small.gguf", ())
    assert said[0] == (
        f"hf:org/small-GGUF/small.gguf is not on this disk. {heads} fits too: --draft {heads} uses "
        "it."
    )
    assert found(target, draft=str(heads)) == (PairFiles(target, heads), [])


# --- a target on the Hub ---


@pytest.fixture
def hub_files(hub: FakeHub) -> dict[str, bytes]:
    """The files of the repository org/Big-GGUF: a target, and heads of it."""
    files = {
        "Big-Q4_K_M.gguf": target_bytes(heads=0),
        "mtp-Big-wide.gguf": mtp_bytes(keys={"embedding_length": 128}),
        "eagle3-Other.gguf": eagle3_bytes(),
        "Big-DFlash.Q8_0.gguf": dflash_bytes(),
    }
    for name, data in files.items():
        hub.add("org/Big-GGUF", name, data)
    return files


def folder() -> Path:
    return paths.models_folder() / "org" / "Big-GGUF"


def test_heads_in_the_repository_of_a_new_target_are_named(
    hub: FakeHub, hub_files: dict[str, bytes]
) -> None:
    command = "localspec download hf:org/Big-GGUF/Big-DFlash.Q8_0.gguf"
    files, said = found("org/Big-GGUF:Q4_K_M")
    assert files == PairFiles(folder() / "Big-Q4_K_M.gguf")
    assert said[-1].startswith("org/Big-GGUF has a DFlash head for it (")
    assert f"{command} fetches them" in said[-1]
    asked = len(hub.requests)
    assert found("org/Big-GGUF:Q4_K_M") == (files, [])  # from now on nothing is asked
    assert len(hub.requests) == asked
    name = command.rpartition(" ")[2]
    fetched = ensure_local([name], Resolver(), listening([]))
    assert found("org/Big-GGUF:Q4_K_M")[0] == PairFiles(files.target, fetched[0])


@pytest.mark.parametrize("asked", [{"lengths": (0,)}, {"lengths": ("auto",)}, {"parallel": 2}])
def test_nothing_is_asked_where_heads_would_not_draft(
    hub: FakeHub, hub_files: dict[str, bytes], asked: dict[str, Any]
) -> None:
    _, said = found("org/Big-GGUF", **asked)
    assert not any("for heads" in sentence for sentence in said)


@pytest.mark.parametrize("data", [target_bytes(), target_bytes(heads=0)])
def test_heads_that_do_not_fit_are_not_named(hub: FakeHub, data: bytes) -> None:
    hub.add("org/Big-GGUF", "Big-Q4_K_M.gguf", data)
    hub.add("org/Big-GGUF", "mtp-Big.gguf", mtp_bytes(keys={"embedding_length": 128}))
    assert not any("fetches them" in sentence for sentence in found("org/Big-GGUF")[1])


def test_find_fetches_heads_where_nothing_here_drafts(
    hub: FakeHub, hub_files: dict[str, bytes]
) -> None:
    files, said = found("org/Big-GGUF", draft="find")
    assert files == PairFiles(folder() / "Big-Q4_K_M.gguf", folder() / "Big-DFlash.Q8_0.gguf")
    assert said[-1] == (
        "Draft: the prediction heads of Big-DFlash.Q8_0.gguf (DFlash), next to the target."
    )
    assert files.draft is not None
    assert files.draft.read_bytes() == hub_files["Big-DFlash.Q8_0.gguf"]


def test_find_goes_on_where_the_hub_is_down(hub: FakeHub, hub_files: dict[str, bytes]) -> None:
    found("org/Big-GGUF", (0,))
    hub.stop()
    said: list[str] = []
    with pytest.raises(IncompatiblePair, match="No model on this disk can draft"):
        finder(said).find("org/Big-GGUF", "find", ())
    assert said[-1].startswith("Whether org/Big-GGUF has heads is not known: ")
