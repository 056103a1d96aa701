"""Two-phase commit of a change by all members of a job, through a key-value store.

The members are the ranks of a group, which change before the same call (`switch`). One proposer
(the coordinator), and a follower (a participant) at every member, each on a thread and a store
connection of its own. A round uses the keys ``<epoch>/...``:

=================  ===========================================================================
offer, part/<i>    the proposal, and the number of members
ready/<member>     the member has loaded it and could change
refused            a member cannot, with the reason; the round is aborted
ask                all are ready: promise
hold/<member>      the member does not make the call with this number before it has the verdict
verdict            {"at": number of the call to change at}, or {"reason": why not}
heard/<member>     the member has read all; once all have, the keys are deleted
=================  ===========================================================================

``begun`` is the number of the newest round; so is ``latest``, once its offer is published. ``news``
changes whenever the members have something to read. Loading comes before promising, as it takes
much longer: no member ever waits for another's loading. All waits poll (a torch store writes a
warning for each of its own waits that times out) and have a deadline.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import uuid4

from headrace.errors import CommunicationError, HeadraceError
from headrace.job.store import answering, in_parts
from headrace.job.switch import MARGIN, Activation, CallSwitch

NEWS = "news"
"""Key that ranks poll; they read others only when it has changed, as every read costs."""

_POLL_S = 0.005
_POLL_S_PER_MEMBER = 20e-6  # many members poll less often, to bound the store's load
_VERDICT_S = 0.1  # typical time between promise and verdict
_RATE_S = 0.2
_STORE_TIMEOUT_S = 10.0
_WHAT = "agreeing on a change"  # operation named in errors of the store

log = logging.getLogger(__name__)


class Store(Protocol):
    """Interface of torch's stores that is used here; errors are RuntimeErrors."""

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        ...

    def get(self, key: str) -> bytes:
        """Read a value that is known to exist."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Return whether all these keys exist."""
        ...

    def delete_key(self, key: str) -> bool:
        """Remove a key; returns whether it existed."""
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
    """Store whose errors name it if it is lost."""

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


def rank_names(ranks: int) -> tuple[str, ...]:
    """Return the names of a group's ranks as members."""
    return tuple(f"rank {rank}" for rank in range(ranks))


def announce(store: Store) -> None:
    """Notify all members of new keys."""
    store.set(NEWS, uuid4().hex)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """Outcome of a round.

    Attributes
    ----------
    at : number of the call before which the change is made; None if aborted.
    reason : reason of the abort.
    """

    epoch: int
    kind: str
    at: int | None
    reason: str = ""

    @property
    def committed(self) -> bool:
        """Return whether the change will be made."""
        return self.at is not None


