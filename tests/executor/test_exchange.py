"""Messages of known lengths behave alike over shared memory, TCP and TLS."""

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _native
from headrace.collectives.demand import Collective
from headrace.collectives.run.choose import Chooser
from headrace.errors import CommunicationError, InputError
from headrace.executor import (
    DataType,
    Exchange,
    Executor,
    Priority,
    all_to_all,
    background,
    receive,
    send,
)
from headrace.executor.background import in_background
from tests.conformance.groups import each, group
from tests.waiting import HANG_S

RANKS = 3
LONG_BYTES = 300_001  # more than a message that is read with its header
RING_BYTES = 512 << 10  # of shared memory between two ranks
TRANSPORTS = ("shared memory", "tcp", "tls")
PRIORITIES = (Priority.normal, Priority.background)


def connected(transport: str):
    if transport == "tls" and not _native.has_tls():
        pytest.skip("built without OpenSSL")
    return group(RANKS, 1, shared_memory=transport == "shared memory", tls=transport == "tls")


@pytest.fixture(scope="module", params=TRANSPORTS)
def executors(request: pytest.FixtureRequest) -> Iterator[list[Executor]]:
    """A group that every test leaves usable."""
    with connected(request.param) as ranks:
        yield ranks


@pytest.fixture(params=TRANSPORTS)
def ending(request: pytest.FixtureRequest) -> Iterator[list[Executor]]:
    """A group that the test ends."""
    with connected(request.param) as ranks:
        yield ranks


def payload(source: int, target: int, nbytes: int, salt: int = 0) -> np.ndarray:
    return np.random.default_rng([source, target, nbytes, salt]).integers(0, 256, nbytes, np.uint8)


lengths = st.one_of(st.just(0), st.integers(1, 40), st.integers(1, LONG_BYTES))


@settings(max_examples=8, deadline=None)
@given(
    matrix=st.lists(lengths, min_size=RANKS**2, max_size=RANKS**2),
    priority=st.sampled_from(PRIORITIES),
)
def test_all_to_all_delivers_any_lengths(
    executors: list[Executor], matrix: list[int], priority: Priority
) -> None:
    nbytes = np.array(matrix).reshape(RANKS, RANKS)

    def act(executor: Executor) -> None:
        rank = executor.rank
        sent = [payload(rank, peer, nbytes[rank, peer]) for peer in range(RANKS)]
        received = [np.empty(nbytes[peer, rank], np.uint8) for peer in range(RANKS)]
        all_to_all(executor, sent, received, 5, priority=priority, deadline_s=HANG_S).wait()
        for peer in range(RANKS):
            np.testing.assert_array_equal(received[peer], payload(peer, rank, nbytes[peer, rank]))

    each(executors, act)


@pytest.mark.parametrize("shift", [0, 1, 70_000, RING_BYTES])
def test_what_an_all_to_all_sends_may_be_where_it_receives(
    executors: list[Executor], shift: int
) -> None:
    """Ranks sent what had just arrived, of blocks that the ring between them does not hold."""
    nbytes = 2 * RING_BYTES

    def act(executor: Executor) -> None:
        rank, peers = executor.rank, range(RANKS)
        memory = np.empty(RANKS * nbytes + shift, np.uint8)
        sent = np.split(memory[: RANKS * nbytes], RANKS)
        received = np.split(memory[shift:], RANKS)
        for peer in peers:
            sent[peer][:] = payload(rank, peer, nbytes)
        all_to_all(executor, sent, received, 6, deadline_s=HANG_S).wait()
        at_distance = np.concatenate(received)
        for peer in peers:
            sent[peer][:] = payload(rank, peer, nbytes)
        turned = sent[1:] + sent[:1]
        all_to_all(executor, sent, turned, 6, deadline_s=HANG_S).wait()
        for arrived in (at_distance, np.concatenate(turned)):
            for peer, block in enumerate(np.split(arrived, RANKS)):
                np.testing.assert_array_equal(block, payload(peer, rank, nbytes))

    each(executors, act)


def test_a_message_has_any_shape_and_type(executors: list[Executor]) -> None:
    def act(executor: Executor) -> None:
        after, before = (executor.rank + 1) % RANKS, (executor.rank - 1) % RANKS
        for dtype in (np.float32, np.complex128, np.bool_, np.dtype([("key", "u8"), ("at", "i4")])):
            into = np.zeros((5, 7), dtype)
            arrived = receive(executor, into, before, 1, deadline_s=HANG_S)
            send(executor, np.ones((5, 7), dtype), after, 1, deadline_s=HANG_S).wait()
            arrived.wait()
            assert arrived.done()
            assert (into == np.ones((5, 7), dtype)).all()

    each(executors, act)


