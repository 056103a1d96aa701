"""Predict how long a program takes on a topology, without running it.

The model is the executor's: a lane runs its steps in order, and byte k of a step may go as soon
as byte k of what it depends on is there. Every step is cut into *pieces*, which stand in for the
byte stream. A piece passes, in order, every *resource* that limits it (the sender's NIC, uplinks,
the link itself, the receiver's NIC): first come, first served, occupying each for its own
``bytes * beta`` only, so a slow uplink does not hold a fast NIC. The head of a piece moves on at
once, its tail leaves with the slowest resource, and alpha is added on arrival. A lane keeps at
most two pieces on their way, as a congestion window would, so that flows which share a resource
also share its rate.

What it leaves out: the receiver's buffers are endless, lost packets do not exist, and computing
is free unless `local_us_per_mb` says otherwise.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from headrace.collectives.program import Direction, Op, Program
from headrace.errors import InputError, ProgramError, TopologyError, VerificationError
from headrace.topology import BYTES_PER_MB, Topology

FORWARD_BYTES = 16 << 10
"""The executor forwards no less than this of a step that is still arriving."""

_SEND, _RECV = int(Direction.SEND), int(Direction.RECV)
_Route = tuple[tuple[int, float], ...]
"""The resources a piece passes, in order: (resource, beta in us/MB)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """What the simulator foresees.

    Attributes
    ----------
    total_us : when the last step ends.
    start_us, finish_us : per step of the program. A send starts with its first byte and finishes
        when its last byte has left; a receive starts with the first byte's arrival and finishes
        when the last is in place.
    busy : for every shared capacity of the topology, the fraction of `total_us` it is in use.
    pieces : how many pieces the sends were cut into (the work done).
    """

    total_us: float
    start_us: np.ndarray
    finish_us: np.ndarray
    busy: dict[str, float]
    pieces: int


def simulate(
    program: Program,
    topology: Topology,
    total_bytes: int,
    *,
    piece_bytes: int = 32768,
    pieces_per_step: int = 24,
    max_pieces: int = 4000,
    alpha_occupies: bool = False,
    local_us_per_mb: float = 0.0,
) -> Simulation:
    """Simulate `program` moving `total_bytes` (see `Demand.chunk_bytes`) on `topology`.

    Parameters
    ----------
    piece_bytes : upper limit of a piece, unless `max_pieces` forces larger ones.
    pieces_per_step : the largest step is cut at least so often, down to `FORWARD_BYTES` a piece:
        finer pieces model streaming through short steps better.
    max_pieces : about how many pieces the sends may be cut into, all together; the time taken is
        proportional to it.
    alpha_occupies : charge alpha as occupancy of the link, once per message that does not
        directly follow another in its lane, instead of as latency.
    local_us_per_mb : time of COPY and REDUCE steps.

    Raises
    ------
    InputError : for a negative size or a piece of no bytes.
    TopologyError : if the topology has another number of ranks or lacks a link that is used.
    ProgramError : if a send lane has no receive lane, or their steps differ.
    VerificationError : if the program deadlocks; it names the first step that cannot run.
    """
    if total_bytes < 0 or min(piece_bytes, pieces_per_step, max_pieces) < 1:
        raise InputError(
            f"total_bytes is {total_bytes}, piece_bytes {piece_bytes}, pieces_per_step "
            f"{pieces_per_step}, max_pieces {max_pieces}: needs at least 0, 1, 1, 1"
        )
    if program.demand.ranks != topology.ranks:
        raise TopologyError(
            f"topology '{topology.name}' has {topology.ranks} ranks, the program "
            f"{program.demand.ranks}: needs the same number"
        )
    work = _Work(program, topology, total_bytes)
    work.cut(piece_bytes, pieces_per_step, max_pieces)
    begin, end = work.run(alpha_occupies, local_us_per_mb)
    return work.result(begin, end)


