"""How ranks agree on a change, and from which call on: words through a store of keys and values.

One proposer, at rank 0, and a follower at every rank (rank 0, too), each on a thread and a store
connection of its own. A round goes through the keys ``<epoch>/...``:

=================  ===========================================================================
offer, part/<i>    what is proposed
ready/<rank>       the rank has loaded it and could change
refused            a rank cannot, with the reason; the round is aborted
ask                all are ready: promise
hold/<rank>        the rank will not make the call with this number before it hears the verdict
verdict            {"at": number of the call to change at}, or {"reason": why not}
heard/<rank>       the rank reads no more; when all are that far, the keys are deleted
=================  ===========================================================================

``begun`` is the number of the newest round; so is ``latest``, once its offer is there. ``news``
changes whenever there is something to look for. Loading
comes before promising, as it takes much longer: no rank ever waits for another's loading. All waits
look again and again (a torch store writes a warning for each of its own waits that runs out) and
have a deadline.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import uuid4

from headrace.collectives.plan.book import PlanBook
from headrace.collectives.run.store import answering
from headrace.collectives.run.swap import MARGIN, Activation, PlanSwitch
from headrace.errors import CommunicationError, HeadraceError

__all__ = [
    "NEWS",
    "PLAN",
    "Follower",
    "RoundOutcome",
    "Proposer",
    "Store",
    "announce",
    "own_connection",
]

PLAN = "plan"
"""The kind of proposals that bring a plan book."""

NEWS = "news"
"""The key that ranks look at, and at others only when it has changed: looking is what costs."""

_PART_BYTES = 4 << 20  # torch's TCP store takes no values above 8 MiB
_POLL_S = 0.005
_POLL_S_PER_RANK = 20e-6  # many ranks ask less often, for the store's sake
_VERDICT_S = 0.1  # about what passes between promise and verdict
_RATE_S = 0.2
_STORE_TIMEOUT_S = 10.0
_WHAT = "changing plans"  # what an error of the store was in the way of

log = logging.getLogger(__name__)


class Store(Protocol):
    """What is needed of torch's stores; errors are RuntimeErrors."""

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        ...

    def get(self, key: str) -> bytes:
        """Read a value that is known to be there."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Whether all these keys are there."""
        ...

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        ...


def own_connection(store: Any) -> Store:
    """Return another connection to torch's `store`, for one thread to use.

    Raises
    ------
    CommunicationError : here and from every method, if the store does not answer.
    """
    with answering(store, _WHAT):
        return _Connection(store.clone())


class _Connection:
    """A store whose errors name it if it is lost."""

    def __init__(self, clone: Any) -> None:
        from torch._C._distributed_c10d import PrefixStore

        clone.set_timeout(timedelta(seconds=_STORE_TIMEOUT_S))
        self._store = PrefixStore("agreement", clone)

    def set(self, key: str, value: str | bytes) -> None:
        with answering(self._store, _WHAT):
            self._store.set(key, value)  # pyright: ignore[reportArgumentType]  (bytes work)

    def get(self, key: str) -> bytes:
        with answering(self._store, _WHAT):
            return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        with answering(self._store, _WHAT):
            return self._store.check(keys)

    def delete_key(self, key: str) -> bool:
        with answering(self._store, _WHAT):
            return self._store.delete_key(key)


def announce(store: Store) -> None:
    """Have all ranks look at what was just written."""
    store.set(NEWS, uuid4().hex)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """How a round ended.

    Attributes
    ----------
    at : number of the call before which the change is made; None: there is none.
    reason : why there is none.
    """

    epoch: int
    kind: str
    at: int | None
    reason: str = ""

    @property
    def committed(self) -> bool:
        """Whether the change will be made."""
        return self.at is not None


