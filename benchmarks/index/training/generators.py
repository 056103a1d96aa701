"""Key sets to train on: families other than the benchmark's (`benchmarks.index.datasets`).

Each family draws its own parameters, so that two sets of one family differ in shape. None imitates
SOSD's books, fb or osm, and none is uniform, sequential with gaps or the benchmark's adversarial.

=========== ================================================================================
cascade     a multiplicative cascade: uneven at all scales alike
wandering   density whose logarithm is a random walk over the ranks, of any roughness
segments    straight pieces of unlike slopes
mixture     some to hundreds of normal clusters on a line
tailed      gamma and Weibull: one side dense, the other thin
tenants     identifiers with a prefix of few values and a running number
bursts      time stamps of a process with bursts
holes       dense runs of numbers, some of which were given back
prices      doubles, rounded to cents or not, as codes
powers      squares, cubes and other powers of a sequence, with noise
=========== ================================================================================
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.index.trace import encode

Codes = NDArray[np.uint64]

_OUTLIERS = 0.25
"""Share of the sets that get some extreme keys."""


def generate(family: str, count: int, random: np.random.Generator) -> Codes:
    """Return about `count` distinct codes of a family, ascending; sometimes with outliers."""
    codes = np.unique(_FAMILIES[family](count, random))
    if len(codes) > count:
        codes = np.delete(codes, random.choice(len(codes), len(codes) - count, replace=False))
    if random.random() < _OUTLIERS:
        codes = np.unique(np.concatenate([codes, _outliers(codes, random)]))
    return codes


def _outliers(codes: Codes, random: np.random.Generator) -> Codes:
    """Return up to a thousand codes far above (and sometimes below) all others."""
    count = int(2 ** random.uniform(0, 10))
    top = int(codes[-1])
    high = 2 ** random.uniform(np.log2(top + 2), 63.99, count)
    return high.astype(np.uint64)


def _scaled(values: np.ndarray, random: np.random.Generator) -> Codes:
    """Return values on a range of a random number of bits, from a random offset."""
    low, high = values.min(), values.max()
    least = np.log2(len(values)) + 1
    bits = random.uniform(min(least + 2, 60), 62)
    offset = np.uint64(2 ** random.uniform(0, 62)) if random.random() < 0.5 else np.uint64(0)
    return ((values - low) / max(high - low, 1e-300) * 2**bits).astype(np.uint64) + offset


def _cascade(count: int, random: np.random.Generator) -> Codes:
    depth = int(random.integers(8, 20))
    spread = random.uniform(0.02, 0.35)
    mass = np.ones(1)
    for _ in range(depth):
        share = (0.5 + random.uniform(-spread, spread, len(mass))).clip(0.01, 0.99)
        mass = np.stack([mass * share, mass * (1 - share)], axis=1).ravel()
    cells = np.repeat(
        np.arange(len(mass)), random.multinomial(int(count * 1.05), mass / mass.sum())
    )
    return _scaled(cells + random.random(len(cells)), random)


def _wandering(count: int, random: np.random.Generator) -> Codes:
    block = int(2 ** random.uniform(0, 14))
    steps = random.normal(0, random.uniform(0.02, 1.5), count // block + 2)
    pull = random.uniform(0.0, 0.3)
    level, walk = 0.0, np.empty(len(steps))
    for place, step in enumerate(steps.tolist()):
        level = (1 - pull) * level + step
        walk[place] = level
    gaps = random.exponential(1.0, count) if random.random() < 0.7 else np.ones(count)
    gaps = gaps * np.exp(np.repeat(walk.clip(-20, 20), block)[:count])
    return _scaled(np.cumsum(gaps), random)


def _segments(count: int, random: np.random.Generator) -> Codes:
    pieces = int(2 ** random.uniform(1, 12))
    sizes = random.dirichlet(np.full(pieces, random.uniform(0.2, 3)))
    slopes = 2 ** random.normal(0, random.uniform(0.5, 5), pieces)
    gaps = np.repeat(slopes, random.multinomial(count, sizes))
    if random.random() < 0.5:
        gaps = gaps * random.uniform(0.5, 1.5, len(gaps))
    return _scaled(np.cumsum(gaps), random)


def _mixture(count: int, random: np.random.Generator) -> Codes:
    clusters = int(2 ** random.uniform(0, 9))
    members = random.multinomial(
        int(count * 1.02), random.dirichlet(np.full(clusters, random.uniform(0.3, 2)))
    )
    centres = np.repeat(random.random(clusters), members)
    widths = np.repeat(2 ** random.uniform(-16, -3, clusters), members)
    return _scaled(centres + widths * random.standard_normal(len(centres)), random)


def _tailed(count: int, random: np.random.Generator) -> Codes:
    drawn = int(count * 1.02)
    if random.random() < 0.5:
        values = random.gamma(random.uniform(0.3, 8), 1.0, drawn)
    else:
        values = random.weibull(random.uniform(0.4, 4), drawn)
    return _scaled(values, random)


def _tenants(count: int, random: np.random.Generator) -> Codes:
    tenants = int(2 ** random.uniform(2, 13))
    members = random.multinomial(count, random.dirichlet(np.full(tenants, random.uniform(0.2, 3))))
    prefix = np.repeat(random.choice(1 << 20, tenants, replace=False).astype(np.uint64), members)
    number = np.arange(count) - np.repeat(np.cumsum(members) - members, members)
    thinned = number * int(2 ** random.uniform(0, 4)) + random.integers(0, 2, count)
    return (prefix << np.uint64(random.integers(32, 44))) + thinned.astype(np.uint64)


def _bursts(count: int, random: np.random.Generator) -> Codes:
    rate = np.repeat(
        2 ** random.normal(0, random.uniform(1, 5), count // 50 + 1), random.integers(1, 100)
    )
    gaps = random.exponential(1.0, count) * np.resize(rate, count)
    return np.uint64(1 << 50) + np.cumsum(gaps * 50 + 1).astype(np.uint64)


def _holes(count: int, random: np.random.Generator) -> Codes:
    left = random.uniform(0.3, 0.99)
    numbers = np.arange(int(count / left) + 1)
    kept = numbers[random.random(len(numbers)) < left][:count].astype(np.uint64)
    run = int(2 ** random.uniform(6, 16))
    jumps = np.cumsum(2 ** random.uniform(0, 30, count // run + 2)).astype(np.uint64)
    return kept + jumps[np.arange(len(kept)) // run]


def _prices(count: int, random: np.random.Generator) -> Codes:
    values = np.exp(random.normal(random.uniform(0, 8), random.uniform(0.2, 3), int(count * 1.3)))
    if random.random() < 0.3:
        values = np.concatenate([-values[::4], values])
    if random.random() < 0.3:
        values = np.round(values, int(random.integers(3, 7)))
    return encode(values)[0]


def _powers(count: int, random: np.random.Generator) -> Codes:
    base = np.arange(1, count + 1) / count
    values = base ** random.uniform(0.3, 5) + random.normal(
        0, random.choice([0, 1e-6, 1e-3]), count
    )
    return _scaled(values, random)


_FAMILIES: dict[str, Callable[[int, np.random.Generator], Codes]] = {
    "cascade": _cascade,
    "wandering": _wandering,
    "segments": _segments,
    "mixture": _mixture,
    "tailed": _tailed,
    "tenants": _tenants,
    "bursts": _bursts,
    "holes": _holes,
    "prices": _prices,
    "powers": _powers,
}
FAMILIES = tuple(_FAMILIES)
