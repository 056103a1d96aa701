"""Exact scheduling of small cases by CP-SAT, under the full cost model.

For every chunk and rank the solver chooses the incoming link and the time; every chunk is a
message of its own. Over link l, chunk c is an optional interval; the intervals of a resource (a
link, or a capacity that links share) do not overlap; a send begins when its chunk is there:

    x[c, l] -> start[c, l] >= there[c, src of l],   there[c, dst of l] >= start[c, l] + arrival of l
    sum of x[c, l] over links into r = 1 where r wants c, at most 1 elsewhere
    min T,   T >= there[c, r] where r wants c

This is routing (TACCL 5.1-5.15), ordering and scheduling (5.16-5.21 without contiguity) in one
model, without their relaxations. Time is an integer in a unit that divides all costs, where there
is one of use; else costs are rounded *down*, so that the solver's bound stays a bound, and the
schedule found is timed again with the true costs.

The model has no messages of several chunks, which pay alpha once. They are bounded by the same
model with alpha in the arrival only, not in the time that a send holds resources (`proved_us`). Let
a message of k chunks of c MB start at s, and all resources that it holds have the rate beta: it
holds them for alpha + k beta c. As sends of one chunk each that start at s, s + beta c, ... they
hold them within that time, and the last arrives when the message does, at s + alpha + k beta c:
every schedule is also one of the relaxed model.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.bound.counting import most_urgent_cut
from headrace.collectives.plan.cost.resources import resource_routes
from headrace.collectives.plan.flows.list_schedule import needed
from headrace.collectives.plan.ir.chunks import Deliveries, Sends
from headrace.solver import Parameters, Proved, Stop, import_cp_model, solve_cpsat
from headrace.topology import Topology

_UNITS = 20_000
"""Units of the cut bound where costs have no common unit, and most units of any cost."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exact:
    """The best schedule found, and a lower bound.

    Attributes
    ----------
    sends : one chunk a message, with `start_us`; None if none was found.
    total_us : arrival of the last chunk, with the true costs; infinite without sends.
    bound_us : lower bound for schedules that send each chunk as one message.
    stop : why the solver stopped.
    """

    sends: Sends | None
    total_us: float
    bound_us: float
    stop: Stop

    @property
    def optimal(self) -> bool:
        """Return whether `sends` is proved optimal."""
        return self.total_us <= self.bound_us * (1 + 1e-9)


def exact_schedule(
    topology: Topology,
    deliveries: Deliveries,
    chunk_mb: float,
    *,
    parameters: Parameters | None = None,
) -> Exact:
    """Search for the fastest schedule of `deliveries`.

    Parameters
    ----------
    chunk_mb : size of every chunk in MB; above 0.
    parameters : limits of the search (10 units of deterministic time by default); `start`
        is not used.

    Raises
    ------
    ProgramError : if a chunk cannot reach a target.
    """
    if not deliveries.targets.any():
        return Exact(sends=Sends.of((), (), ()), total_us=0.0, bound_us=0.0, stop=Stop.DONE)
    limits = parameters or Parameters(deterministic=10.0)
    return _Exact(topology, deliveries, chunk_mb).solve(limits)


def proved_us(topology: Topology, deliveries: Deliveries, chunk_mb: float) -> float:
    """Return a lower bound for schedules of whole chunks, any number of them in a message.

    Solved for a quarter of a unit of deterministic time, a second or so. Valid if all resources of
    a link have one rate.

    Raises
    ------
    ProgramError : if a chunk cannot reach a target.
    """
    model = _Exact(topology, deliveries, chunk_mb, alpha_holds=False)
    return model.solve(Parameters(deterministic=0.25)).bound_us


def time_unit_us(costs_us: np.ndarray) -> float | None:
    """Return the largest unit that divides all `costs_us`; None if it is very small."""
    fractions = [Fraction(float(us)).limit_denominator(10_000) for us in np.unique(costs_us)]
    if any(
        abs(float(fraction) - us) > 1e-12 * us
        for fraction, us in zip(fractions, np.unique(costs_us).tolist(), strict=True)
    ):
        return None
    denominator = math.lcm(*(fraction.denominator for fraction in fractions))
    whole = [int(fraction * denominator) for fraction in fractions]
    unit = Fraction(math.gcd(*whole), denominator)
    return float(unit) if unit > 0 and max(fractions) / unit <= _UNITS else None


