"""Hosts as points whose distances agree with the probes: the embedding of PLink 4.1.2.

A probe of one pair is noisy, but every host is part of n - 1 of them. Points in a Euclidean space
cannot fit the noise of each pair by itself, so the structure common to many pairs remains. The
points minimise equation 1,

    sum over pairs of (|v_i - v_j|^alpha - p_ij)^2,

with alpha = 1 (in as many dimensions as are chosen here it agrees better with pairs held out than
the paper's 2), by L-BFGS-B from several starts: one from classical scaling (Torgerson), which is
close to the optimum where measurements are nearly Euclidean, the others random.

The number of dimensions is chosen by cross-validation on pairs held out of the fit.
"""

from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from headrace.collectives.measure.embed.distances import check_distances
from headrace.errors import InputError

DIMENSIONS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Candidates of `choose_dimensions`. Trees of racks need many: k racks that are equally far from
each other need k - 1 dimensions."""

_HELD_OUT = 0.15
_ENOUGH_PAIRS = 100  # below, too few pairs to hold some out: as many dimensions as hosts need
_AS_GOOD = 1.01  # a smaller number of dimensions wins if its error is within this factor
_STEPS, _TRIAL_STEPS = 300, 100  # most iterations of L-BFGS-B, each over all pairs
_SAMPLE = 256  # hosts sampled for trials: cheaper, and about as many dimensions

_CONVERGED = 1e-6  # relative decrease of a step that ends the descent
_NEAR = 1e-9  # squared distance below which rounding hides the direction of a pair


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding:
    """Hosts as points.

    Attributes
    ----------
    coordinates : (hosts, dimensions) float64, centred, in the unit of the input.
    stress : root of equation 1 over the sum of squared distances; 0 is a perfect fit.
    """

    coordinates: np.ndarray
    stress: float

    def distances(self) -> np.ndarray:
        """Return (hosts, hosts) float64: the distances that the points have, diagonal 0."""
        return np.sqrt(_squares(self.coordinates))


# matrix products of this size are slower on two threads, many times so on a busy machine
_one_thread = threadpool_limits.wrap(limits=1, user_api="blas")


@_one_thread
def embed(
    distances: np.ndarray,
    *,
    known: np.ndarray | None = None,
    dimensions: int | None = None,
    restarts: int = 3,
    seed: int = 0,
) -> Embedding:
    """Embed hosts so that their distances agree with the probed ones (PLink, equation 1).

    Parameters
    ----------
    distances : (n, n) of at least 0, in any unit; both directions are averaged, the diagonal is
        ignored. `pair_distances` makes them from latency or bandwidth.
    known : (n, n) bool, which of them were measured (default: all). A pair that was measured in
        one direction has that distance.
    dimensions : of the space; None: by `choose_dimensions`.
    restarts : number of starts; the one of least stress wins.
    seed : of the random starts. Equal arguments give equal results.

    Raises
    ------
    InputError : naming the argument, and the pair if it is a distance that is wrong.
    """
    mean, weight = check_distances(distances, known)
    if dimensions is None:
        dimensions = choose_dimensions(distances, known=known, seed=seed)
    for name, value in (("restarts", restarts), ("dimensions", dimensions)):
        if value < 1:
            raise InputError(f"{name} is {value}, needs at least 1")
    unit = _unit(mean, weight)
    target = mean / unit
    random = np.random.default_rng(seed)
    starts = random.standard_normal((restarts, len(mean), dimensions)) / np.sqrt(2 * dimensions)
    starts[0] = _classical_scaling(target, dimensions)
    fits = [_fit(target, weight, start, _STEPS) for start in starts]
    points, value = min(fits, key=lambda fitted: fitted[1])
    total = float((weight * target**2).sum()) / 2 or 1.0
    return Embedding(
        coordinates=(points - points.mean(axis=0)) * unit, stress=float(np.sqrt(value / total))
    )


@_one_thread
def choose_dimensions(
    distances: np.ndarray, *, known: np.ndarray | None = None, seed: int = 0
) -> int:
    """Return the number of dimensions (of `DIMENSIONS`) that predicts pairs held out best.

    The smallest whose error is within one per cent of the least: fewer dimensions fit less noise.
    With a dozen hosts or fewer the pairs are too few to hold some out, and the result is one less
    than the hosts, which fits any Euclidean distances.

    Raises
    ------
    InputError : as `embed`.
    """
    mean, weight = check_distances(distances, known)
    n = len(mean)
    pairs = np.argwhere(np.triu(weight) > 0)
    options = [k for k in DIMENSIONS if k < n]
    if len(pairs) < _ENOUGH_PAIRS or not options:
        return max(1, min(n - 1, DIMENSIONS[-1]))
    random = np.random.default_rng(seed)
    if n > _SAMPLE and weight.sum() == n * (n - 1):
        some = np.ix_(*[np.sort(random.permutation(n)[:_SAMPLE])] * 2)
        mean, weight = mean[some], weight[some]
        pairs = np.argwhere(np.triu(weight) > 0)
    left = _without_some(weight, pairs, random)
    out = weight - left
    scaled = mean / _unit(mean, weight)
    filled, _ = check_distances(scaled, left > 0)
    start = _classical_scaling(filled, options[-1])
    errors: list[float] = []
    for k in options:
        fitted, _ = _fit(scaled, left, start[:, :k], _TRIAL_STEPS)
        errors.append(float((out * (np.sqrt(_squares(fitted)) - scaled) ** 2).sum()))
        if errors[-1] > _AS_GOOD**4 * min(errors):
            break  # past the best: more dimensions fit more noise
    least = min(errors) * _AS_GOOD**2  # squares
    return next(k for k, error in zip(options, errors, strict=False) if error <= least)


def _without_some(weight: np.ndarray, pairs: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the weights without pairs held out: the rest still connects all hosts."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    price = np.zeros_like(weight)
    price[pairs[:, 0], pairs[:, 1]] = 1.0 + random.random(len(pairs))
    tree = minimum_spanning_tree(price).toarray() > 0
    hidden = (random.random(weight.shape) < _HELD_OUT) & (price > 0) & ~tree
    return np.where(hidden | hidden.T, 0.0, weight)


def _fit(
    target: np.ndarray, weight: np.ndarray, start: np.ndarray, steps: int
) -> tuple[np.ndarray, float]:
    """Minimise equation 1 from `start` (n, k): return the points and its value there."""
    from scipy.optimize import minimize

    # (n, n) work is in place: new arrays would cost more in page faults than the arithmetic
    off, slope = np.empty_like(target), np.empty_like(target)

    def value_and_slope(x: np.ndarray) -> tuple[float, np.ndarray]:
        points = x.reshape(start.shape)
        np.add(_squares(points, out=off), _NEAR, out=off)
        np.sqrt(off, out=off)
        np.divide(1.0, off, out=slope)  # d|v| / dv = v / |v|
        np.subtract(off, target, out=off)
        np.multiply(slope, weight, out=slope)
        np.multiply(slope, off, out=slope)
        np.multiply(off, weight, out=off)  # weights are 0 and 1: their squares are themselves
        by_points = 2 * (slope.sum(axis=1)[:, None] * points - slope @ points)
        return float(np.vdot(off, off)) / 2, by_points.ravel()

    optimum = minimize(
        value_and_slope,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": steps, "maxfun": 2 * steps, "ftol": _CONVERGED},
    )
    return optimum.x.reshape(start.shape), float(optimum.fun)


def _squares(points: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return squared distances (n, n) of points (n, k), diagonal 0."""
    norm = (points**2).sum(axis=1)
    # scaled and copied while it is small: a general product is faster than a symmetric one
    square = np.matmul(points, np.ascontiguousarray(-2 * points.T), out=out)
    square += norm[:, None]
    square += norm
    np.maximum(square, 0.0, out=square)
    np.fill_diagonal(square, 0.0)
    return square


def _classical_scaling(target: np.ndarray, dimensions: int) -> np.ndarray:
    """Return points (n, dimensions) by Torgerson's method; the first k columns are those for k."""
    centred = target**2
    centred = centred - centred.mean(axis=0) - centred.mean(axis=1)[:, None] + centred.mean()
    value, vector = np.linalg.eigh(centred / -2)
    # not zero where scaling finds no extent, or gradients could never use that dimension
    points = (vector * np.sqrt(np.maximum(value, 1e-6)))[:, ::-1][:, :dimensions]
    return np.pad(points, ((0, 0), (0, dimensions - points.shape[1])))


def _unit(mean: np.ndarray, weight: np.ndarray) -> float:
    distances = mean[weight > 0]
    return (
        (float(np.median(distances)) or float(distances.max(initial=0.0)) or 1.0)
        if len(distances)
        else 1.0
    )
