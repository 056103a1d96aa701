"""Symmetries of a topology: permutations of the ranks that preserve links and capacities.

A permutation is an array: rank r maps to ``perm[r]``. Groups are arrays of (elements, ranks).
`refinement` searches for generators of the group of all of them.
"""

import itertools
import math
from collections.abc import Iterable

import numpy as np

from headrace.errors import SymmetryError
from headrace.topology.automorphism import (
    Permutation,
    is_automorphism,
)
from headrace.topology.topology import Topology


def offset_permutation(ranks: int, offset: int, group: int) -> np.ndarray:
    """Return x -> floor(x/g)*g + ((x mod g) + o) mod g: a rotation by o in every group of g ranks.

    Sketches write it ``[o, g]`` (appendix B.1 of the dissertation on TACCL, whose ``(x + o) % g``
    holds for the first group only).

    Raises
    ------
    SymmetryError : if the groups do not divide the ranks evenly.
    """
    if group < 1 or ranks % group:
        raise SymmetryError(
            f"offset [{offset}, {group}]: groups of {group} do not divide {ranks} ranks, "
            "needs a divisor"
        )
    x = np.arange(ranks, dtype=np.int64)
    return (x // group * group + (x % group + offset) % group).astype(np.int32)


def generated_group(perms: Iterable[Permutation], limit: int = 1 << 20) -> np.ndarray:
    """Return every product of `perms`, int32 (elements, ranks), the identity first.

    In order of the number of factors, so deterministic.

    Raises
    ------
    SymmetryError : without permutations, or if there are more than `limit` elements.
    """
    generators = [np.asarray(perm, np.int32) for perm in perms]
    if not generators:
        raise SymmetryError("no permutations are given, needs at least one")
    if len({len(perm) for perm in generators}) > 1:
        raise SymmetryError("the permutations are of different numbers of ranks")
    identity = np.arange(len(generators[0]), dtype=np.int32)
    elements = {identity.tobytes(): identity}
    fresh = [identity]
    for element in fresh:  # grows as it is walked
        for perm in generators:
            product = perm[element]
            if elements.setdefault(product.tobytes(), product) is product:
                fresh.append(product)
        if len(elements) > limit:
            raise SymmetryError(
                f"the permutations generate more than {limit} elements, needs fewer generators or "
                "a higher limit"
            )
    return np.stack(fresh)


def offset_symmetries(topology: Topology) -> list[tuple[int, int]]:
    """Return every (offset, group) that is an automorphism, group | ranks and offset | group.

    Other offsets of a group are multiples of these. Smaller groups come first.
    """
    return [
        (offset, group)
        for group in _divisors(topology.ranks)
        for offset in _divisors(group)[:-1]
        if is_automorphism(topology, offset_permutation(topology.ranks, offset, group)) is None
    ]


def translations(topology: Topology) -> np.ndarray | None:
    """Return a regular (sharply transitive) group of automorphisms, or None.

    Int32 (ranks, ranks); element r maps rank 0 to rank r. It is found from rotations alone:
    a chain 1 | g1 | g2 | ... | ranks such that rotating by g(i-1) in groups of g(i) is an
    automorphism for each i. In a mixed radix each of these rotates one digit, so that they commute
    and reach every rank once. Rings, tori and clusters of switched boxes have
    them; the NVLink mesh has none.
    """
    chain = _divisor_chain(topology)
    if chain is None:
        return None
    elements = np.arange(topology.ranks, dtype=np.int32)[None, :]
    for low, high in itertools.pairwise(chain):
        powers = [offset_permutation(topology.ranks, low * k, high) for k in range(high // low)]
        elements = np.concatenate([power[elements] for power in powers])
    return elements[np.argsort(elements[:, 0])]


def orbits(size: int, images: Iterable[np.ndarray]) -> np.ndarray:
    """Return for every item 0 to size - 1 the smallest item of its orbit under `images`, int64.

    `images` are permutations of the items and generate the group: of ranks, or of links (from
    `link_image`). Items of equal number form an orbit.
    """
    moved = [np.asarray(image, np.int64) for image in images]
    label = np.arange(size, dtype=np.int64)
    while True:
        before = label
        for image in moved:
            # Both directions, as labels travel along a cycle either way.
            label = np.minimum(label, label[image])
            label[image] = np.minimum(label[image], label)
        label = np.minimum(label, label[label])
        if np.array_equal(label, before):
            return label


def _divisors(number: int) -> list[int]:
    small = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return sorted({*small, *(number // k for k in small)})


def _divisor_chain(topology: Topology) -> list[int] | None:
    """Return the shortest chain of divisors with an automorphism between neighbours."""
    ranks = topology.ranks
    chains: dict[int, list[int]] = {1: [1]}
    for high in _divisors(ranks)[1:]:
        before = sorted((len(chain), low) for low, chain in chains.items() if high % low == 0)
        for _, low in before:
            if is_automorphism(topology, offset_permutation(ranks, low, high)) is None:
                chains[high] = [*chains[low], high]
                break
    return chains.get(ranks)