class Proposer:
    """The one who asks all ranks for a change.

    One that takes over from another which died finishes the round that was open.

    Parameters
    ----------
    store : a connection of its own (`own_connection`).
    load_s : longest wait for all ranks to load what is proposed, in seconds.
    promise_s : longest wait for their promises. Ranks give up waiting for a verdict after
        three times that.
    stop : set when the round is to be given up: it is aborted.

    Raises
    ------
    CommunicationError : from every method, if the store is lost.
    """

    def __init__(
        self,
        store: Store,
        ranks: int,
        *,
        load_s: float = 60.0,
        promise_s: float = 5.0,
        stop: threading.Event | None = None,
    ) -> None:
        self._words = _Words(store)
        self._ranks = ranks
        self._load_s = load_s
        self._promise_s = promise_s
        self._stop = stop or threading.Event()
        self._poll_s = _poll_s(ranks)
        self._remains: list[str] = []  # keys that somebody may still want to read
        self.epoch = int(self._words.hear("begun") or 0)
        if self.epoch:
            self._finish_for_another()

    def propose(self, kind: str, payload: bytes) -> RoundOutcome:
        """Ask all ranks for a change; returns when it is decided.

        Parameters
        ----------
        kind : `PLAN` for a plan book's bytes, or what the followers have a handler for.
        """
        self._discard()
        self.epoch += 1
        self._words.say("begun", str(self.epoch))
        parts = [payload[i : i + _PART_BYTES] for i in range(0, len(payload), _PART_BYTES)]
        self._remains = self._keys(self.epoch, len(parts))
        try:
            self._offer(kind, parts)
            at, reason = self._decide()
        except BaseException:
            # nothing was committed: that would be the next word
            self._say_verdict({"reason": "its proposer failed"})
            raise
        self._say_verdict({"reason": reason} if at is None else {"at": at})
        if not self._missing("heard", self._promise_s):
            self._discard()
        return RoundOutcome(epoch=self.epoch, kind=kind, at=at, reason=reason)

    def _finish_for_another(self) -> None:
        """End the newest round as whoever began it should have done."""
        self._remains = self._keys(self.epoch, self._parts(self.epoch))
        if not self._words.all_said([f"{self.epoch}/verdict"]):
            self._say_verdict({"reason": "its proposer died"})
        if self._words.hear("latest") == str(self.epoch):
            self._missing("heard", self._promise_s)

    def _offer(self, kind: str, parts: list[bytes]) -> None:
        for index, part in enumerate(parts):
            self._words.say(f"{self.epoch}/part/{index}", part)
        offer = {
            "kind": kind,
            "parts": len(parts),
            "load_s": self._load_s,
            "promise_s": self._promise_s,
        }
        self._words.say(f"{self.epoch}/offer", json.dumps(offer))
        self._words.say("latest", str(self.epoch))
        self._words.announce()

    def _decide(self) -> tuple[int | None, str]:
        missing = self._missing("ready", self._load_s)
        if missing:
            return None, self._why(missing, "did not load it", self._load_s)
        self._words.say(f"{self.epoch}/ask", "")
        missing = self._missing("hold", self._promise_s)
        if missing:
            return None, self._why(missing, "did not promise", self._promise_s)
        holds = [
            int(self._words.hear(f"{self.epoch}/hold/{rank}") or 0) for rank in range(self._ranks)
        ]
        return max(holds), ""

    def _why(self, missing: list[int], what: str, limit_s: float) -> str:
        if self._stop.is_set():
            return "it was given up, as the group ends"
        refused = self._words.hear(f"{self.epoch}/refused")
        return refused or f"ranks {missing} {what} within {limit_s:g} s"

    def _missing(self, name: str, limit_s: float) -> list[int]:
        """Wait for every rank's key; the ranks without one if time is up or one refused."""
        keys = [f"{self.epoch}/{name}/{rank}" for rank in range(self._ranks)]
        end, refused = time.monotonic() + limit_s, [f"{self.epoch}/refused"]
        while not self._words.all_said(keys):
            over = name != "heard" and self._words.all_said(refused)
            if over or self._stop.is_set() or time.monotonic() > end:
                return [rank for rank, key in enumerate(keys) if not self._words.all_said([key])]
            time.sleep(self._poll_s)
        return []

    def _say_verdict(self, verdict: Mapping[str, Any]) -> None:
        self._words.say(f"{self.epoch}/verdict", json.dumps(verdict))

    def _parts(self, epoch: int) -> int:
        offer = self._words.hear(f"{epoch}/offer")
        return 0 if offer is None else int(json.loads(offer)["parts"])

    def _keys(self, epoch: int, parts: int) -> list[str]:
        by_rank = [f"{name}/{r}" for name in ("ready", "hold", "heard") for r in range(self._ranks)]
        by_part = [f"part/{index}" for index in range(parts)]
        single = ["offer", "refused", "ask", "verdict"]
        return [f"{epoch}/{name}" for name in (*single, *by_part, *by_rank)]

    def _discard(self) -> None:
        for key in self._remains:
            self._words.take_back(key)
        self._remains = []


