"""Representatives of heads, for every request of a batch."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.attention.plan.formats import LayerHeads


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedHeads:
    """Runs of heads, first and after last, of which queries are scored and keys are stored."""

    queries: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, queries: Iterable[int], keys: Iterable[int]) -> "UsedHeads":
        """Return the runs of some heads, in any order."""
        return cls(queries=_runs(queries), keys=_runs(keys))


def _runs(heads: Iterable[int]) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for head in sorted(set(map(int, heads))):
        if runs and runs[-1][1] == head:
            runs[-1] = (runs[-1][0], head + 1)
        else:
            runs.append((head, head + 1))
    return tuple(runs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class HeadMembership:
    """Representatives of a batch's heads, as the kernels read them.

    Attributes
    ----------
    representatives : [batch, heads]: the head whose probabilities each head uses.
    stored : [batch, key heads]: heads of keys that the cache has, ascending.
    query : [batch, scores]: heads of queries whose scores are computed.
    key : [batch, scores]: index in `stored` of the keys of each, ascending.
    score : [batch, heads]: index of the scores that each head uses.
    """

    representatives: NDArray[np.int32]
    stored: NDArray[np.int32]
    query: NDArray[np.int32]
    key: NDArray[np.int32]
    score: NDArray[np.int32]

    @classmethod
    def full(cls, batch: int, heads: LayerHeads) -> "HeadMembership":
        """Return that of heads that all represent themselves."""
        count = heads.query_heads
        own = np.broadcast_to(np.arange(count, dtype=np.int32), (batch, count))
        return cls.of(own, heads, clusters=count, key_heads=heads.key_value_heads)

    @classmethod
    def over_all_keys(
        cls, representatives: NDArray[np.int32], heads: LayerHeads
    ) -> "HeadMembership":
        """Return one for a cache that holds the keys of all heads: a score for every head."""
        group = heads.query_heads // heads.key_value_heads
        batch = len(representatives)
        order = np.argsort(representatives // group, axis=1, kind="stable")
        score = np.empty_like(order)
        np.put_along_axis(score, order, np.arange(heads.query_heads)[None], axis=1)
        query = np.take_along_axis(representatives, order, axis=1)
        stored = np.broadcast_to(np.arange(heads.key_value_heads), (batch, heads.key_value_heads))
        return cls._of(representatives, stored, query, query // group, score)

    @classmethod
    def of(
        cls, representatives: NDArray[np.int32], heads: LayerHeads, *, clusters: int, key_heads: int
    ) -> "HeadMembership":
        """Return that of some representatives, in arrays of the same size for every request.

        Parameters
        ----------
        representatives : [batch, heads]; of every request at most `clusters` that represent
            themselves, with at most `key_heads` heads of keys. A request with fewer has some twice.
        """
        group = heads.query_heads // heads.key_value_heads
        batch = len(representatives)
        stored = np.empty((batch, key_heads), np.int32)
        query = np.empty((batch, clusters), np.int32)
        score = np.empty((batch, heads.query_heads), np.int32)
        for request, row in enumerate(representatives):
            distinct = np.unique(row)
            keys = np.unique(distinct // group)
            others = np.setdiff1d(np.arange(heads.key_value_heads), keys)
            stored[request] = np.sort(np.concatenate([keys, others[: key_heads - len(keys)]]))
            query[request] = np.concatenate(
                [distinct, np.repeat(distinct[-1:], clusters - len(distinct))]
            )
            score[request] = np.searchsorted(distinct, row)
        key = np.empty_like(query)
        for request in range(batch):
            key[request] = np.searchsorted(stored[request], query[request] // group)
        return cls._of(representatives, stored, query, key, score)

    @classmethod
    def _of(cls, *arrays: NDArray[np.integer]) -> "HeadMembership":
        converted = [np.ascontiguousarray(array, np.int32) for array in arrays]
        representatives, stored, query, key, score = converted
        return cls(
            representatives=representatives, stored=stored, query=query, key=key, score=score
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (self.representatives, self.stored, self.query, self.key, self.score)
        return sum(array.nbytes for array in arrays)

    def select(self, requests: NDArray[np.integer]) -> "HeadMembership":
        """Return that of some requests, each any number of times."""
        return self._of(
            self.representatives[requests],
            self.stored[requests],
            self.query[requests],
            self.key[requests],
            self.score[requests],
        )


def within_key_heads(
    representatives: NDArray[np.int32],
    features: NDArray[np.float32],
    heads: LayerHeads,
    key_heads: int,
) -> NDArray[np.int32]:
    """Return representatives with at most so many heads of keys.

    Those whose keys most heads use stay; the other heads follow the nearest of these.

    Parameters
    ----------
    representatives : [batch, heads].
    features : [batch, heads, features] by which heads were clustered.
    """
    group = heads.query_heads // heads.key_value_heads
    result = representatives.copy()
    for request, row in enumerate(result):
        used = np.bincount(row // group, minlength=heads.key_value_heads)
        if np.count_nonzero(used) <= key_heads:
            continue
        keys = np.argsort(-used, kind="stable")[:key_heads]
        distinct = np.unique(row)
        distinct = distinct[np.isin(distinct // group, keys)]
        points = features[request]
        for head in np.flatnonzero(~np.isin(row // group, keys)):
            distances = ((points[distinct] - points[head]) ** 2).sum(axis=1)
            row[head] = distinct[np.argmin(distances)]
    return result
