"""Networks in which all ranks are alike, from a group and a few of its elements."""

import itertools
import math

import numpy as np
from hypothesis import strategies as st

from headrace.collectives.plan.generators.orbits.group import RegularGroup
from headrace.topology import Link, SharedCapacity, Topology


def product_group(sides: tuple[int, ...]) -> RegularGroup:
    """Cyclic shifts along every side; the last coordinate varies fastest."""
    n = math.prod(sides)
    where = np.arange(n).reshape(sides)
    perms = [np.roll(where, -1, axis=axis).ravel() for axis in range(len(sides))]
    return RegularGroup(generators=np.array(perms, dtype=np.int32))


def dihedral_group(sides: int) -> RegularGroup:
    """Turns and flips of a polygon: does not commute. Ranks are the group's elements."""
    elements = [(turn, flip) for flip in (0, 1) for turn in range(sides)]

    def times(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return ((a[0] + (-b[0] if a[1] else b[0])) % sides, a[1] ^ b[1])

    perms = [
        [elements.index(times(generator, e)) for e in elements] for generator in ((1, 0), (0, 1))
    ]
    return RegularGroup(generators=np.array(perms, dtype=np.int32))


def network(
    group: RegularGroup,
    steps: dict[int, tuple[float, float]],
    port: float | None = None,
    pairs: float | None = None,
) -> Topology:
    """Rank x has links to what it sees as the `steps`, of (alpha, beta).

    With `port` every rank's links out, and in, share a capacity of that beta; with `pairs` the
    links out of each two ranks do that the last generator's square root of one joins.
    """
    n = group.ranks
    links = [
        Link(src=x, dst=int(group.table[x, to]), alpha_us=alpha, beta_us_per_mb=beta)
        for x in range(n)
        for to, (alpha, beta) in steps.items()
    ]
    shared: list[SharedCapacity] = []
    if port is not None:
        for x, (way, end) in itertools.product(range(n), (("out", "src"), ("in", "dst"))):
            members = tuple(k for k, link in enumerate(links) if getattr(link, end) == x)
            shared.append(SharedCapacity(name=f"{way}{x}", links=members, beta_us_per_mb=port))
    if pairs is not None:
        half = [perm for perm in group.table if np.array_equal(perm[perm], np.arange(n))][-1]
        for x in range(n):
            if x < half[x]:
                members = tuple(k for k, link in enumerate(links) if link.src in (x, half[x]))
                shared.append(SharedCapacity(name=f"nic{x}", links=members, beta_us_per_mb=pairs))
    return Topology(
        name="cayley",
        hosts=tuple(f"host{x}" for x in range(n)),
        rank_host=tuple(range(n)),
        links=tuple(links),
        shared=tuple(shared),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[RegularGroup, Topology]:
    """A group with a connected network that it leaves as it is."""
    if draw(st.integers(0, 4)) == 0:
        group = dihedral_group(draw(st.integers(3, 5)))
    else:
        sides = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
        group = product_group(tuple(sides) if math.prod(sides) <= 24 else tuple(sides[:2]))
    n = group.ranks
    ends = {int(image) for image in group.generators[:, 0]}
    ends |= {int(np.argsort(group.element(end))[0]) for end in ends}
    ends |= draw(st.sets(st.integers(1, n - 1), max_size=2))
    costs = st.tuples(st.sampled_from((0.0, 0.5, 2.0)), st.sampled_from((1.0, 2.0, 7.5)))
    steps = {end: draw(costs) for end in sorted(ends)}
    commutes = all(np.array_equal(p[q], q[p]) for p in group.generators for q in group.generators)
    even = commutes and any(s % 2 == 0 for s in (n,))
    port = draw(st.sampled_from((None, None, 1.0, 3.0)))
    pairs = draw(st.sampled_from((None, None, 2.0))) if even else None
    return group, network(group, steps, port, pairs)
