"""Cheapest spanning arborescences on dense graphs: Chu-Liu and Edmonds by growing a path.

Starting anywhere, follow the cheapest way in, backwards. When the path closes a cycle, the cycle
is contracted to one node with reduced inbound costs; when it reaches the tree, all of it joins the
tree. Every step costs a few vector operations of n numbers, and there are fewer than
2 n of them: O(n^2), as in Gabow, Galil, Spencer and Tarjan, "Efficient algorithms for finding
minimum spanning trees in undirected and directed graphs", section 4.
"""

import numpy as np

from headrace.errors import TopologyError


def cheapest_arborescence(cost: np.ndarray, root: int) -> np.ndarray:
    """Return the parents in a cheapest tree that leads from `root` to every other node.

    Parameters
    ----------
    cost : (n, n) float, ``cost[u, v]`` of the link u -> v; infinite where there is none.
    root : where the tree starts.

    Returns
    -------
    (n,) int64: every node's parent; -1 for the root.

    Raises
    ------
    TopologyError : if the root does not reach every node.
    """
    return _Contraction(cost, root).parents()


class _Contraction:
    """Nodes 0 to n-1 are the graph's, higher ones contracted cycles, in order of contraction."""

    def __init__(self, cost: np.ndarray, root: int) -> None:
        n = len(cost)
        self._n, self._root = n, root
        inward = np.array(cost.T, dtype=float)  # inward[v, u] of u -> v
        np.fill_diagonal(inward, np.inf)
        self._inward = list(inward)
        self._head = [np.full(n, v, dtype=np.int64) for v in range(n)]  # where u -> node enters
        self._top = np.arange(n)  # the outermost cycle that holds each of the graph's nodes
        self._inside: list[tuple[int, ...]] = [(v,) for v in range(n)]  # nodes of the graph
        self._members: list[tuple[int, ...]] = [()] * n
        self._around: list[int] = [-1] * n  # the cycle a node is a member of
        self._entry: list[tuple[int, int]] = [(-1, -1)] * n

    def parents(self) -> np.ndarray:
        n = self._n
        done = [False] * (2 * n)
        done[self._root] = True
        for start in range(n):
            node = int(self._top[start])
            if done[node]:
                continue
            path, place = [node], {node: 0}
            while True:
                node = path[-1]
                source = int(self._inward[node].argmin())
                if not np.isfinite(self._inward[node][source]):
                    raise TopologyError(
                        f"rank {self._root} cannot reach rank {self._inside[node][0]} over its "
                        "links; add a link"
                    )
                self._entry[node] = (source, int(self._head[node][source]))
                behind = int(self._top[source])
                if done[behind]:
                    break
                if behind in place:
                    cycle = path[place[behind] :]
                    del path[place[behind] :]
                    behind = self._contract(cycle)
                place[behind] = len(path)
                path.append(behind)
            for node in path:
                done[node] = True
        return self._expand()

    def _contract(self, cycle: list[int]) -> int:
        inside = tuple(v for node in cycle for v in self._inside[node])
        ways = np.array([self._inward[node] - self._inward[node].min() for node in cycle])
        ways[:, inside] = np.inf
        best = ways.argmin(axis=0)
        every = np.arange(self._n)
        contracted = len(self._inward)
        self._inward.append(ways[best, every])
        self._head.append(np.array([self._head[node] for node in cycle])[best, every])
        self._inside.append(inside)
        self._members.append(tuple(cycle))
        self._around.append(-1)
        self._entry.append((-1, -1))
        for node in cycle:
            self._around[node] = contracted
        self._top[list(inside)] = contracted
        return contracted

    def _expand(self) -> np.ndarray:
        """Expand the cycles from outside in: each drops its own link where it is entered."""
        parents = np.full(self._n, -1, dtype=np.int64)
        left = [int(node) for node in set(self._top.tolist()) if node != self._root]
        while left:
            outer = left.pop()
            source, head = self._entry[outer]
            parents[head] = source
            node = head
            while node != outer:
                around = self._around[node]
                left.extend(member for member in self._members[around] if member != node)
                node = around
        return parents


def shallower(parents: np.ndarray, cost: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return a tree that costs no more and whose nodes are no further from the root.

    Each node moves to a parent that costs no more than its own and brings it closer, by `length`
    (n, n), to the root, as long as there are such nodes.

    Parameters
    ----------
    parents : (n,) int64; -1 for the root.
    cost, length : (n, n) float of every link; infinite where there is none.
    """
    n = len(parents)
    parents = parents.copy()
    root = int(np.flatnonzero(parents < 0)[0])
    every = np.arange(n)
    allowed = cost <= cost[parents, every] * (1 + 1e-9)
    allowed[:, root] = False
    reach = np.where(allowed, length, np.inf)
    far = _distances(parents, length, root)
    while True:
        # No cycles: a node's descendants are further away than itself, never closer.
        through = far[:, None] + reach
        best = through.argmin(axis=0)
        gain = far - through[best, every]
        gain[root] = 0.0
        moved = int(gain.argmax())
        if gain[moved] <= 1e-9 * (1.0 + far[moved]):
            return parents
        parents[moved] = best[moved]
        far = _distances(parents, length, root)


def _distances(parents: np.ndarray, length: np.ndarray, root: int) -> np.ndarray:
    far = np.full(len(parents), -1.0)
    far[root] = 0.0
    for node in range(len(parents)):
        chain: list[int] = []
        at = node
        while far[at] < 0:
            chain.append(at)
            at = int(parents[at])
        for at in reversed(chain):
            far[at] = far[parents[at]] + length[parents[at], at]
    return far
