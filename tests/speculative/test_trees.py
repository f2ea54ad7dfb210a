"""Trees of candidates: any tree gives the same text, and the cache holds nothing but that."""

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import GrammarError
from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.control.controllers import FixedLength, NoDraft
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.loop import Controller, Proposal, Round, TokenSampler
from localspec.speculative.sampling.constrained import ConstrainedSampler
from localspec.speculative.sampling.sampler import Sampler
from tests.speculative.test_loop import Scene, scenes
from tests.support.toy.engine import SlotConstraint
from tests.support.toy.models import (
    GREEDY,
    ContractBroken,
    FakeClock,
    ToyModel,
    ToyTree,
    emitted,
    never_stop,
    start_answer,
)

Oracle = Callable[[Sequence[int]], int]


class Gardener(Controller):
    """Grows any trees: each candidate follows a random one, and is often what will be said.

    ``grown`` keeps them with what became of them; a candidate's source is its row.
    """

    def __init__(self, seed: int, n_vocab: int, oracle: Oracle, most: int) -> None:
        self._rng = random.Random(seed)
        self._n_vocab = n_vocab
        self._oracle = oracle
        self.length = most
        self.grown: list[tuple[Proposal, Round]] = []
        self._latest = Proposal()

    drafts_at_once = True

    def propose(self, context: list[int], limit: int) -> Proposal:
        texts, taken, parents = [list(context)], set[tuple[int, int]](), list[int]()
        for _ in range(self._rng.randint(0, min(limit, self.length))):
            parent = self._rng.randrange(max(0, len(texts) - 5), len(texts))
            token = self._rng.randrange(-1, self._n_vocab + 1)  # some the target lacks
            if self._rng.random() < 0.6:
                token = self._oracle(texts[parent])
            if (parent, token) not in taken:  # the candidates for one place differ
                taken.add((parent, token))
                parents.append(parent)
                texts.append([*texts[parent], token])
        tokens = tuple(text[-1] for text in texts[1:])
        sources = tuple(str(row) for row in range(1, len(texts)))
        self._latest = Proposal(tokens, sources, parents=tuple(parents))
        return self._latest

    def observe(self, outcome: Round) -> None:
        if outcome.width:  # else nothing was asked for
            self.grown.append((self._latest, outcome))
        self._latest = Proposal()


def told(
    target: ToyModel,
    controller: Controller,
    sampler: TokenSampler,
    prompt: Sequence[int],
    max_tokens: int,
    is_stop: Callable[[int], bool] = never_stop,
    clock: Callable[[], float] = float,
) -> list[Round]:
    """The rounds of an answer, after each of which the cache holds all but the last token."""
    text, rounds = list(prompt), list[Round]()
    for each in start_answer(
        target, controller, prompt, max_tokens, sampler=sampler, is_stop=is_stop, clock=clock
    ):
        rounds.append(each)
        text += each.tokens
        assert target.tokens == text[:-1]
    return rounds


def gardener(target: ToyModel, sampler: Sampler, seed: int, most: int) -> Gardener:
    def oracle(text: Sequence[int]) -> int:
        known = [token for token in text if 0 <= token < target.n_vocab]
        return sampler.sample(target.row(known), len(text), known)

    return Gardener(seed, target.n_vocab, oracle, most)


@given(scenes(), st.integers(0, 999), st.integers(1, 20))
def test_any_tree_gives_the_same_text_and_rounds_tell_of_it(
    scene: Scene, seed: int, most: int
) -> None:
    target = scene.target()
    target.tree = ToyTree(target, branches=99, paths=99)
    grower = gardener(target, Sampler(scene.params), seed, most)
    rounds = told(
        target, grower, Sampler(scene.params), scene.prompt, scene.max_tokens, scene.is_stop
    )
    tokens, reason = scene.expected()
    assert (emitted(rounds), rounds[-1].finish_reason) == (tokens, reason)
    for grown, each in grower.grown:
        known = cut(grown, target.n_vocab)
        path, unjudged = walked(known, each.tokens, scene.is_stop)
        rest = [row for row in range(1, 1 + len(known.tokens)) if row not in {*path, *unjudged}]
        assert each.sources == tuple(map(str, path + rest))
        assert (each.accepted, each.drafted) == (len(path), len(path + rest))
        assert each.width == 1 + len(known.tokens)
        firsts = [known.parents.index(known.parents[row - 1]) + 1 for row in path]
        assert each.branched == sum(row != first for row, first in zip(path, firsts, strict=True))
        last = path[-1] if path else 0
        wrong = len(each.tokens) > len(path) and last in known.parents
        assert (each.rejected is not None) == wrong
        assert not wrong or each.rejected == known.tokens[known.parents.index(last)]


