"""A forest of regression trees, in NumPy."""

from collections.abc import Mapping

import numpy as np

PARTS = ("feature", "threshold", "left", "right", "leaf", "root", "value")
"""Arrays "forest.feature" and so on. For each node: the input that it tests (-1: it is a leaf), the
value up to which it goes left, its children, and the row of a leaf's outputs in "value". For each
tree: its root."""


def forest_output(arrays: Mapping[str, np.ndarray], vector: np.ndarray) -> np.ndarray:
    """Return the mean of the trees' outputs for one vector of inputs."""
    feature, threshold, left, right, leaf, root, value = (
        arrays[f"forest.{name}"] for name in PARTS
    )
    feature, left, right, leaf = (
        indices.astype(np.int64) for indices in (feature, left, right, leaf)
    )
    nodes = root.astype(np.int64)
    while (inner := feature[nodes] >= 0).any():
        tested = vector[np.maximum(feature[nodes], 0)]
        below = np.where(tested <= threshold[nodes], left[nodes], right[nodes])
        nodes = np.where(inner, below, nodes)
    return value[leaf[nodes]].mean(axis=0)
