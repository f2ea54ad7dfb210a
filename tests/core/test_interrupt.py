"""Interrupt: Ctrl-C waits for the end of a block, and is never lost or invented."""

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.core.interrupt import (
    Cancelled,
    end_suspension,
    held_interrupt,
    is_unwanted,
    leaving_at_interrupt,
    on_suspension,
    require_wanted,
    stopped_when,
    terminated_as_interrupted,
)


def test_ctrl_c_waits_for_the_end_of_the_block() -> None:
    heard = []
    with pytest.raises(KeyboardInterrupt), held_interrupt() as pressed:
        signal.raise_signal(signal.SIGINT)
        heard.append(bool(pressed))
    assert heard == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def never_stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What Ctrl-Z does, instead of stopping this process."""
    done, set_handler = list[str](), signal.signal

    def set_or_stop(number: int, handler: Any) -> Any:
        if handler is signal.SIG_DFL and number == signal.SIGTSTP:
            handler = lambda number, frame: done.append("stopped")  # noqa: E731
        return set_handler(number, handler)

    monkeypatch.setattr(signal, "signal", set_or_stop)
    yield done
    set_handler(signal.SIGTSTP, signal.SIG_DFL)


def test_ctrl_z_is_announced_and_waits_for_the_end_of_a_block(never_stopped: list[str]) -> None:
    done = never_stopped
    on_suspension(lambda: done.append("before"), lambda: done.append("after"))
    signal.raise_signal(signal.SIGTSTP)
    assert done == ["before", "stopped", "after"]
    with held_interrupt():
        signal.raise_signal(signal.SIGTSTP)
        assert len(done) == 3
    assert done == ["before", "stopped", "after"] * 2
    with held_interrupt():
        signal.raise_signal(signal.SIGTSTP)
        end_suspension()
    assert done[6:] == ["stopped"]


def test_sigterm_is_ctrl_c_in_a_block() -> None:
    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is former


def test_sigterm_ends_a_block_in_the_background_of_a_script() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell sets it behind a "&"
    try:
        with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_interrupt() as pressed:
            signal.raise_signal(signal.SIGINT)
        assert not pressed and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_leaving_returns_to_what_was_there_before() -> None:
    with leaving_at_interrupt():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with leaving_at_interrupt():
            signal.raise_signal(signal.SIGINT)  # as with nohup, or in a shell's background
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_one_thread_is_at_is_ended_by_another_and_no_other_is() -> None:
    ended, found = threading.Event(), list[bool]()

    def other() -> None:
        ended.set()
        found.append(is_unwanted())

    with pytest.raises(Cancelled), stopped_when(ended.is_set):
        require_wanted()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert is_unwanted()
        with stopped_when(lambda: False):
            require_wanted()
        require_wanted()
    assert found == [False] and not is_unwanted()


def test_blocks_that_end_a_computation_count_inside_each_other() -> None:
    outer, inner = list[bool](), list[bool]()
    with stopped_when(lambda: bool(outer)):
        with stopped_when(lambda: bool(inner)):
            require_wanted()
            outer.append(True)
            with pytest.raises(Cancelled):
                require_wanted()
            outer.clear()
            inner.append(True)
            assert is_unwanted()
        assert not is_unwanted()
