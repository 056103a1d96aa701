"""Fluid model of concurrent flows over racks with uplinks: completion times.

In a round every host sends at most one flow and receives at most one. A flow has at most the rate
of the slower of its hosts; flows that leave a rack share its uplink, those that enter it the
other direction, and all flows the core.

The division is proportionally fair (Kelly, Maulloo and Tan, 1998), the fixed point of flows that
each keep a window in flight: a flow's rate is its window over its round trip, and round trips grow
by the queues in front of full uplinks, on the path of data and on that of acknowledgements. So a
flow over two full uplinks gets less than those over one, and one whose acknowledgements queue
behind other racks' data is slow on an idle path. Where switches serve flows in turn the division
is max-min fair instead.
"""

from dataclasses import dataclass

import numpy as np

_TOGETHER = 1.1  # flows that end within this factor end at once, which saves steps
_ITERATIONS = 12
_CONVERGED = 0.01
_EMPTY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rounds:
    """Rounds of concurrent flows, with their measured times.

    Attributes
    ----------
    size : (rounds, hosts) bytes that a host sent; 0 if it sent none.
    dst, src : (rounds, hosts) destination and source of each host's flows; a permutation and its
        inverse in every round, arbitrary for idle hosts.
    took_us : (rounds, hosts) until a host had sent and received everything; nan where it sent
        nothing.
    fair : max-min fairness (full uplinks serve flows in turn, acknowledgements do not queue)
        instead of first come, first served.
    """

    size: np.ndarray
    dst: np.ndarray
    src: np.ndarray
    took_us: np.ndarray
    fair: bool = False

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.size.shape[1]

    @property
    def sent(self) -> np.ndarray:
        """Return (rounds, hosts) bool: the hosts that sent something that was timed."""
        return (self.size > 0) & np.isfinite(self.took_us)

    def at(self, ends: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return `values` (candidates, rounds, hosts) of the hosts that `ends` (dst, src) names."""
        rounds, hosts = ends.shape
        flat = (np.arange(rounds)[:, None] * hosts + ends).ravel()
        return values.reshape(len(values), -1)[:, flat].reshape(values.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rates:
    """Rates in bytes per us, for several candidates at once.

    Attributes
    ----------
    host : (candidates, hosts) of each host, sending and receiving alike.
    uplink : (candidates, hosts) of the uplink of a host's rack, either direction, equal for all
        hosts of a rack; infinite if it never limits.
    far : (candidates,) limit of one flow between racks, whatever other flows there are.
    core : (candidates,) limit of all flows together: switches that are not non-blocking, or the
        machine under a network that is emulated.
    """

    host: np.ndarray
    uplink: np.ndarray
    far: np.ndarray
    core: np.ndarray

    def repeated(self, times: int) -> "Rates":
        """Return each candidate `times` in a row."""
        return Rates(**{name: np.repeat(getattr(self, name), times, axis=0) for name in _NAMES})

    def some(self, index: slice | np.ndarray) -> "Rates":
        """Return some of the candidates."""
        return Rates(**{name: getattr(self, name)[index] for name in _NAMES})


_NAMES = ("host", "uplink", "far", "core")


def predict(rounds: Rounds, labels: np.ndarray, rates: Rates) -> np.ndarray:
    """Return (candidates, rounds, hosts) us at which every flow ends, 0.0 for none.

    Parameters
    ----------
    labels : (candidates, hosts) int; hosts with the same label share a rack.
    rates : one of each for every candidate.
    """
    shape = (len(labels), *rounds.size.shape)
    same = (labels[:, :, None] == labels[:, None, :]).astype(float)
    room = 1.0 / rates.uplink[:, None, :]  # us per byte; 0 if endless
    core = 1.0 / rates.core[:, None, None]
    across = crossing(rounds, labels)
    most = flow_limits(rounds, rates, across)
    left = np.broadcast_to(rounds.size, shape).astype(float)
    ends, now = np.zeros(shape), np.zeros(shape[:2])
    prices: tuple[np.ndarray, np.ndarray] | None = None
    while (active := left > 0).any():
        rate, prices = _share(rounds, active, active & across, most, same, room, core, prices)
        needs = np.where(active, left / np.where(active, rate, 1.0), np.inf)
        step = needs.min(axis=2)
        done = active & (needs <= step[:, :, None] * _TOGETHER)
        ends[done] = (now[:, :, None] + needs)[done]
        step[~np.isfinite(step)] = 0.0
        now += step
        left = np.where(active & ~done, np.maximum(left - rate * step[:, :, None], _EMPTY), 0.0)
    return ends


def crossing(rounds: Rounds, labels: np.ndarray) -> np.ndarray:
    """Return (candidates, rounds, hosts) bool: the flow of the host, if any, leaves its rack."""
    labelled = np.broadcast_to(labels[:, None, :], (len(labels), *rounds.size.shape))
    return labelled != rounds.at(rounds.dst, labelled)


def flow_limits(rounds: Rounds, rates: Rates, across: np.ndarray) -> np.ndarray:
    """Return (candidates, rounds, hosts) bytes per us of each flow if it ran alone."""
    most = np.broadcast_to(rates.host[:, None, :], across.shape)
    most = np.minimum(most, rounds.at(rounds.dst, most))
    return np.where(across, np.minimum(most, rates.far[:, None, None]), most)


def seen(rounds: Rounds, ends: np.ndarray) -> np.ndarray:
    """Return the times that hosts measure: the later end of the flows they send and receive."""
    return np.maximum(ends, rounds.at(rounds.src, ends))


def _share(
    rounds: Rounds,
    active: np.ndarray,
    leaving: np.ndarray,
    most: np.ndarray,
    same: np.ndarray,
    room: np.ndarray,
    core: np.ndarray,
    prices: tuple[np.ndarray, np.ndarray] | None,
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return rates, and the prices (us per byte) of every host's uplink out and in.

    A price is the queue in front of an uplink over a flow's window. It is multiplied by the load
    over the capacity until they agree; for proportional fairness every step is an ascent.
    """
    arriving = rounds.at(rounds.src, leaving)
    # the price if nothing else limited; no queue where flows cannot fill the uplink
    out = _binding(leaving, most, same, room)
    into = _binding(arriving, rounds.at(rounds.src, most), same, room)
    if prices is not None:
        out = np.where(out > 0, np.maximum(prices[0], 0.3 * out), 0.0)
        into = np.where(into > 0, np.maximum(prices[1], 0.3 * into), 0.0)
    rate = np.where(active, most, 0.0)
    count = active.sum(axis=2, keepdims=True)
    middle = np.where(rate.sum(axis=2, keepdims=True) * core > 1.0, count * core, 0.0)
    for _ in range(_ITERATIONS):
        if rounds.fair:  # the longest queue sets the rate
            cost = np.maximum(out, rounds.at(rounds.dst, into))
            cost = np.maximum(np.where(leaving, cost, 0.0), middle)
        else:  # the sum of all queues, on the path of data and on that of acknowledgements
            cost = out + into + rounds.at(rounds.dst, out + into)
            cost = np.where(leaving, cost, 0.0) + middle
        before = rate
        rate = np.where(active, 1.0 / np.maximum(cost, 1.0 / most), 0.0)
        if np.abs(rate - before).max(initial=0.0) < _CONVERGED * most.min():
            break
        flowing = np.where(leaving, rate, 0.0)
        middle = middle * rate.sum(axis=2, keepdims=True) * core
        out = out * (flowing @ same) * room
        into = into * (rounds.at(rounds.src, flowing) @ same) * room
    return rate, (out, into)


def _binding(flows: np.ndarray, most: np.ndarray, same: np.ndarray, room: np.ndarray) -> np.ndarray:
    return np.where((flows * most) @ same * room > 1.0, (flows @ same) * room, 0.0)
