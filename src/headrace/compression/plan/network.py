"""Times of single collectives: by the paper's formulas (Table 4.2), or predicted by a plan book."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from headrace.artifact_value import stored_value
from headrace.compression.errors import CompressionError
from headrace.errors import InputError
from headrace.facades import offered_by
from headrace.topology import Topology
from headrace.units import FASTEST, SLOWEST

HOST_LATENCY_US = 50.0
"""Latency between hosts where none is given: half of a round trip of 100 us, as TCP has within a
zone of a cloud or on 10 Gbit/s Ethernet."""


def assumed_latency_us(scheme: str, ranks_per_host: int) -> float:
    """Return the latency of a message where none is given, in us.

    Of a ring's messages, which all go at once, one of `ranks_per_host` leaves its host; those
    inside are counted as nothing.
    """
    return HOST_LATENCY_US / (ranks_per_host if scheme == "ring" else 1)


@offered_by("headrace.compression")
class NetworkTimes(Protocol):
    """Times of collectives among all workers."""

    @property
    def workers(self) -> int:
        """Number of ranks."""
        ...

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Rate that stands for the network: of a link, or of the slowest one."""
        ...

    def exchange_us(self, collective: str, payload_bytes: float) -> float:
        """Return the time of an allreduce, all_to_all or allgather with this payload of a rank."""
        ...

    def at_bandwidth(self, bytes_per_s: float) -> "NetworkTimes":
        """Return the same network with this rate, and all others in proportion."""
        ...

    def describe(self) -> str:
        """Return the network in words, without its rate."""
        ...


def _ring(collective: str, size: float, p: int) -> tuple[float, float]:
    match collective:
        case "allreduce":
            return 2 * (p - 1), 2 * (p - 1) / p * size
        case "allgather":
            return p - 1, (p - 1) * size
        case _:
            return p - 1, (p - 1) / p * size


def _tree(collective: str, size: float, p: int) -> tuple[float, float]:
    rounds = math.log2(p)
    match collective:
        case "allreduce":
            return 2 * rounds, 2 * rounds * size
        case "allgather":  # recursive doubling
            return rounds, (p - 1) * size
        case _:  # half of the data in every round (Bruck)
            return rounds, rounds / 2 * size


def _server(collective: str, size: float, p: int) -> tuple[float, float]:
    match collective:
        case "allreduce":
            return 2, 2 * (p - 1) * size
        case "allgather":  # in: one payload of each; out: all others' to each
            return 2, (p - 1) * size + (p - 1) ** 2 * size
        case _:
            return 2, 2 * (p - 1) ** 2 / p * size


SCHEMES: dict[str, Callable[[str, float, int], tuple[float, float]]] = {
    "ring": _ring,
    "tree": _tree,
    "server": _server,
}
"""(latencies, bytes through the busiest link) of a collective, by aggregation scheme.

Those of an allreduce are the paper's formulas (Table 4.2). It has no others: an allgather's bytes
are what a rank has to receive, an all-to-all's what it has to send, and a server relays both.
"""


