"""Rendezvous of the ranks of one process group through torch's store, in two rounds.

They are those in which the ranks agree on an incarnation of the group (`incarnation`). With their
arrivals the ranks exchange what they have and want (`offers`): their hosts, so that no rank offers
a loopback address to another host, and settings, which are compared. With their acknowledgements
they exchange the listening addresses of their executors.
"""

import json
import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import headrace
from headrace.collectives.run.incarnation import Attempt
from headrace.collectives.run.offers import (
    GroupConfig,
    Offer,
    check_versions,
    group_config,
    own_offer,
)
from headrace.collectives.settings import CollectiveSettings
from headrace.errors import CommunicationError, HeadraceError, InputError
from headrace.executor import Exchange, Executor
from headrace.executor.executor import TAGS
from headrace.executor.pacing import pace
from headrace.job.store import answering, wait_for

_FAILED = "failed"  # key in the incarnation's store: why a rank could not connect
_ADDRESS_BYTES = 64
_FIRST_TAG = TAGS + TAGS // 2  # no message of a user has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A rank's connections with the others of its group, and what they agreed on.

    Attributes
    ----------
    store : private to this incarnation of the group.
    executor : connected with all others'.
    addresses : of the executors, by rank.
    """

    store: Any
    config: GroupConfig
    executor: Executor
    addresses: Sequence[str]


class _Listening:
    """A rank's acknowledgement: its executor, which listens, or why there is none.

    Parameters
    ----------
    make : makes the executor.
    """

    def __init__(self, rank: int, make: Callable[[GroupConfig], Executor]) -> None:
        self._rank = rank
        self._make = make
        self._executor_and_config: tuple[Executor, GroupConfig] | None = None
        self._error: HeadraceError | OSError | None = None

    def begin(self, arrivals: Sequence[str]) -> str:
        """Listen, with the configuration that follows from all ranks' arrivals.

        An error is not raised yet: they may have those of ranks that are being replaced.
        """
        self.close()
        rows = [json.loads(text) for text in arrivals]
        try:
            check_versions([version for _, version, _ in rows])
            offers = [Offer(*offer) for _, _, offer in rows]
            config = group_config(offers, self._rank, secret=rows[0][0])
            executor = self._make(config)
        except (HeadraceError, OSError) as error:
            self._error = error
            return json.dumps({"failed": str(error)})
        self._executor_and_config = executor, config
        return json.dumps({"address": executor.address})

    def result(self) -> tuple[Executor, GroupConfig]:
        """Return the executor; raises the error of the last `begin` if it had one."""
        if self._error is not None:
            raise self._error
        assert self._executor_and_config is not None, "a rank acknowledges what it agrees on"
        return self._executor_and_config

    def close(self) -> None:
        """Stop listening."""
        if self._executor_and_config is not None:
            self._executor_and_config[0].close()
        self._executor_and_config = self._error = None


class Rendezvous:
    """Rendezvous of one rank with the others of its group.

    Parameters
    ----------
    store : the group's, from torch; it may have keys of earlier groups of its name.
    rank : this rank's index in `members`.
    members : the group's ranks in the whole job, in the group's order.
    timeout_s : longest wait for the slowest rank, and for connections, in seconds.
    """

    def __init__(self, store: Any, rank: int, members: Sequence[int], timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._ranks = len(members)
        self._timeout_s = timeout_s
        self._attempt = Attempt(store, rank, members, timeout_s)
        self._what = f"rank {rank}: rendezvous of {len(members)} ranks"

    def join(
        self,
        settings: CollectiveSettings,
        make: Callable[[GroupConfig], Executor],
        *,
        book_digest: str = "",
        channels: int = 1,
        compares_calls: bool = False,
    ) -> Joined:
        """Agree on the group with all other ranks, and connect with them.

        Parameters
        ----------
        settings : this rank's.
        make : makes this rank's executor; called again, after that was closed, if another rank was
            replaced meanwhile.
        book_digest, channels, compares_calls : see `own_offer`.

        Raises
        ------
        InputError : the ranks' versions, plan books or settings of TLS differ; the interface has no
            address, or the ranks have no address family in common.
        CommunicationError : naming the ranks that did not arrive in time, that lack file
            descriptors, or that failed; the store does not answer.
        """
        offer = own_offer(
            self._store,
            self._ranks,
            settings,
            book_digest=book_digest,
            channels=channels,
            compares_calls=compares_calls,
        )
        secret = secrets.token_hex(16) if self._rank == 0 else ""
        listening = _Listening(self._rank, make)
        try:
            incarnation = self._attempt.agree(_arrival(secret, offer), listening.begin)
            executor, config = listening.result()
            addresses = self._addresses(incarnation.acknowledgements)
            self._connect(incarnation.store, executor, addresses)
            pace(executor, addresses, settings)
        except BaseException:
            listening.close()
            raise
        finally:  # nothing listens any more: a rank that comes later cannot use it
            self._forget_secret(offer)
        return Joined(
            store=incarnation.store, config=config, executor=executor, addresses=addresses
        )

    def arrived_in(self, store: Any) -> bool:
        """Return whether this rank has arrived in `store`, for use in `make`: it is the group's."""
        return self._attempt.arrived_in(store)

    def _addresses(self, acknowledgements: Sequence[str]) -> list[str]:
        """Return the executors' addresses, by rank; raises the error of a rank that has none."""
        answers = [json.loads(text) for text in acknowledgements]
        for rank, answer in enumerate(answers):
            if "failed" in answer:
                raise CommunicationError(f"{self._what}: rank {rank} failed: {answer['failed']}")
        return [answer["address"] for answer in answers]

    def _connect(self, store: Any, executor: Executor, addresses: Sequence[str]) -> None:
        """Connect with all others; if that fails, so does theirs, with the same reason."""
        try:
            executor.connect(addresses, self._timeout_s, partial(self._check, store))
        except BaseException as error:  # an interrupt, too
            reason = str(error) or type(error).__name__
            with suppress(RuntimeError):  # the store is lost
                if not store.check([_FAILED]):
                    store.set(_FAILED, f"rank {self._rank} failed: {reason}")
            raise

    def _check(self, store: Any) -> None:
        """Raise the error of a rank that could not connect."""
        with answering(store, self._what):
            if not store.check([_FAILED]):
                return
            reason = store.get(_FAILED).decode()
        raise CommunicationError(f"{self._what}: {reason}")

    def _forget_secret(self, offer: Offer) -> None:
        """Take the group's secret out of the store; does nothing if the store is lost.

        Once a rank is connected with all others, all have read the secret, as each proved it in
        its handshake. No rank listens for that of a group that failed.
        """
        if self._rank == 0:
            with suppress(RuntimeError):
                self._attempt.replace_arrival(_arrival("", offer))


