"""Numbers of clusters and their representatives, from a profile's distances and output errors."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.attention.plan.formats import LayerHeads
from headrace.attention.plan.plan import LayerPlan
from headrace.extras import require

if TYPE_CHECKING:
    from sklearn.cluster import KMeans

_SEED = 0
_RESTARTS = 10
_DIGITS = 6
"""Of points that count as equal: probabilities are of float32."""
_ALL_CHOICES = 2000
"""Most choices of heads of keys that are all compared: a tenth of a second a layer."""


def points_of(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points [heads, heads] whose squared distances are a matrix's: classical scaling.

    What no points can have, by noise of a mean over samples, is left out.
    """
    count = len(distance)
    centring = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-0.5 * centring @ distance @ centring)
    return vectors * np.sqrt(np.clip(values, 0, None))


def clustering_errors(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums of squared distances to the nearest centre for 1 to H clusters (Figure 6.5)."""
    points = points_of(distance)
    distinct = len(np.unique(points.round(_DIGITS), axis=0))
    errors = [_fit(points, count).inertia_ for count in range(1, distinct + 1)]
    return np.array(errors + [0.0] * (len(points) - distinct))


def elbow(errors: NDArray[np.float64]) -> int:
    """Return the number of clusters from which on the error hardly falls (section 6.2.2).

    All heads where the errors have no knee.
    """
    numbers = np.arange(1, len(errors) + 1)
    if len(errors) < 3 or errors[0] <= 0:
        return 1 if errors[0] <= 0 else len(errors)
    require("kneed", "attention", "finding the elbow of clustering errors")
    from kneed import KneeLocator

    knee = KneeLocator(numbers, errors, curve="convex", direction="decreasing").knee
    return len(errors) if knee is None else int(knee)


def clustered_by_distance(distance: NDArray[np.float64], clusters: int) -> NDArray[np.int32]:
    """Return each head's representative: of its cluster the head nearest to the others."""
    labels = _fit(points_of(distance), clusters).predict(points_of(distance))
    representatives = np.empty(len(distance), np.int32)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        inner = distance[np.ix_(members, members)].sum(axis=1)
        representatives[members] = members[np.argmin(inner)]
    return representatives


def cluster_sizes(representatives: NDArray[np.int32]) -> list[int]:
    """Return the numbers of heads of the clusters, the largest first (Figure 6.10)."""
    counts = np.unique(representatives, return_counts=True)[1]
    return sorted((int(count) for count in counts), reverse=True)


def representatives_by_error(
    error: NDArray[np.float64], heads: LayerHeads, key_heads: int
) -> tuple[NDArray[np.int32], float]:
    """Choose the heads of keys that stay by output error; return representatives and their error.

    A head whose keys stay represents itself: without shared keys these are clusters, with them no
    bytes are saved otherwise. Each other head follows the one among these with the least error. All
    choices are compared; of very many, the heads of keys go one after the other, that of the least
    error first, and pairs are exchanged while that lowers the error.

    Parameters
    ----------
    error : [representative, head], see `LayerProfile.output_error`.
    """
    group = heads.query_heads // heads.key_value_heads
    if math.comb(heads.key_value_heads, key_heads) <= _ALL_CHOICES:
        staying = min(
            map(list, combinations(range(heads.key_value_heads), key_heads)),
            key=lambda keys: _error_of(error, keys, group),
        )
    else:
        staying = _exchanged(error, _without_least(error, heads, key_heads), heads)
    members = _members(staying, group)
    representatives = np.array(members, np.int32)[np.argmin(error[members], axis=0)]
    representatives[members] = members
    return representatives, _error_of(error, staying, group)


def with_representatives(layer: LayerPlan, representatives: Iterable[int]) -> LayerPlan:
    """Return a layer whose heads have these representatives for all requests."""
    heads = layer.heads
    fixed = tuple(int(head) for head in representatives)
    group = heads.query_heads // heads.key_value_heads
    return replace(
        layer,
        clusters=len(set(fixed)),
        key_heads=len({head // group for head in fixed}),
        representatives=fixed,
    )


def _without_least(error: NDArray[np.float64], heads: LayerHeads, key_heads: int) -> list[int]:
    group = heads.query_heads // heads.key_value_heads
    staying = list(range(heads.key_value_heads))
    while len(staying) > key_heads:
        staying = min(
            ([key for key in staying if key != gone] for gone in staying),
            key=lambda keys: _error_of(error, keys, group),
        )
    return staying


def _exchanged(error: NDArray[np.float64], staying: list[int], heads: LayerHeads) -> list[int]:
    group = heads.query_heads // heads.key_value_heads
    best = _error_of(error, staying, group)
    improved = True
    while improved:
        improved = False
        for gone in list(staying):
            for come in set(range(heads.key_value_heads)) - set(staying):
                trial = sorted([key for key in staying if key != gone] + [come])
                if (trial_error := _error_of(error, trial, group)) < best - 1e-12:
                    staying, best, improved = trial, trial_error, True
                    break
            if improved:
                break
    return staying


def _members(staying: list[int], group: int) -> list[int]:
    return [key * group + head for key in staying for head in range(group)]


def _error_of(error: NDArray[np.float64], staying: list[int], group: int) -> float:
    """Return the sum of errors of the heads without keys of their own."""
    members = _members(staying, group)
    least = error[members].min(axis=0)
    least[members] = 0
    return float(least.sum())


def _fit(points: NDArray[np.float64], clusters: int) -> "KMeans":
    from sklearn.cluster import KMeans  # a second to import

    # sklearn's stubs say that n_init is a text
    restarts: Any = _RESTARTS
    return KMeans(clusters, n_init=restarts, random_state=_SEED).fit(points)
