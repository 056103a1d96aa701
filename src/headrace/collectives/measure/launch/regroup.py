"""How survivors of a lost rank find each other: through torch's store, who comes in time is in."""

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from headrace.collectives.run.executor import Executor
from headrace.collectives.run.pacing import pace
from headrace.collectives.run.rendezvous import Rendezvous
from headrace.errors import CommunicationError
from headrace.settings import Settings

_MUSTER_S = 15.0  # the conductor may be computing when the others already know
_STRAGGLER_S = 1.0  # the last one may only be late
_CONNECT_S = 15.0
_POLL_S = 0.05


class StoreRegroup:
    """Forms the next executor group of those who are left; see `conduct.Regroup`.

    The first to come decides, once all have come or `muster_s` are over, who is in.

    Parameters
    ----------
    store : torch's store, which has to outlive the ranks that are lost.
    executor : of the first group; closed like all others.
    """

    def __init__(
        self, store: Any, executor: Executor, host: str, secret: str, muster_s: float = _MUSTER_S
    ) -> None:
        self._store = store
        self._executor = executor
        self._rank = executor.rank
        self._host = host
        self._secret = secret
        self._muster_s = muster_s
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
            raise CommunicationError(f"{reason}; and the store is gone too: {error}") from error

    def close(self) -> None:
        """Close the connections of the last group."""
        self._executor.close()

    def _join(self, before: Sequence[int], reason: str) -> tuple[Executor, Sequence[int]]:
        members = self._members(before)
        if self._rank not in members:
            raise CommunicationError(f"{reason}; the others went on without rank {self._rank}")
        if len(members) < 2:
            raise CommunicationError(f"{reason}; nobody else is left")
        place = members.index(self._rank)
        settings = Settings.from_environment()
        self._executor = Executor(
            place, len(members), host=self._host, secret=self._secret, tls=settings.tls
        )
        meeting = Rendezvous(self._part("meet"), place, len(members), _CONNECT_S)
        addresses = meeting.addresses(self._executor.address)
        self._executor.connect(addresses, _CONNECT_S)
        pace(self._executor, addresses, settings)
        return self._executor, members

    def _members(self, before: Sequence[int]) -> list[int]:
        store = self._part("muster")
        store.set(f"here/{self._rank}", "1")
        if store.add("first", 1) == 1:
            store.set("members", json.dumps(self._muster(store, before)))
        # twice: whoever decides may have come as late as it was allowed to
        store.wait(["members"], timedelta(seconds=2 * self._muster_s))
        return [int(rank) for rank in json.loads(store.get("members"))]

    def _muster(self, store: Any, before: Sequence[int]) -> list[int]:
        until = time.monotonic() + self._muster_s
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
