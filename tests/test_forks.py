"""A mark tells the process that made it from its children."""

import multiprocessing

import pytest

from headrace.errors import ForkError
from headrace.forks import ForkMark


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
