"""Time without pauses."""

from types import SimpleNamespace

import pytest

from localspec.core import awake
from localspec.core.awake import AwakeClock


def test_a_pause_counts_as_two_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    time = SimpleNamespace(at=100.0)
    time.monotonic = lambda: time.at
    monkeypatch.setattr(awake, "time", time)
    clock, unwatched = AwakeClock(1.0), AwakeClock()
    for _ in range(10):
        time.at += 1.5
        assert clock.now() == clock.tick()
    assert clock.now() == 15
    time.at += 310
    assert clock.now() == 17  # before the thread that ticks has run again, too
    assert clock.tick() == 17 and unwatched.now() == 325
    time.at += 1
    assert clock.now() == 18
