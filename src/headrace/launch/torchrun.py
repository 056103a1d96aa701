"""Processes that torchrun started: each learns its rank, and they share torch's store."""

import re
from typing import Any

from headrace.errors import CommunicationError, InputError
from headrace.settings import Settings

_PORT = re.compile(r"port: (\d+)")
"""In torch's error."""


def torchrun_store() -> tuple[Any, int, int]:
    """Return torch's store, this process's rank, and the number of ranks; every rank calls this.

    Raises
    ------
    InputError : outside torchrun.
    CommunicationError : the store's port, at rank 0's host, is in use.
    """
    settings = Settings.from_environment()
    if settings.rank is None or settings.world_size is None:
        raise InputError("RANK and WORLD_SIZE are not set, needs torchrun to start the ranks")
    # torch takes seconds to import, and only its store is needed
    from torch.distributed.rendezvous import rendezvous

    try:
        return next(rendezvous("env://"))
    except RuntimeError as error:  # torch's errors of networks derive from it
        if "EADDRINUSE" not in str(error):
            raise
        port = _PORT.search(str(error))
        number = f" {port[1]}" if port else ""
        raise CommunicationError(
            f"rank {settings.rank}: port{number} of this host, MASTER_PORT of torch's rendezvous, "
            "is in use by another process: end that, or start the job with another port "
            "(torchrun's --master-port, or JobHosts(rendezvous=) of run_embedding_job)"
        ) from None  # torch's traceback says no more
