"""Calls between the processes of a job: JSON and NumPy columns over Arrow Flight, without pickling.

Every call is a `do_exchange` stream of its own, so its deadline ends it at both sides, and the loss
of a process ends the calls with it at once: waiting ones at the server, and those at the client.
The descriptor of the stream is the handshake: protocol version, role, secret and method. Calls
without the job's secret are refused; the network between the hosts is trusted, as that of
`torch.distributed`. Servers and clients belong to the process that made them (`headrace.forks`).
"""

import atexit
import concurrent.futures.thread  # noqa: F401  # pyright: ignore[reportUnusedImport]
import ctypes
import hmac
import json
import logging
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as fl

from headrace import __version__
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.rpc.messages import Encoded, RpcMessage, receive_message
from headrace.errors import CommunicationError, InputError
from headrace.forks import ForkMark

PROTOCOL = 1
"""Version of the messages: a peer of another one is refused."""

_POLL_S = 0.05
_EXIT_POLL_S = 0.005
_CLOSE_S = 5.0
"""For calls to end after `close`; a method that computes for longer ends by itself."""

_OPTIONS = [
    ("grpc.enable_http_proxy", 0),  # else calls within a job go through a proxy of the user's
    # A host that is cut off acknowledges nothing: a call to it ends after the timeout. One that has
    # sent its request ends after a ping more, which servers accept every 5 minutes.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

_log = logging.getLogger(__name__)


class ConnectionLostError(CommunicationError):
    """A call ended with its connection: its server is gone or was closed, or the client was."""


EMPTY = RpcMessage(head={})


class RpcCall:
    """A call as its method gets it.

    Parameters
    ----------
    message : the request.
    peer : role that the client gave, such as "trainer 1".
    until : its deadline (`time.monotonic`).
    interruption : returns the reason that the call cannot go on, if there is one.
    """

    __slots__ = ("_interruption", "_until", "message", "peer")

    def __init__(
        self, message: RpcMessage, peer: str, until: float, interruption: Callable[[], str | None]
    ) -> None:
        self.message = message
        self.peer = peer
        self._until = until
        self._interruption = interruption

    def wait(self, condition: threading.Condition, predicate: Callable[[], bool]) -> None:
        """Wait on a condition, which the caller has acquired, until `predicate` holds.

        Raises
        ------
        CommunicationError : the deadline of the call passed, its peer is gone, or the server was
            closed.
        """
        while not predicate():
            left_s = self._until - time.monotonic()
            reason = "its deadline passed" if left_s <= 0 else self._interruption()
            if reason is not None:
                raise CommunicationError(f"the call of {self.peer} ended as it waited: {reason}")
            condition.wait(min(left_s, _POLL_S))


RpcMethod = Callable[[RpcCall], RpcMessage]


class RpcServer:
    """Serves calls of methods, in threads of its own, from its construction until `close`.

    Calls run side by side. An `InputError` that a method raises is one of the caller's input there,
    other exceptions are errors of communication.

    Parameters
    ----------
    role : of this process, for errors.
    secret : that callers must have.
    host, port : to listen at; port 0: any that is free.

    Attributes
    ----------
    address : "host:port".

    Raises
    ------
    CommunicationError : the address cannot be listened at.
    """

    def __init__(
        self,
        role: str,
        methods: Mapping[str, RpcMethod],
        *,
        secret: str,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._role = role
        self._mark = ForkMark()
        self._closed = threading.Event()
        name = f"[{host}]" if ":" in host else host
        try:
            self._server = _FlightServer(
                f"grpc://{name}:{port}", role, dict(methods), secret, self._closed
            )
        except (pa.ArrowException, OSError) as error:
            raise CommunicationError(f"{role} cannot listen at {name}:{port}: {error}") from error
        self.address = f"{name}:{self._server.port}"
        _servers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End waiting calls, and serve no others; idempotent. Without effect in a child."""
        if self._mark.forked or self._closed.is_set():
            return
        self._closed.set()
        # It returns when all calls have; another program can open one, and send nothing.
        ending = threading.Thread(target=self._server.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_S)
        if ending.is_alive():
            _log.warning("%s was closed while calls still ran", self._role)


class _FlightServer(fl.FlightServerBase):  # pyright: ignore[reportUntypedBaseClass]
    def __init__(
        self,
        location: str,
        role: str,
        methods: Mapping[str, RpcMethod],
        secret: str,
        closed: threading.Event,
    ) -> None:
        super().__init__(location)
        self._role = role
        self._methods = methods
        self._secret = secret.encode()
        self._closed = closed

    def do_exchange(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.FlightStreamReader,
        writer: fl.FlightStreamWriter,
    ) -> None:
        began = time.monotonic()
        greeting = Greeting.parse(descriptor.command)
        self._admit(greeting)
        try:
            reply = Encoded(self._answer(context, greeting, reader, began), {})
        except InputError as error:
            reply = Encoded(EMPTY, {"error": "input", "text": str(error)})
        except CommunicationError as error:
            kind = "closed" if self._closed.is_set() else "communication"
            reply = Encoded(EMPTY, {"error": kind, "text": str(error)})
        except Exception as error:  # of any kind: the caller learns of it
            _log.debug("a method of %s failed", self._role, exc_info=True)
            text = f"{type(error).__name__}: {error}"
            reply = Encoded(EMPTY, {"error": "communication", "text": text})
        reply.send(writer)

    def _admit(self, greeting: "Greeting") -> None:
        if not hmac.compare_digest(greeting.secret.encode(), self._secret):
            raise _refusal("the secret is not that of this job")
        if greeting.protocol != PROTOCOL:
            raise _refusal(
                f"{greeting.role} has version {greeting.protocol} of the protocol, needs "
                f"{PROTOCOL}: install one version of headrace everywhere"
            )
        if greeting.version != __version__:
            raise _refusal(
                f"{greeting.role} is of headrace {greeting.version}, needs {__version__}: install "
                "one version everywhere"
            )
        if greeting.method not in self._methods:
            raise _refusal("it has no such method")

    def _answer(
        self,
        context: fl.ServerCallContext,
        greeting: "Greeting",
        reader: fl.FlightStreamReader,
        began: float,
    ) -> RpcMessage:
        def interruption() -> str | None:
            if self._closed.is_set():
                return f"{self._role} was closed"
            return "the caller is gone" if context.is_cancelled() else None

        request, _ = receive_message(reader)
        until = began + greeting.deadline_s
        return self._methods[greeting.method](RpcCall(request, greeting.role, until, interruption))


class RpcClient:
    """Calls of a server's methods. Threads can share it: their calls run side by side.

    It connects at the first call, and after a loss at the next one.

    Parameters
    ----------
    address : of the server, "host:port".
    peer_role, role : of the server, and of this process, for errors.
    deadline_s : of every call, its connection included.

    Raises
    ------
    CommunicationError : the address is none.
    """

    def __init__(
        self, address: str, *, peer_role: str, role: str, secret: str, deadline_s: float = 60.0
    ) -> None:
        self._address = address
        self._peer_role = peer_role
        self._role = role
        self._secret = secret
        self._deadline_s = deadline_s
        self._mark = ForkMark()
        self._lock = threading.Lock()
        self._closed = False
        self._calls = 0
        self._streams: set[fl.FlightStreamReader] = set()
        try:
            self._client = fl.FlightClient(f"grpc://{address}", generic_options=_OPTIONS)
        except pa.ArrowException as error:
            raise CommunicationError(f"{peer_role} has no address in {address!r}") from error
        _clients.add(self)

    @property
    def calls(self) -> int:
        """Calls under way; those of a parent are none of a child's."""
        return 0 if self._mark.forked else self._calls

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, method: str, message: RpcMessage = EMPTY, *, deadline_s: float | None = None
    ) -> RpcMessage:
        """Call a method and return its reply.

        Parameters
        ----------
        deadline_s : of this call; None: that of the client.

        Raises
        ------
        EmbeddingError : the method raised an `InputError`, with its text; a column is not of
            numbers.
        CommunicationError : the method failed otherwise, the server is gone, refuses this client,
            or did not answer in time, or the client was closed: `ConnectionLostError` where the
            connection ended.
        ForkError : this process was forked from the one that made the client.
        """
        self._mark.check(f"the connection with {self._peer_role}")
        deadline_s = self._deadline_s if deadline_s is None else deadline_s
        greeting = Greeting(
            protocol=PROTOCOL,
            role=self._role,
            secret=self._secret,
            method=method,
            deadline_s=deadline_s,
        )
        request = Encoded(message, {})
        try:
            reply, extra = self._exchange(greeting, request)
        except CommunicationError as error:
            raise self._error(method, str(error)) from error
        except (pa.ArrowException, OSError, EOFError) as error:
            raise self._transport_error(method, error, deadline_s) from error
        if "error" not in extra:
            return reply
        if extra["error"] == "input":
            raise EmbeddingError(extra["text"])
        if extra["error"] == "closed":
            raise self._lost(method, extra["text"])
        raise self._error(method, extra["text"])

    def close(self) -> None:
        """End calls of all threads, and make no others; idempotent. Without effect in a child."""
        if self._mark.forked:
            return
        with self._lock:
            self._closed = True
            streams = [*self._streams]
            if not streams:
                self._client.close()
        for stream in streams:
            stream.cancel()

    def _transport_error(
        self, method: str, error: Exception, deadline_s: float
    ) -> CommunicationError:
        if self._closed:
            return self._lost(method, "the connection was closed")
        if isinstance(error, fl.FlightUnauthenticatedError):
            return self._error(method, str(getattr(error, "extra_info", b""), "utf-8"))
        if isinstance(error, fl.FlightTimedOutError):
            return self._error(method, f"no answer from {self._address} within {deadline_s:g} s")
        if isinstance(error, fl.FlightUnavailableError):
            reason = f"no connection to {self._address}, its process may have ended"
            return self._lost(method, reason)
        if "resource exhausted" in str(error):  # Arrow has no class for it
            return self._error(
                method, "no thread for the call: the memory or threads of its machine are in use"
            )
        return self._lost(method, f"the connection to {self._address} broke")

    def _error(self, method: str, reason: str) -> CommunicationError:
        return CommunicationError(f"{self._peer_role}, {method}: {reason}")

    def _lost(self, method: str, reason: str) -> ConnectionLostError:
        return ConnectionLostError(f"{self._peer_role}, {method}: {reason}")

    def _exchange(
        self, greeting: "Greeting", request: Encoded
    ) -> tuple[RpcMessage, dict[str, Any]]:
        options = fl.FlightCallOptions(timeout=greeting.deadline_s)
        descriptor = fl.FlightDescriptor.for_command(greeting.to_bytes())
        with self._counted():
            writer, stream = self._client.do_exchange(descriptor, options)
            try:
                self._register(stream)
                # Where sending fails, the server's reply, or the end of the stream, says why.
                with suppress(pa.ArrowException, OSError):
                    request.send(writer)
                    writer.done_writing()
                return receive_message(stream)
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)
                raise
            finally:
                with suppress(Exception):
                    writer.close()
                self._unregister(stream)
                # Not with the error's frames, after the call counts as ended: a thread that the
                # interpreter ends while Arrow frees a stream aborts the process.
                del writer, stream

    @contextmanager
    def _counted(self) -> Generator[None]:
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1

    def _register(self, stream: fl.FlightStreamReader) -> None:
        with self._lock:
            self._streams.add(stream)
            if self._closed:
                stream.cancel()

    def _unregister(self, stream: fl.FlightStreamReader) -> None:
        with self._lock:
            self._streams.discard(stream)
            if self._closed and not self._streams:
                self._client.close()


