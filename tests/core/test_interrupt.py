"""Interrupt: Ctrl-C waits for the end of a block, and is never lost or invented."""

from __future__ import annotations

import signal

import pytest

from localspec.core.interrupt import held_interrupt, leaving_at_interrupt


def test_ctrl_c_waits_for_the_end_of_the_block() -> None:
    heard = []
    with pytest.raises(KeyboardInterrupt), held_interrupt() as pressed:
        signal.raise_signal(signal.SIGINT)
        heard.append(bool(pressed))
    assert heard == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
