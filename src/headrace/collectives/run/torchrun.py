"""Rendezvous of the ranks that torchrun started, for a group of executors."""

from collections.abc import Callable

from headrace.collectives.run.offers import GroupConfig
from headrace.collectives.run.rendezvous import Joined, Rendezvous
from headrace.collectives.settings import CollectiveSettings
from headrace.executor import Executor
from headrace.launch.torchrun import torchrun_store

_RENDEZVOUS_S = 120.0


def join_torchrun(
    name: str,
    settings: CollectiveSettings,
    make: Callable[[int, int, GroupConfig], Executor],
) -> Joined:
    """Connect the ranks; every one calls this.

    Parameters
    ----------
    name : of the purpose; the store may have keys of another.
    make : makes this rank's executor from the rank, the number of ranks, and what they agreed on;
        called again, after that was closed, if another rank was replaced meanwhile.

    Raises
    ------
    InputError : outside torchrun, or the ranks' settings do not fit together.
    CommunicationError : naming the rank that did not appear.
    """
    store, rank, ranks = torchrun_store()
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

    # the store may outlive this: an earlier group left its keys there
    part = PrefixStore(f"headrace/{name}", store)
    rendezvous = Rendezvous(part, rank, range(ranks), _RENDEZVOUS_S)
    return rendezvous.join(settings, lambda config: make(rank, ranks, config))