class Proposer:
    """Coordinator of the rounds.

    A proposer that replaces one that died finishes the open round.

    Parameters
    ----------
    store : a connection of its own (`own_connection`).
    members : names of the participants, such as those of `rank_names`.
    load_s : longest wait for all members to load the proposal, in seconds.
    promise_s : longest wait for their promises. Members stop waiting for a verdict after three
        times that.
    stop : set to abort the round.

    Raises
    ------
    CommunicationError : from every method, if the store is lost.
    """

    def __init__(
        self,
        store: Store,
        members: Sequence[str],
        *,
        load_s: float = 60.0,
        promise_s: float = 5.0,
        stop: threading.Event | None = None,
    ) -> None:
        self._store = CheckedStore(store)
        self._members = members
        self._load_s = load_s
        self._promise_s = promise_s
        self._stop = stop or threading.Event()
        self._remains: list[str] = []  # keys that followers may still have to read
        self.epoch = int(self._store.read("begun") or 0)
        if self.epoch:
            self._finish_for_another()

    def propose(self, kind: str, payload: bytes) -> RoundOutcome:
        """Run a round; returns when it is decided.

        Parameters
        ----------
        kind : one that the followers have a handler for; `payload` is the handler's.
        """
        self._discard()
        self.epoch += 1
        self._store.publish("begun", str(self.epoch))
        parts = in_parts(payload)
        self._remains = self._keys(self.epoch, len(parts))
        try:
            self._offer(kind, parts)
            at, reason = self._decide()
        except BaseException:
            # nothing is committed before the verdict is published
            self._publish_verdict({"reason": "its proposer failed"})
            raise
        self._publish_verdict({"reason": reason} if at is None else {"at": at})
        if not self._missing("heard", self._promise_s):
            self._discard()
        return RoundOutcome(epoch=self.epoch, kind=kind, at=at, reason=reason)

    def _finish_for_another(self) -> None:
        """End the newest round, which another proposer began."""
        offer = json.loads(self._store.read(f"{self.epoch}/offer") or "{}")
        self._remains = self._keys(self.epoch, int(offer.get("parts", 0)))
        if not self._store.published([f"{self.epoch}/verdict"]):
            self._publish_verdict({"reason": "its proposer died"})
        if self._store.read("latest") == str(self.epoch):
            self._missing("heard", self._promise_s)

    def _offer(self, kind: str, parts: list[bytes]) -> None:
        for index, part in enumerate(parts):
            self._store.publish(f"{self.epoch}/part/{index}", part)
        offer = {
            "kind": kind,
            "members": len(self._members),
            "parts": len(parts),
            "load_s": self._load_s,
            "promise_s": self._promise_s,
        }
        self._store.publish(f"{self.epoch}/offer", json.dumps(offer))
        self._store.publish("latest", str(self.epoch))
        self._store.announce()

    def _decide(self) -> tuple[int | None, str]:
        missing = self._missing("ready", self._load_s)
        if missing:
            return None, self._why(missing, "did not load it", self._load_s)
        self._store.publish(f"{self.epoch}/ask", "")
        missing = self._missing("hold", self._promise_s)
        if missing:
            return None, self._why(missing, "did not promise", self._promise_s)
        holds = [
            int(self._store.read(f"{self.epoch}/hold/{member}") or 0) for member in self._members
        ]
        return max(holds), ""

    def _why(self, missing: list[str], what: str, limit_s: float) -> str:
        if self._stop.is_set():
            return "it was aborted, as the group ends"
        if refused := self._store.read(f"{self.epoch}/refused"):
            return refused
        return f"{', '.join(missing)} {what} within {limit_s:g} s"

    def _missing(self, name: str, limit_s: float) -> list[str]:
        """Wait for every member's key; returns those without one when there is no more to wait for.

        That is at the limit, or at a refusal.
        """
        keys = {f"{self.epoch}/{name}/{member}": member for member in self._members}
        end, refused = time.monotonic() + limit_s, [f"{self.epoch}/refused"]
        while not self._store.published(list(keys)):
            missing = [member for key, member in keys.items() if not self._store.published([key])]
            over = name != "heard" and self._store.published(refused)
            if missing and (over or self._stop.is_set() or time.monotonic() > end):
                return missing
            time.sleep(_poll_s(len(self._members)))
        return []

    def _publish_verdict(self, verdict: Mapping[str, Any]) -> None:
        self._store.publish(f"{self.epoch}/verdict", json.dumps(verdict))

    def _keys(self, epoch: int, parts: int) -> list[str]:
        by_member = [f"{name}/{m}" for name in ("ready", "hold", "heard") for m in self._members]
        by_part = [f"part/{index}" for index in range(parts)]
        single = ["offer", "refused", "ask", "verdict"]
        return [f"{epoch}/{name}" for name in (*single, *by_part, *by_member)]

    def _discard(self) -> None:
        for key in self._remains:
            self._store.withdraw(key)
        self._remains = []


