"""Statistics of one rank's connections: bytes, round-trip times, and achieved rates.

The kernel maintains them (TCP_INFO); reading them is one system call per connection and does not
block. The rate of a connection is the acknowledged bytes over the time in which there was data to
send and the peer had room for it: an idle connection, or a peer that does not read, tells nothing
about the network between them.
"""

import threading
import time
from collections.abc import Callable
from enum import IntEnum

import numpy as np

from headrace.facades import offered_by, public_value
from headrace.forks import ForkMark

# The kernel counts busy time in ticks of 1 to 10 ms: over less than this a rate would be noise.
_LEAST_BUSY_US = 20_000
# The time of shorter messages is latency, whatever the bandwidth.
_LEAST_SEND_BYTES = 8 << 10


class Stat(IntEnum):
    """Columns of the native table, whose rows are connections."""

    PEER = 0
    CHANNEL = 1
    SENT_BYTES = 2
    SENDS = 3
    RECEIVED_BYTES = 4
    ACKED_BYTES = 5
    BUSY_US = 6
    PEER_LIMITED_US = 7
    BUFFER_LIMITED_US = 8
    DELIVERY_RATE = 9
    RTT_US = 10
    MIN_RTT_US = 11
    RETRANSMITS = 12


@public_value("headrace.executor", eq=False)
class ConnectionStatistics:
    """One rank's connections by peer: k peers, arrays of shape (k,).

    Attributes
    ----------
    window_s : seconds since the reader's last reading; for the first, since it was made.
    peer : int32, the other rank; ascending.
    sent_bytes, received_bytes : int64, since the connections were made, headers included.
    retransmits : int64, segments since the connections were made.
    window_sent_bytes : int64, in the window.
    busy_us : float64, in the window: time in which data waited to be sent or acknowledged and the
        peer had room; of several channels, the longest.
    rate_bytes_per_s : float64, acknowledged in the window over `busy_us`; nan if there was too
        little data, or only short messages (a few KB).
    delivery_rate_bytes_per_s : float64, the kernel's newest estimates, summed over channels.
    rtt_us : float64, smoothed, of the slowest channel that was used in the window (else of all);
        nan if not known.
    min_rtt_us : float64, the lowest of the last minutes; nan if not known.
    """

    window_s: float
    peer: np.ndarray
    sent_bytes: np.ndarray
    received_bytes: np.ndarray
    retransmits: np.ndarray
    window_sent_bytes: np.ndarray
    busy_us: np.ndarray
    rate_bytes_per_s: np.ndarray
    delivery_rate_bytes_per_s: np.ndarray
    rtt_us: np.ndarray
    min_rtt_us: np.ndarray


@offered_by("headrace.executor")
class StatisticsReader:
    """Reads an executor's connections; each reading covers the time since the one before.

    Thread-safe.

    Parameters
    ----------
    table : returns int64 rows, one per open connection, with the columns of `Stat`.
    """

    def __init__(
        self, table: Callable[[], np.ndarray], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._clock_s = clock_s
        self._then_s = clock_s()
        self._before = _by_connection(table())
        self._lock = threading.Lock()
        self._mark = ForkMark()

    def read(self) -> ConnectionStatistics:
        """Return the changes since the last reading; no rows once the executor is closed.

        Raises
        ------
        ForkError : in a child process, where the connections are the parent's.
        """
        self._mark.check("a reader of connection statistics")  # a thread may hold the lock's copy
        with self._lock:
            rows, now_s = self._table(), self._clock_s()
            connections = _by_connection(rows)
            nothing = np.zeros(len(Stat), dtype=np.int64)
            before = [self._before.get(key, nothing) for key in connections]
            moved = rows - np.array(before, dtype=np.int64).reshape(-1, len(Stat))
            window_s, self._then_s = now_s - self._then_s, now_s
            self._before = connections
        return _by_peer(rows, moved, window_s)


def _by_connection(rows: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    keys = [(peer, channel) for peer, channel in rows[:, :2].tolist()]
    return dict(zip(keys, rows, strict=True))


def _by_peer(rows: np.ndarray, moved: np.ndarray, window_s: float) -> ConnectionStatistics:
    """Combine the channels of each peer; `moved` are the changes in the window."""
    peers, of_peer = np.unique(rows[:, Stat.PEER], return_inverse=True)
    data = rows[:, Stat.CHANNEL] >= 0
    used = data & (moved[:, Stat.SENT_BYTES] > 0)

    def total(values: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
        weights = values if among is None else np.where(among, values, 0)
        return np.bincount(of_peer, weights=weights, minlength=len(peers))

    def extreme(values: np.ndarray, among: np.ndarray, pick: np.ufunc) -> np.ndarray:
        found = np.full(len(peers), np.nan)
        known = among & (values > 0)
        pick.at(found, of_peer[known], values[known])
        return found

    busy_us = np.zeros(len(peers))
    at_work = moved[:, Stat.BUSY_US] - moved[:, Stat.PEER_LIMITED_US]
    np.maximum.at(busy_us, of_peer[data], at_work[data])
    acked = total(moved[:, Stat.ACKED_BYTES], data)
    long = moved[:, Stat.SENT_BYTES] >= _LEAST_SEND_BYTES * moved[:, Stat.SENDS]
    enough = (busy_us >= _LEAST_BUSY_US) & (acked > 0) & (total(used & long) > 0)
    rate = np.full(len(peers), np.nan)
    rate[enough] = acked[enough] / (busy_us[enough] / 1e6)
    rtt = extreme(rows[:, Stat.RTT_US], used, np.fmax)
    idle_rtt = extreme(rows[:, Stat.RTT_US], data, np.fmax)
    return ConnectionStatistics(
        window_s=window_s,
        peer=peers.astype(np.int32),
        sent_bytes=total(rows[:, Stat.SENT_BYTES]).astype(np.int64),
        received_bytes=total(rows[:, Stat.RECEIVED_BYTES]).astype(np.int64),
        retransmits=total(rows[:, Stat.RETRANSMITS]).astype(np.int64),
        window_sent_bytes=total(moved[:, Stat.SENT_BYTES]).astype(np.int64),
        busy_us=busy_us,
        rate_bytes_per_s=rate,
        delivery_rate_bytes_per_s=total(rows[:, Stat.DELIVERY_RATE], data).astype(np.float64),
        rtt_us=np.where(np.isnan(rtt), idle_rtt, rtt),
        min_rtt_us=extreme(rows[:, Stat.MIN_RTT_US], np.ones_like(data), np.fmin),
    )
