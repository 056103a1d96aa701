"""Candidate routes: from the greedy routers, an engine and the exact model."""

from dataclasses import dataclass, replace

import numpy as np

from headrace.collectives.plan.engine import SearchSettings
from headrace.collectives.plan.generators.taccl.effort import Watch
from headrace.collectives.plan.generators.taccl.route import solve_routes
from headrace.collectives.plan.generators.taccl.router import (
    MatchingWeights,
    least_time,
    lower_time,
    matched_trees,
    priced_trees,
)
from headrace.collectives.plan.generators.taccl.routing import RouteProblem
from headrace.collectives.plan.generators.taccl.sketch.sketch import Policy
from headrace.solver import Result

_SMALL = 800
"""Route models with fewer binaries are solved to a proof; of larger ones only the root node."""

_FOR_POLICY = 6
"""Least number of restarts under the policy `MIN`, which uses few links."""

_WEIGHTS = tuple(
    MatchingWeights(arrival=arrival, rare=rare, noise=noise, needy=needy)
    for rare, noise, needy in ((1.0, 0.1, 2.0), (0.3, 0.5, 8.0), (0.0, 1.0, 0.5))
    for arrival in (0.0, 0.3, 0.6, 1.0)
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RouteCandidate:
    """Trees from one of the routers.

    Attributes
    ----------
    lower_us : the routing objective (5.2, 5.6 to 5.8).
    penalty : penalty of the sketch's switch policies (5.11), a tie-break.
    used : (chunks, ranks) start times in the router's own schedule; None if it has none.
    total_us : length of that schedule; infinite if there is none.
    """

    name: str
    trees: np.ndarray
    lower_us: float
    penalty: float = 0.0
    used: np.ndarray | None = None
    total_us: float = float("inf")

    def starts(self, *, reverse: bool) -> list[float] | None:
        """Return when the sends start, in the order of `work.spreading`; `reverse`: backwards."""
        if self.used is None:
            return None
        order = self.used[self.trees >= 0]
        return (-order if reverse else order).tolist()


def _policy(problem: RouteProblem) -> tuple[float, np.ndarray]:
    """Return 1 if few links of the switches are wanted, -1 if many, 0 if any; and those links."""
    signs = {Policy.MIN: 1.0, Policy.MAX: -1.0}
    edges = problem.logical.hyperedges
    preferences = [signs.get(edge.chosen(problem.chunk_mb * 1e6), 0.0) for edge in edges]
    links = np.zeros(len(problem.costs.src), bool)
    for edge in edges:
        links[list(edge.links)] = True
    return (preferences[0] if preferences else 0.0), links


def _candidate(
    problem: RouteProblem,
    name: str,
    trees: np.ndarray,
    used: np.ndarray | None = None,
    total_us: float = float("inf"),
) -> RouteCandidate:
    sign, links = _policy(problem)
    return RouteCandidate(
        name=name,
        trees=trees,
        lower_us=lower_time(problem, trees),
        penalty=sign * float(links[np.unique(trees[trees >= 0])].sum()),
        used=used,
        total_us=total_us,
    )


def _by_total(row: RouteCandidate) -> tuple[float, float]:
    return round(row.total_us, 6), row.penalty


def _by_lower(row: RouteCandidate) -> tuple[float, float]:
    return round(row.lower_us, 6), row.penalty


def route_candidates(
    problem: RouteProblem, watch: Watch, prefix: str
) -> tuple[list[RouteCandidate], dict[str, Result]]:
    """Return the routes to order, and the solvers' results.

    The greedy routers come first, or the engine without them, so there is always a candidate; the
    exact model starts from the best of them.
    """
    effort = watch.effort
    greedy = effort.greedy or watch.engine is None
    trees = priced_trees(problem, rounds=effort.rounds, interrupt=watch.stopped) if greedy else []
    priced = [_candidate(problem, f"priced {number}", tree) for number, tree in enumerate(trees)]
    matched = _matched(problem, watch) if greedy else []
    searched = [] if greedy and watch.stopped() else _searched(problem, watch)
    results: dict[str, Result] = {}
    modelled: list[RouteCandidate] = []
    binaries = int(problem.allowed.sum()) // max(1, problem.group.size)
    done = min((row.total_us for row in (*matched, *searched)), default=float("inf"))
    # A schedule that attains the lower bound of all routes needs no proof.
    enough = max(watch.good_us, least_time(problem)) * (1 + 1e-9)
    needs_exact = effort.route_work and binaries <= effort.route_binaries and done > enough
    if needs_exact and not watch.stopped():
        starts = sorted((*priced, *matched), key=_by_lower)
        # Time per unit of work grows steeply with the model; small models are solved to a proof.
        share = (1000 / max(1, binaries)) ** 4.2 if binaries < _SMALL else min(1.0, 1000 / binaries)
        work = min(1000 * effort.route_work, max(5, round(effort.route_work * share)))
        parameters = watch.parameters(f"{prefix}route", work, float("inf"))
        _, trees, result = solve_routes(problem, [row.trees for row in starts], parameters)
        results["route"] = result
        if trees is not None:
            modelled.append(_candidate(problem, "model", trees))
    # Candidates with schedules are compared by them; the best of every other kind is added.
    timed = sorted((*matched, *searched), key=_by_total)
    untimed = [*modelled, *sorted(priced, key=_by_lower)]
    ordered = timed[: max(1, effort.ordered - len(untimed[:2]))] + untimed
    distinct: dict[bytes, RouteCandidate] = {}
    for row in ordered:
        distinct.setdefault(row.trees.tobytes(), row)
    return list(distinct.values())[: max(1, effort.ordered)], results


def _matched(problem: RouteProblem, watch: Watch) -> list[RouteCandidate]:
    """Restart the forward-in-time router until it attains the lower bound."""
    if not problem.broadcasting:
        return []
    effort = watch.effort
    firsts = list(problem.orbits)
    choices = int(problem.allowed[firsts].sum()) * int(problem.deliveries.targets[firsts].sum())
    restarts = max(1, min(effort.restarts, effort.choices // max(1, choices)))
    enough_us = max(least_time(problem), watch.good_us)
    sign, _ = _policy(problem)
    candidates: list[RouteCandidate] = []
    for number in range(restarts):
        weights = replace(_WEIGHTS[number % len(_WEIGHTS)], fresh=-0.1 * sign)
        trees, used, total = matched_trees(
            problem, seed=watch.seed * 1009 + number, weights=weights
        )
        if not (trees >= 0)[problem.deliveries.targets].all():
            continue
        candidates.append(_candidate(problem, f"matched {number}", trees, used, total))
        attained = candidates and min(row.total_us for row in candidates) <= enough_us * (1 + 1e-9)
        # A policy chooses among several that are equally fast.
        if watch.stopped() or (attained and number + 1 >= (_FOR_POLICY if sign > 0 else 1)):
            break
    return sorted(candidates, key=_by_total)[: max(1, effort.ordered)]


def _searched(problem: RouteProblem, watch: Watch) -> list[RouteCandidate]:
    if watch.engine is None:
        return []
    settings = SearchSettings(seed=watch.seed, restarts=watch.effort.restarts)
    searched = problem.search(watch.engine, settings)
    index = problem.logical.topology.link_index
    sends = searched.sends
    pairs = zip(sends.src.tolist(), sends.dst.tolist(), strict=True)
    links = [index[pair] for pair in pairs]
    trees = np.full(problem.deliveries.targets.shape, -1, np.int32)
    used = np.full(trees.shape, np.inf)
    trees[sends.chunk, sends.dst] = links
    used[sends.chunk, sends.dst] = sends.start_us
    return [_candidate(problem, "engine", trees, used, searched.total_us)]
