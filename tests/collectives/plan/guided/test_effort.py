"""Ctrl-C as a question."""

import signal
import threading

import pytest

from headrace.collectives.plan.guided.effort import first_interrupt


def test_the_first_interrupt_is_an_answer_the_second_an_exception() -> None:
    before = signal.getsignal(signal.SIGINT)
    with first_interrupt() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert interrupted()
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_never_interrupted() -> None:
    answers: list[bool] = []

    def ask() -> None:
        with first_interrupt() as interrupted:
            answers.append(interrupted())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers == [False]
