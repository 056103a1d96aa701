"""Key sets of the benchmark: imitations of SOSD's, further generators, and SOSD's own files.

SOSD (Kipf et al., "SOSD: A Benchmark for Learned Indexes", 2019) has 200M unsigned 64-bit keys per
data set. The files are not shipped; `generate` imitates their distributions, and reads them where
the folder that they are in is given.

=========== ================================================================================
books       log-normal, smooth: popularity of books
fb          identifiers of users: near-uniform below 2^38 with uneven gaps, and 21 huge outliers
osm         Morton codes of points: clusters of uneven sizes and widths, a tenth spread evenly
uniform     64 random bits
gaps        time stamps: ascending, mostly by one, with gaps; they also arrive in this order
zipf        as `uniform`: what is hot is a matter of the lookups (`HOT`)
adversarial dense runs at 0, at 2^64-1 and above 2^53, and keys spread over all magnitudes
=========== ================================================================================
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint64]

PAPER = ("books", "fb", "osm")
"""The sets of the paper's evaluation (6.5.2), which most bars are about."""
HOT = frozenset({"zipf"})
"""Sets whose lookups follow a Zipf law."""

_LARGEST = (1 << 64) - 1
_FB_BITS = 38
_FB_OUTLIERS = 21
_FB_BLOCK = 1000
_OSM_CLUSTERS = 20_000
_OSM_BACKGROUND = 0.1
_RUN = 64
_SOSD_FILES = {
    "books": "books_200M_uint64",
    "fb": "fb_200M_uint64",
    "osm": "osm_cellids_200M_uint64",
}


def generate(name: str, count: int, seed: int = 0, *, sosd: Path | None = None) -> Codes:
    """Return `count` unique codes in the order in which they arrive.

    Parameters
    ----------
    name : one of `NAMES`.
    count : how many codes.
    seed : equal seeds give equal codes.
    sosd : folder of SOSD's files; a set whose file is there is a random sample of it.

    Raises
    ------
    ValueError : if there is no such set, or SOSD's file has fewer than `count` keys.
    """
    if name not in _GENERATORS:
        raise ValueError(f"data set is {name!r}, needs one of {sorted(_GENERATORS)}")
    random = np.random.default_rng([seed, sorted(_GENERATORS).index(name)])
    file = sosd / _SOSD_FILES[name] if sosd is not None and name in _SOSD_FILES else None
    if file is not None and file.exists():
        return _sample(file, count, random)
    codes = _GENERATORS[name](count, random)
    if name not in _ARRIVE_IN_ORDER:
        random.shuffle(codes)
    return codes


def _sample(file: Path, count: int, random: np.random.Generator) -> Codes:
    """Return a random sample of a file of SOSD: the number of keys, then the keys."""
    keys = np.memmap(file, dtype=np.uint64, mode="r", offset=8)
    codes = _ascending(np.array(keys))
    if len(codes) < count:
        raise ValueError(f"{file} has {len(codes)} unique keys, needs at least {count}")
    random.shuffle(codes)
    return codes[:count]


