"""Routing as a mixed-integer linear program (TACCL 5.5.1, equations 5.1 to 5.15).

Symmetry is not a set of equations here: variables that a symmetry makes equal (5.12 to 5.14) are
one variable, so the model shrinks with the group. ``send`` does not appear either: a send that
starts when its chunk arrives is as good as one that waits, so 5.4 and 5.5 come together in
``is_sent -> start[c, r] >= start[c, src] + lat``.

The objective is a relaxation: loads count only in aggregate. Its value is no schedule's time and
its bound no bound on one. A policy's term (5.11) is kept apart from both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.collectives.plan.generators.taccl.router import arrivals, lower_time
from headrace.collectives.plan.generators.taccl.routing import RouteProblem
from headrace.collectives.plan.generators.taccl.sketch.sketch import Policy, Strategy
from headrace.solver import LinearModel, Parameters, Result, solve

_POLICY_SHARE = 1e-3
"""Largest term of policies in the objective, as a share of the horizon: it only breaks ties."""


_Loads = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(link, variable, us) of every send within a node."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RouteModel:
    """The encoded problem.

    Attributes
    ----------
    sent : (chunks, links) the variable of ``is_sent``; -1 where a chunk may not go.
    start : (chunks, ranks) the variable of ``start``; -1 where a chunk never comes.
    used : (links,) the variable of ``is_util``; -1 where no policy applies.
    time : the variable of ``time``.
    extreme : the variable of the largest (smallest) load within nodes; -1 without.
    """

    problem: RouteProblem
    model: LinearModel
    sent: np.ndarray
    start: np.ndarray
    used: np.ndarray
    time: int
    extreme: int
    loads: _Loads

    def values(self, trees: np.ndarray) -> np.ndarray | None:
        """Return the variables' values for `trees`; None if they break a symmetry."""
        problem, solution = self.problem, np.zeros(self.model.variables)
        rows, ranks = np.nonzero(trees >= 0)
        sent = np.zeros((problem.deliveries.chunks, len(problem.costs.src)))
        sent[rows, trees[rows, ranks]] = 1.0
        there = self.sent >= 0
        solution[self.sent[there]] = sent[there]
        if not np.array_equal(solution[self.sent[there]], sent[there]):
            return None
        time = arrivals(problem, trees)
        reachable = (self.start >= 0) & np.isfinite(time)
        np.maximum.at(solution, self.start[reachable], time[reachable])
        idle = (self.start >= 0) & ~np.isfinite(time)
        lower, _ = self.model.bounds()
        np.maximum.at(solution, self.start[idle], lower[self.start[idle]])
        solution[self.time] = lower_time(problem, trees)
        loaded = np.asarray(sent.any(axis=0))
        modelled = self.used >= 0
        np.maximum.at(solution, self.used[modelled], loaded[modelled].astype(float))
        if self.extreme >= 0:
            link, column, us = self.loads
            load = np.bincount(link, weights=us * solution[column])[np.unique(link)]
            most = problem.logical.strategy is Strategy.MINMAX
            solution[self.extreme] = load.max() if most else load.min()
        return solution

    def trees(self, values: np.ndarray) -> np.ndarray:
        """Return the trees of a solution, without branches that reach no target."""
        problem = self.problem
        made = np.full((problem.deliveries.chunks, problem.deliveries.ranks), -1, np.int32)
        chunk, link = np.nonzero(self.sent >= 0)
        taken = values[self.sent[chunk, link]] > 0.5
        chunk, link = chunk[taken], link[taken]
        made[chunk, problem.costs.dst[link]] = link
        unserved = problem.deliveries.targets.copy()
        for _ in range(made.shape[1]):
            rows, ranks = np.nonzero((made >= 0) & unserved)
            parents = problem.costs.src[made[rows, ranks]]
            if unserved[rows, parents].all():
                break
            unserved[rows, parents] = True
        made[~unserved] = -1
        return made


