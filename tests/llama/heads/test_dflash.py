"""DFlash: a block for one pass, whose cache holds the target's features."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.llama.heads.context import HeadRows
from localspec.llama.heads.dflash import DFlashHead
from tests.support.files.architectures.specs import MASK_TOKEN
from tests.support.llama.heads import head_pair
from tests.support.real_pair import random_ids

pytestmark = pytest.mark.llama

Files = Callable[[str], Path]
BLOCK = 7  # tokens behind the known one


@pytest.mark.parametrize("target", ["llama", "qwen35", "qwen3next"])
def test_a_block_is_filled_in_behind_the_features(architecture: Files, target: str) -> None:
    with head_pair(architecture, target, "dflash") as pair:
        assert type(pair.head) is DFlashHead and pair.head.block_size == BLOCK
        context, head = random_ids(20), pair.head.context
        features = []
        for token in context[:-1]:
            pair.target.decode([token], 1)
            features.append(pair.head.tap.rows(1)[0].copy())
        found = pair.draft(context, random_ids(BLOCK - 1, seed=1))
        head.forget(0)
        head.decode(HeadRows(None, range(19), np.array(features), 0))
        head.decode(
            HeadRows([context[-1], *[MASK_TOKEN] * BLOCK], range(19, 20 + BLOCK), None, 1 + BLOCK)
        )
        np.testing.assert_allclose(found, head.logits(1 + BLOCK)[1:], atol=2e-3)
        assert len({int(row.argmax()) for row in found}) > 1  # places differ


def test_the_first_token_pays_for_the_block(
    architecture: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_pair(architecture, "llama", "dflash") as pair:
        context, passes = random_ids(20), list[Any]()
        pair.target.decode(context[:-1], 0)
        pair.head.truncate(0)
        pair.head.decode(context, 1)
        monkeypatch.setattr(pair.head.context, "decode", lambda *given: passes.append(given))
        rows = [pair.head.decode([token], 1).copy() for token in random_ids(BLOCK)]
        assert not passes
        assert all(row.any() for row in rows[:-1]) and not rows[-1].any()  # behind the block


def test_a_review_takes_a_pass_with_one_mask_for_each_token(architecture: Files) -> None:
    with head_pair(architecture, "llama", "dflash") as pair:
        context, head = random_ids(20), pair.head.context
        pair.target.decode(context[:-1], 0)
        features = pair.head.tap.rows(19).copy()
        pair.head.truncate(0)
        reviewed = pair.head.decode(context, 3).copy()
        for position, row in zip(range(17, 20), reviewed, strict=True):
            head.forget(position - 1)  # what is behind, and the pass before
            head.decode(HeadRows(None, [position - 1], features[position - 1 : position], 0))
            head.decode(
                HeadRows([context[position], MASK_TOKEN], [position, position + 1], None, 2)
            )
            np.testing.assert_allclose(row, head.logits(2)[1], atol=1e-5)


def test_a_block_is_not_copied(architecture: Files) -> None:
    with head_pair(architecture, "llama", "dflash") as pair:
        context = random_ids(20)
        pair.target.decode(context[:-1], 0)
        first = pair.head.decode(context, 1)
        logits = pair.head.context.logits(1 + BLOCK)
        assert np.shares_memory(first, logits)
        assert np.shares_memory(pair.head.decode(random_ids(1), 1), logits)