@stored_value("headrace.compression", CompressionError)
class FormulaNetwork:
    """A network of equal links, and a scheme of aggregation (Table 4.2).

    Attributes
    ----------
    scheme : ``ring``, ``tree`` or ``server``.
    bandwidth_bytes_per_s : of a link in each direction.
    alpha_us : latency of a message.
    ranks_per_host : ranks behind one link. A ring, and the others by the table's count, cross it
        once; of an all-to-all every rank's own data cross it.

    Raises
    ------
    CompressionError : naming the field, what was found and what is needed.
    """

    scheme: str
    workers: int
    bandwidth_bytes_per_s: float
    alpha_us: float = 0.0
    ranks_per_host: int = 1

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise CompressionError(f"scheme is {self.scheme!r}, needs one of {', '.join(SCHEMES)}")
        if not 2 <= self.workers <= 1 << 20:
            raise CompressionError(f"workers is {self.workers}, needs 2 to {1 << 20}")
        if not SLOWEST <= self.bandwidth_bytes_per_s <= FASTEST:
            raise CompressionError(
                f"bandwidth is {self.bandwidth_bytes_per_s:g} bytes/s, needs {SLOWEST:g} to "
                f"{FASTEST:g}"
            )
        if not 0 <= self.alpha_us <= 1e7:
            raise CompressionError(f"latency is {self.alpha_us:g} us, needs 0 to 1e+07")
        if not 1 <= self.ranks_per_host <= self.workers:
            raise CompressionError(
                f"ranks per host is {self.ranks_per_host}, needs 1 to {self.workers} (workers)"
            )

    def exchange_us(self, collective: str, payload_bytes: float) -> float:
        """Return the time by the scheme's formula."""
        latencies, moved = SCHEMES[self.scheme](collective, payload_bytes, self.workers)
        if collective == "all_to_all" and self.scheme == "ring":
            others = (self.workers - self.ranks_per_host) / max(1, self.workers - 1)
            moved *= self.ranks_per_host * others
        return latencies * self.alpha_us + moved / self.bandwidth_bytes_per_s * 1e6

    def at_bandwidth(self, bytes_per_s: float) -> "FormulaNetwork":
        """Return the network with links of this rate, or the nearest that is possible."""
        return replace(self, bandwidth_bytes_per_s=min(max(SLOWEST, bytes_per_s), FASTEST))

    def describe(self) -> str:
        """Return the scheme and its parameters."""
        hosts = f", {self.ranks_per_host} ranks per link" if self.ranks_per_host > 1 else ""
        return f"{self.scheme}, latency {self.alpha_us:g} us{hosts}"


class CollectivePredictor(Protocol):
    """Predictions of a plan book or topology, as `headrace.collectives.predictor` returns them."""

    @property
    def topology(self) -> Topology:
        """The network that plans are made for."""
        ...

    @property
    def slowest_bytes_per_s(self) -> float:
        """Rate of the slowest link or shared capacity."""
        ...

    def predict_us(self, collective: str, total_bytes: int) -> float:
        """Return the time of a collective of `total_bytes` (see `Demand.chunk_bytes`)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BookNetwork:
    """The network of a plan book: predictions of its plans by collective and size.

    Attributes
    ----------
    factor : rates over those that the predictor knows. What a size adds to the latency is divided
        by it, the little that is not of links included.
    """

    predictor: CollectivePredictor
    factor: float = 1.0
    _known: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])

    @property
    def workers(self) -> int:
        """The ranks that the book is for."""
        return self.predictor.topology.ranks

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The slowest link's or shared capacity's rate."""
        return self.factor * self.predictor.slowest_bytes_per_s

    def exchange_us(self, collective: str, payload_bytes: float) -> float:
        """Return the predicted time of the book's plan.

        It is simulated at powers of two, and linear between them, as a program's time is but for
        bytes that overtake latencies: advice needs thousands of times.
        """
        total = payload_bytes * (self.workers if collective == "allgather" else 1)
        total_bytes = max(1, round(total))
        low = 1 << (total_bytes.bit_length() - 1)
        us = self._simulated_us(collective, low)
        if low != total_bytes:
            more = self._simulated_us(collective, 2 * low) - us
            us += (total_bytes - low) / low * more
        latency = min(us, self._simulated_us(collective, 1))
        return latency + (us - latency) / self.factor

    def at_bandwidth(self, bytes_per_s: float) -> "BookNetwork":
        """Return the same plans where the slowest rate is this, and all others in proportion."""
        factor = bytes_per_s / self.predictor.slowest_bytes_per_s
        return replace(self, factor=factor)

    def _simulated_us(self, collective: str, total_bytes: int) -> float:
        key = (collective, total_bytes)
        if key not in self._known:
            try:
                self._known[key] = self.predictor.predict_us(collective, total_bytes)
            except InputError as error:
                raise CompressionError(
                    f"{collective} on this network: {error}; codecs that are summed (bf16, fp16, "
                    "powersgd, randomk) need an allreduce alone: name those as the codecs"
                ) from error
        return self._known[key]

    def describe(self) -> str:
        """Return the name of the book's network."""
        return f"plans for {self.predictor.topology.name}"
