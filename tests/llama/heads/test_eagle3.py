"""EAGLE3: its pairs of tokens and features, and its reduced vocabulary."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from localspec.llama.heads.context import HeadRows
from localspec.llama.heads.eagle3 import Eagle3Head
from tests.support.files.architectures.specs import REDUCED_VOCAB
from tests.support.llama.heads import head_pair
from tests.support.real_pair import random_ids

pytestmark = pytest.mark.llama

Files = Callable[[str], Path]


@pytest.mark.parametrize("target", ["llama", "qwen35", "qwen3next"])
def test_a_token_is_read_with_the_features_before_it(architecture: Files, target: str) -> None:
    with head_pair(architecture, target, "eagle3") as pair:
        assert type(pair.head) is Eagle3Head
        context, drafted, head = random_ids(20), random_ids(2, seed=1), pair.head.context
        features = []
        for token in context[:-1]:
            pair.target.decode([token], 1)
            features.append(pair.head.tap.rows(1)[0].copy())
        found = pair.draft(context, drafted)
        head.forget(0)
        for i, token in enumerate(context[1:]):
            state = head.encode(np.array(features[i : i + 1])).copy()
            head.decode(HeadRows([token], [i], state, 1))
        np.testing.assert_allclose(found[0], head.logits(1)[0], atol=2e-3)
        for i, token in enumerate(drafted):
            head.decode(HeadRows([token], [19 + i], head.own_states(1), 1))
            np.testing.assert_allclose(found[1 + i], head.logits(1)[0], atol=2e-3)


def test_a_reduced_vocabulary_is_said_in_the_ids_of_the_target(architecture: Files) -> None:
    with head_pair(architecture, "llama", "eagle3-reduced") as pair:
        context = random_ids(20)
        pair.target.decode(context[:-1], 0)
        for row in pair.draft(context, random_ids(2, seed=1)):
            assert len(row) == pair.target.n_vocab
            assert np.isfinite(row).sum() == REDUCED_VOCAB
            assert np.isneginf(row[~np.isfinite(row)]).all()


def test_nothing_is_known_behind_the_first_token_of_all(architecture: Files) -> None:
    with head_pair(architecture, "llama", "eagle3") as pair:
        context = random_ids(5)
        pair.target.decode(context, 0)
        rows = pair.head.decode(context, 5).copy()
        assert not rows[0].any() and rows[1:].any(axis=1).all()
        pair.head.truncate(0)
        assert not pair.head.decode(context[:1], 1).any()
        assert np.array_equal(pair.head.decode(context[1:], 4), rows[1:])
