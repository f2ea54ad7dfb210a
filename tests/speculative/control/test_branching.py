"""Branching: chances in a trie stay possible, and its likeliest nodes are the best trees."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.control.branching import Tree, Trie
from localspec.speculative.drafters import MODEL, Candidate
from tests.support.toy.models import ToyModel, ToyTree

ANY = ToyTree(ToyModel(), branches=99, paths=99)


def chance(candidate: Candidate) -> float:
    """Confidence as it is, for a test to give."""
    return candidate.confidence


def node(token: int, confidence: float, *rivals: Candidate) -> Candidate:
    return Candidate(token, confidence, MODEL, rivals=rivals)


nodes = st.builds(node, st.integers(0, 5), st.floats(0.01, 0.99))
with_rivals = st.builds(
    lambda first, rivals: first._replace(rivals=tuple(rivals)), nodes, st.lists(nodes, max_size=2)
)
chains = st.lists(with_rivals, max_size=4)


def merged(*given_chains: list[Candidate]) -> Trie:
    trie = Trie(chance)
    for chain in given_chains:
        trie.merge(chain)
    return trie


def texts(tree: Tree) -> list[tuple[int, ...]]:
    """The tokens on the way to each candidate."""
    found: list[tuple[int, ...]] = [()]
    for candidate, parent in zip(tree.candidates, tree.parents, strict=True):
        found.append((*found[parent], candidate.token))
    return found[1:]


@given(chains, chains, st.integers(1, 4), st.integers(1, 5), st.integers(1, 9))
def test_a_tree_keeps_to_its_limits(
    first: list[Candidate], second: list[Candidate], branches: int, paths: int, most: int
) -> None:
    limits = ToyTree(ToyModel(), branches, paths)
    tree = merged(first, second).likeliest(most, limits)
    assert len(tree.candidates) == len(tree.parents) == len(tree.chances) <= most
    assert all(parent < row for row, parent in enumerate(tree.parents, start=1))
    assert all(tree.parents.count(parent) <= branches for parent in tree.parents)
    assert len(set(range(1, 1 + len(tree.parents))) - set(tree.parents)) <= paths
    assert tree.chances == sorted(tree.chances, reverse=True)
    assert len(set(texts(tree))) == len(tree.candidates)
    assert not first or tree.candidates


@given(chains, chains)
def test_in_one_place_at_most_one_is_right(first: list[Candidate], second: list[Candidate]) -> None:
    tree = merged(first, second).likeliest(99, ANY)
    for row, before in enumerate([1.0, *tree.chances]):
        here = [c for c, p in zip(tree.chances, tree.parents, strict=True) if p == row]
        assert sum(here) <= before + 1e-9


@given(chains, chains)
def test_the_first_chain_keeps_its_chances(first: list[Candidate], second: list[Candidate]) -> None:
    tree = merged(first, second).likeliest(99, ANY)
    found = dict(zip(texts(tree), tree.chances, strict=True))
    survival, path = 1.0, tuple[int, ...]()
    for candidate in first:
        survival *= candidate.confidence
        path = (*path, candidate.token)
        assert found[path] == pytest.approx(survival)


@given(st.lists(with_rivals, max_size=3), st.lists(nodes, max_size=2), st.integers(1, 5))
def test_its_beginnings_are_the_best_trees(
    first: list[Candidate], second: list[Candidate], size: int
) -> None:
    trie = merged(first, second)
    whole = trie.likeliest(99, ANY)
    size = min(size, len(whole.candidates))
    best = max(
        (
            sum(whole.chances[row - 1] for row in rows)
            for rows in combinations(range(1, 1 + len(whole.parents)), size)
            if all(whole.parents[row - 1] in (0, *rows) for row in rows)
        ),
        default=0.0,
    )
    assert sum(trie.likeliest(size, ANY).chances) == pytest.approx(best) if size else True


def test_the_least_sure_place_has_its_rival_first() -> None:
    chain = [node(1, 0.95, node(7, 0.05)), node(2, 0.5, node(8, 0.4)), node(3, 0.9, node(9, 0.1))]
    assert texts(merged(chain).likeliest(4, ANY)) == [(1,), (1, 2), (1, 2, 3), (1, 8)]


def test_a_rival_is_continued_by_the_other_chain() -> None:
    chain = [node(1, 0.6, node(7, 0.3))]
    tree = merged(chain, [node(7, 0.8), node(8, 0.9)]).likeliest(9, ANY)
    assert texts(tree) == [(1,), (7,), (7, 8)]
    assert tree.chances == pytest.approx([0.6, 0.3, 0.27])


def test_a_cut_tree_is_its_beginning() -> None:
    tree = merged([node(1, 0.6, node(7, 0.3)), node(2, 0.9)]).likeliest(9, ANY)
    assert texts(tree.cut(2)) == texts(tree)[:2]
    assert tree.cut(2).chances == tree.chances[:2]
