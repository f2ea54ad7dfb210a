"""Which models ``serve`` finds."""

from pathlib import Path

import pytest

from localspec.commands.flags.serving import ServingFlags
from localspec.commands.serve.models import _models
from localspec.core import paths
from localspec.core.errors import UsageError
from localspec.library.pairs.catalog import load_catalog
from tests.support.command import Command
from tests.support.library.hub_pair import PAIR


def test_without_a_name_pairs_and_single_models_are_served(
    fetched: list[Path], localspec: Command
) -> None:
    localspec("pair", "add", "mine", "-m", PAIR[0], "-md", PAIR[1])
    alone = paths.models_folder() / "alone.gguf"
    alone.write_bytes(fetched[0].read_bytes()[:-1] + b"\x01")  # another content
    for bundled in paths.bundled_folder().glob("*.gguf"):  # as in a checkout
        (paths.models_folder() / bundled.name).symlink_to(bundled)
    served = _models([], {}, ServingFlags())
    assert [model.name for model in served] == ["mine", "demo", "alone"]
    assert served[-1].source == str(alone)
    assert [model.name for model in _models(["mine"], {}, ServingFlags())] == ["mine"]


def test_pairs_and_models_of_the_current_folder_are_served(
    fetched: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = next(pair for pair in load_catalog() if pair.draft)
    assert known.draft and known.target.file and known.draft.file
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate((known.target.file, known.draft.file, "other.gguf")):
        Path(name).write_bytes(fetched[0].read_bytes()[:-1] + bytes([i]))
    served = [model.name for model in _models([], {}, ServingFlags())]
    assert served[:2] == [known.name, "demo"] and "other" in served
    assert not {Path(known.target.file).stem, Path(known.draft.file).stem} & {*served}
    named = _models([known.name, "demo"], {}, ServingFlags())
    assert [model.name for model in named] == [known.name, "demo"]


def test_models_have_names_of_their_own(fetched: list[Path], tmp_path: Path) -> None:
    (folder := tmp_path / "a=b").mkdir()
    odd = folder / "c=d.gguf"
    for file in (odd, tmp_path / "c=d.gguf"):
        file.write_bytes(fetched[0].read_bytes())
    names = [f"big={fetched[0]}", f"small={odd}", str(odd), f"other={tmp_path / 'c=d.gguf'}"]
    served = _models(names, {}, ServingFlags())
    assert [(model.name, model.source) for model in served] == [
        ("big", str(fetched[0])),
        ("small", str(odd)),
        ("c=d", str(odd)),
        ("other", str(tmp_path / "c=d.gguf")),
    ]
    with pytest.raises(UsageError) as refused:
        _models([str(odd), str(tmp_path / "c=d.gguf")], {}, ServingFlags())
    assert refused.value.hint == f"Give one a name of its own: NAME={tmp_path / 'c=d.gguf'}"
