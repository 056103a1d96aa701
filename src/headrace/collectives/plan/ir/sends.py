"""Sends: the result of a search generator, and the composition of two.

Combining is the reverse of multicast: a reduce_scatter is an allgather reversed on the transposed
topology (TACCL 5.7), and an allreduce is a reduce_scatter followed by an allgather. The
order of combining may differ from the order in which messages begin: `by_arrival` computes it.
"""

from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import ArrayLike

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost.events import SAME_MOMENT
from headrace.collectives.plan.cost.resources import slowest_betas
from headrace.errors import TopologyError
from headrace.facades import public_value
from headrace.topology import Topology


@public_value("headrace.collectives.plan.flows", eq=False)
class Deliveries:
    """Delivery problem: origin and targets of every chunk (multicommodity multicast).

    Attributes
    ----------
    ranks : number of ranks.
    origin : (chunks,) int32, the rank that holds the chunk at first.
    targets : (chunks, ranks) bool, the ranks that must receive it; False at the origin.
    """

    ranks: int
    origin: np.ndarray
    targets: np.ndarray

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.origin)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sends:
    """Sends of chunks between ranks: columns of equal length, in one global order.

    Every send comes after all that it depends on. Rows with the same `message` are one message:
    consecutive, between the same two ranks, charged alpha once, complete when all have arrived.

    Attributes
    ----------
    chunk, src, dst : int32.
    reduce : bool; the chunk is combined into what `dst` holds of it, else it replaces it.
    message : int32, starting at 0 and growing by 1 from message to message.
    start_us : float64, planned start of the message (equal in all its rows); an empty array if
        not planned.
    arrive_us : float64, predicted arrival of the whole message, likewise. Chunks are combined in
        one place in this order (`by_arrival`), else in that of rows.
    """

    chunk: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    reduce: np.ndarray
    message: np.ndarray
    start_us: np.ndarray
    arrive_us: np.ndarray = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(
        cls,
        chunk: ArrayLike,
        src: ArrayLike,
        dst: ArrayLike,
        *,
        reduce: ArrayLike = False,
        message: ArrayLike | None = None,
        start_us: ArrayLike = (),
        arrive_us: ArrayLike = (),
    ) -> "Sends":
        """Return sends of columns of any integers; by default each row is one message."""
        chunks = np.array(chunk, np.int32)
        rows = len(chunks)
        return cls(
            chunk=chunks,
            src=np.array(src, np.int32),
            dst=np.array(dst, np.int32),
            reduce=np.array(np.broadcast_to(np.asarray(reduce, bool), rows)),
            message=np.array(np.arange(rows) if message is None else message, np.int32),
            start_us=np.array(start_us, float),
            arrive_us=np.array(arrive_us, float),
        )

    def take(self, rows: np.ndarray) -> "Sends":
        """Return the sends of these rows, with their message numbers as they are."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return Sends(**{name: c[rows] if len(c) else c for name, c in columns.items()})


def check_sends(sends: Sends) -> None:
    """Raise ProgramError if columns differ in length or messages are not as `Sends` requires."""
    columns = (sends.src, sends.dst, sends.reduce, sends.message)
    times = (sends.start_us, sends.arrive_us)
    rows = len(sends.chunk)
    if any(len(c) != rows for c in columns) or any(len(c) not in (0, rows) for c in times):
        raise ProgramError("sends: columns differ in length")
    if not len(sends.chunk):
        return
    step = np.diff(sends.message, prepend=-1)
    same = step == 0
    moved = (np.diff(sends.src, prepend=-1) != 0) | (np.diff(sends.dst, prepend=-1) != 0)
    for bad, problem in (
        ((step < 0) | (step > 1), "needs 0 at first, then the same or 1 more"),
        (same & moved, "needs one sender and one receiver in a message"),
        (sends.src == sends.dst, "goes from a rank to itself"),
    ):
        rows = np.flatnonzero(bad)
        if len(rows):
            row = rows[0]
            raise ProgramError(
                f"sends: row {row} (chunk {sends.chunk[row]}, {sends.src[row]} -> "
                f"{sends.dst[row]}, message {sends.message[row]}): {problem}"
            )


def with_arrivals(topology: Topology, sends: Sends, chunk_mb: float) -> Sends:
    """Return `sends` with `arrive_us` by `start_us` and the full cost model (TACCL 5.17).

    Raises
    ------
    TopologyError : for a send between ranks without a link.
    """
    index = topology.link_index
    pairs = zip(sends.src.tolist(), sends.dst.tolist(), strict=True)
    try:
        link = np.array([index[pair] for pair in pairs], dtype=np.int64)
    except KeyError as error:
        raise TopologyError(
            f"topology '{topology.name}' has no link {error}, which the sends use"
        ) from error
    size = np.bincount(sends.message)[sends.message] if len(link) else np.empty(0)
    takes = topology.columns.alpha_us[link] + slowest_betas(topology)[link] * size * chunk_mb
    return replace(sends, arrive_us=sends.start_us + takes)


def concatenated(first: Sends, second: Sends) -> Sends:
    """Return `first`, then `second`, its times shifted to the end of `first`."""
    start_us = arrive_us = np.empty(0)
    if len(first.start_us) and len(second.start_us):
        end = float((first.arrive_us if len(first.arrive_us) else first.start_us).max())
        start_us = np.concatenate([first.start_us, second.start_us + end])
        if len(first.arrive_us) and len(second.arrive_us):
            arrive_us = np.concatenate([first.arrive_us, second.arrive_us + end])
    after = int(first.message[-1]) + 1 if len(first.message) else 0
    return Sends.of(
        np.concatenate([first.chunk, second.chunk]),
        np.concatenate([first.src, second.src]),
        np.concatenate([first.dst, second.dst]),
        reduce=np.concatenate([first.reduce, second.reduce]),
        message=np.concatenate([first.message, second.message + after]),
        start_us=start_us,
        arrive_us=arrive_us,
    )


def by_arrival(sends: Sends) -> np.ndarray:
    """Return the order of rows in which chunks are combined in one place in order of arrival.

    The order of starts stays that of `message`, which need not grow from row to row then. A receive
    is combined after earlier ones in its slot and its lane: in another order than that of arrival,
    a late receive blocks receives that arrived before it.

    The order is causal whatever the times are: a message that sends what another brings, or
    replaces what another sends, comes after it, and so does the next of a lane. Rows of one message
    stay together. Sends that are in order already, or of unknown arrival, are left as they are.
    """
    if not len(sends.arrive_us) or _in_turn(sends):
        return np.arange(len(sends.chunk))
    when = np.array(_arrivals(sends))
    return np.argsort(when[sends.message], kind="stable")


def _in_turn(sends: Sends) -> bool:
    """Return whether rows combined in the same place are in order of arrival already."""
    rows = np.flatnonzero(sends.reduce)
    place = sends.dst[rows].astype(np.int64) * (int(sends.chunk.max(initial=0)) + 1)
    place += sends.chunk[rows]
    order = np.argsort(place, kind="stable")
    arrive_us = sends.arrive_us[rows][order]
    late = arrive_us[:-1] > arrive_us[1:] * SAME_MOMENT
    return not np.any(late & (np.diff(place[order]) == 0))


def _arrivals(sends: Sends) -> list[float]:
    """Arrival times of messages, by number, delayed where causality requires it."""
    when: list[float] = [0.0] * (int(sends.message.max(initial=-1)) + 1)
    brought: dict[tuple[int, int], float] = {}  # last arrival, combined or not,
    replaced: dict[tuple[int, int], float] = {}  # last arrival that was not combined,
    sent: dict[tuple[int, int], float] = {}  # last arrival at the next rank
    lane: dict[tuple[int, int], float] = {}
    ends = np.append(np.flatnonzero(np.diff(sends.message)) + 1, len(sends.chunk)).tolist()
    columns = (sends.chunk, sends.reduce, sends.src, sends.dst, sends.message, sends.arrive_us)
    chunks, reduces, sources, targets, messages, arrive_us = (c.tolist() for c in columns)
    first = 0
    for end in ends if len(chunks) else ():
        src, dst, at = sources[first], targets[first], arrive_us[first]
        at = max(at, lane.get((src, dst), 0.0))
        for row in range(first, end):
            there, here = (chunks[row], dst), (chunks[row], src)
            earlier = replaced if reduces[row] else brought
            at = max(at, brought.get(here, 0.0), earlier.get(there, 0.0), sent.get(there, 0.0))
        lane[src, dst] = when[messages[first]] = at
        for row in range(first, end):
            there, here = (chunks[row], dst), (chunks[row], src)
            sent[here] = max(at, sent.get(here, 0.0))
            brought[there] = max(at, brought.get(there, 0.0))
            if not reduces[row]:
                replaced[there] = brought[there]
        first = end
    return when
