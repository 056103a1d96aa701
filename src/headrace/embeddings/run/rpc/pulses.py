"""Signs of life: every process of a job sends them to the cacher, which tells whose do not come.

They show that a process runs and that its host is reached, whatever its interpreter computes: a
native thread sends them. A process that is stopped sends none, nor does one whose host is cut off.
"""

import hmac
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace import _native
from headrace.embeddings.run.rpc.calls import RpcClient
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.errors import CommunicationError
from headrace.executor.connect.addresses import host_of

K = TypeVar("K", bound=Hashable)

PULSES = 6
"""In the time after which a process counts as silent."""

_GREETING_BYTES = 4096
_READ_BYTES = 4096
_CONNECT_S = 10.0
_CLOSE_S = 5.0


def silence_of(limit_s: float) -> str:
    """Return the reason that a silent process counts as lost."""
    return f"it has been silent for {limit_s:g} s, so it was stopped or its host is cut off"


class Silences(Generic[K]):
    """Seconds without a sign of life from peers, of those in which the watcher itself ran.

    A watcher that stood still, as on a machine that was suspended, does not take others for silent
    by that: what it does not see of an interval above two pulses does not count.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._silent_s: dict[K, float] = {}

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `elapse`, and between two pulses."""
        return self._limit_s / PULSES

    def refresh(self, peer: K) -> None:
        """Note a sign of life; from the first one on a peer is watched."""
        self._silent_s[peer] = 0.0

    def forget(self, peer: K) -> None:
        """Watch a peer no more."""
        self._silent_s.pop(peer, None)

    def elapse(self, seconds: float) -> list[K]:
        """Add seconds; return peers that have fallen silent, which are watched no more.

        Once one has been silent for the limit, those are returned, too, whose last pulses are as
        old but for two intervals: they fell silent together.
        """
        for peer in self._silent_s:
            self._silent_s[peer] += min(seconds, 2 * self.interval_s)
        if max(self._silent_s.values(), default=0.0) < self._limit_s:
            return []
        least_s = self._limit_s - 2 * self.interval_s
        silent = [peer for peer, silent_s in self._silent_s.items() if silent_s >= least_s]
        for peer in silent:
            self.forget(peer)
        return silent


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection: a process, by its greeting, or anything else that connects.

    Attributes
    ----------
    role : of its greeting; None: that has not arrived.
    greeting : its bytes so far.
    greeting_s : seconds without it.
    """

    socket: socket.socket
    role: str | None = None
    greeting: bytearray = field(default_factory=bytearray)
    greeting_s: float = 0.0


class PulseListener:
    """Takes the pulses of a job's processes in a thread, until `close`.

    Parameters
    ----------
    host : to listen at.
    limit_s : seconds without a pulse after which a process counts as silent.
    on_silence : called with the roles of processes that fell silent together, and of those that did
        not.
    on_end : called with the role of a process whose connection ended.

    Attributes
    ----------
    address : "host:port".

    Raises
    ------
    CommunicationError : the address cannot be listened at.
    """

    def __init__(
        self,
        host: str,
        secret: str,
        limit_s: float,
        on_silence: Callable[[Sequence[str], Sequence[str]], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._secret = secret
        self._on_silence = on_silence
        self._on_end = on_end
        self._limit_s = limit_s
        self._silences: Silences[_Connection] = Silences(limit_s)
        self._connections: dict[socket.socket, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        family, name = (socket.AF_INET6, f"[{host}]") if ":" in host else (socket.AF_INET, host)
        try:
            self._listening = socket.create_server((host, 0), family=family, backlog=128)
        except OSError as error:
            raise CommunicationError(f"cacher cannot listen at {host}: {error}") from error
        self._listening.setblocking(False)
        self.address = f"{name}:{self._listening.getsockname()[1]}"
        self._woken, self._wake = socket.socketpair()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True, name="pulses")
        self._thread.start()

    def close(self) -> None:
        """Take no more pulses; idempotent."""
        with suppress(OSError):
            self._wake.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        with self._selector, self._woken, self._listening:
            last = time.monotonic()
            while True:
                due = last + self._silences.interval_s
                ready = self._selector.select(max(0.0, due - time.monotonic()))
                sockets = [key.fileobj for key, _ in ready]
                if self._woken in sockets:
                    break
                for ready_socket in sockets:
                    self._take(ready_socket)
                if (now := time.monotonic()) >= due:
                    self._report(self._silences.elapse(now - last))
                    self._remove_without_greeting(now - last)
                    self._listen_again()
                    last = now
            for connection in self._connections.values():
                connection.socket.close()

    def _listen_again(self) -> None:
        """Accept connections again, if the system refused one."""
        if self._listening not in self._selector.get_map():
            self._selector.register(self._listening, selectors.EVENT_READ)

    def _take(self, ready: object) -> None:
        """Take what has arrived: a connection, its greeting, a pulse, or its end."""
        if ready is self._listening:
            try:
                self._add(self._listening.accept()[0])
            except OSError:
                # No descriptor is free: the connection stays in the queue, where the selector would
                # report it without end.
                self._selector.unregister(self._listening)
            return
        assert isinstance(ready, socket.socket)
        connection = self._connections.get(ready)
        if connection is None:  # it was replaced by another one of its role
            return
        try:
            received = ready.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if received and (connection.role is not None or self._greeted(connection, received)):
            self._silences.refresh(connection)
        elif not received or len(connection.greeting) > _GREETING_BYTES:
            self._remove(connection)
            if connection.role is not None:
                self._on_end(connection.role)

    def _add(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        connection = _Connection(accepted)
        self._connections[accepted] = connection
        self._selector.register(accepted, selectors.EVENT_READ)

    def _greeted(self, connection: _Connection, received: bytes) -> bool:
        """Read the greeting as it arrives; return whether it is that of a process of the job."""
        connection.greeting += received
        line, end, _ = connection.greeting.partition(b"\n")
        if not end:
            return False
        try:
            greeting = json.loads(line)
            role, secret = str(greeting["role"]), str(greeting["secret"]).encode()
        except (ValueError, TypeError, KeyError, RecursionError):
            role, secret = "", b""
        if not hmac.compare_digest(secret, self._secret.encode()):
            self._remove(connection)
            return False
        for earlier in [*self._connections.values()]:
            if earlier.role == role:  # another process has it now
                self._remove(earlier)
        connection.role = role
        return True

    def _remove(self, connection: _Connection) -> None:
        self._silences.forget(connection)
        if self._connections.pop(connection.socket, None) is not None:
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def _remove_without_greeting(self, seconds: float) -> None:
        """Remove connections that have sent no greeting for the limit.

        They are not watched with the processes: anyone's would shorten the silence of these.
        """
        for connection in [*self._connections.values()]:
            if connection.role is None:
                connection.greeting_s += min(seconds, 2 * self._silences.interval_s)
                if connection.greeting_s >= self._limit_s:
                    self._remove(connection)

    def _report(self, fallen_silent: Sequence[_Connection]) -> None:
        silent = [connection.role for connection in fallen_silent if connection.role is not None]
        for connection in fallen_silent:
            self._remove(connection)
        if silent:
            roles = [connection.role for connection in self._connections.values()]
            self._on_silence(silent, [role for role in roles if role is not None])


def attend(cacher: RpcClient, role: str, secret: str, **place: str) -> _native.Pulse:
    """Tell the cacher of a process, and begin to send it pulses; return them, to be closed.

    Parameters
    ----------
    place : "address" of a process that serves.

    Raises
    ------
    CommunicationError : the cacher is gone, or refuses it.
    """
    reply = cacher.call("attend", RpcMessage(head=place)).head
    return send_pulses(reply["pulses"], role, secret, reply["interval_s"])


def send_pulses(address: str, role: str, secret: str, interval_s: float) -> _native.Pulse:
    """Begin to send pulses to the listener at an address; return them, to be closed.

    Raises
    ------
    CommunicationError : there is no connection, or no thread that sends them.
    """
    port = int(address.rpartition(":")[2])
    greeting = json.dumps({"role": role, "secret": secret}).encode() + b"\n"
    try:
        with socket.create_connection((host_of(address), port), _CONNECT_S) as connection:
            connection.sendall(greeting)
            return _native.Pulse(connection.fileno(), interval_s)
    except OSError as error:
        raise CommunicationError(
            f"cacher, pulses: no connection to {address}, its process may have ended: {error}"
        ) from error
    except RuntimeError as error:  # the system refuses a descriptor, or a thread
        raise CommunicationError(f"{role} cannot send pulses: {error}") from error