def encode_routes(problem: RouteProblem, horizon: float) -> RouteModel:
    """Encode 5.1 to 5.15 and the text beside them; `horizon` bounds all times (us).

    Beside the equations: every wanted chunk is delivered exactly once and nothing returns to where
    it came from; a chunk that a rank did not receive is not sent on; only ranks on shortest paths
    take part (`RouteProblem.allowed`).
    """
    model = LinearModel()
    sent, x_count = _tied_sends(problem)
    x = model.add_binaries(x_count)
    sent = np.where(sent >= 0, x[sent], -1)
    start, earliest = _tied_starts(problem)
    origin = start[np.arange(problem.deliveries.chunks), problem.deliveries.origin]
    latest = np.full(len(earliest), horizon)
    latest[origin] = 0.0  # 5.3
    s = model.add_variables(len(earliest), lower=earliest, upper=latest)
    start = np.where(start >= 0, s[np.maximum(start, 0)], -1)
    time = int(model.add_variables(1, upper=horizon, cost=1.0)[0])  # 5.1
    target_starts = np.unique(start[problem.deliveries.targets])
    model.add_differences(time, target_starts)  # 5.2
    _causality(model, problem, sent, start)
    _delivery(model, problem, sent)
    loads = _loads(model, problem, sent, time)
    used = _policies(model, problem, sent, horizon)
    extreme = _extremes(model, problem, loads, horizon)
    return RouteModel(
        problem=problem,
        model=model,
        sent=sent,
        start=start,
        used=used,
        time=time,
        extreme=extreme,
        loads=loads,
    )


def solve_routes(
    problem: RouteProblem, starts: Sequence[np.ndarray], parameters: Parameters
) -> tuple[RouteModel, np.ndarray | None, Result]:
    """Solve the model from the best of `starts`; return it, its trees (or None) and the result."""
    horizon = min(lower_time(problem, trees) for trees in starts) * (1 + 1e-6) + 1e-6
    encoded = encode_routes(problem, horizon)
    start_values = [
        encoded.values(trees) for trees in starts if lower_time(problem, trees) <= horizon
    ]
    first = next((values for values in start_values if values is not None), None)
    result = solve(encoded.model, replace(parameters, start=first))
    trees = encoded.trees(result.values) if result.values is not None else None
    return encoded, trees, result


