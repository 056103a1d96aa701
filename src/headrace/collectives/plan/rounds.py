"""Exact schedules in rounds of equal length, by CP-SAT.

Where costs are multiples of one another, the best bandwidth is reached in rounds: in a round every
link carries a fixed number of chunks as one message. Boolean x[c, l, t]: chunk c is sent over link
l in round t; a rank sends chunks received in earlier rounds, receives a chunk once, and the
capacities of links and of what they share hold in every round. A group of permutations identifies
the variables of images, which divides their number by its size (and may lose solutions).

The time-expanded view is that of Ford and Fulkerson's flows over time (1958), with copies.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.collectives.plan.flows.list_schedule import needed
from headrace.collectives.plan.ir.chunks import Deliveries, Sends
from headrace.collectives.plan.ir.permutations import send_classes
from headrace.errors import InputError
from headrace.solver import Parameters, Proved, Stop, import_cp_model, solve_cpsat
from headrace.topology import Topology

_EXACTLY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InRounds:
    """Result of the search.

    Attributes
    ----------
    sends : one message a link and round; None if there is no such schedule, or none was found.
    rounds, round_us : number of rounds, and their length.
    proved : if `sends` is None, it is infeasible with this number of rounds (and symmetry).
    stop : why the solver stopped.
    """

    sends: Sends | None
    rounds: int
    round_us: float
    proved: bool
    stop: Stop


def solve_rounds(
    topology: Topology,
    deliveries: Deliveries,
    chunk_mb: float,
    round_us: float,
    rounds: int,
    *,
    symmetry: np.ndarray | None = None,
    parameters: Parameters | None = None,
) -> InRounds:
    """Search for a schedule of `deliveries` in a number of rounds.

    A link carries as many chunks a round as arrive within it by its alpha and beta.

    Parameters
    ----------
    round_us : length of a round in us.
    symmetry : (elements, ranks) int32, permutations of the ranks that are automorphisms of
        topology and deliveries; the schedule is mapped to itself by all of them.
    parameters : limits of the search (20 units of deterministic time by default); `start`
        is not used.

    Raises
    ------
    InputError : for no rounds, or a round in which nothing arrives.
    """
    if rounds < 1 or round_us <= 0 or chunk_mb <= 0:
        raise InputError(
            f"rounds is {rounds}, round_us {round_us}, chunk_mb {chunk_mb}: needs at least 1, "
            "and more than 0"
        )
    model = _Rounds(topology, deliveries, chunk_mb, round_us, rounds, symmetry)
    return model.solve(parameters or Parameters(deterministic=20.0))


def fewest_rounds(
    topology: Topology,
    deliveries: Deliveries,
    chunk_mb: float,
    *,
    symmetry: np.ndarray | None = None,
    at_least_us: float = 0.0,
    tries: int = 3,
    parameters: Parameters | None = None,
) -> InRounds:
    """Search in as few rounds as the ranks' links allow, then in one more, and so on.

    A round is the time of one chunk on the slowest link.

    Parameters
    ----------
    at_least_us : a lower bound, say of `lower_bound` or a packing.
    tries : numbers of rounds to try; if none is feasible, the last result is returned.
    symmetry, parameters : as for `solve_rounds`, for each try.

    Raises
    ------
    InputError : if a rank that wants chunks has no link.
    """
    alpha = np.array([link.alpha_us for link in topology.links])
    beta = np.array([link.beta_us_per_mb for link in topology.links])
    round_us = float((alpha + beta * chunk_mb).max(initial=0.0))
    least = _least_rounds(topology, deliveries, _whole((round_us - alpha) / (beta * chunk_mb)))
    least = max(least, int(np.ceil(at_least_us / round_us * (1 - _EXACTLY))))
    found = None
    for rounds in range(least, least + max(1, tries)):
        found = solve_rounds(
            topology,
            deliveries,
            chunk_mb,
            round_us,
            rounds,
            symmetry=symmetry,
            parameters=parameters,
        )
        if found.sends is not None:
            break
    assert found is not None
    return found


def _least_rounds(topology: Topology, deliveries: Deliveries, capacity: np.ndarray) -> int:
    """Lower bound by the ranks' links: chunks wanted in, chunks held by one rank only out."""
    n = topology.ranks
    ends = np.array([(link.src, link.dst) for link in topology.links], dtype=np.int64)
    wanted = deliveries.targets.any(axis=1)
    out, into = (np.bincount(ends[:, k], capacity, minlength=n) for k in (0, 1))
    gets = deliveries.targets.sum(axis=0)
    gives = np.bincount(deliveries.origin[wanted], minlength=n)
    least = 1
    for needs, has, way in ((gets, into, "into"), (gives, out, "out of")):
        stuck = np.flatnonzero((needs > 0) & (has == 0))
        if len(stuck):
            raise InputError(f"no link leads {way} rank {int(stuck[0])}, which needs one")
        least = max(least, int(np.ceil(needs[needs > 0] / has[needs > 0]).max(initial=1)))
    return least


