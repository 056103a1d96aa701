"""Processes that torchrun started: each learns its rank, and they share torch's store."""

from typing import Any

from headrace.errors import InputError
from headrace.settings import Settings


def torchrun_store() -> tuple[Any, int, int]:
    """Return torch's store, this process's rank, and the number of ranks; every rank calls this.

    Raises
    ------
    InputError : outside torchrun.
    """
    settings = Settings.from_environment()
    if settings.rank is None or settings.world_size is None:
        raise InputError("RANK and WORLD_SIZE are not set, needs torchrun to start the ranks")
    # torch takes seconds to import, and only its store is needed
    from torch.distributed.rendezvous import rendezvous

    return next(rendezvous("env://"))
