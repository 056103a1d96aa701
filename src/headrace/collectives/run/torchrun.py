"""Rendezvous of the ranks that torchrun started, for a group of executors."""

from typing import Any

from headrace.collectives.run.rendezvous import GroupConfig, Rendezvous
from headrace.collectives.run.torch.incarnation import own_part
from headrace.collectives.settings import CollectiveSettings
from headrace.launch.torchrun import torchrun_store

_RENDEZVOUS_S = 120.0


def join_torchrun(
    name: str, settings: CollectiveSettings
) -> tuple[int, int, Any, Rendezvous, GroupConfig]:
    """Run round one of a rendezvous; every rank calls this.

    Parameters
    ----------
    name : of the purpose; the store may have keys of another.

    Returns
    -------
    tuple[int, int, Any, Rendezvous, GroupConfig]
        This rank, the number of ranks, the group's part of torch's store, the rendezvous, and what
        was agreed.

    Raises
    ------
    InputError : outside torchrun, or the ranks' settings do not fit together.
    CommunicationError : naming the rank that did not appear.
    """
    store, rank, ranks = torchrun_store()
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

    # the store may outlive this: an earlier group left its keys there
    part = own_part(PrefixStore(f"headrace/{name}", store), rank, range(ranks), _RENDEZVOUS_S)
    rendezvous = Rendezvous(part, rank, ranks, _RENDEZVOUS_S)
    return rank, ranks, part, rendezvous, rendezvous.agree(settings)