class _Work:
    """One simulation's columns: of steps (NumPy), then of pieces (flat lists, for the loop)."""

    def __init__(self, program: Program, topology: Topology, total_bytes: int) -> None:
        self.program, self.topology = program, topology
        self.lane = program.steps["lane"].astype(np.int64)
        self.direction = program.lanes["direction"][self.lane]
        chunk_bytes = program.demand.chunk_bytes(total_bytes)
        self.step_bytes = program.steps["count"] * chunk_bytes
        self.lane_start = np.searchsorted(self.lane, np.arange(len(program.lanes["rank"]) + 1))
        self.mate = _mates(program, self.lane_start)
        self.link = _links(program, topology)

    def cut(self, piece_bytes: int, pieces_per_step: int, max_pieces: int) -> None:
        """Choose the number of pieces of every step; a receive gets its send's."""
        sent = self.step_bytes[self.direction == _SEND]
        largest = float(sent.max(initial=0.0))
        size = min(piece_bytes, max(FORWARD_BYTES, largest / pieces_per_step))
        while np.ceil(sent / size).sum() > max(max_pieces, len(sent)) and size < largest:
            size *= 1.25
        self.pieces = np.maximum(np.ceil(self.step_bytes / size), 1).astype(np.int64)
        self.first = np.concatenate(([0], np.cumsum(self.pieces)))
        self.piece_mb = self.step_bytes / self.pieces / BYTES_PER_MB

    def run(self, alpha_occupies: bool, local_us_per_mb: float) -> tuple[list[float], list[float]]:
        """Return when every piece begins and ends, in us.

        One long loop on purpose: it runs once per piece and resource, and a plan book waits for
        hundreds of simulations.
        """
        program, first, pieces = self.program, self.first, self.pieces
        total = int(first[-1])
        step_of = np.repeat(np.arange(len(pieces)), pieces).tolist()
        after, after_next = self._lane_successors()
        stream, full = self._dependents()
        pending = self._pending()
        routes, alphas, resources = self._routes(keep_links=alpha_occupies)
        mate = np.where(self.direction == _SEND, first[self.mate] - first[:-1], 0).tolist()
        is_send = (self.direction == _SEND).tolist()
        local = np.isin(program.steps["op"], (Op.COPY, Op.REDUCE))
        cost = np.where(local, local_us_per_mb * self.piece_mb, 0.0).tolist()
        last_piece = (first[1:] - 1).tolist()
        first_piece = first[:-1].tolist()

        free = [0.0] * resources
        ready = [0.0] * (total + 1)
        begin, end = [-1.0] * total, [-1.0] * total
        heap: list[tuple[float, int, int, int, float]] = []
        order = 0  # equal times: first pushed, first served
        signals: list[tuple[int, float]] = []

        # Pieces that wait for nothing.
        roots = [piece for piece in range(total) if pending[piece] == 0]
        for piece in roots:
            pending[piece] = 1
            signals.append((piece, 0.0))
        signals.reverse()
        while True:
            # Deliver what has just become known; receives and local steps need no resource.
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
                    for other in full[step]:
                        signals.append((other, time))
            if not heap:
                break
            time, _, piece, stage, tail = heappop(heap)
            step = step_of[piece]
            route = routes[step]
            alpha = alphas[step]
            while True:
                resource, occupancy = route[stage]
                if free[resource] > time:
                    time = free[resource]
                if stage == 0:
                    begin[piece] = time
                    signals.append((after[piece], time))
                    if alpha_occupies:
                        # The link's set-up, unless this message follows the lane's last at once.
                        behind = piece > 0 and after[piece - 1] == piece
                        idle = not behind or 0.0 <= end[piece - 1] < time
                        if idle and piece == first_piece[step]:
                            occupancy += alpha
                        alpha = 0.0
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
            signals.append((piece + mate[step], tail + alpha))
            for shift in stream[step]:
                signals.append((piece + shift, tail))
            if piece == last_piece[step]:
                for other in full[step]:
                    signals.append((other, tail))
        self._check_done(end)
        return begin, end

    def _lane_successors(self) -> tuple[list[int], list[int]]:
        """For every piece the next of its lane and the one after; the count of all if none."""
        total = int(self.first[-1])
        lane_end = np.repeat(self.first[self.lane_start[self.lane + 1]], self.pieces)
        index = np.arange(total)
        after = np.where(index + 1 < lane_end, index + 1, total)
        after_next = np.where(index + 2 < lane_end, index + 2, total)
        return after.tolist(), after_next.tolist()

    def _streams(self) -> np.ndarray:
        """For every dependency whether it holds byte by byte, as the executor decides it."""
        steps, depend = self.program.steps, self.program.dependencies
        step, on = depend["step"], depend["on"]
        local = (steps["op"] == Op.COPY) | (steps["op"] == Op.REDUCE)
        same = (steps["slot"][step] == steps["slot"][on]) & (
            steps["count"][step] == steps["count"][on]
        )
        return same & ~local[step] & ~local[on] & (self.pieces[step] == self.pieces[on])

    def _dependents(self) -> tuple[list[list[int]], list[list[int]]]:
        """For every step: by how much to shift a piece to get the one that streams behind it, and
        the first pieces of the steps that wait for all of it."""
        depend, first = self.program.dependencies, self.first
        stream: list[list[int]] = [[] for _ in self.pieces]
        full: list[list[int]] = [[] for _ in self.pieces]
        target = first[depend["step"]]
        shift = target - first[depend["on"]]
        rows = zip(
            depend["on"].tolist(),
            self._streams().tolist(),
            shift.tolist(),
            target.tolist(),
            strict=True,
        )
        for on, streams, by, to in rows:
            if streams:
                stream[on].append(by)
            else:
                full[on].append(to)
        return stream, full

    def _pending(self) -> list[int]:
        """For every piece how many signals it waits for; one more entry that never runs."""
        depend, pieces, first = self.program.dependencies, self.pieces, self.first
        streams = self._streams()
        by_step = np.bincount(depend["step"][streams], minlength=len(pieces))
        by_step += self.direction == _RECV  # the arrival
        pending = np.repeat(by_step, pieces)
        np.add.at(pending, first[depend["step"][~streams]], 1)
        index = np.arange(len(pending))
        place = index - np.repeat(first[self.lane_start[self.lane]], pieces)
        pending += place >= 1  # the piece before has begun (or, if not a send, ended)
        pending += (place >= 2) & np.repeat(self.direction == _SEND, pieces)  # window of two
        return [*pending.tolist(), 1 << 60]

    def _routes(
        self, *, keep_links: bool
    ) -> tuple[list[list[tuple[int, float]]], list[float], int]:
        """For every step its resources with the time one piece occupies each, and its alpha."""
        used = sorted(set(self.link[self.link >= 0].tolist()))
        routes, count = _resources(self.topology, used, keep_links=keep_links)
        made: dict[tuple[int, float], list[tuple[int, float]]] = {}
        out: list[list[tuple[int, float]]] = []
        alphas: list[float] = []
        for link, mb in zip(self.link.tolist(), self.piece_mb.tolist(), strict=True):
            if link < 0:
                out.append([])
                alphas.append(0.0)
                continue
            if (link, mb) not in made:
                made[link, mb] = [(resource, beta * mb) for resource, beta in routes[link]]
            out.append(made[link, mb])
            alphas.append(self.topology.links[link].alpha_us)
        return out, alphas, count

    def _check_done(self, end: list[float]) -> None:
        stuck = next((piece for piece, time in enumerate(end) if time < 0.0), None)
        if stuck is None:
            return
        step = int(np.searchsorted(self.first, stuck, side="right")) - 1
        lane = int(self.lane[step])
        rank, direction, peer, channel = (
            int(self.program.lanes[name][lane])
            for name in ("rank", "direction", "peer", "channel")
        )
        raise VerificationError(
            f"the program deadlocks: rank {rank}, {Direction(direction).name.lower()} lane {lane} "
            f"(peer {peer}, channel {channel}), step {step - int(self.lane_start[lane])} can never "
            "run; look for a cycle of lane order and dependencies with `headrace verify`"
        )

    def result(self, begin: list[float], end: list[float]) -> Simulation:
        """Gather the pieces' times into steps'."""
        begins, ends = np.array(begin), np.array(end)
        start_us = begins[self.first[:-1]]
        finish_us = ends[self.first[1:] - 1]
        receive = self.direction == _RECV
        alpha = np.array([link.alpha_us for link in self.topology.links] or [0.0])[self.link]
        # A receive's first piece is recorded when it is in place: it began to arrive earlier.
        arriving = (start_us[self.mate] + alpha)[receive]
        start_us[receive] = np.minimum(arriving, start_us[receive])
        total_us = float(finish_us.max(initial=0.0))
        send = self.direction == _SEND
        link_mb = np.bincount(
            self.link[send],
            weights=self.step_bytes[send] / BYTES_PER_MB,
            minlength=len(self.topology.links),
        )
        busy = {
            shared.name: float(link_mb[list(shared.links)].sum() * shared.beta_us_per_mb / total_us)
            if total_us > 0.0
            else 0.0
            for shared in self.topology.shared
        }
        return Simulation(
            total_us=total_us,
            start_us=start_us,
            finish_us=finish_us,
            busy=busy,
            pieces=int(self.pieces[send].sum()),
        )


