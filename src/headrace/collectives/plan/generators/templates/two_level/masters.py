"""Assignment of masters: for every chunk a local master per group, one of them its global master.

PLink (Luo et al., MLSys 2020), 3.2 and 4.2.1: a group holds global masters, and a rank local
masters, in proportion to its weight. Chunks are equal, so dividing them is apportionment, as of
seats to states: the quota method (Balinski and Young 1975) assigns one chunk after the other, and
after each of them every share is within one chunk of the exact one. So the shares are right over
the whole vector and, for the sake of pipelining, over any prefix too.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.locality import RankGroups, check_groups

Spread = Literal["proportional", "even"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Masters:
    """An assignment of masters to the chunks of one allreduce.

    Attributes
    ----------
    groups : the ranks by locality; sizes may differ.
    local_master : (chunks, groups) int32, the rank that aggregates the chunk inside the group.
    global_master : (chunks,) int32, one of the chunk's local masters.

    Raises
    ------
    ProgramError : naming the group, or the chunk with a master that may not be one.
    """

    groups: RankGroups
    local_master: np.ndarray
    global_master: np.ndarray

    def __post_init__(self) -> None:
        check_groups(self.ranks, self.groups)
        local, top = self.local_master, self.global_master
        if local.ndim != 2 or top.shape != local.shape[:1] or local.shape[1] != len(self.groups):
            raise ProgramError(
                f"local_master is {local.shape} and global_master {top.shape}, needs (chunks, "
                f"{len(self.groups)}) and (chunks,)"
            )
        for name, column in (("local_master", local), ("global_master", top)):
            if column.dtype != np.int32:
                raise ProgramError(f"{name} has type {column.dtype}, needs int32")
        for index, group in enumerate(self.groups):
            _check(local[:, index], np.isin(local[:, index], group), f"a rank of {group}", "local")
        _check(top, (local == top[:, None]).any(axis=1), "a local master of the chunk", "global")

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.global_master)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return sum(map(len, self.groups))

    @property
    def group_of(self) -> np.ndarray:
        """Return (ranks,) int64, every rank's group."""
        group_index = np.empty(self.ranks, dtype=np.int64)
        for index, group in enumerate(self.groups):
            group_index[list(group)] = index
        return group_index

    @property
    def local_counts(self) -> np.ndarray:
        """Return (ranks,) int64, number of chunks of which each is a local master."""
        return np.bincount(self.local_master.ravel(), minlength=self.ranks)

    @property
    def global_counts(self) -> np.ndarray:
        """Return (ranks,) int64, number of chunks of which each is the global master."""
        return np.bincount(self.global_master, minlength=self.ranks)


def _check(column: np.ndarray, good: np.ndarray, needs: str, level: str) -> None:
    if not good.all():
        chunk = int(np.flatnonzero(~good)[0])
        raise ProgramError(
            f"the {level} master of chunk {chunk} is rank {column[chunk]}, needs {needs}"
        )


def spread_masters(
    groups: RankGroups,
    chunks: int,
    *,
    capacities: Sequence[float] | None = None,
    spread: Spread = "proportional",
) -> Masters:
    """Return masters in proportion to group size and capacity.

    Every group's number of global masters, and every rank's number of local and of global ones
    within its group, is within one chunk of the exact share.

    Parameters
    ----------
    capacities : weight of every rank in the assignment (default: equal).
    spread : assign global masters to groups in proportion to the capacity of their ranks (as in
        PLink) or evenly (less traffic for the busiest of equal uplinks if group sizes differ).

    Raises
    ------
    ProgramError : for groups that do not hold every rank once, or a capacity not above 0.
    """
    ranks = sum(map(len, groups))
    check_groups(ranks, groups)
    weights = check_capacities(ranks, capacities)
    even = spread == "even"
    shares = [1.0 if even else float(weights[list(group)].sum()) for group in groups]
    return masters_from_weights(groups, chunks, group_weights=shares, rank_weights=weights)


def masters_from_weights(
    groups: RankGroups,
    chunks: int,
    *,
    group_weights: Sequence[float] | np.ndarray,
    rank_weights: Sequence[float] | np.ndarray,
) -> Masters:
    """Return masters with global ones by group weight, both kinds by rank weight within a group.

    Weights may be 0, but not all of a kind (of one group).
    """
    tops = _picked(group_weights, chunks)
    weight = np.asarray(rank_weights, dtype=np.float64)
    # Any prefix of the turns is in proportion: the first ones are the group's own global masters,
    # so that these are in proportion too.
    picks = [
        np.fromiter(islice(turns(weight[list(group)]), chunks), int, chunks) for group in groups
    ]
    own = np.bincount(tops, minlength=len(groups))
    return _seated(
        groups,
        tops,
        [some[:count] for some, count in zip(picks, own, strict=True)],
        [some[count:] for some, count in zip(picks, own, strict=True)],
    )


def _seated(
    groups: RankGroups, tops: np.ndarray, heads: list[np.ndarray], tails: list[np.ndarray]
) -> Masters:
    """Return masters, given every chunk's top group and every group's masters in turn.

    `heads` are a group's masters of the chunks that it is the top group of, `tails` of the others.
    """
    local = np.empty((len(tops), len(groups)), dtype=np.int32)
    for index, group in enumerate(groups):
        members, mine = np.array(group, dtype=np.int32), tops == index
        # Half a turn apart, so that a rank's times as global and as local master do not coincide.
        apart = (len(group) // 2 - len(heads[index])) % len(group)
        local[mine, index] = members[heads[index]]
        local[~mine, index] = members[np.roll(tails[index], -apart)]
    return Masters(
        groups=groups, local_master=local, global_master=local[np.arange(len(tops)), tops]
    )


def _picked(weights: Sequence[float] | np.ndarray, count: int) -> np.ndarray:
    return np.fromiter(islice(turns(weights), count), np.int64, count)


def turns(weights: Sequence[float] | np.ndarray, start: int = 0) -> Iterator[int]:
    """Yield indices endlessly by weight: any prefix has each within one of its exact share.

    The quota method: the next is the one of largest weight / (turns + 1), among those whose share,
    rounded up, it does not exceed by one more turn. Of equals the first.

    Parameters
    ----------
    start : turns to skip.
    """
    weight = np.asarray(weights, dtype=np.float64)
    if (weight == weight[0]).all():
        yield from islice(cycle(range(len(weight))), start % len(weight), None)
    share = weight / weight.sum()
    taken = np.zeros(len(weight))
    number = 0
    while True:
        number += 1
        # Whole shares are computed with rounding errors: far less than a chunk.
        due = taken < number * share - 1e-9
        best = int(np.argmax(np.where(due, weight / (taken + 1), -1.0)))
        taken[best] += 1
        if number > start:
            yield best


def check_capacities(ranks: int, capacities: Sequence[float] | None) -> np.ndarray:
    """Return the capacities as (ranks,) float64, 1 by default; raises ProgramError."""
    if capacities is None:
        return np.ones(ranks)
    if len(capacities) != ranks:
        raise ProgramError(f"capacities has {len(capacities)} rows, needs {ranks}")
    for rank, capacity in enumerate(capacities):
        if not (math.isfinite(capacity) and capacity > 0):
            raise ProgramError(f"capacities[{rank}] is {capacity}, needs a finite number above 0")
    return np.asarray(capacities, dtype=np.float64)
