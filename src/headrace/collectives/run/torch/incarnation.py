"""Private part of torch's store for one incarnation of a group.

torch names the groups made after destroy_process_group like those before, and the store may
outlive them all (torchrun's agent keeps it). Ranks cannot count: one may have made more groups of
a name than another, or have abandoned an attempt that the others never began.

The members of a group (one list of global ranks in one namespace of the store) keep a log: slots 0,
1, ... that are written once, by compare-and-set, so every rank reads the same entries in the same
order. An attempt of a rank to make the group

1. writes an *arrival*, which replaces any earlier arrival of that rank;
2. once every member has arrived, writes an *acknowledgement* of the newest arrival, and again after
   every further arrival;
3. ends when every member has acknowledged the same newest arrival. That slot's number is the name
   of the incarnation; the log continues after the last acknowledgement, without arrivals.

**Two incarnations never mix.** The state (newest arrival of each rank, acknowledgements of the
newest arrival) is a function of the log's prefix, which is the same for all ranks: so all agree on
the end of an incarnation, and on its name. A rank acknowledges only while its own arrival,
identified by a random number, is its newest; so each acknowledgement that counts was written after
the newest arrival of *every* member, by the attempt that made that member's arrival. An incarnation
therefore consists of exactly one attempt of every member, all under way at one time, and names are
slots, which are used once. An arrival left by a rank that died, timed out or belongs to an earlier
run of the job is never acknowledged, and is replaced at that rank's next attempt. Other members,
another number of ranks, or another group's name make another log.

A rank that dies after its acknowledgement is in the incarnation, which no protocol can avoid. The
others wait for it at the rendezvous, fail by their deadline, and the next attempt begins anew.
"""

import hashlib
import itertools
import secrets
import time
from collections.abc import Sequence
from typing import Any

from headrace.errors import CommunicationError
from headrace.job.store import answering, wait_for

_START = "start"  # a slot at which an incarnation begins: readers may begin there, too


class Log:
    """State after a prefix of the log, for groups of `ranks` members.

    Attributes
    ----------
    attempts : rank -> random number of the attempt of its newest arrival.
    newest : slot of the newest arrival of all.
    acknowledged : ranks that acknowledged it.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.attempts: dict[int, str] = {}
        self.newest = -1
        self.acknowledged: set[int] = set()

    @property
    def all_arrived(self) -> bool:
        return len(self.attempts) == self._ranks

    @property
    def is_agreed(self) -> bool:
        return len(self.acknowledged) == self._ranks

    @property
    def outstanding(self) -> int:
        """Least number of entries before an attempt that has nothing to write can go on.

        Each missing rank writes one or more, none of which waits for the reader's.
        """
        return self._ranks - len(self.acknowledged if self.all_arrived else self.attempts)

    def apply(self, slot: int, entry: str) -> None:
        """Apply the next entry."""
        if self.is_agreed:
            self.__init__(self._ranks)
        kind, rank, detail, attempt = entry.split()
        if kind == "arrival":
            self.attempts[int(rank)] = attempt
            self.newest = slot
            self.acknowledged = set()
        elif self.all_arrived and int(detail) == self.newest:
            self.acknowledged.add(int(rank))

    def answer(self, rank: int, attempt: str) -> str | None:
        """Return the entry that an attempt has to write next, if any."""
        if self.is_agreed or self.attempts.get(rank) != attempt:
            return f"arrival {rank} - {attempt}"
        if self.all_arrived and rank not in self.acknowledged:
            return f"acknowledgement {rank} {self.newest} {attempt}"
        return None


def own_part(store: Any, rank: int, members: Sequence[int], timeout_s: float) -> Any:
    """Agree with the other members on an incarnation; returns its part of `store`, empty.

    Parameters
    ----------
    store : the group's, from torch.
    rank : this rank's index in `members`.
    members : the group's ranks in the whole job, in the group's order.
    timeout_s : longest wait for the slowest rank, in seconds.

    Raises
    ------
    CommunicationError : naming the ranks that did not arrive in time; the store does not answer.
    """
    from torch._C._distributed_c10d import PrefixStore  # not all importers of this load torch

    part = PrefixStore(f"headrace/{digest_of(members)}", store)
    what = f"rank {rank}: making a group of {len(members)} ranks"
    with answering(store, what):
        name = agreed_slot(part, rank, len(members), timeout_s, what)
    return PrefixStore(str(name), part)


def digest_of(members: Sequence[int]) -> str:
    """Return a name of fixed length for a list of members."""
    return hashlib.sha256(",".join(map(str, members)).encode()).hexdigest()[:16]


def agreed_slot(store: Any, rank: int, ranks: int, timeout_s: float, what: str) -> int:
    """Agree with the other ranks on the slot that names an incarnation.

    Parameters
    ----------
    store : the members' own part of torch's store, with their log.
    timeout_s : longest wait for the slowest rank, in seconds.
    what : rank and operation, the beginning of error messages.

    Raises
    ------
    CommunicationError : naming the ranks that did not arrive in time; the store does not answer.
    """
    attempt = secrets.token_hex(8)
    until = time.monotonic() + timeout_s
    log = Log(ranks)
    slot = int(store.get(_START)) if store.check([_START]) else 0
    while True:
        answer = log.answer(rank, attempt)
        if answer is None:
            entries = _read(store, slot, log.outstanding, until, what)
        else:
            entries = [_write(store, slot, answer)]
        complete = answer is not None or len(entries) == log.outstanding
        for entry in entries:
            log.apply(slot, entry)
            slot += 1
            if log.is_agreed and log.attempts[rank] == attempt:
                if entry == answer:  # one writer suffices: readers may begin at any slot before
                    store.set(_START, str(slot))
                return log.newest
        if not complete:
            raise CommunicationError(f"{what}: {_absent(log, ranks)} within {timeout_s:g} s")


def _write(store: Any, slot: int, entry: str) -> str:
    """Write an entry unless the slot is taken; returns the slot's entry."""
    stored: str = store.compare_set(f"slot/{slot}", "", entry).decode()
    if stored == entry:
        store.set(f"slot/{slot}", entry)  # torch's older TCP server wakes readers only for this
    return stored


def _read(store: Any, slot: int, count: int, until: float, what: str) -> list[str]:
    """Return the entries of `count` slots; those at the time limit if there are fewer by then."""
    keys = [f"slot/{number}" for number in range(slot, slot + count)]
    if not wait_for(store, keys, until - time.monotonic(), what):
        keys = list(itertools.takewhile(lambda key: store.check([key]), keys))
    return [entry.decode() for entry in store.multi_get(keys)] if keys else []


def _absent(log: Log, ranks: int) -> str:
    missing = [rank for rank in range(ranks) if rank not in log.attempts]
    if missing:
        return f"ranks {missing} did not reach the rendezvous"
    silent = [rank for rank in range(ranks) if rank not in log.acknowledged]
    return f"ranks {silent} arrived and then went silent"
