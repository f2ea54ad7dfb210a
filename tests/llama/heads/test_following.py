"""Heads beside a target: the same text, the target untouched, little memory, gaps and Ctrl-C."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.core.interrupt import Cancelled, stopped_when
from localspec.core.options.sampling_params import SamplingParams
from localspec.llama import llama_library
from localspec.llama.batch import longest
from localspec.llama.heads.head import LOST, Head
from localspec.llama.heads.hidden_states import KEPT, HiddenStates, States
from localspec.llama.heads.mtp import SharedHead
from localspec.llama.model import LlamaModel
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.sampling.sampler import Sampler
from tests.support.llama.heads import PAIRS, HeadPair, head_pair
from tests.support.real_pair import interrupt, press_ctrl_c, random_ids, unfinished_passes

pytestmark = pytest.mark.llama

Files = Callable[[str], Path]
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module", params=PAIRS, ids=lambda names: names[1] or names[0])
def pair(request: pytest.FixtureRequest, architecture: Files) -> Iterator[HeadPair]:
    with head_pair(architecture, *request.param, exact=True) as opened:
        yield opened


@pytest.mark.parametrize("prompt", [2, 40, 300])
def test_a_review_compares_what_is_unread_and_never_looks_through_a_window(
    pair: HeadPair, prompt: int
) -> None:
    drafter = ModelDrafter(pair.head, Sampler(GREEDY), pair.target.n_vocab, lambda token: False)
    context = random_ids(prompt)
    pair.restart()
    pair.target.decode(context[:-1], 0)
    for emitted in range(1, 200):
        row = pair.target.decode(context[-1:], 1)[0]
        context.append(int(row.argmax()))
        longest = min(emitted, 33)
        if emitted % 40 in (8, 9, 35) and not 80 < emitted < 190:  # then most is unread
            unread = drafter.unread(context)
            assert unread <= KEPT + LOST + 2 and drafter.to_review(context, longest) == unread
            reviewed = drafter.score_past_tokens(context, longest)
            assert len(reviewed) == min(longest, unread - 1)
            assert [token for _, token in reviewed] == context[len(context) - len(reviewed) :]
            assert pair.head.tokens == context[:-1]


def test_what_a_head_only_reads_is_over_when_the_target_returns(
    pair: HeadPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else on a GPU its seconds would be counted as those of the next round."""
    pair.restart()
    unfinished = unfinished_passes(monkeypatch)
    pair.target.decode(random_ids(300), 0)
    assert not unfinished


def test_drafting_leaves_the_target_as_it_is(pair: HeadPair) -> None:
    prompt, rows = random_ids(50), list[list[np.ndarray]]()
    for drafts in (False, True):
        pair.restart()
        pair.target.decode(prompt[:-1], 0)
        tokens, found = list(prompt), []
        for _ in range(12):
            if drafts:
                pair.draft(tokens, random_ids(3, seed=len(tokens)))
            found.append(pair.target.decode(tokens[-1:], 1)[0].copy())
            tokens.append(int(found[-1].argmax()))
        rows.append(found)
    assert np.array_equal(rows[0], rows[1])


def test_a_target_with_heads_says_what_it_says_without(architecture: Files, pair: HeadPair) -> None:
    """Neither the heads in its file nor the taps change a bit of its logits."""
    prompt, path = random_ids(50), pair.target.header.path
    with closing(
        LlamaModel(pair.target.header, replace(pair.target.options, load_heads=False))
    ) as bare:
        pair.restart()
        for target in (bare, pair.target):
            target.decode(prompt[:-1], 0)
        for tokens in (prompt[-1:], random_ids(1), random_ids(5), random_ids(1, seed=1)):
            expected = bare.decode(tokens, len(tokens))
            assert np.array_equal(pair.target.decode(tokens, len(tokens)), expected), path.name


