"""A mark tells the process that made it from its children; locks of threads."""

import multiprocessing
import sys
import threading
from contextlib import suppress
from types import FrameType

import pytest

from headrace import forks
from headrace.errors import ForkError
from headrace.forks import ForkMark, ThreadLock
from tests.waiting import HANG_S


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_is_refused_by_name() -> None:
    mark = ForkMark()
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        with pytest.raises(ForkError, match=r"^the planner belongs to the process that made it"):
            mark.check("the planner")
        ForkMark().check("its own")
        sender.send(mark.forked)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert receiver.poll(60)
    assert receiver.recv() is True
    process.join(60)
    assert process.exitcode == 0
    mark.check("the parent's")


def test_an_interrupt_as_a_lock_is_taken_leaves_it_to_other_threads() -> None:
    """One behind the acquisition, within `__enter__`, left it locked: other threads hung."""
    lock = ThreadLock()

    def interrupt(frame: FrameType, event: str, _argument: object) -> None:
        if event == "return" and frame.f_code.co_filename == forks.__file__:
            raise KeyboardInterrupt

    def take() -> None:
        with lock:
            pass

    sys.setprofile(interrupt)
    try:
        with suppress(KeyboardInterrupt):
            take()
    finally:
        sys.setprofile(None)
    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(HANG_S)
    assert not thread.is_alive()
