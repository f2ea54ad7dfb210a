"""Budget for what drafting may lose against plain decoding."""

_SHARE = 0.01  # of the time elapsed that drafting may lose
_MOST_CREDIT = 16  # plain tokens
_MOST_DEBT = 4.5  # plain tokens
_FOR_GAIN = 4.0  # plain tokens that may be lost besides, where much is to be gained
_SLOPE = 12.0  # of these, for each token that a round is to gain


class LossBudget:
    """Time lost by drafting against plain decoding, and whether more may be risked.

    Allowed are one per cent of the time and one plain token, or up to five where a round is
    expected to gain much. Credit is bounded, so that a text that turns hard is noticed soon, and
    debt too, so that a large expected gain is never forbidden. A debt is carried to the next
    answer, so that many short answers cannot lose many times. Reading a prompt with the draft does
    not count: drafting less would not bring it back.
    """

    def __init__(self) -> None:
        self._debt = 0.0

    def begin_answer(self) -> None:
        """Go on with another answer: a debt stays, a credit does not."""
        self._debt = max(0.0, self._debt)

    def add(self, seconds: float, tokens: int, plain: float) -> None:
        """Count a round against the plain time of its tokens; ``plain`` is seconds of one token."""
        debt = max(self._debt + (1 - _SHARE) * seconds - tokens * plain, -_MOST_CREDIT * plain)
        self._debt = min(debt, _MOST_DEBT * plain)

    def may_spend(self, seconds: float, plain: float, gain: float) -> bool:
        """Whether a loss of this size is allowed, where a round is to gain so many tokens."""
        return self._debt + seconds <= (1 + min(_FOR_GAIN, _SLOPE * gain)) * plain
