"""Predict the time of a program under the full cost model, message by message.

A message is the unit. It begins when all that its steps wait for has ended, the message before it
in its lane has begun, and every resource of its route is free: the link, and every shared capacity
that the link is part of. It holds each resource r for ``alpha + beta_r * MB`` and arrives as a
whole after ``alpha + max over r of beta_r * MB`` (TACCL 5.17, 5.18, with several resources).

Combining is free, but has its turn. A message received ahead of its turn is kept beside the slot,
in buffers of its connection: its transfer does not wait for another message that is combined into
the same slot before it. Each of its parts is *taken* when the message has arrived, and the
parts before it in its slot and in its lane have been taken; readers of the slot wait for that. So
every dependency of the program is kept, and sums are the same in every run; the buffers are assumed
to be large enough.

`EventLoop` has the order in which messages begin.
"""

import numpy as np

from headrace.collectives.plan.cost.events import EventLoop
from headrace.collectives.plan.cost.pieces import RECV, SEND, links_of, mates_of
from headrace.collectives.plan.cost.resources import Route, resource_routes
from headrace.collectives.program import Op, Program
from headrace.topology import BYTES_PER_MB, Topology


class ProgramMessages:
    """A program as a graph of nodes: its messages by number, then its local steps.

    In programs that combine a third kind follows: of every receive, that it has been taken.

    Attributes
    ----------
    count : number of messages.
    node : of every step its node.
    taken : of every step the node that others wait for: its own, or that of its taking.
    lane, link : of every message its send lane, and its link in the topology.
    mb : size of every node in MB; taking costs nothing.
    waits : of every node the number of others that it waits for.
    unlocks : of every node those that wait for it.
    behind : of every message the next in its lane; -1 if it is the last.
    """

    def __init__(self, program: Program, topology: Topology, total_bytes: int) -> None:
        steps = program.steps
        lane = steps["lane"].astype(np.int64)
        lane_start = np.searchsorted(lane, np.arange(len(program.lanes["rank"]) + 1))
        mate = mates_of(program)
        sends = np.flatnonzero(program.lanes["direction"][lane] == SEND)
        local = np.flatnonzero(mate < 0)
        # One lane's steps of one number are one message, whatever the numbers of other lanes.
        number = steps["message"][sends].astype(np.int64) * len(lane_start) + lane[sends]
        _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
        self.count = len(first)
        self.node = np.empty(len(lane), dtype=np.int64)
        self.node[sends] = inverse
        self.node[mate[sends]] = inverse
        self.node[local] = self.count + np.arange(len(local))
        self.lane = lane[sends][first]
        self.link = links_of(program, topology)[sends][first]
        chunk_mb = program.demand.chunk_bytes(total_bytes) / BYTES_PER_MB
        covered = np.bincount(inverse, weights=steps["count"][sends], minlength=self.count)
        self.mb = np.concatenate([covered, steps["count"][local]]) * chunk_mb
        self.behind = self._queue(first)
        self._connect(program, lane, local)

    def _connect(self, program: Program, lane: np.ndarray, local: np.ndarray) -> None:
        step, on = program.dependencies["step"], program.dependencies["on"]
        combines = program.steps["op"] == Op.RECV_REDUCE
        waiting, self.taken = self.node[step], self.node
        in_turn = local[1:][np.diff(lane[local]) == 0]
        later, earlier = [self.node[in_turn]], [self.node[in_turn - 1]]
        nodes = self.count + len(local)
        if combines.any():
            receives = np.flatnonzero(program.lanes["direction"][lane] == RECV)
            self.taken = self.node.copy()
            self.taken[receives] = nodes + np.arange(len(receives))
            follows = np.flatnonzero(np.diff(lane[receives]) == 0)
            later += [self.taken[receives], nodes + 1 + follows]
            earlier += [self.node[receives], nodes + follows]
            waiting = np.where(combines[step] & combines[on], self.taken[step], waiting)
            nodes += len(receives)
        later.append(waiting)
        earlier.append(self.taken[on])
        after, before = np.concatenate(later), np.concatenate(earlier)
        edges = np.sort((before * nodes + after)[before != after])
        edges = edges[np.append(True, np.diff(edges) != 0)[: len(edges)]]
        before, after = edges // max(1, nodes), edges % max(1, nodes)
        self.waits: list[int] = np.bincount(after, minlength=nodes).tolist()
        ends = np.searchsorted(before, np.arange(nodes + 1)).tolist()
        flat: list[int] = after.tolist()
        self.unlocks = [flat[ends[k] : ends[k + 1]] for k in range(nodes)]
        self.mb = np.append(self.mb, np.zeros(nodes - len(self.mb)))

    def _queue(self, first_step: np.ndarray) -> np.ndarray:
        """Return the next message of every message in its lane; -1 for the last."""
        order = np.argsort(first_step)  # steps are grouped by lane
        same = np.diff(self.lane[order]) == 0
        behind = np.full(self.count, -1, dtype=np.int64)
        behind[order[:-1][same]] = order[1:][same]
        return behind


def run_messages(
    messages: ProgramMessages, topology: Topology, local_us_per_mb: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and end of every node, in us; -1 for those that never run."""
    routes, resources = resource_routes(topology, messages.link.tolist())
    alpha = [topology.links[link].alpha_us for link in messages.link.tolist()]
    holds = _holds(messages, routes, alpha)
    local_us: list[float] = (messages.mb[messages.count :] * local_us_per_mb).tolist()
    run = EventLoop(
        holds,
        resources,
        behind=messages.behind.tolist(),
        waits=messages.waits,
        unlocks=messages.unlocks,
        local_us=local_us,
    )
    run.until_done()
    return np.array(run.begin), np.array(run.end)


def _holds(
    messages: ProgramMessages, routes: dict[int, Route], alpha: list[float]
) -> list[list[tuple[int, float]]]:
    """For every message its resources, and the us for which it holds each."""
    holds_of: dict[tuple[int, float], list[tuple[int, float]]] = {}
    holds: list[list[tuple[int, float]]] = []
    for link, mb, fixed in zip(messages.link.tolist(), messages.mb.tolist(), alpha, strict=False):
        if (link, mb) not in holds_of:
            holds_of[link, mb] = [(resource, fixed + beta * mb) for resource, beta in routes[link]]
        holds.append(holds_of[link, mb])
    return holds
