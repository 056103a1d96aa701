"""Ways to route: what the greedy routers, an engine and the exact model come up with."""

from dataclasses import dataclass

import numpy as np

from headrace.collectives.plan.effort import Watch
from headrace.collectives.plan.route import solve_routes
from headrace.collectives.plan.router import Taste, lower_time, matched_trees, priced_trees
from headrace.collectives.plan.routing import RouteProblem
from headrace.collectives.plan.search import Routes, SearchSettings
from headrace.solver import Result

_TASTES = tuple(
    Taste(arrival=arrival, rare=rare, noise=noise)
    for rare, noise in ((1.0, 0.1), (0.3, 0.5), (0.0, 1.0))
    for arrival in (0.0, 0.3, 0.6, 1.0)
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """Trees from somewhere.

    Attributes
    ----------
    lower_us : the routing objective (5.2, 5.6 to 5.8).
    used : (chunks, ranks) when their maker had each link in use; None if it did not say.
    total_us : by those times; infinite if there are none.
    """

    name: str
    trees: np.ndarray
    lower_us: float
    used: np.ndarray | None = None
    total_us: float = float("inf")

    def starts(self, *, reverse: bool) -> list[float] | None:
        """Return when the sends start, in the order of `work.spreading`; `reverse`: backwards."""
        if self.used is None:
            return None
        made = self.used[self.trees >= 0]
        return (-made if reverse else made).tolist()


def route_candidates(
    problem: RouteProblem, watch: Watch, prefix: str
) -> tuple[list[Candidate], dict[str, Result]]:
    """Return the routes to go on with, and what solvers said.

    The greedy routers come first, so there is always an answer; the exact model starts from the
    best of them.
    """
    effort = watch.effort
    priced = [
        Candidate(name=f"priced {number}", trees=trees, lower_us=lower_time(problem, trees))
        for number, trees in enumerate(
            priced_trees(problem, rounds=effort.rounds, interrupt=watch.stopped)
        )
    ]
    matched = _matched(problem, watch, min(row.lower_us for row in priced))
    searched = _searched(problem, watch)
    results: dict[str, Result] = {}
    modelled: list[Candidate] = []
    binaries = int(problem.allowed.sum()) // max(1, problem.group.size)
    done = min((row.total_us for row in (*matched, *searched)), default=float("inf"))
    wanted = effort.route_looks and binaries <= effort.route_binaries and done > watch.good_us
    if wanted and not watch.stopped():
        starts = sorted((*priced, *matched), key=lambda row: row.lower_us)
        looks = max(5, round(effort.route_looks * 1000 / max(1, binaries)))
        parameters = watch.parameters(f"{prefix}route", looks, float("inf"))
        _, trees, result = solve_routes(problem, [row.trees for row in starts], parameters)
        results["route"] = result
        if trees is not None:
            lower = lower_time(problem, trees)
            modelled.append(Candidate(name="model", trees=trees, lower_us=lower))
    # Those with times of their own are compared by them; one of every other kind goes along.
    timed = sorted((*matched, *searched), key=lambda row: row.total_us)
    rest = [*modelled, *sorted(priced, key=lambda row: row.lower_us)]
    kept = timed[: max(1, effort.ordered - len(rest[:2]))] + rest
    return _distinct(kept)[: max(1, effort.ordered)], results


def _distinct(rows: list[Candidate]) -> list[Candidate]:
    seen: set[bytes] = set()
    kept: list[Candidate] = []
    for row in rows:
        key = row.trees.tobytes()
        if key not in seen:
            seen.add(key)
            kept.append(row)
    return kept


def _matched(problem: RouteProblem, watch: Watch, enough_us: float) -> list[Candidate]:
    """Restart the forward-in-time router until it attains what routing by price alone promises."""
    if not problem.broadcasting:
        return []
    effort = watch.effort
    firsts = np.unique(problem.orbits[0])
    choices = int(problem.allowed[firsts].sum()) * int(problem.carriage.targets[firsts].sum())
    restarts = max(1, min(effort.restarts, effort.choices // max(1, choices)))
    made: list[Candidate] = []
    for number in range(restarts):
        taste = _TASTES[number % len(_TASTES)]
        trees, used, total = matched_trees(problem, seed=watch.seed * 1009 + number, taste=taste)
        if not _complete(problem, trees):
            continue
        lower = lower_time(problem, trees)
        name = f"matched {number}"
        made.append(Candidate(name=name, trees=trees, lower_us=lower, used=used, total_us=total))
        if total <= max(enough_us, watch.good_us) * (1 + 1e-9) or watch.stopped():
            break
    return sorted(made, key=lambda row: row.total_us)[: max(1, effort.ordered)]


def _complete(problem: RouteProblem, trees: np.ndarray) -> bool:
    return bool((trees >= 0)[problem.carriage.targets].all())


def _searched(problem: RouteProblem, watch: Watch) -> list[Candidate]:
    if watch.engine is None or watch.stopped():
        return []
    first = np.concatenate(([0], np.cumsum(problem.allowed.sum(axis=1)))).astype(np.int64)
    found = watch.engine.search(
        problem.logical.topology,
        problem.carriage,
        problem.chunk_mb,
        routes=Routes(first=first, link=np.nonzero(problem.allowed)[1].astype(np.int32)),
        symmetry=problem.group.ranks.astype(np.int32) if problem.group.size > 1 else None,
        settings=SearchSettings(seed=watch.seed, restarts=watch.effort.restarts),
    )
    index = problem.logical.topology.link_index
    sends = found.sends
    pairs = zip(sends.src.tolist(), sends.dst.tolist(), strict=True)
    links = [index[pair] for pair in pairs]
    trees = np.full(problem.carriage.targets.shape, -1, np.int32)
    used = np.full(trees.shape, np.inf)
    trees[sends.chunk, sends.dst] = links
    used[sends.chunk, sends.dst] = sends.start_us
    lower = lower_time(problem, trees)
    return [
        Candidate(name="engine", trees=trees, lower_us=lower, used=used, total_us=found.total_us)
    ]
