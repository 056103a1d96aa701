"""Public interface of the torch backend; ``import headrace.torch`` registers "headrace".

Torch also calls `register` itself, through the package's entry points, so that
``init_process_group("headrace")`` needs no import. Large modules are loaded when a process group
is made.
"""

# isort: off
# Before torch, which calls it as soon as it is imported itself.
from headrace.registration import NAME, register
# isort: on

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import numpy as np
import torch


def init_from_torchrun(
    timeout: timedelta | None = None, device_id: torch.device | int | None = None
) -> None:
    """Make the default process group with the backend "headrace", from torchrun's environment.

    For frameworks that make the group themselves with a backend from a list of their own, such as
    Accelerate and the Trainer of transformers: they take the group that exists. Call this before
    their first object (`Accelerator`, `TrainingArguments`), and name no backend to them. Called
    again it does nothing.

    Parameters
    ----------
    timeout : of collectives and of making the group, in place of the framework's setting; None:
        torch's default of 30 minutes. HEADRACE_DEADLINE_S, if set, is a limit in either case.
    device_id : a CUDA device, or its index, that becomes this process's current one. None: no
        device is selected and CUDA is not initialized.

    Raises
    ------
    InputError : outside torchrun; or the process has a default group of another backend.
    """
    import torch.distributed as dist

    from headrace.errors import InputError
    from headrace.settings import Settings

    if dist.is_initialized():
        backends = str(dist.get_backend_config())
        if NAME not in backends:
            raise InputError(
                f"the process has a default group of {backends}, needs none or one of '{NAME}': "
                "call init_from_torchrun before the framework makes its first object"
            )
    else:
        settings = Settings.from_environment()
        if settings.rank is None or settings.world_size is None:
            raise InputError(
                "RANK and WORLD_SIZE are not set, needs torchrun to start the script: torchrun "
                "--standalone --nproc-per-node 2 train.py"
            )
        dist.init_process_group(NAME, timeout=timeout)
    if device_id is not None:
        torch.cuda.set_device(device_id)


def step() -> None:
    """Mark the end of a training step; for loops whose steps cannot be detected.

    Steps are otherwise detected in the sequence of collectives. After the first mark, only marks
    count.
    """
    from headrace.job.switch import mark_step

    mark_step()


def background() -> AbstractContextManager[None]:
    """Give the collectives that this thread begins inside background priority.

    Their bytes move when no others can. All ranks have to use it for the same calls.
    """
    from headrace import executor

    return executor.background()


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return an uninitialized CPU tensor in memory shared with the ranks of this host.

    Collectives work on any tensor; blocks of this one are copied, or reduced, in place (zero copy).
    It is for buffers that are reused; a forked child shares it.

    Parameters
    ----------
    size : its shape, as in torch.empty: integers, or one sequence of them. Without any it is a
        scalar.
    dtype : torch's default type unless given.

    Raises
    ------
    InputError : a size is negative, or all are too large together.
    CommunicationError : there is no shared memory left.
    """
    from headrace.errors import InputError
    from headrace.executor import empty_shared

    shape: Any = size or ((),)
    try:
        like = torch.empty(*shape, dtype=dtype, device="meta")
    except RuntimeError as error:
        raise InputError(f"headrace.torch.empty{size}: {error}") from None
    memory = empty_shared(like.nbytes, np.uint8)
    return torch.from_numpy(memory).view(like.dtype).reshape(like.shape)


register()
