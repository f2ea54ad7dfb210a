"""Bytes of tokens to text: whole characters, ended before the first stop string."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of tokens into text that ends before the first stop string.

    Text that may be the beginning of a stop string, or the first bytes of a character, is held
    back until it is decided.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = [text for text in stop if text]
        self._held = ""
        self.stopped = False

    def push(self, data: bytes, final: bool = False) -> str:
        """Text that can be shown now; ``final`` releases what was held back.

        After a stop string was found, ``stopped`` is true and nothing more comes.
        """
        if self.stopped:
            return ""
        self._held += self._decoder.decode(data, final)
        starts = [(self._held.find(text), len(text)) for text in self._stop]
        found = [(at + length, at) for at, length in starts if at >= 0]
        if found:
            # The one that ends first, as if the text had come character by character.
            self.stopped = True
            ready, self._held = self._held[: min(found)[1]], ""
            return ready
        keep = 0 if final else max((self._overlap(text) for text in self._stop), default=0)
        split = len(self._held) - keep
        ready, self._held = self._held[:split], self._held[split:]
        return ready

    @property
    def held(self) -> str:
        """What is held back, as it would be shown if nothing more came."""
        if self.stopped:
            return ""
        return self._held + self._decoder.getstate()[0].decode("utf-8", "replace")

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins ``stop``."""
        most = min(len(stop) - 1, len(self._held))
        return next((n for n in range(most, 0, -1) if stop.startswith(self._held[-n:])), 0)
