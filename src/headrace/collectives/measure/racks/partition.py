"""Correlation clustering: the most probable partition, from noisy evidence about pairs.

Being together is an equivalence relation: of the pairs (a, b), (b, c) and (a, c) never exactly two
hold. So pairs are not judged one by one. A partition's log-likelihood is, up to a constant, the
sum over the pairs inside its groups of the log-likelihood ratio "together" against "apart"; the
search maximizes it, and the next best partitions give the confidence.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Grouping = tuple[tuple[int, ...], ...]
"""Partition into groups: every group ascending, ordered by their first members."""

_MAX_SPLIT = 10
_MOST_EXHAUSTIVE = 7  # members: they have 877 partitions
_CERTAIN = 50.0  # more evidence about a pair than this changes nothing


def groups_of(labels: np.ndarray) -> Grouping:
    """Return the groups of hosts that have equal labels."""
    return tuple(
        sorted(tuple(np.flatnonzero(labels == name).tolist()) for name in np.unique(labels))
    )


def labels_of(groups: Grouping) -> np.ndarray:
    """Return (hosts,) int64: every host's group."""
    labels = np.empty(sum(map(len, groups)), dtype=np.int64)
    for index, group in enumerate(groups):
        labels[list(group)] = index
    return labels


def diversity(groups: Grouping) -> int:
    """Return the size of the largest group less that of the smallest."""
    sizes = [len(group) for group in groups]
    return max(sizes) - min(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEstimate:
    """The best partition and its confidence.

    Attributes
    ----------
    groups : sorted groups of members, ordered by their first.
    confidence : probability of `groups` against every partition that differs by one move, merger
        or split, all being equally probable beforehand.
    rival : the most probable of those; None if there is only one partition.
    """

    groups: Grouping
    confidence: float
    rival: Grouping | None


def best_partition(evidence: np.ndarray) -> PartitionEstimate:
    """Return the most probable partition; of over 7 members, the best that climbing finds.

    Parameters
    ----------
    evidence : (n, n) symmetric; the log-likelihood ratio of "i and j are together" against "they
        are not"; 0 where nothing is known. The diagonal is ignored.
    """
    score = np.clip(np.asarray(evidence, dtype=float), -_CERTAIN, _CERTAIN)
    np.fill_diagonal(score, 0.0)
    if len(score) <= _MOST_EXHAUSTIVE:
        candidates = every_partition(len(score))
    else:
        starts = [np.arange(len(score)), *_linkage_cuts(score)]
        candidates = (_climb(start, score) for start in starts)
    labels = max(candidates, key=lambda candidate: _value(candidate, score))
    best = _value(labels, score)
    rivals = [
        (_value(neighbour, score) - best, groups_of(neighbour)) for neighbour in neighbours(labels)
    ]
    behind = np.array([value for value, _ in rivals])
    return PartitionEstimate(
        groups=groups_of(labels),
        confidence=1.0 / (1.0 + float(np.exp(behind).sum())),
        rival=max(rivals)[1] if rivals else None,
    )


def every_partition(n: int) -> Iterator[np.ndarray]:
    """Yield the labels of every partition of n members."""
    labels = np.zeros(n, dtype=int)

    def fill(member: int, groups: int) -> Iterator[np.ndarray]:
        if member == n:
            yield labels.copy()
            return
        for label in range(groups + 1):
            labels[member] = label
            yield from fill(member + 1, max(groups, label + 1))

    yield from fill(0, 0)


def _linkage_cuts(score: np.ndarray) -> Iterator[np.ndarray]:
    """Yield every cut of the average-linkage tree: starting points of the hill climbing."""
    n = len(score)
    if n < 3:
        return
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    distances = _CERTAIN - score
    np.fill_diagonal(distances, 0.0)
    tree = linkage(squareform(distances, checks=False), method="average")
    for count in range(1, n):
        yield fcluster(tree, count, criterion="maxclust")


def _value(labels: np.ndarray, score: np.ndarray) -> float:
    return float(score[labels[:, None] == labels[None, :]].sum()) / 2


def _climb(labels: np.ndarray, score: np.ndarray) -> np.ndarray:
    value = _value(labels, score)
    while True:
        better = max(
            neighbours(labels), key=lambda neighbour: _value(neighbour, score), default=labels
        )
        if (improved := _value(better, score)) <= value + 1e-12:
            return labels
        labels, value = better, improved


def neighbours(labels: np.ndarray, most_split: int = _MAX_SPLIT) -> Iterator[np.ndarray]:
    """Yield every partition that differs by one member's move, one merger or one split.

    Groups of more than `most_split` are not split in every way, only by one member.
    """
    group = {int(name): np.flatnonzero(labels == name).tolist() for name in np.unique(labels)}
    fresh = max(group, default=0) + 1
    for home, members in group.items():
        for name, others in group.items():
            if name == home:
                continue
            if len(members) > 1 or len(others) > 1 or name > home:  # two alone: one of both moves
                yield from (_moved(labels, [member], name) for member in members)
            if len(members) > 1 and len(others) > 1 and name > home:
                yield _moved(labels, members, name)
        leavers = members if len(members) > 2 else members[1:]
        yield from (_moved(labels, [member], fresh) for member in leavers)
        if not 4 <= len(members) <= most_split:
            continue
        for bits in range(1 << (len(members) - 1)):  # the first member stays
            leaving = [member for k, member in enumerate(members[1:]) if bits >> k & 1]
            if 2 <= len(leaving) <= len(members) - 2:
                yield _moved(labels, leaving, fresh)


def _moved(labels: np.ndarray, members: list[int], name: int) -> np.ndarray:
    moved = labels.copy()
    moved[members] = name
    return moved