def test_a_prompt_is_read_as_it_comes(pair: HeadPair, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[int]()
    add = HiddenStates.add

    def counting(states: HiddenStates, position: int, rows: States) -> None:
        kept.append(states.end - states.begin)
        add(states, position, rows)

    monkeypatch.setattr(HiddenStates, "add", counting)
    pair.restart()
    prompt = random_ids(1000)
    for part in (prompt[:600], *(prompt[at : at + 100] for at in range(600, 1000, 100))):
        pair.target.decode(part, 0)
        read = len(pair.head.tokens)
        assert pair.head.tokens == pair.target.tokens[:read]
        assert len(pair.target.tokens) - read <= longest(pair.target.prompt_step)
    assert max(kept) <= KEPT
    assert pair.head.n_ctx >= pair.target.n_ctx + 8  # so that a ModelDrafter never moves its window


@pytest.fixture
def passes(pair: HeadPair, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each pass of the head has."""
    found, decode = list[int](), pair.head.context.decode

    def counted(rows: Any) -> None:
        found.append(len(rows.positions))
        decode(rows)

    monkeypatch.setattr(pair.head.context, "decode", counted)
    return found


def test_a_head_that_nobody_asks_reads_nothing(pair: HeadPair, passes: list[int]) -> None:
    """What it then reads at once gives the draft that reading along would give."""
    prompt, answer = random_ids(60), random_ids(120, seed=1)

    def said(*, asked: bool) -> np.ndarray:
        pair.restart()
        pair.target.decode(prompt, 0)
        passes.clear()
        for i, token in enumerate(answer):
            pair.target.decode([token], 1)
            if asked and i % 30 == 0:
                pair.draft([*prompt, *answer[: i + 1], 0], [])
        assert asked or not passes
        return pair.draft([*prompt, *answer, 1], [])[0].copy()

    np.testing.assert_allclose(said(asked=False), said(asked=True), atol=2e-3)


def test_a_head_that_is_not_asked_for_long_reads_no_prompts(
    pair: HeadPair, passes: list[int]
) -> None:
    """Only what was lately verified is read when it is asked again, and prompts from then on."""
    pair.restart()
    pair.target.decode(random_ids(60), 0)
    for token in random_ids(KEPT + 3 * LOST, seed=1):
        pair.target.decode([token], 1)
        assert (
            len(pair.target.tokens) - len(pair.head.tokens) <= KEPT + LOST + pair.target.min_width
        )
    passes.clear()
    prompt = random_ids(600, seed=2)
    pair.target.truncate(0)
    pair.target.decode(prompt, 0)
    assert not passes
    pair.draft([*prompt, 0], [])
    assert sum(passes) <= 3 * (KEPT + LOST) + 20  # up to three layers
    passes.clear()
    pair.target.decode(random_ids(300, seed=3), 0)
    assert sum(passes) >= 200 or type(pair.head) is SharedHead


def test_what_is_read_unheard_counts_as_read(pair: HeadPair) -> None:
    context = random_ids(120)
    pair.restart()
    pair.target.decode(context[:100], 0)
    state = pair.target.state().copy()
    pair.target.decode(context[100:-1], 0)
    heard = pair.draft(context, random_ids(2))
    assert pair.target.restore(context[:100], state)
    pair.target.decode(context[100:-1], 0)
    found = pair.draft(context, random_ids(2))
    assert pair.head.tokens == [*context, *random_ids(2)]
    assert all(np.isfinite(row).any() for row in found)
    if pair.head.block_size is None and type(pair.head) is not SharedHead:
        assert not np.allclose(found[0], heard[0])  # it did not see the beginning
    pair.head.truncate(50)  # nothing is known there
    assert pair.head.decode(context[50:], 1).shape == (1, pair.head.n_vocab)
    assert pair.head.tokens == context


def test_a_restored_text_is_not_read_by_the_head(pair: HeadPair, passes: list[int]) -> None:
    context = random_ids(120)
    pair.restart()
    pair.target.decode(context[:-1], 0)
    state = pair.target.state().copy()
    pair.restart()
    assert pair.target.restore(context[:-1], state)
    passes.clear()
    pair.draft(context, [])
    assert pair.head.tokens == context
    assert 0 < sum(passes) < 20  # the last token, by each layer or with a block of masks


def test_behind_a_long_way_back_one_state_is_missing_and_no_more(architecture: Files) -> None:
    with head_pair(architecture, "glm4moe-mtp", None) as pair:
        context, memory = random_ids(700), pair.head.context._native.memory
        pair.target.decode(context, 0)
        pair.target.truncate(100)
        context[100:] = random_ids(300, seed=1)
        pair.target.decode(context[100:-1], 0)
        assert not pair.head._states.inputs(100, 101).any()
        assert pair.draft(context, [])[0].any() and pair.head.tokens == context
        llama = llama_library.library()
        assert llama.llama_memory_seq_pos_min(memory, 0) == 0
        assert llama.llama_memory_seq_pos_max(memory, 0) == len(context) - 1


def test_a_head_opened_late_begins_behind_what_was_read(architecture: Files) -> None:
    with head_pair(architecture, "glm4moe-mtp", None) as pair:
        context = random_ids(60)
        pair.head.close()
        pair.target.decode(context[:40], 0)
        assert pair.target.listener is None
        with head_pair(architecture, "glm4moe-mtp", None) as other:
            late = other.head
            other.target.listener = None  # as if it were opened later
            other.target.decode(context[:40], 0)
            other.target.listener = late._listen
            other.target.decode(context[40:-1], 0)
            assert other.draft(context, [])[0].shape == (late.n_vocab,)
            assert late.tokens == context


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("function", ["llama_process", "llama_memory_seq_rm", "llama_decode"])
def test_after_ctrl_c_a_head_continues_rightly(
    pair: HeadPair, monkeypatch: pytest.MonkeyPatch, function: str, after: bool
) -> None:
    context, drafted = random_ids(150), random_ids(3, seed=1)

    def rounds() -> list[np.ndarray]:
        pair.target.truncate(70)
        pair.target.decode(context[len(pair.target.tokens) : 100], 0)
        pair.draft(context[:101], drafted)
        pair.target.decode([context[100], *drafted], 4)
        pair.target.truncate(101)
        pair.target.decode(context[101:-1], 0)
        return pair.draft(context, drafted)

    pair.restart()
    pair.target.decode(context[:70], 0)
    expected = rounds()
    for call in range(1, 5):
        with monkeypatch.context() as patch:
            interrupt(patch, call, function, after=after)
            try:
                rounds()
            except KeyboardInterrupt:
                pass
        for row, wanted in zip(rounds(), expected, strict=True):
            np.testing.assert_allclose(row, wanted, atol=2e-3)


@pytest.mark.parametrize("ended", [KeyboardInterrupt, Cancelled])
def test_ctrl_c_or_another_thread_stops_within_a_pass_of_a_head(
    architecture: Files, monkeypatch: pytest.MonkeyPatch, ended: type[BaseException]
) -> None:
    unwanted = list[bool]()
    with head_pair(architecture, "glm4moe-mtp", None) as pair:
        context, codes = random_ids(900), list[int]()
        pair.target.decode(context[:-1], 0)
        expected = pair.draft(context, [])
        pair.restart()
        process = llama_library.library().llama_process

        def pressed_while(*arguments: object) -> Any:
            if len(codes) == 1:  # the second batch
                if ended is Cancelled:
                    unwanted.append(True)
                else:
                    press_ctrl_c()
            codes.append(process(*arguments))
            return codes[-1]

        with monkeypatch.context() as patch, pytest.raises(ended):
            patch.setattr(llama_library.library(), "llama_process", pressed_while)
            with stopped_when(lambda: bool(unwanted)):
                pair.target.decode(context[:-1], 0)
        assert codes == [0, 2]  # 2: aborted
        read, known = len(pair.target.tokens), len(pair.head.tokens)
        assert 0 < known < read < len(context) - 1
        assert pair.target.tokens == context[:read] and pair.head.tokens == context[:known]
        pair.target.decode(context[read:-1], 0)
        np.testing.assert_allclose(pair.draft(context, [])[0], expected[0], atol=2e-3)


def test_closing_twice_is_harmless_and_the_target_goes_on(architecture: Files) -> None:
    with head_pair(architecture, "llama", "eagle3") as pair:
        assert pair.head.memory.kv > 0 and pair.head.memory.weights > 0
        assert pair.head.pending == 0 and isinstance(pair.head, Head)
        pair.head.checkpoint()
        pair.head.close()
        pair.head.close()
        assert pair.target.decode(random_ids(9), 1).shape == (1, pair.target.n_vocab)
