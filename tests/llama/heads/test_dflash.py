"""DFlash: a block for one pass, whose cache holds the target's features."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.llama.heads.context import HeadRows
from localspec.llama.heads.dflash import DFlashHead
from tests.support.files.architectures.specs import MASK_TOKEN, N_VOCAB, SELECTED, SIDECARS, WIDTH
from tests.support.files.architectures.writer import weights, write_model
from tests.support.llama.heads import HeadPair, Row, head_pair
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


def base_logits(file: Files, name: str, context: list[int]) -> Row:
    """The logits of all places of a DFlash pass behind a context, the known token's included."""
    with head_pair(file, "llama", name) as pair:
        pair.target.decode(context[:-1], 0)
        pair.head.truncate(0)
        pair.head.decode(context, 1)
        return pair.head.context.logits(1 + BLOCK).copy()


def hidden(logits: Row) -> Row:
    """The hidden states that the output matrix of the target turned into these logits."""
    return np.linalg.lstsq(weights("output.weight", (N_VOCAB, WIDTH)), logits.T, rcond=None)[0].T


def steps(pair: HeadPair, context: list[int], count: int) -> list[tuple[Row, float | None]]:
    """A greedy block: the logits of each place, and the head's own log-odds if it has them."""
    pair.target.decode(context[:-1], 0)
    pair.head.truncate(0)
    found, tokens = list[tuple[Row, float | None]](), context
    for _ in range(count):
        row = pair.head.decode(tokens, 1)[0].copy()
        found.append((row, pair.head.confidences[0] if pair.head.confidences else None))
        tokens = [int(row.argmax())]
    return found


@pytest.mark.parametrize(("name", "first"), [("dspark", 0), ("dspark-bonus", 1)])
def test_dspark_adds_to_each_place_by_the_likeliest_token_before_it(
    architecture: Files, name: str, first: int
) -> None:
    context, given = random_ids(20), SIDECARS[name].given
    base = base_logits(architecture, "dflash", context)[first:]
    w1, w2 = given["markov_w1.weight"], given["markov_w2.weight"]
    with head_pair(architecture, "llama", name) as pair:
        assert type(pair.head) is DFlashHead and pair.head.block_size == len(base)
        found, before, changed = steps(pair, context, len(base)), context[-1], 0
        for (row, sure), plain, state in zip(found, base, hidden(base), strict=True):
            np.testing.assert_allclose(row, plain + w2 @ w1[before], atol=2e-3)
            if name == "dspark":
                read = np.concatenate((state, w1[before]))
                expected = given["conf_proj.weight"][0] @ read + given["conf_proj.bias"][0]
                assert sure == pytest.approx(expected, abs=1e-2)
            else:
                assert sure is None
            before = int(row.argmax())
            changed += before != plain.argmax()
        assert changed


@pytest.mark.parametrize("name", ["dspark", "dflash2"])
def test_a_review_judges_each_token_as_a_review_of_it_alone(architecture: Files, name: str) -> None:
    with head_pair(architecture, "llama", name) as pair:
        context = random_ids(20)
        pair.target.decode(context[:-1], 0)
        pair.head.truncate(0)
        reviewed, sure = pair.head.decode(context, 3).copy(), pair.head.confidences
        for i, row in enumerate(reviewed):
            pair.head.truncate(0)
            np.testing.assert_allclose(row, pair.head.decode(context[: 18 + i], 2)[1], atol=2e-3)
            if name == "dspark":
                assert sure is not None and pair.head.confidences is not None
                assert sure[i] == pytest.approx(pair.head.confidences[1], abs=1e-2)


@pytest.mark.parametrize("causal", [False, True])
def test_dflash2_scores_the_candidates_of_a_place_after_the_token_before_it(
    architecture: Files, tmp_path: Path, causal: bool
) -> None:
    """Its convolutions change nothing here: but for the selector, it is a DFlash head."""
    given, context = dict(SIDECARS["dflash2"].given), random_ids(20)
    for tensor in [name for name in given if "_conv_" in name]:
        given[tensor] = np.zeros_like(given[tensor])
        if tensor.endswith("base"):
            given[tensor][:, 0] = 1

    def file(name: str) -> Path:
        if name == "llama":
            return architecture(name)
        like = SIDECARS[name]
        keys = {**like.keys, "attention.causal": causal}
        own = given if name == "dflash2" else like.given
        return write_model(tmp_path / f"{name}.gguf", replace(like, keys=keys, given=own))

    names = ("predecessor", "successor", "hidden")
    before_of, after_of, gate = (given[f"selector_{each}.weight"] for each in names)
    logits = base_logits(file, "dflash", context)[1:]
    with head_pair(file, "llama", "dflash2") as pair:
        pair.target.decode(context[:-1], 0)
        pair.head.truncate(0)
        row, read = pair.head.decode(context, 1)[0].copy(), context[-1]
        for place, (unary, state) in enumerate(zip(logits, hidden(logits), strict=True)):
            ids = np.sort(np.argsort(-unary)[:SELECTED])
            scores = unary[ids] + after_of[ids] @ (before_of[read] * (gate @ state))
            assert np.flatnonzero(np.isfinite(row)).tolist() == ids.tolist()
            np.testing.assert_allclose(row[ids], scores, atol=5e-3)
            best, *others = ids[np.argsort(-scores)].tolist()
            # The next token is the best, another candidate, or none: then as after the best.
            token = (best, others[0], others[-1], MASK_TOKEN)[place % 4]
            read = best if token == MASK_TOKEN else token
            row = pair.head.decode([token], 1)[0].copy()
        assert not row.any()  # behind the block
