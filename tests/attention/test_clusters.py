"""Clusters of heads against scikit-learn's k-means."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from headrace import _native

HEADS = 32
TOKENS = 5


def probabilities(layers: int, seed: int) -> NDArray[np.float32]:
    """Causal probabilities of a few tokens, [layers, heads, tokens^2]."""
    random = np.random.default_rng(seed)
    scores = random.normal(size=(layers, HEADS, TOKENS, TOKENS))
    weights = np.tril(np.exp(2 * scores))
    weights /= weights.sum(axis=3, keepdims=True)
    return weights.reshape(layers, HEADS, -1).astype(np.float32)


def clustered(points: NDArray[np.float32], clusters: int) -> NDArray[np.int32]:
    out = np.empty(points.shape[:2], dtype=np.int32)
    _native.attention_clusters(points, clusters, out)
    return out


def scatter(points: NDArray[np.float32], heads: NDArray[np.integer]) -> float:
    """Sum of squared distances to the means of clusters."""
    return sum(
        float(((members - members.mean(axis=0)) ** 2).sum())
        for members in (points[heads == head].astype(np.float64) for head in np.unique(heads))
    )


@pytest.mark.parametrize("clusters", [1, 4, 12, 28, 32])
def test_scatter_is_near_that_of_scikit_learn(clusters: int) -> None:
    points = probabilities(layers=6, seed=clusters)
    ratios: list[float] = []
    for layer, heads in zip(points, clustered(points, clusters), strict=True):
        assert len(np.unique(heads)) == clusters
        assert np.array_equal(heads[heads], heads)
        k_means = KMeans(clusters, random_state=0).set_params(n_init=10)
        labels = np.asarray(k_means.fit_predict(layer.astype(np.float64)))
        if clusters == HEADS:
            assert scatter(layer, heads) == 0
        else:
            ratios.append(scatter(layer, heads) / scatter(layer, labels))
    assert all(ratio <= 1.05 for ratio in ratios), ratios


def test_points_that_are_not_finite_are_refused_by_head() -> None:
    points = probabilities(layers=2, seed=0)
    points[1, 7, 3] = np.nan
    with pytest.raises(ValueError, match="points of request 1, head 7 have nan"):
        clustered(points, 4)