class Follower:
    """One member's participant in the rounds.

    Parameters
    ----------
    store : a connection of its own (`own_connection`).
    member : its name, one of those of `rank_names`.
    switch : the group's.
    handlers : by kind of proposal: loads it and returns its activation, to be called between two
        calls (`CallSwitch.drained`: when all earlier ones have ended at this rank). A HeadraceError
        that it raises is a refusal.
    stop : set to leave the round.
    """

    def __init__(
        self,
        store: Store,
        member: str,
        switch: CallSwitch,
        *,
        handlers: Mapping[str, Callable[[bytes], Activation]],
        stop: threading.Event | None = None,
    ) -> None:
        self._store = CheckedStore(store)
        self._member = member
        self._switch = switch
        self._handlers = handlers
        self._stop = stop or threading.Event()
        self._poll_s = _POLL_S
        self._epoch = 0
        self._pace = _Pace(switch)

    def poll(self) -> RoundOutcome | None:
        """Take part in the newest round if this member has not; None if there is no new one.

        Raises
        ------
        CommunicationError : if the store is lost. The job goes on without further changes.
        """
        self.note_pace()
        newest = int(self._store.read("latest") or 0)
        if newest <= self._epoch:
            return None
        self._epoch = newest
        try:
            return self._take_part(newest)
        finally:
            self._switch.abort(newest)  # unless it was committed

    def note_pace(self) -> None:
        """Sample the number of calls, whose rate determines the margin of promises."""
        self._pace.note()

    def _take_part(self, epoch: int) -> RoundOutcome:
        offer = self._store.read(f"{epoch}/offer")
        over = self._store.published([f"{epoch}/verdict"])
        if over:
            self._store.publish(f"{epoch}/heard/{self._member}", "")
        if over or offer is None:
            return RoundOutcome(
                epoch=epoch, kind="", at=None, reason="it was over before it was seen"
            )
        terms: Mapping[str, Any] = json.loads(offer)
        kind = str(terms["kind"])
        self._poll_s = _poll_s(int(terms["members"]))
        try:
            activate = self._prepared(epoch, kind, int(terms["parts"]))
        except HeadraceError as error:
            return self._refuse(epoch, kind, error)
        self._store.publish(f"{epoch}/ready/{self._member}", "")
        if self._await(epoch, ("ask", "verdict"), 2 * float(terms["load_s"])) == "ask":
            hold_s = 3 * float(terms["promise_s"])
            try:
                hold = self._switch.promise(
                    epoch, activate, margin=self._pace.margin(), hold_s=hold_s
                )
            except HeadraceError as error:
                return self._refuse(epoch, kind, error)
            self._store.publish(f"{epoch}/hold/{self._member}", str(hold))
            self._await(epoch, ("verdict",), hold_s)
        return self._conclude(epoch, kind)

    def _prepared(self, epoch: int, kind: str, parts: int) -> Activation:
        payload = b"".join(
            self._store.read_bytes(f"{epoch}/part/{index}") or b"" for index in range(parts)
        )
        if kind not in self._handlers:
            raise CommunicationError(f"{self._member} has no handler for kind {kind!r}")
        return self._handlers[kind](payload)

    def _conclude(self, epoch: int, kind: str) -> RoundOutcome:
        published = self._store.read(f"{epoch}/verdict")
        self._store.publish(f"{epoch}/heard/{self._member}", "")
        if published is None:
            reason = "no verdict came in time"
            log.warning("%s: change %d: %s", self._member, epoch, reason)
            return RoundOutcome(epoch=epoch, kind=kind, at=None, reason=reason)
        outcome = _outcome(epoch, kind, json.loads(published))
        if outcome.at is not None:
            self._switch.commit(epoch, outcome.at)
        return outcome

    def _refuse(self, epoch: int, kind: str, error: HeadraceError) -> RoundOutcome:
        reason = f"{self._member} refused: {error}"
        self._store.publish(f"{epoch}/refused", reason)
        self._await(epoch, ("verdict",), _STORE_TIMEOUT_S)
        self._store.publish(f"{epoch}/heard/{self._member}", "")
        return RoundOutcome(epoch=epoch, kind=kind, at=None, reason=reason)

    def _await(self, epoch: int, names: tuple[str, ...], limit_s: float) -> str | None:
        """Wait for one of the keys; returns its name, or None at the limit."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end and not self._stop.is_set():
            for name in names:
                if self._store.published([f"{epoch}/{name}"]):
                    return name
            time.sleep(self._poll_s)
        return None


class _Pace:
    """Rate of calls, to promise no more of them than are made until a verdict."""

    def __init__(self, switch: CallSwitch) -> None:
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


class CheckedStore:
    """Store whose errors are translated to CommunicationError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def publish(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._guarded(lambda: self._store.set(key, value))

    def announce(self) -> None:
        """Notify all members of new keys."""
        self._guarded(lambda: announce(self._store))

    def published(self, keys: list[str]) -> bool:
        """Return whether all these keys exist."""
        return bool(self._guarded(lambda: self._store.check(keys)))

    def read_bytes(self, key: str) -> bytes | None:
        """Return a value; None if there is none, also if it was withdrawn meanwhile."""
        if not self.published([key]):
            return None
        try:
            return bytes(self._store.get(key))
        except RuntimeError:
            if not self.published([key]):  # withdrawn in between
                return None
            raise CommunicationError(f"the ranks' store does not return {key!r}") from None

    def read(self, key: str) -> str | None:
        """Return a value that is text."""
        content = self.read_bytes(key)
        return None if content is None else content.decode()

    def withdraw(self, key: str) -> None:
        """Remove a key, if it exists."""
        self._guarded(lambda: self._store.delete_key(key))

    def _guarded(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except CommunicationError:
            raise
        except RuntimeError as error:  # torch's store errors derive from it
            raise CommunicationError(
                f"the ranks' store is lost, through which they agree on changes: {error}"
            ) from error


def _outcome(epoch: int, kind: str, verdict: Mapping[str, Any]) -> RoundOutcome:
    return RoundOutcome(
        epoch=epoch, kind=kind, at=verdict.get("at"), reason=str(verdict.get("reason", ""))
    )


def _poll_s(members: int) -> float:
    return max(_POLL_S, _POLL_S_PER_MEMBER * members)
