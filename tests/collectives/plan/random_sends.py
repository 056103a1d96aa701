"""Random topologies, and random ways to carry chunks over them: correct, and far from good."""

import random

import numpy as np

from headrace.collectives.plan.ir.chunks import Deliveries, Sends
from headrace.topology import Link, SharedCapacity, Topology


def random_topology(rng: random.Random, ranks: int, *, whole: bool = False) -> Topology:
    """A ring, some more links, and shared capacities; with `whole` numbers there are many ties."""

    def cost(low: float, high: float) -> float:
        value = rng.uniform(low, high)
        return float(round(value)) if whole else value

    pairs = {(r, (r + 1) % ranks) for r in range(ranks) if ranks > 1}
    everyone = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    pairs |= set(rng.sample(everyone, rng.randrange(len(everyone) + 1)))
    links = tuple(
        Link(src=a, dst=b, alpha_us=cost(0, 4), beta_us_per_mb=cost(1, 60))
        for a, b in sorted(pairs)
    )
    shared = tuple(
        SharedCapacity(
            name=f"shared {k}",
            links=tuple(sorted(rng.sample(range(len(links)), rng.randrange(1, len(links) + 1)))),
            beta_us_per_mb=cost(1, 60),
        )
        for k in range(rng.randrange(4) if links else 0)
    )
    return Topology(
        name="random",
        hosts=tuple(f"h{r}" for r in range(ranks)),
        rank_host=tuple(range(ranks)),
        links=links,
        shared=shared,
    )


def random_sends(
    rng: random.Random, topology: Topology, deliveries: Deliveries, *, largest: int = 3
) -> Sends:
    """Send chunks wherever they are missing, at random, until all targets have them."""
    held = np.zeros((deliveries.chunks, deliveries.ranks), dtype=bool)
    held[np.arange(deliveries.chunks), deliveries.origin] = True
    rows: list[tuple[int, int, int, int]] = []
    message = 0
    while (deliveries.targets & ~held).any():
        link = rng.choice(topology.links)
        fresh = np.flatnonzero(held[:, link.src] & ~held[:, link.dst])
        fresh = [chunk for chunk in fresh.tolist() if deliveries.targets[chunk].any()]
        if not fresh:
            continue
        for chunk in rng.sample(fresh, min(len(fresh), rng.randrange(1, largest + 1))):
            rows.append((chunk, link.src, link.dst, message))
            held[chunk, link.dst] = True
        message += 1
    columns = np.array(rows, dtype=np.int32).reshape(-1, 4)
    return Sends(
        chunk=columns[:, 0].copy(),
        src=columns[:, 1].copy(),
        dst=columns[:, 2].copy(),
        reduce=np.zeros(len(columns), dtype=bool),
        message=columns[:, 3].copy(),
        start_us=columns[:, 3].astype(np.float64),
    )
