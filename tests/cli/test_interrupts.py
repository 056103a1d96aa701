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