@pytest.mark.parametrize("priority", PRIORITIES)
def test_messages_of_a_tag_arrive_in_order(executors: list[Executor], priority: Priority) -> None:
    """Many exchanges are under way together, and are waited for from the last to the first."""
    sizes = [0, 1, LONG_BYTES, 3, 0, 70_000]

    def act(executor: Executor) -> None:
        after, before = (executor.rank + 1) % RANKS, (executor.rank - 1) % RANKS
        into = [np.empty(size, np.uint8) for size in sizes]
        waits: list[Exchange] = []
        for at, size in enumerate(sizes):
            waits.append(receive(executor, into[at], before, 2, deadline_s=HANG_S))
            message = payload(executor.rank, after, size, at)
            waits.append(send(executor, message, after, 2, priority=priority, deadline_s=HANG_S))
        for exchange in reversed(waits):
            exchange.wait()
        for at, size in enumerate(sizes):
            np.testing.assert_array_equal(into[at], payload(before, executor.rank, size, at))

    each(executors, act)


def test_a_message_of_another_length_fails_alone(executors: list[Executor]) -> None:
    def act(executor: Executor) -> None:
        if executor.rank == 0:
            send(executor, np.zeros(9, np.uint8), 1, 7, deadline_s=HANG_S).wait()
            send(executor, np.ones(10, np.uint8), 1, 7, deadline_s=HANG_S).wait()
        elif executor.rank == 1:
            into = np.empty(10, np.uint8)
            mismatched = receive(executor, into, 0, 7, deadline_s=HANG_S)
            for _ in range(2):
                with pytest.raises(CommunicationError, match="rank 0 sent 9 bytes .* exactly 10"):
                    mismatched.wait()
            receive(executor, into, 0, 7, deadline_s=HANG_S).wait()
            assert into.all()

    each(executors, act)


def test_a_proven_program_runs_beside_messages(executors: list[Executor]) -> None:
    choice = Chooser(RANKS).choose(Collective.ALLREDUCE, 4 * RANKS)

    def act(executor: Executor) -> None:
        rank, peers = executor.rank, range(RANKS)
        sums = np.full(RANKS, rank + 1.0, np.float32)
        segments = [(sums.ctypes.data, sums.size, 1, choice.chunks)]
        loaded = executor.load(choice.program, choice.proof)
        call = executor.prepare(
            loaded, segments, DataType.float32, priority=Priority.background, deadline_s=HANG_S
        )
        received = [np.empty(2, np.uint8) for _ in peers]
        sent = [payload(rank, peer, 2) for peer in peers]
        exchange = all_to_all(executor, sent, received, 8, deadline_s=HANG_S)
        executor.wait(executor.submit(call))
        exchange.wait()
        assert sums.tolist() == [6.0] * RANKS
        for peer in peers:
            np.testing.assert_array_equal(received[peer], payload(peer, rank, 2))

    each(executors, act)


@pytest.mark.sampled(1)
def test_arrays_that_nothing_refers_to_stay_until_the_end(executors: list[Executor]) -> None:
    def act(executor: Executor) -> None:
        if executor.rank == 0:
            for at in range(20):
                send(executor, payload(0, 1, LONG_BYTES, at), 1, 9, deadline_s=HANG_S)
                gc.collect()
            send(executor, np.empty(0), 1, 10, deadline_s=HANG_S).wait()
        elif executor.rank == 1:
            receive(executor, np.empty(0), 0, 10, deadline_s=HANG_S).wait()
            for at in range(20):
                into = np.empty(LONG_BYTES, np.uint8)
                receive(executor, into, 0, 9, deadline_s=HANG_S).wait()
                np.testing.assert_array_equal(into, payload(0, 1, LONG_BYTES, at))

    each(executors, act)


