"""Predict the time of a program on a topology, without running it.

A cost model defines the charges. Where messages are forwarded as a whole (`FULL`),
`messages` simulates. The rest of this file is the streaming model, the executor's: a
lane runs its steps in order, and byte k of a step may go as soon as byte k of its source has
come. Every step is cut into *pieces*, which stand in for the byte stream. A piece passes, in
order, every *resource* that limits it (the sender's NIC, uplinks, the link itself, the receiver's
NIC): first come, first served, occupying each for its own ``bytes * beta`` only, so a slow uplink
does not hold a fast NIC. The head of a piece moves on at once, its tail leaves with the slowest
resource, and alpha is added on arrival. A lane keeps at most two pieces on their way, as a
congestion window would, so that flows which share a resource also share its rate.

Simplifications: the receiver's buffers are unbounded, lost packets do not exist, and computing
is free unless the model says otherwise. The grouping of steps into messages is ignored.
"""

from heapq import heappop, heappush
from typing import NoReturn

import numpy as np

from headrace.collectives.plan.cost.full import ProgramMessages, run_messages
from headrace.collectives.plan.cost.model import CostModel
from headrace.collectives.plan.cost.pieces import RECV, SEND, Pieces
from headrace.collectives.plan.cost.resources import resource_routes
from headrace.collectives.program import Direction, Program
from headrace.errors import InputError, TopologyError, VerificationError
from headrace.facades import public_value
from headrace.topology import BYTES_PER_MB, Topology

_STREAMING = CostModel(name="streaming", streaming=True)


@public_value("headrace.collectives.plan.cost", eq=False)
class Simulation:
    """Predicted times of a program.

    Attributes
    ----------
    total_us : end of the last step.
    start_us, finish_us : per step of the program. A send starts with its first byte and finishes
        when its last byte has left; a receive starts with the first byte's arrival and finishes
        when the last is in place.
        Where messages are forwarded as a whole, all steps of one start and finish together, sends
        when their receives do.
    link_busy, shared_busy : for every link and shared capacity of the topology (float64), the
        fraction of `total_us` that it is in use.
    pieces : number of pieces of the sends (the work done), or of messages.
    """

    total_us: float
    start_us: np.ndarray
    finish_us: np.ndarray
    link_busy: np.ndarray
    shared_busy: np.ndarray
    pieces: int


def simulate(
    program: Program,
    topology: Topology,
    total_bytes: int,
    *,
    model: CostModel = _STREAMING,
    max_pieces: int = 4000,
) -> Simulation:
    """Simulate `program` moving `total_bytes` (see `Demand.chunk_bytes`) on `topology`.

    Parameters
    ----------
    model : the cost model; by default bytes stream, and copies in memory take no time.
    max_pieces : about how many pieces the sends may be cut into, all together, where bytes stream;
        the time taken is proportional to it.

    Raises
    ------
    InputError : for a negative size or no pieces.
    TopologyError : if the topology has another number of ranks or lacks a link that is used.
    ProgramError : if a send lane has no receive lane, or their steps differ.
    VerificationError : if the program deadlocks; it names the first step that cannot run.
    """
    if total_bytes < 0 or max_pieces < 1:
        raise InputError(
            f"total_bytes is {total_bytes}, max_pieces {max_pieces}: needs at least 0 and 1"
        )
    if program.demand.ranks != topology.ranks:
        raise TopologyError(
            f"topology '{topology.name}' has {topology.ranks} ranks, the program "
            f"{program.demand.ranks}: needs the same number"
        )
    if not model.streaming:
        return _whole_messages(program, topology, total_bytes, model)
    pieces = Pieces(program, topology, total_bytes, max_pieces)
    begin, end = _run(pieces, topology, model.local_us_per_mb)
    stuck = next((piece for piece, time in enumerate(end) if time < 0.0), None)
    if stuck is not None:
        _report_stuck(program, int(np.searchsorted(pieces.first, stuck, side="right")) - 1)
    return _gather(pieces, topology, np.array(begin), np.array(end))


