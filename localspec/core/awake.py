"""AwakeClock: time without the pauses of a process or its machine."""

import math
import time


class AwakeClock:
    """Seconds in which this process ran, if one thread calls `tick` every ``period`` seconds.

    If no tick comes in time, the machine slept or the process was stopped: two periods count.
    """

    def __init__(self, period: float = math.inf) -> None:
        self._most = 2 * period
        self._last = (time.monotonic(), 0.0)

    def now(self) -> float:
        """Seconds since the clock was made; thread-safe."""
        at, awake = self._last
        return awake + min(time.monotonic() - at, self._most)

    def tick(self) -> float:
        """`now`, from which the next gap is measured."""
        at, awake = self._last
        now = time.monotonic()
        self._last = (now, awake + min(now - at, self._most))
        return self._last[1]
