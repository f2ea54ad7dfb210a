"""The recipe of a self-draft: what the options leave out, and what they may not ask for."""

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core.errors import DraftNotMade, IncompatiblePair, UsageError
from localspec.metadata.header import read_header
from localspec.self_draft.make import chosen_recipe, make_draft
from localspec.self_draft.recipe import KEEP, Recipe, SelfDraftOptions
from tests.support.files.gguf_files import write_gguf

pytestmark = pytest.mark.llama


def chosen(target: Path, **asked: object) -> Recipe:
    header = read_header(target)
    return chosen_recipe(SelfDraftOptions(**asked), header, header)  # type: ignore[arg-type]


def test_by_default_all_layers_get_a_lower_type(silent_target: Path) -> None:
    assert chosen(silent_target) == Recipe(6, "Q4_0")
    assert chosen(silent_target, layers=2) == Recipe(2, "Q4_0")
    assert chosen(silent_target, layers=2, type=KEEP) == Recipe(2)
    assert chosen(silent_target, type="q2_k", vocab=64) == Recipe(6, "Q2_K", 64)


def test_a_target_that_is_low_already_keeps_its_type(tmp_path: Path, silent_target: Path) -> None:
    low = tmp_path / "low.gguf"
    make_draft(read_header(silent_target), Recipe(6, "Q4_0"), low)
    assert chosen(low, layers=3) == Recipe(3)
    with pytest.raises(UsageError, match="in their type, Q4_0, would be the target itself"):
        chosen(low)


def test_what_leaves_no_draft_is_refused(silent_target: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 6 layers"):
        chosen(silent_target, layers=7)
    with pytest.raises(UsageError, match="would be the target itself") as problem:
        chosen(silent_target, layers=6, type=KEEP)
    assert "localspec suggest" in problem.value.hint
    with pytest.raises(UsageError, match="Q9_9"):
        chosen(silent_target, type="Q9_9")
    with pytest.raises(IncompatiblePair, match="cannot be kept"):
        chosen(silent_target, vocab=10**6)
    with pytest.raises(DraftNotMade, match="not a model that continues a text"):
        chosen(write_gguf(tmp_path / "adapter.gguf", {"general.type": "adapter"}))


def test_of_a_draft_that_is_given_only_output_rows_go(silent_target: Path) -> None:
    target = read_header(silent_target)
    given = SelfDraftOptions(vocab=64, source=silent_target)
    assert chosen_recipe(given, target, target) == Recipe(6, KEEP, 64)
    # What is made of a split target is one file; a draft that is split stays so.
    parts = replace(target, split_count=2)
    assert chosen_recipe(SelfDraftOptions(vocab=64), parts, parts).vocab == 64
    with pytest.raises(IncompatiblePair, match="split into several"):
        chosen_recipe(given, parts, parts)
