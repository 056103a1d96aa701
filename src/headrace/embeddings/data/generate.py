"""Made examples in the format of Criteo's files, whose skew of accesses is known."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root_scalar

from headrace.embeddings.data.criteo import HASHES, INTEGERS
from headrace.embeddings.errors import EmbeddingError

KAGGLE_ROWS = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Distinct values of the 26 columns of Kaggle's data set."""

_SPREAD = 2_654_435_761
"""A prime of 32 bits, so that multiplication by it permutes ids and, below it, rows."""

_PART = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Frequencies of rows, from the most frequent one on.

    Attributes
    ----------
    kind : "uniform"; "zipf": row k in proportion to k ** -alpha; "top": the first 1% of rows have a
        share of all accesses, falling exponentially among them to the rate of the others, which are
        accessed alike (BagPipe, 5.4.3).
    parameter : alpha, or the share.
    """

    kind: str
    parameter: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind == "uniform" else f"{self.kind}:{self.parameter:g}"

    def draw(self, rows: int, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return `count` rows, 0 the most frequent."""
        if self.kind == "zipf":
            return _zipf(self.parameter, rows, count, generator)
        top = max(1, rows // 100)
        if self.kind == "top" and self.parameter > top / rows:
            return _top(self.parameter, top, rows, count, generator)
        return generator.integers(rows, size=count)


def parse_skew(text: str) -> Skew:
    """Read ``uniform``, ``zipf:ALPHA`` or ``top:SHARE``.

    Raises
    ------
    EmbeddingError : it is none of these.
    """
    kind, _, parameter = text.partition(":")
    if text == "uniform":
        return Skew(kind=kind)
    try:
        number = float(parameter)
    except ValueError:
        number = -1.0
    most = {"zipf": 10.0, "top": 1.0}.get(kind, -1.0)
    if not 0 <= number <= most:
        raise EmbeddingError(
            f"skew is {text!r}, needs uniform, zipf:ALPHA (0 to 10) or top:SHARE (0 to 1)"
        )
    return Skew(kind=kind, parameter=number)


def _zipf(alpha: float, rows: int, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw by rejection-inversion (Hörmann and Derflinger, 1996)."""

    def integral(x: NDArray[np.float64] | float) -> NDArray[np.float64]:
        log = np.log(x)
        return log if alpha == 1 else np.expm1((1 - alpha) * log) / (1 - alpha)

    def inverse(area: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.exp(area if alpha == 1 else np.log1p(area * (1 - alpha)) / (1 - alpha))

    low, high = integral(1.5) - 1.0, integral(rows + 0.5)
    drawn = np.empty(0, np.int64)
    while len(drawn) < count:
        areas = high + generator.random(count - len(drawn)) * (low - high)
        ranks = np.clip(np.rint(inverse(areas)), 1, rows)
        accepted = areas >= integral(ranks + 0.5) - ranks**-alpha
        drawn = np.concatenate([drawn, ranks[accepted].astype(np.int64) - 1])
    return drawn


def _top(
    share: float, top: int, rows: int, count: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw from an exponential function over the first rows that meets the others' rate."""
    ratio = share / top / max((1 - share) / max(1, rows - top), 1e-12)
    # The mean of exp(b x) over x from 0 to 1 is expm1(b) / b.
    rate = float(root_scalar(lambda b: np.log(np.expm1(b) / b / ratio), bracket=(1e-9, 700)).root)
    places = 1 - np.log1p(generator.random(count) * np.expm1(rate)) / rate
    hot = np.clip((places * top).astype(np.int64), 0, top - 1)
    if top == rows:
        return hot
    return np.where(generator.random(count) < share, hot, generator.integers(top, rows, size=count))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickSource:
    """Makes clicks that depend on an example's rows and numbers, so that a model can learn them.

    Attributes
    ----------
    rows : of every table.
    missing : share of empty fields.
    """

    skew: Skew
    rows: tuple[int, ...] = KAGGLE_ROWS
    missing: float = 0.03
    seed: int = 0
    _generator: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.rows) != HASHES:
            raise EmbeddingError(f"rows are of {len(self.rows)} tables, needs {HASHES}")
        if not 1 <= min(self.rows) <= max(self.rows) <= 1 << 32:
            raise EmbeddingError("a table's rows need 1 to 4294967296")
        object.__setattr__(self, "_generator", np.random.default_rng(self.seed))

    def lines(self, examples: int) -> Iterator[bytes]:
        """Yield the lines of so many examples, some thousands at once."""
        for start in range(0, examples, _PART):
            yield self._lines(min(_PART, examples - start))

    def _lines(self, count: int) -> bytes:
        generator = self._generator
        integers = generator.lognormal(1.5, 1.5, (count, INTEGERS)).astype(np.int64)
        logit = 0.2 * (np.log1p(integers).sum(1) - INTEGERS * 1.7) - 1.0
        texts: list[list[str]] = []
        for table, rows in enumerate(self.rows):
            hashes = self.hashes(table, self.skew.draw(rows, count, generator))
            # Half of a hash's bits are a row's effect.
            logit += 0.6 * ((hashes & 0xFFFF) / 0x8000 - 1.0)
            texts.append([f"{number:08x}" for number in hashes.tolist()])
        labels = generator.random(count) < 1 / (1 + np.exp(-logit))
        columns = [
            list(map(str, labels.astype(int).tolist())),
            *(list(map(str, column)) for column in integers.T.tolist()),
            *texts,
        ]
        for column in columns[1:]:
            for place in np.flatnonzero(generator.random(count) < self.missing):
                column[place] = ""
        lines = map("\t".join, zip(*columns, strict=True))
        return ("\n".join(lines) + "\n").encode()

    def hashes(self, table: int, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return distinct hashes of 32 bits for a table's rows, which are numbered by frequency."""
        return (ranks * _SPREAD + table * 0x9E3779B1) & 0xFFFF_FFFF


def row_counts(rows: Sequence[int], most: int | None) -> tuple[int, ...]:
    """Return the rows of tables, each at most `most`."""
    return tuple(rows) if most is None else tuple(min(count, most) for count in rows)


def write_lines(file: BinaryIO, source: ClickSource, examples: int) -> Iterator[int]:
    """Write examples to a file; yields how many are written so far."""
    written = 0
    for lines in source.lines(examples):
        file.write(lines)
        written += lines.count(b"\n")
        yield written