def _classes(size: int, pairs: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Number the classes of 0 to size - 1 that `pairs` tie together."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    rows = np.concatenate([a for a, _ in pairs]) if pairs else np.empty(0, np.int64)
    columns = np.concatenate([b for _, b in pairs]) if pairs else np.empty(0, np.int64)
    graph = csr_array((np.ones(len(rows)), (rows, columns)), shape=(size, size))
    return connected_components(graph, directed=False)[1].astype(np.int64)


def _tied_sends(problem: RouteProblem) -> tuple[np.ndarray, int]:
    """5.14: (chunks, links) class of ``is_sent``; only sends within a part are tied (5.4.1)."""
    chunk, link = np.nonzero(problem.allowed)
    number = np.full(problem.allowed.shape, -1, np.int64)
    number[chunk, link] = np.arange(len(chunk))
    ties: list[tuple[np.ndarray, np.ndarray]] = []
    for _, links, chunks, bound in problem.images:
        mine = bound[link]
        ties.append(
            (number[chunk[mine], link[mine]], number[chunks[chunk[mine]], links[link[mine]]])
        )
    classes = _classes(len(chunk), ties)
    number[chunk, link] = classes
    return number, int(classes.max(initial=-1)) + 1


def _tied_starts(problem: RouteProblem) -> tuple[np.ndarray, np.ndarray]:
    """5.12: (chunks, ranks) class of ``start``, and of every class the earliest time."""
    deliveries = problem.deliveries
    comes = np.zeros(deliveries.targets.shape, bool)
    chunk, link = np.nonzero(problem.allowed)
    comes[chunk, problem.costs.dst[link]] = True
    comes[np.arange(deliveries.chunks), deliveries.origin] = True
    rows, ranks = np.nonzero(comes)
    number = np.full(comes.shape, -1, np.int64)
    number[rows, ranks] = np.arange(len(rows))
    ties = [
        (number[rows, ranks], number[chunks[rows], moved[ranks]])
        for moved, _, chunks, bound in problem.images
        if bound.all()  # with sends left free between parts, arrivals need not be alike
    ]
    classes = _classes(len(rows), ties)
    number[rows, ranks] = classes
    earliest = np.zeros(int(classes.max(initial=-1)) + 1)
    return number, earliest


def _causality(
    model: LinearModel, problem: RouteProblem, sent: np.ndarray, start: np.ndarray
) -> None:
    """5.4 and 5.5: is_sent[c, src, r] -> start[c, r] >= start[c, src] + lat(src, r)."""
    chunk, link = np.nonzero(sent >= 0)
    table = np.stack(
        (sent[chunk, link], start[chunk, problem.costs.dst[link]],
         start[chunk, problem.costs.src[link]]), axis=1
    )  # fmt: skip
    # A chunk never reaches a rank without an allowed inbound link, so it cannot leave it either.
    never = table[:, 2] < 0
    if never.any():
        off = np.unique(table[never, 0])
        model.add_rows(np.arange(len(off)), off, 1.0, upper=0.0)
    _, first = np.unique(table, axis=0, return_index=True)
    first = first[~never[first]]
    table, lat = table[first], problem.costs.lat[link[first]]
    same = table[:, 1] == table[:, 2]  # a symmetry may put both ends into one class: infeasible
    off = np.unique(table[same, 0])
    model.add_rows(np.arange(len(off)), off, 1.0, upper=0.0, count=len(off))
    table = table[~same]
    model.add_differences(table[:, 1], table[:, 2], lat[~same], binaries=table[:, 0])


def _delivery(model: LinearModel, problem: RouteProblem, sent: np.ndarray) -> None:
    """Deliver once where wanted, at most once elsewhere; forward only received chunks; 5.15."""
    deliveries, costs = problem.deliveries, problem.costs
    chunk, link = np.nonzero(sent >= 0)
    dst = costs.dst[link]
    n = deliveries.ranks
    place, columns = chunk * n + dst, sent[chunk, link]
    is_target = deliveries.targets.ravel()
    _unique_rows(model, place, columns, np.ones(len(place)), np.where(is_target, 1.0, 0.0), 1.0)
    # Sends from a rank that does not want the chunk must not exceed its receives.
    src = costs.src[link]
    relays = ~deliveries.targets[chunk, src] & (src != deliveries.origin[chunk])
    out = np.flatnonzero(relays)
    into: dict[int, list[int]] = {}
    for at, column in zip(place.tolist(), columns.tolist(), strict=True):
        into.setdefault(at, []).append(column)
    rows: list[int] = []
    entries: list[int] = []
    signs: list[float] = []
    for row, at in enumerate(out.tolist()):
        received = into.get(int(chunk[at]) * n + int(src[at]), [])
        rows += [row] * (len(received) + 1)
        entries += [*received, int(columns[at])]
        signs += [1.0] * len(received) + [-1.0]
    zeros = np.zeros(len(out))
    _unique_rows(model, np.array(rows, np.int64), np.array(entries, np.int64), np.array(signs),
                 zeros, np.inf)  # fmt: skip
    _crossings(model, problem, chunk, link, columns)


def _crossings(
    model: LinearModel,
    problem: RouteProblem,
    chunk: np.ndarray,
    link: np.ndarray,
    columns: np.ndarray,
) -> None:
    """5.15: into every node that wants a chunk from elsewhere at least one send crosses."""
    host = np.array(problem.logical.topology.rank_host)
    hosts = int(host.max()) + 1
    to = host[problem.costs.dst[link]]
    crosses = host[problem.costs.src[link]] != to
    needs = np.zeros((problem.deliveries.chunks, hosts), bool)
    rows, ranks = np.nonzero(problem.deliveries.targets)
    needs[rows, host[ranks]] = True
    needs[np.arange(len(needs)), host[problem.deliveries.origin]] = False
    place = (chunk * hosts + to)[crosses]
    lower = needs.ravel().astype(float)
    _unique_rows(model, place, columns[crosses], np.ones(len(place)), lower, np.inf)


def _unique_rows(
    model: LinearModel,
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    lower: np.ndarray,
    upper: float,
) -> None:
    """Add rows, of equal ones (which symmetry makes many) only the first."""
    if not len(rows):
        return
    from scipy import sparse

    table = sparse.csr_array((values, (rows, columns)), shape=(len(lower), model.variables))
    table.sum_duplicates()
    table.sort_indices()
    seen: set[tuple[bytes, bytes, float]] = set()
    distinct_rows: list[int] = []
    first = table.indptr
    for row in np.flatnonzero(np.diff(first)).tolist():
        part = slice(first[row], first[row + 1])
        key = (table.indices[part].tobytes(), table.data[part].tobytes(), float(lower[row]))
        if key not in seen:
            seen.add(key)
            distinct_rows.append(row)
    distinct = sparse.coo_array(table[distinct_rows])
    model.add_rows(
        distinct.row,
        distinct.col,
        distinct.data,
        lower=lower[distinct_rows],
        upper=upper,
        count=len(distinct_rows),
    )


def _loads(model: LinearModel, problem: RouteProblem, sent: np.ndarray, time: int) -> _Loads:
    """5.6 for links, 5.7 and 5.8 for ports and all other shared capacities.

    Returns (link, variable, us) of the loads on links within nodes.
    """
    resource, of_link, us = problem.costs.holds()
    chunk, link = np.nonzero(sent >= 0)
    columns = sent[chunk, link]
    # Every (chunk, link) loads each resource of the link; columns are in the order of links.
    first = np.searchsorted(of_link, np.arange(len(problem.costs.src) + 1))
    entry = np.concatenate([np.arange(first[at], first[at + 1]) for at in link])
    rows, hold_us = resource[entry], us[entry]
    taken = np.repeat(columns, first[link + 1] - first[link])
    lower = np.zeros(problem.costs.resources)
    busy = np.unique(rows)
    _unique_rows(
        model,
        np.concatenate((rows, busy)),
        np.concatenate((taken, np.full(len(busy), time))),
        np.concatenate((-hold_us, np.ones(len(busy)))),
        lower,
        np.inf,
    )
    inside = ~problem.logical.crossing[link]
    return link[inside], columns[inside], problem.costs.lat[link[inside]]


def _policies(
    model: LinearModel, problem: RouteProblem, sent: np.ndarray, horizon: float
) -> np.ndarray:
    """5.9 to 5.11: use of a switched link, weighted by the policy.

    Of the two halves that define is_util only the one that the objective pulls against is
    needed: 5.9 where few links are wanted, 5.10 where many are.
    """
    used = np.full(len(problem.costs.src), -1, np.int64)
    chunk_bytes = problem.chunk_mb * 1e6
    for policy in (Policy.MIN, Policy.MAX):
        edges = [e for e in problem.logical.hyperedges if e.chosen(chunk_bytes) is policy]
        links = np.unique(np.array([at for e in edges for at in e.links], np.int64))
        links = links[(sent[:, links] >= 0).any(axis=0)] if len(links) else links
        if not len(links):
            continue
        gamma = _POLICY_SHARE * horizon / len(links) * (1.0 if policy is Policy.MIN else -1.0)
        classes = _tied_links(problem)[links]
        _, place, size = np.unique(classes, return_inverse=True, return_counts=True)
        columns = model.add_variables(len(size), upper=1.0, cost=gamma * size)
        used[links] = columns[place]
        chunk, at = np.nonzero(sent[:, links] >= 0)
        x, util = sent[chunk, links[at]], used[links[at]]
        if policy is Policy.MIN:
            pairs = np.unique(np.stack((x, util), axis=1), axis=0)
            model.add_differences(pairs[:, 1], pairs[:, 0])
        else:
            pairs = np.unique(np.stack((util, x), axis=1), axis=0)
            names, row = np.unique(pairs[:, 0], return_inverse=True)
            model.add_rows(
                np.concatenate((row, np.arange(len(names)))),
                np.concatenate((pairs[:, 1], names)),
                np.concatenate((np.ones(len(row)), -np.ones(len(names)))),
                lower=0.0,
                count=len(names),
            )
    return used


def _tied_links(problem: RouteProblem) -> np.ndarray:
    links = np.arange(len(problem.costs.src))
    ties = [(links[bound], moved[bound]) for _, moved, _, bound in problem.images]
    return _classes(len(links), ties)


def _extremes(
    model: LinearModel,
    problem: RouteProblem,
    loads: _Loads,
    horizon: float,
) -> int:
    """Strategies minmax and maxmin: the largest load in a node small, or the smallest large."""
    strategy = problem.logical.strategy
    if strategy not in (Strategy.MINMAX, Strategy.MAXMIN) or not len(loads[0]):
        return -1
    sign = 1.0 if strategy is Strategy.MINMAX else -1.0
    link, columns, us = loads
    extreme = int(model.add_variables(1, upper=horizon, cost=sign * _POLICY_SHARE)[0])
    names, rows = np.unique(link, return_inverse=True)
    model.add_rows(
        np.concatenate((rows, np.arange(len(names)))),
        np.concatenate((columns, np.full(len(names), extreme))),
        np.concatenate((-sign * us, np.full(len(names), sign))),
        lower=0.0,
        count=len(names),
    )
    return extreme
