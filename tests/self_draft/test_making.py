"""Making a self-draft, whole, with real llama.cpp on a target with silent layers."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from localspec.metadata.gguf_writer import copied, write_copy
from localspec.metadata.header import read_header
from localspec.metadata.splits import read_part
from localspec.self_draft import making, store
from localspec.self_draft.make import LAYERS_KEY
from localspec.self_draft.making import MadeDraft, make_and_store
from localspec.self_draft.recipe import KEEP, Recipe, SelfDraftOptions
from tests.support.real_pair import options

pytestmark = pytest.mark.llama


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token is counted but the prompts'."""
    monkeypatch.setattr(making, "COUNT_BUDGET", 0.0)


def made(
    target: Path, asked: SelfDraftOptions, output: Path
) -> tuple[MadeDraft, list[str], list[str]]:
    said, shown = list[str](), list[str]()
    found = make_and_store(
        options(target),
        asked,
        output,
        [[{"role": "user", "content": "the thing"}]],
        said.append,
        lambda: nullcontext(lambda label, done, total: shown.append(label)),
    )
    return found, said, shown


def test_a_draft_is_made_and_stored(silent_target: Path, tmp_path: Path) -> None:
    output = tmp_path / "draft.gguf"
    found, said, shown = made(silent_target, SelfDraftOptions(4, KEEP), output)
    assert read_header(output).values[LAYERS_KEY] == (0, 1, 2, 3)
    assert found.recipe == Recipe(4) and found.n_bytes == output.stat().st_size
    assert found.stored == store.find(read_header(silent_target)) is not None
    assert said == ["Making a draft of the first 4 of 6 layers."] and shown == ["making the draft"]
    left = [path.name for path in store.folder().iterdir() if path.name.startswith(".")]
    assert left == []


def test_output_rows_go(silent_target: Path, tmp_path: Path) -> None:
    output = tmp_path / "draft.gguf"
    found, said, shown = made(silent_target, SelfDraftOptions(2, KEEP, vocab=64), output)
    trimmed = read_header(output).trimmed
    assert trimmed is not None and len(trimmed.ids) == 64 and found.recipe == Recipe(2, KEEP, 64)
    assert "trimming" in shown and "counting the target's tokens" in said[0]


def test_a_draft_that_is_given_is_trimmed_and_stays(silent_target: Path, tmp_path: Path) -> None:
    draft, output = tmp_path / "small.gguf", tmp_path / "trimmed.gguf"
    part = read_part(silent_target)
    tensors = [copied(part, t) for t in part.tensors if not t.name.startswith("blk.5.")]
    write_copy(draft, part, {"llama.nextn_predict_layers": 1}, tensors)
    before = draft.read_bytes()
    found, _, _ = made(silent_target, SelfDraftOptions(vocab=128, source=draft), output)
    assert found.source.path == draft and found.stored is None
    assert store.find(read_header(silent_target)) is None
    assert found.recipe == Recipe(5, KEEP, 128)  # heads are no layers
    assert draft.read_bytes() == before and {*tmp_path.glob("*.gguf")} == {draft, output}