def _unique(count: int, draw: Callable[[int], Codes], random: np.random.Generator) -> Codes:
    """Return `count` unique draws, ascending."""
    codes = _ascending(draw(count + count // 50 + 16))
    while len(codes) < count:
        missing = count - len(codes)
        codes = _ascending(np.concatenate([codes, draw(2 * missing + 16)]))
    if len(codes) == count:
        return codes
    dropped = random.choice(len(codes), len(codes) - count, replace=False, shuffle=False)
    return np.delete(codes, dropped)


def _ascending(codes: Codes) -> Codes:
    """Return the distinct codes, ascending: `np.unique` by sorting, which is faster here."""
    codes.sort()
    return codes[np.concatenate([[True], codes[1:] != codes[:-1]])]


def _books(count: int, random: np.random.Generator) -> Codes:
    def draw(drawn: int) -> Codes:
        # the largest of 10^9 draws is below 2^63
        return np.exp(random.standard_normal(drawn) + 37.0).astype(np.uint64)

    return _unique(count, draw, random)


def _fb(count: int, random: np.random.Generator) -> Codes:
    outliers = min(_FB_OUTLIERS, count // 2)
    ordinary = count - outliers
    density = random.lognormal(0.0, 0.5, ordinary // _FB_BLOCK + 1)
    gaps = random.exponential(1.0, ordinary)
    gaps *= np.repeat(density, _FB_BLOCK)[:ordinary]
    room = max((1 << _FB_BITS) - 2 * ordinary, ordinary)
    gaps *= room / gaps.sum()
    low = np.cumsum(gaps.astype(np.uint64) + np.uint64(1), dtype=np.uint64)
    exponents = np.sort(random.uniform(_FB_BITS + 6, 63.9, outliers))
    huge = np.exp2(exponents).astype(np.uint64)
    return np.concatenate([low, _apart(huge)])


def _apart(ascending: Codes) -> Codes:
    """Return ascending codes, equal ones moved up until none are."""
    steps = np.arange(len(ascending), dtype=np.uint64)
    return np.maximum.accumulate(ascending - steps) + steps


def _osm(count: int, random: np.random.Generator) -> Codes:
    centres = random.random((_OSM_CLUSTERS, 2))
    sizes = random.pareto(1.2, _OSM_CLUSTERS) + 0.1
    widths = np.exp2(random.uniform(-15.0, -7.0, _OSM_CLUSTERS))
    chances = sizes / sizes.sum()

    def draw(drawn: int) -> Codes:
        spread = int(drawn * _OSM_BACKGROUND)
        members = random.multinomial(drawn - spread, chances)
        cluster = np.repeat(np.arange(_OSM_CLUSTERS), members)
        points = random.standard_normal((len(cluster), 2)) * widths[cluster, None]
        points += centres[cluster]
        points = np.concatenate([points % 1.0, random.random((spread, 2))])
        cells = (points * 2.0**32).astype(np.uint64) & np.uint64(0xFFFFFFFF)
        return _spread_bits(cells[:, 0]) | (_spread_bits(cells[:, 1]) << np.uint64(1))

    return _unique(count, draw, random)


def _spread_bits(words: Codes) -> Codes:
    """Return words of 32 bits with bit i at position 2i (half of a Morton code)."""
    masks = (0x0000FFFF0000FFFF, 0x00FF00FF00FF00FF, 0x0F0F0F0F0F0F0F0F)
    for shift, mask in zip((16, 8, 4), masks, strict=True):
        words = (words | (words << np.uint64(shift))) & np.uint64(mask)
    words = (words | (words << np.uint64(2))) & np.uint64(0x3333333333333333)
    return (words | (words << np.uint64(1))) & np.uint64(0x5555555555555555)


def _uniform(count: int, random: np.random.Generator) -> Codes:
    def draw(drawn: int) -> Codes:
        return random.integers(0, _LARGEST, drawn, dtype=np.uint64, endpoint=True)

    return _unique(count, draw, random)


def _gaps(count: int, random: np.random.Generator) -> Codes:
    steps = np.ones(count, dtype=np.uint64)
    jumps = random.random(count) < 0.05
    steps[jumps] += random.geometric(0.02, int(jumps.sum())).astype(np.uint64)
    pauses = random.random(count) < 1e-4
    steps[pauses] += random.integers(1 << 10, 1 << 24, int(pauses.sum()), dtype=np.uint64)
    return np.uint64(1 << 40) + np.cumsum(steps, dtype=np.uint64)


def _adversarial(count: int, random: np.random.Generator) -> Codes:
    low = max(count // 5, 1)
    from_zero = np.arange(low, dtype=np.uint64)
    to_largest = np.uint64(_LARGEST) - from_zero
    ends = np.concatenate([from_zero, to_largest])

    def draw(drawn: int) -> Codes:
        spread = np.exp2(random.uniform(0.0, 63.999, drawn // 2 + 1)).astype(np.uint64)
        runs = random.integers(1 << 53, 1 << 63, drawn // (2 * _RUN) + 1, dtype=np.uint64)
        near = (runs[:, None] + np.arange(_RUN, dtype=np.uint64)).ravel()
        drawn_codes = np.concatenate([spread, near])
        return drawn_codes[(drawn_codes >= low) & (drawn_codes <= _LARGEST - low)]

    if count <= len(ends):
        return np.unique(np.concatenate([from_zero, to_largest]))[:count]
    return np.sort(np.concatenate([ends, _unique(count - len(ends), draw, random)]))


_GENERATORS: dict[str, Callable[[int, np.random.Generator], Codes]] = {
    "books": _books,
    "fb": _fb,
    "osm": _osm,
    "uniform": _uniform,
    "gaps": _gaps,
    "zipf": _uniform,
    "adversarial": _adversarial,
}
_ARRIVE_IN_ORDER = frozenset({"gaps"})
NAMES = tuple(_GENERATORS)
"""All sets, the paper's first."""
