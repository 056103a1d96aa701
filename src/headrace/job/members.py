"""Epochs of a job whose members change: roles that join, leave, or are replaced.

A *role* is the purpose of a process (trainer 3, a server), its *incarnation* the process that has
it at present, as in `headrace.launch`. A *view* lists the incarnation of each role, from one epoch
on. The coordinator proposes the next view; all its members, and those that leave, load what comes
with it, end their work of the current epoch, and enter the next one together (`agreement`), or none
does.

A member that counts as lost may still be running, behind a broken network, and not learn that it
was replaced. So every message between members carries its sender's epoch, and `RoleMember.admit`
refuses those of earlier epochs: an incarnation that is in no current view cannot change anything.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from headrace.errors import CommunicationError, StaleEpochError
from headrace.job.agreement import CheckedStore, Follower, Proposer, RoundOutcome, Store
from headrace.job.switch import HOLD_S, Activation

_VIEW = "view"
_DRAIN_SHARE = 0.25  # of the time a promise holds: less than the third in which it is awaited

Loader = Callable[["View", bytes], Activation]
"""Loads what comes with the next view; returns what to do when no member works any more.

A HeadraceError that it raises is a refusal: the job stays in the current view.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Members of a job from one epoch on.

    Attributes
    ----------
    epoch : 0 before the first view.
    members : incarnation of each role.
    """

    epoch: int = 0
    members: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: bytes | str) -> "View":
        """Return the view that `text` made."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """Return it as a line of JSON."""
        return json.dumps({"epoch": self.epoch, "members": dict(self.members)})

    def names(self) -> tuple[str, ...]:
        """Return the members' names, in the order of the roles."""
        return tuple(member_name(role, self.members[role]) for role in sorted(self.members))


def member_name(role: str, incarnation: int) -> str:
    """Return the name of an incarnation, in messages and keys."""
    return f"{role}, incarnation {incarnation}"


class Membership:
    """Proposer of views. One that replaces another that died goes on from its last view.

    Parameters
    ----------
    store : a connection of its own (`agreement.own_connection`).
    load_s : longest wait for all members to load a proposal, the start of new ones included.
    promise_s : longest wait for their work of the current epoch to end.
    lost : returns the names of members whose processes have ended, as a supervisor knows them.
    stop : set to abort a change.

    Attributes
    ----------
    view : the last one that was committed.

    Raises
    ------
    CommunicationError : from every method, if the store is lost.
    """

    def __init__(
        self,
        store: Store,
        *,
        load_s: float = 60.0,
        promise_s: float = 5.0,
        lost: Callable[[], Collection[str]] = tuple,
        stop: threading.Event | None = None,
    ) -> None:
        self._store = CheckedStore(store)
        self._lost = lost
        self.view = View.parse(self._store.read(_VIEW) or View().text())
        self._proposer = Proposer(
            store,
            self.view.names(),
            load_s=load_s,
            promise_s=promise_s,
            stop=stop,
            lost=lost,
            decided=self._record,
        )

    def change(self, members: Mapping[str, int], payload: bytes = b"") -> RoundOutcome:
        """Propose the next view; returns when it is decided.

        Its members, and current ones that asked to leave, end their work first. Other current
        members are taken for lost: nothing waits for them.

        Parameters
        ----------
        members : incarnation of each role. The current ones, to change only what `payload` says.
        payload : for the members' loaders.

        Returns
        -------
        RoundOutcome
            Whether it was committed, and else the reason, which names a member.
        """
        proposed = View(epoch=self._proposer.epoch + 1, members=dict(members))
        leaving = (name for name in self.leaving() if name not in self._lost())
        participants = dict.fromkeys((*proposed.names(), *leaving))
        raw = proposed.text().encode() + b"\n" + payload
        return self._proposer.propose(_VIEW, raw, list(participants))

    def leaving(self) -> tuple[str, ...]:
        """Return the names of current members that asked to leave."""
        return tuple(name for name in self.view.names() if self._store.published([_leave(name)]))

    def _record(self, outcome: RoundOutcome) -> None:
        """Publish the view of a committed round, whose keys still exist."""
        if outcome.committed:
            raw = self._store.read_bytes(f"{outcome.epoch}/part/0") or b""
            left = self.leaving()
            self.view = View.parse(raw.partition(b"\n")[0])
            self._store.publish(_VIEW, self.view.text())
            self._store.announce()
            for name in left:
                self._store.withdraw(_leave(name))


