"""Agreement of the members of a group on one incarnation of it, through torch's store.

torch names the groups made after destroy_process_group like those before, and the store may
outlive them all (torchrun's agent keeps it). Ranks cannot count: one may have made more groups of
a name than another, or have abandoned an attempt that the others never began.

The members of a group (one list of global ranks in one namespace of the store) write *rounds*:
every member writes one entry to every round, once, by compare-and-set, so all read the same. An
attempt of a rank to make the group reads rounds in order; each is complete when every member has
written to it. To the next round it writes

1. an *arrival*, which replaces the earlier arrival of that rank, unless it is that rank's newest;
2. else an *acknowledgement* of the newest arrivals of all members.

An incarnation begins after a round that consists of acknowledgements only. Its name is the number
of that round, and the rounds after it begin anew. Usually that takes two rounds. Entries
carry texts: with the arrivals the members tell each other what they have and want, with the
acknowledgements what follows from that. So a group needs no further exchange through the store.

**Two incarnations never mix.** The state (newest arrival of each rank) after a round is a function
of the rounds so far, which are the same for all ranks: so all agree on the end of an incarnation,
and on its name. A rank acknowledges only while its own arrival, identified by a random number, is
its newest; so in a round of acknowledgements each was written, after the newest arrival of *every*
member, by the attempt that made that member's arrival. An incarnation therefore consists of exactly
one attempt of every member, all under way at one time, and names are rounds, which are used once.
An arrival left by a rank that died, timed out or belongs to an earlier run of the job is never
acknowledged by its rank, and is replaced at that rank's next attempt, in the next round that this
rank has not written to. Other members, another number of ranks, or another group's name make other
rounds.

A rank that dies after its acknowledgement is in the incarnation, which no protocol can avoid. The
others fail to connect by their deadline, and the next attempt begins anew.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.errors import CommunicationError
from headrace.job.store import answering, wait_for

_START = "start"  # key: a round after which no incarnation is open: readers may begin there
_ABSENT = "?"  # no key has this value


class RankText(NamedTuple):
    """A rank's text in a round: an arrival, or else an acknowledgement of all arrivals.

    Attributes
    ----------
    arrives : whether it is an arrival.
    attempt : random number of the rank's attempt.
    text : of the rank, for all others.
    """

    arrives: bool
    attempt: str
    text: str


class RoundsState:
    """State after some rounds of a group of `ranks` members.

    Attributes
    ----------
    attempts : rank -> random number of the attempt of its newest arrival.
    arrivals : rank -> text of that arrival.
    acknowledgements : texts by rank, if the last round had nothing else: then an incarnation has
        begun.
    """

    def __init__(self) -> None:
        self.attempts: dict[int, str] = {}
        self.arrivals: dict[int, str] = {}
        self.acknowledgements: list[str] = []

    def apply(self, entries: Sequence[RankText]) -> None:
        """Apply the next round: one entry for each rank, in order."""
        if self.acknowledgements:
            self.__init__()
        for rank, entry in enumerate(entries):
            if entry.arrives:
                self.attempts[rank] = entry.attempt
                self.arrivals[rank] = entry.text
        if not any(entry.arrives for entry in entries):
            self.acknowledgements = [entry.text for entry in entries]

    def includes(self, rank: int, attempt: str) -> bool:
        """Return whether an attempt's arrival is its rank's newest."""
        return self.attempts.get(rank) == attempt

    def may_acknowledge(self, rank: int, attempt: str) -> bool:
        """Return whether an attempt writes an acknowledgement next; else an arrival."""
        return not self.acknowledgements and self.includes(rank, attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """An incarnation that all members agree on.

    Attributes
    ----------
    store : its part of the store, empty.
    acknowledgements : the ranks' texts, by rank.
    """

    store: Any
    acknowledgements: Sequence[str]


class Attempt:
    """One attempt of a rank to make a group with the other members.

    Parameters
    ----------
    store : the group's, from torch.
    rank : this rank's index in `members`.
    members : the group's ranks in the whole job, in the group's order.
    timeout_s : longest wait for the slowest rank, in seconds.
    """

    def __init__(self, store: Any, rank: int, members: Sequence[int], timeout_s: float) -> None:
        from torch._C._distributed_c10d import PrefixStore  # not all importers of this load torch

        self._prefix = f"headrace/{digest_of(members)}"
        self._store = PrefixStore(self._prefix, store)
        self._rank = rank
        self._ranks = len(members)
        self._timeout_s = timeout_s
        self._number = secrets.token_hex(8)
        self._arrived_at = ""  # key of the newest arrival
        self._arrived = ""  # and the entry there
        self.what = f"rank {rank}: making a group of {len(members)} ranks"

    def agree(self, arrival: str, acknowledge: Callable[[Sequence[str]], str]) -> Incarnation:
        """Agree on an incarnation.

        Parameters
        ----------
        arrival : text of this rank's arrival.
        acknowledge : returns the text of this rank's acknowledgement from those of all arrivals, by
            rank. It is called again when a rank's arrival was replaced.

        Raises
        ------
        CommunicationError : naming the ranks that did not arrive in time; the store does not
            answer.
        """
        from torch._C._distributed_c10d import PrefixStore

        until = time.monotonic() + self._timeout_s
        state = RoundsState()
        with answering(self._store, self.what):
            number = self._first_round(arrival)
            while not (state.acknowledgements and state.includes(self._rank, self._number)):
                if state.may_acknowledge(self._rank, self._number):
                    texts = [state.arrivals[rank] for rank in range(self._ranks)]
                    entry = RankText(False, self._number, acknowledge(texts))
                else:
                    entry = RankText(True, self._number, arrival)
                state.apply(self._round(number, entry, state, until))
                number += 1
            if self._rank == self._ranks - 1:  # one suffices: readers may begin at any before
                self._store.set(_START, str(number))
        return Incarnation(
            store=PrefixStore(str(number - 1), self._store),
            acknowledgements=state.acknowledgements,
        )

    def replace_arrival(self, text: str) -> None:
        """Replace the text of this attempt's arrival in the store, once all have read it."""
        if self._arrived_at:
            self._store.set(self._arrived_at, json.dumps(RankText(True, self._number, text)))

    def arrived_in(self, store: Any) -> bool:
        """Return whether this attempt's arrival is in `store`: that it is the group's."""
        from torch._C._distributed_c10d import PrefixStore

        own = PrefixStore(self._prefix, store)
        return own.compare_set(self._arrived_at, _ABSENT, _ABSENT).decode() == self._arrived

    def _first_round(self, arrival: str) -> int:
        """Return the number of the round to begin at; this rank may have arrived in it."""
        stored = self._write(0, RankText(True, self._number, arrival))
        if stored == self._arrived:
            return 0  # as in most cases: no attempt of this rank before
        start = self._store.compare_set(_START, _ABSENT, _ABSENT).decode()
        return 0 if start == _ABSENT else int(start)

    def _round(
        self, number: int, entry: RankText, state: RoundsState, until: float
    ) -> list[RankText]:
        """Write an entry to a round unless this rank has one there; returns all entries."""
        keys = [_key(number, rank) for rank in range(self._ranks)]
        own = keys.pop(self._rank)
        stored = self._arrived if self._arrived_at == own else self._write(number, entry)
        if not wait_for(self._store, keys, until - time.monotonic(), self.what):
            absent = self._absent(number, state)
            raise CommunicationError(f"{self.what}: {absent} within {self._timeout_s:g} s")
        texts = [value.decode() for value in self._store.multi_get(keys)] if keys else []
        texts.insert(self._rank, stored)
        return [RankText(*json.loads(value)) for value in texts]

    def _write(self, number: int, entry: RankText) -> str:
        """Write an entry to a round unless this rank has one there; returns this rank's entry."""
        key, text = _key(number, self._rank), json.dumps(entry)
        stored: str = self._store.compare_set(key, "", text).decode()
        if stored == text:
            self._store.set(key, text)  # torch's older TCP server wakes readers only for this
            if entry.arrives:
                self._arrived_at, self._arrived = key, text
        return stored

    def _absent(self, number: int, state: RoundsState) -> str:
        ranks = [rank for rank in range(self._ranks) if not self._store.check([_key(number, rank)])]
        if state.attempts and not state.acknowledgements:
            return f"ranks {ranks} arrived and then went silent"
        return f"ranks {ranks} did not reach the rendezvous"


def _key(number: int, rank: int) -> str:
    return f"round/{number}/{rank}"


def digest_of(members: Sequence[int]) -> str:
    """Return a name of fixed length for a list of members."""
    return hashlib.sha256(",".join(map(str, members)).encode()).hexdigest()[:16]