def test_an_interrupted_beginning_leaves_the_array_retained(
    ending: list[Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor went on reading, or writing, the memory of an array that was gone."""
    executor = ending[0]
    for name, begin in (("send", send), ("recv", receive)):
        start = getattr(executor, name)

        def interrupted(*args: Any, start: Any = start, **kwargs: Any) -> None:
            start(*args, **kwargs)
            raise KeyboardInterrupt

        monkeypatch.setattr(executor, name, interrupted)
        array = np.zeros(3)
        living = weakref.ref(array)
        with pytest.raises(KeyboardInterrupt):
            begin(executor, array, 1, 3, deadline_s=HANG_S)
        del array
        gc.collect()
        assert living() is not None


@pytest.mark.parametrize("ended", [False, True])
def test_an_interrupted_wait_is_no_end(
    ending: list[Executor], monkeypatch: pytest.MonkeyPatch, *, ended: bool
) -> None:
    """The next wait returned at once, as if the message had arrived."""
    receiver, sender, _ = ending
    into = np.zeros(2)
    exchange = receive(receiver, into, 1, 3, deadline_s=HANG_S)
    wait = receiver.wait

    def interrupted(handle: int) -> None:
        if ended:
            wait(handle)
        raise KeyboardInterrupt

    if ended:
        send(sender, np.ones(2), 0, 3, deadline_s=HANG_S).wait()
    with monkeypatch.context() as patch:
        patch.setattr(receiver, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            exchange.wait()
    assert exchange.done() is ended
    if ended:
        with pytest.raises(CommunicationError, match="outcome was lost"):
            exchange.wait()
    else:
        send(sender, np.ones(2), 0, 3, deadline_s=HANG_S).wait()
        exchange.wait()
    assert into.all()


def test_bytes_are_counted_by_peer(executors: list[Executor]) -> None:
    readers = [executor.statistics_reader() for executor in executors]
    before = [reader.read() for reader in readers]
    for priority in PRIORITIES:

        def act(executor: Executor, priority: Priority = priority) -> None:
            sent = [np.zeros(1000 * peer, np.uint8) for peer in range(RANKS)]
            received = [np.zeros(1000 * executor.rank, np.uint8) for _ in range(RANKS)]
            all_to_all(executor, sent, received, 11, priority=priority, deadline_s=HANG_S).wait()

        each(executors, act)
    for reader, earlier in zip(readers, before, strict=True):
        now = reader.read()
        for peer, sent in zip(now.peer, now.sent_bytes - earlier.sent_bytes, strict=True):
            assert 2000 * peer + 32 <= sent < 2000 * peer + 2000  # two headers, and heartbeats


def test_a_passed_deadline_ends_the_group_at_every_rank(ending: list[Executor]) -> None:
    def act(executor: Executor) -> None:
        source = 0 if executor.rank == 2 else 2
        deadline_s = 0.2 if executor.rank == 0 else HANG_S
        with pytest.raises(CommunicationError, match=r"rank 0 timed out: the timeout of 0\.2 s"):
            receive(executor, np.empty(1), source, 1, deadline_s=deadline_s).wait()
        with pytest.raises(CommunicationError, match="rank 0 timed out"):
            send(executor, np.empty(1), (executor.rank + 1) % RANKS, 1)

    each(ending, act)


def test_every_rank_is_told_why_a_group_was_aborted(ending: list[Executor]) -> None:
    begun = threading.Barrier(RANKS, timeout=HANG_S)

    def act(executor: Executor) -> None:
        source = (executor.rank + 1) % RANKS
        exchange = receive(executor, np.empty(1), source, 1, deadline_s=HANG_S)
        begun.wait()
        if executor.rank == 1:
            executor.abort("server 1 is replaced")
        with pytest.raises(CommunicationError, match="rank 1 ended the group: server 1 is replace"):
            exchange.wait()

    each(ending, act)


def test_closing_ends_what_is_under_way(ending: list[Executor]) -> None:
    exchange = receive(ending[0], np.empty(1), 1, 1, deadline_s=HANG_S)
    ending[0].close()
    with pytest.raises(CommunicationError, match="closed"):
        exchange.wait()


def test_wrong_arguments_are_named() -> None:
    with group(2) as ranks:
        executor = ranks[0]
        two, columns = np.zeros((2, 2)), np.zeros((2, 2)).T[:1]
        read_only = np.zeros(2)
        read_only.flags.writeable = False
        with pytest.raises(InputError, match="tag is -1, needs 0 to 2147483647"):
            send(executor, two, 1, -1)
        with pytest.raises(InputError, match="cannot send to rank 2"):
            send(executor, two, 2, 1)
        with pytest.raises(InputError, match=r"shape \(1, 2\) is not contiguous"):
            send(executor, columns, 1, 1)
        with pytest.raises(InputError, match="to receive into is read-only"):
            receive(executor, read_only, 1, 1)
        with pytest.raises(InputError, match="holds references"):
            send(executor, np.array([None]), 1, 1)
        with pytest.raises(InputError, match="received has 1 arrays, needs one for each rank of 2"):
            all_to_all(executor, [two, two], [two], 1)
        with pytest.raises(InputError, match=r"sent\[0\] has 32 bytes and received\[0\] 16 at"):
            all_to_all(executor, [two, two], [two[:1], two], 1)


def test_background_is_a_thread_s_and_ends_with_an_error() -> None:
    def fail() -> None:
        with background():
            assert in_background()
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert not in_background()
