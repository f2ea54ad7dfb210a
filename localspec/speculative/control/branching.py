"""Branching: the trie of several chains of candidates, and the best tree of so many nodes in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localspec.speculative.drafters import Candidate
from localspec.speculative.loop import TreeDecoder

Chance = Callable[[Candidate], float]


@dataclass(slots=True)
class Tree:
    """Candidates of a tree, each beside its chance and the row that it follows.

    A row is a place in the tree plus one; row 0 is the pending token's, as in `TreeDecoder`. The
    chance is that the candidate and all before it are right.
    """

    candidates: list[Candidate] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def add(self, candidate: Candidate, parent: int, chance: float) -> int:
        """One more candidate; the row that it got."""
        self.candidates.append(candidate)
        self.parents.append(parent)
        self.chances.append(chance)
        return len(self.candidates)

    def cut(self, length: int) -> "Tree":
        """The first ``length`` candidates."""
        return Tree(self.candidates[:length], self.parents[:length], self.chances[:length])


class Trie:
    """Chains of candidates with their rivals, merged where they begin with the same tokens.

    One token at most comes true in a place. So a candidate's chance there is at most what those
    before it left: the chain that is merged first keeps the chances that its own groups taught, and
    others, which learnt theirs where the two agreed as well, get no more than the rest.
    """

    def __init__(self, probability: Chance) -> None:
        self._probability = probability
        self._tree = Tree()
        self._rows: list[dict[int, int]] = [{}]  # behind each row, by token
        self._left = [1.0]  # chance that none of them is right, if those before are

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
        """The row of this candidate behind another; a new one if need be."""
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
        """The ``most`` likeliest candidates, the likeliest first, as far as the decoder takes them.

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
