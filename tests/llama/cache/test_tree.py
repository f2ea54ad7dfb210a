"""Trees of tokens: depths, and which paths lead through each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.llama.cache.tree import Tree


@st.composite
def parents(draw: st.DrawFn, most: int = 24) -> list[int]:
    return [draw(st.integers(0, row)) for row in range(draw(st.integers(0, most)))]


def way_to(row: int, parents: list[int]) -> list[int]:
    """The rows from the root on."""
    return [0] if row == 0 else [*way_to(parents[row - 1], parents), row]


@given(parents())
def test_each_path_is_the_way_to_a_leaf(parents: list[int]) -> None:
    tree = Tree.of(parents)
    leaves = set(range(len(parents) + 1)) - set(parents)
    ways = [
        [row for row, paths in enumerate(tree.paths) if path in paths]
        for path in range(len(tree.lengths))
    ]
    assert sorted(ways) == sorted(way_to(leaf, parents) for leaf in leaves)
    assert tree.lengths == [len(way) for way in ways]
    assert tree.depths == [len(way_to(row, parents)) - 1 for row in range(len(parents) + 1)]
    assert all(paths == sorted(paths) for paths in tree.paths)


def test_the_first_candidates_are_path_0() -> None:
    tree = Tree.of([0, 0, 1, 1, 3])  # 1 and 2 follow the root, 3 and 4 follow 1, 5 follows 3
    assert [row for row, paths in enumerate(tree.paths) if 0 in paths] == [0, 1, 3, 5]
    assert tree.lengths == [4, 2, 3]
    assert tree.shared(2, [0, 1, 3]) == 2 and tree.shared(1, [0, 1, 3]) == 1
