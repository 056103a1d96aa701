"""Direct networks: ring, mesh and torus, every rank a host with links to its neighbours.

None has a switch, so nothing can multicast, and there are no NICs apart from the links.
"""

import itertools
import math

from headrace.errors import TopologyError
from headrace.topology.topology import Link, Topology, beta_from_bytes_per_s

LINK_BYTES_PER_S = 50 * 2**30
LINK_ALPHA_US = 0.5
MAX_RANKS = 1_000_000  # against mistyped numbers: more would take gigabytes


def ring(
    n: int,
    *,
    alpha_us: float = LINK_ALPHA_US,
    bytes_per_s: float = LINK_BYTES_PER_S,
    one_way: bool = False,
) -> Topology:
    """A ring of `n` ranks: links r -> r+1 and back, or only forwards.

    50 GiB/s and 0.5 us a link by default. No switch, no multicast, no NICs.
    """
    if one_way:
        _check_shape((n,))
        ends = [(r, (r + 1) % n) for r in range(n)] if n > 1 else []
        return _direct(f"ring-{n}-one-way", n, ends, alpha_us, bytes_per_s)
    return _lattice("ring", (n,), alpha_us, bytes_per_s, wrap=True)


def mesh(
    shape: tuple[int, ...],
    *,
    alpha_us: float = LINK_ALPHA_US,
    bytes_per_s: float = LINK_BYTES_PER_S,
) -> Topology:
    """A grid of ranks (2-D, 3-D or any other): links to the neighbours in every direction.

    The last coordinate varies fastest: (x, y, z) is rank (x*Y + y)*Z + z. 50 GiB/s and 0.5 us a
    link and direction by default. No switch, no multicast, no NICs.
    """
    return _lattice("mesh", shape, alpha_us, bytes_per_s, wrap=False)


def torus(
    shape: tuple[int, ...],
    *,
    alpha_us: float = LINK_ALPHA_US,
    bytes_per_s: float = LINK_BYTES_PER_S,
) -> Topology:
    """A grid that wraps around in every direction; ranks and costs as in `mesh`.

    A side of two ranks has one link each way, as wrapping would only repeat it. No switch, no
    multicast, no NICs.
    """
    return _lattice("torus", shape, alpha_us, bytes_per_s, wrap=True)


def hub_and_spoke(
    n: int, *, alpha_us: float = LINK_ALPHA_US, bytes_per_s: float = LINK_BYTES_PER_S
) -> Topology:
    """A star: links between rank 0, the hub, and each of the other n - 1 ranks, both ways.

    The hub is a rank, no switch: it cannot multicast, it sends a copy over each link. No NICs.
    """
    _check_shape((n,))
    ends = [pair for spoke in range(1, n) for pair in ((0, spoke), (spoke, 0))]
    return _direct(f"hub-and-spoke-{n}", n, ends, alpha_us, bytes_per_s)


def _lattice(
    kind: str, shape: tuple[int, ...], alpha_us: float, bytes_per_s: float, *, wrap: bool
) -> Topology:
    _check_shape(shape)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    ends: set[tuple[int, int]] = set()
    for point in itertools.product(*map(range, shape)):
        rank = sum(p * stride for p, stride in zip(point, strides, strict=True))
        for p, side, stride in zip(point, shape, strides, strict=True):
            if p + 1 < side or (wrap and side > 2):
                neighbour = rank + ((p + 1) % side - p) * stride
                ends |= {(rank, neighbour), (neighbour, rank)}
    name = f"{kind}-{'x'.join(map(str, shape))}"
    return _direct(name, math.prod(shape), sorted(ends), alpha_us, bytes_per_s)


def _direct(
    name: str, ranks: int, ends: list[tuple[int, int]], alpha_us: float, bytes_per_s: float
) -> Topology:
    beta = beta_from_bytes_per_s(bytes_per_s)
    return Topology(
        name=name,
        hosts=tuple(f"host{rank}" for rank in range(ranks)),
        rank_host=tuple(range(ranks)),
        links=tuple(Link(src=s, dst=d, alpha_us=alpha_us, beta_us_per_mb=beta) for s, d in ends),
    )


def _check_shape(shape: tuple[int, ...]) -> None:
    if not shape or any(side < 1 for side in shape):
        raise TopologyError(f"shape is {shape}, needs at least one side and every side at least 1")
    if math.prod(shape) > MAX_RANKS:
        raise TopologyError(
            f"shape is {shape}: {math.prod(shape)} ranks, needs at most {MAX_RANKS}"
        )
