"""Topologies with irregular costs."""

from dataclasses import replace

import numpy as np

from headrace.errors import TopologyError
from headrace.topology import Topology


def perturbed(topology: Topology, seed: int, spread: float = 0.3) -> Topology:
    """Return `topology` with random costs, to test that plans do not rely on regular ones.

    Alpha and beta of every link and beta of every shared capacity are each multiplied by a factor
    of its own, uniform between 1 - spread and 1 + spread.

    Raises
    ------
    TopologyError : unless 0 <= spread < 1.
    """
    if not 0 <= spread < 1:
        raise TopologyError(f"spread is {spread}, needs at least 0 and less than 1")
    random = np.random.default_rng(seed)
    factors = random.uniform(1 - spread, 1 + spread, 2 * len(topology.links)).tolist()
    links = tuple(
        replace(link, alpha_us=link.alpha_us * alpha, beta_us_per_mb=link.beta_us_per_mb * beta)
        for link, alpha, beta in zip(topology.links, factors[::2], factors[1::2], strict=True)
    )
    more = random.uniform(1 - spread, 1 + spread, len(topology.shared)).tolist()
    shared = tuple(
        replace(capacity, beta_us_per_mb=capacity.beta_us_per_mb * factor)
        for capacity, factor in zip(topology.shared, more, strict=True)
    )
    name = f"{topology.name}-perturbed-{seed}"
    return replace(topology, name=name, links=links, shared=shared)
