"""A tree of tokens in one pass: how deep each stands, and which paths lead through it."""

from collections.abc import Sequence
from typing import NamedTuple


class Tree(NamedTuple):
    """Rows of a pass by depth, the root's being 0, and the paths from it to a leaf.

    ``paths`` are, for each row, the numbers of the paths that lead through it, in order; all lead
    through row 0. Path 0 takes the first candidate at each place. ``lengths`` are the rows in each.
    """

    depths: list[int]
    paths: list[list[int]]
    lengths: list[int]

    @classmethod
    def of(cls, parents: Sequence[int]) -> "Tree":
        """The tree in which row i + 1 follows row ``parents[i]``, which comes before it."""
        depths, first = [0], dict[int, int]()
        for row, parent in enumerate(parents, start=1):
            depths.append(depths[parent] + 1)
            first.setdefault(parent, row)
        main = 0
        while main in first:
            main = first[main]
        others = (row for row in range(len(depths)) if row not in first and row != main)
        leaves = [main, *others]
        paths: list[list[int]] = [[] for _ in depths]
        for path, row in enumerate(leaves):
            while row:
                paths[row].append(path)
                row = parents[row - 1]
            paths[0].append(path)
        return cls(depths, paths, [depths[leaf] + 1 for leaf in leaves])

    def shared(self, path: int, rows: Sequence[int]) -> int:
        """How many rows of one way down from the root, ``rows``, are also on a path."""
        return sum(path in self.paths[row] for row in rows)
