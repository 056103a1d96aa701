"""Hosts of a job's processes on the nodes of a Ray cluster."""

from contextlib import suppress
from dataclasses import replace

from headrace.embeddings.run.job.job_processes import JobHosts, RoleHost
from headrace.errors import CommunicationError
from headrace.launch.placement import Need
from headrace.launch.ray_cluster import RayCluster
from headrace.launch.ray_process import RayHost

_PROCESSOR: Need = {"CPU": 1.0}
_WITH_GPU: Need = {"CPU": 1.0, "GPU": 1.0}


def ray_hosts(
    cluster: RayCluster, *, trainers: int, servers: int, readers: int, fewest: int | None = None
) -> JobHosts:
    """Return hosts on a cluster's nodes, with room for each process that Ray keeps for it.

    Trainers have a GPU each if the cluster has so many; every process counts as a processor.
    Processes of one kind are spread over the nodes. Hosts of an earlier call are given up.

    Parameters
    ----------
    fewest : trainers that will do where the nodes have no room for all; None: all of them.

    Raises
    ------
    CommunicationError : see `RayCluster.place`.
    """
    least = trainers if fewest is None else min(fewest, trainers)
    for count in range(trainers, least, -1):
        with suppress(CommunicationError):
            return _placed(cluster, trainers=count, servers=servers, readers=readers)
    return _placed(cluster, trainers=least, servers=servers, readers=readers)


def _placed(cluster: RayCluster, *, trainers: int, servers: int, readers: int) -> JobHosts:
    need = _WITH_GPU if cluster.total("GPU") >= trainers else _PROCESSOR
    others = servers + readers + 1
    places = cluster.place([need] * trainers + [_PROCESSOR] * others)
    hosts = [RoleHost(start=place.start, address=place.address) for place in places[trainers:]]
    return JobHosts(
        trainers=tuple(
            RoleHost(start=place.start, address=place.address)
            for place in share_gpus(places[:trainers])
        ),
        servers=tuple(hosts[:servers]),
        readers=tuple(hosts[servers:-1]),
        cacher=hosts[-1],
        rendezvous=places[0].free_port(),
    )


def share_gpus(places: list[RayHost]) -> list[RayHost]:
    """Return the places of trainers, each of which sees the GPUs of all on its node.

    torchrun's LOCAL_RANK is then the number of a trainer's own.
    """
    of_node: dict[str, list[str]] = {}
    for place in places:
        of_node.setdefault(place.address, []).extend(place.gpus)
    return [
        replace(place, env={**place.env, "CUDA_VISIBLE_DEVICES": ",".join(gpus)})
        if (gpus := of_node[place.address])
        else place
        for place in places
    ]
