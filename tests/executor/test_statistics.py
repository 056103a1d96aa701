"""Connection statistics: sums over channels, windows, and rates against real sockets."""

import os
import signal
import threading

import numpy as np
import pytest

from headrace._native import DataType
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.errors import ForkError
from headrace.executor import Executor, all_to_all
from headrace.executor.statistics import Stat, StatisticsReader
from tests.conformance.groups import each, group
from tests.waiting import HANG_S, wait_until


def row(peer: int, channel: int, **values: int) -> list[int]:
    """A connection; what is not given is 0."""
    known = {Stat[name.upper()]: value for name, value in values.items()}
    return [peer, channel, *(known.get(column, 0) for column in list(Stat)[2:])]


def read(*tables: list[list[int]]) -> list:
    """Read one table after another, a second apart, by a reader made before the first connects."""
    waiting, clock = iter([[], *tables]), iter(range(100))
    reader = StatisticsReader(
        lambda: np.array(next(waiting), np.int64).reshape(-1, len(Stat)), lambda: next(clock)
    )
    return [reader.read() for _ in tables]


def test_channels_are_put_together() -> None:
    rows = [
        row(2, 1, sent_bytes=10**6, sends=9, acked_bytes=10**6, busy_us=40_000, rtt_us=30),
        row(0, -2, sent_bytes=5, sends=1, rtt_us=999, min_rtt_us=3, retransmits=1),
        row(2, 0, sent_bytes=10**6, sends=9, acked_bytes=10**6, busy_us=50_000, rtt_us=90),
        row(0, 0, received_bytes=7, rtt_us=8, min_rtt_us=4, retransmits=2, delivery_rate=6),
    ]
    (found,) = read(rows)
    assert found.window_s == 1
    assert found.peer.tolist() == [0, 2]
    assert found.peer.dtype == np.int32
    assert found.sent_bytes.tolist() == [5, 2 * 10**6]
    assert found.received_bytes.tolist() == [7, 0]
    assert found.retransmits.tolist() == [3, 0]
    assert found.delivery_rate_bytes_per_s.tolist() == [6.0, 0.0]
    assert found.rtt_us.tolist() == [8.0, 90.0]  # the data channels', the slowest
    np.testing.assert_array_equal(found.min_rtt_us, [3.0, np.nan])
    np.testing.assert_array_equal(found.rate_bytes_per_s, [np.nan, 2e6 / 0.05])


def test_a_window_begins_where_the_last_one_ended() -> None:
    first = row(1, 0, sent_bytes=10**6, sends=5, acked_bytes=10**6, busy_us=10**6)
    second = row(1, 0, sent_bytes=10**7, sends=50, acked_bytes=9 * 10**6, busy_us=2 * 10**6)
    before, after, idle = read([first], [second], [second])
    assert before.rate_bytes_per_s.tolist() == [10**6]
    assert after.window_sent_bytes.tolist() == [9 * 10**6]
    assert after.rate_bytes_per_s.tolist() == [8 * 10**6]
    assert idle.sent_bytes.tolist() == [10**7]
    assert idle.window_sent_bytes.tolist() == [0]
    assert np.isnan(idle.rate_bytes_per_s).all()


def test_the_first_window_begins_with_the_reader() -> None:
    """It had all bytes since the connections were made, those of measuring the network too."""
    with group(2) as executors:
        each(executors, lambda executor: all_to_all_of(executor, 1000))
        reader = executors[0].statistics_reader()
        each(executors, lambda executor: all_to_all_of(executor, 50))
        first = reader.read()
    assert first.sent_bytes[0] >= 1050
    assert 50 <= first.window_sent_bytes[0] < 1000


def all_to_all_of(executor: Executor, nbytes: int) -> None:
    sent, received = ([np.zeros(nbytes, np.uint8) for _ in range(2)] for _ in range(2))
    all_to_all(executor, sent, received, 1, deadline_s=HANG_S).wait()


@pytest.mark.parametrize(
    "told",
    [
        {"busy_us": 10_000},  # a few ticks of the kernel's clock
        {"sends": 1000},  # small messages
        {"acked_bytes": 0},
        {"peer_limited_us": 95_000},  # the peer did not read
    ],
)
def test_what_says_nothing_of_the_network_gives_no_rate(told: dict[str, int]) -> None:
    usual = {"sent_bytes": 10**6, "sends": 10, "acked_bytes": 10**6, "busy_us": 100_000}
    assert read([row(1, 0, **usual)])[0].rate_bytes_per_s.tolist() == [10**7]
    assert np.isnan(read([row(1, 0, **{**usual, **told})])[0].rate_bytes_per_s).all()


def test_a_closed_executor_has_no_connections() -> None:
    with group(2, shared_memory=False) as executors:
        reader = executors[0].statistics_reader()
        assert reader.read().peer.tolist() == [1]
    assert reader.read().peer.tolist() == []


def test_rates_are_those_of_the_links() -> None:
    """Repeated while the rates are others: on a busy machine time counts that no data took."""
    pacing = {1: 40e6, 2: 20e6}  # bytes/s from rank 0
    demand = Demand(collective=Collective.BROADCAST, ranks=3)
    program = lower(templates.direct(demand))
    proof = verify(program)
    stop = threading.Event()
    asked: list[int] = []

    def watch(executor: Executor) -> None:
        reader = executor.statistics_reader()
        while not stop.is_set():
            asked.append(int(reader.read().sent_bytes.sum()))

    def act(executor: Executor) -> None:
        loaded, data = executor.load(program, proof), np.ones(500_000)
        call = executor.prepare(
            loaded, [(data.ctypes.data, data.size, 1, 1)], dtype=DataType.float64
        )
        for _ in range(3):
            executor.run(call)

    with group(3, channels=1, shared_memory=False) as executors:
        reader = executors[0].statistics_reader()
        for peer, rate in pacing.items():
            executors[0].set_pacing(peer, round(rate))
        watcher = threading.Thread(target=watch, args=(executors[0],))
        watcher.start()
        try:
            each(executors, act)
        finally:
            stop.set()
            watcher.join()
        first = reader.read()
        assert asked == sorted(asked)
        assert executors[0].submitted() == executors[0].finished() == 3
        windows = [first]

        def paced() -> bool:
            if np.allclose(windows[-1].rate_bytes_per_s, list(pacing.values()), rtol=0.25):
                return True
            each(executors, act)
            windows.append(reader.read())
            return False

        wait_until(paced, lambda: [window.rate_bytes_per_s for window in windows])
    assert first.peer.tolist() == [1, 2]
    assert (first.sent_bytes >= 3 * 4_000_000).all()
    assert (first.window_sent_bytes == first.sent_bytes).all()
    assert (first.rtt_us > 0).all()


def test_a_child_that_is_forked_during_a_reading_refuses() -> None:
    """A child whose parent was reading its connections at the fork waited for ever.

    Its copy of the reader's lock was held by a thread that the child does not have.
    """
    reader = StatisticsReader(lambda: np.zeros((0, len(Stat)), np.int64))
    with reader._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends it if it waits
            try:
                reader.read()
            except ForkError:
                os._exit(0)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(reader.read().peer) == 0
