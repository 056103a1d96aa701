"""Agreement of trainers by messages of a byte."""

import numpy as np

from headrace.executor import Executor, all_to_all

TAG = 0
"""Of these messages, which every trainer's training thread sends in the same order."""


def any_trainer(executor: Executor, deadline_s: float, flag: bool = False) -> bool:
    """Return whether any trainer has the flag, when all have called it.

    Parameters
    ----------
    deadline_s : for the slowest trainer: it may load tables, or write files, before.

    Raises
    ------
    CommunicationError : a trainer failed, or did not call it before the deadline.
    """
    if executor.ranks == 1:
        return flag
    sent, received = np.zeros((2, executor.ranks, 1), np.uint8)
    sent[:] = flag
    all_to_all(executor, list(sent), list(received), TAG, deadline_s=deadline_s).wait()
    return flag or bool(received.any())
