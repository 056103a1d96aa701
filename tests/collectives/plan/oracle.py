"""The best of all schedules of a tiny case under the full cost model, by exhaustion."""

import itertools
import math
from collections import defaultdict

import numpy as np

from headrace.collectives.plan.ir.chunks import Deliveries, Sends
from headrace.topology import Topology

EPS = 1e-9


def best_us(
    topology: Topology, deliveries: Deliveries, chunk_mb: float, *, batching: bool = False
) -> float:
    """Try every sequence of sends, each as early as its chunk and its resources allow.

    Every schedule without idle time of no use is one of these, ordered by its starts. With
    `batching` several chunks may go as one message, which pays alpha once.
    """
    return _Search(topology, deliveries, chunk_mb, batching).run()


def in_order_us(topology: Topology, sends: Sends, chunk_mb: float, origin: np.ndarray) -> float:
    """Time of single sends that begin in the order of their rows, each as early as it can.

    List scheduling begins a send as soon as its link is free, and may so miss the optimum: the
    optimum can keep a capacity idle for a send that becomes possible a little later.
    """
    there = {(chunk, int(rank)): 0.0 for chunk, rank in enumerate(origin)}
    free: dict[int, float] = defaultdict(float)
    ends = [(link.src, link.dst) for link in topology.links]
    last = 0.0
    for chunk, src, dst in zip(sends.chunk, sends.src, sends.dst, strict=True):
        k = ends.index((int(src), int(dst)))
        betas = {k: topology.links[k].beta_us_per_mb}
        for i, shared in enumerate(topology.shared):
            if k in shared.links:
                betas[len(ends) + i] = shared.beta_us_per_mb
        last = max(last, there[int(chunk), int(src)], *(free[resource] for resource in betas))
        for resource, beta in betas.items():
            free[resource] = last + topology.links[k].alpha_us + beta * chunk_mb
        there[int(chunk), int(dst)] = max(free[resource] for resource in betas)
    return max(there.values())


class _Search:
    def __init__(
        self, topology: Topology, deliveries: Deliveries, chunk_mb: float, batching: bool
    ) -> None:
        self.links = topology.links
        self.mb, self.batching = chunk_mb, batching
        self.betas = [{k: link.beta_us_per_mb} for k, link in enumerate(self.links)]
        for k, shared in enumerate(topology.shared):
            for link in shared.links:
                self.betas[link][len(self.links) + k] = shared.beta_us_per_mb
        n = deliveries.ranks
        self.far = [[0.0 if s == d else math.inf for d in range(n)] for s in range(n)]
        for link, betas in zip(self.links, self.betas, strict=True):
            us = link.alpha_us + chunk_mb * max(betas.values())
            self.far[link.src][link.dst] = us
        for k, s, d in itertools.product(range(n), repeat=3):
            self.far[s][d] = min(self.far[s][d], self.far[s][k] + self.far[k][d])
        self.there = [{int(origin): 0.0} for origin in deliveries.origin]
        self.missing = {
            (c, r) for c in range(deliveries.chunks) for r in range(n) if deliveries.targets[c, r]
        }
        self.free = [0.0] * (len(self.links) + len(topology.shared))
        self.best = math.inf

    def run(self) -> float:
        self._extend(0.0, 0.0)
        return self.best

    def _extend(self, last: float, end: float) -> None:
        if not self.missing:
            self.best = min(self.best, end)
            return
        for chunk, rank in self.missing:
            soonest = min(
                max(there, last) + self.far[at][rank] for at, there in self.there[chunk].items()
            )
            if soonest >= self.best - EPS:
                return
        for link, chunks in self._messages():
            self._try(link, chunks, last, end)

    def _messages(self) -> list[tuple[int, tuple[int, ...]]]:
        """Messages that could be sent now, soonest first: awaited chunks only."""
        waiting = sorted({chunk for chunk, _ in self.missing})
        found: list[tuple[float, int, tuple[int, ...]]] = []
        for k, link in enumerate(self.links):
            could = [
                c for c in waiting if link.src in self.there[c] and link.dst not in self.there[c]
            ]
            for size in range(1, (len(could) if self.batching else min(1, len(could))) + 1):
                for chunks in itertools.combinations(could, size):
                    ready = max(self.there[c][link.src] for c in chunks)
                    found.append((max(ready, *(self.free[r] for r in self.betas[k])), k, chunks))
        return [(k, chunks) for _, k, chunks in sorted(found)]

    def _try(self, k: int, chunks: tuple[int, ...], last: float, end: float) -> None:
        link, mb = self.links[k], self.mb * len(chunks)
        ready = max(self.there[c][link.src] for c in chunks)
        start = max(ready, *(self.free[r] for r in self.betas[k]))
        if start < last - EPS:  # the same as with the two in the other order
            return
        before = list(self.free)
        for resource, beta in self.betas[k].items():
            self.free[resource] = start + link.alpha_us + beta * mb
        arrives = start + link.alpha_us + max(self.betas[k].values()) * mb
        if arrives < self.best - EPS:
            done = {(c, link.dst) for c in chunks} & self.missing
            for c in chunks:
                self.there[c][link.dst] = arrives
            self.missing -= done
            self._extend(start, max(end, arrives))
            self.missing |= done
            for c in chunks:
                del self.there[c][link.dst]
        self.free = before