_Hop = tuple[int, int]
"""Chunk and link."""


class _Exact:
    def __init__(
        self,
        topology: Topology,
        deliveries: Deliveries,
        chunk_mb: float,
        *,
        alpha_holds: bool = True,
    ) -> None:
        self._topology, self._deliveries = topology, deliveries
        self._ends = [(link.src, link.dst) for link in topology.links]
        ways, self._resources = resource_routes(topology, range(len(self._ends)), keep_links=True)
        alpha = [link.alpha_us for link in topology.links]
        # By link: time that it holds every resource, and time to the arrival of the chunk.
        every = range(len(self._ends))
        each = [[(resource, beta * chunk_mb) for resource, beta in ways[k]] for k in every]
        self._takes = [
            us + max(held for _, held in row) for us, row in zip(alpha, each, strict=True)
        ]
        self._holds = [
            [(resource, us + held if alpha_holds else held) for resource, held in row]
            for us, row in zip(alpha, each, strict=True)
        ]
        self._cut_us = most_urgent_cut(topology, deliveries, chunk_mb).us
        costs = [*self._takes, *(us for held in self._holds for _, us in held)]
        unit = time_unit_us(np.array(costs))
        self._exactly = unit is not None
        self._unit = unit or self._cut_us / _UNITS
        self._far = self._distances()
        # At most all sends are one after the other.
        sending = int(deliveries.targets.any(axis=1).sum())
        self._horizon = sending * topology.ranks * self._units(max(self._takes)) + 1
        self._model = import_cp_model().CpModel()
        self._x: dict[_Hop, Any] = {}  # whether it is sent
        self._start: dict[_Hop, Any] = {}
        self._there: dict[tuple[int, int], Any] = {}  # by chunk and rank
        self._span = self._model.new_int_var(self._units(self._cut_us), self._horizon, "T")
        self._route()
        self._hold()
        self._model.minimize(self._span)

    def _units(self, us: float) -> int:
        """Convert to units, rounded down but for rounding errors."""
        return math.floor(us / self._unit * (1 + 1e-9) + 1e-9)

    def _distances(self) -> np.ndarray:
        n = self._topology.ranks
        far = np.full((n, n), math.inf)
        np.fill_diagonal(far, 0.0)
        for (src, dst), us in zip(self._ends, self._takes, strict=True):
            far[src, dst] = self._units(us)
        for k in range(n):
            far = np.minimum(far, far[:, k, None] + far[None, k, :])
        for chunk, rank in zip(*np.nonzero(self._deliveries.targets), strict=True):
            if not math.isfinite(far[self._deliveries.origin[chunk], rank]):
                raise ProgramError(
                    f"chunk {int(chunk)} cannot get from rank "
                    f"{int(self._deliveries.origin[chunk])} to rank {int(rank)}; add a link"
                )
        return far

    def _useful(self, chunk: int, link: int) -> bool:
        src, dst = self._ends[link]
        origin = int(self._deliveries.origin[chunk])
        onward = self._far[dst][self._deliveries.targets[chunk]].min(initial=math.inf)
        return dst != origin and math.isfinite(self._far[origin, src] + onward)

    def _there_at(self, chunk: int, rank: int) -> Any:
        """Time at which the chunk is at the rank."""
        origin = int(self._deliveries.origin[chunk])
        if rank == origin:
            return 0
        if (chunk, rank) not in self._there:
            least, name = int(self._far[origin, rank]), f"there{len(self._there)}"
            made = self._there[chunk, rank] = self._model.new_int_var(least, self._horizon, name)
            if self._deliveries.targets[chunk, rank]:
                self._model.add(self._span >= made)
        return self._there[chunk, rank]

    def _route(self) -> None:
        for chunk in range(self._deliveries.chunks):
            if not self._deliveries.targets[chunk].any():
                continue
            origin = int(self._deliveries.origin[chunk])
            useful = [k for k in range(len(self._ends)) if self._useful(chunk, k)]
            for k in useful:
                self._x[chunk, k] = self._model.new_bool_var(f"x{chunk}-{k}")
                least, name = int(self._far[origin, self._ends[k][0]]), f"s{chunk}-{k}"
                self._start[chunk, k] = self._model.new_int_var(least, self._horizon, name)
            brings: dict[int, list[Any]] = {rank: [] for rank in range(self._topology.ranks)}
            for k in useful:
                brings[self._ends[k][1]].append(self._x[chunk, k])
            for rank, xs in brings.items():
                if rank != origin and self._deliveries.targets[chunk, rank]:
                    self._model.add_exactly_one(xs)
                elif rank != origin:
                    self._model.add_at_most_one(xs)
            for k in useful:
                src, dst = self._ends[k]
                x, start = self._x[chunk, k], self._start[chunk, k]
                if src != origin:
                    self._model.add_bool_or([*brings[src], ~x])
                    self._model.add(start >= self._there_at(chunk, src)).only_enforce_if(x)
                arrives = start + self._units(self._takes[k])
                self._model.add(self._there_at(chunk, dst) >= arrives).only_enforce_if(x)

    def _hold(self) -> None:
        users: list[list[tuple[int, float]]] = [[] for _ in range(self._resources)]
        for k, held in enumerate(self._holds):
            for resource, us in held:
                users[resource].append((k, us))
        seen: set[tuple[tuple[_Hop, int], ...]] = set()
        for using in users:
            rows = [
                (hop, self._units(us))
                for k, us in using
                for hop in ((chunk, k) for chunk in range(self._deliveries.chunks))
                if hop in self._x
            ]
            key = tuple(sorted(rows))
            if len(rows) < 2 or key in seen:
                continue
            seen.add(key)
            intervals = [
                self._model.new_optional_fixed_size_interval_var(
                    self._start[hop], size, self._x[hop], f"i{hop[0]}-{hop[1]}"
                )
                for hop, size in rows
            ]
            self._model.add_no_overlap(intervals)

    def solve(self, parameters: Parameters) -> Exact:
        variables = [*self._x.values(), *self._start.values()]
        result = solve_cpsat(self._model, variables, parameters)
        assert result.proved is not Proved.INFEASIBLE, "always feasible"
        bound = self._cut_us
        if math.isfinite(result.bound):
            bound = max(bound, result.bound * self._unit)
        sends, total = None, math.inf
        if result.values is not None:
            chosen, starts = result.values.reshape(2, -1).tolist()
            rows = zip(starts, chosen, self._x, strict=True)
            sent = sorted((start, k, chunk) for start, used, (chunk, k) in rows if used > 0.5)
            sends, total = self._timed(self._needed(sent))
        return Exact(sends=sends, total_us=total, bound_us=bound, stop=result.stop)

    def _needed(self, rows: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
        """Drop sends to ranks that neither want nor forward the chunk, which the model permits."""
        ends = np.array([self._ends[k] for _, k, _ in rows], dtype=np.int64).reshape(-1, 2)
        keep = needed(
            self._deliveries, np.array([chunk for *_, chunk in rows]), ends[:, 0], ends[:, 1]
        )
        return [row for row, kept in zip(rows, keep.tolist(), strict=True) if kept]

    def _timed(self, rows: list[tuple[float, int, int]]) -> tuple[Sends, float]:
        """List scheduling of the rows, in this order, with the true costs."""
        free = [0.0] * self._resources
        there = {(c, int(o)): 0.0 for c, o in enumerate(self._deliveries.origin)}
        made: list[tuple[float, int, int]] = []
        for _, k, chunk in rows:
            src, dst = self._ends[k]
            start = max(there[chunk, src], *(free[resource] for resource, _ in self._holds[k]))
            for resource, us in self._holds[k]:
                free[resource] = start + us
            there[chunk, dst] = start + self._takes[k]
            made.append((start, k, chunk))
        made.sort(key=lambda row: row[0])
        table = np.array([row[1:] for row in made], dtype=np.int64).reshape(-1, 2)
        ends = np.array(self._ends, dtype=np.int32).reshape(-1, 2)
        sends = Sends.of(table[:, 1], *ends[table[:, 0]].T, start_us=[row[0] for row in made])
        return sends, max((there[key] for key in there), default=0.0)