def _mates(program: Program, lane_start: np.ndarray) -> np.ndarray:
    """For every send step its receive step and the other way round; -1 for local steps."""
    lanes = program.lanes
    rows = zip(*(lanes[name].tolist() for name in ("rank", "direction", "peer", "channel")), strict=True)
    lane_of = {row: lane for lane, row in enumerate(rows)}
    mate = np.full(len(program.steps["op"]), -1, dtype=np.int64)
    for (rank, direction, peer, channel), lane in lane_of.items():
        if direction not in (_SEND, _RECV):
            continue
        other = lane_of.get((peer, _RECV if direction == _SEND else _SEND, rank, channel), -1)
        mine = slice(lane_start[lane], lane_start[lane + 1])
        theirs = slice(lane_start[other], lane_start[other + 1]) if other >= 0 else slice(0, 0)
        counts, expected = program.steps["count"][mine], program.steps["count"][theirs]
        if not np.array_equal(counts, expected):
            word = Direction(direction).name.lower()
            raise ProgramError(
                f"{word} lane {lane} (rank {rank}, peer {peer}, channel {channel}) has "
                f"{len(counts)} steps of {int(counts.sum())} slots, the peer's lane {len(expected)} "
                f"of {int(expected.sum())}: needs the same steps"
            )
        mate[mine] = np.arange(theirs.start, theirs.stop)
    return mate


