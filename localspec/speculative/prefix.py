"""Common prefixes of token lists, found without comparing anything twice."""

from typing import Any


def common_prefix(a: list[Any], b: list[Any], start: int = 0, shift: int = 0) -> int:
    """How many leading tokens two lists share; slices are compared at C speed.

    The first ``start`` are taken to be shared; after them a[i] is compared with b[i + shift].
    """
    low, high = start, min(len(a), len(b) - shift)
    if a[low:high] == b[low + shift : high + shift]:
        return high
    while high - low > 1:  # the first difference lies in [low, high)
        middle = (low + high) // 2
        if a[low:middle] == b[low + shift : middle + shift]:
            low = middle
        else:
            high = middle
    return low


class SharedPrefix:
    """Length of the prefix that tokens share with a context; nothing is compared twice.

    A prefix found equal counts for as long as the context is the very list it was, is no shorter,
    and agrees in the last token compared; else everything is compared again. The tokens may be cut
    and others appended at any time, but not both below the length found last.
    """

    def __init__(self) -> None:
        # In one tuple: Ctrl-C never leaves the length of one context next to another context.
        self._known: tuple[list[int], int, int] = ([], 0, 1)

    def measure(self, tokens: list[int], context: list[int], shift: int = 0) -> int:
        """How many leading tokens are those of the context, or of a window on it.

        A window is the context without the ``shift`` tokens after its first one.
        """
        if not tokens or tokens[:1] != context[:1]:
            return 0
        last_context, last_shift, length = self._known
        known = min(length, len(tokens))
        if (
            context is not last_context
            or shift != last_shift
            or length > len(context) - shift
            or tokens[known - 1] != context[known - 1 + shift]
        ):
            known = 1
        known = common_prefix(tokens, context, known, shift)
        self._known = (context, shift, known)
        return known
