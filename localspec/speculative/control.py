"""How far to draft: always the same length, or as far as the draft has lately been right.

This room owns the choice of the draft length. It does not draft and does not measure costs yet.
"""

from localspec.speculative.loop import Control, Round

DEFAULT_LENGTH = 3
_LONGEST = 8


class FixedLength:
    """The same draft length in every round."""

    def __init__(self, length: int) -> None:
        self._length = length

    def length(self) -> int:
        """The length it was made with."""
        return self._length

    def observe(self, round: Round) -> None:
        """A fixed length learns nothing."""


class FollowAcceptance:
    """``auto``: one token more after a draft accepted whole, one fewer when under half was right.

    It starts at 3 and stays between 1 and 8. It follows the text only; it does not know what a
    token costs on this machine, so it can still be slower than plain decoding.
    """

    def __init__(self) -> None:
        self._length = DEFAULT_LENGTH

    def length(self) -> int:
        """The length that recent rounds support."""
        return self._length

    def observe(self, round: Round) -> None:
        """Move by one token; a round that drafted nothing teaches nothing."""
        if round.drafted == 0:
            return
        if round.accepted == round.drafted:
            self._length = min(self._length + 1, _LONGEST)
        elif 2 * round.accepted < round.drafted:
            self._length = max(self._length - 1, 1)


def make_control(length: int | str) -> Control:
    """The control for a length in tokens, or for ``"auto"``."""
    return FollowAcceptance() if length == "auto" else FixedLength(int(length))
