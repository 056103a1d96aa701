"""The torch backend's front door: ``import headrace.torch`` makes "headrace" known to torch.

Torch also calls `register` by itself, through the package's entry points, so that
``init_process_group("headrace")`` needs no import. Nothing heavy is loaded before a process
group is made.
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
    """Say that a training step ends here; for loops whose calls do not show it by themselves.

    Steps are otherwise found in the sequence of collectives. Once said, this is what counts.
    """
    from headrace.collectives.run.create import mark_step

    mark_step()


@contextmanager
def background() -> Generator[None]:
    """Let the collectives that this thread begins inside yield to all others.

    Their bytes move when no others can. All ranks have to do so with the same calls.
    """
    from headrace.collectives.run.caller import in_background

    token = in_background.set(True)
    try:
        yield
    finally:
        in_background.reset(token)


def empty(*size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a CPU tensor of any content in memory that ranks of this host may read.

    Collectives work on any tensor; blocks of such a one are taken, or reduced, straight from where
    they are. It is for buffers that are used again and again; a forked child shares it.

    Parameters
    ----------
    size : its shape.
    dtype : torch's default type unless given.

    Raises
    ------
    CommunicationError : there is no memory left to share.
    """
    from headrace.collectives.run import shared_buffer

    wanted = dtype or torch.get_default_dtype()
    memory = shared_buffer.empty_shared(math.prod(size) * wanted.itemsize, np.uint8)
    return torch.from_numpy(memory).view(wanted).reshape(size)


register()
