"""Hosts as points whose distances agree with the probes: the embedding of PLink 4.1.2.

A probe of one pair is noisy, but every host is part of n - 1 of them. Points in a Euclidean space
cannot fit the noise of each pair by itself, so the structure common to many pairs remains. The
points minimise equation 1,

    sum over pairs of (|v_i - v_j|^alpha + h_i + h_j - p_ij)^2,

by L-BFGS-B from several starts: one from classical scaling (Torgerson), which is close to the
optimum where measurements are nearly Euclidean, the others random.

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
_TRIAL_STEPS = 100
_SAMPLE = 256  # hosts sampled for trials: cheaper, and about as many dimensions

_CONVERGED = 1e-6  # relative decrease of a step that ends the descent
_NEAR = 1e-9  # squared distance below which rounding hides the direction of a pair


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding:
    """Hosts as points.

    Attributes
    ----------
    coordinates : (hosts, dimensions) float64, centred; their distances to the power `exponent` are
        in the unit of the input.
    heights : (hosts,) float64, each host's own part of all its distances, in that unit.
    exponent : alpha of equation 1.
    stress : root of equation 1 over the sum of squared distances; 0 is a perfect fit.
    start_stress : the same before the first step, of the start that won.
    """

    coordinates: np.ndarray
    heights: np.ndarray
    exponent: float
    stress: float
    start_stress: float

    def distances(self, *, heights: bool = True) -> np.ndarray:
        """Return (hosts, hosts) float64: the distances that the points have, diagonal 0.

        Without `heights` only the part by coordinates, which tells near pairs from far ones.
        """
        power = _squares(self.coordinates) ** (self.exponent / 2)
        if heights:
            power += self.heights[:, None] + self.heights
        np.fill_diagonal(power, 0.0)
        return power


# matrix products of this size are slower on two threads, many times so on a busy machine
_one_thread = threadpool_limits.wrap(limits=1, user_api="blas")


@_one_thread
def embed(
    distances: np.ndarray,
    *,
    known: np.ndarray | None = None,
    dimensions: int | None = None,
    exponent: float = 1.0,
    heights: bool = False,
    restarts: int = 3,
    steps: int = 300,
    seed: int = 0,
) -> Embedding:
    """Embed hosts so that their distances agree with the probed ones (PLink, equation 1).

    Parameters
    ----------
    distances : (n, n) of at least 0, in any unit; both directions are averaged, the diagonal is
        ignored. `measure.distances` makes them from latency, bandwidth or both.
    known : (n, n) bool, which of them were measured (default: all). A pair that was measured in
        one direction has that distance.
    dimensions : of the space; None: by `choose_dimensions`.
    exponent : alpha of equation 1, from 1 to 2. The paper found 2 to help in few dimensions; with
        the number of dimensions chosen, 1 agrees best with pairs held out.
    heights : fit a distance of its own for every host besides its coordinates (start-up costs).
    restarts : number of starts; the one of least stress wins.
    steps : most iterations of L-BFGS-B, each over all pairs.
    seed : of the random starts. Equal arguments give equal results.

    Raises
    ------
    InputError : naming the argument, and the pair if it is a distance that is wrong.
    """
    mean, weight = check_distances(distances, known)
    if not 1.0 <= exponent <= 2.0:
        raise InputError(f"exponent is {exponent}, needs 1 to 2")
    for name, value in (("restarts", restarts), ("steps", steps)):
        if value < 1:
            raise InputError(f"{name} is {value}, needs at least 1")
    if dimensions is None:
        dimensions = choose_dimensions(distances, known=known, exponent=exponent, seed=seed)
    if dimensions < 1:
        raise InputError(f"dimensions is {dimensions}, needs at least 1")
    unit = _unit(mean, weight)
    fit = _Fit(mean / unit, weight, exponent, heights)
    random = np.random.default_rng(seed)
    starts = random.standard_normal((restarts, len(mean), dimensions)) / np.sqrt(2 * dimensions)
    lift = np.zeros(len(mean))
    if heights and len(mean) > 1:  # half the distance to the nearest host: few rise from zero
        lift = np.where(weight > 0, mean, np.inf).min(axis=1) / unit / 2
    reduced = np.maximum(mean / unit - lift[:, None] - lift, 0.0)
    starts[0] = _classical_scaling(reduced, exponent, dimensions)
    runs = [fit.run(start, lift, steps) for start in starts]
    points, height, first, last = min(runs, key=lambda run: run[3])
    total = float((weight * (mean / unit) ** 2).sum()) / 2 or 1.0
    return Embedding(
        coordinates=(points - points.mean(axis=0)) * unit ** (1 / exponent),
        heights=height * unit,
        exponent=exponent,
        stress=float(np.sqrt(last / total)),
        start_stress=float(np.sqrt(first / total)),
    )


@_one_thread
def choose_dimensions(
    distances: np.ndarray,
    *,
    known: np.ndarray | None = None,
    exponent: float = 1.0,
    seed: int = 0,
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
        n, pairs = _SAMPLE, np.argwhere(np.triu(weight) > 0)
    left = _without_some(weight, pairs, random)
    out = weight - left
    scaled = mean / _unit(mean, weight)
    fit = _Fit(scaled, left, exponent, heights=False)
    filled, _ = check_distances(scaled, left > 0)
    start = _classical_scaling(filled, exponent, options[-1])
    errors: list[float] = []
    for k in options:
        found, _, _, _ = fit.run(start[:, :k], np.zeros(n), _TRIAL_STEPS)
        power = _squares(found) ** (exponent / 2)
        errors.append(float((out * (power - scaled) ** 2).sum()))
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
    held = (random.random(weight.shape) < _HELD_OUT) & (price > 0) & ~tree
    return np.where(held | held.T, 0.0, weight)


class _Fit:
    """Equation 1, its gradient and its minimization; (n, n) work is in place, in two arrays."""

    def __init__(
        self, target: np.ndarray, weight: np.ndarray, exponent: float, heights: bool
    ) -> None:
        self._target = target
        self._weight = weight
        self._exponent = exponent
        self._heights = heights
        # new arrays of this size would cost more in page faults than the arithmetic
        self._off = np.empty_like(target)
        self._slope = np.empty_like(target)

    def run(
        self, points: np.ndarray, height: np.ndarray, steps: int
    ) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Return points (n, k), heights (n,), and equation 1 before and after."""
        from scipy.optimize import minimize

        shape, size = points.shape, points.size

        def value_and_slope(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, *by = self._gradient(x[:size].reshape(shape), x[size:])
            return value, np.concatenate([each.ravel() for each in by])[: len(x)]

        start = np.concatenate((points.ravel(), height if self._heights else height[:0]))
        least = np.full(len(start), -np.inf)
        least[size:] = 0.0
        found = minimize(
            value_and_slope,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=np.column_stack((least, np.full(len(start), np.inf))),
            options={"maxiter": steps, "maxfun": 2 * steps, "ftol": _CONVERGED},
        )
        end, lift = found.x[:size].reshape(shape), found.x[size:]
        first, _ = value_and_slope(start)
        return end, lift if self._heights else height, first, float(found.fun)

    def _gradient(
        self, points: np.ndarray, height: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        off, slope = self._off, self._slope
        _squares(points, out=off)
        off += _NEAR
        # d|v|^a / dv = a |v|^(a-2) v
        if self._exponent == 2.0:
            slope[:] = 1.0
        elif self._exponent == 1.0:  # a root takes a tenth of the time of a power
            np.sqrt(off, out=off)
            np.divide(1.0, off, out=slope)
        else:
            np.power(off, self._exponent / 2 - 1, out=slope)
            off *= slope
        off -= self._target
        if self._heights:
            off += height[:, None]
            off += height
        slope *= self._weight
        slope *= off
        off *= self._weight  # the weights are 0 and 1: their squares are themselves
        value = float(np.vdot(off, off)) / 2
        by_height = 2 * off.sum(axis=1)
        by_points = 2 * self._exponent * (slope.sum(axis=1)[:, None] * points - slope @ points)
        return value, by_points, by_height


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


def _classical_scaling(target: np.ndarray, exponent: float, dimensions: int) -> np.ndarray:
    """Return points (n, dimensions) by Torgerson's method; the first k columns are those for k."""
    centred = target ** (2 / exponent)
    centred = centred - centred.mean(axis=0) - centred.mean(axis=1)[:, None] + centred.mean()
    value, vector = np.linalg.eigh(centred / -2)
    # not zero where scaling finds no extent, or gradients could never use that dimension
    points = (vector * np.sqrt(np.maximum(value, 1e-6)))[:, ::-1][:, :dimensions]
    return np.pad(points, ((0, 0), (0, dimensions - points.shape[1])))


def _unit(mean: np.ndarray, weight: np.ndarray) -> float:
    known = mean[weight > 0]
    return (float(np.median(known)) or float(known.max(initial=0.0)) or 1.0) if len(known) else 1.0