def cut(grown: Proposal, n_vocab: int) -> Proposal:
    """What is left of a tree before the first id that the target lacks."""
    known = next((i for i, t in enumerate(grown.tokens) if not 0 <= t < n_vocab), None)
    return Proposal(grown.tokens[:known], parents=grown.parents[:known])


def walked(
    grown: Proposal, tokens: Sequence[int], is_stop: Callable[[int], bool]
) -> tuple[list[int], set[int]]:
    """The rows that these tokens follow, and those that stand behind a stop token among them."""
    path, unjudged = list[int](), set[int]()
    for token in tokens:
        here = [
            row
            for row, parent in enumerate(grown.parents, start=1)
            if parent == (path[-1] if path else 0) and grown.tokens[row - 1] == token
        ]
        if not here:
            break
        path.append(here[0])
        if is_stop(token):
            behind = set(here)
            for row, parent in enumerate(grown.parents, start=1):
                if parent in behind:
                    behind.add(row)
            unjudged = behind - set(here)
    return path, unjudged


@given(st.integers(0, 99), st.integers(1, 12), st.sampled_from([0.0, 0.9]), st.integers(1, 30))
def test_a_grammar_is_obeyed_in_trees(
    seed: int, most: int, temperature: float, max_tokens: int
) -> None:
    params = SamplingParams(temperature=temperature, seed=seed)

    def constrained(*, proposes: bool = False) -> ConstrainedSampler:
        slots = [bytes([1, 2, 3, 9]), bytes([4, 5]), bytes(range(16))]
        rule = SlotConstraint(slots, 2, 15)
        return ConstrainedSampler(Sampler(params), rule, proposes=proposes)

    def answer(controller: Controller, target: ToyModel) -> list[int]:
        return emitted(told(target, controller, constrained(), [1, 2], max_tokens))

    target = ToyModel(seed=seed)
    target.tree = ToyTree(target, 99, 99)
    try:
        plain = answer(NoDraft(), ToyModel(seed=seed))
    except GrammarError:
        plain = None
    try:
        grown = answer(gardener(target, constrained(proposes=True), seed, most), target)
    except GrammarError:
        grown = None
    assert grown == plain


