"""Ctrl-C asks to end; a second one ends."""

import signal

import pytest

from headrace.cli.interrupts import interrupts


def test_the_first_interrupt_asks_and_the_second_ends() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts() as struck:
        assert not struck()
        signal.raise_signal(signal.SIGINT)
        assert struck()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_is_ignored_stays_so() -> None:
    """A script's Ctrl-C cut short a plan that it had put in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts() as struck:
            signal.raise_signal(signal.SIGINT)
            assert not struck()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
