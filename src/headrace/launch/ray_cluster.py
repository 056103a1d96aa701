"""Places for processes on the nodes of a Ray cluster."""

import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from headrace import __version__
from headrace.errors import CommunicationError, InputError
from headrace.launch.node_processes import NodeProcesses
from headrace.launch.placement import Need, spread_over_nodes
from headrace.launch.ray_names import (
    PlacementGroupSchedulingStrategy,
    RayActorError,
    RayError,
    placement_group,
    placement_group_table,
    ray,
    remove_placement_group,
)
from headrace.launch.ray_process import RayCalls, RayHost

_CONNECT_S = 5.0
_ROOM_S = 60.0
"""For processes of others to make room."""
_ACTORS_S = 300.0
"""For actors, whose processes load Ray and headrace: busy nodes took more than a minute."""
_CALLS_AT_ONCE = 8
"""A place's: those of a process that ends, and of its successor."""


class RayCluster:
    """Connection to a Ray cluster, on one of whose nodes this process runs; a context manager.

    Its end ends all processes that it has places for; a copy of it in a forked child ends none.

    Parameters
    ----------
    address : of the head node, "host:port"; "auto": of the cluster that this machine is a node of.

    Raises
    ------
    InputError : Ray is not installed, or the address is of another form.
    CommunicationError : on entry: there is no cluster, or it has another version.
    """

    def __init__(self, address: str) -> None:
        if "://" in address:
            raise InputError(
                f"the Ray cluster's address is {address!r}, needs HOST:PORT of its head node, or "
                "auto, on one of its nodes"
            )
        self._address = address
        self._calls = RayCalls()
        self._group: Any = None
        self._actors: list[Any] = []

    def __enter__(self) -> Self:
        on_sigterm = signal.getsignal(signal.SIGTERM)
        host, _, port = self._address.rpartition(":")
        try:
            if port.isdigit():  # Ray would try for minutes
                socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            ray.init(address=self._address, log_to_driver=False, configure_logging=False)
        except (OSError, RuntimeError, ValueError, RayError) as error:
            text = str(error).strip().partition("\n")[0]
            raise CommunicationError(
                f"no Ray cluster at {self._address}: {text}; start one by 'ray start --head', and "
                "the other nodes by 'ray start --address'"
            ) from error
        if threading.current_thread() is threading.main_thread():  # Ray sets its own
            signal.signal(signal.SIGTERM, on_sigterm)
        return self

    def __exit__(self, *_: object) -> None:
        if self._calls.mark.forked:
            return
        with suppress(RayError):
            self._release()
        self._calls.close()
        ray.shutdown()

    def total(self, resource: str) -> float:
        """Return how much of a resource the nodes have, used or not."""
        self._calls.check()
        return float(ray.cluster_resources().get(resource, 0.0))

    def place(self, needs: Sequence[Need]) -> list[RayHost]:
        """Return a place for every process, those with equal needs spread over the nodes.

        Earlier places are given up, with their processes.

        Raises
        ------
        CommunicationError : the cluster has not so much, or not in time; or a node has another
            version of headrace, or none.
        """
        self._calls.check()
        self._release()
        until = time.monotonic() + _ACTORS_S
        while True:
            self._reserve(needs)
            try:
                return self._occupy(needs, until)
            except RayActorError as error:  # a node was lost that Ray still counted
                self._release()
                if time.monotonic() > until:
                    raise CommunicationError(f"Ray started no actor: {error}") from error

    def _reserve(self, needs: Sequence[Need]) -> None:
        amounts = {
            name: sum(need.get(name, 0.0) for need in needs) for need in needs for name in need
        }
        if all(self.total(name) >= amount for name, amount in amounts.items()):
            self._group = placement_group([dict(need) for need in needs], strategy="SPREAD")
            if self._group.wait(timeout_seconds=_ROOM_S):
                return
        free = ray.available_resources()
        lacking = ", ".join(
            f"{amount:g} {name} ({free.get(name, 0.0):g} of {self.total(name):g} are free)"
            for name, amount in amounts.items()
        )
        nodes = sum(bool(node["Alive"]) for node in ray.nodes())
        raise CommunicationError(
            f"the Ray cluster at {self._address} has {nodes} nodes, without room for "
            f"{len(needs)} processes that need {lacking}: add nodes, or start fewer processes"
        )

    def _occupy(self, needs: Sequence[Need], until: float) -> list[RayHost]:
        nodes = placement_group_table(self._group)["bundles_to_node_id"]
        order = spread_over_nodes(needs, [nodes[index] for index in range(len(needs))])
        actor = ray.remote(NodeProcesses)
        self._actors = [
            actor.options(
                num_cpus=need.get("CPU", 0.0),
                num_gpus=need.get("GPU", 0.0),
                max_concurrency=_CALLS_AT_ONCE,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=bundle
                ),
            ).remote()
            for need, bundle in zip(needs, order, strict=True)
        ]
        described = [self._describe(actor, until) for actor in self._actors]
        nodes = placement_group_table(self._group)["bundles_to_node_id"]
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        places: list[RayHost] = []
        for (version, gpus), bundle, handle in zip(described, order, self._actors, strict=True):
            address = addresses[nodes[bundle]]
            if version != __version__:
                raise CommunicationError(
                    f"node {address} of the Ray cluster has headrace {version}, needs "
                    f"{__version__}: install one version on all nodes"
                )
            places.append(RayHost(actor=handle, calls=self._calls, address=address, gpus=gpus))
        return places

    def _describe(self, actor: Any, until: float) -> Any:
        try:
            return ray.get(actor.describe.remote(), timeout=max(1.0, until - time.monotonic()))
        except TimeoutError as error:
            raise CommunicationError(
                f"a node of the Ray cluster started no actor within {_ACTORS_S:g} s"
            ) from error

    def _release(self) -> None:
        """End all processes, and give up their places."""
        for actor in self._actors:
            with suppress(RayError):
                ray.kill(actor)
        self._actors = []
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