class RoleMember:
    """One incarnation's part: an agent thread calls `poll`, other threads work.

    Parameters
    ----------
    store : a connection of the agent's own.
    load : for every view that this incarnation is in, or leaves by.
    stop : set to leave a round.

    Attributes
    ----------
    name : in messages.
    view : the one in force here; that of epoch 0, without members, before the first.
    """

    def __init__(
        self,
        store: Store,
        role: str,
        incarnation: int,
        load: Loader,
        *,
        stop: threading.Event | None = None,
    ) -> None:
        self.name = member_name(role, incarnation)
        self.view = View()
        self._role = role
        self._incarnation = incarnation
        self._load = load
        self._store = CheckedStore(store)
        self._gate = EpochGate(self.name)
        self._follower = Follower(
            store, self.name, self._gate, handlers={_VIEW: self._prepared}, stop=stop
        )

    def poll(self) -> RoundOutcome | None:
        """Take part in a change that is proposed; None if there is none.

        Raises
        ------
        StaleEpochError : the job goes on without this incarnation, whose work ends in it, too.
        CommunicationError : the store is lost.
        """
        try:
            return self._follower.poll()
        finally:  # also if a verdict came too late
            self._check_view()

    def work(self, timeout_s: float = HOLD_S) -> AbstractContextManager[int]:
        """Return a context of the current epoch, which begins with its number.

        While a change is under way it begins when that is decided, after `timeout_s` at most.

        Raises
        ------
        StaleEpochError : this incarnation has left the job, or was replaced.
        CommunicationError : no view includes it, or a change was not decided, in that time.
        """
        return self._gate.work(timeout_s)

    def admit(self, epoch: int, sender: str, timeout_s: float = HOLD_S) -> None:
        """Accept a message of `epoch`; one of an epoch not yet entered waits until it is.

        Raises
        ------
        StaleEpochError : it is of an earlier epoch; names the sender.
        CommunicationError : its epoch was not entered within `timeout_s`.
        """
        self._gate.admit(epoch, sender, timeout_s)

    def leave(self) -> None:
        """Ask to leave; done when `poll` raises StaleEpochError."""
        self._store.publish(_leave(self.name), "")
        self._store.announce()

    def _prepared(self, raw: bytes) -> Activation:
        header, _, payload = raw.partition(b"\n")
        view = View.parse(header)
        activate = self._load(view, payload)

        def enter() -> None:
            activate()
            self.view = view
            if not self._is_in(view):
                self._gate.end(self._stale(view))

        return enter

    def _check_view(self) -> None:
        view = View.parse(self._store.read(_VIEW) or View().text())
        # before its first view, an incarnation follows the one that the view still has
        waits = self._gate.epoch == 0 and view.members.get(self._role, -1) < self._incarnation
        if view.epoch > self._gate.epoch and not waits:
            self._gate.end(self._stale(view))
        self._gate.check()

    def _is_in(self, view: View) -> bool:
        return view.members.get(self._role) == self._incarnation

    def _stale(self, view: View) -> StaleEpochError:
        reason = "missed its beginning" if self._is_in(view) else "is not of it"
        return StaleEpochError(f"the job is in epoch {view.epoch}, and {self.name} {reason}")


