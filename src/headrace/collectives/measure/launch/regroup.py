"""Regrouping of the survivors of a lost rank, by a rendezvous with deadline in torch's store."""

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from headrace.collectives.run.rendezvous import allgather_through_store
from headrace.errors import CommunicationError
from headrace.executor import Executor
from headrace.executor.pacing import pace
from headrace.settings import Settings

_ARRIVAL_S = 15.0  # the leader may be computing when the others detect the loss
_STRAGGLER_S = 1.0  # extra wait for the last one, which may only be late
_CONNECT_S = 15.0
_POLL_S = 0.05


class StoreRegroup:
    """Forms the next executor group of the survivors; see `group_prober.Regroup`.

    The first to arrive fixes the members, once all have arrived or `arrival_s` have passed.

    Parameters
    ----------
    store : torch's store, which has to outlive lost ranks.
    executor : of the first group; closed like all others.
    """

    def __init__(
        self, store: Any, executor: Executor, host: str, secret: str, arrival_s: float = _ARRIVAL_S
    ) -> None:
        self._store = store
        self._executor = executor
        self._rank = executor.rank
        self._host = host
        self._secret = secret
        self._arrival_s = arrival_s
        self._generation = 0

    def __call__(self, members: Sequence[int], reason: str) -> tuple[Executor, Sequence[int]]:
        """Leave the group that failed, and join the next."""
        self.close()
        self._generation += 1
        try:
            return self._join(members, reason)
        except CommunicationError:
            raise
        except RuntimeError as error:  # torch's store errors derive from it
            raise CommunicationError(f"{reason}; and the store is lost too: {error}") from error

    def close(self) -> None:
        """Close the connections of the last group."""
        self._executor.close()

    def _join(self, before: Sequence[int], reason: str) -> tuple[Executor, Sequence[int]]:
        members = self._members(before)
        if self._rank not in members:
            raise CommunicationError(f"{reason}; the others continued without rank {self._rank}")
        if len(members) < 2:
            raise CommunicationError(f"{reason}; no other rank is left")
        place = members.index(self._rank)
        settings = Settings.from_environment()
        self._executor = Executor(
            place, len(members), host=self._host, secret=self._secret, tls=settings.tls
        )
        addresses = allgather_through_store(
            self._part("addresses"), place, len(members), self._executor.address, _CONNECT_S
        )
        self._executor.connect(addresses, _CONNECT_S)
        pace(self._executor, addresses, settings)
        return self._executor, members

    def _members(self, before: Sequence[int]) -> list[int]:
        store = self._part("arrivals")
        store.set(f"here/{self._rank}", "1")
        if store.add("first", 1) == 1:
            store.set("members", json.dumps(self._arrived(store, before)))
        # twice: the first may have arrived as late as allowed
        store.wait(["members"], timedelta(seconds=2 * self._arrival_s))
        return [int(rank) for rank in json.loads(store.get("members"))]

    def _arrived(self, store: Any, before: Sequence[int]) -> list[int]:
        until = time.monotonic() + self._arrival_s
        while True:
            here = [rank for rank in before if store.check([f"here/{rank}"])]
            if len(here) == len(before) - 1:  # as a rule one is missing, or none would be here
                until = min(until, time.monotonic() + _STRAGGLER_S)
            if len(here) == len(before) or time.monotonic() > until:
                return here
            time.sleep(_POLL_S)

    def _part(self, name: str) -> Any:
        from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

        return PrefixStore(f"regroup/{self._generation}/{name}", self._store)
