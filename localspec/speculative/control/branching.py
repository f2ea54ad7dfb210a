"""Trees of candidates: several chains merged into a trie, and its likeliest subtree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localspec.speculative.drafters import Candidate
from localspec.speculative.loop import TreeDecoder

Chance = Callable[[Candidate], float]


@dataclass(slots=True)
class Tree:
    """Candidates with their parents' rows (see `TreeDecoder`).

    ``chances`` are those that a candidate and all before it are right.
    """

    candidates: list[Candidate] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def add(self, candidate: Candidate, parent: int, chance: float) -> int:
        """Add a candidate; returns its row."""
        self.candidates.append(candidate)
        self.parents.append(parent)
        self.chances.append(chance)
        return len(self.candidates)

    def cut(self, length: int) -> "Tree":
        """The first ``length`` candidates."""
        return Tree(self.candidates[:length], self.parents[:length], self.chances[:length])


class Trie:
    """Chains of candidates with their rivals, merged where they begin with the same tokens.

    At most one token is right at a place, so a candidate's chance is bounded by what those merged
    before it leave.
    """

    def __init__(self, probability: Chance) -> None:
        self._probability = probability
        self._tree = Tree()
        self._rows: list[dict[int, int]] = [{}]  # behind each row, by token
        self._left = [1.0]  # behind each row: chance that no candidate is right

    def merge(self, chain: Sequence[Candidate]) -> None:
        """Add a chain, then the rivals along it."""
        row, places = 0, list[tuple[int, Candidate]]()
        for candidate in chain:
            places.append((row, candidate))
            row = self._follow(row, candidate)
        for row, candidate in places:
            for rival in candidate.rivals:
                self._follow(row, rival)

    def _follow(self, parent: int, candidate: Candidate) -> int:
        """The row of this candidate behind another, perhaps a new one."""
        found = self._rows[parent].get(candidate.token)
        if found is not None:
            return found
        chance = min(self._probability(candidate), self._left[parent])
        self._left[parent] -= chance
        before = self._tree.chances[parent - 1] if parent else 1.0
        row = self._tree.add(candidate, parent, before * chance)
        self._rows[parent][candidate.token] = row
        self._rows.append({})
        self._left.append(1.0)
        return row

    def likeliest(self, most: int, limits: TreeDecoder) -> Tree:
        """The ``most`` likeliest candidates, the likeliest first, within the decoder's limits.

        Chances never rise along a path, so that the first n are the best tree of n, for any n
        (OPT-Tree, arXiv 2406.17276; Sequoia, arXiv 2402.12374).
        """
        found, rows, leaves = Tree(), {0: 0}, 1
        children = [0]
        chances, parents = self._tree.chances, self._tree.parents
        for i in sorted(range(len(chances)), key=lambda i: -chances[i]):
            parent = rows.get(parents[i])
            if parent is None:
                continue
            beside = children[parent]
            if beside == limits.branches or (beside and leaves == limits.paths):
                continue
            leaves += beside > 0
            children[parent] += 1
            children.append(0)
            rows[i + 1] = found.add(self._tree.candidates[i], parent, chances[i])
            if len(found.candidates) == most:
                break
        return found