def _arrival(secret: str, offer: Offer) -> str:
    return json.dumps([secret, headrace.__version__, offer])


def allgather_through_store(
    store: Any, rank: int, ranks: int, mine: str, timeout_s: float
) -> list[str]:
    """Return every rank's `mine`, by rank; once per store, which is private to the group.

    Raises
    ------
    CommunicationError : naming the ranks that did not call it in time; the store does not answer.
    """
    keys = [f"gathered/{peer}" for peer in range(ranks)]
    what = f"rank {rank}: rendezvous of {ranks} ranks"
    with answering(store, what):
        store.set(keys[rank], mine)
        if not wait_for(store, keys, timeout_s, what):
            missing = [peer for peer, key in enumerate(keys) if not store.check([key])]
            raise CommunicationError(
                f"{what}: ranks {missing} did not reach it within {timeout_s:g} s"
            )
        return [value.decode() for value in store.multi_get(keys)]


def allgather_addresses(executor: Executor, name: str, mine: str, deadline_s: float) -> list[str]:
    """Return every rank's `mine`, by rank; collective: once per `name`, which is the same on all.

    For additional connections of a group while its calls are under way: messages over the existing
    connections, as a thread that waits for the store blocks all others of its process that use it.

    Raises
    ------
    CommunicationError : a rank did not call it in time.
    """
    encoded = mine.encode()
    if len(encoded) > _ADDRESS_BYTES:
        raise InputError(f"{mine!r} is over {_ADDRESS_BYTES} bytes")
    tag = _FIRST_TAG + zlib.crc32(name.encode()) % (TAGS // 2)
    rows = np.zeros((executor.ranks, _ADDRESS_BYTES), dtype=np.uint8)
    own = rows[executor.rank]
    own[: len(encoded)] = np.frombuffer(encoded, dtype=np.uint8)

    def handles() -> Iterator[int]:
        for peer in range(executor.ranks):
            if peer != executor.rank:
                row, source = rows[peer].ctypes.data, own.ctypes.data
                yield executor.recv(row, _ADDRESS_BYTES, peer, tag, deadline_s=deadline_s)
                yield executor.send(source, _ADDRESS_BYTES, peer, tag, deadline_s=deadline_s)

    Exchange(executor, [rows], handles()).wait()
    return [row.tobytes().rstrip(b"\0").decode() for row in rows]
