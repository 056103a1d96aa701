"""Simulated timeline of a plan: its messages, and the utilization of links."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.plan import Plan
from headrace.collectives.program import Direction, Op
from headrace.topology import BYTES_PER_MB
from headrace.units import size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """A plan's messages in order of time; columns of equal length.

    Attributes
    ----------
    total_us : when the last one has arrived and been combined.
    start_us, finish_us : float64, when a message begins, and when all of it has arrived.
    src, dst, link : its ranks and its link's index in the topology.
    message, channel : its number in the planned order, and its lane's channel.
    mb : its size.
    reduce : whether it is combined at `dst`.
    slots : slots of the sender's buffer, as text: "0-3 8".
    link_busy, shared_busy : for every link and shared capacity of the topology, the fraction of
        `total_us` that it is in use.
    """

    total_us: float
    start_us: np.ndarray
    finish_us: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    link: np.ndarray
    message: np.ndarray
    channel: np.ndarray
    mb: np.ndarray
    reduce: np.ndarray
    slots: tuple[str, ...]
    link_busy: np.ndarray
    shared_busy: np.ndarray

    def __len__(self) -> int:
        return len(self.message)


def size_text(plan: Plan, mb: float) -> str:
    """Return a part of a plan's data, in the unit that the plan's size is round in."""
    return size(round(mb * BYTES_PER_MB), plan.total_bytes)


def timeline(plan: Plan) -> Timeline:
    """Simulate `plan` at the size it was scored at, under its own cost model."""
    program, topology, steps = plan.program, plan.topology, plan.program.steps
    run = simulate(program, topology, plan.total_bytes, model=plan.model)
    lanes = {name: column[steps["lane"]] for name, column in program.lanes.items()}
    sending = np.flatnonzero(lanes["direction"] == Direction.SEND)
    receiving = np.flatnonzero(lanes["direction"] == Direction.RECV)
    # a lane's steps of one number are one message; its two ends agree on all of the key
    ends = [np.where(lanes["direction"] == Direction.SEND, lanes[a], lanes[b]) for a, b in _ENDS]
    key = np.stack([*ends, lanes["channel"], steps["message"]], axis=1)
    _, first, group = np.unique(key[sending], axis=0, return_index=True, return_inverse=True)
    _, arrived = np.unique(key[receiving], axis=0, return_inverse=True)
    group, arrived = group.reshape(-1), arrived.reshape(-1)
    count = len(first)
    start, finish, combined = np.full(count, np.inf), np.zeros(count), np.zeros(count, dtype=bool)
    np.minimum.at(start, group, run.start_us[sending])
    np.maximum.at(finish, arrived, run.finish_us[receiving])
    np.logical_or.at(combined, arrived, steps["op"][receiving] == Op.RECV_REDUCE)
    covered = np.bincount(group, weights=steps["count"][sending], minlength=count)
    src, dst, channel, message = key[sending[first]].T
    order = np.lexsort((message, start))
    chunk_mb = program.demand.chunk_bytes(plan.total_bytes) / BYTES_PER_MB
    pairs = zip(src.tolist(), dst.tolist(), strict=True)
    link = np.array([topology.link_index[pair] for pair in pairs], dtype=np.int64)
    return Timeline(
        total_us=run.total_us,
        start_us=start[order],
        finish_us=finish[order],
        src=src[order],
        dst=dst[order],
        link=link[order],
        message=message[order],
        channel=channel[order],
        mb=covered[order] * chunk_mb,
        reduce=combined[order],
        slots=_slots(steps["slot"][sending], steps["count"][sending], group, order),
        link_busy=run.link_busy,
        shared_busy=run.shared_busy,
    )


_ENDS = (("rank", "peer"), ("peer", "rank"))
"""Source and destination, as columns of a send lane and of a receive lane."""


def intervals(plan: Plan, line: Timeline, shared: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the messages that use shared capacity `shared`, and when each begins and ends to.

    Where bytes stream they pass it bit by bit between start and arrival: these are returned.
    """
    capacity = plan.topology.shared[shared]
    uses = np.flatnonzero(np.isin(line.link, np.array(capacity.links, dtype=np.int64)))
    start = line.start_us[uses]
    if plan.model.streaming:
        return uses, start, line.finish_us[uses]
    alpha = np.array([link.alpha_us for link in plan.topology.links])[line.link[uses]]
    return uses, start, start + alpha + capacity.beta_us_per_mb * line.mb[uses]


def _slots(
    slot: np.ndarray, count: np.ndarray, group: np.ndarray, order: np.ndarray
) -> tuple[str, ...]:
    runs: list[list[tuple[int, int]]] = [[] for _ in order]
    for where, at, many in zip(group.tolist(), slot.tolist(), count.tolist(), strict=True):
        mine = runs[where]
        if mine and mine[-1][1] == at:
            mine[-1] = (mine[-1][0], at + many)
        else:
            mine.append((at, at + many))
    return tuple(_text(runs[index]) for index in order.tolist())


def _text(runs: Sequence[tuple[int, int]]) -> str:
    return " ".join(str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in runs)
