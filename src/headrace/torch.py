"""Public interface of the torch backend; ``import headrace.torch`` registers "headrace".

Torch also calls `register` itself, through the package's entry points, so that
``init_process_group("headrace")`` needs no import. Large modules are loaded when a process group
is made.
"""

# isort: off
# Before torch, which calls it as soon as it is imported itself.
from headrace.registration import register
# isort: on

import math
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch


def step() -> None:
    """Mark the end of a training step; for loops whose steps cannot be detected.

    Steps are otherwise detected in the sequence of collectives. After the first mark, only marks
    count.
    """
    from headrace.job.switch import mark_step

    mark_step()


@contextmanager
def background() -> Generator[None]:
    """Give the collectives that this thread begins inside background priority.

    Their bytes move when no others can. All ranks have to use it for the same calls.
    """
    from headrace.collectives.run.torch.caller import in_background

    token = in_background.set(True)
    try:
        yield
    finally:
        in_background.reset(token)


def empty(*size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return an uninitialized CPU tensor in memory shared with the ranks of this host.

    Collectives work on any tensor; blocks of this one are copied, or reduced, in place (zero copy).
    It is for buffers that are reused; a forked child shares it.

    Parameters
    ----------
    size : its shape.
    dtype : torch's default type unless given.

    Raises
    ------
    CommunicationError : there is no shared memory left.
    """
    from headrace.collectives.run import shared_buffer

    wanted = dtype or torch.get_default_dtype()
    memory = shared_buffer.empty_shared(math.prod(size) * wanted.itemsize, np.uint8)
    return torch.from_numpy(memory).view(wanted).reshape(size)


register()
