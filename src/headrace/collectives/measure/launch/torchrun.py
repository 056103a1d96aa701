"""Measuring under torchrun: rendezvous in torch's store, then without torch."""

import socket
from collections.abc import Sequence

from headrace.collectives.measure.budget import ProbeEffort, ProgressCallback
from headrace.collectives.measure.launch.regroup import StoreRegroup
from headrace.collectives.measure.survey import measure_ranks
from headrace.collectives.run.offers import GroupConfig
from headrace.collectives.run.torchrun import join_torchrun
from headrace.collectives.settings import CollectiveSettings
from headrace.executor import Executor
from headrace.executor.connect.addresses import host_of
from headrace.topology.profile import Profile


def measure_torchrun(
    *, effort: ProbeEffort | None = None, progress: ProgressCallback | None = None
) -> Profile | None:
    """Measure between the ranks that torchrun started; every rank calls this.

    Hosts are named by address, or by name where all ranks are on one.

    Returns
    -------
    Profile | None
        The profile at rank 0, None elsewhere.

    Raises
    ------
    InputError : outside torchrun.
    CommunicationError : at every rank, naming the rank that did not appear; or that died or hung,
        if the survivors cannot continue (too few, too many losses, or the store was lost too).

    Notes
    -----
    torchrun itself ends all ranks when one dies; other launchers may leave survivors.
    """
    settings = CollectiveSettings.from_environment()
    joined = join_torchrun("measure", settings, _executor)
    executor, config = joined.executor, joined.config
    regroup = StoreRegroup(joined.store, executor, config.host, config.secret)
    try:
        hosts = host_names(config.rank_host, joined.addresses)
        return measure_ranks(executor, hosts, effort=effort, progress=progress, regroup=regroup)
    finally:
        regroup.close()


def _executor(rank: int, ranks: int, config: GroupConfig) -> Executor:
    return Executor(rank, ranks, host=config.host, secret=config.secret, tls=config.tls)


def host_names(rank_host: Sequence[int], addresses: Sequence[str]) -> list[str]:
    """Name every rank's host by the address of the first rank on it."""
    if len(set(rank_host)) == 1 and len(set(map(host_of, addresses))) == 1:
        return [socket.gethostname()] * len(rank_host)
    # on a testbed without namespaces one host index has several addresses: these are its hosts
    return [host_of(address) for address in addresses]
