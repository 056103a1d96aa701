"""Exact scheduling of small cases by CP-SAT, under the full cost model.

For every chunk and rank the solver chooses the incoming link and the time; every chunk is a
message of its own. Over link l, chunk c is an optional interval; the intervals of a resource (a
link, or a capacity that links share) do not overlap; a send begins when its chunk has come:

    x[c, l] -> start[c, l] >= there[c, src of l],   there[c, dst of l] >= start[c, l] + arrival of l
    sum of x[c, l] over links into r = 1 where r wants c, at most 1 elsewhere
    min T,   T >= there[c, r] where r wants c

This is routing (TACCL 5.1-5.15), ordering and scheduling (5.16-5.21 without contiguity) in one
model, without their relaxations. Time is an integer in a unit that divides all costs, where there
is one of use; else costs are rounded *down*, so that the solver's bound stays a bound; of the
schedule found, the order of sends counts.

The model has no messages of several chunks, which pay alpha once. They are bounded by the same
model with alpha in the arrival only, not in the time that a send holds resources. Let a message of
k chunks of c MB start at s, and all resources that it holds have the rate beta: it holds them for
alpha + k beta c. As sends of one chunk each that start at s, s + beta c, ... they hold them within
that time, and the last arrives when the message does, at s + alpha + k beta c: every schedule is
also one of the relaxed model.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.bound.counting import most_urgent_cut
from headrace.collectives.plan.cost.resources import resource_routes
from headrace.collectives.plan.ir.chunks import Deliveries, Sends
from headrace.solver import Parameters, Proved, import_cp_model, solve_cpsat
from headrace.topology import Topology

_UNITS = 20_000
"""Units of the cut bound where costs have no common unit, and most units of any cost."""


def proved_us(
    topology: Topology,
    deliveries: Deliveries,
    chunk_mb: float,
    *,
    alone: bool = False,
    deterministic: float = 0.25,
) -> float:
    """Return a lower bound for schedules of whole chunks, any number of them in a message.

    Valid if all resources of a link have one rate.

    Parameters
    ----------
    chunk_mb : size of every chunk in MB; above 0.
    alone : bound schedules that send each chunk as a message of its own; valid at any rates.
    deterministic : work limit of CP-SAT; by default a second or so.

    Raises
    ------
    ProgramError : if a chunk cannot reach a target.
    """
    if not deliveries.targets.any():
        return 0.0
    model = _Exact(topology, deliveries, chunk_mb, alpha_holds=alone)
    return model.solve(Parameters(deterministic=deterministic))[1]


def exact_sends(
    topology: Topology, deliveries: Deliveries, chunk_mb: float, parameters: Parameters
) -> tuple[Sends | None, float]:
    """Return the fastest schedule found, and a lower bound in us of those of its kind.

    Each chunk is a message of its own; rows are in order of their starts. None if none was found.

    Parameters
    ----------
    chunk_mb : size of every chunk in MB; above 0.
    parameters : limits of the search.

    Raises
    ------
    ProgramError : if a chunk cannot reach a target.
    """
    if not deliveries.targets.any():
        return Sends.of((), (), ()), 0.0
    return _Exact(topology, deliveries, chunk_mb, alpha_holds=True).solve(parameters)


def time_unit_us(costs_us: np.ndarray) -> float | None:
    """Return the largest unit that divides all `costs_us`; None if it is very small."""
    fractions = [Fraction(float(us)).limit_denominator(10_000) for us in np.unique(costs_us)]
    if any(
        abs(float(fraction) - us) > 1e-12 * us
        for fraction, us in zip(fractions, np.unique(costs_us).tolist(), strict=True)
    ):
        return None
    denominator = math.lcm(*(fraction.denominator for fraction in fractions))
    numerators = [int(fraction * denominator) for fraction in fractions]
    unit = Fraction(math.gcd(*numerators), denominator)
    return float(unit) if unit > 0 and max(fractions) / unit <= _UNITS else None


class _Exact:
    def __init__(
        self, topology: Topology, deliveries: Deliveries, chunk_mb: float, *, alpha_holds: bool
    ) -> None:
        self._topology, self._deliveries = topology, deliveries
        self._ends = [(link.src, link.dst) for link in topology.links]
        ways, self._resources = resource_routes(topology, range(len(self._ends)), keep_links=True)
        alpha = [link.alpha_us for link in topology.links]
        # By link: time that it holds every resource, and time to the arrival of the chunk.
        every = range(len(self._ends))
        costs_of_link = [[(resource, beta * chunk_mb) for resource, beta in ways[k]] for k in every]
        self._takes = [
            us + max(resource_us for _, resource_us in row)
            for us, row in zip(alpha, costs_of_link, strict=True)
        ]
        self._holds = [
            [
                (resource, us + resource_us if alpha_holds else resource_us)
                for resource, resource_us in row
            ]
            for us, row in zip(alpha, costs_of_link, strict=True)
        ]
        self._cut_us = most_urgent_cut(topology, deliveries, chunk_mb).us
        costs = [*self._takes, *(us for link_holds in self._holds for _, us in link_holds)]
        unit = time_unit_us(np.array(costs))
        self._unit = unit or self._cut_us / _UNITS
        self._far = self._distances()
        some = int(deliveries.targets.any(axis=1).sum())  # all sends one after the other
        self._horizon = some * topology.ranks * self._units(max(self._takes)) + 1
        self._model = import_cp_model().CpModel()
        self._x: dict[tuple[int, int], Any] = {}  # by chunk and link: whether it is sent,
        self._start: dict[tuple[int, int], Any] = {}  # and when
        self._there: dict[tuple[int, int], Any] = {}  # by chunk and rank: when it arrives
        self._span = self._model.new_int_var(self._units(self._cut_us), self._horizon, "T")
        for chunk in np.flatnonzero(deliveries.targets.any(axis=1)).tolist():
            self._route(chunk)
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
            least = int(self._far[origin, rank])
            there = self._model.new_int_var(least, self._horizon, f"there{len(self._there)}")
            self._there[chunk, rank] = there
            if self._deliveries.targets[chunk, rank]:
                self._model.add(self._span >= there)
        return self._there[chunk, rank]

    def _route(self, chunk: int) -> None:
        origin = int(self._deliveries.origin[chunk])
        useful = [k for k in range(len(self._ends)) if self._useful(chunk, k)]
        into: list[list[Any]] = [[] for _ in range(self._topology.ranks)]
        for k in useful:
            src, dst = self._ends[k]
            x = self._x[chunk, k] = self._model.new_bool_var(f"x{chunk}/{k}")
            least = int(self._far[origin, src])
            self._start[chunk, k] = self._model.new_int_var(least, self._horizon, f"s{chunk}/{k}")
            into[dst].append(x)
        for rank, xs in enumerate(into):
            if self._deliveries.targets[chunk, rank]:
                self._model.add_exactly_one(xs)
            elif rank != origin:
                self._model.add_at_most_one(xs)
        for k in useful:
            src, dst = self._ends[k]
            x, start = self._x[chunk, k], self._start[chunk, k]
            if src != origin:
                self._model.add_bool_or([*into[src], ~x])
                self._model.add(start >= self._there_at(chunk, src)).only_enforce_if(x)
            arrives = start + self._units(self._takes[k])
            self._model.add(self._there_at(chunk, dst) >= arrives).only_enforce_if(x)

    def _hold(self) -> None:
        users: list[list[tuple[int, float]]] = [[] for _ in range(self._resources)]
        for k, holds in enumerate(self._holds):
            for resource, us in holds:
                users[resource].append((k, us))
        seen: set[tuple[tuple[tuple[int, int], int], ...]] = set()
        for using in users:
            rows = [
                (name, self._units(us))
                for k, us in using
                for name in ((chunk, k) for chunk in range(self._deliveries.chunks))
                if name in self._x
            ]
            key = tuple(sorted(rows))
            if len(rows) < 2 or key in seen:
                continue
            seen.add(key)
            intervals = [
                self._model.new_optional_fixed_size_interval_var(
                    self._start[name], size, self._x[name], f"i{name[0]}/{name[1]}"
                )
                for name, size in rows
            ]
            self._model.add_no_overlap(intervals)

    def solve(self, parameters: Parameters) -> tuple[Sends | None, float]:
        variables = [*self._x.values(), *self._start.values()]
        result = solve_cpsat(self._model, variables, parameters)
        assert result.proved is not Proved.INFEASIBLE, "always feasible"
        bound = result.bound * self._unit if math.isfinite(result.bound) else 0.0
        sends = None if result.values is None else self._sends(result.values)
        return sends, max(self._cut_us, bound)

    def _sends(self, values: np.ndarray) -> Sends:
        """Sends that lead to a target, by start; the model permits others, which take time."""
        chosen, starts = values.reshape(2, -1).tolist()
        into = {
            (chunk, self._ends[k][1]): (start, chunk, *self._ends[k])
            for (chunk, k), used, start in zip(self._x, chosen, starts, strict=True)
            if used > 0.5
        }
        rows: list[tuple[float, int, int, int]] = []
        for chunk, rank in np.argwhere(self._deliveries.targets).tolist():
            end = len(rows)
            while (chunk, rank) in into:
                rows.insert(end, into.pop((chunk, rank)))
                rank = rows[end][2]
        rows.sort(key=lambda row: row[0])  # stable: where a send takes 0 units, in their order
        return Sends.of(*np.array(rows)[:, 1:].T)