class Once(Controller):
    """Proposes one tree, and then nothing."""

    def __init__(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        sources = tuple(str(row) for row in range(1, 1 + len(tokens)))
        self._proposal = Proposal(tuple(tokens), sources, parents=tuple(parents))

    drafts_at_once = True

    def propose(self, context: list[int], limit: int) -> Proposal:
        proposal, self._proposal = self._proposal, Proposal()
        return proposal


def grafted(target: ToyModel) -> ToyModel:
    target.tree = ToyTree(target, 99, 99)
    return target


PLAIN = emitted(told(ToyModel(), NoDraft(), GREEDY, [1, 2], 12))
WRONG = [(token + 1) % 16 for token in PLAIN]


def test_the_path_may_leave_the_first_candidates() -> None:
    tokens = [WRONG[0], PLAIN[0], WRONG[1], PLAIN[1], 3, PLAIN[2]]
    controller = Once(tokens, [0, 0, 2, 2, 1, 4])
    first = told(grafted(ToyModel()), controller, GREEDY, [1, 2], 12)[0]
    assert list(first.tokens) == PLAIN[:4]
    assert (first.accepted, first.drafted, first.branched, first.width) == (3, 6, 2, 7)
    assert first.sources == ("2", "4", "6", "1", "3", "5")
    assert first.rejected is None  # nobody guessed at the last token


def test_behind_a_stop_token_nothing_is_judged() -> None:
    tokens = [WRONG[0], PLAIN[0], 5, PLAIN[1], WRONG[1]]
    controller = Once(tokens, [0, 0, 1, 2, 2])
    rounds = told(
        grafted(ToyModel()), controller, GREEDY, [1, 2], 12, lambda token: token == PLAIN[0]
    )
    assert [(each.tokens, each.sources) for each in rounds] == [((PLAIN[0],), ("2", "1", "3"))]
    assert rounds[0].finish_reason == "stop" and rounds[0].drafted == 3


def test_a_text_ends_inside_a_tree() -> None:
    target = grafted(ToyModel())
    tokens = [WRONG[0], PLAIN[0], PLAIN[1]]
    rounds = told(target, Once(tokens, [0, 0, 2]), GREEDY, [1, 2], 4)
    assert emitted(rounds) == PLAIN[:4] and rounds[-1].finish_reason == "length"


def test_a_tree_is_a_chain_where_the_target_verifies_none() -> None:
    rounds = told(ToyModel(), Once([WRONG[0], PLAIN[0]], [0, 0]), GREEDY, [1, 2], 12)
    assert emitted(rounds) == PLAIN
    assert (rounds[0].drafted, rounds[0].accepted, rounds[0].branched) == (2, 0, 0)


class Interrupted(Sampler):
    """Ctrl-C at the third pick."""

    asked = 0

    def sample(self, *args: object) -> int:
        self.asked += 1
        if self.asked == 3:
            raise KeyboardInterrupt
        return super().sample(*args)  # type: ignore[arg-type]


def test_an_interrupted_verdict_leaves_the_beginning_of_the_text() -> None:
    target = grafted(ToyModel())
    controller = Once([PLAIN[0], PLAIN[1], WRONG[0], PLAIN[2]], [0, 1, 0, 2])
    with pytest.raises(KeyboardInterrupt):
        told(target, controller, Interrupted(SamplingParams(temperature=0)), [1, 2], 12)
    assert target.tokens == [1, 2]
    assert emitted(told(target, NoDraft(), GREEDY, [1, 2], 12)) == PLAIN


def test_the_toy_is_strict() -> None:
    target = grafted(ToyModel())
    assert target.tree is not None
    with pytest.raises(ContractBroken):
        target.tree.decode([1, 2], [1])
    target.tree.decode([1, 2, 3], [0, 0])
    with pytest.raises(ContractBroken):
        target.truncate(0)
    with pytest.raises(ContractBroken):
        target.tree.commit([1, 2])


# -- who proposes them -----------------------------------------------------------------------


FREE = (10.0, 0.0)  # seconds of a pass, and more for each token in it
DEAR = (4.0, 6.0)


def pair(
    branches: int,
    paths: int,
    quirk: float = 0.6,
    costs: tuple[float, float] = FREE,
    clock: FakeClock | None = None,
    n_vocab: int = 16,
) -> tuple[ToyModel, ModelDrafter]:
    target = ToyModel(
        n_ctx=512, n_vocab=n_vocab, clock=clock, seconds=costs[0], seconds_per_token=costs[1]
    )
    target.tree = ToyTree(target, branches, paths)
    model = ToyModel(n_ctx=512, n_vocab=n_vocab, quirk=quirk, clock=clock, seconds=0.1)
    return target, ModelDrafter(model, GREEDY, n_vocab, never_stop, branches)


@pytest.mark.parametrize(
    ("branches", "paths", "parents"),
    [
        (1, 9, None),
        (2, 1, None),
        (2, 9, (0, 1, 2, 0, 1, 2)),
        (2, 3, (0, 1, 2, 0, 1)),
        (3, 9, (0, 1, 2, 0, 0, 1, 1, 2, 2)),
        (3, 4, (0, 1, 2, 0, 0, 1)),
    ],
)
def test_a_fixed_length_has_rivals_at_its_first_places(
    branches: int, paths: int, parents: tuple[int, ...] | None
) -> None:
    target, draft = pair(branches, paths)
    assert target.tree is not None
    told(target, FixedLength(draft, 3, float, target.tree), GREEDY, [1, 2], 60)
    assert set(target.tree.passes[:-3]) == ({parents} if parents else set())


def test_a_fixed_tree_stays_within_what_may_be_said() -> None:
    target, draft = pair(3, 16)
    rounds = told(target, FixedLength(draft, 4, float, target.tree), GREEDY, [1, 2], 8)
    left = 8
    for each in rounds:
        assert each.drafted < left
        left -= len(each.tokens)