def _links(program: Program, topology: Topology) -> np.ndarray:
    """For every step the link its bytes take, -1 for local steps."""
    lanes = program.lanes
    link_of_lane: list[int] = []
    rows = zip(*(lanes[name].tolist() for name in ("rank", "direction", "peer")), strict=True)
    for rank, direction, peer in rows:
        if direction == Direction.LOCAL:
            link_of_lane.append(-1)
            continue
        pair = (rank, peer) if direction == _SEND else (peer, rank)
        link = topology.link_index.get(pair)
        if link is None:
            raise TopologyError(
                f"the program sends from rank {pair[0]} to rank {pair[1]}, topology "
                f"'{topology.name}' has no link {pair[0]} -> {pair[1]}"
            )
        link_of_lane.append(link)
    return np.array(link_of_lane, dtype=np.int64)[program.steps["lane"]]


def _resources(
    topology: Topology, used: list[int], *, keep_links: bool
) -> tuple[dict[int, _Route], int]:
    """For every used link the resources that can delay it, in the order bytes meet them.

    A resource is left out if another one limits at least all the same used links at no higher
    rate: what queues for that one never waits for this.
    """
    spread: list[tuple[int, int]] = []  # (sources, destinations) that meet here
    members: list[frozenset[int]] = []
    betas: list[float] = []
    through: dict[int, list[int]] = {link: [] for link in used}

    def add(links: frozenset[int], beta: float) -> None:
        for link in links:
            through[link].append(len(members))
        ends = [topology.links[link] for link in links]
        spread.append((len({end.src for end in ends}), len({end.dst for end in ends})))
        members.append(links)
        betas.append(beta)

    for link in used:
        add(frozenset((link,)), topology.links[link].beta_us_per_mb)
    for shared in topology.shared:
        add(through.keys() & frozenset(shared.links), shared.beta_us_per_mb)

    def kept(resource: int) -> bool:
        if keep_links and resource < len(used):
            return True
        mine = members[resource]
        if not mine:
            return False
        for other in through[min(mine)]:
            if other != resource and members[other] >= mine and betas[other] >= betas[resource]:
                same = members[other] == mine and betas[other] == betas[resource]
                if not same or other < resource:
                    return False
        return True

    keep = {resource for resource in range(len(members)) if kept(resource)}
    # Bytes leave through what few sources share and arrive through what few destinations share.
    routes = {
        link: tuple(
            (resource, betas[resource])
            for resource in sorted(
                keep.intersection(passes),
                key=lambda r: (r >= len(used), spread[r][0], -spread[r][1], r),
            )
        )
        for link, passes in through.items()
    }
    return routes, len(members)