class Follower:
    """One rank's part in the rounds.

    Parameters
    ----------
    store : a connection of its own (`own_connection`).
    switch : the group's.
    handlers : by kind of proposal: makes it ready and returns what is to be done between two
        calls, when all earlier collectives have ended at this rank. What it raises (a
        HeadraceError) is a refusal. Plan books need none.
    stop : set when the round is to be left.
    drain_s : longest wait for earlier collectives to end, in seconds.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: int,
        switch: PlanSwitch,
        *,
        handlers: Mapping[str, Callable[[bytes], Activation]] | None = None,
        stop: threading.Event | None = None,
        drain_s: float = 60.0,
    ) -> None:
        self._words = _Words(store)
        self._rank = rank
        self._switch = switch
        self._handlers = handlers or {}
        self._stop = stop or threading.Event()
        self._drain_s = drain_s
        self._poll_s = _poll_s(ranks)
        self._epoch = 0
        self._pace = _Pace(switch)

    def poll(self) -> RoundOutcome | None:
        """Take part in the newest round if this rank has not; None if there is no new one.

        Raises
        ------
        CommunicationError : if the store is lost. Training goes on with the plan that it has.
        """
        self.note_pace()
        newest = int(self._words.hear("latest") or 0)
        if newest <= self._epoch:
            return None
        self._epoch = newest
        try:
            return self._take_part(newest)
        finally:
            self._switch.abort(newest)  # unless it was committed

    def note_pace(self) -> None:
        """Note how many calls have been made; now and then, for promises go by their pace."""
        self._pace.note()

    def _take_part(self, epoch: int) -> RoundOutcome:
        offer = self._words.hear(f"{epoch}/offer")
        over = self._words.all_said([f"{epoch}/verdict"])
        if over:
            self._words.say(f"{epoch}/heard/{self._rank}", "")
        if over or offer is None:
            return RoundOutcome(
                epoch=epoch, kind="", at=None, reason="it was over before it was seen"
            )
        terms: Mapping[str, Any] = json.loads(offer)
        kind = str(terms["kind"])
        try:
            action = self._prepared(epoch, kind, int(terms["parts"]))
        except HeadraceError as error:
            return self._refuse(epoch, kind, error)
        self._words.say(f"{epoch}/ready/{self._rank}", "")
        if self._await(epoch, ("ask", "verdict"), 2 * float(terms["load_s"])) == "ask":
            hold_s = 3 * float(terms["promise_s"])
            try:
                hold = self._switch.promise(
                    epoch, action, margin=self._pace.margin(), hold_s=hold_s
                )
            except HeadraceError as error:
                return self._refuse(epoch, kind, error)
            self._words.say(f"{epoch}/hold/{self._rank}", str(hold))
            self._await(epoch, ("verdict",), hold_s)
        return self._conclude(epoch, kind)

    def _prepared(self, epoch: int, kind: str, parts: int) -> Activation:
        payload = b"".join(
            self._words.hear_bytes(f"{epoch}/part/{index}") or b"" for index in range(parts)
        )
        if kind == PLAN:
            return self._switch.loaded(PlanBook.from_bytes(payload, f"plan book {epoch}"))
        if kind not in self._handlers:
            raise CommunicationError(f"rank {self._rank} knows no proposals of kind {kind!r}")
        return self._switch.drained(self._handlers[kind](payload), self._drain_s)

    def _conclude(self, epoch: int, kind: str) -> RoundOutcome:
        said = self._words.hear(f"{epoch}/verdict")
        self._words.say(f"{epoch}/heard/{self._rank}", "")
        if said is None:
            reason = "no verdict came in time"
            log.warning("rank %d: plan %d: %s", self._rank, epoch, reason)
            return RoundOutcome(epoch=epoch, kind=kind, at=None, reason=reason)
        verdict: Mapping[str, Any] = json.loads(said)
        at = None if "at" not in verdict else int(verdict["at"])
        if at is not None:
            self._switch.commit(epoch, at)
        return RoundOutcome(epoch=epoch, kind=kind, at=at, reason=str(verdict.get("reason", "")))

    def _refuse(self, epoch: int, kind: str, error: HeadraceError) -> RoundOutcome:
        reason = f"rank {self._rank} refused: {error}"
        self._words.say(f"{epoch}/refused", reason)
        self._await(epoch, ("verdict",), _STORE_TIMEOUT_S)
        self._words.say(f"{epoch}/heard/{self._rank}", "")
        return RoundOutcome(epoch=epoch, kind=kind, at=None, reason=reason)

    def _await(self, epoch: int, names: tuple[str, ...], limit_s: float) -> str | None:
        """Wait for one of the keys; None if none came in time."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end and not self._stop.is_set():
            for name in names:
                if self._words.all_said([f"{epoch}/{name}"]):
                    return name
            time.sleep(self._poll_s)
        return None


