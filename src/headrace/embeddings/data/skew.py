"""Frequencies of rows that made examples access."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root_scalar

from headrace.embeddings.errors import EmbeddingError


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