class _Rounds:
    def __init__(
        self,
        topology: Topology,
        deliveries: Deliveries,
        chunk_mb: float,
        round_us: float,
        rounds: int,
        symmetry: np.ndarray | None,
    ) -> None:
        self._topology, self._deliveries = topology, deliveries
        self._round_us, self._rounds = round_us, rounds
        self._model = import_cp_model().CpModel()
        perms = [] if symmetry is None else [np.asarray(perm) for perm in symmetry]
        self._class = send_classes(topology, deliveries, perms)
        self._x: dict[tuple[int, int], Any] = {}  # (class, round): the solver's variable
        alpha = np.array([link.alpha_us for link in topology.links])
        beta = np.array([link.beta_us_per_mb for link in topology.links])
        self._capacity = _whole((round_us - alpha) / (beta * chunk_mb))
        if not self._capacity.any():
            raise InputError(
                f"round_us is {round_us}: no link carries a chunk of {chunk_mb} MB in it"
            )
        shared = [
            (list(s.links), (round_us - alpha[list(s.links)].min()) / (s.beta_us_per_mb * chunk_mb))
            for s in topology.shared
            if s.links
        ]
        self._shared = [(links, int(_whole(np.array([most]))[0])) for links, most in shared]
        self._earliest = self._hops()
        self._deliver()
        self._fit()

    def _hops(self) -> np.ndarray:
        """(ranks, ranks): least number of rounds from one to the other."""
        n = self._topology.ranks
        far = np.full((n, n), math.inf)
        far[np.arange(n), np.arange(n)] = 0
        for link, most in zip(self._topology.links, self._capacity.tolist(), strict=True):
            if most:
                far[link.src, link.dst] = 1
        for k in range(n):
            far = np.minimum(far, far[:, k, None] + far[None, k, :])
        return far

    def _var(self, chunk: int, link: int, turn: int) -> Any:
        """The variable of chunk, link and round; None where it would be 0."""
        ends, origin = self._topology.links[link], int(self._deliveries.origin[chunk])
        if ends.dst == origin or not self._capacity[link]:
            return None
        if turn < self._earliest[origin, ends.src]:
            return None
        # Useful only if a target can still be reached.
        after = self._earliest[ends.dst][self._deliveries.targets[chunk]].min(initial=math.inf)
        if turn + 1 + after > self._rounds:
            return None
        key = (int(self._class[chunk, link]), turn)
        if key not in self._x:
            self._x[key] = self._model.new_bool_var(f"x{key}")
        return self._x[key]

    def _deliver(self) -> None:
        seen: set[tuple[int, ...]] = set()
        into: list[list[int]] = [[] for _ in range(self._topology.ranks)]
        out: list[list[int]] = [[] for _ in range(self._topology.ranks)]
        for k, link in enumerate(self._topology.links):
            into[link.dst].append(k)
            out[link.src].append(k)
        for chunk in range(self._deliveries.chunks):
            origin = int(self._deliveries.origin[chunk])
            for rank in range(self._topology.ranks):
                if rank == origin:
                    continue
                # Images have the same constraint.
                key = tuple(sorted(int(k) for k in self._class[chunk, into[rank]]))
                if key in seen:
                    continue
                seen.add(key)
                arrives = [
                    [x for k in into[rank] if (x := self._var(chunk, k, turn)) is not None]
                    for turn in range(self._rounds)
                ]
                every = [x for turn in arrives for x in turn]
                if self._deliveries.targets[chunk, rank]:
                    self._model.add_exactly_one(every)
                else:
                    self._model.add_at_most_one(every)
                for turn in range(self._rounds):
                    before = [x for earlier in arrives[:turn] for x in earlier]
                    for k in out[rank]:
                        if (x := self._var(chunk, k, turn)) is not None:
                            self._model.add_bool_or([*before, ~x])

    def _fit(self) -> None:
        groups = [([k], int(most)) for k, most in enumerate(self._capacity.tolist()) if most]
        seen: set[tuple[int, ...]] = set()
        for links, most in (*groups, *self._shared):
            key = tuple(sorted(self._class[:, links].reshape(-1).tolist()))
            if key in seen:
                continue
            seen.add(key)
            for turn in range(self._rounds):
                xs = [
                    x
                    for chunk in range(self._deliveries.chunks)
                    for k in links
                    if (x := self._var(chunk, k, turn)) is not None
                ]
                if len(xs) > most:
                    self._model.add(sum(xs) <= most)

    def solve(self, parameters: Parameters) -> InRounds:
        keys = list(self._x)
        result = solve_cpsat(self._model, [self._x[key] for key in keys], parameters)
        sends = None
        if result.values is not None:
            sends = self._sends(
                {key for key, x in zip(keys, result.values, strict=True) if x > 0.5}
            )
        return InRounds(
            sends=sends,
            rounds=self._rounds,
            round_us=self._round_us,
            proved=result.proved is Proved.INFEASIBLE,
            stop=result.stop,
        )

    def _sends(self, chosen: set[tuple[int, int]]) -> Sends:
        rows: list[tuple[int, int, int]] = []  # round, link, chunk
        for turn in range(self._rounds):
            for link in range(len(self._topology.links)):
                for chunk in range(self._deliveries.chunks):
                    if (int(self._class[chunk, link]), turn) in chosen:
                        rows.append((turn, link, chunk))
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        ends = np.array([(link.src, link.dst) for link in self._topology.links], dtype=np.int32)
        src, dst = ends[table[:, 1]].reshape(-1, 2).T
        table = table[needed(self._deliveries, table[:, 2], src, dst)]
        _, message = np.unique(table[:, :2], axis=0, return_inverse=True)
        return Sends(
            chunk=table[:, 2].astype(np.int32),
            src=ends[table[:, 1], 0],
            dst=ends[table[:, 1], 1],
            reduce=np.zeros(len(table), dtype=bool),
            message=message.reshape(-1).astype(np.int32),
            start_us=table[:, 0] * self._round_us,
        )


def _whole(chunks: np.ndarray) -> np.ndarray:
    return np.floor(np.maximum(chunks, 0.0) * (1 + _EXACTLY) + _EXACTLY).astype(np.int64)
