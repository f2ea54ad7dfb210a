"""Sidecars that draft: which model they stand with, and which of them a target takes."""

from pathlib import Path

import pytest

from localspec.core.errors import IncompatiblePair
from localspec.hub.client import RemoteModel
from localspec.hub.reference import Reference, RemoteFile
from localspec.library import sidecars
from localspec.library.local_models import find_models
from localspec.library.scan import files_beside
from localspec.metadata.filenames import heads_kind, model_name
from localspec.metadata.header import read_header
from tests.support.files.head_files import (
    dflash_bytes,
    eagle3_bytes,
    header_of,
    mtp_bytes,
    target_bytes,
)
from tests.support.library import zoo
from tests.support.library.model_folders import some_model

# --- names ---


@pytest.mark.parametrize(
    "path, kind, model",
    [
        ("mtp-gemma-4-E4B-it.gguf", "mtp", "gemma4e4bit"),
        ("org/repo/MTP/gemma-4-E4B-it-Q8_0.gguf", "mtp", "gemma4e4bit"),
        ("eagle3-gpt-oss-20b-Q8_0.gguf", "eagle3", "gptoss20b"),
        ("Qwen3.6-27B-DFlash.Q8_0.gguf", "dflash", "qwen3627b"),
        ("dflash-Qwen3-8B-Q8_0.gguf", "dflash", "qwen38b"),
        ("Qwen3-8B-MTP-Q8_0.gguf", None, "qwen38bmtp"),
        ("mmproj-dflash-x.gguf", None, "mmprojx"),
        ("dspark-x.gguf", "dspark", "x"),
        ("mtp.gguf", None, "mtp"),
    ],
)
def test_what_a_name_tells(path: str, kind: str | None, model: str) -> None:
    assert heads_kind(path) == kind and model_name(path) == model


# --- the list ---


def put(folder: Path, *names: str) -> None:
    """Models of different content."""
    for number, name in enumerate(names):
        zoo.put(folder / name, some_model(20 + number))


def placed() -> tuple[dict[str, list[str]], list[str]]:
    inventory = find_models()
    served, alone = sidecars.by_model(inventory)
    with_heads = {
        model.name: [each.name for each in heads]
        for model, heads in zip(inventory.models, served, strict=True)
    }
    return with_heads, [each.name for each in alone]


def test_a_sidecar_stands_with_its_model(ours: Path) -> None:
    put(
        ours,
        "gemma/gemma-4-E4B-it-UD-Q4_K_XL.gguf",
        "gemma/gemma-4-26B-it-Q4_K_M.gguf",
        "gemma/mtp-gemma-4-E4B-it.gguf",
        "gemma/MTP/gemma-4-26B-it-Q8_0.gguf",
        "qwen/Qwen3.6-27B-Q4_K_M.gguf",
        "elsewhere/Qwen3.6-27B-DFlash.Q8_0.gguf",
        "elsewhere/eagle3-gpt-oss-20b-Q8_0.gguf",
    )
    assert placed() == (
        {
            "gemma/gemma-4-26B-it-Q4_K_M.gguf": ["gemma/MTP/gemma-4-26B-it-Q8_0.gguf"],
            "gemma/gemma-4-E4B-it-UD-Q4_K_XL.gguf": ["gemma/mtp-gemma-4-E4B-it.gguf"],
            "qwen/Qwen3.6-27B-Q4_K_M.gguf": ["elsewhere/Qwen3.6-27B-DFlash.Q8_0.gguf"],
        },
        ["elsewhere/eagle3-gpt-oss-20b-Q8_0.gguf"],
    )


def test_of_several_quantisations_the_one_beside_it_has_it(ours: Path) -> None:
    put(ours, "a/Big-Q4_K_M.gguf", "b/Big-Q8_0.gguf", "b/mtp-Big.gguf")
    assert placed() == ({"a/Big-Q4_K_M.gguf": [], "b/Big-Q8_0.gguf": ["b/mtp-Big.gguf"]}, [])


def test_a_name_that_only_begins_alike_must_lie_beside(ours: Path) -> None:
    put(ours, "a/Big-Instruct-Q4_K_M.gguf", "b/mtp-Big.gguf", "b/mtp-.gguf")
    assert placed() == ({"a/Big-Instruct-Q4_K_M.gguf": []}, ["b/mtp-.gguf", "b/mtp-Big.gguf"])


# --- for one target ---


