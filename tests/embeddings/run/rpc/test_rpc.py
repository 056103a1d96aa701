"""Calls between processes: messages, errors, refusals, deadlines, and the end of either side."""

import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow.flight as fl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import headrace
from headrace.embeddings import EmbeddingError
from headrace.embeddings.run.rpc import calls
from headrace.embeddings.run.rpc.calls import (
    EMPTY,
    ConnectionLostError,
    RpcCall,
    RpcClient,
    RpcMessage,
    RpcServer,
)
from headrace.errors import CommunicationError, InputError
from tests.embeddings.run.rpc_peer import SECRET
from tests.waiting import ENDLESS_S, HANG_S, no_hang, wait_until, with_longer_deadlines


class Echo:
    """A server of the tests' methods; `waiting` counts the calls that wait for `release`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting = 0
        self.released = False
        self.ended: list[str] = []
        self.server = RpcServer(
            "the server", {"echo": self.echo, "wait": self.wait, "fail": self.fail}, secret=SECRET
        )

    def echo(self, call: RpcCall) -> RpcMessage:
        columns = call.message.columns
        assert not any(column.flags.writeable for column in columns.values())
        assert all(column.flags.aligned for column in columns.values())
        return RpcMessage(head={**call.message.head, "peer": call.peer}, columns=columns)

    def wait(self, call: RpcCall) -> RpcMessage:
        with self.changed:
            self.waiting += 1
            try:
                call.wait(self.changed, lambda: self.released)
            except CommunicationError as error:
                self.ended.append(str(error))
                raise
            finally:
                self.waiting -= 1
        return EMPTY

    def fail(self, call: RpcCall) -> RpcMessage:
        errors: dict[str, Exception] = {
            "input": EmbeddingError("row 7 is wrong"),
            "communication": CommunicationError("server 2 is gone"),
            "bug": ZeroDivisionError("by zero"),
        }
        if call.message.head["kind"] == "text":
            return RpcMessage(head={}, columns={"name": np.array(["text"])})
        if call.message.head["kind"] == "json":
            return RpcMessage(head={"reply": object()})
        raise errors[call.message.head["kind"]]

    def release(self) -> None:
        with self.changed:
            self.released = True
            self.changed.notify_all()


@pytest.fixture
def echo() -> Iterator[Echo]:
    methods = Echo()
    with no_hang(), methods.server:
        yield methods


@contextmanager
def client(
    address: str, *, secret: str = SECRET, deadline_s: float = HANG_S
) -> Generator[RpcClient]:
    caller = RpcClient(
        address, peer_role="the server", role="trainer 1", secret=secret, deadline_s=deadline_s
    )
    with caller:
        yield caller


def in_thread(run: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(run)
    pool.shutdown(wait=False)
    return future


def assert_same(columns: Any, sent: Any) -> None:
    assert list(columns) == list(sent)
    for name, column in sent.items():
        assert columns[name].dtype == column.dtype
        assert columns[name].shape == column.shape
        assert columns[name].tobytes() == column.tobytes()


COLUMNS: dict[str, np.ndarray] = {
    "float32": np.arange(12, dtype=np.float32).reshape(3, 4),
    "strided": np.arange(40, dtype=np.int64).reshape(5, 8)[::2, 1::3],
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "bools": np.array([True, False, True]),
    "bytes": np.arange(7, dtype=np.uint8),
    "scalar": np.array(3.5),
    "none": np.empty(0, np.int64),
    "no rows": np.empty((0, 48), np.float32),
    "no width": np.empty((5, 0), np.uint32),
    "big-endian": np.arange(3, dtype=">i4"),
    "half": np.array([0.5, np.nan], np.float16),
    "complex": np.array([1 + 2j], np.complex64),
}


def test_messages_of_columns_of_any_shape_and_type(echo: Echo) -> None:
    with client(echo.server.address) as caller:
        head = {"text": "é", "numbers": [1, 2.5, None], "nested": {"a": True}, "n": np.int64(3)}
        reply = caller.call("echo", RpcMessage(head=head, columns=COLUMNS))
        assert reply.head == {**head, "n": 3, "peer": "trainer 1"}
        assert_same(reply.columns, COLUMNS)
        assert caller.call("echo").columns == {}
        assert_same(
            caller.call("echo", RpcMessage(head={}, columns={"a": np.empty(0)})).columns,
            {"a": np.empty(0)},
        )


def test_large_columns_between_small_ones(echo: Echo) -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 62, 5_000_001)
    columns = {
        **{f"before {i}": np.full(i, i, np.uint8) for i in range(5)},
        "large": numbers,
        "between": np.arange(3, dtype=np.int16),
        "second": numbers[: 1 << 18].reshape(-1, 64),
        **{f"after {i}": np.full((i, 10_000), i, np.int32) for i in range(80)},
    }
    with client(echo.server.address) as caller:
        assert_same(caller.call("echo", RpcMessage(head={}, columns=columns)).columns, columns)


@settings(max_examples=40, deadline=None)
@given(
    columns=st.dictionaries(
        st.text(max_size=3),
        arrays.arrays(
            st.one_of(
                arrays.boolean_dtypes(),
                arrays.integer_dtypes(),
                arrays.floating_dtypes(sizes=(16, 32, 64)),
            ),
            arrays.array_shapes(min_dims=0, min_side=0, max_side=40),
        ),
        max_size=4,
    )
)
def test_generated_messages(columns: dict[str, np.ndarray]) -> None:
    with shared_server() as caller:
        assert_same(caller.call("echo", RpcMessage(head={}, columns=columns)).columns, columns)


_SHARED: list[Echo] = []


@contextmanager
def shared_server() -> Generator[RpcClient]:
    if not _SHARED:
        _SHARED.append(Echo())
    with client(_SHARED[0].server.address) as caller:
        yield caller


@pytest.fixture(scope="module", autouse=True)
def close_shared_server() -> Iterator[None]:
    yield
    while _SHARED:
        _SHARED.pop().server.close()


def test_wrong_input_is_an_error_of_input(echo: Echo) -> None:
    with client(echo.server.address) as caller:
        with pytest.raises(EmbeddingError, match="^row 7 is wrong$"):
            caller.call("fail", RpcMessage(head={"kind": "input"}))
        with pytest.raises(EmbeddingError, match="column name is of <U4, needs numbers"):
            caller.call("echo", RpcMessage(head={}, columns={"name": np.array(["text"])}))
        with pytest.raises(EmbeddingError, match="column name is of <U4, needs numbers"):
            caller.call("fail", RpcMessage(head={"kind": "text"}))
        assert caller.call("echo").head == {"peer": "trainer 1"}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("communication", "server 2 is gone"),
        ("bug", "ZeroDivisionError: by zero"),
        ("json", "TypeError: a message's head has a object"),
    ],
)
def test_other_errors_of_a_method_name_server_and_method(echo: Echo, kind: str, text: str) -> None:
    with client(echo.server.address) as caller:
        with pytest.raises(CommunicationError, match=f"^the server, fail: {text}") as caught:
            caller.call("fail", RpcMessage(head={"kind": kind}))
        assert not isinstance(caught.value, InputError)
        assert caller.call("echo").head == {"peer": "trainer 1"}


def test_callers_without_the_secret_are_refused_and_the_server_goes_on(echo: Echo) -> None:
    large = RpcMessage(head={}, columns={"a": np.zeros(4_000_000)})
    with client(echo.server.address, secret="guessed") as caller:
        for message in (EMPTY, large):
            with pytest.raises(
                CommunicationError, match="^the server, echo: the secret is not that of this job$"
            ):
                caller.call("echo", message)
    with client(echo.server.address) as caller:
        with pytest.raises(CommunicationError, match="^the server, erase: it has no such method$"):
            caller.call("erase", large)
        assert caller.call("echo").head == {"peer": "trainer 1"}


def greeting(protocol: int = calls.PROTOCOL, version: str = headrace.__version__) -> bytes:
    return calls.Greeting(
        protocol=protocol,
        role="a test",
        secret=SECRET,
        method="echo",
        deadline_s=HANG_S,
        version=version,
    ).to_bytes()


@contextmanager
def stream(
    address: str, command: bytes
) -> Generator[tuple[fl.FlightStreamWriter, fl.FlightStreamReader]]:
    descriptor = fl.FlightDescriptor.for_command(command)
    writer, reader = fl.FlightClient(f"grpc://{address}").do_exchange(descriptor)
    yield writer, reader
    with suppress(fl.FlightError):
        writer.close()


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (b"", "no process of headrace"),
        (b"\xff", "no process of headrace"),
        (b"[]", "no process of headrace"),
        (b'{"protocol": 1}', "no process of headrace"),
        (greeting(2), "a test has version 2 of the protocol, needs 1: install one version"),
        (
            greeting(version="0.0.9"),
            r"a test is of headrace 0\.0\.9, needs .*: install one version",
        ),
    ],
)
def test_other_handshakes_are_refused(echo: Echo, command: bytes, text: str) -> None:
    with (
        stream(echo.server.address, command) as (_, reader),
        pytest.raises(fl.FlightUnauthenticatedError, match=text),
    ):
        reader.read_chunk()


def test_bytes_of_no_call_are_refused(echo: Echo) -> None:
    host, _, port = echo.server.address.rpartition(":")
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 100, b""):
        caller = socket.create_connection((host, int(port)), timeout=HANG_S)
        with caller, suppress(ConnectionError):
            caller.sendall(data)
            while data and caller.recv(1 << 16):  # until the server closes it
                pass
    with client(echo.server.address) as caller:
        assert caller.call("echo").head == {"peer": "trainer 1"}


@pytest.mark.parametrize("data", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_a_connection_that_never_calls_holds_no_call_up(echo: Echo, data: bytes) -> None:
    host, _, port = echo.server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as stranger:
        stranger.sendall(data)
        with client(echo.server.address) as caller:
            assert caller.call("echo").head == {"peer": "trainer 1"}


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (b"no json", "a head that cannot be read"),
        (b"[]", "a head that cannot be read"),
        (b'{"head": {}}', "a head that cannot be read"),
        (b'{"head": {}, "columns": [["a", "|O8", [1]]]}', "a column of |O8"),
        (b'{"head": {}, "columns": [["a", "<f4", [-1]]]}', "negative dimensions"),
        (b'{"head": {}, "columns": [["a", "<f4", [1]]]}', "the stream ended"),
    ],
)
def test_messages_that_are_none(echo: Echo, metadata: bytes, text: str) -> None:
    with stream(echo.server.address, greeting()) as (writer, reader):
        writer.write_metadata(metadata)
        writer.done_writing()
        assert text in reader.read_chunk().app_metadata.to_pybytes().decode()


def test_an_address_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    gone = pytest.raises(CommunicationError, match=f"the server, echo: no connection to {address}")
    with client(address, deadline_s=ENDLESS_S) as caller, no_hang(), gone:
        caller.call("echo")
    for text in ("", "nonsense:x:y"):
        with pytest.raises(CommunicationError, match="the server"), client(text) as caller:
            caller.call("echo")


def test_an_address_cannot_be_served_twice(echo: Echo) -> None:
    port = int(echo.server.address.rpartition(":")[2])
    with pytest.raises(CommunicationError, match=f"a second one cannot listen at 127.0.0.1:{port}"):
        RpcServer("a second one", {}, secret=SECRET, port=port)


def test_several_clients_at_the_same_time(echo: Echo) -> None:
    def call_often(number: int) -> None:
        rows = np.full((1000, number + 1), number)
        with client(echo.server.address) as caller:
            for count in range(20):
                message = RpcMessage(head={"count": count}, columns={"rows": rows})
                reply = caller.call("echo", message)
                assert reply.head["count"] == count
                assert_same(reply.columns, {"rows": rows})

    with client(echo.server.address) as caller, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(caller.call, "wait", deadline_s=ENDLESS_S) for _ in range(2)]
        wait_until(lambda: echo.waiting == 2, "two calls of one client wait side by side")
        for future in [pool.submit(call_often, number) for number in range(5)]:
            future.result(HANG_S)
        echo.release()
        for future in waiting:
            assert future.result(HANG_S).head == {}


def test_a_deadline_ends_a_call_at_both_sides(echo: Echo) -> None:
    def check(deadline_s: float) -> None:
        echo.ended.clear()
        with client(echo.server.address) as caller:
            with pytest.raises(
                CommunicationError, match=f"^the server, wait: .* within {deadline_s:g} s|deadline"
            ):
                caller.call("wait", deadline_s=deadline_s)
            wait_until(lambda: echo.ended, "the method ends")
            assert "the call of trainer 1 ended as it waited" in echo.ended[0]
            assert caller.call("echo").head == {"peer": "trainer 1"}

    with_longer_deadlines(check)


def test_a_deadline_ends_a_call_of_a_server_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        late = pytest.raises(CommunicationError, match="no answer .* within 0.5 s")
        with client(address) as caller, no_hang(), late:
            caller.call("echo", deadline_s=0.5)


def test_closing_the_client_ends_its_calls_at_both_sides(echo: Echo) -> None:
    with client(echo.server.address) as caller:
        calls = [in_thread(lambda: caller.call("wait", deadline_s=ENDLESS_S)) for _ in range(2)]
        wait_until(lambda: echo.waiting == 2, "the calls wait")
        caller.close()
        for call in calls:
            with pytest.raises(
                CommunicationError, match="^the server, wait: the connection was closed$"
            ):
                call.result(HANG_S)
        wait_until(lambda: len(echo.ended) == 2, "the methods end")
        assert all(text.endswith("the caller is gone") for text in echo.ended)
        caller.close()
        with pytest.raises(CommunicationError, match="the connection was closed"):
            caller.call("echo")


def test_closing_the_server_ends_waiting_calls() -> None:
    echo = Echo()
    with client(echo.server.address) as caller, client(echo.server.address) as idle, no_hang():
        idle.call("echo")
        call = in_thread(lambda: caller.call("wait", deadline_s=ENDLESS_S))
        wait_until(lambda: echo.waiting == 1, "the call waits")
        echo.server.close()
        with pytest.raises(ConnectionLostError, match="the server, wait: .*the server was closed"):
            call.result(HANG_S)
        echo.server.close()
        with pytest.raises(CommunicationError, match="no connection to"):
            idle.call("echo")


@contextmanager
def peer(*arguments: str) -> Generator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "tests.embeddings.run.rpc_peer", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_killed_client_ends_its_call_at_the_server(echo: Echo) -> None:
    with peer("call", echo.server.address) as process:
        wait_until(lambda: echo.waiting == 1, "the call waits")
        process.kill()
        wait_until(lambda: echo.ended, "the method ends")
        assert echo.ended == ["the call of the caller ended as it waited: the caller is gone"]
    with client(echo.server.address) as caller:
        assert caller.call("echo").head == {"peer": "trainer 1"}


def test_a_process_that_ends_waits_for_the_ends_of_its_calls(echo: Echo) -> None:
    """A thread that the interpreter ended in a call aborted the process, with signal 6."""
    with peer("leave", echo.server.address) as process:
        wait_until(lambda: echo.waiting == 1, "the call waits")
        output, _ = process.communicate("\n", timeout=HANG_S)
        assert output == "the server, wait: the connection was closed\n"
        assert process.returncode == 0


def test_a_child_leaves_the_connections_of_its_parent(echo: Echo) -> None:
    """It hung in gRPC as it ended, or shut down sockets that it had a copy of."""
    with peer("fork", echo.server.address) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        wait_until(lambda: echo.waiting == 1, "the call waits")
        process.stdin.write("\n")
        process.stdin.flush()
        refusal = process.stdout.readline()
        assert refusal.startswith("the connection with the server belongs to the process that made")
        assert process.stdout.readline() == "3\n"
        echo.release()
        assert process.stdout.read() == "answered\nthe caller\n"


class Traced:
    """An object of Arrow's, to which there can be weak references."""

    def __init__(self, native: Any) -> None:
        self.native = native

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)


