"""Levels of links: those that bound the time, and those that spread what these bring.

Let A be some of the link classes, and H the ranks that they join (a host). Into each of the N/H
parts every block of the other parts must come once over the other classes, so that an allgather
of blocks of b MB takes at least

    T(A) = (N/H - 1) * b / rate(classes not in A),

with `rate` what these can carry into every rank at once: the largest sum of rates within their
capacities. (By symmetry it may be taken to be the same at all ranks: a schedule and its images,
averaged.) The largest T(A) is a lower bound, and the classes not in its A are busy all the time.
They should bring nothing twice into a part. The same applies recursively within A.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from headrace.collectives.plan.generators.orbits.group import LinkClasses, RegularGroup
from headrace.errors import SymmetryError
from headrace.solver import LinearProgram

_MAX_SUBSETS = 1 << 10
_NOISE = 1.0 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkGroup:
    """Link classes that share capacities.

    Attributes
    ----------
    classes : int64, those of the group.
    rate : MB per us that every rank can get over them.
    """

    classes: np.ndarray
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """Groups that are busy all the time together.

    Attributes
    ----------
    part : (ranks,) int64, the number of the part of the network, joined by the levels below, that
        each rank is in as rank 0 sees it.
    parts : number of parts; as many as ranks on the last level.
    us_per_mb : T(A) for blocks of 1 MB.
    """

    groups: tuple[LinkGroup, ...]
    part: np.ndarray
    parts: int
    us_per_mb: float


def levels_of(classes: LinkClasses, group: RegularGroup) -> tuple[Level, ...]:
    """Return the levels, the one that bounds the time first.

    Raises
    ------
    SymmetryError : if the links do not join all ranks.
    """
    active = _groups(classes)
    if group.ranks == 1:
        return ()
    if group.seen_alike(classes.dst.tolist()).any():
        raise SymmetryError("the links do not join all ranks, needs a connected topology")
    levels: list[Level] = []
    size = group.ranks
    while active:
        best, inside = _slowest(classes, group, active, size)
        label = _joined(classes, group, inside)
        lowest, part = np.unique(label, return_inverse=True)
        levels.append(
            Level(
                groups=tuple(some for some in active if some not in inside),
                part=part.ravel().astype(np.int64),
                parts=len(lowest),
                us_per_mb=best,
            )
        )
        active, size = inside, int((label == 0).sum())
    return tuple(levels)


def _joined(classes: LinkClasses, group: RegularGroup, inside: list[LinkGroup]) -> np.ndarray:
    """The lowest rank of those that the links of `inside` join to each, as rank 0 sees them."""
    return group.seen_alike([int(classes.dst[k]) for some in inside for k in some.classes])


def _slowest(
    classes: LinkClasses, group: RegularGroup, active: list[LinkGroup], size: int
) -> tuple[float, list[LinkGroup]]:
    """The largest T(A) within what `active` joins (`size` ranks), and the groups of its A."""
    best, inside = -1.0, active
    for subset in _subsets(active):
        parts = size / int((_joined(classes, group, subset) == 0).sum())
        outside_rate = sum(some.rate for some in active if some not in subset)
        if outside_rate and (parts - 1) / outside_rate > best * _NOISE:
            best, inside = (parts - 1) / outside_rate, subset
    return best, inside


def _subsets(active: list[LinkGroup]) -> list[list[LinkGroup]]:
    """Subsets of `active`, the empty one first: of equal bounds the fewest levels win."""
    if len(active) <= _MAX_SUBSETS.bit_length() - 1:
        sizes = range(len(active))
        return [list(some) for k in sizes for some in itertools.combinations(active, k)]
    fastest = sorted(active, key=lambda some: -some.rate)
    return [fastest[:k] for k in range(len(active))]


def _groups(classes: LinkClasses) -> list[LinkGroup]:
    uses = classes.times > 0
    mark = np.arange(classes.count)
    for _ in range(classes.count):
        before = mark.copy()
        for row in uses:
            if row.any():
                mark[row] = mark[row].min()
        if np.array_equal(before, mark):
            break
    return [
        LinkGroup(
            classes=(members := np.flatnonzero(mark == number)),
            rate=_rate(classes.uses[:, members]),
        )
        for number in np.unique(mark)
    ]


def _rate(uses: np.ndarray) -> float:
    """The largest sum of rates: max sum x, uses x <= 1."""
    if uses.shape[1] == 1:
        return float(1.0 / uses.max())
    rows = np.unique(uses[uses.any(axis=1)], axis=0)
    program = LinearProgram()
    program.add_columns(np.empty((0, uses.shape[1])), cost=-1.0)
    program.add_rows("capacity", -np.inf, 1.0, rows)
    solution = program.solve()
    assert solution.optimal, "a bounded feasible linear program failed"
    # The prices bound the sum whatever the solver's error: scale them to cover every class.
    prices = np.maximum(-solution.duals["capacity"], 0.0)
    return float(prices.sum() / (prices @ rows).min())