def test_the_sidecar_of_its_name_comes_first(tmp_path: Path) -> None:
    target = header_of(tmp_path, target_bytes(heads=0), "Big-Q4_K_M.gguf")
    for name in ("mtp-Another.gguf", "mtp-Big.gguf"):
        zoo.put(tmp_path / name, mtp_bytes())
    zoo.put(tmp_path / "dflash-Big.gguf", dflash_bytes())
    zoo.put(tmp_path / "mtp-Big-broken.gguf", b"GGUF and no more")
    assert sidecars.sidecar_beside(target, mtp_only=True) == tmp_path / "mtp-Big.gguf"
    (tmp_path / "mtp-Big.gguf").unlink()
    assert sidecars.sidecar_beside(target, mtp_only=True) == tmp_path / "mtp-Another.gguf"


def test_sidecars_are_taken_in_llama_cpps_order(tmp_path: Path) -> None:
    target = header_of(tmp_path, target_bytes(heads=0), "Big-Q4_K_M.gguf")
    files = {
        "mtp-Big.gguf": mtp_bytes(), "dflash-Big.gguf": dflash_bytes(),
        "eagle3-Big-Q8_0.gguf": eagle3_bytes(), "mtp-Another.gguf": mtp_bytes(),
    }  # fmt: skip
    for name, data in files.items():
        zoo.put(tmp_path / name, data)
    zoo.put(tmp_path / "dflash-Another.gguf", dflash_bytes())  # which would fit as well
    for name in files:
        assert sidecars.sidecar_beside(target) == tmp_path / name
        (tmp_path / name).unlink()
    with pytest.raises(IncompatiblePair, match="No sidecar of heads"):
        sidecars.sidecar_beside(target)


def test_why_there_are_no_heads(tmp_path: Path) -> None:
    def message(data: bytes) -> str:
        with pytest.raises(IncompatiblePair) as caught:
            sidecars.sidecar_beside(header_of(tmp_path, data, "Big.gguf"), mtp_only=True)
        assert caught.value.hint
        return caught.value.message

    none = "No sidecar of heads (mtp-*.gguf) lies next to it."
    assert message(target_bytes(heads=0)) == f"Big.gguf has no prediction heads of its own. {none}"
    assert message(target_bytes(held=0)) == (
        f"Big.gguf names 1 prediction head, but its conversion left them out. {none}"
    )
    zoo.put(tmp_path / "mtp-Big.gguf", mtp_bytes(keys={"embedding_length": 128}))
    assert message(target_bytes(heads=0)) == (
        "Big.gguf has no prediction heads of its own. "
        "mtp-Big.gguf: The target's hidden states are 64 wide, the heads read 128."
    )
    remote = header_of(tmp_path, target_bytes(heads=0))
    remote.path.unlink()
    assert files_beside(remote.path) == [] and read_header(tmp_path / "Big.gguf").complete


def test_why_the_sidecars_beside_a_target_do_not_fit(tmp_path: Path) -> None:
    target = header_of(tmp_path, target_bytes(heads=0), "Big.gguf")
    wide = mtp_bytes(keys={"embedding_length": 128})
    zoo.put(tmp_path / "mtp-Big.gguf", b"GGUF and no more")
    zoo.put(tmp_path / "MTP" / "Big.gguf", target_bytes(heads=0))
    for number in range(4):
        zoo.put(tmp_path / f"mtp-Other{number}.gguf", wide)
    zoo.put(tmp_path / "dflash-Big.gguf", dflash_bytes())
    with pytest.raises(IncompatiblePair) as caught:
        sidecars.sidecar_beside(target, mtp_only=True)
    message = caught.value.message
    assert message.startswith("Big.gguf has no prediction heads of its own. ")
    assert str(tmp_path / "mtp-Big.gguf") in message  # what is damaged is not passed over
    assert "Big.gguf holds no MTP heads: it is a model." in message
    assert "mtp-Other0.gguf: The target's hidden states are 64 wide" in message
    assert message.endswith(" 3 more next to it do not fit.") and "Other1" not in message


def test_a_folder_that_cannot_be_read_has_nothing_beside_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = header_of(tmp_path, target_bytes(heads=0), "Big.gguf")
    zoo.put(tmp_path / "mtp-Big.gguf", mtp_bytes())
    assert files_beside(target.path) == [tmp_path / "mtp-Big.gguf"]

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert files_beside(target.path) == []


def test_in_a_repository_the_finest_of_its_name_comes_first() -> None:
    def ranked(*paths: str) -> list[str]:
        heads = [
            RemoteModel(Reference("org/x", path), "0" * 40, (RemoteFile(path, 9, None),), None)
            for path in paths
        ]
        return [each.files[0].path for each in sidecars.ranked("bigit", heads)]

    assert ranked() == []
    order = ["mtp-Big-it-Q8_0.gguf", "mtp-Big-it-Q4_0.gguf", "dspark-Big-it.gguf"]
    order += ["dflash-Big-it.gguf", "mtp-Other.gguf"]
    assert ranked("eagle3-Other.gguf", *reversed(order)) == order