class EpochGate:
    """Lets the work of one epoch at a time in; the `agreement.ChangeSwitch` of a member.

    Attributes
    ----------
    epoch : the current one; 0 before the first, in which there is no work.
    """

    def __init__(self, name: str) -> None:
        self.epoch = 0
        self._name = name
        self._state = threading.Condition()
        self._working = 0
        self._promised: _Promise | None = None
        self._error: StaleEpochError | None = None

    # ---- called by working threads ---------------------------------------------------------

    @contextmanager
    def work(self, timeout_s: float) -> Generator[int]:
        """See `RoleMember.work`."""
        with self._state:
            self._wait(lambda: self.epoch > 0 and not self._holds(), timeout_s, "no epoch began")
            self._working += 1
            epoch = self.epoch
        try:
            yield epoch
        finally:
            with self._state:
                self._working -= 1
                self._state.notify_all()

    def admit(self, epoch: int, sender: str, timeout_s: float) -> None:
        """See `RoleMember.admit`."""
        with self._state:
            self._wait(
                lambda: self.epoch >= epoch,
                timeout_s,
                f"{sender} is in epoch {epoch}, which did not begin",
            )
            if epoch < self.epoch:
                raise StaleEpochError(
                    f"{self._name} is in epoch {self.epoch} and refuses what {sender} sent in "
                    f"epoch {epoch}"
                )

    def check(self) -> None:
        """Raise the error that work ends in, if there is one."""
        if self._error is not None:
            raise self._error

    # ---- called by the agent ---------------------------------------------------------------

    def sequence(self) -> int:
        """Return 0: epochs are not counted in calls."""
        return 0

    def promise(self, epoch: int, activate: Activation, *, margin: int, hold_s: float) -> int:
        """Let no more work in for `hold_s` seconds; returns `epoch` when all has ended.

        Raises
        ------
        CommunicationError : it did not end in time. It goes on.
        """
        del margin  # a number of calls
        until_s = time.monotonic() + hold_s
        with self._state:
            self._promised = _Promise(epoch=epoch, activate=activate, until_s=until_s)
            try:
                self._wait(
                    lambda: self._working == 0,
                    _DRAIN_SHARE * hold_s,
                    f"the work of epoch {self.epoch} did not end",
                )
            except CommunicationError:
                self._promised = None
                self._state.notify_all()
                raise
        return epoch

    def commit(self, epoch: int, at: int) -> None:
        """Enter epoch `at`, which is `epoch`.

        Raises
        ------
        CommunicationError : the promise is no longer kept.
        """
        with self._state:
            promise = self._promised
            if promise is None or promise.epoch != epoch or not self._holds():
                raise CommunicationError(
                    f"{self._name} got the verdict that epoch {at} begins too late: it has stopped "
                    f"waiting and stays in epoch {self.epoch}"
                )
            self._promised = replace(promise, until_s=math.inf)  # the verdict has come
        try:
            promise.activate()
        except BaseException as error:
            self.end(StaleEpochError(f"{self._name} could not enter epoch {at}: {error}"))
            raise
        with self._state:
            self.epoch = at
            self._promised = None
            self._state.notify_all()

    def abort(self, epoch: int) -> None:
        """Let work of the current epoch go on; does nothing for any other change."""
        with self._state:
            if self._promised is not None and self._promised.epoch == epoch:
                self._promised = None
                self._state.notify_all()

    def end(self, error: StaleEpochError) -> None:
        """End all waits and later work in `error`."""
        with self._state:
            self._error = error
            self._state.notify_all()

    def _holds(self) -> bool:
        """Return whether a promise is kept."""
        return self._promised is not None and time.monotonic() < self._promised.until_s

    def _wait(self, holds: Callable[[], bool], timeout_s: float, reason: str) -> None:
        """Wait for a condition of the state.

        Raises
        ------
        CommunicationError : with the reason, at the limit.
        """
        end = time.monotonic() + timeout_s
        while True:
            self.check()
            if holds():
                return
            now = time.monotonic()
            if now >= end:
                raise CommunicationError(f"{self._name}: {reason} within {timeout_s:g} s")
            # the end of a promise notifies no thread
            until_s = end if self._promised is None else min(end, self._promised.until_s)
            self._state.wait(max(until_s - now, 0.001))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    """No work before the verdict on `epoch`, until `until_s` by `time.monotonic`."""

    epoch: int
    activate: Activation
    until_s: float


def _leave(name: str) -> str:
    return f"leave/{name}"