class _Pace:
    """How fast calls are made, to promise no more of them than a verdict takes."""

    def __init__(self, switch: PlanSwitch) -> None:
        self._switch = switch
        self._then = self._now = (time.monotonic(), switch.sequence())

    def note(self) -> None:
        now = (time.monotonic(), self._switch.sequence())
        if now[0] - self._now[0] >= _RATE_S:
            self._then, self._now = self._now, now

    def margin(self) -> int:
        (before_s, before), now_s, now = self._then, time.monotonic(), self._switch.sequence()
        rate = (now - before) / max(now_s - before_s, _POLL_S)
        return min(MARGIN, 2 + math.ceil(rate * _VERDICT_S))


class _Words:
    """A store, its errors translated."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def say(self, key: str, value: str | bytes) -> None:
        self._guarded(lambda: self._store.set(key, value))

    def announce(self) -> None:
        self._guarded(lambda: announce(self._store))

    def all_said(self, keys: list[str]) -> bool:
        return bool(self._guarded(lambda: self._store.check(keys)))

    def hear_bytes(self, key: str) -> bytes | None:
        if not self.all_said([key]):
            return None
        try:
            return bytes(self._store.get(key))
        except RuntimeError:
            if not self.all_said([key]):  # it was taken back just now
                return None
            raise CommunicationError(f"the ranks' store does not tell {key!r}") from None

    def hear(self, key: str) -> str | None:
        found = self.hear_bytes(key)
        return None if found is None else found.decode()

    def take_back(self, key: str) -> None:
        self._guarded(lambda: self._store.delete_key(key))

    def _guarded(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except CommunicationError:
            raise
        except RuntimeError as error:  # torch's store errors derive from it
            raise CommunicationError(
                f"the ranks' store is lost, through which plans are changed: {error}"
            ) from error


def _poll_s(ranks: int) -> float:
    return max(_POLL_S, _POLL_S_PER_RANK * ranks)
