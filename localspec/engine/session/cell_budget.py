"""The cells that slots share (`--kv-unified`): how many each text may have."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localspec.chat.window import answer_room


@dataclass(frozen=True, slots=True)
class CellBudget:
    """``cells`` for all of the ``slots``, each with a text of at most ``n_ctx`` tokens.

    Answers that began earlier come first: the oldest one always has its cells, so that each ends.
    """

    cells: int
    n_ctx: int
    slots: int

    def wanted(self, text: int, max_tokens: int | None) -> int:
        """Cells that a request needs to begin: its prompt of ``text`` tokens and part of an answer.

        The part is at most a share of the cells that every slot can have at the same time; a longer
        answer takes more cells later.
        """
        room = answer_room(self.cells // self.slots, max_tokens)
        return min(self.n_ctx, text + room)

    def served(self, wanted: Sequence[int]) -> Iterator[bool]:
        """For each text, the oldest first, whether it has its cells: if older ones leave them."""
        left = self.cells
        for cells in wanted:
            fits = cells <= left
            left -= cells if fits else 0
            yield fits
