"""Agreement of trainers by short messages: a number, and the purpose that it is for."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.errors import EmbeddingError
from headrace.executor import Executor, all_to_all

TAG = 0
"""Of these messages, which every trainer's training thread sends in the same order."""

_MESSAGE = np.dtype([("number", np.int64), ("purpose", "S56")])


def any_trainer(executor: Executor, deadline_s: float, purpose: str, flag: bool = False) -> bool:
    """Return whether any trainer has the flag, when all have called it.

    Parameters
    ----------
    deadline_s : for the slowest trainer: it may load tables, or write files, before.
    purpose : of the call, the same at all trainers; up to 56 characters of ASCII.

    Raises
    ------
    EmbeddingError : another trainer has called it for another purpose; names both.
    CommunicationError : a trainer failed, or did not call it before the deadline.
    """
    return bool(_of_all(executor, deadline_s, purpose, flag).any())


def first_trainers(executor: Executor, deadline_s: float, purpose: str, number: int) -> int:
    """Return the first trainer's number, when all have called it.

    Parameters
    ----------
    deadline_s, purpose : see `any_trainer`.

    Raises
    ------
    EmbeddingError, CommunicationError : see `any_trainer`.
    """
    return int(_of_all(executor, deadline_s, purpose, number)[0])


def _of_all(executor: Executor, deadline_s: float, purpose: str, number: int) -> NDArray[Any]:
    """Return the numbers of all trainers."""
    sent = np.zeros((executor.ranks, 1), _MESSAGE)
    sent["number"], sent["purpose"] = number, purpose.encode()
    received = sent.copy()
    if executor.ranks > 1:
        bytes_sent, bytes_received = sent.view(np.uint8), received.view(np.uint8)
        all_to_all(
            executor, list(bytes_sent), list(bytes_received), TAG, deadline_s=deadline_s
        ).wait()
    for trainer, (of_trainer,) in enumerate(received["purpose"].tolist()):
        if of_trainer.decode() != purpose:
            raise EmbeddingError(
                f"trainer {executor.rank} is at {purpose}, trainer {trainer} at "
                f"{of_trainer.decode()}: all of them need the same epochs, evaluations, and calls "
                "of save and load"
            )
    return received["number"][:, 0]