def test_an_error_keeps_no_stream(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its frames did, and Arrow freed them as the interpreter ended: the process aborted."""
    streams: list[weakref.ref[Traced]] = []
    with client(echo.server.address) as caller:
        arrow = caller._client

        def do_exchange(*arguments: Any) -> tuple[Traced, Traced]:
            writer, reader = map(Traced, arrow.do_exchange(*arguments))
            streams.extend((weakref.ref(writer), weakref.ref(reader)))
            return writer, reader

        stand_in = Traced(arrow)
        monkeypatch.setattr(stand_in, "do_exchange", do_exchange, raising=False)
        monkeypatch.setattr(caller, "_client", stand_in)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(caller.call, "wait", deadline_s=ENDLESS_S)
            wait_until(lambda: echo.waiting == 1, "the call waits")
            caller.close()
            error = call.exception(HANG_S)
        assert isinstance(error, ConnectionLostError)
        assert error.__cause__ is not None
        assert len(streams) == 2
        assert not any(stream() for stream in streams)


def test_a_killed_server_ends_calls_at_once() -> None:
    with peer("serve") as process, no_hang():
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with client(address, deadline_s=ENDLESS_S) as caller:
            call = in_thread(lambda: caller.call("wait"))
            assert process.stdout.readline() == "waits\n"
            process.kill()
            for failed in (call, in_thread(lambda: caller.call("wait"))):
                with pytest.raises(CommunicationError, match=f"the server, wait: .*{address}"):
                    failed.result(HANG_S)
