"""Column generation: the master problem over the trees so far, and pricing of new trees."""

import numpy as np

from headrace.collectives.plan.flows.arborescence import cheapest_arborescence, shallower
from headrace.collectives.plan.flows.commodities import Commodity
from headrace.errors import TopologyError
from headrace.solver import LinearProgram, LinearSolution
from headrace.topology import Topology

_SHARES, _LOADS = "shares", "loads"  # rows: a commodity's shares are 1, a resource's load <= T


class Pricing:
    """The cheapest trees of all commodities at given costs of the links."""

    def __init__(self, topology: Topology, demands: tuple[Commodity, ...], chunk_mb: float) -> None:
        n = topology.ranks
        self._n, self._wanted = n, demands
        links = topology.columns
        self._src, self._dst = links.src, links.dst
        self._link = np.full((n, n), -1, dtype=np.int32)
        self._link[self._src, self._dst] = np.arange(len(self._src))
        self._length = np.full((n, n), np.inf)
        self.length_us = links.alpha_us + links.beta_us_per_mb * chunk_mb
        """(links,): time of a chunk, in us."""
        self._length[self._src, self._dst] = self.length_us

    def cheapest(
        self, costs: np.ndarray, which: "list[int] | range"
    ) -> list[tuple[np.ndarray, float, float]]:
        """For every commodity of `which`: links, cost per MB that is the least, and depth in us."""
        matrix = np.full((self._n, self._n), np.inf)
        matrix[self._src, self._dst] = costs
        spanning = {k for k in which if len(self._wanted[k].targets) == self._n - 1 > 1}
        paths = self._paths(
            matrix, sorted({self._wanted[k].origin for k in which if k not in spanning})
        )
        trees: dict[int, np.ndarray] = {}
        cheapest_trees: list[tuple[np.ndarray, float, float]] = []
        for k in which:
            origin, targets = self._wanted[k].origin, self._wanted[k].targets
            if k not in spanning:
                parents, far = paths[origin]
                if not np.isfinite(far[list(targets)]).all():
                    lost = next(t for t in targets if not np.isfinite(far[t]))
                    raise TopologyError(
                        f"rank {origin} cannot reach rank {lost} over its links; add a link"
                    )
                links = self._walk(parents, origin, targets)
                least = float(far[list(targets)].max())
            else:
                if origin not in trees:
                    parents = cheapest_arborescence(matrix, origin)
                    trees[origin] = shallower(parents, matrix, self._length)
                links = self._walk(trees[origin], origin, targets)
                least = float(costs[links].sum()) * (1 - 1e-7)  # the tolerance of `shallower`
            cheapest_trees.append((links, least, self.depth_us(links, origin)))
        return cheapest_trees

    def _paths(
        self, matrix: np.ndarray, origins: list[int]
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import shortest_path

        if not origins:
            return {}
        graph = csr_array((matrix[self._src, self._dst], (self._src, self._dst)), matrix.shape)
        far, parents = shortest_path(graph, method="D", indices=origins, return_predecessors=True)
        return {origin: (parents[i], far[i]) for i, origin in enumerate(origins)}

    def _walk(self, parents: np.ndarray, origin: int, targets: tuple[int, ...]) -> np.ndarray:
        """The links to the targets, each after the one that leads to it."""
        links: list[int] = []
        reached = {origin}
        for target in targets:
            chain: list[int] = []
            at = target
            while at not in reached:
                reached.add(at)
                chain.append(int(self._link[parents[at], at]))
                at = int(parents[at])
            links.extend(reversed(chain))
        return np.array(links, dtype=np.int32)

    def depth_us(self, links: np.ndarray, origin: int) -> float:
        """Time of a chunk from `origin` to the farthest end of `links`, in us."""
        far = {origin: 0.0}
        for link in links.tolist():
            u, v = int(self._src[link]), int(self._dst[link])
            far[v] = far[u] + float(self._length[u, v])
        return max(far.values())


class Master:
    """The linear program over the columns known: x is the share of its commodity, T in `scale`."""

    def __init__(self, commodities: int, resources: int, scale: float) -> None:
        self._commodities, self._resources, self._scale = commodities, resources, scale
        self._program = LinearProgram()
        self._program.add_rows(_SHARES, 1.0, 1.0, np.empty((commodities, 0)))
        self._program.add_rows(_LOADS, -np.inf, 0.0, np.empty((resources, 0)))
        time = np.append(np.zeros(commodities), -np.ones(resources))
        self._time = self._program.add_columns(time[:, None], cost=1.0)
        self._weights = np.empty(0)

    def add(self, columns: list[tuple[int, np.ndarray]]) -> None:
        """Add columns: (commodity, load in us of all of it)."""
        from scipy import sparse

        used = [np.flatnonzero(load) for _, load in columns]
        rows = [
            np.append(k, at + self._commodities) for (k, _), at in zip(columns, used, strict=True)
        ]
        values = [
            np.append(1.0, load[at] / self._scale)
            for (_, load), at in zip(columns, used, strict=True)
        ]
        entries = (np.concatenate(values), np.concatenate(rows), np.cumsum([0, *map(len, rows)]))
        self._program.add_columns(
            sparse.csc_array(entries, shape=(self._program.rows, len(columns)))
        )

    def solve(self) -> tuple[float, np.ndarray]:
        """The least load (us) and the resources' prices, which sum to 1."""
        solution = self._solve()
        prices = np.maximum(-solution.duals[_LOADS], 0.0)
        total = prices.sum()
        prices = prices / total if total > 0 else np.full(self._resources, 1 / self._resources)
        return float(solution.values[0]) * self._scale, prices

    def cap(self, top: float) -> None:
        """From now on no resource is loaded for more than `top` us, and T costs nothing."""
        self._program.set_bounds(self._time, 0.0, top / self._scale)
        self._program.set_costs(self._time, 0.0)

    def cost(self, first: int, costs: list[float]) -> None:
        """Give the columns from `first` on these costs."""
        self._program.set_costs(np.arange(first + 1, first + 1 + len(costs)), np.array(costs))

    def duals(self) -> tuple[float, np.ndarray, np.ndarray]:
        """Solve; return the objective, the commodities' values and the resources' prices a us."""
        solution = self._solve()
        prices = np.maximum(-solution.duals[_LOADS], 0.0) / self._scale
        return solution.objective, solution.duals[_SHARES], prices

    def weights(self) -> np.ndarray:
        """The columns' shares in the last solution."""
        return self._weights

    def _solve(self) -> LinearSolution:
        # Prices bound whatever they are (weak duality), so the solution need not be optimal.
        solution = self._program.solve()
        self._weights = solution.values[1:]
        return solution
