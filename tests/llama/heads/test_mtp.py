"""MTP heads, said by the rule: token x_p with the target's state after p - 1."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from localspec.llama.heads.context import HeadRows
from localspec.llama.heads.mtp import ChainedHead, MtpHead, SharedHead
from tests.support.llama.heads import HeadPair, Row, head_pair
from tests.support.real_pair import random_ids

pytestmark = pytest.mark.llama

Files = Callable[[str], Path]


def states_of(pair: HeadPair, tokens: list[int]) -> np.ndarray:
    """The target's state after each token, behind a row of zeros; taken one token at a time."""
    pair.restart()
    rows = [np.zeros(pair.head.tap.width, np.float32)]
    for token in tokens:
        pair.target.decode([token], 1)
        rows.append(pair.head.tap.rows(1)[0].copy())
    return np.array(rows)


def step(
    pair: HeadPair, tokens: list[int], begin: int, states: np.ndarray, layer: int
) -> tuple[Row, Row]:
    """Logits and own state behind the last token, by one layer, which reads token after token."""
    context = pair.head.context
    context.forget(begin)
    context.use_layer(layer)
    for i, token in enumerate(tokens):
        context.decode(HeadRows([token], [begin + i], states[i : i + 1], 1))
    return context.logits(1)[0].copy(), context.own_states(1)[0].copy()


@pytest.mark.parametrize("name", ["glm4moe-mtp", "qwen3next-mtp", "nemotron_h_moe-mtp"])
def test_one_layer_goes_on_with_its_own_state(architecture: Files, name: str) -> None:
    with head_pair(architecture, name, None) as pair:
        assert type(pair.head) is MtpHead
        context, drafted = random_ids(20), random_ids(2, seed=1)
        states = states_of(pair, context[:-1])
        found = pair.draft(context, drafted)
        expected, own = step(pair, context, 0, states, 0)
        np.testing.assert_allclose(found[0], expected, atol=2e-3)
        for i, token in enumerate(drafted):
            pair.head.context.decode(HeadRows([token], [20 + i], own[None], 1))
            expected = pair.head.context.logits(1)[0]
            np.testing.assert_allclose(found[1 + i], expected, atol=2e-3)
            own = pair.head.context.own_states(1)[0].copy()


def test_layers_in_a_chain_draft_one_token_each(architecture: Files) -> None:
    """Every layer reads the text; the second drafts on what the first said, and so on."""
    with head_pair(architecture, "step35-mtp3", None) as pair:
        assert type(pair.head) is ChainedHead
        context, drafted = random_ids(20), random_ids(3, seed=1)
        states = states_of(pair, context[:-1])
        found = pair.draft(context, drafted)
        said = list[Row]()
        for count in range(4):  # the fourth token is drafted by the last layer again
            layer, tokens = min(count, 2), [*context, *drafted[:count]]
            behind = np.concatenate((states, said)) if said else states
            row, own = step(pair, tokens, 0, behind, layer)
            np.testing.assert_allclose(found[count], row, atol=2e-3)
            said.append(own)
        others, _ = step(pair, [*context, *drafted[:1]], 0, np.concatenate((states, said[:1])), 0)
        assert not np.allclose(found[1], others, atol=0.1)  # another layer says something else


def test_a_head_on_the_targets_cache_stays_at_one_position(architecture: Files) -> None:
    with head_pair(architecture, "gemma4", "gemma4-assistant", exact=True) as pair:
        assert type(pair.head) is SharedHead
        context, drafted = random_ids(60), random_ids(2, seed=1)
        states = states_of(pair, context[:-1])
        found, own = pair.draft(context, drafted), states[-1]
        for i, token in enumerate([context[-1], *drafted]):
            pair.head.context.decode(HeadRows([token], [59], own[None], 1))
            expected = pair.head.context.logits(1)[0].copy()
            np.testing.assert_allclose(found[i], expected, atol=1e-5)
            own = pair.head.context.own_states(1)[0].copy()


def test_a_head_on_the_targets_cache_has_nothing_to_catch_up_with(architecture: Files) -> None:
    with head_pair(architecture, "gemma4", "gemma4-assistant") as pair:
        context = random_ids(80)
        pair.target.decode(context[:50], 0)
        for token in context[50:]:
            pair.target.decode([token], 1)
            assert pair.head.tokens == pair.target.tokens
        pair.target.truncate(60)
        pair.head.truncate(80)
        assert pair.head.tokens == context[:60]