_servers: "weakref.WeakSet[RpcServer]" = weakref.WeakSet()
_clients: "weakref.WeakSet[RpcClient]" = weakref.WeakSet()


def _keep_all() -> None:
    """Never delete what the parent of this child made: gRPC would wait for its threads."""
    for connection in (*_servers, *_clients):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


os.register_at_fork(after_in_child=_keep_all)


def _end_calls() -> None:
    """End the calls of other threads before the interpreter does, which would abort the process.

    And before it waits for threads of executors, whose calls can wait for what this process, which
    ends, would have done: up to their deadlines.
    """
    clients = [*_clients]
    for client in clients:
        client.close()
    until = time.monotonic() + _CLOSE_S
    while any(client.calls for client in clients) and time.monotonic() < until:
        time.sleep(_EXIT_POLL_S)


# Private in Python 3.9 to 3.14, and nothing public comes before that wait: `atexit` is behind it.
# The last function is called first: that of executors is of the import above.
getattr(threading, "_register_atexit", atexit.register)(_end_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """Handshake of a call."""

    protocol: int
    role: str
    secret: str
    method: str
    deadline_s: float
    version: str = __version__

    def to_bytes(self) -> bytes:
        """Return it as the command of a stream's descriptor."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, data: bytes | None) -> Self:
        """Return it; fields of later versions are ignored, so that these are refused by name."""
        try:
            fields = json.loads(data or b"")
            return cls(
                protocol=int(fields["protocol"]),
                role=str(fields["role"]),
                secret=str(fields["secret"]),
                method=str(fields["method"]),
                deadline_s=float(fields["deadline_s"]),
                version=str(fields.get("version")),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise _refusal("the caller is no process of headrace") from error


def _refusal(reason: str) -> Exception:
    """Return the error that ends a stream, which also reaches a caller that still sends."""
    return fl.FlightUnauthenticatedError(reason, reason.encode())