def _run(
    pieces: Pieces, topology: Topology, local_us_per_mb: float
) -> tuple[list[float], list[float]]:
    """Return the start and end of every piece, in us; -1 for those that never run.

    One long loop over flat lists for speed: it turns once per piece and resource, and a plan book
    takes hundreds of simulations.
    """
    first = pieces.first
    total = int(first[-1])
    step_of = np.repeat(np.arange(len(pieces.count)), pieces.count).tolist()
    after, after_next = pieces.successors()
    stream, unstreamed = pieces.dependents()
    pending = pieces.pending()
    ways, resources = _ways(pieces, topology)
    alphas = _alphas(pieces, topology).tolist()
    sends = pieces.direction == SEND
    is_send = sends.tolist()
    mate = np.where(sends, first[pieces.mate] - first[:-1], 0).tolist()
    cost = np.where(pieces.local, local_us_per_mb * pieces.piece_mb, 0.0).tolist()
    last_piece = (first[1:] - 1).tolist()

    free = [0.0] * resources
    ready = [0.0] * (total + 1)
    begin, end = [-1.0] * total, [-1.0] * total
    heap: list[tuple[float, int, int, int, float]] = []
    order = 0  # equal times: first in, first out
    signals: list[tuple[int, float]] = []

    # Pieces that wait for nothing.
    roots = [piece for piece in range(total) if pending[piece] == 0]
    for piece in roots:
        pending[piece] = 1
        signals.append((piece, 0.0))
    signals.reverse()
    while True:
        # Propagate signals; receives and local steps need no resource.
        while signals:
            piece, time = signals.pop()
            if time > ready[piece]:
                ready[piece] = time
            pending[piece] -= 1
            if pending[piece]:
                continue
            time = ready[piece]
            step = step_of[piece]
            if is_send[step]:
                heappush(heap, (time, order, piece, 0, 0.0))
                order += 1
                continue
            begin[piece] = time
            time += cost[step]
            end[piece] = time
            signals.append((after[piece], time))
            for shift in stream[step]:
                signals.append((piece + shift, time))
            if piece == last_piece[step]:
                for dependent in unstreamed[step]:
                    signals.append((dependent, time))
        if not heap:
            break
        time, _, piece, stage, tail = heappop(heap)
        step = step_of[piece]
        route = ways[step]
        while True:
            resource, occupancy = route[stage]
            if free[resource] > time:
                time = free[resource]
            if stage == 0:
                begin[piece] = time
                signals.append((after[piece], time))
            free[resource] = time + occupancy
            if time + occupancy > tail:
                tail = time + occupancy
            stage += 1
            if stage == len(route):
                break
            if heap and heap[0][0] <= time:
                heappush(heap, (time, order, piece, stage, tail))
                order += 1
                stage = -1
                break
        if stage < 0:
            continue
        end[piece] = tail
        signals.append((after_next[piece], tail))
        signals.append((piece + mate[step], tail + alphas[step]))
        for shift in stream[step]:
            signals.append((piece + shift, tail))
        if piece == last_piece[step]:
            for dependent in unstreamed[step]:
                signals.append((dependent, tail))
    return begin, end


def _ways(pieces: Pieces, topology: Topology) -> tuple[list[list[tuple[int, float]]], int]:
    """For every step its resources with the time a piece occupies each; the number of all."""
    routes, count = resource_routes(topology, pieces.link[pieces.link >= 0].tolist())
    holds_of: dict[tuple[int, float], list[tuple[int, float]]] = {}
    ways: list[list[tuple[int, float]]] = []
    for link, mb in zip(pieces.link.tolist(), pieces.piece_mb.tolist(), strict=True):
        if (link, mb) not in holds_of:
            route = routes[link] if link >= 0 else ()
            holds_of[link, mb] = [(resource, beta * mb) for resource, beta in route]
        ways.append(holds_of[link, mb])
    return ways, count


def _alphas(pieces: Pieces, topology: Topology) -> np.ndarray:
    """For every step its link's alpha, 0 if it is local."""
    return np.append(topology.columns.alpha_us, 0.0)[pieces.link]


def _report_stuck(program: Program, step: int) -> NoReturn:
    lane = int(program.steps["lane"][step])
    position = step - int(np.searchsorted(program.steps["lane"], lane))
    columns = ("rank", "direction", "peer", "channel")
    rank, direction, peer, channel = (int(program.lanes[name][lane]) for name in columns)
    raise VerificationError(
        f"the program deadlocks: rank {rank}, {Direction(direction).name.lower()} lane {lane} "
        f"(peer {peer}, channel {channel}), step {position} can never run; break the cycle of lane "
        "order and dependencies that it is part of"
    )


def _whole_messages(
    program: Program, topology: Topology, total_bytes: int, model: CostModel
) -> Simulation:
    messages = ProgramMessages(program, topology, total_bytes)
    begin, end = run_messages(messages, topology, model.local_us_per_mb)
    stuck = np.flatnonzero(end[messages.taken] < 0.0)
    if len(stuck):
        _report_stuck(program, int(stuck[0]))
    alpha = topology.columns.alpha_us[messages.link]
    start_us, finish_us = begin[messages.node], end[messages.node]
    receives = program.lanes["direction"][program.steps["lane"]] == RECV
    start_us[receives] += alpha[messages.node[receives]]
    times = (start_us, finish_us, float(end.max(initial=0.0)))
    return _simulation(
        topology, times, messages.link, messages.mb[: messages.count], alpha, messages.count
    )


def _simulation(
    topology: Topology,
    times: tuple[np.ndarray, np.ndarray, float],
    link: np.ndarray,
    mb: np.ndarray,
    held_us: np.ndarray,
    pieces: int,
) -> Simulation:
    """Return the result, with the utilization of links and shared capacities.

    Parameters
    ----------
    times : start and end of every step, and the end of all.
    link, mb, held_us : of every send (or message): its link, its size, and the time for which it
        holds every resource on its route besides.
    """
    start_us, finish_us, total_us = times
    links = len(topology.links)
    moved_mb = np.bincount(link, weights=mb, minlength=links)
    extra_us = np.bincount(link, weights=held_us, minlength=links)
    in_use_us = [
        moved_mb[list(shared.links)].sum() * shared.beta_us_per_mb
        + extra_us[list(shared.links)].sum()
        for shared in topology.shared
    ]
    share = 1.0 / total_us if total_us > 0.0 else 0.0
    return Simulation(
        total_us=total_us,
        start_us=start_us,
        finish_us=finish_us,
        link_busy=(moved_mb * topology.columns.beta_us_per_mb + extra_us) * share,
        shared_busy=np.array(in_use_us, np.float64) * share,
        pieces=pieces,
    )


def _gather(pieces: Pieces, topology: Topology, begin: np.ndarray, end: np.ndarray) -> Simulation:
    """Aggregate the pieces' times to steps'."""
    start_us, finish_us = begin[pieces.first[:-1]], end[pieces.first[1:] - 1]
    # A receive's first piece is recorded when it is in place: it began to arrive earlier.
    receives = pieces.direction == RECV
    arrives = start_us[pieces.mate] + _alphas(pieces, topology)
    start_us = np.where(receives, np.minimum(arrives, start_us), start_us)
    sends = pieces.direction == SEND
    times = (start_us, finish_us, float(finish_us.max(initial=0.0)))
    mb = pieces.step_bytes[sends] / BYTES_PER_MB
    count = int(pieces.count[sends].sum())
    return _simulation(topology, times, pieces.link[sends], mb, np.zeros_like(mb), count)
